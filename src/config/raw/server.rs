//! The file as it is written: listeners, `admin:` and `server:`.
//!
//! Filled by `shape`, read by `check` alone, as all of `raw`.

use crate::config::server::TlsVersion;
use crate::config::word::{Address, FilePath, Network, SecretText, Size, Span, WebOrigin};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr};

/// One listening address.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Listen {
    /// Address and port; port 0 lets the system choose.
    #[schemars(required)]
    pub(in crate::config) address: Option<Address>,
    /// HTTP/2 without TLS, for trusted neighbours; default false.
    #[serde(default)]
    pub(in crate::config) h2c: bool,
    /// A load balancer in front writes the PROXY protocol's header, version 1 or 2, on each connection; default false.
    #[serde(default)]
    pub(in crate::config) proxy_protocol: bool,
    /// TLS with HTTP/2 and HTTP/1.1 by ALPN; default: none.
    pub(in crate::config) tls: Option<Tls>,
}

/// TLS of a listener.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Tls {
    /// The first is the default, the others are chosen by the name that the client asks for.
    #[schemars(required, length(min = 1))]
    pub(in crate::config) certificates: Option<Vec<Certificate>>,
    /// The oldest version that clients may speak; default 1.2.
    pub(in crate::config) min_version: Option<TlsVersion>,
    /// PEM file with the authorities whose certificates clients must have; default: none is asked for.
    pub(in crate::config) client_ca: Option<FilePath>,
}

/// One certificate chain with its key, both PEM files.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Certificate {
    /// The chain, leaf first.
    #[schemars(required)]
    pub(in crate::config) cert: Option<FilePath>,
    /// The private key.
    #[schemars(required)]
    pub(in crate::config) key: Option<FilePath>,
}

/// The admin listener.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct Admin {
    /// Loopback, or a token is required.
    pub(in crate::config) address: Address,
    /// Asked for as `authorization: Bearer`; default: none.
    #[serde(skip_serializing)]
    pub(in crate::config) token: Option<SecretText>,
}

impl Default for Admin {
    fn default() -> Self {
        Self { address: Address(SocketAddr::from((Ipv4Addr::LOCALHOST, 9090))), token: None }
    }
}

/// Limits and times of the server itself.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct Server {
    /// Worker threads; default: as many as there are cores.
    #[schemars(range(min = 1, max = 1024))]
    pub(in crate::config) threads: Option<usize>,
    /// Proxies whose `x-forwarded-for` is believed, by address or network; default: none.
    #[serde(skip_serializing)]
    pub(in crate::config) trusted_proxies: Vec<Network>,
    /// Client connections at once; default: no bound.
    #[schemars(range(min = 1))]
    pub(in crate::config) max_connections: Option<u64>,
    /// Requests at once, streams or not; default: no bound.
    #[schemars(range(min = 1))]
    pub(in crate::config) max_streams: Option<u64>,
    /// Resident memory of the process, above which new requests are refused; default: no bound.
    pub(in crate::config) max_memory: Option<Size>,
    /// Which web pages may call from a browser.
    #[serde(skip_serializing)]
    pub(in crate::config) cors: Cors,
    /// Largest request body, after decoding.
    pub(in crate::config) max_body: Size,
    /// Total time to receive a body.
    pub(in crate::config) request_body: Span,
    /// Time to receive a request head.
    pub(in crate::config) header_timeout: Span,
    /// Memory of all held bodies and events together.
    pub(in crate::config) max_held_bytes: Size,
    /// Largest event of a stream.
    pub(in crate::config) max_event_bytes: Size,
    /// How long an idle client connection stays open.
    pub(in crate::config) keepalive_timeout: Span,
    /// How long requests are still served after SIGTERM.
    pub(in crate::config) drain_delay: Span,
    /// How long running streams may take after that.
    pub(in crate::config) drain: Span,
    /// Whether accepted answers carry Weir's own rate-limit headers; refusals always do.
    pub(in crate::config) limit_headers: bool,
    /// How long the old process may take after an upgrade.
    pub(in crate::config) upgrade_drain: Span,
    /// Where a new process, or `weir upgrade`, asks for an upgrade; default `upgrade.sock` beside the ledger.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) upgrade_socket: Option<FilePath>,
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
pub(in crate::config) struct Cors {
    /// Origins such as `https://app.example.com`, or `*`; default: none.
    pub(in crate::config) origins: Vec<WebOrigin>,
}
