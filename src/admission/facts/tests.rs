use super::{BodyError, Facts, read};
use crate::protocol::Endpoint;

fn chat(body: &str) -> Result<Facts, BodyError> {
    read(Endpoint::Chat, body.as_bytes())
}

fn facts(endpoint: Endpoint, body: &str) -> Facts {
    read(endpoint, body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"))
}

#[test]
fn b2_what_is_read_of_a_chat_request() {
    let read = facts(
        Endpoint::Chat,
        r#" {"messages":[{"role":"user","content":"{\"model\":1}"}], "mod\u0065l" : "gpt\u002d5", "stream":true,
        "stream_options":{"x":1,"include_usage":true},"n":3,"max_tokens":5,"max_completion_tokens":9,
        "user":"u","prompt_cache_key":"k","service_tier":"flex","store":false,"background":7} "#,
    );
    assert_eq!(read.model, "gpt-5");
    assert!(read.stream && read.include_usage && !read.background);
    assert_eq!((read.n, read.max_output_tokens, read.store), (Some(3), Some(9), Some(false)));
    assert_eq!((read.user.as_deref(), read.prompt_cache_key.as_deref()), (Some("u"), Some("k")));
    assert_eq!(read.service_tier.as_deref(), Some("flex"));
}

#[test]
fn b2_what_is_read_of_a_responses_request() {
    let body = r#"{"model":"m","user":"u","safety_identifier":"s","max_output_tokens":7,"background":true,"store":true,
        "previous_response_id":"resp_1","conversation":{"id":"conv_1"},"stream":null,"stream_options":7}"#;
    let read = facts(Endpoint::Responses, body);
    assert!(read.background && !read.stream);
    assert_eq!((read.user.as_deref(), read.max_output_tokens, read.store), (Some("s"), Some(7), Some(true)));
    assert_eq!(read.previous_response_id.as_deref(), Some("resp_1"));
    assert_eq!(read.conversation.as_deref(), Some("conv_1"));
    let read = facts(Endpoint::Responses, r#"{"model":"m","conversation":"conv_2","previous_response_id":null}"#);
    assert_eq!((read.conversation.as_deref(), read.previous_response_id), (Some("conv_2"), None));
}

#[test]
fn b2_what_is_read_of_a_messages_request() {
    let body = r#"{"model":"m","max_tokens":10,"stream":true,"user":3,"metadata":{"a":[1],"user_id":"me"}}"#;
    let read = facts(Endpoint::Messages, body);
    assert!(read.stream);
    assert_eq!((read.user.as_deref(), read.max_output_tokens), (Some("me"), Some(10)));
    assert!(!facts(Endpoint::CountTokens, body).stream, "no stream there");
}

#[test]
fn b2_odd_values_of_what_weir_only_remembers_are_the_upstreams_business() {
    for n in ["0", "-1", "1.5", "\"2\"", "null", "4294967296", "[]", "{}", "true"] {
        let read = facts(Endpoint::Chat, &format!(r#"{{"model":"m","n":{n},"max_tokens":-5,"user":{n},"store":"x"}}"#));
        assert_eq!((read.n, read.max_output_tokens, read.store), (None, None, None), "{n}");
    }
    assert_eq!(facts(Endpoint::Chat, r#"{"model":"m","n":99999}"#).n, Some(99_999));
    let long = "x".repeat(2000);
    assert_eq!(facts(Endpoint::Chat, &format!(r#"{{"model":"m","user":"{long}"}}"#)).user, None);
}

#[test]
fn b1_malformed_json_is_refused_at_its_place() {
    for (body, line, column, at) in [
        ("x", 1, 1, 0),
        ("{\"model\":\"m\",}", 1, 14, 13),
        ("{\"model\":\"m\"}x", 1, 14, 13),
        ("{\"model\":\"m\"} {}", 1, 15, 14),
        ("{\n  \"model\": nul\n}", 2, 15, 16),
        ("{\n\n\"a\":01}", 3, 6, 8),
        ("{'model':1}", 1, 2, 1),
        ("{\"model\":\"m\",\"a\":\"\\x\"}", 1, 20, 19),
        ("{\"model\":\"m\",\"a\":\"\u{1}\"}", 1, 18, 17),
        ("{\"model\":\"m\",\"a\":NaN}", 1, 18, 17),
        ("\u{feff}{\"model\":\"m\"}", 1, 1, 0),
    ] {
        let expected = BodyError::Malformed { line, column, at };
        assert_eq!(chat(body), Err(expected), "{body:?}");
    }
    for body in ["{", "{\"model\":\"m\"", "{\"model\":\"m", "[1,", "{\"a\\", "tru"] {
        assert!(
            matches!(chat(body), Err(BodyError::Unfinished { at, .. }) if at == body.len()),
            "{body}: {:?}",
            chat(body)
        );
    }
    assert_eq!(chat("{\n\"a\":"), Err(BodyError::Unfinished { line: 2, column: 5, at: 6 }));
    for body in ["", " \n\t "] {
        assert_eq!(chat(body), Err(BodyError::Empty));
    }
}

#[test]
fn b1_what_is_no_utf8_is_refused_at_its_place() {
    for (body, at) in
        [(&b"{\"model\":\"m\xff\"}"[..], 11), (b"\xff\xfe{\x00", 0), (b"{\"model\":\"m\",\"a\":\"\xed\xa0\x80\"}", 18)]
    {
        assert_eq!(read(Endpoint::Chat, body), Err(BodyError::NotUtf8 { at }));
    }
}

#[test]
fn b1_depth_has_a_floor() {
    let deep = |n: usize| format!(r#"{{"model":"m","a":{}{}}}"#, "[".repeat(n), "]".repeat(n));
    assert!(chat(&deep(100)).is_ok());
    let Err(BodyError::TooDeep { at }) = chat(&deep(200_000)) else { panic!("{:?}", chat(&deep(200_000))) };
    assert!(at > 100);
}

#[test]
fn b2_the_model_must_be_a_name() {
    assert_eq!(chat("{}"), Err(BodyError::Missing { param: "model" }));
    assert_eq!(chat(r#"{"Model":"m","messages":{"model":"m"}}"#), Err(BodyError::Missing { param: "model" }));
    for body in ["[]", "1", "\"model\"", "null"] {
        assert_eq!(chat(body), Err(BodyError::NotAnObject), "{body}");
    }
    for model in ["1", "null", "{}", "[\"m\"]", "\"\"", "\"\\ud800\""] {
        let error = chat(&format!(r#"{{"model":{model}}}"#)).unwrap_err();
        assert!(matches!(error, BodyError::Wrong { param: "model", .. }), "{model}: {error}");
    }
    let named = |bytes: usize| chat(&format!(r#"{{"model":"{}"}}"#, "m".repeat(bytes)));
    assert!(named(256).is_ok());
    assert!(matches!(named(257), Err(BodyError::Wrong { param: "model", .. })));
}

#[test]
fn b2_flags_must_be_flags() {
    for value in ["1", "\"true\"", "[]", "{}", "0.0"] {
        for (endpoint, member) in
            [(Endpoint::Chat, "stream"), (Endpoint::Messages, "stream"), (Endpoint::Responses, "background")]
        {
            let body = format!(r#"{{"model":"m","{member}":{value}}}"#);
            let error = read(endpoint, body.as_bytes()).unwrap_err();
            assert_eq!(error.param(), Some(member), "{body}");
        }
        let error = chat(&format!(r#"{{"model":"m","stream_options":{{"include_usage":{value}}}}}"#)).unwrap_err();
        assert_eq!(error.param(), Some("stream_options.include_usage"), "{value}");
    }
    for value in ["1", "\"x\"", "[]", "true"] {
        let error = chat(&format!(r#"{{"model":"m","stream_options":{value}}}"#)).unwrap_err();
        assert_eq!(error.param(), Some("stream_options"), "{value}");
    }
}

#[test]
fn b2_a_duplicate_of_what_weir_reads_is_refused() {
    for (endpoint, body, param) in [
        (Endpoint::Chat, r#"{"model":"a","model":"b"}"#, "model"),
        (Endpoint::Chat, r#"{"model":"a","mod\u0065l":"a"}"#, "model"),
        (Endpoint::Messages, r#"{"stream":true,"model":"a","\u0073tream":true}"#, "stream"),
        (Endpoint::Chat, r#"{"n":null,"model":"a","n":null}"#, "n"),
        (Endpoint::Chat, r#"{"model":"a","stream_options":{},"stream_options":{}}"#, "stream_options"),
        (
            Endpoint::Chat,
            r#"{"model":"a","stream_options":{"include_usage":true,"include_usag\u0065":false}}"#,
            "stream_options.include_usage",
        ),
        (Endpoint::Responses, r#"{"model":"a","conversation":{"id":"x","id":"y"}}"#, "conversation.id"),
        (
            Endpoint::Responses,
            r#"{"model":"a","previous_response_id":"x","previous_response_id":"x"}"#,
            "previous_response_id",
        ),
    ] {
        assert_eq!(read(endpoint, body.as_bytes()), Err(BodyError::Duplicate { param }), "{body}");
    }
    for (endpoint, body) in [
        (Endpoint::Chat, r#"{"model":"a","temperature":1,"temperature":2}"#),
        (Endpoint::Chat, r#"{"model":"a","messages":[{"model":"a","model":"b"}],"stream_options":{"x":1,"x":2}}"#),
        (Endpoint::Messages, r#"{"model":"a","stream_options":1,"stream_options":2}"#),
        (Endpoint::Embeddings, r#"{"model":"a","stream":1,"stream":2}"#),
    ] {
        assert!(read(endpoint, body.as_bytes()).is_ok(), "{body}");
    }
}

#[test]
fn a12_no_stored_id_is_read_by_the_upstream_alone() {
    for body in [
        r#"{"model":"a","previous_response_id":5}"#,
        r#"{"model":"a","previous_response_id":["resp_1"]}"#,
        r#"{"model":"a","previous_response_id":""}"#,
        r#"{"model":"a","previous_response_id":"\ud800"}"#,
        r#"{"model":"a","conversation":["conv_1"]}"#,
        r#"{"model":"a","conversation":{"id":5}}"#,
        r#"{"model":"a","conversation":{}}"#,
    ] {
        assert!(read(Endpoint::Responses, body.as_bytes()).is_err(), "{body}");
    }
}

#[test]
fn b311_errors_say_nothing_of_the_content() {
    for body in [r#"{"model":5,"x":"canary"}"#, r#"{"x":"canary",}"#, r#"{"canary":1}"#, r#"{"model":{"canary":1}}"#] {
        assert!(!chat(body).unwrap_err().to_string().contains("canary"));
    }
}

proptest::proptest! {
    /// Whatever the bytes: no panic, and what is accepted is an object for serde too, with that model.
    #[test]
    fn b2_facts_agree_with_a_tree(body in proptest::collection::vec(proptest::sample::select(PIECES), 0..14)) {
        let body = body.concat();
        for endpoint in Endpoint::ALL {
            let read = read(endpoint, body.as_bytes());
            let tree = serde_json::from_str::<serde_json::Value>(&body);
            if let Ok(facts) = read {
                let tree = tree.unwrap();
                proptest::prop_assert_eq!(tree["model"].as_str(), Some(facts.model.as_str()));
                if endpoint.streams() {
                    proptest::prop_assert_eq!(tree["stream"].as_bool().unwrap_or(false), facts.stream);
                }
            }
        }
    }
}

/// Of which random bodies are made; many of them are right.
const PIECES: &[&str] = &[
    "{",
    "}",
    "{\"model\":\"m\"",
    ",",
    ":",
    "\"model\"",
    "\"m\\u0061\"",
    "\"stream\":true",
    ",\"stream\":false",
    "[",
    "]",
    "\"a\":[{}]",
    "null",
    " ",
    "\n",
    ",\"stream_options\":{\"include_usage\":true}",
    "1e5",
    ",\"n\":2",
    "\"\\",
];
