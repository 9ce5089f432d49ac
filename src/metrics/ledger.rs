//! The metrics of money and records (M1, L4, L5).
//!
//! Told when a request settles, from the ledger's writer after each commit, and read off the
//! ledger and its sink when somebody asks for the metrics. Touches only its own registry.
//!
//! Money here is a sum of floats, good for graphs and alerts; the ledger keeps it exactly.

use super::declare::Declare;
use super::{Metrics, NONE, add, observe, set};
use crate::ledger::Stats;
use crate::ledger::money::Nano;
use crate::ledger::sink::SinkStats;
use crate::record::Record;
use prometheus::{CounterVec, HistogramVec, IntCounterVec, IntGaugeVec};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A good disk syncs in a millisecond; group commit aims at 20 (L1); above a second new requests wait.
const COMMIT_SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 10.0];
/// Nano-USD in a USD.
const NANO: f64 = 1e9;

/// The metrics of money and records.
#[derive(Debug)]
pub(super) struct LedgerMetrics {
    charge: CounterVec,
    cost: CounterVec,
    unpriced: IntCounterVec,
    pending: IntGaugeVec,
    healthy: IntGaugeVec,
    commit: HistogramVec,
    settled: IntCounterVec,
    recovered: IntCounterVec,
    lost: IntCounterVec,
    conflicts: IntCounterVec,
    sink_connected: IntGaugeVec,
    sink_pending: IntGaugeVec,
    sink_lag: IntGaugeVec,
    /// What was counted so far of the ledger's own sums.
    seen: Mutex<Stats>,
}

impl LedgerMetrics {
    pub(super) fn new(new: &mut Declare) -> Result<Self, prometheus::Error> {
        Ok(Self {
            charge: new.money(
                "weir_charge_usd_total",
                &["model", "key"],
                "USD charged to clients, by the prices of the config; the ledger has the exact sums.",
            )?,
            cost: new.money(
                "weir_cost_usd_total",
                &["model", "target"],
                "USD that the upstreams cost, by the prices of the config; the ledger has the exact sums.",
            )?,
            unpriced: new.counter(
                "weir_unpriced_total",
                &["target"],
                "Settled requests with a part that has no price: their charge or cost is not known.",
            )?,
            pending: new.gauge("weir_ledger_pending_records", &[], "Rows on their way to the ledger's disk.")?,
            healthy: new.gauge("weir_ledger_healthy", &[], "1 when the ledger can be written, 0 while it cannot.")?,
            commit: new.histogram(
                "weir_ledger_commit_seconds",
                &[],
                &COMMIT_SECONDS,
                "Time of one commit of the ledger, which holds many rows.",
            )?,
            settled: new.counter("weir_ledger_settled_records_total", &[], "Rows settled in the ledger.")?,
            recovered: new.counter(
                "weir_ledger_recovered_records_total",
                &[],
                "Rows settled for processes that had died with them open.",
            )?,
            lost: new.counter(
                "weir_ledger_lost_records_total",
                &[],
                "Rows that a broken ledger could not keep; each is whole in the log.",
            )?,
            conflicts: new.counter(
                "weir_ledger_conflicts_total",
                &[],
                "Requests that were settled twice; the second was refused. Each is a bug.",
            )?,
            sink_connected: new.gauge("weir_sink_connected", &[], "1 while PostgreSQL takes rows.")?,
            sink_pending: new.gauge("weir_sink_pending_records", &[], "Settled rows that PostgreSQL has not got.")?,
            sink_lag: new.gauge(
                "weir_sink_lag_seconds",
                &[],
                "Age of the oldest settled row that PostgreSQL has not got.",
            )?,
            seen: Mutex::default(),
        })
    }
}

impl Metrics {
    /// Counts the money of a settled request (L3): called once per [`crate::ledger::Ticket::settle`].
    /// `None`: no price is known. `unpriced`: a part had no price ([`crate::ledger::price::Money::unpriced`]).
    pub fn charged(&self, record: &Record, charge: Option<Nano>, cost: Option<Nano>, unpriced: bool) {
        let names = self.names.load();
        let model = names.model(record.model.as_deref());
        let target = names.target(record.target.as_deref());
        add_usd(&self.ledger.charge, &[model, self.keys.label(record.key.as_deref())], charge);
        add_usd(&self.ledger.cost, &[model, target], cost);
        if unpriced && target != NONE {
            add(&self.ledger.unpriced, &[target], 1);
        }
    }

    /// Times one commit: called from [`crate::ledger::OnCommit`], on the writer's thread.
    pub fn ledger_committed(&self, took: Duration) {
        observe(&self.ledger.commit, &[], Some(took));
    }

    /// Takes over the ledger's own numbers; `healthy`: whether rows can be written. Called when somebody
    /// asks for the metrics, as often as they like: sums grow by what is new.
    pub fn ledger(&self, stats: &Stats, healthy: bool) {
        let own = &self.ledger;
        set(&own.pending, &[], i64::try_from(stats.pending).unwrap_or(i64::MAX));
        set(&own.healthy, &[], i64::from(healthy));
        let mut seen = own.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = &mut *seen;
        for (counter, before, now) in [
            (&own.settled, &mut seen.settled, stats.settled),
            (&own.recovered, &mut seen.recovered, stats.recovered),
            (&own.lost, &mut seen.lost, stats.lost),
            (&own.conflicts, &mut seen.conflicts, stats.conflicts),
        ] {
            if let Ok(counter) = counter.get_metric_with_label_values::<&str>(&[]) {
                counter.inc_by(now.saturating_sub(*before)); // also by 0, so that the series is there
            }
            *before = now.max(*before);
        }
    }

    /// Takes over the numbers of the PostgreSQL sink, where there is one.
    pub fn sink(&self, stats: &SinkStats) {
        set(&self.ledger.sink_connected, &[], i64::from(stats.connected));
        set(&self.ledger.sink_pending, &[], i64::try_from(stats.behind).unwrap_or(i64::MAX));
        set(&self.ledger.sink_lag, &[], i64::try_from(stats.lag.as_secs()).unwrap_or(i64::MAX));
    }
}

fn add_usd(counter: &CounterVec, labels: &[&str], amount: Option<Nano>) {
    let Some(Nano(nano)) = amount.filter(|amount| amount.0 > 0) else { return };
    if let Ok(counter) = counter.get_metric_with_label_values(labels) {
        #[expect(clippy::cast_precision_loss, reason = "exact up to nine million USD for one request")]
        counter.inc_by(nano as f64 / NANO);
    }
}
