//! Listeners: addresses, buffers, TLS with ALPN.
//!
//! Called once at start.

use super::doors::{Door, Porter};
use pingora_core::listeners::tls::TlsSettings;
use pingora_core::listeners::{ListenerConfig, TcpSocketOptions};
use pingora_core::protocols::l4::stream::L4BufferSettings;
use rustls::server::ResolvesServerCert;
use rustls::server::danger::ClientCertVerifier;
use std::net::SocketAddr;
use std::sync::Arc;

/// Of a listener's read buffer. Pingora's 64 KiB are zeroed for each new connection, which stalls a
/// storm of them; and every read, of heads, bodies and TLS records, is larger and passes by it.
const READ_BUFFER_BYTES: usize = 256;
/// Of its write buffer: a head, or an event with its frame, goes out in one call of the system. Larger ones pass by it.
const WRITE_BUFFER_BYTES: usize = 1024;

/// A listener cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address is taken, or not this machine's.
    #[error("cannot listen on {address}: {reason}; another process may hold it (see `ss -ltnp`)")]
    Bind {
        /// As configured.
        address: SocketAddr,
        /// The system's words.
        reason: std::io::Error,
    },
    /// A certificate or key file.
    #[error("{path}: {reason}")]
    Tls {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// One listener as Pingora wants it; `address` is the one that its socket has.
///
/// # Errors
/// When Pingora refuses the settings.
pub(super) fn endpoint(address: SocketAddr, door: Option<Arc<Door>>) -> Result<ListenerConfig, ListenError> {
    let mut options = TcpSocketOptions::default();
    options.so_reuseport = None;
    let endpoint = ListenerConfig::tcp(address.to_string())
        .tcp_socket_options(options)
        .l4_buffer(L4BufferSettings::new(READ_BUFFER_BYTES, WRITE_BUFFER_BYTES));
    let Some(door) = door else { return Ok(endpoint) };
    Ok(endpoint.tls(settings(&door)?))
}

pub(super) fn settings(door: &Arc<Door>) -> Result<TlsSettings, ListenError> {
    let mut settings = TlsSettings::with_callbacks(Box::new(Porter(Arc::clone(door))))
        .map_err(|error| ListenError::Tls { path: "tls".to_owned(), reason: error.to_string() })?;
    settings.set_cert_resolver(Arc::clone(&door.certificates) as Arc<dyn ResolvesServerCert>);
    if let Some(clients) = &door.clients {
        settings.set_client_cert_verifier(Arc::clone(clients) as Arc<dyn ClientCertVerifier>);
    }
    settings.enable_h2();
    Ok(settings)
}
