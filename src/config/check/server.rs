//! The checks of `listen:`, `admin:`, `server:` and `log:`.

use super::Check;
use crate::config::keypath::KeyPath;
use crate::config::{Admin, Alerts, Certificate, Listen, Log, Otlp, Server, Tls, Webhook, raw};
use std::net::SocketAddr;
use std::path::PathBuf;

impl Check<'_> {
    pub(super) fn alerts(&mut self, raw: raw::Alerts) -> Alerts {
        let webhook = raw.webhook.0.and_then(|url| {
            let webhook = Webhook::read(url.expose());
            if webhook.is_none() {
                // The URL is not repeated: it may hold a token.
                let message = "write an http:// or https:// URL without a user name in it, or \"\" to tell nobody";
                self.error(&KeyPath::root().key("alerts").key("webhook"), message.to_owned());
            }
            webhook
        });
        Alerts { webhook }
    }

    pub(super) fn listen(&mut self, listeners: Vec<raw::Listen>) -> Vec<Listen> {
        let top = KeyPath::root().key("listen");
        let mut out: Vec<Listen> = Vec::new();
        for (at, raw) in listeners.into_iter().enumerate() {
            let path = top.item(at);
            let tls = raw.tls.map(|tls| self.tls(tls, &path.key("tls")));
            if raw.h2c && tls.is_some() {
                let message = "HTTP/2 without TLS cannot be had on a listener with TLS; remove one of the two";
                self.error(&path.key("h2c"), message.to_owned());
            }
            let Some(address) = raw.address else { continue };
            if out.iter().any(|other| clash(other.address, address.0)) {
                self.error(&path.key("address"), "another listener has this address; remove one".to_owned());
            }
            out.push(Listen { address: address.0, h2c: raw.h2c, proxy_protocol: raw.proxy_protocol, tls });
        }
        out
    }

    fn tls(&mut self, tls: raw::Tls, path: &KeyPath) -> Tls {
        let client_ca = tls.client_ca.map(|ca| self.file(&ca.0));
        if let Some(ca) = &client_ca {
            self.roots(&path.key("client_ca"), ca);
        }
        let min_version = tls.min_version.unwrap_or_default();
        let mut certificates = Vec::new();
        for (at, raw) in tls.certificates.unwrap_or_default().into_iter().enumerate() {
            let path = path.key("certificates").item(at);
            certificates.extend(self.certificate(raw, &path));
        }
        Tls { certificates, min_version, client_ca }
    }

    pub(super) fn certificate(&mut self, raw: raw::Certificate, path: &KeyPath) -> Option<Certificate> {
        let certificate = Certificate { cert: self.file(&raw.cert?.0), key: self.file(&raw.key?.0) };
        let chain = self.certificates(&path.key("cert"), &certificate.cert);
        self.private_key(&path.key("key"), &certificate.key, chain);
        Some(certificate)
    }

    pub(super) fn admin(&mut self, admin: raw::Admin, listen: &[Listen]) -> Admin {
        let path = KeyPath::root().key("admin");
        let address = admin.address.0;
        if !address.ip().is_loopback() && admin.token.is_none() && !self.findings.touch(&path.key("token")) {
            let message = "everyone who reaches this address could read the admin pages; \
                           set admin.token or use 127.0.0.1";
            self.error(&path.key("address"), message.to_owned());
        }
        if listen.iter().any(|other| clash(other.address, address)) {
            self.error(&path.key("address"), "a client listener has this address; choose another port".to_owned());
        }
        Admin { address, token: admin.token.map(|token| token.0) }
    }

    pub(super) fn server(&mut self, raw: &raw::Server) -> Server {
        let path = KeyPath::root().key("server");
        self.not_zero(raw.request_body.0, &path.key("request_body"));
        self.not_zero(raw.header_timeout.0, &path.key("header_timeout"));
        for (key, size) in [
            ("max_body", &raw.max_body),
            ("max_held_bytes", &raw.max_held_bytes),
            ("max_event_bytes", &raw.max_event_bytes),
        ] {
            if size.0 == 0 {
                self.error(&path.key(key), "this size must be larger than 0".to_owned());
            }
        }
        if raw.max_memory.as_ref().is_some_and(|size| size.0 == 0) {
            self.error(&path.key("max_memory"), "this size must be larger than 0".to_owned());
        }
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Server {
            threads: raw.threads.unwrap_or_else(cores),
            trusted_proxies: raw.trusted_proxies.iter().map(|network| network.0.trunc()).collect(),
            max_connections: raw.max_connections,
            max_streams: raw.max_streams,
            max_memory: raw.max_memory.as_ref().map(|size| size.0),
            cors_origins: raw.cors.origins.iter().map(|origin| origin.0.clone()).collect(),
            max_body: raw.max_body.0,
            request_body: raw.request_body.0,
            header_timeout: raw.header_timeout.0,
            max_held_bytes: raw.max_held_bytes.0,
            max_event_bytes: usize::try_from(raw.max_event_bytes.0).unwrap_or(usize::MAX),
            keepalive_timeout: raw.keepalive_timeout.0,
            drain_delay: raw.drain_delay.0,
            drain: raw.drain.0,
            limit_headers: raw.limit_headers,
            upgrade_drain: raw.upgrade_drain.0,
            upgrade_socket: raw.upgrade_socket.as_ref().map(|path| self.upgrade_socket(&path.0)),
        }
    }

    pub(super) fn otlp(&mut self, raw: raw::Otlp) -> Otlp {
        let endpoint = raw.endpoint.0;
        if !endpoint.path.is_empty() || endpoint.query.is_some() {
            let message = "OTLP over gRPC has no path; write scheme, host and the receiver's gRPC port, usually 4317";
            self.error(&KeyPath::root().key("otlp").key("endpoint"), message.to_owned());
        }
        Otlp { endpoint, enabled: raw.enabled }
    }

    fn upgrade_socket(&mut self, path: &str) -> PathBuf {
        /// What the kernel takes, less the suffix of one in the making.
        const MOST_BYTES: usize = 95;
        let full = self.file(path);
        if full.as_os_str().len() > MOST_BYTES {
            let path = KeyPath::root().key("server").key("upgrade_socket");
            self.error(&path, format!("a socket's path has at most {MOST_BYTES} bytes; choose a shorter one"));
        }
        full
    }

    pub(super) fn log(&mut self, raw: &raw::Log, path: &KeyPath) -> Log {
        let file = (raw.file.0 != "stderr").then(|| self.file(&raw.file.0));
        if let Some(folder) = file.as_ref().and_then(|file| file.parent())
            && !folder.as_os_str().is_empty()
            && !folder.is_dir()
        {
            self.error(
                &path.key("file"),
                format!("the folder of {} is not there; make it", self.written(&path.key("file"))),
            );
        }
        let level = match raw.level {
            raw::Level::Off => log::LevelFilter::Off,
            raw::Level::Error => log::LevelFilter::Error,
            raw::Level::Warn => log::LevelFilter::Warn,
            raw::Level::Info => log::LevelFilter::Info,
            raw::Level::Debug => log::LevelFilter::Debug,
            raw::Level::Trace => log::LevelFilter::Trace,
        };
        Log { format: raw.format, level, access_permille: raw.access.0, file }
    }
}

/// Port 0 never clashes: the system chooses a free one.
fn clash(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() != 0 && one == other
}
