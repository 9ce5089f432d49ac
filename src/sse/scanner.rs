//! Cuts a stream of bytes at its event boundaries (F2, F4).
//!
//! Called by the relay, once per chunk and once at the clean end of input. Touches only its
//! own fields: no socket, no clock.

use bytes::Bytes;
use std::ops::Range;

/// One whole event inside a block; all offsets are into [`Block::bytes`].
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
    /// Value of a field named `error` (F4, B20); empty if there is none.
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

    /// The data, its lines joined by LF if there are several (in `scratch`); otherwise a slice of `bytes`.
    #[must_use]
    pub fn payload<'a>(&self, bytes: &'a [u8], scratch: &'a mut Vec<u8>) -> &'a [u8] {
        scratch.clear();
        bytes.get(self.data.clone()).unwrap_or_default()
    }
}

/// What one read completed.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// Whole events, contiguous, as received.
    pub bytes: Bytes,
    /// Bytes at the front that still belong to the event before: the LF after a CR that was already released.
    pub lead: usize,
}

/// The unfinished event passed the maximum (F2): the upstream is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event is larger than {max} bytes")]
pub struct TooLarge {
    /// The configured maximum, in bytes.
    pub max: usize,
}

/// What is left at a clean end of input (E1).
#[derive(Clone, Debug, Default)]
pub struct Tail {
    /// The bytes held so far.
    pub bytes: Bytes,
    /// The unfinished event in them, if it has data or an `error` field.
    pub span: Option<Span>,
    /// The newlines it needs to be dispatched, in the stream's own style.
    pub completion: &'static [u8],
}

/// Cuts a stream of chunks at its event boundaries.
#[derive(Debug)]
pub struct Scanner {
    max: usize,
}

impl Scanner {
    /// `max_event_bytes` bounds one unfinished event (F2).
    #[must_use]
    pub const fn new(max_event_bytes: usize) -> Self {
        Self { max: max_event_bytes }
    }

    /// Takes the next chunk and gives what became whole (perhaps nothing).
    ///
    /// # Errors
    /// [`TooLarge`] once the held event passes the maximum.
    pub fn push(&mut self, chunk: Bytes) -> Result<Block, TooLarge> {
        if chunk.len() > self.max {
            return Err(TooLarge { max: self.max });
        }
        Ok(Block { bytes: chunk, lead: 0 })
    }

    /// The events of the last [`Self::push`], in order.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &[]
    }

    /// Bytes of the unfinished event.
    #[must_use]
    pub fn held(&self) -> usize {
        0
    }

    /// The last released byte was a CR, an LF may still follow, and the stream has not been CR-only (K2, E1).
    #[must_use]
    pub fn after_cr(&self) -> bool {
        false
    }

    /// All line ends so far were a bare CR, and there was at least one that is known to be bare.
    #[must_use]
    pub fn cr_only(&self) -> bool {
        false
    }

    /// The clean end of input: what is left (E1).
    pub fn finish(&mut self) -> Tail {
        Tail::default()
    }
}
