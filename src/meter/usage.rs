//! The token vector of rule U2 and where its numbers come from.
//!
//! Filled by the meter, read by record, metrics and ledger. Touches nothing.

/// Above this a reported count is a fault of the upstream, not a number (U3).
pub const ABSURD: u64 = 1 << 40;

/// Tokens of one request (U2). `None`: not reported, which is not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All prompt tokens, cached ones included.
    pub input: Option<u64>,
    /// Of `input`: read from a cache.
    pub cache_read: Option<u64>,
    /// Of `input`: written to a five-minute cache.
    pub cache_write_5m: Option<u64>,
    /// Of `input`: written to a one-hour cache.
    pub cache_write_1h: Option<u64>,
    /// All generated tokens, reasoning included.
    pub output: Option<u64>,
    /// Of `output`: reasoning.
    pub reasoning: Option<u64>,
    /// Of `input`: audio.
    pub audio_input: Option<u64>,
    /// Of `output`: audio.
    pub audio_output: Option<u64>,
    /// Web searches (calls, not tokens).
    pub web_search: Option<u64>,
}

impl Usage {
    /// Input and output together, as limits count them; `None`: neither is known.
    #[must_use]
    pub const fn tokens(&self) -> Option<u64> {
        match (self.input, self.output) {
            (Some(input), Some(output)) => Some(input.saturating_add(output)),
            (one @ Some(_), None) | (None, one) => one,
        }
    }
}

/// Where a usage vector is from (U4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// Input and output as the upstream reported them.
    Reported,
    /// Reported input, estimated output.
    Partial,
    /// All estimated.
    Estimated,
    /// Nothing was generated, or nothing is known.
    #[default]
    None,
}

impl Source {
    /// The word in ledger and access record.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Reported => "reported",
            Self::Partial => "partial",
            Self::Estimated => "estimated",
            Self::None => "none",
        }
    }
}
