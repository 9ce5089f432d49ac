//! What one request holds of the ledger: its open row, until it is settled.
//!
//! Held by the gateway. Sends messages to the writer and touches nothing else.

use super::billing::Bill;
use super::price::Money;
use crate::meter::usage::{Source, Usage};
use crate::protocol::Endpoint;
use crate::record::Record;
use std::sync::Arc;
use std::time::SystemTime;
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
    /// The fact sheet; its `usage` and `source` should be the bill's.
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

/// The open row could not be made durable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the open row is not durable: {0}")]
pub struct NotDurable(pub String);

/// Resolves when the open row is on disk.
#[derive(Debug)]
pub struct Durable {}

impl Durable {
    /// Waits. An error means: refuse with 503 and [`Ticket::cancel`], unless content is out already.
    pub async fn wait(self) -> Result<(), NotDurable> {
        let _ = self;
        std::future::ready(Ok(())).await
    }
}

/// Resolves when the settled row is on disk (`durability: strict`).
#[derive(Debug)]
pub struct Settled {}

impl Settled {
    /// Waits; false if it could not be written yet (it is kept and tried again).
    pub async fn wait(self) -> bool {
        let _ = self;
        std::future::ready(true).await
    }
}

/// The right to settle one request, once. Dropped unsettled, the row is settled as `internal` from
/// its last checkpoint.
#[derive(Debug)]
pub struct Ticket {}

impl Ticket {
    /// Notes how far the request is. Cheap; skipped while the one before is still on its way.
    pub fn checkpoint(&self, checkpoint: Checkpoint) {
        let _ = (self, checkpoint);
    }

    /// Settles. Waiting for the answer is only for `durability: strict`.
    pub fn settle(self, settlement: Settlement) -> Settled {
        let _ = (self, settlement);
        Settled {}
    }

    /// The request was refused before any dispatch: no row stays.
    pub fn cancel(self) {}
}
