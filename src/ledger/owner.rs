//! Who wrote a row, and whether it still lives (L2).
//!
//! An owner is one process run: a random instance id whose lock file lies beside the database and is
//! locked by the operating system for as long as the process lives. Process ids repeat in
//! containers; this does not. Called at open, by recovery and at close. Touches the lock files.
//!
//! (Never open the database file itself as a plain file: closing it would drop SQLite's own locks.)

use rusqlite::{Connection, params};
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// This process, as long as the value lives.
#[derive(Debug)]
pub(super) struct Owner {
    /// Its row in `owners`.
    pub(super) id: i64,
    path: PathBuf,
    /// Holds the lock.
    _file: File,
}

impl Owner {
    /// Locks first, then tells the others: a row of ours is never seen without its lock.
    pub(super) fn register(connection: &Connection, database: &Path, now: i64) -> Result<Self, String> {
        let instance = Uuid::new_v4().to_string();
        let path = lock_path(database, &instance);
        let file = OpenOptions::new()
            .create_new(true)
            .write(true)
            .open(&path)
            .map_err(|cause| format!("cannot create {}: {cause}", path.display()))?;
        file.try_lock().map_err(|cause| format!("cannot lock {}: {cause}", path.display()))?;
        connection
            .execute(
                "INSERT INTO owners (instance, pid, started) VALUES (?1, ?2, ?3)",
                params![instance, std::process::id(), now],
            )
            .map_err(|error| error.to_string())?;
        Ok(Self { id: connection.last_insert_rowid(), path, _file: file })
    }

    /// The process ends in good order.
    pub(super) fn retire(self, connection: &Connection, now: i64) -> rusqlite::Result<()> {
        connection.execute("UPDATE owners SET ended = ?2 WHERE id = ?1", params![self.id, now])?;
        // Left over, it would be removed by the next one's recovery.
        let _ = std::fs::remove_file(&self.path);
        Ok(())
    }
}

/// A dead owner: its lock was free, and is held by us now so that nobody else recovers its rows.
pub(super) struct Gone {
    path: PathBuf,
    /// Holds the lock; `None`: there was no lock file.
    file: Option<File>,
}

impl Gone {
    /// `None` while the owner lives, or when that cannot be told.
    pub(super) fn check(database: &Path, instance: &str) -> Option<Self> {
        let path = lock_path(database, instance);
        let file = match OpenOptions::new().write(true).open(&path) {
            Ok(file) => file,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Some(Self { path, file: None }),
            Err(cause) => {
                log::warn!(path:% = path.display(), cause:% = cause; "cannot tell whether a ledger owner lives");
                return None;
            }
        };
        match file.try_lock() {
            Ok(()) => Some(Self { path, file: Some(file) }),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Error(cause)) => {
                log::warn!(path:% = path.display(), cause:% = cause; "cannot tell whether a ledger owner lives");
                None
            }
        }
    }

    /// Its rows are settled.
    pub(super) fn bury(self) {
        if self.file.is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn lock_path(database: &Path, instance: &str) -> PathBuf {
    let mut name = database.file_name().unwrap_or_default().to_owned();
    name.push(format!(".owner-{instance}"));
    database.with_file_name(name)
}
