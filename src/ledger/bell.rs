//! Wakes the writer, but only for a message that changes how long it sleeps: a wake-up is a system
//! call on either side.
//!
//! Rung by whoever sends; heard by the writer, which says what it hears before it sleeps. Touches no
//! message.
//!
//! No wake-up is lost: a sender first puts its message into the queue and then looks at what the
//! writer hears; the writer first says what it hears and then looks into the queue once more. With a
//! full fence between the two steps of either, one of them sees the other.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering, fence};
use std::thread::Thread;
use std::time::Instant;

/// What ends the writer's sleep before its time, from nothing to everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Hears {
    /// It is at work, or its commit is due at a time that no message changes.
    Nothing = 0,
    /// It gathers what nobody waits for.
    Urgent = 1,
    /// It has nothing to do.
    All = 2,
}

/// Between the senders and the writer.
#[derive(Debug)]
pub(super) struct Bell {
    /// A [`Hears`].
    hears: AtomicU8,
    /// Set before anything is heard.
    writer: OnceLock<Thread>,
}

impl Bell {
    pub(super) const fn new() -> Self {
        Self { hears: AtomicU8::new(Hears::Nothing as u8), writer: OnceLock::new() }
    }

    /// Called after a message was put into the queue.
    pub(super) fn ring(&self, urgent: bool) {
        if self.heard(urgent).is_some_and(|hears| self.claim(hears))
            && let Some(writer) = self.writer.get()
        {
            writer.unpark();
        }
    }

    /// What the writer hears, if such a message is among it.
    fn heard(&self, urgent: bool) -> Option<u8> {
        fence(Ordering::SeqCst);
        let hears = self.hears.load(Ordering::SeqCst);
        let least = if urgent { Hears::Urgent } else { Hears::All };
        (hears >= least as u8).then_some(hears)
    }

    /// One of many wakes it. If the writer said something else meanwhile, it looks into the queue after that.
    fn claim(&self, hears: u8) -> bool {
        let nothing = Hears::Nothing as u8;
        self.hears.compare_exchange(hears, nothing, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// The calling thread is the writer.
    pub(super) fn belongs_here(&self) {
        let _ = self.writer.set(std::thread::current());
    }

    /// From now on such messages wake it. The queue has to be looked into after this.
    pub(super) fn listen(&self, hears: Hears) {
        self.hears.store(hears as u8, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Sleeps; may wake early for no reason. Nothing is heard afterwards.
    pub(super) fn sleep(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            std::thread::park_timeout(left);
        }
        self.listen(Hears::Nothing);
    }
}

#[cfg(test)]
mod tests;
