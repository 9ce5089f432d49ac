//! Counts what happened in the last minute, exactly enough: in no 60 seconds more than the limit.
//!
//! Called by the meter. Touches only its own fields; `now` comes in.
//!
//! The simple version keeps the moment of each request and counts those of the last 60 s. This one
//! keeps one sum per second, so its size does not depend on the limit, and lets a second go only
//! when all of it is older than a minute: what it counts is at least what the simple version counts,
//! and at most what that counts over 61 s.

use std::time::Duration;

/// The seconds of a minute, and the one that is only partly older.
const SLOTS: u64 = 61;
/// The same, as a length.
const LEN: usize = 61;

/// Sums of the last minute. Times are durations since any fixed moment.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// By second modulo [`SLOTS`]; made at the first use.
    slots: Option<Box<[u64; LEN]>>,
    /// The same of the process before this one, as it said last.
    before: Option<Box<[u64; LEN]>>,
    /// The second that is written to.
    newest: u64,
    /// Of both.
    sum: u64,
}

/// An amount of the last minute, as it is told to a process with another clock: since when it counts, and how much.
pub(super) type Passed = (Duration, u64);

impl Window {
    /// What counts now.
    pub(super) fn sum(&mut self, now: Duration) -> u64 {
        self.advance(now);
        self.sum
    }

    /// Adds now. Answers the second it counts for, for [`Self::give_back`].
    pub(super) fn add(&mut self, now: Duration, amount: u64) -> u64 {
        self.slots.get_or_insert_with(|| Box::new([0; LEN]));
        self.advance(now);
        let second = self.newest;
        if let Some(slot) = self.slot(second) {
            *slot = slot.saturating_add(amount);
            self.sum = self.sum.saturating_add(amount);
        }
        second
    }

    /// Takes back what was added in a second, if that still counts.
    pub(super) fn give_back(&mut self, now: Duration, second: u64, amount: u64) {
        self.advance(now);
        if second + SLOTS <= self.newest || second > self.newest {
            return;
        }
        if let Some(slot) = self.slot(second) {
            let back = amount.min(*slot);
            *slot -= back;
            self.sum = self.sum.saturating_sub(back);
        }
    }

    /// How long until no more than `most` counts, if nothing is added.
    pub(super) fn until(&mut self, now: Duration, most: u64) -> Duration {
        self.advance(now);
        if self.sum <= most {
            return Duration::ZERO;
        }
        // Backwards, since nearly always it is asked for the end of all (`most` is 0): the second whose going
        // leaves no more than `most` is the last one since which more than that has come.
        let oldest = (self.newest + 1).saturating_sub(SLOTS);
        let mut since = 0_u64;
        for second in (oldest..=self.newest).rev() {
            since = since.saturating_add(self.both(second));
            if since > most {
                return Duration::from_secs(second + SLOTS).saturating_sub(now);
            }
        }
        Duration::ZERO
    }

    /// All that counts now, oldest first.
    pub(super) fn passed(&mut self, now: Duration) -> Vec<Passed> {
        self.advance(now);
        let oldest = (self.newest + 1).saturating_sub(SLOTS);
        let seconds = (oldest..=self.newest).map(|second| (second, self.both(second)));
        let counts = seconds.filter(|(_, amount)| *amount > 0);
        counts.map(|(second, amount)| (now.saturating_sub(Duration::from_secs(second)), amount)).collect()
    }

    /// Counts what another process says of its last minute, in place of what it said before. It goes
    /// no sooner than after a minute, and at most a second later than there.
    pub(super) fn inherit(&mut self, now: Duration, passed: &[Passed]) {
        self.advance(now);
        if let Some(said) = self.before.take() {
            self.sum = said.iter().fold(self.sum, |sum, slot| sum.saturating_sub(*slot));
        }
        if passed.is_empty() {
            return;
        }
        let mut before = Box::new([0_u64; LEN]);
        for (age, amount) in passed {
            let since = now.saturating_sub(*age);
            let second = (since.as_secs() + u64::from(since.subsec_nanos() > 0)).min(self.newest);
            if second + SLOTS <= self.newest {
                continue;
            }
            if let Some(slot) = before.get_mut(index(second)) {
                *slot = slot.saturating_add(*amount);
                self.sum = self.sum.saturating_add(*amount);
            }
        }
        self.before = Some(before);
    }

    fn both(&self, second: u64) -> u64 {
        let of = |slots: &Option<Box<[u64; LEN]>>| slots.as_ref().and_then(|slots| slots.get(index(second)).copied());
        of(&self.slots).unwrap_or(0).saturating_add(of(&self.before).unwrap_or(0))
    }

    /// Lets go what is too old. A clock that steps back finds time standing still.
    fn advance(&mut self, now: Duration) {
        let second = now.as_secs();
        if second <= self.newest {
            return;
        }
        if second - self.newest >= SLOTS {
            self.before = None;
            self.sum = 0;
            if let Some(slots) = &mut self.slots {
                slots.fill(0);
            }
        } else {
            for slots in [&mut self.slots, &mut self.before].into_iter().flatten() {
                for gone in self.newest + 1..=second {
                    if let Some(slot) = slots.get_mut(index(gone)) {
                        self.sum = self.sum.saturating_sub(std::mem::take(slot));
                    }
                }
            }
        }
        self.newest = second;
    }

    fn slot(&mut self, second: u64) -> Option<&mut u64> {
        self.slots.as_mut()?.get_mut(index(second))
    }
}

fn index(second: u64) -> usize {
    usize::try_from(second % SLOTS).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn g2_a_second_counts_for_a_whole_minute_and_less_than_two_seconds_more() {
        let mut window = Window::default();
        window.add(at(5_900), 3);
        assert_eq!(window.sum(at(65_900)), 3, "60 s later");
        assert_eq!(window.sum(at(65_999)), 3);
        assert_eq!(window.sum(at(66_000)), 0);
    }

    #[test]
    fn g2_until_tells_when_enough_is_gone() {
        let mut window = Window::default();
        window.add(at(1_500), 2);
        window.add(at(3_500), 5);
        for (most, expected) in [(7, 0), (6, 62_000 - 4_000), (5, 62_000 - 4_000), (4, 64_000 - 4_000), (0, 60_000)] {
            assert_eq!(window.until(at(4_000), most), at(expected), "{most}");
        }
    }

    /// The simple version lets one second after another go until little enough is left.
    #[test]
    fn g2_until_is_what_letting_seconds_go_would_tell() {
        for seed in 0..300 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut window, mut now) = (Window::default(), random.u64(0..200_000));
            window.inherit(at(now), &[(at(random.u64(0..70_000)), random.u64(0..9))]);
            for _ in 0..random.u32(0..40) {
                window.add(at(now), random.u64(0..9));
                now += random.u64(0..6_000);
            }
            for most in [0, 1, random.u64(0..50), window.sum(at(now)), u64::MAX] {
                let mut later = now;
                while window.counts_at(at(later)) > most {
                    later = (later / 1_000 + 1) * 1_000;
                }
                assert_eq!(window.until(at(now), most), at(later - now), "seed {seed}, {most}");
            }
        }
    }

    impl Window {
        /// What would count then, if nothing is added.
        fn counts_at(&self, then: Duration) -> u64 {
            let oldest = (then.as_secs() + 1).saturating_sub(SLOTS);
            (oldest..=self.newest).map(|second| self.both(second)).sum()
        }
    }

    #[test]
    fn g2_what_is_given_back_is_given_back_once_and_only_while_it_counts() {
        let mut window = Window::default();
        let second = window.add(at(0), 10);
        window.give_back(at(30_000), second, 4);
        assert_eq!(window.sum(at(30_000)), 6);
        window.give_back(at(30_000), second, 40);
        assert_eq!(window.sum(at(30_000)), 0, "never below nothing");
        window.add(at(61_000), 5);
        window.give_back(at(61_500), second, 5);
        assert_eq!(window.sum(at(61_500)), 5, "the slot belongs to another second by now");
    }

    #[test]
    fn c3_what_another_process_counted_counts_for_its_minute_here_and_less_than_two_seconds_more() {
        for seed in 0..300 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut old, mut new, ahead) = (Window::default(), Window::default(), random.u64(0..9_000));
            let (mut now, mut arrivals) = (120_000, Vec::new());
            for _ in 0..random.u32(1..4) {
                for _ in 0..random.u32(0..30) {
                    arrivals.push((now, random.u64(1..9)));
                    old.add(at(now), arrivals[arrivals.len() - 1].1);
                    now += random.u64(0..4_000);
                }
                new.inherit(at(now + ahead), &old.passed(at(now)));
            }
            let mut then = now;
            while then < now + 70_000 {
                let within = |length: u64| {
                    let younger = arrivals.iter().filter(|(arrived, _)| then < arrived + length);
                    younger.map(|(_, amount)| amount).sum::<u64>()
                };
                let counted = new.sum(at(then + ahead));
                let bounds = within(60_000)..=within(62_000);
                assert!(bounds.contains(&counted), "seed {seed}, {then}: {counted} is not in {bounds:?}");
                then += random.u64(100..900);
            }
        }
    }

    #[test]
    fn c3_what_was_inherited_counts_in_the_wait_and_is_never_given_back() {
        let mut window = Window::default();
        window.inherit(at(130_000), &[(at(20_000), 3), (at(61_000), 9), (at(500), 1)]);
        let second = window.add(at(130_000), 2);
        assert_eq!(window.sum(at(130_000)), 6);
        assert_eq!(window.until(at(130_000), 3), at(41_000));
        window.give_back(at(130_000), second, 5);
        assert_eq!(window.sum(at(130_000)), 4, "the two of its own");
        assert_eq!(window.passed(at(130_000)), [(at(20_000), 3), (at(0), 1)]);
    }

    #[test]
    fn g2_a_clock_that_steps_back_loses_nothing() {
        let mut window = Window::default();
        window.add(at(100_000), 1);
        window.add(at(40_000), 1);
        assert_eq!(window.sum(at(100_000)), 2);
        assert_eq!(window.sum(at(161_000)), 0);
    }
}
