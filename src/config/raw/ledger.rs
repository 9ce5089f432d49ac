//! The file as it is written: `ledger:` and `prices:` (`billing:` is read by the ledger's own type).
//!
//! Filled by `shape`, read by `check` alone, as all of `raw`.

use crate::config::word::{Factor, FilePath, SecretText, Span, Zone};
use crate::ledger::{Durability, OnFailure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where and how each request is recorded.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct Ledger {
    /// The database file; its folder is made.
    pub(in crate::config) path: FilePath,
    /// What the end of a stream waits for.
    pub(in crate::config) durability: Durability,
    /// How often a long stream leaves what is known so far.
    pub(in crate::config) checkpoint: Span,
    /// What happens to new requests while rows cannot be written.
    pub(in crate::config) on_failure: OnFailure,
    /// How long rows are kept, once shipped if there is a sink; daily sums stay.
    pub(in crate::config) retention: Span,
    /// Where days and months begin: a name of the IANA database.
    pub(in crate::config) timezone: Zone,
    /// A PostgreSQL database that gets each row, too; default: none.
    #[serde(skip_serializing)]
    pub(in crate::config) postgres: Option<Postgres>,
}

impl Default for Ledger {
    fn default() -> Self {
        const DAY: u64 = 24 * 60 * 60;
        let seconds = |count| Span(std::time::Duration::from_secs(count));
        Self {
            path: FilePath("data/weir.db".to_owned()),
            durability: Durability::default(),
            checkpoint: seconds(5),
            on_failure: OnFailure::default(),
            retention: seconds(90 * DAY),
            timezone: Zone(jiff::tz::TimeZone::UTC),
            postgres: None,
        }
    }
}

/// A PostgreSQL database that gets each row, too.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Postgres {
    /// `postgres://user:password@host:port/database`, with `?sslmode=require` for TLS; a secret.
    #[schemars(required)]
    pub(in crate::config) url: Option<SecretText>,
    /// Rows per transaction; default 500.
    #[schemars(range(min = 1, max = 10_000))]
    pub(in crate::config) batch: Option<usize>,
}

/// What tokens cost and what they are sold for.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct Prices {
    /// Price files by provider and its model, first match wins: Weir's own YAML, or LiteLLM's JSON as it is.
    pub(in crate::config) cost: Vec<FilePath>,
    /// What clients are charged: a markup on the cost, or a price file by public model.
    pub(in crate::config) sell: Sell,
}

/// How the charge is made.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub(in crate::config) enum Sell {
    /// The cost times a factor.
    Markup(Markup),
    /// A price file by public model.
    Book(FilePath),
}

impl Default for Sell {
    fn default() -> Self {
        Self::Markup(Markup { markup: Some(Factor("1".to_owned())) })
    }
}

/// The cost times a factor.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Markup {
    /// A decimal such as "1.20"; 1 sells at cost.
    #[schemars(required)]
    pub(in crate::config) markup: Option<Factor>,
}
