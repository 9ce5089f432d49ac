//! Finds whole events in a byte stream (F2, F4).
//!
//! Called by the relay once per chunk. Touches nothing else: no socket, no clock.
//!
//! An event is a block of lines up to and including its blank line; comments and fields before the
//! blank line belong to it, and every further blank line is a block of its own, without data.

mod scanner;
mod span;
#[cfg(test)]
mod tests;

pub use scanner::{Block, Scanner, Tail, TooLarge};
pub use span::Span;
