//! Ships settled rows and corrections to PostgreSQL (L4).
//!
//! Run by the gateway as one task beside everything else: nobody waits for it. Reads the ledger's
//! file, writes to PostgreSQL, and tells the writer how far it is.
//!
//! The settled rows are their own outbox: they never change and are numbered without holes. How far
//! they are shipped stands in PostgreSQL, in the same transaction as the rows, so that a server that
//! is replaced, restored or answers too late is shipped what it lacks; the key is Weir's request id,
//! so that nothing counts twice. What the ledger itself keeps of it (`shipped_to`) only guards retention.

mod connect;
mod local;
mod remote;

#[cfg(test)]
mod tests;

use super::config::PostgresConfig;
use super::mailbox::{Mailbox, Message};
pub(crate) use connect::Connector;
use local::Local;
use remote::Remote;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// How long after a row was settled the sink looks for it.
const POLL: Duration = Duration::from_millis(500);
/// A server that takes longer for one batch is treated as gone.
const BATCH_TIMEOUT: Duration = Duration::from_secs(30);
/// First pause after a failure; doubles.
const BACKOFF: Duration = Duration::from_millis(250);
/// The longest.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// At the end, how long the last rows may take; what is left is shipped at the next start.
const LAST: Duration = Duration::from_secs(5);

/// Numbers for the metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkStats {
    /// Connected, as far as known.
    pub connected: bool,
    /// Rows shipped since the start.
    pub shipped: u64,
    /// Settled rows and corrections not shipped yet.
    pub behind: u64,
    /// Age of the oldest of them (`sink_lag_seconds`).
    pub lag: Duration,
    /// What went wrong last, until it works again.
    pub error: Option<String>,
}

/// The sink cannot be set up or reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ledger.postgres: {0}")]
pub struct SinkError(pub String);

impl From<tokio_postgres::Error> for SinkError {
    fn from(error: tokio_postgres::Error) -> Self {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        Self(text)
    }
}

impl From<rusqlite::Error> for SinkError {
    fn from(error: rusqlite::Error) -> Self {
        Self(format!("the ledger cannot be read: {error}"))
    }
}

/// Whether a URL can be used, for `weir check`: reads it and the roots it names, connects to nothing.
/// The error may repeat parts of the URL.
pub fn check_url(url: &str) -> Result<(), SinkError> {
    Connector::new(url).map(drop)
}

/// The task's own.
#[derive(Debug)]
pub struct Sink {
    path: PathBuf,
    connector: Connector,
    batch: usize,
    mailbox: Arc<Mailbox>,
    stats: Arc<Mutex<SinkStats>>,
}

impl Sink {
    /// Reads the URL and the roots it names; connects to nothing yet.
    pub(super) fn new(path: &Path, config: &PostgresConfig, mailbox: Arc<Mailbox>) -> Result<Self, SinkError> {
        Ok(Self {
            path: path.to_owned(),
            connector: Connector::new(config.url.expose())?,
            batch: config.batch.max(1),
            mailbox,
            stats: Arc::default(),
        })
    }

    /// To read the numbers while [`Self::run`] runs.
    #[must_use]
    pub fn stats(&self) -> SinkWatch {
        SinkWatch(Arc::clone(&self.stats))
    }

    /// Ships until `stop` says true or its sender is gone; then once more, for at most five seconds.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut backoff = BACKOFF;
        loop {
            let began = self.note(|stats| stats.shipped);
            let failed = tokio::select! {
                error = self.serve() => error,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            let progress = self.note(|stats| {
                stats.connected = false;
                stats.error = Some(failed.to_string());
                stats.shipped > began
            });
            backoff = if progress { BACKOFF } else { (backoff * 2).min(BACKOFF_MAX) };
            log::warn!(error:% = failed; "the PostgreSQL sink failed; rows wait in the ledger");
            self.measure().await;
            tokio::select! {
                () = tokio::time::sleep(backoff.mul_f64(0.5 + fastrand::f64() / 2.0)) => {}
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        if tokio::time::timeout(LAST, self.flush()).await.is_err() {
            log::warn!("the PostgreSQL sink was not finished at the end; the next start goes on");
        }
    }

    /// Connects and ships for as long as it works.
    async fn serve(&self) -> SinkError {
        match self.shipping(true).await {
            Ok(()) => SinkError("the sink ended".to_owned()),
            Err(error) => error,
        }
    }

    async fn flush(&self) {
        if let Err(error) = self.shipping(false).await {
            log::warn!(error:% = error; "the PostgreSQL sink failed at the end; the next start goes on");
        }
    }

    /// Ships until nothing is left, or for ever.
    async fn shipping(&self, for_ever: bool) -> Result<(), SinkError> {
        let mut local = Local::open(&self.path).await?;
        let mut remote = within(Remote::connect(&self.connector, local.ledger())).await?;
        self.note(|stats| stats.connected = true);
        let mut told = None;
        loop {
            let shipped = within(remote.ship(&mut local, self.batch)).await?;
            let position = remote.position();
            if told.replace(position) != Some(position) {
                self.mailbox.send(Message::Shipped { settled: position.settled, corrections: position.corrections });
            }
            let (behind, lag) = local.behind(position).await?;
            self.note(|stats| {
                stats.shipped += shipped;
                (stats.behind, stats.lag, stats.error) = (behind, lag, None);
            });
            if shipped == 0 {
                if !for_ever {
                    return Ok(());
                }
                tokio::time::sleep(POLL).await;
            }
        }
    }

    /// Keeps the lag true while PostgreSQL is away.
    async fn measure(&self) {
        let measured = async {
            let mut local = Local::open(&self.path).await?;
            let position = local.shipped().await?;
            local.behind(position).await
        };
        if let Ok((behind, lag)) = measured.await {
            self.note(|stats| (stats.behind, stats.lag) = (behind, lag));
        }
    }

    fn note<T>(&self, note: impl FnOnce(&mut SinkStats) -> T) -> T {
        note(&mut self.stats.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn within<T>(work: impl Future<Output = Result<T, SinkError>>) -> Result<T, SinkError> {
    let late = |_| SinkError(format!("no answer within {BATCH_TIMEOUT:?}"));
    tokio::time::timeout(BATCH_TIMEOUT, work).await.map_err(late)?
}

/// Reads the numbers of a running sink.
#[derive(Clone, Debug)]
pub struct SinkWatch(Arc<Mutex<SinkStats>>);

impl SinkWatch {
    /// As of now.
    #[must_use]
    pub fn read(&self) -> SinkStats {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
