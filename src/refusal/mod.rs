//! Decides what a client is told when something goes wrong: status, code, sentence, envelope.
//!
//! Called by the gateway for everything that Weir itself answers; [`ending`] does the same for
//! streams that are open already, [`upstream`] for errors that an upstream sent. Touches nothing.
//!
//! One enum, one table. Sentences say what to do and hold no host, key, path or inner error.

mod account;
pub mod ending;
mod limit;
pub mod mask;
mod reason;
pub mod upstream;

pub use account::is_account_trouble;
pub use ending::{Ending, ResponseSeen, ending_event};
pub use limit::Limited;
pub use mask::{MaskList, masks};
pub use reason::{Clock, Reason};
pub use upstream::{ErrorParts, upstream_error_body};

use crate::protocol::Protocol;
use serde_json::json;
use std::borrow::Cow;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// One answer of Weir's own, ready to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// `error.type` for chat and responses.
    pub openai_type: &'static str,
    /// `error.code` for chat and responses.
    pub code: Option<&'static str>,
    /// `error.type` for messages.
    pub anthropic_type: &'static str,
    /// One plain sentence, or two.
    pub message: Cow<'static, str>,
    /// The member of the request at fault.
    pub param: Option<&'static str>,
    /// For `retry-after`, in whole seconds rounded up.
    pub retry_after: Option<Duration>,
    /// For `x-should-retry`, which the official SDKs obey.
    pub should_retry: Option<bool>,
    /// For `allow` (405).
    pub allow: Option<&'static str>,
}

impl Refusal {
    /// The error envelope of the client's protocol, as `application/json`.
    #[must_use]
    pub fn body(&self, protocol: Protocol, request_id: &str) -> Vec<u8> {
        let kind = match protocol {
            Protocol::Chat | Protocol::Responses => self.openai_type,
            Protocol::Messages => self.anthropic_type,
        };
        envelope(protocol, &Fields { message: &self.message, kind, param: self.param, code: self.code, request_id })
    }

    /// The headers that go with it, besides `content-type: application/json`.
    #[must_use]
    pub fn headers(&self) -> Vec<(http::HeaderName, http::HeaderValue)> {
        let mut headers = Vec::new();
        if let Some(wait) = self.retry_after {
            let seconds = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0));
            headers.push((http::header::RETRY_AFTER, http::HeaderValue::from(seconds)));
        }
        if let Some(retry) = self.should_retry {
            let value = http::HeaderValue::from_static(if retry { "true" } else { "false" });
            headers.push((http::HeaderName::from_static("x-should-retry"), value));
        }
        if let Some(allow) = self.allow {
            headers.push((http::header::ALLOW, http::HeaderValue::from_static(allow)));
        }
        headers
    }
}

/// What stands in an envelope.
struct Fields<'a> {
    message: &'a str,
    kind: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
    request_id: &'a str,
}

fn envelope(protocol: Protocol, fields: &Fields<'_>) -> Vec<u8> {
    let Fields { message, kind, param, code, request_id } = fields;
    let value = match protocol {
        Protocol::Chat | Protocol::Responses => {
            json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
        }
        Protocol::Messages => {
            json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id})
        }
    };
    value.to_string().into_bytes()
}

/// Anthropic's error type of a status (its documentation's list; others by class).
#[must_use]
pub const fn anthropic_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

/// OpenAI's error type of a status.
#[must_use]
pub const fn openai_type(status: u16) -> &'static str {
    match status {
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    }
}
