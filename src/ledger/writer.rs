//! The one thread that writes: gathers messages into transactions and commits them (L1, L5).
//!
//! Started by `Ledger::open`, ended by `Ledger::close`. Touches the database; wakes whoever waits.
//!
//! A commit costs a disk flush, so it takes all that lies in the queue. What nobody waits for may
//! lie there for [`GATHER`], also an opening: most models think longer. Once somebody waits it is
//! written at once, but never sooner than [`PACE`] after the commit before, so that a busy gateway
//! shares its flushes and an idle one answers immediately. Meanwhile it sleeps, and only what
//! changes when it commits wakes it.

use super::apply::{Apply, Done};
use super::bell::Hears;
use super::mailbox::{Mailbox, Message};
use super::owner::Owner;
use super::retention::Retention;
use super::{OnCommit, Terms, recovery, row};
use arc_swap::ArcSwap;
use rusqlite::{Connection, TransactionBehavior};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

/// L1 lets a row wait 20 ms for its commit to begin; for [`PACE`] of that it may lie unseen.
const GATHER: Duration = Duration::from_millis(17);
/// Far below any model's time to its first token, and at most 333 flushes a second.
const PACE: Duration = Duration::from_millis(3);
/// Messages in one transaction; more would keep its openings waiting.
const MAX_BATCH: usize = 2_000;
/// How often a broken ledger is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Messages kept while it is broken, about 1 KiB each; ends beyond are logged whole and lost.
const MAX_KEPT: usize = 200_000;
/// Bytes that must fit before a full disk counts as free again.
const PROBE: i64 = 64 * 1024;
/// How often dead owners are looked for, and old rows removed.
const HOUSEKEEPING: Duration = Duration::from_secs(10);
/// At close, how long a broken ledger is tried again.
const LAST_TRIES: u32 = 3;

/// The thread's own.
pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) database: PathBuf,
    pub(super) owner: Owner,
    pub(super) inbox: Receiver<Message>,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) terms: Arc<ArcSwap<Terms>>,
    pub(super) on_commit: Option<OnCommit>,
    pub(super) texts: row::Texts,
}

/// Why gathering stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Commit,
    Idle,
    Close,
}

impl Writer {
    /// Runs until [`Message::Close`] or until nobody can send any more.
    pub(super) fn run(mut self) {
        self.mailbox.bell.belongs_here();
        let mut batch = Vec::new();
        let mut last_commit = Instant::now();
        let mut chores_at = Instant::now();
        loop {
            let next = self.gather(&mut batch, last_commit, chores_at);
            if next != Next::Idle || self.mailbox.is_broken() {
                last_commit = Instant::now();
                self.commit(&mut batch);
            }
            if next == Next::Close {
                break;
            }
            if Instant::now() >= chores_at && !self.mailbox.is_broken() {
                let more = self.chores();
                chores_at = Instant::now() + if more { GATHER } else { HOUSEKEEPING };
            }
        }
        self.end(batch);
    }

    /// Fills the batch until it is due.
    fn gather(&self, batch: &mut Vec<Message>, last_commit: Instant, chores_at: Instant) -> Next {
        let broken = self.mailbox.is_broken();
        let mut until = if broken { Instant::now() + RETRY } else { chores_at };
        let mut hears = Hears::All;
        if !broken {
            // Whatever comes is not due before.
            self.mailbox.bell.sleep(last_commit + PACE);
        }
        loop {
            let mut message = match self.next(hears, until) {
                Ok(Message::Close) => {
                    self.drain(batch);
                    return Next::Close;
                }
                Ok(message) => message,
                Err(RecvTimeoutError::Disconnected) => return Next::Close,
                Err(RecvTimeoutError::Timeout) => return if batch.is_empty() { Next::Idle } else { Next::Commit },
            };
            if matches!(message, Message::Hurry) {
                // Nothing to write. With an empty batch, or a broken ledger, who waits was answered just now.
                self.mailbox.pending.fetch_sub(1, Ordering::AcqRel);
                if !broken && !batch.is_empty() {
                    until = until.min(last_commit + PACE);
                    hears = Hears::Nothing;
                }
                continue;
            }
            if broken {
                // Sent before it was known: nobody waits for the next try.
                refuse(&mut message, "the ledger cannot be written");
            } else {
                if hears == Hears::All {
                    until = Instant::now() + GATHER;
                    hears = Hears::Urgent;
                }
                if message.is_urgent() {
                    until = until.min(last_commit + PACE);
                    hears = Hears::Nothing;
                }
            }
            self.keep(batch, message);
            // A flood must not keep a broken ledger from its next try, nor a batch from its end.
            let due = if broken { Instant::now() >= until } else { batch.len() >= MAX_BATCH };
            if due {
                return Next::Commit;
            }
        }
    }

    /// The next message. Sleeps until `until` if there is none, woken before by what it hears.
    fn next(&self, hears: Hears, until: Instant) -> Result<Message, RecvTimeoutError> {
        loop {
            match self.inbox.try_recv() {
                Ok(message) => return Ok(message),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) if Instant::now() >= until => return Err(RecvTimeoutError::Timeout),
                Err(TryRecvError::Empty) => {}
            }
            self.mailbox.bell.listen(hears);
            if let Ok(message) = self.inbox.try_recv() {
                self.mailbox.bell.listen(Hears::Nothing);
                return Ok(message);
            }
            self.mailbox.bell.sleep(until);
        }
    }

    /// What still lies in the queue when the ledger is closed.
    fn drain(&self, batch: &mut Vec<Message>) {
        while let Ok(message) = self.inbox.try_recv() {
            self.keep(batch, message);
        }
    }

    /// Bounds what a broken ledger keeps.
    fn keep(&self, batch: &mut Vec<Message>, message: Message) {
        if batch.len() < MAX_KEPT {
            batch.push(message);
            return;
        }
        self.mailbox.pending.fetch_sub(1, Ordering::AcqRel);
        match message {
            Message::Settle { settlement, .. } => self.mailbox.lose(&settlement),
            Message::Checkpoint { way, .. } => way.checkpoint.store(false, Ordering::Release),
            Message::Open { .. }
            | Message::Abandon(_)
            | Message::Cancel(_)
            | Message::Hurry
            | Message::Shipped { .. }
            | Message::Correct { .. }
            | Message::Close => {}
        }
    }

    /// Writes the batch and tells everybody; on failure the batch stays, for the next try.
    fn commit(&mut self, batch: &mut Vec<Message>) {
        let began = Instant::now();
        match self.write(batch) {
            Ok((done, unknown)) => {
                self.mailbox.works();
                let count = batch.len();
                self.count(done, count);
                for (index, message) in batch.drain(..).enumerate() {
                    answer(message, !unknown.contains(&index));
                }
                self.mailbox.room.notify_waiters();
                if let Some(on_commit) = &self.on_commit {
                    on_commit(began.elapsed(), count);
                }
            }
            Err(error) => {
                self.mailbox.broke(&error.to_string());
                for message in batch.iter_mut() {
                    refuse(message, &error.to_string());
                }
                self.mailbox.room.notify_waiters();
            }
        }
    }

    /// One transaction; also which messages speak of what is not known, by their index.
    fn write(&mut self, batch: &[Message]) -> rusqlite::Result<(Done, Vec<usize>)> {
        let (terms, config) = (self.terms.load_full(), self.mailbox.config.load_full());
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut apply = Apply::new(&transaction, &terms, &config.timezone, self.owner.id, &self.texts);
        let mut unknown = Vec::new();
        for (index, message) in batch.iter().enumerate() {
            if !apply.message(message)? {
                unknown.push(index);
            }
        }
        let done = apply.finish()?;
        if batch.is_empty() {
            // A broken ledger is asked whether there is room again; an empty transaction would not tell.
            transaction.execute("INSERT INTO probe (filler) VALUES (zeroblob(?1))", [PROBE])?;
        }
        transaction.commit()?;
        if batch.is_empty() {
            self.connection.execute("DELETE FROM probe", [])?;
        }
        Ok((done, unknown))
    }

    fn count(&self, done: Done, messages: usize) {
        let counters = &self.mailbox.counters;
        counters.commits.fetch_add(1, Ordering::Relaxed);
        counters.settled.fetch_add(done.settled, Ordering::Relaxed);
        counters.recovered.fetch_add(done.recovered, Ordering::Relaxed);
        counters.unpriced.fetch_add(done.unpriced, Ordering::Relaxed);
        counters.conflicts.fetch_add(done.conflicts, Ordering::Relaxed);
        self.mailbox.pending.fetch_sub(u64::try_from(messages).unwrap_or(0), Ordering::AcqRel);
    }

    /// Dead owners and old rows, one step at a time; true when more is to be done soon.
    fn chores(&mut self) -> bool {
        let retention = Retention::of(&self.mailbox.config.load());
        let more = self.recover().and_then(|more| Ok(retention.step(&mut self.connection)? || more));
        more.unwrap_or_else(|error| {
            log::warn!(error:% = error; "the ledger's housekeeping failed and is tried again later");
            false
        })
    }

    /// Settles rows of owners that are gone; true when some are left.
    pub(super) fn recover(&mut self) -> rusqlite::Result<bool> {
        for (owner, gone) in recovery::gone(&self.connection, &self.database, self.owner.id)? {
            let (terms, config) = (self.terms.load_full(), self.mailbox.config.load_full());
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut apply = Apply::new(&transaction, &terms, &config.timezone, self.owner.id, &self.texts);
            let finished = recovery::step(&mut apply, owner)?;
            let done = apply.finish()?;
            transaction.commit()?;
            self.count(done, 0);
            if !finished {
                return Ok(true);
            }
            gone.bury();
            if done.recovered > 0 {
                log::warn!(rows = done.recovered; "requests of a process that died were settled as crashed");
            }
        }
        Ok(false)
    }

    /// The last commit; what cannot be written is told to the log.
    fn end(mut self, mut batch: Vec<Message>) {
        for _ in 0..LAST_TRIES {
            if batch.is_empty() {
                break;
            }
            // Waits without sleeping: nobody sends any more, or it belongs to this commit too.
            if let Ok(message) = self.inbox.recv_timeout(RETRY) {
                self.keep(&mut batch, message);
            }
            self.drain(&mut batch);
            self.commit(&mut batch);
        }
        for message in batch {
            if let Message::Settle { settlement, .. } = message {
                self.mailbox.lose(&settlement);
            }
        }
        // Too late for a commit: their rows stay open, and the next start settles them.
        while let Ok(message) = self.inbox.try_recv() {
            if let Message::Settle { settlement, .. } = message {
                self.mailbox.lose(&settlement);
            }
        }
        if let Err(error) = self.owner.retire(&self.connection, row::now()) {
            log::warn!(error:% = error; "the ledger was closed without a goodbye; the next start recovers");
        }
    }
}

/// Tells whoever waits that it is on disk.
fn answer(message: Message, known: bool) {
    match message {
        Message::Open { committed: Some(committed), .. } => drop(committed.send(Ok(()))),
        Message::Settle { committed: Some(committed), .. } => {
            let _ = committed.send(true);
        }
        Message::Checkpoint { way, .. } => way.checkpoint.store(false, Ordering::Release),
        Message::Correct { correction, committed } => {
            let unknown = || format!("no settled request {}", correction.request_id);
            drop(committed.send(if known { Ok(()) } else { Err(unknown()) }));
        }
        Message::Open { .. }
        | Message::Settle { .. }
        | Message::Abandon(_)
        | Message::Cancel(_)
        | Message::Hurry
        | Message::Shipped { .. }
        | Message::Close => {}
    }
}

/// Tells whoever waits for an opening or a settle that it is not on disk yet.
fn refuse(message: &mut Message, cause: &str) {
    match message {
        Message::Open { committed, .. } => {
            if let Some(committed) = committed.take() {
                drop(committed.send(Err(cause.to_owned())));
            }
        }
        Message::Settle { committed, .. } => {
            if let Some(committed) = committed.take() {
                let _ = committed.send(false);
            }
        }
        Message::Checkpoint { .. }
        | Message::Abandon(_)
        | Message::Cancel(_)
        | Message::Hurry
        | Message::Shipped { .. }
        | Message::Correct { .. }
        | Message::Close => {}
    }
}
