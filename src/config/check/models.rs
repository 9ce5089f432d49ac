//! The checks of `defaults:` and `models:`.

use super::Check;
use crate::config::keypath::KeyPath;
use crate::config::word::Span;
use crate::config::{Health, Keepalive, Limits, Model, OnClientGone, Provider, Retry, Target, Timeouts, raw};
use crate::protocol::Protocol;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// As long as most answers are; a longer one is counted with what it really was.
const DEFAULT_MAX_TOKENS: u64 = 4096;

type Providers = BTreeMap<String, Arc<Provider>>;

impl Check<'_> {
    pub(super) fn models(
        &mut self,
        raw: Vec<raw::Model>,
        defaults: &raw::Settings,
        providers: &Providers,
    ) -> (Vec<Arc<Model>>, HashMap<String, Arc<Model>>) {
        self.settings(defaults, &KeyPath::root().key("defaults"));
        let mut models: Vec<Arc<Model>> = Vec::new();
        let mut by_name: HashMap<String, Arc<Model>> = HashMap::new();
        for (at, raw) in raw.into_iter().enumerate() {
            let path = KeyPath::root().key("models").item(at);
            let Some(name) = raw.name.as_ref().map(|name| name.0.clone()) else { continue };
            let model = Arc::new(self.model(name, raw, defaults, providers, &path));
            self.claim(&model.name, &path.key("name"), &model, &mut by_name);
            for (at, alias) in model.aliases.iter().enumerate() {
                self.claim(alias, &path.key("aliases").item(at), &model, &mut by_name);
            }
            models.push(model);
        }
        (models, by_name)
    }

    fn claim(&mut self, name: &str, path: &KeyPath, model: &Arc<Model>, by_name: &mut HashMap<String, Arc<Model>>) {
        if name == "*" {
            self.error(path, "\"*\" means all models elsewhere; choose another name".to_owned());
        }
        if let Some(other) = by_name.insert(name.to_owned(), Arc::clone(model)) {
            let name = self.written(path);
            let owner = if Arc::ptr_eq(&other, model) { "this model" } else { "another model" };
            self.error(path, format!("{owner} already has the name or alias {name:?}; remove one"));
        }
    }

    fn model(
        &mut self,
        name: String,
        raw: raw::Model,
        defaults: &raw::Settings,
        providers: &Providers,
        path: &KeyPath,
    ) -> Model {
        let targets = self.targets(raw.targets.unwrap_or_default(), providers, &path.key("targets"));
        let own = raw::Settings {
            timeouts: raw.timeouts,
            keepalive: raw.keepalive,
            retry: raw.retry,
            health: raw.health,
            on_client_gone: raw.on_client_gone,
            chat_error_done: raw.chat_error_done,
            affinity: raw.affinity,
        };
        self.settings(&own, path);
        let health = health(&own.health, &defaults.health);
        if health.cooldown_max < health.cooldown {
            let at = if self.root.has(&path.key("health")) { path.clone() } else { KeyPath::root().key("defaults") };
            let message = "the longest cool-down is shorter than the first; raise cooldown_max or lower cooldown";
            self.error(&at.key("health"), message.to_owned());
        }
        let gone = own.on_client_gone.as_ref().or(defaults.on_client_gone.as_ref());
        Model {
            name,
            aliases: raw.aliases.into_iter().map(|alias| alias.0).collect(),
            protocols: raw.protocols.map(protocols),
            targets,
            timeouts: timeouts(&own.timeouts, &defaults.timeouts),
            keepalive: keepalive(&own.keepalive, &defaults.keepalive),
            retry: retry(&own.retry, &defaults.retry),
            health,
            on_client_gone: match gone {
                None | Some(raw::OnClientGone::Cancel) => OnClientGone::Cancel,
                Some(raw::OnClientGone::Drain(span)) => OnClientGone::Drain(span.0),
            },
            chat_error_done: own.chat_error_done.or(defaults.chat_error_done).unwrap_or(true),
            affinity: own.affinity.or_else(|| defaults.affinity.clone()).unwrap_or_default(),
            limits: Limits { rpm: raw.rpm, tpm: raw.tpm, concurrent: raw.concurrent, ..Limits::default() },
            default_max_tokens: raw.default_max_tokens.unwrap_or(DEFAULT_MAX_TOKENS),
        }
    }

    fn targets(&mut self, raw: Vec<raw::Target>, providers: &Providers, path: &KeyPath) -> Vec<Arc<Target>> {
        let mut out = Vec::new();
        for (at, target) in raw.into_iter().enumerate() {
            let path = path.item(at).key("provider");
            let Some(provider) = target.provider.and_then(|name| self.provider(&name.0, providers, &path)) else {
                continue;
            };
            let Some(model) = target.model else { continue };
            out.push(Arc::new(Target {
                provider,
                model: model.0,
                weight: target.weight.unwrap_or(1),
                priority: target.priority,
                max_concurrent: target.max_concurrent,
            }));
        }
        out
    }

    /// What is wrong by itself, in the defaults or in one model.
    fn settings(&mut self, raw: &raw::Settings, path: &KeyPath) {
        let times = &raw.timeouts;
        for (key, span) in [
            ("connect", &times.connect),
            ("send", &times.send),
            ("first_byte", &times.first_byte),
            ("idle", &times.idle),
            ("no_output", &times.no_output),
            ("first_content", &times.first_content),
            ("total", &times.total),
            ("non_stream", &times.non_stream),
            ("client_write", &times.client_write),
        ] {
            if let Some(Span(span)) = span {
                self.not_zero(*span, &path.key("timeouts").key(key));
            }
        }
        if let Some(Span(interval)) = raw.keepalive.interval {
            self.not_zero(interval, &path.key("keepalive").key("interval"));
        }
    }
}

/// A model's own value, else the file's default, else Weir's.
fn pick(own: Option<&Span>, default: Option<&Span>, weirs: Duration) -> Duration {
    own.or(default).map_or(weirs, |span| span.0)
}

fn timeouts(own: &raw::Timeouts, default: &raw::Timeouts) -> Timeouts {
    let weirs = Timeouts::default();
    let no_output = pick(own.no_output.as_ref(), default.no_output.as_ref(), weirs.no_output);
    Timeouts {
        connect: pick(own.connect.as_ref(), default.connect.as_ref(), weirs.connect),
        send: pick(own.send.as_ref(), default.send.as_ref(), weirs.send),
        first_byte: pick(own.first_byte.as_ref(), default.first_byte.as_ref(), weirs.first_byte),
        idle: pick(own.idle.as_ref(), default.idle.as_ref(), weirs.idle),
        no_output,
        first_content: pick(own.first_content.as_ref(), default.first_content.as_ref(), no_output),
        total: pick(own.total.as_ref(), default.total.as_ref(), weirs.total),
        non_stream: pick(own.non_stream.as_ref(), default.non_stream.as_ref(), weirs.non_stream),
        client_write: pick(own.client_write.as_ref(), default.client_write.as_ref(), weirs.client_write),
    }
}

fn keepalive(own: &raw::Keepalive, default: &raw::Keepalive) -> Keepalive {
    let weirs = Keepalive::default();
    let interval = pick(own.interval.as_ref(), default.interval.as_ref(), weirs.interval);
    let text = own.text.as_ref().or(default.text.as_ref());
    let before_headers = own.before_headers.as_ref().or(default.before_headers.as_ref());
    Keepalive {
        interval,
        when: own.when.or(default.when).unwrap_or(weirs.when),
        style: own.style.or(default.style).unwrap_or(weirs.style),
        text: text.map_or(weirs.text, |text| text.0.clone()),
        before_headers: before_headers.map_or(Some(interval), |span| span.0),
    }
}

fn retry(own: &raw::Retry, default: &raw::Retry) -> Retry {
    let weirs = Retry::default();
    let on = own.on.as_ref().or(default.on.as_ref());
    Retry {
        attempts: own.attempts.or(default.attempts).unwrap_or(weirs.attempts),
        on: on.map_or(weirs.on, |on| on.iter().map(|statuses| statuses.0).collect()),
        deadline: pick(own.deadline.as_ref(), default.deadline.as_ref(), weirs.deadline),
        failover_on_empty: own.failover_on_empty.or(default.failover_on_empty).unwrap_or(weirs.failover_on_empty),
    }
}

fn health(own: &raw::Health, default: &raw::Health) -> Health {
    let weirs = Health::default();
    let account = own.cooldown_account.as_ref();
    Health {
        failures: own.failures.or(default.failures).unwrap_or(weirs.failures),
        cooldown: pick(own.cooldown.as_ref(), default.cooldown.as_ref(), weirs.cooldown),
        cooldown_max: pick(own.cooldown_max.as_ref(), default.cooldown_max.as_ref(), weirs.cooldown_max),
        cooldown_account: pick(account, default.cooldown_account.as_ref(), weirs.cooldown_account),
    }
}

fn protocols(raw: Vec<raw::ProtocolWord>) -> Vec<Protocol> {
    let mut out: Vec<Protocol> = raw
        .into_iter()
        .map(|word| match word {
            raw::ProtocolWord::Chat => Protocol::Chat,
            raw::ProtocolWord::Responses => Protocol::Responses,
            raw::ProtocolWord::Messages => Protocol::Messages,
        })
        .collect();
    out.sort_unstable();
    out.dedup();
    out
}
