//! A stream of events on its way: the relay decides, this carries.
//!
//! Called by the reply, once a head begins a stream.

use super::Gateway;
use super::booking;
use super::exchange::{Exchange, book_meter};
use super::failed::{Failed, Tried};
use super::limits;
use super::pump::{Break, stream_headers};
use super::reply::{Reply, normalizer, reply_head};
use super::stored;
use crate::config::OnClientGone;
use crate::meter::Meter;
use crate::outcome::{Failure, Outcome};
use crate::refusal::{Ending, ErrorParts};
use crate::relay::{Action, Input, Next, Relay};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header};
use pingora_proxy::Session;
use std::time::{Duration, Instant};

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
            exchange.client.head = Some(Box::new(stream_head(session, exchange, &reply)));
        }
        // Its copy of the upstream's headers is of no more use, for as long as the stream lasts.
        reply.headers = HeaderMap::new();
        let normalizer = normalizer(exchange, &reply);
        if let Some(relay) = &mut exchange.relay {
            relay.on(Instant::now(), Input::Head);
            relay.normalize(normalizer);
        }
        let carried = self.carry(session, exchange, &mut reply).await;
        let admitted = reply.admitted;
        let (model, in_background) = (&admitted.route.model, admitted.facts.background);
        if let Err(Break::ClientGone) = carried {
            match model.on_client_gone {
                // A12: it goes on, and its end tells what it used.
                _ if in_background => read_on(exchange, &mut reply, model.timeouts.total).await,
                OnClientGone::Drain(limit) => read_on(exchange, &mut reply, limit).await,
                OnClientGone::Cancel => {}
            }
        }
        if let Some(meter) = exchange.relay.as_ref().and_then(Relay::meter) {
            book_meter(&mut exchange.record, &mut exchange.booking, &exchange.shared, meter, reply.target);
        }
        match carried {
            Ok(next) | Err(Break::Relay(next)) => self.ended(session, exchange, reply, next).await,
            Err(Break::ClientGone) => {
                if in_background {
                    stored::left(exchange).await;
                }
                reply.body.abandon().await;
                Err(Break::ClientGone)
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
            if !reply.admitted.facts.stream && Instant::now() >= reply.deadline {
                return Box::pin(self.step(session, exchange, Input::Broken)).await;
            }
            let next = match self.wait(session, exchange, reply.body.next()).await {
                Ok(Ok(Some(chunk))) => self.chunk(session, exchange, chunk).await?,
                Ok(Ok(None)) => Box::pin(self.step(session, exchange, Input::End)).await?,
                Ok(Err(_)) => Box::pin(self.step(session, exchange, Input::Broken)).await?,
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
        let now = Instant::now();
        let mut chunk = Some(chunk);
        super::body_down(exchange, now, &mut chunk);
        let (write, next) = (chunk.unwrap_or_default(), exchange.next);
        stored::passed(exchange);
        let next = self.act(session, exchange, Action { write, next }).await?;
        let Some(relay) = &exchange.relay else { return Err(Break::ClientGone) };
        if relay.is_committed() {
            exchange.body = Bytes::new();
        }
        let holds = relay.held() + exchange.body.len();
        booking::checkpoint(exchange, now);
        if next == Next::Wait && !exchange.held.set(holds, exchange.live.config.server.max_held_bytes) {
            log::warn!(bytes = holds; "max_held_bytes is used up: a stream with a large unfinished event is ended");
            return Box::pin(self.step(session, exchange, Input::Broken)).await;
        }
        let look = exchange.look_at_charge.is_some_and(|at| exchange.record.bytes >= at);
        if next == Next::Wait && look && limits::outgrown(exchange) {
            let cut = Input::GiveUp(Ending::Budget, Outcome::BudgetReached, "budget");
            return Box::pin(self.step(session, exchange, cut)).await;
        }
        if next == Next::Wait { self.overdue(session, exchange, now).await } else { Ok(next) }
    }

    /// The clock and the shutdown, between two chunks: an upstream that never pauses keeps them
    /// out of the pump's select. Looked at as seldom as the client is.
    async fn overdue(&self, session: &mut Session, exchange: &mut Exchange, now: Instant) -> Result<Next, Break> {
        if exchange.client.unseen > 0 {
            return Ok(Next::Wait);
        }
        let Some(relay) = &exchange.relay else { return Err(Break::ClientGone) };
        let told = exchange.notice.now(exchange.admitted.as_deref());
        if let Some(told) = told {
            return Box::pin(self.step(session, exchange, told)).await;
        }
        if relay.next_wake() <= now {
            return Box::pin(self.step(session, exchange, Input::Tick)).await;
        }
        Ok(Next::Wait)
    }

    /// Something that happens once in a while: boxed by its callers, so that a stream has no room for it.
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
        let held_back = exchange.last_words.is_some();
        match outcome {
            Outcome::Completed | Outcome::Truncated => {
                reply.body.read_tail(exchange).await;
                // The whole answer is out: a client that leaves before its last chunk has had it (B194).
                if !held_back && self.close(session).await.is_err() {
                    session.as_downstream_mut().set_keepalive(None);
                }
            }
            _ => {
                let closed = if held_back { Ok(()) } else { self.close(session).await };
                reply.body.abandon().await;
                closed?;
            }
        }
        Ok(Tried::Done(outcome, cause))
    }
}

/// A9: the client is gone, but its usage is worth waiting for.
async fn read_on(exchange: &mut Exchange, reply: &mut Reply<'_>, limit: Duration) {
    exchange.booking.at_departure = exchange.relay.as_ref().and_then(Relay::delivered).cloned();
    let until = Instant::now() + limit;
    loop {
        let reading = tokio::time::timeout_at(until.into(), reply.body.next());
        let read = tokio::select! {
            biased;
            () = exchange.notice.all_end() => return,
            read = reading => read,
        };
        let input = match read {
            Ok(Ok(Some(chunk))) => Input::Chunk(chunk),
            Ok(Ok(None)) => Input::End,
            Ok(Err(_)) | Err(_) => return,
        };
        let Some(relay) = &mut exchange.relay else { return };
        if relay.on(Instant::now(), input).next != Next::Wait {
            return;
        }
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
fn stream_head(session: &Session, exchange: &Exchange, reply: &Reply<'_>) -> Response<()> {
    let mut down = reply_head(exchange, reply);
    let kind = reply.headers.get(header::CONTENT_TYPE).map(|kind| kind.as_bytes().to_ascii_lowercase());
    if !kind.is_some_and(|kind| kind.starts_with(b"text/event-stream")) {
        down.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    }
    stream_headers(session, exchange, down.headers_mut());
    down
}
