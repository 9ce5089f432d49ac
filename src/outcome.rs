//! Every way a request or an attempt can end, and everything that follows from it, in one table (E5).
//!
//! Called by the relay (which names an outcome or a failure), the gateway (which answers the
//! client), and everything that records: metrics, ledger, access record. Touches nothing.

#[cfg(test)]
mod tests;

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

/// Why one attempt failed before its first content (A2), or why the stream ended after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The provider's name did not resolve.
    Resolve,
    /// Connection refused, unreachable, TLS refused.
    Connect,
    /// `timeouts.connect` ran out.
    ConnectTimeout,
    /// The connection broke while the request was sent.
    Send,
    /// `timeouts.send` ran out.
    SendTimeout,
    /// `timeouts.first_byte` ran out.
    FirstByte,
    /// The connection ended or broke before a head, or the head is malformed.
    Head,
    /// A status in `retry.on`.
    Status(u16),
    /// Bad credentials or used-up money at the provider: the operator's trouble (A6).
    Account(u16),
    /// Any other error status: the client's own.
    ClientStatus(u16),
    /// A success that is no answer: an error in a JSON body with status 200, HTML from a proxy.
    NotAnAnswer,
    /// The stream or body ended without output or finish (A2), or without output where
    /// `failover_on_empty` is set.
    Empty,
    /// The answer broke off: reset, framing error, cut compression.
    Broken,
    /// One event or reply is larger than the bounds (F2).
    TooLarge,
    /// `timeouts.idle` ran out.
    Idle,
    /// `timeouts.first_content` ran out.
    FirstContent,
    /// `timeouts.no_output` ran out.
    NoOutput,
    /// A native error event that is not the client's fault; its effective status.
    ErrorEvent(u16),
    /// A native error event that is the client's own fault.
    ClientErrorEvent(u16),
    /// `timeouts.total` ran out.
    Total,
    /// `timeouts.non_stream` ran out.
    NonStream,
    /// Every target is busy (`max_concurrent`).
    Busy,
    /// Weir is shutting down (C3).
    Draining,
    /// The key was revoked, and its running requests with it (G1).
    Revoked,
    /// The open row could not be made durable (L1, L5).
    Ledger,
}

/// What a failure means for the target's health (A6, A8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// Nothing: the client's own fault, or Weir's.
    Nobody,
    /// One more failure in a row.
    Target,
    /// Told to wait: cool down for `retry-after`.
    Throttled,
    /// The provider's key is out of credit or refused.
    Account,
}

impl Failure {
    /// The word for it in attempts, metrics and records.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Resolve => "resolve",
            Self::Connect => "connect",
            Self::ConnectTimeout => "connect_timeout",
            Self::Send => "send",
            Self::SendTimeout => "send_timeout",
            Self::FirstByte => "first_byte",
            Self::Head => "head",
            Self::Status(429) => "rate_limited",
            Self::Status(503 | 529) => "overloaded",
            Self::Status(_) => "status",
            Self::Account(_) => "account",
            Self::ClientStatus(_) => "client_status",
            Self::NotAnAnswer => "not_an_answer",
            Self::Empty => "empty",
            Self::Broken => "broken",
            Self::TooLarge => "too_large",
            Self::Idle => "idle",
            Self::FirstContent => "first_content",
            Self::NoOutput => "no_output",
            Self::ErrorEvent(_) => "error_event",
            Self::ClientErrorEvent(_) => "client_error_event",
            Self::Total => "total",
            Self::NonStream => "non_stream",
            Self::Busy => "busy",
            Self::Draining => "draining",
            Self::Revoked => "key_revoked",
            Self::Ledger => "ledger",
        }
    }

    /// Whether another target may be tried (before the commit only: A4).
    #[must_use]
    pub const fn may_retry(self) -> bool {
        match self {
            Self::Resolve
            | Self::Connect
            | Self::ConnectTimeout
            | Self::Send
            | Self::SendTimeout
            | Self::FirstByte
            | Self::Head
            | Self::Status(_)
            | Self::Account(_)
            | Self::NotAnAnswer
            | Self::Empty
            | Self::Broken
            | Self::TooLarge
            | Self::Idle
            | Self::FirstContent
            | Self::NoOutput
            | Self::ErrorEvent(_)
            | Self::Busy => true,
            Self::ClientStatus(_)
            | Self::ClientErrorEvent(_)
            | Self::Total
            | Self::NonStream
            | Self::Draining
            | Self::Revoked
            | Self::Ledger => false,
        }
    }

    /// The request's outcome when nothing else is left to try.
    #[must_use]
    pub const fn outcome(self) -> Outcome {
        match self {
            Self::Broken | Self::Head | Self::Send => Outcome::UpstreamInterrupted,
            Self::Resolve
            | Self::Connect
            | Self::ConnectTimeout
            | Self::Status(_)
            | Self::Account(_)
            | Self::NotAnAnswer
            | Self::Empty
            | Self::TooLarge
            | Self::ErrorEvent(_)
            | Self::Busy => Outcome::UpstreamError,
            Self::SendTimeout | Self::FirstByte | Self::Idle | Self::FirstContent | Self::NoOutput => Outcome::Stalled,
            Self::Total | Self::NonStream => Outcome::Timeout,
            Self::ClientStatus(_) | Self::ClientErrorEvent(_) => Outcome::ClientError,
            Self::Draining => Outcome::Drained,
            Self::Revoked => Outcome::Rejected,
            Self::Ledger => Outcome::Internal,
        }
    }

    /// Who is cooled down for it.
    #[must_use]
    pub const fn blame(self) -> Blame {
        match self {
            Self::Status(429) | Self::ErrorEvent(429) => Blame::Throttled,
            Self::Account(_) => Blame::Account,
            Self::Resolve
            | Self::Connect
            | Self::ConnectTimeout
            | Self::Send
            | Self::SendTimeout
            | Self::FirstByte
            | Self::Head
            | Self::Status(_)
            | Self::NotAnAnswer
            | Self::Empty
            | Self::Broken
            | Self::TooLarge
            | Self::Idle
            | Self::FirstContent
            | Self::NoOutput
            | Self::ErrorEvent(_)
            | Self::NonStream => Blame::Target,
            Self::ClientStatus(_)
            | Self::ClientErrorEvent(_)
            | Self::Total
            | Self::Busy
            | Self::Draining
            | Self::Revoked
            | Self::Ledger => Blame::Nobody,
        }
    }

    /// The HTTP status for the client when nothing else is left and no header was sent (A6, A7).
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Status(status) | Self::ClientStatus(status) => status,
            Self::ErrorEvent(status) | Self::ClientErrorEvent(status) => match status {
                400..=599 => status,
                _ => 502,
            },
            Self::Revoked => 401,
            Self::Account(_) | Self::Busy | Self::Draining | Self::Ledger => 503,
            Self::Resolve
            | Self::Connect
            | Self::Send
            | Self::Head
            | Self::NotAnAnswer
            | Self::Empty
            | Self::Broken
            | Self::TooLarge => 502,
            Self::ConnectTimeout
            | Self::SendTimeout
            | Self::FirstByte
            | Self::Idle
            | Self::FirstContent
            | Self::NoOutput
            | Self::Total
            | Self::NonStream => 504,
        }
    }

    /// How telling it is among several (A7): 429, then 529 and 503, other 5xx, timeouts, connect.
    #[must_use]
    pub const fn telling(self) -> u8 {
        match self {
            Self::ClientStatus(_)
            | Self::ClientErrorEvent(_)
            | Self::Total
            | Self::NonStream
            | Self::Draining
            | Self::Revoked
            | Self::Ledger => 9,
            Self::Status(429) | Self::ErrorEvent(429) => 8,
            Self::Status(503 | 529) | Self::ErrorEvent(503 | 529) => 7,
            Self::Status(_) | Self::ErrorEvent(_) | Self::NotAnAnswer | Self::Empty | Self::Broken | Self::TooLarge => {
                6
            }
            Self::Account(_) => 5,
            Self::FirstByte | Self::FirstContent | Self::Idle | Self::NoOutput | Self::SendTimeout => 4,
            Self::Send | Self::Head => 3,
            Self::ConnectTimeout => 2,
            Self::Resolve | Self::Connect => 1,
            Self::Busy => 0,
        }
    }

    /// The upstream had the whole request and may have worked on it: its owner may still bill it.
    #[must_use]
    pub const fn maybe_billed(self) -> bool {
        match self {
            Self::FirstByte
            | Self::Head
            | Self::Empty
            | Self::Broken
            | Self::TooLarge
            | Self::Idle
            | Self::FirstContent
            | Self::NoOutput
            | Self::ErrorEvent(_)
            | Self::NotAnAnswer
            | Self::Total
            | Self::NonStream => true,
            Self::Resolve
            | Self::Connect
            | Self::ConnectTimeout
            | Self::Send
            | Self::SendTimeout
            | Self::Status(_)
            | Self::Account(_)
            | Self::ClientStatus(_)
            | Self::ClientErrorEvent(_)
            | Self::Busy
            | Self::Draining
            | Self::Revoked
            | Self::Ledger => false,
        }
    }
}
