//! How a settled request is written: its columns, and what it adds to its day.
//!
//! Called by the writer and by recovery. Touches nothing but the statement it is given.

use super::Settlement;
use super::price::parts;
use crate::meter::usage::{Source, Usage};
use crate::record::{Attempt, Record};
use rusqlite::types::Value;
use serde_json::json;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The columns of `settled` but `seq`, in the order of [`Row::values`].
pub(super) const COLUMNS: &str = "request_id, client_request_id, upstream_request_id, answer_id, key, tag, client, \
    endpoint, protocol, model, target, attempts, maybe_billed, stream, status, effective_status, outcome, cause, \
    source, input, cache_read, cache_write_5m, cache_write_1h, output, reasoning, audio_input, audio_output, \
    web_search, other_models, charged, billing, billing_why, charge, cost, sell_version, cost_version, unpriced, \
    tier_requested, tier_served, anomalies, received, day, admitted, upstream_first_byte, upstream_first_output, \
    first_output, first_visible, last_output, duration, waited, bytes, output_events, keepalives, settled_at, owner";

/// The summed columns of `daily` and `pruned`, in the order of [`Sums`].
pub(super) const SUMS: [&str; 14] = [
    "requests",
    "unpriced",
    "estimated",
    "input",
    "cache_read",
    "cache_write_5m",
    "cache_write_1h",
    "output",
    "reasoning",
    "audio_input",
    "audio_output",
    "web_search",
    "charge",
    "cost",
];

/// The same over rows of `settled`: what one of them, and all of a day, add.
pub(super) const SUMS_OF_SETTLED: &str = "count(*), \
    sum(unpriced IS NOT NULL), sum(source IN ('partial', 'estimated')), \
    sum(coalesce(input, 0)), sum(coalesce(cache_read, 0)), sum(coalesce(cache_write_5m, 0)), \
    sum(coalesce(cache_write_1h, 0)), sum(coalesce(output, 0)), sum(coalesce(reasoning, 0)), \
    sum(coalesce(audio_input, 0)), sum(coalesce(audio_output, 0)), sum(coalesce(web_search, 0)), \
    sum(coalesce(charge, 0)), sum(coalesce(cost, 0))";

/// Numbers in the order of [`SUMS`].
pub(super) type Sums = [i64; 14];

/// Day, key, tag, model, target, outcome; empty: none.
pub(super) type Place = [String; 6];

/// One request, ready to be written.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) values: Vec<Value>,
    pub(super) place: Place,
    pub(super) sums: Sums,
}

/// `INSERT` for a row; a request that is settled already changes nothing.
pub(super) fn insert() -> String {
    let count = COLUMNS.split(',').count();
    let mut places = String::new();
    for index in 1..=count {
        let _ = write!(places, "{}?{index}", if index == 1 { "" } else { ", " });
    }
    format!("INSERT INTO settled ({COLUMNS}) VALUES ({places}) ON CONFLICT (request_id) DO NOTHING")
}

/// `INSERT … ON CONFLICT DO UPDATE` that adds sums to a day's aggregate.
pub(super) fn add_to_daily() -> String {
    let names = SUMS.join(", ");
    let places = (7..7 + SUMS.len()).map(|index| format!("?{index}")).collect::<Vec<_>>().join(", ");
    let adds = SUMS.map(|name| format!("{name} = {name} + excluded.{name}")).join(", ");
    format!(
        "INSERT INTO daily (day, key, tag, model, target, outcome, {names}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, {places}) \
         ON CONFLICT (day, key, tag, model, target, outcome) DO UPDATE SET {adds}"
    )
}

/// Sums by place, gathered over one transaction.
pub(super) type Gathered = HashMap<Place, Sums>;

/// Adds one row's numbers.
pub(super) fn gather(gathered: &mut Gathered, row: &Row) {
    let sums = gathered.entry(row.place.clone()).or_default();
    for (sum, more) in sums.iter_mut().zip(row.sums) {
        *sum = sum.saturating_add(more);
    }
}

impl Row {
    /// Lays out a settlement; `owner` and `now` say who wrote it and when.
    pub(super) fn new(settlement: &Settlement, day: String, owner: i64, now: i64) -> Self {
        let Settlement { record, bill, money, other_models, anomalies } = settlement;
        let (_, odd) = parts(&bill.usage);
        let maybe_billed = record.attempts.iter().filter(|attempt| attempt.maybe_billed).count();
        let unpriced = (!money.unpriced.is_empty()).then(|| money.unpriced.join(","));
        let others = (!other_models.is_empty()).then(|| others_json(other_models));
        let place = [
            day.clone(),
            record.key.as_deref().unwrap_or_default().to_owned(),
            record.tag.as_deref().unwrap_or_default().to_owned(),
            record.model.as_deref().unwrap_or_default().to_owned(),
            record.target.as_deref().unwrap_or_default().to_owned(),
            record.outcome.word().to_owned(),
        ];
        let (charge, cost) = (money.charge.map(|nano| nano.0), money.cost.map(|nano| nano.0));
        let sums = sums(&bill.usage, bill.source, unpriced.is_some(), charge, cost);
        let mut values = names_of(record);
        values.extend([
            text(Some(&attempts_json(&record.attempts))),
            count(maybe_billed),
            Value::Integer(i64::from(record.stream)),
            Value::Integer(i64::from(record.status)),
            Value::Integer(i64::from(record.effective_status)),
            text(Some(record.outcome.word())),
            text(record.cause),
            text(Some(bill.source.word())),
        ]);
        values.extend(members(&bill.usage).map(number));
        values.extend([
            text(others.as_deref()),
            text(Some(&usage_json(&bill.charged).to_string())),
            text(Some(bill.basis.word())),
            text(Some(bill.why)),
            charge.map_or(Value::Null, Value::Integer),
            cost.map_or(Value::Null, Value::Integer),
            text(money.sell_version.as_deref()),
            text(money.cost_version.as_deref()),
            text(unpriced.as_deref()),
            text(record.tier_requested.as_deref()),
            text(record.tier_served.as_deref()),
            number(Some(anomalies.saturating_add(odd))),
            Value::Integer(micros_since_1970(record.received)),
            Value::Text(day),
        ]);
        values.extend(times_of(record));
        values.extend([Value::Integer(now), Value::Integer(owner)]);
        Self { values, place, sums }
    }
}

fn names_of(record: &Record) -> Vec<Value> {
    vec![
        Value::Text(record.id.to_string()),
        text(record.client_request_id.as_deref()),
        text(record.upstream_request_id.as_deref()),
        text(record.answer_id.as_deref()),
        text(record.key.as_deref()),
        text(record.tag.as_deref()),
        text(record.client.map(|address| address.to_string()).as_deref()),
        text(record.endpoint.map(crate::protocol::Endpoint::word)),
        text(record.endpoint.map(|endpoint| endpoint.protocol().word())),
        text(record.model.as_deref()),
        text(record.target.as_deref()),
    ]
}

fn times_of(record: &Record) -> [Value; 11] {
    let since = |time: Option<Duration>| time.map_or(Value::Null, |time| Value::Integer(micros(time)));
    [
        since(record.admitted),
        since(record.upstream_first_byte),
        since(record.upstream_first_output),
        since(record.first_output),
        since(record.first_visible),
        since(record.last_output),
        since(Some(record.duration)),
        since(Some(record.waited)),
        number(Some(record.bytes)),
        number(Some(record.output_events)),
        number(Some(record.keepalives)),
    ]
}

fn sums(usage: &Usage, source: Source, unpriced: bool, charge: Option<i64>, cost: Option<i64>) -> Sums {
    let estimated = match source {
        Source::Partial | Source::Estimated => 1,
        Source::Reported | Source::None => 0,
    };
    let tokens = members(usage).map(|member| integer(member.unwrap_or(0)));
    let all = [1, i64::from(unpriced), estimated]
        .into_iter()
        .chain(tokens)
        .chain([charge, cost].map(Option::unwrap_or_default));
    let mut sums = Sums::default();
    for (sum, number) in sums.iter_mut().zip(all) {
        *sum = number;
    }
    sums
}

/// In the order of the columns.
pub(super) const fn members(usage: &Usage) -> [Option<u64>; 9] {
    [
        usage.input,
        usage.cache_read,
        usage.cache_write_5m,
        usage.cache_write_1h,
        usage.output,
        usage.reasoning,
        usage.audio_input,
        usage.audio_output,
        usage.web_search,
    ]
}

fn usage_json(usage: &Usage) -> serde_json::Value {
    let known = SUMS.iter().skip(3).zip(members(usage));
    known.filter_map(|(name, member)| Some(((*name).to_owned(), json!(member?)))).collect()
}

fn others_json(others: &[(String, Usage)]) -> String {
    let entries = others.iter().map(|(model, usage)| json!({ "model": model, "usage": usage_json(usage) }));
    serde_json::Value::Array(entries.collect()).to_string()
}

fn attempts_json(attempts: &[Attempt]) -> String {
    let entries = attempts.iter().map(|attempt| {
        json!({
            "target": &*attempt.target,
            "result": attempt.result,
            "status": attempt.status,
            "began": micros(attempt.began),
            "ended": micros(attempt.ended),
            "maybe_billed": attempt.maybe_billed,
        })
    });
    serde_json::Value::Array(entries.collect()).to_string()
}

/// Text without NUL, which PostgreSQL cannot hold.
pub(super) fn text(text: Option<&str>) -> Value {
    text.map_or(Value::Null, |text| {
        Value::Text(if text.contains('\0') { text.replace('\0', "") } else { text.to_owned() })
    })
}

pub(super) fn number(number: Option<u64>) -> Value {
    number.map_or(Value::Null, |number| Value::Integer(integer(number)))
}

fn count(number: usize) -> Value {
    Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}

/// SQLite's integers are signed; a count that large is absurd anyway ([`crate::meter::usage::ABSURD`]).
pub(super) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn micros_since_1970(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => micros(since),
        Err(before) => -micros(before.duration()),
    }
}

pub(super) fn now() -> i64 {
    micros_since_1970(SystemTime::now())
}
