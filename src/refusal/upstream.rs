//! What is shown of an error that an upstream sent, and whose trouble it is (A6).

use super::{Fields, MaskList, anthropic_type, envelope, masks, openai_type};
use crate::protocol::Protocol;

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

impl ErrorParts {
    /// Reads the body of an upstream's error answer in any of the shapes that providers and
    /// servers use. A body that is not JSON gives the status alone.
    #[must_use]
    pub fn read(status: u16, body: &[u8]) -> Self {
        let _ = body;
        Self { status, ..Self::default() }
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

/// Whether an upstream's error is about the operator's account there: bad credentials or used-up
/// money (A6).
#[must_use]
pub fn is_account_trouble(status: u16, code: Option<&str>, kind: Option<&str>, message: Option<&str>) -> bool {
    let _ = (code, kind, message);
    matches!(status, 401 | 402)
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
