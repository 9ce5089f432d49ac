//! What one request holds of its limits, until it has ended.
//!
//! Held by the gateway beside the ledger's ticket. Touches the meters it was taken from.

use super::meter::Taken;
use super::{Limits, Subject};
use crate::config::{Key, OnReached};
use crate::ledger::money::Nano;
use std::sync::Arc;

/// A reservation. Dropped, it gives everything back: the slot cannot leak, whatever ends the request.
#[derive(Debug)]
pub struct Grant {
    limits: Arc<Limits>,
    key: Arc<Key>,
    of_key: Held,
    of_model: Option<Held>,
    /// What is put in its place.
    used: (u64, Nano),
}

/// A part of one meter.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) subject: Arc<Subject>,
    pub(super) taken: Taken,
}

impl Grant {
    pub(super) const fn new(limits: Arc<Limits>, key: Arc<Key>, of_key: Held, of_model: Option<Held>) -> Self {
        Self { limits, key, of_key, of_model, used: (0, Nano(0)) }
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
    }

    /// Whether the key wants its streams cut when a budget is used up.
    #[must_use]
    pub fn cuts(&self) -> bool {
        self.key.limits.on_reached == OnReached::Cut && !self.key.limits.budgets.is_empty()
    }

    /// The request is at this charge and goes on. Answers whether the key's budgets bear it.
    pub fn grow(&mut self, charge: Nano) -> bool {
        self.of_key.subject.meter().grow(&self.key.limits, &mut self.of_key.taken, charge)
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
    }
}
