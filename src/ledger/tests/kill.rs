//! The process is killed with SIGKILL at random moments, and nothing that mattered is missing (L2).
//!
//! The test runs this same test binary as a child that hammers the ledger and tells on its standard
//! output what a client would have seen.

use super::*;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// The database of the child; absent in a normal run.
const CHILD: &str = "WEIR_TEST_LEDGER_CHILD";
/// How many kills; more of them in the long run.
const KILLS: &str = "WEIR_TEST_KILLS";

#[expect(clippy::disallowed_methods, reason = "the environment is how a test talks to its child")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Tells one thing that a client has seen, in one write.
fn tell(word: &str, id: Uuid, number: u64) {
    let line = format!("\n{word} {id} {number}\n");
    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
}

/// Not a test of its own: the child's life, which only ends by being killed.
#[test]
fn child_of_the_kill_test() {
    let Some(path) = variable(CHILD) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let ledger = open(&LedgerConfig { durability: Durability::Strict, ..config(Path::new(&path)) });
        let streams: Vec<_> = (0..24).map(|n| tokio::spawn(stream(ledger.clone(), n))).collect();
        for stream in streams {
            stream.await.unwrap();
        }
    });
}

/// Requests of all kinds, one after the other, for ever.
async fn stream(ledger: Ledger, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(u64::from(std::process::id()) * 100 + seed);
    loop {
        let id = Uuid::now_v7();
        let (ticket, durable) = ledger.begin(row(id)).await.unwrap();
        if rng.u8(..10) == 0 {
            ticket.cancel();
            tell("cancelled", id, 0);
            continue;
        }
        durable.wait().await.unwrap();
        tell("content", id, 0);
        let tokens = rng.u64(1..1_000);
        if rng.bool() {
            ticket.checkpoint(Checkpoint { output_events: 1, usage: usage(tokens, tokens), ..Checkpoint::default() });
            tokio::time::sleep(Duration::from_micros(rng.u64(..5_000))).await;
        }
        if rng.u8(..10) == 0 {
            drop(ticket);
            continue;
        }
        if ticket.settle(settled(id, tokens, tokens)).wait().await {
            tell("settled", id, tokens);
        }
    }
}

/// What the clients of a killed process had seen.
fn run_and_kill(path: &Path, life: Duration, at_work: bool) -> Vec<(String, String, i64)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ledger::tests::kill::child_of_the_kill_test", "--nocapture", "--test-threads=1"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let (working, works) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let lines = output.lines().map_while(Result::ok);
        lines
            .filter_map(|line| {
                let mut words = line.split(' ');
                let (word, id, number) = (words.next()?, words.next()?, words.next()?);
                let _ = (word == "settled").then(|| working.send(()));
                Some((word.to_owned(), id.to_owned(), number.parse().ok()?))
            })
            .collect::<Vec<_>>()
    });
    if at_work {
        works.recv_timeout(Duration::from_mins(1)).expect("the child comes to work");
    }
    std::thread::park_timeout(life);
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

#[test]
fn l2_killed_at_random_moments_every_request_that_got_content_has_one_record() {
    let kills = variable(KILLS).and_then(|number| number.parse().ok()).unwrap_or(30);
    let seed = fastrand::u64(..);
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    open(&config(&path)).close();
    let (mut content, mut cancelled, mut settled) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
    for kill in 0..kills {
        // Some while they begin, some at work, however slow the machine.
        for (word, id, number) in run_and_kill(&path, Duration::from_millis(rng.u64(30..300)), kill % 2 == 0) {
            match word.as_str() {
                "content" => drop(content.insert(id)),
                "cancelled" => drop(cancelled.insert(id)),
                "settled" => drop(settled.insert(id, number)),
                _ => {}
            }
        }
    }
    open(&config(&path)).close();
    let connection = Connection::open(&path).unwrap();
    let mut rows = connection.prepare("SELECT request_id, outcome, input, output FROM records").unwrap();
    let rows = rows.query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?, row.get(3)?)))).unwrap();
    let records: BTreeMap<String, (String, Option<i64>, Option<i64>)> = rows.map(Result::unwrap).collect();
    println!("seed {seed}: {} with content, {} settled, {} records", content.len(), settled.len(), records.len());
    assert!(!settled.is_empty(), "the children never came to work");
    for id in &content {
        assert!(records.contains_key(id), "seed {seed}: {id} got content and has no record");
    }
    for (id, tokens) in &settled {
        let expected = ("completed".to_owned(), Some(*tokens), Some(*tokens));
        assert_eq!(records.get(id), Some(&expected), "seed {seed}: {id} was settled for good");
    }
    let crashed = records.values().filter(|(outcome, ..)| outcome == "crashed").count();
    assert!(crashed > 0, "seed {seed}: no kill ever met an open row");
    assert_eq!(ask(&path, "SELECT count(*) FROM open"), "0");
    assert_eq!(
        ask(&path, "SELECT opened - cancelled - (SELECT count(*) FROM settled) FROM counters"),
        "0",
        "seed {seed}: as many settled as opened"
    );
    assert_eq!(
        ask(&path, "SELECT sum(requests), sum(input), sum(output), sum(charge), sum(cost) FROM daily"),
        ask(&path, "SELECT count(*), sum(input), sum(output), sum(charge), sum(cost) FROM settled"),
        "seed {seed}: days and rows agree"
    );
    let report = cli::verify(&path).unwrap();
    assert!(report.is_clean(), "seed {seed}:\n{report}");
}
