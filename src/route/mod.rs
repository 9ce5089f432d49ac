//! Chooses the target of an attempt.
