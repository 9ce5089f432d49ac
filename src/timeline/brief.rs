//! One request as the admin API shows it, from the ring or from the ledger, in the same words.
//!
//! Called by the admin API. Touches nothing.

use super::verdict::{End, verdict};
use super::{Sight, Timeline};
use crate::protocol::Endpoint;
use crate::record::Attempt;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Milliseconds, to the microsecond; nothing where nothing is known.
fn ms(time: Option<Duration>) -> Value {
    time.map_or(Value::Null, |time| micros_as_ms(i64::try_from(time.as_micros()).unwrap_or(i64::MAX)))
}

#[expect(clippy::cast_precision_loss, reason = "2^53 microseconds are 285 years")]
fn micros_as_ms(micros: i64) -> Value {
    json!(micros as f64 / 1000.0)
}

/// `2026-11-30T12:00:00.123Z`
fn stamp(micros: i64) -> Value {
    let time = u64::try_from(micros).map(|micros| std::time::UNIX_EPOCH + Duration::from_micros(micros));
    time.map_or(Value::Null, |time| json!(humantime::format_rfc3339_millis(time).to_string()))
}

/// A request of the ring: what the list shows.
#[must_use]
pub fn of_ring(timeline: &Timeline) -> Map<String, Value> {
    let Timeline { record, charge, sight } = timeline;
    let status = if record.effective_status == 0 { record.status } else { record.effective_status };
    let target = record.target.as_deref().unwrap_or_default();
    let silent = record.duration.checked_sub(sight.last_write.unwrap_or_default());
    let (who, why) = verdict(&End {
        outcome: record.outcome.word(),
        cause: record.cause.unwrap_or_default(),
        status,
        duration: record.duration,
        silent,
        longest_write: sight.longest_write,
        attempts: record.attempts.len(),
        target,
        got_output: record.output_events > 0,
    });
    let received = record.received.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let usage = &record.usage;
    object(json!({
        "request_id": record.id.to_string(),
        "received": stamp(i64::try_from(received.as_micros()).unwrap_or(i64::MAX)),
        "key": record.key.as_deref(),
        "tag": record.tag.as_deref(),
        "client": record.client.map(|client| client.to_string()),
        "endpoint": record.endpoint.map(Endpoint::word),
        "model": record.model.as_deref(),
        "target": record.target.as_deref(),
        "stream": record.stream,
        "status": record.status,
        "effective_status": status,
        "outcome": record.outcome.word(),
        "cause": record.cause,
        "ended_by": who.word(),
        "why": why,
        "duration_ms": ms(Some(record.duration)),
        "ttft_ms": ms(record.time_to_first_token().filter(|_| record.stream)),
        "admitted_ms": ms(record.admitted),
        "upstream_first_byte_ms": ms(record.upstream_first_byte),
        "upstream_first_output_ms": ms(record.upstream_first_output),
        "first_output_ms": ms(record.first_output),
        "first_visible_ms": ms(record.first_visible),
        "last_output_ms": ms(record.last_output),
        "input": usage.input,
        "output": usage.output,
        "reasoning": usage.reasoning,
        "charge_usd": charge.map(|charge| charge.to_string()),
        "keepalives": record.keepalives,
        "bytes": record.bytes,
        "attempts": record.attempts.iter().map(attempt).collect::<Vec<_>>(),
    }))
}

/// The whole timeline of a request of the ring.
#[must_use]
pub fn whole(timeline: &Timeline) -> Value {
    let Timeline { record, sight, .. } = timeline;
    let Sight { opened, first_keepalive, last_write, longest_write, gaps } = sight;
    let mut all = of_ring(timeline);
    let gaps = gaps.iter().flatten().filter(|gap| gap.took >= Duration::from_millis(1));
    let gaps: Vec<_> = gaps.map(|gap| json!({ "at_ms": ms(Some(gap.at)), "took_ms": ms(Some(gap.took)) })).collect();
    all.extend(object(json!({
        "opened_ms": ms(*opened),
        "first_keepalive_ms": ms(*first_keepalive),
        "last_write_ms": ms(*last_write),
        "longest_write_ms": ms(Some(*longest_write)),
        "waited_ms": ms(Some(record.waited)),
        "overhead_ms": ms(Some(record.overhead())),
        "output_events": record.output_events,
        "client_request_id": record.client_request_id,
        "upstream_request_id": record.upstream_request_id,
        "answer_id": record.answer_id,
        "source": record.source.word(),
        "gaps": gaps,
    })));
    Value::Object(all)
}

fn attempt(attempt: &Attempt) -> Value {
    json!({
        "target": &*attempt.target,
        "result": attempt.result,
        "status": attempt.status,
        "began_ms": ms(Some(attempt.began)),
        "ended_ms": ms(Some(attempt.ended)),
    })
}

/// A request of the ledger, in the same shape; what only the ring knows is not there.
#[must_use]
pub fn of_row(row: &Map<String, Value>) -> Map<String, Value> {
    let text = |name: &str| row.get(name).and_then(Value::as_str);
    let number = |name: &str| row.get(name).and_then(Value::as_i64);
    let time = |name: &str| number(name).map_or(Value::Null, micros_as_ms);
    let attempts = row.get("attempts").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let status = number("effective_status").and_then(|status| u16::try_from(status).ok()).unwrap_or(0);
    let (who, why) = verdict(&End {
        outcome: text("outcome").unwrap_or_default(),
        cause: text("cause").unwrap_or_default(),
        status,
        duration: Duration::from_micros(number("duration").and_then(|took| u64::try_from(took).ok()).unwrap_or(0)),
        silent: None,
        longest_write: Duration::ZERO,
        attempts: attempts.len(),
        target: text("target").unwrap_or_default(),
        got_output: number("output_events").is_some_and(|events| events > 0),
    });
    let streamed = number("stream") == Some(1);
    let ttft = number("first_output").filter(|_| streamed).map(|at| (at - number("admitted").unwrap_or(0)).max(0));
    let tries = attempts.iter().map(|attempt| {
        let at = |name: &str| attempt.get(name).and_then(Value::as_i64).map_or(Value::Null, micros_as_ms);
        json!({
            "target": attempt.get("target"),
            "result": attempt.get("result"),
            "status": attempt.get("status"),
            "began_ms": at("began"),
            "ended_ms": at("ended"),
        })
    });
    object(json!({
        "request_id": text("request_id"),
        "received": number("received").map_or(Value::Null, stamp),
        "key": text("key"),
        "tag": text("tag"),
        "client": text("client"),
        "endpoint": text("endpoint"),
        "model": text("model"),
        "target": text("target"),
        "stream": streamed,
        "status": number("status"),
        "effective_status": status,
        "outcome": text("outcome"),
        "cause": text("cause"),
        "ended_by": who.word(),
        "why": why,
        "duration_ms": time("duration"),
        "ttft_ms": ttft.map_or(Value::Null, micros_as_ms),
        "admitted_ms": time("admitted"),
        "upstream_first_byte_ms": time("upstream_first_byte"),
        "upstream_first_output_ms": time("upstream_first_output"),
        "first_output_ms": time("first_output"),
        "first_visible_ms": time("first_visible"),
        "last_output_ms": time("last_output"),
        "input": number("input"),
        "output": number("output"),
        "reasoning": number("reasoning"),
        "charge_usd": number("charge").map(|nano| crate::ledger::money::Nano(nano).to_string()),
        "keepalives": number("keepalives"),
        "bytes": number("bytes"),
        "attempts": tries.collect::<Vec<_>>(),
    }))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
