//! Decides what a request is charged for, and says why (U5).
//!
//! Called once per request when it has ended, and by recovery. Touches only what it is given.

use crate::meter::usage::{Source, Usage};
use crate::outcome::Outcome;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What an interrupted or abandoned request is charged for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
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

/// Charges nothing.
const NOTHING: Usage = Usage {
    input: None,
    cache_read: None,
    cache_write_5m: None,
    cache_write_1h: None,
    output: None,
    reasoning: None,
    audio_input: None,
    audio_output: None,
    web_search: None,
};

/// Decides. A whole answer is charged as used; a refused one is not; for all others the policy says.
#[must_use]
pub fn decide(facts: &Facts, policy: &Policy) -> Bill {
    let (usage, source) = used(facts);
    let free = |basis, why| Bill { usage, source, charged: NOTHING, basis, why };
    // A key that was revoked in the middle pays for what it got.
    let cut = facts.outcome == Outcome::Rejected && facts.output_delivered;
    let Some(basis) = policy.of(facts.outcome).or(cut.then_some(Basis::Delivered)) else {
        return match facts.outcome {
            Outcome::ClientError | Outcome::Rejected => free(Basis::Free, "refused: nothing was generated"),
            _ if source == Source::None => free(Basis::Full, "whole answer; no usage is known"),
            _ => Bill { usage, source, charged: usage, basis: Basis::Full, why: whole_answer(source) },
        };
    };
    if !facts.output_delivered {
        return free(basis, "no output was delivered");
    }
    match basis {
        Basis::Free => free(basis, "free of charge by policy"),
        Basis::Full => Bill { usage, source, charged: usage, basis, why: "all that was generated, by policy" },
        Basis::Delivered => delivered(facts, usage, source),
    }
}

/// Interrupted or abandoned, with output: what reached the client.
fn delivered(facts: &Facts, usage: Usage, source: Source) -> Bill {
    let estimate = facts.delivered_estimate.map(|tokens| facts.capped(tokens));
    let bill = |charged, why| Bill { usage, source, charged, basis: Basis::Delivered, why };
    match (facts.reported.output, estimate) {
        // Only a client that left has seen less than was reported.
        (Some(reported), Some(estimate)) if facts.outcome == Outcome::ClientGone && estimate < reported => {
            bill(with_output(usage, Some(estimate)), "reported usage, capped by the estimate of what was delivered")
        }
        (Some(_), _) => bill(usage, "reported usage"),
        (None, Some(estimate)) if facts.reported.input.is_some() => {
            bill(with_output(usage, Some(estimate)), "reported input, estimated delivered output")
        }
        (None, Some(estimate)) => bill(with_output(usage, Some(estimate)), "estimated input and delivered output"),
        (None, None) => bill(with_output(usage, None), "the delivered output could not be estimated: input only"),
    }
}

/// The vector with its gaps filled by estimates, and where it is from (U4).
fn used(facts: &Facts) -> (Usage, Source) {
    let reported = facts.reported;
    let estimate = facts.received_estimate.or(facts.delivered_estimate).map(|tokens| facts.capped(tokens));
    let generated = facts.output_delivered || estimate.is_some_and(|tokens| tokens > 0);
    let mut usage = reported;
    if usage.output.is_none() && generated {
        usage.output = estimate;
    }
    if usage.input.is_none() && (generated || reported.output.is_some()) {
        usage.input = facts.input_estimate;
    }
    let source = match (reported.input.is_some(), reported.output.is_some()) {
        (true, true) => Source::Reported,
        // An answer without output (embeddings, counted tokens) is reported whole by its input.
        (true, false) if !generated && matches!(facts.outcome, Outcome::Completed | Outcome::Truncated) => {
            Source::Reported
        }
        (true, false) if generated => Source::Partial,
        (false, true) => Source::Partial,
        (false, false) if generated && (usage.input.is_some() || usage.output.is_some()) => Source::Estimated,
        (_, false) => Source::None,
    };
    (usage, source)
}

/// Parts of the output shrink with it.
fn with_output(usage: Usage, output: Option<u64>) -> Usage {
    let within = |part: Option<u64>| part.map(|tokens| tokens.min(output.unwrap_or(0)));
    Usage { output, reasoning: within(usage.reasoning), audio_output: within(usage.audio_output), ..usage }
}

const fn whole_answer(source: Source) -> &'static str {
    match source {
        Source::Reported => "whole answer, reported usage",
        Source::Partial => "whole answer, partly estimated usage",
        Source::Estimated | Source::None => "whole answer, estimated usage",
    }
}

impl Facts {
    fn capped(&self, tokens: u64) -> u64 {
        self.max_output.map_or(tokens, |most| tokens.min(most))
    }
}

impl Policy {
    /// The basis of an outcome; `None` where no policy applies.
    const fn of(&self, outcome: Outcome) -> Option<Basis> {
        Some(match outcome {
            Outcome::Completed | Outcome::Truncated | Outcome::ClientError | Outcome::Rejected => return None,
            Outcome::ClientGone => self.client_gone,
            Outcome::UpstreamError => self.upstream_error,
            Outcome::UpstreamInterrupted => self.upstream_interrupted,
            Outcome::Stalled => self.stalled,
            Outcome::Timeout => self.timeout,
            Outcome::BudgetReached => self.budget_reached,
            Outcome::Drained => self.drained,
            Outcome::Internal => self.internal,
            Outcome::Crashed => self.crashed,
        })
    }
}

#[cfg(test)]
mod tests;
