//! The baseline: what Pingora does by itself, in a few lines.

use async_trait::async_trait;
use pingora_core::listeners::tls::TlsSettings;
use pingora_core::protocols::ALPN;
use pingora_core::server::configuration::ServerConf;
use pingora_core::server::{RunArgs, Server};
use pingora_core::upstreams::peer::HttpPeer;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};
use std::path::Path;
use std::sync::Arc;

struct Pass {
    upstream: u16,
    tls: bool,
}

#[async_trait]
impl ProxyHttp for Pass {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _: &mut Session, (): &mut ()) -> pingora_core::Result<Box<HttpPeer>> {
        let mut peer = HttpPeer::new(("127.0.0.1", self.upstream), self.tls, "localhost".to_owned());
        if self.tls {
            peer.options.verify_cert = false;
            peer.options.verify_hostname = false;
            peer.options.alpn = ALPN::H2H1;
        }
        Ok(Box::new(peer))
    }
}

/// Serves for ever: `plain` and `secure` go to the plain upstream, `up` to the one with TLS.
pub(crate) fn serve(folder: &Path, ports: [u16; 3], upstream: (u16, u16)) {
    let conf = ServerConf { threads: 1, ..ServerConf::default() };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let conf = Arc::clone(&server.configuration);
    let [plain, secure, up] = ports;
    let mut service = http_proxy_service(&conf, Pass { upstream: upstream.0, tls: false });
    service.add_tcp(&format!("127.0.0.1:{plain}"));
    let path = |name: &str| folder.join(name).display().to_string();
    let mut tls = TlsSettings::intermediate(&path("cert.pem"), &path("key.pem")).expect("a certificate");
    tls.enable_h2();
    service.add_tls_with_settings(&format!("127.0.0.1:{secure}"), None, tls);
    server.add_service(service);
    let mut service = http_proxy_service(&conf, Pass { upstream: upstream.1, tls: true });
    service.add_tcp(&format!("127.0.0.1:{up}"));
    server.add_service(service);
    server.run(RunArgs::default());
}
