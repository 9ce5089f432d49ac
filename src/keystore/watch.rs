//! Keeps the keys of the store in force: a change counts within a second, on every gateway that shares the store (G1).
//!
//! Started by the server; one thread. Reads the store, and swaps the ring that requests look into. A store that cannot
//! be read leaves the last known keys in force; of a PostgreSQL store they also lie in a file beside the ledger, so
//! that a gateway that starts while it is away knows them.

use super::local::Local;
use super::remote::Remote;
use super::{Store, StoreError, Stored};
use crate::admission::keys::KeyRing;
use crate::config::Key;
use arc_swap::ArcSwap;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;

/// How often a file is looked at; costs one read of its index.
const LOOK_AT_FILE: Duration = Duration::from_millis(200);
/// How often PostgreSQL is asked for its version.
const ASK: Duration = Duration::from_millis(400);
/// The longest pause between two tries to reach PostgreSQL.
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// How long the start waits for the first look at the store.
const FIRST_LOOK: Duration = Duration::from_secs(3);

/// What requests see of the store.
#[derive(Debug, Default)]
pub struct InForce {
    ring: ArcSwap<KeyRing>,
    away: AtomicBool,
}

impl InForce {
    /// The keys that may be used.
    #[must_use]
    pub fn ring(&self) -> arc_swap::Guard<Arc<KeyRing>> {
        self.ring.load()
    }

    /// Whether the store could be read the last time.
    #[must_use]
    pub fn is_in_reach(&self) -> bool {
        !self.away.load(Ordering::Relaxed)
    }
}

/// Told the digests of keys whose running streams have to end.
pub type Cut = Arc<dyn Fn(HashSet<[u8; 32]>) + Send + Sync>;

/// The running thread.
#[derive(Debug)]
pub struct Watch {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Watch {
    /// Reads the store for the first time, and goes on in a thread of its own. `ledger` is the file that the copy of
    /// a PostgreSQL store lies beside.
    ///
    /// # Errors
    /// When a SQLite store cannot be used, or the system has no thread to give. PostgreSQL may be away.
    pub fn start(store: Store, ledger: &Path, in_force: Arc<InForce>, cut: Cut) -> Result<Self, StoreError> {
        let mut keeper = Keeper { in_force, cut, known: HashMap::new(), told: false };
        let (stop, stopped) = watch::channel(false);
        let (looked, first_look) = std::sync::mpsc::channel();
        let copy = Local::new(super::beside(ledger));
        let no_thread = |error: std::io::Error| StoreError::Local {
            path: copy.path().display().to_string(),
            cause: format!("no thread for it: {error}"),
        };
        keeper.take(&copy.list()?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        let beside = copy.clone();
        let work = move || match store {
            Store::Local(local) => runtime.block_on(keeper.follow_file(&local, stopped, || {
                let _ = looked.send(());
            })),
            Store::Remote(remote) => {
                runtime.block_on(keeper.follow_server(&remote, &beside, stopped, || {
                    let _ = looked.send(());
                }));
            }
        };
        let thread = std::thread::Builder::new().name("keys".to_owned()).spawn(work).map_err(no_thread)?;
        let _ = first_look.recv_timeout(FIRST_LOOK);
        Ok(Self { stop, thread: Some(thread) })
    }
}

/// Knows the keys as they were last.
struct Keeper {
    in_force: Arc<InForce>,
    cut: Cut,
    /// What was read, and the key that it makes, so that only what changed is read anew.
    known: HashMap<String, (Stored, Option<Arc<Key>>)>,
    /// The first reading is no change.
    told: bool,
}

impl Keeper {
    /// Puts these keys in force.
    fn take(&mut self, all: &[Stored]) {
        let mut known = HashMap::with_capacity(all.len());
        for stored in all {
            let entry = self.known.remove(&stored.name).filter(|(before, _)| before == stored);
            known.insert(stored.name.clone(), entry.unwrap_or_else(|| (stored.clone(), usable(stored))));
        }
        let before = std::mem::replace(&mut self.known, known);
        if self.told {
            self.tell(&before);
        }
        self.told = true;
        let keys: Vec<_> = self.known.values().filter_map(|(_, key)| key.clone()).collect();
        log::debug!(keys = keys.len(); "the keys of the store are in force");
        self.in_force.ring.store(Arc::new(KeyRing::new(&keys)));
        (self.cut)(all.iter().filter(|stored| stored.cut).map(|stored| stored.sha256).collect());
    }

    /// Says which keys are others than before; whoever changed them may have left no line of their own.
    fn tell(&self, before: &HashMap<String, (Stored, Option<Arc<Key>>)>) {
        for (name, (stored, _)) in &self.known {
            let change = match before.get(name) {
                Some((old, _)) if old == stored => continue,
                Some((old, _)) if old.revoked.is_none() && stored.revoked.is_some() => "revoked",
                Some((old, _)) if old.sha256 == stored.sha256 => "changed",
                Some(_) | None => "created",
            };
            log::info!(target: "weir::audit", key = name.as_str(), change; "the key store changed, and is in force");
        }
    }

    /// Notes whether the store can be read; says so once.
    fn reach(&self, error: Option<&StoreError>) {
        let before = self.in_force.away.swap(error.is_some(), Ordering::Relaxed);
        match (before, error) {
            (false, Some(error)) => {
                log::warn!(error:%; "the key store cannot be read; the last known keys stay in force");
            }
            (true, None) => log::info!("the key store can be read again"),
            (true, Some(_)) | (false, None) => {}
        }
    }

    async fn follow_file(mut self, local: &Local, mut stop: watch::Receiver<bool>, looked: impl FnOnce()) {
        let mut looked = Some(looked);
        let mut open = None;
        let mut seen = None;
        loop {
            let mut look = || -> Result<_, StoreError> {
                let connection = match open.take() {
                    Some(connection) => connection,
                    None => local.open()?,
                };
                // In this order: what is written in between is read again.
                let version = local.version(&connection)?;
                let all = if seen == Some(version) { None } else { Some(local.read(&connection)?) };
                Ok((connection, version, all))
            };
            match look() {
                Ok((connection, version, all)) => {
                    self.reach(None);
                    (open, seen) = (Some(connection), Some(version));
                    if let Some(all) = all {
                        self.take(&all);
                    }
                }
                Err(error) => {
                    self.reach(Some(&error));
                    seen = None;
                }
            }
            if let Some(looked) = looked.take() {
                looked();
            }
            if pause(LOOK_AT_FILE, &mut stop).await {
                return;
            }
        }
    }

    async fn follow_server(
        mut self,
        remote: &Remote,
        copy: &Local,
        mut stop: watch::Receiver<bool>,
        looked: impl FnOnce(),
    ) {
        let mut looked = Some(looked);
        let mut backoff = ASK;
        loop {
            let began = self.in_force.is_in_reach();
            let failed = tokio::select! {
                failed = self.follow_session(remote, copy, &mut looked) => failed,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            backoff = if began { ASK } else { (backoff * 2).min(BACKOFF_MAX) };
            self.reach(Some(&failed));
            if let Some(looked) = looked.take() {
                looked();
            }
            if pause(backoff, &mut stop).await {
                return;
            }
        }
    }

    /// For as long as the connection lives.
    async fn follow_session(
        &mut self,
        remote: &Remote,
        copy: &Local,
        looked: &mut Option<impl FnOnce()>,
    ) -> StoreError {
        let mut session = match remote.session().await {
            Ok(session) => session,
            Err(error) => return error,
        };
        let mut seen = None;
        loop {
            match session.version().await {
                Ok(version) if seen == Some(version) => {}
                Ok(_) => match session.read().await {
                    Ok((version, all)) => {
                        seen = Some(version);
                        self.take(&all);
                        if let Err(error) = copy.replace(&all) {
                            log::warn!(error:%; "the copy of the key store cannot be written");
                        }
                    }
                    Err(error) => return error,
                },
                Err(error) => return error,
            }
            self.reach(None);
            if let Some(looked) = looked.take() {
                looked();
            }
            tokio::time::sleep(ASK).await;
        }
    }
}

/// `None` for one that is revoked, or that this version cannot read.
fn usable(stored: &Stored) -> Option<Arc<Key>> {
    if stored.revoked.is_some() {
        return None;
    }
    match stored.key(None) {
        Ok(key) => Some(key),
        Err(error) => {
            log::error!(key = stored.name.as_str(), error:%; "a stored key cannot be used");
            None
        }
    }
}

/// Answers whether to stop.
async fn pause(time: Duration, stop: &mut watch::Receiver<bool>) -> bool {
    tokio::time::timeout(time, stop.wait_for(|stop| *stop)).await.is_ok()
}
