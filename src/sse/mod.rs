//! Finds whole events in a byte stream.

mod scanner;

pub use scanner::{Block, Scanner, Span, Tail, TooLarge};
