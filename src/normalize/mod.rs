//! Gives the answers of all providers one shape, where the operator asks for it (N1 to N5).
//!
//! Called by the relay, once per whole event of an attempt, and by the gateway, once per whole
//! reply. Touches only its own fields: no socket, no clock. A normaliser exists only where the
//! provider's settings ask for one.
//!
//! Events are changed in place: what needs no change stays as the same bytes, deltas are never split,
//! merged, reordered or escaped anew (N3).

mod chat;
mod edit;
mod frame;
mod named;
mod repair;
#[cfg(test)]
mod tests;

pub use repair::Repairs;

use crate::config::{ErrorBodies, Origin, Provider, StreamErrors, Target, UsageChunk};
use crate::meter::{Facts, UpstreamError};
use crate::protocol::{Endpoint, Protocol};
use crate::refusal::{Ending, ErrorParts, MaskList, ending::response_error};
use crate::sse::Span;
use bytes::{Bytes, BytesMut};
use chat::{Chat, Fate};
use edit::Edits;
use named::{Parts, Wanted};
use repair::Repair;
use std::sync::Arc;

/// Chunks without an id that wait for the one that tells it; no provider sends more than one.
const MAX_WAITING: usize = 16;
/// What `response.error.code` may be in a failed response (E2).
const RESPONSE_CODES: [&str; 3] = ["rate_limit_exceeded", "server_error", "invalid_prompt"];

/// What the operator asks of a provider's answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// N1: the client's model name instead of the upstream's.
    pub rewrite_model: bool,
    /// N2: one shape.
    pub normalize: bool,
    /// N4: `usage_chunk: strict`.
    pub usage_chunk_strict: bool,
    /// N5: `stream_errors: native`.
    pub native_errors: bool,
}

impl Settings {
    /// As the file says.
    #[must_use]
    pub const fn of(provider: &Provider) -> Self {
        Self {
            rewrite_model: provider.rewrite_model,
            normalize: provider.normalize,
            usage_chunk_strict: matches!(provider.usage_chunk, UsageChunk::Strict),
            native_errors: matches!(provider.stream_errors, StreamErrors::Native),
        }
    }

    /// What of it means anything at an endpoint; `None`: nothing does.
    #[must_use]
    fn at(self, endpoint: Endpoint) -> Option<Self> {
        let chat = matches!(endpoint, Endpoint::Chat | Endpoint::Completions);
        let known = matches!(endpoint, Endpoint::Chat | Endpoint::Responses | Endpoint::Messages);
        let here = Self {
            rewrite_model: self.rewrite_model,
            normalize: self.normalize && known,
            usage_chunk_strict: self.usage_chunk_strict && chat,
            native_errors: self.native_errors && endpoint.streams(),
        };
        (here != Self::default()).then_some(here)
    }
}

/// What of the request matters to the answer's shape.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Where it went.
    pub endpoint: Endpoint,
    /// The model's name as the client sent it.
    pub model: &'a str,
    /// Whether the client asked for the usage chunk.
    pub include_usage: bool,
    /// Weir's id of the request, for answers that have no id.
    pub request_id: &'a str,
    /// When it was received, in seconds since 1970, for answers that have no time.
    pub created_at: u64,
}

/// What goes to the client instead of one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The event as it is.
    Keep,
    /// Nothing now; what is still needed of it comes with a later event.
    Drop,
    /// These bytes, whole events.
    Replace(Bytes),
    /// A native error event of Weir's own, which ends the stream (N5).
    Fail(Ending),
}

/// Reads one attempt's answer.
#[derive(Debug)]
pub struct Normalizer {
    settings: Settings,
    protocol: Protocol,
    /// Whose errors are shown, and what must not be shown of them; `None`: nothing is hidden.
    target: Option<Arc<Target>>,
    public_model: String,
    chat: Chat,
    /// The client's name of the model, as JSON.
    model: Vec<u8>,
    /// Chunks that wait for the answer's id.
    waiting: Vec<(Bytes, Span)>,
    next_sequence: u64,
    sequenced: bool,
    parts: Parts,
    repairs: Repairs,
    /// The data of an event that has several data lines.
    scratch: Vec<u8>,
}

impl Normalizer {
    /// `None`: this target's answers stay as they are.
    #[must_use]
    pub fn of(target: &Arc<Target>, asked: &Asked<'_>) -> Option<Self> {
        Self::new(Settings::of(&target.provider), asked, Some(Arc::clone(target)))
    }

    /// By settings alone; repairs are counted for `target`, if there is one.
    #[must_use]
    pub fn new(settings: Settings, asked: &Asked<'_>, target: Option<Arc<Target>>) -> Option<Self> {
        let settings = settings.at(asked.endpoint)?;
        Some(Self {
            settings,
            protocol: asked.endpoint.protocol(),
            target,
            public_model: asked.model.to_owned(),
            chat: Chat::new(settings, asked),
            model: chat::quoted(asked.model),
            waiting: Vec::new(),
            next_sequence: 0,
            sequenced: false,
            parts: Parts::default(),
            repairs: Repairs::default(),
            scratch: Vec::new(),
        })
    }

    /// One whole event; `span` points into `bytes`, `facts` and `error` are the meter's.
    pub fn event(&mut self, bytes: &Bytes, span: &Span, facts: Facts, error: Option<&UpstreamError>) -> Change {
        if facts.error {
            return self.error(bytes, span, error);
        }
        if span.data_lines == 0 || facts.malformed {
            return Change::Keep;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let payload = span.payload(bytes, &mut scratch);
        let change = match self.protocol {
            Protocol::Chat if facts.terminal => self.done(bytes, span),
            Protocol::Chat => self.chunk(bytes, span, payload, facts),
            Protocol::Responses | Protocol::Messages => self.named(bytes, span, payload, None),
        };
        scratch.clear();
        self.scratch = scratch;
        change
    }

    /// What the client is still owed before the terminal event, where Weir writes that one itself (E1, N4).
    pub fn before_terminal(&mut self) -> Option<Bytes> {
        let mut out = BytesMut::new();
        self.release(&mut out);
        if let Some(usage) = self.chat.usage_chunk() {
            out.extend_from_slice(&usage);
        }
        (!out.is_empty()).then(|| out.freeze())
    }

    /// A whole JSON reply that is no error. What it needs is changed in place.
    #[must_use]
    pub fn reply(&mut self, json: &Bytes) -> Bytes {
        let edits = match self.protocol {
            Protocol::Chat => self.chat.reply(json),
            Protocol::Responses | Protocol::Messages => {
                let wanted = Wanted { model: self.model_wanted(), ..Wanted::default() };
                let mut repairs = self.repairs;
                let edits = named::reply(json, &wanted, &mut repairs);
                self.repairs = repairs;
                edits
            }
        };
        match edits {
            Ok(edits) if !edits.is_empty() => {
                let mut out = Vec::with_capacity(json.len() + 128);
                edits.apply(json, &mut out);
                Bytes::from(out)
            }
            Ok(_) | Err(_) => json.clone(),
        }
    }

    /// N1: whether the client's name of the model stands in the events.
    #[must_use]
    pub const fn rewrites_model(&self) -> bool {
        self.settings.rewrite_model
    }

    /// The number of the event after the last one, where they were counted (responses).
    #[must_use]
    pub fn next_sequence(&self) -> Option<u64> {
        self.sequenced.then_some(self.next_sequence)
    }

    /// What was changed so far.
    #[must_use]
    pub const fn repairs(&self) -> Repairs {
        self.repairs.and(self.chat.repairs)
    }

    /// `[DONE]`, after what is owed.
    fn done(&mut self, bytes: &Bytes, span: &Span) -> Change {
        match self.before_terminal() {
            None => Change::Keep,
            Some(owed) => {
                let mut out = BytesMut::from(&owed[..]);
                out.extend_from_slice(bytes.get(span.start..span.end).unwrap_or_default());
                Change::Replace(out.freeze())
            }
        }
    }

    fn chunk(&mut self, bytes: &Bytes, span: &Span, payload: &[u8], facts: Facts) -> Change {
        let said = facts.output || facts.finish;
        if !said && self.waiting.len() < MAX_WAITING && self.chat.waits_for_identity(payload) {
            self.waiting.push((bytes.clone(), span.clone()));
            return Change::Drop;
        }
        self.chat.settle(payload);
        if self.waiting.is_empty() {
            return self.rewritten(bytes, span, payload);
        }
        let mut out = BytesMut::new();
        self.release(&mut out);
        match self.rewritten(bytes, span, payload) {
            Change::Keep => out.extend_from_slice(bytes.get(span.start..span.end).unwrap_or_default()),
            Change::Replace(event) => out.extend_from_slice(&event),
            // The LF that this one still waits for will end the ones before it.
            Change::Drop | Change::Fail(_) if out.ends_with(frame::owed(bytes, span)) => {
                out.truncate(out.len() - frame::owed(bytes, span).len());
            }
            Change::Drop | Change::Fail(_) => {}
        }
        if out.is_empty() { Change::Drop } else { Change::Replace(out.freeze()) }
    }

    /// The chunks that waited: what they are called is known by now, or will never be.
    fn release(&mut self, out: &mut BytesMut) {
        for (bytes, span) in std::mem::take(&mut self.waiting) {
            let mut scratch = Vec::new();
            let payload = span.payload(&bytes, &mut scratch);
            match self.rewritten(&bytes, &span, payload) {
                Change::Keep => out.extend_from_slice(bytes.get(span.start..span.end).unwrap_or_default()),
                Change::Replace(event) => out.extend_from_slice(&event),
                Change::Drop | Change::Fail(_) => continue,
            }
            out.extend_from_slice(frame::owed(&bytes, &span));
        }
    }

    fn rewritten(&mut self, bytes: &Bytes, span: &Span, payload: &[u8]) -> Change {
        match self.chat.chunk(payload) {
            Ok(Fate::Stays(edits)) => changed(bytes, span, payload, edits, None),
            Ok(Fate::Goes) => Change::Drop,
            Ok(Fate::Usage(edits)) => {
                let mut event = frame::event(bytes, span, payload, edits, None);
                event.extend_from_slice(frame::owed(bytes, span));
                self.chat.hold(event);
                Change::Drop
            }
            Err(_) => Change::Keep,
        }
    }

    fn named(&mut self, bytes: &Bytes, span: &Span, payload: &[u8], error: Option<Vec<u8>>) -> Change {
        let counts = self.settings.normalize && self.protocol == Protocol::Responses;
        let wanted = Wanted { model: self.model_wanted(), sequence: counts.then_some(self.next_sequence), error };
        let mut repairs = self.repairs;
        let found = named::event(payload, &wanted, &mut repairs);
        self.repairs = repairs;
        let Ok(Some(mut found)) = found else { return Change::Keep };
        if let Some(sequence) = found.sequence {
            self.next_sequence = sequence.saturating_add(1);
            self.sequenced = true;
        }
        if counts && let (Some(output), Some((part, at))) = (found.output, found.content.take()) {
            let added = found.kind.as_deref() == Some(b"response.content_part.added");
            let place = self.parts.place(added, output, part);
            if place != part {
                self.repairs.note(Repair::Part);
                found.edits.replace(at, place.to_string().into_bytes());
            }
        }
        let name = bytes.get(span.name.clone()).unwrap_or_default();
        let kind = found.kind.filter(|kind| self.settings.normalize && **kind != *name);
        if kind.is_some() {
            self.repairs.note(Repair::Name);
        }
        changed(bytes, span, payload, found.edits, kind.as_deref())
    }

    fn model_wanted(&self) -> Option<&[u8]> {
        self.settings.rewrite_model.then_some(&self.model[..])
    }

    /// An upstream's native error (E4, N5).
    fn error(&mut self, bytes: &Bytes, span: &Span, error: Option<&UpstreamError>) -> Change {
        self.waiting.clear();
        let failed_response = self.protocol == Protocol::Responses && span.error.is_empty();
        if !self.settings.native_errors {
            return if failed_response { self.failed_response(bytes, span, None) } else { Change::Keep };
        }
        self.repairs.note(Repair::Error);
        let ending = self.ending(error);
        if !failed_response {
            return Change::Fail(ending);
        }
        let known = error.and_then(|error| error.code.as_deref()).is_some_and(|code| RESPONSE_CODES.contains(&code));
        let shown = error.and_then(|error| error.message.as_deref());
        let open = known && shown.is_some_and(|message| self.masked(message).is_some());
        let told = (!open).then(|| response_error(&ending));
        match self.failed_response(bytes, span, told) {
            Change::Fail(_) => Change::Fail(ending),
            other => other,
        }
    }

    /// A `response.failed`, which keeps what it says of the response; anything else is none.
    fn failed_response(&mut self, bytes: &Bytes, span: &Span, error: Option<Vec<u8>>) -> Change {
        let mut scratch = Vec::new();
        let payload = span.payload(bytes, &mut scratch);
        let name = bytes.get(span.name.clone()).unwrap_or_default();
        if named::kind(payload).as_deref().unwrap_or(name) == b"response.failed" {
            return self.named(bytes, span, payload, error);
        }
        if self.settings.native_errors { Change::Fail(Ending::Interrupted) } else { Change::Keep }
    }

    /// E3's word for it.
    fn ending(&self, error: Option<&UpstreamError>) -> Ending {
        let Some(error) = error else { return Ending::Interrupted };
        let parts = ErrorParts::from(error);
        match error.status {
            _ if parts.is_account_trouble() => Ending::Unavailable,
            _ if error.clients_fault => Ending::Upstream(self.hide(parts)),
            429 => Ending::RateLimited,
            503 | 529 => Ending::Overloaded,
            _ => Ending::Interrupted,
        }
    }

    fn masked(&self, message: &str) -> Option<String> {
        self.hide(ErrorParts { message: Some(message.to_owned()), ..ErrorParts::default() }).message
    }

    fn hide(&self, parts: ErrorParts) -> ErrorParts {
        let Some(target) = &self.target else { return parts };
        let provider = &target.provider;
        let provider_host = match &provider.origin {
            Origin::Url(url) => url.host.as_str(),
            Origin::Demo => "",
        };
        let mask = MaskList {
            target_model: &target.model,
            public_model: &self.public_model,
            provider_host,
            keys: &provider.api_keys,
        };
        parts.masked((provider.error_bodies == ErrorBodies::Mask).then_some(&mask))
    }
}

fn changed(bytes: &Bytes, span: &Span, payload: &[u8], edits: Edits<'_>, name: Option<&[u8]>) -> Change {
    if edits.is_empty() && name.is_none() {
        return Change::Keep;
    }
    Change::Replace(Bytes::from(frame::event(bytes, span, payload, edits, name)))
}
