//! C2: a changed file is in force for new requests, a bad one changes nothing, and running requests notice neither.

use crate::harness::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const CHAT_D: Dialect = Dialect::ALL[0];
const CHAT: &str = CHAT_D.path;

/// Two settings whose parts belong together: header, key and model upstream, markup and tag of the record.
fn setup(url: &str, set: &str, markup: &str, prices: &std::path::Path) -> String {
    format!(
        "providers:\n  up: {{ base_url: \"{url}\", api_key: key-{set}, headers: {{ x-set: {set} }} }}\n\
         models:\n  - {{ name: public-model, targets: [{{ provider: up, model: model-{set} }}] }}\n\
         prices: {{ cost: [\"{}\"], sell: {{ markup: \"{markup}\" }} }}\n",
        prices.display()
    )
}

/// The part of a started gateway's file that stays: addresses, server, defaults and keys.
fn frame(config: &str) -> String {
    let cut = |text: &str, from: &str, to: &str| {
        let (before, rest) = text.split_once(from).expect(from);
        let after = rest.split_once(to).expect(to).1;
        format!("{before}{to}{after}")
    };
    let text = cut(config, "providers:", "defaults:");
    cut(&text, "models:", "keys:")
}

fn key_and_model(seen: &Seen) -> Vec<[String; 3]> {
    seen.requests()
        .iter()
        .map(|request| {
            let header = |name: &str| request.header(name).unwrap_or_default().to_owned();
            let key = header("authorization").trim_start_matches("Bearer key-").to_owned();
            let model = request.json()["model"].as_str().expect("a model").trim_start_matches("model-").to_owned();
            [header("x-set"), key, model]
        })
        .collect()
}

#[tokio::test]
async fn c2_reloads_under_load_good_and_bad_drop_nothing_and_mix_nothing() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let folder = tempfile::tempdir().unwrap();
    let prices = folder.path().join("prices.yaml");
    let list = |name: &str| format!("  - {{ model: {name}, input: \"3\", output: \"15\" }}\n");
    std::fs::write(&prices, format!("prices:\n{}{}", list("model-a"), list("model-b"))).unwrap();
    let weir = Setup::new(&upstream.url()).start().await;
    let frame = frame(&weir.config());
    let [a, b] =
        [("a", "1"), ("b", "2")].map(|(set, by)| format!("{frame}\n{}", setup(&upstream.url(), set, by, &prices)));
    assert_eq!(weir.reload(&a).await.status(), 200);

    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..4 {
        let (address, stop) = (weir.address, Arc::clone(&stop));
        clients.spawn(async move {
            let mut ids = Vec::new();
            let mut client = Client::connect_to(address).await;
            while !stop.load(Ordering::Relaxed) {
                if number % 2 == 0 {
                    client = Client::connect_to(address).await;
                }
                client.post(CHAT, CHAT_ASK).await;
                let received = client.receive().await;
                assert_eq!((received.status(), received.ended), (200, true), "{}", received.text());
                assert_eq!(received.text(), chat_seen());
                ids.push(received.id().to_owned());
            }
            ids
        });
    }
    let bad = a.replace("provider: up,", "provider: down,");
    let mut turns = 0.0;
    for turn in 0.. {
        if turn >= 30 && upstream.count() > 60 {
            break;
        }
        turns += 1.0;
        let good = if turn % 2 == 0 { &b } else { &a };
        let received = weir.reload(good).await;
        assert_eq!(received.status(), 200, "{}", received.text());
        let received = weir.reload(&bad).await;
        assert_eq!(received.status(), 422, "{}", received.text());
    }
    stop.store(true, Ordering::Relaxed);
    let mut ids = Vec::new();
    while let Some(done) = clients.join_next().await {
        ids.extend(done.unwrap());
    }
    assert!(ids.len() > 30, "{} requests are no load", ids.len());
    let seen = key_and_model(&upstream);
    assert_eq!(seen.len(), ids.len());
    for [header, key, model] in &seen {
        assert!(header == key && key == model, "one request, two settings: {header} {key} {model}");
    }
    for set in ["a", "b"] {
        assert!(seen.iter().any(|[header, ..]| header == set), "{set} was never in force");
    }
    weir.settles("weir_requests_active", 0.0).await;
    // Markup and target's name of one config: 12 in and 2 out at 3 and 15 are 66 micro-dollar.
    let mixed = "SELECT count(*) FROM records WHERE charge != CASE target WHEN 'up/model-a' THEN 66000 ELSE 132000 END";
    let last = ids.last().expect("requests").clone();
    weir.booked(&last).await;
    assert_eq!(weir.ask(mixed), "0");
    // The watch may have looked at one of the files, too.
    assert!(weir.metric("weir_config_reload_total", &["result=\"ok\""]).await > turns);
    assert!(weir.metric("weir_config_reload_total", &["result=\"refused\""]).await >= turns);
}

#[tokio::test]
async fn c2_a_bad_file_changes_nothing_and_says_where() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let good = weir.config();
    // Nobody asks: the change is noticed.
    weir.write_config(&good.replace("provider: up,", "provider: nobody,"));
    until("the refusal", || weir.said().contains("the config was refused")).await;
    let place = weir.said().lines().find(|line| line.contains("the config was refused")).unwrap().to_owned();
    assert!(place.contains("weir.yaml:") && place.contains("models[0].targets[0].provider"), "{place}");
    assert_eq!(weir.metric("weir_config_reload_successful", &[]).await, 0.0);
    let ready = get(weir.admin, "/readyz").await.unwrap();
    assert_eq!((ready.status(), ready.json()["status"].as_str()), (200, Some("ready")), "it serves on");
    let detail = ready.json()["config"].clone();
    assert_eq!(detail["status"], "refused");
    assert!(detail["errors"][0].as_str().unwrap().contains("models[0].targets[0].provider"), "{detail}");
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.text(), chat_seen());
    let answer = weir.reload(&good.replace("attempts: 1", "atempts: 1")).await;
    assert_eq!(answer.status(), 422);
    let error = answer.json()["errors"][0].clone();
    assert_eq!((error["path"].as_str(), error["line"].is_u64()), (Some("defaults.retry.atempts"), true), "{error}");

    assert_eq!(weir.reload(&good).await.status(), 200);
    assert_eq!(weir.metric("weir_config_reload_successful", &[]).await, 1.0);
    assert!(get(weir.admin, "/readyz").await.unwrap().json().get("config").is_none());
}

#[tokio::test]
async fn c2_running_streams_keep_their_settings_and_removed_keys_and_models_are_gone_for_new_requests() {
    let end = Signal::new();
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let rest = chat_ok().replacen(&CHAT_D.begun(), "", 1);
    upstream.push(Reply::sse().write(CHAT_D.begun()).wait(&end).write(rest));
    let setup = Setup::new(&upstream.url()).key("leaver", "leaver-secret", "models: [\"*\"]");
    let weir = setup.defaults("keepalive: { interval: 100ms, text: first }").start().await;
    let mut stream = Client::connect(&weir).await;
    stream.send(request(CHAT, &[("authorization", "Bearer leaver-secret")], CHAT_ASK.as_bytes())).await;
    assert_eq!(stream.head().await.status, 200);
    stream.read_past(": first").await;

    let config = weir.config();
    let leaver = config.lines().find(|line| line.contains("leaver")).unwrap();
    let changed = config.replace(leaver, "").replace("text: first", "text: second").replace("upstream-model", "other");
    let answer = weir.reload(&changed).await.json();
    let lines: Vec<_> = answer["changed"].as_array().unwrap().iter().filter_map(|line| line.as_str()).collect();
    assert_eq!(lines, ["models: public-model changed", "keys: leaver removed"]);
    // For new requests: another text, no such key, another target.
    let go_on = Signal::new();
    upstream.push(Reply::sse().wait(&go_on).write(chat_ok()));
    let mut fresh = Client::connect(&weir).await;
    fresh.open(CHAT, CHAT_ASK).await;
    fresh.read_past(": second").await;
    go_on.fire();
    let fresh = String::from_utf8(fresh.rest().await.to_vec()).unwrap();
    assert!(!fresh.contains("first"), "{fresh}");
    let refused = weir.post_with(CHAT, &[("authorization", "Bearer leaver-secret")], CHAT_ASK).await;
    assert_eq!(refused.status(), 401);
    assert_eq!(upstream.requests().last().unwrap().json()["model"], "other");

    stream.body.clear();
    stream.read_past(": first").await;
    end.fire();
    let text = String::from_utf8(stream.rest().await.to_vec()).unwrap();
    assert!(stream.ended && text.ends_with(DONE) && !text.contains(": second"), "{text}");
}

#[tokio::test]
async fn c2_a_rotated_provider_key_is_used_at_once_though_the_old_one_was_refused() {
    let upstream = Upstream::start(Reply::json(401, r#"{"error":{"message":"bad key"}}"#)).await;
    upstream.when("Bearer new-key", Reply::stream(chat_ok()));
    let secrets = tempfile::tempdir().unwrap();
    let file = secrets.path().join("provider.key");
    std::fs::write(&file, "old-key\n").unwrap();
    let weir = Setup::with_provider(&upstream.url(), &format!("api_key: \"file:{}\"", file.display())).start().await;
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 503);
    // Only the secret changes, and nobody asks.
    std::fs::write(&file, "new-key\n").unwrap();
    until("the reload", || weir.said().contains("the config was reloaded")).await;
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!((received.status(), received.text()), (200, chat_seen()));
    assert!(!weir.said().contains("new-key"));
}

#[tokio::test]
async fn c2_sighup_reloads_and_opens_the_log_anew() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).log("file: weir.log").start().await;
    let log = weir.folder.join("weir.log");
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    std::fs::rename(&log, weir.folder.join("weir.log.1")).unwrap();
    weir.signal("HUP");
    until("the reload's line in the new file", || read().contains("the config was reloaded")).await;
    assert!(read().contains("SIGHUP"), "{}", read());
    weir.write_config(&weir.config().replace("upstream-model", "other"));
    weir.signal("HUP");
    until("the change in the new file", || read().contains("models: public-model changed")).await;
    weir.post(CHAT, CHAT_ASK).await;
    until("the access record in the new file", || read().contains("\"outcome\":\"completed\"")).await;
    assert_eq!(upstream.requests().last().unwrap().json()["model"], "other");
}

#[tokio::test]
async fn c2_what_only_a_restart_changes_is_named_and_stays() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).section("ledger: { path: data/weir.db, checkpoint: 5s }").start().await;
    let config = weir.config();
    let changed = config
        .replace(&format!("127.0.0.1:{}", weir.address.port()), "127.0.0.1:1")
        .replace("threads: 2", "threads: 3, max_body: 1KiB")
        .replace("data/weir.db, checkpoint: 5s", "elsewhere.db, checkpoint: 1s");
    let answer = weir.reload(&changed).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert_eq!(answer.json()["needs_restart"], serde_json::json!(["listen", "server.threads", "ledger.path"]));
    assert_eq!(answer.json()["changed"], serde_json::json!(["server: changed", "ledger: changed"]));
    until("the log to say so", || weir.said().contains("restart or upgrade")).await;
    assert_eq!(weir.post(CHAT, format!("{{\"model\":\"{}\"}}", "m".repeat(2000))).await.status(), 413);
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(received.status(), 200);
    weir.booked(received.id()).await;
}

#[tokio::test]
async fn c2_l4_the_ledgers_days_durability_and_retention_are_changed_without_a_restart() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).section("ledger: { path: data/weir.db, timezone: UTC }").start().await;
    let config = weir.config();
    // At any moment one of them has another date than UTC.
    for zone in ["Pacific/Kiritimati", "Etc/GMT+12"] {
        let more = "durability: strict, on_failure: serve, retention: 30d";
        let answer = weir.reload(&config.replace("timezone: UTC", &format!("timezone: {zone}, {more}"))).await.json();
        assert_eq!(answer["needs_restart"], serde_json::json!([]), "{answer}");
        assert_eq!(answer["changed"], serde_json::json!(["ledger: changed"]));
        let today = || jiff::Timestamp::now().in_tz(zone).unwrap().date().to_string();
        let before = today();
        let received = weir.post(CHAT, CHAT_ASK).await;
        assert_eq!((received.status(), received.text()), (200, chat_seen()));
        // Strict: it is on disk when the client has its end.
        let day = weir.ask(&format!("SELECT day FROM records WHERE request_id = '{}'", received.id()));
        assert!(day == before || day == today(), "{day} in {zone}");
    }
    let answer = weir.reload(&config.replace("timezone: UTC", "postgres: { url: \"postgres://127.0.0.1:1/x\" }")).await;
    assert_eq!(answer.json()["needs_restart"], serde_json::json!(["ledger.postgres"]), "{}", answer.text());
    let answer = weir.reload(&format!("{config}\nlimits: {{ store: {{ redis: \"redis://127.0.0.1:1\" }} }}\n")).await;
    assert_eq!(answer.json()["needs_restart"], serde_json::json!(["limits.store"]), "{}", answer.text());
    verify(&weir.ledger());
}

#[tokio::test]
async fn c2_certificates_are_read_anew_when_their_files_change() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let (first, second) = (Pki::new(), Pki::new());
    let folder = tempfile::tempdir().unwrap();
    let [_, cert, key] = first.write(folder.path());
    let tls = format!("tls: {{ certificates: [{{ cert: \"{}\", key: \"{}\" }}] }}", cert.display(), key.display());
    let weir = Setup::new(&upstream.url()).listen(&tls).start().await;
    let ends = weir.metric("weir_certificate_expiry_timestamp_seconds", &["cert.pem"]).await;
    assert!(ends > 1_700_000_000.0, "{ends}");
    let mut open = Client::connect_tls(&weir, &first).await;
    open.open(CHAT, CHAT_ASK).await;
    open.rest().await;
    second.write(folder.path());
    within("the new certificate", async {
        while !weir.said().contains("the config was reloaded") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let mut fresh = Client::connect_tls(&weir, &second).await;
    assert_eq!(fresh.open(CHAT, CHAT_ASK).await.status, 200);
    assert_eq!(open.open(CHAT, CHAT_ASK).await.status, 200, "an open connection stays");
}
