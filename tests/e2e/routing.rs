//! A10, A11, A13: models, the other endpoints, passthrough, pools, names.

use crate::harness::*;
use std::time::{Duration, Instant};

const CHAT_D: Dialect = Dialect::ALL[0];

#[tokio::test]
async fn a10_models_in_both_shapes_and_only_the_keys_own() {
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = Setup::new(&upstream.url())
        .other_model("{ name: second-model, aliases: [second], targets: [{ provider: up, model: s }] }")
        .key("limited", "limited-key", "models: [second-model]")
        .start()
        .await;
    let openai = weir.call("GET", "/v1/models", &[]).await;
    assert_eq!(openai.status(), 200);
    let list = openai.json();
    assert_eq!(list["object"], "list");
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert!(ids.contains(&"public-model") && ids.contains(&"second-model"), "{ids:?}");
    assert_eq!(list["data"][0]["object"], "model");
    let anthropic = weir.call("GET", "/v1/models", &[("anthropic-version", "2023-06-01")]).await.json();
    assert_eq!(anthropic["data"][0]["type"], "model", "{anthropic}");
    assert_eq!(anthropic["has_more"], false);
    assert!(anthropic["data"][0]["display_name"].is_string());
    let one = weir.call("GET", "/v1/models/second-model", &[]).await;
    assert_eq!((one.status(), &one.json()["id"]), (200, &"second-model".into()));
    assert_eq!(weir.call("GET", "/v1/models/nothing", &[]).await.status(), 404);
    let mut client = Client::connect(&weir).await;
    client.send("GET /v1/models HTTP/1.1\r\nhost: weir\r\nx-api-key: limited-key\r\n\r\n").await;
    let own = client.receive().await.json();
    let ids: Vec<_> = own["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert!(!ids.contains(&"public-model") && ids.contains(&"second-model"), "{ids:?}");
    client.send("GET /v1/models HTTP/1.1\r\nhost: weir\r\n\r\n").await;
    assert_eq!(client.receive().await.status(), 401);
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn a10_the_other_endpoints_are_routed_by_model_and_metered() {
    let rows = [
        ("/v1/embeddings", r#"{"object":"list","data":[],"usage":{"prompt_tokens":8,"total_tokens":8}}"#, Some(8)),
        (
            "/v1/completions",
            r#"{"id":"c","choices":[{"text":"x","index":0,"finish_reason":"stop"}],"usage":{"prompt_tokens":8,"completion_tokens":2,"total_tokens":10}}"#,
            Some(8),
        ),
        ("/v1/messages/count_tokens", r#"{"input_tokens":8}"#, None),
        ("/v1/responses/input_tokens", r#"{"object":"response.input_tokens","input_tokens":8}"#, None),
    ];
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = Setup::new(&upstream.url()).start().await;
    for (at, (path, body, input)) in rows.into_iter().enumerate() {
        upstream.push(Reply::json(200, body));
        let ask = r#"{"input":"x","model":"public-model"}"#;
        let received = weir.post(path, ask).await;
        assert_eq!((received.status(), received.text().as_str()), (200, body), "{path}");
        let sent = upstream.request(at).await;
        assert_eq!(sent.path, path);
        assert_eq!(String::from_utf8_lossy(&sent.body), ask.replace("public", "upstream"));
        let record = weir.record(received.id()).await;
        assert_eq!(word(&record), "completed", "{record}");
        if input.is_some() {
            assert_eq!(number(&record, "input"), input, "{path}: {record}");
        }
        assert_eq!(weir.post_with(path, &[("authorization", "Bearer wrong")], ask).await.status(), 401);
        assert_eq!(weir.post(path, ask.replace("public", "unknown")).await.status(), 404);
    }
}

#[tokio::test]
async fn a10_b122_streamed_completions_are_handled_as_chat() {
    let chunk = |text: &str, finish: &str| {
        format!(
            "data: {{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"choices\":[{{\"index\":0,\"text\":\"{text}\",\"finish_reason\":{finish}}}]}}\n\n"
        )
    };
    let begun = chunk("Hel", "null");
    let seen = begun.clone() + &chunk("", "\"stop\"") + DONE;
    let stream = seen.replace(DONE, CHAT_USAGE) + DONE;
    let ask = r#"{"model":"public-model","prompt":"x","stream":true}"#;
    let rest = &stream[begun.len()..];
    let go_on = Signal::new();
    let upstream = Upstream::start(Reply::sse().write(&begun).wait(&go_on).write(rest)).await;
    let weir = Setup::new(&upstream.url()).quick_keepalive().start().await;
    let mut client = Client::connect(&weir).await;
    let received = client.open("/v1/completions", ask).await;
    client.read_until("two keepalives", |body| without_keepalives(body).1 >= 2).await;
    go_on.fire();
    assert_eq!(without_keepalives(&client.rest().await).0, seen);
    assert_eq!(upstream.request(0).await.json()["stream_options"]["include_usage"], true);
    let record = weir.record(received.id()).await;
    assert_eq!((number(&record, "input"), number(&record, "output")), (Some(12), Some(2)), "{record}");
    upstream.set_default(Reply::stream(&begun));
    let text = weir.post("/v1/completions", ask).await.text();
    assert!(text.starts_with(&(begun + "data: {\"error\":{")) && text.ends_with(DONE), "{text}");
}

#[tokio::test]
async fn a10_passthrough_needs_an_entry() {
    let upstream = Upstream::start(Reply::json(200, "{\"object\":\"list\"}")).await;
    let entries = "passthrough:\n  - { path: \"/v1/files/*\", methods: [GET, POST], provider: up, keys: [test], shared_account: true }\n  - { path: /v1/moderations, methods: [POST], provider: up, keys: [test] }";
    let weir = Setup::new(&upstream.url()).key("other", "other-key", "models: [\"*\"]").section(entries).start().await;
    let body = "x".repeat(300_000);
    let received = weir.post("/v1/files/upload?purpose=x", &body).await;
    assert_eq!((received.status(), received.text().as_str()), (200, "{\"object\":\"list\"}"));
    let sent = upstream.request(0).await;
    assert_eq!((sent.path.as_str(), sent.body.len()), ("/v1/files/upload?purpose=x", 300_000));
    assert_eq!(sent.header("authorization"), Some("Bearer provider-key"));
    let record = weir.record(received.id()).await;
    assert_eq!(word(&record), "completed", "{record}");
    assert_eq!(weir.call("GET", "/v1/files/file-1", &[]).await.status(), 200);
    assert_eq!(weir.post("/v1/moderations", "{}").await.status(), 200);
    assert_eq!(weir.call("DELETE", "/v1/files/file-1", &[]).await.status(), 405);
    assert_eq!(weir.call("GET", "/v1/filesystem", &[]).await.status(), 404);
    assert_eq!(weir.post("/v1/moderations/x", "{}").await.status(), 404);
    let refused = weir.post_with("/v1/moderations", &[("authorization", "Bearer other-key")], "{}").await;
    assert!([403, 404].contains(&refused.status()), "{}", refused.text());
    assert_eq!(weir.post_with("/v1/moderations", &[("authorization", "Bearer wrong")], "{}").await.status(), 401);
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn a10_aliases_are_the_model() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).model("aliases: [nickname]").start().await;
    let received = weir.post(CHAT, CHAT_ASK.replace("public-model", "nickname")).await;
    assert_eq!(received.text(), chat_seen());
    assert_eq!(upstream.request(0).await.json()["model"], "upstream-model");
    assert_eq!(field(&weir.record(received.id()).await, "model"), "public-model");
}

#[tokio::test]
async fn a11_http2_by_alpn_and_many_streams_on_one_connection() {
    let pki = Pki::new();
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("alpn-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [ca, ..] = pki.write(&folder);
    let upstream = H2Upstream::start_tls(Reply::stream(chat_ok()).pause(50), &pki).await;
    let weir = Setup::with_provider(&upstream.url(), &format!("ca: \"{}\"", ca.display())).start().await;
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.text(), chat_seen());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let address = weir.address;
        tasks.spawn(async move {
            let mut client = Client::connect_to(address).await;
            client.open(CHAT, CHAT_ASK).await;
            client.rest().await
        });
    }
    while let Some(body) = tasks.join_next().await {
        assert_eq!(body.unwrap(), bytes(&chat_seen()));
    }
    assert_eq!(upstream.count(), 21);
    assert!(upstream.connections() < 20, "{} connections", upstream.connections());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn a11_an_unknown_authority_is_refused() {
    let (pki, other) = (Pki::new(), Pki::new());
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("ca-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [ca, ..] = other.write(&folder);
    let upstream = Upstream::start_tls(Reply::stream(chat_ok()), &pki).await;
    let weir = Setup::with_provider(&upstream.url(), &format!("ca: \"{}\"", ca.display())).start().await;
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 502);
    let system_roots = Setup::new(&upstream.url()).start().await;
    assert_eq!(system_roots.post(CHAT, CHAT_ASK).await.status(), 502);
    assert_eq!(upstream.count(), 0);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn a11_b290_a_dead_pooled_connection_is_tried_again_on_a_fresh_one() {
    // The body's end comes with its last bytes: the connection is in the pool before the client has the end.
    let whole = Reply::stream(chat_ok()).framing(Framing::Length(chat_ok().len()));
    let upstream = Upstream::start(whole).await;
    let weir = Setup::new(&upstream.url()).start().await;
    // Now and then Pingora's pool loses the connection to a race of its own: then the reset meets a fresh one, and
    // it is tried once more.
    for _ in 0..20 {
        assert_eq!(weir.post(CHAT, CHAT_ASK).await.text(), chat_seen());
        let (requests, connections) = (upstream.count(), upstream.connections());
        // The next request arrives on the pooled connection, which is reset in that moment.
        upstream.push(Reply::reset());
        let received = weir.post(CHAT, CHAT_ASK).await;
        let pooled = upstream.requests()[requests].connection < connections;
        if !pooled {
            assert_eq!(received.status(), 502, "a fresh connection that dies is a failed attempt");
            continue;
        }
        assert_eq!((received.status(), received.text()), (200, chat_seen()));
        assert_eq!(tries(&weir.record(received.id()).await), ["up:ok"], "one attempt, yet a second connection");
        assert_eq!((upstream.count(), upstream.connections()), (requests + 2, connections + 1));
        // Neither on the pooled connection nor on a fresh one.
        upstream.push(Reply::reset());
        upstream.push(Reply::reset());
        assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 502);
        return;
    }
    panic!("no request took a pooled connection");
}

#[tokio::test]
async fn a13_names_are_resolved() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let named = format!("http://localhost:{}", upstream.address.port());
    let weir = Setup::new(&named).start().await;
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.text(), chat_seen(), "also where ::1 comes first and nobody is there");
    let host = format!("localhost:{}", upstream.address.port());
    assert_eq!(upstream.request(0).await.header("host"), Some(host.as_str()));
    let nowhere = Setup::new("http://no-such-host.invalid").start().await;
    let received = nowhere.post(CHAT, CHAT_ASK).await;
    assert_eq!(received.status(), 502);
    assert!(!received.text().contains("invalid:") && !received.text().contains("no-such-host"), "{}", received.text());
}

#[tokio::test]
async fn s1_connect_is_bounded() {
    // A listener whose queue is full accepts nobody.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    for _ in 0..300 {
        let connect = tokio::net::TcpStream::connect(address);
        match tokio::time::timeout(Duration::from_millis(500), connect).await {
            Ok(Ok(socket)) => queued.push(socket),
            _ => break,
        }
    }
    let weir = Setup::new(&format!("http://{address}")).defaults("timeouts: { connect: 300ms }").start().await;
    at_once("a connection that does not come about", Duration::from_secs(4), async || {
        let began = Instant::now();
        let received = weir.post(CHAT, CHAT_ASK).await;
        assert!([502, 504].contains(&received.status()), "{}", received.status());
        began.elapsed()
    })
    .await;
}

#[tokio::test]
async fn s1_total_bounds_everything() {
    for dialect in Dialect::ALL {
        let reply =
            (0..200).fold(Reply::sse().write(dialect.begun()), |reply, _| reply.pause(20).write(": moving\n\n"));
        let upstream = Upstream::start(reply.hang()).await;
        let weir = Setup::new(&upstream.url()).defaults("timeouts: { total: 600ms }").start().await;
        let received = weir.post(dialect.path, dialect.ask()).await;
        assert!(received.ended);
        assert!(received.text().contains("error"), "{}", received.text());
        assert_eq!(word(&weir.record(received.id()).await), "timeout");
        upstream.gone(0).await;
    }
}

#[tokio::test]
async fn c4_m1_the_admin_listener() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).start().await;
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.text(), chat_seen());
    assert_eq!(weir.post(CHAT, "{").await.status(), 400);
    weir.settles("weir_streams_active", 0.0).await;
    // Written when all of it is counted.
    weir.all_records(2).await;
    assert_eq!(weir.metric("weir_requests_total", &["outcome=\"completed\""]).await, 1.0);
    assert_eq!(weir.metric("weir_requests_total", &["outcome=\"rejected\""]).await, 1.0);
    assert_eq!(weir.metric("weir_tokens_total", &["kind=\"input\""]).await, 12.0);
    assert_eq!(weir.metric("weir_tokens_total", &["kind=\"output\""]).await, 2.0);
    assert_eq!(weir.metric("weir_time_to_first_token_seconds_count", &[]).await, 1.0);
    assert_eq!(weir.metric("weir_request_duration_seconds_count", &["stream=\"true\""]).await, 1.0);
}

#[tokio::test]
async fn b304_b305_what_clients_make_up_is_no_label() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).start().await;
    weir.post(CHAT, CHAT_ASK).await;
    weir.post(CHAT, CHAT_ASK.replace("public-model", "made-up")).await;
    weir.call("GET", "/made-up", &[]).await;
    weir.post_with(CHAT, &[("authorization", "Bearer made-up")], CHAT_ASK).await;
    weir.all_records(4).await;
    let before = weir.metrics().await.len();
    let mut client = Client::connect(&weir).await;
    for at in 0..300 {
        let model = format!("made-up-{at}");
        let headers = [("x-request-id", model.as_str()), ("user-agent", model.as_str())];
        client.send(request(CHAT, &headers, CHAT_ASK.replace("public-model", &model).as_bytes())).await;
        assert_eq!(client.receive().await.status(), 404);
    }
    let after = weir.metrics().await;
    assert_eq!(after.len(), before);
    assert!(after.keys().all(|name| !name.contains("made-up")));
    assert_eq!(CHAT_D.path, CHAT);
}
