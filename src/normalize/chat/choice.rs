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
    said: Said<'t>,
    has_finish: bool,
}

/// Its delta.
enum Said<'t> {
    Missing,
    Null(Range<usize>),
    /// Past its last member; `role`: it tells one.
    Delta {
        members: Members<'t>,
        role: bool,
    },
    /// A text (A10), or something that is no object.
    Other,
}

/// Choices whose role is remembered; nobody asks for more.
const MAX_ROLES: u64 = 64;
/// What OpenAI's first delta of every choice says; its SDK for Node wants to know it.
const ROLE: &[u8] = b"\"role\":\"assistant\"";

/// Its number.
enum Index {
    Missing,
    Null(Range<usize>),
    /// `None`: with something that is no number.
    Told(Option<u64>),
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
            said: Said::Missing,
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
                choice.said = Said::Null(start..walker.at());
            }
            b"delta" => choice.said = self.said(chunk, edits, walker, choice.text)?,
            b"message" if chunk.form == Form::Chunk => {
                self.repairs.note(Repair::Message);
                if has_member(choice.text, "delta") {
                    walker.skip()?;
                    return Ok(true);
                }
                edits.replace(choice.members.name(name.raw()), &b"\"delta\""[..]);
                choice.said = self.said(chunk, edits, walker, choice.text)?;
            }
            b"message" => {
                self.said(chunk, edits, walker, choice.text)?;
            }
            b"text" => {
                walker.skip()?;
                choice.said = Said::Other;
            }
            b"index" => {
                let raw = walker.skip()?;
                let told = || Index::Told(std::str::from_utf8(raw).ok().and_then(|raw| raw.parse().ok()));
                choice.index = if kind == Kind::Null { Index::Null(start..walker.at()) } else { told() };
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
        let mut position = Some(chunk.count);
        match choice.index {
            Index::Told(index) => position = index,
            Index::Null(at) => {
                self.repairs.note(Repair::Index);
                edits.replace(at, chunk.count.to_string().into_bytes());
            }
            Index::Missing => {
                self.repairs.note(Repair::Index);
                choice.members.add(edits, format!("\"index\":{}", chunk.count).as_bytes());
            }
        }
        if chunk.form == Form::Reply {
            return;
        }
        let role = position.is_some_and(|index| self.wants_role(index, &choice.said));
        if role {
            self.repairs.note(Repair::Role);
        }
        let delta = || if role { [b"{", ROLE, b"}"].concat() } else { b"{}".to_vec() };
        match choice.said {
            Said::Missing => {
                self.repairs.note(Repair::Delta);
                choice.members.add(edits, &[&b"\"delta\":"[..], &delta()].concat());
            }
            Said::Null(at) => {
                self.repairs.note(Repair::Delta);
                edits.replace(at, delta());
            }
            Said::Delta { mut members, .. } if role => members.add(edits, ROLE),
            Said::Delta { .. } | Said::Other => {}
        }
        if !choice.has_finish {
            self.repairs.note(Repair::Unfinished);
            choice.members.add(edits, b"\"finish_reason\":null");
        }
    }

    /// Whether this is a choice's first delta and does not tell the role.
    const fn wants_role(&mut self, index: u64, said: &Said<'_>) -> bool {
        if index >= MAX_ROLES || matches!(said, Said::Other) {
            return false;
        }
        let first = self.roles & (1 << index) == 0;
        self.roles |= 1 << index;
        first && !matches!(said, Said::Delta { role: true, .. })
    }

    /// A delta or a message; `choice` is the text from its choice on.
    fn said<'t>(
        &mut self,
        chunk: &Chunk<'t>,
        edits: &mut Edits<'t>,
        walker: &mut Walker<'t>,
        choice: &'t [u8],
    ) -> Result<Said<'t>> {
        if walker.peek()? != Kind::Object {
            return walker.skip().map(|_| Said::Other);
        }
        let mut role = false;
        let delta = Delta::look(chunk.text.get(walker.at()..).unwrap_or_default())?;
        let mut members = Members::of(chunk.text, walker)?;
        walker.object(|walker, name| {
            let kind = walker.peek()?;
            role |= name.is("role");
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
        Ok(Said::Delta { members, role })
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
