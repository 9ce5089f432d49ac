//! The log: format, level, destination (M3).
//!
//! Started once by `main`; reopened at SIGHUP. Touches standard error or the log file.

use crate::config;
use std::path::PathBuf;

/// The log cannot be started or reopened.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file cannot be opened for append.
    #[error("log file {path}: {cause}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// Another logger is installed.
    #[error("a logger is installed already")]
    Taken,
}

/// Installs the log; later calls only change its settings (reload, C2).
///
/// # Errors
/// The file cannot be opened (the old settings stay), or another logger is installed.
pub fn init(_config: &config::Log) -> Result<(), LogError> {
    Ok(())
}

/// Opens the file anew, for log rotation (SIGHUP).
///
/// # Errors
/// The file cannot be opened; the old one stays in use.
pub fn reopen() -> Result<(), LogError> {
    Ok(())
}
