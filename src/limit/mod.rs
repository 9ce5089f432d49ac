//! Limits and budgets: what a key or a model may use up, and what it has (G2 to G4).
//!
//! Called by the gateway, once before a request is dispatched and once when it has ended; by the
//! server, which restores what was spent before. Touches its own meters, each under a short lock
//! that is never held over an await, and the clock.
//!
//! The counting is in [`meter`], pure; here are the names, the locks and the guard that gives
//! everything back however a request ends. All of it outlives a config: limits come in with each
//! request, what was used stays under the name of the key or model.

pub mod calendar;
mod grant;
pub mod load;
pub mod meter;
mod window;

#[cfg(test)]
mod tests;

pub use grant::Grant;
pub use meter::{Ask, Full, Gauge, Purse, Short};

use crate::config::{Key, Model, Period};
use crate::ledger::Charged;
use calendar::Calendar;
use grant::Held;
use meter::{Meter, Moment};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

/// Whose limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        Self { keys: names(), models: names(), calendar: Calendar::new(zone), began: Instant::now() }
    }

    /// Reserves what a request is likely to use, of its key and its model, all or nothing.
    /// What is left is told in any case.
    ///
    /// # Errors
    /// What is used up.
    pub fn reserve(self: &Arc<Self>, claim: &Claim<'_>) -> (Result<Grant, Denied>, Gauges) {
        let now = self.moment(claim.received);
        let key = subject(&self.keys, &claim.key.name);
        // A model without limits is not counted: all workers would meet at its lock.
        let model = claim.model.filter(|model| !model.limits.is_none());
        let model = model.map(|model| (model, subject(&self.models, &model.name)));
        // Always the key's lock first.
        let mut key_meter = key.meter();
        let mut model_meter = model.as_ref().map(|(model, subject)| (&model.limits, subject.meter()));
        let mut fits = key_meter.fits(&now, &claim.key.limits, &claim.ask, 1).map_err(denied(Whose::Key));
        if let (Ok(()), Some((limits, meter))) = (&fits, &mut model_meter) {
            fits = meter.fits(&now, limits, &claim.ask, 1).map_err(denied(Whose::Model));
        }
        let taken = fits.map(|()| {
            let of_key = key_meter.take(&now, &claim.key.limits, &claim.ask);
            let of_model = model_meter.as_mut().map(|(limits, meter)| meter.take(&now, limits, &claim.ask));
            (of_key, of_model)
        });
        let mut gauges = gauges(&mut key_meter, now.since, &claim.key.limits);
        if let Some((limits, meter)) = &mut model_meter {
            gauges = gauges.tighter(self::gauges(meter, now.since, limits));
        }
        drop((key_meter, model_meter));
        let grant = taken.map(|(of_key, of_model)| {
            let of_model = model.zip(of_model).map(|((_, subject), taken)| Held { subject, taken });
            let of_key = Held { subject: key, taken: of_key };
            Grant::new(Arc::clone(self), Arc::clone(claim.key), of_key, of_model)
        });
        (grant, gauges)
    }

    /// What the ledger knows of the time before this process; told once, before the first request (L4).
    pub fn restore(&self, charged: &[Charged]) {
        let now = self.moment(SystemTime::now());
        for one in charged {
            subject(&self.keys, &one.key).meter().restore(&now, one.day, one.month, one.total);
        }
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
        Moment { since: self.began.elapsed(), wall, day: self.calendar.day(wall) }
    }

    fn since(&self) -> Duration {
        self.began.elapsed()
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
