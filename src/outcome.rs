//! Every way a request or an attempt can end, and everything that follows from it, in one table (E5).
//!
//! Called by the relay (which names an outcome or a failure), the gateway (which answers the
//! client), and everything that records: metrics, ledger, access record. Touches nothing.

/// How a request ended: the one word of rule E5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The whole answer went to the client.
    Completed,
    /// Complete, but cut by a token limit (`length`, `max_tokens`, `response.incomplete`).
    Truncated,
    /// The client left or stopped reading.
    ClientGone,
    /// The upstream refused the request as the client's own fault.
    ClientError,
    /// The upstream answered with an error.
    UpstreamError,
    /// The upstream's answer broke off.
    UpstreamInterrupted,
    /// The upstream went silent (S1).
    Stalled,
    /// `total` or `non_stream` ran out.
    Timeout,
    /// Weir refused the request: key, limit, body, model, load.
    Rejected,
    /// A budget ran out in the middle, with `on_reached: cut`.
    BudgetReached,
    /// Weir was shutting down.
    Drained,
    /// A fault of Weir's own.
    Internal,
    /// Written by recovery after the process died.
    Crashed,
}

impl Outcome {
    /// All outcomes, for the metrics table and tests.
    pub const ALL: [Self; 13] = [
        Self::Completed,
        Self::Truncated,
        Self::ClientGone,
        Self::ClientError,
        Self::UpstreamError,
        Self::UpstreamInterrupted,
        Self::Stalled,
        Self::Timeout,
        Self::Rejected,
        Self::BudgetReached,
        Self::Drained,
        Self::Internal,
        Self::Crashed,
    ];

    /// The word in metrics, ledger and access record.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Truncated => "truncated",
            Self::ClientGone => "client_gone",
            Self::ClientError => "client_error",
            Self::UpstreamError => "upstream_error",
            Self::UpstreamInterrupted => "upstream_interrupted",
            Self::Stalled => "stalled",
            Self::Timeout => "timeout",
            Self::Rejected => "rejected",
            Self::BudgetReached => "budget_reached",
            Self::Drained => "drained",
            Self::Internal => "internal",
            Self::Crashed => "crashed",
        }
    }

    /// Whether it counts against the service in an availability objective.
    #[must_use]
    pub const fn is_fault(self) -> bool {
        match self {
            Self::UpstreamError
            | Self::UpstreamInterrupted
            | Self::Stalled
            | Self::Timeout
            | Self::Internal
            | Self::Crashed => true,
            Self::Completed
            | Self::Truncated
            | Self::ClientGone
            | Self::ClientError
            | Self::Rejected
            | Self::BudgetReached
            | Self::Drained => false,
        }
    }
}
