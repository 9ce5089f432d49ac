//! The ledger's sections of the operator's file: `ledger:` and `prices:` (`billing:` is [`super::billing::Policy`]).
//!
//! Read by the configuration, which hands out the checked types. Touches nothing.

use crate::config::Secret;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// L1.
const CHECKPOINT: Duration = Duration::from_secs(5);
/// A quarter: longer than any invoice stays open.
const RETENTION: Duration = Duration::from_hours(90 * 24);
/// Rows per transaction of the sink, if the file says nothing: about half a megabyte.
pub const BATCH: usize = 500;

/// The checked `ledger:` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerConfig {
    /// The database file.
    pub path: PathBuf,
    /// What the terminal event waits for.
    pub durability: Durability,
    /// How often long streams leave a checkpoint.
    pub checkpoint: Duration,
    /// What happens to new requests when rows cannot be written.
    pub on_failure: OnFailure,
    /// How long rows are kept; daily aggregates stay.
    pub retention: Duration,
    /// Where days begin.
    pub timezone: jiff::tz::TimeZone,
    /// The sink.
    pub postgres: Option<PostgresConfig>,
}

impl LedgerConfig {
    /// The defaults of every key.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            durability: Durability::default(),
            checkpoint: CHECKPOINT,
            on_failure: OnFailure::default(),
            retention: RETENTION,
            timezone: jiff::tz::TimeZone::UTC,
            postgres: None,
        }
    }
}

/// What the terminal event waits for (L1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Nothing: the settle follows within a commit.
    #[default]
    Group,
    /// The settle's commit.
    Strict,
}

/// L5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// New requests get 503.
    #[default]
    Reject,
    /// They are served; their rows wait in memory.
    Serve,
}

/// The PostgreSQL sink (L4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresConfig {
    /// `postgres://…`; `sslmode` as libpq, but `require` verifies too; `sslrootcert` names a PEM file.
    pub url: Secret,
    /// Rows per transaction.
    pub batch: usize,
}

/// The checked `prices:` section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriceConfig {
    /// Cost books, first match wins.
    pub cost: Vec<PathBuf>,
    /// What is charged.
    pub sell: Sell,
}

/// How the charge is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sell {
    /// The cost book times this decimal, `"1.20"`.
    Markup(String),
    /// A book by public model.
    Book(PathBuf),
}

impl Default for Sell {
    fn default() -> Self {
        Self::Markup("1".to_owned())
    }
}
