//! Reads an upstream's error, in whatever shape it comes (A2, A6, F4, B94).
//!
//! Called by the meter (native error events, error bodies) and the gateway. Touches nothing.

use crate::json::{Kind, Malformed, Walker};
use crate::protocol::Protocol;

/// Longest message kept, in bytes; what an upstream sends has no bound of its own.
const MAX_MESSAGE: usize = 8 * 1024;
/// Longest type or code kept, in bytes.
const MAX_WORD: usize = 256;

/// What words in `code`, `type` and `status` mean, the most telling first. Codes are looked at
/// before types: `invalid_request_error` with `invalid_api_key` is a 401.
const WORDS: &[(&str, u16)] = &[
    ("insufficient_quota", 429),
    ("rate_limit", 429),
    ("resource_exhausted", 429),
    ("too_many_requests", 429),
    ("overloaded", 529),
    ("unavailable", 503),
    ("slow_down", 503),
    ("invalid_api_key", 401),
    ("authentication", 401),
    ("unauthenticated", 401),
    ("unauthorized", 401),
    ("billing", 402),
    ("permission", 403),
    ("forbidden", 403),
    ("not_found", 404),
    ("too_large", 413),
    ("timeout", 504),
    ("deadline_exceeded", 504),
    ("invalid_request", 400),
    ("invalid_prompt", 400),
    ("context_length", 400),
    ("exceed_context", 400),
    ("bad_request", 400),
    ("badrequest", 400),
    ("invalid_argument", 400),
    ("content_policy", 400),
];

/// In a message of an `invalid_request_error`: the operator's account is empty, not the client wrong.
const EMPTY_ACCOUNT: &str = "credit balance is too low";

/// An error as the upstream told it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamError {
    /// The HTTP status it stands for: its own numeric code, else what its words mean, else 500 (B94).
    pub status: u16,
    /// Its `type`; at most 256 bytes.
    pub kind: Option<String>,
    /// Its `code`; at most 256 bytes.
    pub code: Option<String>,
    /// Its message, at most 8 KiB; may hold hosts and keys (A6).
    pub message: Option<String>,
    /// The client's own fault (A2): no failover, no cool-down.
    pub clients_fault: bool,
}

impl UpstreamError {
    /// Reads an error event's data or an HTTP error body; `None` if it holds no error. Known shapes:
    /// `{"error":{…}}`, `{"error":"text"}`, `{"type":"error","error":{…}}`, `{"response":{"error":{…}}}`,
    /// flat (`object` or `type` is `error`, or a bare message and code), `{"detail":…}`, `[{"error":…}]`.
    #[must_use]
    pub fn from_json(protocol: Protocol, json: &[u8]) -> Option<Self> {
        let mut parts = Parts::default();
        let mut walker = Walker::new(json);
        parts.any(&mut walker, protocol).and_then(|()| walker.end()).ok()?;
        parts.error()
    }

    /// An error of which nothing is known but that it happened (`finish_reason: "error"` alone).
    #[must_use]
    pub(super) fn unknown() -> Self {
        Self { status: 500, ..Self::default() }
    }
}

/// What was found so far, the inner object's members over the outer ones.
#[derive(Debug, Default)]
struct Parts {
    kind: Option<String>,
    code: Option<String>,
    message: Option<String>,
    status_word: Option<String>,
    number: Option<u16>,
    /// An `error` member, or a text that can only be an error.
    certain: bool,
}

impl Parts {
    fn any(&mut self, walker: &mut Walker<'_>, protocol: Protocol) -> Result<(), Malformed> {
        match walker.peek()? {
            Kind::Object => self.object(walker, protocol, 0),
            Kind::Array => {
                let mut first = true;
                walker
                    .array(|walker| {
                        if std::mem::take(&mut first) && walker.peek()? == Kind::Object {
                            return self.object(walker, protocol, 0);
                        }
                        walker.skip().map(drop)
                    })
                    .map(drop)
            }
            Kind::String => {
                self.message = text(walker, MAX_MESSAGE)?;
                self.certain = self.message.is_some();
                Ok(())
            }
            Kind::Number | Kind::Bool | Kind::Null => walker.skip().map(drop),
        }
    }

    /// One level; what an inner level says wins, so it is merged last.
    fn object(&mut self, walker: &mut Walker<'_>, protocol: Protocol, level: u8) -> Result<(), Malformed> {
        let mut inner = Self::default();
        walker.object(|walker, name| {
            match &*name.bytes() {
                b"error" if level < 2 => match walker.peek()? {
                    Kind::Object => {
                        inner.object(walker, protocol, level + 1)?;
                        inner.certain = true;
                    }
                    Kind::String => {
                        inner.message = text(walker, MAX_MESSAGE)?;
                        inner.certain |= inner.message.is_some();
                    }
                    _ => drop(walker.skip()?),
                },
                b"response" if level == 0 && protocol == Protocol::Responses => {
                    let mut response = Self::default();
                    response.object(walker, protocol, 1)?;
                    if response.certain {
                        inner = response;
                    }
                }
                b"message" => self.message = text(walker, MAX_MESSAGE)?.or_else(|| self.message.take()),
                b"detail" => {
                    self.certain = true;
                    if self.message.is_none() {
                        self.message = detail(walker)?;
                    } else {
                        walker.skip()?;
                    }
                }
                b"type" => self.kind = text(walker, MAX_WORD)?,
                b"object" => self.certain |= walker.string()?.is_some_and(|object| object.is("error")),
                b"code" | b"status" | b"status_code" => self.code(walker, name.raw() == b"code")?,
                _ => drop(walker.skip()?),
            }
            Ok(())
        })?;
        self.take(inner);
        Ok(())
    }

    /// A code or status: a number, a number in a string, or a word.
    fn code(&mut self, walker: &mut Walker<'_>, is_code: bool) -> Result<(), Malformed> {
        let word = match walker.peek()? {
            Kind::Number => std::str::from_utf8(walker.skip()?).ok().map(str::to_owned),
            _ => text(walker, MAX_WORD)?,
        };
        let status = word.as_deref().and_then(|word| word.parse().ok()).filter(|status| (400..600).contains(status));
        self.number = self.number.or(status);
        if is_code {
            self.code = word;
        } else {
            self.status_word = self.status_word.take().or(word);
        }
        Ok(())
    }

    fn take(&mut self, inner: Self) {
        self.kind = inner.kind.or_else(|| self.kind.take());
        self.code = inner.code.or_else(|| self.code.take());
        self.message = inner.message.or_else(|| self.message.take());
        self.status_word = inner.status_word.or_else(|| self.status_word.take());
        self.number = inner.number.or(self.number);
        self.certain |= inner.certain;
    }

    fn error(self) -> Option<UpstreamError> {
        let is_error =
            |word: &Option<String>| word.as_deref().is_some_and(|word| word.to_ascii_lowercase().contains("error"));
        if !self.certain
            && !is_error(&self.kind)
            && (self.message.is_none() || (self.code.is_none() && self.number.is_none()))
        {
            return None;
        }
        let words = [&self.code, &self.kind, &self.status_word];
        let status = self.number.or_else(|| words.into_iter().flatten().find_map(|word| meaning(word))).unwrap_or(500);
        let empty_account = self.message.as_deref().is_some_and(|message| message.contains(EMPTY_ACCOUNT))
            || self.code.as_deref().is_some_and(|code| code.contains("insufficient_quota"));
        Some(UpstreamError {
            status,
            kind: self.kind.filter(|kind| kind != "error"),
            code: self.code,
            message: self.message,
            clients_fault: matches!(status, 400 | 413 | 422) && !empty_account,
        })
    }
}

fn meaning(word: &str) -> Option<u16> {
    let word = word.to_ascii_lowercase();
    WORDS.iter().find(|(part, _)| word.contains(part)).map(|(_, status)| *status)
}

/// A non-empty string of at most `max` bytes; longer ones are cut.
fn text(walker: &mut Walker<'_>, max: usize) -> Result<Option<String>, Malformed> {
    let decoded = walker.string()?.and_then(crate::json::Text::decoded).filter(|text| !text.is_empty());
    Ok(decoded.map(|text| shortened(&text, max)))
}

fn shortened(text: &str, max: usize) -> String {
    text.get(..text.floor_char_boundary(max)).unwrap_or_default().to_owned()
}

/// `detail` is a text, or a list with a `msg` each, of which the first tells enough.
fn detail(walker: &mut Walker<'_>) -> Result<Option<String>, Malformed> {
    let mut found = None;
    if walker.peek()? == Kind::String {
        return text(walker, MAX_MESSAGE);
    }
    walker.array(|walker| {
        walker.object(|walker, name| {
            if found.is_none() && name.is("msg") {
                found = text(walker, MAX_MESSAGE)?;
                return Ok(());
            }
            walker.skip().map(drop)
        })?;
        Ok(())
    })?;
    Ok(found)
}
