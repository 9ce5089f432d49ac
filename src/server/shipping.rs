//! Runs the PostgreSQL sink beside the server (L4), and lets it ship the last rows when the server has ended.
//!
//! Called by the server, at start and at its end. Owns one thread: Pingora's own services are cut off
//! at shutdown before they could ship what the last requests left.

use super::StartError;
use crate::ledger::Ledger;
use crate::ledger::sink::Sink;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A commit takes milliseconds; a ledger that is broken is not waited for.
const LAST_COMMIT: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The running sink.
pub(super) struct Shipping {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Shipping {
    /// Starts it.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub(super) fn start(sink: Sink) -> Result<Self, StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::Thread)?;
        let (stop, stopped) = watch::channel(false);
        let work = move || runtime.block_on(sink.run(stopped));
        let thread = std::thread::Builder::new().name("sink".to_owned()).spawn(work).map_err(StartError::Thread)?;
        Ok(Self { stop, thread })
    }

    /// Ships what is settled, within the sink's own bound; the rest waits for the next start.
    pub(super) fn end(self, ledger: &Ledger) {
        let until = Instant::now() + LAST_COMMIT;
        while ledger.stats().pending > 0 && Instant::now() < until {
            std::thread::park_timeout(LOOK_EVERY);
        }
        self.stop.send_replace(true);
        if self.thread.join().is_err() {
            log::error!("the PostgreSQL sink had panicked; the next start goes on");
        }
    }
}
