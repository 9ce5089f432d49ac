//! OpenAI Responses: what an event, or a whole reply, says.
//!
//! Called by the meter. Touches only the meter's fields.

use super::twin::Holes;
use super::{Facts, Finish, Meter, UpstreamError};
use crate::json::{Kind, Malformed, Text, Walker};
use crate::protocol::Protocol;
use std::borrow::Cow;

/// What one event says; nothing of it counts before its JSON turned out whole.
#[derive(Default)]
struct Event<'a> {
    kind: Option<Text<'a>>,
    sequence: Option<u64>,
    error: bool,
    /// Text, arguments or data at the top level or in a part.
    said: bool,
    item: Item<'a>,
    response: Response<'a>,
    holes: Holes,
}

/// An output item.
#[derive(Default)]
struct Item<'a> {
    kind: Option<Text<'a>>,
    /// Text inside its content or summary.
    said: bool,
}

/// The response object: inside an event, or the whole reply.
#[derive(Default)]
struct Response<'a> {
    id: Option<Text<'a>>,
    model: Option<Text<'a>>,
    tier: Option<Text<'a>>,
    created: Option<&'a [u8]>,
    status: Option<Text<'a>>,
    /// Why it is incomplete.
    reason: Option<Text<'a>>,
    usage: Option<&'a [u8]>,
    tool_usage: Option<&'a [u8]>,
    error: bool,
    output: bool,
    visible: bool,
}

/// Reads one event; `name` is the value of its `event:` line.
pub(super) fn read(meter: &mut Meter, json: &[u8], name: &[u8]) -> Result<Facts, Malformed> {
    let mut event = Event::default();
    let mut walker = Walker::new(json);
    walker.object(|walker, name| event.member(walker, name))?;
    walker.end()?;
    let kind = event.kind.map_or(Cow::Borrowed(name), Text::bytes);
    if let Some(sequence) = event.sequence {
        meter.sequence = Some(sequence);
    }
    let Some(word) = kind.strip_prefix(b"response.") else {
        let failed = &*kind == b"error" || (event.error && event.kind.is_none());
        return Ok(if failed { meter.fail(error_of(json)) } else { Facts::default() });
    };
    let said = event.said || event.item.said;
    let mut facts = match word {
        b"created" | b"in_progress" | b"queued" => {
            event.response.note(meter);
            Facts { start: word == b"created" && !std::mem::replace(&mut meter.started, true), ..Facts::default() }
        }
        b"completed" | b"incomplete" | b"failed" => event.response.end(meter, word, json),
        b"output_item.added" => Facts { output: event.item.is_output(), ..Facts::default() },
        b"output_item.done" => Facts { output: said || event.item.is_output(), ..Facts::default() },
        _ if word.ends_with(b".delta") || word.ends_with(b".done") || word.ends_with(b".partial_image") => {
            Facts { output: said, ..Facts::default() }
        }
        _ => Facts::default(),
    };
    let thought = word.starts_with(b"reasoning") || event.item.kind.is_some_and(|kind| kind.is("reasoning"));
    facts.visible = facts.output && !thought;
    // Without a type the event's name decided, which a twin might not share.
    if event.kind.is_some() && event.sequence.is_some() && word.ends_with(b".delta") {
        meter.twin.learn(json, &event.holes, facts);
    }
    Ok(facts)
}

/// Reads a whole reply: a response object.
pub(super) fn reply(meter: &mut Meter, json: &[u8]) -> Result<Facts, Malformed> {
    let mut response = Response::default();
    let mut walker = Walker::new(json);
    walker.object(|walker, name| response.member(walker, name))?;
    walker.end()?;
    let (output, visible) = (response.output, response.visible);
    let word = response.status.map_or(Cow::Borrowed(&b""[..]), Text::bytes);
    let facts = match &*word {
        b"completed" | b"incomplete" | b"failed" => response.end(meter, &word, json),
        _ if response.error => meter.fail(error_of(json)),
        _ => {
            response.note(meter);
            meter.tally.responses(response.usage, response.tool_usage);
            Facts::default()
        }
    };
    Ok(Facts { output, visible, ..facts })
}

fn error_of(json: &[u8]) -> UpstreamError {
    UpstreamError::from_json(Protocol::Responses, json).unwrap_or_else(UpstreamError::unknown)
}

impl<'a> Event<'a> {
    fn member(&mut self, walker: &mut Walker<'a>, name: Text<'a>) -> Result<(), Malformed> {
        match &*name.bytes() {
            b"type" => self.kind = walker.string()?,
            b"sequence_number" => self.sequence = self.holes.number(walker)?,
            b"obfuscation" | b"logprobs" => self.holes.padding(walker)?,
            b"delta" | b"text" | b"arguments" | b"data" | b"refusal" | b"input" | b"code" | b"transcript"
            | b"partial_image_b64" => self.said |= self.holes.filled(walker)?,
            b"part" => self.said |= has_text(walker)?,
            b"item" => self.item = Item::read(walker)?,
            b"response" => {
                let response = &mut self.response;
                walker.object(|walker, name| response.member(walker, name))?;
            }
            b"error" => self.error = is_error(walker)?,
            _ => drop(walker.skip()?),
        }
        Ok(())
    }
}

impl<'a> Item<'a> {
    fn read(walker: &mut Walker<'a>) -> Result<Self, Malformed> {
        let mut item = Self::default();
        walker.object(|walker, name| {
            match &*name.bytes() {
                b"type" => item.kind = walker.string()?,
                b"content" | b"summary" => {
                    walker.array(|walker| {
                        item.said |= has_text(walker)?;
                        Ok(())
                    })?;
                }
                _ => drop(walker.skip()?),
            }
            Ok(())
        })?;
        Ok(item)
    }

    /// Any type but those that only announce something.
    fn is_output(&self) -> bool {
        self.kind.is_some_and(|kind| !matches!(&*kind.bytes(), b"reasoning" | b"message" | b"mcp_list_tools"))
    }
}

impl<'a> Response<'a> {
    fn member(&mut self, walker: &mut Walker<'a>, name: Text<'a>) -> Result<(), Malformed> {
        match &*name.bytes() {
            b"id" => self.id = walker.string()?,
            b"model" => self.model = walker.string()?,
            b"service_tier" => self.tier = walker.string()?,
            b"created_at" => self.created = Some(walker.skip()?),
            b"status" => self.status = walker.string()?,
            b"usage" => self.usage = Some(walker.skip()?).filter(|raw| raw.first() == Some(&b'{')),
            b"tool_usage" => self.tool_usage = Some(walker.skip()?),
            b"error" => self.error = is_error(walker)?,
            b"incomplete_details" => {
                walker.object(|walker, name| {
                    let value = walker.string()?;
                    if name.is("reason") {
                        self.reason = value;
                    }
                    Ok(())
                })?;
            }
            b"output" => {
                walker.array(|walker| {
                    let item = Item::read(walker)?;
                    let output = item.said || item.is_output();
                    self.output |= output;
                    self.visible |= output && !item.kind.is_some_and(|kind| kind.is("reasoning"));
                    Ok(())
                })?;
            }
            _ => drop(walker.skip()?),
        }
        Ok(())
    }

    fn note(&self, meter: &mut Meter) {
        meter.note_identity(self.id, self.model, self.tier, self.created);
    }

    /// The end of a response: its usage counts however it ended (B191, B193).
    fn end(&self, meter: &mut Meter, word: &[u8], json: &[u8]) -> Facts {
        self.note(meter);
        meter.tally.responses(self.usage, self.tool_usage);
        if word == b"failed" {
            return meter.fail(error_of(json));
        }
        let finish = match self.reason.map(Text::bytes).as_deref() {
            _ if word == b"completed" => Finish::Stop,
            None | Some(b"max_output_tokens" | b"max_tokens" | b"length") => Finish::Length,
            Some(_) => Finish::Other,
        };
        meter.finish = Some(finish);
        meter.stopped = true;
        Facts { finish: true, terminal: true, ..Facts::default() }
    }
}

fn is_error(walker: &mut Walker<'_>) -> Result<bool, Malformed> {
    let kind = walker.peek()?;
    Ok(walker.filled()? && matches!(kind, Kind::Object | Kind::String))
}

/// Whether a part (of content or of a summary) holds text.
fn has_text(walker: &mut Walker<'_>) -> Result<bool, Malformed> {
    let mut text = false;
    walker.object(|walker, name| {
        match &*name.bytes() {
            b"text" | b"refusal" | b"transcript" => text |= walker.filled()?,
            _ => drop(walker.skip()?),
        }
        Ok(())
    })?;
    Ok(text)
}
