//! The file as it is written: budgets, and `limits:`.
//!
//! Filled by `shape`, read by `check` alone, as all of `raw`.

use crate::config::limits::{OnStoreFailure, Period};
use crate::config::word::{SecretText, Usd};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where limits and budgets are counted.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct LimitStore {
    /// In this process, or in one store for several gateways; default local.
    #[serde(skip_serializing)]
    pub(in crate::config) store: Option<Store>,
    /// What happens while the store is away: each gateway lets through its share, or 503.
    pub(in crate::config) on_failure: OnStoreFailure,
}

/// Where they are counted.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum Store {
    /// In this process.
    Local,
    /// Redis or Valkey, such as `{ redis: "redis://10.0.0.9:6379" }`, or `rediss://` with TLS; a secret.
    Redis(SecretText),
}

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
