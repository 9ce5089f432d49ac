//! The log: format, level, destination.
