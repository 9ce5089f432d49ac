//! The operator's file, checked: what the rest of the code sees of it.
//!
//! Called at start, by `weir check` and at reload. Touches the file system (secrets in files, certificates, prices) and
//! the environment (`${NAME}`), and nothing after that: everything here is plain data.
//!
//! The shape is that of `conf/weir.yaml`, section by section, with the same names. The way of a file:
//! text → `tree` (YAML with places) → `shape` (against the schema of `raw`) → `check` → [`Config`] → `odd` (warnings).

mod alerts;
mod changes;
mod check;
mod finding;
mod key;
mod keypath;
mod limits;
mod model;
mod odd;
mod provider;
mod raw;
mod schema;
mod secret;
mod server;
mod shape;
mod stored;
mod tree;
mod word;

#[cfg(test)]
mod tests;

pub use alerts::{Alerts, Webhook};
pub use changes::{changes, keep_fixed};
pub use finding::{Finding, Report};
pub use key::{AllowedModels, Key, KeyStore, Passthrough};
pub use limits::{
    BadBudget, Budget, LimitStore, Limits, MAX_CONCURRENT, MAX_PER_MINUTE, OnReached, OnStoreFailure, Period, usd,
};
pub use model::{Affinity, Health, Keepalive, Model, OnClientGone, Retry, StatusRange, Style, Target, Timeouts, When};
pub use provider::{
    Auth, BaseUrl, EgressProxy, ErrorBodies, Http2, KeyBounds, Origin, PriceTier, Provider, Responses, StreamErrors,
    UsageChunk,
};
pub use schema::schema;
pub use secret::Secret;
pub use server::{Admin, Certificate, Listen, Log, LogFormat, Metrics, Otlp, Server, Timelines, Tls, TlsVersion};
pub use stored::{BadKey, stored_key};

use crate::ledger::LedgerConfig;
use crate::ledger::billing::Policy;
use crate::ledger::config::PriceConfig;
use crate::ledger::price::Prices;
use finding::{Findings, Place};
use keypath::KeyPath;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::SystemTime;

/// Thousands of models and keys fit; beyond is the wrong file.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// The same for every load.
static SCHEMA: LazyLock<serde_json::Value> = LazyLock::new(schema);

/// The whole file, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients connect.
    pub listen: Vec<Listen>,
    /// Where operators connect (C4).
    pub admin: Admin,
    /// Limits and times of the server itself.
    pub server: Server,
    /// By name.
    pub providers: BTreeMap<String, Arc<Provider>>,
    /// In the order of the file; names and aliases are unique among all.
    pub models: Vec<Arc<Model>>,
    /// Paths that go through unrouted (A10).
    pub passthrough: Vec<Passthrough>,
    /// The virtual keys.
    pub keys: Vec<Arc<Key>>,
    /// Where further keys are kept, if anywhere.
    pub key_store: Option<KeyStore>,
    /// Which price files there are, and how the charge is made (L3).
    pub prices: PriceConfig,
    /// Their content, read when the config was.
    pub price_books: Arc<Prices>,
    /// What is charged by outcome (U5).
    pub billing: Policy,
    /// Where and how each request is recorded (L1); there is always a ledger.
    pub ledger: LedgerConfig,
    /// Where limits and budgets are counted (G4).
    pub limits: LimitStore,
    /// What is logged and where.
    pub log: Log,
    /// Bounds of the metrics.
    pub metrics: Metrics,
    /// The export of traces.
    pub otlp: Otlp,
    /// The timelines of the last requests (M4).
    pub timelines: Timelines,
    /// Whom to tell what a person must see at once.
    pub alerts: Alerts,
    /// Every name and alias; private, so that only this module can make a `Config` and the two agree.
    by_name: HashMap<String, Arc<Model>>,
}

impl Config {
    /// The model that a client's name means, by name or alias.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<&Arc<Model>> {
        self.by_name.get(name)
    }

    /// Where an upgrade is asked for (C3): beside the ledger, unless the file says otherwise.
    #[must_use]
    pub fn upgrade_socket(&self) -> PathBuf {
        self.server.upgrade_socket.clone().unwrap_or_else(|| beside(&self.ledger.path))
    }
}

/// A file that was read and found good.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it says, to be shared.
    pub config: Arc<Config>,
    /// What is allowed but odd.
    pub warnings: Vec<Finding>,
}

/// Reads and checks a file (C1). Relative paths in it start at its own folder.
///
/// # Errors
/// Everything that is wrong with it, at once.
pub fn load(path: &Path) -> Result<Loaded, Report> {
    load_with_files(path).0
}

/// The same, with all files that the outcome depends on, whether they could be read or not: a change of any of
/// them may change it.
pub fn load_with_files(path: &Path) -> (Result<Loaded, Report>, Vec<PathBuf>) {
    let files = RefCell::new(vec![path.to_owned()]);
    let loaded = load_into(path, &files);
    let mut files = files.into_inner();
    files.sort();
    files.dedup();
    (loaded, files)
}

fn load_into(path: &Path, files: &RefCell<Vec<PathBuf>>) -> Result<Loaded, Report> {
    let file_name = path.display().to_string();
    let text = std::fs::File::open(path).and_then(|file| {
        let mut text = String::new();
        file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
        Ok(text)
    });
    let problem = match text {
        Ok(text) if text.len() as u64 <= MAX_FILE_BYTES => {
            let base_dir = path.parent().unwrap_or(Path::new(""));
            let outside = secret::Outside { env: &secret::process_env, base_dir, files };
            return parse_from(&text, &file_name, &outside);
        }
        Ok(_) => "the file is larger than 16 MiB, so it is probably the wrong one".to_owned(),
        Err(error) => format!("cannot read the file: {error}"),
    };
    let message = problem;
    Err(Report { findings: vec![Finding { file: file_name, line: 0, column: 0, path: String::new(), message }] })
}

/// Where the process that runs with this file can be asked for an upgrade. Looks at nothing else of the file, since
/// the secrets of the service need not be known to whoever asks.
#[must_use]
pub fn upgrade_socket(path: &Path) -> Option<PathBuf> {
    let text = std::fs::read_to_string(path).ok()?;
    let root = tree::read(&text, &mut Findings::new(""))?;
    let base_dir = path.parent().unwrap_or(Path::new(""));
    let files = RefCell::default();
    let outside = secret::Outside { env: &secret::process_env, base_dir, files: &files };
    let file = |section: &str, key: &str| {
        let path = KeyPath::root().key(section).key(key);
        match &root.nearest(&path).kind {
            tree::Kind::Scalar { text, .. } if root.has(&path) => outside.expand(text).ok(),
            tree::Kind::Scalar { .. } | tree::Kind::List(_) | tree::Kind::Map(_) => None,
        }
    };
    let ledger = || file("ledger", "path").unwrap_or_else(|| raw::Ledger::default().path.0);
    let own = file("server", "upgrade_socket").map(|own| base_dir.join(own));
    Some(own.unwrap_or_else(|| beside(&base_dir.join(ledger()))))
}

fn beside(ledger: &Path) -> PathBuf {
    ledger.with_file_name("upgrade.sock")
}

/// The same for a text. `env` looks up `${NAME}`; relative paths start at `base_dir`; `file_name` is only printed.
///
/// # Errors
/// Everything that is wrong with it, at once.
pub fn parse(
    text: &str,
    file_name: &str,
    env: &dyn Fn(&str) -> Option<String>,
    base_dir: &Path,
) -> Result<Loaded, Report> {
    let files = RefCell::default();
    parse_from(text, file_name, &secret::Outside { env, base_dir, files: &files })
}

fn parse_from(text: &str, file_name: &str, outside: &secret::Outside<'_>) -> Result<Loaded, Report> {
    let mut findings = Findings::new(file_name);
    let Some(root) = tree::read(text, &mut findings) else {
        return Err(Report { findings: findings.sorted() });
    };
    let json = shape::read(&root, &SCHEMA, outside, &mut findings);
    let config = match serde_json::from_value::<raw::File>(json) {
        Ok(file) => Some(check::check(file, &root, outside, &mut findings)),
        Err(error) => {
            // The shape check lets nothing through that this refuses; a bug, but better said than hidden.
            debug_assert!(!findings.is_empty(), "the schema allows what the structs refuse: {error}");
            if findings.is_empty() {
                findings.add(Place::START, &KeyPath::root(), "the file cannot be read; please report this".to_owned());
            }
            None
        }
    };
    match config {
        Some(config) if findings.is_empty() => {
            let mut warnings = Findings::new(file_name);
            odd::look(&config, &root, SystemTime::now(), &mut warnings);
            Ok(Loaded { config: Arc::new(config), warnings: warnings.sorted() })
        }
        _ => Err(Report { findings: findings.sorted() }),
    }
}
