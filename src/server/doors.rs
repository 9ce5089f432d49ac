//! The certificates that the listeners show, and how long they are valid; replaced at reload (C2).
//!
//! Made by the server at start, read at each TLS handshake. Reads certificate and key files.

use super::listen::ListenError;
use crate::config::{Config, Listen, Tls};
use crate::metrics::Metrics;
use arc_swap::ArcSwap;
use pingora_core::utils::tls::{WrappedX509, parse_x509};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::path::Path;
use std::sync::Arc;

type Chains = Vec<Arc<CertifiedKey>>;

/// The certificates of all listeners, in the order of the file.
#[derive(Debug, Default)]
pub(super) struct Doors(Vec<Option<Arc<Certificates>>>);

/// Those of one listener. The first is the default.
#[derive(Debug)]
pub(super) struct Certificates(ArcSwap<Chains>);

impl Doors {
    /// Reads all files.
    ///
    /// # Errors
    /// A certificate or key that cannot be used.
    pub(super) fn new(listen: &[Listen]) -> Result<Self, ListenError> {
        let door = |listen: &Listen| listen.tls.as_ref().map(|tls| chains(tls).map(Certificates::new)).transpose();
        Ok(Self(listen.iter().map(door).collect::<Result<_, _>>()?))
    }

    /// Those of the listener at this place of the file.
    pub(super) fn certificates(&self, at: usize) -> Option<Arc<Certificates>> {
        self.0.get(at).cloned().flatten()
    }

    /// Reads the files of listeners that are the same but for their certificates.
    ///
    /// # Errors
    /// A certificate or key that cannot be used.
    pub(super) fn read(listen: &[Listen]) -> Result<Vec<Option<Chains>>, ListenError> {
        listen.iter().map(|listen| listen.tls.as_ref().map(chains).transpose()).collect()
    }

    /// Shows these from the next handshake on.
    pub(super) fn take(&self, read: Vec<Option<Chains>>) {
        for (door, chains) in self.0.iter().zip(read) {
            if let (Some(door), Some(chains)) = (door, chains) {
                door.0.store(Arc::new(chains));
            }
        }
    }
}

impl Certificates {
    fn new(chains: Chains) -> Arc<Self> {
        Arc::new(Self(ArcSwap::from_pointee(chains)))
    }
}

fn chains(tls: &Tls) -> Result<Chains, ListenError> {
    tls.certificates.iter().map(|files| read(&files.cert, &files.key)).collect()
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
impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let chains = self.0.load();
        let wanted = hello.server_name().and_then(|name| rustls::pki_types::ServerName::try_from(name).ok());
        let named = wanted.and_then(|name| {
            chains.iter().find(|certified| {
                let leaf = certified.end_entity_cert().ok();
                let leaf = leaf.and_then(|leaf| rustls::server::ParsedCertificate::try_from(leaf).ok());
                leaf.is_some_and(|leaf| rustls::client::verify_server_name(&leaf, &name).is_ok())
            })
        });
        named.or_else(|| chains.first()).cloned()
    }
}

/// Tells the metrics when each certificate of the config ends. The files were read and found good before.
pub(super) fn tell_expiry(config: &Config, metrics: &Metrics) {
    let tls = config.listen.iter().filter_map(|listen| listen.tls.as_ref());
    let served = tls.flat_map(|tls| &tls.certificates).map(|files| files.cert.as_path());
    let ends = served.filter_map(|file| Some((file.display().to_string(), ends(file)?)));
    metrics.certificates(&ends.collect::<Vec<_>>());
}

/// Seconds since 1970 at which the first certificate of a file ends.
fn ends(file: &Path) -> Option<i64> {
    let leaf = CertificateDer::pem_file_iter(file).ok()?.next()?.ok()?;
    // Pingora's parser panics where this one refuses.
    rustls::server::ParsedCertificate::try_from(&leaf).ok()?;
    let leaf = WrappedX509::new(leaf.to_vec(), parse_x509);
    Some(leaf.borrow_cert().validity.not_after.timestamp())
}
