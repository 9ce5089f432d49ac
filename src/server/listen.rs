//! Listeners: addresses, buffers, TLS with SNI and ALPN.
//!
//! Called once at start. Reads certificate and key files.

use crate::config::{Listen, Tls};
use pingora_core::listeners::tls::TlsSettings;
use pingora_core::listeners::{ListenerConfig, TcpSocketOptions};
use pingora_core::protocols::l4::stream::L4BufferSettings;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// Of a listener's read and write buffers. Pingora's 64 KiB are zeroed for each new connection,
/// which stalls a storm of them; heads are smaller, and bodies pass by it.
const BUFFER_BYTES: usize = 2 * 1024;

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

/// Tells whether the address can be bound, so that a taken port is an error at start and not a
/// process that serves nobody.
///
/// # Errors
/// When it cannot.
pub(super) fn probe(address: SocketAddr) -> Result<(), ListenError> {
    std::net::TcpListener::bind(address).map(drop).map_err(|reason| ListenError::Bind { address, reason })
}

/// One listener as Pingora wants it.
///
/// # Errors
/// When a certificate or key cannot be read.
pub(super) fn endpoint(listen: &Listen) -> Result<ListenerConfig, ListenError> {
    let mut options = TcpSocketOptions::default();
    options.so_reuseport = None;
    let endpoint = ListenerConfig::tcp(listen.address.to_string())
        .tcp_socket_options(options)
        .l4_buffer(L4BufferSettings::new(BUFFER_BYTES, BUFFER_BYTES));
    let Some(tls) = &listen.tls else { return Ok(endpoint) };
    Ok(endpoint.tls(settings(tls)?))
}

fn settings(tls: &Tls) -> Result<TlsSettings, ListenError> {
    let certificates = tls.certificates.iter().map(|files| read(&files.cert, &files.key));
    let certificates = certificates.collect::<Result<Vec<_>, _>>()?;
    let mut settings = TlsSettings::intermediate("", "")
        .map_err(|error| ListenError::Tls { path: "tls".to_owned(), reason: error.to_string() })?;
    settings.set_cert_resolver(Arc::new(BySni(certificates)));
    settings.enable_h2();
    Ok(settings)
}

fn read(cert: &Path, key: &Path) -> Result<Arc<CertifiedKey>, ListenError> {
    let bad = |path: &Path, reason: String| ListenError::Tls { path: path.display().to_string(), reason };
    let chain = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| bad(cert, error.to_string()))?;
    if chain.is_empty() {
        return Err(bad(cert, "no certificates in it".to_owned()));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| bad(key, error.to_string()))?;
    let signer = any_supported_type(&secret).map_err(|error| bad(key, error.to_string()))?;
    let certified = CertifiedKey::new(chain, signer);
    certified.keys_match().map_err(|_| bad(key, format!("is not the key of {}", cert.display())))?;
    Ok(Arc::new(certified))
}

/// The first certificate that names the wanted host, else the first.
#[derive(Debug)]
struct BySni(Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for BySni {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let wanted = hello.server_name().and_then(|name| rustls::pki_types::ServerName::try_from(name).ok());
        let named = wanted.and_then(|name| {
            self.0.iter().find(|certified| {
                let leaf = certified.end_entity_cert().ok();
                let leaf = leaf.and_then(|leaf| rustls::server::ParsedCertificate::try_from(leaf).ok());
                leaf.is_some_and(|leaf| rustls::client::verify_server_name(&leaf, &name).is_ok())
            })
        });
        named.or_else(|| self.0.first()).cloned()
    }
}
