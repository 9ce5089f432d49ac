//! F1 to F10: what goes in comes out. Framing (F4) has a file of its own.

use crate::harness::*;
use std::io::Write as _;
use std::time::Duration;

const CHAT_D: Dialect = Dialect::ALL[0];
const MSG_D: Dialect = Dialect::ALL[2];

#[tokio::test]
async fn f1_each_protocol_passes_unchanged() {
    for dialect in Dialect::ALL {
        let upstream = Upstream::start(Reply::stream((dialect.ok)())).await;
        let weir = Setup::new(&upstream.url()).start().await;
        let reply = weir.post(dialect.path, dialect.ask()).await;
        assert_eq!(reply.status(), 200, "{}", dialect.name);
        assert_eq!(reply.text(), dialect.seen(), "{}", dialect.name);
        assert!(reply.ended);
        let record = weir.record(reply.id()).await;
        assert_eq!(word(&record), "completed", "{record}");
        let tokens = (number(&record, "input"), number(&record, "output"));
        assert_eq!(tokens, (Some(dialect.tokens.0), Some(dialect.tokens.1)), "{record}");
        assert_eq!(field(&record, "source"), "reported");
    }
}

#[tokio::test]
async fn f1_the_same_over_http2_on_both_sides() {
    for dialect in Dialect::ALL {
        let upstream = H2Upstream::start(Reply::sse().pieces((dialect.ok)(), 7)).await;
        let weir = Setup::with_provider(&upstream.url(), "http2: prior_knowledge").listen("h2c: true").start().await;
        let reply = H2Client::connect(&weir).await.post(dialect.path, dialect.ask()).await;
        assert_eq!(reply.head.status, 200, "{}", dialect.name);
        assert_eq!(reply.body, bytes(&dialect.seen()), "{}", dialect.name);
        assert!(reply.ended);
        assert_eq!(reply.head.get("connection"), None);
        assert_eq!(reply.head.get("transfer-encoding"), None);
    }
}

#[tokio::test]
async fn f1_the_same_over_tls_on_both_sides() {
    let pki = Pki::new();
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("pki-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [ca, cert, key] = pki.write(&folder);
    let listen = format!("tls: {{ certificates: [{{ cert: \"{}\", key: \"{}\" }}] }}", cert.display(), key.display());
    let provider = format!("ca: \"{}\"", ca.display());
    let plain = Upstream::start_tls(Reply::stream(chat_ok()), &pki).await;
    let weir = Setup::with_provider(&plain.url(), &provider).listen(&listen).start().await;
    let mut client = Client::connect_tls(&weir, &pki).await;
    client.open(CHAT, CHAT_ASK).await;
    assert_eq!(client.rest().await, bytes(&chat_seen()));
    let h2 = H2Upstream::start_tls(Reply::stream(chat_ok()), &pki).await;
    let weir = Setup::with_provider(&h2.url(), &provider).listen(&listen).start().await;
    let reply = H2Client::connect_tls(&weir, &pki).await.post(CHAT, CHAT_ASK).await;
    assert_eq!(reply.body, bytes(&chat_seen()));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn f2_a_half_event_waits_and_is_dropped_at_a_break() {
    let cut = Signal::new();
    let half = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"never";
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.begun() + half).wait(&cut).rst()).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let mut client = Client::connect(&weir).await;
    let head = client.open(CHAT, CHAT_ASK).await;
    client.read_past("Hel").await;
    assert_eq!(client.body, CHAT_D.begun(), "only whole events");
    cut.fire();
    client.rest().await;
    assert!(client.ended, "a clean transport end (E2)");
    let text = String::from_utf8(client.body.to_vec()).unwrap();
    assert!(!text.contains("never"), "{text}");
    assert!(text[CHAT_D.begun().len()..].starts_with("data: {\"error\":{"), "{text}");
    assert_eq!(word(&weir.record(head.id()).await), "upstream_interrupted");
}

#[tokio::test]
async fn f3_b274_each_event_goes_out_when_it_comes() {
    for dialect in Dialect::ALL {
        let signals: Vec<_> = dialect.events().iter().map(|_| Signal::new()).collect();
        let mut reply = Reply::sse();
        for (event, signal) in dialect.events().iter().zip(&signals) {
            reply = reply.write(event).wait(signal);
        }
        let upstream = Upstream::start(reply).await;
        let weir = Setup::new(&upstream.url()).start().await;
        let mut client = Client::connect(&weir).await;
        for signal in &signals[..dialect.prelude] {
            // The prelude may be held until the first output (A3).
            signal.fire();
        }
        client.open(dialect.path, dialect.ask()).await;
        let mut expected = String::new();
        for (at, event) in dialect.events().iter().enumerate() {
            if !is_usage_chunk(event) {
                expected += event;
            }
            if at >= dialect.prelude {
                client.read_until("the next event", |body| body.len() >= expected.len()).await;
                assert_eq!(client.body, expected, "{}", dialect.name);
                signals[at].fire();
            }
        }
    }
}

fn packed(encoding: &str, stream: &[u8]) -> Vec<u8> {
    match encoding {
        "gzip" => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(stream).unwrap();
            encoder.finish().unwrap()
        }
        "deflate" => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(stream).unwrap();
            encoder.finish().unwrap()
        }
        "br" => {
            let mut out = Vec::new();
            brotli::CompressorWriter::new(&mut out, 4096, 5, 20).write_all(stream).unwrap();
            out
        }
        "zstd" => zstd::encode_all(stream, 3).unwrap(),
        _ => stream.to_vec(),
    }
}

const ENCODINGS: [&str; 4] = ["gzip", "deflate", "br", "zstd"];

#[tokio::test]
async fn f5_b247_b248_compressed_streams_are_decoded() {
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = Setup::new(&upstream.url()).start().await;
    for encoding in ENCODINGS {
        for size in [1, 4096] {
            let reply = Reply::sse().header("content-encoding", encoding);
            upstream.push(reply.pieces(packed(encoding, msg_ok().as_bytes()), size));
            let accept = [("accept-encoding", "gzip, br, zstd")];
            let received = weir.post_with(MESSAGES, &accept, MSG_D.ask()).await;
            assert_eq!(received.text(), msg_ok(), "{encoding} in pieces of {size}");
            assert_eq!(received.head.get("content-encoding"), None, "{encoding}");
            let record = weir.record(received.id()).await;
            assert_eq!((number(&record, "input"), number(&record, "output")), (Some(25), Some(15)), "{encoding}");
        }
    }
    for request in upstream.requests() {
        assert_eq!(request.header("accept-encoding"), Some("identity"));
    }
}

#[tokio::test]
async fn f5_b250_an_unknown_encoding_passes_raw() {
    let noise = b"\x00\xffnot text at all: \n\n: half";
    let reply = Reply::sse().header("content-encoding", "foo").write(noise).pause(700).write(noise);
    let upstream = Upstream::start(reply).await;
    let weir =
        Setup::new(&upstream.url()).defaults("keepalive: { interval: 200ms, before_headers: off }").start().await;
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(received.status(), 200);
    assert_eq!(received.head.get("content-encoding"), Some("foo"));
    assert_eq!(received.body, [&noise[..], &noise[..]].concat(), "raw, no keepalive, nothing added");
    assert_ne!(field(&weir.record(received.id()).await, "source"), "reported");
}

#[tokio::test]
async fn f5_b251_flushed_blocks_go_out_at_once() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    let go_on = Signal::new();
    let mut reply = Reply::sse().header("content-encoding", "gzip");
    let mut sent = 0;
    for event in MSG_D.events() {
        encoder.write_all(event.as_bytes()).unwrap();
        encoder.flush().unwrap();
        reply = reply.write(&encoder.get_ref()[sent..]);
        sent = encoder.get_ref().len();
        if event.contains("Hel") {
            reply = reply.wait(&go_on);
        }
    }
    let all = encoder.finish().unwrap();
    let upstream = Upstream::start(reply.write(&all[sent..])).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let mut client = Client::connect(&weir).await;
    client.open(MESSAGES, MSG_D.ask()).await;
    client.read_past("Hel").await;
    go_on.fire();
    assert_eq!(client.rest().await, bytes(&msg_ok()));
}

#[tokio::test]
async fn f6_b116_json_for_a_stream_passes_and_is_metered() {
    for dialect in Dialect::ALL {
        let json = (dialect.json)();
        let upstream = Upstream::start(Reply::json(200, &json)).await;
        let weir = Setup::new(&upstream.url()).start().await;
        let received = weir.post(dialect.path, dialect.ask()).await;
        assert_eq!(received.status(), 200);
        assert_eq!(received.head.get("content-type"), Some("application/json"));
        assert_eq!(received.text(), json);
        let record = weir.record(received.id()).await;
        let tokens = (number(&record, "input"), number(&record, "output"));
        assert_eq!(tokens, (Some(dialect.tokens.0), Some(dialect.tokens.1)), "{record}");
        assert_eq!(word(&record), "completed");
    }
}

#[tokio::test]
async fn f6_other_types_pass_as_they_are() {
    let reply = Reply::json(200, "\x00\x01 not json").header("content-type", "audio/mpeg");
    let upstream = Upstream::start(reply).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!((received.status(), received.head.get("content-type")), (200, Some("audio/mpeg")));
    assert_eq!(received.text(), "\x00\x01 not json");
}

#[tokio::test]
async fn b118_b119_content_types_that_are_event_streams() {
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = Setup::new(&upstream.url()).start().await;
    for kind in [
        "text/event-stream; charset=utf-8",
        "Text/Event-Stream",
        "text/event-stream;charset=UTF-8",
        "application/json, text/event-stream; charset=utf-8",
    ] {
        upstream.push(Reply::stream(chat_ok()).header("content-type", kind));
        let received = weir.post(CHAT, CHAT_ASK).await;
        assert_eq!(received.text(), chat_seen(), "{kind}");
        assert_eq!(number(&weir.record(received.id()).await, "output"), Some(2), "{kind}");
    }
}

#[tokio::test]
async fn f9_json_answers_pass_unchanged_and_are_metered() {
    for dialect in Dialect::ALL {
        let json = (dialect.json)();
        let upstream = Upstream::start(Reply::json(200, &json)).await;
        let weir = Setup::new(&upstream.url()).start().await;
        let asked = dialect.ask_json();
        for ask in
            [asked.clone(), asked.replacen('{', "{\"stream\":false,", 1), asked.replacen('{', "{\"stream\":null,", 1)]
        {
            let received = weir.post(dialect.path, &ask).await;
            assert_eq!((received.status(), received.text()), (200, json.clone()), "{ask}");
            let record = weir.record(received.id()).await;
            let tokens = (number(&record, "input"), number(&record, "output"));
            assert_eq!(tokens, (Some(dialect.tokens.0), Some(dialect.tokens.1)), "{record}");
            assert_eq!(record.get("ttft_ms").filter(|value| !value.is_null()), None, "no TTFT (F9)");
        }
    }
}

#[tokio::test]
async fn f9_no_keepalive_and_no_early_head_without_stream() {
    let go_on = Signal::new();
    let upstream = Upstream::start(Reply::json(200, chat_json_text()).first(Step::Wait(go_on.clone()))).await;
    let weir = Setup::new(&upstream.url()).defaults("keepalive: { interval: 100ms }").start().await;
    let mut client = Client::connect(&weir).await;
    client.post(CHAT, CHAT_D.ask_json()).await;
    upstream.request(0).await;
    let early = tokio::time::timeout(Duration::from_millis(500), client.try_head()).await;
    assert!(early.is_err(), "nothing before the upstream's head: {early:?}");
    go_on.fire();
    let received = client.receive().await;
    assert_eq!((received.status(), received.text()), (200, chat_json_text()));
    assert_eq!(weir.metric("weir_keepalives_total", &[]).await, 0.0);
}

fn chat_json_text() -> String {
    (CHAT_D.json)()
}

#[tokio::test]
async fn f9_non_stream_bounds_the_whole_answer_and_is_504() {
    let upstream = Upstream::start(Reply::silent()).await;
    let weir = Setup::new(&upstream.url()).defaults("timeouts: { non_stream: 300ms }").start().await;
    for dialect in Dialect::ALL {
        let received = weir.post(dialect.path, dialect.ask_json()).await;
        assert_eq!(received.status(), 504, "{}", received.text());
        assert_eq!(word(&weir.record(received.id()).await), "timeout");
    }
    assert_eq!(upstream.count(), 3, "not retried");
    upstream.gone(2).await;
}

#[tokio::test]
async fn f9_a_broken_json_answer_is_502_while_it_is_held() {
    let json = chat_json_text();
    let reply = Reply::sse().header("content-type", "application/json").write(&json[..40]).rst();
    let upstream = Upstream::start(reply).await;
    let weir = Setup::new(&upstream.url()).defaults("retry: { attempts: 1 }").start().await;
    let received = weir.post(CHAT, CHAT_D.ask_json()).await;
    assert_eq!(received.status(), 502, "{}", received.text());
    assert_eq!(word(&weir.record(received.id()).await), "upstream_interrupted");
}

#[tokio::test]
async fn f9_b52_a_large_answer_that_breaks_has_no_last_chunk() {
    // A reset takes along what is still on its way: it waits until enough has come for the reply to be sent on.
    let go_on = Signal::new();
    let reply = Reply::json(200, vec![b'x'; 3 << 20]).framing(Framing::Length(4 << 20)).wait(&go_on).rst();
    let upstream = Upstream::start(reply).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let mut client = Client::connect(&weir).await;
    let head = client.open(CHAT, CHAT_D.ask_json()).await;
    assert_eq!(head.status, 200);
    go_on.fire();
    client.rest().await;
    assert!(!client.ended, "a break may not look like an end");
    assert!(client.is_closed().await);
    assert_eq!(word(&weir.record(head.id()).await), "upstream_interrupted");
}

#[tokio::test]
async fn f9_b52_a_large_answer_that_takes_too_long_has_no_last_chunk() {
    let reply = Reply::json(200, vec![b'x'; 3 << 20]).framing(Framing::Length(4 << 20)).hang();
    let upstream = Upstream::start(reply).await;
    let weir = Setup::new(&upstream.url()).defaults("timeouts: { non_stream: 5s }").start().await;
    let mut client = Client::connect(&weir).await;
    let head = client.open(CHAT, CHAT_D.ask_json()).await;
    client.rest().await;
    assert!(!client.ended && client.is_closed().await);
    assert_eq!(word(&weir.record(head.id()).await), "timeout");
    upstream.gone(0).await;
}

#[tokio::test]
async fn f9_a_large_answer_passes_whole() {
    let body: Vec<u8> = (0..6_000_000_u32).flat_map(u32::to_le_bytes).take(6 << 20).collect();
    let upstream = Upstream::start(Reply::json(200, &body).header("content-type", "application/octet-stream")).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let received = weir.post(CHAT, CHAT_D.ask_json()).await;
    assert!(received.ended && received.body == body, "{} bytes", received.body.len());
}

#[tokio::test]
async fn f10_request_ids() {
    let reply = Reply::stream(msg_ok()).header("request-id", "req_upstream").header("x-request-id", "x_upstream");
    let upstream = Upstream::start(reply).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let received = weir.post_with(MESSAGES, &[("x-request-id", "mine-1")], MSG_D.ask()).await;
    let id = uuid::Uuid::parse_str(received.id()).expect("a UUID");
    assert_eq!(id.get_version_num(), 7);
    assert_eq!(received.head.get("request-id"), Some(received.id()), "what Anthropic's SDK reads");
    let upstream_id = received.head.get("x-upstream-request-id").expect("the upstream's id goes on").to_owned();
    assert!(["req_upstream", "x_upstream"].contains(&upstream_id.as_str()), "{upstream_id}");
    let record = weir.record(received.id()).await;
    assert_eq!(field(&record, "client_request_id"), "mine-1");
    assert_eq!(field(&record, "upstream_request_id"), upstream_id);
    assert_eq!(upstream.request(0).await.header("x-request-id"), None, "the client's id stays here");
}

#[tokio::test]
async fn f10_refusals_have_an_id_too() {
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = Setup::new(&upstream.url()).start().await;
    for dialect in Dialect::ALL {
        let refused = weir.post_with(dialect.path, &[("authorization", "Bearer wrong")], dialect.ask()).await;
        assert_eq!(refused.status(), 401);
        assert_eq!(word(&weir.record(refused.id()).await), "rejected");
    }
}
