//! The operators' listener: health, readiness, metrics, the ledger's pages, keys and switches (C2, C4, G1, L6).
//!
//! The server adds its address. Touches the metrics' registry and the readiness word, and reads the ledger's
//! file, off the runtime's workers.

mod api;
mod control;
mod guard;
mod limits;
mod overview;
mod query;
mod requests;
#[cfg(test)]
mod tests;

pub use control::Control;

use crate::config::{Finding, Report, Secret};
use crate::console;
use crate::gateway::Shared;
use crate::ledger::sink::SinkWatch;
use crate::ledger::{Health, Ledger};
use crate::metrics::Metrics;
use arc_swap::{ArcSwap, ArcSwapOption};
use async_trait::async_trait;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, WWW_AUTHENTICATE};
use http::{Method, Response, StatusCode};
use pingora_core::apps::http_app::ServeHttp;
use pingora_core::protocols::http::ServerSession;
use pingora_core::services::listening::Service;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use subtle::ConstantTimeEq;

/// What `/readyz` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Readiness {
    /// Not serving yet: 503.
    Starting,
    /// Serving: 200.
    Ready,
    /// Shutting down (C3): 503.
    Draining,
}

/// Loads the operator's file anew when the admin API asks for it (C2).
pub trait Reload: std::fmt::Debug + Send + Sync {
    /// Blocks on the disk.
    ///
    /// # Errors
    /// What is wrong with the file; nothing has changed then.
    fn reload(&self) -> Result<Reloaded, Report>;
}

/// What a reload did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// One line per section or name; empty: nothing.
    pub changed: Vec<String>,
    /// Keys whose new value waits for a restart or an upgrade.
    pub needs_restart: Vec<&'static str>,
}

/// What the admin listener shows.
#[derive(Debug)]
pub struct AdminState {
    metrics: Arc<Metrics>,
    readiness: AtomicU8,
    token: ArcSwapOption<Secret>,
    /// The ledger's file.
    ledger: PathBuf,
    watched: OnceLock<(Ledger, Option<SinkWatch>)>,
    reload: OnceLock<Arc<dyn Reload>>,
    /// What was wrong with the last config that was loaded; empty: nothing.
    refused: ArcSwap<Vec<String>>,
    /// What the gateway's requests share, once it runs.
    shared: OnceLock<Arc<Shared>>,
    control: OnceLock<Arc<Control>>,
}

impl AdminState {
    /// Starts as [`Readiness::Starting`]. `ledger` is the file that the `/api` pages read.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>, token: Option<Secret>, ledger: PathBuf) -> Self {
        let token = ArcSwapOption::from(token.map(Arc::new));
        Self {
            metrics,
            readiness: AtomicU8::new(0),
            token,
            ledger,
            watched: OnceLock::new(),
            reload: OnceLock::new(),
            refused: ArcSwap::default(),
            shared: OnceLock::new(),
            control: OnceLock::new(),
        }
    }

    /// Shows the numbers of the open ledger and its sink among the metrics, read when they are asked for.
    /// Once; a second call changes nothing.
    pub fn watch(&self, ledger: Ledger, sink: Option<SinkWatch>) {
        let _is_first = self.watched.set((ledger, sink));
    }

    /// Shows the gateway's requests and targets. Once; a second call changes nothing.
    pub fn attach(&self, shared: Arc<Shared>) {
        let _is_first = self.shared.set(shared);
    }

    /// Lets operators change keys and switches. Once; a second call changes nothing.
    pub fn control(&self, control: Control) {
        let _is_first = self.control.set(Arc::new(control));
    }

    /// Changes what `/readyz` says.
    pub fn set_readiness(&self, readiness: Readiness) {
        self.readiness.store(readiness as u8, Ordering::Release);
    }

    /// What `/readyz` says.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        match self.readiness.load(Ordering::Acquire) {
            0 => Readiness::Starting,
            1 => Readiness::Ready,
            _ => Readiness::Draining,
        }
    }

    /// Lets the admin API ask for reloads. Once; a second call changes nothing.
    pub fn reloads_by(&self, reload: Arc<dyn Reload>) {
        let _is_first = self.reload.set(reload);
    }

    /// Tells what was wrong with the last config, for `/readyz`; empty: nothing.
    pub fn set_refused(&self, findings: Vec<String>) {
        self.refused.store(Arc::new(findings));
    }

    /// Takes the token of a reloaded config (C2).
    pub fn set_token(&self, token: Option<Secret>) {
        self.token.store(token.map(Arc::new));
    }
}

/// The HTTP application.
#[derive(Debug)]
pub struct App {
    state: Arc<AdminState>,
}

/// The service without an address; the server adds it.
#[must_use]
pub fn service(state: Arc<AdminState>) -> Service<App> {
    Service::new("admin".to_owned(), App { state })
}

#[async_trait]
impl ServeHttp for App {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        if control::is_page(session.req_header().uri.path()) {
            return self.control(session).await;
        }
        let head = session.req_header();
        let authorization = head.headers.get(http::header::AUTHORIZATION);
        let authorization = authorization.map_or(&[][..], http::HeaderValue::as_bytes);
        let answer = if api::is_page(head.uri.path()) || head.uri.path() == RELOAD {
            let has_token = self.state.token.load().is_some();
            if let Err(refused) = guard::guard(&head.method, &head.headers, has_token, false) {
                session.set_keepalive(None);
                return *refused;
            }
            let (state, method, uri) = (Arc::clone(&self.state), head.method.clone(), head.uri.clone());
            let authorization = authorization.to_vec();
            let work = move || state.answer(&method, uri.path(), uri.query().unwrap_or_default(), &authorization);
            tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| broken(&error))
        } else {
            self.state.answer(&head.method, head.uri.path(), "", authorization)
        };
        if answer.status() == StatusCode::METHOD_NOT_ALLOWED {
            // A body that nobody read may follow.
            session.set_keepalive(None);
        }
        answer
    }
}

impl App {
    /// The pages that change something; the store may block, so it has a thread of its own.
    async fn control(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let head = session.req_header();
        let authorization = head.headers.get(http::header::AUTHORIZATION);
        if !self.state.may_read(authorization.map_or(&[][..], http::HeaderValue::as_bytes)) {
            session.set_keepalive(None);
            return unauthorized();
        }
        let has_token = self.state.token.load().is_some();
        if let Err(refused) = guard::guard(&head.method, &head.headers, has_token, true) {
            session.set_keepalive(None);
            return *refused;
        }
        let Some(control) = self.state.control.get().map(Arc::clone) else {
            return answer_json(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error": "starting" }));
        };
        let (method, uri) = (head.method.clone(), head.uri.clone());
        let (path, query) = (uri.path().to_owned(), uri.query().unwrap_or_default().to_owned());
        let from = session.client_addr().map(ToString::to_string).unwrap_or_default();
        let Some(body) = whole_body(session).await else {
            session.set_keepalive(None);
            return answer_json(
                StatusCode::PAYLOAD_TOO_LARGE,
                &json!({ "error": "the body is too large, or broke off" }),
            );
        };
        let ask = control::Ask { method, path, query, body, from };
        let runtime = tokio::runtime::Handle::current();
        let work = tokio::task::spawn_blocking(move || runtime.block_on(control.answer(&ask)));
        work.await.unwrap_or_else(|error| broken(&error))
    }
}

/// `None`: too large, or broken off.
async fn whole_body(session: &mut ServerSession) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(piece) = session.read_request_body().await.ok()? {
        body.extend_from_slice(&piece);
        if body.len() > control::MAX_BODY {
            return None;
        }
    }
    Some(body)
}

fn broken(error: &tokio::task::JoinError) -> Response<Vec<u8>> {
    log::error!(error:%; "an admin page broke");
    answer_json(StatusCode::INTERNAL_SERVER_ERROR, &json!({ "error": "the page broke; see the log" }))
}

fn unauthorized() -> Response<Vec<u8>> {
    let body = json!({ "error": "this needs the admin token, as authorization: Bearer" });
    with(answer_json(StatusCode::UNAUTHORIZED, &body), WWW_AUTHENTICATE, "Bearer")
}

impl AdminState {
    /// The answer to a request. Health and readiness are free, since load balancers and
    /// orchestrators ask for them; all else needs the token, if there is one.
    fn answer(&self, method: &Method, path: &str, query: &str, authorization: &[u8]) -> Response<Vec<u8>> {
        if let Some(asset) = console::console(path).filter(|_| matches!(*method, Method::GET | Method::HEAD)) {
            // The page holds no secret, and asks for the token by itself.
            let mut page = answer(StatusCode::OK, asset.kind, asset.body.into());
            for (name, value) in asset.headers() {
                page.headers_mut().insert(name, http::HeaderValue::from_static(value));
            }
            return page;
        }
        let health = matches!(path, "/healthz" | "/readyz");
        if !health && !self.may_read(authorization) {
            return unauthorized();
        }
        if !health && path != "/metrics" && path != RELOAD && !api::is_page(path) {
            let pages = [&PAGES[..], &api::PAGES[..]].concat();
            let body = json!({ "error": "there is no such page", "pages": pages });
            return answer_json(StatusCode::NOT_FOUND, &body);
        }
        if path == RELOAD {
            return if *method == Method::POST {
                self.reload()
            } else {
                let body = json!({ "error": "only POST" });
                with(answer_json(StatusCode::METHOD_NOT_ALLOWED, &body), ALLOW, "POST")
            };
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            let body = json!({ "error": "only GET and HEAD" });
            return with(answer_json(StatusCode::METHOD_NOT_ALLOWED, &body), ALLOW, "GET, HEAD");
        }
        match path {
            "/metrics" => answer(StatusCode::OK, prometheus::TEXT_FORMAT, self.render()),
            "/readyz" => self.ready(self.may_read(authorization)),
            "/healthz" => answer_json(StatusCode::OK, &json!({ "status": "ok" })),
            _ => {
                let (shared, ready) = (self.shared.get().map(Arc::as_ref), self.readiness() == Readiness::Ready);
                api::answer(shared, ready, &self.ledger, path, query)
            }
        }
    }

    fn render(&self) -> Vec<u8> {
        if let Some(remote) = self.shared.get().and_then(|shared| shared.limits.remote()) {
            self.metrics.limit_store(remote.is_up());
        }
        if let Some((ledger, sink)) = self.watched.get() {
            self.metrics.ledger(&ledger.stats(), ledger.health() == Health::Ok);
            if let Some(sink) = sink {
                self.metrics.sink(&sink.read());
            }
        }
        self.metrics.render()
    }

    /// The config's mistakes are for those who may read the other pages.
    fn ready(&self, trusted: bool) -> Response<Vec<u8>> {
        let (status, word) = match self.readiness() {
            Readiness::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting"),
            Readiness::Ready => (StatusCode::OK, "ready"),
            Readiness::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        };
        let refused = self.refused.load();
        if refused.is_empty() {
            return answer_json(status, &json!({ "status": word }));
        }
        let errors = refused.iter().take(if trusted { MOST_FINDINGS } else { 0 }).collect::<Vec<_>>();
        let config = json!({ "status": "refused", "in_force": "the settings before it", "errors": errors });
        answer_json(status, &json!({ "status": word, "config": config }))
    }

    /// `POST /api/reload`.
    fn reload(&self) -> Response<Vec<u8>> {
        let Some(reload) = self.reload.get() else {
            return answer_json(StatusCode::NOT_FOUND, &json!({ "error": "there is nothing to reload" }));
        };
        match reload.reload() {
            Ok(Reloaded { changed, needs_restart }) => {
                let body = json!({ "status": "ok", "changed": changed, "needs_restart": needs_restart });
                answer_json(StatusCode::OK, &body)
            }
            Err(report) => {
                let error = |finding: &Finding| {
                    let Finding { file, line, column, path, message } = finding;
                    json!({ "file": file, "line": line, "column": column, "path": path, "message": message })
                };
                let errors: Vec<_> = report.findings.iter().map(error).collect();
                answer_json(StatusCode::UNPROCESSABLE_ENTITY, &json!({ "status": "refused", "errors": errors }))
            }
        }
    }

    /// Whether the header carries the token. Digests are compared, in constant time, so that
    /// neither the token's length nor its beginning can be measured.
    fn may_read(&self, authorization: &[u8]) -> bool {
        let token = self.token.load();
        let Some(token) = token.as_deref() else { return true };
        let Some((scheme, given)) = authorization.split_at_checked(BEARER.len()) else { return false };
        let equal = Sha256::digest(given.trim_ascii()).ct_eq(&Sha256::digest(token.expose()));
        scheme.eq_ignore_ascii_case(BEARER) && bool::from(equal)
    }
}

const BEARER: &[u8] = b"Bearer ";
/// For whoever asks for another.
const PAGES: [&str; 9] = [
    "/console",
    "/healthz",
    "/readyz",
    "/metrics",
    RELOAD,
    "/api/keys",
    "/api/keys/NAME",
    "/api/targets",
    "/api/switches",
];
/// Loads the config anew.
const RELOAD: &str = "/api/reload";
/// Of a refused config; the log has all.
const MOST_FINDINGS: usize = 10;

fn answer_json(status: StatusCode, body: &serde_json::Value) -> Response<Vec<u8>> {
    answer(status, "application/json", format!("{body}\n").into_bytes())
}

fn answer(status: StatusCode, kind: &'static str, body: Vec<u8>) -> Response<Vec<u8>> {
    let length = body.len();
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    // Without a length Pingora would end the body by closing the connection.
    answer.headers_mut().insert(CONTENT_LENGTH, length.into());
    with(with(answer, CONTENT_TYPE, kind), CACHE_CONTROL, "no-store")
}

fn with(mut answer: Response<Vec<u8>>, name: HeaderName, value: &'static str) -> Response<Vec<u8>> {
    answer.headers_mut().insert(name, http::HeaderValue::from_static(value));
    answer
}
