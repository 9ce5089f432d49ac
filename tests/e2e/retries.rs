//! A1, A5, A7, A8: which target, how often, how soon, and for how long it is left alone.

use crate::harness::*;
use std::time::{Duration, Instant};

/// A stream that says who answered.
fn signed(name: &str) -> Reply {
    Reply::stream([CHAT_ROLE, &chat_delta(name), CHAT_FINISH, CHAT_USAGE, DONE].concat())
}

const HEALTHY: &str = "weir_target_healthy";

#[tokio::test]
async fn b140_b143_retry_after_is_waited_for_on_the_last_target() {
    // Too long a hint is not waited for at all (A5), so whatever is waited for is less than ten seconds.
    let rows = [
        ("retry-after", "1", 1_000),
        ("retry-after-ms", "700", 700),
        ("retry-after", "a date", 1_000),
        ("retry-after", "-1", 0),
        ("retry-after", "", 0),
        ("retry-after", "abc", 0),
        ("retry-after", "1e9", 0),
    ];
    let mut tasks = tokio::task::JoinSet::new();
    for (name, value, least) in rows {
        let (name, mut value) = (name.to_owned(), value.to_owned());
        tasks.spawn(async move {
            let upstream = Upstream::start(Reply::stream(chat_ok())).await;
            let weir = Setup::new(&upstream.url()).defaults("retry: { attempts: 2 }").start().await;
            if value == "a date" {
                // Whole seconds.
                value = httpdate::fmt_http_date(std::time::SystemTime::now() + Duration::from_secs(7));
            }
            upstream.push(Reply::json(429, "{}").header(&name, &value));
            let began = Instant::now();
            let received = weir.post(CHAT, CHAT_ASK).await;
            let took = began.elapsed().as_millis();
            assert_eq!(received.text(), chat_seen(), "{name}: {value}");
            assert!((least..20_000).contains(&took), "{name}: {value} took {took} ms");
            assert_eq!(tries(&weir.record(received.id()).await), ["up:rate_limited", "up:ok"]);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

#[tokio::test]
async fn a5_b142_a_longer_hint_is_the_clients_to_wait_for() {
    let body = r#"{"error":{"message":"slow down","type":"rate_limit_error","code":"rate_limit_exceeded"}}"#;
    let upstream = Upstream::start(Reply::json(429, body).header("retry-after", "561600")).await;
    let weir = Setup::new(&upstream.url()).defaults("retry: { attempts: 3 }").start().await;
    let began = Instant::now();
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!((received.status(), received.head.get("retry-after")), (429, Some("561600")));
    assert_eq!(received.head.get("x-should-retry"), Some("false"));
    assert_eq!(received.json()["error"]["message"], "slow down");
    assert!(began.elapsed() < Duration::from_secs(40));
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a5_with_another_target_left_it_is_asked_at_once() {
    let first = Upstream::start(Reply::json(429, "{}").header("retry-after", "120")).await;
    let second = Upstream::start(signed("second")).await;
    let weir = Setup::new(&first.url()).target(&second.url(), "").defaults("retry: { attempts: 3 }").start().await;
    let began = Instant::now();
    assert!(weir.post(CHAT, CHAT_ASK).await.text().contains("second"));
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    // A8: and the first is left alone.
    assert_eq!(weir.metric(HEALTHY, &["target=\"up/"]).await, 0.0);
    assert!(weir.post(CHAT, CHAT_ASK).await.text().contains("second"));
    assert_eq!((first.count(), second.count()), (1, 2));
}

#[tokio::test]
async fn a5_attempts_and_deadline_bound_the_tries() {
    let [first, second] =
        [Upstream::start(Reply::json(500, "{}")).await, Upstream::start(Reply::json(502, "{}")).await];
    let weir = Setup::new(&first.url()).target(&second.url(), "").defaults("retry: { attempts: 3 }").start().await;
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(received.status(), 500);
    assert_eq!(first.count() + second.count(), 3);
    let tried = tries(&weir.record(received.id()).await);
    assert_eq!(&tried[..2], ["up:status", "up2:status"]);
    // The backoff before the next try of a target would end after the deadline.
    let slow = Upstream::start(Reply::json(500, "{}").first(Step::Pause(Duration::from_millis(400)))).await;
    let weir = Setup::new(&slow.url()).defaults("retry: { attempts: 3, deadline: 450ms }").start().await;
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 500);
    assert_eq!(slow.count(), 1);
}

#[tokio::test]
async fn a2_retry_on_is_the_operators_list() {
    let [first, second] = [Upstream::start(Reply::json(409, "{}")).await, Upstream::start(signed("second")).await];
    for (on, status, asked) in [("[409]", 200, 1), ("[5xx]", 409, 1)] {
        let weir = Setup::new(&first.url())
            .target(&second.url(), "")
            .defaults(&format!("retry: {{ attempts: 2, on: {on} }}"))
            .start()
            .await;
        assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), status, "{on}");
        assert_eq!(second.count(), asked, "{on}");
    }
}

#[tokio::test]
async fn a7_the_most_telling_failure_is_told() {
    let busy =
        || Reply::json(429, r#"{"error":{"message":"slow down","type":"t","code":"c"}}"#).header("retry-after", "9");
    let overloaded = || Reply::json(529, r#"{"error":{"message":"overloaded","type":"t","code":"c"}}"#);
    let broken = || Reply::json(500, r#"{"error":{"message":"sorry","type":"t","code":"c"}}"#);
    let rows: [(&str, [Reply; 2], u16); 5] = [
        ("429 before 500", [broken(), busy()], 429),
        ("429 before 529", [busy(), overloaded()], 429),
        ("529 before 500", [broken(), overloaded()], 529),
        ("500 before silence", [Reply::silent(), broken()], 500),
        ("silence before no answer", [Reply::reset(), Reply::silent()], 504),
    ];
    for (name, [one, two], status) in rows {
        let [first, second] = [Upstream::start(one).await, Upstream::start(two).await];
        let soon = if name.contains("silence") { ", timeouts: { first_byte: 3s }" } else { "" };
        let weir = Setup::new(&first.url())
            .target(&second.url(), "")
            .defaults(&format!("retry: {{ attempts: 2 }}{soon}"))
            .start()
            .await;
        let received = weir.post(CHAT, CHAT_ASK).await;
        assert_eq!(received.status(), status, "{name}: {}", received.text());
        assert_eq!(received.head.get("x-should-retry"), Some("false"), "{name}");
        assert_eq!(received.head.get("retry-after"), (status == 429).then_some("9"), "{name}");
    }
}

#[tokio::test]
async fn a1_priorities_weights_and_affinity() {
    let up = [signed("one"), signed("two"), signed("three")];
    let [one, two, three] = up.map(Upstream::start);
    let (one, two, three) = tokio::join!(one, two, three);
    let provider = |name: &str, up: &Upstream| format!("{name}: {{ base_url: \"{}\", api_key: k }}", up.url());
    let targets = "[{ provider: a, model: m, weight: 8 }, { provider: b, model: m, weight: 2 }, \
                   { provider: c, model: m, priority: 1 }]";
    let weir = Setup::default()
        .provider(&provider("a", &one))
        .provider(&provider("b", &two))
        .provider(&provider("c", &three))
        .other_model(&format!("{{ name: public-model, targets: {targets} }}"))
        .other_model(&format!("{{ name: sticky, affinity: [user, prompt_cache_key], targets: {targets} }}"))
        .defaults("retry: { attempts: 3 }")
        .start()
        .await;
    let mut client = Client::connect(&weir).await;
    for _ in 0..200 {
        client.open(CHAT, CHAT_ASK).await;
        client.rest().await;
    }
    assert!((130..=185).contains(&one.count()), "160 of 200 expected: {}", one.count());
    assert_eq!((one.count() + two.count(), three.count()), (200, 0));
    let mut homes = std::collections::BTreeSet::new();
    for user in 0..12 {
        let ask = CHAT_ASK.replace("public-model", "sticky").replacen('{', &format!("{{\"user\":\"user-{user}\","), 1);
        let before = [one.count(), two.count()];
        for _ in 0..5 {
            client.open(CHAT, &ask).await;
            client.rest().await;
        }
        let went = [one.count() - before[0], two.count() - before[1]];
        assert!(went == [5, 0] || went == [0, 5], "user {user} went {went:?}");
        homes.insert(went);
    }
    assert_eq!(homes.len(), 2, "not all users share one target");
}

#[tokio::test]
async fn a1_a_full_target_is_passed_over_and_a_full_model_is_503() {
    let go_on = Signal::new();
    let first = Upstream::start(signed("first").first(Step::Wait(go_on.clone()))).await;
    let second = Upstream::start(signed("second").first(Step::Wait(go_on.clone()))).await;
    let weir = Setup::default()
        .provider(&format!("up: {{ base_url: \"{}\", api_key: k }}", first.url()))
        .provider(&format!("up2: {{ base_url: \"{}\", api_key: k }}", second.url()))
        .other_model(
            "{ name: public-model, targets: [{ provider: up, model: m, max_concurrent: 1 }, \
             { provider: up2, model: m, max_concurrent: 1, priority: 1 }] }",
        )
        .start()
        .await;
    let mut clients = [Client::connect(&weir).await, Client::connect(&weir).await];
    clients[0].post(CHAT, CHAT_ASK).await;
    first.request(0).await;
    clients[1].post(CHAT, CHAT_ASK).await;
    second.request(0).await;
    for dialect in Dialect::ALL {
        let refused = weir.post(dialect.path, dialect.ask()).await;
        assert_eq!((refused.status(), refused.head.get("retry-after")), (503, Some("1")), "{}", refused.text());
        let record = weir.record(refused.id()).await;
        assert_eq!((word(&record).as_str(), field(&record, "cause").as_str()), ("upstream_error", "busy"), "{record}");
    }
    // B233: a client that leaves frees its slot.
    let [one, two] = clients;
    drop(one);
    first.gone(0).await;
    // Its record comes after the slot is free: three refusals, and this one.
    weir.all_records(4).await;
    first.set_default(signed("free"));
    assert!(weir.post(CHAT, CHAT_ASK).await.text().contains("free"));
    drop(two);
}

#[tokio::test]
async fn a6_a_key_without_money_is_left_alone_and_the_next_is_used() {
    let quota = r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}"#;
    let wrong = r#"{"error":{"message":"Incorrect API key provided: key-bad","type":"invalid_request_error","code":"invalid_api_key"}}"#;
    for (status, body) in [(401, wrong), (402, "{}"), (429, quota), (403, quota)] {
        let upstream = Upstream::start(signed("paid")).await;
        upstream.when("Bearer key-bad", Reply::json(status, body));
        let weir = Setup::with_provider(&upstream.url(), "api_keys: [key-bad, key-good]")
            .defaults("retry: { attempts: 2 }")
            .start()
            .await;
        // Until the draw falls on it, and then no more.
        let mut after = 0;
        while after < 12 {
            let received = weir.post(CHAT, CHAT_ASK).await;
            assert!(received.text().contains("paid"), "{status}: {}", received.text());
            after += upstream.asked("Bearer key-bad");
        }
        weir.all_records(upstream.count() - 1).await;
        assert_eq!(upstream.asked("Bearer key-bad"), 1, "{status}");
        assert_eq!(weir.metric("weir_attempts_total", &["result=\"account\""]).await, 1.0);
        assert_eq!(weir.metric(HEALTHY, &[]).await, 1.0, "one key works");
    }
}

#[tokio::test]
async fn a6_when_no_key_works_it_is_503_and_never_401() {
    let wrong = r#"{"error":{"message":"Incorrect API key provided: key-a","type":"invalid_request_error","code":"invalid_api_key"}}"#;
    let upstream = Upstream::start(Reply::json(401, wrong)).await;
    let weir = Setup::with_provider(&upstream.url(), "api_keys: [key-a, key-b]")
        .defaults("retry: { attempts: 3 }")
        .start()
        .await;
    for dialect in Dialect::ALL {
        let received = weir.post(dialect.path, dialect.ask()).await;
        assert_eq!(received.status(), 503, "{}", received.text());
        assert_eq!(received.head.get("x-should-retry"), Some("false"));
        assert!(!received.text().contains("key-a"), "{}", received.text());
        if dialect.name != "messages" {
            assert_eq!(received.json()["error"]["code"], "upstream_account");
        }
        assert_eq!(word(&weir.record(received.id()).await), "upstream_error");
    }
    assert_eq!(weir.metric(HEALTHY, &[]).await, 0.0);
    // Another target is not the account's trouble.
    let second = Upstream::start(signed("second")).await;
    let weir = Setup::new(&upstream.url()).target(&second.url(), "").defaults("retry: { attempts: 2 }").start().await;
    let before = upstream.count();
    for _ in 0..3 {
        assert!(weir.post(CHAT, CHAT_ASK).await.text().contains("second"));
    }
    assert_eq!(upstream.count(), before + 1, "cooled for ten minutes");
}

#[tokio::test]
async fn a8_failures_in_a_row_cool_down_and_one_probe_ends_it() {
    let first = Upstream::start(Reply::json(500, "{}")).await;
    let second = Upstream::start(signed("second")).await;
    let weir = Setup::new(&first.url())
        .target(&second.url(), "")
        .defaults("retry: { attempts: 2 }, health: { failures: 3, cooldown: 6s }")
        .start()
        .await;
    for _ in 0..5 {
        assert!(weir.post(CHAT, CHAT_ASK).await.text().contains("second"));
    }
    assert_eq!(first.count(), 3, "left alone after three in a row");
    assert_eq!(weir.metric(HEALTHY, &["target=\"up/"]).await, 0.0);
    assert_eq!(weir.metric(HEALTHY, &["target=\"up2/"]).await, 1.0);
    // The cool-down ends; the probe hangs, and no other request joins it.
    let answer = Signal::new();
    first.set_default(signed("first").first(Step::Wait(answer.clone())));
    tokio::time::sleep(Duration::from_millis(6_050)).await;
    let mut probe = Client::connect(&weir).await;
    probe.post(CHAT, CHAT_ASK).await;
    first.request(3).await;
    for _ in 0..4 {
        assert!(weir.post(CHAT, CHAT_ASK).await.text().contains("second"));
    }
    assert_eq!(first.count(), 4, "one probe");
    answer.fire();
    let probed = probe.receive().await;
    assert!(probed.text().contains("first"));
    // Its health is judged by the time of its record, and not at the moment in which the client has the end.
    weir.record(probed.id()).await;
    first.set_default(signed("first"));
    assert!(weir.post(CHAT, CHAT_ASK).await.text().contains("first"));
    assert_eq!(weir.metric(HEALTHY, &["target=\"up/"]).await, 1.0);
}

#[tokio::test]
async fn a8_the_only_target_is_asked_even_while_it_cools() {
    let upstream = Upstream::start(signed("up")).await;
    upstream.push(Reply::json(500, "{}"));
    let weir = Setup::new(&upstream.url()).defaults("health: { failures: 1 }, retry: { attempts: 1 }").start().await;
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 500);
    assert_eq!(weir.metric(HEALTHY, &[]).await, 0.0);
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert!(received.text().contains("up"));
    weir.record(received.id()).await;
    assert_eq!(weir.metric(HEALTHY, &[]).await, 1.0);
}

#[tokio::test]
async fn b289_failing_over_leaks_no_sockets() {
    let first = Upstream::start(Reply::json(503, "x".repeat(1024))).await;
    let second = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&first.url())
        .target(&second.url(), "")
        .defaults("retry: { attempts: 2 }, health: { failures: 100000 }")
        .start()
        .await;
    let sockets = || std::fs::read_dir(format!("/proc/{}/fd", weir.pid())).expect("Linux").count();
    let mut client = Client::connect(&weir).await;
    let before = sockets();
    for _ in 0..300 {
        client.open(CHAT, CHAT_ASK).await;
        assert_eq!(client.rest().await, bytes(&chat_seen()));
    }
    assert_eq!((first.count(), second.count()), (300, 300));
    // A connection is free again a moment after its answer, which on a busy machine is too late for the next request.
    until("the sockets of 300 requests to be closed", || sockets() <= before + 12).await;
    assert!(first.connections() < 300, "its connections are used again: {}", first.connections());
    assert!(second.connections() < 300, "its connections are used again: {}", second.connections());
}
