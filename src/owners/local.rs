//! The map in its file.
//!
//! Called by the map's thread alone. Touches the file.

use super::{Owner, patience};
use rusqlite::{Connection, OptionalExtension as _, Result, TransactionBehavior, params};
use std::path::Path;
use std::time::Duration;

const BUSY: Duration = Duration::from_secs(5);
/// What each version of the file has added, counted by its `user_version`. The first files had none.
const STEPS: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS owners (
    id TEXT PRIMARY KEY, key TEXT NOT NULL, target TEXT NOT NULL, model TEXT NOT NULL, unsettled INTEGER NOT NULL,
    until INTEGER NOT NULL, shared INTEGER NOT NULL DEFAULT 0) STRICT;
    CREATE INDEX IF NOT EXISTS owners_until ON owners (until);
    CREATE INDEX IF NOT EXISTS owners_unshared ON owners (id) WHERE shared = 0",
    "ALTER TABLE owners ADD COLUMN account TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE owners ADD COLUMN due INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE owners ADD COLUMN asked INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX owners_due ON owners (due) WHERE unsettled = 1",
];

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) id: String,
    pub(super) owner: Owner,
    /// Seconds since 1970.
    pub(super) until: i64,
    /// When it is to be asked for first, if nobody has fetched it; the same.
    pub(super) due: i64,
}

/// The open file.
pub(super) struct Local(Connection);

impl Local {
    pub(super) fn open(path: &Path) -> std::result::Result<Self, Box<dyn std::error::Error>> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)?;
        }
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "full")?;
        migrate(&mut connection)?;
        Ok(Self(connection))
    }

    /// Writes all of them in one transaction. `shared`: PostgreSQL has them already.
    pub(super) fn keep(&mut self, rows: &[Row], shared: bool) -> Result<()> {
        let transaction = self.0.transaction()?;
        {
            let sql = "INSERT OR REPLACE INTO owners (id, key, target, account, model, unsettled, until, due, shared)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
            let mut insert = transaction.prepare_cached(sql)?;
            for Row { id, owner, until, due } in rows {
                let Owner { key, target, account, model, unsettled } = owner;
                insert.execute(params![id, key, target, account, model, unsettled, until, due, shared])?;
            }
        }
        transaction.commit()
    }

    pub(super) fn find(&self, id: &str, now: i64) -> Result<Option<Owner>> {
        let sql = "SELECT key, target, account, model, unsettled FROM owners WHERE id = ?1 AND until > ?2";
        self.0.prepare_cached(sql)?.query_row(params![id, now], owner).optional()
    }

    /// Answers whether it was unsettled.
    pub(super) fn settle(&self, id: &str) -> Result<bool> {
        let changed = self.0.execute("UPDATE owners SET unsettled = 0 WHERE id = ?1 AND unsettled = 1", [id])?;
        Ok(changed == 1)
    }

    /// Hands out what is to be asked for, and notes when it is to be asked for again.
    pub(super) fn due(&self, targets: &[String], most: usize, now: i64) -> Result<Vec<(String, Owner)>> {
        let sql = format!(
            "UPDATE owners SET due = ?1 + {}, asked = asked + 1 WHERE id IN (
                SELECT id FROM owners WHERE unsettled = 1 AND due <= ?1 AND asked < ?2 AND until > ?1
                AND target IN (SELECT value FROM json_each(?3)) ORDER BY due LIMIT ?4)
            RETURNING key, target, account, model, unsettled, id",
            patience::NEXT
        );
        let targets = serde_json::to_string(targets).unwrap_or_default();
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(5)?, owner(row)?));
        self.0.prepare_cached(&sql)?.query_map(params![now, patience::MOST, targets, most], read)?.collect()
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
        let sql =
            "SELECT key, target, account, model, unsettled, id, until, due FROM owners WHERE shared = 0 LIMIT 500";
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Row { id: row.get(5)?, owner: owner(row)?, until: row.get(6)?, due: row.get(7)? })
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

/// Its first five columns.
fn owner(row: &rusqlite::Row<'_>) -> Result<Owner> {
    let (key, target, account) = (row.get(0)?, row.get(1)?, row.get(2)?);
    Ok(Owner { key, target, account, model: row.get(3)?, unsettled: row.get(4)? })
}

/// Brings the file to the last version; a newer one is left as it is.
fn migrate(connection: &mut Connection) -> Result<()> {
    // Two processes may open it at once during an upgrade.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version: u32 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    for (step, sql) in (1..).zip(STEPS).skip_while(|(step, _)| *step <= version) {
        transaction.execute_batch(sql)?;
        transaction.pragma_update(None, "user_version", step)?;
    }
    transaction.commit()
}
