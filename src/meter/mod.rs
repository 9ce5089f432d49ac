//! Reads what an event means: output, finish, usage, error, terminal.

pub mod usage;
