//! The file as it is written: providers.
//!
//! Filled by `shape`, read by `check` alone, as all of `raw`.

use super::Certificate;
use crate::config::provider::{ErrorBodies, Http2, PriceTier, StreamErrors, UsageChunk};
use crate::config::word::{FilePath, Header, SecretText, Span, Url, UrlPath};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;

/// One upstream service with its credentials: a `base_url`, or `builtin: demo`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Provider {
    /// Scheme, host, port, path; a trailing /v1 makes no difference, a query goes into each request's.
    pub(in crate::config) base_url: Option<Url>,
    /// Weir's own scripted model instead of a service.
    pub(in crate::config) builtin: Option<Builtin>,
    /// The key that is sent; default: none is. `${NAME}`, `file:PATH` or the text itself.
    pub(in crate::config) api_key: Option<SecretText>,
    /// Several keys instead of one.
    #[schemars(length(min = 1))]
    pub(in crate::config) api_keys: Option<Vec<ApiKey>>,
    /// How the key is sent; default bearer.
    pub(in crate::config) auth: Option<Auth>,
    /// Paths, with their query, that differ from the endpoints' own.
    pub(in crate::config) paths: Option<Paths>,
    /// Ask for the usage chunk of chat streams and keep it from clients that did not; default true.
    pub(in crate::config) inject_usage: Option<bool>,
    /// What of an upstream's error text reaches the client; default mask.
    pub(in crate::config) error_bodies: Option<ErrorBodies>,
    /// Put the model name that the client sent into events and replies; default false.
    pub(in crate::config) rewrite_model: Option<bool>,
    /// Give its answers the shape that all providers' answers have; default false.
    pub(in crate::config) normalize: Option<bool>,
    /// Where the usage of chat streams stands; default `as_is`.
    pub(in crate::config) usage_chunk: Option<UsageChunk>,
    /// How errors inside its streams are told; default `as_is`.
    pub(in crate::config) stream_errors: Option<StreamErrors>,
    /// Which service tier its answers are priced by; default served.
    pub(in crate::config) price_tier: Option<PriceTier>,
    /// What it stores: responses and conversations.
    pub(in crate::config) responses: Option<Responses>,
    /// Which HTTP version is spoken; default auto.
    pub(in crate::config) http2: Option<Http2>,
    /// PEM file with the roots to trust instead of the system's.
    pub(in crate::config) ca: Option<FilePath>,
    /// The certificate and key that Weir shows to the provider; default: none.
    pub(in crate::config) client_cert: Option<Certificate>,
    /// An HTTP proxy that connects to the provider (CONNECT), `http://host:port` or `http://user:password@host:port`.
    pub(in crate::config) egress_proxy: Option<SecretText>,
    /// Headers that are added to each request or replace the client's.
    pub(in crate::config) headers: Option<BTreeMap<String, SecretText>>,
    /// Headers of the client that go up besides the usual ones.
    #[serde(default)]
    pub(in crate::config) allow_headers: Vec<Header>,
    /// Headers of the upstream that go down besides the usual ones.
    #[serde(default)]
    pub(in crate::config) pass_headers: Vec<Header>,
}

/// What a provider stores: responses and conversations.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Responses {
    /// Whether `background: true` goes up; default false.
    #[serde(default)]
    pub(in crate::config) background: bool,
    /// How long is remembered whose they are; default 30d.
    pub(in crate::config) keep: Option<Span>,
}

/// What Weir itself can be.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum Builtin {
    /// Answers all three protocols with believable timing, without any account.
    Demo,
}

/// One of several keys.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(in crate::config) enum ApiKey {
    /// The key itself.
    Plain(SecretText),
    /// A key with settings of its own.
    Section(ApiKeySection),
}

/// A key with settings of its own.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct ApiKeySection {
    /// The key itself.
    #[schemars(required)]
    pub(in crate::config) key: Option<SecretText>,
    /// Requests in any minute that this gateway sends with it; default no bound.
    #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
    pub(in crate::config) rpm: Option<u64>,
    /// Tokens in any minute that this gateway sends with it; default no bound.
    #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
    pub(in crate::config) tpm: Option<u64>,
    /// Share among the provider's keys; default 1.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(in crate::config) weight: Option<u32>,
}

/// How a key is sent.
#[derive(Debug, Deserialize, JsonSchema)]
pub(in crate::config) enum Auth {
    /// `authorization: Bearer KEY`
    #[serde(rename = "bearer")]
    Bearer,
    /// `x-api-key: KEY`
    #[serde(rename = "x-api-key")]
    XApiKey,
    /// A header of its own: `{ header: api-key }`.
    #[serde(rename = "header")]
    Header(Header),
}

/// Paths by endpoint.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Paths {
    /// Default /v1/chat/completions.
    pub(in crate::config) chat: Option<UrlPath>,
    /// Default /v1/responses.
    pub(in crate::config) responses: Option<UrlPath>,
    /// Default /v1/messages.
    pub(in crate::config) messages: Option<UrlPath>,
    /// Default /v1/completions.
    pub(in crate::config) completions: Option<UrlPath>,
    /// Default /v1/embeddings.
    pub(in crate::config) embeddings: Option<UrlPath>,
    /// Default `/v1/messages/count_tokens`.
    pub(in crate::config) count_tokens: Option<UrlPath>,
    /// Default `/v1/responses/input_tokens`.
    pub(in crate::config) input_tokens: Option<UrlPath>,
}
