//! An upstream's body as it is read: decoded, classified, read to its end.
//!
//! Called by the stages that carry an answer. Touches the upstream's connection.

use super::exchange::Exchange;
use crate::outcome::Failure;
use crate::upstream::call::Answer;
use crate::upstream::decode::Coding;
use bytes::Bytes;
use http::{HeaderMap, header};
use pingora_core::protocols::http::client::HttpSession;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// E1: after the terminal event the upstream is read on for this long at most …
const TAIL_TIME: Duration = Duration::from_secs(1);
/// … and for this many bytes.
const TAIL_BYTES: usize = 16 * 1024;

/// What a body is, by its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Events,
    /// The type does not tell; the first bytes do (B119, B121).
    Unclear,
    Html,
    Other,
}

/// An upstream's body as it is read.
pub(super) struct Body {
    pub(super) answer: Box<Answer>,
    pub(super) coding: Coding,
    pub(super) ended: bool,
}

impl Body {
    /// The next bytes, decoded; none if they decode to nothing yet, so that a caller's clocks are
    /// looked at in between. `None` at the end. Cancel-safe: it may be dropped while it waits.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        if self.ended {
            return Ok(None);
        }
        let read = read_chunk(&mut self.answer.session).await?;
        match (&mut self.coding, read) {
            (Coding::Decoded(decoder), Some(chunk)) => Ok(Some(decoder.push(&chunk).map_err(|_| Failure::Broken)?)),
            (Coding::Decoded(_), None) => {
                self.ended = true;
                let Coding::Decoded(decoder) = std::mem::replace(&mut self.coding, Coding::Identity) else {
                    return Ok(None);
                };
                let rest = decoder.end().map_err(|_| Failure::Broken)?;
                Ok(Some(rest).filter(|rest| !rest.is_empty()))
            }
            (Coding::Identity | Coding::Unknown, read) => {
                self.ended = read.is_none();
                Ok(read)
            }
        }
    }

    /// E1: the upstream is read to its end for a moment, so that its connection can be used again. What
    /// has come already is read at once: called before the client's response is closed, the connection is
    /// in the pool by the time the client can ask again.
    pub(super) async fn read_tail(self, exchange: &Exchange) {
        let shared = Arc::clone(&exchange.shared);
        let mut answer = self.answer;
        let mut size = 0;
        let at_once = {
            let mut reading = pin!(read_to_end(&mut answer.session, &mut size));
            poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await
        };
        if let Poll::Ready(has_ended) = at_once {
            // Boxed: a stream would have room for it all the time that it lasts.
            return Box::pin(shared.connections.done(answer, has_ended)).await;
        }
        tokio::spawn(async move {
            let read = tokio::time::timeout(TAIL_TIME, read_to_end(&mut answer.session, &mut size)).await;
            shared.connections.done(answer, read.unwrap_or(false)).await;
        });
    }

    /// Gives the connection up.
    pub(super) async fn abandon(&mut self) {
        self.answer.session.shutdown().await;
    }
}

/// Whether the body ends within [`TAIL_BYTES`]; `size` of them were read. May be dropped and begun again.
async fn read_to_end(session: &mut HttpSession, size: &mut usize) -> bool {
    while *size <= TAIL_BYTES {
        match session.read_response_body().await {
            Ok(Some(chunk)) => *size += chunk.len(),
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
    false
}

async fn read_chunk(session: &mut HttpSession) -> Result<Option<Bytes>, Failure> {
    session.read_response_body().await.map_err(|error| {
        log::debug!(error:%; "the upstream's body broke off");
        Failure::Broken
    })
}

/// What the content type says (B118, B119).
pub(super) fn shape(headers: &HeaderMap, stream: bool) -> Shape {
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
pub(super) fn looks_like_events(first: &[u8]) -> bool {
    let start = first.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(first).trim_ascii_start();
    !matches!(start.first(), None | Some(b'{' | b'[' | b'<' | b'"'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn b118_b119_content_types() {
        let of = |kinds: &[&'static str], stream| {
            let mut headers = HeaderMap::new();
            for kind in kinds {
                headers.append(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            }
            shape(&headers, stream)
        };
        for kind in [
            "text/event-stream",
            "text/event-stream; charset=utf-8",
            "Text/Event-Stream",
            "text/event-stream;charset=UTF-8",
        ] {
            assert_eq!(of(&[kind], true), Shape::Events, "{kind}");
        }
        assert_eq!(of(&["application/json, text/event-stream; charset=utf-8"], true), Shape::Unclear);
        assert_eq!(of(&["application/json", "text/event-stream"], true), Shape::Unclear);
        assert_eq!(of(&[], true), Shape::Unclear);
        assert_eq!(of(&[], false), Shape::Other);
        assert_eq!(of(&["application/json"], true), Shape::Other);
        assert_eq!(of(&["text/html; charset=utf-8"], true), Shape::Html);
    }

    #[test]
    fn b121_the_first_bytes_tell() {
        for events in ["data: x", ": ping", "\n\nev", "\u{feff}data:", "retry: 1"] {
            assert!(looks_like_events(events.as_bytes()), "{events:?}");
        }
        for other in ["{\"id\":1}", " [1]", "<html>", "", "\n"] {
            assert!(!looks_like_events(other.as_bytes()), "{other:?}");
        }
    }
}
