//! Turns the raw file into the checked one, and reports what a schema cannot say.
//!
//! Called once per load, after `shape`. Touches the files that the operator names (certificates), nothing else.

mod keys;
mod models;
mod pem;
mod providers;
mod server;

use super::finding::Findings;
use super::keypath::{KeyPath, Step};
use super::raw;
use super::shape::nearest;
use super::tree::{Kind, Node};
use super::{Config, Provider};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The configuration, as far as the file gives one; it counts only when nothing was found.
pub(super) fn check(file: raw::File, root: &Node, base_dir: &Path, findings: &mut Findings) -> Config {
    let mut check = Check { root, base_dir, findings };
    let top = KeyPath::root();
    let listen = check.listen(file.listen.unwrap_or_default());
    let admin = check.admin(file.admin, &listen);
    let server = check.server(&file.server);
    let providers = check.providers(file.providers.unwrap_or_default());
    let (models, by_name) = check.models(file.models.unwrap_or_default(), &file.defaults, &providers);
    let keys = check.keys(file.keys.unwrap_or_default(), &models, &by_name);
    let passthrough = check.passthrough(file.passthrough, &providers, &keys);
    let log = check.log(&file.log, &top.key("log"));
    let metrics = super::Metrics { max_key_series: file.metrics.max_key_series };
    Config { listen, admin, server, providers, models, passthrough, keys, log, metrics, by_name }
}

struct Check<'a> {
    root: &'a Node,
    base_dir: &'a Path,
    findings: &'a mut Findings,
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
            let name = self.written(path, name);
            let names = list(providers.keys().map(String::as_str));
            let guess = suggestion(&name, providers.keys().map(String::as_str));
            self.error(
                path,
                format!("no provider named {name:?}; add it under \"providers:\" or use one of: {names}{guess}"),
            );
        }
        found.cloned()
    }

    /// A name as the file has it: what came from the environment is not repeated.
    fn written(&self, path: &KeyPath, name: &str) -> String {
        match &self.root.nearest(path).kind {
            Kind::Scalar { text, .. } => text.clone(),
            Kind::List(_) | Kind::Map(_) => name.to_owned(),
        }
    }
}

impl Node {
    /// The value at a path, or the last one on the way to it.
    pub(super) fn nearest(&self, path: &KeyPath) -> &Self {
        let mut node = self;
        for step in path.steps() {
            let next = match (step, &node.kind) {
                (Step::Key(key), Kind::Map(entries)) => {
                    entries.iter().find(|entry| entry.key == *key).map(|entry| &entry.value)
                }
                (Step::Item(at), Kind::List(items)) => items.get(*at),
                _ => None,
            };
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        node
    }

    /// Whether the file has a value at a path.
    pub(super) fn has(&self, path: &KeyPath) -> bool {
        let mut node = self;
        for step in path.steps() {
            let next = match (step, &node.kind) {
                (Step::Key(key), Kind::Map(entries)) => {
                    entries.iter().find(|entry| entry.key == *key).map(|entry| &entry.value)
                }
                (Step::Item(at), Kind::List(items)) => items.get(*at),
                _ => None,
            };
            let Some(next) = next else { return false };
            node = next;
        }
        true
    }
}

/// At most some names, for a message.
fn list<'n>(names: impl Iterator<Item = &'n str>) -> String {
    const MOST: usize = 12;
    let mut names: Vec<&str> = names.take(MOST + 1).collect();
    if names.len() > MOST {
        names.truncate(MOST);
        names.push("…");
    }
    if names.is_empty() { "(there is none)".to_owned() } else { names.join(", ") }
}

fn suggestion<'n>(given: &str, names: impl Iterator<Item = &'n str>) -> String {
    nearest(given, names).map(|guess| format!("; did you mean {guess:?}?")).unwrap_or_default()
}
