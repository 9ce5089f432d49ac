//! What two operators promise their users about streaming, sentence by sentence, kept by the files in
//! conf/ alone (N1 to N5). The official SDKs go through the same files in tests/sdk/promises.

use crate::harness::*;
use serde_json::Value;
use std::time::Instant;

const CHAT_D: Dialect = Dialect::ALL[0];
const RESP_D: Dialect = Dialect::ALL[1];
const MSG_D: Dialect = Dialect::ALL[2];

/// The names by which `hopbase.yaml` serves the three protocols.
const HOPBASE: [(Dialect, &str); 3] = [(CHAT_D, "gpt-5.6-sol"), (RESP_D, "gpt-5.6-sol"), (MSG_D, "claude-sonnet-5")];

async fn hopbase(upstream: &Upstream, changes: &[(&str, &str)]) -> Weir {
    Setup::shipped("hopbase.yaml", &upstream.url(), changes).start().await
}

async fn token360(upstream: &Upstream) -> Weir {
    Setup::shipped("token360.yaml", &upstream.url(), &[]).start().await
}

/// A request body for a public name.
fn ask(dialect: Dialect, model: &str) -> String {
    dialect.ask().replace("public-model", model)
}

fn ask_usage(model: &str) -> String {
    CHAT_ASK_USAGE.replace("public-model", model)
}

/// The data of every event but `[DONE]`.
fn chunks(text: &str) -> Vec<Value> {
    events(text.as_bytes())
        .iter()
        .filter(|event| *event != DONE && event.contains("data:"))
        .map(|event| data(event))
        .collect()
}

/// A chat stream of a supplier that does much its own way.
fn odd_chat() -> String {
    let chunk = |rest: &str| {
        format!(
            "data: {{\"id\":\"x-1\",\"created\":1677652288,\"model\":\"upstream-model\",\"provider\":\"inner\",{rest}}}\n\n"
        )
    };
    [
        chunk(r#""object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":null}}]"#),
        chunk(r#""object":"chat.completion.chunk","choices":[{"index":0,"delta":{"reasoning":"hm"},"native_finish_reason":null}]"#),
        chunk(r#""object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Hel"}}]"#),
        chunk(r#""object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":null}]"#),
        chunk(r#""object":"chat.completion.done","choices":[{"index":0,"finish_reason":"end_turn","usage":{"prompt_tokens":12,"completion_tokens":2,"total_tokens":14}}]"#),
        DONE.to_owned(),
    ]
    .concat()
}

#[tokio::test]
async fn hopbase_stream_true_answers_text_event_stream_in_three_protocols() {
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = hopbase(&upstream, &[]).await;
    for (dialect, model) in HOPBASE {
        upstream.push(Reply::stream((dialect.ok)()));
        let received = weir.post(dialect.path, ask(dialect, model)).await;
        assert_eq!(received.status(), 200);
        assert_eq!(received.head.get("content-type"), Some("text/event-stream"));
        // "The format of the events is the protocol's own, their content is not changed", but for the model's name.
        assert_eq!(received.text(), dialect.seen().replace("upstream-model", model), "{}", dialect.name);
    }
}

#[tokio::test]
async fn hopbase_a_comment_about_every_interval_between_two_events_silent_or_not() {
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = hopbase(&upstream, &[("interval: 10s", "interval: 200ms")]).await;
    let comment = ": hopbase-keepalive\n\n";
    let busy = (0..500).fold(Reply::sse().write(CHAT_D.begun()), |reply, _| reply.pause(100).write(chat_delta("x")));
    for reply in [busy, Reply::sse().write(CHAT_D.begun()).hang()] {
        upstream.push(reply);
        let mut client = Client::connect(&weir).await;
        let began = Instant::now();
        client.open(CHAT, ask(CHAT_D, "gpt-5.6-sol")).await;
        let count = |body: &[u8]| String::from_utf8_lossy(body).matches(comment).count();
        client.read_until("comments", |body| count(body) >= 5).await;
        let most = began.elapsed().as_millis() / 200;
        assert!(count(&client.body) as u128 <= most, "one an interval: {} in {most}", count(&client.body));
        for event in events(&client.body) {
            assert!(event == comment || event.starts_with("data: "), "between two events: {event}");
        }
    }
}

#[tokio::test]
async fn hopbase_a_line_that_begins_with_a_colon_can_be_skipped() {
    let go_on = Signal::new();
    let begun = Reply::sse().write(CHAT_D.begun()).wait(&go_on);
    let upstream = Upstream::start(begun.write(chat_delta("lo")).write(CHAT_FINISH).write(DONE)).await;
    let weir = hopbase(&upstream, &[("interval: 10s", "interval: 200ms")]).await;
    let mut client = Client::connect(&weir).await;
    client.open(CHAT, ask(CHAT_D, "gpt-5.6-sol")).await;
    client.read_past("\n: hopbase-keepalive\n").await;
    go_on.fire();
    let text = String::from_utf8(client.rest().await.to_vec()).unwrap();
    for line in text.lines().filter(|line| !line.starts_with(':') && !line.is_empty()) {
        let value = line.strip_prefix("data: ").expect("a data line");
        assert!(value == "[DONE]" || serde_json::from_str::<Value>(value).is_ok(), "{line}");
    }
}

#[tokio::test]
async fn hopbase_without_output_for_long_it_is_stuck_and_tried_again_or_told() {
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.before()).hang()).await;
    let weir = hopbase(&upstream, &[("idle: 90s", "idle: 500ms")]).await;
    upstream.push(Reply::sse().write(CHAT_D.before()).hang());
    upstream.push(Reply::stream(chat_ok()));
    let text = weir.post(CHAT, ask(CHAT_D, "gpt-5.6-sol")).await.text();
    assert_eq!(text, chat_seen().replace("upstream-model", "gpt-5.6-sol"), "tried again");
    upstream.push(Reply::sse().write(CHAT_D.begun()).hang());
    let text = weir.post(CHAT, ask(CHAT_D, "gpt-5.6-sol")).await.text();
    assert!(text.contains(r#""code":"stream_stalled""#), "told: {text}");
}

#[tokio::test]
async fn hopbase_chat_one_data_line_an_event_a_chunk_object_and_done_at_the_end() {
    let upstream = Upstream::start(Reply::stream(odd_chat())).await;
    let weir = hopbase(&upstream, &[]).await;
    let text = weir.post(CHAT, ask(CHAT_D, "open-model")).await.text();
    for event in events(text.as_bytes()) {
        assert!(event.starts_with("data: ") && event.lines().count() == 2, "{event}");
    }
    assert!(text.ends_with(DONE));
    for chunk in chunks(&text) {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["model"], "open-model");
    }
    let said: String =
        chunks(&text).iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(said, "Hello", "the text is in choices[0].delta.content");
}

#[tokio::test]
async fn hopbase_chat_tool_calls_come_in_pieces_joined_by_index() {
    let piece =
        |call: &str| CHAT_ROLE.replace(r#""role":"assistant","content":"""#, &format!(r#""tool_calls":[{call}]"#));
    let stream = [
        piece(r#"{"id":"call_1","type":"function","function":{"name":"f","arguments":""}}"#),
        piece(r#"{"function":{"arguments":"{\"a\":"}}"#),
        piece(r#"{"id":"call_2","type":"function","function":{"name":"g","arguments":"{}"}}"#),
        CHAT_FINISH.replace("\"stop\"", "\"tool_use\""),
        DONE.to_owned(),
    ];
    let upstream = Upstream::start(Reply::stream(stream.concat())).await;
    let weir = hopbase(&upstream, &[]).await;
    let chunks = chunks(&weir.post(CHAT, ask(CHAT_D, "open-model")).await.text());
    let indices: Vec<_> =
        chunks[..3].iter().map(|chunk| chunk["choices"][0]["delta"]["tool_calls"][0]["index"].as_u64()).collect();
    assert_eq!(indices, [Some(0), Some(0), Some(1)]);
    assert_eq!(chunks[3]["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn hopbase_chat_the_last_piece_has_a_finish_reason_of_three() {
    for (theirs, ours) in [("stop", "stop"), ("max_tokens", "length"), ("tool_use", "tool_calls"), ("eos", "stop")] {
        let stream = CHAT_D.begun() + &CHAT_FINISH.replace("\"stop\"", &format!("\"{theirs}\"")) + DONE;
        let upstream = Upstream::start(Reply::stream(stream)).await;
        let weir = hopbase(&upstream, &[]).await;
        let chunks = chunks(&weir.post(CHAT, ask(CHAT_D, "gpt-5.6-sol")).await.text());
        let (last, before) = chunks.split_last().unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], ours);
        assert!(before.iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null()));
    }
}

#[tokio::test]
async fn hopbase_chat_usage_only_when_asked_in_the_last_event_with_empty_choices() {
    let beside = CHAT_FINISH
        .replace("}]}\n", r#"}],"usage":{"prompt_tokens":12,"completion_tokens":2,"total_tokens":14}}"#)
        + "\n";
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = hopbase(&upstream, &[]).await;
    for stream in [chat_ok(), CHAT_D.begun() + &chat_delta("lo") + &beside + DONE, odd_chat()] {
        for asked in [true, false] {
            upstream.push(Reply::stream(&stream));
            let body = if asked { ask_usage("open-model") } else { ask(CHAT_D, "open-model") };
            let received = weir.post(CHAT, body).await;
            let chunks = chunks(&received.text());
            let with_usage = chunks.iter().filter(|chunk| chunk["usage"].is_object()).count();
            assert_eq!(with_usage, usize::from(asked), "{}", received.text());
            if asked {
                let last = chunks.last().unwrap();
                assert_eq!(last["choices"], Value::Array(Vec::new()));
                assert_eq!(last["usage"]["total_tokens"], 14);
            } else {
                assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
            }
            // "Not asking does not change what is billed."
            let record = weir.record(received.id()).await;
            assert_eq!((number(&record, "input"), number(&record, "output")), (Some(12), Some(2)), "{record}");
        }
    }
}

#[tokio::test]
async fn hopbase_responses_an_event_line_and_a_data_line_whose_type_is_the_name() {
    let unnamed: String = RESP_D.events().iter().map(|event| event.split_once('\n').unwrap().1).collect();
    let upstream = Upstream::start(Reply::stream(unnamed)).await;
    let weir = hopbase(&upstream, &[]).await;
    let text = weir.post(RESPONSES, ask(RESP_D, "gpt-5.6-sol")).await.text();
    assert_eq!(text, resp_ok().replace("upstream-model", "gpt-5.6-sol"));
    for event in events(text.as_bytes()) {
        let name = event.lines().next().and_then(|line| line.strip_prefix("event: ")).expect("an event line");
        assert_eq!(data(&event)["type"], name);
        assert_eq!(event.lines().count(), 3, "{event}");
    }
}

#[tokio::test]
async fn hopbase_responses_completed_has_the_usage() {
    let upstream = Upstream::start(Reply::stream(resp_ok())).await;
    let weir = hopbase(&upstream, &[]).await;
    let text = weir.post(RESPONSES, ask(RESP_D, "gpt-5.6-sol")).await.text();
    let events = events(text.as_bytes());
    assert_eq!(data(&events[0])["type"], "response.created");
    let end = data(events.last().unwrap());
    assert_eq!(
        (end["type"].as_str(), end["response"]["status"].as_str()),
        (Some("response.completed"), Some("completed"))
    );
    assert_eq!(end["response"]["usage"]["total_tokens"], 25);
}

#[tokio::test]
async fn hopbase_responses_failed_tells_one_of_three_codes() {
    let failed = |error: &str| {
        RESP_D.begun()
            + &typed(&format!(
                r#"{{"type":"response.failed","sequence_number":9,"response":{{"id":"resp_abc","status":"failed","error":{error}}}}}"#
            ))
    };
    let rows = [
        (failed(r#"{"code":"server_error","message":"Something went wrong."}"#), "server_error"),
        (failed(r#"{"code":"vector_store_timeout","message":"at node 10.0.0.4"}"#), "server_error"),
        (failed(r#"{"code":"rate_limit_exceeded","message":"Slow down."}"#), "rate_limit_exceeded"),
        (failed(r#"{"code":"invalid_prompt","message":"No."}"#), "invalid_prompt"),
        (RESP_D.begun() + &typed(r#"{"type":"error","code":"overloaded","message":"busy"}"#), "rate_limit_exceeded"),
        (RESP_D.begun(), "server_error"),
    ];
    for (stream, code) in rows {
        let upstream = Upstream::start(Reply::stream(stream)).await;
        let weir = hopbase(&upstream, &[]).await;
        let received = weir.post(RESPONSES, ask(RESP_D, "gpt-5.6-sol")).await;
        let events = events(&received.body);
        let last = data(events.last().unwrap());
        assert_eq!(last["type"], "response.failed", "{}", received.text());
        assert_eq!(last["response"]["error"]["code"], code, "{}", received.text());
        assert!(!received.text().contains("10.0.0.4"));
        assert_eq!(received.status(), 200);
    }
}

#[tokio::test]
async fn hopbase_messages_the_order_of_events_and_where_usage_stands() {
    let upstream = Upstream::start(Reply::stream(msg_ok())).await;
    let weir = hopbase(&upstream, &[]).await;
    let text = weir.post(MESSAGES, ask(MSG_D, "claude-sonnet-5")).await.text();
    let all: Vec<Value> = chunks(&text);
    let kinds: Vec<_> = all.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let block = ["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"];
    assert_eq!(kinds, [&["message_start"], &block[..], &["message_delta", "message_stop"]].concat());
    assert_eq!(all[0]["message"]["model"], "claude-sonnet-5");
    assert_eq!((&all[5]["delta"]["stop_reason"], &all[5]["usage"]["output_tokens"]), (&"end_turn".into(), &15.into()));
}

#[tokio::test]
async fn hopbase_errors_in_a_begun_stream_are_events_and_the_status_stays_200() {
    let chat_error = "data: {\"error\":{\"message\":\"engine died at 10.0.0.7:8000\",\"code\":500}}\n\n";
    let rows = [
        (CHAT_D, "gpt-5.6-sol", chat_error.to_owned(), "data: {\"error\":{"),
        (
            RESP_D,
            "gpt-5.6-sol",
            typed(r#"{"type":"error","code":"server_error","message":"x"}"#),
            "event: response.failed\ndata: {",
        ),
        (
            MSG_D,
            "claude-sonnet-5",
            typed(r#"{"type":"error","error":{"type":"api_error","message":"x"}}"#),
            "event: error\ndata: {\"type\":\"error\",",
        ),
    ];
    for (dialect, model, error, wanted) in rows {
        let upstream = Upstream::start(Reply::stream(dialect.begun() + &error)).await;
        let weir = hopbase(&upstream, &[]).await;
        let received = weir.post(dialect.path, ask(dialect, model)).await;
        assert_eq!(received.status(), 200);
        let added = received.text().replace(&dialect.begun().replace("upstream-model", model), "");
        assert!(added.starts_with(wanted) && !added.contains("10.0.0.7"), "{added}");
        assert_eq!(added.matches("rror\":{").count(), 1, "one error: {added}");
        assert!(received.ended);
    }
}

#[tokio::test]
async fn hopbase_a_claude_stream_that_breaks_off_ends_in_this_very_event() {
    let upstream = Upstream::start(Reply::stream(MSG_D.begun()).pause(100).rst()).await;
    let weir = hopbase(&upstream, &[]).await;
    let received = weir.post(MESSAGES, ask(MSG_D, "claude-sonnet-5")).await;
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"Response stream interrupted, please retry\"}}\n\n";
    assert_eq!(received.text(), MSG_D.begun().replace("upstream-model", "claude-sonnet-5") + error);
    // "What was made before the break is billed by usage": the record has it.
    let record = weir.record(received.id()).await;
    assert_eq!(word(&record), "upstream_interrupted");
    assert_eq!(number(&record, "input"), Some(25), "{record}");
}

#[tokio::test]
async fn token360_chunks_have_the_shown_fields_and_the_name_that_was_asked_for() {
    for stream in [chat_ok(), odd_chat()] {
        let upstream = Upstream::start(Reply::stream(stream)).await;
        let weir = token360(&upstream).await;
        let received = weir.post(CHAT, ask(CHAT_D, "claude-opus-5")).await;
        assert_eq!(received.head.get("content-type"), Some("text/event-stream"));
        let all = chunks(&received.text());
        for event in events(&received.body) {
            assert!(event.starts_with("data: "), "{event}");
        }
        for chunk in &all {
            assert!(chunk["id"].is_string() && chunk["id"] == all[0]["id"], "{chunk}");
            assert_eq!(chunk["object"], "chat.completion.chunk");
            assert!(chunk["created"].is_u64());
            assert_eq!(chunk["model"], "claude-opus-5");
            let choice = &chunk["choices"][0];
            assert!(
                choice["index"].is_u64() && choice["delta"].is_object() && choice.get("finish_reason").is_some(),
                "{chunk}"
            );
        }
        assert_eq!(all[0]["choices"][0]["delta"]["role"], "assistant");
        assert!(received.text().ends_with(DONE), "[DONE] marks the end");
    }
}

#[tokio::test]
async fn token360_finish_reason_is_null_until_the_last_chunk() {
    let upstream = Upstream::start(Reply::stream(odd_chat())).await;
    let weir = token360(&upstream).await;
    let all = chunks(&weir.post(CHAT, ask(CHAT_D, "claude-opus-5")).await.text());
    let (last, before) = all.split_last().unwrap();
    assert!(before.iter().all(|chunk| chunk["choices"][0].get("finish_reason") == Some(&Value::Null)));
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn token360_usage_is_at_the_top_of_the_last_chunk_and_never_in_a_choice() {
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = token360(&upstream).await;
    for stream in [chat_ok(), odd_chat()] {
        upstream.push(Reply::stream(&stream));
        let all = chunks(&weir.post(CHAT, ask_usage("claude-opus-5")).await.text());
        assert_eq!(all.last().unwrap()["usage"]["total_tokens"], 14);
        assert!(all.iter().all(|chunk| chunk["choices"][0].get("usage").is_none()));
    }
}

#[tokio::test]
async fn token360_fields_are_normalised_but_token_boundaries_are_not_rewritten() {
    let upstream = Upstream::start(Reply::stream(odd_chat())).await;
    let weir = token360(&upstream).await;
    let text = weir.post(CHAT, ask(CHAT_D, "claude-opus-5")).await.text();
    let pieces: Vec<_> = chunks(&text).iter().map(|chunk| chunk["choices"][0]["delta"].clone()).collect();
    let wanted = [
        serde_json::json!({"role":"assistant","content":null}),
        serde_json::json!({"reasoning_content":"hm"}),
        serde_json::json!({"content":"Hel"}),
        serde_json::json!({"content":"lo"}),
        serde_json::json!({}),
    ];
    assert_eq!(pieces, wanted);
    assert!(
        !text.contains("provider") && !text.contains("native_finish_reason"),
        "no supplier's private members: {text}"
    );
}

#[tokio::test]
async fn token360_an_error_is_the_last_event_and_then_done() {
    let error = "data: {\"error\":{\"message\":\"Stream interrupted\",\"type\":\"api_error\",\"code\":\"stream_interrupted\"}}\n\ndata: [DONE]\n\n";
    let own = "data: {\"error\":{\"message\":\"engine died at 10.0.0.7:8000\",\"code\":500}}\n\n";
    let rows = [
        Reply::stream(CHAT_D.begun()).pause(100).rst(),
        Reply::stream(CHAT_D.begun()),
        Reply::stream(CHAT_D.begun() + own),
        Reply::stream(CHAT_D.begun() + own + DONE),
    ];
    for reply in rows {
        let upstream = Upstream::start(reply).await;
        let weir = token360(&upstream).await;
        let received = weir.post(CHAT, ask(CHAT_D, "claude-opus-5")).await;
        assert_eq!(received.text(), CHAT_D.begun().replace("upstream-model", "claude-opus-5") + error);
    }
}

#[tokio::test]
async fn token360_time_to_first_token_and_latency_of_every_stream_are_watched() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = token360(&upstream).await;
    let received = weir.post(CHAT, ask(CHAT_D, "claude-opus-5")).await;
    weir.record(received.id()).await;
    for metric in ["weir_time_to_first_token_seconds_count", "weir_request_duration_seconds_count"] {
        assert!((weir.metric(metric, &[]).await - 1.0).abs() < 0.001, "{metric}");
    }
}

#[tokio::test]
async fn token360_whole_replies_have_the_same_shape() {
    let reply = r#"{"id":"x","object":"chat.completion","created":1,"model":"upstream-model","provider":"inner","choices":[{"index":0,"message":{"role":"assistant","reasoning":"hm","content":"Hello"},"finish_reason":"eos"}],"usage":{"prompt_tokens":12,"completion_tokens":2,"total_tokens":14}}"#;
    let upstream = Upstream::start(Reply::json(200, reply)).await;
    let weir = token360(&upstream).await;
    let received = weir.post(CHAT, ask(CHAT_D, "claude-opus-5").replace(r#""stream":true,"#, "")).await;
    let wanted = reply
        .replace("upstream-model", "claude-opus-5")
        .replace(r#""provider":"inner","#, "")
        .replace(r#""reasoning":"#, r#""reasoning_content":"#)
        .replace("eos", "stop");
    assert_eq!((received.text(), received.ended), (wanted, true));
}
