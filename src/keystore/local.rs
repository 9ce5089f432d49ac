//! The key store in a SQLite file beside the ledger; also the copy of a PostgreSQL store that outlives its absence.
//!
//! Called by the store and its watch. Touches the file.

use super::{StoreError, Stored};
use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// In the file's header (`WKey` in ASCII).
const APPLICATION_ID: i64 = 0x574b_6579;
/// One script for each version; never edited once released.
const MIGRATIONS: [&str; 1] = ["CREATE TABLE keys (
    name TEXT PRIMARY KEY, sha256 TEXT NOT NULL UNIQUE, prefix TEXT NOT NULL, settings TEXT NOT NULL,
    created INTEGER NOT NULL, changed INTEGER NOT NULL, revoked INTEGER, cut INTEGER NOT NULL DEFAULT 0) STRICT"];
/// Another process of ours writes for milliseconds.
const BUSY: Duration = Duration::from_secs(5);
const COLUMNS: &str = "name, sha256, prefix, settings, created, changed, revoked, cut";

/// The file.
#[derive(Clone, Debug)]
pub struct Local {
    path: PathBuf,
}

impl Local {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(super) fn list(&self) -> Result<Vec<Stored>, StoreError> {
        let connection = self.open()?;
        self.read(&connection)
    }

    /// All keys over a connection that is kept.
    pub(super) fn read(&self, connection: &Connection) -> Result<Vec<Stored>, StoreError> {
        let read = || {
            let mut select = connection.prepare(&format!("SELECT {COLUMNS} FROM keys ORDER BY name"))?;
            select.query_map([], stored)?.collect::<rusqlite::Result<Vec<_>>>()
        };
        read().map_err(|error| self.failed(&error))
    }

    pub(super) fn write(
        &self,
        name: &str,
        change: impl FnOnce(Option<Stored>) -> Result<Stored, StoreError>,
    ) -> Result<Stored, StoreError> {
        let mut connection = self.open()?;
        let failed = |error: rusqlite::Error| self.failed(&error);
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let sql = format!("SELECT {COLUMNS} FROM keys WHERE name = ?1");
        let before = transaction.query_row(&sql, [name], stored).optional().map_err(failed)?;
        let after = change(before)?;
        insert(&transaction, &after).map_err(failed)?;
        transaction.commit().map_err(failed)?;
        Ok(after)
    }

    /// Takes over a whole store.
    pub(super) fn replace(&self, all: &[Stored]) -> Result<(), StoreError> {
        let mut connection = self.open()?;
        let mut replace = || {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction.execute("DELETE FROM keys", [])?;
            for key in all {
                insert(&transaction, key)?;
            }
            transaction.commit()
        };
        replace().map_err(|error| self.failed(&error))
    }

    /// Opens it; makes what is missing.
    pub(super) fn open(&self) -> Result<Connection, StoreError> {
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|error| self.said(error.to_string()))?;
        }
        let mut connection = Connection::open(&self.path).map_err(|error| self.failed(&error))?;
        prepare(&mut connection).map_err(|error| self.failed(&error))?;
        let id: i64 = connection
            .pragma_query_value(None, "application_id", |row| row.get(0))
            .map_err(|error| self.failed(&error))?;
        if id != APPLICATION_ID {
            return Err(self.said("a database, but no key store of Weir's".to_owned()));
        }
        if version(&connection).map_err(|error| self.failed(&error))? > MIGRATIONS.len() {
            return Err(self.said("written by a newer Weir; start that one".to_owned()));
        }
        Ok(connection)
    }

    /// Changes when somebody else has written.
    pub(super) fn version(&self, connection: &Connection) -> Result<i64, StoreError> {
        let version = connection.pragma_query_value(None, "data_version", |row| row.get(0));
        version.map_err(|error| self.failed(&error))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn failed(&self, error: &rusqlite::Error) -> StoreError {
        self.said(error.to_string())
    }

    fn said(&self, cause: String) -> StoreError {
        StoreError::Local { path: self.path.display().to_string(), cause }
    }
}

fn prepare(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    if version(connection)? >= MIGRATIONS.len() {
        return Ok(());
    }
    // Two processes may start at once: the second waits here and finds the work done.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version = version(&transaction)?;
    let tables: i64 = transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if version == 0 && tables > 0 {
        return Ok(()); // somebody else's; said by the caller
    }
    for script in MIGRATIONS.iter().skip(version) {
        transaction.execute_batch(script)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX))?;
    transaction.commit()
}

fn version(connection: &Connection) -> rusqlite::Result<usize> {
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    Ok(usize::try_from(version).unwrap_or(usize::MAX))
}

fn insert(connection: &Connection, key: &Stored) -> rusqlite::Result<()> {
    let settings = serde_json::Value::Object(key.settings.clone()).to_string();
    let values = params![
        key.name,
        const_hex::encode(key.sha256),
        key.prefix,
        settings,
        key.created,
        key.changed,
        key.revoked,
        key.cut
    ];
    let sql = format!("INSERT OR REPLACE INTO keys ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)");
    connection.execute(&sql, values).map(drop)
}

fn stored(row: &Row<'_>) -> rusqlite::Result<Stored> {
    let digest: String = row.get(1)?;
    let settings: String = row.get(3)?;
    let broken = |at: usize, text: String| {
        rusqlite::Error::FromSqlConversionFailure(at, rusqlite::types::Type::Text, text.into())
    };
    Ok(Stored {
        name: row.get(0)?,
        sha256: const_hex::decode_to_array(&digest).map_err(|error| broken(1, error.to_string()))?,
        prefix: row.get(2)?,
        settings: serde_json::from_str(&settings).map_err(|error| broken(3, error.to_string()))?,
        created: row.get(4)?,
        changed: row.get(5)?,
        revoked: row.get(6)?,
        cut: row.get(7)?,
    })
}
