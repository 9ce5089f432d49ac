//! The pages of single requests: `/api/requests`, `/api/requests/{id}`, `/api/running` (M4).
//!
//! Called by the admin application, on a thread that may block. Reads the ring of timelines and the ledger's file.

use super::api::unreadable;
use super::query::{Failure, Query, asked};
use crate::ledger::cli::{self, Wanted};
use crate::outcome::Outcome;
use crate::timeline::{Timeline, Timelines, brief};
use http::StatusCode;
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use uuid::Uuid;

/// What can be asked of the list.
const NAMES: [&str; 9] = ["key", "model", "target", "outcome", "id", "since", "until", "before", "limit"];
/// As many as one answer holds, about 1 KiB each.
const MOST: usize = 1000;

/// The last requests, newest first: what the ring has, and the ledger beyond it.
pub(super) fn list(timelines: Option<&Timelines>, ledger: &Path, query: &str) -> Result<Value, Failure> {
    let query = Query::read(query, &NAMES)?;
    let limit = query.number("limit", 100, MOST)?;
    let wanted = wanted(&query)?;
    let recent = timelines.map(Timelines::recent).unwrap_or_default();
    let kept = recent.len();
    let mut found: Vec<Arc<Timeline>> = recent.into_iter().filter(|timeline| fits(timeline, &wanted)).collect();
    found.sort_unstable_by_key(|timeline| std::cmp::Reverse(timeline.record.id));
    found.truncate(limit);
    let (rows, broken) = match cli::recent(ledger, &wanted, limit) {
        Ok(rows) => (rows, None),
        // What is in memory is told all the same.
        Err(error) if kept > 0 => (Vec::new(), Some(unreadable(error).1)),
        Err(error) => return Err(unreadable(error)),
    };
    let known: HashSet<String> = found.iter().map(|timeline| timeline.record.id.to_string()).collect();
    let mut all: Vec<Map<String, Value>> = found.iter().map(|timeline| brief::of_ring(timeline)).collect();
    all.extend(rows.iter().map(brief::of_row).filter(|row| !known.contains(id(row))));
    all.sort_unstable_by(|one, other| id(other).cmp(id(one)));
    all.truncate(limit);
    let next = all.last().filter(|_| all.len() == limit).map(|last| id(last).to_owned());
    Ok(json!({ "requests": all, "next": next, "kept": kept, "ledger_error": broken }))
}

fn id(row: &Map<String, Value>) -> &str {
    row.get("request_id").and_then(Value::as_str).unwrap_or_default()
}

fn wanted(query: &Query) -> Result<Wanted, Failure> {
    let now = SystemTime::now();
    let outcomes: Vec<String> = query
        .get("outcome")
        .unwrap_or_default()
        .split(',')
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect();
    let known = Outcome::ALL.map(Outcome::word);
    if outcomes.iter().any(|word| !known.contains(&word.as_str())) {
        return Err(asked(&format!("outcome is one or more of {}, separated by commas", known.join(", "))));
    }
    let before = query.text("before").map(|id| id.parse::<Uuid>()).transpose();
    Ok(Wanted {
        key: query.text("key"),
        model: query.text("model"),
        target: query.text("target"),
        outcomes,
        other_id: query.text("id"),
        since: query.moment("since", now)?,
        until: query.moment("until", now)?,
        before: before.map_err(|_| asked("before is the id of a request"))?,
    })
}

fn fits(timeline: &Timeline, wanted: &Wanted) -> bool {
    let record = &timeline.record;
    let is = |asked: &Option<String>, value: Option<&str>| asked.is_none() || asked.as_deref() == value;
    let ids = [&record.client_request_id, &record.upstream_request_id, &record.answer_id];
    let received = record.received.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let received = i64::try_from(received.as_micros()).unwrap_or(i64::MAX);
    is(&wanted.key, record.key.as_deref())
        && is(&wanted.model, record.model.as_deref())
        && is(&wanted.target, record.target.as_deref())
        && (wanted.outcomes.is_empty() || wanted.outcomes.iter().any(|word| word == record.outcome.word()))
        && (wanted.other_id.is_none() || ids.into_iter().any(|id| *id == wanted.other_id))
        && wanted.since.is_none_or(|since| received >= since)
        && wanted.until.is_none_or(|until| received < until)
        && wanted.before.is_none_or(|before| record.id < before)
}

/// One request: its row of the ledger, with its timeline from the ring, or as far as the row tells it.
pub(super) fn one(timelines: Option<&Timelines>, ledger: &Path, id: &str) -> Result<Value, Failure> {
    let id: Uuid = id.parse().map_err(|_| asked("this is no request id; it is the x-request-id of an answer"))?;
    let kept = timelines.and_then(|timelines| timelines.find(id));
    let row = match cli::request(ledger, id) {
        Ok(row) => row,
        // What is in memory is told all the same.
        Err(_) if kept.is_some() => None,
        Err(error) => return Err(unreadable(error)),
    };
    let (mut all, timeline, from) = match (row, kept) {
        (Some(Value::Object(row)), None) => {
            let timeline = Value::Object(brief::of_row(&row));
            (row, timeline, "ledger")
        }
        (Some(Value::Object(row)), Some(kept)) => (row, brief::whole(&kept), "ring"),
        // Refused before it was sent anywhere.
        (_, Some(kept)) => {
            (Map::from_iter([("request_id".to_owned(), json!(id.to_string()))]), brief::whole(&kept), "ring")
        }
        (_, None) => return unsettled(ledger, id),
    };
    all.insert("timeline".to_owned(), timeline);
    all.insert("timeline_from".to_owned(), json!(from));
    Ok(Value::Object(all))
}

fn unsettled(ledger: &Path, id: Uuid) -> Result<Value, Failure> {
    let text = id.to_string();
    let running = cli::running(ledger, usize::MAX).map_err(unreadable)?;
    let found = running.into_iter().find(|row| row.get("request_id").and_then(Value::as_str) == Some(&text));
    let Some(mut row) = found else {
        return Err(Failure(StatusCode::NOT_FOUND, "no such request is settled, or its row is gone".to_owned()));
    };
    row.insert("running".to_owned(), json!(true));
    Ok(Value::Object(row))
}

/// Those that run now, the oldest first, with the figures of their last checkpoint.
pub(super) fn running(ledger: &Path, query: &str) -> Result<Value, Failure> {
    let query = Query::read(query, &["limit"])?;
    let limit = query.number("limit", 100, MOST)?;
    let rows = cli::running(ledger, limit).map_err(unreadable)?;
    Ok(json!({ "running": rows }))
}
