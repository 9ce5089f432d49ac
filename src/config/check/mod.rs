//! Turns the raw file into the checked one, and reports what a schema cannot say.
//!
//! Called once per load, after `shape`. Touches the files that the operator names (certificates, prices), nothing else.

mod keys;
mod ledger;
mod limits;
mod models;
mod pem;
mod providers;
mod server;

use super::finding::Findings;
use super::keypath::KeyPath;
use super::raw;
use super::secret::Outside;
use super::shape::nearest;
use super::tree::{Kind, Node};
use super::{Config, Key, Provider};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The configuration, as far as the file gives one; it counts only when nothing was found.
pub(super) fn check(file: raw::File, root: &Node, outside: &Outside<'_>, findings: &mut Findings) -> Config {
    let mut check = Check { root, base_dir: outside.base_dir, files: outside.files, findings, any_model: false };
    let top = KeyPath::root();
    let listen = check.listen(file.listen.unwrap_or_default());
    let admin = check.admin(file.admin, &listen);
    let providers = check.providers(file.providers.unwrap_or_default());
    let (models, by_name) = check.models(file.models.unwrap_or_default(), &file.defaults, &providers);
    let keys = check.keys(file.keys.unwrap_or_default(), &models, &by_name);
    let passthrough = check.passthrough(file.passthrough, &providers, &keys, file.key_store.is_some());
    let (prices, price_books) = check.prices(file.prices, &providers);
    let ledger = check.ledger(file.ledger);
    check.key_store(file.key_store, &ledger);
    let server = check.server(&file.server);
    let limits = check.limit_store(file.limits);
    let log = check.log(&file.log, &top.key("log"));
    let metrics = super::Metrics { max_key_series: file.metrics.max_key_series };
    let otlp = check.otlp(file.otlp);
    let alerts = check.alerts(file.alerts);
    let timelines = super::Timelines { keep: file.timelines.keep };
    Config {
        listen,
        admin,
        server,
        providers,
        models,
        passthrough,
        keys,
        key_store: file.key_store,
        prices,
        price_books,
        billing: file.billing,
        ledger,
        limits,
        log,
        metrics,
        otlp,
        timelines,
        alerts,
        by_name,
    }
}

/// The keys alone, of the key store. Without a `config` they may name any model.
pub(super) fn check_keys(
    raw: Vec<raw::Key>,
    config: Option<&Config>,
    root: &Node,
    findings: &mut Findings,
) -> Vec<Arc<Key>> {
    let files = RefCell::default();
    let mut check = Check { root, base_dir: Path::new(""), files: &files, findings, any_model: config.is_none() };
    let empty = HashMap::new();
    let (models, by_name) = config.map_or((&[][..], &empty), |config| (&config.models[..], &config.by_name));
    check.keys(raw, models, by_name)
}

struct Check<'a> {
    root: &'a Node,
    base_dir: &'a Path,
    /// What was read besides the config itself.
    files: &'a RefCell<Vec<PathBuf>>,
    findings: &'a mut Findings,
    /// Keys may name models that the file does not have.
    any_model: bool,
}

impl Check<'_> {
    /// Unless something is known to be wrong there already.
    fn error(&mut self, path: &KeyPath, message: String) {
        if !self.findings.touch(path) {
            self.findings.add(self.root.nearest(path).at, path, message);
        }
    }

    fn not_zero(&mut self, span: Duration, path: &KeyPath) {
        if span.is_zero() {
            self.error(path, "this time must be longer than 0".to_owned());
        }
    }

    /// Relative paths start at the folder of the file.
    fn file(&self, path: &str) -> PathBuf {
        self.base_dir.join(path)
    }

    fn provider(
        &mut self,
        name: &str,
        providers: &BTreeMap<String, Arc<Provider>>,
        path: &KeyPath,
    ) -> Option<Arc<Provider>> {
        let found = providers.get(name);
        // With the whole section refused, nothing is known of its names.
        if found.is_none() && !self.findings.is_at(&KeyPath::root().key("providers")) {
            let name = self.written(path);
            let names = choice(&name, providers.keys().map(String::as_str));
            self.error(path, format!("no provider named {name:?}; add it under \"providers:\" or use one of: {names}"));
        }
        found.cloned()
    }

    /// A value as the file has it: what came from the environment is not repeated.
    fn written(&self, path: &KeyPath) -> String {
        match &self.root.nearest(path).kind {
            Kind::Scalar { text, .. } => text.clone(),
            Kind::List(_) | Kind::Map(_) => String::new(), // only asked for single values
        }
    }
}

/// The names that could have been meant, for a message: all of them, or the nearest of many.
fn choice<'n>(given: &str, names: impl Iterator<Item = &'n str>) -> String {
    /// As many as a line holds.
    const MOST: usize = 12;
    let names: Vec<&str> = names.collect();
    match (names.len(), nearest(given, names.iter().copied())) {
        (0, _) => "(there is none yet)".to_owned(),
        (1..=MOST, _) => names.join(", "),
        (_, Some(guess)) => format!("{guess}, …"),
        (_, None) => format!("{}, …", names.into_iter().take(MOST).collect::<Vec<_>>().join(", ")),
    }
}
