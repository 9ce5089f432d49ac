//! Pingora's proxy with a bound on slow beginnings and slow heads (B1).
//!
//! Called by Pingora's listeners, once per connection, and again once per request on it.

use crate::gateway::Gateway;
use async_trait::async_trait;
use pingora_core::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::H2Options;
use pingora_core::protocols::{ALPN, Stream};
use pingora_core::server::ShutdownWatch;
use pingora_proxy::HttpProxy;
use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

tokio::task_local! {
    /// The head of the request that this task serves has been read.
    static HEAD_READ: Cell<bool>;
    /// How far a connection that may become HTTP/2 has come.
    static BEGUN: Cell<Begun>;
}

/// The beginning of a connection that may become HTTP/2.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begun {
    /// It is not known yet which protocol the client speaks.
    No,
    /// HTTP/2, and its preface is waited for.
    Preface,
    /// Requests are served; their own bounds apply.
    Yes,
}

fn begun(next: Begun) {
    let _ = BEGUN.try_with(|begun| begun.set(next));
}

/// Called when a request's context is made, which is right after its head was read.
pub fn head_was_read() {
    let _ = HEAD_READ.try_with(|read| read.set(true));
}

/// A listener's connections: one that may become HTTP/2 has to begin within the bound of a head.
///
/// Pingora waits for the preface without a bound (HTTP/1 heads have theirs in [`App`]). It asks
/// for the options of HTTP/2 before that and for those of the server after it, which tells how
/// far it is.
pub(super) struct Connections(Arc<App>);

impl Connections {
    #[must_use]
    pub(super) fn new(app: App) -> Self {
        Self(Arc::new(app))
    }
}

#[async_trait]
impl ServerApp for Connections {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let may_be_http2 = self.0.proxy.server_options().is_some_and(|options| options.h2c)
            || matches!(stream.selected_alpn_proto(), Some(ALPN::H2));
        if !may_be_http2 {
            return self.0.process_new(stream, shutdown).await;
        }
        let work = BEGUN.scope(Cell::new(Begun::No), async {
            let mut work = self.0.process_new(stream, shutdown);
            if let Ok(done) = tokio::time::timeout(self.0.header_timeout, &mut work).await {
                return done;
            }
            if BEGUN.with(Cell::get) != Begun::Yes {
                log::debug!("a connection did not begin in time: it is closed");
                return None;
            }
            work.await
        });
        work.await
    }

    async fn cleanup(&self) {
        self.0.cleanup().await;
    }
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
        begun(Begun::Yes);
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
        if matches!(BEGUN.try_with(Cell::get), Ok(Begun::Preface)) {
            begun(Begun::Yes);
        }
        self.proxy.server_options()
    }

    fn h2_options(&self) -> Option<H2Options> {
        begun(Begun::Preface);
        self.proxy.h2_options()
    }
}
