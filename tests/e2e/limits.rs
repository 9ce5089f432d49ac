//! G2 and G3: limits hold, refusals say which and until when, and nothing that was reserved stays reserved.

use crate::harness::*;
use serde_json::Value;
use std::time::Duration;

const CHAT_D: Dialect = Dialect::ALL[0];

/// What the client's key has used, by `/api/limits`.
async fn standing(weir: &Weir) -> Value {
    let page = get(weir.admin, "/api/limits").await.expect("the page").json();
    let key = page["keys"].as_array().expect("keys").iter().find(|key| key["name"] == "test");
    key.cloned().unwrap_or(Value::Null)
}

/// Waits until nothing runs and nothing is reserved; answers what was spent in all, in USD.
async fn at_rest(weir: &Weir, when: &str) -> String {
    within(&format!("nothing to be held {when}"), async {
        loop {
            let standing = standing(weir).await;
            if standing["running"] == 0 && standing["reserved_usd"] == "0.000000000" {
                return standing["spent_usd"]["total"].as_str().expect("USD").to_owned();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

/// Type and code of an error, in whichever envelope.
fn error(received: &Received) -> (String, String) {
    let json = received.json();
    let word = |name: &str| json["error"][name].as_str().unwrap_or_default().to_owned();
    (word("type"), word("code"))
}

fn message(received: &Received) -> String {
    received.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn g2_g3_requests_per_minute_are_refused_in_each_clients_words() {
    for dialect in Dialect::ALL {
        let upstream = Upstream::start(Reply::stream((dialect.ok)())).await;
        let weir = Setup::new(&upstream.url()).own_key("rpm: 3").start().await;
        for _ in 0..3 {
            let received = weir.post(dialect.path, dialect.ask()).await;
            assert_eq!(received.status(), 200);
            assert_eq!(received.head.get("x-ratelimit-limit-requests"), None, "limit_headers is off");
        }
        let refused = weir.post(dialect.path, dialect.ask()).await;
        assert_eq!(refused.status(), 429, "{}", dialect.name);
        let wait: u64 = refused.head.get("retry-after").expect("retry-after").parse().expect("seconds");
        assert!((1..=61).contains(&wait), "{wait}");
        let said = message(&refused);
        assert!(said.contains("this API key") && said.contains("3 requests per minute"), "{said}");
        if dialect.name == "messages" {
            assert_eq!(error(&refused).0, "rate_limit_error");
            assert_eq!(refused.head.get("anthropic-ratelimit-requests-limit"), Some("3"));
            assert_eq!(refused.head.get("anthropic-ratelimit-requests-remaining"), Some("0"));
            assert!(refused.head.get("anthropic-ratelimit-requests-reset").expect("a moment").ends_with('Z'));
        } else {
            assert_eq!(error(&refused), ("requests".into(), "rate_limit_exceeded".into()));
            assert_eq!(refused.head.get("x-ratelimit-limit-requests"), Some("3"));
            assert_eq!(refused.head.get("x-ratelimit-remaining-requests"), Some("0"));
            assert!(refused.head.get("x-ratelimit-reset-requests").expect("a time").ends_with('s'));
        }
        let record = weir.record(refused.id()).await;
        assert_eq!((word(&record), field(&record, "cause")), ("rejected".into(), "rpm".into()), "{record}");
        assert_eq!(weir.metric("weir_limit_rejections_total", &["limit=\"rpm\""]).await, 1.0);
        assert_eq!(upstream.count(), 3);
        until("the rows, none for what was refused", || weir.ask("SELECT count(*) FROM records") == "3").await;
    }
}

#[tokio::test]
async fn b233_g2_a_slot_is_free_when_its_request_ends_or_its_client_leaves() {
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.begun()).hang()).await;
    let weir = Setup::new(&upstream.url()).own_key("concurrent: 1").start().await;
    let mut client = Client::connect(&weir).await;
    client.open(CHAT, CHAT_ASK).await;
    client.read_past("Hel").await;
    let refused = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!((refused.status(), error(&refused).1), (429, "rate_limit_exceeded".into()));
    assert_eq!(refused.head.get("retry-after"), Some("1"));
    upstream.set_default(Reply::stream(chat_ok()));
    drop(client);
    at_rest(&weir, "once it has left").await;
    // One after the other, each on a connection of its own: the slot is free once the end was read.
    for _ in 0..50 {
        assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 200);
    }
    upstream.set_default(Reply::json(200, (CHAT_D.json)()));
    for _ in 0..50 {
        assert_eq!(weir.post(CHAT, CHAT_D.ask_json()).await.status(), 200);
    }
    at_rest(&weir, "after all").await;
}

#[tokio::test]
async fn g2_tokens_are_reserved_and_settled_with_what_was_used() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let setup = Setup::new(&upstream.url()).own_key("tpm: 1000").server("limit_headers: true");
    let weir = setup.start().await;
    let ask = |most: u64| CHAT_ASK.replace("\"stream\"", &format!("\"max_tokens\":{most},\"stream\""));
    let received = weir.post(CHAT, ask(900)).await;
    let left: u64 = received.head.get("x-ratelimit-remaining-tokens").expect("a header").parse().expect("tokens");
    assert!((60..100).contains(&left), "900 and the prompt are reserved: {left}");
    at_rest(&weir, "once it has ended").await;
    // 14 were used, so 900 go again; 1000 never do.
    assert_eq!(weir.post(CHAT, ask(900)).await.status(), 200);
    let refused = weir.post(CHAT, ask(1000)).await;
    assert_eq!((refused.status(), refused.head.get("x-should-retry")), (429, Some("false")));
    assert!(message(&refused).contains("more than the 1000 tokens per minute"), "{}", message(&refused));
    // Who names no maximum is not shut out by what Weir guesses.
    let mut client = Client::connect(&weir).await;
    upstream.set_default(Reply::sse().write(CHAT_D.begun()).hang());
    at_rest(&weir, "before the guess").await;
    let refused = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(refused.status(), 429, "all of a minute, of which 28 are gone");
    assert_eq!(refused.head.get("x-should-retry"), None);
    client.open(CHAT, ask(800)).await;
    let refused = weir.post(CHAT, ask(800)).await;
    assert_eq!((refused.status(), error(&refused).0), (429, "tokens".into()));
}

#[tokio::test]
async fn g2_a_models_limits_are_those_of_all_keys_together() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let setup = Setup::new(&upstream.url()).model("rpm: 2").key("other", "other-secret", "models: [\"*\"]");
    let weir = setup.start().await;
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 200);
    let other = [("authorization", "Bearer other-secret")];
    assert_eq!(weir.post_with(CHAT, &other, CHAT_ASK).await.status(), 200);
    let refused = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(refused.status(), 429);
    assert!(message(&refused).contains("this model"), "{}", message(&refused));
    assert_eq!(weir.post_with("/v1/embeddings", &other, r#"{"model":"public-model","input":"x"}"#).await.status(), 429);
}

#[tokio::test]
async fn g3_f7_weirs_own_headers_stand_in_place_of_the_upstreams() {
    let reply = || Reply::stream(chat_ok()).header("x-ratelimit-remaining-requests", "5").header("retry-after", "1");
    let upstream = Upstream::start(reply()).await;
    let weir = Setup::new(&upstream.url()).own_key("rpm: 10").server("limit_headers: true").start().await;
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(received.head.get("x-ratelimit-remaining-requests"), Some("9"));
    let weir = Setup::new(&upstream.url()).server("limit_headers: true").start().await;
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.head.get("x-ratelimit-remaining-requests"), None, "no limit");
    let weir = Setup::new(&upstream.url()).own_key("rpm: 10").start().await;
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.head.get("x-ratelimit-remaining-requests"), Some("5"), "B269");
}

#[tokio::test]
async fn b238_a_budget_is_reserved_given_back_spent_and_remembered() {
    let (_folder, section) = prices("prices.yaml", OWN_PRICES);
    let books = tempfile::tempdir().expect("a folder");
    let ledger = format!("ledger: {{ path: \"{}\" }}", books.path().join("weir.db").display());
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.before()).hang()).await;
    // 100 tokens of output may cost 1,800,000 nano-USD.
    let setup = Setup::new(&upstream.url()).section(&section).section(&ledger);
    let setup = setup.own_key("budgets: [{ usd: \"0.003\", per: day }, { usd: \"0.0029\", per: total }]");
    let weir = setup.clone().start().await;
    let ask = CHAT_ASK.replace("\"stream\"", "\"max_tokens\":100,\"stream\"");
    let mut first = Client::connect(&weir).await;
    first.post(CHAT, &ask).await;
    upstream.request(0).await;
    let refused = weir.post(CHAT, &ask).await;
    assert_eq!((refused.status(), error(&refused).1), (429, "insufficient_quota".into()));
    assert_eq!(refused.head.get("x-should-retry"), Some("true"), "it waits for the one that runs");
    assert_eq!(weir.metric("weir_limit_rejections_total", &["limit=\"budget\""]).await, 1.0);
    drop(first);
    assert_eq!(at_rest(&weir, "after it left").await, "0.000000000", "nothing was delivered");
    // 60 outputs: 12·3600 + 60·18000.
    let usage = r#"{"prompt_tokens":12,"completion_tokens":60}"#;
    let dear = chat_ok().replace(r#"{"prompt_tokens":12,"completion_tokens":2,"total_tokens":14}"#, usage);
    upstream.set_default(Reply::stream(dear));
    assert_eq!(weir.post(CHAT, &ask).await.status(), 200);
    assert_eq!(at_rest(&weir, "after the second").await, "0.001123200");
    for dialect in Dialect::ALL {
        let ask = dialect.ask().replace("\"max_tokens\":100,", "");
        let ask = ask.replace("\"stream\"", "\"max_tokens\":100,\"max_output_tokens\":100,\"stream\"");
        let refused = weir.post(dialect.path, ask).await;
        let status = if dialect.name == "messages" { 402 } else { 429 };
        assert_eq!((refused.status(), refused.head.get("x-should-retry")), (status, Some("false")), "{}", dialect.name);
        let said = message(&refused);
        assert!(said.contains("0.0017768 USD of 0.0029 USD in all are left"), "{said}");
        let kind = if dialect.name == "messages" { "billing_error" } else { "insufficient_quota" };
        assert_eq!(error(&refused).0, kind);
        let record = weir.record(refused.id()).await;
        assert_eq!((word(&record), field(&record, "cause")), ("rejected".into(), "budget".into()));
    }
    // What costs less still goes.
    let small = ask.replace("\"max_tokens\":100", "\"max_tokens\":70");
    assert_eq!(weir.post(CHAT, &small).await.status(), 200);
    assert!(weir.stop().await);
    let weir = setup.start().await;
    assert_eq!(standing(&weir).await["spent_usd"]["day"], "0.002246400", "from the ledger");
    assert_eq!(weir.post(CHAT, &small).await.status(), 429);
}

#[tokio::test]
async fn b239_every_failure_in_every_dialect_gives_the_reservation_back() {
    let (_folder, section) = prices("prices.yaml", OWN_PRICES);
    for dialect in Dialect::ALL {
        let error_event = match dialect.name {
            "chat" => "data: {\"error\":{\"message\":\"no\",\"code\":500}}\n\n".to_owned(),
            "responses" => typed(r#"{"type":"error","code":"server_error","message":"no","sequence_number":0}"#),
            _ => typed(r#"{"type":"error","error":{"type":"api_error","message":"no"}}"#),
        };
        let rows = [
            ("reset", Reply::reset()),
            ("401", Reply::json(401, r#"{"error":{"message":"no"}}"#)),
            ("429", Reply::json(429, r#"{"error":{"message":"no"}}"#)),
            ("500", Reply::json(500, r#"{"error":{"message":"no"}}"#)),
            ("400", Reply::json(400, r#"{"error":{"message":"no","type":"invalid_request_error"}}"#)),
            ("a first error event", Reply::stream(error_event)),
            ("a stall", Reply::sse().write(dialect.before()).hang()),
            ("a break", Reply::sse().write(dialect.begun()).step(Step::Rst)),
        ];
        let upstream = Upstream::start(Reply::reset()).await;
        let setup = Setup::new(&upstream.url()).section(&section).model("concurrent: 100, tpm: 1000000");
        let setup = setup.own_key("concurrent: 1, budgets: [{ usd: \"1000\", per: total }]");
        let weir =
            setup.defaults("timeouts: { first_content: 100ms }, health: { cooldown: 1ms, cooldown_account: 1ms }");
        let weir = weir.start().await;
        for (when, reply) in rows {
            upstream.set_default(reply);
            let mut client = Client::connect(&weir).await;
            client.post(dialect.path, dialect.ask()).await;
            client.receive().await;
            at_rest(&weir, &format!("after {when}, {}", dialect.name)).await;
        }
        // No connection at all.
        drop(upstream);
        weir.post(dialect.path, dialect.ask()).await;
        at_rest(&weir, "without an upstream").await;
        within("the model's slots", async {
            while get(weir.admin, "/api/limits").await.expect("the page").json()["models"][0]["running"] != 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn b241_b146_what_limits_count_and_what_the_ledger_says_are_the_same() {
    let (_folder, section) = prices("prices.yaml", OWN_PRICES);
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let setup = Setup::new(&upstream.url()).section(&section).own_key("budgets: [{ usd: \"100\", per: month }]");
    let weir = setup.defaults("health: { cooldown: 1ms }").start().await;
    let mut clients = tokio::task::JoinSet::new();
    for at in 0..20_u64 {
        let address = weir.address;
        clients.spawn(async move {
            for round in 0..20_u64 {
                let mut client = Client::connect_to(address).await;
                client.send(request(CHAT, &[], CHAT_ASK.as_bytes())).await;
                if (at + round) % 4 == 0 {
                    let _ = tokio::time::timeout(Duration::from_millis(round), client.try_head()).await;
                } else {
                    client.receive().await;
                }
            }
        });
    }
    for at in 0..100 {
        match at % 3 {
            0 => upstream.push(Reply::json(500, "{}")),
            1 => upstream.push(Reply::sse().write(CHAT_D.begun()).step(Step::Rst)),
            _ => upstream.push(Reply::stream(chat_ok())),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    while clients.join_next().await.is_some() {}
    let spent = at_rest(&weir, "after all").await;
    let nano = || weir.ask("SELECT sum(charge) FROM records").parse::<i64>().unwrap_or(0);
    let usd = |nano: i64| format!("{}.{:09}", nano / 1_000_000_000, nano % 1_000_000_000);
    until("the ledger to have it all", || weir.ask("SELECT count(*) FROM open") == "0" && usd(nano()) == spent).await;
    assert!(nano() > 100 * 79_200, "{spent}");
}

fn long(events: usize) -> String {
    CHAT_ROLE.to_owned() + &chat_delta("the quick brown fox jumps over the lazy dog ").repeat(events)
}

#[tokio::test]
async fn g2_e3_a_budget_that_runs_out_in_a_stream_ends_it_or_lets_it_end() {
    let (_folder, section) = prices("prices.yaml", OWN_PRICES);
    // 11 tokens an event by the estimate: 100 events are 19,800,000 nano-USD.
    let whole = long(500) + CHAT_FINISH + DONE;
    for on_reached in ["finish", "cut"] {
        // Piece by piece, each once the client has the one before it: what is read at once goes out at once, and only
        // then its charge is looked at.
        let next = Signal::new();
        let pieces = whole.as_bytes().chunks(1_000);
        let upstream = Upstream::start(pieces.fold(Reply::sse(), |reply, piece| reply.write(piece).wait(&next))).await;
        let key = format!("budgets: [{{ usd: \"0.02\", per: day }}], on_reached: {on_reached}");
        let weir = Setup::new(&upstream.url()).section(&section).own_key(&key).model("default_max_tokens: 10");
        let weir = weir.start().await;
        let mut client = Client::connect(&weir).await;
        let head = client.open(CHAT, CHAT_ASK).await;
        next.fire();
        while client.chunk().await.is_some() {
            next.fire();
        }
        let received = Received { head, body: client.body.clone().freeze(), ended: client.ended };
        let row = weir.booked(received.id()).await;
        if on_reached == "finish" {
            assert_eq!(received.text(), whole);
            assert_eq!(field(&row, "outcome"), "completed");
            at_rest(&weir, on_reached).await;
            assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 429, "the next one is refused");
        } else {
            let text = received.text();
            let end = "data: {\"error\":{\"message\":\"The budget of this API key is used up\",\"type\":\"api_error\",\"code\":\"budget_exceeded\"}}\n\ndata: [DONE]\n\n";
            assert!(received.ended && text.ends_with(end), "{}", &text[text.len().saturating_sub(400)..]);
            let events = text.matches("quick").count();
            assert!((90..125).contains(&events), "{events} events");
            assert_eq!(text, long(events) + end, "cut between two events");
            assert_eq!((field(&row, "outcome"), field(&row, "cause")), ("budget_reached".into(), "budget".into()));
            assert!(number(&row, "charge").is_some_and(|nano| nano > 15_000_000), "{row}");
        }
        at_rest(&weir, on_reached).await;
    }
    // The others' words.
    for (dialect, end) in [(Dialect::ALL[1], "\"code\":\"rate_limit_exceeded\""), (Dialect::ALL[2], "billing_error")] {
        let delta = match dialect.name {
            "responses" => typed(
                r#"{"type":"response.output_text.delta","sequence_number":4,"item_id":"i","output_index":0,"content_index":0,"delta":"the quick brown fox jumps over the lazy dog "}"#,
            ),
            _ => typed(
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"the quick brown fox jumps over the lazy dog "}}"#,
            ),
        };
        let upstream = Upstream::start(Reply::sse().pieces(dialect.before() + &delta.repeat(500), 1_000).hang()).await;
        let key = "budgets: [{ usd: \"0.02\", per: day }], on_reached: cut";
        let weir = Setup::new(&upstream.url()).section(&section).own_key(key).model("default_max_tokens: 10");
        let weir = weir.start().await;
        let received = weir.post(dialect.path, dialect.ask().replace("\"max_tokens\":100,", "")).await;
        assert!(received.text().contains(end), "{}", dialect.name);
        assert_eq!(word(&weir.record(received.id()).await), "budget_reached");
    }
}

#[tokio::test]
async fn a1_a_providers_keys_are_used_by_weight_and_as_far_as_they_bear() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let settings = "api_keys: [{ key: one, rpm: 5 }, { key: two, rpm: 10, weight: 3 }]";
    let weir = Setup::with_provider(&upstream.url(), settings).start().await;
    for _ in 0..15 {
        assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 200);
    }
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 503, "no key bears one more");
    let used = |key: &str| {
        let header = format!("Bearer {key}");
        upstream.requests().iter().filter(|request| request.header("authorization") == Some(&header)).count()
    };
    assert_eq!((used("one"), used("two")), (5, 10));
    let weighted = Setup::with_provider(&upstream.url(), "api_keys: [one, { key: two, weight: 9 }]").start().await;
    for _ in 0..100 {
        weighted.post(CHAT, CHAT_ASK).await;
    }
    assert!((70..=100).contains(&(used("two") - 10)), "{} of 100, 90 expected", used("two") - 10);
}

#[tokio::test]
async fn c2_limits_change_at_a_reload_and_what_was_used_stays() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).own_key("rpm: 2").start().await;
    for status in [200, 200, 429] {
        assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), status);
    }
    assert_eq!(weir.reload(&weir.config().replace("rpm: 2", "rpm: 4")).await.status(), 200);
    for status in [200, 200, 429] {
        assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), status);
    }
    assert_eq!(weir.reload(&weir.config().replace(", rpm: 4", "")).await.status(), 200);
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 200);
}
