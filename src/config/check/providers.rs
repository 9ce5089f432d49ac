//! The checks of `providers:`.

use super::Check;
use crate::config::keypath::KeyPath;
use crate::config::shape::nearest;
use crate::config::word::{Header, SecretText, Word as _};
use crate::config::{Auth, EgressProxy, KeyBounds, Limits, Origin, Provider, Responses, Secret, raw};
use crate::protocol::Endpoint;
use http::{HeaderName, HeaderValue};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Headers that frame the message or its connection: Weir's own business on both sides.
const FRAMING: &[&str] = &[
    "host",
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "content-encoding",
    "accept-encoding",
    "expect",
];
/// What a client may be known by to Weir; never goes up (F8).
const CLIENT_CREDENTIALS: &[&str] = &["authorization", "x-api-key", "api-key", "cookie", "proxy-authorization"];

impl Check<'_> {
    pub(super) fn providers(&mut self, raw: BTreeMap<String, raw::Provider>) -> BTreeMap<String, Arc<Provider>> {
        let top = KeyPath::root().key("providers");
        let mut out = BTreeMap::new();
        for (name, raw) in raw {
            let path = top.key(&name);
            if crate::config::word::Name::read(&name).is_none() || name.contains('/') {
                let message = "a provider's name is 1 to 200 printable characters without slashes";
                self.error(&path, message.to_owned());
            }
            let provider = self.provider_section(name.clone(), raw, &path);
            out.insert(name, Arc::new(provider));
        }
        out
    }

    fn provider_section(&mut self, name: String, raw: raw::Provider, path: &KeyPath) -> Provider {
        let headers = self.headers(raw.headers.unwrap_or_default(), &path.key("headers"));
        let auth = match raw.auth {
            None | Some(raw::Auth::Bearer) => Auth::Bearer,
            Some(raw::Auth::XApiKey) => Auth::XApiKey,
            Some(raw::Auth::Header(Header(name))) => {
                self.not_framing(&name, &path.key("auth").key("header"));
                Auth::Header(name)
            }
        };
        let demo = raw.builtin.is_some();
        let origin = self.origin(raw.base_url, raw.builtin, path);
        let (api_keys, key_bounds) = self.api_keys(raw.api_key, raw.api_keys, demo, path);
        let ca = raw.ca.map(|ca| self.file(&ca.0));
        if let Some(ca) = &ca {
            self.certificates(&path.key("ca"), ca);
        }
        let client_cert = raw.client_cert.and_then(|raw| self.certificate(raw, &path.key("client_cert")));
        let egress_proxy = raw.egress_proxy.and_then(|text| self.egress_proxy(&text, demo, &path.key("egress_proxy")));
        let allow_headers = self.allow_headers(raw.allow_headers, &auth, &path.key("allow_headers"));
        let pass_headers = self.pass_headers(raw.pass_headers, &path.key("pass_headers"));
        Provider {
            name,
            origin,
            api_keys,
            key_bounds,
            auth,
            paths: paths(raw.paths.unwrap_or_default()),
            inject_usage: raw.inject_usage.unwrap_or(true),
            error_bodies: raw.error_bodies.unwrap_or_default(),
            rewrite_model: raw.rewrite_model.unwrap_or(false),
            normalize: raw.normalize.unwrap_or(false),
            usage_chunk: raw.usage_chunk.unwrap_or_default(),
            stream_errors: raw.stream_errors.unwrap_or_default(),
            price_tier: raw.price_tier.unwrap_or_default(),
            responses: raw.responses.map(responses).unwrap_or_default(),
            http2: raw.http2.unwrap_or_default(),
            ca,
            client_cert,
            egress_proxy,
            headers,
            allow_headers,
            pass_headers,
        }
    }

    fn egress_proxy(&mut self, text: &SecretText, demo: bool, path: &KeyPath) -> Option<EgressProxy> {
        if demo {
            self.error(path, "the built-in demo is reached without a proxy; remove it".to_owned());
        }
        let proxy = EgressProxy::read(text.0.expose());
        if proxy.is_none() {
            let message = "write http://host:port, or http://user:password@host:port with characters such as @ and / \
                           in the password as %40 and %2F";
            self.error(path, message.to_owned());
        }
        proxy
    }

    fn origin(
        &mut self,
        base_url: Option<crate::config::word::Url>,
        builtin: Option<raw::Builtin>,
        path: &KeyPath,
    ) -> Origin {
        match (base_url, builtin) {
            (Some(_), Some(raw::Builtin::Demo)) => {
                let message = "a provider has a base_url or is built in, not both; remove one";
                self.error(&path.key("builtin"), message.to_owned());
                Origin::Demo
            }
            (Some(url), None) => Origin::Url(url.0),
            (None, Some(raw::Builtin::Demo)) => Origin::Demo,
            (None, None) => {
                // A misspelt or refused one was reported already.
                let meant = |key: &str| nearest(key, ["base_url", "builtin"].into_iter()).is_some();
                if !self.root.nearest(path).keys().any(meant) && !self.findings.is_at(path) {
                    let message = "\"base_url\" is missing; add it, such as https://api.openai.com, or builtin: demo";
                    self.findings.add(self.root.nearest(path).at, path, message.to_owned());
                }
                Origin::Demo
            }
        }
    }

    fn api_keys(
        &mut self,
        one: Option<SecretText>,
        several: Option<Vec<raw::ApiKey>>,
        demo: bool,
        path: &KeyPath,
    ) -> (Vec<Secret>, Vec<KeyBounds>) {
        if one.is_some() && several.is_some() {
            self.error(&path.key("api_keys"), "there is an api_key already; put all keys into api_keys".to_owned());
        }
        let mut keys: Vec<Secret> = one.map(|key| key.0).into_iter().collect();
        let mut bounds: Vec<KeyBounds> = keys.iter().map(|_| KeyBounds::default()).collect();
        for (at, key) in several.into_iter().flatten().enumerate() {
            let (key, bound) = match key {
                raw::ApiKey::Plain(key) => (key.0, KeyBounds::default()),
                raw::ApiKey::Section(raw::ApiKeySection { key: Some(key), rpm, tpm, weight }) => {
                    let limits = Limits { rpm, tpm, ..Limits::default() };
                    (key.0, KeyBounds { weight: weight.unwrap_or(1), limits })
                }
                raw::ApiKey::Section(raw::ApiKeySection { key: None, .. }) => continue,
            };
            if keys.contains(&key) {
                let path = path.key("api_keys").item(at);
                self.error(&path, "this is the same key as another one of this provider; remove one".to_owned());
            }
            keys.push(key);
            bounds.push(bound);
        }
        if demo && !keys.is_empty() {
            let key = if self.root.has(&path.key("api_key")) { "api_key" } else { "api_keys" };
            self.error(&path.key(key), "the built-in demo takes no key; remove it".to_owned());
        }
        (keys, bounds)
    }

    fn headers(&mut self, raw: BTreeMap<String, SecretText>, path: &KeyPath) -> Vec<(HeaderName, HeaderValue)> {
        let mut out: Vec<(HeaderName, HeaderValue)> = Vec::new();
        for (name, value) in raw {
            let path = path.key(&name);
            let Some(Header(name)) = Header::read(&name) else {
                self.error(&path, "this is no header's name; use letters, digits and hyphens".to_owned());
                continue;
            };
            self.not_framing(&name, &path);
            if out.iter().any(|(other, _)| *other == name) {
                self.error(&path, "this header is there twice, in other letters; remove one".to_owned());
            }
            if let Ok(mut value) = HeaderValue::from_str(value.0.expose()) {
                value.set_sensitive(true);
                out.push((name, value));
            }
        }
        out
    }

    fn allow_headers(&mut self, raw: Vec<Header>, auth: &Auth, path: &KeyPath) -> Vec<HeaderName> {
        for (at, Header(name)) in raw.iter().enumerate() {
            let path = path.item(at);
            self.not_framing(name, &path);
            let credential =
                CLIENT_CREDENTIALS.contains(&name.as_str()) || matches!(auth, Auth::Header(header) if header == name);
            if credential {
                self.error(
                    &path,
                    "this header carries the client's own key, which never goes up; remove it".to_owned(),
                );
            }
        }
        raw.into_iter().map(|header| header.0).collect()
    }

    fn pass_headers(&mut self, raw: Vec<Header>, path: &KeyPath) -> Vec<HeaderName> {
        for (at, Header(name)) in raw.iter().enumerate() {
            self.not_framing(name, &path.item(at));
        }
        raw.into_iter().map(|header| header.0).collect()
    }

    fn not_framing(&mut self, name: &HeaderName, path: &KeyPath) {
        if FRAMING.contains(&name.as_str()) {
            self.error(path, "Weir sets this header itself; remove it".to_owned());
        }
    }
}

fn responses(raw: raw::Responses) -> Responses {
    let default = Responses::default();
    Responses { background: raw.background, keep: raw.keep.map_or(default.keep, |keep| keep.0) }
}

fn paths(raw: raw::Paths) -> BTreeMap<Endpoint, String> {
    Endpoint::ALL
        .into_iter()
        .zip([
            raw.chat,
            raw.responses,
            raw.messages,
            raw.completions,
            raw.embeddings,
            raw.count_tokens,
            raw.input_tokens,
        ])
        .filter_map(|(endpoint, path)| Some((endpoint, path?.0)))
        .collect()
}
