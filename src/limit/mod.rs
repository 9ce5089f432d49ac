//! Limits and budgets: what a key or a model may use up, and what it has (G2 to G4).
//!
//! Called by the gateway, once before a request is dispatched and once when it has ended; by the
//! server, which restores what was spent before. Touches its own meters, each under a short lock
//! that is never held over an await, the clock, and the shared store if there is one.
//!
//! The counting is in [`meter`], pure; here are the names, the locks and the guard that gives
//! everything back however a request ends. All of it outlives a config: limits come in with each
//! request, what was used stays under the name of the key or model.

pub mod calendar;
mod grant;
mod legacy;
pub mod load;
pub mod meter;
pub mod remote;
mod window;

#[cfg(test)]
mod tests;

pub use grant::Grant;
pub use legacy::Legacy;
pub use meter::{Ask, Full, Gauge, Purse, Short};

use crate::config::{Key, Model, OnStoreFailure, Period};
use crate::ledger::Charged;
use calendar::Calendar;
use grant::{Held, There};
use meter::{Meter, Moment, Share};
use remote::{Away, Heard, Part, Remote, Verdict};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};
use uuid::Uuid;

/// The meters' clock at the start: what was used in the minute before is then in their past.
const HEAD_START: Duration = Duration::from_mins(2);

/// Whose limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whose {
    /// The client's key.
    Key,
    /// The model, by all keys together.
    Model,
}

/// Why a request may not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Whose limit.
    pub whose: Whose,
    /// What is used up.
    pub full: Full,
}

/// Why a request was not let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// By a limit.
    Denied(Denied),
    /// The shared store is away, and `limits.on_failure` says `reject`.
    Store,
}

/// What is left of the minute, where it is limited: of key and model the one that has less left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Requests.
    pub requests: Option<Gauge>,
    /// Tokens.
    pub tokens: Option<Gauge>,
}

/// Everybody's use, by name.
#[derive(Debug)]
pub struct Limits {
    keys: Names,
    models: Names,
    calendar: Calendar,
    began: Instant,
    remote: OnceLock<Arc<Remote>>,
}

type Names = RwLock<HashMap<String, Arc<Subject>>>;

/// One key or model.
#[derive(Debug, Default)]
struct Subject {
    meter: Mutex<Meter>,
}

impl Subject {
    fn meter(&self) -> MutexGuard<'_, Meter> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that asks to be let through.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// Weir's id of it.
    pub id: Uuid,
    /// Whose it is.
    pub key: &'a Arc<Key>,
    /// What it is for; `None`: it is not routed by model.
    pub model: Option<&'a Arc<Model>>,
    /// When it was received: the ledger's day.
    pub received: SystemTime,
    /// What it is likely to use.
    pub ask: Ask,
}

/// What somebody has used, for operators.
#[derive(Clone, Debug)]
pub struct Standing {
    /// The key's or model's name.
    pub name: String,
    /// Requests that run.
    pub running: u64,
    /// Money that they hold, in nano-USD.
    pub reserved: i64,
    /// What was spent today, in this month, ever; in nano-USD.
    pub spent: [i64; 3],
}

impl Limits {
    /// Nobody has used anything. Days begin at midnight in `zone`.
    #[must_use]
    pub fn new(zone: jiff::tz::TimeZone) -> Self {
        let names = Names::default;
        Self {
            keys: names(),
            models: names(),
            calendar: Calendar::new(zone),
            began: Instant::now(),
            remote: OnceLock::new(),
        }
    }

    /// From now on other gateways share the limits (G4). Once; a second call changes nothing.
    pub fn share(&self, remote: Arc<Remote>) {
        let _is_first = self.remote.set(remote);
    }

    /// The shared store, if there is one.
    #[must_use]
    pub fn remote(&self) -> Option<&Arc<Remote>> {
        self.remote.get()
    }

    /// Reserves what a request is likely to use, of its key and its model, all or nothing.
    /// What is left is told in any case.
    pub async fn reserve(self: &Arc<Self>, claim: &Claim<'_>) -> (Result<Grant, Refused>, Gauges) {
        let now = self.moment(claim.received);
        // A model without limits is not counted: all workers would meet at its lock.
        let model = claim.model.filter(|model| !model.limits.is_none());
        let Some(remote) = self.remote.get().filter(|_| model.is_some() || !claim.key.limits.is_none()) else {
            return self.reserve_here(&now, claim, model, 1, None);
        };
        if let Some(denied) = too_large(claim, model) {
            return (Err(Refused::Denied(denied)), Gauges::default());
        }
        let parts = self.parts(&now, claim, model);
        let verdict = remote.admit(claim.id, &now.day, &claim.ask, &parts).await;
        match (verdict, remote.on_failure()) {
            (Ok(verdict), _) => self.reserve_here(&now, claim, model, 1, Some((remote, verdict))),
            (Err(Away), OnStoreFailure::Local) => self.reserve_here(&now, claim, model, remote.nodes(), None),
            (Err(Away), OnStoreFailure::Reject) => (Err(Refused::Store), Gauges::default()),
        }
    }

    /// Reserves in this gateway's own meters; where the shared store has let it through, whatever they say.
    fn reserve_here(
        self: &Arc<Self>,
        now: &Moment,
        claim: &Claim<'_>,
        model: Option<&Arc<Model>>,
        share: Share,
        verdict: Option<(&Arc<Remote>, Verdict)>,
    ) -> (Result<Grant, Refused>, Gauges) {
        let key = subject(&self.keys, &claim.key.name);
        let model = model.map(|model| (model, subject(&self.models, &model.name)));
        // Always the key's lock first.
        let mut key_meter = key.meter();
        let mut model_meter = model.as_ref().map(|(model, subject)| (&model.limits, subject.meter()));
        let fits = if let Some((_, verdict)) = &verdict {
            if let Some(heard) = verdict.heard.first() {
                hear(&mut key_meter, &now.day, heard);
            }
            verdict.denied.map_or(Ok(()), |denied| Err(when(denied, now)))
        } else {
            let of_key = key_meter.fits(now, &claim.key.limits, &claim.ask, share).map_err(denied(Whose::Key));
            of_key.and_then(|()| match &mut model_meter {
                Some((limits, meter)) => meter.fits(now, limits, &claim.ask, share).map_err(denied(Whose::Model)),
                None => Ok(()),
            })
        };
        let taken = fits.map(|()| {
            let of_key = key_meter.take(now, &claim.key.limits, &claim.ask);
            let of_model = model_meter.as_mut().map(|(limits, meter)| meter.take(now, limits, &claim.ask));
            (of_key, of_model)
        });
        let mut left = gauges(&mut key_meter, now.since, &claim.key.limits);
        if let Some((limits, meter)) = &mut model_meter {
            left = left.tighter(gauges(meter, now.since, limits));
        }
        drop((key_meter, model_meter));
        let left = verdict.as_ref().map_or(left, |(_, verdict)| verdict.gauges);
        let grant = taken.map_err(Refused::Denied).map(|(of_key, of_model)| {
            let of_model = model.as_ref().zip(of_model).map(|((model, subject), taken)| Held {
                name: model.name.clone(),
                subject: Arc::clone(subject),
                taken,
            });
            let of_key = Held { name: claim.key.name.clone(), subject: key, taken: of_key };
            let there = verdict.map(|(remote, verdict)| {
                There::new(Arc::clone(remote), claim, model.map(|(model, _)| model), verdict.second, &now.day)
            });
            Grant::new(Arc::clone(self), Arc::clone(claim.key), of_key, of_model, there)
        });
        (grant, left)
    }

    /// What the shared store is asked.
    fn parts<'c>(&self, now: &Moment, claim: &Claim<'c>, model: Option<&'c Arc<Model>>) -> Vec<Part<'c>> {
        let key = subject(&self.keys, &claim.key.name);
        let mut meter = key.meter();
        meter.roll(now);
        let mut budgets: Vec<_> =
            claim.key.limits.budgets.iter().map(|budget| (*budget, meter.purse(budget.per).spent)).collect();
        drop(meter);
        budgets.sort_by_key(|(budget, _)| std::cmp::Reverse(budget.per));
        let part = |whose, name: &str, limits, budgets| Part { whose, tag: remote::tag(whose, name), limits, budgets };
        let of_key = part(Whose::Key, &claim.key.name, &claim.key.limits, budgets);
        let of_model = model.map(|model| part(Whose::Model, &model.name, &model.limits, Vec::new()));
        std::iter::once(of_key).chain(of_model).collect()
    }

    /// What a key has spent by this gateway's ledger, longest period first.
    fn spent_here(&self, name: &str) -> Vec<(Period, i64)> {
        let now = self.moment(SystemTime::now());
        let key = subject(&self.keys, name);
        let mut meter = key.meter();
        meter.roll(&now);
        [Period::Total, Period::Month, Period::Day].map(|per| (per, meter.purse(per).spent)).to_vec()
    }

    /// What the shared store says of a key.
    fn heard_of(&self, name: &str, day: &calendar::Day, heard: &Heard) {
        hear(&mut subject(&self.keys, name).meter(), day, heard);
    }

    /// What the ledger knows of the time before this process; told once, before the first request (L4).
    pub fn restore(&self, charged: &[Charged]) {
        let now = self.moment(SystemTime::now());
        for one in charged {
            subject(&self.keys, &one.key).meter().restore(&now, one.day, one.month, one.total);
        }
    }

    /// Days begin at midnight in `zone` from now on (C2). `charged`: what the ledger says of today there; requests
    /// that end later with a day of the old zone come by [`Self::charged`].
    pub fn rezone(&self, zone: jiff::tz::TimeZone, charged: &[Charged]) {
        self.calendar.rezone(zone);
        let now = self.moment(SystemTime::now());
        for (_, subject) in legacy::of_all(&self.keys) {
            subject.meter().rezone(&now);
        }
        self.restore(charged);
    }

    /// What the ledger says now. Another process may write to it, too, until an upgrade is over.
    pub fn charged(&self, charged: &[Charged]) {
        let now = self.moment(SystemTime::now());
        for one in charged {
            subject(&self.keys, &one.key).meter().at_least(&now, one.day, one.month);
        }
    }

    /// The ledger's day of a moment.
    #[must_use]
    pub fn day(&self, moment: SystemTime) -> Arc<calendar::Day> {
        self.calendar.day(moment)
    }

    /// What each key has used, by name.
    #[must_use]
    pub fn keys(&self) -> Vec<Standing> {
        self.standings(&self.keys)
    }

    /// What each model with limits has used, by name.
    #[must_use]
    pub fn models(&self) -> Vec<Standing> {
        self.standings(&self.models)
    }

    fn standings(&self, names: &Names) -> Vec<Standing> {
        let now = self.moment(SystemTime::now());
        let names = names.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<Standing> = names
            .iter()
            .map(|(name, subject)| {
                let mut meter = subject.meter();
                meter.roll(&now);
                Standing {
                    name: name.clone(),
                    running: meter.running(),
                    reserved: meter.reserved().0,
                    spent: [Period::Day, Period::Month, Period::Total].map(|per| meter.purse(per).spent),
                }
            })
            .collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    fn moment(&self, wall: SystemTime) -> Moment {
        Moment { since: self.since(), wall, day: self.calendar.day(wall) }
    }

    fn since(&self) -> Duration {
        HEAD_START + self.began.elapsed()
    }
}

impl Gauges {
    fn tighter(self, other: Self) -> Self {
        let less = |one: Option<Gauge>, other: Option<Gauge>| match (one, other) {
            (Some(one), Some(other)) => Some(if other.left < one.left { other } else { one }),
            (one, other) => one.or(other),
        };
        Self { requests: less(self.requests, other.requests), tokens: less(self.tokens, other.tokens) }
    }
}

fn gauges(meter: &mut Meter, since: Duration, limits: &crate::config::Limits) -> Gauges {
    Gauges { requests: meter.requests(since, limits), tokens: meter.tokens(since, limits) }
}

fn hear(meter: &mut Meter, day: &calendar::Day, heard: &Heard) {
    meter.heard_reserved(heard.held, meter.reserved().0);
    for (per, all, own) in &heard.spent {
        meter.heard(*per, day, *all, *own);
    }
}

/// The store does not know when days end.
fn when(denied: Denied, now: &Moment) -> Denied {
    match denied.full.short {
        Short::Budget { budget, held: false, .. } => {
            Denied { full: Full { frees: meter::frees(budget.per, now), ..denied.full }, ..denied }
        }
        _ => denied,
    }
}

/// Known without asking anybody.
fn too_large(claim: &Claim<'_>, model: Option<&Arc<Model>>) -> Option<Denied> {
    let limits = [(Whose::Key, Some(&claim.key.limits)), (Whose::Model, model.map(|model| &model.limits))];
    limits.into_iter().find_map(|(whose, limits)| {
        let full = Meter::too_large(limits?, &claim.ask).err()?;
        Some(Denied { whose, full })
    })
}

const fn denied(whose: Whose) -> impl FnOnce(Full) -> Denied {
    move |full| Denied { whose, full }
}

fn subject(names: &Names, name: &str) -> Arc<Subject> {
    if let Some(known) = names.read().unwrap_or_else(PoisonError::into_inner).get(name) {
        return Arc::clone(known);
    }
    let mut names = names.write().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(names.entry(name.to_owned()).or_default())
}
