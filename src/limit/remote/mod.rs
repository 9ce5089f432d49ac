//! Limits of several gateways in one Redis or Valkey (G4): what is asked of it, and what it says.
//!
//! Called by the limiter, one round trip a request; notes of ended requests go to the keeper, who
//! sends them. Touches the connection that the keeper holds.
//!
//! What the store holds of a running request has a lease: a gateway that dies lets go of it. Money
//! that was spent is told as the whole of this gateway's ledger, which only grows, so a lost or
//! doubled message changes nothing.

mod address;
mod keeper;

pub use address::{AddressError, client};
pub use keeper::{Keeper, StartError};

use super::calendar::Day;
use super::meter::{Ask, Full, Gauge, SOON, Short};
use super::{Denied, Gauges, Whose};
use crate::config::{Budget, Limits, OnStoreFailure, Period};
use crate::ledger::money::Nano;
use arc_swap::ArcSwapOption;
use redis::aio::MultiplexedConnection;
use redis::{RedisError, Script};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use uuid::Uuid;

/// How long the store keeps what a request holds after its gateway was heard last.
const LEASE: Duration = Duration::from_secs(15);
/// A store that answers later than this is away: a request waits no longer for it.
const PATIENCE: Duration = Duration::from_millis(500);

const COMMON: &str = include_str!("common.lua");

/// The shared store, as requests see it.
#[derive(Debug)]
pub struct Remote {
    connection: ArcSwapOption<MultiplexedConnection>,
    lost: Notify,
    admit: Script,
    /// Names this gateway's ledger.
    ledger: String,
    /// `limits.on_failure: reject`.
    rejects: AtomicBool,
    /// Gateways that were alive when the store was heard last, this one included.
    nodes: AtomicU64,
    notes: mpsc::UnboundedSender<Note>,
    running: Mutex<HashMap<Uuid, Running>>,
    up: AtomicBool,
}

/// What a running request holds there, to be renewed.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) key: String,
    /// Its key bounds requests at the same time.
    pub(super) key_slot: bool,
    /// Its model, if that bounds requests at the same time.
    pub(super) model: Option<String>,
    pub(super) held: i64,
}

/// What the keeper is to tell the store.
#[derive(Debug)]
pub(super) enum Note {
    /// A slot is free.
    Free { id: Uuid, tag: String },
    /// A request has ended.
    Settle { id: Uuid, tag: String, second: u64, reserved: u64, used: u64, spent: Vec<Spent> },
}

/// Money of one period, as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spent {
    key: String,
    /// How long the store keeps it, in seconds; 0: for ever.
    keep: u64,
    own: i64,
}

/// The store does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Away;

/// One key or model of a request.
pub(super) struct Part<'a> {
    pub(super) whose: Whose,
    pub(super) tag: String,
    pub(super) limits: &'a Limits,
    /// For each budget, longest first: what this gateway has spent.
    pub(super) budgets: Vec<(Budget, i64)>,
}

/// What the store says to a request.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// What is used up, if anything is.
    pub(super) denied: Option<Denied>,
    /// The store's second in which it counts.
    pub(super) second: u64,
    pub(super) heard: Vec<Heard>,
    pub(super) gauges: Gauges,
}

/// What the store says of one key or model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) held: i64,
    /// For each budget: spent by all, of which so much by this gateway.
    pub(super) spent: Vec<(Period, i64, i64)>,
}

/// The name that the store keeps a key or model under.
pub(super) fn tag(whose: Whose, name: &str) -> String {
    match whose {
        Whose::Key => format!("weir:k:{name}"),
        Whose::Model => format!("weir:m:{name}"),
    }
}

/// Money of a period as the store keeps it.
pub(super) fn spent(tag: &str, per: Period, day: &Day, own: i64) -> Spent {
    const A_DAY: u64 = 24 * 60 * 60;
    let (key, keep) = match per {
        Period::Day => (format!("{tag}:d:{}", day.date), 3 * A_DAY),
        Period::Month => (format!("{tag}:d:{}", day.month), 40 * A_DAY),
        Period::Total => (format!("{tag}:d"), 0),
    };
    Spent { key, keep, own }
}

impl Remote {
    /// Gateways among which limits are shared out while the store is away.
    #[must_use]
    pub fn nodes(&self) -> u64 {
        self.nodes.load(Ordering::Relaxed).max(1)
    }

    pub(super) fn on_failure(&self) -> OnStoreFailure {
        if self.rejects.load(Ordering::Relaxed) { OnStoreFailure::Reject } else { OnStoreFailure::Local }
    }

    /// What happens from now on while the store is away (C2).
    pub fn set_on_failure(&self, on_failure: OnStoreFailure) {
        self.rejects.store(on_failure == OnStoreFailure::Reject, Ordering::Relaxed);
    }

    /// Whether the store answers.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// Asks for a request; one round trip.
    pub(super) async fn admit(&self, id: Uuid, day: &Day, ask: &Ask, parts: &[Part<'_>]) -> Result<Verdict, Away> {
        let Some(connection) = self.connection.load_full() else { return Err(Away) };
        let mut call = self.admit.prepare_invoke();
        call.arg(id.as_bytes()).arg(millis(LEASE)).arg(&self.ledger).arg(parts.len());
        for part in parts {
            let limits = part.limits;
            let charge = if part.budgets.is_empty() { 0 } else { ask.charge.0 };
            call.arg(&part.tag).arg(limits.rpm.unwrap_or(0)).arg(limits.tpm.unwrap_or(0));
            call.arg(ask.tokens(limits.tpm)).arg(limits.concurrent.unwrap_or(0)).arg(charge).arg(part.budgets.len());
            for (budget, own) in &part.budgets {
                let Spent { key, keep, own } = spent(&part.tag, budget.per, day, *own);
                call.arg(key).arg(keep).arg(budget.usd.0).arg(own);
            }
        }
        let mut own = (*connection).clone();
        let answer = tokio::time::timeout(PATIENCE, call.invoke_async::<Vec<i64>>(&mut own)).await;
        match answer {
            Ok(Ok(answer)) => Ok(read(&answer, ask, parts)),
            Ok(Err(error)) => Err(self.fails(&error.to_string())),
            Err(_) => Err(self.fails("it did not answer in time")),
        }
    }

    /// The connection is no good; the keeper makes another.
    fn fails(&self, error: &str) -> Away {
        if self.connection.swap(None).is_some() {
            self.up.store(false, Ordering::Relaxed);
            log::warn!(error; "the store of limits is away");
        }
        self.lost.notify_one();
        Away
    }

    /// A request runs, and holds this.
    pub(super) fn began(&self, id: Uuid, running: Running) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).insert(id, running);
    }

    /// It holds more money now.
    pub(super) fn grew(&self, id: Uuid, held: i64) {
        if let Some(running) = self.running.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&id) {
            running.held = held;
        }
    }

    /// It needs its slots no more.
    pub(super) fn freed(&self, id: Uuid) {
        let tags = {
            let mut all = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(running) = all.get_mut(&id) else { return };
            let key = std::mem::take(&mut running.key_slot).then(|| tag(Whose::Key, &running.key));
            [key, running.model.take().map(|name| tag(Whose::Model, &name))]
        };
        for tag in tags.into_iter().flatten() {
            self.note(Note::Free { id, tag });
        }
    }

    /// It has ended.
    pub(super) fn ended(&self, id: Uuid) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    pub(super) fn note(&self, note: Note) {
        // The keeper lives as long as the process; after it nobody counts.
        let _nobody_is_left = self.notes.send(note);
    }

    fn running(&self) -> Vec<(Uuid, Running)> {
        let all = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(id, running)| (*id, running.clone())).collect()
    }
}

/// `[1 or 0, whose, what, wait, which budget, left, held, second]`, then for each part `[requests, tokens, held, spent…]`.
fn read(answer: &[i64], ask: &Ask, parts: &[Part<'_>]) -> Verdict {
    let at = |index: usize| answer.get(index).copied().unwrap_or(0);
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    let mut verdict = Verdict { second: count(at(7)), ..Verdict::default() };
    let mut next = 8;
    for part in parts {
        let gauge = |most: Option<u64>, used: i64| {
            let resets = if used > 0 { Duration::from_mins(1) } else { Duration::ZERO };
            most.map(|most| Gauge { most, left: most.saturating_sub(count(used)), resets })
        };
        let gauges =
            Gauges { requests: gauge(part.limits.rpm, at(next)), tokens: gauge(part.limits.tpm, at(next + 1)) };
        verdict.gauges = verdict.gauges.tighter(gauges);
        let spent = part.budgets.iter().zip(next + 3..).map(|((budget, own), place)| (budget.per, at(place), *own));
        verdict.heard.push(Heard { held: at(next + 2), spent: spent.collect() });
        next += 3 + part.budgets.len();
    }
    if at(0) == 0
        && let Some(part) = usize::try_from(at(1) - 1).ok().and_then(|whose| parts.get(whose))
    {
        let budget =
            usize::try_from(at(4) - 1).ok().and_then(|which| part.budgets.get(which)).map(|(budget, _)| *budget);
        let most = |limit: Option<u64>| limit.unwrap_or(0);
        let short = match (at(2), budget) {
            (1, _) => Short::Requests { most: most(part.limits.rpm) },
            (2, _) => Short::Tokens { most: most(part.limits.tpm) },
            (4, Some(budget)) => {
                Short::Budget { budget, left: Nano(at(5).max(0)), asked: ask.charge, held: at(6) == 1 }
            }
            _ => Short::Slots { most: most(part.limits.concurrent) },
        };
        let frees = match short {
            Short::Budget { held: false, .. } => None,
            Short::Budget { held: true, .. } | Short::Slots { .. } => Some(SOON),
            Short::Requests { .. } | Short::Tokens { .. } | Short::TooLarge { .. } => {
                Some(Duration::from_millis(count(at(3))))
            }
        };
        verdict.denied = Some(Denied { whose: part.whose, full: Full { short, frees } });
    }
    verdict
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn script(body: &str) -> Script {
    Script::new(&format!("{COMMON}\n{body}"))
}

fn told(error: &RedisError) -> String {
    // Never the URL: it holds the password.
    error.to_string()
}
