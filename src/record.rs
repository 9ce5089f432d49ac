//! What is known of one request when it has ended: the fact sheet behind metrics, access record and ledger row.
//!
//! Filled by the gateway over the life of a request, handed out once by its `finish`. Touches nothing.

use crate::meter::usage::{Source, Usage};
use crate::otlp::Trace;
use crate::outcome::Outcome;
use crate::protocol::Endpoint;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use uuid::Uuid;

/// One request, from its head to its end. Durations count from `received`.
#[derive(Clone, Debug)]
pub struct Record {
    /// Weir's own id, in `x-request-id` (F10).
    pub id: Uuid,
    /// The client's `x-request-id`, if it sent one; at most 128 visible ASCII characters of it.
    pub client_request_id: Option<String>,
    /// The upstream's request id header, of the attempt that won.
    pub upstream_request_id: Option<String>,
    /// The id inside the answer (`chatcmpl-…`, `resp_…`, `msg_…`).
    pub answer_id: Option<String>,
    /// Name of the virtual key; `None` before one was recognised.
    pub key: Option<Arc<str>>,
    /// The key's tag.
    pub tag: Option<Arc<str>>,
    /// The client's address.
    pub client: Option<IpAddr>,
    /// `None`: a path that is no endpoint.
    pub endpoint: Option<Endpoint>,
    /// The public model name; `None` before it was found in the config (never what a client made up).
    pub model: Option<Arc<str>>,
    /// `provider/model` of the attempt that answered, or of the last one.
    pub target: Option<Arc<str>>,
    /// Every try, in order.
    pub attempts: Vec<Attempt>,
    /// Whether the client asked for a stream.
    pub stream: bool,
    /// The status that went to the client; 0 if none did.
    pub status: u16,
    /// The status that would have been right, where a stream was open already (K3, B94).
    pub effective_status: u16,
    /// How it ended.
    pub outcome: Outcome,
    /// A word for the cause, from Weir's own lists: `first_byte`, `reset`, `invalid_api_key`, …
    pub cause: Option<&'static str>,
    /// When the head was read.
    pub received: SystemTime,
    /// Request head read → request body read.
    pub admitted: Option<Duration>,
    /// First upstream byte of the attempt that answered.
    pub upstream_first_byte: Option<Duration>,
    /// First output read from upstream.
    pub upstream_first_output: Option<Duration>,
    /// First output written to the client (time to first token).
    pub first_output: Option<Duration>,
    /// First visible (answer text, tool call) output written.
    pub first_visible: Option<Duration>,
    /// Last output written.
    pub last_output: Option<Duration>,
    /// The end.
    pub duration: Duration,
    /// Of `duration`: waiting for the upstream, the client, the ledger. What is left is Weir's own.
    pub waited: Duration,
    /// Bytes of response body written to the client.
    pub bytes: u64,
    /// Output events written.
    pub output_events: u64,
    /// Keepalives written.
    pub keepalives: u64,
    /// The tokens.
    pub usage: Usage,
    /// Where they are from.
    pub source: Source,
    /// Service tier asked for.
    pub tier_requested: Option<String>,
    /// Service tier the upstream says it used.
    pub tier_served: Option<String>,
    /// Its place in a trace, where traces are exported.
    pub trace: Option<Box<Trace>>,
}

impl Record {
    /// Of a request that has just begun.
    #[must_use]
    pub fn new(id: Uuid, received: SystemTime) -> Self {
        Self {
            id,
            client_request_id: None,
            upstream_request_id: None,
            answer_id: None,
            key: None,
            tag: None,
            client: None,
            endpoint: None,
            model: None,
            target: None,
            attempts: Vec::new(),
            stream: false,
            status: 0,
            effective_status: 0,
            outcome: Outcome::Internal,
            cause: None,
            received,
            admitted: None,
            upstream_first_byte: None,
            upstream_first_output: None,
            first_output: None,
            first_visible: None,
            last_output: None,
            duration: Duration::ZERO,
            waited: Duration::ZERO,
            bytes: 0,
            output_events: 0,
            keepalives: 0,
            usage: Usage::default(),
            source: Source::None,
            tier_requested: None,
            tier_served: None,
            trace: None,
        }
    }

    /// Request read → first output written (M1); reading the request's body is the client's time.
    #[must_use]
    pub fn time_to_first_token(&self) -> Option<Duration> {
        self.first_output.map(|at| self.since_admitted(at))
    }

    /// Request read → first answer text or tool call written (M1).
    #[must_use]
    pub fn time_to_first_visible_token(&self) -> Option<Duration> {
        self.first_visible.map(|at| self.since_admitted(at))
    }

    /// Time per token after the first, from the first to the last output written (M1); `None` below
    /// two tokens. Reasoning that never showed (no output came before the visible one) took its
    /// time before the first output, so it is left out.
    #[must_use]
    pub fn time_per_output_token(&self) -> Option<Duration> {
        let (first, last) = (self.first_output?, self.last_output?);
        let hidden = if self.first_visible == self.first_output { self.usage.reasoning.unwrap_or(0) } else { 0 };
        let tokens = self.usage.output?.saturating_sub(hidden);
        let after_first = u32::try_from(tokens.checked_sub(1)?).ok()?;
        last.checked_sub(first)?.checked_div(after_first)
    }

    /// `duration` without the waiting for upstream, client and ledger (M1).
    #[must_use]
    pub const fn overhead(&self) -> Duration {
        self.duration.saturating_sub(self.waited)
    }

    fn since_admitted(&self, at: Duration) -> Duration {
        at.saturating_sub(self.admitted.unwrap_or_default())
    }
}

/// One try at one target.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// `provider/model`.
    pub target: Arc<str>,
    /// `ok`, or the failure's word.
    pub result: &'static str,
    /// The upstream's status, if a head came.
    pub status: Option<u16>,
    /// From the request's start.
    pub began: Duration,
    /// From the request's start.
    pub ended: Duration,
    /// A request that was sent whole and died without an answer may still be billed upstream.
    pub maybe_billed: bool,
}

#[cfg(test)]
impl Record {
    /// A completed chat stream with round numbers, to be changed by the tests that use it.
    pub(crate) fn sample() -> Self {
        let ms = Duration::from_millis;
        let attempt = |target: &str, result, began, ended| Attempt {
            target: target.into(),
            result,
            status: Some(200),
            began: ms(began),
            ended: ms(ended),
            maybe_billed: false,
        };
        Self {
            id: Uuid::from_u128(0x0192_f3a4_0000_7000_8000_0000_0000_0001),
            client_request_id: None,
            upstream_request_id: Some("req_1".to_owned()),
            answer_id: Some("chatcmpl-1".to_owned()),
            key: Some("team-a".into()),
            tag: None,
            client: Some(IpAddr::from([192, 0, 2, 7])),
            endpoint: Some(Endpoint::Chat),
            model: Some("sol".into()),
            target: Some("vllm/sol-8b".into()),
            attempts: vec![attempt("openai/sol", "connect", 10, 100), attempt("vllm/sol-8b", "ok", 100, 2000)],
            stream: true,
            status: 200,
            effective_status: 200,
            outcome: Outcome::Completed,
            cause: None,
            received: SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_001),
            admitted: Some(ms(10)),
            upstream_first_byte: Some(ms(300)),
            upstream_first_output: Some(ms(400)),
            first_output: Some(ms(410)),
            first_visible: Some(ms(510)),
            last_output: Some(ms(1410)),
            duration: ms(2000),
            waited: ms(1990),
            bytes: 5000,
            output_events: 20,
            keepalives: 2,
            usage: Usage { input: Some(100), output: Some(21), reasoning: Some(5), ..Usage::default() },
            source: Source::Reported,
            tier_requested: None,
            tier_served: None,
            trace: None,
        }
    }
}
