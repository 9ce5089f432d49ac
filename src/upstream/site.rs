//! One provider, ready to be called: its address, TLS roots, headers and credentials.
//!
//! Made from the config at start and at reload. Reads the `ca:` file, touches nothing else.

use super::tunnel::Tunnel;
use crate::config::{Auth, BaseUrl, Certificate, Http2, Origin, Provider};
use crate::protocol::Endpoint;
use arc_swap::ArcSwap;
use http::{HeaderName, HeaderValue, header};
use pingora_core::connectors::l4::Connect;
use pingora_core::protocols::ALPN;
use pingora_core::protocols::l4::socket::SocketAddr as PeerAddress;
use pingora_core::upstreams::peer::{HttpPeer, PeerOptions, Scheme};
use pingora_core::utils::tls::{CertKey, WrappedX509, parse_x509};
use pingora_http::RequestHeader;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest as _, Sha256};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A11: what one stream may send before Weir has read it; bounds memory per stream.
const H2_STREAM_WINDOW: u32 = 256 * 1024;
/// A11: streams on one upstream connection.
const H2_STREAMS: u32 = 64;
/// A11, B293: how often an HTTP/2 connection is pinged, in use or not; Pingora waits 5 s for the answer, so
/// a dead one is noticed within 15 s, before a client loses its patience.
const H2_PING: Duration = Duration::from_secs(10);
/// Pooled connections are dropped after this; most servers close idle ones after 60 s or more.
const POOL_IDLE: Duration = Duration::from_secs(50);
/// Peers kept of one provider; one whose addresses change all the time does not fill the memory.
const MAX_PEERS: usize = 16;

/// The `ca:` or `client_cert:` file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct BadRoots {
    path: String,
    reason: String,
}

/// One provider, ready to be called.
#[derive(Debug)]
pub struct Site {
    /// As configured.
    pub provider: Arc<Provider>,
    /// Where it is; the demo provider's own port once it listens.
    pub url: BaseUrl,
    authority: HeaderValue,
    roots: Option<Arc<[WrappedX509]>>,
    client_cert: Option<Arc<CertKey>>,
    tunnel: Option<Arc<Tunnel>>,
    group: u64,
    /// Of its keys, in the order of the file.
    fingerprints: Vec<String>,
    /// What each of its keys is sent as, in the order of the file.
    credentials: Vec<Option<(HeaderName, HeaderValue)>>,
    /// Made already, by their addresses.
    peers: ArcSwap<Vec<Arc<HttpPeer>>>,
}

impl Site {
    /// Reads what the provider needs; `demo` is the address of the built-in model.
    ///
    /// # Errors
    /// When the `ca:` or `client_cert:` file holds no certificates.
    pub fn new(provider: Arc<Provider>, demo: Option<SocketAddr>) -> Result<Self, BadRoots> {
        let url = match (&provider.origin, demo) {
            (Origin::Url(url), _) => url.clone(),
            (Origin::Demo, demo) => {
                let demo = demo.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
                BaseUrl { tls: false, host: demo.ip().to_string(), port: demo.port(), path: String::new(), query: None }
            }
        };
        let roots = provider.ca.as_deref().map(read_roots).transpose()?;
        let mut hasher = DefaultHasher::new();
        provider.name.hash(&mut hasher);
        for root in roots.iter().flat_map(|roots| roots.iter()) {
            root.borrow_raw_cert().hash(&mut hasher);
        }
        let client_cert =
            provider.client_cert.as_ref().map(|files| read_client_cert(files, &mut hasher)).transpose()?;
        let tunnel = provider.egress_proxy.as_ref().map(|proxy| {
            // Behind the proxy's address the pool could not tell where a connection leads.
            (proxy.host.as_str(), proxy.port, url.host.as_str(), url.port).hash(&mut hasher);
            Arc::new(Tunnel::new(&provider.name, proxy, &url.host, url.port))
        });
        let authority =
            HeaderValue::from_str(&authority(&url)).unwrap_or_else(|_| HeaderValue::from_static("upstream"));
        let fingerprints = provider.api_keys.iter().map(|key| fingerprint(&provider.name, key.expose())).collect();
        let credentials = provider.api_keys.iter().map(|key| credential(&provider.auth, key.expose())).collect();
        let (group, peers) = (hasher.finish(), ArcSwap::default());
        Ok(Self { provider, url, authority, roots, client_cert, tunnel, group, fingerprints, credentials, peers })
    }

    /// What tells one of the provider's keys from the others after a restart, and is no secret (A12). Empty if there
    /// is no such key.
    #[must_use]
    pub fn fingerprint(&self, account: usize) -> &str {
        self.fingerprints.get(account).map_or("", String::as_str)
    }

    /// The key with that fingerprint, if the provider has it still.
    #[must_use]
    pub fn account(&self, fingerprint: &str) -> Option<usize> {
        self.fingerprints.iter().position(|known| known == fingerprint)
    }

    /// `host` or `host:port`, as the `host` header wants it.
    #[must_use]
    pub fn authority(&self) -> HeaderValue {
        self.authority.clone()
    }

    /// Whose name is looked up, and the port: the provider's, or its egress proxy's.
    #[must_use]
    pub fn way(&self) -> (&str, u16) {
        match &self.provider.egress_proxy {
            Some(proxy) => (&proxy.host, proxy.port),
            None => (&self.url.host, self.url.port),
        }
    }

    /// The peer at one of the provider's addresses, or behind one of its proxy's.
    #[must_use]
    pub fn peer(&self, address: SocketAddr) -> Arc<HttpPeer> {
        let known = self.peers.load();
        if let Some(peer) = known.iter().find(|peer| peer._address.as_inet() == Some(&address)) {
            return Arc::clone(peer);
        }
        let peer = Arc::new(self.new_peer(address));
        // Two at once may forget one of theirs: it is made again.
        let others = known.iter().filter(|_| known.len() < MAX_PEERS).cloned();
        self.peers.store(Arc::new(others.chain([Arc::clone(&peer)]).collect()));
        peer
    }

    fn new_peer(&self, address: SocketAddr) -> HttpPeer {
        let mut options = PeerOptions::new();
        options.alpn = match (self.provider.http2, self.url.tls) {
            (Http2::Off, _) | (Http2::Auto, false) => ALPN::H1,
            (Http2::Auto, true) => ALPN::H2H1,
            (Http2::PriorKnowledge, _) => ALPN::H2,
        };
        options.max_h2_streams = H2_STREAMS as usize;
        options.h2_stream_window_size = Some(H2_STREAM_WINDOW);
        options.h2_connection_window_size = Some(H2_STREAM_WINDOW * H2_STREAMS);
        options.h2_ping_interval = Some(H2_PING);
        options.idle_timeout = Some(POOL_IDLE);
        options.ca.clone_from(&self.roots);
        options.custom_l4 = self.tunnel.clone().map(|tunnel| tunnel as Arc<dyn Connect + Send + Sync>);
        HttpPeer {
            _address: PeerAddress::Inet(address),
            scheme: if self.url.tls { Scheme::HTTPS } else { Scheme::HTTP },
            sni: self.url.host.clone(),
            proxy: None,
            client_cert_key: self.client_cert.clone(),
            group_key: self.group,
            options,
        }
    }

    /// The path and query of one call: the provider's own path if it has one, its query and the
    /// client's merged (F8).
    #[must_use]
    pub fn path(&self, endpoint: Endpoint, client_query: Option<&str>) -> String {
        let own = self.provider.paths.get(&endpoint);
        let (path, own_query) = match own.map(|path| path.split_once('?').unwrap_or((path, ""))) {
            Some((path, query)) => (path.to_owned(), Some(query)),
            None => (format!("{}{}", self.url.path, endpoint.path()), None),
        };
        self.with_query(path, own_query, client_query)
    }

    /// The path and query of a call to a stored object (A12): below the provider's own `paths.responses` if it has one.
    #[must_use]
    pub fn stored_path(&self, path: &str, client_query: Option<&str>) -> String {
        const USUAL: &str = "/responses";
        let Some(own) = self.provider.paths.get(&Endpoint::Responses) else {
            return self.raw_path(path, client_query);
        };
        let (own, query) = own.split_once('?').unwrap_or((own, ""));
        let path = match (path.strip_prefix(Endpoint::Responses.path()), own.strip_suffix(USUAL)) {
            (Some(rest), _) => format!("{own}{rest}"),
            // Conversations lie beside responses, wherever those are.
            (None, Some(folder)) => format!("{folder}{}", path.strip_prefix("/v1").unwrap_or(path)),
            (None, None) => return self.raw_path(path, client_query),
        };
        self.with_query(path, Some(query), client_query)
    }

    /// The path and query of an unrouted call (A10).
    #[must_use]
    pub fn raw_path(&self, path: &str, client_query: Option<&str>) -> String {
        self.with_query(format!("{}{path}", self.url.path), None, client_query)
    }

    fn with_query(&self, mut path: String, own: Option<&str>, client: Option<&str>) -> String {
        let queries = [self.url.query.as_deref(), own, client];
        let mut joint = '?';
        for query in queries.into_iter().flatten().filter(|query| !query.is_empty()) {
            path.push(joint);
            path.push_str(query);
            joint = '&';
        }
        path
    }

    /// The credential of one of the provider's keys and the operator's own headers (F8).
    ///
    /// # Errors
    /// When a header is none.
    pub fn authorize(&self, account: usize, head: &mut RequestHeader) -> pingora_core::Result<()> {
        if let Some(Some((name, value))) = self.credentials.get(account) {
            head.insert_header(name, value.clone())?;
        }
        for (name, value) in &self.provider.headers {
            head.insert_header(name.clone(), value.clone())?;
        }
        Ok(())
    }
}

/// The header that brings one of a provider's keys.
fn credential(auth: &Auth, key: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, text) = match auth {
        Auth::Bearer => (header::AUTHORIZATION, format!("Bearer {key}")),
        Auth::XApiKey => (HeaderName::from_static("x-api-key"), key.to_owned()),
        Auth::Header(name) => (name.clone(), key.to_owned()),
    };
    let mut value = HeaderValue::from_str(&text).ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

/// 64 bits of a digest: nobody finds the key by it, and no two of a provider's keys share it.
fn fingerprint(provider: &str, key: &str) -> String {
    const BYTES: usize = 8;
    let digest = Sha256::new().chain_update(provider).chain_update(b"\0").chain_update(key).finalize();
    const_hex::encode(digest.get(..BYTES).unwrap_or_default())
}

fn authority(url: &BaseUrl) -> String {
    let host = if url.host.contains(':') { format!("[{}]", url.host) } else { url.host.clone() };
    let usual = if url.tls { 443 } else { 80 };
    if url.port == usual { host } else { format!("{host}:{}", url.port) }
}

/// What is shown tells connections apart, too: another certificate gets another connection.
fn read_client_cert(files: &Certificate, hasher: &mut impl Hasher) -> Result<Arc<CertKey>, BadRoots> {
    let bad = |path: &std::path::Path, reason: String| BadRoots { path: path.display().to_string(), reason };
    let chain = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| bad(&files.cert, error.to_string()))?;
    // Pingora's parser panics where this one refuses.
    let is_good = |der: &CertificateDer<'_>| rustls::server::ParsedCertificate::try_from(der).is_ok();
    if chain.is_empty() || !chain.iter().all(is_good) {
        return Err(bad(&files.cert, "holds no good certificate".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| bad(&files.key, error.to_string()))?;
    if PrivateKeyDer::try_from(key.secret_der()).is_err() {
        return Err(bad(&files.key, "holds a key of a kind that is not known".to_owned()));
    }
    let chain: Vec<Vec<u8>> = chain.iter().map(|der| der.to_vec()).collect();
    chain.hash(hasher);
    Ok(Arc::new(CertKey::new(chain, key.secret_der().to_vec())))
}

fn read_roots(path: &std::path::Path) -> Result<Arc<[WrappedX509]>, BadRoots> {
    let bad = |reason: String| BadRoots { path: path.display().to_string(), reason };
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| bad(error.to_string()))?;
    if certificates.is_empty() {
        return Err(bad("no certificates in it".to_owned()));
    }
    let mut store = rustls::RootCertStore::empty();
    for certificate in &certificates {
        store.add(certificate.clone()).map_err(|error| bad(error.to_string()))?;
    }
    Ok(certificates.into_iter().map(|der| WrappedX509::new(der.to_vec(), parse_x509)).collect())
}
