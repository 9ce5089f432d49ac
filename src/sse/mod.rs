//! Finds whole events in a byte stream.
