//! The page that tells what keys and models have used up of their limits: `/api/limits` (G2).
//!
//! Called by the admin listener. Reads the limiter.

use crate::ledger::money::Nano;
use crate::limit::{Limits, Standing};
use serde_json::{Value, json};

/// The page's path.
pub(super) const LIMITS: &str = "/api/limits";

/// What each key, and each model with limits, has used; money as decimals of USD.
pub(super) fn page(limits: Option<&Limits>) -> Value {
    let all = |standings: Vec<Standing>| standings.into_iter().map(one).collect::<Vec<_>>();
    let gateways = limits.and_then(Limits::remote).map(|remote| remote.nodes());
    json!({
        "gateways": gateways,
        "keys": limits.map(|limits| all(limits.keys())).unwrap_or_default(),
        "models": limits.map(|limits| all(limits.models())).unwrap_or_default(),
    })
}

fn one(standing: Standing) -> Value {
    let Standing { name, running, reserved, spent: [day, month, total] } = standing;
    let usd = |nano: i64| Nano(nano).to_string();
    json!({
        "name": name,
        "running": running,
        "reserved_usd": usd(reserved),
        "spent_usd": { "day": usd(day), "month": usd(month), "total": usd(total) },
    })
}
