//! Issue 9: the webhook is told what a person must see at once, and that it is over.

use crate::harness::*;
use std::time::Duration;

fn alerts(receiver: &Upstream) -> String {
    format!("alerts: {{ webhook: \"{}/hook/secret-token?b=2\" }}", receiver.url())
}

fn words(notice: &serde_json::Value) -> [&str; 3] {
    ["alert", "state", "subject"].map(|name| notice[name].as_str().unwrap_or_default())
}

#[tokio::test]
async fn l5_a_ledger_that_cannot_be_written_is_told_and_its_recovery_too() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let receiver = Upstream::start(Reply::json(200, "{}")).await;
    // It is restarting: the notice comes again.
    receiver.push(Reply::json(503, "{}"));
    let ledger = "ledger: { on_failure: serve }";
    let weir = Setup::new(&upstream.url()).section(ledger).section(&alerts(&receiver)).start().await;
    let stalled = rusqlite::Connection::open(weir.ledger()).unwrap();
    stalled.busy_timeout(Duration::from_mins(1)).unwrap();
    stalled.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(weir.post("/v1/chat/completions", CHAT_ASK).await.text(), chat_seen());
    let first = receiver.request(0).await;
    let firing = receiver.request(1).await;
    assert_eq!((first.body == firing.body, firing.path.as_str()), (true, "/hook/secret-token?b=2"));
    assert_eq!(firing.header("content-type"), Some("application/json"));
    assert_eq!(words(&firing.json()), ["ledger_broken", "firing", "ledger"]);
    for name in ["since", "summary", "what_to_do"] {
        assert!(firing.json()[name].as_str().is_some_and(|text| !text.is_empty()), "{name}: {}", firing.json());
    }
    drop(stalled);
    assert_eq!(words(&receiver.request(2).await.json()), ["ledger_broken", "resolved", "ledger"]);
    assert_eq!(receiver.count(), 3);
    assert!(!weir.said().contains("secret-token"), "the URL is a secret");
}

#[tokio::test]
async fn a6_a8_a_model_without_a_target_is_told_to_the_url_of_a_reload() {
    let upstream = Upstream::start(Reply::json(401, r#"{"error":{"message":"bad key"}}"#)).await;
    let receiver = Upstream::start(Reply::json(204, "")).await;
    let weir = Setup::new(&upstream.url()).section("alerts: { webhook: \"\" }").start().await;
    assert_eq!(weir.post("/v1/chat/completions", CHAT_ASK).await.status(), 503);
    let config = weir.config().replace("alerts: { webhook: \"\" }", &alerts(&receiver));
    let answer = weir.reload(&config).await;
    assert_eq!(answer.json()["changed"], serde_json::json!(["alerts: changed"]));
    let notices = [receiver.request(0).await.json(), receiver.request(1).await.json()];
    assert_eq!(words(&notices[0]), ["provider_account", "firing", "up"]);
    assert_eq!(words(&notices[1]), ["model_down", "firing", "public-model"]);
    upstream.set_default(Reply::stream(chat_ok()));
    assert_eq!(weir.post("/v1/chat/completions", CHAT_ASK).await.status(), 200);
    let notices = [receiver.request(2).await.json(), receiver.request(3).await.json()];
    assert_eq!(words(&notices[0]), ["provider_account", "resolved", "up"]);
    assert_eq!(words(&notices[1]), ["model_down", "resolved", "public-model"]);
    assert!(!weir.said().contains("secret-token"), "the URL is a secret");
}
