//! Responses and Messages: what an event, or a whole reply, has to become (N1, N2).
//!
//! Called by the normaliser. Touches nothing.

use super::edit::{Edits, Members};
use super::repair::{Repair, Repairs};
use crate::json::{Kind, Malformed, Text, Walker};
use std::borrow::Cow;
use std::ops::Range;

type Result<T> = std::result::Result<T, Malformed>;

/// What has to be in an event.
#[derive(Debug, Default)]
pub(super) struct Wanted<'a> {
    /// The client's name of the model, as JSON (N1).
    pub(super) model: Option<&'a [u8]>,
    /// The sequence number to give where none is (N2, responses).
    pub(super) sequence: Option<u64>,
    /// The `response.error` to tell instead, as JSON (N5, `response.failed`).
    pub(super) error: Option<Vec<u8>>,
}

/// What an event was found to be.
#[derive(Debug)]
pub(super) struct Found<'t> {
    pub(super) edits: Edits<'t>,
    /// Its `type`, if it has one that can be a line's value.
    pub(super) kind: Option<Cow<'t, [u8]>>,
    /// Its own sequence number, or the one that it was given.
    pub(super) sequence: Option<u64>,
    /// The output item that it is about.
    pub(super) output: Option<u64>,
    /// The content part of it that it is about, and where that stands.
    pub(super) content: Option<(u64, Range<usize>)>,
}

/// Content parts of one answer whose places are remembered; no model makes more.
const MAX_PARTS: usize = 256;

/// Which content parts the output items of an answer have: providers have been seen to begin at 1,
/// while SDKs take the number for the place in a list.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// The item, and the part's own number; the place is that among its item's.
    known: Vec<(u64, u64)>,
}

impl Parts {
    /// The place of a part; `added`: this event begins it.
    pub(super) fn place(&mut self, added: bool, output: u64, content: u64) -> u64 {
        let mut of_item = (0..).zip(self.known.iter().filter(|(item, _)| *item == output));
        if let Some((place, _)) = of_item.find(|(_, (_, part))| *part == content) {
            return place;
        }
        if !added || self.known.len() >= MAX_PARTS {
            return content;
        }
        self.known.push((output, content));
        (0..).zip(self.known.iter().filter(|(item, _)| *item == output)).last().map_or(content, |(place, _)| place)
    }
}

/// Reads one event.
pub(super) fn event<'t>(text: &'t [u8], wanted: &Wanted<'_>, repairs: &mut Repairs) -> Result<Option<Found<'t>>> {
    let mut walker = Walker::new(text);
    if walker.peek()? != Kind::Object {
        return Ok(None);
    }
    let mut found = Found { edits: Edits::default(), kind: None, sequence: None, output: None, content: None };
    let mut members = Members::of(text, &mut walker)?;
    walker.object(|walker, name| {
        match &*name.bytes() {
            b"type" => {
                walker.peek()?;
                let start = walker.at();
                found.kind = walker.string()?.map(Text::bytes).filter(|kind| is_word(kind));
                if let Some(known) = found.kind.as_deref().and_then(known_kind).filter(|_| wanted.sequence.is_some()) {
                    repairs.note(Repair::PartEvent);
                    found.edits.replace(start..walker.at(), [b"\"", known, b"\""].concat());
                    found.kind = Some(known.into());
                }
            }
            b"sequence_number" => {
                let raw = walker.skip()?;
                found.sequence = whole(raw);
                if found.sequence.is_none()
                    && let Some(sequence) = wanted.sequence
                {
                    repairs.note(Repair::Sequence);
                    let end = walker.at();
                    found.edits.replace(end - raw.len()..end, sequence.to_string().into_bytes());
                    found.sequence = Some(sequence);
                }
            }
            b"output_index" => found.output = whole(walker.skip()?),
            b"content_index" => {
                let raw = walker.skip()?;
                found.content = whole(raw).map(|index| (index, walker.at() - raw.len()..walker.at()));
            }
            b"response" | b"message" => inner(text, wanted, &mut found.edits, walker, repairs)?,
            _ => drop(walker.skip()?),
        }
        members.keep(&mut found.edits, walker.at());
        Ok(())
    })?;
    walker.end()?;
    if found.sequence.is_none()
        && found.kind.is_some()
        && let Some(sequence) = wanted.sequence
    {
        repairs.note(Repair::Sequence);
        members.add(&mut found.edits, format!("\"sequence_number\":{sequence}").as_bytes());
        found.sequence = Some(sequence);
    }
    Ok(Some(found))
}

/// What OpenAI calls an event that vLLM and others call something else, which its SDK for Node does not know.
fn known_kind(kind: &[u8]) -> Option<&'static [u8]> {
    match kind {
        b"response.reasoning_part.added" => Some(b"response.content_part.added"),
        b"response.reasoning_part.done" => Some(b"response.content_part.done"),
        _ => None,
    }
}

/// Reads a whole reply: the object that events carry inside.
pub(super) fn reply<'t>(text: &'t [u8], wanted: &Wanted<'_>, repairs: &mut Repairs) -> Result<Edits<'t>> {
    let mut walker = Walker::new(text);
    let mut edits = Edits::default();
    inner(text, wanted, &mut edits, &mut walker, repairs)?;
    walker.end()?;
    Ok(edits)
}

/// The response or the message.
fn inner<'t>(
    text: &'t [u8],
    wanted: &Wanted<'_>,
    edits: &mut Edits<'t>,
    walker: &mut Walker<'t>,
    repairs: &mut Repairs,
) -> Result<()> {
    if walker.peek()? != Kind::Object || (wanted.model.is_none() && wanted.error.is_none()) {
        return walker.skip().map(drop);
    }
    let mut members = Members::of(text, walker)?;
    let mut told = false;
    walker.object(|walker, name| {
        let kind = walker.peek()?;
        let start = walker.at();
        let raw = walker.skip()?;
        let with = match &*name.bytes() {
            b"model" if kind == Kind::String => wanted.model.map(|model| (model, Repair::Model)),
            b"error" => {
                told = true;
                wanted.error.as_deref().map(|error| (error, Repair::Error))
            }
            _ => None,
        };
        if let Some((with, repair)) = with.filter(|(with, _)| *with != raw) {
            repairs.note(repair);
            edits.replace(start..walker.at(), with.to_vec());
        }
        members.keep(edits, walker.at());
        Ok(())
    })?;
    if let Some(error) = wanted.error.as_deref().filter(|_| !told) {
        members.add(edits, &[b"\"error\":", error].concat());
    }
    Ok(())
}

/// An event's `type`.
pub(super) fn kind(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    let mut kind = None;
    let _ = Walker::new(text).object(|walker, name| {
        if name.is("type") {
            kind = walker.string()?.map(Text::bytes);
            return Ok(());
        }
        walker.skip().map(drop)
    });
    kind
}

fn whole(raw: &[u8]) -> Option<u64> {
    std::str::from_utf8(raw).ok().and_then(|raw| raw.parse().ok())
}

/// Whether it can be the value of an `event:` line.
fn is_word(kind: &[u8]) -> bool {
    !kind.is_empty() && kind.iter().all(u8::is_ascii_graphic)
}
