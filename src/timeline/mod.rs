//! The timelines of the last requests, without content, in a ring of fixed size (M4).
//!
//! Filled by the gateway, once per request at its end; read by the admin API. Touches only its own slots: each has a lock
//! of its own, held for the time of a pointer's copy (a swap without locks looks for readers in every thread).

pub mod brief;
#[cfg(test)]
mod tests;
pub mod verdict;

use crate::ledger::money::Nano;
use crate::record::Record;
use arc_swap::ArcSwap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use uuid::Uuid;

/// One ended request.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The fact sheet; the ledger has the same one until it is written.
    pub record: Arc<Record>,
    /// Where a price is known.
    pub charge: Option<Nano>,
    /// What only those saw who carried it.
    pub sight: Sight,
}

/// What relay and pump saw beyond the record. Durations count from the request's head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// The head of the response was written.
    pub opened: Option<Duration>,
    /// The first keepalive was written.
    pub first_keepalive: Option<Duration>,
    /// The last write ended.
    pub last_write: Option<Duration>,
    /// The longest that one write took: how slowly the client reads.
    pub longest_write: Duration,
    /// The upstream's longest silences within an answer, the longest first.
    pub gaps: [Option<Gap>; 3],
}

/// One silence of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// When it began.
    pub at: Duration,
    /// How long it was.
    pub took: Duration,
}

/// The last requests; the oldest makes room.
#[derive(Debug)]
pub struct Timelines(ArcSwap<Ring>);

#[derive(Debug)]
struct Ring {
    slots: Box<[Slot]>,
    /// Where the next one goes, not wrapped.
    next: AtomicUsize,
}

/// Room for one.
#[derive(Debug, Default)]
struct Slot(Mutex<Option<Arc<Timeline>>>);

impl Timelines {
    /// A ring for `keep` requests; 0: nothing is kept.
    #[must_use]
    pub fn new(keep: usize) -> Self {
        Self(ArcSwap::from_pointee(Ring::new(keep)))
    }

    /// Another size from now on (C2); the newest stay. What ends at the same moment may be missing.
    pub fn resize(&self, keep: usize) {
        if self.0.load().slots.len() == keep {
            return;
        }
        let ring = Ring::new(keep);
        let mut newest: Vec<_> = self.recent().into_iter().take(keep).collect();
        newest.reverse();
        for timeline in newest {
            ring.push(timeline);
        }
        self.0.store(Arc::new(ring));
    }

    /// Keeps what `timeline` makes, unless nothing is kept.
    pub fn push(&self, timeline: impl FnOnce() -> Timeline) {
        let ring = self.0.load();
        if !ring.slots.is_empty() {
            ring.push(Arc::new(timeline()));
        }
    }

    /// All of them, the last one to end first.
    #[must_use]
    pub fn recent(&self) -> Vec<Arc<Timeline>> {
        let ring = self.0.load();
        let (count, next) = (ring.slots.len(), ring.next.load(Ordering::Acquire));
        let newest_first = (1..=count).filter_map(|back| next.checked_sub(back));
        newest_first.filter_map(|at| ring.slots.get(at.checked_rem(count)?)?.kept()).collect()
    }

    /// That of one request.
    #[must_use]
    pub fn find(&self, id: Uuid) -> Option<Arc<Timeline>> {
        let ring = self.0.load();
        ring.slots.iter().filter_map(Slot::kept).find(|kept| kept.record.id == id)
    }
}

impl Slot {
    fn kept(&self) -> Option<Arc<Timeline>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The one before, which is dropped outside of the lock.
    fn replace(&self, timeline: Arc<Timeline>) -> Option<Arc<Timeline>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(timeline)
    }
}

impl Ring {
    fn new(keep: usize) -> Self {
        let slots = (0..keep).map(|_| Slot::default()).collect();
        Self { slots, next: AtomicUsize::new(0) }
    }

    fn push(&self, timeline: Arc<Timeline>) {
        let at = self.next.fetch_add(1, Ordering::AcqRel);
        if let Some(slot) = at.checked_rem(self.slots.len()).and_then(|at| self.slots.get(at)) {
            drop(slot.replace(timeline));
        }
    }
}
