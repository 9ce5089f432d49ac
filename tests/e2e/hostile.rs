//! Peers that mean harm, on both sides: what they send is bounded in time, memory and effect.

use crate::harness::*;
use std::time::{Duration, Instant};

const CHAT_D: Dialect = Dialect::ALL[0];

/// An upstream that writes faster than it is read, for longer than any test waits.
fn flood(reply: Reply, piece: &str) -> Reply {
    let block = piece.repeat(64 * 1024 / piece.len());
    (0..1000).fold(reply, |reply, _| reply.write(&block))
}

#[tokio::test]
async fn s1_the_clocks_run_while_the_upstream_never_pauses() {
    let rows = [("total: 400ms", "timeout", "total"), ("no_output: 400ms", "stalled", "no_output")];
    for (timeouts, outcome, cause) in rows {
        let upstream = Upstream::start(flood(Reply::sse().write(CHAT_D.begun()), ":\n\n")).await;
        let weir = Setup::new(&upstream.url()).model(&format!("timeouts: {{ {timeouts} }}")).start().await;
        let mut client = Client::connect(&weir).await;
        let began = Instant::now();
        client.open(CHAT, CHAT_ASK).await;
        client.read_past("\"error\"").await;
        assert!(began.elapsed() < Duration::from_secs(5), "{timeouts}: {:?}", began.elapsed());
        let record = weir.only_record().await;
        assert_eq!((word(&record).as_str(), field(&record, "cause").as_str()), (outcome, cause), "{record}");
    }
}

#[tokio::test]
async fn f9_non_stream_runs_while_the_upstream_never_pauses() {
    let reply = flood(Reply::sse().header("content-type", "application/json"), " ");
    let upstream = Upstream::start(reply).await;
    let weir = Setup::new(&upstream.url()).model("timeouts: { non_stream: 400ms }").start().await;
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
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
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
