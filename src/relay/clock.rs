//! The deadlines of a stream (S1, E1): when each fires, and which fires first.
//!
//! Called by the attempt. Touches nothing; reads no clock.

use crate::config::Timeouts;
use crate::outcome::Failure;
use std::time::{Duration, Instant};

/// E1: how long a finished stream may take to bring its terminal event.
pub(super) const TERMINAL_GRACE: Duration = Duration::from_secs(5);
/// E1: how long Weir waits for the LF after a final CR.
pub(super) const LF_GRACE: Duration = Duration::from_secs(1);

/// Since when the upstream is waited for, per clock. All are moved forward by the time that was
/// spent waiting for the client (S2).
#[derive(Clone, Copy, Debug)]
pub(super) struct Since {
    /// The head of this attempt's answer.
    pub(super) head: Instant,
    /// The last byte, or the head.
    pub(super) byte: Instant,
    /// The last event with data, or the head.
    pub(super) data: Instant,
    /// The last output, or the commit.
    pub(super) output: Instant,
}

/// Which progress is asked of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Its first content (before the commit).
    FirstContent,
    /// More output (after it).
    Output,
    /// None: the client did not ask for a stream (F9).
    None,
}

impl Since {
    /// All clocks start with the head.
    pub(super) const fn new(head: Instant) -> Self {
        Self { head, byte: head, data: head, output: head }
    }

    /// Takes out time that was spent on the client.
    pub(super) fn forgive(&mut self, spent: Duration) {
        for since in [&mut self.head, &mut self.byte, &mut self.data, &mut self.output] {
            *since += spent;
        }
    }

    /// The stall that fires first, and when.
    pub(super) fn stall(&self, timeouts: &Timeouts, progress: Progress) -> (Instant, Failure) {
        let idle = (self.byte + timeouts.idle, Failure::Idle);
        let progress = match progress {
            Progress::FirstContent => (self.head + timeouts.first_content, Failure::FirstContent),
            Progress::Output => (self.output + timeouts.no_output, Failure::NoOutput),
            Progress::None => return idle,
        };
        if progress.0 < idle.0 { progress } else { idle }
    }
}
