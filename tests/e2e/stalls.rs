//! S1 to S3 and kind F of CASES.md: each clock by itself, and what must not be taken for a stall.

use crate::harness::*;
use std::time::{Duration, Instant};

const CHAT_D: Dialect = Dialect::ALL[0];
const MSG_D: Dialect = Dialect::ALL[2];
const PING: &str = "event: ping\ndata: {\"type\": \"ping\"}\n\n";

/// A ping every 250 ms.
fn pings(mut reply: Reply, count: usize) -> Reply {
    for _ in 0..count {
        reply = reply.pause(250).write(PING);
    }
    reply
}

async fn with(timeouts: &str, upstream: &Upstream) -> Weir {
    let defaults = format!("timeouts: {{ {timeouts} }}, retry: {{ attempts: 2 }}, health: {{ failures: 100 }}");
    Setup::new(&upstream.url()).defaults(&format!("{defaults}, keepalive: {{ before_headers: off }}")).start().await
}

#[tokio::test]
async fn b86_s1_a_model_that_thinks_for_long_with_pings_is_not_cut() {
    // Before its first content, and between two outputs: longer than idle, shorter than the others.
    let events = MSG_D.events();
    let thinks = pings(Reply::sse().write(MSG_D.before()), 15).write(&events[2]);
    let reply = pings(thinks, 15).write(events[3..].concat());
    let upstream = Upstream::start(reply).await;
    let weir = with("idle: 3s, first_content: 1m, no_output: 1m", &upstream).await;
    let received = weir.post(MESSAGES, MSG_D.ask()).await;
    assert_eq!(received.text().replace(PING, ""), msg_ok());
    assert_eq!(received.text().matches(PING).count(), 30);
    assert_eq!(word(&weir.record(received.id()).await), "completed");
}

#[tokio::test]
async fn b85_s1_a_model_that_pings_for_ever_is_cut() {
    // At exactly the interval of the clock, too: pings may not win the race.
    for every in [60, 500] {
        let forever = |reply: Reply| (0..40).fold(reply, |reply, _| reply.pause(every).write(PING)).hang();
        let upstream = Upstream::start(forever(Reply::sse().write(MSG_D.before()))).await;
        let weir = with("first_content: 500ms", &upstream).await;
        let began = Instant::now();
        let received = weir.post(MESSAGES, MSG_D.ask()).await;
        assert_eq!(received.status(), 504, "held, and tried twice: {}", received.text());
        assert!(began.elapsed() < Duration::from_secs(40));
        let record = weir.record(received.id()).await;
        assert_eq!(tries(&record), ["up:first_content", "up:first_content"]);
        upstream.set_default(forever(Reply::sse().write(MSG_D.begun())));
        let weir = with("no_output: 500ms, first_content: 1h", &upstream).await;
        let received = weir.post(MESSAGES, MSG_D.ask()).await;
        let (text, record) = (received.text(), weir.record(received.id()).await);
        assert!(text.ends_with("\"message\":\"The model stopped sending output, please retry\"}}\n\n"), "{text}");
        assert_eq!((word(&record).as_str(), field(&record, "cause").as_str()), ("stalled", "no_output"));
    }
}

#[tokio::test]
async fn b83_s1_the_first_content_has_a_clock_of_its_own() {
    let upstream =
        Upstream::start(Reply::sse().write(CHAT_ROLE).pause(4_000).write(&chat_ok()[CHAT_ROLE.len()..])).await;
    let weir = with("first_byte: 3s, no_output: 3s, first_content: 1m", &upstream).await;
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.text(), chat_seen(), "no_output runs from the commit");
    // By default it is as long as no_output.
    let weir = with("no_output: 600ms", &upstream).await;
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!((received.status(), &*field(&weir.record(received.id()).await, "cause")), (504, "first_content"));
}

#[tokio::test]
async fn b88_s1_clocks_are_the_models_own() {
    let slow = (0..4).fold(Reply::sse().write(CHAT_D.begun()), |reply, _| reply.pause(500).write(chat_delta("x")));
    let upstream = Upstream::start(slow.write(CHAT_FINISH).write(DONE)).await;
    let model = |name: &str, clock: &str| {
        format!("{{ name: {name}, targets: [{{ provider: up, model: m }}], timeouts: {{ no_output: {clock} }} }}")
    };
    let weir = Setup::new(&upstream.url())
        .other_model(&model("patient", "1m"))
        .other_model(&model("hasty", "200ms"))
        .start()
        .await;
    for (name, outcome) in [("patient", "completed"), ("hasty", "stalled")] {
        let received = weir.post(CHAT, CHAT_ASK.replace("public-model", name)).await;
        assert_eq!(word(&weir.record(received.id()).await), outcome, "{name}");
    }
}

#[tokio::test]
async fn s1_send_is_an_upload_without_progress() {
    // Nobody reads: the kernel's buffers fill up.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let weir = Setup::new(&format!("http://{}", listener.local_addr().unwrap()))
        .defaults("timeouts: { send: 400ms }, keepalive: { before_headers: off }")
        .start()
        .await;
    let body = format!("{{\"model\":\"public-model\",\"stream\":true,\"x\":\"{}\"}}", "x".repeat(24 << 20));
    let received = weir.post(CHAT, body).await;
    let record = weir.record(received.id()).await;
    assert_eq!(
        (received.status(), word(&record).as_str(), tries(&record)),
        (504, "stalled", vec!["up:send_timeout".into()])
    );
    assert_eq!(record["attempts"][0]["maybe_billed"], false);
}

#[tokio::test]
async fn b40_s2_a_slow_client_is_no_stalled_model() {
    let event = chat_delta(&"y".repeat(65_536));
    let mut stream = CHAT_D.begun();
    (0..160).for_each(|_| stream += &event);
    stream += CHAT_FINISH;
    stream += DONE;
    let upstream = Upstream::start(Reply::sse().pieces(&stream, 1 << 16)).await;
    let weir = with("idle: 3s, no_output: 3s", &upstream).await;
    let mut client = Client::connect(&weir).await;
    client.open(CHAT, CHAT_ASK).await;
    // The pipe is full and nobody reads for twice the clocks, again and again.
    for _ in 0..2 {
        for _ in 0..8 {
            client.chunk().await;
        }
        tokio::time::sleep(Duration::from_secs(6)).await;
    }
    assert!(upstream.written() < stream.len(), "it was blocked: the client is what was waited for");
    client.rest().await;
    assert!(client.ended && client.body == stream, "{} of {} bytes", client.body.len(), stream.len());
}

#[tokio::test]
async fn s3_a_client_that_takes_nothing_is_gone_after_client_write() {
    let upstream =
        Upstream::start(Reply::sse().pieces(chat_delta(&"y".repeat(1 << 20)).repeat(24), 1 << 20).hang()).await;
    let weir = with("client_write: 500ms", &upstream).await;
    let mut client = Client::connect(&weir).await;
    let head = client.open(CHAT, CHAT_ASK).await;
    upstream.gone(0).await;
    let record = weir.record(head.id()).await;
    assert_eq!(word(&record), "client_gone", "{record}");
    weir.settles("weir_streams_active", 0.0).await;
}

/// F9: what is no stream can fail over until its last byte.
#[tokio::test]
async fn f9_a_reply_that_breaks_off_anywhere_is_asked_for_elsewhere() {
    for dialect in Dialect::ALL {
        let json = (dialect.json)();
        let half = &json[..json.len() / 2];
        let broken = Reply::json(200, half).framing(Framing::Length(json.len()));
        for (name, reply, word) in [
            ("FIN in the body", broken.clone().pause(50).fin(), "broken"),
            ("RST in the body", broken.clone().pause(50).rst(), "broken"),
            ("silence in the body", broken.hang(), "idle"),
            ("chunked, no last chunk", Reply::json(200, &json).framing(Framing::Chunked).pause(50).fin(), "broken"),
            ("empty", Reply::json(200, ""), "empty"),
            ("a page", Reply::json(200, "<html>").header("content-type", "text/html"), "not_an_answer"),
        ] {
            let first = Upstream::start(reply).await;
            let second = Upstream::start(Reply::json(200, json.replace("upstream-model", "second-model"))).await;
            let weir = Setup::new(&first.url())
                .target(&second.url(), "")
                .defaults(if word == "idle" {
                    "retry: { attempts: 2 }, timeouts: { idle: 400ms }"
                } else {
                    "retry: { attempts: 2 }"
                })
                .start()
                .await;
            let received = weir.post(dialect.path, dialect.ask_json()).await;
            assert_eq!(received.text(), json.replace("upstream-model", "second-model"), "{}, {name}", dialect.name);
            let record = weir.record(received.id()).await;
            assert_eq!(tries(&record), [format!("up:{word}"), "up2:ok".into()], "{name}");
            assert_eq!(number(&record, "output"), Some(dialect.tokens.1), "{record}");
        }
    }
}

#[tokio::test]
async fn f9_b52_beyond_one_mebibyte_it_is_committed_and_a_break_shows() {
    let large = format!("{{\"id\":\"x\",\"pad\":\"{}\"}}", "y".repeat(3 << 19));
    let half = large.len() - 10;
    for framing in [Framing::Chunked, Framing::Length(large.len())] {
        let first = Upstream::start(Reply::json(200, &large[..half]).framing(framing).pause(200).fin()).await;
        let second = Upstream::start(Reply::json(200, "{}")).await;
        let weir = Setup::new(&first.url()).target(&second.url(), "").defaults("retry: { attempts: 2 }").start().await;
        let received = weir.post(CHAT, CHAT_D.ask_json()).await;
        assert_eq!((received.status(), received.ended, second.count()), (200, false, 0), "{framing:?}");
        assert_eq!(received.body.len(), half);
        assert_eq!(word(&weir.record(received.id()).await), "upstream_interrupted");
    }
}

#[tokio::test]
async fn f9_b82_non_stream_is_504_and_is_not_tried_again() {
    let json = (CHAT_D.json)();
    for reply in [
        Reply::silent(),
        json.as_bytes().chunks(4).fold(Reply::json(200, "").framing(Framing::Length(json.len())), |reply, piece| {
            reply.pause(100).write(piece)
        }),
    ] {
        let first = Upstream::start(reply).await;
        let second = Upstream::start(Reply::json(200, &json)).await;
        let weir = Setup::new(&first.url())
            .target(&second.url(), "")
            .defaults("retry: { attempts: 2 }, timeouts: { non_stream: 600ms, first_byte: 100ms }")
            .start()
            .await;
        let received = weir.post(CHAT, CHAT_D.ask_json()).await;
        assert_eq!((received.status(), second.count()), (504, 0), "{}", received.text());
        let record = weir.record(received.id()).await;
        assert_eq!((word(&record).as_str(), tries(&record)), ("timeout", vec!["up:non_stream".into()]));
        first.gone(0).await;
    }
}
