//! Connects to PostgreSQL, with TLS by rustls.
//!
//! Called by the sink alone. Reads the roots at start; touches the network.
//!
//! Stricter than libpq: whenever TLS is used the certificate and its name are verified, also with
//! `sslmode=require` and `prefer`; `sslrootcert` names a PEM file to trust instead of the system's roots.

use super::SinkError;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

/// DNS, TCP and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long sent data may stay unacknowledged: a server that vanished is noticed.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);

/// Where to, and how.
pub(crate) struct Connector {
    config: Config,
    tls: MakeRustlsConnect,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Connector {
    pub(crate) fn new(url: &str) -> Result<Self, SinkError> {
        let (url, roots) = split(url);
        let mut config: Config = url.parse().map_err(SinkError::from)?;
        config.connect_timeout(CONNECT_TIMEOUT).tcp_user_timeout(TCP_USER_TIMEOUT);
        if config.get_application_name().is_none() {
            config.application_name("weir");
        }
        Ok(Self { config, tls: tls(roots.as_deref())? })
    }

    /// The client, and the task that drives it.
    pub(crate) async fn connect(&self) -> Result<(Client, JoinHandle<()>), SinkError> {
        let (client, connection) = self.config.connect(self.tls.clone()).await?;
        let driver = tokio::spawn(async move {
            // Whoever waits for an answer gets the error, too.
            if let Err(error) = connection.await {
                log::debug!(error:% = error; "the connection to PostgreSQL ended");
            }
        });
        Ok((client, driver))
    }
}

/// Takes out what the client library does not know: `sslrootcert`, and the `verify-…` modes, which
/// are what `require` means here.
fn split(url: &str) -> (String, Option<String>) {
    let Some((base, query)) = url.split_once('?') else { return (url.to_owned(), None) };
    let mut roots = None;
    let kept = query.split('&').filter_map(|pair| match pair.split_once('=') {
        Some(("sslrootcert", file)) => {
            roots = Some(file.replace("%2F", "/").replace("%2f", "/"));
            None
        }
        Some(("sslmode", "verify-ca" | "verify-full")) => Some("sslmode=require"),
        _ => Some(pair),
    });
    let kept = kept.collect::<Vec<_>>().join("&");
    (if kept.is_empty() { base.to_owned() } else { format!("{base}?{kept}") }, roots)
}

fn tls(roots: Option<&str>) -> Result<MakeRustlsConnect, SinkError> {
    let mut store = RootCertStore::empty();
    if let Some(file) = roots {
        let failed = |cause: String| SinkError(format!("sslrootcert {file}: {cause}"));
        let certificates = CertificateDer::pem_file_iter(file).map_err(|error| failed(error.to_string()))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| failed(error.to_string()))?;
            store.add(certificate).map_err(|error| failed(error.to_string()))?;
        }
        if store.is_empty() {
            return Err(failed("holds no certificate".to_owned()));
        }
    } else {
        // None at all is no error yet: the server may not use TLS.
        let native = rustls_native_certs::load_native_certs().unwrap_or_default();
        store.add_parsable_certificates(native);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| SinkError(error.to_string()))?
        .with_root_certificates(store)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}
