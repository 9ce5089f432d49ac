//! Reads what an event means: output, finish, usage, error, terminal (DESIGN section 1).
//!
//! Called by the relay once per event, and by the gateway once per JSON reply. Touches only
//! the bytes it is given and its own fields: no socket, no clock.

mod chat;
mod counts;
mod error;
mod messages;
mod responses;
mod tally;
#[cfg(test)]
mod tests;
mod twin;
pub mod usage;

pub use error::UpstreamError;
pub use twin::Word;

use crate::json::{Malformed, Text, Walker};
use crate::protocol::Protocol;
use crate::sse::Span;
use tally::Tally;
use twin::Twin;
use usage::{Source, Usage};

/// Longest id, model or tier kept, in bytes; longer ones are not the upstream's own.
const MAX_WORD: usize = 256;

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
    /// `message_start`, `response.created`, or the first chat chunk with a role.
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

impl Finish {
    /// Of several choices: cut by a limit if any was, else the unusual end if any had one.
    fn worse(earlier: Option<Self>, later: Self) -> Self {
        match (earlier, later) {
            (Some(Self::Length), _) | (_, Self::Length) => Self::Length,
            (Some(Self::Other), _) | (_, Self::Other) => Self::Other,
            (Some(Self::Stop) | None, Self::Stop) => Self::Stop,
        }
    }
}

/// Reads one attempt's answer.
#[derive(Debug)]
pub struct Meter {
    protocol: Protocol,
    choices: Option<u32>,
    /// Chat choices seen and finished, by index.
    seen: u128,
    finished: u128,
    /// A stop reason, a `message_stop`, a completed or incomplete response.
    stopped: bool,
    started: bool,
    finish: Option<Finish>,
    tally: Tally,
    output_events: u64,
    malformed: u64,
    error: Option<Box<UpstreamError>>,
    answer_id: Option<Box<str>>,
    model: Option<Box<str>>,
    tier: Option<Box<str>>,
    created: Option<u64>,
    sequence: Option<u64>,
    twin: Twin,
    word: Option<Word>,
    /// The data of an event that has several data lines.
    scratch: Vec<u8>,
}

impl Meter {
    /// `choices` is the request's `n` (chat); `None`: the indices seen count (E1).
    #[must_use]
    pub fn new(protocol: Protocol, choices: Option<u32>) -> Self {
        Self {
            protocol,
            choices,
            seen: 0,
            finished: 0,
            stopped: false,
            started: false,
            finish: None,
            tally: Tally::default(),
            output_events: 0,
            malformed: 0,
            error: None,
            answer_id: None,
            model: None,
            tier: None,
            created: None,
            sequence: None,
            twin: Twin::default(),
            word: None,
            scratch: Vec::new(),
        }
    }

    /// The word of the event that was read last, if it carries just one.
    pub const fn word(&mut self) -> Option<Word> {
        self.word.take()
    }

    /// Reads one event; `bytes` is the block that `span` points into. Comments and empty blocks are [`Facts::default`].
    pub fn event(&mut self, bytes: &[u8], span: &Span) -> Facts {
        if !span.error.is_empty()
            && let Some(error) = self.error_field(bytes, span)
        {
            return self.fail(error);
        }
        if span.data_lines == 0 {
            return Facts::default();
        }
        let name = bytes.get(span.name.clone()).unwrap_or_default();
        let facts = if span.data_lines == 1 {
            self.data(span.payload(bytes, &mut Vec::new()), name)
        } else {
            let mut scratch = std::mem::take(&mut self.scratch);
            let facts = self.data(span.payload(bytes, &mut scratch), name);
            scratch.clear();
            scratch.shrink_to(MAX_WORD);
            self.scratch = scratch;
            facts
        };
        self.output_events += u64::from(facts.output);
        facts
    }

    /// Reads a whole JSON reply (F6, F9): usage, id, model, finish, or an error body.
    pub fn reply(&mut self, json: &[u8]) -> Facts {
        if json.trim_ascii_start().starts_with(b"[") {
            return UpstreamError::from_json(self.protocol, json).map_or_else(Facts::default, |error| self.fail(error));
        }
        let read = match self.protocol {
            Protocol::Chat => chat::read(self, json),
            Protocol::Responses => responses::reply(self, json),
            Protocol::Messages => messages::reply(self, json),
        };
        let facts = self.counted(read);
        self.output_events += u64::from(facts.output);
        self.tally.nothing_generated();
        facts
    }

    /// What was reported so far, merged by rule U3. Parts never exceed their whole (B202), and audio
    /// input is without what came from a cache, so that U2's parts are disjoint (B209).
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.tally.usage()
    }

    /// [`Source::Reported`], [`Source::Partial`] (one half is missing, or a placeholder) or
    /// [`Source::None`]; estimates are made elsewhere (U4).
    #[must_use]
    pub fn source(&self) -> Source {
        let usage = self.usage();
        match (usage.input, usage.output) {
            (Some(_), Some(_)) if !self.output_is_placeholder() => Source::Reported,
            (None, None) => Source::None,
            _ => Source::Partial,
        }
    }

    /// Usage of other models inside the same answer (an advisor; U3), by that model's name.
    #[must_use]
    pub fn other_models(&self) -> &[(String, Usage)] {
        self.tally.others()
    }

    /// The output count is still `message_start`'s placeholder (B164).
    #[must_use]
    pub fn output_is_placeholder(&self) -> bool {
        self.tally.output_is_placeholder()
    }

    /// Every choice, or the message, has its finish reason (E1).
    #[must_use]
    pub fn all_finished(&self) -> bool {
        match self.protocol {
            Protocol::Responses | Protocol::Messages => self.stopped,
            Protocol::Chat => match self.choices {
                Some(choices) => choices > 0 && self.finished.count_ones() >= choices.min(u128::BITS),
                None => self.seen != 0 && self.seen == self.finished,
            },
        }
    }

    /// How it finished; [`Finish::Length`] if any choice was cut by a limit.
    #[must_use]
    pub const fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Whether any event carried output.
    #[must_use]
    pub const fn saw_output(&self) -> bool {
        self.output_events > 0
    }

    /// How many events carried output.
    #[must_use]
    pub const fn output_events(&self) -> u64 {
        self.output_events
    }

    /// The native error, if one came; the first, if several did.
    #[must_use]
    pub fn error(&self) -> Option<&UpstreamError> {
        self.error.as_deref()
    }

    /// The id inside the answer.
    #[must_use]
    pub fn answer_id(&self) -> Option<&str> {
        self.answer_id.as_deref()
    }

    /// The model name the upstream gives.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// `created` or `created_at`, seconds since 1970.
    #[must_use]
    pub const fn created(&self) -> Option<u64> {
        self.created
    }

    /// The service tier the upstream says it used; the last one said (B211).
    #[must_use]
    pub fn service_tier(&self) -> Option<&str> {
        self.tier.as_deref()
    }

    /// The last `sequence_number` (responses).
    #[must_use]
    pub const fn last_sequence(&self) -> Option<u64> {
        self.sequence
    }

    /// Counts that could not be true: negative, absurd, broken, a part larger than its whole (B202, B203, B205).
    #[must_use]
    pub fn anomalies(&self) -> u64 {
        self.tally.anomalies()
    }

    /// Events whose data is not JSON.
    #[must_use]
    pub const fn malformed(&self) -> u64 {
        self.malformed
    }

    fn data(&mut self, data: &[u8], name: &[u8]) -> Facts {
        let data = data.trim_ascii();
        self.word = None;
        if let Some(known) = self.twin.knows(data) {
            self.sequence = known.number.or(self.sequence);
            self.word = known.word.map(|at| Word { at, is_known: true });
            if let Some(usage) = known.usage {
                chat::note_usage(self, usage, None);
            }
            return known.facts;
        }
        match data.first() {
            None => return Facts::default(),
            Some(b'{') => {}
            Some(_) if data == b"[DONE]" => {
                return Facts { terminal: self.protocol == Protocol::Chat, ..Facts::default() };
            }
            // `null` and other values that are no object: a prelude, if JSON at all (B70).
            Some(_) => {
                let mut walker = Walker::new(data);
                let read = walker.skip().and_then(|_| walker.end());
                return self.counted(read.map(|()| Facts::default()));
            }
        }
        let read = match self.protocol {
            Protocol::Chat => chat::read(self, data),
            Protocol::Responses => responses::read(self, data, name),
            Protocol::Messages => messages::read(self, data, name),
        };
        self.word = self.twin.learnt();
        self.counted(read)
    }

    fn counted(&mut self, read: Result<Facts, Malformed>) -> Facts {
        read.unwrap_or_else(|_| {
            self.malformed += 1;
            Facts { malformed: true, ..Facts::default() }
        })
    }

    /// An SSE field named `error` is a native error if it holds JSON that is one (F4, B20).
    fn error_field(&self, bytes: &[u8], span: &Span) -> Option<UpstreamError> {
        let field = bytes.get(span.error.clone()).unwrap_or_default();
        let mut walker = Walker::new(field);
        walker.skip().and_then(|_| walker.end()).ok()?;
        let known = UpstreamError::from_json(self.protocol, field);
        known.or_else(|| field.trim_ascii().starts_with(b"{").then(UpstreamError::unknown))
    }

    /// A native error event.
    fn fail(&mut self, error: UpstreamError) -> Facts {
        self.error.get_or_insert_with(|| Box::new(error));
        Facts { error: true, terminal: true, ..Facts::default() }
    }

    /// Keeps the first id, model and time, and the latest tier; nothing is allocated for what is known.
    fn note_identity(
        &mut self,
        id: Option<Text<'_>>,
        model: Option<Text<'_>>,
        tier: Option<Text<'_>>,
        created: Option<&[u8]>,
    ) {
        if self.answer_id.is_none() {
            self.answer_id = id.and_then(kept);
        }
        if self.model.is_none() {
            self.model = model.and_then(kept);
        }
        if self.created.is_none() {
            self.created = created.and_then(counts::whole).filter(|created| *created > 0);
        }
        if let Some(tier) = tier
            && self.tier.as_deref().map(str::as_bytes) != Some(tier.raw())
        {
            self.twin.forget();
            self.tier = kept(tier).or_else(|| self.tier.take());
        }
    }
}

/// A word worth keeping: not empty, not absurdly long.
fn kept(text: Text<'_>) -> Option<Box<str>> {
    text.decoded().filter(|word| !word.is_empty() && word.len() <= MAX_WORD).map(|word| word.into_owned().into())
}
