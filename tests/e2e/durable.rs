//! L1, L5 and C3: when a row is on disk, and what happens when it cannot be.

use crate::harness::*;
use rusqlite::Connection;
use std::path::Path;
use std::time::{Duration, Instant};

const CHAT_D: Dialect = Dialect::ALL[0];

/// Nobody else can write the file while this lives.
fn stall(ledger: &Path) -> Connection {
    let connection = Connection::open(ledger).unwrap();
    connection.busy_timeout(Duration::from_mins(1)).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    connection
}

#[tokio::test]
async fn l1_no_content_before_the_open_row_is_on_disk() {
    let passthrough =
        r#"passthrough: [{ path: "/v1/files", methods: [GET], provider: up, keys: [test], shared_account: true }]"#;
    for dialect in Dialect::ALL {
        for stream in [true, false] {
            let reply = if stream { Reply::stream((dialect.ok)()) } else { Reply::json(200, (dialect.json)()) };
            let upstream = Upstream::start(reply).await;
            let weir = Setup::new(&upstream.url()).section(passthrough).start().await;
            let what = format!("{}, stream {stream}", dialect.name);
            let mut asked = 0;
            loop {
                let stalled = stall(&weir.ledger());
                let began = Instant::now();
                let mut client = Client::connect(&weir).await;
                client.post(dialect.path, if stream { dialect.ask() } else { dialect.ask_json() }).await;
                let mut through = Client::connect(&weir).await;
                through
                    .send(format!("GET /v1/files HTTP/1.1\r\nhost: weir\r\nauthorization: Bearer {KEY}\r\n\r\n"))
                    .await;
                upstream.request(asked + 1).await;
                asked += 2;
                let early = tokio::time::timeout(Duration::from_millis(500), client.head()).await;
                // A disk that takes five seconds is broken (L5), and then requests are refused: another test.
                let patient = || began.elapsed() < Duration::from_secs(4);
                assert!(early.is_err() || !patient(), "{what}: {early:?} before the row");
                let early = tokio::time::timeout(Duration::from_millis(50), through.head()).await;
                assert!(early.is_err() || !patient(), "passthrough: {early:?} before the row");
                drop(stalled);
                if !patient() {
                    weir.settles("weir_ledger_healthy", 1.0).await;
                    continue;
                }
                let received = client.receive().await;
                assert_eq!((received.status(), received.ended), (200, true), "{what}");
                assert_eq!(through.receive().await.status(), 200);
                break;
            }
        }
    }
}

#[tokio::test]
async fn l1_strict_holds_the_end_until_the_record_is_on_disk() {
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = Setup::new(&upstream.url()).section("ledger: { durability: strict }").start().await;
    for round in 0..10 {
        for dialect in Dialect::ALL {
            for stream in [true, false] {
                upstream.push(if stream { Reply::stream((dialect.ok)()) } else { Reply::json(200, (dialect.json)()) });
                let ask = if stream { dialect.ask() } else { dialect.ask_json() };
                let received = weir.post(dialect.path, ask).await;
                let row = row(&weir.ledger(), received.id());
                let what = format!("{}, stream {stream}, round {round}", dialect.name);
                assert!(received.ended, "{what}");
                let expected = if stream { dialect.seen() } else { (dialect.json)() };
                assert_eq!(received.text(), expected, "{what}");
                let row = row.unwrap_or_else(|| panic!("{what}: no row when the client had its end"));
                assert_eq!((number(&row, "input"), number(&row, "output")), {
                    let (input, output) = dialect.tokens;
                    (Some(input), Some(output))
                });
            }
        }
    }
}

#[tokio::test]
async fn b242_c3_all_that_was_answered_is_on_disk_after_sigterm() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).server("drain_delay: 50ms, drain: 1s").start().await;
    // One leaves, and has to be estimated at the end; one is cut by the end.
    upstream.push(Reply::sse().write(CHAT_D.begun()).hang());
    let mut cut = Client::connect(&weir).await;
    cut.open(CHAT, CHAT_ASK).await;
    cut.read_past("Hel").await;
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let address = weir.address;
        clients.spawn(async move {
            let mut client = Client::connect_to(address).await;
            for _ in 0..10 {
                client.post(CHAT, CHAT_ASK).await;
                assert!(client.receive().await.ended);
            }
        });
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    let (stopped, _end) = tokio::join!(weir.stop(), cut.rest());
    assert!(stopped, "exit status 0: all had finished");
    let counts =
        "SELECT sum(outcome = 'completed'), sum(outcome = 'drained'), sum(output) > 400, count(*) FROM records";
    assert_eq!(weir.ask(counts), "200 1 1 201");
    verify(&weir.ledger());
}

/// Fills a small file system to the last byte.
fn fill(disk: &Small) {
    let _full = std::fs::write(disk.path().join("filler"), vec![1_u8; 8 << 20]);
}

#[tokio::test]
async fn l5_a_full_disk_refuses_new_requests_and_lets_running_ones_finish() {
    let disk = Small::new("4m");
    let ledger = disk.path().join("weir.db");
    let section = format!("ledger: {{ path: \"{}\" }}", ledger.display());
    let go_on = Signal::new();
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).section(&section).start().await;
    let events = CHAT_D.events();
    upstream.push(Reply::sse().write(CHAT_D.begun()).wait(&go_on).write(events[2..].concat()));
    let mut running = Client::connect(&weir).await;
    running.open(CHAT, CHAT_ASK).await;
    running.read_past("Hel").await;
    fill(&disk);
    let mut refused = weir.post(CHAT, CHAT_ASK).await;
    for _ in 0..2_000 {
        if refused.status() == 503 {
            break;
        }
        refused = weir.post(CHAT, CHAT_ASK).await;
    }
    assert_eq!(refused.status(), 503, "the disk is full");
    assert!(refused.head.get("retry-after").is_some(), "{:?}", refused.head);
    assert_eq!(refused.json()["error"]["code"], "server_unavailable");
    weir.settles("weir_ledger_healthy", 0.0).await;
    go_on.fire();
    assert_eq!(running.rest().await, bytes(&chat_seen()), "a running stream finishes");
    std::fs::remove_file(disk.path().join("filler")).unwrap();
    weir.settles("weir_ledger_healthy", 1.0).await;
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(received.text(), chat_seen());
    weir.settles("weir_ledger_pending_records", 0.0).await;
    assert_eq!(weir.metric("weir_ledger_lost_records_total", &[]).await, 0.0);
    let answered = upstream.requests().len();
    weir.stop().await;
    let outcomes = "SELECT sum(outcome = 'completed'), sum(outcome = 'completed' AND output <> 2) FROM records";
    let (completed, wrong) = ask(&ledger, outcomes).split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    assert_eq!(wrong, "0");
    assert!(completed.parse::<usize>().unwrap() >= 2, "{completed} of {answered}");
    verify(&ledger);
}

#[tokio::test]
async fn l5_serve_goes_on_without_a_disk_and_books_later() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).section("ledger: { on_failure: serve }").start().await;
    let stalled = stall(&weir.ledger());
    let began = Instant::now();
    let first = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(first.text(), chat_seen(), "served after {:?}", began.elapsed());
    until("the ledger to be broken", || weir.said().contains("the ledger cannot be written")).await;
    let mut ids = vec![first.id().to_owned()];
    at_once("a request beside a broken ledger", Duration::from_secs(2), async || {
        let began = Instant::now();
        let second = weir.post(CHAT, CHAT_ASK).await;
        assert_eq!(second.text(), chat_seen());
        ids.push(second.id().to_owned());
        began.elapsed()
    })
    .await;
    drop(stalled);
    for id in ids {
        assert_eq!(word(&weir.booked(&id).await), "completed");
    }
}

#[tokio::test]
async fn l5_what_cannot_be_a_ledger_ends_the_start_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("weir.db");
    std::fs::write(&ledger, "not a database, but long enough to have a header ".repeat(40)).unwrap();
    let file = folder.path().join("weir.yaml");
    let yaml = format!(
        "listen: [{{ address: \"127.0.0.1:0\" }}]\nadmin: {{ address: \"127.0.0.1:0\" }}\nproviders: {{ demo: {{ builtin: demo }} }}\n\
         models: [{{ name: demo, targets: [{{ provider: demo, model: demo }}] }}]\nledger: {{ path: \"{}\" }}\n",
        ledger.display()
    );
    std::fs::write(&file, yaml).unwrap();
    let output = weir_command(&["serve", "--config", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("weir.db") && said.contains("backup"), "{said}");
}
