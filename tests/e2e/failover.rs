//! A3, A4, K3 with failover, and kind H of CASES.md: what the second target's client never notices.

use crate::harness::*;
use std::time::{Duration, Instant};

const CHAT_D: Dialect = Dialect::ALL[0];

/// Two targets, as many attempts.
fn two(first: &str, second: &str) -> Setup {
    Setup::new(first).target(second, "").defaults("retry: { attempts: 2 }")
}

/// A stream of another answer: its ids are not those of `ok`.
fn other(stream: &str) -> String {
    stream.replace("chatcmpl-1", "chatcmpl-2").replace("resp_abc", "resp_two").replace("msg_1", "msg_2")
}

#[tokio::test]
async fn a3_k3_keepalives_while_the_first_dies_then_the_seconds_answer_as_if_nothing_had_happened() {
    for dialect in Dialect::ALL {
        let (die, go_on) = (Signal::new(), Signal::new());
        let first = Upstream::start(Reply::sse().write(dialect.before()).wait(&die).rst()).await;
        let second = other(&(dialect.ok)());
        let second = Upstream::start(Reply::stream(&second).first(Step::Wait(go_on.clone()))).await;
        let weir = two(&first.url(), &second.url())
            .defaults("keepalive: { interval: 150ms }, retry: { attempts: 2 }")
            .start()
            .await;
        let mut client = Client::connect(&weir).await;
        let head = client.open(dialect.path, dialect.ask()).await;
        client.read_until("two keepalives", |body| without_keepalives(body).1 >= 2).await;
        die.fire();
        second.request(0).await;
        let before = without_keepalives(&client.body).1;
        client.read_until("more keepalives", |body| without_keepalives(body).1 >= before + 2).await;
        go_on.fire();
        client.rest().await;
        assert!(client.ended);
        assert_eq!(without_keepalives(&client.body).0, other(&dialect.seen()), "{}", dialect.name);
        let record = weir.record(head.id()).await;
        assert_eq!((word(&record).as_str(), tries(&record)), ("completed", vec!["up:broken".into(), "up2:ok".into()]));
        assert_eq!(number(&record, "output"), Some(dialect.tokens.1), "usage of the answer that won: {record}");
        assert_eq!(field(&record, "target"), "up2/upstream-model");
    }
}

#[tokio::test]
async fn k3_all_fail_after_the_early_answer_and_the_record_has_the_status_it_should_have_been() {
    let rows = [(Reply::json(429, "{}").header("retry-after", "30"), 429), (Reply::json(529, "{}"), 529)];
    for dialect in Dialect::ALL {
        for (reply, effective) in rows.clone() {
            let die = Signal::new();
            let first = Upstream::start(Reply::sse().write(dialect.before()).wait(&die).fin()).await;
            let second = Upstream::start(reply).await;
            let weir = two(&first.url(), &second.url())
                .defaults("keepalive: { interval: 100ms }, retry: { attempts: 2 }")
                .start()
                .await;
            let mut client = Client::connect(&weir).await;
            let head = client.open(dialect.path, dialect.ask()).await;
            die.fire();
            client.rest().await;
            let text = without_keepalives(&client.body).0;
            let (chat, kind) = match effective {
                429 => ("\"code\":\"rate_limit_exceeded\"", "rate_limit_error"),
                _ => ("\"code\":\"upstream_overloaded\"", "overloaded_error"),
            };
            match dialect.name {
                "chat" => assert!(text.starts_with("data: {\"error\":") && text.contains(chat) && text.ends_with(DONE)),
                "responses" => {
                    let failed = data(&text);
                    assert_eq!(failed["sequence_number"], 0, "{text}");
                    assert_eq!(failed["response"]["id"], format!("resp_{}", head.id()));
                    assert_eq!(failed["response"]["error"]["code"], "rate_limit_exceeded");
                }
                _ => assert!(text.starts_with("event: error\n") && text.contains(kind), "{text}"),
            }
            let record = weir.record(head.id()).await;
            assert_eq!((number(&record, "status"), number(&record, "effective_status")), (Some(200), Some(effective)));
            assert_eq!(word(&record), "upstream_error", "{record}");
        }
    }
}

#[tokio::test]
async fn b139_k3_nothing_of_a_failed_attempts_head_is_left() {
    let leak = |reply: Reply| reply.header("x-request-id", "req_first").header("openai-version", "first");
    // Its head is there and its prelude is held when Weir answers by itself.
    let die = Signal::new();
    let first = Upstream::start(leak(Reply::sse().write(CHAT_D.before())).wait(&die).rst()).await;
    let second = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = two(&first.url(), &second.url())
        .defaults("keepalive: { interval: 100ms }, retry: { attempts: 2 }")
        .start()
        .await;
    let mut client = Client::connect(&weir).await;
    let head = client.open(CHAT, CHAT_ASK).await;
    die.fire();
    client.rest().await;
    assert_eq!(without_keepalives(&client.body).0, chat_seen());
    assert_eq!((head.get("x-upstream-request-id"), head.get("openai-version")), (None, None), "{head:?}");
    assert_eq!(field(&weir.record(head.id()).await, "upstream_request_id"), "");
    // And when the second answers before that.
    for reply in
        [leak(Reply::json(503, "{\"error\": {}}  ")).header("retry-after", "7"), leak(Reply::sse().write(CHAT_ROLE))]
    {
        let first = Upstream::start(reply).await;
        let weir = two(&first.url(), &second.url()).start().await;
        let received = weir.post(CHAT, CHAT_ASK).await;
        assert_eq!(received.text(), chat_seen());
        for name in ["x-upstream-request-id", "openai-version", "retry-after", "content-length"] {
            assert_eq!(received.head.get(name), None, "{:?}", received.head);
        }
    }
}

#[tokio::test]
async fn a4_b124_no_other_target_after_a_tool_call_or_a_thought() {
    let chat = |delta: &str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}\n\n");
    let call =
        chat(r#"{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":""}}]}"#);
    let item = r#"{"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"type":"function_call","id":"fc_1","call_id":"c","name":"f","arguments":""}}"#;
    let thought = r#"{"type":"response.reasoning_summary_text.delta","sequence_number":3,"item_id":"rs_1","output_index":0,"summary_index":0,"delta":"hm"}"#;
    let tool = r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}"#;
    let think = r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#;
    let rows = [
        (Dialect::ALL[0], call),
        (Dialect::ALL[0], chat(r#"{"reasoning_content":"hm"}"#)),
        (Dialect::ALL[1], typed(item)),
        (Dialect::ALL[1], typed(thought)),
        (Dialect::ALL[2], typed(tool)),
        (Dialect::ALL[2], typed(think)),
    ];
    for (dialect, output) in rows {
        let begun = dialect.events()[..dialect.prelude.min(2)].concat() + &output;
        let first = Upstream::start(Reply::sse().write(&begun).pause(50).rst()).await;
        let second = Upstream::start(Reply::stream((dialect.ok)())).await;
        let weir = two(&first.url(), &second.url()).start().await;
        let received = weir.post(dialect.path, dialect.ask()).await;
        let text = received.text();
        let added = text.strip_prefix(&begun).unwrap_or_else(|| panic!("{output} first in {text}"));
        assert!(added.contains("error") && received.ended, "{added}");
        assert_eq!(second.count(), 0, "{output}");
        let record = weir.record(received.id()).await;
        assert_eq!((word(&record).as_str(), tries(&record)), ("upstream_interrupted", vec!["up:broken".into()]));
    }
}

#[tokio::test]
async fn b275_a1_the_whole_body_goes_to_each_target_with_its_own_name_key_path_and_usage() {
    for size in [65_537, 20 << 20] {
        let first = Upstream::start(Reply::json(503, "{}")).await;
        let second = Upstream::start(Reply::stream(chat_ok())).await;
        let weir = Setup::default()
            .provider(&format!("one: {{ base_url: \"{}\", api_key: key-one }}", first.url()))
            .provider(&format!(
                "two: {{ base_url: \"{}\", api_key: key-two, auth: {{ header: api-key }}, inject_usage: false, \
                 paths: {{ chat: \"/deployments/sol/chat?api-version=1\" }} }}",
                second.url()
            ))
            .other_model(
                "{ name: public-model, targets: [{ provider: one, model: first-name }, \
                 { provider: two, model: a-much-longer-second-name, priority: 1 }] }",
            )
            .defaults("retry: { attempts: 2 }")
            .start()
            .await;
        let text = "é".repeat(size / 2);
        let ask = format!(
            "{{\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}],\"model\":\"public-model\",\"stream\":true,\"x\":1.0}}"
        );
        let received = weir.post(CHAT, &ask).await;
        // Its usage was not asked for: what comes all the same is still not for the client.
        assert_eq!(received.text(), chat_seen());
        let [one, two] = [first.request(0).await, second.request(0).await];
        let wanted = ask.replace("public-model", "first-name");
        let wanted = format!("{},\"stream_options\":{{\"include_usage\":true}}}}", &wanted[..wanted.len() - 1]);
        assert!(one.body == wanted, "{} of {} bytes", one.body.len(), wanted.len());
        assert!(two.body == ask.replace("public-model", "a-much-longer-second-name"), "{} bytes", two.body.len());
        assert_eq!((one.path.as_str(), one.header("authorization")), (CHAT, Some("Bearer key-one")));
        assert_eq!(two.path, "/deployments/sol/chat?api-version=1");
        assert_eq!((two.header("api-key"), two.header("authorization")), (Some("key-two"), None));
        assert_eq!(one.header("content-length"), Some(one.body.len().to_string().as_str()));
        assert_eq!(two.header("content-length"), Some(two.body.len().to_string().as_str()));
    }
}

#[tokio::test]
async fn b145_nobody_is_asked_for_a_client_that_has_left() {
    let refuse = Signal::new();
    let first = Upstream::start(Reply::json(503, "{}").first(Step::Wait(refuse.clone()))).await;
    let second = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = two(&first.url(), &second.url()).start().await;
    let mut client = Client::connect(&weir).await;
    client.post(CHAT, CHAT_ASK).await;
    first.request(0).await;
    drop(client);
    first.gone(0).await;
    refuse.fire();
    let record = weir.only_record().await;
    assert_eq!((word(&record).as_str(), tries(&record)), ("client_gone", vec!["up:client_gone".into()]));
    assert_eq!(second.count(), 0);
}

#[tokio::test]
async fn b133_a_silent_target_is_let_go_before_the_next_is_asked() {
    let first = Upstream::start(Reply::silent()).await;
    let second = Upstream::start(Reply::stream(chat_ok())).await;
    let weir =
        two(&first.url(), &second.url()).defaults("timeouts: { first_byte: 4s }, retry: { attempts: 2 }").start().await;
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(received.text(), chat_seen());
    let (left, record) = (first.gone(0).await, weir.record(received.id()).await);
    assert!(left <= Instant::now());
    assert_eq!(tries(&record), ["up:first_byte", "up2:ok"]);
    assert_eq!(record["attempts"][0]["maybe_billed"], true, "{record}");
    assert_eq!(record["attempts"][1]["maybe_billed"], false, "{record}");
    assert_eq!(weir.metric("weir_attempts_total", &["result=\"first_byte\""]).await, 1.0);
}

#[tokio::test]
async fn b134_b137_only_a_refused_stream_is_sent_again_to_the_same_target() {
    const REFUSED: u32 = 7;
    let reset = |code| Reply { status: 0, ..Reply::sse().step(Step::Reset(code)) };
    let first = H2Upstream::start(Reply::stream(chat_ok())).await;
    let second = Upstream::start(Reply::stream(other(&chat_ok()))).await;
    let weir = Setup::with_provider(&first.url(), "http2: prior_knowledge")
        .target(&second.url(), "")
        .defaults("retry: { attempts: 2 }, health: { failures: 100 }")
        .start()
        .await;
    // Also where the connection was used before: its age proves nothing.
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.text(), chat_seen());
    first.push(reset(REFUSED));
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(received.text(), chat_seen());
    assert_eq!(tries(&weir.record(received.id()).await), ["up:ok"]);
    assert_eq!((first.count(), second.count()), (3, 0));
    // INTERNAL_ERROR, CANCEL, ENHANCE_YOUR_CALM.
    for (at, code) in [2, 8, 11].into_iter().enumerate() {
        first.push(reset(code));
        let received = weir.post(CHAT, CHAT_ASK).await;
        assert_eq!(received.text(), other(&chat_seen()), "code {code}");
        let record = weir.record(received.id()).await;
        assert_eq!(tries(&record), ["up:head", "up2:ok"], "code {code}");
        assert_eq!(record["attempts"][0]["maybe_billed"], true, "{record}");
        assert_eq!(second.count(), at + 1);
    }
    // B137: 200 and then a reset before any DATA; B136: after content, without a word of it.
    first.push(Reply::sse().pause(30).step(Step::Reset(2)));
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(received.text(), other(&chat_seen()));
    assert_eq!(tries(&weir.record(received.id()).await), ["up:broken", "up2:ok"]);
    for code in [0, 1, 2, 3, 5, 7, 8, 11, 12, 13] {
        first.push(Reply::sse().write(CHAT_D.begun()).pause(30).step(Step::Reset(code)));
        let received = weir.post(CHAT, CHAT_ASK).await;
        assert_eq!(received.text(), CHAT_D.begun() + CHAT_INTERRUPTED, "B136, code {code}");
    }
}

#[tokio::test]
async fn b185_stream_options_refused_once_are_left_out_and_that_is_remembered() {
    let refusal = r#"{"error":{"message":"Unrecognized request argument supplied: stream_options","type":"invalid_request_error"}}"#;
    let upstream = Upstream::start(Reply::stream(chat_ok().replace(CHAT_USAGE, ""))).await;
    upstream.when("include_usage", Reply::json(400, refusal));
    let weir = Setup::new(&upstream.url()).start().await;
    for asked in [2, 3] {
        let received = weir.post(CHAT, CHAT_ASK).await;
        assert_eq!((received.status(), received.text()), (200, chat_seen()));
        assert_eq!(upstream.count(), asked, "only the first time it is asked twice");
        weir.record(received.id()).await; // remembered when all is over
    }
    // A client that asks for usage itself gets the upstream's answer.
    assert_eq!(weir.post(CHAT, CHAT_ASK_USAGE).await.status(), 400);
    // And what fails without them as well proves nothing about them.
    let upstream = Upstream::start(Reply::json(400, refusal)).await;
    let weir = Setup::new(&upstream.url()).start().await;
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 400);
    upstream.set_default(Reply::stream(chat_ok()));
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.text(), chat_seen());
    assert_eq!(upstream.request(2).await.json()["stream_options"]["include_usage"], true);
}

#[tokio::test]
async fn b23_characters_cut_by_reads_come_whole_through_failover() {
    for dialect in Dialect::ALL {
        let stream = (dialect.ok)().replace("Hel", "你好🌍");
        let first = Upstream::start(Reply::json(500, "{}")).await;
        let second = Upstream::start(Reply::sse().pieces(&stream, 1)).await;
        let weir = two(&first.url(), &second.url()).start().await;
        let received = weir.post(dialect.path, dialect.ask()).await;
        assert_eq!(received.text(), dialect.seen().replace("Hel", "你好🌍"));
    }
}

#[tokio::test]
async fn b107_an_empty_finish_fails_over_only_where_it_is_asked_for() {
    let empty = [CHAT_ROLE, CHAT_FINISH, DONE].concat();
    for (setting, wanted, word) in
        [("", empty.clone(), "up:ok"), ("failover_on_empty: true, ", chat_seen(), "up:empty")]
    {
        let first = Upstream::start(Reply::stream(&empty)).await;
        let second = Upstream::start(Reply::stream(chat_ok())).await;
        let weir =
            two(&first.url(), &second.url()).defaults(&format!("retry: {{ {setting}attempts: 2 }}")).start().await;
        let received = weir.post(CHAT, CHAT_ASK).await;
        assert_eq!(received.text(), wanted, "{setting}");
        assert_eq!(tries(&weir.record(received.id()).await)[0], word);
    }
}

#[tokio::test]
async fn a2_the_clients_own_fault_is_tried_nowhere_else() {
    let fault = r#"{"type":"invalid_request_error","message":"prompt is too long"}"#;
    let event = format!("data: {{\"error\":{fault}}}\n\n{DONE}");
    let json = format!("{{\"error\":{fault}}}");
    for reply in
        [Reply::stream(event), Reply::json(400, &json), Reply::json(200, json.as_bytes()), Reply::json(404, &json)]
    {
        let first = Upstream::start(reply).await;
        let second = Upstream::start(Reply::stream(chat_ok())).await;
        let weir = two(&first.url(), &second.url()).defaults("retry: { attempts: 2 }, health: { failures: 1 }");
        let weir = weir.start().await;
        let received = weir.post(CHAT, CHAT_ASK).await;
        assert!((400..500).contains(&received.status()), "{}", received.text());
        assert_eq!(received.json()["error"]["message"], "prompt is too long");
        assert_eq!(word(&weir.record(received.id()).await), "client_error");
        assert_eq!(second.count(), 0);
        // A8: and it cools nothing.
        assert_eq!(weir.metric("weir_target_healthy", &["target=\"up/upstream-model\""]).await, 1.0);
    }
}

#[tokio::test]
async fn a11_goaway_lets_running_streams_end_and_later_ones_go_elsewhere() {
    let rest = &chat_ok()[CHAT_D.begun().len()..];
    let going = Reply::sse().write(CHAT_D.begun()).step(Step::GoAway).pause(100).write(rest);
    let upstream = H2Upstream::start(going).await;
    let weir = Setup::with_provider(&upstream.url(), "http2: prior_knowledge").start().await;
    for at in 1..=3 {
        let received = weir.post(CHAT, CHAT_ASK).await;
        assert_eq!(received.text(), chat_seen());
        assert_eq!(upstream.connections(), at, "each on a connection that still takes requests");
    }
}

/// Packets to a pooled HTTP/2 connection get lost: its ping finds out, and the request that waits on it goes
/// out again on a new connection, without an attempt more (A11).
#[tokio::test]
async fn b293_a_dead_http2_connection_is_found_by_its_ping() {
    let upstream = H2Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::with_provider(&upstream.url(), "http2: prior_knowledge").start().await;
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.text(), chat_seen());
    upstream.go_mute();
    let began = std::time::Instant::now();
    let received = tokio::time::timeout(Duration::from_mins(2), async {
        let mut client = Client::connect(&weir).await;
        client.post(CHAT, CHAT_ASK).await;
        // Keepalives make the head and every chunk come before `within` loses its patience.
        client.receive().await
    });
    let received = received.await.expect("the ping's bound is seconds");
    let took = began.elapsed();
    assert_eq!(without_keepalives(&received.body).0, chat_seen());
    assert_eq!(tries(&weir.record(received.id()).await), ["up:ok"]);
    assert_eq!((upstream.connections(), upstream.count()), (2, 2));
    assert!(took > Duration::from_secs(5), "it was dead before it was asked: {took:?}");
}
