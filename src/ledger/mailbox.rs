//! What lies between the requests and the writer: the queue, the health and the counters.
//!
//! Requests put messages in, the writer takes them out; metrics and `/readyz` read the rest.
//! Touches no file.
//!
//! The queue has no bound of its own: opening waits while too much lies in it, and everything else
//! is bounded by the requests that were opened (one checkpoint and one end each).

use super::bell::Bell;
use super::config::LedgerConfig;
use super::ticket::{Checkpoint, OpenRow};
use super::{Correction, Health, Settlement, Stats};
use arc_swap::ArcSwap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use tokio::sync::{Notify, oneshot};
use uuid::Uuid;

/// What the writer is told.
#[derive(Debug)]
pub(super) enum Message {
    /// A new row.
    Open { row: Box<OpenRow>, committed: Option<oneshot::Sender<Result<(), String>>> },
    /// It got further.
    Checkpoint { id: Uuid, checkpoint: Box<Checkpoint>, way: Arc<Way> },
    /// It ended.
    Settle { settlement: Box<Settlement>, committed: Option<oneshot::Sender<bool>> },
    /// Its ticket was dropped.
    Abandon(Uuid),
    /// It was refused before any dispatch.
    Cancel(Uuid),
    /// A settled row was wrong.
    Correct { correction: Box<Correction>, committed: oneshot::Sender<Result<(), String>> },
    /// Somebody has begun to wait for a row that was opened before.
    Hurry,
    /// The sink is this far.
    Shipped { settled: i64, corrections: i64 },
    /// Write all and stop.
    Close,
}

impl Message {
    /// Somebody waits for its commit. For a row that was opened nobody does before there is content.
    pub(super) const fn is_urgent(&self) -> bool {
        match self {
            Self::Settle { committed, .. } => committed.is_some(),
            Self::Hurry | Self::Correct { .. } | Self::Close => true,
            Self::Open { .. } | Self::Checkpoint { .. } | Self::Abandon(_) | Self::Cancel(_) | Self::Shipped { .. } => {
                false
            }
        }
    }
}

/// How far a request's messages are, known to both ends.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// A checkpoint is on its way to the writer.
    pub(super) checkpoint: AtomicBool,
    /// Its end is on its way, and will say more than a checkpoint.
    pub(super) end: AtomicBool,
}

/// Cumulative counters of the writer.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) commits: AtomicU64,
    pub(super) settled: AtomicU64,
    pub(super) recovered: AtomicU64,
    pub(super) unpriced: AtomicU64,
    pub(super) conflicts: AtomicU64,
    pub(super) lost: AtomicU64,
}

/// The shared middle.
#[derive(Debug)]
pub(super) struct Mailbox {
    sender: Sender<Message>,
    pub(super) bell: Bell,
    /// Sent and not committed.
    pub(super) pending: AtomicU64,
    broken: AtomicBool,
    health: Mutex<Health>,
    pub(super) counters: Counters,
    /// Told after each commit.
    pub(super) room: Notify,
    /// As in force; a reload replaces it.
    pub(super) config: ArcSwap<LedgerConfig>,
}

impl Mailbox {
    pub(super) fn new(sender: Sender<Message>, config: &LedgerConfig) -> Self {
        Self {
            sender,
            bell: Bell::new(),
            pending: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            health: Mutex::new(Health::Ok),
            counters: Counters::default(),
            room: Notify::new(),
            config: ArcSwap::from_pointee(config.clone()),
        }
    }

    /// Never blocks. After the writer has stopped, an end that arrives is told to the log; its open
    /// row stays and the next start settles it.
    pub(super) fn send(&self, message: Message) -> bool {
        let urgent = message.is_urgent();
        self.pending.fetch_add(1, Ordering::AcqRel);
        let Err(unsent) = self.sender.send(message) else {
            self.bell.ring(urgent);
            return true;
        };
        self.pending.fetch_sub(1, Ordering::AcqRel);
        if let Message::Settle { settlement, .. } = unsent.0 {
            self.lose(&settlement);
        }
        false
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    pub(super) fn health(&self) -> Health {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes a failed write; logs the first one only, and after everybody can see it.
    pub(super) fn broke(&self, cause: &str) {
        self.broken.store(true, Ordering::Release);
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        if let Health::Ok = *health {
            log::error!(cause; "the ledger cannot be written; settled rows wait in memory and are tried again");
            *health = Health::Broken { since: SystemTime::now(), cause: cause.to_owned() };
        }
    }

    /// Notes a successful write.
    pub(super) fn works(&self) {
        if !self.broken.swap(false, Ordering::AcqRel) {
            return;
        }
        *self.health.lock().unwrap_or_else(PoisonError::into_inner) = Health::Ok;
        log::info!("the ledger can be written again");
    }

    /// A settled row that cannot be kept: the log is its last place.
    pub(super) fn lose(&self, settlement: &Settlement) {
        self.counters.lost.fetch_add(1, Ordering::Relaxed);
        let record = &settlement.record;
        log::error!(
            request_id:% = record.id, key:? = record.key, model:? = record.model, target:? = record.target,
            outcome = record.outcome.word(), usage:? = settlement.bill.usage,
            charge:? = settlement.money.charge, cost:? = settlement.money.cost;
            "a settled request could not be written to the ledger"
        );
    }

    pub(super) fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            pending: self.pending.load(Ordering::Acquire),
            commits: read(&self.counters.commits),
            settled: read(&self.counters.settled),
            recovered: read(&self.counters.recovered),
            unpriced: read(&self.counters.unpriced),
            conflicts: read(&self.counters.conflicts),
            lost: read(&self.counters.lost),
        }
    }
}
