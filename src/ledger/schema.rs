//! The shape of the database file and its migrations.
//!
//! Called when the file is opened, by the writer and by the commands that read. Touches the file.

use super::OpenError;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use std::path::Path;
use std::time::Duration;
use uuid::Uuid;

/// In the file's header: "this is a ledger of Weir's" (`Weir` in ASCII).
const APPLICATION_ID: i64 = 0x5765_6972;
/// One script for each version; a file at version n has seen the first n.
const MIGRATIONS: [&str; 1] = [include_str!("schema/1.sql")];
/// Another process of ours holds the write lock for one commit at most; past this something is wrong.
const BUSY: Duration = Duration::from_secs(5);
/// Pages of WAL before it is copied into the database: 16 MiB, so that this costs few commits a pause.
const CHECKPOINT_PAGES: i64 = 4_000;

/// Opens for writing: creates what is missing, migrates what is old, refuses what is not a ledger.
pub(super) fn open_writer(path: &Path) -> Result<Connection, OpenError> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|cause| OpenError::Unusable {
            path: folder.display().to_string(),
            cause: cause.to_string(),
            remedy: "create the folder or set ledger.path",
        })?;
    }
    let unusable = |error: &rusqlite::Error| unusable(path, error);
    let mut connection = Connection::open(path).map_err(|error| unusable(&error))?;
    prepare(&mut connection).map_err(|error| unusable(&error))?;
    migrate(&mut connection, path)?;
    Ok(connection)
}

/// Opens for reading only; the file must exist.
pub(super) fn open_reader(path: &Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| unusable(path, &error))?;
    connection.busy_timeout(BUSY).map_err(|error| unusable(path, &error))?;
    check_application(&connection, path)?;
    Ok(connection)
}

fn prepare(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    // An open row names its writer, which is there: looked up for each of them it would cost, and tell nothing.
    connection.pragma_update(None, "foreign_keys", "off")?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(())
}

fn migrate(connection: &mut Connection, path: &Path) -> Result<(), OpenError> {
    let failed = |error: &rusqlite::Error| unusable(path, error);
    // Two processes may start at once: the second waits here and finds the work done.
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(|error| failed(&error))?;
    let version = pragma(&transaction, "user_version").map_err(|error| failed(&error))?;
    let tables: i64 = transaction
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(|error| failed(&error))?;
    if version == 0 && tables == 0 {
        transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(|error| failed(&error))?;
    }
    check_application(&transaction, path)?;
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    if version > known {
        return Err(OpenError::Unusable {
            path: path.display().to_string(),
            cause: format!("written by a newer Weir (format {version}, this one knows {known})"),
            remedy: "start the newer version",
        });
    }
    let migrations = MIGRATIONS.iter().skip(usize::try_from(version).unwrap_or(0));
    for script in migrations {
        transaction.execute_batch(script).map_err(|error| failed(&error))?;
    }
    if version == 0 {
        transaction
            .execute("INSERT INTO counters (id, ledger) VALUES (0, ?1)", [Uuid::now_v7().to_string()])
            .map_err(|error| failed(&error))?;
    }
    transaction.pragma_update(None, "user_version", known).map_err(|error| failed(&error))?;
    transaction.commit().map_err(|error| failed(&error))
}

fn check_application(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let id = pragma(connection, "application_id").map_err(|error| unusable(path, &error))?;
    if id == APPLICATION_ID {
        return Ok(());
    }
    Err(OpenError::Unusable {
        path: path.display().to_string(),
        cause: "a database, but not a ledger of Weir's".to_owned(),
        remedy: "set ledger.path to another file",
    })
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

fn unusable(path: &Path, error: &rusqlite::Error) -> OpenError {
    use rusqlite::ErrorCode;
    let remedy = match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            "restore it from a backup (weir ledger backup makes them), or move it away to start anew"
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => "let this user write the file and its folder",
        Some(ErrorCode::DiskFull) => "free some space",
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => "see who else has it open",
        _ => "see that the path is right, and let this user write the file and its folder",
    };
    OpenError::Unusable { path: path.display().to_string(), cause: error.to_string(), remedy }
}
