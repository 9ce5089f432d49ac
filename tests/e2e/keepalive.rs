//! K1 to K5 and kind E of CASES.md: what keeps a silent stream alive, and never harms it.

use crate::harness::*;
use std::time::{Duration, Instant};

const CHAT_D: Dialect = Dialect::ALL[0];
const RESP_D: Dialect = Dialect::ALL[1];
const MSG_D: Dialect = Dialect::ALL[2];

const INTERVAL: Duration = Duration::from_millis(200);

/// Begins, is silent until it is told to go on, goes on.
fn interrupted(dialect: Dialect, go_on: &Signal) -> Reply {
    let rest = &(dialect.ok)()[dialect.begun().len()..];
    Reply::sse().write(dialect.begun()).wait(go_on).write(rest)
}

/// Asks, reads on until the silence was filled, lets the upstream go on, and reads the rest.
async fn through(weir: &Weir, dialect: Dialect, go_on: &Signal, filled: impl Fn(&[u8]) -> bool) -> Received {
    let mut client = Client::connect(weir).await;
    let head = client.open(dialect.path, dialect.ask()).await;
    client.read_until("the silence to be filled", filled).await;
    go_on.fire();
    let body = client.rest().await;
    Received { head, body, ended: client.ended }
}

/// Whether these words have come `count` times.
fn times(body: &[u8], words: &str, count: usize) -> bool {
    String::from_utf8_lossy(body).matches(words).count() >= count
}

#[tokio::test]
async fn k1_silence_is_filled_between_events_in_every_protocol() {
    for dialect in Dialect::ALL {
        let go_on = Signal::new();
        let upstream = Upstream::start(interrupted(dialect, &go_on)).await;
        let weir = Setup::new(&upstream.url()).quick_keepalive().start().await;
        let began = Instant::now();
        let received = through(&weir, dialect, &go_on, |body| times(body, KEEPALIVE, 3)).await;
        let (plain, count) = without_keepalives(&received.body);
        assert_eq!(plain, dialect.seen(), "{}", dialect.name);
        let most = began.elapsed().as_millis() / INTERVAL.as_millis();
        assert!(count as u128 <= most, "{}: {count} in {most} intervals", dialect.name);
        assert!(received.text().contains(&(dialect.begun() + KEEPALIVE)), "{}", received.text());
        let record = weir.record(received.id()).await;
        assert_eq!(number(&record, "keepalives"), Some(count as u64), "{record}");
        assert_eq!(weir.metric("weir_keepalives_total", &[]).await.to_string(), count.to_string());
    }
}

#[tokio::test]
async fn k1_over_http2() {
    let go_on = Signal::new();
    let upstream = H2Upstream::start(interrupted(CHAT_D, &go_on)).await;
    let weir = Setup::with_provider(&upstream.url(), "http2: prior_knowledge")
        .listen("h2c: true")
        .quick_keepalive()
        .start()
        .await;
    let mut stream = H2Client::connect(&weir).await.open(CHAT, CHAT_ASK).await;
    stream.read_until("two keepalives", |body| times(body, KEEPALIVE, 2)).await;
    go_on.fire();
    stream.rest().await;
    assert_eq!(without_keepalives(&stream.received).0, chat_seen());
}

#[tokio::test]
async fn k1_a_stream_that_moves_needs_none() {
    // For longer than the interval, which is long beside its pauses.
    let reply = (0..14)
        .fold(Reply::sse().write(CHAT_D.begun()), |reply, at| reply.pause(250).write(chat_delta(&at.to_string())));
    let upstream = Upstream::start(reply.write(CHAT_FINISH).write(DONE)).await;
    let weir = Setup::new(&upstream.url()).defaults("keepalive: { interval: 3s }").start().await;
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(without_keepalives(&received.body).1, 0, "{}", received.text());
}

#[tokio::test]
async fn k1_when_always_silent_or_not() {
    let reply = (0..1_000)
        .fold(Reply::sse().write(CHAT_D.begun()), |reply, at| reply.pause(60).write(chat_delta(&at.to_string())));
    let upstream = Upstream::start(reply).await;
    let weir = Setup::new(&upstream.url()).defaults("keepalive: { interval: 200ms, when: always }").start().await;
    let mut client = Client::connect(&weir).await;
    client.open(CHAT, CHAT_ASK).await;
    client.read_until("keepalives in a stream that moves", |body| times(body, KEEPALIVE, 3)).await;
}

#[tokio::test]
async fn k1_the_text_is_the_operators() {
    let go_on = Signal::new();
    let upstream = Upstream::start(interrupted(CHAT_D, &go_on)).await;
    let weir =
        Setup::new(&upstream.url()).defaults("keepalive: { interval: 200ms, text: \"PROCESSING\" }").start().await;
    let received = through(&weir, CHAT_D, &go_on, |body| times(body, "\n\n: PROCESSING\n\n", 1)).await;
    assert!(received.text().contains("\n\n: PROCESSING\n\ndata: "), "{}", received.text());
}

#[tokio::test]
async fn k2_comment_line_is_one_newline_only() {
    let go_on = Signal::new();
    let upstream = Upstream::start(interrupted(CHAT_D, &go_on)).await;
    let weir =
        Setup::new(&upstream.url()).defaults("keepalive: { interval: 200ms, style: comment_line }").start().await;
    let two = ": weir-keepalive\n".repeat(2);
    let text = through(&weir, CHAT_D, &go_on, |body| times(body, &two, 1)).await.text();
    assert!(!text.contains(KEEPALIVE), "{text}");
    assert_eq!(text.replace(": weir-keepalive\n", ""), chat_seen());
}

#[tokio::test]
async fn k2_b73_ping_is_messages_own_event_once_message_start_is_out() {
    const PING: &str = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    let (begin, go_on) = (Signal::new(), Signal::new());
    let upstream = Upstream::start(interrupted(MSG_D, &go_on).first(Step::Wait(begin.clone()))).await;
    let weir = Setup::new(&upstream.url()).defaults("keepalive: { interval: 200ms, style: ping }").start().await;
    let mut client = Client::connect(&weir).await;
    client.open(MESSAGES, MSG_D.ask()).await;
    client.read_until("comments", |body| times(body, KEEPALIVE, 2)).await;
    begin.fire();
    client.read_until("pings", |body| times(body, PING, 2)).await;
    go_on.fire();
    let text = String::from_utf8(client.rest().await.to_vec()).unwrap();
    let (before, after) = text.split_at(text.find("event: message_start").expect("the stream"));
    assert!(!before.contains(PING), "{text}");
    assert_eq!(after.replace(PING, ""), msg_ok());
    upstream.set_default(interrupted(CHAT_D, &go_on));
    let text = through(&weir, CHAT_D, &go_on, |body| times(body, KEEPALIVE, 1)).await.text();
    assert!(!text.contains("ping"), "chat has no ping: {text}");
}

#[tokio::test]
async fn k2_auto_changes_shape_after_an_id_or_retry_field() {
    for field in ["id: 7\n", "retry: 3000\n"] {
        let stream = field.to_owned() + &CHAT_D.begun();
        let go_on = Signal::new();
        let reply = Reply::sse().write(&stream).wait(&go_on).write(CHAT_FINISH).write(DONE);
        let upstream = Upstream::start(reply).await;
        // Before the field has come, the shape would be the other one.
        let setup = Setup::new(&upstream.url()).defaults("keepalive: { interval: 200ms, before_headers: off }");
        let weir = setup.start().await;
        let text = through(&weir, CHAT_D, &go_on, |body| times(body, ": weir-keepalive\n", 2)).await.text();
        assert!(!text.contains(KEEPALIVE), "{field}: {text}");
        assert_eq!(text.replace(": weir-keepalive\n", ""), stream + CHAT_FINISH + DONE);
    }
}

#[tokio::test]
async fn k3_b77_an_early_answer_keeps_a_silent_upstream_alive() {
    for dialect in Dialect::ALL {
        let go_on = Signal::new();
        let upstream = Upstream::start(Reply::stream((dialect.ok)()).first(Step::Wait(go_on.clone()))).await;
        let weir = Setup::new(&upstream.url()).quick_keepalive().start().await;
        let mut client = Client::connect(&weir).await;
        let head = client.open(dialect.path, dialect.ask()).await;
        assert_eq!((head.status, head.get("content-type")), (200, Some("text/event-stream")), "{}", dialect.name);
        assert_eq!(head.get("x-accel-buffering"), Some("no"));
        client.read_until("two keepalives", |body| without_keepalives(body).1 >= 2).await;
        go_on.fire();
        client.rest().await;
        assert_eq!(without_keepalives(&client.body).0, dialect.seen());
        assert_eq!(word(&weir.record(head.id()).await), "completed");
    }
}

#[tokio::test]
async fn k3_over_http2() {
    let go_on = Signal::new();
    let upstream = Upstream::start(Reply::stream(chat_ok()).first(Step::Wait(go_on.clone()))).await;
    let weir = Setup::new(&upstream.url()).listen("h2c: true").quick_keepalive().start().await;
    let mut stream = H2Client::connect(&weir).await.open(CHAT, CHAT_ASK).await;
    assert_eq!(stream.head.status, 200);
    stream.read_until("two keepalives", |body| without_keepalives(body).1 >= 2).await;
    go_on.fire();
    stream.rest().await;
    assert_eq!(without_keepalives(&stream.received).0, chat_seen());
}

#[tokio::test]
async fn k3_off_waits_for_the_upstreams_head() {
    let go_on = Signal::new();
    let refusal = r#"{"error":{"message":"slow down","type":"rate_limit_error","code":"rate_limit_exceeded"}}"#;
    let upstream = Upstream::start(Reply::json(429, refusal).first(Step::Wait(go_on.clone()))).await;
    let weir = Setup::new(&upstream.url())
        .defaults("keepalive: { interval: 100ms, before_headers: off }, retry: { attempts: 1 }")
        .start()
        .await;
    let mut client = Client::connect(&weir).await;
    client.post(CHAT, CHAT_ASK).await;
    upstream.request(0).await;
    let early = tokio::time::timeout(Duration::from_millis(500), client.try_head()).await;
    assert!(early.is_err(), "{early:?}");
    go_on.fire();
    assert_eq!(client.receive().await.status(), 429);
}

#[tokio::test]
async fn k3_b94_a_failure_after_the_early_answer_is_one_native_error() {
    for (status, client_fault) in [(400, true), (500, false)] {
        for dialect in Dialect::ALL {
            let body = if dialect.name == "messages" {
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"context is too long"}}"#
            } else {
                r#"{"error":{"message":"context is too long","type":"invalid_request_error","code":"context_length"}}"#
            };
            let go_on = Signal::new();
            let upstream = Upstream::start(Reply::json(status, body).first(Step::Wait(go_on.clone()))).await;
            let weir = Setup::new(&upstream.url())
                .defaults("keepalive: { interval: 100ms }, retry: { attempts: 1 }")
                .start()
                .await;
            let mut client = Client::connect(&weir).await;
            let head = client.open(dialect.path, dialect.ask()).await;
            client.read_until("a keepalive", |body| without_keepalives(body).1 >= 1).await;
            go_on.fire();
            client.rest().await;
            assert!(client.ended);
            let text = without_keepalives(&client.body).0;
            let error = events(text.as_bytes());
            assert_eq!(error.len(), if dialect.name == "chat" { 2 } else { 1 }, "{text}");
            let value = data(&error[0]);
            let message = match dialect.name {
                "responses" => {
                    assert_eq!(value["type"], "response.failed");
                    assert_eq!(value["sequence_number"], 0);
                    assert_eq!(value["response"]["id"], format!("resp_{}", head.id()));
                    assert_eq!(value["response"]["status"], "failed");
                    &value["response"]["error"]["message"]
                }
                "messages" => {
                    assert!(error[0].starts_with("event: error\n"), "{text}");
                    assert_eq!(value["type"], "error");
                    &value["error"]["message"]
                }
                _ => {
                    assert_eq!(error[1], DONE);
                    &value["error"]["message"]
                }
            };
            assert_eq!(message == "context is too long", client_fault, "{text}");
            let record = weir.record(head.id()).await;
            assert_eq!(number(&record, "status"), Some(200), "{record}");
            let effective = number(&record, "effective_status").expect("a status");
            assert_eq!(effective / 100, u64::from(status) / 100, "{record}");
            assert_eq!(word(&record), if client_fault { "client_error" } else { "upstream_error" });
        }
    }
}

#[tokio::test]
async fn k3_a_json_answer_after_the_early_one_is_a_native_error() {
    let go_on = Signal::new();
    let upstream = Upstream::start(Reply::json(200, (CHAT_D.json)()).first(Step::Wait(go_on.clone()))).await;
    let weir = Setup::new(&upstream.url()).quick_keepalive().start().await;
    let mut client = Client::connect(&weir).await;
    client.open(CHAT, CHAT_ASK).await;
    go_on.fire();
    client.rest().await;
    let text = without_keepalives(&client.body).0;
    assert!(text.starts_with("data: {\"error\":") && text.ends_with(DONE), "{text}");
    assert_eq!(events(text.as_bytes()).len(), 2);
}

#[tokio::test]
async fn k3_keepalives_go_on_while_the_prelude_is_held() {
    let go_on = Signal::new();
    for dialect in Dialect::ALL {
        let rest = &(dialect.ok)()[dialect.before().len()..];
        let reply = Reply::sse().write(dialect.before()).wait(&go_on).write(rest);
        let upstream = Upstream::start(reply).await;
        let weir = Setup::new(&upstream.url()).quick_keepalive().start().await;
        let mut client = Client::connect(&weir).await;
        client.open(dialect.path, dialect.ask()).await;
        client.read_until("two keepalives", |body| without_keepalives(body).1 >= 2).await;
        go_on.fire();
        client.rest().await;
        assert_eq!(without_keepalives(&client.body).0, dialect.seen(), "{}", dialect.name);
    }
}

#[tokio::test]
async fn k4_b62_never_inside_an_event() {
    for dialect in Dialect::ALL {
        let stream = (dialect.ok)();
        let half = dialect.begun().len() + 30;
        let go_on = Signal::new();
        let reply = Reply::sse().write(&stream[..half]).wait(&go_on).write(&stream[half..]);
        let upstream = Upstream::start(reply).await;
        let weir = Setup::new(&upstream.url()).quick_keepalive().start().await;
        // A held half event leaves the client between events.
        let begun = dialect.begun();
        let held = |body: &[u8]| {
            let (plain, count) = without_keepalives(body);
            plain == begun && count >= 2 && body.ends_with(KEEPALIVE.as_bytes())
        };
        let received = through(&weir, dialect, &go_on, held).await;
        assert_eq!(without_keepalives(&received.body).0, dialect.seen(), "{}", dialect.name);
        for event in events(&received.body) {
            assert!(event == KEEPALIVE || !event.contains("weir-keepalive"), "{event:?}");
        }
    }
}

#[tokio::test]
async fn k4_b64_random_cuts_and_pauses_leave_the_bytes_alone() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for dialect in Dialect::ALL {
        let upstream = Upstream::start(Reply::silent()).await;
        let weir = Setup::new(&upstream.url()).defaults("keepalive: { interval: 100ms }").start().await;
        for _ in 0..6 {
            let stream = (dialect.ok)();
            let mut cuts: Vec<_> = (0..8).map(|_| random.usize(1..stream.len())).collect();
            cuts.sort_unstable();
            let mut reply = Reply::sse();
            let mut from = 0;
            for cut in cuts.into_iter().chain([stream.len()]) {
                reply = reply.write(&stream[from..cut]).pause(random.u64(0..180));
                from = cut;
            }
            upstream.push(reply);
            let received = weir.post(dialect.path, dialect.ask()).await;
            assert_eq!(without_keepalives(&received.body).0, dialect.seen(), "seed {seed}, {}", dialect.name);
            for event in events(&received.body) {
                assert!(event == KEEPALIVE || !event.contains("weir-keepalive"), "seed {seed}: {event:?}");
            }
        }
    }
}

#[tokio::test]
async fn k4_none_after_the_terminal_event() {
    for dialect in Dialect::ALL {
        // The upstream stays silent after its last event and keeps the connection.
        let upstream = Upstream::start(Reply::stream((dialect.ok)()).hang()).await;
        let weir = Setup::new(&upstream.url()).quick_keepalive().start().await;
        let received = weir.post(dialect.path, dialect.ask()).await;
        assert!(received.ended, "{}", dialect.name);
        let (plain, _) = without_keepalives(&received.body);
        assert_eq!(plain, dialect.seen(), "{}", dialect.name);
        let last = events(plain.as_bytes()).pop().unwrap();
        assert!(received.text().ends_with(&last), "{}: {}", dialect.name, received.text());
    }
}

#[tokio::test]
async fn k4_b76_keepalives_feed_no_stall_clock() {
    for dialect in Dialect::ALL {
        let upstream = Upstream::start(Reply::sse().write(dialect.begun()).hang()).await;
        let weir = Setup::new(&upstream.url())
            .defaults("keepalive: { interval: 100ms }, timeouts: { idle: 3s }")
            .start()
            .await;
        let received = weir.post(dialect.path, dialect.ask()).await;
        assert!(received.ended);
        let (plain, count) = without_keepalives(&received.body);
        assert!(count >= 3, "{}", received.text());
        let added = plain.strip_prefix(&dialect.begun()).expect("what came").to_owned();
        assert!(added.contains("error"), "{added}");
        assert_eq!(word(&weir.record(received.id()).await), "stalled");
        upstream.gone(0).await;
    }
}

#[tokio::test]
async fn k4_b68_b70_b71_the_upstreams_own_comments_and_pings_pass() {
    let [role, hel, lo, rest @ ..] = &CHAT_D.events()[..] else { panic!("six events") };
    let comments = ": OPENROUTER PROCESSING\n\n".repeat(3);
    let b68 = format!("{comments}{role}{hel}{lo}{}", rest.concat());
    let b70 = format!("{role}{hel}data: null\n\n{lo}{}", rest.concat());
    let b71 = format!("{role}{hel}data:\n\n{lo}{}", rest.concat());
    let ping = "event: ping\ndata: {\"type\": \"ping\"}\n\n";
    let messages = MSG_D.events();
    let pinged = messages[0].clone() + ping + &messages[1..3].concat() + ping + &messages[3..].concat();
    check(&[
        Row::new("B68", CHAT_D, b68.clone()).expect(b68.replace(CHAT_USAGE, "")),
        Row::new("B70", CHAT_D, b70.clone()).expect(b70.replace(CHAT_USAGE, "")),
        Row::new("B71", CHAT_D, b71.clone()).expect(b71.replace(CHAT_USAGE, "")),
        Row::new("K4 pings", MSG_D, pinged),
        Row::new("K4 plain", RESP_D, resp_ok()),
    ])
    .await;
}

#[tokio::test]
async fn b67_default_shape_reaches_clients_that_split_on_blank_lines() {
    let tool = "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_1\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}}]}\n\n";
    let go_on = Signal::new();
    let reply = Reply::sse().write(CHAT_D.begun()).wait(&go_on).write(tool).write(CHAT_FINISH).write(DONE);
    let upstream = Upstream::start(reply).await;
    let weir = Setup::new(&upstream.url()).quick_keepalive().start().await;
    let text = through(&weir, CHAT_D, &go_on, |body| times(body, KEEPALIVE, 2)).await.text();
    assert!(text.split("\n\n").any(|block| block.starts_with("data: ") && block.contains("call_1")), "{text}");
}
