//! The file as it is written: one struct a section, its doc comments being the text of `weir schema`.
//!
//! Filled by `shape`, which has already refused what the schema forbids; read by `check` alone.
//! A required member is an `Option` all the same: when it is missing, `shape` has said so.

mod ledger;
mod limits;
mod model;
mod provider;
mod server;

pub(super) use ledger::{Ledger, Markup, Postgres, Prices, Sell};
pub(super) use limits::{Budget, LimitStore, Store};
pub(super) use model::{Health, Keepalive, Model, OnClientGone, ProtocolWord, Retry, Settings, Target, Timeouts};
pub(super) use provider::{ApiKey, ApiKeySection, Auth, Builtin, Paths, Provider, Responses};
pub(super) use server::{Admin, Certificate, Listen, Server, Tls};

use super::key::KeyStore;
use super::limits::OnReached;
use super::provider::BaseUrl;
use super::server::LogFormat;
use super::word::{FilePath, Method, Name, Network, SecretOrEmpty, Sha256, Share, Until, Url, UrlPath};
use crate::ledger::billing::Policy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

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
