//! Decides what a live stream does next.
