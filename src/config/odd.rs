//! What is allowed but odd, so that an operator sees it before the users do.
//!
//! Called once per load, with a file that is good. Changes nothing.

use super::finding::Findings;
use super::keypath::KeyPath;
use super::tree::Node;
use super::{AllowedModels, BaseUrl, Config, Model, Origin, Provider, Target};
use crate::ledger::config::Sell;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Balancers and proxies on the way commonly cut a connection that is silent for this long (B74).
const SILENCE_LIMIT: Duration = Duration::from_mins(1);
/// No provider is silent for longer and alive.
const LONG_IDLE: Duration = Duration::from_mins(10);

/// Adds a finding for each odd value.
pub(super) fn look(config: &Config, root: &Node, now: SystemTime, findings: &mut Findings) {
    let mut odd = Odd { root, findings, said: HashSet::new() };
    odd.server(config);
    odd.providers(config);
    for (at, model) in config.models.iter().enumerate() {
        let path = KeyPath::root().key("models").item(at);
        odd.keepalive(model, &path);
        odd.times(model, &path);
        odd.targets(model, &path);
        odd.use_of(model, config, &path);
    }
    odd.keys(config, now);
    odd.prices(config);
}

struct Odd<'a> {
    root: &'a Node,
    findings: &'a mut Findings,
    /// A default is blamed once, not for each model.
    said: HashSet<String>,
}

impl Odd<'_> {
    fn say(&mut self, path: &KeyPath, message: &str) {
        if self.said.insert(format!("{path}: {message}")) {
            self.findings.add(self.root.nearest(path).at, path, message.to_owned());
        }
    }

    /// Where a model's setting stands: with the model, else in the defaults, else nowhere and the model is named.
    fn setting(&self, model: &KeyPath, section: &str, key: &str) -> KeyPath {
        let own = model.key(section).key(key);
        let default = KeyPath::root().key("defaults").key(section).key(key);
        if self.root.has(&own) {
            own
        } else if self.root.has(&default) {
            default
        } else {
            model.clone()
        }
    }

    fn server(&mut self, config: &Config) {
        let path = KeyPath::root().key("server");
        let server = &config.server;
        if server.max_body > server.max_held_bytes {
            self.say(&path.key("max_body"), "larger than max_held_bytes, so the largest bodies will get a 503");
        }
        if server.max_event_bytes as u64 > server.max_held_bytes {
            self.say(&path.key("max_event_bytes"), "larger than max_held_bytes, which will end such an event first");
        }
    }

    fn providers(&mut self, config: &Config) {
        for (name, provider) in &config.providers {
            let path = KeyPath::root().key("providers").key(name);
            let by_model = config
                .models
                .iter()
                .any(|model| model.targets.iter().any(|target| Arc::ptr_eq(&target.provider, provider)));
            let by_path = config.passthrough.iter().any(|entry| Arc::ptr_eq(&entry.provider, provider));
            if !by_model && !by_path {
                self.say(&path, "no model uses this provider");
            }
            if let Origin::Url(url) = &provider.origin {
                self.url(provider, url, &path);
            }
        }
    }

    fn url(&mut self, provider: &Provider, url: &BaseUrl, path: &KeyPath) {
        let at = path.key("base_url");
        let public = !is_private(&url.host);
        if !url.tls && public && !provider.api_keys.is_empty() {
            self.say(&at, "http:// sends the key in clear text over a public network; use https://");
        }
        let with_key = !provider.api_keys.is_empty() || !provider.headers.is_empty() || url.query.is_some();
        if public && !with_key {
            self.say(path, "no api_key, so this provider will probably refuse; the client's own key never goes up");
        }
        let endings = ["/chat/completions", "/responses", "/messages", "/completions", "/embeddings"];
        if endings.iter().any(|ending| url.path.ends_with(ending)) {
            self.say(&at, "ends in an endpoint's path, which Weir adds itself; end it before /v1 or use `paths`");
        }
    }

    fn keepalive(&mut self, model: &Model, path: &KeyPath) {
        let keepalive = &model.keepalive;
        let at = self.setting(path, "keepalive", "interval");
        if keepalive.interval >= SILENCE_LIMIT {
            self.say(&at, "60 s or more: balancers and clients on the way will cut a silent stream before");
        }
        if model.timeouts.no_output <= keepalive.interval {
            let at = self.setting(path, "timeouts", "no_output");
            self.say(&at, "not longer than keepalive.interval: a stream ends as stalled before its first keepalive");
        }
        match keepalive.before_headers {
            None => {
                let at = self.setting(path, "keepalive", "before_headers");
                self.say(&at, "off: clients see nothing until the upstream answers, and may give up");
            }
            Some(span) if span >= SILENCE_LIMIT && span > keepalive.interval => {
                let at = self.setting(path, "keepalive", "before_headers");
                self.say(&at, "60 s or more: balancers and clients on the way will give up before the first byte");
            }
            Some(_) => {}
        }
    }

    fn times(&mut self, model: &Model, path: &KeyPath) {
        let times = &model.timeouts;
        if times.idle > LONG_IDLE {
            let at = self.setting(path, "timeouts", "idle");
            self.say(&at, "longer than 10 min: a dead upstream is noticed very late");
        }
        for (key, span) in
            [("no_output", times.no_output), ("first_byte", times.first_byte), ("first_content", times.first_content)]
        {
            if times.total < span {
                let at = self.setting(path, "timeouts", "total");
                self.say(&at, &format!("shorter than {key}, which will then never fire"));
            }
        }
    }

    fn targets(&mut self, model: &Model, path: &KeyPath) {
        if model.retry.attempts == 1 && model.targets.len() > 1 {
            let at = self.setting(path, "retry", "attempts");
            self.say(&at, "1 with several targets: the others are never tried when one fails");
        }
        let mut seen = HashSet::new();
        for (at, target) in model.targets.iter().enumerate() {
            if !seen.insert((target.provider.name.as_str(), target.model.as_str())) {
                self.say(&path.key("targets").item(at), "the same provider and model as another target; use weight");
            }
        }
    }

    fn use_of(&mut self, model: &Model, config: &Config, path: &KeyPath) {
        let usable = config.keys.iter().any(|key| match &key.models {
            AllowedModels::All => true,
            AllowedModels::Named(names) => names.contains(&model.name),
        });
        if !usable && !config.keys.is_empty() && config.key_store.is_none() {
            self.say(&path.key("name"), "no key may use this model");
        }
    }

    fn keys(&mut self, config: &Config, now: SystemTime) {
        let top = KeyPath::root().key("keys");
        if config.keys.is_empty() && config.key_store.is_none() {
            self.say(&top, "there are no keys, so every request is refused with 401");
        }
        for (at, key) in config.keys.iter().enumerate() {
            if key.expires.is_some_and(|until| until < now) {
                self.say(&top.item(at).key("expires"), "this key has expired");
            }
        }
        for (at, entry) in config.passthrough.iter().enumerate() {
            if entry.keys.is_empty() {
                let path = KeyPath::root().key("passthrough").item(at);
                self.say(&path, "lists no keys, so nobody may use it");
            }
        }
    }

    /// L3: what has no price is recorded, but nobody can be charged for it.
    fn prices(&mut self, config: &Config) {
        let top = KeyPath::root().key("prices");
        let paid = |target: &Target| target.provider.origin != Origin::Demo;
        if !self.root.has(&top) {
            if config.models.iter().any(|model| model.targets.iter().any(|target| paid(target))) {
                let message = "there are no prices, so tokens are recorded, but neither charge nor cost; list price \
                               files under prices.cost, or write `prices: {}` if nobody pays";
                self.say(&top, message);
            }
            return;
        }
        let books = &config.price_books;
        for (at, model) in config.models.iter().enumerate() {
            let path = KeyPath::root().key("models").item(at);
            if !config.prices.cost.is_empty() {
                for (at, target) in model.targets.iter().enumerate().filter(|(_, target)| paid(target)) {
                    if !books.knows(&target.provider.name, &target.model) {
                        let message = "no file under prices.cost prices this provider and model: its cost is unknown";
                        self.say(&path.key("targets").item(at), message);
                    }
                }
            }
            let sold = |target: &Arc<Target>| books.sells(&model.name, &target.provider.name, &target.model);
            if matches!(config.prices.sell, Sell::Book(_)) && !model.targets.iter().all(sold) {
                self.say(&path.key("name"), "the file of prices.sell has no price for this model: nobody is charged");
            }
        }
    }
}

/// Loopback, private and local addresses, and names that only mean something inside.
fn is_private(host: &str) -> bool {
    match host.parse() {
        Ok(IpAddr::V4(ip)) => ip.is_loopback() || ip.is_private() || ip.is_link_local() || shared(ip.octets()),
        Ok(IpAddr::V6(ip)) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
        Err(_) => {
            let inside = [".localhost", ".local", ".internal", ".lan", ".svc", ".home.arpa"];
            !host.contains('.') || inside.iter().any(|ending| host.ends_with(ending))
        }
    }
}

/// 100.64.0.0/10, between carriers and in overlay networks.
const fn shared(octets: [u8; 4]) -> bool {
    matches!(octets, [100, 64..=127, _, _])
}
