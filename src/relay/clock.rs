//! The deadlines of a stream (S1, E1): when each fires, and which fires first.
//!
//! Called by the relay. Touches nothing; reads no clock.

use crate::config::Timeouts;
use crate::outcome::Failure;
use std::time::{Duration, Instant};

/// E1: how long a finished stream may take to bring its terminal event.
pub const TERMINAL_GRACE: Duration = Duration::from_secs(5);
/// E1: how long Weir waits for the LF after a final CR.
pub const LF_GRACE: Duration = Duration::from_secs(1);

/// Since when the upstream is waited for, per clock. All are moved forward by the time that was
/// spent waiting for the client (S2).
#[derive(Clone, Copy, Debug)]
pub struct Since {
    /// The head of this attempt's answer.
    pub head: Instant,
    /// The last byte, or the head.
    pub byte: Instant,
    /// The last event with data, or the head.
    pub data: Instant,
    /// The last output, or the commit.
    pub output: Instant,
}

impl Since {
    /// All clocks start with the head.
    #[must_use]
    pub const fn new(head: Instant) -> Self {
        Self { head, byte: head, data: head, output: head }
    }

    /// Takes out time that was spent on the client.
    pub fn forgive(&mut self, spent: Duration) {
        for since in [&mut self.head, &mut self.byte, &mut self.data, &mut self.output] {
            *since += spent;
        }
    }

    /// The stall that fires first, and when. Once everything has finished there is none (S1).
    #[must_use]
    pub fn stall(&self, timeouts: &Timeouts, committed: bool) -> (Instant, Failure) {
        let idle = (self.byte + timeouts.idle, Failure::Idle);
        let progress = if committed {
            (self.output + timeouts.no_output, Failure::NoOutput)
        } else {
            (self.head + timeouts.first_content, Failure::FirstContent)
        };
        if progress.0 < idle.0 { progress } else { idle }
    }
}
