//! The export of traces: a span for each request and one for each attempt, by OTLP over gRPC.
//!
//! Told of each ended request where everybody else is, too. Owns one thread with a bounded queue: what does not fit
//! is dropped and counted, and nobody ever waits for the receiver. Off unless the operator asks for it.

mod context;
mod export;
mod grpc;
mod message;
mod span;
#[cfg(test)]
mod tests;

pub use context::{Server, Trace};
pub use export::Exporting;

use crate::config::Otlp;
use crate::ledger::money::Nano;
use crate::metrics::Metrics;
use crate::record::Record;
use message::Span;
use std::io;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Requests whose spans wait; a few KiB each, so that a receiver that is away costs some MiB and no more.
const QUEUE_REQUESTS: usize = 4096;

/// Where ended requests are told.
#[derive(Debug)]
pub struct Traces {
    queue: mpsc::Sender<Vec<Span>>,
    metrics: Arc<Metrics>,
}

impl Traces {
    /// Begins to export; `None`: the operator does not want it.
    ///
    /// # Errors
    /// When the system has no thread to give, or TLS cannot be set up.
    pub fn start(config: &Otlp, metrics: &Arc<Metrics>) -> io::Result<Option<(Self, Exporting)>> {
        if !config.enabled {
            return Ok(None);
        }
        metrics.otlp_dropped(0);
        let (queue, spans) = mpsc::channel(QUEUE_REQUESTS);
        let exporting = Exporting::start(config, spans, Arc::clone(metrics))?;
        Ok(Some((Self { queue, metrics: Arc::clone(metrics) }, exporting)))
    }

    /// Takes the spans of an ended request, if its trace is recorded. Never waits.
    pub fn tell(&self, record: &Record, charge: Option<Nano>) {
        let Some(trace) = record.trace.as_deref().filter(|trace| trace.is_sampled()) else { return };
        match self.queue.try_reserve() {
            Ok(place) => place.send(span::spans(record, trace, charge)),
            Err(_) => self.metrics.otlp_dropped(1 + record.attempts.len() as u64),
        }
    }
}
