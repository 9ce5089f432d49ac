//! Holds the prelude of an attempt until its first content (A3).
//!
//! Called by the relay. Touches only its own memory.

use bytes::{Bytes, BytesMut};

/// A3: a longer prelude is no prelude; it is released and the attempt committed.
pub const MAX_PRELUDE_BYTES: usize = 4 * 1024 * 1024;

/// The gate of one attempt. Open means committed (A4).
#[derive(Debug)]
pub enum Gate {
    /// Nothing of the attempt has reached the client.
    Holding {
        /// What came so far, whole events, in order.
        prelude: Vec<Bytes>,
        /// Their bytes.
        size: usize,
    },
    /// Everything passes.
    Open,
}

impl Gate {
    /// A gate that holds nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self::Holding { prelude: Vec::new(), size: 0 }
    }

    /// Whether the attempt is committed.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }

    /// Bytes held back.
    #[must_use]
    pub const fn held(&self) -> usize {
        match self {
            Self::Holding { size, .. } => *size,
            Self::Open => 0,
        }
    }

    /// Passes `bytes` on if open, else keeps them. Answers what may go out now.
    pub fn pass(&mut self, bytes: Bytes) -> Bytes {
        match self {
            Self::Open => bytes,
            Self::Holding { prelude, size } => {
                *size += bytes.len();
                if !bytes.is_empty() {
                    prelude.push(bytes);
                }
                Bytes::new()
            }
        }
    }

    /// The first content is here: opens, and answers the prelude together with `bytes`, so that
    /// both leave in one write.
    pub fn open(&mut self, bytes: Bytes) -> Bytes {
        match std::mem::replace(self, Self::Open) {
            Self::Open => bytes,
            Self::Holding { prelude, .. } if prelude.is_empty() => bytes,
            Self::Holding { prelude, size } => {
                let mut all = BytesMut::with_capacity(size + bytes.len());
                for piece in prelude.iter().chain([&bytes]) {
                    all.extend_from_slice(piece);
                }
                all.freeze()
            }
        }
    }
}
