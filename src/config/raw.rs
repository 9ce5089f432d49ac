//! The file as it is written: one struct a section, its doc comments being the text of `weir schema`.
//!
//! Filled by `shape`, which has already refused what the schema forbids; read by `check` alone.
//! A required member is an `Option` all the same: when it is missing, `shape` has said so.

mod ledger;
mod limits;

pub(super) use ledger::{Ledger, Markup, Postgres, Prices, Sell};
pub(super) use limits::{Budget, LimitStore, Store};

use super::key::KeyStore;
use super::limits::OnReached;
use super::model::{Affinity, Style, When};
use super::provider::{BaseUrl, ErrorBodies, Http2, PriceTier, StreamErrors, UsageChunk};
use super::server::{LogFormat, TlsVersion};
use super::word::{
    Address, Comment, FilePath, Header, Method, Name, Network, SecretOrEmpty, SecretText, Sha256, Share, Size, Span,
    SpanOrOff, Statuses, Until, Url, UrlPath, WebOrigin,
};
use crate::ledger::billing::Policy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

/// The configuration of Weir. Any value may hold `${NAME}`, an environment variable; relative paths start at the
/// folder of the file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "weir.yaml")]
pub(super) struct File {
    /// Where clients connect.
    #[schemars(required, length(min = 1))]
    pub(super) listen: Option<Vec<Listen>>,
    /// Where operators connect: health, metrics.
    #[serde(default)]
    pub(super) admin: Admin,
    /// Limits and times of the server itself.
    #[serde(default)]
    pub(super) server: Server,
    /// Upstream services by a name of your choice.
    #[schemars(required, extend("minProperties" = 1))]
    pub(super) providers: Option<BTreeMap<String, Provider>>,
    /// Settings of all models; each model may override any of them.
    #[serde(default)]
    pub(super) defaults: Settings,
    /// The models that clients may name.
    #[schemars(required, length(min = 1))]
    pub(super) models: Option<Vec<Model>>,
    /// Paths under /v1 that go to a provider without being routed by model; default: none.
    #[serde(default)]
    pub(super) passthrough: Vec<Passthrough>,
    /// The virtual keys that clients send.
    pub(super) keys: Option<Vec<Key>>,
    /// Where `weir keys` and the admin API keep further keys; default: nowhere.
    pub(super) key_store: Option<KeyStore>,
    /// What tokens cost and what they are sold for.
    #[serde(default)]
    pub(super) prices: Prices,
    /// What a request is charged for that ended without a whole answer, by its outcome.
    #[serde(default)]
    pub(super) billing: Policy,
    /// Where and how each request is recorded.
    #[serde(default)]
    pub(super) ledger: Ledger,
    /// Where limits and budgets are counted.
    #[serde(default)]
    pub(super) limits: LimitStore,
    /// What is logged and where.
    #[serde(default)]
    pub(super) log: Log,
    /// Bounds of the metrics.
    #[serde(default)]
    pub(super) metrics: Metrics,
    /// Traces: one span per request and attempt, sent to an OpenTelemetry receiver.
    #[serde(default)]
    pub(super) otlp: Otlp,
    /// The timelines of the last requests, for the console and the admin API.
    #[serde(default)]
    pub(super) timelines: Timelines,
    /// Whom to tell what a person must see at once.
    #[serde(default)]
    pub(super) alerts: Alerts,
}

/// Whom to tell what a person must see at once: a broken ledger, a provider that wants money, a model without targets.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Alerts {
    /// An http or https URL that gets each notice as a POST of JSON; a secret. Empty: nobody is told.
    pub(super) webhook: SecretOrEmpty,
}

impl Default for Alerts {
    fn default() -> Self {
        Self { webhook: SecretOrEmpty(None) }
    }
}

/// One listening address.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Listen {
    /// Address and port; port 0 lets the system choose.
    #[schemars(required)]
    pub(super) address: Option<Address>,
    /// HTTP/2 without TLS, for trusted neighbours; default false.
    #[serde(default)]
    pub(super) h2c: bool,
    /// A load balancer in front writes the PROXY protocol's header, version 1 or 2, on each connection; default false.
    #[serde(default)]
    pub(super) proxy_protocol: bool,
    /// TLS with HTTP/2 and HTTP/1.1 by ALPN; default: none.
    pub(super) tls: Option<Tls>,
}

/// TLS of a listener.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Tls {
    /// The first is the default, the others are chosen by the name that the client asks for.
    #[schemars(required, length(min = 1))]
    pub(super) certificates: Option<Vec<Certificate>>,
    /// The oldest version that clients may speak; default 1.2.
    pub(super) min_version: Option<TlsVersion>,
    /// PEM file with the authorities whose certificates clients must have; default: none is asked for.
    pub(super) client_ca: Option<FilePath>,
}

/// One certificate chain with its key, both PEM files.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Certificate {
    /// The chain, leaf first.
    #[schemars(required)]
    pub(super) cert: Option<FilePath>,
    /// The private key.
    #[schemars(required)]
    pub(super) key: Option<FilePath>,
}

/// The admin listener.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Admin {
    /// Loopback, or a token is required.
    pub(super) address: Address,
    /// Asked for as `authorization: Bearer`; default: none.
    #[serde(skip_serializing)]
    pub(super) token: Option<SecretText>,
}

impl Default for Admin {
    fn default() -> Self {
        Self { address: Address(SocketAddr::from((Ipv4Addr::LOCALHOST, 9090))), token: None }
    }
}

/// Limits and times of the server itself.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Server {
    /// Worker threads; default: as many as there are cores.
    #[schemars(range(min = 1, max = 1024))]
    pub(super) threads: Option<usize>,
    /// Proxies whose `x-forwarded-for` is believed, by address or network; default: none.
    #[serde(skip_serializing)]
    pub(super) trusted_proxies: Vec<Network>,
    /// Client connections at once; default: no bound.
    #[schemars(range(min = 1))]
    pub(super) max_connections: Option<u64>,
    /// Requests at once, streams or not; default: no bound.
    #[schemars(range(min = 1))]
    pub(super) max_streams: Option<u64>,
    /// Resident memory of the process, above which new requests are refused; default: no bound.
    pub(super) max_memory: Option<Size>,
    /// Which web pages may call from a browser.
    #[serde(skip_serializing)]
    pub(super) cors: Cors,
    /// Largest request body, after decoding.
    pub(super) max_body: Size,
    /// Total time to receive a body.
    pub(super) request_body: Span,
    /// Time to receive a request head.
    pub(super) header_timeout: Span,
    /// Memory of all held bodies and events together.
    pub(super) max_held_bytes: Size,
    /// Largest event of a stream.
    pub(super) max_event_bytes: Size,
    /// How long an idle client connection stays open.
    pub(super) keepalive_timeout: Span,
    /// How long requests are still served after SIGTERM.
    pub(super) drain_delay: Span,
    /// How long running streams may take after that.
    pub(super) drain: Span,
    /// Whether accepted answers carry Weir's own rate-limit headers; refusals always do.
    pub(super) limit_headers: bool,
    /// How long the old process may take after an upgrade.
    pub(super) upgrade_drain: Span,
    /// Where a new process, or `weir upgrade`, asks for an upgrade; default `upgrade.sock` beside the ledger.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) upgrade_socket: Option<FilePath>,
}

impl Default for Server {
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        let seconds = |count| Span(std::time::Duration::from_secs(count));
        Self {
            threads: None,
            trusted_proxies: Vec::new(),
            max_connections: None,
            max_streams: None,
            max_memory: None,
            cors: Cors::default(),
            max_body: Size(32 * MIB),
            request_body: seconds(60),
            header_timeout: seconds(30),
            max_held_bytes: Size(512 * MIB),
            max_event_bytes: Size(16 * MIB),
            keepalive_timeout: seconds(75),
            drain_delay: seconds(10),
            drain: seconds(5 * 60),
            limit_headers: false,
            upgrade_drain: seconds(60 * 60),
            upgrade_socket: None,
        }
    }
}

/// Which web pages may call from a browser.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Cors {
    /// Origins such as `https://app.example.com`, or `*`; default: none.
    pub(super) origins: Vec<WebOrigin>,
}

/// One upstream service with its credentials: a `base_url`, or `builtin: demo`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Provider {
    /// Scheme, host, port, path; a trailing /v1 makes no difference, a query goes into each request's.
    pub(super) base_url: Option<Url>,
    /// Weir's own scripted model instead of a service.
    pub(super) builtin: Option<Builtin>,
    /// The key that is sent; default: none is. `${NAME}`, `file:PATH` or the text itself.
    pub(super) api_key: Option<SecretText>,
    /// Several keys instead of one.
    #[schemars(length(min = 1))]
    pub(super) api_keys: Option<Vec<ApiKey>>,
    /// How the key is sent; default bearer.
    pub(super) auth: Option<Auth>,
    /// Paths, with their query, that differ from the endpoints' own.
    pub(super) paths: Option<Paths>,
    /// Ask for the usage chunk of chat streams and keep it from clients that did not; default true.
    pub(super) inject_usage: Option<bool>,
    /// What of an upstream's error text reaches the client; default mask.
    pub(super) error_bodies: Option<ErrorBodies>,
    /// Put the model name that the client sent into events and replies; default false.
    pub(super) rewrite_model: Option<bool>,
    /// Give its answers the shape that all providers' answers have; default false.
    pub(super) normalize: Option<bool>,
    /// Where the usage of chat streams stands; default `as_is`.
    pub(super) usage_chunk: Option<UsageChunk>,
    /// How errors inside its streams are told; default `as_is`.
    pub(super) stream_errors: Option<StreamErrors>,
    /// Which service tier its answers are priced by; default served.
    pub(super) price_tier: Option<PriceTier>,
    /// What it stores: responses and conversations.
    pub(super) responses: Option<Responses>,
    /// Which HTTP version is spoken; default auto.
    pub(super) http2: Option<Http2>,
    /// PEM file with the roots to trust instead of the system's.
    pub(super) ca: Option<FilePath>,
    /// The certificate and key that Weir shows to the provider; default: none.
    pub(super) client_cert: Option<Certificate>,
    /// An HTTP proxy that connects to the provider (CONNECT), `http://host:port` or `http://user:password@host:port`.
    pub(super) egress_proxy: Option<SecretText>,
    /// Headers that are added to each request or replace the client's.
    pub(super) headers: Option<BTreeMap<String, SecretText>>,
    /// Headers of the client that go up besides the usual ones.
    #[serde(default)]
    pub(super) allow_headers: Vec<Header>,
    /// Headers of the upstream that go down besides the usual ones.
    #[serde(default)]
    pub(super) pass_headers: Vec<Header>,
}

/// What a provider stores: responses and conversations.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Responses {
    /// Whether `background: true` goes up; default false.
    #[serde(default)]
    pub(super) background: bool,
    /// How long is remembered whose they are; default 30d.
    pub(super) keep: Option<Span>,
}

/// What Weir itself can be.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Builtin {
    /// Answers all three protocols with believable timing, without any account.
    Demo,
}

/// One of several keys.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum ApiKey {
    /// The key itself.
    Plain(SecretText),
    /// A key with settings of its own.
    Section(ApiKeySection),
}

/// A key with settings of its own.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ApiKeySection {
    /// The key itself.
    #[schemars(required)]
    pub(super) key: Option<SecretText>,
    /// Requests in any minute that this gateway sends with it; default no bound.
    #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
    pub(super) rpm: Option<u64>,
    /// Tokens in any minute that this gateway sends with it; default no bound.
    #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
    pub(super) tpm: Option<u64>,
    /// Share among the provider's keys; default 1.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(super) weight: Option<u32>,
}

/// How a key is sent.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) enum Auth {
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
pub(super) struct Paths {
    /// Default /v1/chat/completions.
    pub(super) chat: Option<UrlPath>,
    /// Default /v1/responses.
    pub(super) responses: Option<UrlPath>,
    /// Default /v1/messages.
    pub(super) messages: Option<UrlPath>,
    /// Default /v1/completions.
    pub(super) completions: Option<UrlPath>,
    /// Default /v1/embeddings.
    pub(super) embeddings: Option<UrlPath>,
    /// Default `/v1/messages/count_tokens`.
    pub(super) count_tokens: Option<UrlPath>,
    /// Default `/v1/responses/input_tokens`.
    pub(super) input_tokens: Option<UrlPath>,
}

/// Settings of all models.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    /// When a silent upstream or client is given up.
    #[serde(default)]
    pub(super) timeouts: Timeouts,
    /// What keeps a silent stream alive.
    #[serde(default)]
    pub(super) keepalive: Keepalive,
    /// When another attempt is made.
    #[serde(default)]
    pub(super) retry: Retry,
    /// When a target is left alone for a while.
    #[serde(default)]
    pub(super) health: Health,
    /// What happens upstream when the client has left; default cancel.
    pub(super) on_client_gone: Option<OnClientGone>,
    /// Whether `[DONE]` follows Weir's own error event in a chat stream; default true.
    pub(super) chat_error_done: Option<bool>,
    /// What makes requests go to the same target; default nothing.
    pub(super) affinity: Option<Vec<Affinity>>,
}

/// When a silent upstream or client is given up.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Timeouts {
    /// DNS, TCP, TLS; default 5s.
    pub(super) connect: Option<Span>,
    /// Without progress of the upload; default 30s.
    pub(super) send: Option<Span>,
    /// Last request byte to response head; default 120s.
    pub(super) first_byte: Option<Span>,
    /// No bytes since head or last byte; default 90s.
    pub(super) idle: Option<Span>,
    /// No output since the last output; default 150s.
    pub(super) no_output: Option<Span>,
    /// Response head to first content; default `no_output`.
    pub(super) first_content: Option<Span>,
    /// The whole request; default 60m.
    pub(super) total: Option<Span>,
    /// The whole upstream call of a request without `stream: true`; default 10m.
    pub(super) non_stream: Option<Span>,
    /// One write to the client; default 60s.
    pub(super) client_write: Option<Span>,
}

/// What keeps a silent stream alive.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Keepalive {
    /// Silence after which a keepalive goes out; default 10s.
    pub(super) interval: Option<Span>,
    /// Only in silence, or at every interval; default silence.
    pub(super) when: Option<When>,
    /// Its shape; default auto.
    pub(super) style: Option<Style>,
    /// The comment's text; default weir-keepalive.
    pub(super) text: Option<Comment>,
    /// When Weir answers 200 by itself for an upstream that has not; default the interval.
    pub(super) before_headers: Option<SpanOrOff>,
}

/// When another attempt is made.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Retry {
    /// Attempts in all; default 3.
    #[schemars(range(min = 1, max = 100))]
    pub(super) attempts: Option<u32>,
    /// Statuses that fail an attempt; default 408, 429, 5xx.
    pub(super) on: Option<Vec<Statuses>>,
    /// No new attempt starts later than this after the request came; default 5m.
    pub(super) deadline: Option<Span>,
    /// Whether a finish without output fails the attempt; default false.
    pub(super) failover_on_empty: Option<bool>,
}

/// When a target is left alone for a while.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Health {
    /// Failures in a row until a cool-down; default 5.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(super) failures: Option<u32>,
    /// The first cool-down, doubling; default 10s.
    pub(super) cooldown: Option<Span>,
    /// The longest cool-down; default 5m.
    pub(super) cooldown_max: Option<Span>,
    /// The cool-down of a refused credential or a used-up account; default 10m.
    pub(super) cooldown_account: Option<Span>,
}

/// What happens upstream when the client has left.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum OnClientGone {
    /// Close the upstream at once.
    Cancel,
    /// Read on for the usage, at most this long: `{ drain: 30s }`.
    Drain(Span),
}

/// One public model.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Model {
    /// The name that clients send.
    #[schemars(required)]
    pub(super) name: Option<Name>,
    /// Other names that clients may send.
    #[serde(default)]
    pub(super) aliases: Vec<Name>,
    /// The protocols it answers; default all.
    #[schemars(length(min = 1))]
    pub(super) protocols: Option<Vec<ProtocolWord>>,
    /// The places that can serve it.
    #[schemars(required, length(min = 1))]
    pub(super) targets: Option<Vec<Target>>,
    /// Overrides `defaults.timeouts`, key by key.
    #[serde(default)]
    pub(super) timeouts: Timeouts,
    /// Overrides `defaults.keepalive`, key by key.
    #[serde(default)]
    pub(super) keepalive: Keepalive,
    /// Overrides `defaults.retry`, key by key.
    #[serde(default)]
    pub(super) retry: Retry,
    /// Overrides `defaults.health`, key by key.
    #[serde(default)]
    pub(super) health: Health,
    /// Overrides `defaults.on_client_gone`.
    pub(super) on_client_gone: Option<OnClientGone>,
    /// Overrides `defaults.chat_error_done`.
    pub(super) chat_error_done: Option<bool>,
    /// Overrides `defaults.affinity`.
    pub(super) affinity: Option<Vec<Affinity>>,
    /// Requests in any minute, of all keys together; default no bound.
    #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
    pub(super) rpm: Option<u64>,
    /// Tokens in any minute, input and output, of all keys together; default no bound.
    #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
    pub(super) tpm: Option<u64>,
    /// Requests at the same time, of all keys together; default no bound.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(super) concurrent: Option<u64>,
    /// Output tokens that are reserved for a request that names no maximum; default 4096.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub(super) default_max_tokens: Option<u64>,
}

/// A streaming protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ProtocolWord {
    /// OpenAI Chat Completions.
    Chat,
    /// OpenAI Responses.
    Responses,
    /// Anthropic Messages.
    Messages,
}

/// One place that can serve a model.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Target {
    /// A name under `providers`.
    #[schemars(required)]
    pub(super) provider: Option<Name>,
    /// The model's name there.
    #[schemars(required)]
    pub(super) model: Option<Name>,
    /// Share within its priority; default 1.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(super) weight: Option<u32>,
    /// Lowest first; default 0.
    #[serde(default)]
    pub(super) priority: u32,
    /// Requests at once; default no bound.
    #[schemars(range(min = 1))]
    pub(super) max_concurrent: Option<u32>,
}

/// One path that goes through unrouted.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Passthrough {
    /// Exact, or a prefix that ends in /*.
    #[schemars(required)]
    pub(super) path: Option<UrlPath>,
    /// The methods that go through.
    #[schemars(required, length(min = 1))]
    pub(super) methods: Option<Vec<Method>>,
    /// A name under `providers`.
    #[schemars(required)]
    pub(super) provider: Option<Name>,
    /// Names of the keys that may use it; default none.
    #[serde(default)]
    pub(super) keys: Vec<Name>,
    /// Say true when you know that all keys see the same files, batches or stored objects there; default false.
    #[serde(default)]
    pub(super) shared_account: bool,
}

/// One virtual key.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Key {
    /// Its name in logs and records.
    #[schemars(required)]
    pub(super) name: Option<Name>,
    /// SHA-256 of the key that the client sends, 64 hex digits.
    #[schemars(required)]
    pub(super) sha256: Option<Sha256>,
    /// Names of models it may use, or `["*"]`.
    #[schemars(required, length(min = 1))]
    pub(super) models: Option<Vec<Name>>,
    /// Free text for reports.
    pub(super) tag: Option<Name>,
    /// Last day or moment it is valid; default: for ever.
    pub(super) expires: Option<Until>,
    /// Addresses it may come from; default any.
    #[schemars(length(min = 1))]
    pub(super) allow_ips: Option<Vec<Network>>,
    /// Requests in any minute; default no bound.
    #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
    pub(super) rpm: Option<u64>,
    /// Tokens in any minute, input and output; default no bound.
    #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
    pub(super) tpm: Option<u64>,
    /// Requests at the same time; default no bound.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(super) concurrent: Option<u64>,
    /// What it may be charged, in several periods at once; default no bound.
    #[serde(default)]
    pub(super) budgets: Vec<Budget>,
    /// What happens to a running stream when a budget is used up; default finish.
    pub(super) on_reached: Option<OnReached>,
}

/// Entries of the key store, as they would stand in the file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredKeys {
    /// One of them.
    pub(super) keys: Vec<Key>,
}

/// What is logged and where.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Log {
    /// Of everything.
    pub(super) format: LogFormat,
    /// Of everything but access records.
    pub(super) level: Level,
    /// Which requests get an access record: all, off, or a share such as 0.1 (errors always).
    pub(super) access: Share,
    /// A file, or stderr.
    pub(super) file: FilePath,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Json, level: Level::Info, access: Share(1000), file: FilePath("stderr".to_owned()) }
    }
}

/// How much is logged.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    /// Nothing.
    Off,
    /// Data was lost or a person must act.
    Error,
    /// Also what is odd but handled.
    Warn,
    /// Also what succeeded.
    Info,
    /// Also each request.
    Debug,
    /// Everything.
    Trace,
}

/// Bounds of the metrics.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Metrics {
    /// Series with a `key` label; further keys are counted as `other`.
    #[schemars(range(max = 100_000))]
    pub(super) max_key_series: usize,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { max_key_series: 200 }
    }
}

/// Traces, sent to an OpenTelemetry receiver.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Otlp {
    /// Where OTLP over gRPC is taken: scheme, host and port.
    #[serde(skip_serializing)]
    pub(super) endpoint: Url,
    /// Whether traces are sent.
    pub(super) enabled: bool,
}

impl Default for Otlp {
    fn default() -> Self {
        let host = Ipv4Addr::LOCALHOST.to_string();
        Self {
            endpoint: Url(BaseUrl { tls: false, host, port: 4317, path: String::new(), query: None }),
            enabled: false,
        }
    }
}

/// The timelines of the last requests, kept in memory.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Timelines {
    /// How many, about 1 KiB each; 0: none.
    #[schemars(range(max = 1_000_000))]
    pub(super) keep: usize,
}

impl Default for Timelines {
    fn default() -> Self {
        Self { keep: 10_000 }
    }
}
