//! One choice of a chunk or reply: index, delta, finish reason (N2).
//!
//! Called by the chat dialect. Touches its fields.

use super::delta::Delta;
use super::{Chat, Chunk, Form, Place, Result};
use crate::json::{Kind, Text, Walker};
use crate::normalize::edit::{Edits, Members};
use crate::normalize::repair::{Level, Repair};
use std::ops::Range;

/// A choice while it is walked.
struct Choice<'t> {
    /// The text from its brace on.
    text: &'t [u8],
    members: Members<'t>,
    index: Index,
    /// It has a delta (or a text, A10).
    has_said: bool,
    has_finish: bool,
}

/// Its number.
enum Index {
    Missing,
    Null(Range<usize>),
    Told,
}

impl Chat {
    pub(super) fn choice<'t>(
        &mut self,
        chunk: &mut Chunk<'t>,
        edits: &mut Edits<'t>,
        walker: &mut Walker<'t>,
    ) -> Result<()> {
        let asked = self.settings.normalize || self.settings.usage_chunk_strict;
        if walker.peek()? != Kind::Object || !asked {
            return walker.skip().map(drop);
        }
        let mut choice = Choice {
            text: chunk.text.get(walker.at()..).unwrap_or_default(),
            members: Members::of(chunk.text, walker)?,
            index: Index::Missing,
            has_said: false,
            has_finish: false,
        };
        walker.object(|walker, name| {
            let goes = self.choice_member(chunk, &mut choice, edits, walker, name)?;
            choice.members.pass(goes, edits, walker.at());
            Ok(())
        })?;
        if self.settings.normalize {
            self.complete(chunk, choice, edits);
        }
        Ok(())
    }

    /// Answers whether the member goes.
    fn choice_member<'t>(
        &mut self,
        chunk: &mut Chunk<'t>,
        choice: &mut Choice<'t>,
        edits: &mut Edits<'t>,
        walker: &mut Walker<'t>,
        name: Text<'t>,
    ) -> Result<bool> {
        let normalize = self.settings.normalize;
        let kind = walker.peek()?;
        let start = walker.at();
        match &*name.bytes() {
            b"usage" => {
                chunk.saw(Place::Choice, walker.skip()?);
                let goes = normalize || chunk.form == Form::Chunk;
                if goes {
                    self.repairs.note(if normalize { Repair::Usage } else { Repair::UsageChunk });
                }
                return Ok(goes);
            }
            _ if !normalize => drop(walker.skip()?),
            b"delta" if kind == Kind::Null => {
                walker.skip()?;
                edits.replace(start..walker.at(), &b"{}"[..]);
                self.repairs.note(Repair::Delta);
                choice.has_said = true;
            }
            b"delta" => {
                self.said(chunk, edits, walker, choice.text)?;
                choice.has_said = true;
            }
            b"message" if chunk.form == Form::Chunk => {
                self.repairs.note(Repair::Message);
                if has_member(choice.text, "delta") {
                    walker.skip()?;
                    return Ok(true);
                }
                edits.replace(choice.members.name(name.raw()), &b"\"delta\""[..]);
                self.said(chunk, edits, walker, choice.text)?;
                choice.has_said = true;
            }
            b"message" => self.said(chunk, edits, walker, choice.text)?,
            b"text" => {
                walker.skip()?;
                choice.has_said = true;
            }
            b"index" => {
                walker.skip()?;
                let null = kind == Kind::Null;
                choice.index = if null { Index::Null(start..walker.at()) } else { Index::Told };
            }
            b"finish_reason" => {
                self.finish_reason(edits, walker)?;
                choice.has_finish = true;
            }
            other => {
                walker.skip()?;
                return Ok(self.repairs.private(Level::Choice, other));
            }
        }
        Ok(false)
    }

    /// What every choice has.
    fn complete<'t>(&mut self, chunk: &Chunk<'t>, mut choice: Choice<'t>, edits: &mut Edits<'t>) {
        let position = chunk.count;
        match choice.index {
            Index::Told => {}
            Index::Null(at) => {
                self.repairs.note(Repair::Index);
                edits.replace(at, position.to_string().into_bytes());
            }
            Index::Missing => {
                self.repairs.note(Repair::Index);
                choice.members.add(edits, format!("\"index\":{position}").as_bytes());
            }
        }
        if chunk.form == Form::Reply {
            return;
        }
        if !choice.has_said {
            self.repairs.note(Repair::Delta);
            choice.members.add(edits, b"\"delta\":{}");
        }
        if !choice.has_finish {
            self.repairs.note(Repair::Unfinished);
            choice.members.add(edits, b"\"finish_reason\":null");
        }
    }

    /// A delta or a message; `choice` is the text from its choice on.
    fn said<'t>(
        &mut self,
        chunk: &Chunk<'t>,
        edits: &mut Edits<'t>,
        walker: &mut Walker<'t>,
        choice: &'t [u8],
    ) -> Result<()> {
        if walker.peek()? != Kind::Object {
            return walker.skip().map(drop);
        }
        let delta = Delta::look(chunk.text.get(walker.at()..).unwrap_or_default())?;
        let mut members = Members::of(chunk.text, walker)?;
        walker.object(|walker, name| {
            let kind = walker.peek()?;
            if kind == Kind::Array && chunk.form == Form::Chunk && name.is("tool_calls") {
                let mut position = 0;
                walker.array(|walker| {
                    self.calls.part(chunk.text, edits, walker, choice, position, &mut self.repairs)?;
                    position += 1;
                    Ok(())
                })?;
                members.keep(edits, walker.at());
                return Ok(());
            }
            delta.member(&mut self.repairs, &mut members, edits, walker, name)
        })?;
        Ok(())
    }

    fn finish_reason<'t>(&mut self, edits: &mut Edits<'t>, walker: &mut Walker<'t>) -> Result<()> {
        walker.peek()?;
        let start = walker.at();
        let Some(reason) = walker.string()? else { return Ok(()) };
        let word: &[u8] = match &*reason.bytes() {
            b"" => b"null",
            b"eos" | b"end_turn" | b"stop_sequence" => b"\"stop\"",
            b"max_tokens" => b"\"length\"",
            b"tool_use" => b"\"tool_calls\"",
            _ => return Ok(()),
        };
        self.repairs.note(Repair::Finish);
        edits.replace(start..walker.at(), word);
        Ok(())
    }
}

/// Whether the object at the front of `text` has this member.
fn has_member(text: &[u8], wanted: &str) -> bool {
    let mut found = false;
    let _ = Walker::new(text).object(|walker, name| {
        found |= name.is(wanted);
        walker.skip().map(drop)
    });
    found
}
