//! The config made live: routes, sites and keys that requests use, replaced as a whole at reload (C2).
//!
//! Made by the server at start and at reload; read by the gateway once per request, which keeps
//! its snapshot until its end. Touches the `ca:` files.

use crate::admission::keys::KeyRing;
use crate::config::{Config, Model};
use crate::protocol::Protocol;
use crate::relay::Plan;
use crate::relay::keepalive::Frames;
use crate::route::health::Health;
use crate::route::{Route, Target};
use crate::upstream::site::{BadRoots, Site};
use std::collections::{BTreeMap, HashMap};
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
    /// The virtual keys.
    pub keys: KeyRing,
}

/// What is known of the health of targets and accounts; outlives reloads.
#[derive(Debug, Default)]
pub struct Wards(std::sync::Mutex<HashMap<String, Arc<Health>>>);

impl Wards {
    fn of(&self, word: String) -> Arc<Health> {
        let mut known = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Arc::clone(known.entry(word).or_default())
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
        Ok(Self { config, routes, sites, keys })
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
        let keys = target.provider.api_keys.len().max(1);
        let accounts = (0..keys).map(|at| wards.of(format!("{}#{at}", target.provider.name)));
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
    Route { name: Arc::from(model.name.as_str()), plans, targets: targets.collect(), model: Arc::clone(model) }
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
