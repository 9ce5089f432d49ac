//! What an upstream's head begins: a stream of events, a whole reply, an error.
//!
//! Called by the attempt, once its head is here. Reads the body through the pump.

use super::Gateway;
use super::attempt::{Failed, Tried, retry_after};
use super::exchange::{Admitted, Exchange, book_meter, clipped};
use super::pump::{Break, frame_by_chunks};
use crate::admission::headers;
use crate::meter::Meter;
use crate::outcome::{Failure, Outcome};
use crate::refusal::{ErrorParts, is_account_trouble};
use crate::relay::{Input, Next};
use crate::route::Target;
use crate::upstream::call::Answer;
use crate::upstream::decode::Coding;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header};
use pingora_core::protocols::http::client::HttpSession;
use pingora_http::ResponseHeader;
use pingora_proxy::{ProxyHttp, Session};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// F9: a reply up to this is held whole, so that the attempt can fail over until its last byte.
const HELD_REPLY_BYTES: usize = 1024 * 1024;
/// Of an error's body, this much is read.
const ERROR_BODY_BYTES: usize = 64 * 1024;
/// An error's body that does not come within this is done without.
const ERROR_BODY_TIME: Duration = Duration::from_secs(5);
/// E1: after the terminal event the upstream is read on for this long at most …
const TAIL_TIME: Duration = Duration::from_secs(1);
/// … and for this many bytes.
const TAIL_BYTES: usize = 16 * 1024;

/// What a body is, by its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Events,
    /// The type does not tell; the first bytes do (B119, B121).
    Unclear,
    Html,
    Other,
}

impl Gateway {
    /// The head is here.
    pub(super) async fn answered(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        admitted: &Arc<Admitted>,
        target: &Arc<Target>,
        answer: Answer,
    ) -> Result<Tried, Break> {
        let Some(head) = answer.session.response_header().cloned() else {
            return Ok(Tried::Failed(Failure::Head.into()));
        };
        let status = head.status.as_u16();
        exchange.upstream_status = Some(status);
        exchange.record.upstream_first_byte = Some(exchange.age());
        exchange.record.upstream_request_id = request_id(&head.headers);
        let coding = Coding::of(head.headers.get(header::CONTENT_ENCODING).and_then(|value| value.to_str().ok()));
        let mut body = Body { answer, coding, ended: false };
        if !head.status.is_success() {
            return self.error(session, exchange, admitted, target, &head, body).await;
        }
        if matches!(body.coding, Coding::Unknown) {
            return self.raw(session, exchange, target, &head, body, Bytes::new()).await;
        }
        let mut first = Bytes::new();
        let events = match shape(&head.headers, admitted.facts.stream) {
            Shape::Events => true,
            Shape::Html => return Ok(Tried::Failed(Failure::NotAnAnswer.into())),
            Shape::Other => false,
            Shape::Unclear => {
                while first.trim_ascii().is_empty() && !body.ended {
                    match self.read(session, exchange, &mut body).await? {
                        Ok(Some(chunk)) => first = joined(&first, &chunk),
                        Ok(None) => body.ended = true,
                        Err(tried) => return Ok(tried),
                    }
                }
                looks_like_events(&first)
            }
        };
        if events {
            self.events(session, exchange, target, &head, body, first).await
        } else {
            self.whole(session, exchange, admitted, target, &head, body, first).await
        }
    }

    /// The next chunk, decoded; or what the attempt has come to.
    async fn read(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        body: &mut Body,
    ) -> Result<Result<Option<Bytes>, Tried>, Break> {
        let read = match self.wait(session, exchange, body.next()).await {
            Ok(read) => read,
            Err(broken) => return self.broke(session, broken).await.map(Err),
        };
        Ok(read.map_err(|failure| Tried::Failed(failure.into())))
    }

    /// A stream of events; however it ends, what was metered is kept.
    async fn events(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        target: &Arc<Target>,
        head: &ResponseHeader,
        body: Body,
        first: Bytes,
    ) -> Result<Tried, Break> {
        let ended = self.carry(session, exchange, target, head, body, first).await;
        if let Some(meter) = exchange.relay.as_ref().and_then(crate::relay::Relay::meter) {
            book_meter(&mut exchange.record, &exchange.shared, meter, &target.word);
        }
        ended
    }

    /// The relay decides, this carries.
    async fn carry(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        target: &Arc<Target>,
        head: &ResponseHeader,
        mut body: Body,
        first: Bytes,
    ) -> Result<Tried, Break> {
        exchange.count_stream();
        if !exchange.client.opened {
            exchange.client.head = self.stream_head(session, exchange, target, head).ok();
        }
        let max_held = exchange.live.config.server.max_held_bytes;
        if let Some(relay) = &mut exchange.relay {
            relay.on(Instant::now(), Input::Head);
        }
        let mut pending = Some(first).filter(|first| !first.is_empty());
        loop {
            let chunk = match pending.take() {
                Some(chunk) => Ok(Some(chunk)),
                None => match self.wait(session, exchange, body.next()).await {
                    Ok(read) => read,
                    Err(Break::Relay(next)) => return self.streamed(session, exchange, target, body, next).await,
                    Err(gone) => {
                        body.answer.session.shutdown().await;
                        return Err(gone);
                    }
                },
            };
            let next = match chunk {
                Ok(Some(chunk)) => {
                    let mut chunk = Some(chunk);
                    let _ = self.upstream_response_body_filter(session, &mut chunk, false, exchange);
                    if let Some(write) = chunk.filter(|write| !write.is_empty())
                        && let Err(gone) = self.write(session, exchange, write).await
                    {
                        body.answer.session.shutdown().await;
                        return Err(gone);
                    }
                    exchange.next
                }
                Ok(None) => self.step(session, exchange, Input::End).await?,
                Err(_) => self.step(session, exchange, Input::Broken).await?,
            };
            let held = exchange.relay.as_ref().map_or(0, crate::relay::Relay::held) + exchange.held_body();
            if !exchange.held.set(held, max_held) && next == Next::Wait {
                log::warn!(held; "max_held_bytes is used up: a stream with a large unfinished event is ended");
                let next = self.step(session, exchange, Input::Broken).await?;
                return self.streamed(session, exchange, target, body, next).await;
            }
            if next != Next::Wait {
                return self.streamed(session, exchange, target, body, next).await;
            }
        }
    }

    async fn step(&self, session: &mut Session, exchange: &mut Exchange, input: Input) -> Result<Next, Break> {
        let Some(relay) = &mut exchange.relay else { return Err(Break::ClientGone) };
        let action = relay.on(Instant::now(), input);
        self.act(session, exchange, action).await
    }

    /// The relay has said how the attempt or the response ends.
    async fn streamed(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        target: &Target,
        mut body: Body,
        next: Next,
    ) -> Result<Tried, Break> {
        match next {
            Next::Wait => Err(Break::ClientGone),
            Next::Failed(failure) => {
                body.answer.session.shutdown().await;
                let mut failed = Failed::from(failure);
                let error = exchange.relay.as_ref().and_then(|relay| relay.meter()).and_then(Meter::error);
                failed.parts = error.map(|error| ErrorParts {
                    status: error.status,
                    kind: error.kind.clone(),
                    code: error.code.clone(),
                    param: None,
                    message: error.message.clone(),
                });
                if let Some(parts) = &failed.parts
                    && account_trouble(parts)
                {
                    failed.failure = Failure::Account(parts.status);
                }
                Ok(Tried::Failed(failed))
            }
            Next::Done(outcome, cause) => {
                let _ = target;
                let closed = self.close(session).await;
                match outcome {
                    Outcome::Completed | Outcome::Truncated => self.read_tail(exchange, body),
                    _ => body.answer.session.shutdown().await,
                }
                closed?;
                Ok(Tried::Done(outcome, cause))
            }
        }
    }

    /// E1: the upstream is read to its end for a moment, so that its connection can be used again.
    fn read_tail(&self, exchange: &Exchange, body: Body) {
        let shared = Arc::clone(&exchange.shared);
        let Answer { mut session, peer, .. } = body.answer;
        tokio::spawn(async move {
            let tail = async {
                let mut size = 0;
                while size <= TAIL_BYTES {
                    match session.read_response_body().await {
                        Ok(Some(chunk)) => size += chunk.len(),
                        Ok(None) => return true,
                        Err(_) => return false,
                    }
                }
                false
            };
            if matches!(tokio::time::timeout(TAIL_TIME, tail).await, Ok(true)) {
                shared.connections.release(session, &peer).await;
            } else {
                session.shutdown().await;
            }
        });
    }

    /// A reply that is no stream (F6, F9): held while it is small, then passed as it is.
    #[expect(clippy::too_many_arguments, reason = "the parts of one answer")]
    async fn whole(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        admitted: &Admitted,
        target: &Arc<Target>,
        head: &ResponseHeader,
        mut body: Body,
        first: Bytes,
    ) -> Result<Tried, Break> {
        let timeouts = &admitted.route.model.timeouts;
        let deadline = body.answer.sent + timeouts.non_stream;
        let announced = content_length(head).filter(|_| matches!(body.coding, Coding::Identity));
        let mut held = BytesMut::from(&first[..]);
        let large = announced.is_some_and(|length| length > HELD_REPLY_BYTES);
        while !large && held.len() <= HELD_REPLY_BYTES && !body.ended {
            match self.read_until(session, exchange, &mut body, deadline, timeouts.idle).await? {
                Ok(Some(chunk)) => held.extend_from_slice(&chunk),
                Ok(None) => body.ended = true,
                Err(tried) => {
                    body.answer.session.shutdown().await;
                    return Ok(tried);
                }
            }
        }
        if !body.ended {
            return self.large(session, exchange, target, head, body, held.freeze(), (deadline, timeouts.idle)).await;
        }
        if !announced.is_none_or(|length| length == held.len()) {
            return Ok(Tried::Failed(Failure::Broken.into()));
        }
        let reply = held.freeze();
        if let Some(failed) = self.unfit(exchange, admitted, target, &reply) {
            return Ok(Tried::Failed(failed));
        }
        if exchange.client.opened {
            return Ok(Tried::Failed(Failure::NotAnAnswer.into()));
        }
        let mut down = self.reply_head(exchange, target, head).map_err(|_| Break::ClientGone)?;
        down.insert_header(header::CONTENT_LENGTH, reply.len().to_string()).map_err(|_| Break::ClientGone)?;
        self.open(session, exchange, down).await?;
        exchange.record.bytes += reply.len() as u64;
        let written = session.as_downstream_mut().write_response_body(reply, true).await;
        self.read_tail(exchange, body);
        written.map_err(|_| Break::ClientGone)?;
        Ok(Tried::Done(exchange.whole_outcome, "reply"))
    }

    /// Reads the meaning of a whole reply. `Some`: it is no answer.
    fn unfit(&self, exchange: &mut Exchange, admitted: &Admitted, target: &Target, reply: &Bytes) -> Option<Failed> {
        if reply.trim_ascii().is_empty() {
            return Some(Failure::Empty.into());
        }
        let mut meter = Meter::new(admitted.endpoint.protocol(), admitted.facts.n);
        let facts = meter.reply(reply);
        book_meter(&mut exchange.record, &exchange.shared, &meter, &target.word);
        exchange.whole_outcome = match meter.finish() {
            Some(crate::meter::Finish::Length) => Outcome::Truncated,
            _ => Outcome::Completed,
        };
        if !facts.error {
            return None;
        }
        let error = meter.error()?;
        let parts = ErrorParts::read(error.status, reply);
        let failure = match error.clients_fault {
            _ if account_trouble(&parts) => Failure::Account(error.status),
            true => Failure::ClientErrorEvent(error.status),
            false => Failure::ErrorEvent(error.status),
        };
        Some(Failed { parts: Some(parts), ..Failed::from(failure) })
    }

    /// F9: beyond 1 MiB the reply is committed and passes through; a break ends it without its last chunk.
    #[expect(clippy::too_many_arguments, reason = "the parts of one answer")]
    async fn large(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        target: &Arc<Target>,
        head: &ResponseHeader,
        mut body: Body,
        held: Bytes,
        (deadline, idle): (Instant, Duration),
    ) -> Result<Tried, Break> {
        if exchange.client.opened {
            body.answer.session.shutdown().await;
            return Ok(Tried::Failed(Failure::TooLarge.into()));
        }
        let mut down = self.reply_head(exchange, target, head).map_err(|_| Break::ClientGone)?;
        match content_length(head).filter(|_| matches!(body.coding, Coding::Identity)) {
            Some(length) => down.insert_header(header::CONTENT_LENGTH, length.to_string()),
            None => frame_by_chunks(session, &mut down),
        }
        .map_err(|_| Break::ClientGone)?;
        exchange.client.head = Some(down);
        self.write(session, exchange, held).await?;
        loop {
            match self.read_until(session, exchange, &mut body, deadline, idle).await? {
                Ok(Some(chunk)) => self.write(session, exchange, chunk).await?,
                Ok(None) => break,
                Err(Tried::Done(outcome, cause)) => return Ok(Tried::Done(outcome, cause)),
                Err(Tried::Failed(failed)) => {
                    exchange.conclude(failed.failure.outcome(), failed.failure.word());
                    body.answer.session.shutdown().await;
                    return Err(Break::Relay(Next::Failed(failed.failure)));
                }
            }
        }
        self.close(session).await?;
        self.read_tail(exchange, body);
        Ok(Tried::Done(Outcome::Completed, "large_reply"))
    }

    /// F5: a coding that Weir does not know passes raw, unread.
    async fn raw(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        target: &Arc<Target>,
        head: &ResponseHeader,
        mut body: Body,
        first: Bytes,
    ) -> Result<Tried, Break> {
        if exchange.client.opened {
            body.answer.session.shutdown().await;
            return Ok(Tried::Failed(Failure::NotAnAnswer.into()));
        }
        let mut down = self.reply_head(exchange, target, head).map_err(|_| Break::ClientGone)?;
        if let Some(coding) = head.headers.get(header::CONTENT_ENCODING) {
            down.insert_header(header::CONTENT_ENCODING, coding.clone()).map_err(|_| Break::ClientGone)?;
        }
        frame_by_chunks(session, &mut down).map_err(|_| Break::ClientGone)?;
        exchange.relay = None;
        exchange.client.head = None;
        self.open(session, exchange, down).await?;
        self.write(session, exchange, first).await?;
        let idle = exchange.admitted.as_ref().map_or(ERROR_BODY_TIME, |admitted| admitted.route.model.timeouts.idle);
        loop {
            let reading = tokio::time::timeout(idle, body.next());
            match self.wait(session, exchange, reading).await? {
                Ok(Ok(Some(chunk))) => self.write(session, exchange, chunk).await?,
                Ok(Ok(None)) => break,
                Ok(Err(_)) | Err(_) => {
                    exchange.conclude(Outcome::UpstreamInterrupted, Failure::Broken.word());
                    body.answer.session.shutdown().await;
                    return Err(Break::Relay(Next::Failed(Failure::Broken)));
                }
            }
        }
        self.close(session).await?;
        Ok(Tried::Done(Outcome::Completed, "raw"))
    }

    async fn read_until(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        body: &mut Body,
        deadline: Instant,
        idle: Duration,
    ) -> Result<Result<Option<Bytes>, Tried>, Break> {
        let now = Instant::now();
        let (until, failure) =
            if deadline < now + idle { (deadline, Failure::NonStream) } else { (now + idle, Failure::Idle) };
        let reading = tokio::time::timeout_at(until.into(), body.next());
        let read = match self.wait(session, exchange, reading).await {
            Ok(read) => read,
            Err(broken) => return self.broke(session, broken).await.map(Err),
        };
        Ok(read.unwrap_or(Err(failure)).map_err(|failure| Tried::Failed(failure.into())))
    }

    /// An error status (A6).
    async fn error(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        admitted: &Admitted,
        target: &Arc<Target>,
        head: &ResponseHeader,
        mut body: Body,
    ) -> Result<Tried, Break> {
        let status = head.status.as_u16();
        let mut text = BytesMut::new();
        let deadline = Instant::now() + ERROR_BODY_TIME;
        while text.len() < ERROR_BODY_BYTES && !body.ended {
            match self.read_until(session, exchange, &mut body, deadline, ERROR_BODY_TIME).await? {
                Ok(Some(chunk)) => text.extend_from_slice(&chunk),
                Ok(None) => body.ended = true,
                Err(Tried::Failed(Failed { failure: Failure::Total | Failure::Draining, .. })) => break,
                Err(done @ Tried::Done(..)) => return Ok(done),
                Err(Tried::Failed(_)) => break,
            }
        }
        if body.ended {
            self.read_tail(exchange, body)
        } else {
            body.answer.session.shutdown().await
        }
        let parts = ErrorParts::read(status, &text);
        let retry = &admitted.route.model.retry;
        let failure = match status {
            _ if account_trouble(&parts) => Failure::Account(status),
            _ if retry.is_on(status) => Failure::Status(status),
            400..=599 => Failure::ClientStatus(status),
            _ => Failure::NotAnAnswer,
        };
        let provider = &target.site.provider;
        let several = admitted.route.targets.len() > 1;
        let message = parts.message.as_deref().unwrap_or_default();
        let named = message.contains("stream_options")
            || parts.param.as_deref().is_some_and(|param| param.contains("stream_options"));
        Ok(Tried::Failed(Failed {
            failure,
            retry_after: retry_after(&head.headers),
            headers: headers::down(&head.headers, &provider.pass_headers, several, &provider.api_keys),
            refuses_stream_options: status == 400 && named && !admitted.facts.include_usage && admitted.facts.stream,
            parts: Some(parts),
        }))
    }

    /// The head of a stream as the client gets it (F7).
    fn stream_head(
        &self,
        session: &Session,
        exchange: &Exchange,
        target: &Target,
        head: &ResponseHeader,
    ) -> pingora_core::Result<ResponseHeader> {
        let mut down = self.reply_head(exchange, target, head)?;
        let is_events = head
            .headers
            .get(header::CONTENT_TYPE)
            .is_some_and(|value| value.as_bytes().to_ascii_lowercase().starts_with(b"text/event-stream"));
        if !is_events {
            down.insert_header(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"))?;
        }
        self.stream_headers(session, exchange, &mut down)?;
        Ok(down)
    }

    /// The head of any answer: the allow-list, and the ids (F7, F10).
    fn reply_head(
        &self,
        exchange: &Exchange,
        target: &Target,
        head: &ResponseHeader,
    ) -> pingora_core::Result<ResponseHeader> {
        let provider = &target.site.provider;
        let several = exchange.admitted.as_ref().is_some_and(|admitted| admitted.route.targets.len() > 1);
        let kept = headers::down(&head.headers, &provider.pass_headers, several, &provider.api_keys);
        let mut down = ResponseHeader::build(head.status, Some(kept.len() + 6))?;
        for (name, value) in &kept {
            down.append_header(name.clone(), value.clone())?;
        }
        self.id_headers(exchange, &mut down)?;
        if let Some(id) = &exchange.record.upstream_request_id {
            down.insert_header("x-upstream-request-id", id.as_str())?;
        }
        Ok(down)
    }
}

/// An upstream's body as it is read.
struct Body {
    answer: Answer,
    coding: Coding,
    ended: bool,
}

impl Body {
    /// The next bytes, decoded; `None` at the end. Cancel-safe: it may be dropped while it waits.
    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            if self.ended {
                return Ok(None);
            }
            let read = read_chunk(&mut self.answer.session).await?;
            match (&mut self.coding, read) {
                (Coding::Decoded(decoder), Some(chunk)) => {
                    let plain = decoder.push(&chunk).map_err(|_| Failure::Broken)?;
                    if !plain.is_empty() {
                        return Ok(Some(plain));
                    }
                }
                (Coding::Decoded(_), None) => {
                    self.ended = true;
                    let Coding::Decoded(decoder) = std::mem::replace(&mut self.coding, Coding::Identity) else {
                        return Ok(None);
                    };
                    let rest = decoder.end().map_err(|_| Failure::Broken)?;
                    return Ok(Some(rest).filter(|rest| !rest.is_empty()));
                }
                (Coding::Identity | Coding::Unknown, read) => return Ok(read),
            }
        }
    }
}

async fn read_chunk(session: &mut HttpSession) -> Result<Option<Bytes>, Failure> {
    session.read_response_body().await.map_err(|error| {
        log::debug!(error:%; "the upstream's body broke off");
        Failure::Broken
    })
}

fn account_trouble(parts: &ErrorParts) -> bool {
    is_account_trouble(parts.status, parts.code.as_deref(), parts.kind.as_deref(), parts.message.as_deref())
}

fn content_length(head: &ResponseHeader) -> Option<usize> {
    head.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn joined(first: &Bytes, second: &Bytes) -> Bytes {
    if first.is_empty() { second.clone() } else { [&first[..], &second[..]].concat().into() }
}

/// The upstream's id of the request, by whichever name it uses.
fn request_id(headers: &HeaderMap) -> Option<String> {
    let value = ["x-request-id", "request-id", "x-amzn-requestid", "apim-request-id"]
        .iter()
        .find_map(|name| headers.get(*name));
    value.and_then(|value| value.to_str().ok()).map(|id| clipped(id, 128)).filter(|id| !id.is_empty())
}

/// What the content type says (B118, B119).
fn shape(headers: &HeaderMap, stream: bool) -> Shape {
    let mut kinds = headers.get_all(header::CONTENT_TYPE).iter();
    let Some(kind) = kinds.next() else { return if stream { Shape::Unclear } else { Shape::Other } };
    let kind = kind.as_bytes().to_ascii_lowercase();
    let essence = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    match essence {
        b"text/event-stream" => Shape::Events,
        b"text/html" => Shape::Html,
        b"text/plain" | b"application/octet-stream" if stream => Shape::Unclear,
        _ if kinds.next().is_some() || kind.windows(17).any(|part| part == b"text/event-stream") => Shape::Unclear,
        _ => Shape::Other,
    }
}

/// Whether the first bytes that are not blank begin an event and not a JSON text or markup.
fn looks_like_events(first: &[u8]) -> bool {
    let start = first.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(first).trim_ascii_start();
    !matches!(start.first(), None | Some(b'{' | b'[' | b'<' | b'"'))
}
