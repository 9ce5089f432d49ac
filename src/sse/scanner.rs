//! Cuts a stream of bytes at its event boundaries (F2, F4).
//!
//! Called by the relay, once per chunk and once at the clean end of input. Touches only its
//! own fields: no socket, no clock.
//!
//! The simple version (kept in the tests) splits the whole stream into lines and collects them up
//! to each blank one. This one changes three things: it never looks at a byte twice, however the
//! reads are cut; it looks only for line ends and at line starts; and events that lie wholly inside
//! one chunk are slices of it.

use super::Span;
use bytes::{Bytes, BytesMut};
use memchr::memchr2;

/// Sent first by some servers; not a part of the first line (B08).
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// A burst needs many spans at once; when reads are small again, room for this many (6 KiB) is kept.
const KEPT_SPANS: usize = 64;

/// What one read completed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Whole events, contiguous, as received.
    pub bytes: Bytes,
    /// Bytes at the front that still belong to the event before: the LF after a CR that was already released.
    pub lead: usize,
}

/// An event passed the maximum (F2): the upstream is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event is larger than {max} bytes")]
pub struct TooLarge {
    /// The configured maximum, in bytes.
    pub max: usize,
    /// The whole events before it in the same read; [`Scanner::spans`] has theirs. They are good, so
    /// that where reads are cut does not matter.
    pub before: Block,
}

/// What is left at a clean end of input (E1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// The bytes held so far; to be dropped if there is no `span`.
    pub bytes: Bytes,
    /// The unfinished event in them, if it has data or an `error` field. Whether its JSON is whole,
    /// and so whether it counts, is for the caller to see.
    pub span: Option<Span>,
    /// The newlines it needs to be dispatched, in the stream's own style.
    pub completion: &'static [u8],
}

/// How lines end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEnd {
    Lf,
    CrLf,
    Cr,
}

/// Cuts a stream of chunks at its event boundaries.
#[derive(Debug)]
pub struct Scanner {
    max: usize,
    /// The unfinished event.
    held: BytesMut,
    /// What is known of it. `start` is where it begins: 0 between two pushes.
    draft: Span,
    /// Where its unfinished line begins.
    line: usize,
    /// Up to here there is no line end in the unfinished line.
    seen: usize,
    /// Events of the last push.
    spans: Vec<Span>,
    /// No line was finished yet: a byte-order mark may stand before it.
    first_line: bool,
    /// The last byte was a CR; an LF that follows belongs to it.
    open_cr: bool,
    /// The latest line end that is known for sure.
    last_end: Option<LineEnd>,
    /// A line end that was no bare CR was seen.
    other_ends: bool,
    too_large: bool,
}

impl Scanner {
    /// `max_event_bytes` bounds one event, finished or not (F2).
    #[must_use]
    pub fn new(max_event_bytes: usize) -> Self {
        Self {
            max: max_event_bytes,
            held: BytesMut::new(),
            draft: Span::default(),
            line: 0,
            seen: 0,
            spans: Vec::new(),
            first_line: true,
            open_cr: false,
            last_end: None,
            other_ends: false,
            too_large: false,
        }
    }

    /// Takes the next chunk and gives what became whole (perhaps nothing): all bytes up to the last
    /// event boundary. An event that ends in a CR is released at the CR; the LF that may follow is
    /// the next block's `lead`.
    ///
    /// # Errors
    /// [`TooLarge`] once an event passes the maximum, with the events before it; the scanner is of no use afterwards.
    pub fn push(&mut self, chunk: Bytes) -> Result<Block, TooLarge> {
        if self.spans.len() < self.spans.capacity() / 4 {
            self.spans.shrink_to(KEPT_SPANS);
        }
        self.spans.clear();
        let block = if self.held.is_empty() { self.push_alone(chunk) } else { self.push_held(&chunk) };
        if self.too_large || self.held.len() > self.max {
            self.too_large = true;
            self.held = BytesMut::new();
            return Err(TooLarge { max: self.max, before: block });
        }
        Ok(block)
    }

    /// The events of the last [`Self::push`], in order; with the lead they tile the block.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Bytes of the unfinished event.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// The last released byte was a CR, an LF may still follow, and the stream has not been CR-only (K2, E1).
    #[must_use]
    pub fn after_cr(&self) -> bool {
        self.open_cr && self.held.is_empty() && !self.cr_only()
    }

    /// All line ends so far were a bare CR, and there was at least one that is known to be bare.
    #[must_use]
    pub fn cr_only(&self) -> bool {
        self.last_end == Some(LineEnd::Cr) && !self.other_ends
    }

    /// The clean end of input: what is left (E1). Afterwards nothing is held.
    pub fn finish(&mut self) -> Tail {
        let bytes = std::mem::take(&mut self.held).freeze();
        let open_line = self.line < bytes.len();
        if open_line {
            self.take_line(&bytes, bytes.len());
        }
        let mut span = std::mem::take(&mut self.draft);
        span.end = bytes.len();
        let completion = self.completion(open_line);
        (self.line, self.seen) = (0, 0);
        Tail { span: span.has_data().then_some(span), bytes, completion }
    }

    /// Bytes of heap that it keeps.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.held.capacity() + self.spans.capacity() * size_of::<Span>()
    }

    /// Nothing is held: whole events are a slice of the chunk.
    fn push_alone(&mut self, chunk: Bytes) -> Block {
        let (lead, whole) = self.scan(&chunk);
        if whole == chunk.len() {
            self.keep_from(whole);
            return Block { bytes: chunk, lead };
        }
        let mut bytes = chunk;
        let rest = bytes.split_off(whole);
        self.held.extend_from_slice(&rest);
        self.keep_from(whole);
        Block { bytes, lead }
    }

    /// The chunk goes on with a held event. If that ends, the held bytes leave with it and what is
    /// left (less than the chunk) moves to a buffer of its own, so that one large event does not
    /// keep its buffer for the life of the stream.
    fn push_held(&mut self, chunk: &[u8]) -> Block {
        let mut buffer = std::mem::take(&mut self.held);
        buffer.extend_from_slice(chunk);
        let (lead, whole) = self.scan(&buffer);
        if whole == 0 {
            self.held = buffer;
            return Block { bytes: Bytes::new(), lead };
        }
        self.held.extend_from_slice(buffer.get(whole..).unwrap_or_default());
        self.keep_from(whole);
        buffer.truncate(whole);
        Block { bytes: buffer.freeze(), lead }
    }

    /// Reads on from `seen`; answers the lead and where the last whole event ends.
    fn scan(&mut self, buffer: &[u8]) -> (usize, usize) {
        let (lead, mut whole) = self.after_open_cr(buffer);
        while let Some(found) = line_len(buffer.get(self.seen..).unwrap_or_default()) {
            let end = self.seen + found;
            let next = self.line_end(buffer, end);
            let blank = self.take_line(buffer, end);
            (self.line, self.seen) = (next, next);
            if !blank {
                continue;
            }
            // Without the last line end's LF, which might as well have come in the next read.
            if end + 1 - self.draft.start > self.max {
                self.too_large = true;
                return (lead, whole);
            }
            self.draft.end = next;
            self.spans.push(std::mem::take(&mut self.draft));
            self.draft.start = next;
            whole = next;
        }
        self.seen = buffer.len();
        (lead, whole)
    }

    /// If the last byte so far was a CR, tells now what it was. An LF belongs to it: to the held
    /// line, or, where that line was released, to the lead.
    fn after_open_cr(&mut self, buffer: &[u8]) -> (usize, usize) {
        let Some(next) = buffer.get(self.seen) else {
            return (0, 0);
        };
        if !std::mem::take(&mut self.open_cr) {
            return (0, 0);
        }
        if *next != b'\n' {
            self.last_end = Some(LineEnd::Cr);
            return (0, 0);
        }
        self.note(LineEnd::CrLf);
        let released = self.seen == 0;
        self.seen += 1;
        self.line = self.seen;
        if !released {
            return (0, 0);
        }
        self.draft.start = self.seen;
        (self.seen, self.seen)
    }

    /// The line end at `end`: notes its kind and answers where the next line begins.
    fn line_end(&mut self, buffer: &[u8], end: usize) -> usize {
        match (buffer.get(end), buffer.get(end + 1)) {
            (Some(b'\r'), Some(b'\n')) => {
                self.note(LineEnd::CrLf);
                return end + 2;
            }
            (Some(b'\r'), Some(_)) => self.last_end = Some(LineEnd::Cr),
            (Some(b'\r'), None) => self.open_cr = true,
            _ => self.note(LineEnd::Lf),
        }
        end + 1
    }

    fn note(&mut self, end: LineEnd) {
        self.last_end = Some(end);
        self.other_ends = true;
    }

    /// Reads the line that ends at `end`; answers whether it is blank.
    fn take_line(&mut self, buffer: &[u8], end: usize) -> bool {
        let mut line = buffer.get(self.line..end).unwrap_or_default();
        if std::mem::take(&mut self.first_line) {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        if line.is_empty() {
            return true;
        }
        self.draft.line(end - line.len(), line);
        false
    }

    /// The bytes before `whole` were given away: what is held starts there.
    fn keep_from(&mut self, whole: usize) {
        self.draft = std::mem::take(&mut self.draft).moved(whole);
        self.line -= whole;
        self.seen -= whole;
    }

    /// One line end if the last line has its own, two if not. After an open CR, an LF would still
    /// belong to that CR.
    fn completion(&self, open_line: bool) -> &'static [u8] {
        match (self.last_end, open_line, self.open_cr) {
            (Some(LineEnd::CrLf), true, _) => b"\r\n\r\n",
            (Some(LineEnd::CrLf), false, true) => b"\n\r\n",
            (Some(LineEnd::CrLf), false, false) => b"\r\n",
            (Some(LineEnd::Cr), true, _) => b"\r\r",
            (Some(LineEnd::Cr) | None, false, true) | (Some(LineEnd::Cr), false, false) => b"\r",
            (Some(LineEnd::Lf), false, true) | (Some(LineEnd::Lf) | None, true, _) => b"\n\n",
            (Some(LineEnd::Lf) | None, false, false) => b"\n",
        }
    }
}

/// Where the first line end is. Every event has a blank line, for which no search has to be set up.
fn line_len(rest: &[u8]) -> Option<usize> {
    if let Some(b'\n' | b'\r') = rest.first() {
        return Some(0);
    }
    memchr2(b'\n', b'\r', rest)
}
