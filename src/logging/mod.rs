//! The log: which lines are written, how they look, where they go (M3).
//!
//! Started once by `main`; settings change at reload, the file is opened anew at SIGHUP.
//! Touches standard error or the log file.
//!
//! Each line is one write under a lock, so that lines never mix. A line that cannot be written
//! is lost: there is no place left to say so.

mod line;
#[cfg(test)]
mod tests;

pub(crate) use line::word;

use crate::config::{self, LogFormat};
use arc_swap::ArcSwap;
use log::LevelFilter;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

/// The `log` target of access records: always on, written as they come.
pub const ACCESS: &str = "access";

/// The log cannot be started or reopened.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file cannot be opened for append.
    #[error("log file {}: {cause}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// Another logger is installed.
    #[error("a logger is installed already")]
    Taken,
}

static LOGGER: OnceLock<Logger> = OnceLock::new();

/// Installs the log; later calls only change its settings (reload, C2).
///
/// # Errors
/// The file cannot be opened (the old settings stay), or another logger is installed.
pub fn init(config: &config::Log) -> Result<(), LogError> {
    let sink = Sink::open(config.file.clone())?;
    if let Some(logger) = LOGGER.get() {
        logger.change(config, sink);
    } else {
        let logger = LOGGER.get_or_init(|| Logger::new(config, sink));
        log::set_logger(logger).map_err(|_taken| LogError::Taken)?;
    }
    log::set_max_level(config.level);
    Ok(())
}

/// Opens the file anew, for log rotation (SIGHUP).
///
/// # Errors
/// The file cannot be opened; the old one stays in use.
pub fn reopen() -> Result<(), LogError> {
    LOGGER.get().map_or(Ok(()), Logger::reopen)
}

#[derive(Debug)]
struct Logger {
    settings: ArcSwap<Settings>,
    sink: Mutex<Sink>,
}

#[derive(Clone, Debug)]
struct Settings {
    format: LogFormat,
    level: LevelFilter,
    file: Option<PathBuf>,
}

impl Settings {
    fn of(config: &config::Log) -> Self {
        Self { format: config.format, level: config.level, file: config.file.clone() }
    }

    /// What of a target is written. Other crates get at most INFO, whatever the level: below it
    /// Pingora prints whole request and response heads, keys included, and h2 and rustls print
    /// frames and handshakes (B308). At INFO and above they say little of use to an operator who
    /// did not ask for more.
    fn level_of(&self, target: &str) -> LevelFilter {
        let own = target == "weir" || target.starts_with("weir::");
        match self.level {
            level if own => level,
            LevelFilter::Off => LevelFilter::Off,
            LevelFilter::Error => LevelFilter::Error,
            LevelFilter::Warn | LevelFilter::Info => LevelFilter::Warn,
            LevelFilter::Debug | LevelFilter::Trace => LevelFilter::Info,
        }
    }
}

impl Logger {
    fn new(config: &config::Log, sink: Sink) -> Self {
        Self { settings: ArcSwap::from_pointee(Settings::of(config)), sink: Mutex::new(sink) }
    }

    fn change(&self, config: &config::Log, sink: Sink) {
        *self.sink.lock().unwrap_or_else(PoisonError::into_inner) = sink;
        self.settings.store(Settings::of(config).into());
    }

    fn reopen(&self) -> Result<(), LogError> {
        let sink = Sink::open(self.settings.load().file.clone())?;
        *self.sink.lock().unwrap_or_else(PoisonError::into_inner) = sink;
        Ok(())
    }
}

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target() == ACCESS || metadata.level() <= self.settings.load().level_of(metadata.target())
    }

    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let sink = || self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        if record.target() == ACCESS {
            sink().write(record.args());
        } else {
            // Under the lock nothing may be formatted that could log itself.
            let line = line::of(record, self.settings.load().format, SystemTime::now());
            sink().write(&format_args!("{line}"));
        }
    }

    fn flush(&self) {}
}

/// Where lines go.
#[derive(Debug)]
struct Sink {
    place: Place,
    /// The line that is being written; kept, so that the next one has its room.
    line: String,
}

#[derive(Debug)]
enum Place {
    Stderr,
    File(File),
}

impl Sink {
    fn open(file: Option<PathBuf>) -> Result<Self, LogError> {
        let place = match file {
            None => Place::Stderr,
            Some(path) => match File::options().create(true).append(true).open(&path) {
                Ok(file) => Place::File(file),
                Err(cause) => return Err(LogError::Open { path, cause }),
            },
        };
        Ok(Self { place, line: String::new() })
    }

    /// Writes one line with its end, by one call.
    fn write(&mut self, line: &fmt::Arguments<'_>) {
        self.line.clear();
        // Writing to a string cannot fail.
        let _infallible = writeln!(self.line, "{line}");
        let line = self.line.as_bytes();
        let _lost = match &mut self.place {
            Place::Stderr => io::stderr().write_all(line),
            Place::File(file) => file.write_all(line),
        };
    }
}
