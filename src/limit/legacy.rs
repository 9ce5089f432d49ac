//! What a process leaves to the one that takes over: the use of its keys and models, as long as it runs (C3).
//!
//! The old process tells it with its sockets and then until its end, each time all of it; the new one counts what it
//! heard last as if it was its own. Touches the meters; the words travel elsewhere.

use super::meter::Use;
use super::{Limits, Names, Subject, Whose, subject};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

/// What one key or model uses in a process that another one succeeds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Legacy {
    /// A key's or a model's.
    pub whose: Whose,
    /// Its name.
    pub name: String,
    /// What it uses.
    pub uses: Use,
}

impl Limits {
    /// What this process counts by itself, for its successor. Where gateways share their limits it is all in the
    /// shared store (G4).
    #[must_use]
    pub fn legacy(&self) -> Vec<Legacy> {
        if self.remote().is_some() {
            return Vec::new();
        }
        let since = self.since();
        let mut all = Vec::new();
        for (whose, names) in [(Whose::Key, &self.keys), (Whose::Model, &self.models)] {
            let uses = of_all(names).into_iter().map(|(name, subject)| (name, subject.meter().snapshot(since)));
            let told = uses.filter(|(_, uses)| !uses.is_nothing());
            all.extend(told.map(|(name, uses)| Legacy { whose, name, uses }));
        }
        all
    }

    /// Counts what the process before this one says, in place of what it said before.
    pub fn inherit(&self, told: &[Legacy]) {
        let (since, nothing) = (self.since(), Use::default());
        for (whose, names) in [(Whose::Key, &self.keys), (Whose::Model, &self.models)] {
            let told = told.iter().filter(|legacy| legacy.whose == whose);
            let told: HashMap<&str, &Use> = told.map(|legacy| (legacy.name.as_str(), &legacy.uses)).collect();
            for name in told.keys() {
                let _is_known_now = subject(names, name);
            }
            for (name, subject) in of_all(names) {
                subject.meter().inherit(since, told.get(name.as_str()).unwrap_or(&&nothing));
            }
        }
    }

    /// The process before this one has ended, and nothing runs there any more.
    pub fn outlive(&self) {
        for names in [&self.keys, &self.models] {
            for (_, subject) in of_all(names) {
                subject.meter().outlive();
            }
        }
    }
}

pub(super) fn of_all(names: &Names) -> Vec<(String, Arc<Subject>)> {
    let names = names.read().unwrap_or_else(PoisonError::into_inner);
    names.iter().map(|(name, subject)| (name.clone(), Arc::clone(subject))).collect()
}
