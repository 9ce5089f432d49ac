//! What the file says of Weir itself: where it listens, its bounds, its log.
//!
//! Plain data, made by the check, read by everyone.

use super::{BaseUrl, Secret};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// One listening address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Address and port; port 0 lets the system choose (the log tells which).
    pub address: SocketAddr,
    /// HTTP/2 without TLS, by prior knowledge.
    pub h2c: bool,
    /// Connections begin with the PROXY protocol's header.
    pub proxy_protocol: bool,
    /// TLS with ALPN, if any.
    pub tls: Option<Tls>,
}

/// Certificate and key files of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The first is the default, the others are chosen by SNI. Never empty.
    pub certificates: Vec<Certificate>,
    /// The oldest version that clients may speak.
    pub min_version: TlsVersion,
    /// Authorities whose certificates clients must have.
    pub client_ca: Option<PathBuf>,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[default]
    #[serde(rename = "1.2")]
    V12,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    V13,
}

/// One certificate chain with its key, both PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The chain, leaf first.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// The admin listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Loopback unless a token is set.
    pub address: SocketAddr,
    /// Asked for as `authorization: Bearer` when set.
    pub token: Option<Secret>,
}

/// The `server:` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Worker threads; default: cores.
    pub threads: usize,
    /// Whose `x-forwarded-for` is believed (B3).
    pub trusted_proxies: Vec<ipnet::IpNet>,
    /// Client connections at once (B3).
    pub max_connections: Option<u64>,
    /// Requests at once (B3).
    pub max_streams: Option<u64>,
    /// Bytes of resident memory above which new requests are refused (B3).
    pub max_memory: Option<u64>,
    /// Origins of web pages that may call; `*` is any.
    pub cors_origins: Vec<String>,
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
    /// G3: whether accepted answers carry Weir's own rate-limit headers.
    pub limit_headers: bool,
    /// C3: how long the old process may take after an upgrade.
    pub upgrade_drain: Duration,
    /// C3: where a new process asks for the sockets; `None`: beside the ledger.
    pub upgrade_socket: Option<PathBuf>,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
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

/// The `otlp:` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Otlp {
    /// Where the receiver is: scheme, host and port.
    pub endpoint: BaseUrl,
    /// Whether traces are exported.
    pub enabled: bool,
}

/// The `timelines:` section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timelines {
    /// How many of the last requests are kept; 0: none.
    pub keep: usize,
}
