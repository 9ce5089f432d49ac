//! What the file says of a provider.
//!
//! Plain data, made by the check, read by the upstream side.

use super::{Certificate, Limits, Secret};
use crate::protocol::Endpoint;
use base64::Engine as _;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// One upstream service with its credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// Its name in the file.
    pub name: String,
    /// Where it is.
    pub origin: Origin,
    /// Empty: none is sent.
    pub api_keys: Vec<Secret>,
    /// How much each of them bears, in the same order.
    pub key_bounds: Vec<KeyBounds>,
    /// How a key is sent.
    pub auth: Auth,
    /// Paths (with query, if any) that differ from the endpoint's own.
    pub paths: BTreeMap<Endpoint, String>,
    /// U1: ask for the usage chunk of chat streams.
    pub inject_usage: bool,
    /// A6.
    pub error_bodies: ErrorBodies,
    /// N1: the client's model name instead of the provider's in its answers.
    pub rewrite_model: bool,
    /// N2: its answers get the shape that all have.
    pub normalize: bool,
    /// N4.
    pub usage_chunk: UsageChunk,
    /// N5.
    pub stream_errors: StreamErrors,
    /// B212.
    pub price_tier: PriceTier,
    /// What it stores (A12).
    pub responses: Responses,
    /// HTTP/2 or not.
    pub http2: Http2,
    /// PEM file with the roots to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// Shown to the provider.
    pub client_cert: Option<Certificate>,
    /// What connects to it.
    pub egress_proxy: Option<EgressProxy>,
    /// Added to each request, or overriding.
    pub headers: Vec<(http::HeaderName, http::HeaderValue)>,
    /// Passed up from the client besides F8's list.
    pub allow_headers: Vec<http::HeaderName>,
    /// Passed down to the client besides F7's list.
    pub pass_headers: Vec<http::HeaderName>,
}

/// How much one of a provider's keys bears (A1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyBounds {
    /// Share among the provider's keys; at least 1.
    pub weight: u32,
    /// `rpm` and `tpm`; nothing else.
    pub limits: Limits,
}

impl Default for KeyBounds {
    fn default() -> Self {
        Self { weight: 1, limits: Limits::default() }
    }
}

/// What a provider stores: responses and conversations (A12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Responses {
    /// `background: true` goes up.
    pub background: bool,
    /// How long is remembered whose they are.
    pub keep: std::time::Duration,
}

impl Default for Responses {
    /// As long as `OpenAI` keeps them.
    fn default() -> Self {
        Self { background: false, keep: std::time::Duration::from_hours(30 * 24) }
    }
}

/// An HTTP proxy between Weir and a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressProxy {
    /// A name or an address; IPv6 without brackets.
    pub host: String,
    /// Given, or 80.
    pub port: u16,
    /// The value of `proxy-authorization`.
    pub authorization: Option<Secret>,
}

impl EgressProxy {
    /// Reads `http://[user:password@]host[:port]`; percent-encoding in user and password is undone.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("http://")?.trim_end_matches('/');
        let (user, place) = rest.rsplit_once('@').map_or((None, rest), |(user, place)| (Some(user), place));
        let url = BaseUrl::read(&format!("http://{place}"))?;
        if !url.path.is_empty() || url.query.is_some() {
            return None;
        }
        let authorization = user.map(|user| {
            let mut user: Vec<u8> = percent_encoding::percent_decode_str(user).collect();
            if !user.contains(&b':') {
                user.push(b':');
            }
            Secret::new(format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(user)))
        });
        Some(Self { host: url.host, port: url.port, authorization })
    }
}

/// Where a provider is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `base_url`.
    Url(BaseUrl),
    /// `builtin: demo`, Weir's own scripted model.
    Demo,
}

/// A parsed `base_url`: `http` or `https`, no credentials, no fragment. A query (`?key=…`) is kept
/// and merged into each request's; it does not print, since some providers take their key there.
#[derive(Clone, PartialEq, Eq)]
pub struct BaseUrl {
    /// Whether it is `https`.
    pub tls: bool,
    /// A name or an address; IPv6 without brackets.
    pub host: String,
    /// Given or the scheme's own.
    pub port: u16,
    /// Without trailing slash and without a trailing `/v1`, since the endpoints' paths bring it.
    pub path: String,
    /// Without the question mark.
    pub query: Option<String>,
}

impl BaseUrl {
    /// Reads `http://…` or `https://…`; `None` for anything else, for credentials and for a fragment.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        if text.contains('#') {
            return None; // http::Uri drops it silently
        }
        let uri: http::Uri = text.parse().ok()?;
        let tls = match uri.scheme_str()? {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
        let host = authority.host();
        let port = match authority.as_str().strip_prefix(host)?.strip_prefix(':') {
            None => {
                if tls {
                    443
                } else {
                    80
                }
            }
            Some(port) => port.parse().ok().filter(|port| *port != 0)?,
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return None;
        }
        let path = uri.path().trim_end_matches('/');
        let path = path.strip_suffix("/v1").unwrap_or(path).trim_end_matches('/');
        Some(Self {
            tls,
            host: host.to_ascii_lowercase(),
            port,
            path: path.to_owned(),
            query: uri.query().filter(|query| !query.is_empty()).map(str::to_owned),
        })
    }
}

impl fmt::Debug for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BaseUrl")
            .field("tls", &self.tls)
            .field("host", &self.host)
            .field("port", &self.port)
            .field("path", &self.path)
            .field("query", &self.query.as_ref().map(|_| "****"))
            .finish()
    }
}

/// How a provider wants its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// `authorization: Bearer …`
    Bearer,
    /// `x-api-key: …`
    XApiKey,
    /// A header of its own, the bare key as value.
    Header(http::HeaderName),
}

/// What of an upstream's error text reaches the client (A6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorBodies {
    /// Status, type and code stay; a message that tells too much is replaced.
    #[default]
    Mask,
    /// All of it.
    Pass,
}

/// Where the usage of a chat stream stands (N4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UsageChunk {
    /// Where the provider puts it.
    #[default]
    AsIs,
    /// Not asked: in no chunk; asked: in exactly one chunk of its own before `[DONE]`.
    Strict,
}

/// How an error that a provider sends inside a stream is told (N5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StreamErrors {
    /// As the provider tells it.
    #[default]
    AsIs,
    /// In the shapes and codes of Weir's own errors.
    Native,
}

/// Which service tier a provider's answers are priced by (B212).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PriceTier {
    /// The one that the answer names, else the request's.
    #[default]
    Served,
    /// The request's: the provider names the same one whatever it serves.
    Requested,
}

/// Which HTTP version is spoken to a provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Http2 {
    /// By ALPN; HTTP/1.1 without TLS.
    #[default]
    Auto,
    /// HTTP/1.1 only.
    Off,
    /// HTTP/2 at once, also without TLS.
    PriorKnowledge,
}
