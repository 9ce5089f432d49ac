//! How many requests a second the ledger opens and settles on this disk, and how long an opening waits.

use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use uuid::Uuid;
use weir::ledger::billing::Facts;
use weir::ledger::config::PriceConfig;
use weir::ledger::price::Prices;
use weir::ledger::{Aside, Ledger, LedgerConfig, OpenRow, Settlement, Terms};
use weir::meter::usage::{Source, Usage};
use weir::outcome::Outcome;
use weir::protocol::Endpoint;
use weir::record::{Attempt, Record};

const SECONDS: u64 = 2;

/// With so many requests at once.
pub(crate) fn run(target: &Path) -> Value {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    println!("\n{:>12} {:>12} {:>12} {:>12} {:>12}   ledger", "at once", "settled/s", "commits/s", "p50 ms", "p99 ms");
    let rows: Vec<Value> = [1_u64, 20, 200, 2_000]
        .into_iter()
        .map(|at_once| {
            let folder = tempfile::tempdir_in(target).expect("a folder below target");
            let row = runtime.block_on(measure(folder.path(), at_once));
            let column = |name: &str| row[name].as_f64().unwrap_or(0.0);
            println!(
                "{at_once:>12} {:>12.0} {:>12.0} {:>12.2} {:>12.2}",
                column("settled_per_s"),
                column("commits_per_s"),
                column("open_p50_ms"),
                column("open_p99_ms")
            );
            row
        })
        .collect();
    rows.into()
}

async fn measure(folder: &Path, at_once: u64) -> Value {
    let file = folder.join("prices.yaml");
    std::fs::write(&file, "prices: [{ provider: demo, model: fox, input: '1', output: '2' }]").expect("writable");
    let config = PriceConfig { cost: vec![file], ..PriceConfig::default() };
    let prices = Arc::new(Prices::load(&config).expect("valid"));
    let terms = Terms { prices, ..Terms::default() };
    let shared = Arc::new(arc_swap::ArcSwap::from_pointee(terms.clone()));
    let ledger = Ledger::open(&LedgerConfig::new(folder.join("weir.db")), shared, None).expect("it opens");
    let terms = Arc::new(terms);
    let began = Instant::now();
    let until = began + Duration::from_secs(SECONDS);
    let clients: Vec<_> =
        (0..at_once).map(|_| tokio::spawn(client(ledger.clone(), Arc::clone(&terms), until))).collect();
    let mut waits = Vec::new();
    for client in clients {
        waits.extend(client.await.expect("no panic"));
    }
    let stats = ledger.stats();
    ledger.close();
    // The close is part of it: all that was settled is on disk then.
    let seconds = began.elapsed().as_secs_f64();
    waits.sort_unstable();
    let at = |share: usize| waits.get(waits.len().saturating_sub(1) * share / 100).copied().unwrap_or_default();
    json!({
        "at_once": at_once, "settled_per_s": waits.len() as f64 / seconds, "commits_per_s": stats.commits as f64 / seconds,
        "open_p50_ms": at(50).as_secs_f64() * 1e3, "open_p99_ms": at(99).as_secs_f64() * 1e3,
    })
}

async fn client(ledger: Ledger, terms: Arc<Terms>, until: Instant) -> Vec<Duration> {
    let mut waits = Vec::new();
    while Instant::now() < until {
        let id = Uuid::now_v7();
        let began = Instant::now();
        let (ticket, durable) = ledger.begin(open_row(id)).await.expect("it works");
        durable.wait().await.expect("it works");
        waits.push(began.elapsed());
        let record = record(id);
        let facts = Facts {
            outcome: record.outcome,
            reported: record.usage,
            output_delivered: true,
            input_estimate: None,
            delivered_estimate: None,
            received_estimate: None,
            max_output: None,
        };
        ticket.settle(Settlement::new(&terms, record, &facts, Aside::default()));
    }
    waits
}

fn open_row(id: Uuid) -> OpenRow {
    OpenRow {
        id,
        client_request_id: Some("client's".to_owned()),
        key: Some("team-a".into()),
        tag: Some("research".into()),
        client: Some([203, 0, 113, 5].into()),
        endpoint: Some(Endpoint::Messages),
        model: Some("public".into()),
        target: Some("demo/fox".into()),
        stream: true,
        received: SystemTime::now(),
        tier_requested: None,
        input_estimate: Some(7),
    }
}

fn record(id: Uuid) -> Record {
    Record {
        id,
        trace: None,
        client_request_id: Some("client's".to_owned()),
        upstream_request_id: Some("req_1".to_owned()),
        answer_id: Some("msg_1".to_owned()),
        key: Some("team-a".into()),
        tag: Some("research".into()),
        client: Some([203, 0, 113, 5].into()),
        endpoint: Some(Endpoint::Messages),
        model: Some("public".into()),
        target: Some("demo/fox".into()),
        attempts: vec![Attempt {
            target: "demo/fox".into(),
            result: "ok",
            status: Some(200),
            began: Duration::from_millis(1),
            ended: Duration::from_millis(900),
            maybe_billed: false,
        }],
        stream: true,
        status: 200,
        effective_status: 200,
        outcome: Outcome::Completed,
        cause: None,
        received: SystemTime::now(),
        admitted: Some(Duration::from_millis(1)),
        upstream_first_byte: Some(Duration::from_millis(200)),
        upstream_first_output: Some(Duration::from_millis(300)),
        first_output: Some(Duration::from_millis(301)),
        first_visible: Some(Duration::from_millis(400)),
        last_output: Some(Duration::from_millis(899)),
        duration: Duration::from_millis(901),
        waited: Duration::from_millis(895),
        bytes: 4_321,
        output_events: 12,
        keepalives: 1,
        usage: Usage { input: Some(10), output: Some(4), ..Usage::default() },
        source: Source::Reported,
        tier_requested: None,
        tier_served: Some("standard".to_owned()),
    }
}
