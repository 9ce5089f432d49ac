//! What one request holds of its limits, until it has ended.
//!
//! Held by the gateway beside the ledger's ticket. Touches the meters it was taken from, and tells
//! the shared store if there is one.

use super::calendar::Day;
use super::meter::Taken;
use super::remote::{self, Note, Remote, Running};
use super::{Claim, Limits, Subject, Whose};
use crate::config::{Key, Model, OnReached};
use crate::ledger::money::Nano;
use std::sync::Arc;
use uuid::Uuid;

/// A reservation. Dropped, it gives everything back: the slot cannot leak, whatever ends the request.
#[derive(Debug)]
pub struct Grant {
    limits: Arc<Limits>,
    key: Arc<Key>,
    of_key: Held,
    of_model: Option<Held>,
    there: Option<There>,
    /// What is put in its place.
    used: (u64, Nano),
}

/// A part of one meter.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) name: String,
    pub(super) subject: Arc<Subject>,
    pub(super) taken: Taken,
}

/// What the shared store holds of it.
#[derive(Debug)]
pub(super) struct There {
    remote: Arc<Remote>,
    id: Uuid,
    /// The store's, in which it counts.
    second: u64,
    day: Arc<Day>,
}

impl There {
    /// The store has let it through.
    pub(super) fn new(
        remote: Arc<Remote>,
        claim: &Claim<'_>,
        model: Option<&Arc<Model>>,
        second: u64,
        day: &Arc<Day>,
    ) -> Self {
        let key = &claim.key;
        let running = Running {
            key: key.name.clone(),
            key_slot: key.limits.concurrent.is_some(),
            model: model.filter(|model| model.limits.concurrent.is_some()).map(|model| model.name.clone()),
            held: if key.limits.budgets.is_empty() { 0 } else { claim.ask.charge.0 },
        };
        remote.began(claim.id, running);
        Self { remote, id: claim.id, second, day: Arc::clone(day) }
    }

    fn settle(&self, whose: Whose, held: &Held, key: &Key, tokens: u64) {
        let tag = remote::tag(whose, &held.name);
        let meter = held.subject.meter();
        let budgets = key.limits.budgets.iter().filter(|_| whose == Whose::Key);
        let spent = budgets
            .filter_map(|budget| {
                let own = meter.spent_on(budget.per, &self.day)?;
                Some(remote::spent(&tag, budget.per, &self.day, own))
            })
            .collect();
        drop(meter);
        let reserved = held.taken.tokens();
        self.remote.note(Note::Settle { id: self.id, tag, second: self.second, reserved, used: tokens, spent });
    }
}

impl Grant {
    pub(super) const fn new(
        limits: Arc<Limits>,
        key: Arc<Key>,
        of_key: Held,
        of_model: Option<Held>,
        there: Option<There>,
    ) -> Self {
        Self { limits, key, of_key, of_model, there, used: (0, Nano(0)) }
    }

    /// The request has ended: this is what it used.
    pub fn settle(mut self, tokens: u64, charge: Nano) {
        self.used = (tokens, charge);
    }

    /// The last bytes are about to go to the client, who may send the next request as soon as it
    /// has them: the slot is free before that.
    pub fn free_slot(&mut self) {
        for held in std::iter::once(&mut self.of_key).chain(&mut self.of_model) {
            held.subject.meter().free_slot(&mut held.taken);
        }
        if let Some(there) = &self.there {
            there.remote.freed(there.id);
        }
    }

    /// Whether the key wants its streams cut when a budget is used up.
    #[must_use]
    pub fn cuts(&self) -> bool {
        self.key.limits.on_reached == OnReached::Cut && !self.key.limits.budgets.is_empty()
    }

    /// The request is at this charge and goes on. Answers whether the key's budgets bear it.
    pub fn grow(&mut self, charge: Nano) -> bool {
        let bears = self.of_key.subject.meter().grow(&self.key.limits, &mut self.of_key.taken, charge);
        if let Some(there) = &self.there {
            there.remote.grew(there.id, self.of_key.taken.charge().0);
        }
        bears
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let since = self.limits.since();
        let (tokens, charge) = self.used;
        self.of_key.subject.meter().settle(since, self.of_key.taken, tokens, charge);
        if let Some(held) = &self.of_model {
            held.subject.meter().settle(since, held.taken, tokens, charge);
        }
        if let Some(there) = &self.there {
            there.remote.ended(there.id);
            there.settle(Whose::Key, &self.of_key, &self.key, tokens);
            if let Some(held) = &self.of_model {
                there.settle(Whose::Model, held, &self.key, tokens);
            }
        }
    }
}
