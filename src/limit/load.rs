//! What one of a provider's keys has borne in the last minute (A1).
//!
//! Called by the route when it chooses a key, and by the gateway when the attempt is over. Touches
//! only its own fields; `now` comes in. It is this gateway's own use: others are not known here.

use super::window::Window;
use crate::config::Limits;
use std::time::{Duration, Instant};

/// The requests and tokens of a minute.
#[derive(Debug, Default)]
pub struct Load {
    /// The first use; times are reckoned from it.
    began: Option<Instant>,
    requests: Window,
    tokens: Window,
}

/// What an attempt takes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    second: u64,
    tokens: u64,
}

impl Load {
    /// Whether it bears one more request of that many tokens. What is more than a whole minute bears
    /// goes when nothing else does.
    pub fn has_room(&mut self, now: Instant, bounds: &Limits, tokens: u64) -> bool {
        let since = self.since(now);
        bounds.rpm.is_none_or(|most| self.requests.sum(since) < most)
            && bounds.tpm.is_none_or(|most| self.tokens.sum(since).saturating_add(tokens.min(most)) <= most)
    }

    /// Takes it; `None` where nothing is bounded.
    pub fn take(&mut self, now: Instant, bounds: &Limits, tokens: u64) -> Option<Part> {
        if bounds.rpm.is_none() && bounds.tpm.is_none() {
            return None;
        }
        let since = self.since(now);
        let second = self.requests.add(since, 1);
        let tokens = bounds.tpm.map_or(0, |most| tokens.min(most));
        self.tokens.add(since, tokens);
        Some(Part { second, tokens })
    }

    /// The attempt is over and used this many tokens.
    pub fn settle(&mut self, now: Instant, part: Part, used: u64) {
        let since = self.since(now);
        if used < part.tokens {
            self.tokens.give_back(since, part.second, part.tokens - used);
        } else if part.tokens > 0 {
            self.tokens.add(since, used - part.tokens);
        }
    }

    fn since(&mut self, now: Instant) -> Duration {
        now.saturating_duration_since(*self.began.get_or_insert(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a1_a_providers_key_bears_its_requests_and_tokens_of_a_minute() {
        let bounds = Limits { rpm: Some(3), tpm: Some(100), ..Limits::default() };
        let mut load = Load::default();
        let now = Instant::now();
        let first = load.take(now, &bounds, 60).unwrap();
        assert!(!load.has_room(now, &bounds, 60) && load.has_room(now, &bounds, 40));
        load.settle(now, first, 10);
        assert!(load.has_room(now, &bounds, 60));
        let second = load.take(now, &bounds, 80).unwrap();
        load.settle(now, second, 95);
        assert!(!load.has_room(now, &bounds, 1), "10 and 95");
        let third = load.take(now, &bounds, 0).unwrap();
        load.settle(now, third, 0);
        assert!(!load.has_room(now, &Limits { tpm: None, ..bounds.clone() }, 0), "three requests");
        assert_eq!(load.take(now, &Limits::default(), 1), None);
        assert!(load.has_room(now + Duration::from_secs(61), &bounds, 1_000), "alone in its minute");
    }
}
