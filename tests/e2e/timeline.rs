//! M4: what happened when, and who ended it, by request id; the last requests with filters.

use crate::harness::*;
use serde_json::Value;
use std::time::Duration;

const CHAT_D: Dialect = Dialect::ALL[0];

/// The page, once it has what a request leaves a moment after its end.
async fn page(weir: &Weir, path: &str, has: impl Fn(&Value) -> bool) -> Value {
    within(path, async {
        loop {
            let reply = get(weir.admin, path).await.expect("an answer");
            let body: Value = serde_json::from_slice(&reply.body).expect("JSON");
            if reply.head.status == 200 && has(&body) {
                return body;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

async fn timeline(weir: &Weir, id: &str) -> Value {
    let has = |body: &Value| body.get("timeline").is_some();
    page(weir, &format!("/api/requests/{id}"), has).await
}

fn ids(list: &Value) -> Vec<String> {
    let id = |row: &Value| row["request_id"].as_str().unwrap().to_owned();
    list["requests"].as_array().unwrap().iter().map(id).collect()
}

fn ms(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no time"))
}

#[tokio::test]
async fn m4_a_failover_with_a_silence_is_told_attempt_by_attempt() {
    let first = Upstream::start(Reply::json(500, "{}")).await;
    let rest = chat_ok().split_off(CHAT_D.begun().len());
    let go_on = Signal::new();
    let second = Upstream::start(Reply::sse().write(CHAT_D.begun()).wait(&go_on).pause(300).write(rest)).await;
    let setup = Setup::new(&first.url())
        .target(&second.url(), "")
        .defaults("retry: { attempts: 2 }, keepalive: { interval: 100ms }");
    let weir = setup.start().await;
    let mut client = Client::connect(&weir).await;
    let answer = client.open(CHAT, CHAT_ASK).await;
    client.read_past("Hel").await;
    client.read_until("a keepalive in the silence", |body| body.ends_with(KEEPALIVE.as_bytes())).await;
    // What the client has read was read from the upstream before: from here on it is silent for 300 ms.
    go_on.fire();
    client.rest().await;
    weir.booked(answer.id()).await;
    let told = timeline(&weir, answer.id()).await;
    let line = &told["timeline"];
    assert_eq!((told["outcome"].as_str(), line["ended_by"].as_str()), (Some("completed"), Some("model")), "{told}");
    let tries: Vec<_> =
        line["attempts"].as_array().unwrap().iter().map(|one| one["result"].as_str().unwrap()).collect();
    assert_eq!(tries, ["status", "ok"]);
    let gap = &line["gaps"][0];
    assert!(ms(&gap["took_ms"]) >= 300.0, "{line}");
    assert!(ms(&gap["at_ms"]) >= ms(&line["upstream_first_byte_ms"]) - 1.0, "{line}");
    assert!(line["keepalives"].as_u64() >= Some(1) && ms(&line["first_keepalive_ms"]) >= 99.0, "{line}");
    let order = ["admitted_ms", "upstream_first_byte_ms", "first_output_ms", "last_write_ms", "duration_ms"];
    for pair in order.windows(2) {
        assert!(ms(&line[pair[0]]) <= ms(&line[pair[1]]), "{pair:?}: {line}");
    }
    assert_eq!(told["timeline_from"], "ring");
    assert!(!told["charged"].is_null(), "with the row of the ledger");
}

#[tokio::test]
async fn m4_who_cut_this_stream() {
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.begun()).hang()).await;
    let model = |name: &str, clock: &str| {
        format!("{{ name: {name}, targets: [{{ provider: up, model: m }}], timeouts: {{ {clock} }} }}")
    };
    let setup = Setup::new(&upstream.url())
        .other_model(&model("hasty", "idle: 400ms"))
        .other_model(&model("bounded", "total: 900ms"));
    let weir = setup.start().await;
    // The model goes silent.
    let id = weir.post(CHAT, CHAT_ASK.replace("public-model", "hasty")).await.id().to_owned();
    let line = timeline(&weir, &id).await["timeline"].clone();
    assert_eq!((line["ended_by"].as_str(), line["outcome"].as_str()), (Some("model"), Some("stalled")), "{line}");
    assert!(line["why"].as_str().unwrap().contains("timeouts.idle"), "{line}");
    assert!(ms(&line["gaps"][0]["took_ms"]) >= 300.0, "the silence that ended it is the longest: {line}");
    // The client leaves.
    let mut client = Client::connect(&weir).await;
    client.post(CHAT, CHAT_ASK).await;
    client.head().await;
    client.read_until("output", |body| body.len() >= CHAT_D.begun().len()).await;
    drop(client);
    let left = page(&weir, "/api/requests?outcome=client_gone", |list| !ids(list).is_empty()).await;
    assert_eq!(left["requests"][0]["ended_by"], "client", "{left}");
    // Weir has its own bound.
    let mut talks = Reply::sse().write(CHAT_D.begun());
    for _ in 0..100 {
        talks = talks.pause(50).write(chat_delta("on "));
    }
    upstream.push(talks);
    let id = weir.post(CHAT, CHAT_ASK.replace("public-model", "bounded")).await.id().to_owned();
    let line = timeline(&weir, &id).await["timeline"].clone();
    assert_eq!((line["ended_by"].as_str(), line["outcome"].as_str()), (Some("weir"), Some("timeout")), "{line}");
    // Weir refuses: no row in the ledger, a timeline all the same.
    let refused = weir.post_with(CHAT, &[("authorization", "Bearer wrong")], CHAT_ASK).await;
    assert_eq!(refused.status(), 401);
    let told = timeline(&weir, refused.id()).await;
    assert_eq!((told["timeline"]["ended_by"].as_str(), told["timeline"]["status"].as_u64()), (Some("weir"), Some(401)));
    assert!(told.get("charge").is_none(), "it was never dispatched: {told}");
}

#[tokio::test]
async fn m4_the_list_has_filters_and_goes_on_in_the_ledger() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let setup =
        Setup::new(&upstream.url()).section("timelines: { keep: 2 }").key("other", "other-key", "models: [\"*\"]");
    let weir = setup.start().await;
    let mut sent = Vec::new();
    for at in 0..5 {
        let secret = if at == 1 { "Bearer other-key" } else { "Bearer test-key" };
        let own = format!("own-{at}");
        let answer = weir.post_with(CHAT, &[("authorization", secret), ("x-request-id", &own)], CHAT_ASK).await;
        sent.push(answer.id().to_owned());
        weir.booked(&sent[at]).await;
    }
    sent.reverse();
    let all = page(&weir, "/api/requests", |list| list["kept"] == 2).await;
    assert_eq!(ids(&all), sent, "two of the ring, three of the ledger, newest first, none twice");
    let shape = |row: &Value| row.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(shape(&all["requests"][0]), shape(&all["requests"][4]), "both tell the same");
    let table = [
        ("key=other".to_owned(), vec![&sent[3]]),
        ("limit=2".to_owned(), vec![&sent[0], &sent[1]]),
        (format!("limit=2&before={}", sent[1]), vec![&sent[2], &sent[3]]),
        ("model=public-model&target=up/upstream-model&outcome=completed,stalled&limit=1".to_owned(), vec![&sent[0]]),
        ("model=none".to_owned(), vec![]),
        ("outcome=stalled".to_owned(), vec![]),
        ("id=own-0".to_owned(), vec![&sent[4]]),
        ("id=own-4".to_owned(), vec![&sent[0]]),
        ("since=1h&limit=1".to_owned(), vec![&sent[0]]),
        ("until=1h".to_owned(), vec![]),
    ];
    for (query, expected) in table {
        let list = page(&weir, &format!("/api/requests?{query}"), |_| true).await;
        assert_eq!(ids(&list).iter().collect::<Vec<_>>(), expected, "{query}");
    }
    let old = timeline(&weir, &sent[4]).await;
    assert_eq!((old["timeline_from"].as_str(), old["timeline"]["ended_by"].as_str()), (Some("ledger"), Some("model")));
}

#[tokio::test]
async fn m4_what_runs_is_told_too() {
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.begun()).hang()).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let mut client = Client::connect(&weir).await;
    client.post(CHAT, CHAT_ASK).await;
    let head = client.head().await;
    let id = head.id().to_owned();
    let running = page(&weir, "/api/running", |list| !list["running"].as_array().unwrap().is_empty()).await;
    assert_eq!(
        (&running["running"][0]["request_id"], &running["running"][0]["key"]),
        (&id.clone().into(), &"test".into())
    );
    let one = page(&weir, &format!("/api/requests/{id}"), |_| true).await;
    assert_eq!((&one["running"], &one["model"]), (&true.into(), &"public-model".into()));
}
