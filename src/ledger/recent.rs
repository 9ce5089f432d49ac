//! Single requests out of the ledger, newest first: what the ring of timelines no longer has (M4).
//!
//! Called by the admin API. Reads the database, touches nothing.

use super::cli::{CliError, object, reader};
use rusqlite::params_from_iter;
use rusqlite::types::Value as Sql;
use serde_json::{Map, Value};
use std::path::Path;
use uuid::Uuid;

/// Which requests are wanted; empty means any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Name of the virtual key.
    pub key: Option<String>,
    /// The public model.
    pub model: Option<String>,
    /// `provider/model`.
    pub target: Option<String>,
    /// One of these words.
    pub outcomes: Vec<String>,
    /// The client's, the upstream's or the answer's own id.
    pub other_id: Option<String>,
    /// Received then or later, microseconds since 1970.
    pub since: Option<i64>,
    /// Received before.
    pub until: Option<i64>,
    /// Older than this request.
    pub before: Option<Uuid>,
}

/// The settled ones, all columns of `records`, at most `limit`. Ids begin with their time: their order is that of arrival, and
/// their index is the one that is walked.
pub fn recent(path: &Path, wanted: &Wanted, limit: usize) -> Result<Vec<Map<String, Value>>, CliError> {
    let mut conditions = vec!["1".to_owned()];
    let mut values = Vec::new();
    let mut place = |value: Sql| {
        values.push(value);
        format!("?{}", values.len())
    };
    let text = |text: &String| Sql::Text(text.clone());
    for (column, value) in [("key", &wanted.key), ("model", &wanted.model), ("target", &wanted.target)] {
        if let Some(value) = value {
            conditions.push(format!("{column} = {}", place(text(value))));
        }
    }
    if !wanted.outcomes.is_empty() {
        let places: Vec<_> = wanted.outcomes.iter().map(|outcome| place(text(outcome))).collect();
        conditions.push(format!("outcome IN ({})", places.join(", ")));
    }
    if let Some(id) = &wanted.other_id {
        let at = place(text(id));
        conditions.push(format!("{at} IN (client_request_id, upstream_request_id, answer_id)"));
    }
    if let Some(since) = wanted.since {
        conditions.push(format!("received >= {}", place(Sql::Integer(since))));
        conditions.push(format!("request_id >= {}", place(Sql::Text(first_id(since).to_string()))));
    }
    if let Some(until) = wanted.until {
        conditions.push(format!("received < {}", place(Sql::Integer(until))));
    }
    if let Some(before) = wanted.before {
        conditions.push(format!("request_id < {}", place(Sql::Text(before.to_string()))));
    }
    let limit = place(Sql::Integer(i64::try_from(limit).unwrap_or(i64::MAX)));
    // First the ids, then the view with its corrections for those alone.
    let sql = format!(
        "SELECT * FROM records WHERE request_id IN \
         (SELECT request_id FROM settled WHERE {} ORDER BY request_id DESC LIMIT {limit}) ORDER BY request_id DESC",
        conditions.join(" AND ")
    );
    let connection = reader(path)?;
    let mut statement = connection.prepare(&sql)?;
    let rows = statement.query_map(params_from_iter(values), object)?;
    Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
}

/// Those that run: dispatched, not settled. Long streams have the figures of their last checkpoint.
pub fn running(path: &Path, limit: usize) -> Result<Vec<Map<String, Value>>, CliError> {
    let connection = reader(path)?;
    let mut statement = connection.prepare(
        "SELECT request_id, received, key, tag, client, endpoint, model, target, stream, checkpoint, first_output, \
         bytes, output_events, output, output_estimate FROM open ORDER BY request_id LIMIT ?1",
    )?;
    let rows = statement.query_map([i64::try_from(limit).unwrap_or(i64::MAX)], object)?;
    Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
}

/// No request that came then or later has a lower id; a second is left for clocks that were set back.
fn first_id(since: i64) -> Uuid {
    let milliseconds = u128::try_from(since / 1000 - 1000).unwrap_or(0);
    Uuid::from_u128(milliseconds << 80)
}
