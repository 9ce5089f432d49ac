//! One event by its offsets, and what its lines say (F4).
//!
//! Filled by the scanner, one line at a time; read by the meter and the normaliser. Touches nothing.

use memchr::memchr2;
use std::ops::Range;

/// One whole event inside a block; all offsets are into [`super::Block::bytes`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte of the event.
    pub start: usize,
    /// One past its last byte: the end of its blank line.
    pub end: usize,
    /// Value of the last `event:` field; empty if there is none.
    pub name: Range<usize>,
    /// From the first data value's start to the last data value's end, as sent.
    pub data: Range<usize>,
    /// How many `data` lines it has.
    pub data_lines: u32,
    /// Value of the last field named `error` (F4, B20); empty if there is none.
    pub error: Range<usize>,
    /// Whether it has an `id` or a `retry` field (K2).
    pub id_or_retry: bool,
}

impl Span {
    /// Whether it carries data (or an `error` field): not so for comments and empty blocks.
    #[must_use]
    pub fn has_data(&self) -> bool {
        self.data_lines > 0 || !self.error.is_empty()
    }

    /// The data, its lines joined by LF (in `scratch`) if there are several; otherwise a slice of `bytes`.
    #[must_use]
    pub fn payload<'a>(&self, bytes: &'a [u8], scratch: &'a mut Vec<u8>) -> &'a [u8] {
        let raw = bytes.get(self.data.clone()).unwrap_or_default();
        if self.data_lines < 2 {
            return raw;
        }
        scratch.clear();
        let (first, mut rest) = cut_line(raw);
        scratch.extend_from_slice(first);
        while !rest.is_empty() {
            let (line, after) = cut_line(rest);
            if let (Field::Data, value) = Field::of(line) {
                scratch.push(b'\n');
                scratch.extend_from_slice(line.get(value..).unwrap_or_default());
            }
            rest = after;
        }
        scratch
    }

    /// Takes one non-empty line, whose first byte is at `at` of the block.
    pub(super) fn line(&mut self, at: usize, line: &[u8]) {
        let (field, value) = Field::of(line);
        let value = at.saturating_add(value)..at.saturating_add(line.len());
        match field {
            Field::Data => {
                if self.data_lines == 0 {
                    self.data = value;
                } else {
                    self.data.end = value.end;
                }
                self.data_lines = self.data_lines.saturating_add(1);
            }
            Field::Event => self.name = value,
            Field::Error => self.error = value,
            Field::IdOrRetry => self.id_or_retry = true,
            Field::Other => {}
        }
    }

    /// Moves all offsets `by` bytes to the front, where the bytes before were given away.
    pub(super) fn moved(mut self, by: usize) -> Self {
        let back = |range: &Range<usize>| range.start.saturating_sub(by)..range.end.saturating_sub(by);
        self.start = self.start.saturating_sub(by);
        self.end = self.end.saturating_sub(by);
        self.name = back(&self.name);
        self.data = back(&self.data);
        self.error = back(&self.error);
        self
    }
}

/// The fields that mean something to Weir.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Data,
    Event,
    Error,
    IdOrRetry,
    /// A comment, or a field that nobody reads.
    Other,
}

impl Field {
    /// The field of a line and where its value starts: after the colon and one space, or at the
    /// line's end if there is no colon. Names are exact and case-sensitive.
    fn of(line: &[u8]) -> (Self, usize) {
        let (field, name) = match line.first() {
            Some(b'd') => (Self::Data, "data"),
            Some(b'e') if line.get(1) == Some(&b'v') => (Self::Event, "event"),
            Some(b'e') => (Self::Error, "error"),
            Some(b'i') => (Self::IdOrRetry, "id"),
            Some(b'r') => (Self::IdOrRetry, "retry"),
            _ => return (Self::Other, 0),
        };
        let Some(rest) = line.strip_prefix(name.as_bytes()) else {
            return (Self::Other, 0);
        };
        match rest {
            [] => (field, name.len()),
            [b':', b' ', ..] => (field, name.len() + 2),
            [b':', ..] => (field, name.len() + 1),
            _ => (Self::Other, 0),
        }
    }
}

/// The first line without its end, and what follows that end.
fn cut_line(text: &[u8]) -> (&[u8], &[u8]) {
    let Some(end) = memchr2(b'\n', b'\r', text) else {
        return (text, &[]);
    };
    let (line, rest) = text.split_at(end);
    let rest = rest.strip_prefix(b"\r\n").or_else(|| rest.get(1..)).unwrap_or_default();
    (line, rest)
}
