//! One request from its head to its record: Pingora's `CTX`.
//!
//! Made by the gateway for each request, filled by its stages. Writes the record exactly once:
//! [`Exchange::finish`] at the end, or when it is dropped because nobody got that far.

use super::booking::Booking;
use super::notice::Notice;
use super::shared::{Held, Shared};
use super::stored::{StoredCall, Storing};
use crate::admission::facts::Facts;
use crate::admission::headers::holds_secret;
use crate::config::Key;
use crate::limit::{Ask, Gauges, Grant};
use crate::live::Live;
use crate::meter::usage::Usage;
use crate::meter::{Meter, usage::Source};
use crate::metrics::ActiveGuard;
use crate::outcome::Outcome;
use crate::protocol::{Endpoint, Protocol};
use crate::record::{Attempt, Record};
use crate::relay::{self, Next, Relay};
use crate::route::{Route, Target};
use crate::timeline::{Gap, Sight};
use bytes::Bytes;
use http::{HeaderValue, Response};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};
use tokio::time::Sleep;
use uuid::Uuid;

/// One request.
pub struct Exchange {
    /// What all requests share.
    pub shared: Arc<Shared>,
    /// The config that this request began with.
    pub live: Arc<Live>,
    /// When its head was read.
    pub began: Instant,
    /// Its id as text.
    pub id: String,
    /// Whose envelope and events the client understands.
    pub protocol: Protocol,
    /// What will be recorded.
    pub record: Record,
    /// The request's body, decoded; held until no other attempt can be made (A4).
    pub body: Bytes,
    /// Once the request was let in.
    pub admitted: Option<Arc<Admitted>>,
    /// The stream's state machine; also the clock of replies that are no streams.
    pub relay: Option<Relay>,
    /// What the relay wants next, after a chunk went through the body filter.
    pub next: Next,
    /// The client's side.
    pub client: Client,
    /// Passthrough: where it goes (A10).
    pub unrouted: Option<Unrouted>,
    /// Bytes it holds (F2).
    pub held: Held,
    /// What it has to do with stored responses (A12).
    pub storing: Storing,
    /// Its connection is one too many (B3).
    pub over: bool,
    /// The web page's origin, if it may call (B3).
    pub origin: Option<HeaderValue>,
    /// Tells when it has to end (C3, G1).
    pub notice: Notice,
    /// Fires at the relay's next wake; re-armed lazily (K5).
    pub timer: Timer,
    /// The attempt whose head is being made, for `upstream_request_filter`.
    pub aim: Option<Aim>,
    /// The status of the attempt that runs.
    pub upstream_status: Option<u16>,
    /// Its row in the ledger.
    pub booking: Booking,
    /// What it is likely to use.
    pub ask: Ask,
    /// What it holds of its limits.
    pub grant: Option<Grant>,
    /// What is left of them, to be told to the client.
    pub gauges: Option<Gauges>,
    /// `on_reached: cut`: when so many bytes are written, its charge is looked at.
    pub look_at_charge: Option<u64>,
    /// The attempt that runs, and since when: sent, and not ended yet.
    trying: Option<(Arc<str>, Duration)>,
    stream_guard: Option<ActiveGuard>,
    /// Counts it among those that run, until its books are closed.
    running: Option<Running>,
    /// `durability: strict`: the end of the stream, until the record is on disk.
    pub last_words: Option<Bytes>,
    _request_guard: ActiveGuard,
    finished: bool,
}

/// A request that was let in.
#[derive(Debug)]
pub struct Admitted {
    /// Where it was sent.
    pub endpoint: Endpoint,
    /// Whose it is.
    pub key: Arc<Key>,
    /// What its body says.
    pub facts: Facts,
    /// The model's targets.
    pub route: Arc<Route>,
    /// It names a stored object in its path (A12).
    pub stored: Option<StoredCall>,
}

/// Where an attempt goes.
#[derive(Clone, Debug)]
pub struct Aim {
    /// The target.
    pub target: Arc<Target>,
    /// Which of the provider's keys.
    pub account: usize,
}

/// Where a passthrough request goes.
#[derive(Clone, Debug)]
pub struct Unrouted {
    /// The provider.
    pub site: Arc<crate::upstream::site::Site>,
}

/// The client's side of the response.
#[derive(Debug, Default)]
pub struct Client {
    /// The head is out.
    pub opened: bool,
    /// When it was.
    pub opened_at: Option<Duration>,
    /// How long the longest write took (M4).
    pub longest_write: Duration,
    /// The head to send before the first byte; Weir's own if the upstream's is not there (K3).
    pub head: Option<Box<Response<()>>>,
    /// Early bytes of a next request arrived: whether it leaves cannot be told by reading (A9).
    pub pipelined: bool,
    /// Chunks since it was last looked at.
    pub unseen: u8,
}

/// A timer that is only moved when it fires or must fire earlier (K5).
pub struct Timer {
    sleep: Pin<Box<Sleep>>,
    due: Instant,
}

impl Timer {
    fn new(due: Instant) -> Self {
        Self { sleep: Box::pin(tokio::time::sleep_until(due.into())), due }
    }

    /// Fires at `wake` at the latest; an earlier firing finds nothing to do.
    pub fn arm(&mut self, wake: Instant, now: Instant) {
        if wake < self.due || self.due <= now {
            self.due = wake;
            self.sleep.as_mut().reset(wake.into());
        }
    }

    /// Waits for it.
    pub fn fired(&mut self) -> Pin<&mut Sleep> {
        self.sleep.as_mut()
    }
}

impl Exchange {
    /// A request begins.
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Self {
        let began = Instant::now();
        let id = Uuid::now_v7();
        let live = shared.live.load_full();
        Self {
            _request_guard: shared.metrics.request_started(),
            stream_guard: None,
            booking: Booking::default(),
            ask: Ask::NOTHING,
            grant: None,
            gauges: None,
            look_at_charge: None,
            trying: None,
            running: Some(Running::new(&shared)),
            last_words: None,
            live,
            began,
            id: id.hyphenated().encode_lower(&mut Uuid::encode_buffer()).to_owned(),
            protocol: Protocol::Chat,
            record: Record::new(id, SystemTime::now()),
            body: Bytes::new(),
            admitted: None,
            relay: None,
            next: Next::Wait,
            client: Client::default(),
            unrouted: None,
            held: Held::new(Arc::clone(&shared)),
            storing: Storing::default(),
            over: super::lobby::is_over(),
            origin: None,
            notice: Notice::new(shared.end_now.subscribe()),
            timer: Timer::new(began),
            aim: None,
            upstream_status: None,
            shared,
            finished: false,
        }
    }

    /// Time since its head was read.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// It is answered by a stream: counts among the active ones.
    pub fn count_stream(&mut self) {
        if self.stream_guard.is_none() {
            self.stream_guard = Some(self.shared.metrics.stream_started());
        }
    }

    /// How it ended; the first word stays.
    pub fn conclude(&mut self, outcome: Outcome, cause: &'static str) {
        if self.record.cause.is_none() {
            self.record.outcome = outcome;
            self.record.cause = Some(cause);
        }
    }

    /// The end of the response is about to be written.
    pub fn free_slot(&mut self) {
        if let Some(grant) = &mut self.grant {
            grant.free_slot();
        }
    }

    /// Time that was spent waiting for somebody else.
    pub fn waited(&mut self, since: Instant) {
        self.record.waited += since.elapsed();
    }

    /// One attempt begins.
    pub fn attempt_begins(&mut self, target: &Arc<str>) {
        super::booking::next_attempt(self);
        self.storing.forget_attempt();
        self.trying = Some((Arc::clone(target), self.age()));
        if let Some(trace) = &mut self.record.trace {
            trace.attempt_begins();
        }
    }

    /// One attempt ends.
    pub fn attempt_ended(&mut self, attempt: Attempt) {
        self.trying = None;
        self.record.target = Some(Arc::clone(&attempt.target));
        self.record.attempts.push(attempt);
    }

    /// Nothing came of it that anybody has to know: it leaves no row and no record.
    pub(super) fn forget(&mut self) {
        self.finished = true;
        self.booking.cancel();
    }

    /// Writes the record, once.
    pub fn finish(&mut self) {
        if self.ends() {
            let nothing_more = Record::new(self.record.id, self.record.received);
            let record = std::mem::replace(&mut self.record, nothing_more);
            self.closing(record).close();
        }
    }

    /// Writes the record, once, and waits until it is on disk (`durability: strict`).
    pub async fn finish_durably(&mut self) {
        if self.ends() {
            let record = self.record.clone();
            self.closing(record).close_durably().await;
        }
    }

    /// What relay and pump saw, when all is over after `duration` (M4).
    pub(super) fn sight(&self, duration: Duration) -> Sight {
        let since = |at: Instant| at.saturating_duration_since(self.began);
        let told = |gap: relay::Gap| Gap { at: since(gap.from), took: gap.took };
        let relay = self.relay.as_ref();
        let gaps = relay.map(|relay| relay.gaps().until(self.began + duration)).unwrap_or_default();
        Sight {
            opened: self.client.opened_at,
            first_keepalive: relay.and_then(Relay::first_keepalive).map(since),
            last_write: relay.and_then(Relay::last_write).map(since).or(self.client.opened_at),
            longest_write: self.client.longest_write,
            gaps: gaps.map(|gap| gap.map(told)),
        }
    }

    /// For its books.
    pub(super) const fn take_running(&mut self) -> Option<Running> {
        self.running.take()
    }

    /// Sums up, once. Answers whether this was the time.
    fn ends(&mut self) -> bool {
        if std::mem::replace(&mut self.finished, true) {
            return false;
        }
        self.stream_guard = None;
        self.record.duration = self.age();
        if let Some((target, began)) = self.trying.take() {
            // Its task was ended from outside; it was sent all the same, so it has its row.
            let (status, ended) = (self.upstream_status, self.age());
            self.attempt_ended(Attempt { target, result: "dropped", status, began, ended, maybe_billed: true });
        }
        if let Some(relay) = &self.relay {
            let since = |at: Instant| at.saturating_duration_since(self.began);
            let seen = relay.seen();
            self.record.upstream_first_output = seen.first_output_read.map(since);
            self.record.first_output = seen.first_output.map(since);
            self.record.first_visible = seen.first_visible.map(since);
            self.record.last_output = seen.last_output.map(since);
            self.record.output_events = seen.output_events;
            self.record.keepalives = relay.keepalives();
            if relay.gate_overflowed() {
                self.shared.metrics.gate_overflowed(self.record.model.as_deref().unwrap_or_default());
            }
        }
        if self.storing.elsewhere {
            (self.record.usage, self.record.source) = (Usage::default(), Source::None);
        }
        if self.record.effective_status == 0 {
            self.record.effective_status = self.record.status;
        }
        true
    }
}

/// One of the requests that run.
pub(super) struct Running(Arc<Shared>);

impl Running {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.running.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(shared))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Exchange {
    /// Nobody finished it: its task was ended from outside.
    fn drop(&mut self) {
        self.conclude(Outcome::Internal, "dropped");
        self.finish();
    }
}

/// Takes over what a meter has read.
pub(super) fn book_meter(record: &mut Record, booking: &mut Booking, shared: &Shared, meter: &Meter, target: &Target) {
    let clean = |text: &&str| !holds_secret(text.as_bytes(), &target.site.provider.api_keys);
    booking.placeholder = meter.output_is_placeholder();
    booking.aside.other_models = meter.other_models().to_vec();
    booking.aside.anomalies += meter.anomalies();
    record.usage = meter.usage();
    record.source = meter.source();
    record.answer_id = meter.answer_id().filter(clean).map(|id| clipped(id, 128));
    if let Some(trace) = &mut record.trace {
        trace.answered_by(meter.model().filter(clean).map(|model| clipped(model, 128)));
    }
    record.tier_served = meter.service_tier().filter(clean).map(|tier| clipped(tier, 64));
    for _ in 0..meter.anomalies() {
        shared.metrics.usage_anomaly(&target.word);
    }
    for _ in 0..meter.malformed() {
        shared.metrics.event_malformed(&target.word);
    }
}

/// At most `max` bytes of visible ASCII.
pub(super) fn clipped(text: &str, max: usize) -> String {
    let is_visible = text.len() <= max && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_visible {
        return text.to_owned();
    }
    text.chars().filter(char::is_ascii_graphic).take(max).collect()
}
