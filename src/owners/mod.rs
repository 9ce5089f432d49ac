//! Who owns a stored response or conversation, and where it lies (A12).
//!
//! Told by the gateway when an upstream has stored something, asked when a request names its id. Touches a SQLite file
//! beside the ledger, and the PostgreSQL of `ledger.postgres` if there is one, so that other gateways know it, too.
//! One thread does all of it: no worker waits for a disk.

mod local;
mod patience;
mod remote;
mod thread;

#[cfg(test)]
mod tests;

use crate::ledger::LedgerConfig;
use crate::ledger::sink::{Connector, SinkError};
use local::Local;
use remote::Remote;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Far more than a disk is ever behind; beyond it answers are not remembered.
const QUEUE: usize = 10_000;
/// A disk that takes longer is broken; the answer goes out, though its id may be forgotten.
const LONGEST_WRITE: Duration = Duration::from_secs(2);
/// A look-up that takes longer is an error.
const LONGEST_READ: Duration = Duration::from_secs(5);

/// What is known of one id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The virtual key's name.
    pub key: String,
    /// `provider/model`, as targets are named.
    pub target: String,
    /// Which of the provider's keys it was made with, as [`crate::upstream::site::Site::fingerprint`] tells it: what
    /// is stored belongs to that account. Empty if the provider has none, or it was made before this was kept.
    pub account: String,
    /// The public model; empty for a conversation that was made without one.
    pub model: String,
    /// Its usage still has to be booked: it runs in the background.
    pub unsettled: bool,
}

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the map of stored responses, {path}: {cause}")]
pub struct OwnersError {
    path: String,
    cause: String,
}

/// PostgreSQL or the file cannot be read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the map of stored responses cannot be read")]
pub struct Unreadable;

/// One question or fact for the thread.
enum Task {
    Keep { id: String, owner: Owner, until: i64, done: oneshot::Sender<()> },
    Due { targets: Vec<String>, most: usize, due: oneshot::Sender<Vec<(String, Owner)>> },
    Find { id: String, found: oneshot::Sender<Result<Option<Owner>, Unreadable>> },
    Settle { id: String, first: oneshot::Sender<bool> },
    Forget { id: String },
}

/// A fact on its way to the disk.
#[derive(Debug)]
pub struct Keeping(oneshot::Receiver<()>);

impl Keeping {
    /// Waits until it is there, or a broken disk has had its time.
    pub async fn done(self) {
        if !matches!(tokio::time::timeout(LONGEST_WRITE, self.0).await, Ok(Ok(()))) {
            log::warn!("a stored response may be forgotten: the map of them cannot be written");
        }
    }
}

/// The map. Clones are the same one; its thread ends with the last.
#[derive(Clone, Debug)]
pub struct Owners {
    tasks: mpsc::Sender<Task>,
}

impl Owners {
    /// Opens the file beside the ledger and starts the thread.
    ///
    /// # Errors
    /// When the file or PostgreSQL's URL cannot be used, or the system has no thread to give.
    pub fn open(ledger: &LedgerConfig) -> Result<Self, OwnersError> {
        let path = beside(&ledger.path);
        let failed = |cause: String| OwnersError { path: path.display().to_string(), cause };
        let local = Local::open(&path).map_err(|error| failed(error.to_string()))?;
        let url = ledger.postgres.as_ref().map(|postgres| postgres.url.expose());
        let connector = url.map(Connector::new).transpose().map_err(|SinkError(cause)| failed(cause))?;
        let remote = connector.map(Remote::new);
        let (tasks, queue) = mpsc::channel(QUEUE);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(error.to_string()))?;
        let work = move || runtime.block_on(thread::run(local, remote, queue));
        std::thread::Builder::new().name("owners".to_owned()).spawn(work).map_err(|error| failed(error.to_string()))?;
        Ok(Self { tasks })
    }

    /// Remembers it for `keep`; the answer tells when it is on disk. Waits for nothing.
    #[must_use]
    pub fn keep(&self, id: &str, owner: Owner, keep: Duration) -> Keeping {
        let (done, kept) = oneshot::channel();
        let until = now().saturating_add(i64::try_from(keep.as_secs()).unwrap_or(i64::MAX));
        // A full queue drops the sender, which the one who waits notices.
        let _ = self.tasks.try_send(Task::Keep { id: id.to_owned(), owner, until, done });
        Keeping(kept)
    }

    /// Whose it is. `None`: nobody's that is known.
    ///
    /// # Errors
    /// When that cannot be told now.
    pub async fn find(&self, id: &str) -> Result<Option<Owner>, Unreadable> {
        let (found, answer) = oneshot::channel();
        self.tasks.try_send(Task::Find { id: id.to_owned(), found }).map_err(|_| Unreadable)?;
        match tokio::time::timeout(LONGEST_READ, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(Unreadable),
        }
    }

    /// Its usage is being booked. Answers whether that is the first time, on any gateway.
    pub async fn settle(&self, id: &str) -> bool {
        let (first, answer) = oneshot::channel();
        if self.tasks.try_send(Task::Settle { id: id.to_owned(), first }).is_err() {
            return false;
        }
        matches!(tokio::time::timeout(LONGEST_READ, answer).await, Ok(Ok(true)))
    }

    /// At most so many at these targets (`provider/model`) whose usage is to be booked, and whose time to be asked for
    /// has come: 30 s after they were made, then after 1, 2, 5 and every 10 minutes, for a day. Each is handed out once
    /// at a time, on all gateways. None where that cannot be told now.
    pub async fn due(&self, targets: Vec<String>, most: usize) -> Vec<(String, Owner)> {
        let (due, answer) = oneshot::channel();
        if self.tasks.try_send(Task::Due { targets, most, due }).is_err() {
            return Vec::new();
        }
        match tokio::time::timeout(LONGEST_READ, answer).await {
            Ok(Ok(due)) => due,
            Ok(Err(_)) | Err(_) => Vec::new(),
        }
    }

    /// It was deleted.
    pub fn forget(&self, id: &str) {
        let _ = self.tasks.try_send(Task::Forget { id: id.to_owned() });
    }
}

/// `data/weir.db` has `data/weir.responses.db` beside it.
#[must_use]
pub fn beside(ledger: &Path) -> PathBuf {
    ledger.with_extension("responses.db")
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
