//! Pingora's proxy with a bound on slow heads (B1).
//!
//! Called by Pingora's listeners, once per request on a connection.

use crate::gateway::Gateway;
use async_trait::async_trait;
use pingora_core::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::H2Options;
use pingora_core::server::ShutdownWatch;
use pingora_proxy::HttpProxy;
use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

tokio::task_local! {
    /// The head of the request that this task serves has been read.
    static HEAD_READ: Cell<bool>;
}

/// Called when a request's context is made, which is right after its head was read.
pub fn head_was_read() {
    let _ = HEAD_READ.try_with(|read| read.set(true));
}

/// The proxy, bounded.
pub(super) struct App {
    proxy: Arc<HttpProxy<Gateway>>,
    header_timeout: Duration,
}

impl App {
    /// `header_timeout` bounds the time to a whole head on a new connection; a kept one may be
    /// idle first.
    #[must_use]
    pub(super) fn new(proxy: HttpProxy<Gateway>, header_timeout: Duration) -> Self {
        Self { proxy: Arc::new(proxy), header_timeout }
    }
}

#[async_trait]
impl HttpServerApp for App {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        if session.is_http2() {
            return self.proxy.process_new_http(session, shutdown).await;
        }
        let mut bound = self.header_timeout;
        if let Some(kept) = session.take_connection_user_context() {
            session.set_connection_user_context(Some(kept));
            bound += session.get_keepalive().map_or(Duration::ZERO, Duration::from_secs);
        }
        let bound = tokio::time::sleep(bound);
        let work = HEAD_READ.scope(Cell::new(false), async {
            let mut work = pin!(self.proxy.process_new_http(session, shutdown));
            let mut bound = pin!(bound);
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = &mut bound => {}
            }
            if !HEAD_READ.with(Cell::get) {
                log::debug!("a request's head was too slow: the connection is closed");
                return None;
            }
            work.await
        });
        work.await
    }

    async fn http_cleanup(&self) {
        self.proxy.http_cleanup().await;
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        self.proxy.server_options()
    }

    fn h2_options(&self) -> Option<H2Options> {
        self.proxy.h2_options()
    }
}
