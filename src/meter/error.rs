//! Reads an upstream's error, in whatever shape it comes (A2, A6, F4).
//!
//! Called by the meter (native error events, error bodies) and the gateway. Touches nothing.

use crate::protocol::Protocol;

/// An error as the upstream told it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamError {
    /// The HTTP status it stands for: its own numeric code, else what its words mean, else 500 (B94).
    pub status: u16,
    /// Its `type`.
    pub kind: Option<String>,
    /// Its `code`.
    pub code: Option<String>,
    /// Its message; may hold hosts and keys (A6).
    pub message: Option<String>,
    /// The client's own fault (A2): no failover, no cool-down.
    pub clients_fault: bool,
}

impl UpstreamError {
    /// Reads an error event's data or an HTTP error body; `None` if it holds no error.
    #[must_use]
    pub fn from_json(protocol: Protocol, json: &[u8]) -> Option<Self> {
        let _ = (protocol, json);
        None
    }
}
