//! Chooses the target of the next attempt (A1).
//!
//! Called by the gateway, once per attempt. Touches the health of targets; reads no clock.

pub mod health;

use crate::config::{self, Affinity, KeyBounds, Limits, Model};
use crate::limit::load::Part;
use crate::relay::Plan;
use crate::upstream::site::Site;
use health::{Health, Permit};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// One model with its targets, ready to be served.
#[derive(Debug)]
pub struct Route {
    /// As configured.
    pub model: Arc<Model>,
    /// Its public name, for labels and records.
    pub name: Arc<str>,
    /// Its streams, per protocol in the order of [`crate::protocol::Protocol::ALL`].
    pub plans: [Arc<Plan>; 3],
    /// In the order of the file.
    pub targets: Vec<Arc<Target>>,
    /// Which of its provider's keys has to be used, where something is stored under one (A12).
    pub account: Option<usize>,
}

/// One place that can serve a model.
#[derive(Debug)]
pub struct Target {
    /// As configured.
    pub config: Arc<config::Target>,
    /// Where it is.
    pub site: Arc<Site>,
    /// `provider/model`, for labels and records.
    pub word: Arc<str>,
    /// Shared by all models that name it, and across reloads.
    pub health: Arc<Health>,
    /// Of the provider's keys, in the order of the file; one entry even if there is no key.
    pub accounts: Vec<Arc<Health>>,
    /// It refused `stream_options` once: it is not asked again (U1).
    pub refuses_stream_options: AtomicBool,
}

/// The target of one attempt, with its slot.
#[derive(Debug)]
pub struct Choice {
    /// Where to go.
    pub target: Arc<Target>,
    /// Which of the provider's keys; beyond the list if it has none.
    pub account: usize,
    /// What it takes of that key's minute; settled when the attempt is over.
    pub part: Option<Part>,
    /// Frees the slot when dropped.
    pub permit: Permit,
}

impl Choice {
    /// The attempt is over; its key has used so many tokens, if that is known.
    pub fn settle(&mut self, now: Instant, used: Option<u64>) {
        if let (Some(part), Some(used), Some(account)) =
            (self.part.take(), used, self.target.accounts.get(self.account))
        {
            account.settle(now, part, used);
        }
    }
}

impl Target {
    /// Whether it would be a poor choice now.
    #[must_use]
    pub fn is_cooling(&self, now: Instant) -> bool {
        self.health.is_cooling(now) || !self.has_account(now)
    }

    /// Whether it last worked, with at least one of its keys.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.health.is_healthy() && self.accounts.iter().any(|account| account.is_healthy())
    }

    /// Whether one of the provider's keys is not cooling down.
    #[must_use]
    pub fn has_account(&self, now: Instant) -> bool {
        self.accounts.iter().any(|account| !account.is_cooling(now))
    }

    /// U1: whether to ask it for the usage chunk.
    #[must_use]
    pub fn takes_stream_options(&self) -> bool {
        self.config.provider.inject_usage && !self.refuses_stream_options.load(Ordering::Relaxed)
    }

    /// A key that bears the request: one that does not cool down, if there is one, and by weight.
    fn account(&self, now: Instant, tokens: u64, only: Option<usize>) -> Option<usize> {
        const UNBOUNDED: &KeyBounds = &KeyBounds { weight: 1, limits: Limits::NONE };
        let bounds = |at: usize| self.config.provider.key_bounds.get(at).unwrap_or(UNBOUNDED);
        let bears = self.accounts.iter().enumerate().filter(|(at, account)| {
            let bounds = &bounds(*at).limits;
            only.is_none_or(|only| only == *at)
                && (bounds.rpm.is_none() && bounds.tpm.is_none() || account.has_room(now, bounds, tokens))
        });
        let draw = |at: usize| weighted(fastrand::u64(..), bounds(at).weight);
        bears.map(|(at, account)| (account.is_cooling(now), draw(at), at)).min().map(|(.., at)| at)
    }

    fn take(&self, account: usize, now: Instant, tokens: u64) -> Option<Part> {
        let bounds = self.config.provider.key_bounds.get(account)?;
        self.accounts.get(account)?.take(now, &bounds.limits, tokens)
    }
}

impl Route {
    /// The best target that was not tried yet and has a free slot; if all were tried, the best of
    /// them again. `tokens`: what the request is likely to use of a provider's key. `None`: every slot
    /// is taken, or no key bears it.
    #[must_use]
    pub fn choose(&self, now: Instant, affinity: Option<u64>, tried: &[Arc<Target>], tokens: u64) -> Option<Choice> {
        let on = self.targets.iter().filter(|target| !target.health.is_off());
        let mut order: Vec<_> = on.map(|target| (rank(target, now, affinity, tried), target)).collect();
        order.sort_by_key(|(rank, _)| *rank);
        order.into_iter().find_map(|(_, target)| {
            let account = target.account(now, tokens, self.account)?;
            let permit = target.health.enter(target.config.max_concurrent, now)?;
            let part = target.take(account, now, tokens);
            Some(Choice { target: Arc::clone(target), account, part, permit })
        })
    }

    /// The same with these targets alone.
    #[must_use]
    pub fn only(&self, targets: Vec<Arc<Target>>) -> Self {
        let (model, name, plans) = (Arc::clone(&self.model), Arc::clone(&self.name), self.plans.clone());
        Self { model, name, plans, targets, account: self.account }
    }

    /// The same at one target, with the key of that fingerprint while the provider has it (A12).
    #[must_use]
    pub fn home(&self, target: Arc<Target>, fingerprint: &str) -> Self {
        let account = target.site.account(fingerprint);
        Self { account, ..self.only(vec![target]) }
    }

    /// Whether every target is switched off (C2).
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.targets.iter().all(|target| target.health.is_off())
    }

    /// Whether a target with a free slot is left that was not tried.
    #[must_use]
    pub fn has_untried(&self, tried: &[Arc<Target>]) -> bool {
        self.targets.iter().any(|target| {
            let has_room = target.config.max_concurrent.is_none_or(|max| target.health.running() < max);
            has_room && !target.health.is_off() && !tried.iter().any(|done| Arc::ptr_eq(done, target))
        })
    }
}

/// Smaller is better: untried before tried, healthy before cooling, then by priority, then by a
/// draw in which a target of double weight wins twice as often (or, with affinity, always the
/// same one while it is there: rendezvous hashing).
fn rank(target: &Target, now: Instant, affinity: Option<u64>, tried: &[Arc<Target>]) -> (usize, bool, u32, u64) {
    let before = tried.iter().filter(|done| std::ptr::eq(done.as_ref(), target)).count();
    let draw = match affinity {
        Some(hash) => {
            let mut hasher = DefaultHasher::new();
            (hash, &target.word).hash(&mut hasher);
            hasher.finish()
        }
        None => fastrand::u64(..),
    };
    (before, target.is_cooling(now), target.config.priority, weighted(draw, target.config.weight))
}

/// An exponential draw: `-ln(uniform) / weight`, scaled to an integer; the smallest wins.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a draw, no amount"
)]
fn weighted(draw: u64, weight: u32) -> u64 {
    let uniform = (draw >> 11) as f64 / (1_u64 << 53) as f64;
    let spread = -(uniform.max(f64::MIN_POSITIVE).ln()) / f64::from(weight.max(1));
    (spread * 1e15) as u64
}

/// What of a request its affinity looks at.
#[derive(Clone, Copy, Debug)]
pub struct Traits<'a> {
    /// The body's `prompt_cache_key`.
    pub prompt_cache_key: Option<&'a str>,
    /// The body's user.
    pub user: Option<&'a str>,
    /// The virtual key's name.
    pub key: &'a str,
}

/// The hash that requests share which should meet the same caches; `None`: no preference.
#[must_use]
pub fn affinity(by: &[Affinity], traits: &Traits<'_>) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    let mut any = false;
    for by in by {
        let value = match by {
            Affinity::PromptCacheKey => traits.prompt_cache_key,
            Affinity::User => traits.user,
            Affinity::Key => Some(traits.key),
        };
        any |= value.is_some();
        value.hash(&mut hasher);
    }
    any.then(|| hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a1_weights_are_shares() {
        let wins = (0..20_000).filter(|_| weighted(fastrand::u64(..), 8) < weighted(fastrand::u64(..), 2)).count();
        assert!((15_400..16_600).contains(&wins), "{wins} of 20000, 16000 expected");
    }

    #[test]
    fn a1_affinity_needs_something_to_share() {
        let traits = Traits { prompt_cache_key: None, user: None, key: "k" };
        assert_eq!(affinity(&[], &traits), None);
        assert_eq!(affinity(&[Affinity::User, Affinity::PromptCacheKey], &traits), None);
        assert!(affinity(&[Affinity::Key], &traits).is_some());
        let with = Traits { user: Some("u"), ..traits };
        assert_eq!(affinity(&[Affinity::User], &with), affinity(&[Affinity::User], &with));
    }
}
