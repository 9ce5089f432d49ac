use super::{Ending, ErrorParts, ResponseSeen, ending_event};
use crate::protocol::Protocol;
use serde_json::Value;

const SEEN: ResponseSeen<'_> =
    ResponseSeen { id: "resp_abc", model: Some("gpt-5.6-sol"), created_at: Some(1_700_000_000), next_sequence: 42 };

fn text(protocol: Protocol, ending: &Ending, chat_done: bool) -> String {
    String::from_utf8(ending_event(protocol, ending, &SEEN, chat_done).to_vec()).unwrap()
}

/// The `event:` line, if any, and the data.
fn event(protocol: Protocol, ending: &Ending) -> (Option<String>, Value) {
    let text = text(protocol, ending, false);
    let event = text.strip_suffix("\n\n").unwrap();
    let (name, data) = match event.split_once('\n') {
        Some((name, data)) => (Some(name.strip_prefix("event: ").unwrap().to_owned()), data),
        None => (None, event),
    };
    (name, serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap())
}

#[test]
fn e2_the_promised_bytes() {
    let chat = concat!(
        r#"data: {"error":{"message":"Stream interrupted","type":"api_error","code":"stream_interrupted"}}"#,
        "\n\n"
    );
    assert_eq!(text(Protocol::Chat, &Ending::Interrupted, false), chat);
    assert_eq!(text(Protocol::Chat, &Ending::Interrupted, true), format!("{chat}data: [DONE]\n\n"));
    let messages = concat!(
        "event: error\ndata: ",
        r#"{"type":"error","error":{"type":"api_error","message":"Response stream interrupted, please retry"}}"#,
        "\n\n"
    );
    assert_eq!(text(Protocol::Messages, &Ending::Interrupted, true), messages, "[DONE] is chat's alone");
    let responses = concat!(
        "event: response.failed\ndata: ",
        r#"{"type":"response.failed","sequence_number":42,"response":{"id":"resp_abc","object":"response","#,
        r#""created_at":1700000000,"status":"failed","error":{"code":"server_error","#,
        r#""message":"Response stream interrupted, please retry"},"incomplete_details":null,"instructions":null,"#,
        r#""metadata":{},"model":"gpt-5.6-sol","output":[],"parallel_tool_calls":true,"temperature":null,"#,
        r#""tool_choice":"auto","tools":[],"top_p":null,"usage":null}}"#,
        "\n\n"
    );
    assert_eq!(text(Protocol::Responses, &Ending::Interrupted, true), responses);
}

#[test]
fn e3_b97_b98_b100_b104_every_cause_in_every_protocol() {
    for (ending, chat, messages, responses) in [
        (Ending::Interrupted, "stream_interrupted", "api_error", "server_error"),
        (Ending::Stalled, "stream_stalled", "api_error", "server_error"),
        (Ending::Timeout, "stream_timeout", "timeout_error", "server_error"),
        (Ending::Overloaded, "upstream_overloaded", "overloaded_error", "rate_limit_exceeded"),
        (Ending::RateLimited, "rate_limit_exceeded", "rate_limit_error", "rate_limit_exceeded"),
        (Ending::Unavailable, "upstream_unavailable", "api_error", "server_error"),
        (Ending::Budget, "budget_exceeded", "billing_error", "rate_limit_exceeded"),
        (Ending::Draining, "server_draining", "overloaded_error", "server_error"),
        (Ending::Revoked, "key_revoked", "authentication_error", "server_error"),
        (Ending::Internal, "internal_error", "api_error", "server_error"),
    ] {
        let (name, data) = event(Protocol::Chat, &ending);
        assert_eq!((name, data["error"]["code"].as_str()), (None, Some(chat)));
        assert!(!data["error"]["message"].as_str().unwrap().is_empty());
        let (name, data) = event(Protocol::Messages, &ending);
        assert_eq!((name.as_deref(), data["type"].as_str()), (Some("error"), Some("error")));
        assert_eq!(data["error"]["type"], messages);
        let (name, data) = event(Protocol::Responses, &ending);
        assert_eq!((name.as_deref(), data["type"].as_str()), (Some("response.failed"), Some("response.failed")));
        assert_eq!(data["response"]["error"]["code"], responses);
        for data in [event(Protocol::Chat, &ending).1, event(Protocol::Messages, &ending).1, data] {
            let told = data.to_string();
            assert!(!told.contains("finish_reason") && !told.contains("stop_reason"), "no stop reason is invented");
        }
    }
}

#[test]
fn b101_the_response_goes_on_as_it_began() {
    let (_, data) = event(Protocol::Responses, &Ending::Stalled);
    assert_eq!(data["sequence_number"], 42);
    assert_eq!(data["response"]["id"], "resp_abc");
    assert_eq!(data["response"]["model"], "gpt-5.6-sol");
    assert_eq!(data["response"]["status"], "failed");
}

#[test]
fn k3_an_upstreams_own_error_keeps_its_words() {
    let parts = ErrorParts {
        status: 400,
        kind: Some("invalid_request_error".to_owned()),
        code: Some("context_length_exceeded".to_owned()),
        param: Some("messages".to_owned()),
        message: Some("too \"long\"\nby far".to_owned()),
    };
    let ending = Ending::Upstream(parts.clone());
    let (_, data) = event(Protocol::Chat, &ending);
    assert_eq!(data["error"]["message"], "too \"long\"\nby far", "a line break is escaped, or the event would be cut");
    assert_eq!(data["error"]["type"], "invalid_request_error");
    assert_eq!(data["error"]["code"], "context_length_exceeded");
    assert_eq!(data["error"]["param"], "messages");
    let (_, data) = event(Protocol::Messages, &ending);
    assert_eq!(data["error"]["type"], "invalid_request_error");
    for (status, code) in
        [(400, "invalid_prompt"), (429, "rate_limit_exceeded"), (529, "rate_limit_exceeded"), (500, "server_error")]
    {
        let (_, data) = event(Protocol::Responses, &Ending::Upstream(ErrorParts { status, ..parts.clone() }));
        assert_eq!(data["response"]["error"]["code"], code, "{status}");
    }
    // Masked down to a status: a sentence of our own.
    let bare = Ending::Upstream(ErrorParts { status: 529, ..ErrorParts::default() });
    let (_, data) = event(Protocol::Messages, &bare);
    assert_eq!(data["error"]["type"], "overloaded_error");
    assert_eq!(data["error"]["message"], "The model is overloaded. Please try again later.");
    let (_, data) = event(Protocol::Chat, &bare);
    assert!(data["error"].get("code").is_none() && data["error"].get("param").is_none());
}
