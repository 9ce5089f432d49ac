//! Numbers the tool calls of an answer whose provider does not (N2).
//!
//! Called for each part of a tool call. Touches only its own list.

use super::Result;
use crate::json::{Kind, Text, Walker};
use crate::normalize::edit::{Edits, Members};
use crate::normalize::repair::{Repair, Repairs};

/// Tool calls of one answer whose places are remembered; past it they share one.
const MAX_CALLS: usize = 128;

/// The calls of one answer.
#[derive(Debug, Default)]
pub(super) struct Calls {
    known: Vec<Call>,
}

/// A tool call by the number that it was given.
#[derive(Debug)]
struct Call {
    choice: u64,
    id: Vec<u8>,
    index: u64,
}

impl Calls {
    /// A part of a tool call: a missing number is that of its id, else of the call before.
    pub(super) fn part<'t>(
        &mut self,
        text: &'t [u8],
        edits: &mut Edits<'t>,
        walker: &mut Walker<'t>,
        choice: &'t [u8],
        position: u64,
        repairs: &mut Repairs,
    ) -> Result<()> {
        if walker.peek()? != Kind::Object {
            return walker.skip().map(drop);
        }
        let mut members = Members::of(text, walker)?;
        let (mut id, mut index, mut null) = (None, None, None);
        walker.object(|walker, name| {
            let kind = walker.peek()?;
            let start = walker.at();
            let mut goes = false;
            match &*name.bytes() {
                b"index" => {
                    let raw = walker.skip()?;
                    index = std::str::from_utf8(raw).ok().and_then(|raw| raw.parse().ok());
                    null = (kind == Kind::Null).then(|| start..walker.at());
                }
                b"id" => {
                    id = walker.string()?.map(Text::raw).filter(|id| !id.is_empty());
                    goes = kind == Kind::Null;
                }
                b"function" if kind == Kind::Object => function(text, edits, walker, repairs)?,
                _ => {
                    walker.skip()?;
                    goes = kind == Kind::Null;
                }
            }
            if goes {
                repairs.note(Repair::CallNulls);
            }
            members.pass(goes, edits, walker.at());
            Ok(())
        })?;
        if index.is_some() && id.is_none() {
            return Ok(());
        }
        let choice = number(choice, "index").unwrap_or(0);
        let found = self.index(choice, id, index, position);
        match (index, null) {
            (Some(_), _) => return Ok(()),
            (None, Some(range)) => edits.replace(range, found.to_string().into_bytes()),
            (None, None) => members.add(edits, format!("\"index\":{found}").as_bytes()),
        }
        repairs.note(Repair::Call);
        Ok(())
    }

    fn index(&mut self, choice: u64, id: Option<&[u8]>, index: Option<u64>, position: u64) -> u64 {
        let of_choice = || self.known.iter().filter(move |call| call.choice == choice);
        let Some(id) = id else { return of_choice().next_back().map_or(position, |call| call.index) };
        if let Some(known) = of_choice().find(|call| call.id == id) {
            return known.index;
        }
        let next = of_choice().map(|call| call.index + 1).max().unwrap_or(0);
        let index = index.unwrap_or(next).min(u64::from(u32::MAX));
        if self.known.len() < MAX_CALLS {
            self.known.push(Call { choice, id: id.to_vec(), index });
        }
        index
    }
}

/// SDKs let a later null overwrite what an earlier part said: nulls go (Writer).
fn function<'t>(text: &'t [u8], edits: &mut Edits<'t>, walker: &mut Walker<'t>, repairs: &mut Repairs) -> Result<()> {
    let mut members = Members::of(text, walker)?;
    walker.object(|walker, _| {
        let goes = walker.peek()? == Kind::Null;
        walker.skip()?;
        if goes {
            repairs.note(Repair::CallNulls);
        }
        members.pass(goes, edits, walker.at());
        Ok(())
    })?;
    Ok(())
}

/// A whole number among the members of the object at the front of `text`.
fn number(text: &[u8], wanted: &str) -> Option<u64> {
    let mut found = None;
    let _ = Walker::new(text).object(|walker, name| {
        let raw = walker.skip()?;
        if name.is(wanted) {
            found = std::str::from_utf8(raw).ok().and_then(|raw| raw.parse().ok());
        }
        Ok(())
    });
    found
}
