//! The file as it is written: budgets, and `limits:`.
//!
//! Filled by `shape`, read by `check` alone, as all of `raw`.

use crate::config::limits::Period;
use crate::config::word::Usd;
use schemars::JsonSchema;
use serde::Deserialize;

/// What a key may be charged in a period.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Budget {
    /// USD as a decimal, such as "20.00".
    #[schemars(required)]
    pub(in crate::config) usd: Option<Usd>,
    /// In which time; days and months begin in `ledger.timezone`.
    #[schemars(required)]
    pub(in crate::config) per: Option<Period>,
}
