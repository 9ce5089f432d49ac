use super::*;
use crate::ledger::billing::Facts;
use crate::ledger::money::Nano;
use crate::ledger::{Aside, Terms, schema};
use crate::outcome::Outcome;
use rusqlite::types::Value;
use serde_json::json;
use std::net::IpAddr;
use uuid::Uuid;

/// The simple version: every value made on its own, the JSON from trees.
fn plain(settlement: &Settlement, day: &str, owner: i64, now: i64) -> Vec<Value> {
    let Settlement { record, bill, money, other_models, anomalies } = settlement;
    let text = |text: Option<&str>| text.map_or(Value::Null, |text| Value::Text(text.replace('\0', "")));
    let number = |number: Option<u64>| number.map_or(Value::Null, |n| Value::Integer(i64::try_from(n).unwrap()));
    let time = |time: Option<Duration>| number(time.map(|time| u64::try_from(time.as_micros()).unwrap()));
    let usage = |usage: &Usage| -> serde_json::Value {
        let known = SUMS.iter().skip(3).zip(members(usage));
        known.filter_map(|(name, member)| Some(((*name).to_owned(), json!(member?)))).collect()
    };
    let attempts = record.attempts.iter().map(|attempt| {
        json!({
            "target": &*attempt.target, "result": attempt.result, "status": attempt.status,
            "began": micros(attempt.began), "ended": micros(attempt.ended), "maybe_billed": attempt.maybe_billed,
        })
    });
    let attempts = serde_json::Value::Array(attempts.collect()).to_string();
    let others = other_models.iter().map(|(model, of)| json!({ "model": model, "usage": usage(of) }));
    let others = (!other_models.is_empty()).then(|| serde_json::Value::Array(others.collect()).to_string());
    let billed = record.attempts.iter().filter(|attempt| attempt.maybe_billed).count();
    let unpriced = (!money.unpriced.is_empty()).then(|| money.unpriced.join(","));
    let mut values = vec![
        text(Some(&record.id.to_string())),
        text(record.client_request_id.as_deref()),
        text(record.upstream_request_id.as_deref()),
        text(record.answer_id.as_deref()),
        text(record.key.as_deref()),
        text(record.tag.as_deref()),
        text(record.client.map(|address| address.to_string()).as_deref()),
        text(record.endpoint.map(Endpoint::word)),
        text(record.endpoint.map(|endpoint| endpoint.protocol().word())),
        text(record.model.as_deref()),
        text(record.target.as_deref()),
        text(Some(&attempts)),
        Value::Integer(i64::try_from(billed).unwrap()),
        Value::Integer(i64::from(record.stream)),
        Value::Integer(i64::from(record.status)),
        Value::Integer(i64::from(record.effective_status)),
        text(Some(record.outcome.word())),
        text(record.cause),
        text(Some(bill.source.word())),
    ];
    values.extend(members(&bill.usage).map(number));
    values.extend([
        text(others.as_deref()),
        text(Some(&usage(&bill.charged).to_string())),
        text(Some(bill.basis.word())),
        text(Some(bill.why)),
        money.charge.map_or(Value::Null, |nano| Value::Integer(nano.0)),
        money.cost.map_or(Value::Null, |nano| Value::Integer(nano.0)),
        text(money.sell_version.as_deref()),
        text(money.cost_version.as_deref()),
        text(unpriced.as_deref()),
        text(record.tier_requested.as_deref()),
        text(record.tier_served.as_deref()),
        number(Some(anomalies + parts(&bill.usage).1)),
        Value::Integer(micros_since_1970(record.received)),
        text(Some(day)),
    ]);
    let of = [record.admitted, record.upstream_first_byte, record.upstream_first_output, record.first_output];
    values.extend(of.map(time));
    values.extend([record.first_visible, record.last_output, Some(record.duration), Some(record.waited)].map(time));
    values.extend([record.bytes, record.output_events, record.keepalives].map(|count| number(Some(count))));
    values.extend([Value::Integer(now), Value::Integer(owner)]);
    values
}

fn settlement(record: Record, aside: Aside) -> Settlement {
    let facts = Facts {
        outcome: record.outcome,
        reported: record.usage,
        output_delivered: true,
        input_estimate: Some(3),
        delivered_estimate: Some(4),
        received_estimate: None,
        max_output: None,
    };
    Settlement::new(&Terms::default(), record, &facts, aside)
}

/// One with little, one with everything, one with what must be escaped.
fn samples() -> [Settlement; 4] {
    let all = Usage {
        input: Some(1 << 40),
        cache_read: Some(2),
        cache_write_5m: Some(3),
        cache_write_1h: Some(4),
        output: Some(50),
        reasoning: Some(60),
        audio_input: Some(0),
        audio_output: Some(8),
        web_search: Some(9),
    };
    let few = Record {
        upstream_request_id: None,
        answer_id: None,
        key: None,
        client: None,
        endpoint: None,
        model: None,
        target: None,
        attempts: Vec::new(),
        admitted: None,
        first_output: None,
        usage: Usage::default(),
        outcome: Outcome::Crashed,
        cause: Some("process_died"),
        received: UNIX_EPOCH - Duration::from_micros(5),
        ..Record::sample()
    };
    let mut full = Record { usage: all, tag: Some("tag".into()), ..Record::sample() };
    full.attempts[0].maybe_billed = true;
    full.attempts[0].status = None;
    full.tier_requested = Some("flex".to_owned());
    let aside = Aside { other_models: vec![("an \"other\"\n".to_owned(), all)], anomalies: 7, ..Aside::default() };
    let mut full = settlement(full, aside);
    full.money.charge = Some(Nano(-3));
    full.money.sell_version = Some("v1".into());
    full.money.unpriced = vec!["cost", "charge.web_search"];
    let mut odd = Record { client: Some(IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1])), ..Record::sample() };
    odd.key = Some("k\0ey \"ü\"".into());
    odd.client_request_id = Some("\0".to_owned());
    odd.attempts[1].target = "a\"\\\u{1}\0/ß".into();
    [
        settlement(Record::sample(), Aside::default()),
        settlement(few, Aside::default()),
        full,
        settlement(odd, Aside { other_models: vec![("none".to_owned(), Usage::default())], ..Aside::default() }),
    ]
}

#[test]
fn l1_a_row_is_written_as_the_simple_version_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let connection = schema::open_writer(&folder.path().join("weir.db")).unwrap();
    let mut insert = connection.prepare(&Texts::new().insert).unwrap();
    let mut read = connection.prepare(&format!("SELECT {COLUMNS} FROM settled WHERE request_id = ?1")).unwrap();
    for (number, mut settlement) in samples().into_iter().enumerate() {
        let id = Uuid::from_u128(number.try_into().unwrap());
        std::sync::Arc::get_mut(&mut settlement.record).unwrap().id = id;
        assert_eq!(Row::new(&settlement, "2026-11-30").write(Values::of(&mut insert), 5, 6).unwrap(), 1);
        let written: Vec<Value> = read
            .query_row([id.to_string()], |row| (0..COLUMNS.split(',').count()).map(|index| row.get(index)).collect())
            .unwrap();
        assert_eq!(written, plain(&settlement, "2026-11-30", 5, 6), "sample {number}");
        let again = Row::new(&settlement, "2026-11-30").write(Values::of(&mut insert), 5, 6);
        assert_eq!(again.unwrap(), 0, "settled already");
    }
}

#[test]
fn l4_a_day_gathers_the_rows_of_each_place() {
    let [sample, few, ..] = samples();
    let mut gathered = Gathered::default();
    for settlement in [&sample, &few, &sample, &few, &sample] {
        Row::new(settlement, "2026-11-30").gather(&mut gathered);
    }
    Row::new(&sample, "2026-11-29").gather(&mut gathered);
    let told: Vec<_> = gathered.iter().map(|(place, sums)| (place.join("|"), sums[0], sums[7])).collect();
    let expected = [
        ("2026-11-29|team-a||sol|vllm/sol-8b|completed", 1, 21),
        ("2026-11-30|||||crashed", 2, 8),
        ("2026-11-30|team-a||sol|vllm/sol-8b|completed", 3, 63),
    ];
    assert_eq!(told, expected.map(|(place, requests, output)| (place.to_owned(), requests, output)));
}
