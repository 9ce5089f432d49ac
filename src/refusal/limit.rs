//! What a client is told whose limit or budget is used up: which one, and when it frees (G3).
//!
//! Called by the table of reasons. Touches nothing; the moment comes in.

use super::Refusal;
use crate::config::Period;
use crate::ledger::money::Nano;
use crate::limit::{Denied, Short, Whose};
use crate::protocol::Protocol;
use std::time::{Duration, SystemTime};

/// A refusal by a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limited {
    /// Which, and when it frees.
    pub denied: Denied,
    /// When that was found.
    pub at: SystemTime,
}

impl Limited {
    /// The word in records, and the label in metrics.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self.denied.full.short {
            Short::Requests { .. } => "rpm",
            Short::Tokens { .. } | Short::TooLarge { .. } => "tpm",
            Short::Slots { .. } => "concurrent",
            Short::Budget { .. } => "budget",
        }
    }

    const fn is_budget(&self) -> bool {
        matches!(self.denied.full.short, Short::Budget { .. })
    }

    pub(super) const fn status(&self, protocol: Protocol) -> u16 {
        match protocol {
            Protocol::Messages if self.is_budget() => 402,
            Protocol::Chat | Protocol::Responses | Protocol::Messages => 429,
        }
    }

    pub(super) const fn code(&self) -> &'static str {
        if self.is_budget() { "insufficient_quota" } else { "rate_limit_exceeded" }
    }

    pub(super) fn details(&self, refusal: &mut Refusal) {
        let frees = self.denied.full.frees;
        refusal.retry_after = frees;
        match self.denied.full.short {
            Short::Requests { .. } | Short::Slots { .. } => refusal.openai_type = "requests",
            Short::Tokens { .. } => refusal.openai_type = "tokens",
            // The same request never fits.
            Short::TooLarge { .. } => {
                refusal.openai_type = "tokens";
                refusal.should_retry = Some(false);
            }
            Short::Budget { held, .. } => {
                refusal.openai_type = "insufficient_quota";
                // G3's `false` is for a budget that is used up. What running requests only hold is free again in a
                // moment, and a client that believed the `false` would give up on money that it has.
                refusal.should_retry = Some(held);
            }
        }
    }

    pub(super) fn message(&self) -> String {
        let of = match self.denied.whose {
            Whose::Key => "this API key",
            Whose::Model => "this model",
        };
        match self.denied.full.short {
            Short::Requests { most } => {
                format!("Rate limit of {of} reached: {most} requests per minute. {}", self.again())
            }
            Short::Tokens { most } => format!("Rate limit of {of} reached: {most} tokens per minute. {}", self.again()),
            Short::Slots { most } => {
                format!("Rate limit of {of} reached: {most} requests at the same time. Try again when one has ended.")
            }
            Short::TooLarge { most, asked } => format!(
                "This request may use {asked} tokens, more than the {most} tokens per minute of {of}. Send less input, \
                 or name a smaller maximum of output tokens."
            ),
            Short::Budget { budget, left, asked, held } => {
                let total = usd(budget.usd);
                let budget_of = match budget.per {
                    Period::Day | Period::Month => format!("{total} USD per {}", budget.per.word()),
                    Period::Total => format!("{total} USD in all"),
                };
                let when = match (held, budget.per) {
                    (true, _) => "The rest is held for requests that run. Try again when one has ended.".to_owned(),
                    (false, Period::Total) => "Ask the operator to raise it.".to_owned(),
                    (false, Period::Day | Period::Month) => format!("It begins anew at {}.", self.moment()),
                };
                if left > Nano(0) {
                    let (asked, left) = (usd(asked), usd(left));
                    return format!(
                        "The budget of {of} does not bear this request, which may cost {asked} USD: {left} USD of \
                         {budget_of} are left. {when}"
                    );
                }
                format!("The budget of {of} is used up: {budget_of}. {when}")
            }
        }
    }

    fn again(&self) -> String {
        let wait = self.denied.full.frees.unwrap_or_default();
        format!("Try again in {} s.", seconds(wait).max(1))
    }

    /// When it frees, to the second.
    fn moment(&self) -> String {
        let then = self.at + self.denied.full.frees.unwrap_or_default();
        humantime::format_rfc3339_seconds(then).to_string()
    }
}

/// Whole seconds, rounded up.
fn seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0))
}

/// An amount with two decimals or as many as it needs.
fn usd(amount: Nano) -> String {
    let text = amount.to_string();
    let short = text.trim_end_matches('0');
    let decimals = short.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    format!("{short}{}", "0".repeat(2_usize.saturating_sub(decimals)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Full;

    fn limited(whose: Whose, short: Short, frees: Option<Duration>) -> Limited {
        let at = humantime::parse_rfc3339("2026-11-30T22:00:00Z").unwrap();
        Limited { denied: Denied { whose, full: Full { short, frees } }, at }
    }

    #[test]
    fn g3_the_sentence_names_the_limit_and_when_it_frees() {
        let budget = |text: &str, left, held| Short::Budget {
            budget: text.parse().unwrap(),
            left: Nano(left),
            asked: Nano(61_440_000),
            held,
        };
        let hours = Some(Duration::from_hours(2));
        for (limited, expected) in [
            (
                limited(Whose::Key, Short::Requests { most: 600 }, Some(Duration::from_millis(2_100))),
                "Rate limit of this API key reached: 600 requests per minute. Try again in 3 s.",
            ),
            (
                limited(Whose::Model, Short::Tokens { most: 4_000 }, Some(Duration::ZERO)),
                "Rate limit of this model reached: 4000 tokens per minute. Try again in 1 s.",
            ),
            (
                limited(Whose::Key, Short::Slots { most: 1 }, Some(Duration::from_secs(1))),
                "Rate limit of this API key reached: 1 requests at the same time. Try again when one has ended.",
            ),
            (
                limited(Whose::Key, budget("20.00/day", 0, false), hours),
                "The budget of this API key is used up: 20.00 USD per day. It begins anew at 2026-12-01T00:00:00Z.",
            ),
            (
                limited(Whose::Key, budget("300/total", 1_000, false), None),
                "The budget of this API key does not bear this request, which may cost 0.06144 USD: 0.000001 USD of \
                 300.00 USD in all are left. Ask the operator to raise it.",
            ),
            (
                limited(Whose::Key, budget("1/month", 0, true), Some(Duration::from_secs(1))),
                "The budget of this API key is used up: 1.00 USD per month. The rest is held for requests that run. \
                 Try again when one has ended.",
            ),
        ] {
            assert_eq!(limited.message(), expected);
        }
    }
}
