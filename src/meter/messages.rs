//! Anthropic Messages: what an event, or a whole reply, says.
//!
//! Called by the meter. Touches only the meter's fields.

use super::tally::Stage;
use super::twin::Holes;
use super::{Facts, Finish, Meter, UpstreamError};
use crate::json::{Kind, Malformed, Text, Walker};
use crate::protocol::Protocol;

/// What one event says; nothing of it counts before its JSON turned out whole.
#[derive(Default)]
struct Event<'a> {
    kind: Option<Text<'a>>,
    error: bool,
    message: Message<'a>,
    /// A delta's or a block's own words.
    piece: Piece<'a>,
    usage: Option<&'a [u8]>,
}

/// The message of `message_start`, or the whole reply.
#[derive(Default)]
struct Message<'a> {
    id: Option<Text<'a>>,
    model: Option<Text<'a>>,
    usage: Option<&'a [u8]>,
    /// Blocks in a whole reply.
    output: bool,
    visible: bool,
}

/// A delta or a content block.
#[derive(Default)]
struct Piece<'a> {
    kind: Option<Text<'a>>,
    stop_reason: Option<Text<'a>>,
    /// Thinking or a signature, and anything else.
    thought: bool,
    said: bool,
    holes: Holes,
}

/// Reads one event; `name` is the value of its `event:` line.
pub(super) fn read(meter: &mut Meter, json: &[u8], name: &[u8]) -> Result<Facts, Malformed> {
    let event = walk(json)?;
    let kind = event.kind.map_or(std::borrow::Cow::Borrowed(name), Text::bytes);
    if event.error && !matches!(&*kind, b"message_start" | b"message_delta" | b"message_stop") || &*kind == b"error" {
        let error = UpstreamError::from_json(Protocol::Messages, json).unwrap_or_else(UpstreamError::unknown);
        return Ok(meter.fail(error));
    }
    let mut facts = Facts::default();
    match &*kind {
        b"message_start" => {
            meter.note_identity(event.message.id, event.message.model, None, None);
            meter.note_messages_usage(event.message.usage, Stage::Start);
            facts.start = !std::mem::replace(&mut meter.started, true);
        }
        b"content_block_start" => (facts.output, facts.visible) = event.piece.block(),
        b"content_block_delta" => {
            facts.output = event.piece.thought || event.piece.said;
            facts.visible = event.piece.said;
            // Without a type the event's name decided, which a twin might not share.
            if event.kind.is_some() {
                meter.twin.learn(json, &event.piece.holes, facts);
            }
        }
        b"message_delta" => {
            meter.note_messages_usage(event.usage, Stage::Later);
            facts.finish = meter.note_stop(event.piece.stop_reason);
        }
        b"message_stop" => {
            meter.stopped = true;
            facts.terminal = true;
        }
        _ => {}
    }
    Ok(facts)
}

/// Reads a whole reply: a message as it stands in `message_start`, with its content.
pub(super) fn reply(meter: &mut Meter, json: &[u8]) -> Result<Facts, Malformed> {
    let event = walk(json)?;
    if event.error || event.kind.is_some_and(|kind| kind.is("error")) {
        let error = UpstreamError::from_json(Protocol::Messages, json).unwrap_or_else(UpstreamError::unknown);
        return Ok(meter.fail(error));
    }
    let mut message = Message::default();
    let mut stop_reason = None;
    Walker::new(json).object(|walker, name| message.member(walker, name, &mut stop_reason))?;
    meter.note_identity(message.id, message.model, None, None);
    meter.note_messages_usage(message.usage, Stage::Later);
    let finish = meter.note_stop(stop_reason);
    Ok(Facts { output: message.output, visible: message.visible, finish, terminal: finish, ..Facts::default() })
}

fn walk(json: &[u8]) -> Result<Event<'_>, Malformed> {
    let mut event = Event::default();
    let mut walker = Walker::new(json);
    walker.object(|walker, name| {
        match &*name.bytes() {
            b"type" => event.kind = walker.string()?,
            b"delta" | b"content_block" => event.piece = Piece::read(walker)?,
            b"message" => {
                let message = &mut event.message;
                walker.object(|walker, name| message.member(walker, name, &mut None))?;
            }
            b"usage" => event.usage = Some(walker.skip()?).filter(|raw| raw.first() == Some(&b'{')),
            b"error" => {
                let kind = walker.peek()?;
                event.error = walker.filled()? && matches!(kind, Kind::Object | Kind::String);
            }
            _ => drop(walker.skip()?),
        }
        Ok(())
    })?;
    walker.end()?;
    Ok(event)
}

impl<'a> Message<'a> {
    fn member(
        &mut self,
        walker: &mut Walker<'a>,
        name: Text<'a>,
        stop_reason: &mut Option<Text<'a>>,
    ) -> Result<(), Malformed> {
        match &*name.bytes() {
            b"id" => self.id = walker.string()?,
            b"model" => self.model = walker.string()?,
            b"usage" => self.usage = Some(walker.skip()?).filter(|raw| raw.first() == Some(&b'{')),
            b"stop_reason" => *stop_reason = walker.string()?,
            b"content" => {
                walker.array(|walker| {
                    let (output, visible) = Piece::read(walker)?.block();
                    self.output |= output;
                    self.visible |= visible;
                    Ok(())
                })?;
            }
            _ => drop(walker.skip()?),
        }
        Ok(())
    }
}

impl<'a> Piece<'a> {
    fn read(walker: &mut Walker<'a>) -> Result<Self, Malformed> {
        let mut piece = Self::default();
        walker.object(|walker, name| {
            match &*name.bytes() {
                b"type" => piece.kind = walker.string()?,
                b"stop_reason" => piece.stop_reason = walker.string()?.filter(|reason| !reason.is_empty()),
                b"stop_sequence" | b"citations" => drop(walker.skip()?),
                // `content` is what a compaction is made of: no answer text.
                b"thinking" | b"signature" | b"content" | b"data" => piece.thought |= piece.holes.filled(walker)?,
                _ => piece.said |= piece.holes.filled(walker)?,
            }
            Ok(())
        })?;
        Ok(piece)
    }

    /// Whether a block's start is output, and visible: any block but an empty text or thinking.
    fn block(&self) -> (bool, bool) {
        let Some(kind) = self.kind else { return (false, false) };
        match &*kind.bytes() {
            b"text" => (self.said, self.said),
            b"thinking" => (self.thought, false),
            b"redacted_thinking" | b"compaction" => (true, false),
            _ => (true, true),
        }
    }
}

impl Meter {
    fn note_messages_usage(&mut self, usage: Option<&[u8]>, stage: Stage) {
        let Some(usage) = usage else { return };
        let tier = self.tally.messages(usage, self.model.as_deref(), stage);
        self.note_identity(None, None, tier, None);
    }

    fn note_stop(&mut self, reason: Option<Text<'_>>) -> bool {
        let Some(reason) = reason.filter(|reason| !reason.is_empty()) else { return false };
        let finish = match &*reason.bytes() {
            b"end_turn" | b"stop_sequence" => Finish::Stop,
            b"max_tokens" | b"model_context_window_exceeded" => Finish::Length,
            _ => Finish::Other,
        };
        self.finish = Some(Finish::worse(self.finish, finish));
        self.stopped = true;
        true
    }
}
