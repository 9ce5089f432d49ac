//! The way to a provider through an egress proxy: HTTP CONNECT.
//!
//! Called by Pingora for each new connection of a site that has one. Owns the socket until the tunnel stands.

use crate::config::EgressProxy;
use async_trait::async_trait;
use pingora_core::connectors::l4::Connect;
use pingora_core::protocols::l4::socket::SocketAddr as PeerAddress;
use pingora_core::protocols::l4::stream::Stream;
use pingora_core::{Error, ErrorType, OrErr as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Larger than any proxy's answer to CONNECT.
const MOST_HEAD_BYTES: usize = 8 * 1024;

/// A proxy, and where it is asked to connect to.
#[derive(Debug)]
pub(super) struct Tunnel {
    provider: String,
    /// The request's head: it may hold the proxy's credentials.
    ask: Ask,
}

struct Ask(Vec<u8>);

impl std::fmt::Debug for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CONNECT ****")
    }
}

impl Tunnel {
    /// To `host`:`port` (IPv6 without brackets); the proxy looks the name up.
    pub(super) fn new(provider: &str, proxy: &EgressProxy, host: &str, port: u16) -> Self {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let mut head = format!("CONNECT {host}:{port} HTTP/1.1\r\nhost: {host}:{port}\r\n");
        if let Some(authorization) = &proxy.authorization {
            head.push_str("proxy-authorization: ");
            head.push_str(authorization.expose());
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        Self { provider: provider.to_owned(), ask: Ask(head.into_bytes()) }
    }

    async fn open(&self, address: std::net::SocketAddr) -> Result<TcpStream> {
        let failed = || "the egress proxy does not answer";
        let mut stream = TcpStream::connect(address).await.or_err_with(ErrorType::ConnectError, failed)?;
        stream.set_nodelay(true).or_err_with(ErrorType::ConnectError, failed)?;
        stream.write_all(&self.ask.0).await.or_err_with(ErrorType::ConnectError, failed)?;
        let mut head = Vec::with_capacity(256);
        // Byte by byte: what follows the head belongs to the provider.
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() > MOST_HEAD_BYTES {
                return Error::e_explain(ErrorType::ConnectError, "the egress proxy's answer has no end");
            }
            head.push(stream.read_u8().await.or_err_with(ErrorType::ConnectError, failed)?);
        }
        match status(&head) {
            Some(200..=299) => Ok(stream),
            status => {
                let provider = self.provider.as_str();
                log::warn!(provider, status:? = status; "the egress proxy refuses to connect; see egress_proxy");
                Error::e_explain(ErrorType::ConnectError, "the egress proxy refuses to connect")
            }
        }
    }
}

/// `HTTP/1.1 200 OK`
fn status(head: &[u8]) -> Option<u16> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    words.next()?.parse().ok()
}

#[async_trait]
impl Connect for Tunnel {
    async fn connect(&self, address: &PeerAddress) -> Result<Stream> {
        let Some(address) = address.as_inet() else {
            return Error::e_explain(ErrorType::InternalError, "an egress proxy without an address");
        };
        Ok(self.open(*address).await?.into())
    }
}

#[cfg(test)]
mod tests;
