//! The config made live: routes, sites and keys that requests use, replaced as a whole at reload (C2).
//!
//! Made by the server at start and at reload; read by the gateway once per request, which keeps
//! its snapshot until its end. Touches the `ca:` files.

use crate::admission::keys::KeyRing;
use crate::config::{Config, Model, Provider};
use crate::ledger::Terms;
use crate::protocol::Protocol;
use crate::relay::Plan;
use crate::relay::keepalive::Frames;
use crate::route::health::Health;
use crate::route::{Route, Target};
use crate::upstream::site::{BadRoots, Site};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{Hash as _, Hasher as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// One state of the config, ready to be used.
#[derive(Debug)]
pub struct Live {
    /// As loaded.
    pub config: Arc<Config>,
    /// By name and by alias.
    routes: HashMap<String, Arc<Route>>,
    /// By provider name.
    pub sites: BTreeMap<String, Arc<Site>>,
    /// The virtual keys of the file.
    pub keys: KeyRing,
    /// What the money of its requests is computed from, also when they end after a reload.
    pub terms: Arc<Terms>,
    /// Their names.
    pub key_names: HashSet<String>,
}

/// What is known of the health of targets and accounts; outlives reloads.
#[derive(Debug, Default)]
pub struct Wards(std::sync::Mutex<HashMap<String, Arc<Health>>>);

impl Wards {
    fn of(&self, word: String) -> Arc<Health> {
        let mut known = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Arc::clone(known.entry(word).or_default())
    }

    /// Forgets what no config in use names any more.
    pub fn forget_unused(&self) {
        let mut known = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.retain(|_, health| Arc::strong_count(health) > 1);
    }
}

impl Live {
    /// Makes a config live; `demo` is where the built-in model listens.
    ///
    /// # Errors
    /// When a `ca:` file cannot be used.
    pub fn new(config: Arc<Config>, wards: &Wards, demo: Option<SocketAddr>) -> Result<Self, BadRoots> {
        let mut sites = BTreeMap::new();
        for (name, provider) in &config.providers {
            sites.insert(name.clone(), Arc::new(Site::new(Arc::clone(provider), demo)?));
        }
        let mut routes = HashMap::new();
        for model in &config.models {
            let route = Arc::new(route(&config, model, &sites, wards));
            for name in model.aliases.iter().chain([&model.name]) {
                routes.insert(name.clone(), Arc::clone(&route));
            }
        }
        let keys = KeyRing::new(&config.keys);
        let key_names = config.keys.iter().map(|key| key.name.clone()).collect();
        let terms = Terms { prices: Arc::clone(&config.price_books), billing: config.billing };
        Ok(Self { config, routes, sites, keys, key_names, terms: Arc::new(terms) })
    }

    /// All models, in the order of the file.
    pub fn models(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.config.models.iter().filter_map(|model| self.routes.get(&model.name))
    }

    /// The route of a client's model name, by name or alias.
    #[must_use]
    pub fn route(&self, name: &str) -> Option<&Arc<Route>> {
        self.routes.get(name)
    }
}

fn route(config: &Config, model: &Arc<Model>, sites: &BTreeMap<String, Arc<Site>>, wards: &Wards) -> Route {
    let targets = model.targets.iter().filter_map(|target| {
        let site = sites.get(&target.provider.name)?;
        let word = target.word();
        let accounts = account_words(&target.provider).into_iter().map(|word| wards.of(word));
        Some(Arc::new(Target {
            config: Arc::clone(target),
            site: Arc::clone(site),
            health: wards.of(word.clone()),
            accounts: accounts.collect(),
            refuses_stream_options: AtomicBool::new(false),
            word: Arc::from(word),
        }))
    });
    let plans = Protocol::ALL.map(|protocol| Arc::new(plan(config, model, protocol)));
    let (name, targets) = (Arc::from(model.name.as_str()), targets.collect());
    Route { name, plans, targets, model: Arc::clone(model), account: None }
}

/// Who is asked for the health of each of a provider's keys: the key itself, so that one that replaces a refused
/// one starts healthy. Only a digest of it is kept.
fn account_words(provider: &Provider) -> Vec<String> {
    let word = |key: &str| {
        let mut hasher = std::hash::DefaultHasher::new();
        key.hash(&mut hasher);
        format!("{}#{:x}", provider.name, hasher.finish())
    };
    match provider.api_keys.as_slice() {
        [] => vec![word("")],
        keys => keys.iter().map(|key| word(key.expose())).collect(),
    }
}

fn plan(config: &Config, model: &Model, protocol: Protocol) -> Plan {
    Plan {
        protocol,
        keepalive: Frames::new(&model.keepalive),
        timeouts: model.timeouts,
        max_event_bytes: config.server.max_event_bytes,
        failover_on_empty: model.retry.failover_on_empty,
        chat_error_done: model.chat_error_done,
    }
}
