//! The ledger as the gateway sees it, on real files.

mod failure;
mod kill;
mod life;
mod speed;

use super::billing::{Facts, Policy};
use super::config::{PriceConfig, Sell};
use super::price::Prices;
use super::*;
use crate::meter::usage::{Source, Usage};
use crate::outcome::Outcome;
use crate::protocol::Endpoint;
use crate::record::{Attempt, Record};
use rusqlite::Connection;

pub(super) fn config(path: &Path) -> LedgerConfig {
    LedgerConfig::new(path.to_owned())
}

/// A dollar a token in, two out, sold at 1.5.
pub(super) fn terms() -> Arc<ArcSwap<Terms>> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prices.yaml");
    std::fs::write(&file, "prices: [{ provider: demo, model: fox, input: '1', output: '2' }]").unwrap();
    let config = PriceConfig { cost: vec![file], sell: Sell::Markup("1.5".to_owned()) };
    let prices = Arc::new(Prices::load(&config).unwrap());
    Arc::new(ArcSwap::from_pointee(Terms { prices, billing: Policy::default() }))
}

pub(super) fn open(config: &LedgerConfig) -> Ledger {
    Ledger::open(config, terms(), None).unwrap()
}

pub(super) fn row(id: Uuid) -> OpenRow {
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

pub(super) fn usage(input: u64, output: u64) -> Usage {
    Usage { input: Some(input), output: Some(output), ..Usage::default() }
}

pub(super) fn record(id: Uuid, outcome: Outcome, usage: Usage) -> Record {
    Record {
        id,
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
        outcome,
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
        usage,
        source: Source::Reported,
        tier_requested: None,
        tier_served: Some("standard".to_owned()),
        trace: None,
    }
}

/// As the gateway makes it: decide, price, settle.
pub(super) fn settlement(record: Record, terms: &Terms) -> Settlement {
    let facts = Facts {
        outcome: record.outcome,
        reported: record.usage,
        output_delivered: record.output_events > 0,
        input_estimate: None,
        delivered_estimate: None,
        received_estimate: None,
        max_output: None,
    };
    Settlement::new(terms, record, &facts, Aside::default())
}

pub(super) fn settled(id: Uuid, input: u64, output: u64) -> Settlement {
    settlement(record(id, Outcome::Completed, usage(input, output)), &terms().load())
}

/// One value of one row, as text.
pub(super) fn ask(path: &Path, sql: &str) -> String {
    let connection = Connection::open(path).unwrap();
    let mut statement = connection.prepare(sql).unwrap();
    let columns = statement.column_count();
    let rows = statement
        .query_map([], |row| {
            let values = (0..columns).map(|index| match row.get_unwrap::<_, rusqlite::types::Value>(index) {
                rusqlite::types::Value::Null => "-".to_owned(),
                rusqlite::types::Value::Integer(number) => number.to_string(),
                rusqlite::types::Value::Text(text) => text,
                other => format!("{other:?}"),
            });
            Ok(values.collect::<Vec<_>>().join(" "))
        })
        .unwrap();
    rows.map(Result::unwrap).collect::<Vec<_>>().join("\n")
}

/// Waits for a condition, not for a time.
pub(super) async fn until(what: &str, mut reached: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if reached() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within a minute: {what}");
}
