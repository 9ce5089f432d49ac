//! Changes a JSON text at places, leaving every other byte as it is.
//!
//! Called by the dialects while they walk an event. Touches only its own list.

use crate::json::{Malformed, Walker};
use std::borrow::Cow;
use std::ops::Range;

/// Changes to one text, in any order; they never overlap.
#[derive(Debug, Default)]
pub(in crate::normalize) struct Edits<'t> {
    list: Vec<(Range<usize>, Cow<'t, [u8]>)>,
}

impl<'t> Edits<'t> {
    /// The only change.
    pub(in crate::normalize) fn one(range: Range<usize>, with: Vec<u8>) -> Self {
        Self { list: vec![(range, with.into())] }
    }

    /// Puts `with` in the place of `range` (in bytes of the text).
    pub(in crate::normalize) fn replace(&mut self, range: Range<usize>, with: impl Into<Cow<'t, [u8]>>) {
        self.list.push((range, with.into()));
    }

    /// Puts `with` before the byte at `at`.
    pub(in crate::normalize) fn insert(&mut self, at: usize, with: impl Into<Cow<'t, [u8]>>) {
        self.replace(at..at, with);
    }

    /// Whether the text stays as it is.
    pub(in crate::normalize) const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Writes the changed text.
    pub(in crate::normalize) fn apply(mut self, text: &[u8], into: &mut Vec<u8>) {
        // Stable: what is added at one place stays in the order in which it was added.
        self.list.sort_by_key(|(range, _)| range.start);
        let mut at = 0;
        for (range, with) in &self.list {
            debug_assert!(at <= range.start, "each place is visited once, so changes never overlap");
            into.extend_from_slice(text.get(at..range.start).unwrap_or_default());
            into.extend_from_slice(with);
            at = range.end;
        }
        into.extend_from_slice(text.get(at..).unwrap_or_default());
    }
}

/// Follows a walk over one object, so that members can go and others can be added without a comma
/// too many.
#[derive(Debug)]
pub(in crate::normalize) struct Members<'t> {
    text: &'t [u8],
    /// Past the brace, or past the last member.
    end: usize,
    /// A member before `end` stays.
    kept: bool,
    /// A member before `end` goes.
    cut: bool,
}

impl<'t> Members<'t> {
    /// Before the walk over the next value, an object.
    pub(in crate::normalize) fn of(text: &'t [u8], walker: &mut Walker<'t>) -> Result<Self, Malformed> {
        walker.peek()?;
        Ok(Self { text, end: walker.at() + 1, kept: false, cut: false })
    }

    /// Where the name of the member that is being visited stands, quotes included.
    pub(in crate::normalize) fn name(&self, raw: &[u8]) -> Range<usize> {
        let gap = self.gap(|byte| byte != b'"');
        gap..gap + raw.len() + 2
    }

    /// The visited member, which ends at `end`, goes or stays.
    pub(in crate::normalize) fn pass(&mut self, goes: bool, edits: &mut Edits<'t>, end: usize) {
        if goes {
            self.cut(edits, end);
        } else {
            self.keep(edits, end);
        }
    }

    /// The visited member, which ends at `end`, stays.
    pub(in crate::normalize) fn keep(&mut self, edits: &mut Edits<'t>, end: usize) {
        if self.cut && !self.kept {
            let comma = self.gap(|byte| byte != b',');
            edits.replace(self.end..comma + 1, &b""[..]);
        }
        self.kept = true;
        self.end = end;
    }

    /// The visited member, which ends at `end`, goes.
    pub(in crate::normalize) fn cut(&mut self, edits: &mut Edits<'t>, end: usize) {
        edits.replace(self.end..end, &b""[..]);
        self.cut = true;
        self.end = end;
    }

    /// After the walk: one more member, `"name":value`.
    pub(in crate::normalize) fn add(&mut self, edits: &mut Edits<'t>, member: &[u8]) {
        let mut with = Vec::with_capacity(member.len() + 1);
        if self.kept {
            with.push(b',');
        }
        with.extend_from_slice(member);
        edits.insert(self.end, with);
        self.kept = true;
    }

    /// The first byte after the last member that `passes` does not pass; before it are only white
    /// space and a comma.
    fn gap(&self, passes: impl Fn(u8) -> bool) -> usize {
        let rest = self.text.get(self.end..).unwrap_or_default();
        self.end + rest.iter().position(|byte| !passes(*byte)).unwrap_or(rest.len())
    }
}
