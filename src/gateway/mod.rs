//! The spine: knows the order of a request's stages and does no work of its own.
//!
//! Called by Pingora, phase by phase. A routed request is answered whole in `request_filter`
//! (Pingora's own loop has no timer and replays little: DESIGN section 2), a passthrough request
//! goes Pingora's way through the same phases. Records are written in `logging`.

mod admit;
mod answer;
mod arrears;
mod attempt;
mod body;
mod booking;
mod exchange;
mod failed;
mod holder;
mod limits;
mod lobby;
mod notice;
mod pump;
mod reply;
mod shared;
mod stored;
mod stream;
mod tail;

pub use arrears::Arrears;
pub use exchange::{Admitted, Exchange};
pub use lobby::{Departed, Passage, enter, over};
pub use shared::{EndNow, Held, Shared};

use crate::admission::headers;
use crate::config::Key;
use crate::otlp::Trace;
use crate::outcome::{Failure, Outcome};
use crate::refusal::Reason;
use crate::relay::Input;
use admit::{Denial, Entry};
use async_trait::async_trait;
use bytes::Bytes;
use http::{Response, StatusCode, header};
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, ProxyHttp, Session};
use pump::Break;
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Weir as Pingora sees it.
#[derive(Clone, Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
}

impl Gateway {
    /// A gateway over the shared state.
    #[must_use]
    pub const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Answers what was let in, and what was not.
    async fn answer(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        entry: Result<Entry, Denial>,
    ) -> Result<(), Break> {
        match entry {
            Ok(Entry::Routed(admitted)) => {
                exchange.admitted = Some(Arc::clone(&admitted));
                match limits::reserve(exchange, &admitted).await {
                    Ok(()) => self.attempts(session, exchange, &admitted).await,
                    Err(reason) => self.refuse(session, exchange, &reason).await,
                }
            }
            Ok(Entry::Models { key, id }) => self.models(session, exchange, &key, id.as_deref()).await,
            Ok(Entry::Preflight) => self.preflight(session, exchange).await,
            Ok(Entry::OwnUsage(key)) => self.own_usage(session, exchange, &key).await,
            Ok(Entry::Page(asset)) => self.page(session, exchange, &asset).await,
            Err(Denial::Refused(reason)) => self.refuse(session, exchange, &reason).await,
            Err(Denial::Gone) => Err(Break::ClientGone),
            // Not asked: it goes Pingora's way.
            Ok(Entry::Unrouted { .. }) => Ok(()),
        }
    }

    /// Lets a passthrough request go Pingora's way (`false`), or refuses it.
    async fn let_through(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        key: &Arc<Key>,
        target: &Arc<str>,
    ) -> Result<bool, Break> {
        let opened = match limits::reserve_unrouted(exchange, key).await {
            Ok(()) => booking::open(exchange, None, Some(target)).await,
            Err(reason) => Err(reason),
        };
        match opened {
            Ok(()) => {
                exchange.attempt_begins(target);
                Ok(false)
            }
            Err(reason) => self.refuse(session, exchange, &reason).await.map(|()| true),
        }
    }
}

/// What Pingora is told about an answer that broke off.
fn concluded<T>(exchange: &mut Exchange, answered: Result<T, Break>) -> Result<T> {
    answered.map_err(|broken| {
        if broken == Break::ClientGone {
            exchange.conclude(Outcome::ClientGone, "client_gone");
        }
        closed_without_end()
    })
}

#[async_trait]
impl ProxyHttp for Gateway {
    /// Boxed: Pingora's futures hold it in several places. `None` once the request has left them.
    type CTX = Option<Box<Exchange>>;

    fn new_ctx(&self) -> Self::CTX {
        lobby::head_was_read();
        Some(Box::new(Exchange::new(Arc::clone(&self.shared))))
    }

    fn init_downstream_modules(&self, _: &mut pingora_core::modules::http::HttpModules) {}

    async fn request_filter(&self, session: &mut Session, context: &mut Self::CTX) -> Result<bool> {
        let exchange = present(context)?;
        let keepalive = exchange.live.config.server.keepalive_timeout.as_secs();
        let stays = !*self.shared.leaving.borrow();
        session.as_downstream_mut().set_keepalive(stays.then_some(keepalive));
        session.as_downstream_mut().set_read_timeout(None);
        if self.shared.traces.is_some() {
            exchange.record.trace = Some(Box::new(Trace::of(&session.req_header().headers)));
        }
        let entry = self.admit(session, exchange).await;
        if let Ok(Entry::Unrouted { key, target }) = &entry {
            let passed = self.let_through(session, exchange, key, target).await;
            return concluded(exchange, passed);
        }
        let entry = lobby::leave(session, context, entry).await;
        let exchange = present(context)?;
        // HTTP/2. Boxed, so that the others' future has no room for it.
        let answered = Box::pin(self.answer(session, exchange, entry)).await;
        concluded(exchange, answered).map(|()| true)
    }

    async fn upstream_peer(&self, _: &mut Session, context: &mut Self::CTX) -> Result<Box<HttpPeer>> {
        let exchange = present(context)?;
        let site = match (&exchange.aim, &exchange.unrouted) {
            (Some(aim), _) => Arc::clone(&aim.target.site),
            (None, Some(unrouted)) => Arc::clone(&unrouted.site),
            (None, None) => return Err(Error::explain(ErrorType::InternalError, "no site for this request")),
        };
        let peers = exchange.shared.connections.peers(&site).await;
        let peer = peers.ok().and_then(|peers| peers.into_iter().next());
        let peer =
            peer.ok_or_else(|| Error::explain(ErrorType::ConnectError, "the provider's name does not resolve"))?;
        let mut peer = HttpPeer::clone(&peer);
        peer.options.connection_timeout = Some(Duration::from_secs(5));
        peer.options.total_connection_timeout = Some(Duration::from_secs(5));
        peer.options.read_timeout = Some(Duration::from_mins(10));
        Ok(Box::new(peer))
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        head: &mut RequestHeader,
        context: &mut Self::CTX,
    ) -> Result<()> {
        head_up(session, head, present(context)?)
    }

    async fn response_filter(&self, _: &mut Session, head: &mut ResponseHeader, context: &mut Self::CTX) -> Result<()> {
        let exchange = present(context)?;
        if exchange.unrouted.is_some()
            && let Err(failure) = booking::durable(exchange).await
        {
            exchange.conclude(failure.outcome(), failure.word());
            return Err(Error::explain(ErrorType::InternalError, "the ledger cannot be written"));
        }
        let Some(unrouted) = &exchange.unrouted else { return Ok(()) };
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            // Nobody asked: upgrades are refused at admission (A12).
            return Err(Error::explain(ErrorType::InvalidHTTPHeader, "switched protocols without being asked"));
        }
        let provider = &unrouted.site.provider;
        let length = head.headers.get(header::CONTENT_LENGTH).cloned();
        let coding = head.headers.get(header::CONTENT_ENCODING).cloned();
        let framing = head.headers.get(header::TRANSFER_ENCODING).cloned();
        let kept = headers::down(&head.headers, &provider.pass_headers, false, &provider.api_keys);
        let mut clean = Response::new(()).into_parts().0;
        clean.status = head.status;
        clean.version = head.version;
        clean.headers = kept;
        let framed = [
            (header::CONTENT_LENGTH, length),
            (header::CONTENT_ENCODING, coding),
            (header::TRANSFER_ENCODING, framing),
        ];
        for (name, value) in framed {
            if let Some(value) = value {
                clean.headers.insert(name, value);
            }
        }
        pump::id_headers(exchange, &mut clean.headers);
        exchange.record.upstream_first_byte = Some(exchange.age());
        exchange.record.status = head.status.as_u16();
        *head = ResponseHeader::from(clean);
        Ok(())
    }

    fn upstream_response_body_filter(
        &self,
        _: &mut Session,
        body: &mut Option<Bytes>,
        _end: bool,
        context: &mut Self::CTX,
    ) -> Result<Option<Duration>> {
        body_down(present(context)?, Instant::now(), body);
        Ok(None)
    }

    async fn fail_to_proxy(&self, session: &mut Session, error: &Error, context: &mut Self::CTX) -> FailToProxy {
        let failed = FailToProxy { error_code: 0, can_reuse_downstream: false };
        let Some(exchange) = context else { return failed };
        if exchange.unrouted.is_some() && session.response_written().is_none() {
            log::debug!(error:%; "a passthrough request failed");
            let by_ledger = exchange.record.cause == Some(Failure::Ledger.word());
            let reason = if by_ledger { Reason::Ledger } else { Reason::UpstreamConnect };
            exchange.conclude(Outcome::UpstreamError, reason.word());
            if self.refuse(session, exchange, &reason).await.is_err() {
                exchange.conclude(Outcome::ClientGone, "client_gone");
            }
        }
        failed
    }

    async fn logging(&self, _: &mut Session, error: Option<&Error>, context: &mut Self::CTX) {
        let Some(exchange) = context else { return };
        if exchange.unrouted.is_some() {
            let (outcome, cause) = answer::unrouted_outcome(exchange.record.status, error);
            exchange.conclude(outcome, cause);
            answer::book_unrouted(exchange);
        }
        exchange.finish();
    }

    /// Marks a connection that has served a request: its next head may be waited for (B1).
    fn persist_connection_context(&self, _: &Session, _: &Self::CTX) -> Option<Box<dyn Any + Send + Sync>> {
        Some(Box::new(()))
    }

    fn suppress_error_log(&self, _: &Session, _: &Self::CTX, _: &Error) -> bool {
        true
    }

    fn request_summary(&self, _: &Session, context: &Self::CTX) -> String {
        context.as_ref().map(|exchange| exchange.id.clone()).unwrap_or_default()
    }
}

/// The exchange of a request that is still in Pingora's phases, as each is that they are called for.
fn present(context: &mut Option<Box<Exchange>>) -> Result<&mut Exchange> {
    context.as_deref_mut().ok_or_else(|| Error::explain(ErrorType::InternalError, "the request has left"))
}

/// The head of one attempt, before it goes up: credentials, the operator's own headers, the place in the trace.
fn head_up(session: &mut Session, head: &mut RequestHeader, exchange: &mut Exchange) -> Result<()> {
    match (&exchange.aim, &exchange.unrouted) {
        (Some(aim), _) => aim.target.site.authorize(aim.account, head)?,
        (None, Some(unrouted)) => answer::unrouted_head(session, &unrouted.site, head)?,
        (None, None) => {}
    }
    attempt::trace(exchange, head)
}

/// A piece of the upstream's body, and what of it goes down.
fn body_down(exchange: &mut Exchange, now: Instant, body: &mut Option<Bytes>) {
    let Some(chunk) = body.take() else { return };
    if exchange.unrouted.is_some() {
        exchange.record.bytes += chunk.len() as u64;
        *body = Some(chunk);
        return;
    }
    if let Some(relay) = &mut exchange.relay {
        let action = relay.on(now, Input::Chunk(chunk));
        exchange.next = action.next;
        *body = Some(action.write);
    }
}

/// Tells Pingora to drop the connection (HTTP/1.1) or to reset the stream (HTTP/2): the response
/// must not look complete.
#[expect(clippy::unnecessary_box_returns, reason = "Pingora's own error type")]
fn closed_without_end() -> Box<Error> {
    Error::explain(ErrorType::ConnectionClosed, "closed without a clean end")
}
