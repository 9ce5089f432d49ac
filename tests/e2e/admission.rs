//! B1 to B3, G1, A10, A12: who and what is let in, and how the others are told.

use crate::harness::*;
use std::io::Write as _;
use std::time::Duration;

const CHAT_D: Dialect = Dialect::ALL[0];

async fn gateway(upstream: &Upstream) -> Weir {
    let elsewhere = "{ name: other-model, protocols: [responses], targets: [{ provider: up, model: o }] }";
    Setup::new(&upstream.url())
        .other_model(elsewhere)
        .key("limited", "limited-key", "models: [other-model]")
        .key("old", "old-key", "models: [\"*\"], expires: 2020-01-01")
        .key("remote", "remote-key", "models: [\"*\"], allow_ips: [203.0.113.0/24]")
        .start()
        .await
}

/// Checks a refusal: status, envelope, id, record, nothing sent upstream.
async fn is_refused(weir: &Weir, dialect: Dialect, received: &Received, status: u16) {
    assert_eq!(received.status(), status, "{}: {}", dialect.name, received.text());
    assert_eq!(received.head.get("content-type"), Some("application/json"));
    let body = received.json();
    assert!(body["error"]["message"].as_str().is_some_and(|message| message.len() > 10), "{body}");
    assert!(body["error"]["type"].is_string(), "{body}");
    if dialect.name == "messages" {
        assert_eq!(body["type"], "error", "{body}");
        assert_eq!(received.head.get("request-id"), Some(received.id()));
    } else {
        assert_eq!(body.get("type"), None, "{body}");
        assert!(body["error"].get("code").is_some(), "{body}");
    }
    let record = weir.record(received.id()).await;
    assert_eq!(word(&record), "rejected", "{record}");
    assert_eq!(number(&record, "status"), Some(u64::from(status)), "{record}");
}

#[tokio::test]
async fn g1_401_is_the_same_whatever_is_wrong_with_the_key() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = gateway(&upstream).await;
    for dialect in Dialect::ALL {
        let rows: [&[(&str, &str)]; 6] = [
            &[("authorization", "Bearer wrong")],
            &[("x-api-key", "wrong")],
            &[("authorization", "")],
            &[("authorization", "Basic dGVzdC1rZXk=")],
            &[("authorization", "Bearer old-key")],
            &[("authorization", "Bearer test-key"), ("x-api-key", "limited-key")],
        ];
        let mut bodies = Vec::new();
        for headers in rows {
            let received = weir.post_with(dialect.path, headers, dialect.ask()).await;
            is_refused(&weir, dialect, &received, 401).await;
            bodies.push(received.text().replace(received.id(), ""));
        }
        bodies.dedup();
        assert_eq!(bodies.len(), 1, "B311: one body for every cause: {bodies:?}");
        let kind = if dialect.name == "messages" { "authentication_error" } else { "invalid_request_error" };
        assert!(bodies[0].contains(kind), "{bodies:?}");
        assert!(!bodies[0].contains("wrong"), "{bodies:?}");
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn g1_both_headers_are_keys() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = gateway(&upstream).await;
    let rows: [&[(&str, &str)]; 5] = [
        &[("x-api-key", KEY)],
        &[("authorization", "Bearer test-key")],
        &[("authorization", "bearer test-key")],
        &[("authorization", "Bearer test-key"), ("x-api-key", KEY)],
        &[("authorization", "Bearer something-else"), ("x-api-key", KEY)],
    ];
    for headers in rows {
        let received = weir.post_with(CHAT, headers, CHAT_ASK).await;
        assert_eq!((received.status(), received.text()), (200, chat_seen()), "{headers:?}");
        assert_eq!(field(&weir.record(received.id()).await, "key"), "test");
    }
}

#[tokio::test]
async fn g1_403_and_404() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = gateway(&upstream).await;
    for dialect in Dialect::ALL {
        let limited = [("authorization", "Bearer limited-key")];
        let received = weir.post_with(dialect.path, &limited, dialect.ask()).await;
        is_refused(&weir, dialect, &received, 403).await;
        let remote = [("authorization", "Bearer remote-key")];
        is_refused(&weir, dialect, &weir.post_with(dialect.path, &remote, dialect.ask()).await, 403).await;
        let unknown = dialect.ask().replace("public-model", "no-such-model");
        let received = weir.post(dialect.path, unknown).await;
        is_refused(&weir, dialect, &received, 404).await;
        assert!(received.text().contains("no-such-model"), "{}", received.text());
        let record = weir.record(received.id()).await;
        assert!(!record.to_string().contains("no-such-model"), "what a client makes up is no label: {record}");
    }
    let other = CHAT_D.ask().replace("public-model", "other-model");
    let received = weir.post(CHAT, other).await;
    assert!([400, 404].contains(&received.status()), "not served at that endpoint: {}", received.text());
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn b2_400_names_the_place() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = gateway(&upstream).await;
    let rows = [
        "",
        "hello",
        "[]",
        "{}",
        r#"{"model":"public-model","stream":true"#,
        r#"{"model":"public-model",}"#,
        r#"{"model":7,"stream":true}"#,
        r#"{"model":"public-model","stream":"yes"}"#,
        r#"{"model":"public-model","model":"other-model","stream":true}"#,
        "{\"model\":\"public-model\",\"mod\\u0065l\":\"other-model\",\"stream\":true}",
        r#"{"model":"public-model","stream":true,"stream":false}"#,
        r#"{"model":"public-model","stream":true} trailing"#,
    ];
    for dialect in Dialect::ALL {
        for body in rows {
            println!("{body}");
            is_refused(&weir, dialect, &weir.post(dialect.path, body).await, 400).await;
        }
    }
    let broken = weir.post(CHAT, "{\"model\":\"public-model\",\n  \"stream\": tru }").await;
    let message = broken.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.chars().any(|letter| letter.is_ascii_digit()), "where: {message}");
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn b3_a10_405_404_426() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = gateway(&upstream).await;
    for dialect in Dialect::ALL {
        let received = weir.call("GET", dialect.path, &[]).await;
        is_refused(&weir, dialect, &received, 405).await;
        assert_eq!(received.head.get("allow"), Some("POST"));
        let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
        assert_eq!(weir.call("GET", dialect.path, &upgrade).await.status(), 426);
    }
    assert_eq!(weir.call("OPTIONS", CHAT, &[]).await.status(), 405);
    assert_eq!(weir.call("DELETE", "/v1/models", &[]).await.status(), 405);
    let realtime = [("connection", "upgrade"), ("upgrade", "websocket")];
    assert_eq!(weir.call("GET", "/v1/realtime?model=x", &realtime).await.status(), 426);
    for path in ["/v1/files", "/v1/nothing", "/", "/v1/chat/completions/", "/v2/messages", "/metrics", "/readyz"] {
        let received = weir.call("GET", path, &[]).await;
        is_refused(&weir, CHAT_D, &received, 404).await;
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn b1_413_for_declared_and_for_chunked_bodies() {
    let upstream = Upstream::start(Reply::json(200, "{}")).await;
    let weir = Setup::new(&upstream.url()).server("max_body: 1MiB").start().await;
    for dialect in Dialect::ALL {
        let ask = dialect.ask();
        let padded = |length: usize| format!("{}{ask}", " ".repeat(length - ask.len()));
        let received = weir.post(dialect.path, padded((1 << 20) + 1)).await;
        is_refused(&weir, dialect, &received, 413).await;
        assert!(received.text().contains("1 MiB") || received.text().contains("1048576"), "{}", received.text());
        assert_eq!(weir.post(dialect.path, padded(1 << 20)).await.status(), 200, "just within");
        let mut client = Client::connect(&weir).await;
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: weir\r\nauthorization: Bearer {KEY}\r\ntransfer-encoding: chunked\r\n\r\n",
            dialect.path
        );
        client.send(head).await;
        let body = padded((1 << 20) + 1);
        for piece in body.as_bytes().chunks(65_536) {
            let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
            // The gateway may answer and close before all was sent.
            if client.try_send(chunk).await.is_err() {
                break;
            }
        }
        let _ = client.try_send("0\r\n\r\n").await;
        is_refused(&weir, dialect, &client.receive().await, 413).await;
    }
    assert_eq!(upstream.count(), 3, "B280: only those within the limit");
}

#[tokio::test]
async fn b1_408_for_a_body_that_never_comes() {
    let upstream = Upstream::start(Reply::json(200, "{}")).await;
    let weir = Setup::new(&upstream.url()).server("request_body: 300ms").start().await;
    for dialect in Dialect::ALL {
        let mut client = Client::connect(&weir).await;
        let whole = request(dialect.path, &[], dialect.ask().as_bytes());
        client.send(&whole[..whole.len() - 5]).await;
        is_refused(&weir, dialect, &client.receive().await, 408).await;
        assert!(client.is_closed().await, "the connection is out of step and closed");
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn b1_compressed_requests() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).server("max_body: 1MiB").start().await;
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    for (at, (encoding, body)) in
        [("gzip", gzip(CHAT_ASK_USAGE.as_bytes())), ("zstd", zstd::encode_all(CHAT_ASK_USAGE.as_bytes(), 3).unwrap())]
            .into_iter()
            .enumerate()
    {
        let received = weir.post_with(CHAT, &[("content-encoding", encoding)], body).await;
        assert_eq!((received.status(), received.text()), (200, chat_ok()), "{encoding}");
        let sent = upstream.request(at).await;
        assert_eq!(sent.header("content-encoding"), None);
        assert_eq!(sent.json()["stream"], true, "{encoding}");
    }
    for dialect in Dialect::ALL {
        let unknown = weir.post_with(dialect.path, &[("content-encoding", "br")], dialect.ask()).await;
        is_refused(&weir, dialect, &unknown, 415).await;
        let broken = weir.post_with(dialect.path, &[("content-encoding", "gzip")], dialect.ask()).await;
        is_refused(&weir, dialect, &broken, 400).await;
        // A bomb: 64 MiB of spaces in 64 KiB.
        let bomb = gzip(&vec![b' '; 64 << 20]);
        let received = weir.post_with(dialect.path, &[("content-encoding", "gzip")], bomb).await;
        is_refused(&weir, dialect, &received, 413).await;
    }
}

#[tokio::test]
async fn b275_b281_b284_bodies_arrive_whole_and_unchanged() {
    let upstream = Upstream::start(Reply::json(200, "{}")).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let odd = r#"  { "b" : 1.0 , "a":12345678901234567890, "x":"<>&\u2028\/", "x":"again", "model" : "public-model" , "n": 1e0,"stream":false, "messages":[]  }  "#;
    let mut bodies = vec![odd.to_owned(), odd.replace("public-model", r"public\u002dmodel")];
    for length in [65_536, 65_537, 1 << 20, (20 << 20) - 1] {
        let head = r#"{"image":""#;
        let tail = r#"","model":"public-model"}"#;
        let data: String = ('A'..='W').cycle().take(length - head.len() - tail.len()).collect();
        bodies.push(format!("{head}{data}{tail}"));
    }
    let mut expected = Vec::new();
    for body in &bodies {
        let changed = body
            .replace("\"public-model\"", "\"upstream-model\"")
            .replace(r#""public\u002dmodel""#, "\"upstream-model\"");
        for dialect in Dialect::ALL {
            let received = weir.post(dialect.path, body).await;
            assert_eq!(received.status(), 200, "{} bytes: {}", body.len(), received.text());
            expected.push(changed.clone());
        }
    }
    for (request, wanted) in upstream.requests().iter().zip(&expected) {
        assert_eq!(request.header("content-length"), Some(wanted.len().to_string().as_str()), "B277");
        assert!(request.body == *wanted.as_bytes(), "{} bytes: {:?}", wanted.len(), &request.body[..40]);
    }
}

#[tokio::test]
async fn b277_chunked_uploads_arrive_whole() {
    let upstream = Upstream::start(Reply::json(200, "{}")).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let body = format!(r#"{{"model":"public-model","x":"{}"}}"#, "y".repeat(300_000));
    for size in [7_919, 65_536] {
        let mut client = Client::connect(&weir).await;
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: weir\r\nauthorization: Bearer {KEY}\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        client.send(head).await;
        for piece in body.as_bytes().chunks(size) {
            client.send([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()).await;
        }
        client.send("0\r\n\r\n").await;
        assert_eq!(client.receive().await.status(), 200);
    }
    for request in upstream.requests() {
        assert!(request.body == body.replace("public", "upstream"), "{} bytes", request.body.len());
    }
}

#[tokio::test]
async fn b286_equal_requests_leave_equal() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let mut client = Client::connect(&weir).await;
    for _ in 0..100 {
        client.open(CHAT, CHAT_ASK).await;
        client.rest().await;
    }
    let mut bodies: Vec<_> = upstream.requests().into_iter().map(|request| request.body).collect();
    assert_eq!(bodies.len(), 100);
    bodies.dedup();
    assert_eq!(bodies.len(), 1);
}

fn expecting(path: &str, key: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: weir\r\nauthorization: Bearer {key}\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
    )
}

#[tokio::test]
async fn b1_b283_100_continue_only_after_key_and_length() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).server("max_body: 1MiB").start().await;
    for dialect in Dialect::ALL {
        let mut client = Client::connect(&weir).await;
        client.send(expecting(dialect.path, "wrong", 100)).await;
        is_refused(&weir, dialect, &client.receive().await, 401).await;
        assert!(client.is_closed().await);
        let mut client = Client::connect(&weir).await;
        client.send(expecting(dialect.path, KEY, 2 << 20)).await;
        is_refused(&weir, dialect, &client.receive().await, 413).await;
        assert!(client.is_closed().await);
    }
    let mut client = Client::connect(&weir).await;
    client.send(expecting(CHAT, KEY, CHAT_ASK.len())).await;
    assert_eq!(client.head().await.status, 100);
    client.send(CHAT_ASK).await;
    let received = client.receive().await;
    assert_eq!((received.status(), received.text()), (200, chat_seen()));
}

#[tokio::test]
async fn b287_the_connection_stays_in_step_or_closes() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).start().await;
    for length in [1_000, 1 << 20] {
        let mut client = Client::connect(&weir).await;
        let body = format!("GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n{}", "z".repeat(length));
        let _ = client.try_send(request(CHAT, &[("authorization", "Bearer wrong")], body.as_bytes())).await;
        let refused = client.receive().await;
        assert_eq!(refused.status(), 401);
        if refused.head.get("connection") == Some("close") {
            assert!(client.is_closed().await);
            continue;
        }
        client.post(CHAT, CHAT_ASK).await;
        assert_eq!(client.receive().await.text(), chat_seen());
    }
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let mut client = Client::connect(&weir).await;
    for at in 0..20 {
        client.post(CHAT, if at % 3 == 0 { "{" } else { CHAT_ASK }).await;
        let received = client.receive().await;
        assert_eq!(received.status(), if at % 3 == 0 { 400 } else { 200 });
        assert!(received.ended);
    }
    // A connection is in the pool when its end was read, which on a busy machine is too late for the next request.
    let (asked, connections) = (upstream.count(), upstream.connections());
    assert!(connections < asked, "the upstream's connection is used again: {connections} for {asked}");
}

#[tokio::test]
async fn f2_503_beyond_max_held_bytes() {
    let upstream = Upstream::start(Reply::json(200, "{}")).await;
    let weir = Setup::new(&upstream.url()).server("max_held_bytes: 4MiB, max_body: 8MiB").start().await;
    for dialect in Dialect::ALL {
        let ask = dialect.ask_json();
        let received = weir.post(dialect.path, format!("{}{ask}", " ".repeat(6 << 20))).await;
        is_refused(&weir, dialect, &received, 503).await;
        assert!(received.head.get("retry-after").is_some());
        weir.settles("weir_requests_active", 0.0).await;
        assert_eq!(weir.post(dialect.path, &ask).await.status(), 200, "what was held is free again");
    }
}

#[tokio::test]
async fn b1_slow_heads_are_closed() {
    let upstream = Upstream::start(Reply::json(200, "{}")).await;
    let weir = Setup::new(&upstream.url()).server("header_timeout: 300ms").start().await;
    let mut client = Client::connect(&weir).await;
    client.send("POST /v1/chat/completions HTTP/1.1\r\nhost: w").await;
    let began = std::time::Instant::now();
    while client.try_head().await.is_some() {}
    assert!(began.elapsed() < Duration::from_secs(25), "the bound is not the default: {:?}", began.elapsed());
}

#[tokio::test]
async fn b3_http_1_0_is_delimited_by_the_close() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let mut client = Client::connect(&weir).await;
    let head = String::from_utf8(request(CHAT, &[], CHAT_ASK.as_bytes())).unwrap();
    client.send(head.replace("HTTP/1.1", "HTTP/1.0")).await;
    let received = client.receive().await;
    assert_eq!(received.head.get("transfer-encoding"), None);
    assert_eq!(received.text(), chat_seen());
}

#[tokio::test]
async fn b292_cancelled_uploads_do_not_pin_the_window() {
    let upstream = Upstream::start(Reply::silent()).await;
    let weir = Setup::new(&upstream.url()).listen("h2c: true").start().await;
    let client = H2Client::connect(&weir).await;
    let body = format!("{}{CHAT_ASK}", " ".repeat(1 << 20));
    for _ in 0..100 {
        let (response, mut sender) = client.start(CHAT, &body).await;
        // Under way, its window partly used, when it is cancelled; many resets of streams that were not even looked at
        // would end the connection.
        weir.settles("weir_requests_active", 1.0).await;
        sender.send_reset(h2::Reason::CANCEL);
        drop(response);
        weir.settles("weir_requests_active", 0.0).await;
    }
    upstream.set_default(Reply::stream(chat_ok()));
    assert_eq!(client.post(CHAT, &body).await.body, bytes(&chat_seen()));
}
