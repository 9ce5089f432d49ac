//! F7, F8 and kind N of CASES.md: which headers go up, which come down.

use crate::harness::*;

const CHAT_D: Dialect = Dialect::ALL[0];
const MSG_D: Dialect = Dialect::ALL[2];

#[tokio::test]
async fn f7_only_the_listed_headers_come_down() {
    let reply = |reply: Reply| {
        reply
            .header("retry-after", "7")
            .header("retry-after-ms", "7000")
            .header("x-should-retry", "false")
            .header("openai-processing-ms", "12")
            .header("openai-version", "2020-10-01")
            .header("x-ratelimit-remaining-requests", "5")
            .header("anthropic-ratelimit-tokens-remaining", "6")
            .header("x-passed", "yes")
            .header("openai-organization", "org-1")
            .header("anthropic-organization-id", "org-2")
            .header("set-cookie", "a=b")
            .header("server", "upstream/1")
            .header("x-internal", "10.0.0.1")
            .header("keep-alive", "timeout=5")
            .header("x-hop", "1")
            .header("proxy-authenticate", "Basic")
            .header("te", "trailers")
    };
    for (status, body) in
        [(200, chat_ok()), (400, r#"{"error":{"message":"m","type":"t"}}"#.into()), (429, "{}".into())]
    {
        let plain = if status == 200 { Reply::stream(&body) } else { Reply::json(status, &body) };
        let upstream = Upstream::start(reply(plain).header("connection", "keep-alive, x-hop")).await;
        let weir = Setup::with_provider(&upstream.url(), "pass_headers: [x-passed]").start().await;
        let head = weir.post(CHAT, CHAT_ASK).await.head;
        assert_eq!(head.status, status);
        for (name, value) in [
            ("retry-after", "7"),
            ("retry-after-ms", "7000"),
            ("openai-processing-ms", "12"),
            ("openai-version", "2020-10-01"),
            ("x-ratelimit-remaining-requests", "5"),
            ("anthropic-ratelimit-tokens-remaining", "6"),
            ("x-passed", "yes"),
            ("x-should-retry", "false"),
        ] {
            assert_eq!(head.get(name), Some(value), "B268, B269: {name} on {status}");
        }
        for name in [
            "openai-organization",
            "anthropic-organization-id",
            "set-cookie",
            "server",
            "x-internal",
            "keep-alive",
            "x-hop",
            "proxy-authenticate",
            "te",
        ] {
            assert_eq!(head.get(name), None, "B256: {name} on {status}");
        }
    }
}

#[tokio::test]
async fn f7_b271_b272_streams_ask_not_to_be_buffered() {
    for dialect in Dialect::ALL {
        let upstream =
            Upstream::start(Reply::stream((dialect.ok)()).header("cache-control", "private, no-cache")).await;
        let weir = Setup::new(&upstream.url()).start().await;
        let head = weir.post(dialect.path, dialect.ask()).await.head;
        assert_eq!(head.get("x-accel-buffering"), Some("no"));
        let cache = head.get("cache-control").expect("cache-control");
        assert!(cache.contains("no-cache") && cache.contains("no-transform"), "{cache}");
        assert_eq!(head.get("content-type"), Some("text/event-stream"));
        assert_eq!(head.get("content-length"), None);
        assert!(!cache.contains("no-cache, no-cache"), "{cache}");
    }
}

#[tokio::test]
async fn f7_b253_b254_the_encoding_header_tells_the_truth() {
    use std::io::Write as _;
    let json = (CHAT_D.json)();
    let error = r#"{"error":{"message":"m","type":"t","code":"c"}}"#;
    let gzip = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let br = |text: &str| {
        let mut out = Vec::new();
        brotli::CompressorWriter::new(&mut out, 4096, 5, 20).write_all(text.as_bytes()).unwrap();
        out
    };
    for status in [200, 400, 404, 429, 500, 529] {
        let text = if status == 200 { json.as_str() } else { error };
        for (encoding, packed) in [("gzip", gzip(text)), ("br", br(text))] {
            let upstream = Upstream::start(Reply::json(status, packed).header("content-encoding", encoding)).await;
            let weir = Setup::new(&upstream.url()).start().await;
            for ask in [CHAT_D.ask(), CHAT_D.ask_json()] {
                let received = weir.post(CHAT, ask).await;
                assert_eq!(received.status(), status, "{encoding}");
                assert_eq!(received.head.get("content-encoding"), None, "{status} {encoding}");
                let value = received.json();
                if status == 200 {
                    assert_eq!(received.text(), json, "{encoding}");
                    assert_eq!(number(&weir.record(received.id()).await, "output"), Some(2), "{encoding}");
                } else {
                    assert_eq!(value["error"]["type"], "t", "{status} {encoding}: {value}");
                }
            }
        }
    }
}

#[tokio::test]
async fn f7_trailers_are_dropped() {
    let last = "0\r\nx-trailer: secret\r\n\r\n";
    let reply = Reply::sse().header("trailer", "x-trailer").write(chat_ok()).raw_bytes(last).hang();
    let upstream = Upstream::start(reply).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(received.text(), chat_seen());
    assert_eq!(received.head.get("trailer"), None);
}

#[tokio::test]
async fn f7_b263_a_provider_key_never_comes_down() {
    let reply = Reply::stream(chat_ok()).header("openai-version", "Bearer provider-key");
    let upstream = Upstream::start(reply).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert!(received.head.headers.iter().all(|(_, value)| !value.contains("provider-key")), "{:?}", received.head);
}

#[tokio::test]
async fn f8_only_the_listed_headers_go_up() {
    let upstream = Upstream::start(Reply::stream(msg_ok())).await;
    let weir = Setup::with_provider(
        &upstream.url(),
        "auth: x-api-key, allow_headers: [x-session], headers: { x-team: gateway, user-agent: weir-test }",
    )
    .start()
    .await;
    let sent = [
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "a,b"),
        ("openai-beta", "assistants=v2"),
        ("x-stainless-lang", "python"),
        ("idempotency-key", "i-1"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "x=1"),
        ("accept", "text/event-stream"),
        ("x-session", "s-1"),
    ];
    let kept = [
        ("user-agent", "SDK/1"),
        ("x-team", "client"),
        ("cookie", "a=b"),
        ("x-forwarded-for", "1.2.3.4"),
        ("openai-organization", "org-1"),
        ("openai-project", "proj-1"),
        ("accept-encoding", "gzip, br, zstd"),
        ("x-anything", "1"),
        ("origin", "https://app.example"),
        ("te", "trailers"),
    ];
    let all: Vec<_> = sent.into_iter().chain(kept).collect();
    weir.post_with(MESSAGES, &all, MSG_D.ask()).await;
    let seen = upstream.request(0).await;
    for (name, value) in sent {
        assert_eq!(seen.header(name), Some(value), "B265: {name}");
    }
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(seen.header("accept-encoding"), Some("identity"), "B247");
    assert_eq!((seen.header("x-team"), seen.header("user-agent")), (Some("gateway"), Some("weir-test")));
    assert_eq!(seen.header("x-api-key"), Some("provider-key"));
    assert_eq!(seen.header("authorization"), None, "B262: one credential");
    assert_eq!(seen.header("host"), Some(upstream.address.to_string().as_str()));
    for name in ["cookie", "x-forwarded-for", "openai-organization", "openai-project", "x-anything", "origin", "te"] {
        assert_eq!(seen.header(name), None, "{name}");
    }
}

#[tokio::test]
async fn f8_b259_b260_b262_the_clients_key_never_goes_up() {
    let carriers = ["authorization", "x-api-key", "api-key", "x-goog-api-key", "proxy-authorization", "cookie"];
    for (auth, header, value) in [
        ("bearer", "authorization", "Bearer provider-key"),
        ("x-api-key", "x-api-key", "provider-key"),
        ("{ header: api-key }", "api-key", "provider-key"),
    ] {
        let upstream = Upstream::start(Reply::stream(chat_ok())).await;
        let settings = format!("auth: {auth}");
        let weir = Setup::with_provider(&upstream.url(), &settings).start().await;
        let mut headers = vec![("authorization", "Bearer test-key"), ("x-api-key", "test-key")];
        headers.extend(carriers[2..].iter().map(|name| (*name, "test-key")));
        weir.post_with(CHAT, &headers, CHAT_ASK).await;
        let seen = upstream.request(0).await;
        assert_eq!(seen.header(header), Some(value));
        let credentials = seen.headers.iter().filter(|(name, _)| carriers.contains(&name.as_str())).count();
        assert_eq!(credentials, 1, "exactly the configured one: {:?}", seen.headers);
        assert!(seen.headers.iter().all(|(_, value)| !value.contains("test-key")), "{:?}", seen.headers);
    }
}

#[tokio::test]
async fn f8_the_query_is_kept_and_merged() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let plain = Setup::new(&upstream.url()).start().await;
    plain.post(&format!("{CHAT}?beta=true&x=a%20b"), CHAT_ASK).await;
    assert_eq!(upstream.request(0).await.path, format!("{CHAT}?beta=true&x=a%20b"));
    let azure = "paths: { chat: \"/openai/deployments/sol/chat/completions?api-version=2026-01-01\" }";
    let weir = Setup::with_provider(&upstream.url(), azure).start().await;
    weir.post(CHAT, CHAT_ASK).await;
    weir.post(&format!("{CHAT}?beta=true"), CHAT_ASK).await;
    let path = "/openai/deployments/sol/chat/completions?api-version=2026-01-01";
    assert_eq!(upstream.request(1).await.path, path);
    let merged = upstream.request(2).await.path;
    assert!(merged.starts_with("/openai/deployments/sol/chat/completions?"), "{merged}");
    assert!(merged.contains("api-version=2026-01-01") && merged.contains("beta=true"), "{merged}");
}

#[tokio::test]
async fn f8_base_urls_with_and_without_v1() {
    for (suffix, wanted) in
        [("", CHAT.to_owned()), ("/", CHAT.into()), ("/v1", CHAT.into()), ("/api/v1/", format!("/api{CHAT}"))]
    {
        let upstream = Upstream::start(Reply::stream(chat_ok())).await;
        let weir = Setup::new(&format!("{}{suffix}", upstream.url())).start().await;
        weir.post(CHAT, CHAT_ASK).await;
        assert_eq!(upstream.request(0).await.path, wanted, "{suffix}");
    }
}
