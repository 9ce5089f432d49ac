//! C3: the binary is replaced under load: no connection refused, no stream cut, no record lost or doubled.

use crate::harness::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinSet;

const CHAT_D: Dialect = Dialect::ALL[0];
const CHAT: &str = CHAT_D.path;
const LONG: &str = r#"{"model":"public-model","stream":true,"messages":[],"user":"long"}"#;

/// A stream that goes on through both upgrades, and ends when it is told to.
fn long(end: &Signal) -> (Reply, String) {
    let begun = CHAT_D.begun();
    let mut reply = Reply::sse().write(&begun);
    let mut seen = begun;
    for number in 0..20 {
        let delta = chat_delta(&format!("word {number} "));
        reply = reply.pause(50).write(&delta);
        seen += &delta;
    }
    let rest = chat_ok().replacen(&CHAT_D.begun(), "", 1);
    let rest_seen = chat_seen().replacen(&CHAT_D.begun(), "", 1);
    (reply.wait(end).write(rest), seen + &rest_seen)
}

/// Opens this many streams and reads each to its end.
async fn streams(count: usize, weir: &Weir, expected: &str, into: &mut JoinSet<()>) {
    for _ in 0..count {
        let mut client = Client::connect(weir).await;
        let expected = expected.to_owned();
        client.post(CHAT, LONG).await;
        into.spawn(async move {
            assert_eq!(client.head().await.status, 200);
            let text = client.rest().await;
            assert!(client.ended, "cut after {:?}", String::from_utf8_lossy(&text));
            let (text, _) = without_keepalives(&text);
            assert!(text == expected, "another end: {:?}", &text[text.len().saturating_sub(120)..]);
        });
    }
    weir_has(weir, "requests upstream", count).await;
}

async fn weir_has(weir: &Weir, what: &str, count: usize) {
    within(what, async {
        #[expect(clippy::cast_precision_loss, reason = "a small count")]
        while weir.metric("weir_streams_active", &[]).await < count as f64 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Twice in a row, each time with this many streams in flight.
async fn upgrades(count: usize) {
    let end = Signal::new();
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let (reply, expected) = long(&end);
    upstream.when("long", reply);
    let weir = Setup::new(&upstream.url()).server("drain_delay: 5s, upgrade_drain: 1h").start().await;
    let first = weir.pid();

    // New connections all the time; and one client that keeps its connection as long as it may.
    let stop = Arc::new(AtomicBool::new(false));
    let mut short = JoinSet::new();
    for keeps in [false, false, true] {
        let (address, stop) = (weir.address, Arc::clone(&stop));
        short.spawn(async move {
            let (mut done, mut client) = (0, Client::connect_to(address).await);
            while !stop.load(Ordering::Relaxed) {
                client.post(CHAT, CHAT_ASK).await;
                let received = client.receive().await;
                assert_eq!((received.status(), received.text()), (200, chat_seen()));
                done += 1;
                if !keeps || received.head.get("connection") == Some("close") {
                    client = Client::try_connect(address).await.expect("no connection is refused");
                }
            }
            done
        });
    }
    let mut open = JoinSet::new();
    streams(count, &weir, &expected, &mut open).await;
    let second = weir.upgrade().await.expect("the first upgrade");
    assert!(second != first && is_alive(first) && is_alive(second), "the old one finishes what it has");
    streams(count, &weir, &expected, &mut open).await;
    let third = weir.upgrade().await.expect("the second upgrade");
    assert!(third != second && is_alive(first) && is_alive(second) && is_alive(third));
    streams(count, &weir, &expected, &mut open).await;
    // Each firing lets one stream end.
    let firing = tokio::spawn(async move {
        loop {
            end.fire();
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    });
    while let Some(read) = open.join_next().await {
        read.unwrap();
    }
    firing.abort();
    assert!(weir.ended().await, "the first ends when its last stream has");
    until("the second's end", || !is_alive(second)).await;
    stop.store(true, Ordering::Relaxed);
    let mut shorts = 0;
    while let Some(done) = short.join_next().await {
        shorts += done.unwrap();
    }
    assert!(shorts > 10, "{shorts} requests are no load");
    weir.stop_successor().await;
    let all = 3 * count + shorts;
    let counts = weir.ask("SELECT count(*), count(DISTINCT request_id), sum(outcome = 'completed') FROM records");
    assert_eq!(counts, format!("{all} {all} {all}"));
    assert_eq!(upstream.count(), all);
    verify(&weir.ledger());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c3_two_upgrades_in_a_row_cut_nothing_refuse_nothing_and_record_each_request_once() {
    upgrades(100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes some thousand descriptors and a minute; run by `cargo nextest run --run-ignored all five_hundred`"]
async fn c3_two_upgrades_in_a_row_with_five_hundred_streams_each() {
    upgrades(500).await;
}

#[tokio::test]
async fn c3_a_process_that_is_stopped_and_continued_hands_over_all_the_same() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).server("drain_delay: 10ms").start().await;
    let first = weir.pid();
    let mut upgrading = std::pin::pin!(weir.upgrade());
    let upgraded = loop {
        weir.signal("STOP");
        weir.signal("CONT");
        if let Ok(done) = tokio::time::timeout(std::time::Duration::from_millis(20), &mut upgrading).await {
            break done;
        }
    };
    assert_ne!(upgraded.expect("an upgrade"), first);
    assert!(weir.ended().await);
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.text(), chat_seen());
    weir.stop_successor().await;
}

#[tokio::test]
async fn c3_requests_of_the_minute_carry_over() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).server("drain_delay: 10ms").own_key("rpm: 5").start().await;
    for _ in 0..3 {
        assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 200);
    }
    // What the old process still lets in while it hands over is counted there alone, so its end is awaited.
    let first = weir.pid();
    let second = weir.upgrade().await.expect("the first upgrade");
    until("the end of the first process", || !is_alive(first)).await;
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 200);
    weir.upgrade().await.expect("the second upgrade");
    until("the end of the second process", || !is_alive(second)).await;
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 200);
    let refused = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(refused.status(), 429, "{}", refused.text());
    assert!(refused.text().contains("5 requests per minute"), "{}", refused.text());
    assert_eq!(upstream.count(), 5);
    weir.stop_successor().await;
    verify(&weir.ledger());
}

#[tokio::test]
async fn c3_slots_and_tokens_of_the_old_process_are_taken_in_the_new_one_until_its_requests_end() {
    let end = Signal::new();
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.begun()).wait(&end).write(chat_ok())).await;
    let weir = Setup::new(&upstream.url())
        .server("drain_delay: 10ms, upgrade_drain: 1h")
        .own_key("concurrent: 1, tpm: 100000")
        .start()
        .await;
    let first = weir.pid();
    let mut stream = Client::connect(&weir).await;
    stream.open(CHAT, CHAT_ASK).await;
    stream.read_past("Hel").await;
    weir.upgrade().await.expect("an upgrade");
    let refused = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(refused.status(), 429, "{}", refused.text());
    assert!(refused.text().contains("at the same time"), "{}", refused.text());
    end.fire();
    stream.rest().await;
    assert!(stream.ended);
    until("the end of the old process", || !is_alive(first)).await;
    within("the slot to be free", async {
        loop {
            let mut client = Client::connect(&weir).await;
            client.post(CHAT, CHAT_ASK).await;
            if client.head().await.status == 200 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
    weir.stop_successor().await;
}

#[tokio::test]
async fn c3_an_upgrade_that_fails_leaves_the_old_process_serving() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let good = weir.config();
    // A file with a mistake is found before anything is started.
    std::fs::write(weir.folder.join("weir.yaml"), good.replace("provider: up,", "provider: down,")).unwrap();
    let said = weir.upgrade().await.unwrap_err();
    assert!(said.contains("models[0].targets[0].provider"), "{said}");
    // A port that somebody else has, which only the new process finds.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let more = format!("listen:\n  - {{ address: \"{}\" }}\n", taken.local_addr().unwrap());
    std::fs::write(weir.folder.join("weir.yaml"), good.replace("listen:\n", &more)).unwrap();
    let said = weir.upgrade().await.unwrap_err();
    assert!(said.contains("the new process ended"), "{said}");
    until("the reason in the log", || weir.said().contains("another process may hold it")).await;
    // A ledger that cannot be opened.
    let elsewhere = format!("{good}\nledger: {{ path: /proc/weir.db }}\nserver: {{}}\n");
    let elsewhere = elsewhere.replace("\nserver: {}\n", "\n");
    let socket = weir.folder.join("data/upgrade.sock");
    let with_socket = elsewhere.replace("threads: 2", &format!("threads: 2, upgrade_socket: \"{}\"", socket.display()));
    std::fs::write(weir.folder.join("weir.yaml"), with_socket).unwrap();
    let said = weir.upgrade().await.unwrap_err();
    assert!(said.contains("the new process ended"), "{said}");

    assert!(is_alive(weir.pid()));
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(
        (received.text(), received.head.get("connection")),
        (chat_seen(), Some("keep-alive")),
        "as if nothing was"
    );
    std::fs::write(weir.folder.join("weir.yaml"), &good).unwrap();
    weir.upgrade().await.expect("put right, it works");
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.text(), chat_seen());
    weir.stop_successor().await;
}

#[tokio::test]
async fn c3_nobody_to_take_over_from_is_an_error_and_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("weir.yaml");
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/conf/demo.yaml")).unwrap();
    std::fs::write(&config, text.replace("8080", "0").replace("9090", "0")).unwrap();
    let config = config.to_str().unwrap();
    for command in [&["serve", "--upgrade", "--config", config][..], &["upgrade", "--config", config]] {
        let output = weir_command(command);
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("no process of Weir answers at"), "{said}");
    }
}

#[tokio::test]
async fn c3_an_upgrade_changes_what_a_reload_cannot_and_sigterm_ends_the_retired_process() {
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.begun()).hang()).await;
    let weir = Setup::new(&upstream.url()).server("drain_delay: 10ms, drain: 200ms").start().await;
    let mut stream = Client::connect(&weir).await;
    stream.open(CHAT, CHAT_ASK).await;
    stream.read_past("Hel").await;
    let spare = free_address();
    let more = format!("listen:\n  - {{ address: \"{spare}\" }}\n");
    std::fs::write(weir.folder.join("weir.yaml"), weir.config().replace("listen:\n", &more)).unwrap();
    weir.upgrade().await.expect("an upgrade");
    upstream.set_default(Reply::stream(chat_ok()));
    for address in [spare, weir.address] {
        let mut client = Client::connect_to(address).await;
        client.post(CHAT, CHAT_ASK).await;
        assert_eq!(client.receive().await.text(), chat_seen());
    }
    weir.signal("TERM");
    let text = stream.rest().await;
    assert!(String::from_utf8_lossy(&text).contains("server_draining") && stream.ended);
    assert!(weir.ended().await);
    weir.stop_successor().await;
    verify(&weir.ledger());
}
