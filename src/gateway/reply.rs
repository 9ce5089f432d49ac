//! What an upstream's head begins: a stream of events, a whole reply, an error.
//!
//! Called by the attempt, once its head is here. Reads the body through the pump.

use super::Gateway;
use super::attempt::relay;
use super::body::{Body, Shape, looks_like_events, shape};
use super::booking;
use super::exchange::{Admitted, Exchange, book_meter, clipped};
use super::failed::{Failed, Tried, retry_after};
use super::pump::{Break, frame_by_chunks, id_headers};
use super::stored;
use super::tail::Tail;
use crate::admission::headers;
use crate::config::Secret;
use crate::ledger::Durability;
use crate::ledger::estimate::Delivered;
use crate::meter::{Facts, Finish, Meter};
use crate::normalize::{Asked, Normalizer};
use crate::outcome::{Failure, Outcome};
use crate::protocol::Endpoint;
use crate::refusal::ErrorParts;
use crate::relay::Next;
use crate::route::Target;
use crate::upstream::call::Answer;
use crate::upstream::decode::Coding;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use pingora_proxy::Session;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// F9: a reply up to this is held whole, so that the attempt can fail over until its last byte.
const HELD_REPLY_BYTES: usize = 1024 * 1024;
/// B121: an answer of unknown type that is blank for this long is no stream of events.
const BLANK_BYTES: usize = 4 * 1024;
/// Of an error's body, this much is read.
const ERROR_BODY_BYTES: usize = 64 * 1024;
/// An error's body that does not come within this is done without.
const ERROR_BODY_TIME: Duration = Duration::from_secs(5);

/// One attempt's answer, from its head on.
pub(super) struct Reply<'a> {
    pub(super) admitted: &'a Admitted,
    pub(super) target: &'a Arc<Target>,
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Body,
    /// What of the body was read to find out what it is.
    pub(super) first: Bytes,
    /// `timeouts.non_stream` runs out.
    pub(super) deadline: Instant,
}

impl Gateway {
    /// The head is here.
    pub(super) async fn answered(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        admitted: &Admitted,
        target: &Arc<Target>,
        answer: Box<Answer>,
    ) -> Result<Tried, Break> {
        let Some(head) = answer.session.response_header() else {
            return Ok(Tried::failed(Failure::Head));
        };
        let (status, headers) = (head.status, head.headers.clone());
        exchange.upstream_status = Some(status.as_u16());
        exchange.record.upstream_first_byte = Some(exchange.age());
        exchange.record.upstream_request_id = request_id(&headers, &target.site.provider.api_keys);
        let coding = Coding::of(headers.get(header::CONTENT_ENCODING).and_then(|value| value.to_str().ok()));
        let deadline = answer.sent + admitted.route.model.timeouts.non_stream;
        let body = Body { answer, coding, ended: false };
        let mut reply = Reply { admitted, target, status, headers, body, first: Bytes::new(), deadline };
        if !reply.status.is_success() {
            return Box::pin(self.error(session, exchange, reply)).await;
        }
        if matches!(reply.body.coding, Coding::Unknown) {
            return Box::pin(self.raw(session, exchange, reply)).await;
        }
        let events = match shape(&reply.headers, admitted.facts.stream) {
            Shape::Events => true,
            Shape::Other => false,
            Shape::Html => {
                reply.body.abandon().await;
                return Ok(Tried::failed(Failure::NotAnAnswer));
            }
            Shape::Unclear => {
                while reply.first.len() < BLANK_BYTES && reply.first.trim_ascii().is_empty() && !reply.body.ended {
                    match self.read(session, exchange, &mut reply).await? {
                        Ok(chunk) => reply.first = joined(&reply.first, &chunk.unwrap_or_default()),
                        Err(tried) => return Ok(tried),
                    }
                }
                looks_like_events(&reply.first)
            }
        };
        if events { self.events(session, exchange, reply).await } else { self.whole(session, exchange, reply).await }
    }

    /// The next chunk, decoded, within `idle` and the deadline of a whole reply; or what the attempt has come to.
    async fn read(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        reply: &mut Reply<'_>,
    ) -> Result<Result<Option<Bytes>, Tried>, Break> {
        if reply.deadline <= Instant::now() {
            // An upstream that never pauses is always ready before its timeout.
            reply.body.abandon().await;
            return Ok(Err(Tried::failed(Failure::NonStream)));
        }
        let idle = Instant::now() + reply.admitted.route.model.timeouts.idle;
        let (until, failure) =
            if reply.deadline < idle { (reply.deadline, Failure::NonStream) } else { (idle, Failure::Idle) };
        let reading = tokio::time::timeout_at(until.into(), reply.body.next());
        let tried = match self.wait(session, exchange, reading).await {
            Ok(Ok(Ok(chunk))) => return Ok(Ok(chunk)),
            Ok(Ok(Err(failure))) => Tried::failed(failure),
            Ok(Err(_)) => Tried::failed(failure),
            Err(broken) => self.broke(session, exchange, broken).await?,
        };
        reply.body.abandon().await;
        Ok(Err(tried))
    }

    /// A reply that is no stream (F6, F9): held while it is small, then passed as it is.
    async fn whole(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        mut reply: Reply<'_>,
    ) -> Result<Tried, Break> {
        let announced = reply.announced();
        let mut whole = BytesMut::from(&reply.first[..]);
        let is_large = announced.is_some_and(|length| length > HELD_REPLY_BYTES);
        while !is_large && whole.len() <= HELD_REPLY_BYTES && !reply.body.ended {
            match self.read(session, exchange, &mut reply).await? {
                Ok(chunk) => whole.extend_from_slice(&chunk.unwrap_or_default()),
                Err(tried) => return Ok(tried),
            }
        }
        reply.first = whole.freeze();
        if !reply.body.ended {
            return Box::pin(self.large(session, exchange, reply)).await;
        }
        if announced.is_some_and(|length| length != reply.first.len()) {
            return Ok(Tried::failed(Failure::Broken));
        }
        let outcome = match judge_whole(exchange, &reply) {
            Ok(outcome) => outcome,
            Err(failed) => return Ok(Tried::Failed(failed)),
        };
        if exchange.client.opened {
            return Ok(Tried::failed(Failure::NotAnAnswer));
        }
        if let Err(failure) = booking::durable(exchange).await {
            return Ok(Tried::failed(failure));
        }
        stored::replied(exchange, reply.admitted, reply.target, &reply.first).await;
        exchange.relay = Some(relay(exchange, reply.admitted, false));
        if let Some(mut normalizer) = normalizer(exchange, &reply) {
            reply.first = normalizer.reply(&reply.first);
        }
        let mut down = reply_head(exchange, &reply);
        down.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(reply.first.len()));
        exchange.free_slot();
        self.open(session, exchange, down).await?;
        if exchange.live.config.ledger.durability == Durability::Strict {
            reply.body.read_tail(exchange).await;
            exchange.last_words = Some(reply.first);
            return Ok(Tried::Done(outcome, "reply"));
        }
        exchange.record.bytes += reply.first.len() as u64;
        reply.body.read_tail(exchange).await;
        let written = session.as_downstream_mut().write_response_body(reply.first, true).await;
        written.map_err(|_| Break::ClientGone)?;
        Ok(Tried::Done(outcome, "reply"))
    }

    /// F9: beyond 1 MiB the reply is committed and passes through; a break ends it without its last chunk.
    async fn large(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        mut reply: Reply<'_>,
    ) -> Result<Tried, Break> {
        if exchange.client.opened {
            reply.body.abandon().await;
            return Ok(Tried::failed(Failure::TooLarge));
        }
        let mut down = reply_head(exchange, &reply);
        match reply.announced() {
            Some(length) => drop(down.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length))),
            None => frame_by_chunks(session, down.headers_mut()),
        }
        self.pass(session, exchange, reply, down, "large_reply").await
    }

    /// F5: a coding that Weir does not know passes raw, unread.
    async fn raw(&self, session: &mut Session, exchange: &mut Exchange, mut reply: Reply<'_>) -> Result<Tried, Break> {
        if exchange.client.opened {
            reply.body.abandon().await;
            return Ok(Tried::failed(Failure::NotAnAnswer));
        }
        let mut down = reply_head(exchange, &reply);
        if let Some(coding) = reply.headers.get(header::CONTENT_ENCODING) {
            down.headers_mut().insert(header::CONTENT_ENCODING, coding.clone());
        }
        frame_by_chunks(session, down.headers_mut());
        self.pass(session, exchange, reply, down, "raw").await
    }

    /// Bytes as they come, once the head is decided.
    async fn pass(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        mut reply: Reply<'_>,
        down: Response<()>,
        cause: &'static str,
    ) -> Result<Tried, Break> {
        if let Err(failure) = booking::durable(exchange).await {
            reply.body.abandon().await;
            return Ok(Tried::failed(failure));
        }
        exchange.relay = Some(relay(exchange, reply.admitted, false));
        exchange.body = Bytes::new();
        self.open(session, exchange, down).await?;
        exchange.booking.passes = true;
        exchange.booking.unread = matches!(reply.body.coding, Coding::Unknown) && reply.admitted.endpoint.streams();
        let first = std::mem::take(&mut reply.first);
        stored::began(exchange, reply.admitted, reply.target, &first);
        self.write(session, exchange, first.clone()).await?;
        let mut tail = Tail::default();
        while !reply.body.ended {
            match self.read(session, exchange, &mut reply).await? {
                Ok(chunk) => {
                    let chunk = chunk.unwrap_or_default();
                    tail.push(&chunk);
                    self.write(session, exchange, chunk).await?;
                }
                Err(Tried::Failed(failed)) => {
                    exchange.conclude(failed.failure.outcome(), failed.failure.word());
                    return Err(Break::Relay(Next::Failed(failed.failure)));
                }
                Err(done @ Tried::Done(..)) => return Ok(done),
            }
        }
        if let Some(usage) = tail.usage(&first).filter(|_| !exchange.booking.unread) {
            let mut meter = Meter::new(reply.admitted.endpoint.protocol(), reply.admitted.facts.n);
            meter.reply(&usage);
            book_meter(&mut exchange.record, &mut exchange.booking, &exchange.shared, &meter, reply.target);
        }
        reply.body.read_tail(exchange).await;
        self.close(session).await?;
        Ok(Tried::Done(Outcome::Completed, cause))
    }

    /// An error status (A6).
    async fn error(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        mut reply: Reply<'_>,
    ) -> Result<Tried, Break> {
        let status = reply.status.as_u16();
        let mut text = BytesMut::new();
        reply.deadline = Instant::now() + ERROR_BODY_TIME;
        while text.len() < ERROR_BODY_BYTES && !reply.body.ended {
            match self.read(session, exchange, &mut reply).await? {
                Ok(chunk) => text.extend_from_slice(&chunk.unwrap_or_default()),
                Err(done @ Tried::Done(..)) => return Ok(done),
                Err(Tried::Failed(_)) => break,
            }
        }
        let failed = refused(exchange, &reply, status, &text);
        if reply.body.ended {
            reply.body.read_tail(exchange).await;
        } else {
            reply.body.abandon().await;
        }
        Ok(Tried::Failed(Box::new(failed)))
    }
}

impl Reply<'_> {
    /// The body's length, if its head tells it.
    fn announced(&self) -> Option<usize> {
        let length = self.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
        length.filter(|_| matches!(self.body.coding, Coding::Identity))
    }
}

/// Reads the meaning of a whole reply.
fn judge_whole(exchange: &mut Exchange, reply: &Reply<'_>) -> Result<Outcome, Box<Failed>> {
    let admitted = reply.admitted;
    if reply.first.trim_ascii().is_empty() {
        return Err(Box::new(Failure::Empty.into()));
    }
    let (meter, facts) = book_whole(exchange, admitted.endpoint, admitted.facts.n, reply.target, &reply.first);
    // A stored response that failed is told as it is (A12).
    let Some(error) = meter.error().filter(|_| facts.error && admitted.stored.is_none()) else {
        return Ok(whole_outcome(&meter));
    };
    let parts = ErrorParts::read(error.status, &reply.first);
    let failure = match error.clients_fault {
        _ if parts.is_account_trouble() => Failure::Account(error.status),
        true => Failure::ClientErrorEvent(error.status),
        false => Failure::ErrorEvent(error.status),
    };
    Err(Box::new(Failed { parts: Some(parts), ..Failed::from(failure) }))
}

/// Takes over what a whole reply tells of its usage, and its text where it tells none.
pub(super) fn book_whole(
    exchange: &mut Exchange,
    endpoint: Endpoint,
    choices: Option<u32>,
    target: &Target,
    body: &[u8],
) -> (Meter, Facts) {
    let mut meter = Meter::new(endpoint.protocol(), choices);
    let facts = meter.reply(body);
    book_meter(&mut exchange.record, &mut exchange.booking, &exchange.shared, &meter, target);
    if meter.usage().output.is_none() && endpoint.streams() {
        let mut text = Delivered::new(endpoint.protocol());
        text.reply(body);
        exchange.booking.reply = Some(text);
    }
    (meter, facts)
}

/// How a whole reply without an error has ended.
pub(super) fn whole_outcome(meter: &Meter) -> Outcome {
    match meter.finish() {
        Some(Finish::Length) => Outcome::Truncated,
        Some(Finish::Stop | Finish::Other) | None => Outcome::Completed,
    }
}

/// What an error status says (A2, A6).
fn refused(exchange: &Exchange, reply: &Reply<'_>, status: u16, text: &[u8]) -> Failed {
    let facts = &reply.admitted.facts;
    let parts = ErrorParts::read(status, text);
    let failure = match status {
        _ if parts.is_account_trouble() => Failure::Account(status),
        _ if reply.admitted.route.model.retry.is_on(status) => Failure::Status(status),
        400..=599 => Failure::ClientStatus(status),
        _ => Failure::NotAnAnswer,
    };
    let names = |text: &Option<String>| text.as_deref().is_some_and(|text| text.contains("stream_options"));
    let refuses = status == 400 && (names(&parts.message) || names(&parts.param));
    Failed {
        failure,
        retry_after: retry_after(&reply.headers),
        headers: kept_headers(exchange, reply),
        refuses_stream_options: refuses && facts.stream && !facts.include_usage,
        parts: Some(parts),
    }
}

fn kept_headers(exchange: &Exchange, reply: &Reply<'_>) -> HeaderMap {
    let provider = &reply.target.site.provider;
    // F7: one of several accounts says nothing of the next request, and Weir's own stand in their place.
    let several = reply.admitted.route.targets.len() > 1 || exchange.live.config.server.limit_headers;
    headers::down(&reply.headers, &provider.pass_headers, several, &provider.api_keys)
}

/// The head of any answer: the allow-list, and the ids (F7, F10).
pub(super) fn reply_head(exchange: &Exchange, reply: &Reply<'_>) -> Response<()> {
    let mut down = Response::new(());
    *down.status_mut() = reply.status;
    let headers = down.headers_mut();
    *headers = kept_headers(exchange, reply);
    id_headers(exchange, headers);
    let id_there = exchange.record.upstream_request_id.as_deref();
    if let Some(id) = id_there.and_then(|id| HeaderValue::from_str(id).ok()) {
        headers.insert("x-upstream-request-id", id);
    }
    down
}

/// N1 to N5, where the target's provider has them.
pub(super) fn normalizer(exchange: &Exchange, reply: &Reply<'_>) -> Option<Normalizer> {
    let admitted = reply.admitted;
    let asked = Asked {
        endpoint: admitted.endpoint,
        model: &admitted.facts.model,
        include_usage: admitted.facts.include_usage,
        request_id: &exchange.id,
        created_at: exchange.record.received.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs()),
    };
    Normalizer::of(&reply.target.config, &asked)
}

fn joined(first: &Bytes, second: &Bytes) -> Bytes {
    if first.is_empty() { second.clone() } else { [&first[..], &second[..]].concat().into() }
}

/// The upstream's id of the request, by whichever name it uses.
fn request_id(headers: &HeaderMap, secrets: &[Secret]) -> Option<String> {
    static NAMES: [HeaderName; 4] = [
        HeaderName::from_static("x-request-id"),
        HeaderName::from_static("request-id"),
        HeaderName::from_static("x-amzn-requestid"),
        HeaderName::from_static("apim-request-id"),
    ];
    let value = NAMES.iter().find_map(|name| headers.get(name));
    let value = value.filter(|value| !headers::holds_secret(value.as_bytes(), secrets));
    value.and_then(|value| value.to_str().ok()).map(|id| clipped(id, 128)).filter(|id| !id.is_empty())
}
