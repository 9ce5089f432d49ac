//! When the config is reloaded without being asked for: on SIGHUP, and when one of its files changed (C2).
//!
//! Started by the server, on a thread of its own, since loading blocks. Files are looked at, not subscribed to:
//! editors replace them, orchestrators swap symbolic links, and network file systems tell nobody.

use super::StartError;
use super::reload::Reloader;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// A change is noticed within two of these: the second look tells that the writer is done.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What tells one state of a file from another.
type Stamp = Option<(u64, u64, u64, Option<SystemTime>)>;

/// The running watch.
pub(super) struct Watch {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Watch {
    /// Starts it; once this returns, SIGHUP no longer ends the process.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub(super) fn start(reloader: Arc<Reloader>) -> Result<Self, StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::Thread)?;
        let hangup = {
            let _inside = runtime.enter();
            signal(SignalKind::hangup()).map_err(StartError::Thread)?
        };
        let (stop, stopped) = watch::channel(false);
        let work = move || runtime.block_on(run(&reloader, hangup, stopped));
        let thread = std::thread::Builder::new().name("reload".to_owned()).spawn(work).map_err(StartError::Thread)?;
        Ok(Self { stop, thread })
    }

    /// Ends it, and waits for a reload that runs.
    pub(super) fn end(self) {
        self.stop.send_replace(true);
        let _panicked = self.thread.join();
    }
}

async fn run(reloader: &Reloader, mut hangup: tokio::signal::unix::Signal, mut stopped: watch::Receiver<bool>) {
    let mut seen = stamps(&reloader.files());
    let mut changing = false;
    loop {
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => return,
            _ = hangup.recv() => {
                if let Err(error) = crate::logging::reopen() {
                    log::error!(error:%; "the log file cannot be opened anew; the old one stays in use");
                }
                if reloader.path.is_some() {
                    seen = reload(reloader, "SIGHUP");
                }
            }
            () = tokio::time::sleep(LOOK_EVERY) => {
                let now = stamps(&reloader.files());
                if now != seen {
                    seen = now;
                    changing = true;
                } else if changing {
                    changing = false;
                    seen = reload(reloader, "a changed file");
                }
            }
        }
    }
}

/// Answers the state that the load has seen at the latest: what changes meanwhile is a change.
fn reload(reloader: &Reloader, asked_by: &str) -> Vec<(PathBuf, Stamp)> {
    let before = stamps(&reloader.files());
    // What is wrong was told to the log.
    let _told = reloader.run(asked_by);
    let known = |after: (PathBuf, Stamp)| before.iter().find(|(path, _)| *path == after.0).cloned().unwrap_or(after);
    stamps(&reloader.files()).into_iter().map(known).collect()
}

fn stamps(files: &[PathBuf]) -> Vec<(PathBuf, Stamp)> {
    let stamp = |path: &PathBuf| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.dev(), meta.ino(), meta.len(), meta.modified().ok()))
    };
    files.iter().map(|path| (path.clone(), stamp(path))).collect()
}
