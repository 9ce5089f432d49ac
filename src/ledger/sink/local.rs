//! The ledger's side of the sink: what is to be shipped.
//!
//! Called by the sink alone. Reads the database off the runtime's workers.

use super::SinkError;
use super::remote::Position;
use crate::ledger::row::{COLUMNS, now};
use crate::ledger::schema;
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OptionalExtension};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::Duration;

/// Rows of one kind, as a JSON array for PostgreSQL.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) json: String,
    pub(super) count: u64,
    pub(super) last: i64,
    /// The id of the last one.
    pub(super) last_id: String,
}

/// An open reader.
#[derive(Debug)]
pub(super) struct Local {
    /// Taken out while it is in use on another thread.
    connection: Option<Connection>,
    ledger: String,
}

impl Local {
    pub(super) async fn open(path: &Path) -> Result<Self, SinkError> {
        let path = path.to_owned();
        let opened = tokio::task::spawn_blocking(move || -> Result<_, SinkError> {
            let connection = schema::open_reader(&path).map_err(|error| SinkError(error.to_string()))?;
            let ledger = connection.query_row("SELECT ledger FROM counters", [], |row| row.get(0))?;
            Ok((connection, ledger))
        });
        let (connection, ledger) = opened.await.map_err(|error| SinkError(error.to_string()))??;
        Ok(Self { connection: Some(connection), ledger })
    }

    /// The file's own name in PostgreSQL.
    pub(super) fn ledger(&self) -> &str {
        &self.ledger
    }

    /// Settled rows after `after`.
    pub(super) async fn settled(&mut self, after: i64, most: usize) -> Result<Rows, SinkError> {
        let sql = format!("SELECT seq, {COLUMNS} FROM settled WHERE seq > ?1 ORDER BY seq LIMIT ?2");
        self.read(move |connection| rows(connection, &sql, after, most, "request_id")).await
    }

    /// Corrections after `after`.
    pub(super) async fn corrections(&mut self, after: i64, most: usize) -> Result<Rows, SinkError> {
        let sql = "SELECT * FROM corrections WHERE seq > ?1 ORDER BY seq LIMIT ?2";
        self.read(move |connection| rows(connection, sql, after, most, "id")).await
    }

    /// Whether the row of this number is still the one that was shipped; a row that retention removed was.
    pub(super) async fn is_same(&mut self, seq: i64, id: String) -> Result<bool, SinkError> {
        self.read(move |connection| {
            let pruned: i64 = connection.query_row("SELECT pruned_to FROM counters", [], |row| row.get(0))?;
            if seq <= pruned {
                return Ok(true);
            }
            let sql = "SELECT request_id FROM settled WHERE seq = ?1";
            let found: Option<String> = connection.query_row(sql, [seq], |row| row.get(0)).optional()?;
            Ok(found.is_some_and(|found| found == id))
        })
        .await
    }

    /// As far as the ledger was told.
    pub(super) async fn shipped(&mut self) -> Result<Position, SinkError> {
        self.read(|connection| {
            connection.query_row("SELECT shipped_to, corrections_shipped_to FROM counters", [], |row| {
                Ok(Position { settled: row.get(0)?, corrections: row.get(1)? })
            })
        })
        .await
    }

    /// How many rows come after a position, and the age of the oldest.
    pub(super) async fn behind(&mut self, position: Position) -> Result<(u64, Duration), SinkError> {
        self.read(move |connection| {
            let sql = "SELECT (SELECT count(*) FROM settled WHERE seq > ?1) + (SELECT count(*) FROM corrections WHERE seq > ?2), \
                (SELECT settled_at FROM settled WHERE seq > ?1 ORDER BY seq LIMIT 1)";
            let (count, oldest): (i64, Option<i64>) = connection
                .query_row(sql, [position.settled, position.corrections], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let age = oldest.map_or(0, |oldest| now().saturating_sub(oldest));
            Ok((u64::try_from(count).unwrap_or(0), Duration::from_micros(u64::try_from(age).unwrap_or(0))))
        })
        .await
    }

    async fn read<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, SinkError> {
        let Some(connection) = self.connection.take() else {
            return Err(SinkError("a read was broken off".to_owned()));
        };
        let done = tokio::task::spawn_blocking(move || {
            let answer = work(&connection);
            (connection, answer)
        });
        let (connection, answer) = done.await.map_err(|error| SinkError(error.to_string()))?;
        self.connection = Some(connection);
        Ok(answer?)
    }
}

fn rows(connection: &Connection, sql: &str, after: i64, most: usize, id: &str) -> rusqlite::Result<Rows> {
    let mut statement = connection.prepare_cached(sql)?;
    let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let mut found = statement.query([after, most])?;
    let mut objects = Vec::new();
    let mut rows = Rows { last: after, ..Rows::default() };
    while let Some(row) = found.next()? {
        let mut object = Map::new();
        for (index, name) in names.iter().enumerate() {
            let value = match row.get::<_, Sql>(index)? {
                Sql::Integer(number) => json!(number),
                Sql::Text(text) => Value::String(text),
                Sql::Null | Sql::Real(_) | Sql::Blob(_) => Value::Null,
            };
            object.insert(name.clone(), value);
        }
        rows.last = row.get("seq")?;
        rows.last_id = row.get(id)?;
        rows.count += 1;
        objects.push(Value::Object(object));
    }
    rows.json = Value::Array(objects).to_string();
    Ok(rows)
}
