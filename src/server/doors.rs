//! The certificates that the listeners show and ask for, and how long they are valid; replaced at reload (C2).
//!
//! Made by the server at start, read at each TLS handshake. Reads certificate and key files.

use super::listen::ListenError;
use crate::config::{Certificate, Config, Listen, Tls, TlsVersion};
use crate::metrics::Metrics;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use pingora_core::listeners::TlsAccept;
use pingora_core::protocols::Stream;
use pingora_core::protocols::tls::TlsRef;
use pingora_core::utils::tls::{WrappedX509, parse_x509};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureAlgorithm, SignatureScheme};
use std::any::Any;
use std::path::Path;
use std::sync::Arc;

type Chains = Vec<Arc<CertifiedKey>>;
type Verifier = Arc<dyn ClientCertVerifier>;
/// What was read for one listener.
pub(super) type Read = (Chains, Option<Verifier>);

/// The certificates of all listeners, in the order of the file.
#[derive(Debug, Default)]
pub(super) struct Doors(Vec<Option<Arc<Door>>>);

/// One listener's side of TLS.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) certificates: Arc<Certificates>,
    /// Who may come in, if not everybody.
    pub(super) clients: Option<Arc<Clients>>,
}

/// Looks once more at each client that has come in: one that resumes a session has shown its certificate at another
/// time. (A version of TLS that is taken no more ends the handshake of such a session, too.)
pub(super) struct Porter(pub(super) Arc<Door>);

/// The porter's word on a connection that may not stay.
struct Refused;

#[async_trait]
impl TlsAccept for Porter {
    async fn handshake_complete_callback(&self, tls: &TlsRef) -> Option<Arc<dyn Any + Send + Sync>> {
        if self.0.admits(tls.peer_cert_chain_der()) { None } else { Some(Arc::new(Refused)) }
    }
}

/// Whether this connection's TLS session is none that the listener would begin now.
pub(super) fn is_refused(stream: &Stream) -> bool {
    stream.get_ssl_digest().is_some_and(|digest| digest.extension.get::<Refused>().is_some())
}

impl Door {
    fn admits(&self, chain: Option<&[CertificateDer<'_>]>) -> bool {
        let Some(clients) = &self.clients else { return true };
        let Some((leaf, chain)) = chain.and_then(<[_]>::split_first) else { return false };
        clients.verify_client_cert(leaf, chain, UnixTime::now()).is_ok()
    }
}

/// Those of one listener. The first is the default.
#[derive(Debug)]
pub(super) struct Certificates(ArcSwap<Chains>);

/// Checks the certificates of clients, which must have one.
#[derive(Debug)]
pub(super) struct Clients(ArcSwap<Verifier>);

impl Doors {
    /// Reads all files.
    ///
    /// # Errors
    /// A certificate or key that cannot be used.
    pub(super) fn new(listen: &[Listen]) -> Result<Self, ListenError> {
        let door = |listen: &Listen| {
            let Some(tls) = &listen.tls else { return Ok(None) };
            let (chains, verifier) = files(tls)?;
            let certificates = Arc::new(Certificates(ArcSwap::from_pointee(chains)));
            let clients = verifier.map(|verifier| Arc::new(Clients(ArcSwap::from_pointee(verifier))));
            Ok(Some(Arc::new(Door { certificates, clients })))
        };
        Ok(Self(listen.iter().map(door).collect::<Result<_, ListenError>>()?))
    }

    /// That of the listener at this place of the file.
    pub(super) fn door(&self, at: usize) -> Option<Arc<Door>> {
        self.0.get(at).cloned().flatten()
    }

    /// Reads the files of listeners that are the same but for their certificates.
    ///
    /// # Errors
    /// A certificate or key that cannot be used.
    pub(super) fn read(listen: &[Listen]) -> Result<Vec<Option<Read>>, ListenError> {
        listen.iter().map(|listen| listen.tls.as_ref().map(files).transpose()).collect()
    }

    /// Shows these from the next handshake on.
    pub(super) fn take(&self, read: Vec<Option<Read>>) {
        for (door, read) in self.0.iter().zip(read) {
            let (Some(door), Some((chains, verifier))) = (door, read) else { continue };
            door.certificates.0.store(Arc::new(chains));
            if let (Some(clients), Some(verifier)) = (&door.clients, verifier) {
                clients.0.store(Arc::new(verifier));
            }
        }
    }
}

fn files(tls: &Tls) -> Result<Read, ListenError> {
    let chains = tls.certificates.iter().map(|files| read(files, tls.min_version)).collect::<Result<_, _>>()?;
    Ok((chains, tls.client_ca.as_deref().map(authorities).transpose()?))
}

fn authorities(file: &Path) -> Result<Verifier, ListenError> {
    let bad = |reason: String| ListenError::Tls { path: file.display().to_string(), reason };
    let certificates = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| bad(error.to_string()))?;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|error| bad(error.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    builder.build().map_err(|error| bad(error.to_string()))
}

fn read(files: &Certificate, oldest: TlsVersion) -> Result<Arc<CertifiedKey>, ListenError> {
    let (cert, key) = (files.cert.as_path(), files.key.as_path());
    let bad = |path: &Path, reason: String| ListenError::Tls { path: path.display().to_string(), reason };
    let chain = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| bad(cert, error.to_string()))?;
    if chain.is_empty() {
        return Err(bad(cert, "no certificates in it".to_owned()));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| bad(key, error.to_string()))?;
    let mut signer = any_supported_type(&secret).map_err(|error| bad(key, error.to_string()))?;
    if oldest == TlsVersion::V13 {
        signer = Arc::new(Only13(signer));
    }
    let certified = CertifiedKey::new(chain, signer);
    certified.keys_match().map_err(|_| bad(key, format!("is not the key of {}", cert.display())))?;
    Ok(Arc::new(certified))
}

/// A key that no suite of TLS 1.2 can use, while 1.3 asks for the schemes alone: Pingora's listeners always offer both
/// versions, and this refuses the old one in the handshake, with an alert.
#[derive(Debug)]
struct Only13(Arc<dyn SigningKey>);

impl SigningKey for Only13 {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        self.0.choose_scheme(offered)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.0.public_key()
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::Anonymous
    }
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

impl ClientCertVerifier for Clients {
    /// No hints: they would have to outlive a reload.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.0.load().verify_client_cert(leaf, chain, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.load().verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.load().verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.load().supported_verify_schemes()
    }
}

/// Tells the metrics when each certificate of the config ends. The files were read and found good before.
pub(super) fn tell_expiry(config: &Config, metrics: &Metrics) {
    let tls = config.listen.iter().filter_map(|listen| listen.tls.as_ref());
    let served = tls.flat_map(|tls| &tls.certificates);
    let shown = config.providers.values().filter_map(|provider| provider.client_cert.as_ref());
    let ends = served
        .chain(shown)
        .map(|files| files.cert.as_path())
        .filter_map(|file| Some((file.display().to_string(), ends(file)?)));
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
