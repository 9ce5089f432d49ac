//! Declares metrics: each gets its name, kind, labels and help here and nowhere else.
//!
//! Used once, by [`super::Metrics::new`]. Touches the registry.

use prometheus::core::Collector;
use prometheus::{CounterVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry};

/// One declared metric, for the table in the documents and the check of dashboards and rules (M2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The whole name; a histogram's series add `_bucket`, `_sum`, `_count`.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its labels, in order.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

/// The kinds that Weir uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Seconds, in buckets.
    Histogram,
}

/// A registry in the making.
#[derive(Debug, Default)]
pub(super) struct Declare {
    pub(super) registry: Registry,
    pub(super) entries: Vec<Entry>,
}

type Result<T> = std::result::Result<T, prometheus::Error>;

impl Declare {
    pub(super) fn counter(
        &mut self,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Result<IntCounterVec> {
        let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
        self.add(counter, Entry { name, kind: Kind::Counter, labels, help })
    }

    /// A counter of USD: the one kind that counts fractions.
    pub(super) fn money(
        &mut self,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Result<CounterVec> {
        let counter = CounterVec::new(Opts::new(name, help), labels)?;
        self.add(counter, Entry { name, kind: Kind::Counter, labels, help })
    }

    pub(super) fn gauge(
        &mut self,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Result<IntGaugeVec> {
        let gauge = IntGaugeVec::new(Opts::new(name, help), labels)?;
        self.add(gauge, Entry { name, kind: Kind::Gauge, labels, help })
    }

    pub(super) fn histogram(
        &mut self,
        name: &'static str,
        labels: &'static [&'static str],
        buckets: &[f64],
        help: &'static str,
    ) -> Result<HistogramVec> {
        let histogram = HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?;
        self.add(histogram, Entry { name, kind: Kind::Histogram, labels, help })
    }

    fn add<C: Collector + Clone + 'static>(&mut self, collector: C, entry: Entry) -> Result<C> {
        self.registry.register(Box::new(collector.clone()))?;
        self.entries.push(entry);
        Ok(collector)
    }
}
