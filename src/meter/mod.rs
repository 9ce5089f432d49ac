//! Reads what an event means: output, finish, usage, error, terminal (DESIGN section 1).
//!
//! Called by the relay once per event, and by the gateway once per JSON reply. Touches only
//! the bytes it is given and its own fields: no socket, no clock.

mod error;
pub mod usage;

pub use error::UpstreamError;

use crate::protocol::Protocol;
use crate::sse::Span;
use usage::{Source, Usage};

/// What one event is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// It carries output (DESIGN section 1).
    pub output: bool,
    /// Of the output: answer text, a refusal or a tool call, not only reasoning.
    pub visible: bool,
    /// It carries a `finish_reason`, a `stop_reason`, or is `response.completed` or `.incomplete`.
    pub finish: bool,
    /// It ends the stream: `[DONE]`, `message_stop`, `response.completed`, `.incomplete`, `.failed`, a native error.
    pub terminal: bool,
    /// A chat chunk without choices but with usage, no error and no filter result (U1).
    pub usage_only: bool,
    /// A native error event; [`Meter::error`] has the details.
    pub error: bool,
    /// `message_start`, `response.created`, or a chat chunk with a role.
    pub start: bool,
    /// Its data is not JSON; it is counted and passes (B130).
    pub malformed: bool,
}

/// How the answer finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A normal stop.
    Stop,
    /// A token limit cut it: `length`, `max_tokens`, `response.incomplete` for `max_output_tokens`.
    Length,
    /// Anything else: tool calls, a filter, a refusal, a pause.
    Other,
}

/// Reads one attempt's answer.
#[derive(Debug)]
pub struct Meter {
    protocol: Protocol,
}

impl Meter {
    /// `choices` is the request's `n` (chat); `None`: the indices seen count (E1).
    #[must_use]
    pub fn new(protocol: Protocol, choices: Option<u32>) -> Self {
        let _ = choices;
        Self { protocol }
    }

    /// Reads one event; `bytes` is the block that `span` points into. Comments and empty blocks are [`Facts::default`].
    pub fn event(&mut self, bytes: &[u8], span: &Span) -> Facts {
        let _ = (bytes, span, self.protocol);
        Facts::default()
    }

    /// Reads a whole JSON reply (F6, F9): usage, id, model, finish, or an error body.
    pub fn reply(&mut self, json: &[u8]) -> Facts {
        let _ = json;
        Facts::default()
    }

    /// What was reported so far, merged by rule U3.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage::default()
    }

    /// [`Source::Reported`], [`Source::Partial`] (input only) or [`Source::None`]; estimates are made elsewhere (U4).
    #[must_use]
    pub fn source(&self) -> Source {
        Source::None
    }

    /// Usage of other models inside the same answer (an advisor; U3), by that model's name.
    #[must_use]
    pub fn other_models(&self) -> &[(String, Usage)] {
        &[]
    }

    /// The output count is still `message_start`'s placeholder (B164).
    #[must_use]
    pub fn output_is_placeholder(&self) -> bool {
        false
    }

    /// Every choice, or the message, has its finish reason (E1).
    #[must_use]
    pub fn all_finished(&self) -> bool {
        false
    }

    /// How it finished; [`Finish::Length`] if any choice was cut by a limit.
    #[must_use]
    pub fn finish(&self) -> Option<Finish> {
        None
    }

    /// Whether any event carried output.
    #[must_use]
    pub fn saw_output(&self) -> bool {
        false
    }

    /// How many events carried output.
    #[must_use]
    pub fn output_events(&self) -> u64 {
        0
    }

    /// The native error, if one came.
    #[must_use]
    pub fn error(&self) -> Option<&UpstreamError> {
        None
    }

    /// The id inside the answer.
    #[must_use]
    pub fn answer_id(&self) -> Option<&str> {
        None
    }

    /// The model name the upstream gives.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        None
    }

    /// `created` or `created_at`, seconds since 1970.
    #[must_use]
    pub fn created(&self) -> Option<u64> {
        None
    }

    /// The service tier the upstream says it used (B211).
    #[must_use]
    pub fn service_tier(&self) -> Option<&str> {
        None
    }

    /// The last `sequence_number` (responses).
    #[must_use]
    pub fn last_sequence(&self) -> Option<u64> {
        None
    }

    /// Counts that could not be true: negative, absurd, broken, a part larger than its whole (B202, B203, B205).
    #[must_use]
    pub fn anomalies(&self) -> u64 {
        0
    }

    /// Events whose data is not JSON.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        0
    }
}
