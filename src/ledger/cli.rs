//! The ledger's commands: `weir usage`, `weir ledger verify`, `weir ledger backup` (L6).
//!
//! Called by main and the admin API. Each opens the file for itself and only to read, so that they
//! work while a gateway runs and while none does.

pub use super::recent::{Wanted, recent, running};
pub use super::report::{By, Format};
pub use super::verify::Report;

use super::money::Nano;
use super::{report, schema, verify as checks};
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::path::Path;
use uuid::Uuid;

/// A command failed; the text is for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CliError(pub String);

impl From<rusqlite::Error> for CliError {
    fn from(error: rusqlite::Error) -> Self {
        Self(format!("the ledger cannot be read: {error}"))
    }
}

/// `weir usage`: `since` and `until` are dates in the ledger's time zone, both included, or RFC 3339
/// instants, `until` excluded. Dates reach back for ever (from the daily aggregates), instants as far
/// as rows are kept. Without `by`, one line for everything.
pub fn usage(
    path: &Path,
    by: &[By],
    since: Option<&str>,
    until: Option<&str>,
    format: Format,
) -> Result<String, CliError> {
    report::usage(&reader(path)?, by, since, until, None).map(|lines| report::render(&lines, by, format))
}

/// The same for one key alone (M6).
pub fn usage_of_key(
    path: &Path,
    key: &str,
    by: &[By],
    since: Option<&str>,
    until: Option<&str>,
    format: Format,
) -> Result<String, CliError> {
    report::usage(&reader(path)?, by, since, until, Some(key)).map(|lines| report::render(&lines, by, format))
}

/// Whether `since` and `until` can be asked for; the error says what to write instead.
pub fn check_times(since: Option<&str>, until: Option<&str>) -> Result<(), CliError> {
    report::check_times(since, until)
}

/// What this ledger is called where several are gathered.
pub fn identity(path: &Path) -> Result<String, CliError> {
    Ok(reader(path)?.query_row("SELECT ledger FROM counters", [], |row| row.get(0))?)
}

/// What a key was charged; budgets are rebuilt from it (L4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charged {
    /// The key's name.
    pub key: String,
    /// On the day asked for.
    pub day: Nano,
    /// In its month.
    pub month: Nano,
    /// Ever; as far back as was asked for.
    pub total: Nano,
}

/// What each key was charged on a day, `2026-11-30`, in its month, and ever; with `ever` false
/// only keys that were charged in that month, and `total` is the month's.
pub fn charged(path: &Path, day: &str, ever: bool) -> Result<Vec<Charged>, CliError> {
    let month = day.get(..7).unwrap_or_default();
    let first = format!("{month}-01");
    let since = if ever { "" } else { &first };
    let connection = reader(path)?;
    let mut sums = connection.prepare(
        "SELECT key, sum(CASE WHEN day = ?1 THEN charge ELSE 0 END), \
         sum(CASE WHEN day BETWEEN ?2 AND ?1 THEN charge ELSE 0 END), sum(charge) \
         FROM daily WHERE key <> '' AND day >= ?3 GROUP BY key",
    )?;
    let sums = sums.query_map([day, &first, since], |row| {
        Ok(Charged { key: row.get(0)?, day: Nano(row.get(1)?), month: Nano(row.get(2)?), total: Nano(row.get(3)?) })
    })?;
    Ok(sums.collect::<rusqlite::Result<Vec<_>>>()?)
}

/// One request with its corrections, all columns of `records`; `None`: no such request is settled.
pub fn request(path: &Path, id: Uuid) -> Result<Option<Value>, CliError> {
    let connection = reader(path)?;
    let id = id.to_string();
    let mut record = connection.prepare("SELECT * FROM records WHERE request_id = ?1")?;
    let Some(mut record) = record.query_row([&id], object).optional()? else { return Ok(None) };
    let mut corrections = connection.prepare(
        "SELECT id, made, charge, cost, input, output, why FROM corrections WHERE request_id = ?1 ORDER BY seq",
    )?;
    let corrections = corrections.query_map([&id], object)?;
    let corrections = corrections.map(|row| row.map(Value::Object)).collect::<rusqlite::Result<Vec<_>>>()?;
    record.insert("corrections".to_owned(), Value::Array(corrections));
    Ok(Some(Value::Object(record)))
}

/// `weir ledger verify`: gaps, doubles, sums, unpriced rows. The exit status is 0 if [`Report::is_clean`].
pub fn verify(path: &Path) -> Result<Report, CliError> {
    checks::verify(&mut reader(path)?, path)
}

/// `weir ledger backup`: an online copy, as of one moment, that is a ledger of its own. `to` must not
/// exist; it appears whole or not at all.
pub fn backup(path: &Path, to: &Path) -> Result<(), CliError> {
    let failed = |cause: &dyn std::fmt::Display| CliError(format!("backup to {}: {cause}", to.display()));
    if to.exists() {
        return Err(failed(&"exists already; name a new file"));
    }
    let connection = reader(path)?;
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    // Left over from a backup that was broken off.
    let _ = std::fs::remove_file(partial);
    connection.execute("VACUUM INTO ?1", params![partial.to_string_lossy()]).map_err(|error| failed(&error))?;
    // A copy that is used goes its own way: in the sink it is another ledger.
    Connection::open(partial)
        .and_then(|copy| copy.execute("UPDATE counters SET ledger = ?1, shipped_to = 0", [Uuid::now_v7().to_string()]))
        .map_err(|error| failed(&error))?;
    let sync = |path: &Path| File::open(path).and_then(|file| file.sync_all());
    sync(partial).map_err(|error| failed(&error))?;
    std::fs::rename(partial, to).map_err(|error| failed(&error))?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    sync(folder).map_err(|error| failed(&error))
}

pub(super) fn reader(path: &Path) -> Result<Connection, CliError> {
    schema::open_reader(path).map_err(|error| CliError(error.to_string()))
}

/// Columns that hold JSON themselves.
const JSON_COLUMNS: [&str; 3] = ["attempts", "charged", "other_models"];

pub(super) fn object(row: &rusqlite::Row<'_>) -> rusqlite::Result<Map<String, Value>> {
    let mut object = Map::new();
    for (index, name) in row.as_ref().column_names().enumerate() {
        let value = match row.get::<_, Sql>(index)? {
            Sql::Null | Sql::Blob(_) => Value::Null,
            Sql::Integer(number) => json!(number),
            Sql::Real(number) => json!(number),
            Sql::Text(text) if JSON_COLUMNS.contains(&name) => serde_json::from_str(&text).unwrap_or(Value::Null),
            Sql::Text(text) => Value::String(text),
        };
        object.insert(name.to_owned(), value);
    }
    Ok(object)
}

#[cfg(test)]
mod tests;
