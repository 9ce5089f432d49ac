//! Keeps budgets true to the ledger: what was spent before this process, and what others write (L4, G2).
//!
//! Called by the server: once before it takes requests, then as a service beside it. Reads the ledger's file,
//! off the runtime's workers.

use crate::ledger::{Charged, cli};
use crate::limit::Limits;
use async_trait::async_trait;
use pingora_core::server::ShutdownWatch;
use pingora_core::services::background::BackgroundService;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// During an upgrade two processes write to one ledger: each hears of the other's charges so often.
const EVERY: Duration = Duration::from_secs(5);

/// What the limiter hears from the ledger.
pub(super) struct Spending {
    pub(super) limits: Arc<Limits>,
    /// The ledger's file.
    pub(super) ledger: PathBuf,
}

impl Spending {
    /// Tells what was spent so far. Blocks on the disk.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub(super) fn restore(&self) -> Result<(), cli::CliError> {
        self.limits.restore(&self.read(true)?);
        Ok(())
    }

    fn read(&self, ever: bool) -> Result<Vec<Charged>, cli::CliError> {
        let day = self.limits.day(SystemTime::now());
        cli::charged(&self.ledger, &day.date, ever)
    }
}

#[async_trait]
impl BackgroundService for Spending {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        loop {
            tokio::select! {
                _ = shutdown.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(EVERY) => {}
            }
            let reader = Self { limits: Arc::clone(&self.limits), ledger: self.ledger.clone() };
            match tokio::task::spawn_blocking(move || reader.read(false)).await {
                Ok(Ok(charged)) => self.limits.charged(&charged),
                Ok(Err(error)) => log::debug!(error:%; "budgets could not be compared with the ledger"),
                Err(_) => return,
            }
        }
    }
}
