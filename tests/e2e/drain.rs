//! C3: how the process ends.

use crate::harness::*;
use std::time::Duration;

const CHAT_D: Dialect = Dialect::ALL[0];
const MSG_D: Dialect = Dialect::ALL[2];
const CHAT: &str = CHAT_D.path;
const CHAT_DRAINED: &str = "data: {\"error\":{\"message\":\"The server is shutting down, please retry\",\"type\":\"api_error\",\"code\":\"server_draining\"}}\n\ndata: [DONE]\n\n";

/// Whether somebody takes a connection and answers on it: at a closed listener a connection is refused.
async fn is_open(weir: &Weir) -> bool {
    Client::try_connect(weir.address).await.is_some()
}

async fn ready(weir: &Weir) -> u16 {
    get(weir.admin, "/readyz").await.map_or(0, |reply| reply.status())
}

#[tokio::test]
async fn c3_sigterm_serves_on_closes_then_refuses_and_waits_for_streams() {
    let end = Signal::new();
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).server("drain_delay: 8s, drain: 1h").start().await;
    let rest = chat_ok().replacen(&CHAT_D.begun(), "", 1);
    upstream.push(Reply::sse().write(CHAT_D.begun()).wait(&end).write(rest));
    let mut stream = Client::connect(&weir).await;
    stream.open(CHAT, CHAT_ASK).await;
    stream.read_past("Hel").await;
    // Two connections that are idle when it begins: one is used during the delay, one after it.
    let (mut early, mut late) = (Client::connect(&weir).await, Client::connect(&weir).await);
    for idle in [&mut early, &mut late] {
        let head = idle.open(CHAT, CHAT_ASK).await;
        assert_eq!(head.get("connection"), Some("keep-alive"));
        idle.rest().await;
    }
    weir.signal("TERM");
    within("not ready", async { while ready(&weir).await != 503 {} }).await;
    let head = early.open(CHAT, CHAT_ASK).await;
    assert_eq!((head.status, head.get("connection")), (200, Some("close")), "served, for the last time here");
    assert_eq!(early.rest().await, chat_seen());
    assert!(early.is_closed().await);
    let mut fresh = Client::connect(&weir).await;
    let head = fresh.open(CHAT, CHAT_ASK).await;
    assert_eq!((head.status, head.get("connection")), (200, Some("close")), "new connections are still taken");
    within("the listeners' end", async {
        while is_open(&weir).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(ready(&weir).await, 503, "operators are still answered");
    let head = late.open(CHAT, CHAT_ASK).await;
    let refusal = late.rest().await;
    assert_eq!((head.status, head.get("connection")), (503, Some("close")));
    assert!(String::from_utf8_lossy(&refusal).contains("server_draining"), "{refusal:?}");
    end.fire();
    let text = stream.rest().await;
    assert_eq!((text, stream.ended), (bytes(&chat_seen()), true), "it ends by itself");
    assert!(weir.ended().await, "exit status 0: all had finished");
    assert_eq!(weir.ask("SELECT count(*), sum(outcome = 'completed') FROM records"), "5 5");
    verify(&weir.ledger());
}

#[tokio::test]
async fn c3_at_the_deadline_streams_end_natively_each_with_its_record() {
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.begun()).hang()).await;
    let weir = Setup::new(&upstream.url()).server("drain_delay: 10ms, drain: 300ms").start().await;
    let mut stream = Client::connect(&weir).await;
    stream.open(CHAT, CHAT_ASK).await;
    stream.read_past("Hel").await;
    upstream.push(Reply::sse().write(MSG_D.begun()).hang());
    let mut messages = Client::connect(&weir).await;
    messages.open(MSG_D.path, MSG_D.ask()).await;
    messages.read_past("Hel").await;
    let (stopped, text, other) = tokio::join!(weir.stop(), stream.rest(), messages.rest());
    assert_eq!((text, stream.ended), (bytes(&(CHAT_D.begun() + CHAT_DRAINED)), true));
    let other = String::from_utf8_lossy(&other).into_owned();
    assert!(other.contains("event: error") && other.contains("overloaded_error") && messages.ended, "{other}");
    assert!(stopped, "exit status 0: each had its end and its record");
    assert_eq!(weir.ask("SELECT count(*), sum(outcome = 'drained') FROM records"), "2 2");
    verify(&weir.ledger());
}

#[tokio::test]
async fn c3_a_second_sigterm_ends_now() {
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.begun()).hang()).await;
    let delays = ["drain_delay: 1h, drain: 1h", "drain_delay: 10ms, drain: 1h"];
    for (at, delay) in delays.into_iter().enumerate() {
        let weir = Setup::new(&upstream.url()).server(delay).start().await;
        let mut stream = Client::connect(&weir).await;
        stream.open(CHAT, CHAT_ASK).await;
        stream.read_past("Hel").await;
        weir.signal("TERM");
        let said = ["requests are still served", "new requests are refused"][at];
        until(said, || weir.said().contains(said)).await;
        weir.signal("TERM");
        assert_eq!(stream.rest().await, bytes(&(CHAT_D.begun() + CHAT_DRAINED)));
        assert!(weir.ended().await);
    }
}

#[tokio::test]
async fn c3_kill_9_during_the_drain_loses_no_record() {
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.begun()).hang()).await;
    let weir = Setup::new(&upstream.url()).server("drain_delay: 10ms, drain: 1h").start().await;
    let mut stream = Client::connect(&weir).await;
    stream.open(CHAT, CHAT_ASK).await;
    stream.read_past("Hel").await;
    weir.signal("TERM");
    until("the drain", || weir.said().contains("new requests are refused")).await;
    weir.signal("KILL");
    stream.rest().await;
    assert!(!weir.ended().await);
    // The next process settles it.
    let again = Setup::new(&upstream.url()).section(&format!("ledger: {{ path: \"{}\" }}", weir.ledger().display()));
    let again = again.start().await;
    within("the recovered row", async {
        while weir.ask("SELECT count(*), sum(outcome = 'crashed') FROM records") != "1 1" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    verify(&weir.ledger());
    drop(again);
}

#[tokio::test]
async fn c3_http2_clients_are_told_by_goaway_and_keep_their_streams() {
    let end = Signal::new();
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).listen("h2c: true").server("drain_delay: 1h, drain: 1h").start().await;
    let rest = chat_ok().replacen(&CHAT_D.begun(), "", 1);
    upstream.push(Reply::sse().write(CHAT_D.begun()).wait(&end).write(rest));
    let client = H2Client::connect(&weir).await;
    let mut stream = client.open(CHAT, CHAT_ASK).await;
    stream.read_until("the beginning", |body| String::from_utf8_lossy(body).contains("Hel")).await;
    weir.signal("TERM");
    client.is_told_to_leave().await;
    end.fire();
    stream.rest().await;
    assert_eq!((stream.received.freeze(), stream.error.is_none()), (bytes(&chat_seen()), true));
}
