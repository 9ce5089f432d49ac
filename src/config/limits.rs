//! What a key or a model may use up: requests, tokens, slots, money (G2).
//!
//! Plain data, made by the check and by the key store, read by the limiter. Touches nothing.

use super::Secret;
use crate::ledger::money::{Decimal, Nano};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Most requests or tokens in a minute; sums of a window stay far from overflow.
pub const MAX_PER_MINUTE: u64 = 1_000_000_000_000;
/// More than one machine has ports for, by far.
pub const MAX_CONCURRENT: u64 = 10_000_000;
/// 1,000 million USD: beyond it is a slip of the pen, and nano-USD of several such budgets still fit.
const MAX_BUDGET: i64 = 1_000_000_000 * 1_000_000_000;

/// Limits of a key or of a model; a model has no budgets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests in any minute; at least 1.
    pub rpm: Option<u64>,
    /// Tokens in any minute, input and output together; at least 1.
    pub tpm: Option<u64>,
    /// Requests at the same time; at least 1.
    pub concurrent: Option<u64>,
    /// Money, several windows at once; each period at most once.
    pub budgets: Vec<Budget>,
    /// What happens to a running stream when a budget is used up.
    pub on_reached: OnReached,
}

impl Limits {
    /// Nothing is bounded.
    pub const NONE: Self =
        Self { rpm: None, tpm: None, concurrent: None, budgets: Vec::new(), on_reached: OnReached::Finish };

    /// Whether there is nothing to be checked.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.rpm.is_none() && self.tpm.is_none() && self.concurrent.is_none() && self.budgets.is_empty()
    }
}

/// What may be charged in a period. Written `20.00/day` where it has to fit into one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The most that may be charged; more than 0.
    pub usd: Nano,
    /// In which time.
    pub per: Period,
}

/// The window of a budget. Days and months begin in `ledger.timezone`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Period {
    /// A calendar day.
    Day,
    /// A calendar month.
    Month,
    /// For ever.
    Total,
}

impl Period {
    /// Its word in files, commands and messages.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
            Self::Total => "total",
        }
    }
}

/// What happens to a running stream when a budget of its key is used up (G2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnReached {
    /// It runs to its end.
    #[default]
    Finish,
    /// It is ended between two events (E3).
    Cut,
}

impl OnReached {
    /// Its word in files and commands.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Finish => "finish",
            Self::Cut => "cut",
        }
    }
}

/// Where limits and budgets are counted (G4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitStore {
    /// Redis or Valkey, with other gateways; `None`: in this process.
    pub redis: Option<Secret>,
    /// What happens while that is away.
    pub on_failure: OnStoreFailure,
}

/// What happens to requests while the shared store of limits is away (G4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnStoreFailure {
    /// Each gateway lets through its share of every limit.
    #[default]
    Local,
    /// Requests of limited keys and models get 503.
    Reject,
}

/// A text that is no budget, with what to write instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a budget such as 20.00/day, 300/month or 1000/total, in USD")]
pub struct BadBudget;

/// Reads USD as a decimal such as `20.00`, exactly: at most nine decimals, more than 0, at most 1,000 million.
#[must_use]
pub fn usd(text: &str) -> Option<Nano> {
    let amount = Decimal::parse(text).ok()?.nano()?;
    (1..=MAX_BUDGET).contains(&amount.0).then_some(amount)
}

impl FromStr for Period {
    type Err = BadBudget;

    fn from_str(text: &str) -> Result<Self, BadBudget> {
        [Self::Day, Self::Month, Self::Total].into_iter().find(|period| period.word() == text).ok_or(BadBudget)
    }
}

impl FromStr for Budget {
    type Err = BadBudget;

    fn from_str(text: &str) -> Result<Self, BadBudget> {
        let (amount, per) = text.split_once('/').ok_or(BadBudget)?;
        Ok(Self { usd: usd(amount).ok_or(BadBudget)?, per: per.parse()? })
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = self.usd.to_string();
        let amount = amount.strip_suffix("0000000").unwrap_or_else(|| amount.trim_end_matches('0'));
        write!(f, "{amount}/{}", self.per.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g2_budgets_are_read_exactly() {
        let nano = |usd, per| Ok(Budget { usd: Nano(usd), per });
        for (text, expected) in [
            ("20.00/day", nano(20_000_000_000, Period::Day)),
            ("300/month", nano(300_000_000_000, Period::Month)),
            ("0.000000001/total", nano(1, Period::Total)),
            ("1000000000/total", nano(1_000_000_000_000_000_000, Period::Total)),
            ("1000000000.01/total", Err(BadBudget)),
            ("0.0000000001/day", Err(BadBudget)),
            ("0/day", Err(BadBudget)),
            ("-1/day", Err(BadBudget)),
            ("20", Err(BadBudget)),
            ("20/week", Err(BadBudget)),
            ("/day", Err(BadBudget)),
        ] {
            assert_eq!(text.parse::<Budget>(), expected, "{text}");
        }
    }

    #[test]
    fn g2_budgets_print_as_they_are_written() {
        for text in ["20.00/day", "0.50/month", "0.000000001/total", "12.345/day"] {
            assert_eq!(text.parse::<Budget>().map(|budget| budget.to_string()).as_deref(), Ok(text));
        }
    }
}
