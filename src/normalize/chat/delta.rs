//! What a delta or a message says, under which names (N2).
//!
//! Called by the chat dialect. Touches nothing.

use super::Result;
use crate::json::{Kind, Text, Walker};
use crate::normalize::edit::{Edits, Members};
use crate::normalize::repair::{Level, Repair, Repairs};

/// What has to be known before the first member can be changed.
#[derive(Debug, Default)]
pub(super) struct Delta {
    reasoning: Reasoning,
    /// The content's parts as members with a text, if all of them can be told so (Mistral).
    parts: Option<Vec<u8>>,
}

/// What becomes of `reasoning` and `reasoning_content`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reasoning {
    /// Both stay: there is no `reasoning`, or it says something else.
    #[default]
    Stays,
    /// `reasoning` gets the other name; a `reasoning_content` that says nothing goes.
    Renamed,
    /// `reasoning` says nothing more and goes.
    Goes,
}

impl Delta {
    /// Looks at the object at the front of `text`.
    pub(super) fn look(text: &[u8]) -> Result<Self> {
        let [mut reasoning, mut other, mut content]: [Option<&[u8]>; 3] = [None; 3];
        Walker::new(text).object(|walker, name| {
            let raw = walker.skip()?;
            match &*name.bytes() {
                b"reasoning" => reasoning = Some(raw),
                b"reasoning_content" => other = Some(raw),
                b"content" => content = Some(raw).filter(|raw| raw.first() == Some(&b'[')),
                _ => {}
            }
            Ok(())
        })?;
        let says = |raw: &[u8]| raw.len() > 2 && raw != b"null";
        let told = match (reasoning, other) {
            (Some(raw), _) if !matches!(raw.first(), Some(b'"' | b'n')) => Reasoning::Stays,
            (Some(_), None) => Reasoning::Renamed,
            (Some(raw), Some(other)) if !says(raw) || raw == other => Reasoning::Goes,
            (Some(_), Some(other)) if !says(other) => Reasoning::Renamed,
            _ => Reasoning::Stays,
        };
        let parts = match content {
            Some(content) => merged(content, reasoning.is_none() && other.is_none())?,
            None => None,
        };
        Ok(Self { reasoning: told, parts })
    }

    /// Visits one member.
    pub(super) fn member<'t>(
        &self,
        repairs: &mut Repairs,
        members: &mut Members<'t>,
        edits: &mut Edits<'t>,
        walker: &mut Walker<'t>,
        name: Text<'t>,
    ) -> Result<()> {
        let at = members.name(name.raw());
        walker.skip()?;
        let end = walker.at();
        let goes = match (&*name.bytes(), self.reasoning, &self.parts) {
            (b"reasoning", Reasoning::Renamed, _) => {
                repairs.note(Repair::Reasoning);
                edits.replace(at, &b"\"reasoning_content\""[..]);
                false
            }
            (b"reasoning", Reasoning::Goes, _) | (b"reasoning_content", Reasoning::Renamed, _) => {
                repairs.note(Repair::Reasoning);
                true
            }
            (b"content", _, Some(parts)) => {
                repairs.note(Repair::Parts);
                edits.replace(at.start..end, parts.clone());
                false
            }
            (other, _, _) => repairs.private(Level::Delta, other),
        };
        members.pass(goes, edits, end);
        Ok(())
    }
}

/// Content in parts as `content` and `reasoning_content`, the texts as they were escaped. `None`: a
/// part that is neither, or reasoning where there is some already.
fn merged(content: &[u8], may_reason: bool) -> Result<Option<Vec<u8>>> {
    let (mut text, mut thinking) = (Vec::new(), Vec::new());
    let mut known = true;
    Walker::new(content).array(|walker| {
        let part = walker.skip()?;
        known &= part_of(part, &mut text, &mut thinking)?;
        Ok(())
    })?;
    if !known || (!thinking.is_empty() && !may_reason) {
        return Ok(None);
    }
    let mut members = Vec::with_capacity(text.len() + thinking.len() + 40);
    if !thinking.is_empty() {
        members.extend_from_slice(b"\"reasoning_content\":\"");
        members.extend_from_slice(&thinking);
        members.push(b'"');
    }
    if thinking.is_empty() || !text.is_empty() {
        members.extend_from_slice(if members.is_empty() { b"\"content\":\"" } else { b",\"content\":\"" });
        members.extend_from_slice(&text);
        members.push(b'"');
    }
    Ok(Some(members))
}

fn part_of(part: &[u8], text: &mut Vec<u8>, thinking: &mut Vec<u8>) -> Result<bool> {
    let (mut kind, mut said, mut thought): (_, Option<&[u8]>, Option<&[u8]>) = (None, None, None);
    Walker::new(part).object(|walker, name| {
        match &*name.bytes() {
            b"type" => kind = walker.string()?,
            b"text" => said = walker.string()?.map(Text::raw),
            b"thinking" => thought = Some(walker.skip()?),
            _ => drop(walker.skip()?),
        }
        Ok(())
    })?;
    match (kind.map(Text::bytes).as_deref(), said, thought) {
        (Some(b"text"), Some(said), _) => text.extend_from_slice(said),
        (Some(b"thinking"), _, Some(thought)) => return thoughts(thought, thinking),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Thinking as a text, or as parts that are texts.
fn thoughts(thought: &[u8], thinking: &mut Vec<u8>) -> Result<bool> {
    let mut walker = Walker::new(thought);
    match walker.peek()? {
        Kind::String => {
            thinking.extend_from_slice(walker.string()?.map(Text::raw).unwrap_or_default());
            Ok(true)
        }
        Kind::Array => {
            let mut known = true;
            let mut nested = Vec::new();
            walker.array(|walker| {
                known &= part_of(walker.skip()?, thinking, &mut nested)?;
                Ok(())
            })?;
            Ok(known && nested.is_empty())
        }
        Kind::Object | Kind::Number | Kind::Bool | Kind::Null => Ok(false),
    }
}
