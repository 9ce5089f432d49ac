//! Peers that mean harm, on both sides: what they send is bounded in time, memory and effect.

use crate::harness::*;
use std::time::{Duration, Instant};

const CHAT_D: Dialect = Dialect::ALL[0];

/// An upstream that writes 64 MiB as fast as they are read, and then nothing.
fn flood(reply: Reply, piece: &str) -> Reply {
    let block = bytes(&piece.repeat(64 * 1024 / piece.len()));
    (0..1024).fold(reply, |reply, _| reply.step(Step::Write(block.clone()))).hang()
}

#[tokio::test]
async fn s1_the_clocks_run_while_the_upstream_never_pauses() {
    let rows = [("total: 2s", "timeout", "total"), ("no_output: 2s, first_content: 1h", "stalled", "no_output")];
    for (timeouts, outcome, cause) in rows {
        let upstream = Upstream::start(flood(Reply::sse().write(CHAT_D.begun()), ":\n\n")).await;
        let weir = Setup::new(&upstream.url()).model(&format!("timeouts: {{ {timeouts} }}")).start().await;
        let mut client = Client::connect(&weir).await;
        let began = Instant::now();
        client.open(CHAT, CHAT_ASK).await;
        client.read_past("\"error\"").await;
        assert!(began.elapsed() < Duration::from_secs(30), "{timeouts}: {:?}", began.elapsed());
        let record = weir.only_record().await;
        assert_eq!((word(&record).as_str(), field(&record, "cause").as_str()), (outcome, cause), "{record}");
    }
}

#[tokio::test]
async fn f9_non_stream_runs_while_the_upstream_never_pauses() {
    let reply = flood(Reply::sse().header("content-type", "application/json"), " ");
    let upstream = Upstream::start(reply).await;
    let weir = Setup::new(&upstream.url()).model("timeouts: { non_stream: 5s }").start().await;
    let mut client = Client::connect(&weir).await;
    client.open(CHAT, CHAT_D.ask_json()).await;
    while client.chunk().await.is_some() {}
    assert!(!client.ended, "a broken reply does not look whole");
    let record = weir.only_record().await;
    assert_eq!(field(&record, "cause"), "non_stream", "{record}");
}

#[tokio::test]
async fn b121_a_blank_answer_of_no_type_is_not_gathered_for_ever() {
    let mut reply = Reply::sse();
    reply.headers.clear();
    let upstream = Upstream::start(flood(reply, " ")).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let mut client = Client::connect(&weir).await;
    client.open(CHAT, CHAT_ASK).await;
    client.read_until("it passes, as a large reply does", |body| body.len() > 1 << 20).await;
}

#[tokio::test]
async fn b255_informational_heads_end() {
    let upstream = Upstream::start(Reply::raw("HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000)).hang()).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let began = Instant::now();
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 502);
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
}

#[tokio::test]
async fn b1_malformed_chunks_are_a_400_and_the_connection_is_closed() {
    let upstream = Upstream::start(Reply::json(200, "{}")).await;
    let weir = Setup::new(&upstream.url()).start().await;
    for dialect in Dialect::ALL {
        for chunks in ["zz\r\n{}", "-1\r\n{}", "ffffffffffffffffff\r\n{}", "2\r\n{}XX0\r\n\r\n"] {
            let mut client = Client::connect(&weir).await;
            let head = format!(
                "POST {} HTTP/1.1\r\nhost: weir\r\nauthorization: Bearer {KEY}\r\ntransfer-encoding: chunked\r\n\r\n",
                dialect.path
            );
            client.send(format!("{head}{chunks}")).await;
            let received = client.receive().await;
            assert_eq!(received.status(), 400, "{chunks:?}: {}", received.text());
            assert!(received.json()["error"]["message"].as_str().unwrap().contains("chunked"), "{}", received.text());
            assert!(client.is_closed().await, "{chunks:?}: out of step, so it is closed");
            assert_eq!(word(&weir.record(received.id()).await), "rejected");
        }
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn b1_a_connection_that_could_be_http2_and_says_nothing_is_closed() {
    let pki = Pki::new();
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("quiet-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [_, cert, key] = pki.write(&folder);
    let tls = format!("tls: {{ certificates: [{{ cert: \"{}\", key: \"{}\" }}] }}", cert.display(), key.display());
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.begun()).pause(4_000).write(chat_ok())).await;
    let bounded = async |listen: &str, bound: &str| {
        let bound = format!("header_timeout: {bound}");
        Setup::new(&upstream.url()).listen(listen).server(&bound).start().await
    };
    // What is quiet for the bound is closed; what has begun within it is not, however long it takes.
    let (soon, late) = ("300ms", "3s");

    let weir = bounded("h2c: true", soon).await;
    for first in ["", "PRI * HT"] {
        let mut quiet = Client::connect(&weir).await;
        quiet.send(first).await;
        assert!(quiet.is_closed().await, "h2c, after {first:?}");
    }
    let weir = bounded("h2c: true", late).await;
    let answer = H2Client::connect(&weir).await.post(CHAT, CHAT_ASK).await;
    assert!(answer.ended && answer.head.status == 200, "one that has begun has its time");

    let weir = bounded(&tls, late).await;
    let answer = H2Client::connect_tls(&weir, &pki).await.post(CHAT, CHAT_ASK).await;
    assert!(answer.ended && answer.head.status == 200, "one that has begun has its time");
    let weir = bounded(&tls, soon).await;
    let socket = tokio::net::TcpStream::connect(weir.address).await.unwrap();
    let name = "localhost".try_into().unwrap();
    let mut quiet = pki.connector(&[b"h2"]).connect(name, socket).await.unwrap();
    let mut sink = Vec::new();
    let _ = within("the end", tokio::io::AsyncReadExt::read_to_end(&mut quiet, &mut sink)).await;
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn b263_a_key_that_comes_back_as_an_id_goes_nowhere() {
    let key = "provider-key";
    let body = format!("{{\"id\":\"{key}\",\"service_tier\":\"{key}\",\"choices\":[]}}");
    for name in ["x-request-id", "request-id", "apim-request-id"] {
        let upstream = Upstream::start(Reply::json(200, &body).header(name, &format!("id-{key}-1"))).await;
        let weir = Setup::new(&upstream.url()).log("level: trace").start().await;
        let received = weir.post(CHAT, CHAT_D.ask_json()).await;
        assert_eq!(received.status(), 200);
        let head = format!("{:?}", received.head);
        assert!(!head.contains(key), "{head}");
        let record = weir.record(received.id()).await;
        assert!(!record.to_string().contains(key), "{record}");
        assert!(!weir.said().contains(key), "{}", weir.said());
    }
}

#[tokio::test]
async fn a10_no_path_climbs_out_of_its_passthrough_prefix() {
    let upstream = Upstream::start(Reply::json(200, "{}")).await;
    let entry =
        "passthrough:\n  - { path: \"/v1/files/*\", methods: [GET], provider: up, keys: [test], shared_account: true }";
    let weir = Setup::new(&upstream.url()).section(entry).start().await;
    for path in ["../admin", "%2e%2e/admin", "..%2fadmin", "%252e%252e/admin", "..;/admin", "..%5cadmin"] {
        assert_eq!(weir.call("GET", &format!("/v1/files/{path}"), &[]).await.status(), 404, "{path}");
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(weir.call("GET", "/v1/files/file-1", &[]).await.status(), 200);
    upstream.set_default(Reply::raw("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"));
    assert_eq!(weir.call("GET", "/v1/files/file-1", &[]).await.status(), 502, "nobody asked for an upgrade");
}

/// How many answers come, until the connection is closed or says nothing more.
async fn answers(client: &mut Client) -> Vec<u16> {
    let mut statuses = Vec::new();
    while let Ok(Some(head)) = tokio::time::timeout(Duration::from_secs(4), client.try_head()).await {
        client.rest().await;
        statuses.push(head.status);
    }
    statuses
}

#[tokio::test]
async fn b1_heads_that_could_be_read_in_two_ways_smuggle_nothing() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let hidden = format!("GET /v1/models HTTP/1.1\r\nhost: weir\r\nauthorization: Bearer {KEY}\r\n\r\n");
    let chunked = format!("{:x}\r\n{CHAT_ASK}\r\n0\r\n\r\n", CHAT_ASK.len());
    let length = CHAT_ASK.len();
    for (lines, body) in [
        (format!("content-length: {length}\r\ncontent-length: {}\r\n", length + hidden.len()), CHAT_ASK),
        (format!("content-length: {length}, {}\r\n", length + 1), CHAT_ASK),
        (format!("content-length: {}\r\ntransfer-encoding: chunked\r\n", chunked.len()), chunked.as_str()),
        ("content-length: 4\r\ntransfer-encoding: chunked\r\n".to_owned(), chunked.as_str()),
        ("transfer-encoding: xchunked\r\n".to_owned(), chunked.as_str()),
        (format!("content-length: +{length}\r\n"), CHAT_ASK),
        ("content-length: -1\r\n".to_owned(), CHAT_ASK),
        (format!("content-length : {length}\r\n"), CHAT_ASK),
        (format!("host: other\r\ncontent-length: {length}\r\n"), CHAT_ASK),
    ] {
        let mut client = Client::connect(&weir).await;
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: weir\r\nauthorization: Bearer {KEY}\r\n{lines}\r\n");
        let before = upstream.count();
        client.send(format!("{head}{body}{hidden}")).await;
        let statuses = answers(&mut client).await;
        println!("{lines:?}: {statuses:?}");
        // The second answer would be one that a proxy in front does not know of.
        assert!(statuses.len() <= 1, "{lines:?}: {statuses:?}");
        for request in upstream.requests().iter().skip(before) {
            assert_eq!(request.json()["model"], "upstream-model", "{lines:?}: what goes up is one whole request");
        }
    }
}

#[tokio::test]
async fn b1_floods_of_headers_are_bounded() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let many: String = (0..20_000).fold(String::new(), |all, n| all + &format!("x-h{n}: {n}\r\n"));
    let long = format!("x-long: {}\r\n", "a".repeat(8 * 1024 * 1024));
    for lines in [many, long] {
        let mut client = Client::connect(&weir).await;
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: weir\r\nauthorization: Bearer {KEY}\r\n");
        let began = Instant::now();
        // It may be cut off while it is still sending.
        let _ = client.try_send(format!("{head}{lines}content-length: 0\r\n\r\n")).await;
        let status = client.try_head().await.map(|head| head.status);
        assert!(status.is_none_or(|status| (400..500).contains(&status)), "{status:?}");
        assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 200, "others are served");
}

#[tokio::test]
async fn b1_pipelined_requests_never_mix() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let mut client = Client::connect(&weir).await;
    let ask = request(CHAT, &[], CHAT_ASK.as_bytes());
    client.send([ask.clone(), ask.clone(), ask].concat()).await;
    let first = client.receive().await;
    assert_eq!((first.status(), first.text(), first.ended), (200, chat_seen(), true));
    // A9: the connection is closed after it; whatever else comes would be a whole answer.
    while let Some(head) = client.try_head().await {
        assert_eq!(head.status, 200);
        assert_eq!(client.rest().await, chat_seen());
    }
}
