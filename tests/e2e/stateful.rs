//! A12: responses and conversations that upstreams store go on where they lie, for the key that made them.

use crate::harness::*;
use serde_json::{Value, json};

const RESP: Dialect = Dialect::ALL[1];

/// Two targets, the second one only when the first fails.
async fn two() -> (Upstream, Upstream, Setup) {
    let (first, second) =
        (Upstream::start(Reply::stream(resp_ok())).await, Upstream::start(Reply::stream(resp_ok())).await);
    let setup = Setup::new(&first.url()).target(&second.url(), "").defaults("retry: { attempts: 2 }").key(
        "other",
        "other",
        "models: [\"*\"]",
    );
    (first, second, setup)
}

fn after(id: &str) -> String {
    json!({ "model": "public-model", "stream": true, "input": "hi", "previous_response_id": id }).to_string()
}

/// What is left of the answer when the id is another one.
fn named(stream: &str, id: &str) -> String {
    stream.replace("resp_abc", id)
}

fn is_unknown(received: &Received, param: &str) {
    assert_eq!(received.status(), 404, "{}", received.text());
    let error = &received.json()["error"];
    assert_eq!((&error["code"], &error["param"]), (&json!("not_found"), &json!(param)), "{error}");
}

#[tokio::test]
async fn a12_what_is_stored_goes_on_where_it_lies_and_nowhere_else() {
    let (first, second, setup) = two().await;
    let weir = setup.start().await;
    first.push(Reply::json(500, "{}"));
    second.push(Reply::stream(named(&resp_ok(), "resp_at_two")));
    assert_eq!(weir.post(RESPONSES, RESP.ask()).await.status(), 200);
    assert_eq!((first.count(), second.count()), (1, 1));

    // A stream, a JSON answer, and a failure, which no other target is asked about.
    assert_eq!(weir.post(RESPONSES, after("resp_at_two")).await.text(), resp_ok());
    assert_eq!((first.count(), second.count()), (1, 2));
    assert_eq!(second.request(1).await.json()["previous_response_id"], "resp_at_two");
    second.set_default(Reply::json(500, "{}"));
    assert_eq!(weir.post(RESPONSES, after("resp_at_two")).await.status(), 500);
    assert_eq!(first.count(), 1);
    second.set_default(Reply::json(200, r#"{"id":"resp_at_two","object":"response","status":"completed"}"#));

    for (method, path) in [
        ("GET", "/v1/responses/resp_at_two?include[]=x"),
        ("GET", "/v1/responses/resp_at_two/input_items"),
        ("POST", "/v1/responses/resp_at_two/cancel"),
        ("DELETE", "/v1/responses/resp_at_two"),
    ] {
        let before = second.count();
        let received = weir.call(method, path, &[]).await;
        assert_eq!(received.status(), 200, "{method} {path}: {}", received.text());
        let sent = second.request(before).await;
        assert_eq!((sent.method.as_str(), sent.path.as_str()), (method, path));
        assert_eq!(sent.header("authorization"), Some("Bearer provider-key"));
    }
    assert_eq!(first.count(), 1);
    // Deleted: nobody's any more.
    is_unknown(&weir.call("GET", "/v1/responses/resp_at_two", &[]).await, "id");
    assert_eq!(weir.call("PUT", "/v1/responses/resp_abc", &[]).await.status(), 405);
}

#[tokio::test]
async fn a12_unknown_and_another_keys_ids_are_404_alike() {
    let (first, _second, setup) = two().await;
    let weir = setup.start().await;
    assert_eq!(weir.post(RESPONSES, RESP.ask()).await.status(), 200);
    let theirs = [("x-api-key", "other")];
    is_unknown(&weir.post(RESPONSES, after("resp_none")).await, "previous_response_id");
    is_unknown(&weir.post_with(RESPONSES, &theirs, after("resp_abc")).await, "previous_response_id");
    let conversation = json!({ "model": "public-model", "input": "hi", "conversation": { "id": "conv_none" } });
    is_unknown(&weir.post(RESPONSES, conversation.to_string()).await, "conversation");
    for path in ["resp_none", "resp_none/cancel", "resp_none/input_items"] {
        let method = if path.ends_with("cancel") { "POST" } else { "GET" };
        is_unknown(&weir.call(method, &format!("/v1/responses/{path}"), &[]).await, "id");
    }
    is_unknown(&weir.call("GET", "/v1/conversations/conv_none", &[]).await, "id");
    assert_eq!(first.count(), 1, "nobody was asked");
    assert_eq!(weir.post(RESPONSES, after("resp_abc")).await.status(), 200, "one's own is there");
}

#[tokio::test]
async fn a12_an_id_that_a_client_has_seen_survives_a_kill() {
    let upstream = Upstream::start(Reply::stream(resp_ok())).await;
    let folder = tempfile::tempdir().unwrap();
    let ledger = format!("ledger: {{ path: \"{}/weir.db\" }}", folder.path().display());
    for round in 0..6 {
        let id = format!("resp_{round}");
        let weir = Setup::new(&upstream.url()).section(&ledger).start().await;
        let ask = if round % 2 == 0 { RESP.ask() } else { RESP.ask_json() };
        let json = named(&(RESP.json)(), &id);
        upstream.push(if round % 2 == 0 { Reply::stream(named(&resp_ok(), &id)) } else { Reply::json(200, json) });
        let mut client = Client::connect(&weir).await;
        client.open(RESPONSES, ask).await;
        client.read_past("completed").await;
        drop(weir); // SIGKILL
        let weir = Setup::new(&upstream.url()).section(&ledger).start().await;
        assert_eq!(weir.post(RESPONSES, after(&id)).await.status(), 200, "{id}");
    }
}

#[tokio::test]
async fn a12_background_is_off_unless_the_provider_takes_it_and_is_booked_once() {
    let upstream =
        Upstream::start(Reply::json(200, r#"{"id":"resp_bg","object":"response","status":"queued","usage":null}"#))
            .await;
    let ask = json!({ "model": "public-model", "input": "hi", "background": true }).to_string();
    let without = Setup::new(&upstream.url()).start().await;
    let refused = without.post(RESPONSES, &ask).await;
    assert_eq!((refused.status(), &refused.json()["error"]["param"]), (400, &json!("background")));
    assert_eq!(upstream.count(), 0);

    let weir = Setup::with_provider(&upstream.url(), "responses: { background: true, keep: 1d }").start().await;
    let made = weir.post(RESPONSES, &ask).await;
    assert_eq!((made.status(), &made.json()["status"]), (200, &json!("queued")));
    let tokens = async |received: &Received| {
        let row = weir.booked(received.id()).await;
        (row["input"].clone(), row["output"].clone(), row["charge"].clone())
    };
    let nothing = (Value::Null, Value::Null);
    let none = |(input, output, _): (Value, Value, Value)| (input, output) == nothing;
    assert!(none(tokens(&made).await), "it has used nothing yet");
    let get = async |reply: Reply, query: &str| {
        upstream.push(reply);
        weir.call("GET", &format!("/v1/responses/resp_bg{query}"), &[]).await
    };
    let running = Reply::json(200, r#"{"id":"resp_bg","object":"response","status":"in_progress"}"#);
    assert!(none(tokens(&get(running, "").await).await));
    // From a sequence number on, as a stream, whole events; it is complete, so this is where its usage is booked.
    let streamed = get(Reply::stream(named(&resp_ok(), "resp_bg")), "?stream=true&starting_after=2").await;
    assert_eq!(streamed.text(), named(&resp_ok(), "resp_bg"));
    assert_eq!(upstream.request(2).await.path, "/v1/responses/resp_bg?stream=true&starting_after=2");
    let (input, output, _) = tokens(&streamed).await;
    assert_eq!((input, output), (json!(20), json!(5)));
    let again = get(Reply::json(200, named(&(RESP.json)(), "resp_bg")), "").await;
    assert_eq!(again.json()["usage"]["output_tokens"], 5, "the client sees it each time");
    assert!(none(tokens(&again).await), "and pays once");
    // One that failed is told as it is.
    let failed =
        r#"{"id":"resp_bg","object":"response","status":"failed","error":{"code":"server_error","message":"m"}}"#;
    let told = get(Reply::json(200, failed), "").await;
    assert_eq!((told.status(), told.text().as_str()), (200, failed));
}

#[tokio::test]
async fn a12_a_follow_up_uses_the_providers_key_that_it_was_made_with() {
    let upstream = Upstream::start(Reply::stream(resp_ok())).await;
    let folder = tempfile::tempdir().unwrap();
    let ledger = format!("ledger: {{ path: \"{}/weir.db\" }}", folder.path().display());
    let setup = |keys: &str| Setup::with_provider(&upstream.url(), &format!("api_keys: [{keys}]")).section(&ledger);
    let weir = setup("org-one, org-two, org-three").start().await;
    let mut made: Vec<(String, String)> = Vec::new();
    for number in 0..12 {
        let id = format!("resp_{number}");
        upstream.push(Reply::stream(named(&resp_ok(), &id)));
        assert_eq!(weir.post(RESPONSES, RESP.ask()).await.status(), 200);
        let used = upstream.request(upstream.count() - 1).await;
        made.push((id, used.header("authorization").expect("a key").to_owned()));
    }
    let follow = async |weir: &Weir, id: &str| {
        let mut used = Vec::new();
        for method in ["POST", "GET"] {
            let received = if method == "POST" {
                weir.post(RESPONSES, after(id)).await
            } else {
                upstream.push(Reply::json(200, (RESP.json)()));
                weir.call("GET", &format!("/v1/responses/{id}"), &[]).await
            };
            assert_eq!(received.status(), 200, "{method}: {}", received.text());
            let seen = upstream.request(upstream.count() - 1).await;
            used.push(seen.header("authorization").expect("a key").to_owned());
        }
        used
    };
    for (id, key) in &made {
        assert_eq!(follow(&weir, id).await, [key.clone(), key.clone()], "{id}");
    }
    drop(weir);
    // The file has them in another order, and one of them no more: what was its goes to whoever is left.
    let weir = setup("org-three, org-one").start().await;
    for (id, key) in &made {
        let used = follow(&weir, id).await;
        if key == "Bearer org-two" {
            assert!(used.iter().all(|key| key != "Bearer org-two"));
        } else {
            assert_eq!(used, [key.clone(), key.clone()], "{id}");
        }
    }
    // Refused: no other account has it.
    let (id, key) = made.iter().find(|(_, key)| key != "Bearer org-two").expect("one of twelve");
    let before = upstream.count();
    upstream.push(Reply::json(401, r#"{"error":{"message":"no","code":"invalid_api_key"}}"#));
    assert_ne!(weir.post(RESPONSES, after(id)).await.status(), 200);
    assert_eq!(upstream.count(), before + 1, "one attempt");
    assert_eq!(upstream.request(before).await.header("authorization"), Some(key.as_str()));
    let file = std::fs::read(folder.path().join("weir.responses.db")).unwrap();
    assert!(!file.windows(4).any(|part| part == b"org-"), "no secret is kept");
}

const IN_BACKGROUND: &str = r#"{"model":"public-model","input":"hi","background":true}"#;
const QUEUED: &str = r#"{"id":"resp_bg","object":"response","status":"queued","usage":null}"#;

/// The time of every background response has come.
fn make_due(ledger: &std::path::Path) {
    let map = rusqlite::Connection::open(ledger.with_extension("responses.db")).unwrap();
    map.busy_timeout(PATIENCE).unwrap();
    map.execute("UPDATE owners SET due = 0", []).unwrap();
}

/// The tokens of all rows of the ledger.
const TOKENS: &str = "SELECT coalesce(sum(input), 0) || '+' || coalesce(sum(output), 0) FROM records";
const ROWS: &str = "SELECT count(*) FROM records WHERE input > 0";

#[tokio::test]
async fn a12_a_background_response_that_nobody_fetches_is_booked_once() {
    let upstream = Upstream::start(Reply::json(200, QUEUED)).await;
    let folder = tempfile::tempdir().unwrap();
    let section = format!("ledger: {{ path: \"{}/weir.db\" }}", folder.path().display());
    let background = "responses: { background: true }, api_keys: [org-one, org-two, org-three]";
    let setup = || {
        Setup::with_provider(&upstream.url(), background)
            .section(&section)
            .own_key("tag: research")
            .server("drain_delay: 0s")
    };
    let ledger = folder.path().join("weir.db");
    let weir = setup().start().await;
    let received = weir.post(RESPONSES, IN_BACKGROUND).await;
    assert_eq!(received.status(), 200);
    until("its own row", || row(&ledger, received.id()).is_some()).await;
    let made = upstream.request(0).await;
    // It still runs.
    make_due(&ledger);
    let asked = upstream.request(1).await;
    assert_eq!((asked.method.as_str(), asked.path.as_str()), ("GET", "/v1/responses/resp_bg"));
    assert_eq!(asked.header("authorization"), made.header("authorization"), "the same account");
    // The map outlives a kill; an error changes nothing.
    drop(weir);
    upstream.push(Reply::json(500, "{}"));
    upstream.set_default(Reply::json(200, named(&(RESP.json)(), "resp_bg")));
    let weir = setup().start().await;
    make_due(&ledger);
    upstream.request(2).await;
    assert_eq!(ask(&ledger, ROWS), "0");
    until("the row", || {
        make_due(&ledger);
        ask(&ledger, ROWS) == "1"
    })
    .await;
    assert_eq!(ask(&ledger, TOKENS), "20+5");
    let its_row = "SELECT key || ' ' || tag || ' ' || model || ' ' || target || ' ' || outcome || ' ' || cause \
        FROM records WHERE input > 0";
    assert_eq!(ask(&ledger, its_row), "test research public-model up/upstream-model completed background");
    // Whoever fetches it now pays nothing.
    let fetched = weir.call("GET", "/v1/responses/resp_bg", &[]).await;
    assert_eq!(fetched.json()["usage"]["output_tokens"], 5);
    assert!(weir.stop().await);
    assert_eq!((ask(&ledger, TOKENS), ask(&ledger, ROWS)), ("20+5".into(), "1".into()));
    verify(&ledger);
}

#[tokio::test]
async fn a12_a_background_response_is_booked_before_it_is_deleted() {
    let upstream = Upstream::start(Reply::json(200, QUEUED)).await;
    let weir = Setup::with_provider(&upstream.url(), "responses: { background: true }").start().await;
    assert_eq!(weir.post(RESPONSES, IN_BACKGROUND).await.status(), 200);
    upstream.push(Reply::json(200, named(&(RESP.json)(), "resp_bg")));
    upstream.push(Reply::json(200, r#"{"id":"resp_bg","deleted":true}"#));
    assert_eq!(weir.call("DELETE", "/v1/responses/resp_bg", &[]).await.status(), 200);
    assert_eq!((upstream.request(1).await.method, upstream.request(2).await.method), ("GET".into(), "DELETE".into()));
    until("the row", || weir.ask(ROWS) == "1").await;
    assert_eq!(weir.ask(TOKENS), "20+5");
}

#[tokio::test]
async fn g4_a12_of_gateways_that_share_the_map_one_asks_and_books() {
    let postgres = Postgres::start().await;
    let upstream = Upstream::start(Reply::json(200, QUEUED)).await;
    let section = format!("ledger: {{ postgres: {{ url: \"{}\" }} }}", postgres.url());
    let setup = || Setup::with_provider(&upstream.url(), "responses: { background: true }").section(&section);
    let (one, two) = (setup().start().await, setup().start().await);
    assert_eq!(one.post(RESPONSES, IN_BACKGROUND).await.status(), 200);
    within("PostgreSQL to have it", async {
        while postgres.ask("SELECT count(*)::text FROM weir_owners WHERE unsettled").await != "1" {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    upstream.set_default(Reply::json(200, named(&(RESP.json)(), "resp_bg")));
    postgres.ask("UPDATE weir_owners SET due = 0 RETURNING id").await;
    let booked = || [one.ask(ROWS), two.ask(ROWS)].iter().filter(|rows| *rows == "1").count();
    until("the row", || booked() == 1).await;
    assert_eq!(postgres.ask("SELECT asked::text FROM weir_owners").await, "1");
    assert_eq!(upstream.count(), 2);
    assert_eq!(postgres.ask("SELECT count(*)::text FROM weir_owners WHERE unsettled").await, "0");
}

#[tokio::test]
async fn a12_conversations_are_kept_alike() {
    let (first, second, setup) = two().await;
    let weir = setup.start().await;
    first.push(Reply::json(200, r#"{"id":"conv_1","object":"conversation"}"#));
    let made = weir.post("/v1/conversations", "{}").await;
    assert_eq!(made.status(), 200, "{}", made.text());
    assert_eq!((first.request(0).await.path.as_str(), first.request(0).await.body), ("/v1/conversations", bytes("{}")));
    let ask = json!({ "model": "public-model", "stream": true, "input": "hi", "conversation": "conv_1" });
    assert_eq!(weir.post(RESPONSES, ask.to_string()).await.status(), 200);
    first.push(Reply::json(200, r#"{"object":"list","data":[]}"#));
    assert_eq!(weir.call("GET", "/v1/conversations/conv_1/items?limit=2", &[]).await.status(), 200);
    assert_eq!(first.request(2).await.path, "/v1/conversations/conv_1/items?limit=2");
    first.push(Reply::json(200, r#"{"id":"conv_1","deleted":true}"#));
    assert_eq!(weir.call("DELETE", "/v1/conversations/conv_1", &[]).await.status(), 200);
    is_unknown(&weir.call("GET", "/v1/conversations/conv_1", &[]).await, "id");
    let theirs = weir.post_with("/v1/conversations/conv_1/items", &[("x-api-key", "other")], "{}").await;
    is_unknown(&theirs, "id");
    assert_eq!(second.count(), 0);
}

#[tokio::test]
async fn a12_g2_a_call_to_a_stored_object_reserves_no_tokens() {
    let upstream = Upstream::start(Reply::stream(resp_ok())).await;
    // Without a maximum a new response reserves all of the minute: after one that used some, the next has to wait.
    let weir = Setup::new(&upstream.url()).own_key("tpm: 1000").start().await;
    let made = weir.post(RESPONSES, RESP.ask()).await;
    assert_eq!(made.status(), 200);
    weir.record(made.id()).await;
    assert_eq!(weir.post(RESPONSES, RESP.ask()).await.status(), 429);
    upstream.set_default(Reply::json(200, (RESP.json)()));
    assert_eq!(weir.call("GET", "/v1/responses/resp_abc", &[]).await.status(), 200);
    assert_eq!(weir.call("POST", "/v1/responses/resp_abc/cancel", &[]).await.status(), 200);
    assert_eq!(weir.call("DELETE", "/v1/responses/resp_abc", &[]).await.status(), 200);
}

#[tokio::test]
async fn a12_f8_stored_objects_lie_below_the_providers_own_path() {
    for (own, responses, conversations) in [
        ("/openai/v1/responses?api-version=preview", "/openai/v1/responses", "/openai/v1/conversations"),
        ("/answers?api-version=preview", "/answers", ""),
    ] {
        let upstream = Upstream::start(Reply::stream(resp_ok())).await;
        let paths = format!("paths: {{ responses: \"{own}\" }}");
        let weir = Setup::with_provider(&upstream.url(), &paths).start().await;
        assert_eq!(weir.post(RESPONSES, RESP.ask()).await.status(), 200);
        upstream.set_default(Reply::json(200, r#"{"id":"conv_1","object":"conversation"}"#));
        let calls = [
            ("GET", "/v1/responses/resp_abc?x=1", format!("{responses}/resp_abc?api-version=preview&x=1")),
            (
                "GET",
                "/v1/responses/resp_abc/input_items",
                format!("{responses}/resp_abc/input_items?api-version=preview"),
            ),
            ("POST", "/v1/responses/resp_abc/cancel", format!("{responses}/resp_abc/cancel?api-version=preview")),
            (
                "POST",
                "/v1/conversations",
                match conversations {
                    "" => "/v1/conversations".to_owned(),
                    beside => format!("{beside}?api-version=preview"),
                },
            ),
            ("DELETE", "/v1/responses/resp_abc", format!("{responses}/resp_abc?api-version=preview")),
        ];
        for (seen, (method, path, wanted)) in (1..).zip(calls) {
            assert_eq!(weir.call(method, path, &[]).await.status(), 200, "{method} {path}");
            assert_eq!(upstream.request(seen).await.path, wanted);
        }
    }
}

#[tokio::test]
async fn g4_a12_gateways_that_share_postgresql_share_the_map() {
    let mut postgres = Postgres::start().await;
    let upstream = Upstream::start(Reply::stream(resp_ok())).await;
    let section = format!("ledger: {{ postgres: {{ url: \"{}\" }} }}", postgres.url());
    let setup = || Setup::new(&upstream.url()).section(&section);
    let (one, two) = (setup().start().await, setup().start().await);
    assert_eq!(one.post(RESPONSES, RESP.ask()).await.status(), 200);
    within("the other one to know", async {
        while two.post(RESPONSES, after("resp_abc")).await.status() != 200 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    // Away: what a gateway has seen goes on, what it would have to ask for does not.
    postgres.kill();
    upstream.push(Reply::stream(named(&resp_ok(), "resp_alone")));
    assert_eq!(one.post(RESPONSES, RESP.ask()).await.status(), 200);
    assert_eq!(one.post(RESPONSES, after("resp_alone")).await.status(), 200);
    assert_eq!(two.post(RESPONSES, after("resp_alone")).await.status(), 503);
    postgres.run().await;
    within("the other one to know that, too", async {
        while two.post(RESPONSES, after("resp_alone")).await.status() != 200 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
}
