//! What the file says of the virtual keys and of the paths that go through unrouted.
//!
//! Plain data, made by the check, read by admission.

use super::{Limits, Provider};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;

/// Where keys are kept that are not in the file (G1, G4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeyStore {
    /// A database file beside the ledger.
    Sqlite,
    /// The PostgreSQL of `ledger.postgres`, shared by all gateways that use it.
    Postgres,
}

/// One path that goes through unrouted (A10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passthrough {
    /// Without the `/*`, if it had one.
    pub path: String,
    /// Whether it is a prefix.
    pub prefix: bool,
    /// Allowed methods.
    pub methods: Vec<http::Method>,
    /// Where it goes.
    pub provider: Arc<Provider>,
    /// Names of the keys that may use it; empty: none.
    pub keys: Vec<String>,
    /// The operator knows that other tenants' data lies there.
    pub shared_account: bool,
}

/// One virtual key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name in logs and records.
    pub name: String,
    /// SHA-256 of the secret.
    pub sha256: [u8; 32],
    /// `*` or names of models.
    pub models: AllowedModels,
    /// Free text for reports.
    pub tag: Option<String>,
    /// Last moment it is valid.
    pub expires: Option<std::time::SystemTime>,
    /// Empty: any.
    pub allow_ips: Vec<ipnet::IpNet>,
    /// G2.
    pub limits: Limits,
}

/// Which models a key may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedModels {
    /// `["*"]`
    All,
    /// Names as in `models[].name`.
    Named(Vec<String>),
}
