//! L2 and L4: killed at random moments under load, with PostgreSQL coming and going, nothing that
//! mattered is missing and nothing counts twice. `WEIR_TEST_KILLS` says how often (a short run: 12).

use crate::harness::*;
use rusqlite::Connection;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

const KILLS: &str = "WEIR_TEST_KILLS";
const STREAMS: usize = 16;
const TOTALS: &str = "SELECT count(*), sum(input), sum(output), sum(charge), sum(cost) FROM records";
const REMOTE: &str = "SELECT count(*)::text || ' ' || sum(input) || ' ' || sum(output) || ' ' || sum(charge) || ' ' \
    || sum(cost) FROM weir_records";

/// What a client saw of one request.
#[derive(Clone, Copy, Debug, Default)]
struct Saw {
    dialect: usize,
    content: bool,
    /// The whole answer, its clean end included.
    whole: bool,
    /// Weir promised that by then the record is on disk.
    strict: bool,
}

type Seen = Arc<Mutex<BTreeMap<String, Saw>>>;

/// An upstream for each dialect whose streams take some milliseconds.
async fn upstreams() -> Vec<Upstream> {
    let mut all = Vec::new();
    for dialect in Dialect::ALL {
        let mut reply = Reply::sse();
        for event in dialect.events() {
            reply = reply.write(event).step(Step::Pause(Duration::from_millis(6)));
        }
        all.push(Upstream::start(reply).await);
    }
    all
}

fn setup(upstreams: &[Upstream], sections: &[String]) -> Setup {
    let mut setup = Setup::default();
    for (dialect, upstream) in Dialect::ALL.iter().zip(upstreams) {
        let name = dialect.name;
        setup = setup
            .provider(&format!("{name}: {{ base_url: \"{}\", api_key: k }}", upstream.url()))
            .other_model(&format!("{{ name: {name}, targets: [{{ provider: {name}, model: upstream-model }}] }}"));
    }
    sections.iter().fold(setup, |setup, section| setup.section(section))
}

/// One request after the other on connections of their own, until nobody listens any more.
async fn hammer(address: SocketAddr, seed: u64, strict: bool, seen: Seen) {
    let mut random = fastrand::Rng::with_seed(seed);
    while let Some(mut client) = Client::try_connect(address).await {
        let number = random.usize(..3);
        let dialect = Dialect::ALL[number];
        let body = dialect.ask().replace("public-model", dialect.name);
        if client.try_send(request(dialect.path, &[], body.as_bytes())).await.is_err() {
            continue;
        }
        let Some(head) = client.try_head().await else { continue };
        let id = head.id().to_owned();
        let mut saw = Saw { dialect: number, strict, ..Saw::default() };
        // Some leave early.
        let leaves = random.u8(..8) == 0;
        while client.chunk().await.is_some() {
            let text = String::from_utf8_lossy(&client.body).into_owned();
            if !saw.content && text.contains("Hel") {
                saw.content = true;
                seen.lock().unwrap().insert(id.clone(), saw);
                if leaves {
                    break;
                }
            }
        }
        saw.whole = client.ended && head.status == 200;
        seen.lock().unwrap().insert(id, saw);
    }
}

fn kills() -> usize {
    let asked = std::env::var_os(KILLS).and_then(|text| text.to_str()?.parse().ok());
    asked.unwrap_or(12)
}

/// Every request against its record.
fn compare(ledger: &Path, seen: &BTreeMap<String, Saw>, hint: &str) {
    let connection = Connection::open(ledger).unwrap();
    let mut rows = connection.prepare("SELECT request_id, outcome, input, output FROM records").unwrap();
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, (row.get(1)?, row.get(2)?, row.get(3)?)));
    let mut records: HashMap<String, (String, Option<i64>, Option<i64>)> = HashMap::new();
    for row in rows.query_map([], read).unwrap() {
        let (id, record): (String, _) = row.unwrap();
        assert!(records.insert(id.clone(), record).is_none(), "{hint}: {id} has two records");
    }
    for (id, saw) in seen.iter().filter(|(_, saw)| saw.content) {
        let Some((outcome, input, output)) = records.get(id) else { panic!("{hint}: {id} got content: no record") };
        let (all_input, all_output) = Dialect::ALL[saw.dialect].tokens;
        let [all_input, all_output] = [all_input, all_output].map(|count| i64::try_from(count).unwrap());
        if outcome == "completed" {
            assert_eq!((*input, *output), (Some(all_input), Some(all_output)), "{hint}: {id}");
        } else {
            assert!(!(saw.whole && saw.strict), "{hint}: {id} was whole and is {outcome}");
            assert!(output.is_none_or(|count| count <= all_output.max(5)), "{hint}: {id} has {output:?}");
        }
    }
    let of = |word: &str| records.values().filter(|(outcome, ..)| outcome == word).count();
    println!(
        "{hint}: {} seen, {} completed, {} crashed, {} left",
        seen.len(),
        of("completed"),
        of("crashed"),
        of("client_gone")
    );
    assert!(of("crashed") > 0 && of("completed") > 0, "{hint}: the kills met something");
}

/// Waits until PostgreSQL has what the ledger has.
async fn arrived(postgres: &Postgres, ledger: &Path) {
    let local = ask(ledger, TOTALS);
    let mut remote = String::new();
    let began = std::time::Instant::now();
    while began.elapsed() < PATIENCE {
        remote = postgres.ask(REMOTE).await;
        if remote == local {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("PostgreSQL has {remote}, the ledger {local}");
}

#[tokio::test]
async fn l2_l4_killed_at_random_moments_nothing_is_missing_and_nothing_counts_twice() {
    let seed = fastrand::u64(..);
    let hint = format!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("weir.db");
    let (_prices, prices) = prices("prices.yaml", OWN_PRICES);
    let mut postgres = Postgres::start().await;
    let upstreams = upstreams().await;
    let seen = Seen::default();
    let section = |strict: bool| {
        let durability = if strict { "strict" } else { "group" };
        format!(
            "ledger: {{ path: \"{}\", durability: {durability}, checkpoint: 1s, postgres: {{ url: \"{}\", batch: 50 }} }}",
            ledger.display(),
            postgres.url()
        )
    };
    let sections = [section(false), section(true)];
    let kills = kills();
    for kill in 0..kills {
        let strict = kill % 2 == 1;
        match kill {
            // Away for some lives.
            _ if kill % 6 == 3 => postgres.kill(),
            _ if kill % 6 == 5 => postgres.run().await,
            _ => {}
        }
        let weir = setup(&upstreams, &[prices.clone(), sections[usize::from(strict)].clone()]).start().await;
        let mut clients = JoinSet::new();
        for _ in 0..STREAMS {
            clients.spawn(hammer(weir.address, random.u64(..), strict, Arc::clone(&seen)));
        }
        // However slow the machine: under load, some answers whole and some under way.
        let whole = || seen.lock().unwrap().values().filter(|saw| saw.whole).count();
        let before = whole();
        until("answers", || whole() > before).await;
        tokio::time::sleep(Duration::from_millis(random.u64(0..800))).await;
        // SIGKILL.
        drop(weir);
        while let Some(done) = clients.join_next().await {
            done.unwrap();
        }
    }
    postgres.run().await;
    let last = setup(&upstreams, &[prices.clone(), sections[0].clone()]).start().await;
    compare(&ledger, &seen.lock().unwrap(), &hint);
    arrived(&postgres, &ledger).await;
    assert!(last.stop().await);
    verify(&ledger);
    assert_eq!(ask(&ledger, "SELECT count(*) FROM open"), "0", "{hint}");
    let twice = "SELECT (count(*) - count(DISTINCT request_id))::text FROM weir_records";
    assert_eq!(postgres.ask(twice).await, "0", "{hint}");
}

#[tokio::test]
async fn l4_streams_do_not_notice_postgres_and_the_last_rows_are_shipped_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("weir.db");
    let (_prices, prices) = prices("prices.yaml", OWN_PRICES);
    let mut postgres = Postgres::start().await;
    let upstreams = upstreams().await;
    let section = format!("ledger: {{ path: \"{}\", postgres: {{ url: \"{}\" }} }}", ledger.display(), postgres.url());
    let setup = setup(&upstreams, &[prices, section]).server("drain_delay: 10ms");
    let weir = setup.start().await;
    let round = async |count: usize| {
        for _ in 0..count {
            for dialect in Dialect::ALL {
                let received = weir.post(dialect.path, dialect.ask().replace("public-model", dialect.name)).await;
                assert_eq!(received.text(), dialect.seen());
            }
        }
    };
    round(5).await;
    weir.settles("weir_sink_connected", 1.0).await;
    postgres.kill();
    round(10).await;
    weir.settles("weir_sink_connected", 0.0).await;
    within("rows that wait", async {
        while weir.metric("weir_sink_pending_records", &[]).await == 0.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    postgres.run().await;
    weir.settles("weir_sink_connected", 1.0).await;
    round(5).await;
    // B242: what the last of them left is there when the process has ended.
    assert!(weir.stop().await);
    assert_eq!(ask(&ledger, "SELECT count(*) FROM records WHERE outcome = 'completed'"), "60");
    assert_eq!(postgres.ask(REMOTE).await, ask(&ledger, TOTALS));
}
