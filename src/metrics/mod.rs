//! Every metric of Weir, declared once (M1); those of money and records in `ledger.rs`.
//!
//! Called when a request ends, and by the few parts that hold a gauge; never per chunk. Touches
//! only its own registry.
//!
//! Labels are words of enums and names of the config (`names.rs`). `key` is on counters only.

mod declare;
mod ledger;
mod names;
#[cfg(test)]
mod tests;

pub use declare::{Entry, Kind};

use crate::config::Config;
use crate::meter::usage::Source;
use crate::outcome::Outcome;
use crate::protocol::Endpoint;
use crate::record::Record;
use arc_swap::ArcSwap;
use declare::Declare;
use ledger::LedgerMetrics;
use names::{Keys, NONE, Names};
use prometheus::process_collector::ProcessCollector;
use prometheus::{HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Registry, TextEncoder};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// From one millisecond (a refusal, a local model) to the longest clocks of S1 (`first_byte` 120 s,
/// `no_output` 150 s, `non_stream` 10 min): about three steps a decade (B302).
const REQUEST_SECONDS: [f64; 19] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 45.0, 90.0, 150.0, 300.0, 600.0,
];
/// Models write 10 to 200 tokens a second; closer steps there, since this is what people compare.
const TOKEN_SECONDS: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.25, 1.0, 10.0, 60.0, 600.0];
/// Weir's own part should be a fraction of a millisecond; above one second something is broken.
const OVERHEAD_SECONDS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0, 10.0, 60.0, 600.0];

/// All metrics, with the registry that renders them.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    entries: Vec<Entry>,
    names: ArcSwap<Names>,
    keys: Keys,
    requests: IntCounterVec,
    duration: HistogramVec,
    first_token: HistogramVec,
    first_visible_token: HistogramVec,
    upstream_first_byte: HistogramVec,
    upstream_first_token: HistogramVec,
    per_output_token: HistogramVec,
    overhead: HistogramVec,
    attempts: IntCounterVec,
    tokens: IntCounterVec,
    web_searches: IntCounterVec,
    requests_active: IntGauge,
    streams_active: IntGauge,
    keepalives: IntCounterVec,
    stalls: IntCounterVec,
    gate_overflow: IntCounterVec,
    target_healthy: IntGaugeVec,
    limit_rejections: IntCounterVec,
    limit_store_up: IntGaugeVec,
    events_malformed: IntCounterVec,
    usage_missing: IntCounterVec,
    usage_anomalies: IntCounterVec,
    reloads: IntCounterVec,
    reload_successful: IntGaugeVec,
    reload_success_time: IntGaugeVec,
    certificate_expiry: IntGaugeVec,
    otlp_dropped: IntCounterVec,
    ledger: LedgerMetrics,
}

impl Metrics {
    /// Declares them; `max_key_series` bounds the values of the `key` label, further keys are `other`.
    ///
    /// # Errors
    /// Two metrics have the same name, or a name is not valid: a mistake in this file.
    #[expect(clippy::too_many_lines, reason = "the one table of all metrics")]
    pub fn new(max_key_series: usize) -> Result<Self, prometheus::Error> {
        let mut new = Declare::default();
        let metrics = Self {
            names: ArcSwap::default(),
            keys: Keys::new(max_key_series),
            requests: new.counter(
                "weir_requests_total",
                &["endpoint", "model", "outcome", "key"],
                "Requests that ended, each counted once.",
            )?,
            duration: new.histogram(
                "weir_request_duration_seconds",
                &["endpoint", "model", "stream"],
                &REQUEST_SECONDS,
                "From the request's head to the end of the response; refused requests are left out.",
            )?,
            first_token: new.histogram(
                "weir_time_to_first_token_seconds",
                &["model", "target"],
                &REQUEST_SECONDS,
                "Streams: from the whole request read to the first output (reasoning included) written to the client.",
            )?,
            first_visible_token: new.histogram(
                "weir_time_to_first_visible_token_seconds",
                &["model", "target"],
                &REQUEST_SECONDS,
                "Streams: from the whole request read to the first answer text or tool call written to the client.",
            )?,
            upstream_first_byte: new.histogram(
                "weir_upstream_time_to_first_byte_seconds",
                &["model", "target"],
                &REQUEST_SECONDS,
                "From the start of the attempt that answered (connecting included) to its first byte.",
            )?,
            upstream_first_token: new.histogram(
                "weir_upstream_time_to_first_token_seconds",
                &["model", "target"],
                &REQUEST_SECONDS,
                "Streams: from the start of the attempt that answered to the first output read from it.",
            )?,
            per_output_token: new.histogram(
                "weir_time_per_output_token_seconds",
                &["model", "target"],
                &TOKEN_SECONDS,
                "Streams: time from the first to the last output written, for each token after the first.",
            )?,
            overhead: new.histogram(
                "weir_gateway_overhead_seconds",
                &["endpoint"],
                &OVERHEAD_SECONDS,
                "The request's duration without waiting for upstream, client and ledger.",
            )?,
            attempts: new.counter(
                "weir_attempts_total",
                &["target", "result"],
                "Tries at targets by result: ok, or what failed.",
            )?,
            tokens: new.counter(
                "weir_tokens_total",
                &["model", "key", "kind"],
                "Tokens of ended requests. input and output are whole; the other kinds are parts of them.",
            )?,
            web_searches: new.counter("weir_web_searches_total", &["model", "key"], "Web searches by models.")?,
            requests_active: the_one(&new.gauge("weir_requests_active", &[], "Requests in flight.")?)?,
            streams_active: the_one(&new.gauge("weir_streams_active", &[], "Streams in flight.")?)?,
            keepalives: new.counter("weir_keepalives_total", &["model"], "Keepalives written to clients.")?,
            stalls: new.counter(
                "weir_stalls_total",
                &["model", "clock"],
                "Upstreams given up for their silence, by the clock that ran out.",
            )?,
            gate_overflow: new.counter(
                "weir_gate_overflow_total",
                &["model"],
                "Preludes that grew too large to hold, so that failover was given up.",
            )?,
            target_healthy: new.gauge(
                "weir_target_healthy",
                &["target"],
                "1 when the target gets requests, 0 while it cools down.",
            )?,
            limit_rejections: new.counter(
                "weir_limit_rejections_total",
                &["limit"],
                "Requests refused by a limit of their key or model: rpm, tpm, concurrent, budget; limit_store: nobody counts.",
            )?,
            limit_store_up: new.gauge(
                "weir_limit_store_up",
                &[],
                "1 when the shared store of limits answers; only where there is one.",
            )?,
            events_malformed: new.counter(
                "weir_events_malformed_total",
                &["target"],
                "Events passed on although their data was not the JSON it should be.",
            )?,
            usage_missing: new.counter(
                "weir_usage_missing_total",
                &["target"],
                "Complete answers whose usage the upstream did not fully report.",
            )?,
            usage_anomalies: new.counter(
                "weir_usage_anomalies_total",
                &["target"],
                "Reported token counts that were negative, absurd or no numbers, and taken as missing.",
            )?,
            reloads: new.counter("weir_config_reload_total", &["result"], "Reloads of the config: ok or refused.")?,
            reload_successful: new.gauge(
                "weir_config_reload_successful",
                &[],
                "1 when the last load of the config worked.",
            )?,
            reload_success_time: new.gauge(
                "weir_config_reload_success_timestamp_seconds",
                &[],
                "When the config was last loaded, in seconds since 1970.",
            )?,
            certificate_expiry: new.gauge(
                "weir_certificate_expiry_timestamp_seconds",
                &["certificate"],
                "When a certificate of the config ends, by its file, in seconds since 1970.",
            )?,
            otlp_dropped: new.counter(
                "weir_otlp_dropped_spans_total",
                &[],
                "Spans that the OTLP receiver has not got: it was away for too long, or refused them.",
            )?,
            ledger: LedgerMetrics::new(&mut new)?,
            registry: Registry::new(),
            entries: Vec::new(),
        };
        let build = new.gauge("weir_build_info", &["version"], "1, with the version of this process.")?;
        set(&build, &[env!("CARGO_PKG_VERSION")], 1);
        new.registry.register(Box::new(ProcessCollector::for_self()))?;
        metrics.loaded();
        Ok(Self { registry: new.registry, entries: new.entries, ..metrics })
    }

    /// Every metric of Weir's own, in the order of their declaration.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Tells which models and targets exist: only their names become labels, any other is `other`.
    /// Called at start and after each reload. New targets count as healthy, gone ones lose their gauge.
    pub fn configured(&self, config: &Config) {
        self.keys.bound(config.metrics.max_key_series);
        self.know(Names::of(config));
    }

    fn know(&self, names: Names) {
        let old = self.names.swap(Arc::new(names));
        let new = self.names.load();
        for gone in old.targets.difference(&new.targets) {
            let _was_never_set = self.target_healthy.remove_label_values(&[gone]);
        }
        for added in new.targets.difference(&old.targets) {
            set(&self.target_healthy, &[added], 1);
        }
    }

    /// Counts a request in flight for as long as the guard lives.
    #[must_use]
    pub fn request_started(&self) -> ActiveGuard {
        ActiveGuard::new(&self.requests_active)
    }

    /// Counts a stream in flight for as long as the guard lives.
    #[must_use]
    pub fn stream_started(&self) -> ActiveGuard {
        ActiveGuard::new(&self.streams_active)
    }

    /// Requests and streams in flight.
    #[must_use]
    pub fn active(&self) -> (i64, i64) {
        (self.requests_active.get(), self.streams_active.get())
    }

    /// Counts an ended request: called once per accepted request, however it ended (B307).
    pub fn finished(&self, record: &Record) {
        let names = self.names.load();
        let labels = Labels {
            endpoint: record.endpoint.map_or(NONE, Endpoint::word),
            model: names.model(record.model.as_deref()),
            target: names.target(record.target.as_deref()),
            key: self.keys.label(record.key.as_deref()),
        };
        add(&self.requests, &[labels.endpoint, labels.model, record.outcome.word(), labels.key], 1);
        for attempt in &record.attempts {
            add(&self.attempts, &[names.target(Some(&attempt.target)), attempt.result], 1);
        }
        add(&self.keepalives, &[labels.model], record.keepalives);
        self.count_stalls(record, &labels);
        self.count_tokens(record, &labels);
        if record.outcome != Outcome::Rejected {
            self.observe_times(record, &labels);
        }
    }

    /// Each attempt that was given up for silence, and a request that ran out of its whole time.
    fn count_stalls(&self, record: &Record, labels: &Labels<'_>) {
        let mut clocks = record.attempts.iter().filter_map(|attempt| clock(attempt.result)).collect::<Vec<_>>();
        if let Some(last) = record.cause.and_then(clock) {
            // The attempt that ended the request carries the same word already; `total` belongs to none.
            if !clocks.contains(&last) {
                clocks.push(last);
            }
        }
        for clock in clocks {
            add(&self.stalls, &[labels.model, clock], 1);
        }
    }

    fn count_tokens(&self, record: &Record, labels: &Labels<'_>) {
        let usage = &record.usage;
        let kinds = [
            ("input", usage.input),
            ("cache_read", usage.cache_read),
            ("cache_write_5m", usage.cache_write_5m),
            ("cache_write_1h", usage.cache_write_1h),
            ("output", usage.output),
            ("reasoning", usage.reasoning),
            ("audio_input", usage.audio_input),
            ("audio_output", usage.audio_output),
        ];
        for (kind, tokens) in kinds {
            add(&self.tokens, &[labels.model, labels.key, kind], tokens.unwrap_or(0));
        }
        add(&self.web_searches, &[labels.model, labels.key], usage.web_search.unwrap_or(0));
        let complete = matches!(record.outcome, Outcome::Completed | Outcome::Truncated);
        let generates = record.endpoint.is_some_and(Endpoint::streams);
        if complete && generates && record.source != Source::Reported {
            add(&self.usage_missing, &[labels.target], 1);
        }
    }

    fn observe_times(&self, record: &Record, labels: &Labels<'_>) {
        observe(&self.overhead, &[labels.endpoint], Some(record.overhead()));
        if record.model.is_none() {
            return;
        }
        let stream = if record.stream { "true" } else { "false" };
        observe(&self.duration, &[labels.endpoint, labels.model, stream], Some(record.duration));
        if record.target.is_none() {
            return;
        }
        let place = &[labels.model, labels.target];
        let began = record.attempts.last().map_or(Duration::ZERO, |attempt| attempt.began);
        let since_attempt = |at: Duration| at.saturating_sub(began);
        observe(&self.upstream_first_byte, place, record.upstream_first_byte.map(since_attempt));
        if record.stream {
            observe(&self.upstream_first_token, place, record.upstream_first_output.map(since_attempt));
            observe(&self.first_token, place, record.time_to_first_token());
            observe(&self.first_visible_token, place, record.time_to_first_visible_token());
            observe(&self.per_output_token, place, record.time_per_output_token());
        }
    }

    /// Counts a gate that was opened because its prelude grew too large (A3).
    pub fn gate_overflowed(&self, model: &str) {
        add(&self.gate_overflow, &[self.names.load().model(Some(model))], 1);
    }

    /// Says whether a target is out of cool-down (A8); `target` as in [`crate::config::Target::word`].
    pub fn target_healthy(&self, target: &str, healthy: bool) {
        if self.names.load().targets.contains(target) {
            set(&self.target_healthy, &[target], i64::from(healthy));
        }
    }

    /// Counts a request refused by a limit (G3); `limit` is a word of [`crate::refusal::Limited`].
    pub fn limit_rejected(&self, limit: &'static str) {
        add(&self.limit_rejections, &[limit], 1);
    }

    /// Says whether the shared store of limits answers (G4).
    pub fn limit_store(&self, is_up: bool) {
        set(&self.limit_store_up, &[], i64::from(is_up));
    }

    /// Counts an event whose data was no JSON although its protocol says so (B130).
    pub fn event_malformed(&self, target: &str) {
        add(&self.events_malformed, &[self.names.load().target(Some(target))], 1);
    }

    /// Counts a usage number that was absurd, negative or broken (U3).
    pub fn usage_anomaly(&self, target: &str) {
        add(&self.usage_anomalies, &[self.names.load().target(Some(target))], 1);
    }

    /// Counts a reload of the config (C2).
    pub fn config_reloaded(&self, ok: bool) {
        add(&self.reloads, &[if ok { "ok" } else { "refused" }], 1);
        if ok {
            self.loaded();
        } else {
            set(&self.reload_successful, &[], 0);
        }
    }

    /// Tells when each certificate of the config ends, by its file; others lose their series.
    pub fn certificates(&self, ends: &[(String, i64)]) {
        self.certificate_expiry.reset();
        for (file, at) in ends {
            set(&self.certificate_expiry, &[file], *at);
        }
    }

    /// Counts spans that were given up; 0 makes the series appear.
    pub fn otlp_dropped(&self, spans: u64) {
        if let Ok(counter) = self.otlp_dropped.get_metric_with_label_values::<&str>(&[]) {
            counter.inc_by(spans);
        }
    }

    fn loaded(&self) {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        set(&self.reload_successful, &[], 1);
        set(&self.reload_success_time, &[], i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    }

    /// All metrics in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> Vec<u8> {
        // Fails only for a family without series, which `gather` leaves out.
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default().into_bytes()
    }
}

/// What one record is counted under.
struct Labels<'a> {
    endpoint: &'a str,
    model: &'a str,
    target: &'a str,
    key: &'a str,
}

/// The clock of S1 whose running out a failure's word tells, if it tells one.
fn clock(word: &str) -> Option<&'static str> {
    Some(match word {
        "connect_timeout" => "connect",
        "send_timeout" => "send",
        "first_byte" => "first_byte",
        "idle" => "idle",
        "first_content" => "first_content",
        "no_output" => "no_output",
        "total" => "total",
        "non_stream" => "non_stream",
        _ => return None,
    })
}

// The number of labels always fits: a wrong one would show in the tests as a missing series.

fn add(counter: &IntCounterVec, labels: &[&str], by: u64) {
    if by > 0
        && let Ok(counter) = counter.get_metric_with_label_values(labels)
    {
        counter.inc_by(by);
    }
}

/// The series of a gauge without labels; it begins at 0.
fn the_one(gauge: &IntGaugeVec) -> Result<IntGauge, prometheus::Error> {
    gauge.get_metric_with_label_values::<&str>(&[])
}

fn set(gauge: &IntGaugeVec, labels: &[&str], value: i64) {
    if let Ok(gauge) = gauge.get_metric_with_label_values(labels) {
        gauge.set(value);
    }
}

fn observe(histogram: &HistogramVec, labels: &[&str], time: Option<Duration>) {
    if let Some(time) = time
        && let Ok(histogram) = histogram.get_metric_with_label_values(labels)
    {
        histogram.observe(time.as_secs_f64());
    }
}

/// One request or stream in flight; its end, however it comes, is counted by `Drop` (B235).
#[derive(Debug)]
pub struct ActiveGuard(IntGauge);

impl ActiveGuard {
    fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
