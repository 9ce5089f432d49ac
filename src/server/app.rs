//! Pingora's proxy with a bound on slow beginnings and slow heads (B1).
//!
//! Called by Pingora's listeners, once per connection, and again once per request on it.

use super::doors::is_refused;
use super::proxied::read_header;
use crate::gateway::{Gateway, Passage, Shared, enter, over};
use async_trait::async_trait;
use pingora_core::apps::{HttpPersistentSettings, HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora_core::listeners::tls::Acceptor;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::H2Options;
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::protocols::l4::stream::Stream as L4Stream;
use pingora_core::protocols::{ALPN, GetSocketDigest, SocketDigest, Stream};
use pingora_core::server::ShutdownWatch;
use pingora_proxy::HttpProxy;
use std::cell::Cell;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

tokio::task_local! {
    /// How far a connection that may become HTTP/2 has come.
    static BEGUN: Cell<Begun>;
}

/// Connections beyond `max_connections` that are told so; further ones are closed without a word.
const TOLD: u64 = 256;

/// Streams of one client's HTTP/2 connection at once; what is beyond waits at the client.
const HTTP2_STREAMS: u32 = 100;
/// What a client may send of one body before Weir has read it: an upload of 100 ms round trip still gets 2.5 MB/s.
const HTTP2_STREAM_WINDOW: u32 = 256 * 1024;
/// The same of a whole connection; bounds its memory.
const HTTP2_CONNECTION_WINDOW: u32 = 1024 * 1024;
/// As large as HTTP/1.1 heads may be.
const HTTP2_HEAD_BYTES: u32 = 64 * 1024;

/// What an HTTP/2 client may do.
pub(super) fn http2() -> H2Options {
    let mut options = H2Options::default();
    options
        .max_concurrent_streams(HTTP2_STREAMS)
        .initial_window_size(HTTP2_STREAM_WINDOW)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
        .max_header_list_size(HTTP2_HEAD_BYTES);
    options
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

/// A listener's connections: one that may become HTTP/2 has to begin within the bound of a head.
///
/// Pingora waits for the preface without a bound (HTTP/1 heads have theirs in [`App`]). It asks
/// for the options of HTTP/2 before that and for those of the server after it, which tells how
/// far it is.
pub(super) struct Connections {
    app: Arc<App>,
    shared: Arc<Shared>,
    front: Option<Front>,
    /// Turns true when each answer is the last one on its connection: Pingora's own signal comes when all is over.
    leaving: ShutdownWatch,
    /// [`Self::beat`] was called.
    beats: AtomicBool,
}

/// What stands in front of HTTP on a listener with `proxy_protocol`, which Pingora's own TLS would not let through.
pub(super) struct Front {
    /// TLS behind the PROXY header, if the listener has it.
    pub(super) tls: Option<Acceptor>,
}

impl Connections {
    #[must_use]
    pub(super) fn new(app: App, shared: Arc<Shared>, front: Option<Front>) -> Self {
        let leaving = shared.leaving.subscribe();
        Self { app: Arc::new(app), shared, front, leaving, beats: AtomicBool::new(false) }
    }

    /// From the first connection on the runtime has a timer that is always near.
    ///
    /// Tokio wakes its own driver, by a write and an extra turn, for each timer that is earlier than all
    /// that it knew when it last slept; a request sets several.
    fn beat(&self) {
        const BEAT: Duration = Duration::from_millis(500);
        if self.beats.swap(true, Ordering::Relaxed) {
            return;
        }
        tokio::spawn(async {
            loop {
                tokio::time::sleep(BEAT).await;
            }
        });
    }

    /// Reads the PROXY header, and makes its address the connection's; then TLS.
    async fn behind(&self, front: &Front, stream: Stream) -> io::Result<Stream> {
        let foreign = || io::Error::new(io::ErrorKind::Unsupported, "not a plain socket");
        let mut stream = stream.into_any().downcast::<L4Stream>().map_err(|_| foreign())?;
        let header = tokio::time::timeout(self.app.header_timeout, read_header(&mut stream));
        if let Some(client) = header.await?? {
            let digest = SocketDigest::from_raw_fd(stream.as_raw_fd());
            let _ = digest.peer_addr.set(Some(SocketAddr::Inet(client)));
            stream.set_socket_digest(digest);
        }
        let Some(tls) = &front.tls else { return Ok(stream) };
        let handshake = tokio::time::timeout(self.app.header_timeout, tls.tls_handshake(*stream));
        Ok(Box::new(handshake.await?.map_err(io::Error::other)?))
    }

    /// `None`: it may stay; `Some(true)`: it is told that it is one too many; `Some(false)`: it is closed.
    fn one_too_many(&self, place: u64) -> Option<bool> {
        let max = self.shared.live.load().config.server.max_connections?;
        (place > max).then_some(place <= max.saturating_add(TOLD))
    }
}

#[async_trait]
impl ServerApp for Connections {
    async fn process_new(self: &Arc<Self>, stream: Stream, _: &ShutdownWatch) -> Option<Stream> {
        self.beat();
        let shutdown = &self.leaving;
        let connection = self.shared.load.connected();
        let one_too_many = self.one_too_many(connection.place);
        if one_too_many == Some(false) {
            return None;
        }
        let stream = match &self.front {
            None => stream,
            Some(front) => match Box::pin(self.behind(front, stream)).await {
                Ok(stream) => stream,
                Err(error) => {
                    log::debug!(error:%; "a connection was closed at its PROXY header or TLS");
                    return None;
                }
            },
        };
        if is_refused(&stream) {
            log::debug!("a connection was closed: its resumed TLS session would not be begun now");
            return None;
        }
        let may_be_http2 = self.app.proxy.server_options().is_some_and(|options| options.h2c)
            || matches!(stream.selected_alpn_proto(), Some(ALPN::H2));
        if one_too_many.is_some() {
            // The requests of an HTTP/2 connection run in tasks of their own, which would not know.
            return if may_be_http2 { None } else { over(self.app.process_new(stream, shutdown)).await };
        }
        if !may_be_http2 {
            // Pingora's task, which had room for a TLS handshake and for HTTP/2 (9 KiB), ends here.
            let (app, shutdown) = (Arc::clone(&self.app), shutdown.clone());
            tokio::spawn(async move {
                let _connection = connection;
                app.http1(stream, &shutdown).await;
            });
            return None;
        }
        let work = BEGUN.scope(Cell::new(Begun::No), async {
            let mut work = self.app.process_new(stream, shutdown);
            if let Ok(done) = tokio::time::timeout(self.app.header_timeout, &mut work).await {
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

    /// The listeners are closed. Pingora would drop idle connections now; here a late request on one is answered.
    async fn cleanup(&self) {}
}

/// The proxy, bounded.
pub(super) struct App {
    proxy: Arc<HttpProxy<Gateway>>,
    gateway: Gateway,
    header_timeout: Duration,
}

impl App {
    /// `header_timeout` bounds the time to a whole head on a new connection; a kept one may be
    /// idle first.
    #[must_use]
    pub(super) fn new(proxy: HttpProxy<Gateway>, gateway: Gateway, header_timeout: Duration) -> Self {
        Self { proxy: Arc::new(proxy), gateway, header_timeout }
    }

    /// The requests of an HTTP/1 connection, one after the other, as Pingora's own loop has them; but
    /// that one keeps 4 KiB for HTTP/2 as long as the connection lives.
    async fn http1(&self, mut stream: Stream, shutdown: &ShutdownWatch) {
        let mut kept: Option<HttpPersistentSettings> = None;
        let mut is_first = true;
        loop {
            let request = {
                let mut session = ServerSession::new_http1(stream);
                if std::mem::take(&mut is_first) {
                    session.set_keepalive((!*shutdown.borrow()).then_some(60));
                }
                if let Some(kept) = kept.take() {
                    kept.apply_to_session(&mut session);
                }
                self.request(session, shutdown)
            };
            let Some(reused) = request.await else { return };
            (stream, kept) = reused.consume();
        }
    }

    /// One request. Not an `async fn`: the session goes straight into Pingora's future.
    fn request<'a>(
        &'a self,
        mut session: ServerSession,
        shutdown: &'a ShutdownWatch,
    ) -> impl Future<Output = Option<ReusedHttpStream>> + Send + 'a {
        let mut bound = self.header_timeout;
        if let Some(kept) = session.take_connection_user_context() {
            session.set_connection_user_context(Some(kept));
            bound += session.get_keepalive().map_or(Duration::ZERO, Duration::from_secs);
        }
        let passage = enter(self.proxy.process_new_http(session, shutdown), bound);
        async move {
            match passage.await {
                Passage::Through(reused) => reused,
                Passage::Left(departed) => Box::pin(self.gateway.attend(departed)).await,
                Passage::TooSlow => {
                    log::debug!("a request's head was too slow: the connection is closed");
                    None
                }
            }
        }
    }
}

#[async_trait]
impl HttpServerApp for App {
    async fn process_new_http(
        self: &Arc<Self>,
        session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        begun(Begun::Yes);
        if session.is_http2() {
            return self.proxy.process_new_http(session, shutdown).await;
        }
        self.request(session, shutdown).await
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
