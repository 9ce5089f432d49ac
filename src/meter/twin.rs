//! Knows the next delta by the one before it.
//!
//! Called by the meter before it walks an event. Touches nothing.
//!
//! The simple version walks every event. But most events of a stream are the one before them with
//! another word in it, and to compare bytes is several times cheaper than to read JSON. So the last
//! delta is kept with its word (and the padding that some send) cut out. An event that has the same
//! bytes around other strings is the same JSON with other strings there; it means the same as long as
//! the word is not empty. Only deltas that change nothing in the meter but the count are kept.

use super::Facts;
use crate::json::{self, Kind, Malformed, Walker};
use std::ops::Range;

/// Longer deltas are walked: what is kept counts for every open stream.
const MAX_KEPT: usize = 1024;

/// The strings of a delta that may differ, without their quotes, as offsets into its JSON.
#[derive(Clone, Debug, Default)]
pub(super) struct Holes {
    /// The word.
    word: Option<Range<usize>>,
    /// Padding: read by nobody, may be empty.
    padding: Option<Range<usize>>,
    /// There is more than one word, or one that is no string: not for a twin.
    unfit: bool,
}

impl Holes {
    /// Passes over a value; whether something is in it, which is then the word.
    pub(super) fn filled(&mut self, walker: &mut Walker<'_>) -> Result<bool, Malformed> {
        let kind = walker.peek()?;
        let start = walker.at();
        let filled = walker.filled()?;
        if filled {
            self.unfit |= kind != Kind::String || self.word.is_some();
            self.word = Some(inside(start..walker.at()));
        }
        Ok(filled)
    }

    /// Output that is no single string.
    pub(super) fn unfit(&mut self) {
        self.unfit = true;
    }

    /// Notes padding at `value`, quotes included.
    pub(super) fn padding(&mut self, value: Range<usize>) {
        self.padding = Some(inside(value));
    }
}

fn inside(value: Range<usize>) -> Range<usize> {
    value.start.saturating_add(1)..value.end.saturating_sub(1)
}

/// The last delta with its holes cut out.
#[derive(Debug, Default)]
pub(super) struct Twin {
    /// What stands before, between and after the holes.
    kept: Vec<u8>,
    /// Where the part before the first hole ends in `kept`, and the one between them.
    first: usize,
    /// `None`: there is one hole only.
    second: Option<usize>,
    /// Whether the first hole may be empty (it is the padding), and the second.
    may_be_empty: [bool; 2],
    facts: Option<Facts>,
}

impl Twin {
    /// Keeps a delta that means `facts`, if it is fit.
    pub(super) fn learn(&mut self, json: &[u8], holes: &Holes, facts: Facts) {
        let plain = Facts { output: true, visible: facts.visible, ..Facts::default() };
        let Some(word) = holes.word.clone().filter(|_| !holes.unfit && facts == plain) else { return };
        let (first, second, may_be_empty) = match holes.padding.clone() {
            None => (word, None, [false, false]),
            Some(padding) if padding.start < word.start => (padding, Some(word), [true, false]),
            Some(padding) => (word, Some(padding), [false, true]),
        };
        let cut = first.len() + second.as_ref().map_or(0, Range::len);
        if json.len().saturating_sub(cut) > MAX_KEPT {
            return;
        }
        self.may_be_empty = may_be_empty;
        self.kept.clear();
        self.kept.extend_from_slice(json.get(..first.start).unwrap_or_default());
        self.first = self.kept.len();
        let mut after = first.end;
        self.second = second.map(|second| {
            self.kept.extend_from_slice(json.get(after..second.start).unwrap_or_default());
            after = second.end;
            self.kept.len()
        });
        self.kept.extend_from_slice(json.get(after..).unwrap_or_default());
        self.facts = Some(facts);
    }

    /// Something changed that a twin would have changed back.
    pub(super) fn forget(&mut self) {
        self.facts = None;
    }

    /// What `json` means, if it is a twin of the delta that is kept.
    pub(super) fn facts_of(&self, json: &[u8]) -> Option<Facts> {
        let facts = self.facts?;
        let [first_empty, second_empty] = self.may_be_empty;
        let rest = past(json, self.kept.get(..self.first)?, first_empty)?;
        let (rest, from) = match self.second {
            None => (rest, self.first),
            Some(second) => (past(rest, self.kept.get(self.first..second)?, second_empty)?, second),
        };
        (rest == self.kept.get(from..)?).then_some(facts)
    }
}

/// What follows after `part` and the inside of the string behind it.
fn past<'a>(json: &'a [u8], part: &[u8], may_be_empty: bool) -> Option<&'a [u8]> {
    let hole = json.strip_prefix(part)?;
    let len = json::string_len(hole)?;
    if len == 0 && !may_be_empty {
        return None;
    }
    hole.get(len..)
}
