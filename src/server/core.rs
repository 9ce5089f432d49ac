//! What the process consists of before it has sockets: ledger, limits, keys, the operators' state.
//!
//! Called by the server at start, once. Opens the ledger and what stands beside it, and starts their threads.

use super::spending::Spending;
use super::{StartError, doors};
use crate::admin::{AdminState, Control};
use crate::admission::load;
use crate::config::Config;
use crate::gateway::Shared;
use crate::keystore::watch::Watch as KeyWatch;
use crate::keystore::{Store, StoreError};
use crate::ledger::sink::Sink;
use crate::ledger::{Ledger, OnCommit};
use crate::limit::Limits;
use crate::limit::remote::Keeper;
use crate::live::{Live, Wards};
use crate::metrics::Metrics;
use crate::otlp::{Exporting, Traces};
use crate::owners::Owners;
use arc_swap::ArcSwap;
use std::net::SocketAddr;
use std::sync::Arc;

/// What all requests share, and what runs beside it.
pub(super) struct Core {
    pub(super) shared: Arc<Shared>,
    /// To be started.
    pub(super) sink: Option<Sink>,
    /// To be ended, last of all.
    pub(super) exporting: Option<Exporting>,
}

impl Core {
    /// Opens the ledger.
    ///
    /// # Errors
    /// Whatever cannot be opened.
    pub(super) fn new(config: &Arc<Config>, demo: Option<SocketAddr>) -> Result<Self, StartError> {
        let metrics = Arc::new(Metrics::new(config.metrics.max_key_series)?);
        metrics.configured(config);
        doors::tell_expiry(config, &metrics);
        let wards = Wards::default();
        let live = Live::new(Arc::clone(config), &wards, demo)?;
        let terms = Arc::new(ArcSwap::new(Arc::clone(&live.terms)));
        let timed = Arc::clone(&metrics);
        let on_commit: OnCommit = Arc::new(move |took, _| timed.ledger_committed(took));
        let ledger = Ledger::open(&config.ledger, Arc::clone(&terms), Some(on_commit))?;
        let sink = config.ledger.postgres.as_ref().map(|postgres| ledger.sink(postgres)).transpose()?;
        let (traces, exporting) = Traces::start(&config.otlp, &metrics).map_err(StartError::Traces)?.unzip();
        let owners = Owners::open(&config.ledger)?;
        let shared = Arc::new(Shared::new(live, wards, metrics, ledger, terms, owners, traces));
        Ok(Self { shared, sink, exporting })
    }
}

/// What operators see and change.
pub(super) fn operators(
    config: &Config,
    shared: &Arc<Shared>,
    sink: Option<&Sink>,
) -> Result<Arc<AdminState>, StartError> {
    let metrics = Arc::clone(&shared.metrics);
    let state = Arc::new(AdminState::new(metrics, config.admin.token.clone(), config.ledger.path.clone()));
    state.watch(shared.ledger.clone(), sink.map(Sink::stats));
    state.attach(Arc::clone(shared));
    let store = config.key_store.map(|_| Store::of(config)).transpose()?;
    state.control(Control::new(Arc::clone(shared), store));
    Ok(state)
}

/// Begins with what was spent before, and with the shared store if there is one (L4, G4).
pub(super) fn begin_counting(config: &Config, limits: &Arc<Limits>) -> Result<Spending, StartError> {
    let spending = Spending { limits: Arc::clone(limits), ledger: config.ledger.path.clone() };
    spending.restore()?;
    if let Some(url) = &config.limits.redis {
        let ledger = crate::ledger::cli::identity(&config.ledger.path)?;
        let (keeper, remote) = Keeper::new(url, config.limits.on_failure, ledger)?;
        limits.share(remote);
        keeper.start(Arc::clone(limits))?;
    }
    Ok(spending)
}

/// The keys of the store come into force, and stay true (G1).
pub(super) fn follow_keys(config: &Config, shared: &Arc<Shared>) -> Result<Option<KeyWatch>, StoreError> {
    if config.key_store.is_none() {
        return Ok(None);
    }
    let ending = Arc::clone(shared);
    let cut = move |keys| {
        ending.end_now.send_if_modified(|end| {
            let changed = end.keys != keys;
            end.keys = keys;
            changed
        });
    };
    let in_force = Arc::clone(&shared.stored_keys);
    KeyWatch::start(Store::of(config)?, &config.ledger.path, in_force, Arc::new(cut)).map(Some)
}

/// Looks at the memory for as long as the gateway lives (B3).
pub(super) fn watch_memory(shared: &Arc<Shared>) -> Result<(), StartError> {
    let watched = Arc::downgrade(shared);
    let look = move || {
        while let Some(shared) = watched.upgrade() {
            load::give_back();
            let max = shared.live.load().config.server.max_memory;
            shared.load.look(max.and_then(|_| load::resident()), max);
            drop(shared);
            std::thread::park_timeout(load::LOOK_EVERY);
        }
    };
    std::thread::Builder::new().name("memory".to_owned()).spawn(look).map(drop).map_err(StartError::Thread)
}
