//! Reads LiteLLM's `config.yaml`.
//!
//! Called by `weir import litellm`. What it does not know, it notes.

mod known;
mod value;

use super::plan::{Model, Plan, Provider, Target};
use super::{Import, NotOne, write};
use known::{KNOWN, usual_key};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use value::{list, seconds, text, whole};

type Object = Map<String, Value>;

/// Members of `litellm_params` that are read.
const PARAMS: &[&str] = &[
    "model",
    "api_key",
    "api_base",
    "base_url",
    "api_version",
    "rpm",
    "tpm",
    "weight",
    "order",
    "timeout",
    "stream_timeout",
    "max_retries",
    "num_retries",
    "max_parallel_requests",
    "extra_headers",
    "organization",
];

/// Reads the text; `name` is how the file is called.
///
/// # Errors
/// When there is nothing to import.
pub fn import(text: &str, name: &str) -> Result<Import, NotOne> {
    let root: Value = serde_saphyr::from_str(text).map_err(|error| NotOne::Yaml(error.to_string()))?;
    let mut reader = Reader { plan: Plan::default() };
    let empty = Object::new();
    let root = root.as_object().unwrap_or(&empty);
    for (at, entry) in list(root.get("model_list")).iter().enumerate() {
        reader.deployment(at, entry);
    }
    if reader.plan.models.is_empty() {
        let why: Vec<&str> = std::iter::once("").chain(reader.plan.notes.iter().map(String::as_str)).collect();
        return Err(NotOne::Models(why.join("\n- ")));
    }
    let section = |name: &str| root.get(name).and_then(Value::as_object).unwrap_or(&empty);
    let (own, router) = (section("litellm_settings"), section("router_settings"));
    reader.defaults(own, router);
    reader.aliases(router);
    reader.fallbacks(own, router);
    reader.common_protocols();
    reader.key(section("general_settings"));
    reader.leftovers(root);
    Ok(write::write(reader.plan, &format!("litellm {name}")))
}

struct Reader {
    plan: Plan,
}

impl Reader {
    /// One entry of `model_list`.
    fn deployment(&mut self, at: usize, entry: &Value) {
        let empty = Object::new();
        let params = entry.get("litellm_params").and_then(Value::as_object).unwrap_or(&empty);
        let (Some(public), Some(full)) = (text(entry.get("model_name")), text(params.get("model"))) else {
            return self.plan.note(format!("model_list[{at}]: it has no model_name or no litellm_params.model"));
        };
        if public.contains('*') || full.contains('*') {
            return self.plan.note(format!("model_list[{at}] ({public}): Weir has no wildcards; name each model"));
        }
        let place = format!("model_list[{at}] ({public})");
        let Some((provider, model)) = self.provider(&place, &full, params) else { return };
        let provider = self.plan.provider(&provider);
        let target = Target {
            provider,
            model,
            weight: whole(params.get("weight")).filter(|weight| *weight > 0),
            // LiteLLM counts from 1.
            priority: whole(params.get("order")).map_or(0, |order| order.saturating_sub(1)),
            max_concurrent: whole(params.get("max_parallel_requests")),
        };
        let settings = model_settings(params);
        let unread: Vec<&str> = params.keys().map(String::as_str).filter(|name| !PARAMS.contains(name)).collect();
        if !unread.is_empty() {
            self.plan.note(format!("{place}: litellm_params {}: Weir adds nothing to requests", unread.join(", ")));
        }
        let models = &mut self.plan.models;
        let known = models.iter().position(|model| model.name == public);
        let known = known.unwrap_or_else(|| {
            models.push(Model { name: public.clone(), ..Model::default() });
            models.len() - 1
        });
        let Some(model) = models.get_mut(known) else { return };
        if !model.targets.contains(&target) {
            model.targets.push(target);
        }
        model.rpm += whole(params.get("rpm")).unwrap_or(0);
        model.tpm += whole(params.get("tpm")).unwrap_or(0);
        let mut differ = Vec::new();
        for line in settings {
            let key = line.split(':').next().unwrap_or_default();
            match model.settings.iter().find(|own| own.split(':').next() == Some(key)) {
                None => model.settings.push(line),
                Some(own) if *own == line => {}
                Some(_) => differ.push(key.to_owned()),
            }
        }
        for key in differ {
            self.plan
                .note(format!("{place}: its {key} differs from that of the model's first deployment, which is used"));
        }
    }

    /// The provider of a deployment and the model's name there; `None`: Weir cannot speak to it.
    fn provider(&mut self, place: &str, full: &str, params: &Object) -> Option<(Provider, String)> {
        let base = text(params.get("api_base")).or_else(|| text(params.get("base_url")));
        let (kind, model) = match full.split_once('/') {
            Some((kind, model)) if !model.is_empty() => (kind, model),
            _ if full.starts_with("claude") => ("anthropic", full),
            _ => ("openai", full),
        };
        let known = KNOWN.iter().find(|(name, ..)| *name == kind);
        // A slash may be part of the name at a server of one's own.
        let (&(name, url, auth, path, protocols), model) = match (known, &base) {
            (Some(known), _) => (known, model),
            (None, Some(_)) if !full.contains('/') => (KNOWN.first()?, full),
            (None, _) => {
                self.plan.note(format!(
                    "{place}: Weir does not speak the API of {kind}; leave it to a server that gives it OpenAI's shape"
                ));
                return None;
            }
        };
        let Some(base_url) = base.or_else(|| (!url.is_empty()).then(|| url.to_owned())) else {
            self.plan.note(format!("{place}: {kind} needs an api_base, and there is none"));
            return None;
        };
        let own_url = !url.is_empty() && base_url.trim_end_matches('/').trim_end_matches("/v1") == url;
        let chat_path = match name {
            "azure" => {
                let version = text(params.get("api_version")).unwrap_or_else(|| "2024-10-21".to_owned());
                Some(format!("/openai/deployments/{model}/chat/completions?api-version={version}"))
            }
            _ if !path.is_empty() && own_url => Some(path.to_owned()),
            _ => None,
        };
        if name == "anthropic" {
            self.plan.note("anthropic: Weir translates no protocol into another; its models are asked at /v1/messages (Anthropic's SDKs), not as chat");
        }
        let mut headers: BTreeMap<String, String> = params
            .get("extra_headers")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .filter_map(|(name, value)| Some((name.clone(), text(Some(value))?)))
            .collect();
        if let Some(organization) = text(params.get("organization")) {
            headers.insert("OpenAI-Organization".to_owned(), organization);
        }
        let provider = Provider {
            // One Azure deployment has one path.
            name: if name == "azure" { format!("azure-{model}") } else { name.replace('_', "-") },
            base_url,
            api_key: text(params.get("api_key")).or_else(|| usual_key(name, own_url)),
            auth,
            chat_path,
            headers,
            protocols: protocols.to_vec(),
        };
        Some((provider, model.to_owned()))
    }

    fn defaults(&mut self, own: &Object, router: &Object) {
        let first = |names: [&str; 2]| router.get(names[0]).or_else(|| own.get(names[1]));
        let mut timeouts = Vec::new();
        timeouts.extend(seconds(first(["timeout", "request_timeout"])).map(|time| format!("non_stream: {time}")));
        timeouts.extend(seconds(first(["stream_timeout", "stream_timeout"])).map(|time| format!("first_byte: {time}")));
        if !timeouts.is_empty() {
            self.plan.defaults.push(format!(
                "timeouts: {{ {} }} # of a stream LiteLLM bounds the wait for its beginning",
                timeouts.join(", ")
            ));
        }
        if let Some(retries) = whole(first(["num_retries", "num_retries"])) {
            self.plan.defaults.push(format!("retry: {{ attempts: {} }} # num_retries, and the first try", retries + 1));
        }
        let mut health = Vec::new();
        health.extend(whole(first(["allowed_fails", "allowed_fails"])).map(|fails| format!("failures: {}", fails + 1)));
        health.extend(seconds(router.get("cooldown_time")).map(|time| format!("cooldown: {time}")));
        if !health.is_empty() {
            self.plan.defaults.push(format!("health: {{ {} }}", health.join(", ")));
        }
        match text(router.get("routing_strategy")).as_deref() {
            None | Some("simple-shuffle") => {}
            Some(other) => self.plan.note(format!(
                "router_settings.routing_strategy {other}: Weir goes by priority and weight, and leaves out what is ill"
            )),
        }
    }

    fn aliases(&mut self, router: &Object) {
        let aliases = router.get("model_group_alias").and_then(Value::as_object);
        for (alias, model) in aliases.into_iter().flatten() {
            let Some(name) = text(Some(model)).or_else(|| text(model.get("model"))) else { continue };
            let taken = self.plan.models.iter().any(|model| model.name == *alias);
            match self.plan.models.iter_mut().find(|model| model.name == name) {
                Some(model) if !taken => model.aliases.push(alias.clone()),
                _ => self.plan.note(format!("router_settings.model_group_alias.{alias}: it means no model of its own")),
            }
        }
    }

    /// Targets of the fallback models behind a model's own.
    fn fallbacks(&mut self, own: &Object, router: &Object) {
        let mut wanted: Vec<(String, Vec<String>)> = Vec::new();
        for entry in [own, router].into_iter().flat_map(|section| list(section.get("fallbacks"))) {
            for (model, names) in entry.as_object().into_iter().flatten() {
                wanted.push((model.clone(), list(Some(names)).iter().filter_map(|name| text(Some(name))).collect()));
            }
        }
        let always: Vec<String> =
            list(own.get("default_fallbacks")).iter().filter_map(|name| text(Some(name))).collect();
        for model in self.plan.models.iter().filter(|_| !always.is_empty()) {
            if !wanted.iter().any(|(name, _)| *name == model.name) {
                let others = always.iter().filter(|name| **name != model.name).cloned().collect();
                wanted.push((model.name.clone(), others));
            }
        }
        let before: Vec<(String, Vec<Target>)> =
            self.plan.models.iter().map(|model| (model.name.clone(), model.targets.clone())).collect();
        for (name, others) in wanted {
            let mut priority =
                before.iter().filter(|(own, _)| *own == name).flat_map(|(_, own)| own).map(|own| own.priority).max();
            for other in others {
                let found = before.iter().find(|(known, _)| *known == other).map(|(_, targets)| targets.clone());
                let at = self.plan.models.iter().position(|model| model.name == name);
                let (Some(targets), Some(at), Some(last)) = (found, at, priority) else {
                    self.plan.note(format!("fallbacks.{name}: {other} or {name} is no model of this file"));
                    continue;
                };
                let speaks = |target: &Target| self.plan.protocols(target).to_vec();
                let common = self.plan.models.get(at).and_then(|model| model.targets.first()).map(speaks);
                let fits = |target: &Target| {
                    self.plan
                        .protocols(target)
                        .iter()
                        .any(|own| common.as_ref().is_none_or(|common| common.contains(own)))
                };
                if !targets.iter().all(fits) {
                    self.plan
                        .note(format!("fallbacks.{name}: {other} speaks another protocol, and Weir translates none"));
                    continue;
                }
                priority = Some(last + 1);
                if let Some(model) = self.plan.models.get_mut(at) {
                    model.targets.extend(targets.into_iter().map(|target| Target { priority: last + 1, ..target }));
                }
            }
        }
    }

    /// A model's targets have to share a protocol: those that do not speak one with the first go.
    fn common_protocols(&mut self) {
        for at in 0..self.plan.models.len() {
            let Some(model) = self.plan.models.get(at) else { continue };
            let first = model.targets.first().map(|target| self.plan.protocols(target).to_vec()).unwrap_or_default();
            let speaks = |target: &Target| self.plan.protocols(target).iter().any(|own| first.contains(own));
            let keep: Vec<bool> = model.targets.iter().map(speaks).collect();
            if keep.iter().all(|keep| *keep) {
                continue;
            }
            let note = format!("{}: deployments of another protocol than its first one's are left out", model.name);
            self.plan.note(note);
            if let Some(model) = self.plan.models.get_mut(at) {
                let mut keep = keep.into_iter();
                model.targets.retain(|_| keep.next().unwrap_or(true));
            }
        }
    }

    fn key(&mut self, general: &Object) {
        match text(general.get("master_key")) {
            Some(key) if key.contains("${") => self
                .plan
                .note(format!("general_settings.master_key: its digest is not known here; put what `weir keys hash` prints for {key} into keys[0].sha256")),
            Some(key) => {
                let digest = const_hex::encode(Sha256::digest(key.as_bytes()));
                self.plan.key = Some((digest, "of general_settings.master_key; better one for each client".to_owned()));
            }
            None => self.plan.note("general_settings.master_key: there is none; Weir lets nobody in without a key"),
        }
        if general.contains_key("database_url") {
            self.plan.note("general_settings.database_url: keys, teams and spend of LiteLLM's database stay there; make keys with `weir keys create`");
        }
    }

    /// Sections and members that nothing was made of.
    fn leftovers(&mut self, root: &Object) {
        const READ: &[(&str, &[&str])] = &[
            ("model_list", &[]),
            (
                "litellm_settings",
                &[
                    "num_retries",
                    "request_timeout",
                    "stream_timeout",
                    "fallbacks",
                    "default_fallbacks",
                    "allowed_fails",
                ],
            ),
            (
                "router_settings",
                &[
                    "num_retries",
                    "timeout",
                    "stream_timeout",
                    "fallbacks",
                    "allowed_fails",
                    "cooldown_time",
                    "routing_strategy",
                    "model_group_alias",
                ],
            ),
            ("general_settings", &["master_key", "database_url"]),
        ];
        for (name, value) in root {
            match (READ.iter().find(|(known, _)| known == name), value.as_object()) {
                (None, _) => self.plan.note(format!("{name}: Weir has nothing like it here")),
                (Some((_, read)), Some(members)) => {
                    let left: Vec<&str> =
                        members.keys().map(String::as_str).filter(|member| !read.contains(member)).collect();
                    if !left.is_empty() {
                        self.plan.note(format!("{name}: {}", left.join(", ")));
                    }
                }
                (Some(_), None) => {}
            }
        }
    }
}

/// What a deployment asks of its whole model.
fn model_settings(params: &Object) -> Vec<String> {
    let mut timeouts = Vec::new();
    timeouts.extend(seconds(params.get("timeout")).map(|time| format!("non_stream: {time}")));
    timeouts.extend(seconds(params.get("stream_timeout")).map(|time| format!("first_byte: {time}")));
    let mut settings = Vec::new();
    if !timeouts.is_empty() {
        settings.push(format!("timeouts: {{ {} }}", timeouts.join(", ")));
    }
    let retries = whole(params.get("num_retries").or_else(|| params.get("max_retries")));
    settings.extend(retries.map(|retries| format!("retry: {{ attempts: {} }}", retries + 1)));
    settings
}
