//! Reads from a request body what Weir needs, and nothing else (B1, B2).
//!
//! Called by the gateway once per request, on the whole (decoded) body. Touches only the bytes
//! it is given.
//!
//! The simple version is `serde_json::Value` and a few look-ups. This one checks UTF-8 and the
//! whole grammar, then walks the top level once and remembers where the members lie that
//! [`super::edit`] may have to change; nothing is built, so 20 MiB of images cost no memory.

use crate::json::{Kind, Malformed, Text, Walker};
use crate::protocol::Endpoint;
use serde::de::IgnoredAny;
use std::ops::Range;

mod error;
#[cfg(test)]
mod tests;

pub use error::BodyError;

/// Longer than any model name seen (Hugging Face paths reach about 100); what a client makes up
/// stays short in messages.
const MAX_MODEL_BYTES: usize = 256;

/// Longer than any id or cache key seen; a longer one is left to the upstream and read as absent.
const MAX_WORD_BYTES: usize = 1024;

/// What Weir knows of a request from its body (B2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The public name as the client sent it, unescaped; 1 to 256 bytes.
    pub model: String,
    /// Whether the client asked for a stream; false where the endpoint has none.
    pub stream: bool,
    /// Whether the client itself asked for the usage chunk (`true` only; U1).
    pub include_usage: bool,
    /// Choices asked for; `None` if absent, null or not a number from 1 to `u32::MAX`.
    pub n: Option<u32>,
    /// The largest of `max_tokens`, `max_completion_tokens` and `max_output_tokens`.
    pub max_output_tokens: Option<u64>,
    /// The end user: `safety_identifier`, else `user`; for messages `metadata.user_id`.
    pub user: Option<String>,
    /// `prompt_cache_key`.
    pub prompt_cache_key: Option<String>,
    /// `service_tier`.
    pub service_tier: Option<String>,
    /// Responses: `background: true` (A12).
    pub background: bool,
    /// `store`, if it was a boolean.
    pub store: Option<bool>,
    /// Responses: the stored response that this one goes on from (A12).
    pub previous_response_id: Option<String>,
    /// Responses: the stored conversation, given as a name or as `{"id": …}` (A12).
    pub conversation: Option<String>,
    /// Where the edit works.
    pub(super) spans: Spans,
}

impl Facts {
    /// Of a request that names no model in a body of its own.
    #[must_use]
    pub fn none(model: String, stream: bool) -> Self {
        Self {
            model,
            stream,
            include_usage: false,
            n: None,
            max_output_tokens: None,
            user: None,
            prompt_cache_key: None,
            service_tier: None,
            background: false,
            store: None,
            previous_response_id: None,
            conversation: None,
            spans: Spans { model: 0..0, options: Options::Absent { close: 0 } },
        }
    }
}

/// Byte ranges in the body that [`super::edit::apply`] may replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spans {
    /// The model's value, quotes included.
    pub(super) model: Range<usize>,
    /// Where the usage flag goes.
    pub(super) options: Options,
}

/// Where `stream_options.include_usage` is or can be put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Options {
    /// There is no `stream_options`: a member goes before the closing brace of the body at `close`.
    Absent {
        /// Offset of the brace.
        close: usize,
    },
    /// `stream_options: null`.
    Null(Range<usize>),
    /// An object without the flag; a member goes to `open`.
    Object {
        /// Offset behind its opening brace.
        open: usize,
        /// Whether it has no members.
        empty: bool,
    },
    /// The flag's value.
    Flag(Range<usize>),
}

/// Reads the body of a request to `endpoint`. Members that the endpoint does not have are not
/// read, and may be anything; so are duplicates of them.
pub fn read(endpoint: Endpoint, body: &[u8]) -> Result<Facts, BodyError> {
    check_grammar(body)?;
    let mut reading = Reading::new(endpoint);
    let mut walker = Walker::new(body);
    let mut fault = None;
    let passed = walker.object(|walker, name| match reading.member(walker, name) {
        Ok(()) => Ok(()),
        Err(stop) => {
            let at = walker.at();
            Err(match stop {
                Stop::Depth(malformed) => malformed,
                Stop::Fault(error) => {
                    fault = Some(error);
                    Malformed { at }
                }
            })
        }
    });
    match (fault, passed) {
        (Some(error), _) => Err(error),
        // The grammar was right, so the walker's only reason to stop is its limit of depth.
        (None, Err(Malformed { at })) => Err(BodyError::TooDeep { at }),
        (None, Ok(false)) => Err(BodyError::NotAnObject),
        (None, Ok(true)) => reading.finish(walker.at().saturating_sub(1)),
    }
}

/// UTF-8 and the whole grammar; the walker alone is lenient inside what it skips.
fn check_grammar(body: &[u8]) -> Result<(), BodyError> {
    if let Err(error) = std::str::from_utf8(body) {
        return Err(BodyError::NotUtf8 { at: error.valid_up_to() });
    }
    let Err(error) = serde_json::from_slice::<IgnoredAny>(body) else { return Ok(()) };
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(BodyError::Empty);
    }
    let unfinished = error.is_eof();
    let at = if unfinished {
        body.len()
    } else {
        // serde_json counts the bytes it has read of the line, the bad one included: 0 if that is a line break.
        line_start(body, error.line()).saturating_add(error.column()).saturating_sub(1).min(body.len())
    };
    let before = body.get(..at).unwrap_or_default();
    let line = memchr::memchr_iter(b'\n', before).count().saturating_add(1);
    let column = at.saturating_sub(line_start(body, line)).saturating_add(1);
    Err(if unfinished { BodyError::Unfinished { line, column, at } } else { BodyError::Malformed { line, column, at } })
}

/// Offset of the first byte of a line, counted from 1.
fn line_start(body: &[u8], line: usize) -> usize {
    match line.checked_sub(2) {
        None => 0,
        Some(breaks) => memchr::memchr_iter(b'\n', body).nth(breaks).map_or(body.len(), |at| at.saturating_add(1)),
    }
}

/// Why reading a member stopped.
enum Stop {
    Depth(Malformed),
    Fault(BodyError),
}

impl From<Malformed> for Stop {
    fn from(malformed: Malformed) -> Self {
        Self::Depth(malformed)
    }
}

impl From<BodyError> for Stop {
    fn from(error: BodyError) -> Self {
        Self::Fault(error)
    }
}

type Read<T> = Result<T, Stop>;

/// The top-level members that Weir reads of a request to `endpoint`; at most 32.
const fn members(endpoint: Endpoint) -> &'static [&'static str] {
    match endpoint {
        Endpoint::Chat => &[
            "model",
            "stream",
            "stream_options",
            "n",
            "max_tokens",
            "max_completion_tokens",
            "user",
            "safety_identifier",
            "prompt_cache_key",
            "service_tier",
            "store",
        ],
        Endpoint::Completions => &["model", "stream", "stream_options", "n", "max_tokens", "user"],
        Endpoint::Embeddings => &["model", "user"],
        Endpoint::Responses | Endpoint::InputTokens => &[
            "model",
            "stream",
            "max_output_tokens",
            "user",
            "safety_identifier",
            "prompt_cache_key",
            "service_tier",
            "store",
            "background",
            "previous_response_id",
            "conversation",
        ],
        Endpoint::Messages | Endpoint::CountTokens => &["model", "stream", "max_tokens", "metadata", "service_tier"],
    }
}

/// The facts as far as they are read.
struct Reading {
    endpoint: Endpoint,
    /// Bit i: member i of the endpoint's list was there.
    seen: u32,
    facts: Facts,
    safety_identifier: Option<String>,
    has_model: bool,
}

impl Reading {
    fn new(endpoint: Endpoint) -> Self {
        let facts = Facts::none(String::new(), false);
        Self { endpoint, seen: 0, facts, safety_identifier: None, has_model: false }
    }

    /// One top-level member; always consumes its value.
    fn member(&mut self, walker: &mut Walker<'_>, name: Text<'_>) -> Read<()> {
        let name = name.name();
        let known = members(self.endpoint).iter().zip(0_u32..).find(|(known, _)| **known == name);
        let Some((known, index)) = known else {
            walker.skip()?;
            return Ok(());
        };
        let bit = 1_u32.checked_shl(index).unwrap_or_default();
        if self.seen & bit != 0 {
            return Err(BodyError::Duplicate { param: known }.into());
        }
        self.seen |= bit;
        self.value(walker, known)
    }

    fn value(&mut self, walker: &mut Walker<'_>, known: &'static str) -> Read<()> {
        let facts = &mut self.facts;
        match known {
            "model" => {
                (facts.model, facts.spans.model) = model(walker)?;
                self.has_model = true;
            }
            "stream" => {
                let stream = flag(walker, "stream")?.unwrap_or(false);
                facts.stream = stream && self.endpoint.streams();
            }
            "stream_options" => (facts.spans.options, facts.include_usage) = stream_options(walker)?,
            "n" => facts.n = number(walker)?.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0),
            "max_tokens" | "max_completion_tokens" | "max_output_tokens" => {
                facts.max_output_tokens = facts.max_output_tokens.max(number(walker)?);
            }
            "user" => facts.user = word(walker)?,
            "safety_identifier" => self.safety_identifier = word(walker)?,
            "metadata" => facts.user = user_id(walker)?,
            "prompt_cache_key" => facts.prompt_cache_key = word(walker)?,
            "service_tier" => facts.service_tier = word(walker)?,
            "store" => facts.store = walker.boolean()?,
            "background" => facts.background = flag(walker, "background")?.unwrap_or(false),
            "previous_response_id" => facts.previous_response_id = id(walker, "previous_response_id")?,
            "conversation" => facts.conversation = conversation(walker)?,
            _ => {
                walker.skip()?;
            }
        }
        Ok(())
    }

    fn finish(mut self, close: usize) -> Result<Facts, BodyError> {
        if !self.has_model {
            return Err(BodyError::Missing { param: "model" });
        }
        if let Options::Absent { close: at } = &mut self.facts.spans.options {
            *at = close;
        }
        if self.safety_identifier.is_some() {
            self.facts.user = self.safety_identifier;
        }
        Ok(self.facts)
    }
}

fn model(walker: &mut Walker<'_>) -> Read<(String, Range<usize>)> {
    const PARAM: &str = "model";
    let wrong = |expected| BodyError::Wrong { param: PARAM, expected };
    walker.peek()?;
    let start = walker.at();
    let text = walker.string()?.ok_or(wrong("a string"))?;
    let name = text.decoded().ok_or(wrong("a string of whole Unicode characters"))?;
    if name.is_empty() {
        return Err(wrong("the name of a model, not an empty string").into());
    }
    if name.len() > MAX_MODEL_BYTES {
        return Err(wrong("at most 256 bytes long").into());
    }
    Ok((name.into_owned(), start..walker.at()))
}

/// `true`, `false` or `null`; anything else could mean `true` to a lax upstream.
fn flag(walker: &mut Walker<'_>, param: &'static str) -> Read<Option<bool>> {
    match walker.skip()? {
        b"true" => Ok(Some(true)),
        b"false" => Ok(Some(false)),
        b"null" => Ok(None),
        _ => Err(BodyError::Wrong { param, expected: "true, false or null" }.into()),
    }
}

/// Where the flag is or goes, and whether it is true.
fn stream_options(walker: &mut Walker<'_>) -> Read<(Options, bool)> {
    const FLAG: &str = "stream_options.include_usage";
    let kind = walker.peek()?;
    let start = walker.at();
    match kind {
        Kind::Null => {
            walker.skip()?;
            return Ok((Options::Null(start..walker.at()), false));
        }
        Kind::Object => {}
        Kind::Array | Kind::String | Kind::Number | Kind::Bool => {
            return Err(BodyError::Wrong { param: "stream_options", expected: "an object or null" }.into());
        }
    }
    let mut empty = true;
    let mut found: Option<Range<usize>> = None;
    let mut asked = false;
    let mut fault = None;
    walker.object(|walker, name| {
        empty = false;
        if !name.is("include_usage") {
            return walker.skip().map(drop);
        }
        walker.peek()?;
        let at = walker.at();
        let value = walker.skip()?;
        if found.is_some() {
            fault.get_or_insert(BodyError::Duplicate { param: FLAG });
        } else if !matches!(value, b"true" | b"false" | b"null") {
            fault.get_or_insert(BodyError::Wrong { param: FLAG, expected: "true, false or null" });
        }
        asked = value == b"true";
        found = Some(at..walker.at());
        Ok(())
    })?;
    match (fault, found) {
        (Some(error), _) => Err(error.into()),
        (None, Some(value)) => Ok((Options::Flag(value), asked)),
        (None, None) => Ok((Options::Object { open: start.saturating_add(1), empty }, false)),
    }
}

/// A whole number that is not negative; anything else is the upstream's business.
fn number(walker: &mut Walker<'_>) -> Read<Option<u64>> {
    Ok(serde_json::from_slice::<u64>(walker.skip()?).ok())
}

/// A string that Weir only remembers or hashes; anything else is the upstream's business.
fn word(walker: &mut Walker<'_>) -> Read<Option<String>> {
    let text = walker.string()?.and_then(Text::decoded);
    Ok(text.filter(|text| !text.is_empty() && text.len() <= MAX_WORD_BYTES).map(std::borrow::Cow::into_owned))
}

/// The name of something stored that may be another tenant's (A12): a string or null, so that no
/// upstream can read a name where Weir read none.
fn id(walker: &mut Walker<'_>, param: &'static str) -> Read<Option<String>> {
    if walker.peek()? == Kind::Null {
        walker.skip()?;
        return Ok(None);
    }
    match word(walker)? {
        Some(id) => Ok(Some(id)),
        None => Err(BodyError::Wrong { param, expected: "an id (a string of 1 to 1024 bytes) or null" }.into()),
    }
}

/// A conversation's id, bare or as `{"id": …}`.
fn conversation(walker: &mut Walker<'_>) -> Read<Option<String>> {
    if walker.peek()? != Kind::Object {
        return id(walker, "conversation");
    }
    let mut found: Option<String> = None;
    let mut fault = None;
    walker.object(|walker, name| {
        if !name.is("id") {
            return walker.skip().map(drop);
        }
        let twice = found.is_some();
        found = walker.string()?.and_then(Text::decoded).map(std::borrow::Cow::into_owned);
        if twice {
            fault.get_or_insert(BodyError::Duplicate { param: "conversation.id" });
        } else if found.as_ref().is_none_or(|id| id.is_empty() || id.len() > MAX_WORD_BYTES) {
            fault.get_or_insert(BodyError::Wrong { param: "conversation.id", expected: "a string of 1 to 1024 bytes" });
        }
        Ok(())
    })?;
    match (fault, found) {
        (Some(error), _) => Err(error.into()),
        (None, Some(id)) => Ok(Some(id)),
        (None, None) => Err(BodyError::Missing { param: "conversation.id" }.into()),
    }
}

/// `metadata.user_id` of a messages request.
fn user_id(walker: &mut Walker<'_>) -> Read<Option<String>> {
    let mut found = None;
    walker.object(|walker, name| {
        if !name.is("user_id") {
            return walker.skip().map(drop);
        }
        found = walker.string()?.and_then(Text::decoded).map(std::borrow::Cow::into_owned);
        Ok(())
    })?;
    Ok(found.filter(|id| !id.is_empty() && id.len() <= MAX_WORD_BYTES))
}
