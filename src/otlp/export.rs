//! The thread that exports: gathers spans into batches, sends them, tries again.
//!
//! Started and ended by the server. Touches the network and the metrics; nobody waits for it but the end of the
//! process, and that for a moment.

use super::grpc::{Failed, Receiver};
use super::message::{AnyValue, ExportRequest, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans, Span};
use crate::config::Otlp;
use crate::metrics::Metrics;
use prost::Message;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// A batch goes out when it has so many spans …
const BATCH_SPANS: usize = 512;
/// … or when its first has waited so long.
const BATCH_WAIT: Duration = Duration::from_secs(1);
/// Between tries, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// What is left at the end of the process may take so long.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The running export.
#[derive(Debug)]
pub struct Exporting {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Exporting {
    pub(super) fn start(config: &Otlp, queue: mpsc::Receiver<Vec<Span>>, metrics: Arc<Metrics>) -> io::Result<Self> {
        let receiver = Receiver::new(&config.endpoint)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = watch::channel(false);
        let export = Export { queue, receiver, metrics, spans: Vec::new(), batch: None, away: false };
        let work = move || {
            runtime.block_on(export.run(stopped));
            // A name that is being looked up does not hold the process.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("otlp".to_owned()).spawn(work)?;
        Ok(Self { stop, thread })
    }

    /// Sends what is left, within two seconds.
    pub fn end(self) {
        self.stop.send_replace(true);
        if self.thread.join().is_err() {
            log::error!("the OTLP export had panicked");
        }
    }
}

/// What the thread works with.
struct Export {
    queue: mpsc::Receiver<Vec<Span>>,
    receiver: Receiver,
    metrics: Arc<Metrics>,
    /// Of the batch in the making.
    spans: Vec<Span>,
    batch: Option<Batch>,
    /// The receiver did not take the last one.
    away: bool,
}

/// On its way: an encoded message.
struct Batch {
    message: Vec<u8>,
    spans: u64,
}

impl Export {
    async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let working = async {
            while self.gather().await {
                self.deliver().await;
            }
        };
        tokio::select! {
            () = working => {}
            _ = stopped.wait_for(|stop| *stop) => {}
        }
        if timeout(LAST_WORDS, self.deliver_rest()).await != Ok(true) {
            log::warn!("the last spans could not be sent to the OTLP receiver");
        }
    }

    /// A batch; `false`: nobody tells anything any more.
    async fn gather(&mut self) -> bool {
        let Some(first) = self.queue.recv().await else { return false };
        self.spans.extend(first);
        let until = Instant::now() + BATCH_WAIT;
        while self.spans.len() < BATCH_SPANS
            && let Ok(Some(more)) = timeout_at(until, self.queue.recv()).await
        {
            self.spans.extend(more);
        }
        true
    }

    /// Sends it, again and again while the receiver is away; the queue fills meanwhile, and no more than that.
    async fn deliver(&mut self) {
        let mut pause = FIRST_PAUSE;
        self.pack();
        while !self.send().await {
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// All that is there, each batch once.
    async fn deliver_rest(&mut self) -> bool {
        loop {
            if self.batch.is_none() {
                while self.spans.len() < BATCH_SPANS
                    && let Ok(more) = self.queue.try_recv()
                {
                    self.spans.extend(more);
                }
                if self.spans.is_empty() {
                    return true;
                }
                self.pack();
            }
            if !self.send().await {
                return false;
            }
        }
    }

    fn pack(&mut self) {
        let spans = std::mem::take(&mut self.spans);
        let count = spans.len() as u64;
        self.batch = Some(Batch { message: request(spans).encode_to_vec(), spans: count });
    }

    /// Sends the batch once. Answers whether it is done with: taken, or refused for good.
    async fn send(&mut self) -> bool {
        let Some(batch) = &self.batch else { return true };
        let dropped = match self.receiver.export(&batch.message).await {
            Ok(rejected) => {
                if std::mem::take(&mut self.away) {
                    log::info!("the OTLP receiver takes spans again");
                }
                rejected
            }
            Err(Failed::Refused(error)) => {
                log::warn!(error = error.as_str(); "the OTLP receiver refuses spans; they are dropped");
                batch.spans
            }
            Err(Failed::Later(error)) => {
                if !std::mem::replace(&mut self.away, true) {
                    log::warn!(error = error.as_str(); "spans cannot be sent to the OTLP receiver; trying on");
                }
                return false;
            }
        };
        self.metrics.otlp_dropped(dropped);
        self.batch = None;
        true
    }
}

/// The whole message: who speaks, and the spans.
pub(super) fn request(spans: Vec<Span>) -> ExportRequest {
    let own =
        |key: &str, value: &str| KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value.into()) }) };
    let version = env!("CARGO_PKG_VERSION");
    let resource = Resource { attributes: vec![own("service.name", "weir"), own("service.version", version)] };
    let scope = Scope { name: "weir".to_owned(), version: version.to_owned() };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
    ExportRequest { resource_spans: vec![ResourceSpans { resource: Some(resource), scope_spans }] }
}
