//! Decides which names become label values: those of the config, and a bounded number of keys
//! (B304, B305). Anything else is `other`, so that nothing a client sends makes a series.
//!
//! Asked when a request ends. Touches only its own sets.

use crate::config::Config;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

/// The value for what is not there at all.
pub(super) const NONE: &str = "none";
/// The value for what has no series of its own.
pub(super) const OTHER: &str = "other";

/// What the config names.
#[derive(Debug, Default)]
pub(super) struct Names {
    models: BTreeSet<String>,
    pub(super) targets: BTreeSet<String>,
}

impl Names {
    pub(super) fn of(config: &Config) -> Self {
        let models = config.models.iter().map(|model| model.name.clone());
        let targets = config.models.iter().flat_map(|model| &model.targets).map(|target| target.word());
        Self { models: models.collect(), targets: targets.collect() }
    }

    #[cfg(test)]
    pub(super) fn new(models: &[&str], targets: &[&str]) -> Self {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Self { models: owned(models), targets: owned(targets) }
    }

    pub(super) fn model<'a>(&self, name: Option<&'a str>) -> &'a str {
        known(&self.models, name)
    }

    pub(super) fn target<'a>(&self, name: Option<&'a str>) -> &'a str {
        known(&self.targets, name)
    }
}

fn known<'a>(names: &BTreeSet<String>, name: Option<&'a str>) -> &'a str {
    match name {
        Some(name) if names.contains(name) => name,
        Some(_) => OTHER,
        None => NONE,
    }
}

/// The first `max` keys that were used have series of their own, the others share one.
#[derive(Debug)]
pub(super) struct Keys {
    max: AtomicUsize,
    seen: RwLock<BTreeSet<String>>,
}

impl Keys {
    pub(super) fn new(max: usize) -> Self {
        Self { max: AtomicUsize::new(max), seen: RwLock::default() }
    }

    /// Another bound; series that exist stay.
    pub(super) fn bound(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    pub(super) fn label<'a>(&self, key: Option<&'a str>) -> &'a str {
        let Some(key) = key else { return NONE };
        let max = self.max.load(Ordering::Relaxed);
        {
            let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
            if seen.contains(key) {
                return key;
            }
            if seen.len() >= max {
                return OTHER;
            }
        }
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        if seen.len() < max || seen.contains(key) {
            seen.insert(key.to_owned());
            return key;
        }
        OTHER
    }
}
