//! The pages that change something: keys of the store, and what is switched off at runtime (G1, C2).
//!
//! Called by the admin application once the token was checked. Touches the key store, the switches and the health of
//! targets, and leaves an audit line for each change, which names what was changed and never a secret.

use super::{answer_json, with};
use crate::config::Key;
use crate::gateway::Shared;
use crate::keystore::{Store, StoreError};
use crate::route::Target;
use crate::switches::Switch;
use http::header::ALLOW;
use http::{Method, Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

const KEYS: &str = "/api/keys";
const KEY: &str = "/api/keys/";
const TARGETS: &str = "/api/targets";
const SWITCHES: &str = "/api/switches";
/// A key's settings are a few hundred bytes.
pub(super) const MAX_BODY: usize = 64 * 1024;

/// Whether a path is one of these pages.
pub(super) fn is_page(path: &str) -> bool {
    matches!(path, KEYS | TARGETS | SWITCHES) || path.strip_prefix(KEY).is_some_and(|name| !name.is_empty())
}

/// What the pages work on.
#[derive(Debug)]
pub struct Control {
    shared: Arc<Shared>,
    store: Option<Store>,
}

/// One request.
pub(super) struct Ask {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) body: Vec<u8>,
    /// Who asks, for the audit line.
    pub(super) from: String,
}

/// What went wrong, as a status and a sentence for the operator.
struct Failure(StatusCode, String);

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let status = match &error {
            StoreError::NoStore | StoreError::InFile(_) | StoreError::Taken(_) | StoreError::Revoked(_) => {
                StatusCode::CONFLICT
            }
            StoreError::Local { .. } | StoreError::Remote(_) => StatusCode::SERVICE_UNAVAILABLE,
            StoreError::Unknown(_) => StatusCode::NOT_FOUND,
            StoreError::Bad(_) => StatusCode::BAD_REQUEST,
        };
        Self(status, error.to_string())
    }
}

fn asked(error: &str) -> Failure {
    Failure(StatusCode::BAD_REQUEST, error.to_owned())
}

impl Control {
    /// Over the gateway's state, and the key store if there is one.
    #[must_use]
    pub const fn new(shared: Arc<Shared>, store: Option<Store>) -> Self {
        Self { shared, store }
    }

    /// The page.
    pub(super) async fn answer(&self, ask: &Ask) -> Response<Vec<u8>> {
        let (name, allowed) = match ask.path.as_str() {
            KEYS | SWITCHES => (None, "GET, POST"),
            TARGETS => (None, "GET"),
            path => (Some(path.trim_start_matches(KEY)), "GET, PATCH, DELETE"),
        };
        let name = name.map(|name| percent_decode_str(name).decode_utf8_lossy().into_owned());
        let result = match (ask.path.as_str(), name.as_deref(), ask.method.as_str()) {
            (KEYS, _, "GET") => self.keys().await,
            (KEYS, _, "POST") => self.create(ask).await,
            (TARGETS, _, "GET") => Ok(self.targets()),
            (SWITCHES, _, "GET") => Ok(self.switches()),
            (SWITCHES, _, "POST") => self.switch(ask),
            (_, Some(name), "GET") => self.key(name).await,
            (_, Some(name), "PATCH") => self.set(name, ask).await,
            (_, Some(name), "DELETE") => self.revoke(name, ask).await,
            _ => {
                let body = json!({ "error": format!("only {allowed}") });
                let answer = answer_json(StatusCode::METHOD_NOT_ALLOWED, &body);
                return with(answer, ALLOW, allowed);
            }
        };
        match result {
            Ok(page) if page.get("secret").is_some() => answer_json(StatusCode::CREATED, &page),
            Ok(page) => answer_json(StatusCode::OK, &page),
            Err(Failure(status, error)) => answer_json(status, &json!({ "error": error })),
        }
    }

    fn store(&self) -> Result<&Store, StoreError> {
        self.store.as_ref().ok_or(StoreError::NoStore)
    }

    /// Those of the file, too; they are changed there.
    async fn keys(&self) -> Result<Value, Failure> {
        let live = self.shared.live.load_full();
        let mut keys: Vec<_> = live.config.keys.iter().map(|key| self.of_file(key)).collect();
        if let Some(store) = &self.store {
            for stored in store.list().await? {
                let hidden = live.key_names.contains(&stored.name);
                let mut shown = self.marked(stored.shown(), &stored.name, "store");
                if let (true, Some(members)) = (hidden, shown.as_object_mut()) {
                    members.insert("hidden_by_file".to_owned(), json!(true));
                }
                keys.push(shown);
            }
        }
        Ok(json!({ "keys": keys, "store_in_reach": self.shared.stored_keys.is_in_reach() }))
    }

    async fn key(&self, name: &str) -> Result<Value, Failure> {
        let live = self.shared.live.load_full();
        if let Some(key) = live.config.keys.iter().find(|key| key.name == name) {
            return Ok(self.of_file(key));
        }
        let stored = self.store()?.show(name).await?;
        Ok(self.marked(stored.shown(), name, "store"))
    }

    fn of_file(&self, key: &Key) -> Value {
        let expires = key.expires.and_then(|at| jiff::Timestamp::try_from(at).ok()).map(|at| at.to_string());
        let ips: Vec<_> = key.allow_ips.iter().map(ToString::to_string).collect();
        let shown = json!({
            "name": key.name, "models": key.models.names(), "tag": key.tag, "expires": expires, "allow_ips": ips,
        });
        self.marked(shown, &key.name, "file")
    }

    fn marked(&self, mut shown: Value, name: &str, source: &str) -> Value {
        if let Some(members) = shown.as_object_mut() {
            members.insert("source".to_owned(), json!(source));
            members.insert("off".to_owned(), json!(self.shared.switches.is_off(Switch::Key, name)));
        }
        shown
    }

    async fn create(&self, ask: &Ask) -> Result<Value, Failure> {
        let mut members = members(ask)?;
        let Some(Value::String(name)) = members.remove("name") else {
            return Err(asked("\"name\" is missing; add it"));
        };
        let config = Arc::clone(&self.shared.live.load().config);
        let (stored, minted) = self.store()?.create(&name, &members, &config).await?;
        audit(ask, "key created", &name, &named(&stored.settings));
        let mut shown = self.marked(stored.shown(), &name, "store");
        if let Some(members) = shown.as_object_mut() {
            members.insert("secret".to_owned(), json!(minted.expose()));
        }
        Ok(shown)
    }

    async fn set(&self, name: &str, ask: &Ask) -> Result<Value, Failure> {
        let members = members(ask)?;
        if members.is_empty() {
            return Err(asked("nothing to change; send the members to change, null to remove one"));
        }
        let config = Arc::clone(&self.shared.live.load().config);
        let stored = self.store()?.set(name, &members, &config).await?;
        audit(ask, "key changed", name, &named(&members));
        Ok(self.marked(stored.shown(), name, "store"))
    }

    async fn revoke(&self, name: &str, ask: &Ask) -> Result<Value, Failure> {
        let now = match ask.query.as_str() {
            "" | "now=false" => false,
            "now=true" => true,
            _ => return Err(asked("the only parameter is now=true, which ends running streams, too")),
        };
        let config = Arc::clone(&self.shared.live.load().config);
        let stored = self.store()?.revoke(name, now, &config).await?;
        audit(ask, "key revoked", name, if now { "with its running streams" } else { "" });
        Ok(self.marked(stored.shown(), name, "store"))
    }

    fn targets(&self) -> Value {
        let live = self.shared.live.load_full();
        let mut all: BTreeMap<&str, (&Target, Vec<&str>)> = BTreeMap::new();
        for route in live.models() {
            for target in &route.targets {
                all.entry(&target.word).or_insert_with(|| (target, Vec::new())).1.push(&route.name);
            }
        }
        let now = Instant::now();
        let targets: Vec<_> = all.values().map(|(target, models)| shown(target, models, now)).collect();
        let models: Vec<_> = live
            .models()
            .map(|route| json!({ "model": &*route.name, "off": self.shared.switches.is_off(Switch::Model, &route.name) }))
            .collect();
        json!({ "targets": targets, "models": models })
    }

    fn switches(&self) -> Value {
        let live = self.shared.live.load_full();
        let mut targets: Vec<_> = live.models().flat_map(|route| &route.targets).collect();
        targets.retain(|target| target.health.is_off());
        let mut targets: Vec<_> = targets.iter().map(|target| &*target.word).collect();
        targets.sort_unstable();
        targets.dedup();
        let names = |kind| self.shared.switches.names(kind);
        json!({ "off": { "targets": targets, "models": names(Switch::Model), "keys": names(Switch::Key) } })
    }

    /// `{"target": "openai/gpt-5.6-sol", "off": true}`
    fn switch(&self, ask: &Ask) -> Result<Value, Failure> {
        const WANTED: &str = "send one of target, model and key with a name, and \"off\": true or false";
        let members = members(ask)?;
        let off = members.get("off").and_then(Value::as_bool).ok_or_else(|| asked(WANTED))?;
        let mut others = members.iter().filter(|(member, _)| *member != "off");
        let (Some((kind, Value::String(name))), None) = (others.next(), others.next()) else {
            return Err(asked(WANTED));
        };
        let changed = match kind.as_str() {
            "target" => self.switch_target(name, off),
            "model" => self.switch_model(name, off),
            "key" => self.switch_key(name, off),
            _ => return Err(asked(WANTED)),
        };
        let unknown = || Failure(StatusCode::NOT_FOUND, format!("there is no {kind} named {name:?}"));
        let changed = changed.ok_or_else(unknown)?;
        if changed {
            audit(ask, if off { "switched off" } else { "switched on" }, name, kind);
        }
        Ok(json!({ kind: name, "off": off, "changed": changed }))
    }

    fn switch_target(&self, word: &str, off: bool) -> Option<bool> {
        let live = self.shared.live.load_full();
        let target = live.models().flat_map(|route| &route.targets).find(|target| *target.word == *word)?;
        Some(target.health.set_off(off))
    }

    fn switch_model(&self, name: &str, off: bool) -> Option<bool> {
        let live = self.shared.live.load_full();
        // One that was switched off and then left the file can be switched on all the same.
        let known = !off || live.models().any(|route| *route.name == *name);
        known.then(|| self.shared.switches.set(Switch::Model, name, off))
    }

    fn switch_key(&self, name: &str, off: bool) -> Option<bool> {
        let live = self.shared.live.load_full();
        let known = !off || live.key_names.contains(name) || self.shared.stored_keys.ring().has(name);
        known.then(|| self.shared.switches.set(Switch::Key, name, off))
    }
}

fn shown(target: &Target, models: &[&str], now: Instant) -> Value {
    let health = target.health.shown(now);
    let cooling = |health: &crate::route::health::Shown| health.cooling.map(|left| left.as_secs_f64());
    let accounts: Vec<_> = target.accounts.iter().map(|account| account.shown(now)).collect();
    let accounts: Vec<_> = accounts
        .iter()
        .enumerate()
        .map(|(at, account)| json!({ "account": at, "cooling_seconds": cooling(account), "failures": account.failures_in_a_row }))
        .collect();
    json!({
        "target": &*target.word,
        "models": models,
        "off": health.off,
        "healthy": target.is_healthy(),
        "cooling_seconds": cooling(&health),
        "probing": health.probing,
        "failures": health.failures_in_a_row,
        "running": health.running,
        "max_concurrent": target.config.max_concurrent,
        "accounts": accounts,
    })
}

fn members(ask: &Ask) -> Result<Map<String, Value>, Failure> {
    let parsed: Result<Map<String, Value>, _> = serde_json::from_slice(&ask.body);
    parsed.map_err(|error| Failure(StatusCode::BAD_REQUEST, format!("the body is no JSON object: {error}")))
}

fn named(members: &Map<String, Value>) -> String {
    members.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn audit(ask: &Ask, action: &'static str, name: &str, what: &str) {
    log::info!(target: "weir::audit", action, name, what, from = ask.from.as_str(); "changed over the admin API");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c2_pages_of_control() {
        for (path, is) in [
            ("/api/keys", true),
            ("/api/keys/a%2Fb", true),
            ("/api/keys/", false),
            ("/api/targets", true),
            ("/api/switches", true),
            ("/api/usage", false),
            ("/api/keysx", false),
        ] {
            assert_eq!(is_page(path), is, "{path}");
        }
    }
}
