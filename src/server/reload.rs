//! Reload (C2): a new config in force for new requests, or a bad one that changes nothing and says why.
//!
//! Called on SIGHUP, on a changed file (`watch`) and by the admin API; one at a time. Reads the files, then swaps
//! what requests begin with, as a whole: a request keeps what it began with until its end.

use super::Source;
use super::doors::Doors;
use crate::admin::{AdminState, Reload, Reloaded};
use crate::config::{self, Config, Finding, Origin, Report};
use crate::gateway::Shared;
use crate::ledger::{self, Charged, LedgerConfig, cli};
use crate::live::Live;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// Reads the operator's file anew.
pub(super) struct Reloader {
    /// `None`: there is no file (`weir demo`).
    pub(super) path: Option<PathBuf>,
    shared: Arc<Shared>,
    state: Arc<AdminState>,
    doors: Arc<Doors>,
    /// Where the built-in model listens, if it does.
    demo: Option<SocketAddr>,
    /// The files that the last load depended on; locked while a reload runs.
    files: Mutex<Vec<PathBuf>>,
}

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Reload for Reloader {
    fn reload(&self) -> Result<Reloaded, Report> {
        self.run("the admin API")
    }
}

impl Reloader {
    /// Of the file that the process was started with; the admin API can ask it from now on.
    pub(super) fn new(
        source: Option<&Source>,
        shared: &Arc<Shared>,
        state: &Arc<AdminState>,
        doors: &Arc<Doors>,
        demo: Option<SocketAddr>,
    ) -> Arc<Self> {
        let reloader = Arc::new(Self {
            path: source.map(|source| source.path.clone()),
            shared: Arc::clone(shared),
            state: Arc::clone(state),
            doors: Arc::clone(doors),
            demo,
            files: Mutex::new(source.map(|source| source.files.clone()).unwrap_or_default()),
        });
        state.reloads_by(Arc::clone(&reloader) as Arc<dyn Reload>);
        reloader
    }

    /// What has to be watched.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Loads and takes the file; `asked_by` is for the log. Blocks on the disk.
    pub(super) fn run(&self, asked_by: &str) -> Result<Reloaded, Report> {
        let Some(path) = &self.path else {
            return Err(report(Path::new("weir demo"), "there is no config file to reload".to_owned()));
        };
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let (loaded, read) = config::load_with_files(path);
        *files = read;
        let taken = loaded.and_then(|loaded| {
            for warning in &loaded.warnings {
                log::warn!(finding:% = warning; "the config has an oddity");
            }
            self.take(path, loaded.config)
        });
        self.shared.metrics.config_reloaded(taken.is_ok());
        match &taken {
            Ok(done) => {
                self.state.set_refused(Vec::new());
                let changed = done.changed.join("; ");
                log::info!(asked_by, changed = changed.as_str(); "the config was reloaded");
                if !done.needs_restart.is_empty() {
                    let keys = done.needs_restart.join(", ");
                    log::warn!(keys = keys.as_str(); "these changes are not in force yet: restart or upgrade");
                }
            }
            Err(report) => {
                self.state.set_refused(report.findings.iter().map(ToString::to_string).collect());
                for finding in &report.findings {
                    log::error!(asked_by, finding:%; "the config was refused; the settings before it stay in force");
                }
            }
        }
        taken
    }

    /// Everything that can fail comes first; what follows cannot.
    fn take(&self, path: &Path, mut config: Arc<Config>) -> Result<Reloaded, Report> {
        let running = Arc::clone(&self.shared.live.load().config);
        let needs_restart = config::keep_fixed(&running, Arc::make_mut(&mut config));
        let wants_demo = config.providers.values().any(|provider| provider.origin == Origin::Demo);
        if wants_demo && self.demo.is_none() {
            let message = "the built-in model was not there at the start; restart or upgrade to have it".to_owned();
            return Err(report(path, message));
        }
        let live = Live::new(Arc::clone(&config), &self.shared.wards, self.demo);
        let live = live.map_err(|error| report(path, error.to_string()))?;
        let keys = Doors::read(&config.listen).map_err(|error| report(path, error.to_string()))?;
        let rezoned = running.ledger.timezone != config.ledger.timezone;
        let charged = rezoned.then(|| charged(&config.ledger)).transpose();
        let charged = charged.map_err(|error| report(path, error.to_string()))?;
        crate::logging::init(&config.log).map_err(|error| report(path, error.to_string()))?;

        self.doors.take(keys);
        super::doors::tell_expiry(&config, &self.shared.metrics);
        self.shared.metrics.configured(&config);
        self.shared.timelines.resize(config.timelines.keep);
        self.state.set_token(config.admin.token.clone());
        self.shared.ledger.reconfigure(&config.ledger);
        if let Some(charged) = charged {
            self.shared.limits.rezone(config.ledger.timezone.clone(), &charged);
        }
        if let Some(remote) = self.shared.limits.remote() {
            remote.set_on_failure(config.limits.on_failure);
        }
        let terms = Arc::clone(&live.terms);
        self.shared.live.store(Arc::new(live));
        self.shared.terms.store(terms);
        self.shared.wards.forget_unused();
        Ok(Reloaded { changed: config::changes(&running, &config), needs_restart })
    }
}

/// What keys were charged today, where days begin by this config.
fn charged(config: &LedgerConfig) -> Result<Vec<Charged>, cli::CliError> {
    let today = ledger::day_of(SystemTime::now(), &config.timezone);
    cli::charged(&config.path, &today, true)
}

fn report(path: &Path, message: String) -> Report {
    let file = path.display().to_string();
    Report { findings: vec![Finding { file, line: 0, column: 0, path: String::new(), message }] }
}
