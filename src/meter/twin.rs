//! Knows the next delta by the one before it.
//!
//! Called by the meter before it walks an event. Touches nothing.
//!
//! The simple version walks every event. But most events of a stream are the one before them with
//! another word in it, and to compare bytes is several times cheaper than to read JSON. So the last
//! delta is kept with holes where its words stand, its padding, its running number and its usage. An
//! event that has the same bytes around other values of the same kinds is the same JSON with those
//! there; it means the same as long as no word is empty. Only deltas that change nothing in the meter
//! but the counts, the running number and the usage are kept.

use super::Facts;
use crate::json::{self, Kind, Malformed, Walker};
use std::ops::Range;

/// With more around its holes a delta is walked: what is kept counts for every open stream. (Some
/// send 3 KiB of sources with every word.)
const MAX_KEPT: usize = 4 * 1024;
/// With more holes a delta is walked.
const MAX_HOLES: usize = 6;
/// A longer object or array in a hole is walked: it might be nested too deeply for that.
const MAX_NESTED: usize = 1000;
/// Digits of a number that is not absurd ([`super::usage::ABSURD`]); longer ones are walked.
const MAX_DIGITS: usize = 12;

/// What has to stand in a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filling {
    /// A string that is not empty: output.
    Word,
    /// A string that nobody reads.
    Padding,
    /// The running number.
    Number,
    /// An object or array with something in it: output.
    Parts(Kind),
    /// An object or array that nobody reads.
    Unread(Kind),
    /// An object of token counts.
    Usage,
}

/// The values of a delta that may differ, in order, as offsets into its JSON; strings without their quotes.
#[derive(Clone, Debug, Default)]
pub(super) struct Holes {
    found: [Option<(Range<usize>, Filling)>; MAX_HOLES],
    /// With those that found no place.
    count: usize,
}

impl Holes {
    /// Passes over a value; whether something is in it, which is then output.
    pub(super) fn filled(&mut self, walker: &mut Walker<'_>) -> Result<bool, Malformed> {
        let (kind, start) = (walker.peek()?, walker.at());
        let filled = walker.filled()?;
        if filled {
            self.note(start..walker.at(), kind, Filling::Word, Filling::Parts(kind));
        }
        Ok(filled)
    }

    /// Passes over a value that nobody reads.
    pub(super) fn padding(&mut self, walker: &mut Walker<'_>) -> Result<(), Malformed> {
        let (kind, start) = (walker.peek()?, walker.at());
        if !matches!(walker.skip()?, b"[]" | b"{}") {
            self.note(start..walker.at(), kind, Filling::Padding, Filling::Unread(kind));
        }
        Ok(())
    }

    /// Passes over a value; its text if it is an object, which is then a usage.
    pub(super) fn usage<'a>(&mut self, walker: &mut Walker<'a>) -> Result<Option<&'a [u8]>, Malformed> {
        let (kind, start) = (walker.peek()?, walker.at());
        let raw = walker.skip()?;
        if kind != Kind::Object {
            return Ok(None);
        }
        self.add(start..walker.at(), Filling::Usage);
        Ok(Some(raw))
    }

    /// Passes over the running number.
    pub(super) fn number(&mut self, walker: &mut Walker<'_>) -> Result<Option<u64>, Malformed> {
        walker.peek()?;
        let start = walker.at();
        let number = super::counts::whole(walker.skip()?);
        self.add(start..walker.at(), Filling::Number);
        Ok(number)
    }

    /// How many there are so far.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// What is output in `these` is read by nobody.
    pub(super) fn unread(&mut self, these: Range<usize>) {
        for (_, filling) in self.found.iter_mut().take(these.end).skip(these.start).flatten() {
            *filling = match *filling {
                Filling::Word => Filling::Padding,
                Filling::Parts(kind) => Filling::Unread(kind),
                other => other,
            };
        }
    }

    /// Other values than strings, objects and arrays have to stay as they are.
    fn note(&mut self, value: Range<usize>, kind: Kind, string: Filling, nested: Filling) {
        match kind {
            Kind::String => self.add(value.start.saturating_add(1)..value.end.saturating_sub(1), string),
            Kind::Object | Kind::Array => self.add(value, nested),
            Kind::Number | Kind::Bool | Kind::Null => {}
        }
    }

    fn add(&mut self, hole: Range<usize>, filling: Filling) {
        if let Some(place) = self.found.get_mut(self.count) {
            *place = Some((hole, filling));
        }
        self.count += 1;
    }

    fn fillings(&self) -> impl Iterator<Item = Filling> {
        self.found.iter().flatten().map(|(_, filling)| *filling)
    }

    /// All have a place, something is output, and no number or usage overrules another one.
    fn are_fit(&self) -> bool {
        let count = |wanted| self.fillings().filter(|filling| *filling == wanted).count();
        self.count <= MAX_HOLES
            && self.fillings().any(|filling| matches!(filling, Filling::Word | Filling::Parts(_)))
            && count(Filling::Usage) < 2
            && count(Filling::Number) < 2
    }

    /// Where the word is, if that is all of the output.
    fn only_word(&self) -> Option<Range<usize>> {
        let output = |(_, filling): &&(Range<usize>, Filling)| matches!(filling, Filling::Word | Filling::Parts(_));
        let mut output = self.found.iter().flatten().filter(output);
        match (output.next(), output.next()) {
            (Some((word, Filling::Word)), None) => Some(word.clone()),
            _ => None,
        }
    }
}

/// The last delta with its holes cut out.
#[derive(Debug, Default)]
pub(super) struct Twin {
    /// What stands before, between and after the holes, up to [`before_brace`].
    kept: Vec<u8>,
    /// For each hole where the part before it ends in `kept`.
    holes: [Option<(usize, Filling)>; MAX_HOLES],
    facts: Option<Facts>,
    /// A word is all of its output.
    has_one_word: bool,
    /// Where the word of the delta is that was learnt last, until it is asked for.
    learnt: Option<Range<usize>>,
}

/// What a twin means.
pub(super) struct Known<'a> {
    pub(super) facts: Facts,
    /// Its running number.
    pub(super) number: Option<u64>,
    /// Its usage.
    pub(super) usage: Option<&'a [u8]>,
    /// Where its only word is.
    pub(super) word: Option<Range<usize>>,
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
        if facts != plain || !holes.are_fit() {
            return;
        }
        let cut: usize = holes.found.iter().flatten().map(|(hole, _)| hole.len()).sum();
        let Some(json) = before_brace(json).filter(|json| json.len().saturating_sub(cut) <= MAX_KEPT) else { return };
        self.kept.clear();
        let mut after = 0;
        for (hole, place) in holes.found.iter().zip(&mut self.holes) {
            *place = hole.as_ref().map(|(hole, filling)| {
                self.kept.extend_from_slice(json.get(after..hole.start).unwrap_or_default());
                after = hole.end;
                (self.kept.len(), *filling)
            });
        }
        self.kept.extend_from_slice(json.get(after..).unwrap_or_default());
        self.facts = Some(facts);
        self.learnt = holes.only_word();
        self.has_one_word = self.learnt.is_some();
    }

    /// The only word of the delta that was learnt just now.
    pub(super) fn learnt(&mut self) -> Option<Word> {
        self.learnt.take().map(|at| Word { at, is_known: false })
    }

    /// Something changed that a twin would have changed back.
    pub(super) fn forget(&mut self) {
        self.facts = None;
    }

    /// What `json` means, if it is a twin of the delta that is kept.
    pub(super) fn knows<'a>(&self, json: &'a [u8]) -> Option<Known<'a>> {
        let mut known = Known { facts: self.facts?, number: None, usage: None, word: None };
        let (mut rest, mut from) = (json, 0);
        for (end, filling) in self.holes.iter().map_while(Option::as_ref) {
            let hole = rest.strip_prefix(self.kept.get(from..*end)?)?;
            let len = match *filling {
                Filling::Word => {
                    let len = json::string_len(hole).filter(|len| *len > 0)?;
                    let start = json.len().saturating_sub(hole.len());
                    known.word = self.has_one_word.then(|| start..start.saturating_add(len));
                    len
                }
                Filling::Padding => json::string_len(hole)?,
                Filling::Number => {
                    let (number, len) = whole(hole)?;
                    known.number = Some(number);
                    len
                }
                Filling::Parts(kind) => nested(hole, kind).filter(|(_, filled)| *filled)?.0,
                Filling::Unread(kind) => nested(hole, kind)?.0,
                Filling::Usage => {
                    let (len, _) = nested(hole, Kind::Object)?;
                    known.usage = hole.get(..len);
                    len
                }
            };
            (rest, from) = (hole.get(len..)?, *end);
        }
        (before_brace(rest)? == self.kept.get(from..)?).then_some(known)
    }
}

/// The text of an object up to its last brace and the spaces before that, of which some upstreams send
/// another number each time.
fn before_brace(text: &[u8]) -> Option<&[u8]> {
    let mut text = text.strip_suffix(b"}")?;
    while let Some(shorter) = text.strip_suffix(b" ") {
        text = shorter;
    }
    Some(text)
}

/// How long the object or array is that `text` begins with, and whether something is in it.
fn nested(text: &[u8], kind: Kind) -> Option<(usize, bool)> {
    let mut walker = Walker::new(text);
    if walker.peek() != Ok(kind) {
        return None;
    }
    let filled = walker.filled().ok()?;
    (walker.at() <= MAX_NESTED).then(|| (walker.at(), filled))
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
