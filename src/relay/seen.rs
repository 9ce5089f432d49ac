//! When output passed, for the latency figures (M1).
//!
//! Filled by the attempt that it belongs to, so that nothing of a failed one is left. Touches nothing.

use crate::meter::Facts;
use std::time::Instant;

/// When output passed. Comments, pings and preludes are no output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// First output read from the upstream.
    pub first_output_read: Option<Instant>,
    /// First output written to the client.
    pub first_output: Option<Instant>,
    /// First answer text, refusal or tool call written.
    pub first_visible: Option<Instant>,
    /// Last output written.
    pub last_output: Option<Instant>,
    /// Output events written.
    pub output_events: u64,
    pending_output: u64,
    pending_visible: bool,
}

impl Seen {
    /// Nothing passed.
    pub(super) const NOTHING: Self = Self {
        first_output_read: None,
        first_output: None,
        first_visible: None,
        last_output: None,
        output_events: 0,
        pending_output: 0,
        pending_visible: false,
    };

    /// An event with output was read and goes out with the next write.
    pub(super) fn read(&mut self, now: Instant, facts: Facts) {
        self.first_output_read.get_or_insert(now);
        self.pending_output += 1;
        self.pending_visible |= facts.visible;
    }

    /// Everything read so far is written.
    pub(super) fn written(&mut self, now: Instant) {
        if self.pending_output > 0 {
            self.output_events += std::mem::take(&mut self.pending_output);
            self.first_output.get_or_insert(now);
            self.last_output = Some(now);
        }
        if std::mem::take(&mut self.pending_visible) {
            self.first_visible.get_or_insert(now);
        }
    }
}
