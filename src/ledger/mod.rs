//! The ledger: one row for each request that was dispatched, whatever happens to the process (L1, L2).
//!
//! Called by the gateway, which opens a row before the attempt, leaves checkpoints on long streams
//! and settles exactly once; by the command line and the admin API, which read. Touches one SQLite
//! file with a lock file of its own beside it, from one writer thread, and PostgreSQL if configured.
//!
//! The parts: [`config`] (its sections of the operator's file), [`ticket`] (what a request holds),
//! `writer` (the thread), `schema` and `row` (the file's shape), `owner` and `recovery` (who died),
//! [`price`] and [`money`] (integers only), [`billing`] (what is charged and why), [`estimate`]
//! (tokens nobody reported), [`sink`] (PostgreSQL), `report`, `verify` and [`cli`] (reading).

mod apply;
mod bell;
pub mod billing;
pub mod cli;
pub mod config;
pub mod estimate;
mod mailbox;
pub mod money;
mod owner;
pub mod price;
mod recent;
mod recovery;
mod report;
mod retention;
mod row;
mod schema;
pub mod series;
pub mod sink;
pub mod ticket;
mod values;
mod verify;
mod writer;

pub use apply::day as day_of;
pub use cli::Charged;
pub use config::{Durability, LedgerConfig, OnFailure};
pub use ticket::{Aside, Checkpoint, Durable, NotDurable, OpenRow, Settled, Settlement, Ticket};

use arc_swap::ArcSwap;
use mailbox::{Mailbox, Message};
use owner::Owner;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};
use tokio::sync::oneshot;
use uuid::Uuid;
use writer::Writer;

/// Messages on their way to the disk before new requests wait: some seconds of a busy gateway.
const MAX_PENDING: u64 = 20_000;
/// How long a new request waits for the writer to catch up.
const PATIENCE: Duration = Duration::from_secs(5);

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

/// A late change to a settled request: a row of its own, added to what the record shows (L4).
#[derive(Clone, Debug)]
pub struct Correction {
    /// Its own id; the same one counts once.
    pub id: Uuid,
    /// The request.
    pub request_id: Uuid,
    /// Added to the charge; may be negative.
    pub charge: money::Nano,
    /// Added to the cost; may be negative.
    pub cost: money::Nano,
    /// Added to the input tokens.
    pub input: i64,
    /// Added to the output tokens.
    pub output: i64,
    /// For whoever reads the bill.
    pub why: String,
}

/// A handle to the open ledger; cheap to clone. When the last handle goes, everything that waits is written.
#[derive(Clone, Debug)]
pub struct Ledger {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    mailbox: Arc<Mailbox>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Ledger {
    /// Opens or creates the file, settles what dead owners left (L2), starts the writer.
    /// `terms` may be swapped at any time; rows that nobody settles are priced by what it holds then.
    pub fn open(
        config: &LedgerConfig,
        terms: Arc<ArcSwap<Terms>>,
        on_commit: Option<OnCommit>,
    ) -> Result<Self, OpenError> {
        let connection = schema::open_writer(&config.path)?;
        let unusable = |cause: String| OpenError::Unusable {
            path: config.path.display().to_string(),
            cause,
            remedy: "let this user write the file and its folder, and see that there is space",
        };
        let owner = Owner::register(&connection, &config.path, row::now()).map_err(unusable)?;
        let (sender, inbox) = std::sync::mpsc::channel();
        let mailbox = Arc::new(Mailbox::new(sender, config));
        let mut writer = Writer {
            connection,
            database: config.path.clone(),
            owner,
            inbox,
            mailbox: Arc::clone(&mailbox),
            terms,
            on_commit,
            texts: row::Texts::new(),
        };
        while writer.recover().map_err(|error| unusable(error.to_string()))? {}
        let thread = std::thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || writer.run())
            .map_err(|error| unusable(error.to_string()))?;
        let inner = Inner { path: config.path.clone(), mailbox, thread: Mutex::new(Some(thread)) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Opens a row. No content may go to the client before [`Durable::wait`] says yes. Waits only
    /// while the writer is behind by its whole queue.
    pub async fn begin(&self, row: OpenRow) -> Result<(Ticket, Durable), Refused> {
        let mailbox = &self.inner.mailbox;
        self.room().await?;
        let broken = mailbox.is_broken();
        let config = mailbox.config.load();
        if broken && config.on_failure == OnFailure::Reject {
            return Err(Refused::Broken);
        }
        let (committed, wait) = if broken {
            (None, None)
        } else {
            let (committed, wait) = oneshot::channel();
            (Some(committed), Some(wait))
        };
        let id = row.id;
        if !mailbox.send(Message::Open { row: Box::new(row), committed }) {
            return Err(Refused::Closed);
        }
        let ticket = Ticket::new(id, Arc::clone(mailbox), config.durability);
        Ok((ticket, Durable { mailbox: Arc::clone(mailbox), committed: wait, on_failure: config.on_failure }))
    }

    /// Back-pressure: waits while too much is on its way to the disk.
    async fn room(&self) -> Result<(), Refused> {
        let mailbox = &self.inner.mailbox;
        let waits = async {
            loop {
                let told = mailbox.room.notified();
                if mailbox.is_broken() || mailbox.pending.load(Ordering::Acquire) < MAX_PENDING {
                    return;
                }
                told.await;
            }
        };
        if mailbox.is_broken() || mailbox.pending.load(Ordering::Acquire) < MAX_PENDING {
            return Ok(());
        }
        tokio::time::timeout(PATIENCE, waits).await.map_err(|_| Refused::Overloaded)
    }

    /// Adds a correction; resolves when it is on disk. An unknown request is an error.
    pub async fn correct(&self, correction: Correction) -> Result<(), String> {
        let (committed, wait) = oneshot::channel();
        self.inner.mailbox.send(Message::Correct { correction: Box::new(correction), committed });
        wait.await.unwrap_or_else(|_| Err("the ledger is closed".to_owned()))
    }

    /// The PostgreSQL sink, to be run as a task of its own.
    pub fn sink(&self, config: &config::PostgresConfig) -> Result<sink::Sink, sink::SinkError> {
        sink::Sink::new(&self.inner.path, config, Arc::clone(&self.inner.mailbox))
    }

    /// Takes another config (C2), all but its path and sink. Requests that run keep their durability.
    pub fn reconfigure(&self, config: &LedgerConfig) {
        self.inner.mailbox.config.store(Arc::new(config.clone()));
    }

    /// Whether rows can be written.
    #[must_use]
    pub fn health(&self) -> Health {
        self.inner.mailbox.health()
    }

    /// Numbers for the metrics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.mailbox.stats()
    }

    /// The database file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Writes everything that waits, stops the writer and frees the owner's lock. Blocks: call it
    /// at the very end, off the runtime's workers.
    pub fn close(&self) {
        self.inner.close();
    }
}

impl Inner {
    fn close(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        self.mailbox.send(Message::Close);
        // It may hear nothing for some milliseconds.
        thread.thread().unpark();
        if thread.join().is_err() {
            log::error!("the ledger's writer had panicked; the next start recovers its rows");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
