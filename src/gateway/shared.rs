//! What all requests share.
//!
//! Made by the server at start; read by the gateway. Touches nothing by itself.

use super::exchange::Admitted;
use crate::admission::load::Load;
use crate::keystore::watch::InForce;
use crate::ledger::money::Nano;
use crate::ledger::{Ledger, Terms};
use crate::limit::Limits;
use crate::live::{Live, Wards};
use crate::metrics::Metrics;
use crate::otlp::Traces;
use crate::owners::Owners;
use crate::record::Record;
use crate::relay::Input;
use crate::switches::Switches;
use crate::timeline::{Sight, Timeline, Timelines};
use crate::upstream::call::Connections;
use arc_swap::ArcSwap;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::watch;

/// Which running streams have to end.
#[derive(Clone, Debug, Default)]
pub struct EndNow {
    /// All of them (C3).
    pub all: bool,
    /// Those of these keys, by digest (G1).
    pub keys: HashSet<[u8; 32]>,
}

impl EndNow {
    /// What a request of that key is told, if it has to end.
    #[must_use]
    pub fn tells(&self, admitted: Option<&Admitted>) -> Option<Input> {
        if self.all {
            return Some(Input::Drain);
        }
        let cut = !self.keys.is_empty() && admitted.is_some_and(|admitted| self.keys.contains(&admitted.key.sha256));
        cut.then_some(Input::Revoke)
    }
}

/// The process-wide state.
#[derive(Debug)]
pub struct Shared {
    /// The config in force; replaced as a whole (C2).
    pub live: ArcSwap<Live>,
    /// Everything counted.
    pub metrics: Arc<Metrics>,
    /// Every request that was dispatched.
    pub ledger: Ledger,
    /// What money is computed from.
    pub terms: Arc<ArcSwap<Terms>>,
    /// To the providers.
    pub connections: Connections,
    /// Health that outlives reloads.
    pub wards: Wards,
    /// What keys and models have used; outlives reloads.
    pub limits: Arc<Limits>,
    /// Turns true when each answer is the last one on its connection (C3).
    pub leaving: watch::Sender<bool>,
    /// New requests are refused (C3).
    pub draining: AtomicBool,
    /// Which running streams have to end (C3, G1).
    pub end_now: watch::Sender<EndNow>,
    /// Where spans are exported, if they are.
    pub traces: Option<Traces>,
    /// The last requests (M4).
    pub timelines: Timelines,
    /// The keys of the store.
    pub stored_keys: Arc<InForce>,
    /// What is switched off at runtime (C2).
    pub switches: Switches,
    /// How much there is to do (B3).
    pub load: Arc<Load>,
    /// Whose stored responses are, and where they lie (A12).
    pub owners: Owners,
    /// Requests between head and record.
    pub running: AtomicU64,
    held: AtomicU64,
}

impl Shared {
    /// The state at start.
    #[must_use]
    pub fn new(
        live: Live,
        wards: Wards,
        metrics: Arc<Metrics>,
        ledger: Ledger,
        terms: Arc<ArcSwap<Terms>>,
        owners: Owners,
        traces: Option<Traces>,
    ) -> Self {
        let timelines = Timelines::new(live.config.timelines.keep);
        let limits = Arc::new(Limits::new(live.config.ledger.timezone.clone()));
        Self {
            limits,
            live: ArcSwap::from_pointee(live),
            metrics,
            ledger,
            terms,
            connections: Connections::new(),
            wards,
            leaving: watch::Sender::new(false),
            draining: AtomicBool::new(false),
            end_now: watch::Sender::new(EndNow::default()),
            traces,
            timelines,
            stored_keys: Arc::default(),
            switches: Switches::default(),
            load: Arc::default(),
            owners,
            running: AtomicU64::new(0),
            held: AtomicU64::new(0),
        }
    }

    /// The one place where an ended request is told to everybody who records.
    pub fn record(&self, record: &Arc<Record>, sight: Sight, charge: Option<Nano>, log: &crate::config::Log) {
        self.metrics.finished(record);
        if let Some(traces) = &self.traces {
            traces.tell(record, charge);
        }
        self.timelines.push(|| Timeline { record: Arc::clone(record), charge, sight });
        crate::access::write(record, charge, log);
    }

    /// Bytes held by all requests together.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

/// One request's part of the bytes that all requests hold (F2); gives them back when dropped.
#[derive(Debug)]
pub struct Held {
    shared: Arc<Shared>,
    bytes: u64,
}

impl Held {
    /// Holds nothing yet.
    #[must_use]
    pub const fn new(shared: Arc<Shared>) -> Self {
        Self { shared, bytes: 0 }
    }

    /// Now holds `bytes` in all. Answers whether that is within `max` of everybody's.
    pub fn set(&mut self, bytes: usize, max: u64) -> bool {
        let bytes = bytes as u64;
        if bytes == self.bytes {
            return true;
        }
        let others = if bytes > self.bytes {
            let more = bytes - self.bytes;
            self.shared.held.fetch_add(more, Ordering::Relaxed).saturating_add(more)
        } else {
            self.shared.held.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
            0
        };
        self.bytes = bytes;
        others <= max
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
