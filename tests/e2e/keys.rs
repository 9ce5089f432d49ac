//! Keys of the store: made by the command, in force within a second, revoked, shared (G1, G4).

use crate::harness::*;
use serde_json::{Value, json};
use std::process::Output;
use std::time::{Duration, Instant};

/// `weir keys …` on the gateway's own file.
fn keys(weir: &Weir, args: &[&str]) -> Output {
    let config = weir.folder.join("weir.yaml");
    let args = [&["keys"], args, &["--config", config.to_str().unwrap()]].concat();
    weir_command(&args)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn good(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(output));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

async fn status(weir: &Weir, secret: &str) -> u16 {
    weir.post_with(CHAT, &[("x-api-key", secret)], CHAT_ASK).await.status()
}

/// Waits until the key is answered so: within a second, and what a busy machine adds.
async fn in_force(weir: &Weir, secret: &str, wanted: u16) {
    let began = Instant::now();
    while status(weir, secret).await != wanted {
        assert!(began.elapsed() < Duration::from_secs(30), "never {wanted}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("in force after {:?}", began.elapsed());
}

#[tokio::test]
async fn g1_a_key_made_by_the_command_is_in_force_and_revoked_without_a_restart() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let other = "{ name: other, targets: [{ provider: up, model: m }] }";
    let weir = Setup::new(&upstream.url()).other_model(other).section("key_store: sqlite").start().await;
    let secret = good(&keys(&weir, &["create", "alice", "--models", "public-model", "--tag", "gold"]));
    in_force(&weir, &secret, 200).await;
    let answer = weir.post_with(CHAT, &[("x-api-key", &secret)], CHAT_ASK).await;
    let record = weir.record(answer.id()).await;
    assert_eq!((field(&record, "key").as_str(), field(&record, "tag").as_str()), ("alice", "gold"));

    let shown: Value = serde_json::from_str(&good(&keys(&weir, &["show", "alice", "--json"]))).unwrap();
    assert_eq!(shown["prefix"], secret[..11]);
    assert!(!shown.to_string().contains(&secret));
    let listed = good(&keys(&weir, &["list"]));
    assert!(listed.contains("alice") && listed.contains("in force") && !listed.contains(&secret), "{listed}");

    good(&keys(&weir, &["set", "alice", "--models", "other"]));
    in_force(&weir, &secret, 403).await;
    good(&keys(&weir, &["set", "alice", "--models", "*", "--allow-ips", "203.0.113.0/24"]));
    until("the address is refused", || weir.said().matches("the key store changed").count() >= 3).await;
    assert_eq!(status(&weir, &secret).await, 403);
    good(&keys(&weir, &["set", "alice", "--allow-ips", "none"]));
    in_force(&weir, &secret, 200).await;

    good(&keys(&weir, &["revoke", "alice"]));
    in_force(&weir, &secret, 401).await;
    let listed = good(&keys(&weir, &["list"]));
    assert!(listed.contains("revoked"), "{listed}");
    assert!(!weir.said().contains(&secret) && !weir.said().contains(&secret[5..]));
}

#[tokio::test]
async fn g1_mistakes_of_the_command_are_told() {
    let weir = Setup::new("http://127.0.0.1:1").section("key_store: sqlite").start().await;
    for (args, says) in [
        (&["create", "test"][..], "stands in the config"),
        (&["create", "a", "--models", "lol"], "no model named \"lol\""),
        (&["create", "a", "--expires", "soon"], "expires: write a day"),
        (&["create", "a", "--budget", "5/week"], "--budget 5/week"),
        (&["show", "nobody"], "no key named \"nobody\""),
        (&["set", "nobody", "--tag", "x"], "no key named \"nobody\""),
        (&["set", "nobody"], "nothing to change"),
        (&["revoke", "test"], "stands in the config"),
    ] {
        let output = keys(&weir, args);
        assert!(!output.status.success() && said(&output).contains(says), "{args:?}: {}", said(&output));
    }
    let without = Setup::new("http://127.0.0.1:1").start().await;
    assert!(said(&keys(&without, &["list"])).contains("key_store: sqlite"));
}

#[tokio::test]
async fn g1_revoke_now_ends_running_streams_in_their_own_protocol() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).section("key_store: sqlite").start().await;
    let secret = good(&keys(&weir, &["create", "alice"]));
    in_force(&weir, &secret, 200).await;
    let mut running = Vec::new();
    for dialect in Dialect::ALL {
        upstream.push(Reply::sse().write(dialect.begun()).hang());
        let mut client = Client::connect(&weir).await;
        client.send(request(dialect.path, &[("x-api-key", &secret)], dialect.ask().as_bytes())).await;
        let head = client.head().await;
        client.read_past("Hel").await;
        running.push((dialect, client, head));
    }
    // Another's stream, and one of the same key that has no answer yet.
    upstream.push(Reply::sse().write(Dialect::ALL[0].begun()).hang());
    let mut others = Client::connect(&weir).await;
    others.open(CHAT, CHAT_ASK).await;
    others.read_past("Hel").await;
    upstream.push(Reply::silent());
    let mut early = Client::connect(&weir).await;
    early.send(request(CHAT, &[("x-api-key", &secret)], CHAT_ASK.as_bytes())).await;
    upstream.request(5).await;

    good(&keys(&weir, &["revoke", "alice", "--now"]));
    for (dialect, mut client, head) in running {
        let body = String::from_utf8(client.rest().await.to_vec()).unwrap();
        assert!(client.ended, "{}: a clean end", dialect.name);
        let last = body.strip_prefix(&dialect.begun()).expect("what was sent stays");
        assert!(last.contains("This API key has been revoked"), "{}: {last}", dialect.name);
        let record = weir.record(head.id()).await;
        assert_eq!((word(&record).as_str(), field(&record, "cause").as_str()), ("rejected", "key_revoked"));
        let row = weir.booked(head.id()).await;
        assert_eq!((&row["outcome"], &row["billing"]), (&"rejected".into(), &"delivered".into()), "{row}");
    }
    assert_eq!(early.head().await.status, 401);
    in_force(&weir, &secret, 401).await;
    others.send("").await;
    assert!(!String::from_utf8_lossy(&others.body).contains("error"), "another key's stream goes on");
    weir.settles("weir_streams_active", 1.0).await;
}

#[tokio::test]
async fn g4_gateways_that_share_postgresql_share_keys_and_outlive_it() {
    let mut postgres = Postgres::start().await;
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let section = format!("key_store: postgres\nledger: {{ postgres: {{ url: \"{}\" }} }}", postgres.url());
    let setup = || Setup::new(&upstream.url()).section(&section).server("drain_delay: 10ms");
    let (one, two) = (setup().start().await, setup().start().await);
    let secret = good(&keys(&one, &["create", "alice"]));
    in_force(&two, &secret, 200).await;
    in_force(&one, &secret, 200).await;
    // Away: the last known keys stay, also over a restart.
    postgres.kill();
    until("it is noticed", || two.said().contains("the last known keys stay in force")).await;
    assert_eq!(status(&two, &secret).await, 200);
    let failed = keys(&one, &["create", "bob"]);
    assert!(!failed.status.success() && said(&failed).contains("the key store"), "{}", said(&failed));
    let copy = one.folder.join("data/weir.keys.db");
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(&copy, folder.path().join("weir.keys.db")).unwrap();
    let wal = one.folder.join("data/weir.keys.db-wal");
    if wal.exists() {
        std::fs::copy(wal, folder.path().join("weir.keys.db-wal")).unwrap();
    }
    let path = format!("ledger: {{ path: \"{}/weir.db\",", folder.path().display());
    let started = Setup::new(&upstream.url()).section(&section.replace("ledger: {", &path)).start().await;
    assert_eq!(status(&started, &secret).await, 200, "known from the copy");
    // Back: what was changed meanwhile elsewhere counts.
    postgres.run().await;
    good(&keys(&one, &["revoke", "alice"]));
    for weir in [&one, &two, &started] {
        in_force(weir, &secret, 401).await;
    }
}

/// One request to the admin API: its status and what it says.
pub(crate) async fn admin(weir: &Weir, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer admin\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        weir.admin,
        body.len()
    );
    let mut client = Client::connect_to(weir.admin).await;
    client.send(head + &body).await;
    let received = client.receive().await;
    (received.status(), received.json())
}

#[tokio::test]
async fn g1_the_admin_api_makes_changes_and_revokes_keys() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).section("key_store: sqlite").start().await;
    let (status, made) = admin(&weir, "POST", "/api/keys", &json!({ "name": "a/b", "tag": "gold" })).await;
    assert_eq!(status, 201, "{made}");
    let secret = made["secret"].as_str().unwrap().to_owned();
    in_force(&weir, &secret, 200).await;
    let (_, all) = admin(&weir, "GET", "/api/keys", &Value::Null).await;
    let sources: Vec<_> = all["keys"].as_array().unwrap().iter().map(|key| (&key["name"], &key["source"])).collect();
    assert_eq!(json!(sources), json!([["test", "file"], ["a/b", "store"]]), "{all}");
    let change = json!({ "models": ["public-model"], "tag": null, "allow_ips": ["203.0.113.0/24"] });
    let (status, changed) = admin(&weir, "PATCH", "/api/keys/a%2Fb", &change).await;
    assert_eq!((status, &changed["tag"], &changed["models"][0]), (200, &Value::Null, &json!("public-model")));
    in_force(&weir, &secret, 403).await;
    assert_eq!(admin(&weir, "GET", "/api/keys/a%2Fb", &Value::Null).await.1["prefix"], secret[..11]);
    assert_eq!(admin(&weir, "DELETE", "/api/keys/a%2Fb?now=true", &Value::Null).await.0, 200);
    in_force(&weir, &secret, 401).await;
    for (method, path, body, status) in [
        ("POST", "/api/keys", json!({ "name": "test" }), 409),
        ("POST", "/api/keys", json!({}), 400),
        ("POST", "/api/keys", json!({ "name": "x", "colour": 1 }), 400),
        ("POST", "/api/keys", json!([1]), 400),
        ("PATCH", "/api/keys/none", json!({ "tag": "x" }), 404),
        ("PATCH", "/api/keys/a%2Fb", json!({ "tag": "x" }), 409),
        ("DELETE", "/api/keys/test", Value::Null, 409),
        ("PUT", "/api/keys", json!({}), 405),
    ] {
        let (got, said) = admin(&weir, method, path, &body).await;
        assert_eq!(got, status, "{method} {path} {body}: {said}");
    }
    until("the audit lines", || weir.said().matches("changed over the admin API").count() >= 3).await;
    let said = weir.said();
    let audit: Vec<_> = said.lines().filter(|line| line.contains("changed over the admin API")).collect();
    assert_eq!(audit.len(), 3, "{audit:?}");
    for (line, action) in audit.iter().zip(["key created", "key changed", "key revoked"]) {
        assert!(line.contains(action) && line.contains("a/b") && line.contains("127.0.0.1:"), "{line}");
    }
    assert!(!said.contains(&secret) && !said.contains(&secret[5..]), "the secret is in the log");
}

#[tokio::test]
async fn c2_changes_need_the_token_and_come_from_no_other_site() {
    const JSON: &str = "content-type: application/json\r\n";
    let setup = || Setup::new("http://127.0.0.1:1").section("key_store: sqlite");
    let send = async |weir: &Weir, headers: &str| {
        let body = r#"{"name":"x"}"#;
        let mut client = Client::connect_to(weir.admin).await;
        client.send(format!("POST /api/keys HTTP/1.1\r\ncontent-length: 12\r\n{headers}\r\n{body}")).await;
        client.receive().await.status()
    };
    let open = setup().start().await;
    assert_eq!(send(&open, &format!("host: 127.0.0.1\r\n{JSON}origin: http://evil.example\r\n")).await, 403);
    assert_eq!(send(&open, &format!("host: evil.example\r\n{JSON}")).await, 403);
    assert_eq!(send(&open, "host: 127.0.0.1\r\ncontent-type: text/plain\r\n").await, 415);
    assert_eq!(send(&open, &format!("host: 127.0.0.1\r\n{JSON}")).await, 201);
    let ask = async |line: &str, headers: &str| {
        let mut client = Client::connect_to(open.admin).await;
        client.send(format!("{line} HTTP/1.1\r\n{headers}\r\n")).await;
        client.receive().await.status()
    };
    for headers in [
        "host: 127.0.0.1\r\nsec-fetch-site: cross-site\r\n",
        "host: 127.0.0.1\r\nsec-fetch-site: same-site\r\n",
        "host: 127.0.0.1\r\norigin: http://evil.example\r\n",
        "host: evil.example\r\n",
    ] {
        assert_eq!(ask("POST /api/reload", &format!("{headers}content-length: 0\r\n")).await, 403, "{headers}");
    }
    assert!(!open.said().contains("the config was reloaded"), "{}", open.said());
    assert_eq!(ask("POST /api/reload", "host: 127.0.0.1\r\ncontent-length: 0\r\n").await, 200);
    for path in ["/api/keys", "/api/usage", "/api/limits"] {
        assert_eq!(ask(&format!("GET {path}"), "host: evil.example\r\n").await, 403, "{path}");
        assert_eq!(ask(&format!("GET {path}"), "host: localhost:9090\r\n").await, 200, "{path}");
    }
    assert_eq!(ask("GET /healthz", "host: weir.example\r\n").await, 200);
}

#[tokio::test]
async fn c2_targets_models_and_keys_are_switched_off_and_on() {
    let (first, second) =
        (Upstream::start(Reply::stream(chat_ok())).await, Upstream::start(Reply::stream(chat_ok())).await);
    let weir =
        Setup::new(&first.url()).target(&second.url(), "").key("other", "other", "models: [\"*\"]").start().await;
    let switch = async |kind: &str, name: &str, off: bool| {
        admin(&weir, "POST", "/api/switches", &json!({ kind: name, "off": off })).await
    };
    let ask = async || weir.post(CHAT, CHAT_ASK).await;
    // A running stream goes on.
    let signal = Signal::new();
    first.push(
        Reply::sse().write(Dialect::ALL[0].begun()).wait(&signal).write(&chat_ok()[Dialect::ALL[0].begun().len()..]),
    );
    let mut running = Client::connect(&weir).await;
    running.open(CHAT, CHAT_ASK).await;
    running.read_past("Hel").await;
    assert_eq!(switch("target", "up/upstream-model", true).await.0, 200);
    signal.fire();
    assert_eq!(running.rest().await, chat_seen());

    assert_eq!((ask().await.status(), first.count(), second.count()), (200, 1, 1));
    let (_, page) = admin(&weir, "GET", "/api/targets", &Value::Null).await;
    let off: Vec<_> = page["targets"].as_array().unwrap().iter().map(|one| (&one["target"], &one["off"])).collect();
    assert_eq!(json!(off), json!([["up/upstream-model", true], ["up2/upstream-model", false]]));
    switch("target", "up2/upstream-model", true).await;
    let refused = ask().await;
    assert_eq!((refused.status(), &refused.json()["error"]["code"]), (503, &json!("model_unavailable")));
    switch("target", "up/upstream-model", false).await;
    assert_eq!((ask().await.status(), first.count()), (200, 2));

    switch("model", "public-model", true).await;
    assert_eq!(ask().await.json()["error"]["code"], "model_unavailable");
    assert_eq!(weir.call("GET", "/v1/models", &[]).await.json()["data"], json!([]));
    assert_eq!(admin(&weir, "GET", "/api/switches", &Value::Null).await.1["off"]["models"], json!(["public-model"]));
    switch("model", "public-model", false).await;
    assert_eq!(ask().await.status(), 200);

    switch("key", "test", true).await;
    let refused = ask().await;
    assert_eq!((refused.status(), &refused.json()["error"]["code"]), (403, &json!("key_disabled")));
    assert_eq!(self::status(&weir, "other").await, 200);
    assert_eq!(switch("key", "test", false).await.1["changed"], true);
    assert_eq!(switch("key", "test", false).await.1["changed"], false);
    assert_eq!(ask().await.status(), 200);
    for (kind, name) in [("target", "up/none"), ("model", "none"), ("key", "none")] {
        assert_eq!(switch(kind, name, true).await.0, 404, "{kind}");
    }
    assert_eq!(admin(&weir, "POST", "/api/switches", &json!({ "off": true })).await.0, 400);
    until("the audit lines", || weir.said().matches("weir::audit").count() >= 7).await;
}
