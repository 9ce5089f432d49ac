//! What one request holds of the ledger: its open row, until it is settled.
//!
//! Held by the gateway. Sends messages to the writer and touches nothing else.

use super::Terms;
use super::billing::{self, Bill, Facts};
use super::config::{Durability, OnFailure};
use super::mailbox::{Mailbox, Message, Way};
use super::price::{Money, Sale, Tier};
use crate::meter::usage::{Source, Usage};
use crate::protocol::Endpoint;
use crate::record::Record;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use uuid::Uuid;

/// What is known before the attempt; enough to settle the row if everything else is lost.
#[derive(Clone, Debug)]
pub struct OpenRow {
    /// Weir's request id (F10).
    pub id: Uuid,
    /// The client's own id.
    pub client_request_id: Option<String>,
    /// The virtual key's name.
    pub key: Option<Arc<str>>,
    /// The key's tag.
    pub tag: Option<Arc<str>>,
    /// The client's address.
    pub client: Option<std::net::IpAddr>,
    /// Where it was sent to.
    pub endpoint: Option<Endpoint>,
    /// The public model name.
    pub model: Option<Arc<str>>,
    /// `provider/model` of the first attempt, if chosen already.
    pub target: Option<Arc<str>>,
    /// Whether a stream was asked for.
    pub stream: bool,
    /// When its head was read.
    pub received: SystemTime,
    /// The service tier asked for.
    pub tier_requested: Option<String>,
    /// Prompt tokens as admission estimated them, for a crash before usage came.
    pub input_estimate: Option<u64>,
}

/// How far a running request is; replaces the one before.
#[derive(Clone, Debug, Default)]
pub struct Checkpoint {
    /// `provider/model` that answers.
    pub target: Option<Arc<str>>,
    /// What was reported so far. Leave `output` out while it is a placeholder (B164).
    pub usage: Usage,
    /// Where `usage` is from.
    pub source: Source,
    /// Estimate of the delivered output ([`super::estimate::Delivered::rough`]).
    pub output_estimate: Option<u64>,
    /// Status that went to the client.
    pub status: u16,
    /// Body bytes written to the client.
    pub bytes: u64,
    /// Output events written to the client.
    pub output_events: u64,
    /// Since `received`: first output written.
    pub first_output: Option<std::time::Duration>,
    /// Since `received`: now.
    pub elapsed: std::time::Duration,
    /// The service tier the upstream says it uses.
    pub tier_served: Option<String>,
}

/// The end of a request, with its money.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// The fact sheet. Usage and source are written from the bill.
    pub record: Arc<Record>,
    /// What is charged and why.
    pub bill: Bill,
    /// Charge and cost ([`super::Terms`]'s prices over the bill).
    pub money: Money,
    /// Usage of other models inside the same answer (U3), by name; kept, and priced into `money` by the caller.
    pub other_models: Vec<(String, Usage)>,
    /// Counts that could not be true.
    pub anomalies: u64,
}

impl Settlement {
    /// Decides, prices, and puts usage and source into the record: all that stands between the end
    /// of a request and [`Ticket::settle`]. `record.usage` and `record.source` are overwritten;
    /// `facts.reported` is what counts. Some microseconds: no I/O, no BPE.
    #[must_use]
    pub fn new(terms: &Terms, mut record: Record, facts: &Facts, aside: Aside) -> Self {
        let Aside { other_models, failed, anomalies } = aside;
        let bill = billing::decide(facts, &terms.billing);
        record.usage = bill.usage;
        record.source = bill.source;
        let target = record.target.as_deref().unwrap_or_default();
        let (provider, provider_model) = target.split_once('/').unwrap_or((target, ""));
        let money = terms.prices.price(&Sale {
            model: record.model.as_deref().unwrap_or_default(),
            provider,
            provider_model,
            tier: Tier { requested: record.tier_requested.as_deref(), served: record.tier_served.as_deref() },
            bill: &bill,
            other_models: &other_models,
            failed: &failed,
        });
        Self { record: Arc::new(record), bill, money, other_models, anomalies }
    }
}

/// What belongs to a request beside its own usage.
#[derive(Clone, Debug, Default)]
pub struct Aside {
    /// Usage of other models inside the same answer (U3), by name.
    pub other_models: Vec<(String, Usage)>,
    /// What failed attempts had reported, by `provider/model` (L3).
    pub failed: Vec<(Arc<str>, Usage)>,
    /// Counts that could not be true.
    pub anomalies: u64,
}

/// The open row could not be made durable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the open row is not durable: {0}")]
pub struct NotDurable(pub String);

/// Resolves when the open row is on disk. Until somebody waits it may take its time (20 ms).
#[derive(Debug)]
pub struct Durable {
    pub(super) mailbox: Arc<Mailbox>,
    /// `None`: nothing to wait for (`on_failure: serve` while the ledger is broken).
    pub(super) committed: Option<oneshot::Receiver<Result<(), String>>>,
    pub(super) on_failure: OnFailure,
}

impl Durable {
    /// Waits. An error means: refuse with 503 and [`Ticket::cancel`], unless content is out already.
    pub async fn wait(self) -> Result<(), NotDurable> {
        let Some(mut committed) = self.committed else { return Ok(()) };
        let known = committed.try_recv();
        let committed = if let Err(TryRecvError::Empty) = known {
            self.mailbox.send(Message::Hurry);
            committed.await.ok()
        } else {
            known.ok()
        };
        match committed.unwrap_or_else(|| Err("the writer has stopped".to_owned())) {
            Ok(()) => Ok(()),
            // Its row waits in memory.
            Err(_) if self.on_failure == OnFailure::Serve => Ok(()),
            Err(cause) => Err(NotDurable(cause)),
        }
    }
}

/// Resolves when the settled row is on disk (`durability: strict`).
#[derive(Debug)]
pub struct Settled {
    /// `None`: nobody waits (`durability: group`).
    committed: Option<oneshot::Receiver<bool>>,
}

impl Settled {
    /// Whether there is anything to wait for.
    #[cfg(test)]
    pub(super) const fn is_waited_for(&self) -> bool {
        self.committed.is_some()
    }

    /// Waits; false if it could not be written yet (it is kept and tried again). With
    /// `durability: group` there is nothing to wait for.
    pub async fn wait(self) -> bool {
        match self.committed {
            Some(committed) => committed.await.unwrap_or(false),
            None => true,
        }
    }
}

/// The right to settle one request, once. Dropped unsettled, the row is settled as `internal` from
/// its last checkpoint.
#[derive(Debug)]
pub struct Ticket {
    id: Uuid,
    mailbox: Arc<Mailbox>,
    /// As configured when the request began.
    durability: Durability,
    way: Arc<Way>,
    done: bool,
}

impl Ticket {
    pub(super) fn new(id: Uuid, mailbox: Arc<Mailbox>, durability: Durability) -> Self {
        Self { id, mailbox, durability, way: Arc::default(), done: false }
    }

    /// The request's id.
    #[must_use]
    pub const fn id(&self) -> Uuid {
        self.id
    }

    /// Notes how far the request is. Cheap; skipped while the one before is still on its way.
    pub fn checkpoint(&self, checkpoint: Checkpoint) {
        if self.way.checkpoint.swap(true, Ordering::AcqRel) {
            return;
        }
        let way = Arc::clone(&self.way);
        self.mailbox.send(Message::Checkpoint { id: self.id, checkpoint: Box::new(checkpoint), way });
    }

    /// Settles. Never blocks; waiting for the answer is only for `durability: strict`.
    #[expect(clippy::must_use_candidate, reason = "with group durability nobody waits for the answer")]
    pub fn settle(mut self, settlement: Settlement) -> Settled {
        debug_assert_eq!(self.id, settlement.record.id, "a ticket settles its own request");
        self.done = true;
        let (committed, wait) = match self.durability {
            Durability::Group => (None, None),
            Durability::Strict => {
                let (committed, wait) = oneshot::channel();
                (Some(committed), Some(wait))
            }
        };
        self.way.end.store(true, Ordering::Release);
        self.mailbox.send(Message::Settle { settlement: Box::new(settlement), committed });
        Settled { committed: wait }
    }

    /// The request was refused before any dispatch: no row stays.
    pub fn cancel(mut self) {
        self.done = true;
        self.mailbox.send(Message::Cancel(self.id));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.done {
            self.mailbox.send(Message::Abandon(self.id));
        }
    }
}
