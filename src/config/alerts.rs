//! What the file says of `alerts:`.
//!
//! Plain data, made by the check, read by the server's task.

use super::Secret;

/// The `alerts:` section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alerts {
    /// `None`: nobody is told.
    pub webhook: Option<Webhook>,
}

/// Where notices are sent. Path and query are a secret: they often hold a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Whether it is `https`.
    pub tls: bool,
    /// A name or an address; IPv6 without brackets.
    pub host: String,
    /// Given or the scheme's own.
    pub port: u16,
    /// Path and query.
    pub target: Secret,
}

impl Webhook {
    /// Reads `http://…` or `https://…`; `None` for anything else, for credentials and for a fragment.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        // What a webhook has in common with a provider: scheme, host and port. The path stays as it is written.
        let place = super::BaseUrl::read(text)?;
        let uri: http::Uri = text.parse().ok()?;
        let target = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        Some(Self { tls: place.tls, host: place.host, port: place.port, target: Secret::new(target.to_owned()) })
    }

    /// `host` or `host:port`, as the `host` header wants it.
    #[must_use]
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let usual = if self.tls { 443 } else { 80 };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }
}
