//! Keeps the connection to the shared store: connects again, sends what has ended, renews what runs.
//!
//! Started by the server as a thread of its own, so that no worker's runtime has to outlive it.

use super::{
    AddressError, Heard, LEASE, Note, PATIENCE, Remote, Running, Spent, client, millis, script, spent, tag, told,
};
use crate::config::{OnStoreFailure, Period, Secret};
use crate::limit::{Limits, Whose};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, Script};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, mpsc};
use uuid::Uuid;

/// Keys and models, and of each running request: its id, whether it holds a slot, what it holds in nano-USD.
type Subjects = BTreeMap<(Whose, String), Vec<(Uuid, bool, i64)>>;

/// Several times in a lease, so that one lost message takes nothing away.
const EVERY: Duration = Duration::from_secs(5);
/// How soon another connection is tried.
const AGAIN: Duration = Duration::from_millis(500);
/// Notes in one message.
const BATCH: usize = 256;

/// The store's address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Not an address of Redis.
    #[error("limits.store.redis: {0}")]
    Address(#[from] AddressError),
    /// No thread could be had.
    #[error("cannot start the thread for limits.store: {0}")]
    Thread(std::io::Error),
}

/// The thread behind a [`Remote`].
#[derive(Debug)]
pub struct Keeper {
    client: Client,
    remote: Arc<Remote>,
    notes: mpsc::UnboundedReceiver<Note>,
    settle: Script,
    renew: Script,
    /// Names this process among those that live.
    node: String,
    /// Of the store: it changes when the store has forgotten everything.
    epoch: i64,
}

impl Keeper {
    /// A store that is not connected yet. `ledger` names this gateway's ledger.
    ///
    /// # Errors
    /// When the address is none.
    pub fn new(url: &Secret, on_failure: OnStoreFailure, ledger: String) -> Result<(Self, Arc<Remote>), StartError> {
        let client = client(url.expose())?;
        let (sender, notes) = mpsc::unbounded_channel();
        let remote = Arc::new(Remote {
            connection: arc_swap::ArcSwapOption::empty(),
            lost: Notify::new(),
            admit: script(include_str!("admit.lua")),
            ledger,
            rejects: AtomicBool::new(on_failure == OnStoreFailure::Reject),
            nodes: AtomicU64::new(1),
            notes: sender,
            running: Mutex::default(),
            up: AtomicBool::new(false),
        });
        let keeper = Self {
            client,
            remote: Arc::clone(&remote),
            notes,
            settle: script(include_str!("settle.lua")),
            renew: script(include_str!("renew.lua")),
            node: Uuid::new_v4().to_string(),
            epoch: 0,
        };
        Ok((keeper, remote))
    }

    /// Connects once, if the store is there, and goes on beside the process.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn start(mut self, limits: Arc<Limits>) -> Result<(), StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::Thread)?;
        if !runtime.block_on(self.connect(&limits)) {
            log::warn!("the store of limits is away; it is tried again");
        }
        let work = move || runtime.block_on(self.keep(&limits));
        std::thread::Builder::new().name("limits".to_owned()).spawn(work).map_err(StartError::Thread)?;
        Ok(())
    }

    async fn keep(&mut self, limits: &Limits) {
        let mut batch = Vec::new();
        let mut renew_at = tokio::time::Instant::now() + EVERY;
        let remote = Arc::clone(&self.remote);
        loop {
            if remote.connection.load().is_none() {
                if !self.connect(limits).await {
                    // What was spent is told as a whole once it is back, what was held has its lease.
                    batch.clear();
                    while self.notes.try_recv().is_ok() {}
                    tokio::time::sleep(AGAIN).await;
                }
                continue;
            }
            if batch.is_empty() {
                tokio::select! {
                    biased;
                    () = remote.lost.notified() => continue,
                    () = tokio::time::sleep_until(renew_at) => {
                        renew_at = tokio::time::Instant::now() + EVERY;
                        self.renew(limits, false).await;
                        continue;
                    }
                    count = self.notes.recv_many(&mut batch, BATCH) => if count == 0 { return },
                }
            }
            // What was told twice changes nothing but the tokens of a minute.
            if self.tell(&batch).await {
                batch.clear();
            }
        }
    }

    /// Answers whether the store is there.
    async fn connect(&mut self, limits: &Limits) -> bool {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE * 4))
            .set_response_timeout(Some(PATIENCE * 4));
        match self.client.get_multiplexed_async_connection_with_config(&config).await {
            Ok(connection) => self.remote.connection.store(Some(Arc::new(connection))),
            Err(error) => {
                log::debug!(error = told(&error).as_str(); "the store of limits cannot be reached");
                return false;
            }
        }
        let is_there = self.renew(limits, true).await;
        if is_there && !self.remote.up.swap(true, Ordering::Relaxed) {
            log::info!(gateways = self.remote.nodes(); "the store of limits is there");
        }
        is_there
    }

    async fn tell(&self, batch: &[Note]) -> bool {
        let mut call = self.settle.prepare_invoke();
        call.arg(&self.remote.ledger);
        for note in batch {
            match note {
                Note::Free { id, tag } => {
                    call.arg("f").arg(id.as_bytes()).arg(tag);
                }
                Note::Settle { id, tag, second, reserved, used, spent } => {
                    call.arg("s").arg(id.as_bytes()).arg(tag).arg(second).arg(reserved).arg(used).arg(spent.len());
                    for Spent { key, keep, own } in spent {
                        call.arg(key).arg(keep).arg(own);
                    }
                }
            }
        }
        let Some(mut connection) = self.connection() else { return false };
        self.heard(call.invoke_async::<i64>(&mut connection).await).is_some()
    }

    /// Renews what this gateway's requests hold, and hears what others do. `all`: tells what every key
    /// has spent, too; done when the store may have forgotten.
    async fn renew(&mut self, limits: &Limits, mut all: bool) -> bool {
        loop {
            let Some(told) = self.renew_once(limits, all).await else { return false };
            if told == self.epoch {
                return true;
            }
            self.epoch = told;
            if all {
                return true;
            }
            all = true;
        }
    }

    /// Answers the store's epoch.
    async fn renew_once(&self, limits: &Limits, all: bool) -> Option<i64> {
        let day = limits.day(SystemTime::now());
        let subjects = self.subjects(limits, all);
        let mut call = self.renew.prepare_invoke();
        // Below 2^53, so that the store can tell it as a number.
        let epoch = fastrand::i64(1..1 << 52);
        call.arg(&self.node).arg(millis(LEASE)).arg(&self.remote.ledger).arg(epoch);
        let mut told = Vec::new();
        for ((whose, name), requests) in &subjects {
            let tag = tag(*whose, name);
            let own = if *whose == Whose::Key { limits.spent_here(name) } else { Vec::new() };
            call.arg(&tag).arg(own.len());
            for (per, own) in &own {
                let Spent { key, keep, own } = spent(&tag, *per, &day, *own);
                call.arg(key).arg(keep).arg(own);
            }
            told.push(own);
            call.arg(requests.len());
            for (id, slot, held) in requests {
                call.arg(id.as_bytes()).arg(u8::from(*slot)).arg(held);
            }
        }
        let mut connection = self.connection()?;
        let answer = self.heard(call.invoke_async::<Vec<i64>>(&mut connection).await)?;
        let mut numbers = answer.into_iter();
        let nodes = numbers.next().and_then(|nodes| u64::try_from(nodes).ok()).unwrap_or(1);
        self.remote.nodes.store(nodes, Ordering::Relaxed);
        let epoch = numbers.next()?;
        for ((whose, name), told) in subjects.keys().zip(told) {
            let held = numbers.next()?;
            let spent: Vec<(Period, i64, i64)> =
                told.into_iter().map(|(per, own)| (per, numbers.next().unwrap_or(own), own)).collect();
            if *whose == Whose::Key {
                limits.heard_of(name, &day, &Heard { held, spent });
            }
        }
        Some(epoch)
    }

    /// Whose requests run, and what each holds.
    fn subjects(&self, limits: &Limits, all: bool) -> Subjects {
        let mut subjects = Subjects::new();
        if all {
            let spent = limits.keys().into_iter().filter(|key| key.spent != [0; 3]);
            subjects.extend(spent.map(|key| ((Whose::Key, key.name), Vec::new())));
        }
        for (id, Running { key, key_slot, model, held }) in self.remote.running() {
            subjects.entry((Whose::Key, key)).or_default().push((id, key_slot, held));
            if let Some(model) = model {
                subjects.entry((Whose::Model, model)).or_default().push((id, true, 0));
            }
        }
        subjects
    }

    fn connection(&self) -> Option<MultiplexedConnection> {
        self.remote.connection.load_full().map(|connection| (*connection).clone())
    }

    fn heard<T>(&self, answer: Result<T, RedisError>) -> Option<T> {
        answer.map_err(|error| self.remote.fails(&told(&error))).ok()
    }
}
