//! What one key or one model has used up, and whether one more request fits (G2).
//!
//! Called by the limiter under a short lock, once when a request comes and once when it has ended.
//! Touches only its own fields: no clock, no IO.
//!
//! In words: a request that comes in takes its place in the minute, a slot, and its likely tokens
//! and money, before anything is sent upstream. When it has ended the slot is free, and what it
//! really used stands in place of what it was likely to use: tokens in the minute in which it came,
//! money on the day on which it was received, as in the ledger.

use super::calendar::Day;
use super::window::{Passed, Window};
use crate::config::{Budget, Limits, Period};
use crate::ledger::money::Nano;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// When it is worth asking again where running requests stand in the way: nobody knows when they end.
pub const SOON: Duration = Duration::from_secs(1);

/// When something happens.
#[derive(Clone, Debug)]
pub struct Moment {
    /// By a clock that never steps back, since any fixed moment.
    pub since: Duration,
    /// By the wall clock.
    pub wall: SystemTime,
    /// The ledger's day of it.
    pub day: Arc<Day>,
}

/// What a request is likely to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Input tokens.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
    /// The client itself named the output's maximum; a guess never makes a request too large.
    pub output_named: bool,
    /// What it is likely to be charged.
    pub charge: Nano,
}

impl Ask {
    /// Nothing is known of what a request will use.
    pub const NOTHING: Self = Self { input: 0, output: 0, output_named: true, charge: Nano(0) };

    /// The tokens that are reserved where `most` are allowed in a minute.
    #[must_use]
    pub const fn tokens(&self, most: Option<u64>) -> u64 {
        let all = self.input.saturating_add(self.output);
        match most {
            Some(most) if !self.output_named && self.input <= most && all > most => most,
            Some(_) | None => all,
        }
    }
}

/// What a request holds of a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The second in which it counts.
    second: u64,
    /// Reserved tokens; `None`: they are not counted.
    tokens: Option<u64>,
    /// Reserved money.
    charge: Nano,
    day: i64,
    month: i64,
    /// It still has its slot.
    slot: bool,
}

/// What there is too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// Requests in a minute.
    Requests {
        /// As configured.
        most: u64,
    },
    /// Tokens in a minute.
    Tokens {
        /// As configured.
        most: u64,
    },
    /// More tokens than a whole minute has.
    TooLarge {
        /// As configured.
        most: u64,
        /// What the request is likely to use.
        asked: u64,
    },
    /// Requests at the same time.
    Slots {
        /// As configured.
        most: u64,
    },
    /// Money.
    Budget {
        /// As configured.
        budget: Budget,
        /// What is neither spent nor reserved.
        left: Nano,
        /// What the request is likely to be charged.
        asked: Nano,
        /// It would fit if requests that run were not likely to use the rest.
        held: bool,
    },
}

/// Why a request does not fit, and when it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// What is used up.
    pub short: Short,
    /// When it is worth trying again; `None`: not by waiting.
    pub frees: Option<Duration>,
}

/// A limit with what is left of it, for headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauge {
    /// As configured.
    pub most: u64,
    /// What is left now.
    pub left: u64,
    /// When all of it is left again, if nothing is used.
    pub resets: Duration,
}

/// What was spent in one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purse {
    /// Which day or month; 0 where there is only one.
    pub window: i64,
    /// By this gateway's ledger, in nano-USD.
    pub spent: i64,
    /// What of `spent` the shared store knows.
    pub synced: i64,
    /// By other gateways, as the shared store said last.
    pub elsewhere: i64,
}

impl Taken {
    /// Reserved tokens.
    pub(super) const fn tokens(&self) -> u64 {
        match self.tokens {
            Some(tokens) => tokens,
            None => 0,
        }
    }

    /// Reserved money.
    pub(super) const fn charge(&self) -> Nano {
        self.charge
    }
}

impl Purse {
    const fn roll(&mut self, window: i64) {
        if window > self.window {
            *self = Self { window, spent: 0, synced: 0, elsewhere: 0 };
        }
    }

    /// Unless the window is over, or one of days that began elsewhere.
    const fn add(&mut self, window: i64, amount: i64) {
        if window == self.window {
            self.spent = self.spent.saturating_add(amount);
        }
    }
}

/// What one meter counts, for a meter of another process (C3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// Requests of the last minute: how long ago, and how many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<Passed>,
    /// Tokens of the last minute.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<Passed>,
    /// Requests that run.
    #[serde(default)]
    pub running: u64,
    /// Money that they hold, in nano-USD.
    #[serde(default)]
    pub reserved: i64,
}

impl Use {
    /// Nobody would notice if it was not told.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        self.requests.is_empty() && self.tokens.is_empty() && self.running == 0 && self.reserved == 0
    }
}

/// One key's or one model's use.
#[derive(Debug, Default)]
pub struct Meter {
    requests: Window,
    tokens: Window,
    running: u64,
    /// By requests that run, in nano-USD.
    reserved: i64,
    /// The same of other gateways, as the shared store said last.
    reserved_elsewhere: i64,
    /// `running` and `reserved` of the process before this one, as it said last.
    before: (u64, i64),
    day: Purse,
    month: Purse,
    total: Purse,
}

/// Of how many gateways this is one, when each has to do with its share (G4); 1: all is its own.
pub type Share = u64;

impl Meter {
    /// Whether a request fits; takes nothing.
    ///
    /// # Errors
    /// What is used up: the one that takes longest to come back.
    pub fn fits(&mut self, now: &Moment, limits: &Limits, ask: &Ask, share: Share) -> Result<(), Full> {
        self.budgets(now, limits, ask, share)?;
        Self::too_large(limits, ask)?;
        let part = |most: u64| (most / share.max(1)).max(1);
        if let Some(most) = limits.rpm
            && self.requests.sum(now.since) >= part(most)
        {
            let frees = Some(self.requests.until(now.since, part(most) - 1));
            return Err(Full { short: Short::Requests { most }, frees });
        }
        if let Some(most) = limits.tpm {
            // What fits into the whole is not too large for the share: it gets all of it.
            let asked = ask.tokens(Some(most)).min(part(most));
            if self.tokens.sum(now.since).saturating_add(asked) > part(most) {
                let frees = Some(self.tokens.until(now.since, part(most) - asked));
                return Err(Full { short: Short::Tokens { most }, frees });
            }
        }
        match limits.concurrent {
            Some(most) if self.running() >= part(most) => Err(Full { short: Short::Slots { most }, frees: Some(SOON) }),
            Some(_) | None => Ok(()),
        }
    }

    /// Whether a request could ever fit.
    ///
    /// # Errors
    /// It asks for more tokens than a whole minute has.
    pub fn too_large(limits: &Limits, ask: &Ask) -> Result<(), Full> {
        let Some(most) = limits.tpm else { return Ok(()) };
        let asked = ask.tokens(Some(most));
        if asked > most { Err(Full { short: Short::TooLarge { most, asked }, frees: None }) } else { Ok(()) }
    }

    fn budgets(&mut self, now: &Moment, limits: &Limits, ask: &Ask, share: Share) -> Result<(), Full> {
        self.roll(now);
        let mut worst: Option<Full> = None;
        for budget in &limits.budgets {
            let left = self.left(budget, share);
            if left > 0 && ask.charge.0 <= left {
                continue;
            }
            let free = left.saturating_add(self.reserved().0).saturating_add(self.reserved_elsewhere);
            let held = free > 0 && ask.charge.0 <= free;
            let short = Short::Budget { budget: *budget, left: Nano(left.max(0)), asked: ask.charge, held };
            let full = Full { short, frees: if held { Some(SOON) } else { frees(budget.per, now) } };
            let longer = |other: &Full| full.frees.is_none_or(|wait| other.frees.is_some_and(|other| wait > other));
            if worst.as_ref().is_none_or(longer) {
                worst = Some(full);
            }
        }
        worst.map_or(Ok(()), Err)
    }

    /// What of a budget is neither spent nor reserved; below 0 where it was overdrawn.
    fn left(&self, budget: &Budget, share: Share) -> i64 {
        let purse = self.purse(budget.per);
        if share <= 1 {
            let gone = purse.spent.saturating_add(purse.elsewhere);
            let reserved = self.reserved().0.saturating_add(self.reserved_elsewhere);
            return budget.usd.0.saturating_sub(gone).saturating_sub(reserved);
        }
        // What was left when the store was last heard, in equal parts; of its part this gateway
        // has used what the store has not heard of.
        let known = budget.usd.0.saturating_sub(purse.synced).saturating_sub(purse.elsewhere);
        let part = known / i64::try_from(share).unwrap_or(i64::MAX);
        part.saturating_sub(purse.spent - purse.synced).saturating_sub(self.reserved)
    }

    /// Takes what a request is likely to use, whether it fits or not.
    pub fn take(&mut self, now: &Moment, limits: &Limits, ask: &Ask) -> Taken {
        self.roll(now);
        let second = if limits.rpm.is_some() { self.requests.add(now.since, 1) } else { now.since.as_secs() };
        let tokens = limits.tpm.map(|most| ask.tokens(Some(most)));
        if let Some(tokens) = tokens {
            self.tokens.add(now.since, tokens);
        }
        self.running += 1;
        self.reserved = self.reserved.saturating_add(ask.charge.0);
        Taken { second, tokens, charge: ask.charge, day: now.day.number, month: now.day.month_number, slot: true }
    }

    /// A request needs its slot no more; once.
    pub const fn free_slot(&mut self, taken: &mut Taken) {
        if std::mem::replace(&mut taken.slot, false) {
            self.running = self.running.saturating_sub(1);
        }
    }

    /// A request has ended: what it really used stands in place of what it took.
    pub fn settle(&mut self, since: Duration, mut taken: Taken, tokens: u64, charge: Nano) {
        self.free_slot(&mut taken);
        self.reserved = self.reserved.saturating_sub(taken.charge.0);
        if let Some(reserved) = taken.tokens {
            if tokens < reserved {
                self.tokens.give_back(since, taken.second, reserved - tokens);
            } else if tokens > reserved {
                self.tokens.add(since, tokens - reserved);
            }
        }
        self.day.add(taken.day, charge.0);
        self.month.add(taken.month, charge.0);
        self.total.add(0, charge.0);
    }

    /// Holds more money for a request that runs (`on_reached: cut`). Answers whether every budget
    /// still bears it; it is held in any case.
    pub fn grow(&mut self, limits: &Limits, taken: &mut Taken, charge: Nano) -> bool {
        let more = charge.0.saturating_sub(taken.charge.0).max(0);
        taken.charge = Nano(taken.charge.0.saturating_add(more));
        self.reserved = self.reserved.saturating_add(more);
        limits.budgets.iter().all(|budget| self.left(budget, 1) >= 0)
    }

    /// What was spent before this process began (L4).
    pub fn restore(&mut self, now: &Moment, day: Nano, month: Nano, total: Nano) {
        self.roll(now);
        (self.day.spent, self.month.spent, self.total.spent) = (day.0, month.0, total.0);
    }

    /// Days and months begin elsewhere from now on: nothing is known to be spent in these.
    pub fn rezone(&mut self, now: &Moment) {
        let anew = |window| Purse { window, ..Purse::default() };
        (self.day, self.month) = (anew(now.day.number), anew(now.day.month_number));
    }

    /// What the ledger says was spent on this day and in this month: at least that. What it knows
    /// beyond was spent by somebody else who writes to it.
    pub fn at_least(&mut self, now: &Moment, day: Nano, month: Nano) {
        self.roll(now);
        self.day.spent = self.day.spent.max(day.0);
        let others = month.0.saturating_sub(self.month.spent).max(0);
        self.month.spent = self.month.spent.saturating_add(others);
        self.total.spent = self.total.spent.saturating_add(others);
    }

    /// What the shared store says: spent by all in a day's period, of which it knew `own` as ours.
    pub fn heard(&mut self, per: Period, day: &Day, all: i64, own: i64) {
        let (purse, window) = match per {
            Period::Day => (&mut self.day, day.number),
            Period::Month => (&mut self.month, day.month_number),
            Period::Total => (&mut self.total, 0),
        };
        if window == purse.window {
            purse.synced = purse.synced.max(own);
            purse.elsewhere = all.saturating_sub(own).max(0);
        }
    }

    /// What the shared store says is reserved by all gateways, of which `own` are ours.
    pub fn heard_reserved(&mut self, all: i64, own: i64) {
        self.reserved_elsewhere = all.saturating_sub(own).max(0);
    }

    /// What was spent, by period.
    #[must_use]
    pub const fn purse(&self, per: Period) -> &Purse {
        match per {
            Period::Day => &self.day,
            Period::Month => &self.month,
            Period::Total => &self.total,
        }
    }

    /// What was spent in the period of a day, if that is not over.
    pub(super) fn spent_on(&self, per: Period, day: &Day) -> Option<i64> {
        let window = match per {
            Period::Day => day.number,
            Period::Month => day.month_number,
            Period::Total => 0,
        };
        Some(self.purse(per)).filter(|purse| purse.window == window).map(|purse| purse.spent)
    }

    /// Requests that run, those of the process before this one too.
    #[must_use]
    pub const fn running(&self) -> u64 {
        self.running.saturating_add(self.before.0)
    }

    /// Money that is reserved by requests that run, those of the process before this one too.
    #[must_use]
    pub const fn reserved(&self) -> Nano {
        Nano(self.reserved.saturating_add(self.before.1))
    }

    /// What counts now, for the process after this one: that of the process before this one, too.
    pub fn snapshot(&mut self, since: Duration) -> Use {
        let (requests, tokens) = (self.requests.passed(since), self.tokens.passed(since));
        Use { requests, tokens, running: self.running(), reserved: self.reserved().0 }
    }

    /// Counts what the process before this one says that it counts, in place of what it said before.
    pub fn inherit(&mut self, since: Duration, uses: &Use) {
        self.requests.inherit(since, &uses.requests);
        self.tokens.inherit(since, &uses.tokens);
        self.before = (uses.running, uses.reserved);
    }

    /// The process before this one is gone. What it used in the last minute counts until that is over.
    pub const fn outlive(&mut self) {
        self.before = (0, 0);
    }

    /// Requests in a minute, if they are limited.
    pub fn requests(&mut self, now: Duration, limits: &Limits) -> Option<Gauge> {
        limits.rpm.map(|most| gauge(&mut self.requests, now, most))
    }

    /// Tokens in a minute, if they are limited.
    pub fn tokens(&mut self, now: Duration, limits: &Limits) -> Option<Gauge> {
        limits.tpm.map(|most| gauge(&mut self.tokens, now, most))
    }

    /// A new day or month begins with nothing spent.
    pub fn roll(&mut self, now: &Moment) {
        self.day.roll(now.day.number);
        self.month.roll(now.day.month_number);
    }
}

fn gauge(window: &mut Window, now: Duration, most: u64) -> Gauge {
    Gauge { most, left: most.saturating_sub(window.sum(now)), resets: window.until(now, 0) }
}

/// When a budget's period ends.
pub(super) fn frees(per: Period, now: &Moment) -> Option<Duration> {
    let until = |end: SystemTime| Some(end.duration_since(now.wall).unwrap_or(Duration::ZERO));
    match per {
        Period::Day => until(now.day.ends),
        Period::Month => until(now.day.month_ends),
        Period::Total => None,
    }
}
