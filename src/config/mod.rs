//! The operator's file, checked: what the rest of the code sees of it.
//!
//! Called at start, by `weir check` and at reload. Touches the file system (secrets in files) and
//! the environment (`${NAME}`), and nothing after that: everything here is plain data.
//!
//! The shape is that of `weir.example.yaml`, section by section, with the same names.

mod finding;

pub use finding::{Finding, Report};

use crate::protocol::{Endpoint, Protocol};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A secret of the operator: prints as stars.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    #[must_use]
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// The secret itself; for the header that carries it, never for a log or an error.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("****")
    }
}

/// The whole file, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients connect.
    pub listen: Vec<Listen>,
    /// Where operators connect (C4).
    pub admin: Admin,
    /// Limits and times of the server itself.
    pub server: Server,
    /// By name.
    pub providers: BTreeMap<String, Arc<Provider>>,
    /// In the order of the file; names and aliases are unique among all.
    pub models: Vec<Arc<Model>>,
    /// Paths that go through unrouted (A10).
    pub passthrough: Vec<Passthrough>,
    /// The virtual keys.
    pub keys: Vec<Arc<Key>>,
    /// What is logged and where.
    pub log: Log,
    /// Bounds of the metrics.
    pub metrics: Metrics,
    /// Every name and alias; private, so that only this module can make a `Config` and the two agree.
    by_name: HashMap<String, Arc<Model>>,
}

/// A file that was read and found good.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it says, to be shared.
    pub config: Arc<Config>,
    /// What is allowed but odd.
    pub warnings: Vec<Finding>,
}

/// Reads and checks a file (C1). Relative paths in it start at its own folder.
///
/// # Errors
/// Everything that is wrong with it, at once.
pub fn load(path: &Path) -> Result<Loaded, Report> {
    let _ = path;
    Err(Report { findings: Vec::new() })
}

/// The same for a text. `env` looks up `${NAME}`; relative paths start at `base_dir`; `file_name` is only printed.
///
/// # Errors
/// Everything that is wrong with it, at once.
pub fn parse(
    text: &str,
    file_name: &str,
    env: &dyn Fn(&str) -> Option<String>,
    base_dir: &Path,
) -> Result<Loaded, Report> {
    let _ = (text, file_name, env, base_dir);
    Err(Report { findings: Vec::new() })
}

/// The JSON Schema (2020-12) of the file, for editors and `weir schema`.
#[must_use]
pub fn schema() -> serde_json::Value {
    serde_json::Value::Null
}

/// One listening address.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Address and port; port 0 lets the system choose (the log tells which).
    pub address: SocketAddr,
    /// HTTP/2 without TLS, by prior knowledge.
    pub h2c: bool,
    /// TLS with ALPN, if any.
    pub tls: Option<Tls>,
}

/// Certificate and key files of a listener.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The first is the default, the others are chosen by SNI. Never empty.
    pub certificates: Vec<Certificate>,
}

/// One certificate chain with its key, both PEM files.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The chain, leaf first.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// The admin listener.
#[derive(Clone, Debug)]
pub struct Admin {
    /// Loopback unless a token is set.
    pub address: SocketAddr,
    /// Asked for as `authorization: Bearer` when set.
    pub token: Option<Secret>,
}

/// The `server:` section.
#[derive(Clone, Debug)]
pub struct Server {
    /// Worker threads; default: cores.
    pub threads: usize,
    /// Bytes of a request body after decoding (B1).
    pub max_body: u64,
    /// Total time to receive a body.
    pub request_body: Duration,
    /// Time to receive a request head.
    pub header_timeout: Duration,
    /// Bytes of all held bodies and events together (F2).
    pub max_held_bytes: u64,
    /// Bytes of one event (F2).
    pub max_event_bytes: usize,
    /// How long an idle client connection stays open.
    pub keepalive_timeout: Duration,
    /// C3: how long requests are still served after SIGTERM.
    pub drain_delay: Duration,
    /// C3: how long running streams may take after that.
    pub drain: Duration,
}

/// One upstream service with its credentials.
#[derive(Clone, Debug)]
pub struct Provider {
    /// Its name in the file.
    pub name: String,
    /// Where it is.
    pub origin: Origin,
    /// Empty: none is sent.
    pub api_keys: Vec<Secret>,
    /// How a key is sent.
    pub auth: Auth,
    /// Paths (with query, if any) that differ from the endpoint's own.
    pub paths: BTreeMap<Endpoint, String>,
    /// U1: ask for the usage chunk of chat streams.
    pub inject_usage: bool,
    /// A6.
    pub error_bodies: ErrorBodies,
    /// HTTP/2 or not.
    pub http2: Http2,
    /// PEM file with the roots to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// Added to each request, or overriding.
    pub headers: Vec<(http::HeaderName, http::HeaderValue)>,
    /// Passed up from the client besides F8's list.
    pub allow_headers: Vec<http::HeaderName>,
    /// Passed down to the client besides F7's list.
    pub pass_headers: Vec<http::HeaderName>,
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
/// and merged into each request's.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorBodies {
    /// Status, type and code stay; a message that tells too much is replaced.
    Mask,
    /// All of it.
    Pass,
}

/// Which HTTP version is spoken to a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http2 {
    /// By ALPN; HTTP/1.1 without TLS.
    Auto,
    /// HTTP/1.1 only.
    Off,
    /// HTTP/2 at once, also without TLS.
    PriorKnowledge,
}

/// One public model; every setting is merged with `defaults:`.
#[derive(Clone, Debug)]
pub struct Model {
    /// The name clients send, and under which everything is recorded.
    pub name: String,
    /// Other names clients may send.
    pub aliases: Vec<String>,
    /// `None`: all.
    pub protocols: Option<Vec<Protocol>>,
    /// Never empty.
    pub targets: Vec<Arc<Target>>,
    /// S1.
    pub timeouts: Timeouts,
    /// K1 to K3.
    pub keepalive: Keepalive,
    /// A2, A5.
    pub retry: Retry,
    /// A6, A8.
    pub health: Health,
    /// A9.
    pub on_client_gone: OnClientGone,
    /// E2: whether `[DONE]` follows Weir's own chat error event.
    pub chat_error_done: bool,
    /// A1.
    pub affinity: Vec<Affinity>,
}

/// One place that can serve a model.
#[derive(Clone, Debug)]
pub struct Target {
    /// The provider.
    pub provider: Arc<Provider>,
    /// The model's name there.
    pub model: String,
    /// Share within its priority; at least 1.
    pub weight: u32,
    /// Lowest first.
    pub priority: u32,
    /// Requests at once, if bounded.
    pub max_concurrent: Option<u32>,
}

impl Target {
    /// `provider/model`, the word for it in metrics and records.
    #[must_use]
    pub fn word(&self) -> String {
        format!("{}/{}", self.provider.name, self.model)
    }
}

/// The stall clocks (S1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// DNS, TCP, TLS.
    pub connect: Duration,
    /// Without progress of the upload.
    pub send: Duration,
    /// Last request byte to head.
    pub first_byte: Duration,
    /// No bytes since head or last byte.
    pub idle: Duration,
    /// Since the last output, after the commit.
    pub no_output: Duration,
    /// Head to commit.
    pub first_content: Duration,
    /// Admission to end.
    pub total: Duration,
    /// `stream: false`: request sent to last byte.
    pub non_stream: Duration,
    /// One write to the client.
    pub client_write: Duration,
}

/// The keepalive (K1 to K3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence after which one goes out.
    pub interval: Duration,
    /// Only in silence, or at every interval.
    pub when: When,
    /// Its shape.
    pub style: Style,
    /// The comment's text; no line break in it.
    pub text: String,
    /// K3; `None`: off.
    pub before_headers: Option<Duration>,
}

/// K1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// After an interval without a byte written.
    Silence,
    /// Every interval.
    Always,
}

/// K2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// `comment`, or `comment_line` once an `id:` or `retry:` was forwarded.
    Auto,
    /// Comment and blank line.
    Comment,
    /// Comment and one newline.
    CommentLine,
    /// Messages' own ping event once `message_start` was forwarded, else a comment.
    Ping,
}

/// A2, A5.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Attempts in all, the first included.
    pub attempts: u32,
    /// Statuses that fail an attempt.
    pub on: Vec<StatusRange>,
    /// From admission; after it no new attempt starts.
    pub deadline: Duration,
    /// Whether a finish without output fails the attempt.
    pub failover_on_empty: bool,
}

/// `429` or `5xx`, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRange {
    /// First status.
    pub from: u16,
    /// Last status.
    pub to: u16,
}

impl Retry {
    /// Whether a status fails the attempt.
    #[must_use]
    pub fn is_on(&self, status: u16) -> bool {
        self.on.iter().any(|range| (range.from..=range.to).contains(&status))
    }
}

/// A6, A8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// Failures in a row until a cool-down.
    pub failures: u32,
    /// The first cool-down; doubles.
    pub cooldown: Duration,
    /// The longest.
    pub cooldown_max: Duration,
    /// After a 401, 402 or used-up account.
    pub cooldown_account: Duration,
}

/// A9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnClientGone {
    /// Close the upstream at once.
    Cancel,
    /// Read on for the usage, at most this long.
    Drain(Duration),
}

/// What makes requests go to the same target (A1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// The body's `prompt_cache_key`.
    PromptCacheKey,
    /// The body's `user` (chat, responses) or `metadata.user_id` (messages).
    User,
    /// The virtual key.
    Key,
}

/// One path that goes through unrouted (A10).
#[derive(Clone, Debug)]
pub struct Passthrough {
    /// Without the `/*`, if it had one.
    pub path: String,
    /// Whether it is a prefix.
    pub prefix: bool,
    /// Allowed methods.
    pub methods: Vec<http::Method>,
    /// Where it goes.
    pub provider: Arc<Provider>,
    /// Names of the keys that may use it; empty: none.
    pub keys: Vec<String>,
    /// The operator knows that other tenants' data lies there.
    pub shared_account: bool,
}

/// One virtual key.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its name in logs and records.
    pub name: String,
    /// SHA-256 of the secret.
    pub sha256: [u8; 32],
    /// `*` or names of models.
    pub models: AllowedModels,
    /// Free text for reports.
    pub tag: Option<String>,
    /// Last moment it is valid.
    pub expires: Option<std::time::SystemTime>,
    /// Empty: any.
    pub allow_ips: Vec<ipnet::IpNet>,
}

/// Which models a key may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedModels {
    /// `["*"]`
    All,
    /// Names as in `models[].name`.
    Named(Vec<String>),
}

/// The `log:` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Of everything.
    pub format: LogFormat,
    /// Of everything but access records.
    pub level: log::LevelFilter,
    /// Which requests get an access record, in thousandths (errors always do unless 0); `all` is 1000.
    pub access_permille: u16,
    /// `None`: standard error.
    pub file: Option<PathBuf>,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// The `metrics:` section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Series with a `key` label; further keys are counted as `other`.
    pub max_key_series: usize,
}

impl Config {
    /// The model that a client's name means, by name or alias.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<&Arc<Model>> {
        self.by_name.get(name)
    }
}
