//! The ledger's commands: `weir usage`, `weir ledger verify`, `weir ledger backup` (L6).
//!
//! Called by main and the admin API; each opens the file for itself, so that they work while a gateway runs and while none does.

use std::path::Path;

/// How a report looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// Comma-separated, RFC 4180.
    Csv,
    /// One array of objects; money as decimal strings and as integers.
    Json,
}

/// What rows are summed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The virtual key.
    Key,
    /// The public model.
    Model,
    /// `provider/model`.
    Target,
    /// The day in the ledger's time zone.
    Day,
    /// How it ended.
    Outcome,
    /// The key's tag.
    Tag,
}

/// A command failed; the text is for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CliError(pub String);

/// `weir usage`: `since` and `until` are dates (both included) or RFC 3339 instants (`until` excluded).
pub fn usage(
    path: &Path,
    by: &[By],
    since: Option<&str>,
    until: Option<&str>,
    format: Format,
) -> Result<String, CliError> {
    let _ = (path, by, since, until, format);
    Err(CliError("not built yet".to_owned()))
}

/// `weir ledger backup`: an online copy that is a ledger of its own.
pub fn backup(path: &Path, to: &Path) -> Result<(), CliError> {
    let _ = (path, to);
    Err(CliError("not built yet".to_owned()))
}
