//! Chat Completions: what a chunk, or a whole reply, says. `/v1/completions` too: its `text` is output (A10).
//!
//! Called by the meter. Touches only the meter's fields.

use super::tally::Place;
use super::twin::Holes;
use super::{Facts, Finish, Meter, UpstreamError};
use crate::json::{Kind, Malformed, Text, Walker};
use crate::protocol::Protocol;

/// What one chunk says; nothing of it counts before its JSON turned out whole.
#[derive(Default)]
struct Chunk<'a> {
    id: Option<Text<'a>>,
    model: Option<Text<'a>>,
    tier: Option<Text<'a>>,
    created: Option<&'a [u8]>,
    usage: Option<&'a [u8]>,
    vendor_usage: Option<&'a [u8]>,
    choice_usage: Option<&'a [u8]>,
    /// An error anywhere in it.
    error: bool,
    /// Filter or moderation results at the top level.
    filter: bool,
    role: bool,
    said: Said,
    holes: Holes,
    /// Choices seen, and those finished, by index.
    seen: u128,
    finished: u128,
    finish: Option<Finish>,
}

/// What a delta says.
#[derive(Clone, Copy, Default)]
struct Said {
    output: bool,
    visible: bool,
}

impl Said {
    fn note(&mut self, output: bool, visible: bool) {
        self.output |= output;
        self.visible |= output && visible;
    }
}

/// One choice of a chunk.
#[derive(Default)]
struct Choice {
    index: Option<u64>,
    delta: Option<Said>,
    message: Option<Said>,
    text: Said,
    finish: Option<Finish>,
    error: bool,
}

/// Reads one chunk (or a whole reply, which has messages for deltas).
pub(super) fn read(meter: &mut Meter, json: &[u8]) -> Result<Facts, Malformed> {
    let mut chunk = Chunk::default();
    let mut walker = Walker::new(json);
    walker.object(|walker, name| member(&mut chunk, walker, name))?;
    walker.end()?;
    Ok(chunk.apply(meter, json))
}

fn member<'a>(chunk: &mut Chunk<'a>, walker: &mut Walker<'a>, name: Text<'a>) -> Result<(), Malformed> {
    match &*name.bytes() {
        b"choices" => {
            let mut position = 0;
            walker.array(|walker| {
                choice(chunk, walker, position)?;
                position += 1;
                Ok(())
            })?;
        }
        b"id" => chunk.id = walker.string()?,
        b"model" => chunk.model = walker.string()?,
        b"service_tier" => chunk.tier = walker.string()?,
        b"created" => chunk.created = Some(walker.skip()?),
        b"usage" => chunk.usage = chunk.holes.usage(walker)?.or(chunk.usage),
        b"x_groq" => {
            walker.object(|walker, name| {
                let raw = walker.skip()?;
                if name.is("usage") && raw.first() == Some(&b'{') {
                    chunk.vendor_usage = Some(raw);
                }
                Ok(())
            })?;
        }
        b"error" => {
            let kind = walker.peek()?;
            chunk.error |= walker.filled()? && matches!(kind, Kind::Object | Kind::String);
        }
        b"obfuscation" | b"p" => chunk.holes.padding(walker)?,
        b"object" => chunk.error |= walker.string()?.is_some_and(|object| object.is("error")),
        b"prompt_filter_results"
        | b"content_filter_results"
        | b"content_filter_result"
        | b"prompt_annotations"
        | b"moderation" => chunk.filter |= walker.filled()?,
        _ => drop(walker.skip()?),
    }
    Ok(())
}

fn choice<'a>(chunk: &mut Chunk<'a>, walker: &mut Walker<'a>, position: u64) -> Result<(), Malformed> {
    let mut choice = Choice::default();
    let mut usage = None;
    let mut message_holes = 0..0;
    walker.object(|walker, name| {
        match &*name.bytes() {
            b"delta" => choice.delta = Some(delta(walker, &mut chunk.role, &mut chunk.holes)?),
            b"message" => {
                let before = chunk.holes.count();
                choice.message = Some(delta(walker, &mut chunk.role, &mut chunk.holes)?);
                message_holes = before..chunk.holes.count();
            }
            b"text" => choice.text.note(chunk.holes.filled(walker)?, true),
            b"index" => choice.index = super::counts::whole(walker.skip()?),
            b"finish_reason" => {
                let reason = walker.string()?.filter(|reason| !reason.is_empty());
                choice.error |= reason.is_some_and(|reason| reason.is("error"));
                choice.finish = reason.map(finish_of);
            }
            b"error" => {
                let kind = walker.peek()?;
                choice.error |= walker.filled()? && kind == Kind::Object;
            }
            b"usage" => usage = Some(walker.skip()?).filter(|raw| raw.first() == Some(&b'{')),
            b"logprobs" => chunk.holes.padding(walker)?,
            _ => drop(walker.skip()?),
        }
        Ok(())
    })?;
    if choice.delta.is_some() {
        chunk.holes.unread(message_holes);
    }
    chunk.choice_usage = usage.or(chunk.choice_usage);
    chunk.error |= choice.error;
    // A whole message beside the delta repeats what the deltas said (Perplexity).
    let said = choice.delta.or(choice.message).unwrap_or_default();
    chunk.said.note(said.output, said.visible);
    chunk.said.note(choice.text.output, true);
    // Past the 128th, which no known API gives, choices share a place.
    let bit = 1_u128 << choice.index.unwrap_or(position).min(127);
    chunk.seen |= bit;
    if let Some(finish) = choice.finish {
        chunk.finished |= bit;
        chunk.finish = Some(Finish::worse(chunk.finish, finish));
    }
    Ok(())
}

fn delta(walker: &mut Walker<'_>, role: &mut bool, holes: &mut Holes) -> Result<Said, Malformed> {
    let mut said = Said::default();
    walker.object(|walker, name| {
        match &*name.bytes() {
            b"content" if walker.peek()? == Kind::Array => parts(walker, &mut said, holes)?,
            b"content" | b"refusal" | b"audio" => said.note(holes.filled(walker)?, true),
            b"reasoning" | b"reasoning_content" | b"reasoning_details" => said.note(holes.filled(walker)?, false),
            b"tool_calls" => drop(walker.array(|walker| call(walker, &mut said, holes))?),
            b"function_call" => call(walker, &mut said, holes)?,
            b"role" => *role |= walker.filled()?,
            _ => drop(walker.skip()?),
        }
        Ok(())
    })?;
    Ok(said)
}

/// Content in parts (Mistral): a part with anything in it but its type and flags; thinking is not visible.
fn parts(walker: &mut Walker<'_>, said: &mut Said, holes: &mut Holes) -> Result<(), Malformed> {
    walker
        .array(|walker| {
            let (mut filled, mut thinking) = (false, false);
            let was_object = walker.object(|walker, name| {
                match &*name.bytes() {
                    b"type" => {
                        thinking = walker.string()?.is_some_and(|kind| kind.is("thinking") || kind.is("reasoning"));
                    }
                    _ if walker.peek()? == Kind::Bool => drop(walker.skip()?),
                    _ => filled |= holes.filled(walker)?,
                }
                Ok(())
            })?;
            said.note(filled || !was_object, !thinking);
            Ok(())
        })
        .map(drop)
}

/// A tool or function call: output as soon as it has an id, a name or arguments.
fn call(walker: &mut Walker<'_>, said: &mut Said, holes: &mut Holes) -> Result<(), Malformed> {
    walker
        .object(|walker, name| {
            match &*name.bytes() {
                b"id" | b"name" | b"arguments" | b"input" => said.note(holes.filled(walker)?, true),
                b"function" | b"custom" => {
                    walker.object(|walker, name| {
                        match &*name.bytes() {
                            b"name" | b"arguments" | b"input" => said.note(holes.filled(walker)?, true),
                            _ => drop(walker.skip()?),
                        }
                        Ok(())
                    })?;
                }
                _ => drop(walker.skip()?),
            }
            Ok(())
        })
        .map(drop)
}

fn finish_of(reason: Text<'_>) -> Finish {
    match &*reason.bytes() {
        b"stop" | b"eos" | b"end_turn" | b"stop_sequence" => Finish::Stop,
        b"length" | b"max_tokens" => Finish::Length,
        _ => Finish::Other,
    }
}

/// Notes the usage of a chunk whose tier, outside of that usage, is `tier`.
pub(super) fn note_usage(meter: &mut Meter, usage: &[u8], tier: Option<Text<'_>>) {
    let inside = meter.tally.chat(usage, Place::Top);
    if tier.is_none() {
        meter.note_identity(None, None, inside, None);
    }
}

impl Chunk<'_> {
    fn apply(self, meter: &mut Meter, json: &[u8]) -> Facts {
        meter.note_identity(self.id, self.model, self.tier, self.created);
        for (usage, place) in [(self.vendor_usage, Place::Vendor), (self.choice_usage, Place::Choice)] {
            if let Some(usage) = usage {
                meter.tally.chat(usage, place);
            }
        }
        if let Some(usage) = self.usage {
            note_usage(meter, usage, self.tier);
        }
        meter.seen |= self.seen;
        if self.error {
            let error = UpstreamError::from_json(Protocol::Chat, json).unwrap_or_else(UpstreamError::unknown);
            return Facts { output: self.said.output, visible: self.said.visible, ..meter.fail(error) };
        }
        meter.finished |= self.finished;
        if let Some(finish) = self.finish {
            meter.finish = Some(Finish::worse(meter.finish, finish));
        }
        let facts = Facts {
            output: self.said.output,
            visible: self.said.visible,
            finish: self.finish.is_some(),
            usage_only: self.seen == 0 && self.usage.is_some() && !self.filter,
            start: self.role && !std::mem::replace(&mut meter.started, true),
            ..Facts::default()
        };
        // A twin's usage counts at the top level, and its tier if that is the only one.
        let is_top = self.choice_usage.or(self.vendor_usage).is_none() && (self.usage.is_none() || self.tier.is_none());
        if is_top {
            meter.twin.learn(json, &self.holes, facts);
        }
        facts
    }
}
