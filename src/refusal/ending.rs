//! The native error events that end an open stream (E2, E3, K3).

use super::upstream::ErrorParts;
use crate::protocol::Protocol;
use bytes::Bytes;
use serde_json::json;

#[cfg(test)]
mod tests;

/// Why an open stream ends with an error of Weir's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The upstream's answer broke off, or was unreadable (E2).
    Interrupted,
    /// The upstream went silent (S1).
    Stalled,
    /// `total` ran out.
    Timeout,
    /// The upstream is overloaded (503, 529).
    Overloaded,
    /// The upstream's rate limit (429).
    RateLimited,
    /// No target could be reached, or none of the operator's accounts works (A6, A7).
    Unavailable,
    /// The key's budget ran out, with `on_reached: cut` (G2).
    Budget,
    /// Weir is shutting down (C3).
    Draining,
    /// The key was revoked, and its running streams with it (G1).
    Revoked,
    /// A fault of Weir's own.
    Internal,
    /// The upstream's own error, already masked ([`ErrorParts::masked`]): the client's own fault
    /// after K3, or N5.
    Upstream(ErrorParts),
}

/// What of a responses stream the client has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseSeen<'a> {
    /// Of `response.created`; `resp_<request id>` if the prelude was never sent (K3).
    pub id: &'a str,
    /// Of `response.created`, else the public name.
    pub model: Option<&'a str>,
    /// Of `response.created`, in seconds since 1970, else the request's time.
    pub created_at: Option<u64>,
    /// One more than the last that was sent; 0 if none was.
    pub next_sequence: u64,
}

/// One row of the table.
struct Row<'a> {
    chat_message: &'a str,
    chat_type: &'a str,
    chat_code: Option<&'a str>,
    param: Option<&'a str>,
    message: &'a str,
    messages_type: &'a str,
    responses_code: &'a str,
}

/// The event, or for chat with `chat_done` the event and `[DONE]`. `seen` is read for responses only.
#[must_use]
pub fn ending_event(protocol: Protocol, ending: &Ending, seen: &ResponseSeen<'_>, chat_done: bool) -> Bytes {
    let row = row(ending);
    match protocol {
        Protocol::Chat => chat(&row, chat_done),
        Protocol::Messages => messages(&row),
        Protocol::Responses => responses(&row, seen),
    }
}

/// The `response.error` alone, as JSON: for a failed response that keeps the rest of what it says (N5).
#[must_use]
pub fn response_error(ending: &Ending) -> Vec<u8> {
    let row = row(ending);
    let (code, message) = (json!(row.responses_code), json!(row.message));
    format!("{{\"code\":{code},\"message\":{message}}}").into_bytes()
}

fn row(ending: &Ending) -> Row<'_> {
    // (chat's sentence, chat's code, the others' sentence, messages' type, responses' code)
    let (chat_message, code, message, messages_type, responses_code) = match ending {
        Ending::Interrupted => (
            "Stream interrupted",
            "stream_interrupted",
            "Response stream interrupted, please retry",
            "api_error",
            "server_error",
        ),
        Ending::Stalled => {
            let text = "The model stopped sending output, please retry";
            (text, "stream_stalled", text, "api_error", "server_error")
        }
        Ending::Timeout => {
            let text = "The response took too long, please retry";
            (text, "stream_timeout", text, "timeout_error", "server_error")
        }
        Ending::Overloaded => {
            let text = "The model is overloaded, please retry later";
            (text, "upstream_overloaded", text, "overloaded_error", "rate_limit_exceeded")
        }
        Ending::RateLimited => {
            let text = "The model's rate limit was reached, please retry later";
            (text, "rate_limit_exceeded", text, "rate_limit_error", "rate_limit_exceeded")
        }
        Ending::Unavailable => {
            let text = "The model is unavailable, please retry later";
            (text, "upstream_unavailable", text, "api_error", "server_error")
        }
        Ending::Budget => {
            let text = "The budget of this API key is used up";
            (text, "budget_exceeded", text, "billing_error", "rate_limit_exceeded")
        }
        Ending::Draining => {
            let text = "The server is shutting down, please retry";
            (text, "server_draining", text, "overloaded_error", "server_error")
        }
        Ending::Revoked => {
            let text = "This API key has been revoked";
            (text, "key_revoked", text, "authentication_error", "server_error")
        }
        Ending::Internal => {
            let text = "Internal error, please retry";
            (text, "internal_error", text, "api_error", "server_error")
        }
        Ending::Upstream(parts) => return upstream_row(parts),
    };
    Row {
        chat_message,
        chat_type: "api_error",
        chat_code: Some(code),
        param: None,
        message,
        messages_type,
        responses_code,
    }
}

fn upstream_row(parts: &ErrorParts) -> Row<'_> {
    let message = parts.message.as_deref().unwrap_or_else(|| super::upstream::sentence(parts.status));
    let kind = parts.kind.as_deref();
    Row {
        chat_message: message,
        chat_type: kind.unwrap_or_else(|| super::openai_type(parts.status)),
        chat_code: parts.code.as_deref(),
        param: parts.param.as_deref(),
        message,
        messages_type: kind.unwrap_or_else(|| super::anthropic_type(parts.status)),
        responses_code: match parts.status {
            429 | 503 | 529 => "rate_limit_exceeded",
            400..=499 => "invalid_prompt",
            _ => "server_error",
        },
    }
}

fn chat(row: &Row<'_>, done: bool) -> Bytes {
    let text = |text: &str| json!(text).to_string();
    // Written by hand: the order of the members is part of the promise (E2).
    let mut event = format!(r#"data: {{"error":{{"message":{},"type":{}"#, text(row.chat_message), text(row.chat_type));
    if let Some(param) = row.param {
        event.push_str(r#","param":"#);
        event.push_str(&text(param));
    }
    if let Some(code) = row.chat_code {
        event.push_str(r#","code":"#);
        event.push_str(&text(code));
    }
    event.push_str("}}\n\n");
    if done {
        event.push_str("data: [DONE]\n\n");
    }
    Bytes::from(event)
}

fn messages(row: &Row<'_>) -> Bytes {
    let (kind, message) = (json!(row.messages_type), json!(row.message));
    Bytes::from(format!(
        "event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":{kind},\"message\":{message}}}}}\n\n"
    ))
}

/// The whole object that the official SDKs' models ask for, so that strict ones parse it too.
fn responses(row: &Row<'_>, seen: &ResponseSeen<'_>) -> Bytes {
    let sequence = seen.next_sequence;
    let id = json!(seen.id);
    let created_at = seen.created_at.unwrap_or(0);
    let model = json!(seen.model.unwrap_or_default());
    let (code, message) = (json!(row.responses_code), json!(row.message));
    Bytes::from(format!(
        concat!(
            "event: response.failed\ndata: {{\"type\":\"response.failed\",\"sequence_number\":{sequence},",
            "\"response\":{{\"id\":{id},\"object\":\"response\",\"created_at\":{created_at},\"status\":\"failed\",",
            "\"error\":{{\"code\":{code},\"message\":{message}}},\"incomplete_details\":null,\"instructions\":null,",
            "\"metadata\":{{}},\"model\":{model},\"output\":[],\"parallel_tool_calls\":true,\"temperature\":null,",
            "\"tool_choice\":\"auto\",\"tools\":[],\"top_p\":null,\"usage\":null}}}}\n\n"
        ),
        sequence = sequence,
        id = id,
        created_at = created_at,
        code = code,
        message = message,
        model = model,
    ))
}
