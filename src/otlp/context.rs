//! A request's place in its trace: W3C Trace Context in, the attempt's own place out.
//!
//! Made by the gateway when a request begins, and only if traces are exported. Touches nothing.

use http::{HeaderMap, HeaderName};
use pingora_http::RequestHeader;

/// The header that names trace, parent and flags.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// What the systems of a trace tell each other besides.
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Of the flags: somebody up the trace records it.
const SAMPLED: u8 = 1;
/// Of the flags: those that version 00 knows (sampled, random).
const KNOWN_FLAGS: u8 = 3;
/// What the specification asks to be passed on at least.
const MAX_STATE_BYTES: usize = 512;
/// `00-`, 32 digits, `-`, 16 digits, `-`, 2 digits.
const LENGTH: usize = 55;

/// A request's place in its trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    pub(super) id: [u8; 16],
    /// The client's span; `None`: the trace begins here.
    pub(super) parent: Option<[u8; 8]>,
    /// The request's own span.
    pub(super) span: [u8; 8],
    pub(super) flags: u8,
    pub(super) state: String,
    /// One for each attempt, in order.
    pub(super) hops: Vec<Hop>,
    /// The model that the last answer names.
    pub(super) answered: Option<String>,
}

/// One attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hop {
    pub(super) span: [u8; 8],
    /// Where it went; `None`: it never came so far.
    pub(super) server: Option<Server>,
}

/// Where an attempt goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The provider's name in the config.
    pub provider: String,
    /// The model's name there; `None`: passthrough.
    pub model: Option<String>,
    /// Host name or address.
    pub address: String,
    /// Its port.
    pub port: u16,
}

impl Trace {
    /// Goes on with the client's trace; without a valid `traceparent` a new one begins, and is recorded.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let mut given = headers.get_all(TRACEPARENT).iter();
        let one = given.next().filter(|_| given.next().is_none());
        let (id, parent, flags) = match one.and_then(|value| read(value.as_bytes())) {
            Some((id, parent, flags)) => (id, Some(parent), flags),
            None => (fastrand::u128(1..).to_be_bytes(), None, SAMPLED),
        };
        let state = parent.map(|_| state(headers)).unwrap_or_default();
        Self { id, parent, span: new_span(), flags, state, hops: Vec::new(), answered: None }
    }

    /// Whether it is recorded: as the client says, where the client has a trace.
    #[must_use]
    pub const fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// One attempt begins.
    pub fn attempt_begins(&mut self) {
        self.hops.push(Hop { span: new_span(), server: None });
        self.answered = None;
    }

    /// The answer names its model.
    pub fn answered_by(&mut self, model: Option<String>) {
        self.answered = model;
    }

    /// The attempt's head is made: the upstream's parent is the attempt, not the client.
    ///
    /// # Errors
    /// None that could happen: the value is hex.
    pub fn goes_up(&mut self, server: Server, head: &mut RequestHeader) -> pingora_core::Result<()> {
        if self.parent.is_none() {
            head.remove_header(&TRACESTATE); // of a trace that nobody could read
        }
        let Some(hop) = self.hops.last_mut() else { return Ok(()) };
        hop.server = Some(server);
        let (id, span) = (const_hex::encode(self.id), const_hex::encode(hop.span));
        head.insert_header(TRACEPARENT, format!("00-{id}-{span}-{:02x}", self.flags))
    }
}

fn new_span() -> [u8; 8] {
    fastrand::u64(1..).to_be_bytes()
}

/// Trace, parent and flags. A later version may have more behind them.
pub(super) fn read(value: &[u8]) -> Option<([u8; 16], [u8; 8], u8)> {
    let (text, rest) = value.split_at_checked(LENGTH)?;
    let mut parts = text.split(|byte| *byte == b'-');
    let [version] = hex::<1>(parts.next()?)?;
    let (id, parent) = (hex::<16>(parts.next()?)?, hex::<8>(parts.next()?)?);
    let [flags] = hex::<1>(parts.next()?)?;
    let whole = match version {
        0 => rest.is_empty(),
        0xff => false,
        _ => rest.first().is_none_or(|byte| *byte == b'-'),
    };
    let named = id != [0; 16] && parent != [0; 8];
    (whole && named && parts.next().is_none()).then_some((id, parent, flags & KNOWN_FLAGS))
}

/// Exactly as many digits, in lower case.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let lower = digits.len() == 2 * N && digits.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    lower.then(|| const_hex::decode_to_array(digits).ok()).flatten()
}

/// The client's `tracestate`, for the spans; nothing if it is too long.
fn state(headers: &HeaderMap) -> String {
    let values = headers.get_all(TRACESTATE).iter().filter_map(|value| value.to_str().ok());
    let whole = values.collect::<Vec<_>>().join(",");
    if whole.len() <= MAX_STATE_BYTES { whole } else { String::new() }
}
