//! How well a target or an account does: failures in a row, cool-down, probe, slots (A6, A8).
//!
//! Called by the route (may it be chosen?) and by the gateway (how did it go?), once each per
//! attempt. Touches only its own fields; reads no clock.

use crate::config::{self, Limits};
use crate::limit::load::{Load, Part};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A8: whatever a server says, it is asked again after this.
const LONGEST_HINT: Duration = Duration::from_mins(5);

#[derive(Clone, Copy, Debug, Default)]
struct Condition {
    failures_in_a_row: u32,
    cool_until: Option<Instant>,
    /// When the cool-down was decided.
    cooled_at: Option<Instant>,
    /// The last cool-down, for doubling.
    cooldown: Option<Duration>,
    /// The one request that tries whether it works again has been let in.
    probing: bool,
}

/// One target's, or one provider key's.
#[derive(Debug, Default)]
pub struct Health {
    condition: Mutex<Condition>,
    running: AtomicU32,
    off: AtomicBool,
    /// Of a provider's key: what it has borne.
    load: Mutex<Load>,
}

/// What an operator is shown of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Since it last worked.
    pub failures_in_a_row: u32,
    /// How long it is still left alone.
    pub cooling: Option<Duration>,
    /// Somebody tries whether it works again.
    pub probing: bool,
    /// Requests running now.
    pub running: u32,
    /// Switched off by an operator.
    pub off: bool,
}

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Since it last worked.
    pub failures_in_a_row: u32,
    /// What is left of a cool-down.
    pub cools_for: Option<Duration>,
}

/// A slot of a target: frees itself, and with it the right to be the probe.
#[derive(Debug)]
pub struct Permit {
    health: Arc<Health>,
    probe: bool,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.health.running.fetch_sub(1, Ordering::AcqRel);
        if self.probe {
            self.health.condition().probing = false;
        }
    }
}

impl Health {
    /// Whether it is cooling down, or being probed by somebody else.
    #[must_use]
    pub fn is_cooling(&self, now: Instant) -> bool {
        let condition = self.condition();
        condition.cool_until.is_some_and(|until| now < until) || condition.probing
    }

    /// Whether it last worked: no cool-down, none that waits for its probe.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.condition().cool_until.is_none()
    }

    /// Whether an operator has switched it off (C2): no new attempt goes there.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed)
    }

    /// Switches; answers whether that changed anything.
    pub fn set_off(&self, off: bool) -> bool {
        self.off.swap(off, Ordering::Relaxed) != off
    }

    /// As it is now.
    #[must_use]
    pub fn shown(&self, now: Instant) -> Shown {
        let condition = *self.condition();
        Shown {
            failures_in_a_row: condition.failures_in_a_row,
            cooling: condition.cool_until.map(|until| until.saturating_duration_since(now)),
            probing: condition.probing,
            running: self.running(),
            off: self.is_off(),
        }
    }

    /// Requests running now.
    #[must_use]
    pub fn running(&self) -> u32 {
        self.running.load(Ordering::Acquire)
    }

    /// What people are shown of it.
    #[must_use]
    pub fn look(&self, now: Instant) -> Look {
        let condition = self.condition();
        let cools_for = condition.cool_until.map(|until| until.saturating_duration_since(now));
        Look { failures_in_a_row: condition.failures_in_a_row, cools_for: cools_for.filter(|time| !time.is_zero()) }
    }

    /// Takes a slot, if one is free. After a cool-down the first one in is the probe.
    #[must_use]
    pub fn enter(self: &Arc<Self>, max: Option<u32>, now: Instant) -> Option<Permit> {
        let before = self.running.fetch_add(1, Ordering::AcqRel);
        let mut permit = Permit { health: Arc::clone(self), probe: false };
        if max.is_some_and(|max| before >= max) {
            return None;
        }
        let mut condition = self.condition();
        if !condition.probing && condition.cool_until.is_some_and(|until| now >= until) {
            condition.probing = true;
            permit.probe = true;
        }
        drop(condition);
        Some(permit)
    }

    /// An attempt that began then was answered: everything is forgiven. An attempt that was under
    /// way when the cool-down began says nothing about it.
    pub fn worked(&self, began: Instant) {
        let mut condition = self.condition();
        if condition.cooled_at.is_none_or(|cooled_at| began >= cooled_at) {
            *condition = Condition::default();
        }
    }

    /// It failed once more. Answers whether it cools down now (A8). What fails during a cool-down
    /// does not lengthen it: many requests may have been under way.
    pub fn failed(&self, now: Instant, config: &config::Health) -> bool {
        let mut condition = self.condition();
        condition.failures_in_a_row = condition.failures_in_a_row.saturating_add(1);
        if condition.cool_until.is_some_and(|until| now < until) {
            return true;
        }
        if !condition.probing && condition.failures_in_a_row < config.failures {
            return false;
        }
        let next = condition.cooldown.map_or(config.cooldown, |last| last * 2).min(config.cooldown_max);
        condition.cooldown = Some(next);
        condition.cool_until = Some(now + next);
        condition.cooled_at = Some(now);
        condition.probing = false;
        true
    }

    /// It said when to come back (A8), or did not: then the first cool-down.
    pub fn throttled(&self, now: Instant, retry_after: Option<Duration>, config: &config::Health) {
        let wait = retry_after.unwrap_or(config.cooldown).min(LONGEST_HINT);
        self.cool(now, wait);
    }

    /// Cools for `wait`, whatever happened before.
    pub fn cool(&self, now: Instant, wait: Duration) {
        let mut condition = self.condition();
        condition.cool_until = Some(condition.cool_until.map_or(now + wait, |until| until.max(now + wait)));
        condition.cooled_at = Some(now);
        condition.probing = false;
    }

    /// Whether a provider's key bears one more request of that many tokens.
    #[must_use]
    pub fn has_room(&self, now: Instant, bounds: &Limits, tokens: u64) -> bool {
        self.load.lock().unwrap_or_else(PoisonError::into_inner).has_room(now, bounds, tokens)
    }

    /// Takes the part of one attempt, if there is something to count.
    pub fn take(&self, now: Instant, bounds: &Limits, tokens: u64) -> Option<Part> {
        self.load.lock().unwrap_or_else(PoisonError::into_inner).take(now, bounds, tokens)
    }

    /// The attempt is over and used this many tokens.
    pub fn settle(&self, now: Instant, part: Part, used: u64) {
        self.load.lock().unwrap_or_else(PoisonError::into_inner).settle(now, part, used);
    }

    fn condition(&self) -> std::sync::MutexGuard<'_, Condition> {
        self.condition.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: config::Health = config::Health {
        failures: 3,
        cooldown: Duration::from_secs(10),
        cooldown_max: Duration::from_secs(35),
        cooldown_account: Duration::from_mins(10),
    };

    #[test]
    fn a8_cooldown_after_failures_in_a_row_doubling_with_one_probe() {
        let health = Arc::new(Health::default());
        let mut now = Instant::now();
        assert!(!health.failed(now, &CONFIG) && !health.failed(now, &CONFIG));
        health.worked(now);
        assert!(!health.failed(now, &CONFIG) && !health.failed(now, &CONFIG));
        assert!(health.failed(now, &CONFIG), "three in a row");
        for cooldown in [10, 20, 35, 35] {
            assert!(health.is_cooling(now + Duration::from_secs(cooldown - 1)));
            now += Duration::from_secs(cooldown);
            assert!(!health.is_cooling(now));
            let probe = health.enter(None, now).unwrap();
            assert!(health.is_cooling(now), "only one probe at a time");
            assert!(health.failed(now, &CONFIG), "a failed probe cools at once");
            drop(probe);
            assert!(health.is_cooling(now + Duration::from_secs(1)));
        }
        health.worked(now);
        assert!(health.is_healthy());
    }

    #[test]
    fn a8_many_failures_at_once_are_one_cooldown() {
        let health = Health::default();
        let now = Instant::now();
        for _ in 0..20 {
            health.failed(now, &CONFIG);
        }
        assert!(!health.is_cooling(now + CONFIG.cooldown));
    }

    #[test]
    fn a8_what_was_under_way_does_not_end_a_cooldown() {
        let health = Health::default();
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        health.throttled(later, Some(Duration::from_secs(30)), &CONFIG);
        health.worked(now);
        assert!(health.is_cooling(later + Duration::from_secs(29)));
        health.worked(later + Duration::from_secs(2));
        assert!(health.is_healthy());
    }

    #[test]
    fn b142_a_hint_of_days_is_cut_to_five_minutes() {
        let health = Health::default();
        let now = Instant::now();
        health.throttled(now, Some(Duration::from_hours(156)), &CONFIG);
        assert!(health.is_cooling(now + Duration::from_secs(299)));
        assert!(!health.is_cooling(now + Duration::from_mins(5)));
    }

    #[test]
    fn a1_slots_free_themselves() {
        let health = Arc::new(Health::default());
        let now = Instant::now();
        let one = health.enter(Some(1), now);
        assert!(one.is_some() && health.enter(Some(1), now).is_none());
        drop(one);
        assert!(health.enter(Some(1), now).is_some());
        assert_eq!(health.running(), 0);
    }
}
