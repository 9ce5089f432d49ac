//! A certificate authority for one test, with a certificate for `localhost` and 127.0.0.1.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub(crate) struct Pki {
    root: CertificateDer<'static>,
    chain: CertificateDer<'static>,
    key: Vec<u8>,
    root_pem: String,
    chain_pem: String,
    key_pem: String,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a root");
        let key = KeyPair::generate().expect("a key");
        let leaf = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).expect("parameters");
        let leaf = leaf.signed_by(&key, &issuer).expect("a certificate");
        Self {
            root: issuer.der().clone(),
            chain: leaf.der().clone(),
            key: key.serialize_der(),
            root_pem: issuer.pem(),
            chain_pem: leaf.pem(),
            key_pem: key.serialize_pem(),
        }
    }

    /// Writes `ca.pem`, `cert.pem`, `key.pem`; gives their paths in this order.
    pub(crate) fn write(&self, folder: &Path) -> [PathBuf; 3] {
        let files = [("ca.pem", &self.root_pem), ("cert.pem", &self.chain_pem), ("key.pem", &self.key_pem)];
        files.map(|(name, text)| {
            let path = folder.join(name);
            std::fs::write(&path, text).expect("a writable folder");
            path
        })
    }

    pub(crate) fn acceptor(&self, alpn: &[&[u8]]) -> TlsAcceptor {
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![self.chain.clone()], self.key())
            .expect("a usable certificate");
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }

    /// The same, for clients with a certificate of this authority only.
    pub(crate) fn strict_acceptor(&self) -> TlsAcceptor {
        let verifier = WebPkiClientVerifier::builder(Arc::new(self.roots())).build().expect("a verifier");
        let config = ServerConfig::builder()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![self.chain.clone()], self.key())
            .expect("a usable certificate");
        TlsAcceptor::from(Arc::new(config))
    }

    /// A client that trusts this authority, speaks these versions and shows the certificate of `shown`.
    pub(crate) fn client(&self, versions: &[&'static SupportedProtocolVersion], shown: Option<&Self>) -> TlsConnector {
        let config = ClientConfig::builder_with_protocol_versions(versions).with_root_certificates(self.roots());
        let config = match shown {
            None => config.with_no_client_auth(),
            Some(shown) => {
                config.with_client_auth_cert(vec![shown.chain.clone()], shown.key()).expect("a usable certificate")
            }
        };
        TlsConnector::from(Arc::new(config))
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.clone()))
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).expect("a usable root");
        roots
    }

    pub(crate) fn connector(&self, alpn: &[&[u8]]) -> TlsConnector {
        let mut config = ClientConfig::builder().with_root_certificates(self.roots()).with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        TlsConnector::from(Arc::new(config))
    }
}
