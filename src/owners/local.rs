//! The map in its file.
//!
//! Called by the map's thread alone. Touches the file.

use super::Owner;
use rusqlite::{Connection, OptionalExtension as _, Result, params};
use std::path::Path;
use std::time::Duration;

const BUSY: Duration = Duration::from_secs(5);
const TABLES: &str = "CREATE TABLE IF NOT EXISTS owners (
    id TEXT PRIMARY KEY, key TEXT NOT NULL, target TEXT NOT NULL, model TEXT NOT NULL, unsettled INTEGER NOT NULL,
    until INTEGER NOT NULL, shared INTEGER NOT NULL DEFAULT 0) STRICT;
    CREATE INDEX IF NOT EXISTS owners_until ON owners (until);
    CREATE INDEX IF NOT EXISTS owners_unshared ON owners (id) WHERE shared = 0";

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) id: String,
    pub(super) owner: Owner,
    /// Seconds since 1970.
    pub(super) until: i64,
}

/// The open file.
pub(super) struct Local(Connection);

impl Local {
    pub(super) fn open(path: &Path) -> std::result::Result<Self, Box<dyn std::error::Error>> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)?;
        }
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection.execute_batch(TABLES)?;
        Ok(Self(connection))
    }

    /// Writes all of them in one transaction. `shared`: PostgreSQL has them already.
    pub(super) fn keep(&mut self, rows: &[Row], shared: bool) -> Result<()> {
        let transaction = self.0.transaction()?;
        {
            let sql = "INSERT OR REPLACE INTO owners (id, key, target, model, unsettled, until, shared)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
            let mut insert = transaction.prepare_cached(sql)?;
            for Row { id, owner, until } in rows {
                insert.execute(params![id, owner.key, owner.target, owner.model, owner.unsettled, until, shared])?;
            }
        }
        transaction.commit()
    }

    pub(super) fn find(&self, id: &str, now: i64) -> Result<Option<Owner>> {
        let sql = "SELECT key, target, model, unsettled FROM owners WHERE id = ?1 AND until > ?2";
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Owner { key: row.get(0)?, target: row.get(1)?, model: row.get(2)?, unsettled: row.get(3)? })
        };
        self.0.prepare_cached(sql)?.query_row(params![id, now], read).optional()
    }

    /// Answers whether it was unsettled.
    pub(super) fn settle(&self, id: &str) -> Result<bool> {
        let changed = self.0.execute("UPDATE owners SET unsettled = 0 WHERE id = ?1 AND unsettled = 1", [id])?;
        Ok(changed == 1)
    }

    pub(super) fn forget(&self, id: &str) -> Result<()> {
        self.0.execute("DELETE FROM owners WHERE id = ?1", [id]).map(drop)
    }

    /// Removes what is over.
    pub(super) fn expire(&self, now: i64) -> Result<()> {
        self.0.execute("DELETE FROM owners WHERE until <= ?1", [now]).map(drop)
    }

    /// Some of those that PostgreSQL lacks.
    pub(super) fn unshared(&self) -> Result<Vec<Row>> {
        let sql = "SELECT id, key, target, model, unsettled, until FROM owners WHERE shared = 0 LIMIT 500";
        let read = |row: &rusqlite::Row<'_>| {
            let owner = Owner { key: row.get(1)?, target: row.get(2)?, model: row.get(3)?, unsettled: row.get(4)? };
            Ok(Row { id: row.get(0)?, owner, until: row.get(5)? })
        };
        self.0.prepare_cached(sql)?.query_map([], read)?.collect()
    }

    pub(super) fn shared(&mut self, rows: &[Row]) -> Result<()> {
        let transaction = self.0.transaction()?;
        for row in rows {
            transaction.execute("UPDATE owners SET shared = 1 WHERE id = ?1", [&row.id])?;
        }
        transaction.commit()
    }
}
