//! E1, E2, E4 and kinds D and G of CASES.md: how streams end, and what Weir adds when they don't.

use crate::harness::*;
use serde_json::Value;
use std::time::Duration;

const CHAT_D: Dialect = Dialect::ALL[0];
const RESP_D: Dialect = Dialect::ALL[1];
const MSG_D: Dialect = Dialect::ALL[2];

const MSG_INTERRUPTED: &str = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"Response stream interrupted, please retry\"}}\n\n";

/// Checks what was added after the last whole event of an interrupted stream (E2).
fn is_interruption(dialect: Dialect, added: &str, sequence: u64) {
    match dialect.name {
        "chat" => assert_eq!(added, CHAT_INTERRUPTED),
        "messages" => assert_eq!(added, MSG_INTERRUPTED),
        _ => {
            assert!(added.starts_with("event: response.failed\ndata: {"), "{added}");
            assert_eq!(events(added.as_bytes()).len(), 1, "{added}");
            let value = data(added);
            assert_eq!(value["type"], "response.failed");
            assert_eq!(value["sequence_number"], sequence, "B100, B101");
            assert_eq!(value["response"]["id"], "resp_abc", "B101");
            assert_eq!(value["response"]["model"], "upstream-model");
            assert_eq!(value["response"]["status"], "failed");
            assert_eq!(value["response"]["error"]["code"], "server_error");
            assert!(value["response"]["error"]["message"].is_string());
        }
    }
}

#[tokio::test]
async fn e1_b41_a_last_event_without_its_blank_line_counts_when_whole() {
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = Setup::new(&upstream.url()).start().await;
    for dialect in [RESP_D, MSG_D, CHAT_D] {
        let whole = (dialect.ok)();
        for missing in 0..=2 {
            upstream.push(Reply::stream(&whole[..whole.len() - missing]).framing(Framing::Close));
            let received = weir.post(dialect.path, dialect.ask()).await;
            assert_eq!(received.text(), dialect.seen(), "{} without {missing} newlines", dialect.name);
            let record = weir.record(received.id()).await;
            assert_eq!(word(&record), "completed", "{record}");
            assert_eq!(number(&record, "output"), Some(dialect.tokens.1), "{record}");
        }
    }
}

#[tokio::test]
async fn e1_b44_a_half_event_at_a_reset_is_dropped() {
    let half = CHAT_FINISH.trim_end();
    let go_on = Signal::new();
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.begun() + half).wait(&go_on).rst()).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let mut client = Client::connect(&weir).await;
    let head = client.open(CHAT, CHAT_ASK).await;
    client.read_past("Hel").await;
    go_on.fire();
    client.rest().await;
    assert_eq!(client.body, CHAT_D.begun() + CHAT_INTERRUPTED);
    assert_eq!(word(&weir.record(head.id()).await), "upstream_interrupted");
}

#[tokio::test]
async fn e1_b43_b55_b59_usage_after_the_finish_is_read() {
    let [role, hel, lo, finish, usage, done] = CHAT_D.events().try_into().expect("six events");
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let head = format!("{role}{hel}{lo}{finish}");
    let rows = [
        ("B55", Reply::sse().write(&head).pause(300).write(&usage).write(&done)),
        ("B59", Reply::sse().write(format!("{role}{hel}")).write(&lo).write(&finish).write(format!("{usage}{done}"))),
        ("B43", Reply::sse().write(&head).write(&usage[..usage.len() - 1]).pause(300)),
    ];
    for (name, reply) in rows {
        upstream.push(reply);
        let received = weir.post(CHAT, CHAT_ASK).await;
        assert_eq!(received.text(), chat_seen(), "{name}");
        let record = weir.record(received.id()).await;
        assert_eq!(number(&record, "output"), Some(2), "{name}: {record}");
        assert_eq!(word(&record), "completed", "{name}");
    }
}

#[tokio::test]
async fn e1_a_terminal_event_ends_the_answer_at_once() {
    for dialect in Dialect::ALL {
        // The upstream keeps its side open after the terminal event.
        let upstream = Upstream::start(Reply::stream((dialect.ok)()).hang()).await;
        let weir = Setup::new(&upstream.url()).start().await;
        // Not after the second for which the upstream is read on.
        at_once("an answer's end", Duration::from_millis(900), async || {
            let began = std::time::Instant::now();
            let received = weir.post(dialect.path, dialect.ask()).await;
            assert_eq!((received.text(), received.ended), (dialect.seen(), true));
            began.elapsed()
        })
        .await;
        // And is let go within about a second.
        upstream.gone(0).await;
    }
}

#[tokio::test]
async fn e1_nothing_after_the_terminal_event_reaches_the_client() {
    for dialect in Dialect::ALL {
        let stream = (dialect.ok)() + ": and more\n\ndata: {\"x\":1}\n\n";
        let upstream = Upstream::start(Reply::stream(stream)).await;
        let weir = Setup::new(&upstream.url()).start().await;
        let received = weir.post(dialect.path, dialect.ask()).await;
        assert_eq!(received.text(), dialect.seen(), "{}", dialect.name);
    }
}

#[tokio::test]
async fn e1_a_reset_after_the_terminal_event_is_no_error() {
    for dialect in Dialect::ALL {
        let upstream = Upstream::start(Reply::stream((dialect.ok)()).pause(100).rst()).await;
        let weir = Setup::new(&upstream.url()).start().await;
        let received = weir.post(dialect.path, dialect.ask()).await;
        assert_eq!(received.text(), dialect.seen());
        assert_eq!(word(&weir.record(received.id()).await), "completed");
    }
}

#[tokio::test]
async fn e1_b58_finished_without_a_terminal_event_is_complete() {
    let chat = chat_ok().replace(DONE, "");
    let stop = typed(r#"{"type":"message_stop"}"#);
    let messages = msg_ok().replace(&stop, "");
    for (dialect, stream) in [(CHAT_D, chat), (MSG_D, messages)] {
        // It ends, or it stays open and silent for five seconds.
        for (reply, open) in [(Reply::stream(&stream), false), (Reply::stream(&stream).hang(), true)] {
            let upstream = Upstream::start(reply).await;
            let weir = Setup::new(&upstream.url()).start().await;
            let received = weir.post(dialect.path, dialect.ask()).await;
            assert_eq!(received.text(), dialect.seen(), "{}: the terminal event is added", dialect.name);
            assert!(received.ended);
            let record = weir.record(received.id()).await;
            assert_eq!(word(&record), "completed", "{record}");
            assert_eq!(number(&record, "output"), Some(dialect.tokens.1));
            if open {
                upstream.gone(0).await;
            }
        }
    }
}

#[tokio::test]
async fn e1_all_choices_must_have_finished() {
    let two = |text: &str, index: u32| text.replace("\"index\":0", &format!("\"index\":{index}"));
    let half = [CHAT_ROLE, &two(CHAT_ROLE, 1), &chat_delta("a"), &two(&chat_delta("b"), 1), CHAT_FINISH].concat();
    let upstream = Upstream::start(Reply::stream(&half)).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let ask = CHAT_ASK.replace("\"stream\"", "\"n\":2,\"stream\"");
    let received = weir.post(CHAT, &ask).await;
    assert_eq!(received.text(), half.clone() + CHAT_INTERRUPTED, "the other choice never finished");
    let whole = half + &two(CHAT_FINISH, 1);
    upstream.set_default(Reply::stream(&whole));
    assert_eq!(weir.post(CHAT, &ask).await.text(), whole + DONE);
}

#[tokio::test]
async fn e2_b46_b103_an_interruption_is_one_native_error() {
    for dialect in Dialect::ALL {
        let begun = dialect.begun();
        let go_on = Signal::new();
        let open = || Reply::sse().write(&begun).wait(&go_on);
        let last = begun.trim_end();
        let half = &last[last.len() - 20..];
        let rows: [(&str, Reply); 6] = [
            ("a clean chunked end", open()),
            ("a reset", open().rst()),
            ("an end without last chunk", open().fin()),
            ("half a chunk", open().raw_bytes(format!("100\r\n{half}")).fin()),
            ("broken chunk framing", open().raw_bytes("no size\r\nabc\r\n").hang()),
            ("a short length", open().framing(Framing::Length(begun.len() + 1000)).fin()),
        ];
        for (name, reply) in rows {
            let upstream = Upstream::start(reply).await;
            let weir = Setup::new(&upstream.url()).start().await;
            let mut client = Client::connect(&weir).await;
            let head = client.open(dialect.path, dialect.ask()).await;
            client.read_until("the first output", |body| body.len() >= begun.len()).await;
            go_on.fire();
            client.rest().await;
            assert!(client.ended, "{}, {name}: a clean transport end", dialect.name);
            let text = String::from_utf8(client.body.to_vec()).unwrap();
            let added = text.strip_prefix(&begun).expect("what came, unchanged");
            println!("{}, {name}", dialect.name);
            is_interruption(dialect, added, 4);
            let record = weir.record(head.id()).await;
            assert_eq!(word(&record), "upstream_interrupted", "{name}: {record}");
            assert_ne!(number(&record, "output"), Some(0), "{name}: never a silent 0");
        }
    }
}

#[tokio::test]
async fn e2_tls_that_ends_without_its_close_notify_is_an_interruption() {
    let pki = Pki::new();
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("notify-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [ca, ..] = pki.write(&folder);
    let go_on = Signal::new();
    let upstream = Upstream::start_tls(Reply::sse().write(CHAT_D.begun()).wait(&go_on).cut(), &pki).await;
    let weir = Setup::with_provider(&upstream.url(), &format!("ca: \"{}\"", ca.display())).start().await;
    let mut client = Client::connect(&weir).await;
    let head = client.open(CHAT, CHAT_ASK).await;
    client.read_until("the first output", |body| body.len() >= CHAT_D.begun().len()).await;
    go_on.fire();
    client.rest().await;
    let text = String::from_utf8(client.body.to_vec()).unwrap();
    is_interruption(CHAT_D, text.strip_prefix(&CHAT_D.begun()).expect("what came, unchanged"), 4);
    assert_eq!(word(&weir.record(head.id()).await), "upstream_interrupted");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn e2_b136_over_http2() {
    for (code, name) in [(2, "INTERNAL_ERROR"), (8, "CANCEL"), (7, "REFUSED_STREAM")] {
        let go_on = Signal::new();
        let upstream = H2Upstream::start(Reply::sse().write(CHAT_D.begun()).wait(&go_on).step(Step::Reset(code))).await;
        let weir = Setup::with_provider(&upstream.url(), "http2: prior_knowledge").listen("h2c: true").start().await;
        let mut stream = H2Client::connect(&weir).await.open(CHAT, CHAT_ASK).await;
        stream.read_until("output", |body| body.len() >= CHAT_D.begun().len()).await;
        go_on.fire();
        stream.rest().await;
        assert!(stream.error.is_none(), "{name}: a clean end, not {:?}", stream.error);
        assert_eq!(stream.received, CHAT_D.begun() + CHAT_INTERRUPTED, "{name}");
        assert_eq!(upstream.count(), 1);
    }
}

#[tokio::test]
async fn e2_goaway_lets_the_running_stream_finish() {
    let rest = &chat_ok()[CHAT_D.begun().len()..];
    let reply = Reply::sse().write(CHAT_D.begun()).step(Step::GoAway).pause(100).write(rest);
    let upstream = H2Upstream::start(reply).await;
    let weir = Setup::with_provider(&upstream.url(), "http2: prior_knowledge").start().await;
    for _ in 0..2 {
        assert_eq!(weir.post(CHAT, CHAT_ASK).await.text(), chat_seen());
    }
    assert_eq!(upstream.connections(), 2, "the next request takes a new connection");
}

#[tokio::test]
async fn e2_without_done_where_the_operator_says_so() {
    let upstream = Upstream::start(Reply::stream(CHAT_D.begun())).await;
    let weir = Setup::new(&upstream.url()).defaults("chat_error_done: false").start().await;
    let text = weir.post(CHAT, CHAT_ASK).await.text();
    assert_eq!(text, CHAT_D.begun() + CHAT_INTERRUPTED.trim_end_matches(DONE));
}

#[tokio::test]
async fn e2_b100_the_next_sequence_number() {
    let begun = RESP_D.begun().replace("\"sequence_number\":3", "\"sequence_number\":41");
    let upstream = Upstream::start(Reply::stream(&begun)).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let text = weir.post(RESPONSES, RESP_D.ask()).await.text();
    is_interruption(RESP_D, text.strip_prefix(&begun).expect("what came"), 42);
}

#[tokio::test]
async fn e2_b47_no_stop_is_ever_invented() {
    let tool = "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}}]}\n\n";
    let chat = CHAT_ROLE.to_owned() + tool;
    let messages = MSG_D.events()[0].clone()
        + &typed(
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"toolu_1","name":"f","input":{}}}"#,
        )
        + &typed(r#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{}"}}"#);
    let responses = RESP_D.events()[..2].concat()
        + &typed(
            r#"{"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"id":"fc_1","type":"function_call","call_id":"call_1","name":"f","arguments":""}}"#,
        )
        + &typed(
            r#"{"type":"response.function_call_arguments.done","sequence_number":3,"output_index":0,"item_id":"fc_1","arguments":"{}"}"#,
        );
    for (dialect, begun) in [(CHAT_D, chat), (MSG_D, messages), (RESP_D, responses)] {
        let upstream = Upstream::start(Reply::stream(&begun)).await;
        let weir = Setup::new(&upstream.url()).start().await;
        let text = weir.post(dialect.path, dialect.ask()).await.text();
        let added = text.strip_prefix(&begun).expect("what came, unchanged");
        is_interruption(dialect, added, 4);
        for invented in ["message_stop", "finish_reason", "stop_reason", "response.completed"] {
            assert!(!added.contains(invented), "{}: {added}", dialect.name);
        }
    }
}

#[tokio::test]
async fn e4_b91_b95_the_upstreams_own_error_is_the_terminal_event() {
    let chat_error = "data: {\"error\":{\"message\":\"overloaded\",\"type\":\"server_error\",\"code\":503}}\n\n";
    let msg_error = typed(r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#);
    let resp_error = typed(r#"{"type":"error","sequence_number":4,"code":"server_error","message":"x","param":null}"#);
    let resp_failed = typed(
        r#"{"type":"response.failed","sequence_number":4,"response":{"id":"resp_abc","status":"failed","error":{"code":"server_error","message":"x"},"usage":null}}"#,
    );
    let row = |name, dialect: Dialect, error: &str| {
        Row::new(name, dialect, dialect.begun() + error).outcome("upstream_error").any_usage()
    };
    let chat = CHAT_D.begun() + chat_error + DONE;
    check(&[
        row("B91 B95", MSG_D, &msg_error),
        row("E4 error", RESP_D, &resp_error),
        row("E4 response.failed", RESP_D, &resp_failed),
        row("E4 chat", CHAT_D, &(chat_error.to_owned() + DONE)),
        row("E4 chat without [DONE]", CHAT_D, chat_error).expect(chat),
        row("E4 nothing after it", MSG_D, &(msg_error.clone() + ": more\n\n")).expect(MSG_D.begun() + &msg_error),
    ])
    .await;
}

#[tokio::test]
async fn b106_finish_reason_error_is_no_success() {
    let last = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"finish_reason\":\"error\"}],\"error\":{\"code\":502,\"message\":\"Provider returned error\"}}\n\n";
    let stream = CHAT_D.begun() + last + DONE;
    check(&[Row::new("B106", CHAT_D, stream).outcome("upstream_error").any_usage()]).await;
}

#[tokio::test]
async fn b130_one_broken_event_in_the_middle_harms_nothing() {
    let [role, hel, rest @ ..] = &CHAT_D.events()[..] else { panic!("six events") };
    let stream = format!("{role}{hel}data: {{bad\n\n{}", rest.concat());
    check(&[Row::new("B130", CHAT_D, stream.clone()).ask(CHAT_ASK_USAGE)]).await;
}

/// What a client is told when nothing came that it could use.
async fn refusal(dialect: Dialect, reply: Reply) -> (u16, Value, Value) {
    refusal_within(dialect, reply, "").await
}

async fn refusal_within(dialect: Dialect, reply: Reply, defaults: &str) -> (u16, Value, Value) {
    let upstream = Upstream::start(reply).await;
    let weir = Setup::new(&upstream.url()).defaults(defaults).start().await;
    let received = weir.post(dialect.path, dialect.ask()).await;
    assert_eq!(received.head.get("content-type"), Some("application/json"), "{}", received.text());
    let error = received.json();
    assert_eq!(error.get("type").and_then(Value::as_str), (dialect.name == "messages").then_some("error"), "{error}");
    assert!(error["error"]["message"].is_string() && error["error"]["type"].is_string(), "{error}");
    let port = upstream.address.port().to_string();
    assert!(!received.text().contains(&port) && !received.text().contains("127.0.0.1"), "B112: {error}");
    let record = weir.record(received.id()).await;
    (received.status(), error, record)
}

#[tokio::test]
async fn b50_b109_a7_nothing_before_the_end_is_502_and_no_empty_200() {
    for dialect in Dialect::ALL {
        let rows: [(&str, Reply); 7] = [
            ("no bytes", Reply::sse()),
            ("only the prelude", Reply::stream(dialect.before())),
            ("only [DONE]", Reply::stream(DONE)),
            ("only a comment", Reply::stream(": hello\n\n")),
            ("a reset instead of a head", Reply::reset()),
            ("a reset in the prelude", Reply::sse().write(dialect.before()).pause(50).rst()),
            ("a head that is none", Reply::raw("nonsense\r\n\r\n").step(Step::Fin)),
        ];
        for (name, reply) in rows {
            println!("{}, {name}", dialect.name);
            let (status, _, record) = refusal(dialect, reply).await;
            assert_eq!(status, 502, "{}, {name}", dialect.name);
            let outcome = word(&record);
            assert!(["upstream_interrupted", "upstream_error"].contains(&outcome.as_str()), "{name}: {record}");
        }
    }
}

#[tokio::test]
async fn a7_silence_before_content_is_504() {
    for dialect in Dialect::ALL {
        for reply in [Reply::silent(), Reply::sse().write(dialect.before()).hang()] {
            let soon = "timeouts: { first_byte: 300ms, idle: 300ms }";
            let (status, _, record) = refusal_within(dialect, reply, soon).await;
            assert_eq!((status, word(&record).as_str()), (504, "stalled"), "{record}");
        }
    }
}

#[tokio::test]
async fn a7_b112_an_upstream_that_is_not_there_is_502_without_its_address() {
    let nobody = free_address();
    let port = nobody.port().to_string();
    let weir = Setup::new(&format!("http://{nobody}")).start().await;
    for dialect in Dialect::ALL {
        let received = weir.post(dialect.path, dialect.ask()).await;
        assert_eq!(received.status(), 502, "{}", received.text());
        assert!(!received.text().contains(&port), "{}", received.text());
    }
}

#[tokio::test]
async fn a2_b110_b92_an_error_as_the_first_event_is_a_status() {
    let fault = r#"{"type":"invalid_request_error","message":"prompt is too long"}"#;
    let rows = [
        (CHAT_D, format!("data: {{\"error\":{fault}}}\n\n{DONE}"), 400),
        (MSG_D, MSG_D.before() + &typed(&format!(r#"{{"type":"error","error":{fault}}}"#)), 400),
        (MSG_D, typed(r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#), 529),
        (
            RESP_D,
            RESP_D.before()
                + &typed(
                    r#"{"type":"response.failed","sequence_number":3,"response":{"id":"resp_abc","status":"failed","error":{"code":"invalid_prompt","message":"prompt is too long"}}}"#,
                ),
            400,
        ),
    ];
    for (dialect, stream, wanted) in rows {
        let (status, error, record) = refusal(dialect, Reply::stream(&stream)).await;
        if wanted == 400 {
            assert_eq!(status, 400, "{stream}");
            assert_eq!(error["error"]["message"], "prompt is too long");
            assert_eq!(word(&record), "client_error");
        } else {
            assert!(status >= 500, "{status}: {error}");
            assert_eq!(word(&record), "upstream_error");
        }
    }
}

#[tokio::test]
async fn a6_b115_other_statuses_go_to_the_client() {
    for dialect in Dialect::ALL {
        for (status, outcome) in [
            (400, "client_error"),
            (404, "client_error"),
            (422, "client_error"),
            (500, "upstream_error"),
            (503, "upstream_error"),
        ] {
            let body = r#"{"error":{"message":"a plain sentence","type":"some_error","code":"some_code"}}"#;
            let body =
                if dialect.name == "messages" { body.replacen('{', "{\"type\":\"error\",", 1) } else { body.into() };
            let (seen, error, record) = refusal(dialect, Reply::json(status, &body)).await;
            assert_eq!(seen, status, "{}", dialect.name);
            assert_eq!(error["error"]["type"], "some_error", "{error}");
            assert_eq!(error["error"]["message"], "a plain sentence", "{error}");
            assert_eq!(word(&record), outcome, "{status}");
        }
    }
}

#[tokio::test]
async fn a6_the_operators_trouble_is_never_a_401() {
    let body = r#"{"error":{"message":"Incorrect API key provided: provider-key","type":"invalid_request_error","code":"invalid_api_key"}}"#;
    for status in [401, 402] {
        for dialect in Dialect::ALL {
            let (seen, error, _) = refusal(dialect, Reply::json(status, body)).await;
            assert!([502, 503].contains(&seen), "{status} became {seen}");
            assert!(!error.to_string().contains("provider-key"), "{error}");
        }
    }
}

#[tokio::test]
async fn a6_masked_messages_hold_no_host_org_or_target() {
    for told in ["org-abc123DEF", "https://internal.example.com/x", "upstream-model", "sk-proj-abcdefghijklmnop"] {
        let body = format!(r#"{{"error":{{"message":"trouble with {told} here","type":"some_error","code":"c"}}}}"#);
        let (status, error, _) = refusal(CHAT_D, Reply::json(400, body)).await;
        assert_eq!(
            (status, &error["error"]["type"], &error["error"]["code"]),
            (400, &"some_error".into(), &"c".into())
        );
        assert!(!error.to_string().contains(told), "{error}");
    }
}

#[tokio::test]
async fn b112_redirects_are_not_followed_and_not_shown() {
    let reply = Reply::json(302, "{}").header("location", "http://127.0.0.1:1/secret");
    let upstream = Upstream::start(reply).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(received.head.get("location"), None);
    assert!(!received.text().contains("secret"));
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn b53_the_tail_of_a_fast_upstream_is_not_lost() {
    let event = chat_delta(&"y".repeat(65_536));
    let mut stream = CHAT_D.begun();
    (0..64).for_each(|_| stream += &event);
    stream += CHAT_FINISH;
    stream += DONE;
    let upstream = Upstream::start(Reply::sse().pieces(&stream, 1 << 20).framing(Framing::Close)).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let mut client = Client::connect(&weir).await;
    client.open(CHAT, CHAT_ASK).await;
    while client.chunk().await.is_some() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(client.ended && client.body == stream, "{} of {} bytes", client.body.len(), stream.len());
}

#[tokio::test]
async fn b121_the_first_event_decides_not_the_first_read() {
    let error = "ent: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let (status, _, record) = refusal(MSG_D, Reply::sse().gaps([": ping\n\n", "ev", error])).await;
    assert!(status >= 500, "{status}");
    assert_eq!(word(&record), "upstream_error");
    let stream = msg_ok();
    let upstream = Upstream::start(Reply::sse().gaps([": ping\n\n", "", &stream[..2], &stream[2..]])).await;
    let weir = Setup::new(&upstream.url()).start().await;
    assert_eq!(weir.post(MESSAGES, MSG_D.ask()).await.text(), format!(": ping\n\n{stream}"));
}

#[tokio::test]
async fn b82_non_stream_does_not_bound_a_stream() {
    let steady = (0..12).fold(Reply::sse().write(CHAT_D.begun()), |reply, _| reply.pause(60).write(chat_delta("x")));
    let upstream = Upstream::start(steady.write(CHAT_FINISH).write(DONE)).await;
    let weir = Setup::new(&upstream.url()).defaults("timeouts: { non_stream: 300ms }").start().await;
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert!(received.text().ends_with(&(CHAT_FINISH.to_owned() + DONE)), "{}", received.text());
    assert_eq!(word(&weir.record(received.id()).await), "completed");
}

#[tokio::test]
async fn s1_each_clock_and_its_word() {
    // (clock, what the upstream does, whether the client sees output before)
    let pinging = (0..40).fold(Reply::sse().write(CHAT_D.begun()), |reply, _| reply.pause(50).write(": ping\n\n"));
    let holding = (0..40).fold(Reply::sse().write(CHAT_ROLE), |reply, _| reply.pause(50).write(": ping\n\n"));
    for (clock, reply, committed) in [
        ("first_byte", Reply::silent(), false),
        ("idle", Reply::sse().write(CHAT_D.begun()).hang(), true),
        ("no_output", pinging.hang(), true),
        ("first_content", holding.hang(), false),
    ] {
        let upstream = Upstream::start(reply).await;
        // By default the first content has as long as no_output.
        let other = if clock == "no_output" { ", first_content: 1h" } else { "" };
        let timeouts = format!("timeouts: {{ {clock}: 400ms{other} }}");
        let weir = Setup::new(&upstream.url()).defaults(&timeouts).start().await;
        let received = weir.post(CHAT, CHAT_ASK).await;
        assert_eq!(received.status(), if committed { 200 } else { 504 }, "{clock}: {}", received.text());
        if committed {
            assert!(
                received.text().contains("\"code\":\"stream_stalled\"") && received.text().ends_with(DONE),
                "{clock}"
            );
        }
        let record = weir.record(received.id()).await;
        assert_eq!((word(&record).as_str(), field(&record, "cause").as_str()), ("stalled", clock), "{record}");
        upstream.gone(0).await;
    }
}
