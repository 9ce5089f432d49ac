//! The longest silences of an upstream, for the timeline (M4).
//!
//! Filled by the relay, once per chunk: one subtraction and one comparison. Touches nothing.

use std::time::{Duration, Instant};

/// How many are kept: the longest tells who stalled, the others whether it was the only one.
const KEPT: usize = 3;

/// One silence between two reads, or before the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// When the waiting began.
    pub from: Instant,
    /// How long it was; time that was spent on the client is left out (S2).
    pub took: Duration,
}

/// The longest silences so far, over all attempts; those before a head are the attempt's own and not in here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// The longest first.
    longest: [Option<Gap>; KEPT],
    /// Since when the upstream is waited for.
    since: Option<Instant>,
}

impl Gaps {
    /// Nothing was waited for.
    pub(super) const NONE: Self = Self { longest: [None; KEPT], since: None };

    /// An answer's head is there: its body is waited for.
    pub(super) const fn begin(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// Bytes came, or the end.
    pub(super) fn read(&mut self, now: Instant) {
        let Some(from) = self.since else { return };
        self.since = Some(now);
        let took = now.saturating_duration_since(from);
        let [.., shortest] = &mut self.longest;
        if shortest.is_some_and(|gap| took <= gap.took) {
            return;
        }
        *shortest = Some(Gap { from, took });
        self.longest.sort_unstable_by_key(|gap| std::cmp::Reverse(gap.map(|gap| gap.took)));
    }

    /// Nothing more is waited for.
    pub(super) fn stop(&mut self, now: Instant) {
        self.read(now);
        self.since = None;
    }

    /// This much of the waiting was spent on the client.
    pub(super) fn forgive(&mut self, spent: Duration) {
        self.since = self.since.map(|since| since + spent);
    }

    /// The longest first, with the one that has not ended by `now`.
    #[must_use]
    pub fn until(mut self, now: Instant) -> [Option<Gap>; KEPT] {
        if self.since.is_some() {
            self.stop(now);
        }
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m4_the_longest_silences_without_the_clients_time() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut gaps = Gaps::default();
        gaps.read(at(5));
        assert_eq!(gaps.until(at(9)), [None; KEPT], "before a head nothing counts");
        gaps.stop(at(9));
        gaps.begin(at(10));
        for read in [11, 61, 62, 162, 163] {
            gaps.read(at(read));
        }
        gaps.forgive(Duration::from_millis(20));
        gaps.read(at(213));
        let tell = |gaps: Gaps, now| {
            let told = |gap: Gap| (gap.from.duration_since(start).as_millis(), gap.took.as_millis());
            gaps.until(at(now)).map(|gap| gap.map(told).unwrap_or_default())
        };
        assert_eq!(tell(gaps, 214), [(62, 100), (11, 50), (183, 30)]);
        assert_eq!(tell(gaps, 300), [(62, 100), (213, 87), (11, 50)], "the silence that runs counts");
        gaps.stop(at(220));
        assert_eq!(tell(gaps, 300), [(62, 100), (11, 50), (183, 30)], "after the end nothing is waited for");
    }
}
