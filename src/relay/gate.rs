//! Holds the prelude of an attempt until its first content (A3).
//!
//! Called by the attempt. Touches only its own memory.

use bytes::{Bytes, BytesMut};

/// A3: a longer prelude is no prelude; it is released and the attempt committed.
pub(super) const MAX_PRELUDE_BYTES: usize = 4 * 1024 * 1024;

/// The gate of one attempt. Open means committed (A4).
#[derive(Debug)]
pub(super) struct Gate {
    /// What came so far and is still to go out: whole events, in order. Copied, since a list of
    /// slices would cost a hundred times its bytes if an upstream sends them one by one.
    prelude: BytesMut,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing of the attempt has reached the client.
    Holding,
    /// Content came: everything passes.
    Open,
    /// The prelude became too long: everything passes.
    Overflowed,
}

impl Gate {
    /// A gate that holds nothing yet.
    pub(super) fn new() -> Self {
        Self { prelude: BytesMut::new(), state: State::Holding }
    }

    /// Whether the attempt is committed.
    pub(super) const fn is_open(&self) -> bool {
        match self.state {
            State::Holding => false,
            State::Open | State::Overflowed => true,
        }
    }

    /// Whether it opened because the prelude was too long (A3).
    pub(super) const fn overflowed(&self) -> bool {
        matches!(self.state, State::Overflowed)
    }

    /// Bytes held back.
    pub(super) fn held(&self) -> usize {
        self.prelude.len()
    }

    /// Content is here: from now on everything passes, the prelude first.
    pub(super) const fn open(&mut self) {
        if !self.is_open() {
            self.state = State::Open;
        }
    }

    /// Opens if the prelude together with `more` bytes is too long; answers whether it did.
    pub(super) fn overflows(&mut self, more: usize) -> bool {
        let overflows = !self.is_open() && self.prelude.len() + more > MAX_PRELUDE_BYTES;
        if overflows {
            self.state = State::Overflowed;
        }
        overflows
    }

    /// Keeps `bytes`, or, once open, answers what goes out: the prelude and `bytes` in one write.
    pub(super) fn pass(&mut self, bytes: Bytes) -> Bytes {
        if self.is_open() && self.prelude.is_empty() {
            return bytes;
        }
        self.prelude.extend_from_slice(&bytes);
        if !self.is_open() {
            return Bytes::new();
        }
        std::mem::take(&mut self.prelude).freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f2_a_prelude_in_tiny_pieces_costs_its_bytes() {
        let mut gate = Gate::new();
        for _ in 0..100_000 {
            assert!(gate.pass(Bytes::from_static(b"\n")).is_empty());
        }
        assert_eq!(gate.held(), 100_000);
        assert!(gate.prelude.capacity() <= 2 * 100_000, "{}", gate.prelude.capacity());
        gate.open();
        assert_eq!(gate.pass(Bytes::from_static(b"data: 1\n\n")).len(), 100_009);
        assert_eq!(gate.held(), 0);
    }
}
