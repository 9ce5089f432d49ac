//! One call to one target: connect, send, wait for the head.
//!
//! Called by the pump, once per attempt, inside its select. Touches the network and the pool of
//! connections; knows nothing of the client.

use super::resolve::Resolver;
use super::site::Site;
use crate::config::Timeouts;
use crate::outcome::Failure;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version, header};
use pingora_core::connectors::ConnectorOptions;
use pingora_core::connectors::http::{v1, v2};
use pingora_core::protocols::http::client::HttpSession;
use pingora_core::protocols::http::v1::client::HttpSession as Http1;
use pingora_core::protocols::http::v2::client::PING_TIMEDOUT;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType};
use pingora_http::RequestHeader;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// One write of the upload; each has `timeouts.send` for itself.
const SEND_PIECE_BYTES: usize = 64 * 1024;
/// An upstream that refuses in the middle of the upload has said why already; its head is there at once.
const EARLY_ANSWER: Duration = Duration::from_secs(1);
/// Informational heads (1xx) that are passed over before the final one; more than any server sends.
const MAX_INFORMATIONAL: usize = 32;
/// Idle upstream connections kept, in all.
const POOL_SIZE: usize = 512;

/// The connections to all providers; outlives reloads.
///
/// Pingora's two pools side by side, as its own connector has them; but that one's future has room for
/// a TLS handshake (10 KiB), also where a connection is there already.
pub struct Connections {
    http1: v1::Connector,
    http2: v2::Connector,
    /// Names and their addresses.
    pub resolver: Resolver,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").field("resolver", &self.resolver).finish_non_exhaustive()
    }
}

/// What is sent, without its credentials: the same for every target but for model and path.
#[derive(Debug)]
pub struct Call {
    /// The request's head, ready for HTTP/1.1.
    pub head: RequestHeader,
    /// The body, in pieces.
    pub body: Vec<Bytes>,
}

/// The upstream's head is here.
pub struct Answer {
    /// Where the body comes from.
    pub session: HttpSession,
    /// For the way back to the pool.
    peer: Arc<HttpPeer>,
    /// The last byte of the request was sent.
    pub sent: Instant,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answer").field("sent", &self.sent).finish_non_exhaustive()
    }
}

/// A try on one connection came to nothing.
struct Lost {
    failure: Failure,
    again: Again,
}

/// Whether another connection may be tried without a second attempt (A11, B134).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    /// The request may have been worked on.
    No,
    /// It ended in silence: a pooled connection was dead before the request reached it.
    IfPooled,
    /// The server said that it did not look at it.
    Yes,
}

impl Connections {
    /// An empty pool. `roots` are the system's, unless a provider has its own.
    #[must_use]
    pub fn new() -> Self {
        let options = ConnectorOptions::new(POOL_SIZE);
        Self {
            http1: v1::Connector::new(Some(options.clone())),
            http2: v2::Connector::new(Some(options)),
            resolver: Resolver::default(),
        }
    }

    /// The addresses of a site, best first.
    ///
    /// # Errors
    /// [`Failure::Resolve`].
    pub async fn peers(&self, site: &Site) -> Result<Vec<Arc<HttpPeer>>, Failure> {
        let (host, port) = site.way();
        match self.resolver.addresses(host, port).await {
            Ok(addresses) => Ok(addresses.into_iter().map(|address| site.peer(address)).collect()),
            Err(error) => {
                log::warn!(provider = site.provider.name.as_str(), error:%; "provider cannot be found");
                Err(Failure::Resolve)
            }
        }
    }

    /// Connects, sends and waits for the head, within the clocks of S1.
    ///
    /// # Errors
    /// Why there is no head; nothing is left open then.
    pub async fn call(&self, site: &Site, call: &Call, timeouts: &Timeouts) -> Result<Box<Answer>, Failure> {
        let (session, peer, reused) = self.connect(site, timeouts, true).await?;
        let lost = match exchange(session, &peer, site, call, timeouts).await {
            Ok((session, sent)) => return Ok(Box::new(Answer { session, peer, sent })),
            Err(lost) => lost,
        };
        match lost.again {
            Again::Yes => {}
            Again::IfPooled if reused => {}
            Again::IfPooled | Again::No => return Err(lost.failure),
        }
        Box::pin(self.call_afresh(site, call, timeouts)).await
    }

    /// The same once more, on a new connection (A11).
    async fn call_afresh(&self, site: &Site, call: &Call, timeouts: &Timeouts) -> Result<Box<Answer>, Failure> {
        let (session, peer, _) = self.connect(site, timeouts, false).await?;
        match exchange(session, &peer, site, call, timeouts).await {
            Ok((session, sent)) => Ok(Box::new(Answer { session, peer, sent })),
            Err(lost) => Err(lost.failure),
        }
    }

    /// Gives a connection back whose answer was read to its end, closes another.
    pub async fn done(&self, answer: Box<Answer>, has_ended: bool) {
        let Answer { mut session, peer, .. } = *answer;
        if !has_ended {
            session.shutdown().await;
            return;
        }
        match session {
            HttpSession::H1(session) => {
                self.http1.release_http_session(session, &*peer, peer.options.idle_timeout).await;
            }
            HttpSession::H2(session) => self.http2.release_http_session(session, &*peer, peer.options.idle_timeout),
            HttpSession::Custom(()) => {}
        }
    }

    /// A connection, and whether it was used before; with `may_reuse` false it was not.
    async fn connect(
        &self,
        site: &Site,
        timeouts: &Timeouts,
        may_reuse: bool,
    ) -> Result<(HttpSession, Arc<HttpPeer>, bool), Failure> {
        // Pinned here: given to the timeout by value, it would be moved there byte for byte.
        let connecting = pin!(async {
            let peers = self.peers(site).await?;
            let share = timeouts.connect / u32::try_from(peers.len().max(1)).unwrap_or(1);
            let mut failure = Failure::Connect;
            for peer in peers {
                if may_reuse && let Some(session) = self.reused(&peer).await {
                    return Ok((session, peer, true));
                }
                match timeout(share, Box::pin(self.fresh(&peer))).await {
                    Ok(Ok(session)) => {
                        if let Some(address) = peer._address.as_inet() {
                            let (host, port) = site.way();
                            self.resolver.worked(host, port, *address);
                        }
                        return Ok((session, peer, false));
                    }
                    Ok(Err(error)) => {
                        log::debug!(provider = site.provider.name.as_str(), error:%; "cannot connect");
                        failure = connect_failure(&error);
                    }
                    Err(_) => failure = Failure::ConnectTimeout,
                }
            }
            Err(failure)
        });
        timeout(timeouts.connect, connecting).await.unwrap_or(Err(Failure::ConnectTimeout))
    }

    /// A connection that lies in a pool: a stream of an HTTP/2 one, where the site may speak it, before
    /// an HTTP/1.1 one, where it must not.
    async fn reused(&self, peer: &HttpPeer) -> Option<HttpSession> {
        let alpn = &peer.options.alpn;
        if alpn.get_max_http_version() == 2
            && let Ok(Some(session)) = self.http2.reused_http_session(peer).await
        {
            return Some(HttpSession::H2(session));
        }
        if alpn.get_min_http_version() == 2 {
            return None;
        }
        self.http1.reused_http_session(peer).await.map(HttpSession::H1)
    }

    /// A new connection.
    async fn fresh(&self, peer: &HttpPeer) -> pingora_core::Result<HttpSession> {
        if peer.options.alpn.get_max_http_version() == 2 {
            return self.http2.new_http_session(peer).await;
        }
        let stream = self.http2.transport().new_stream(peer).await?;
        Ok(HttpSession::H1(Http1::new_with_options(stream, peer)))
    }
}

impl Default for Connections {
    fn default() -> Self {
        Self::new()
    }
}

fn connect_failure(error: &Error) -> Failure {
    match error.etype() {
        ErrorType::ConnectTimedout | ErrorType::TLSHandshakeTimedout => Failure::ConnectTimeout,
        _ => Failure::Connect,
    }
}

/// Sends the request and waits for the final head.
async fn exchange(
    mut session: HttpSession,
    peer: &HttpPeer,
    site: &Site,
    call: &Call,
    timeouts: &Timeouts,
) -> Result<(HttpSession, Instant), Lost> {
    let sending = send(&mut session, peer, site, call, timeouts).await;
    let sent = Instant::now();
    let wait = match &sending {
        Ok(()) => timeouts.first_byte,
        Err(Lost { failure: Failure::Send, .. }) => EARLY_ANSWER,
        Err(_) => Duration::ZERO,
    };
    let reading = timeout(wait, pin!(read_head(&mut session))).await;
    let head = match reading {
        Ok(Ok(())) => return Ok((session, sent)),
        Ok(Err(error)) => Err(lost_head(&error)),
        Err(_) => Err(Lost { failure: Failure::FirstByte, again: Again::No }),
    };
    session.shutdown().await;
    sending?;
    head.map(|()| (session, sent))
}

async fn send(
    session: &mut HttpSession,
    peer: &HttpPeer,
    site: &Site,
    call: &Call,
    timeouts: &Timeouts,
) -> Result<(), Lost> {
    let head = match session {
        HttpSession::H1(_) | HttpSession::Custom(()) => call.head.clone(),
        HttpSession::H2(_) => for_http2(&call.head, peer, site),
    };
    step(timeouts, session.write_request_header(Box::new(head))).await?;
    for piece in &call.body {
        let mut rest = piece.clone();
        while !rest.is_empty() {
            let part = rest.split_to(rest.len().min(SEND_PIECE_BYTES));
            step(timeouts, session.write_request_body(part, false)).await?;
        }
    }
    step(timeouts, session.finish_request_body()).await
}

async fn step(timeouts: &Timeouts, work: impl Future<Output = pingora_core::Result<()>>) -> Result<(), Lost> {
    match timeout(timeouts.send, pin!(work)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            log::debug!(error:%; "sending a request failed");
            Err(Lost { failure: Failure::Send, again: Again::IfPooled })
        }
        Err(_) => Err(Lost { failure: Failure::SendTimeout, again: Again::No }),
    }
}

/// Waits for the final head; informational ones (1xx) are passed over.
async fn read_head(session: &mut HttpSession) -> pingora_core::Result<()> {
    let mut passed = 0;
    loop {
        session.read_response_header().await?;
        let status = session.response_header().map_or(0, |head| head.status.as_u16());
        if !(100..200).contains(&status) {
            break;
        }
        passed += 1;
        if passed > MAX_INFORMATIONAL {
            return Error::e_explain(ErrorType::InvalidHTTPHeader, "informational heads without end");
        }
    }
    if let HttpSession::H1(session) = session {
        session.respect_keepalive();
    }
    Ok(())
}

fn lost_head(error: &Error) -> Lost {
    log::debug!(error:%; "no head from upstream");
    let h2 = error.cause.as_ref().and_then(|cause| cause.downcast_ref::<h2::Error>());
    if let Some(again) = h2.and_then(answered_by_peer) {
        return Lost { failure: Failure::Head, again };
    }
    let silent_end = matches!(
        error.etype(),
        ErrorType::ConnectionClosed | ErrorType::ReadError | ErrorType::H2Error | ErrorType::H2Downgrade
    ) || *error.etype() == PING_TIMEDOUT;
    Lost { failure: Failure::Head, again: if silent_end { Again::IfPooled } else { Again::No } }
}

/// B134: what an HTTP/2 peer itself said of the stream. Only `REFUSED_STREAM`, and a GOAWAY without
/// error that leaves the stream out, prove that nobody looked at the request.
fn answered_by_peer(error: &h2::Error) -> Option<Again> {
    if !error.is_remote() {
        return None;
    }
    match error.reason()? {
        h2::Reason::REFUSED_STREAM if error.is_reset() => Some(Again::Yes),
        h2::Reason::NO_ERROR if error.is_go_away() => Some(Again::Yes),
        _ if error.is_reset() => Some(Again::No),
        _ => None,
    }
}

/// HTTP/2 has `:authority` instead of `host`, and a whole URI.
fn for_http2(head: &RequestHeader, peer: &HttpPeer, site: &Site) -> RequestHeader {
    let mut head = head.clone();
    head.set_version(Version::HTTP_2);
    head.remove_header(&header::HOST);
    let path = head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let scheme = if peer.is_tls() { "https" } else { "http" };
    let authority = site.authority();
    let uri = Uri::builder().scheme(scheme).authority(authority.as_bytes()).path_and_query(path).build();
    if let Ok(uri) = uri {
        head.set_uri(uri);
    }
    head
}

/// The head of a POST with a JSON body of `length` bytes.
///
/// # Errors
/// When the path is no valid request target.
pub fn post_head(
    path: &str,
    length: usize,
    authority: HeaderValue,
    mut headers: HeaderMap,
) -> pingora_core::Result<RequestHeader> {
    let json = HeaderValue::from_static("application/json");
    headers.entry(header::CONTENT_TYPE).or_insert(json);
    request_head(Method::POST, path, length, authority, headers)
}

/// The head of any request that goes up: `headers`, and what Weir says itself. Names go out as clients write
/// them usually (`Content-Type`, `x-stainless-lang`), whatever the case they came in.
///
/// # Errors
/// When the path is no valid request target.
pub fn request_head(
    method: Method,
    path: &str,
    length: usize,
    authority: HeaderValue,
    headers: HeaderMap,
) -> pingora_core::Result<RequestHeader> {
    let mut parts = Request::new(()).into_parts().0;
    parts.method = method;
    parts.headers.reserve(headers.len() + 4);
    parts.headers.insert(header::HOST, authority);
    parts.headers.extend(headers);
    parts.headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    let mut head = RequestHeader::from(parts);
    head.set_raw_path(path.as_bytes())?;
    Ok(head)
}
