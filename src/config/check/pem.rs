//! Whether certificate files hold what they should, so that a bad one is found before it is needed.

use super::Check;
use crate::config::keypath::KeyPath;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;

impl Check<'_> {
    /// A file with at least one certificate.
    pub(super) fn certificates(&mut self, path: &KeyPath, file: &Path) -> Vec<CertificateDer<'static>> {
        let Some(text) = self.text(path, file) else { return Vec::new() };
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        match chain {
            Ok(chain) if !chain.is_empty() => chain,
            Ok(_) => {
                self.error(
                    path,
                    format!("{} holds no certificate; it must be a PEM file with one", self.written(path)),
                );
                Vec::new()
            }
            Err(_) => {
                self.error(path, format!("{} is not a good PEM file; write it anew", self.written(path)));
                Vec::new()
            }
        }
    }

    /// A file with certificates that others can be checked against.
    pub(super) fn roots(&mut self, path: &KeyPath, file: &Path) {
        let chain = self.certificates(path, file);
        let mut store = rustls::RootCertStore::empty();
        if chain.into_iter().any(|certificate| store.add(certificate).is_err()) {
            self.error(path, format!("{} holds a certificate that cannot be an authority", self.written(path)));
        }
    }

    /// A file with a private key that fits the chain, whose first certificate is the leaf.
    pub(super) fn private_key(&mut self, path: &KeyPath, file: &Path, chain: Vec<CertificateDer<'static>>) {
        let Some(text) = self.text(path, file) else { return };
        let Ok(key) = PrivateKeyDer::from_pem_slice(&text) else {
            self.error(path, format!("{} holds no private key; it must be a PEM file with one", self.written(path)));
            return;
        };
        let Ok(key) = rustls::crypto::ring::sign::any_supported_type(&key) else {
            self.error(
                path,
                format!("{} holds a key of a kind that is not known; use ECDSA, RSA or Ed25519", self.written(path)),
            );
            return;
        };
        if chain.is_empty() {
            return; // already reported
        }
        match rustls::sign::CertifiedKey::new(chain, key).keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
            Err(rustls::Error::InconsistentKeys(_)) => {
                self.error(path, format!("{} is not the key of this certificate", self.written(path)));
            }
            Err(_) => self.error(path, "the certificate beside this key cannot be read".to_owned()),
        }
    }

    fn text(&mut self, path: &KeyPath, file: &Path) -> Option<Vec<u8>> {
        self.files.borrow_mut().push(file.to_owned());
        match std::fs::read(file) {
            Ok(text) => Some(text),
            Err(error) => {
                let remedy = "put it there or correct the path";
                self.error(path, format!("cannot read {} ({}); {remedy}", self.written(path), error.kind()));
                None
            }
        }
    }
}
