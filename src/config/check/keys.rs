//! The checks of `keys:` and `passthrough:`.

use super::{Check, choice};
use crate::config::keypath::KeyPath;
use crate::config::word::{Method, Name};
use crate::config::{AllowedModels, Key, KeyStore, Limits, Model, Passthrough, Provider, raw};
use crate::ledger::LedgerConfig;
use crate::protocol::Endpoint;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What `sha256sum` prints for nothing: the key got lost on the way to it.
const SHA256_OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// Paths under `/v1/` that keep nothing; everything else may hold other tenants' data (A10).
const STATELESS: &[&str] = &[
    "audio/speech",
    "audio/transcriptions",
    "audio/translations",
    "images/generations",
    "images/edits",
    "images/variations",
    "moderations",
    "rerank",
    "score",
    "tokenize",
    "detokenize",
];

impl Check<'_> {
    pub(super) fn keys(
        &mut self,
        raw: Vec<raw::Key>,
        models: &[Arc<Model>],
        by_name: &HashMap<String, Arc<Model>>,
    ) -> Vec<Arc<Key>> {
        let mut keys: Vec<Arc<Key>> = Vec::new();
        for (at, raw) in raw.into_iter().enumerate() {
            let path = KeyPath::root().key("keys").item(at);
            let allowed = self.allowed(raw.models.unwrap_or_default(), models, by_name, &path.key("models"));
            let budgets = self.budgets(raw.budgets, &path.key("budgets"));
            let Some(name) = raw.name else { continue };
            if keys.iter().any(|key| key.name == name.0) {
                let name = self.written(&path.key("name"));
                self.error(&path.key("name"), format!("another key is named {name:?}; choose another name"));
            }
            let Some(sha256) = raw.sha256 else { continue };
            if const_hex::encode(sha256.0) == SHA256_OF_NOTHING {
                let message = "this is the SHA-256 of nothing; hash the key itself, without a line break after it";
                self.error(&path.key("sha256"), message.to_owned());
            }
            if keys.iter().any(|key| key.sha256 == sha256.0) {
                let message = "another key has this sha256, so it is the same key; remove one";
                self.error(&path.key("sha256"), message.to_owned());
            }
            keys.push(Arc::new(Key {
                name: name.0,
                sha256: sha256.0,
                models: allowed,
                tag: raw.tag.map(|tag| tag.0),
                expires: raw.expires.map(|until| until.0),
                allow_ips: raw.allow_ips.into_iter().flatten().map(|network| network.0.trunc()).collect(),
                limits: Limits {
                    rpm: raw.rpm,
                    tpm: raw.tpm,
                    concurrent: raw.concurrent,
                    budgets,
                    on_reached: raw.on_reached.unwrap_or_default(),
                },
            }));
        }
        keys
    }

    pub(super) fn key_store(&mut self, store: Option<KeyStore>, ledger: &LedgerConfig) {
        let path = KeyPath::root().key("key_store");
        let known = ledger.postgres.is_some() || self.findings.touch(&KeyPath::root().key("ledger"));
        if store == Some(KeyStore::Postgres) && !known {
            self.error(&path, "the keys would be in the database of ledger.postgres; add its url there".to_owned());
        }
    }

    fn allowed(
        &mut self,
        raw: Vec<Name>,
        models: &[Arc<Model>],
        by_name: &HashMap<String, Arc<Model>>,
        path: &KeyPath,
    ) -> AllowedModels {
        if raw.iter().any(|name| name.0 == "*") {
            if raw.len() > 1 {
                self.error(path, "\"*\" already means all models; remove the others".to_owned());
            }
            return AllowedModels::All;
        }
        for (at, Name(name)) in raw.iter().enumerate() {
            if self.any_model {
                break;
            }
            let path = path.item(at);
            let names = || models.iter().map(|model| model.name.as_str());
            match by_name.get(name) {
                Some(model) if model.name == *name => {}
                Some(model) => {
                    self.error(&path, format!("this is an alias; write the model's name, {:?}", model.name));
                }
                None if self.findings.touch(&KeyPath::root().key("models")) && models.is_empty() => {}
                None => {
                    let name = self.written(&path);
                    let names = choice(&name, names());
                    self.error(&path, format!("no model named {name:?}; use \"*\" or some of: {names}"));
                }
            }
        }
        AllowedModels::Named(raw.into_iter().map(|name| name.0).collect())
    }

    pub(super) fn passthrough(
        &mut self,
        raw: Vec<raw::Passthrough>,
        providers: &BTreeMap<String, Arc<Provider>>,
        keys: &[Arc<Key>],
        store: bool,
    ) -> Vec<Passthrough> {
        let mut out: Vec<Passthrough> = Vec::new();
        for (at, raw) in raw.into_iter().enumerate() {
            let path = KeyPath::root().key("passthrough").item(at);
            self.known_keys(&raw.keys, keys, store, &path.key("keys"));
            let provider = raw.provider.and_then(|name| self.provider(&name.0, providers, &path.key("provider")));
            let Some(written) = raw.path else { continue };
            let methods = raw.methods.unwrap_or_default().into_iter().map(|Method(method)| method).collect();
            let (target, prefix) = match written.0.strip_suffix("/*") {
                Some(target) => (target.to_owned(), true),
                None => (written.0, false),
            };
            self.passthrough_path(&target, prefix, raw.shared_account, &path);
            let Some(provider) = provider else { continue };
            let entry = Passthrough {
                path: target,
                prefix,
                methods,
                provider,
                keys: raw.keys.into_iter().map(|name| name.0).collect(),
                shared_account: raw.shared_account,
            };
            let twice = |other: &Passthrough| {
                other.path == entry.path
                    && other.prefix == entry.prefix
                    && other.methods.iter().any(|method| entry.methods.contains(method))
            };
            if out.iter().any(twice) {
                self.error(
                    &path.key("path"),
                    "another entry has this path and a method of this one; remove one".to_owned(),
                );
            }
            out.push(entry);
        }
        out
    }

    fn known_keys(&mut self, names: &[Name], keys: &[Arc<Key>], store: bool, path: &KeyPath) {
        if store || self.findings.touch(&KeyPath::root().key("keys")) {
            return; // some names are not known
        }
        for (at, Name(name)) in names.iter().enumerate() {
            if !keys.iter().any(|key| key.name == *name) {
                let path = path.item(at);
                let name = self.written(&path);
                let known = || keys.iter().map(|key| key.name.as_str());
                let known = choice(&name, known());
                self.error(&path, format!("no key named {name:?}; add it under \"keys:\" or use one of: {known}"));
            }
        }
    }

    fn passthrough_path(&mut self, target: &str, prefix: bool, shared: bool, path: &KeyPath) {
        let at = path.key("path");
        let odd = target.contains(['*', '?', '%', '\\']) || target.split('/').any(|part| part == ".." || part == ".");
        let Some(below) = target.strip_prefix("/v1").filter(|below| below.is_empty() || below.starts_with('/')) else {
            self.error(&at, "only paths under /v1/ can be passed through".to_owned());
            return;
        };
        if odd || (below.len() < 2 && !prefix) {
            let message = "write a plain path such as /v1/files, or a prefix such as /v1/files/*";
            self.error(&at, message.to_owned());
            return;
        }
        let routed = Endpoint::of_path(target).is_some() && !prefix;
        if routed || below == "/models" || below.starts_with("/models/") || below.starts_with("/weir") {
            self.error(&at, "Weir answers this path itself; remove the entry".to_owned());
            return;
        }
        let below = below.trim_start_matches('/');
        let stateless = STATELESS
            .iter()
            .any(|free| below.strip_prefix(free).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
        if !stateless && !shared {
            let message = "all keys of this entry would see each other's files, batches or stored objects there; \
                           write shared_account: true if that is meant";
            self.error(&at, message.to_owned());
        }
    }
}
