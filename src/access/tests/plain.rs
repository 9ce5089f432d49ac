//! The line in its simple form: a value for each member, written by serde or `format!`.

use crate::config::LogFormat;
use crate::ledger::money::Nano;
use crate::logging;
use crate::record::{Attempt, Record};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use std::fmt::Write;
use std::time::Duration;

/// One line, without its end.
pub(super) fn line(record: &Record, charge: Option<Nano>, format: LogFormat) -> String {
    match format {
        LogFormat::Json => serde_json::to_string(&Fields(fields(record, charge))).unwrap_or_default(),
        LogFormat::Text => text(record, charge),
    }
}

/// A member's value.
enum Field<'a> {
    Text(String),
    Number(u64),
    Flag(bool),
    /// Written in milliseconds, to the microsecond.
    Time(Duration),
    Attempts(&'a [Attempt]),
}

/// All that an access record says, in order; what is not known is left out.
fn fields(record: &Record, charge: Option<Nano>) -> Vec<(&'static str, Field<'_>)> {
    let text = |text: &str| Some(Field::Text(text.to_owned()));
    let owned = |text: &Option<String>| text.clone().map(Field::Text);
    let time = |time: Option<Duration>| time.map(Field::Time);
    let number = |number: Option<u64>| number.map(Field::Number);
    let usage = &record.usage;
    let effective = (record.effective_status != record.status).then_some(u64::from(record.effective_status));
    let all = [
        ("ts", text(&humantime::format_rfc3339_millis(record.received).to_string())),
        ("request_id", text(&record.id.to_string())),
        ("client_request_id", owned(&record.client_request_id)),
        ("upstream_request_id", owned(&record.upstream_request_id)),
        ("answer_id", owned(&record.answer_id)),
        ("key", record.key.as_deref().and_then(text)),
        ("tag", record.tag.as_deref().and_then(text)),
        ("client", record.client.map(|client| Field::Text(client.to_string()))),
        ("endpoint", record.endpoint.and_then(|endpoint| text(endpoint.word()))),
        ("model", record.model.as_deref().and_then(text)),
        ("target", record.target.as_deref().and_then(text)),
        ("status", number(Some(record.status.into()))),
        ("effective_status", number(effective)),
        ("outcome", text(record.outcome.word())),
        ("cause", record.cause.and_then(text)),
        ("stream", Some(Field::Flag(record.stream))),
        ("admitted_ms", time(record.admitted)),
        ("upstream_first_byte_ms", time(record.upstream_first_byte)),
        ("upstream_first_output_ms", time(record.upstream_first_output)),
        ("ttft_ms", time(record.time_to_first_token())),
        ("ttfv_ms", time(record.time_to_first_visible_token())),
        ("last_output_ms", time(record.last_output)),
        ("duration_ms", time(Some(record.duration))),
        ("overhead_ms", time(Some(record.overhead()))),
        ("bytes", number(Some(record.bytes))),
        ("output_events", number(Some(record.output_events))),
        ("keepalives", number(Some(record.keepalives))),
        ("input", number(usage.input)),
        ("cache_read", number(usage.cache_read)),
        ("cache_write_5m", number(usage.cache_write_5m)),
        ("cache_write_1h", number(usage.cache_write_1h)),
        ("output", number(usage.output)),
        ("reasoning", number(usage.reasoning)),
        ("audio_input", number(usage.audio_input)),
        ("audio_output", number(usage.audio_output)),
        ("web_search", number(usage.web_search)),
        ("source", text(record.source.word())),
        ("charge", charge.and_then(|usd| text(&usd.to_string()))),
        ("tier_requested", owned(&record.tier_requested)),
        ("tier_served", owned(&record.tier_served)),
        ("attempts", (!record.attempts.is_empty()).then_some(Field::Attempts(&record.attempts))),
    ];
    all.into_iter().filter_map(|(name, field)| Some((name, field?))).collect()
}

/// `name=value` for each field, the time alone in front.
fn text(record: &Record, charge: Option<Nano>) -> String {
    let mut line = String::new();
    for (name, field) in fields(record, charge) {
        // Writing to a string cannot fail.
        let _infallible = match field {
            Field::Text(text) if name == "ts" => write!(line, "{text} access"),
            Field::Text(text) => write!(line, " {name}={}", logging::word(&text)),
            Field::Number(number) => write!(line, " {name}={number}"),
            Field::Flag(flag) => write!(line, " {name}={flag}"),
            Field::Time(time) => write!(line, " {name}={}", milliseconds(time)),
            Field::Attempts(attempts) => {
                let attempt = |one: &Attempt| {
                    let took = one.ended.saturating_sub(one.began).as_millis();
                    format!("{}:{}:{took}ms", one.target, one.result)
                };
                let attempts = attempts.iter().map(attempt).collect::<Vec<_>>().join(",");
                write!(line, " {name}={}", logging::word(&attempts))
            }
        };
    }
    line
}

#[expect(clippy::cast_precision_loss, reason = "2^53 microseconds are 285 years")]
fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}

struct Fields<'a>(Vec<(&'static str, Field<'a>)>);

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, field) in &self.0 {
            match field {
                Field::Text(text) => map.serialize_entry(name, text)?,
                Field::Number(number) => map.serialize_entry(name, number)?,
                Field::Flag(flag) => map.serialize_entry(name, flag)?,
                Field::Time(time) => map.serialize_entry(name, &milliseconds(*time))?,
                Field::Attempts(attempts) => map.serialize_entry(name, &Attempts(attempts))?,
            }
        }
        map.end()
    }
}

struct Attempts<'a>(&'a [Attempt]);

impl Serialize for Attempts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for attempt in self.0 {
            list.serialize_element(&serde_json::json!({
                "target": &*attempt.target,
                "result": attempt.result,
                "status": attempt.status,
                "began_ms": milliseconds(attempt.began),
                "ended_ms": milliseconds(attempt.ended),
                "maybe_billed": attempt.maybe_billed,
            }))?;
        }
        list.end()
    }
}
