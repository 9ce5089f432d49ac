//! What is shown of an error that an upstream sent (A6).
//!
//! Called by the gateway for error statuses and for error events that Weir writes anew (K3, N5).
//! Touches nothing.

use super::{Fields, MaskList, anthropic_type, envelope, masks, openai_type};
use crate::meter::UpstreamError;
use crate::protocol::Protocol;
use serde_json::Value;

#[cfg(test)]
mod tests;

/// A type or code longer than this is no word but a text.
const MAX_WORD: usize = 128;

/// The parts of an upstream's error, whatever its shape was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorParts {
    /// The HTTP status, or the one that the error stands for in a stream.
    pub status: u16,
    /// `type`.
    pub kind: Option<String>,
    /// `code`, a number as its digits.
    pub code: Option<String>,
    /// `param`.
    pub param: Option<String>,
    /// `message`; `None`: there was none, or not one for people (HTML).
    pub message: Option<String>,
}

impl From<&UpstreamError> for ErrorParts {
    fn from(error: &UpstreamError) -> Self {
        let UpstreamError { status, kind, code, message, clients_fault: _ } = error;
        // Of a responses stream it is the event's type, which says nothing of the error.
        let kind = kind.clone().filter(|kind| kind != "response.failed" && kind != "error");
        Self { status: *status, kind, code: code.clone(), param: None, message: message.clone() }
    }
}

impl ErrorParts {
    /// Reads the body of an upstream's error answer in any of the shapes that providers and
    /// servers use: OpenAI's and Anthropic's envelopes, a bare error object (older vLLM), `error`
    /// as a text (Ollama and others), `detail` (Python frameworks), Google's list. A body that is not JSON (a
    /// proxy's HTML page) gives the status alone.
    #[must_use]
    pub fn read(status: u16, body: &[u8]) -> Self {
        let none = Self { status, ..Self::default() };
        let Ok(value) = serde_json::from_slice::<Value>(body) else { return none };
        let outer = match &value {
            Value::Array(list) => list.first().unwrap_or(&Value::Null),
            other => other,
        };
        let inner = match outer.get("error") {
            Some(error @ Value::Object(_)) => error,
            _ => outer,
        };
        let message = [inner.get("message"), outer.get("error"), outer.get("message"), outer.get("detail")];
        let detail = outer.pointer("/detail/0/msg");
        // Anthropic's outer `type` is the word "error", older vLLM's `object` likewise.
        let kind = inner.get("type").and_then(Value::as_str).filter(|kind| *kind != "error");
        // Google: `code` is the status again, and `status` the word.
        let codes = [inner.get("code"), outer.get("code"), inner.get("status")].into_iter().flatten();
        let code = codes.filter(|code| code.as_u64() != Some(u64::from(status))).find_map(word);
        Self {
            status,
            kind: kind.filter(|kind| kind.len() <= MAX_WORD).map(str::to_owned),
            code,
            param: inner.get("param").and_then(word),
            message: message.into_iter().chain([detail]).flatten().find_map(text),
        }
    }

    /// The same without what tells too much; `None`: `error_bodies: pass`.
    #[must_use]
    pub fn masked(mut self, mask: Option<&MaskList<'_>>) -> Self {
        let Some(mask) = mask else { return self };
        for part in [&mut self.kind, &mut self.code, &mut self.param, &mut self.message] {
            if part.as_deref().is_some_and(|text| masks(text, mask)) {
                *part = None;
            }
        }
        self
    }

    /// A6: about the operator's account, see [`super::is_account_trouble`]. To be asked before
    /// [`Self::masked`].
    #[must_use]
    pub fn is_account_trouble(&self) -> bool {
        let (code, kind, message) = (self.code.as_deref(), self.kind.as_deref(), self.message.as_deref());
        super::is_account_trouble(self.status, code, kind, message)
    }
}

/// A short text or a number.
fn word(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() && text.len() <= MAX_WORD => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// A text for people.
fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.trim().is_empty() && !text.trim_start().starts_with('<')).map(str::to_owned)
}

/// The envelope for an upstream's error status: its type, code and param, and its message if that
/// is there, else a sentence by status. Mask the parts first.
#[must_use]
pub fn upstream_error_body(protocol: Protocol, parts: &ErrorParts, request_id: &str) -> Vec<u8> {
    let kind = parts.kind.as_deref().unwrap_or(match protocol {
        Protocol::Chat | Protocol::Responses => openai_type(parts.status),
        Protocol::Messages => anthropic_type(parts.status),
    });
    let message = parts.message.as_deref().unwrap_or_else(|| sentence(parts.status));
    let (param, code) = (parts.param.as_deref(), parts.code.as_deref());
    envelope(protocol, &Fields { message, kind, param, code, request_id })
}

/// A plain sentence for a status whose own message is not shown.
pub(super) const fn sentence(status: u16) -> &'static str {
    match status {
        400 => "The model refused the request as invalid.",
        404 => "The model or something the request names was not found.",
        408 | 504 => "The model did not answer in time. Please try again later.",
        413 => "The request is too large for the model.",
        429 => "The model's rate limit was reached. Please try again later.",
        503 | 529 => "The model is overloaded. Please try again later.",
        401..=499 => "The model refused the request.",
        _ => "The model failed to answer. Please try again later.",
    }
}
