//! The only shell of a stream: sockets, the timer, and the one `select!`.
//!
//! Called by the stages of a request for everything that takes time. While something is waited
//! for, it watches the client, the relay's clock and the shutdown; what is to be written goes out here.

use super::Gateway;
use super::booking;
use super::exchange::{Client, Exchange};
use super::stored;
use crate::admission::cors;
use crate::ledger::Durability;
use crate::protocol::Protocol;
use crate::relay::{Action, Input, Next, Relay};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, Version, header};
use pingora_core::ErrorType;
use pingora_http::ResponseHeader;
use pingora_proxy::Session;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

/// One write to the client (F3, S3).
const WRITE_BYTES: usize = 16 * 1024;

/// Chunks that may follow each other without a pause before the client is looked at: within A9's
/// 100 ms. Where there is a pause it is watched all the time.
const UNSEEN_CHUNKS: u8 = 16;

/// Something broke in on a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Break {
    /// The client left, or does not take what is written.
    ClientGone,
    /// The relay's clock, or the shutdown, ended it.
    Relay(Next),
}

impl Gateway {
    /// Waits for `work` while the client, the clock and the shutdown are watched.
    pub(super) async fn wait<T>(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        work: impl Future<Output = T>,
    ) -> Result<T, Break> {
        let mut work = pin!(work);
        let since = Instant::now();
        if looks_first(&mut exchange.client) && has_gone(session, &mut exchange.client.pipelined).await {
            return Err(Break::ClientGone);
        }
        let mut now = since;
        let result = loop {
            if let Some(relay) = &exchange.relay {
                exchange.timer.arm(relay.next_wake(), now);
            }
            let tick = tokio::select! {
                biased;
                done = &mut work => break Ok(done),
                () = gone(session, &mut exchange.client.pipelined) => break Err(Break::ClientGone),
                () = exchange.timer.fired() => Input::Tick,
                told = poll_fn(|context| exchange.notice.poll(context, exchange.admitted.as_deref())) => told,
            };
            now = Instant::now();
            let Some(relay) = &mut exchange.relay else { continue };
            let action = relay.on(now, tick);
            // Boxed: it is rare, and each wait would have room for a write.
            match Box::pin(self.act(session, exchange, action)).await {
                Ok(Next::Wait) => {}
                Ok(next) => break Err(Break::Relay(next)),
                Err(gone) => break Err(gone),
            }
        };
        exchange.waited(since);
        result
    }

    /// Writes what an action has for the client.
    pub(super) async fn act(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        action: Action,
    ) -> Result<Next, Break> {
        if let Next::Done(..) = action.next {
            exchange.free_slot();
            Box::pin(stored::ending(exchange, action.next)).await;
        }
        if let (Next::Done(..), Durability::Strict) = (action.next, exchange.live.config.ledger.durability) {
            let now = Instant::now();
            if let Some(relay) = &mut exchange.relay {
                relay.wrote(now, now);
            }
            exchange.last_words = Some(action.write);
        } else if !action.write.is_empty() {
            self.write(session, exchange, action.write).await?;
        }
        Ok(action.next)
    }

    /// Writes to the client, the head first if it is not out yet. Done when the socket has taken all.
    pub(super) async fn write(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        mut bytes: Bytes,
    ) -> Result<(), Break> {
        // Waiting for the ledger is no silence of the upstream's (S2).
        let before = Instant::now();
        let committed = exchange.relay.as_ref().is_some_and(Relay::is_committed);
        let mut from = before;
        if committed && exchange.booking.awaits_disk() {
            booking::durable(exchange).await.map_err(|failure| Break::Relay(Next::Failed(failure)))?;
            from = Instant::now();
        }
        let written = self.push(session, exchange, &mut bytes, committed).await;
        let to = Instant::now();
        let spent = to.saturating_duration_since(from);
        exchange.client.longest_write = exchange.client.longest_write.max(spent);
        written?;
        if let Some(relay) = &mut exchange.relay {
            relay.wrote(before, to);
        }
        exchange.record.waited += spent;
        Ok(())
    }

    /// All of it, behind the head.
    async fn push(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        bytes: &mut Bytes,
        committed: bool,
    ) -> Result<(), Break> {
        if !exchange.client.opened {
            // Before the commit the attempt may still fail, and leaves nothing behind: nor its head (A3, K3).
            let head = exchange.client.head.take().filter(|_| committed);
            let head = head.map_or_else(|| own_stream_head(session, exchange), |head| *head);
            self.open(session, exchange, head).await?;
        }
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(WRITE_BYTES));
            exchange.record.bytes += piece.len() as u64;
            let written = session.as_downstream_mut().write_response_body(piece, false).await;
            written.map_err(|error| unwritten(&error))?;
        }
        Ok(())
    }

    /// Sends the head.
    pub(super) async fn open(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        head: Response<()>,
    ) -> Result<(), Break> {
        exchange.client.opened = true;
        exchange.client.opened_at = Some(exchange.age());
        exchange.record.status = head.status().as_u16();
        if let Some(admitted) = &exchange.admitted {
            session.as_downstream_mut().set_write_timeout(Some(admitted.route.model.timeouts.client_write));
        }
        let head = Box::new(ResponseHeader::from(head.into_parts().0));
        let written = session.as_downstream_mut().write_response_header(head).await;
        written.map_err(|error| unwritten(&error))
    }

    /// `durability: strict` (L1): what was held back goes out once the record is on disk.
    pub(super) async fn last_words(&self, session: &mut Session, exchange: &mut Exchange) -> Result<(), Break> {
        let Some(words) = exchange.last_words.take() else { return Ok(()) };
        exchange.record.bytes += words.len() as u64;
        exchange.finish_durably().await;
        if !words.is_empty() {
            self.write(session, exchange, words).await?;
        }
        self.close(session).await
    }

    /// Ends the response cleanly.
    pub(super) async fn close(&self, session: &mut Session) -> Result<(), Break> {
        let ended = session.as_downstream_mut().write_response_body(Bytes::new(), true).await;
        ended.map_err(|error| unwritten(&error))
    }

    /// Reads on to the end of a request body that was refused, for a moment, so that the client
    /// gets to read the answer and the connection stays in step or is closed (B1, B287).
    pub(super) async fn linger(&self, session: &mut Session) {
        const LINGER: Duration = Duration::from_secs(2);
        let downstream = session.as_downstream_mut();
        let drained = tokio::time::timeout(LINGER, async {
            while let Ok(Some(_)) = downstream.read_request_body().await {}
            downstream.is_body_done()
        });
        if !matches!(drained.await, Ok(true)) {
            session.as_downstream_mut().set_keepalive(None);
        }
    }
}

/// K3: the head of a stream whose upstream is still silent.
fn own_stream_head(session: &Session, exchange: &Exchange) -> Response<()> {
    let mut head = Response::new(());
    head.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    stream_headers(session, exchange, head.headers_mut());
    head
}

/// What every stream's head has (F7, F10).
pub(super) fn stream_headers(session: &Session, exchange: &Exchange, headers: &mut HeaderMap) {
    let merged = crate::admission::headers::cache_control(headers.get(header::CACHE_CONTROL));
    headers.insert(header::CACHE_CONTROL, merged);
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    id_headers(exchange, headers);
    frame_by_chunks(session, headers);
}

/// The request's ids (F10), and what is left of its limits (G3).
pub(super) fn id_headers(exchange: &Exchange, headers: &mut HeaderMap) {
    // A UUID is visible ASCII.
    if let Ok(id) = HeaderValue::from_str(&exchange.id) {
        if exchange.protocol == Protocol::Messages {
            headers.insert("request-id", id.clone());
        }
        headers.insert("x-request-id", id);
    }
    if let Some(origin) = &exchange.origin {
        cors::allow(headers, origin);
    }
    if let Some(gauges) = &exchange.gauges {
        super::limits::headers(gauges, exchange.protocol, exchange.record.received, headers);
    }
}

/// HTTP/1.1 streams are chunked, HTTP/1.0 ends with the connection, HTTP/2 frames by itself.
pub(super) fn frame_by_chunks(session: &Session, headers: &mut HeaderMap) {
    if session.req_header().version == Version::HTTP_11 {
        headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// Whether the client is looked at before what is waited for: always until its response has begun,
/// and again and again beside an upstream that never pauses.
fn looks_first(client: &mut Client) -> bool {
    let is_due = !client.opened || client.unseen >= UNSEEN_CHUNKS;
    client.unseen = if is_due { 0 } else { client.unseen + 1 };
    is_due
}

/// Whether the client has left by now.
async fn has_gone(session: &mut Session, pipelined: &mut bool) -> bool {
    let mut gone = pin!(gone(session, pipelined));
    poll_fn(|context| Poll::Ready(gone.as_mut().poll(context).is_ready())).await
}

/// Resolves when the client has left (A9). Early bytes of a next request are no departure.
async fn gone(session: &mut Session, pipelined: &mut bool) {
    if !*pipelined {
        match session.as_downstream_mut().read_body_or_idle(true).await {
            Err(error) if *error.etype() == ErrorType::ConnectError => {
                *pipelined = true;
                session.as_downstream_mut().set_keepalive(None);
            }
            Ok(_) | Err(_) => return,
        }
    }
    std::future::pending::<()>().await;
}

fn unwritten(error: &pingora_core::Error) -> Break {
    log::debug!(error:%; "writing to the client failed");
    Break::ClientGone
}
