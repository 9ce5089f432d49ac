//! A stream of events on its way: the relay decides, this carries.
//!
//! Called by the reply, once a head begins a stream.

use super::Gateway;
use super::attempt::{Failed, Tried};
use super::exchange::{Exchange, book_meter};
use super::pump::{Break, stream_headers};
use super::reply::{Reply, normalizer, reply_head};
use crate::meter::Meter;
use crate::outcome::{Failure, Outcome};
use crate::refusal::ErrorParts;
use crate::relay::{Input, Next, Relay};
use bytes::Bytes;
use http::{HeaderValue, header};
use pingora_http::ResponseHeader;
use pingora_proxy::{ProxyHttp, Session};
use std::time::Instant;

impl Gateway {
    /// Carries a stream to its end; however it ends, what was metered is kept.
    pub(super) async fn events(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        mut reply: Reply<'_>,
    ) -> Result<Tried, Break> {
        exchange.count_stream();
        if !exchange.client.opened {
            exchange.client.head = stream_head(session, exchange, &reply).ok();
        }
        let normalizer = normalizer(exchange, &reply);
        if let Some(relay) = &mut exchange.relay {
            relay.on(Instant::now(), Input::Head);
            relay.normalize(normalizer);
        }
        let carried = self.carry(session, exchange, &mut reply).await;
        if let Some(meter) = exchange.relay.as_ref().and_then(Relay::meter) {
            book_meter(&mut exchange.record, &exchange.shared, meter, &reply.target.word);
        }
        match carried {
            Ok(next) => self.ended(session, exchange, reply, next).await,
            Err(gone) => {
                reply.body.abandon().await;
                Err(gone)
            }
        }
    }

    /// Reads, decides and writes until the relay says how it ends.
    async fn carry(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        reply: &mut Reply<'_>,
    ) -> Result<Next, Break> {
        let first = std::mem::take(&mut reply.first);
        if !first.is_empty() {
            let next = self.chunk(session, exchange, first).await?;
            if next != Next::Wait {
                return Ok(next);
            }
        }
        loop {
            let next = match self.wait(session, exchange, reply.body.next()).await {
                Ok(Ok(Some(chunk))) => self.chunk(session, exchange, chunk).await?,
                Ok(Ok(None)) => self.step(session, exchange, Input::End).await?,
                Ok(Err(_)) => self.step(session, exchange, Input::Broken).await?,
                Err(Break::Relay(next)) => next,
                Err(gone) => return Err(gone),
            };
            if next != Next::Wait {
                return Ok(next);
            }
        }
    }

    /// One chunk: through the body filter, then to the client.
    async fn chunk(&self, session: &mut Session, exchange: &mut Exchange, chunk: Bytes) -> Result<Next, Break> {
        let mut chunk = Some(chunk);
        let filtered = self.upstream_response_body_filter(session, &mut chunk, false, exchange);
        debug_assert!(filtered.is_ok(), "the filter has no error of its own");
        if let Some(write) = chunk.filter(|write| !write.is_empty()) {
            self.write(session, exchange, write).await?;
        }
        let Some(relay) = &exchange.relay else { return Err(Break::ClientGone) };
        if relay.is_committed() {
            exchange.body = Bytes::new();
        }
        let holds = relay.held() + exchange.body.len();
        if exchange.next == Next::Wait && !exchange.held.set(holds, exchange.live.config.server.max_held_bytes) {
            log::warn!(bytes = holds; "max_held_bytes is used up: a stream with a large unfinished event is ended");
            return self.step(session, exchange, Input::Broken).await;
        }
        Ok(exchange.next)
    }

    async fn step(&self, session: &mut Session, exchange: &mut Exchange, input: Input) -> Result<Next, Break> {
        let Some(relay) = &mut exchange.relay else { return Err(Break::ClientGone) };
        let action = relay.on(Instant::now(), input);
        self.act(session, exchange, action).await
    }

    /// The relay has said how the attempt or the response ends.
    async fn ended(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        mut reply: Reply<'_>,
        next: Next,
    ) -> Result<Tried, Break> {
        let (outcome, cause) = match next {
            Next::Wait => return Err(Break::ClientGone),
            Next::Failed(failure) => {
                reply.body.abandon().await;
                return Ok(Tried::Failed(Box::new(failed(exchange, failure))));
            }
            Next::Done(outcome, cause) => (outcome, cause),
        };
        let closed = self.close(session).await;
        match outcome {
            Outcome::Completed | Outcome::Truncated => reply.body.read_tail(exchange),
            _ => reply.body.abandon().await,
        }
        closed?;
        Ok(Tried::Done(outcome, cause))
    }
}

/// A stream that failed before its first content, with what its error event said.
fn failed(exchange: &Exchange, failure: Failure) -> Failed {
    let error = exchange.relay.as_ref().and_then(Relay::meter).and_then(Meter::error);
    let parts = error.map(ErrorParts::from);
    let failure = match &parts {
        Some(parts) if parts.is_account_trouble() => Failure::Account(parts.status),
        Some(_) | None => failure,
    };
    Failed { parts, ..Failed::from(failure) }
}

/// The head of a stream as the client gets it (F7).
fn stream_head(session: &Session, exchange: &Exchange, reply: &Reply<'_>) -> pingora_core::Result<ResponseHeader> {
    let mut down = reply_head(exchange, reply)?;
    let kind = reply.head.headers.get(header::CONTENT_TYPE).map(|kind| kind.as_bytes().to_ascii_lowercase());
    if !kind.is_some_and(|kind| kind.starts_with(b"text/event-stream")) {
        down.insert_header(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"))?;
    }
    stream_headers(session, exchange, &mut down)?;
    Ok(down)
}
