//! The parts of a block that go on, once some of its events were dropped (U1).
//!
//! Called by the attempt. Touches nothing; copies only where something in the middle was dropped.

use bytes::{Bytes, BytesMut};

/// What is kept of one block: one slice as long as nothing between two kept parts was dropped.
#[derive(Debug)]
pub(super) struct Kept {
    block: Bytes,
    /// Kept parts before the last one.
    pieces: Vec<Bytes>,
    /// The last kept part.
    from: usize,
    to: usize,
    size: usize,
}

impl Kept {
    /// Nothing of the block is kept yet.
    pub(super) const fn new(block: Bytes) -> Self {
        Self { block, pieces: Vec::new(), from: 0, to: 0, size: 0 }
    }

    /// The block that offsets point into.
    pub(super) const fn block(&self) -> &Bytes {
        &self.block
    }

    /// Bytes kept so far.
    pub(super) const fn size(&self) -> usize {
        self.size
    }

    /// Keeps `start..end`, which lies behind everything kept before.
    pub(super) fn keep(&mut self, start: usize, end: usize) {
        self.size += end.saturating_sub(start);
        if start == self.to {
            self.to = end;
            return;
        }
        if self.from < self.to {
            self.pieces.push(self.block.slice(self.from..self.to));
        }
        (self.from, self.to) = (start, end);
    }

    /// The event that ends at `end` goes on as these bytes.
    pub(super) fn replace(&mut self, end: usize, event: Bytes) {
        if self.from < self.to {
            self.pieces.push(self.block.slice(self.from..self.to));
        }
        self.size += event.len();
        self.pieces.push(event);
        (self.from, self.to) = (end, end);
    }

    /// Everything kept, in one piece.
    pub(super) fn into_bytes(mut self) -> Bytes {
        let last = self.block.slice(self.from..self.to);
        if self.pieces.is_empty() {
            return last;
        }
        if !last.is_empty() {
            self.pieces.push(last);
        }
        concatenated(&self.pieces)
    }
}

/// One piece of all.
pub(super) fn concatenated(pieces: &[Bytes]) -> Bytes {
    if let [only] = pieces {
        return only.clone();
    }
    let mut all = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    for piece in pieces {
        all.extend_from_slice(piece);
    }
    all.freeze()
}

/// One piece of both, without a copy where one is empty.
pub(super) fn joined(first: Bytes, second: Bytes) -> Bytes {
    if second.is_empty() {
        return first;
    }
    if first.is_empty() {
        return second;
    }
    concatenated(&[first, second])
}
