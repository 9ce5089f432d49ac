//! Decides what a request is charged for, and says why (U5).
//!
//! Called once per request when it has ended, and by recovery. Touches only what it is given.

use crate::meter::usage::{Source, Usage};
use crate::outcome::Outcome;
use serde::Deserialize;

/// What an interrupted or abandoned request is charged for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// What reached the client.
    #[default]
    Delivered,
    /// All that the upstream generated, as far as known.
    Full,
    /// Nothing; the usage is kept.
    Free,
}

impl Basis {
    /// The word in config and ledger.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Full => "full",
            Self::Free => "free",
        }
    }
}

/// The `billing:` section: the basis by outcome, for those that are no whole answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// The client left.
    pub client_gone: Basis,
    /// The upstream answered with an error, in the stream.
    pub upstream_error: Basis,
    /// The upstream's answer broke off.
    pub upstream_interrupted: Basis,
    /// The upstream went silent.
    pub stalled: Basis,
    /// `total` or `non_stream` ran out.
    pub timeout: Basis,
    /// A budget cut it.
    pub budget_reached: Basis,
    /// Weir was shutting down.
    pub drained: Basis,
    /// A fault of Weir's own.
    pub internal: Basis,
    /// Settled by recovery.
    pub crashed: Basis,
}

/// What is known when the decision is made.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// How it ended.
    pub outcome: Outcome,
    /// As reported. `output` is left out while it is `message_start`'s placeholder (B164).
    pub reported: Usage,
    /// Any output reached the client.
    pub output_delivered: bool,
    /// Prompt tokens as admission estimated them.
    pub input_estimate: Option<u64>,
    /// Estimate of the output delivered to the client (when it left, if it left).
    pub delivered_estimate: Option<u64>,
    /// Estimate of all output received from upstream, if it differs (drain).
    pub received_estimate: Option<u64>,
    /// The request's token maximum; an estimate never exceeds it.
    pub max_output: Option<u64>,
}

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bill {
    /// What was used, estimates filled in: for the record and for `cost`.
    pub usage: Usage,
    /// Where `usage` is from.
    pub source: Source,
    /// What the client is charged for: for `charge`.
    pub charged: Usage,
    /// By which rule.
    pub basis: Basis,
    /// A short sentence for the record.
    pub why: &'static str,
}

/// Decides.
#[must_use]
pub fn decide(facts: &Facts, policy: &Policy) -> Bill {
    let _ = policy;
    Bill { usage: facts.reported, source: Source::None, charged: facts.reported, basis: Basis::Full, why: "" }
}
