//! Knows the next delta by the one before it.
//!
//! Called by the meter before it walks an event. Touches nothing.
//!
//! The simple version walks every event. But most events of a stream are the one before them with
//! another word in it, and to compare bytes is several times cheaper than to read JSON. So the last
//! delta is kept with its word (and the padding and the running number that some send) cut out. An
//! event that has the same bytes around other strings and another number is the same JSON with those
//! there; it means the same as long as the word is not empty. Only deltas that change nothing in the
//! meter but the counts are kept.

use super::Facts;
use crate::json::{self, Kind, Malformed, Walker};
use std::ops::Range;

/// Longer deltas are walked: what is kept counts for every open stream.
const MAX_KEPT: usize = 1024;
/// Digits of a number that is not absurd ([`super::usage::ABSURD`]); longer ones are walked.
const MAX_DIGITS: usize = 12;

/// The parts of a delta that may differ, as offsets into its JSON; strings without their quotes.
#[derive(Clone, Debug, Default)]
pub(super) struct Holes {
    /// The word.
    word: Option<Range<usize>>,
    /// Padding: read by nobody, may be empty.
    padding: Option<Range<usize>>,
    /// The running number.
    number: Option<Range<usize>>,
    /// There is more than one word, or one that is no string: not for a twin.
    unfit: bool,
}

/// What has to stand in a hole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Filling {
    #[default]
    Word,
    Padding,
    Number,
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

    /// Notes the running number at `value`.
    pub(super) fn number(&mut self, value: Range<usize>) {
        self.unfit |= self.number.is_some();
        self.number = Some(value);
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
    /// For each hole where the part before it ends in `kept`; there are as many as fit a delta.
    holes: [Option<(usize, Filling)>; 3],
    facts: Option<Facts>,
    /// Where the word of the delta is that was learnt last, until it is asked for.
    learnt: Option<Range<usize>>,
}

/// What a twin means.
pub(super) struct Known {
    pub(super) facts: Facts,
    /// Its running number.
    pub(super) number: Option<u64>,
    /// Where its word is.
    pub(super) word: Range<usize>,
}

/// The only word of a delta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// Where it is in the event's data (without white space around that), without its quotes.
    pub at: Range<usize>,
    /// The delta is the one before it with another word: what holds for that one's word holds for this one's.
    pub is_known: bool,
}

impl Twin {
    /// Keeps a delta that means `facts`, if it is fit.
    pub(super) fn learn(&mut self, json: &[u8], holes: &Holes, facts: Facts) {
        let plain = Facts { output: true, visible: facts.visible, ..Facts::default() };
        if holes.unfit || holes.word.is_none() || facts != plain {
            return;
        }
        let word = holes.word.clone();
        let mut holes = [
            (holes.word.clone(), Filling::Word),
            (holes.padding.clone(), Filling::Padding),
            (holes.number.clone(), Filling::Number),
        ];
        holes.sort_by_key(|(hole, _)| hole.as_ref().map_or(usize::MAX, |hole| hole.start));
        let cut: usize = holes.iter().filter_map(|(hole, _)| hole.as_ref()).map(Range::len).sum();
        if json.len().saturating_sub(cut) > MAX_KEPT {
            return;
        }
        self.kept.clear();
        let mut after = 0;
        self.holes = holes.map(|(hole, filling)| {
            let hole = hole?;
            self.kept.extend_from_slice(json.get(after..hole.start).unwrap_or_default());
            after = hole.end;
            Some((self.kept.len(), filling))
        });
        self.kept.extend_from_slice(json.get(after..).unwrap_or_default());
        self.facts = Some(facts);
        self.learnt = word;
    }

    /// The word of the delta that was learnt just now.
    pub(super) fn learnt(&mut self) -> Option<Word> {
        self.learnt.take().map(|at| Word { at, is_known: false })
    }

    /// Something changed that a twin would have changed back.
    pub(super) fn forget(&mut self) {
        self.facts = None;
    }

    /// What `json` means, if it is a twin of the delta that is kept.
    pub(super) fn knows(&self, json: &[u8]) -> Option<Known> {
        let facts = self.facts?;
        let (mut rest, mut from, mut number, mut word) = (json, 0, None, 0..0);
        for (end, filling) in self.holes.iter().flatten() {
            let hole = rest.strip_prefix(self.kept.get(from..*end)?)?;
            let len = match filling {
                Filling::Word => {
                    let len = json::string_len(hole).filter(|len| *len > 0)?;
                    let start = json.len().saturating_sub(hole.len());
                    word = start..start.saturating_add(len);
                    len
                }
                Filling::Padding => json::string_len(hole)?,
                Filling::Number => {
                    let (value, len) = whole(hole)?;
                    number = Some(value);
                    len
                }
            };
            (rest, from) = (hole.get(len..)?, *end);
        }
        (rest == self.kept.get(from..)?).then_some(Known { facts, number, word })
    }
}

/// The whole number that `text` begins with, and its length.
fn whole(text: &[u8]) -> Option<(u64, usize)> {
    let digits = text.iter().take(MAX_DIGITS + 1).take_while(|byte| byte.is_ascii_digit());
    let (value, len) = digits.fold((0_u64, 0), |(value, len), digit| {
        (value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')), len + 1)
    });
    let is_plain = len == 1 || text.first() != Some(&b'0');
    ((1..=MAX_DIGITS).contains(&len) && is_plain).then_some((value, len))
}
