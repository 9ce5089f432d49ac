//! B3: who the client is behind proxies, what is shed under load, web pages, and many or hasty HTTP/2 streams.

use crate::harness::*;
use std::time::Duration;

const ONLY_TEN: &str = "models: [\"*\"], allow_ips: [10.0.0.0/8]";

#[tokio::test]
async fn b3_a_trusted_proxy_tells_the_address_and_nobody_else_does() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let trusting =
        Setup::new(&upstream.url()).server("trusted_proxies: [127.0.0.0/8]").key("ten", "ten", ONLY_TEN).start().await;
    let alone = Setup::new(&upstream.url()).key("ten", "ten", ONLY_TEN).start().await;
    for (weir, forwarded, status, client) in [
        (&trusting, "10.1.2.3", 200, "10.1.2.3"),
        (&trusting, "10.1.2.3, 203.0.113.9", 403, "203.0.113.9"),
        (&trusting, "203.0.113.9, 10.1.2.3, 127.0.0.9", 200, "10.1.2.3"),
        (&trusting, "nonsense", 403, ""),
        (&alone, "10.1.2.3", 403, "127.0.0.1"),
    ] {
        let headers = [("x-api-key", "ten"), ("x-forwarded-for", forwarded)];
        let received = weir.post_with(CHAT, &headers, CHAT_ASK).await;
        assert_eq!(received.status(), status, "{forwarded}: {}", received.text());
        assert_eq!(field(&weir.record(received.id()).await, "client"), client, "{forwarded}");
    }
    assert!(upstream.request(0).await.header("x-forwarded-for").is_none(), "it does not go up (F8)");
}

fn v2(address: [u8; 4]) -> Vec<u8> {
    [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..], &address, &[127, 0, 0, 1], &[0x14, 0x51, 0x1f, 0x90]].concat()
}

#[tokio::test]
async fn b3_the_proxy_protocol_tells_the_address() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let setup = |h2c: &str| {
        let settings = format!("proxy_protocol: true{h2c}");
        Setup::new(&upstream.url()).listen(&settings).key("ten", "ten", ONLY_TEN)
    };
    for weir in [setup("").start().await, setup(", h2c: true").start().await] {
        for (header, status, client) in [
            (b"PROXY TCP4 10.1.2.3 127.0.0.1 5201 8080\r\n".to_vec(), 200, "10.1.2.3"),
            (b"PROXY TCP6 2001:db8::1 2001:db8::2 5201 8080\r\n".to_vec(), 403, "2001:db8::1"),
            (b"PROXY UNKNOWN\r\n".to_vec(), 403, "127.0.0.1"),
            (v2([10, 9, 9, 9]), 200, "10.9.9.9"),
            (v2([203, 0, 113, 9]), 403, "203.0.113.9"),
        ] {
            let mut client_io = Client::connect(&weir).await;
            let ask = request(CHAT, &[("x-api-key", "ten")], CHAT_ASK.as_bytes());
            // The header and the request in one segment, and a second request on the same connection.
            client_io.send([header, ask.clone()].concat()).await;
            let first = client_io.receive().await;
            assert_eq!(first.status(), status, "{client}: {}", first.text());
            assert_eq!(field(&weir.record(first.id()).await, "client"), client);
            if status != 200 {
                continue; // B1: refused without its body being read, so that the connection may be closed
            }
            client_io.send(ask).await;
            let second = client_io.receive().await;
            assert_eq!(second.status(), status, "{client}, the second");
            assert_eq!(field(&weir.record(second.id()).await, "client"), client);
        }
        // Without the header there is no connection.
        let mut bare = Client::connect(&weir).await;
        bare.post(CHAT, CHAT_ASK).await;
        assert!(bare.is_closed().await);
    }
}

#[tokio::test]
async fn b3_the_proxy_protocol_stands_in_front_of_tls() {
    let pki = Pki::new();
    let folder = tempfile::tempdir().unwrap();
    let [_, cert, key] = pki.write(folder.path());
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let (cert, key) = (cert.display(), key.display());
    let listen = format!("proxy_protocol: true, tls: {{ certificates: [{{ cert: \"{cert}\", key: \"{key}\" }}] }}");
    let weir = Setup::new(&upstream.url()).listen(&listen).key("ten", "ten", ONLY_TEN).start().await;
    let mut socket = tokio::net::TcpStream::connect(weir.address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut socket, &v2([10, 9, 9, 9])).await.unwrap();
    let mut client = Client::tls_over(socket, &pki).await;
    client.send(request(CHAT, &[("x-api-key", "ten")], CHAT_ASK.as_bytes())).await;
    let received = client.receive().await;
    assert_eq!((received.status(), received.text()), (200, chat_seen()));
    assert_eq!(field(&weir.record(received.id()).await, "client"), "10.9.9.9");
}

/// 503 in the envelope, with a time to come back.
fn is_shed(dialect: Dialect, received: &Received) {
    assert_eq!(received.status(), 503, "{}: {}", dialect.name, received.text());
    assert!(received.head.get("retry-after").is_some(), "{:?}", received.head);
    assert!(received.json()["error"]["message"].as_str().unwrap().contains("overloaded"), "{}", received.text());
    assert_eq!(received.json().get("type").is_some(), dialect.name == "messages");
}

#[tokio::test]
async fn b3_max_streams_sheds_and_recovers() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).server("max_streams: 2").start().await;
    let signal = Signal::new();
    let mut running = Vec::new();
    for _ in 0..2 {
        let begun = Dialect::ALL[0].begun();
        upstream.push(Reply::sse().write(&begun).wait(&signal).write(&chat_ok()[begun.len()..]));
        let mut client = Client::connect(&weir).await;
        client.open(CHAT, CHAT_ASK).await;
        client.read_past("Hel").await;
        running.push(client);
    }
    for dialect in Dialect::ALL {
        let received = weir.post(dialect.path, dialect.ask()).await;
        is_shed(dialect, &received);
        assert_eq!(word(&weir.record(received.id()).await), "rejected");
    }
    signal.fire();
    signal.fire();
    for mut client in running {
        client.rest().await;
        assert!(client.ended);
    }
    weir.settles("weir_streams_active", 0.0).await;
    // A request counts until its books are closed, which is a moment after its client has the end.
    within("room again", async {
        while weir.post(CHAT, CHAT_ASK).await.status() != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn b3_max_connections_sheds_the_new_ones_and_keeps_the_old() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).listen("h2c: true").server("max_connections: 2").start().await;
    let plain = Setup::new(&upstream.url()).server("max_connections: 2").start().await;
    let mut kept = Vec::new();
    for _ in 0..2 {
        let mut client = Client::connect(&plain).await;
        client.post(CHAT, CHAT_ASK).await;
        assert_eq!(client.receive().await.status(), 200);
        kept.push(client);
    }
    for dialect in Dialect::ALL {
        let mut client = Client::connect(&plain).await;
        client.post(dialect.path, dialect.ask()).await;
        is_shed(dialect, &client.receive().await);
        assert!(client.is_closed().await, "one too many is closed after its answer");
    }
    for client in &mut kept {
        client.post(CHAT, CHAT_ASK).await;
        assert_eq!(client.receive().await.status(), 200);
    }
    drop(kept);
    within("room again", async {
        while plain.post(CHAT, CHAT_ASK).await.status() != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    // HTTP/2: closed at once.
    let (one, two) = (H2Client::connect(&weir).await, H2Client::connect(&weir).await);
    for client in [&one, &two] {
        assert_eq!(client.post(CHAT, CHAT_ASK).await.head.status, 200);
    }
    let mut third = Client::connect(&weir).await;
    third.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert!(third.is_closed().await);
}

#[tokio::test]
async fn b3_max_memory_sheds_before_the_kernel_does() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).server("max_memory: 1MiB").start().await;
    within("the memory to be looked at", async {
        loop {
            let received = weir.post(MESSAGES, Dialect::ALL[2].ask()).await;
            if received.status() != 200 {
                return is_shed(Dialect::ALL[2], &received);
            }
        }
    })
    .await;
    until("the log to say so", || weir.said().contains("max_memory is used up")).await;
    let roomy = Setup::new(&upstream.url()).server("max_memory: 64GiB").start().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(roomy.post(CHAT, CHAT_ASK).await.status(), 200);
}

#[tokio::test]
async fn b3_the_memory_of_large_bodies_goes_back_while_nothing_happens() {
    const MIB: usize = 1024 * 1024;
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).server("max_body: 32MiB").start().await;
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 200);
    let before = memory(&weir, "VmRSS:");
    for _ in 0..2 {
        assert_eq!(weir.post(CHAT, format!("{}{CHAT_ASK}", " ".repeat(24 * MIB))).await.status(), 200);
    }
    let peak = memory(&weir, "VmHWM:");
    assert!(peak > before + 24 * MIB, "{before} {peak}");
    until("the memory to go back", || memory(&weir, "VmRSS:") < before + 12 * MIB).await;
}

/// Bytes, as the system counts them.
fn memory(weir: &Weir, what: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", weir.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[tokio::test]
async fn b3_web_pages_may_call_where_they_are_listed() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let page = "https://app.example";
    let cors = Setup::new(&upstream.url()).server("cors: { origins: [\"https://app.example\"] }").start().await;
    let ask = [
        ("origin", page),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization, x-stainless-lang"),
    ];
    let preflight = async |weir: &Weir, headers: &[(&str, &str)]| {
        let mut client = Client::connect(weir).await;
        let mut head = format!("OPTIONS {CHAT} HTTP/1.1\r\nhost: weir\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        client.send(head + "\r\n").await;
        client.receive().await
    };
    let allowed = preflight(&cors, &ask).await;
    assert_eq!((allowed.status(), allowed.body.len()), (204, 0));
    for (name, value) in [
        ("access-control-allow-origin", page),
        ("access-control-allow-methods", "GET, POST, DELETE"),
        ("access-control-allow-headers", "authorization, x-stainless-lang"),
        ("vary", "origin"),
    ] {
        assert_eq!(allowed.head.get(name), Some(value), "{name}");
    }
    // The answers themselves, refusals included; the key is needed all the same.
    for (key, status) in [(KEY, 200), ("wrong", 401)] {
        let received = cors.post_with(CHAT, &[("x-api-key", key), ("origin", page)], CHAT_ASK).await;
        assert_eq!(received.status(), status);
        assert_eq!(received.head.get("access-control-allow-origin"), Some(page));
        assert!(received.head.get("access-control-expose-headers").unwrap().contains("x-request-id"));
    }
    assert_eq!(upstream.request(0).await.header("origin"), None);
    let evil = [("origin", "https://evil.example"), ask[1], ask[2]];
    let none = Setup::new(&upstream.url()).start().await;
    for (weir, headers) in [(&cors, &evil[..]), (&cors, &[][..]), (&none, &ask[..])] {
        let refused = preflight(weir, headers).await;
        assert_eq!(refused.status(), 405, "{headers:?}");
        assert!(refused.head.get("allow").is_some());
        assert_eq!(refused.head.get("access-control-allow-origin"), None);
    }
    let received = cors.post_with(CHAT, &[("origin", "https://evil.example")], CHAT_ASK).await;
    assert_eq!((received.status(), received.head.get("access-control-allow-origin")), (200, None));
}

#[tokio::test]
async fn b3_hasty_resets_cost_no_slots_and_nobody_else() {
    let upstream = Upstream::start(Reply::silent()).await;
    let weir = Setup::new(&upstream.url()).listen("h2c: true").start().await;
    let client = H2Client::connect(&weir).await;
    let mut sent = 0;
    // Opened and reset at once, as fast as it goes, or until the gateway has had enough.
    while sent < 3_000 {
        let Some((_, mut stream)) = client.try_start(CHAT, CHAT_ASK).await else { break };
        stream.send_reset(h2::Reason::CANCEL);
        sent += 1;
    }
    weir.settles("weir_requests_active", 0.0).await;
    upstream.set_default(Reply::stream(chat_ok()));
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 200, "others are served");
}

#[tokio::test]
async fn b3_streams_of_one_connection_are_bounded() {
    let upstream = Upstream::start(Reply::sse().write(Dialect::ALL[0].begun()).hang()).await;
    let weir = Setup::new(&upstream.url()).listen("h2c: true").start().await;
    let client = H2Client::connect(&weir).await;
    let mut streams = vec![client.open(CHAT, CHAT_ASK).await];
    for _ in 1..100 {
        streams.push(client.open(CHAT, CHAT_ASK).await);
    }
    // The 101st waits for a place (SETTINGS_MAX_CONCURRENT_STREAMS), and gets the first that is free.
    let (late, _body) = client.try_start(CHAT, CHAT_ASK).await.unwrap();
    let mut late = std::pin::pin!(late);
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut late).await.is_err(), "100 streams are enough");
    assert_eq!(upstream.count(), 100);
    streams[0].cancel();
    assert_eq!(within("a place", late).await.unwrap().status(), 200);
}

#[tokio::test]
async fn b3_a_tiny_window_slows_its_own_stream_only() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).listen("h2c: true").start().await;
    let slow = H2Client::with_window(&weir, 7).await;
    let answer = slow.post(CHAT, CHAT_ASK).await;
    assert!(answer.ended && answer.body == chat_seen().as_bytes(), "{:?}", answer.body);
    // One that takes nothing at all holds a stream, and nothing else.
    let stuck = H2Client::with_window(&weir, 0).await;
    let held = stuck.open(CHAT, CHAT_ASK).await;
    assert_eq!(H2Client::connect(&weir).await.post(CHAT, CHAT_ASK).await.body, chat_seen().as_bytes());
    drop((held, stuck));
    weir.settles("weir_streams_active", 0.0).await;
}
