//! What the imported file will say, before it is written.
//!
//! Filled by the reader of the other gateway's config. Touches nothing.

use crate::protocol::Protocol;
use std::collections::BTreeMap;

/// The whole file.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) providers: Vec<Provider>,
    pub(super) models: Vec<Model>,
    /// Whole lines of `defaults:`, such as `retry: { attempts: 3 }`.
    pub(super) defaults: Vec<String>,
    /// Digest of the one key, and what to say of it.
    pub(super) key: Option<(String, String)>,
    pub(super) notes: Vec<String>,
}

/// A provider; two with the same settings are one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Provider {
    pub(super) name: String,
    pub(super) base_url: String,
    pub(super) api_key: Option<String>,
    /// As written: `x-api-key`, `{ header: api-key }`; empty: the default.
    pub(super) auth: &'static str,
    pub(super) chat_path: Option<String>,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) protocols: Vec<Protocol>,
}

/// A public model.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) name: String,
    pub(super) aliases: Vec<String>,
    pub(super) targets: Vec<Target>,
    /// Whole lines of its section.
    pub(super) settings: Vec<String>,
    pub(super) rpm: u64,
    pub(super) tpm: u64,
}

/// A target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Index of the provider.
    pub(super) provider: usize,
    pub(super) model: String,
    pub(super) weight: Option<u64>,
    pub(super) priority: u64,
    pub(super) max_concurrent: Option<u64>,
}

impl Plan {
    /// The index of this provider, which gets a name of its own if its settings are new.
    pub(super) fn provider(&mut self, wanted: &Provider) -> usize {
        let named = |name: String| Provider { name, ..wanted.clone() };
        if let Some(at) = self.providers.iter().position(|known| named(known.name.clone()) == *known) {
            return at;
        }
        let taken = |name: &str| self.providers.iter().any(|known| known.name == name);
        let mut name = wanted.name.clone();
        for number in 2_u32.. {
            if !taken(&name) {
                break;
            }
            name = format!("{}-{number}", wanted.name);
        }
        self.providers.push(named(name));
        self.providers.len() - 1
    }

    /// What a target's provider speaks.
    pub(super) fn protocols(&self, target: &Target) -> &[Protocol] {
        self.providers.get(target.provider).map_or(&[], |provider| &provider.protocols)
    }

    pub(super) fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}
