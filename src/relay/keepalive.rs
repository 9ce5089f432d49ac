//! What a keepalive looks like, and the proof that one may go out now.
//!
//! Called by the relay. Touches nothing.

use crate::config::{Keepalive, Style, When};
use crate::protocol::Protocol;
use bytes::Bytes;
use std::time::Duration;

/// The Messages protocol's own keepalive.
const PING: &[u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";

/// A model's keepalive, made ready once (K1 to K3).
#[derive(Clone, Debug)]
pub struct Frames {
    /// Silence after which one goes out.
    pub interval: Duration,
    /// Only in silence, or at every interval.
    pub when: When,
    /// K3; `None`: never before upstream's own head.
    pub before_headers: Option<Duration>,
    style: Style,
    comment: Bytes,
    comment_line: Bytes,
}

/// Exists only while the client sits between two events (K4): nothing of an event was sent
/// without its end, no LF may still follow a CR (K2), no terminal event was sent.
#[derive(Debug)]
pub struct Between<'relay> {
    /// What was forwarded so far.
    pub forwarded: &'relay Forwarded,
}

/// What the client has been sent that decides the shape of the next keepalive (K2).
#[derive(Clone, Copy, Debug, Default)]
pub struct Forwarded {
    /// An `id:` or `retry:` field.
    pub id_or_retry: bool,
    /// `message_start`.
    pub message_start: bool,
}

impl Frames {
    /// The frames of one model.
    #[must_use]
    pub fn new(config: &Keepalive) -> Self {
        Self {
            interval: config.interval,
            when: config.when,
            before_headers: config.before_headers,
            style: config.style,
            comment: Bytes::from(format!(": {}\n\n", config.text)),
            comment_line: Bytes::from(format!(": {}\n", config.text)),
        }
    }

    /// The bytes of one keepalive (K2).
    #[must_use]
    pub fn frame(&self, between: &Between<'_>, protocol: Protocol) -> Bytes {
        match self.style {
            Style::CommentLine => self.comment_line.clone(),
            Style::Auto if between.forwarded.id_or_retry => self.comment_line.clone(),
            Style::Ping if protocol == Protocol::Messages && between.forwarded.message_start => {
                Bytes::from_static(PING)
            }
            Style::Comment | Style::Ping | Style::Auto => self.comment.clone(),
        }
    }
}
