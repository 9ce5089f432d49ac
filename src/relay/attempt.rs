//! One attempt's answer: what its bytes come to, event by event.
//!
//! Called by the relay for each chunk and at the end of input. Touches only its own fields; a new
//! attempt starts with a scanner, a meter, a gate and figures of its own, so that a failed one
//! leaves nothing behind (A3).

use super::clock::{LF_GRACE, Progress, Since, TERMINAL_GRACE};
use super::gate::Gate;
use super::keepalive::Forwarded;
use super::kept::{Kept, joined};
use super::{Action, Ask, Plan, Seen};
use crate::ledger::estimate::Delivered;
use crate::meter::{Facts, Meter};
use crate::normalize::{Change, Normalizer};
use crate::outcome::Failure;
use crate::refusal::Ending;
use crate::sse::{Block, Scanner, Span};
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Some servers send it first. It means something only in front of everything else.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// One attempt whose head was an event stream's.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) meter: Meter,
    pub(super) seen: Seen,
    /// A sample of the output, for the estimate if no usage comes (U4).
    pub(super) delivered: Delivered,
    pub(super) forwarded: Forwarded,
    /// Gives the events another shape, where the provider's settings ask for it (N1 to N5).
    pub(super) normalizer: Option<Box<Normalizer>>,
    plan: Arc<Plan>,
    stream: bool,
    strip_usage: bool,
    scanner: Scanner,
    gate: Gate,
    since: Since,
    /// The last event was dropped, so a late LF of its line end goes too.
    dropped: bool,
    /// Nothing of it was written yet.
    unsent: bool,
    farewell: Option<Farewell>,
}

/// The terminal event ended in a CR: its LF may follow, and then `last` (E1).
#[derive(Debug)]
struct Farewell {
    since: Instant,
    last: Action,
}

/// What some bytes of the upstream come to.
#[derive(Debug)]
pub(super) struct Reading {
    /// For the client.
    pub(super) write: Bytes,
    pub(super) verdict: Verdict,
    /// It was the terminal event, and ended in a CR.
    pub(super) lf_may_follow: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It goes on.
    Pass,
    /// Over before any content.
    Failed(Failure),
    /// The upstream's terminal event.
    Terminal,
    /// The upstream's native error after content. `Some`: Weir says it too, because SDKs overlook the
    /// upstream's form (F4), or instead (N5).
    Error(Option<Ending>),
    /// Nothing more comes, and no terminal event came.
    Over(Failure),
}

/// A deadline of the upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// The LF after the final CR.
    LastLf,
    /// The terminal event after the finish.
    Terminal,
    /// A stall clock.
    Stall(Failure),
}

impl Attempt {
    pub(super) fn new(plan: &Arc<Plan>, ask: &Ask, now: Instant) -> Self {
        Self {
            meter: Meter::new(plan.protocol, ask.choices),
            seen: Seen::default(),
            delivered: Delivered::new(plan.protocol),
            forwarded: Forwarded::default(),
            normalizer: None,
            plan: Arc::clone(plan),
            stream: ask.stream,
            strip_usage: ask.strip_usage,
            scanner: Scanner::new(plan.max_event_bytes),
            gate: Gate::new(),
            since: Since::new(now),
            dropped: false,
            unsent: true,
            farewell: None,
        }
    }

    /// Content has gone out, or goes out with the write at hand (A4).
    pub(super) const fn is_committed(&self) -> bool {
        self.gate.is_open()
    }

    /// The client has the whole answer; only the terminal event may be missing (E1).
    pub(super) fn is_finished(&self) -> bool {
        self.is_committed() && self.meter.all_finished()
    }

    /// The prelude was too long to hold (A3).
    pub(super) const fn gate_overflowed(&self) -> bool {
        self.gate.overflowed()
    }

    /// Half an event and the prelude, in bytes.
    pub(super) fn held(&self) -> usize {
        self.scanner.held() + self.gate.held()
    }

    /// N1: the client's name of the model stands in the events.
    pub(super) fn rewrites_model(&self) -> bool {
        self.normalizer.as_ref().is_some_and(|normalizer| normalizer.rewrites_model())
    }

    /// The number after the last one that the client has seen; 0 if it has seen none (E2).
    pub(super) fn next_sequence(&self) -> u64 {
        let counted = self.normalizer.as_ref().and_then(|normalizer| normalizer.next_sequence());
        counted.unwrap_or_else(|| self.meter.last_sequence().map_or(0, |last| last.saturating_add(1)))
    }

    /// Whether what the client has of it ends with an event, for sure (K2, K4).
    pub(super) fn is_between_events(&self) -> bool {
        let lf_may_follow = self.scanner.after_cr() && !self.dropped;
        !lf_may_follow && self.farewell.is_none()
    }

    /// What runs out next, and when (S1, E1).
    pub(super) fn deadline(&self) -> (Instant, Expiry) {
        if let Some(farewell) = &self.farewell {
            return (farewell.since + LF_GRACE, Expiry::LastLf);
        }
        if self.is_finished() {
            return (self.since.data + TERMINAL_GRACE, Expiry::Terminal);
        }
        let progress = match (self.stream, self.is_committed()) {
            (false, _) => Progress::None,
            (true, false) => Progress::FirstContent,
            (true, true) => Progress::Output,
        };
        let (at, failure) = self.since.stall(&self.plan.timeouts, progress);
        (at, Expiry::Stall(failure))
    }

    /// A write ended at `now`; `spent` went by in it (S2).
    pub(super) fn wrote(&mut self, now: Instant, spent: Duration) {
        self.since.forgive(spent);
        if let Some(farewell) = &mut self.farewell {
            farewell.since += spent;
        }
        self.seen.written(now);
    }

    /// Everything is said but for an LF: `last` comes after it.
    pub(super) fn await_lf(&mut self, now: Instant, last: Action) {
        self.farewell = Some(Farewell { since: now, last });
    }

    /// Whether only the LF after the final CR is waited for.
    pub(super) const fn awaits_lf(&self) -> bool {
        self.farewell.is_some()
    }

    /// The wait for the LF is over.
    pub(super) fn take_last(&mut self) -> Option<Action> {
        self.farewell.take().map(|farewell| farewell.last)
    }

    /// The first write of an attempt has its byte-order mark only if nothing went out before: behind
    /// a keepalive it would be taken for a part of the first field's name.
    pub(super) fn first_write(&mut self, write: Bytes, client_opened: bool) -> Bytes {
        if write.is_empty() || !std::mem::take(&mut self.unsent) || !client_opened {
            return write;
        }
        if write.starts_with(BYTE_ORDER_MARK) { write.slice(BYTE_ORDER_MARK.len()..) } else { write }
    }

    /// Bytes of its body, not empty.
    pub(super) fn chunk(&mut self, now: Instant, chunk: Bytes) -> Reading {
        self.since.byte = now;
        match self.scanner.push(chunk) {
            Ok(block) => self.block(now, block),
            Err(too_large) => self.block(now, too_large.before).and_over(Failure::TooLarge),
        }
    }

    /// The clean end of its body: a last event without its blank line counts if its JSON is whole (E1).
    pub(super) fn end(&mut self, now: Instant) -> Reading {
        let tail = self.scanner.finish();
        let Some(span) = tail.span.filter(|span| is_whole(&tail.bytes, span)) else {
            return Reading::of(Bytes::new(), Verdict::Over(Failure::Empty));
        };
        let bytes = joined(tail.bytes, Bytes::from_static(tail.completion));
        let span = Span { end: bytes.len(), ..span };
        let mut kept = Kept::new(bytes);
        let verdict = self.event(now, &span, &mut kept);
        Reading::of(self.gate.pass(kept.into_bytes()), verdict).and_over(Failure::Empty)
    }

    fn block(&mut self, now: Instant, block: Block) -> Reading {
        let mut kept = Kept::new(block.bytes);
        if !self.dropped {
            kept.keep(0, block.lead);
            self.bound(now, &kept);
        }
        let mut verdict = Verdict::Pass;
        let mut next = 0;
        while verdict == Verdict::Pass
            && let Some(span) = self.scanner.spans().get(next).cloned()
        {
            verdict = self.event(now, &span, &mut kept);
            next += 1;
        }
        let all_read = next == self.scanner.spans().len();
        let lf_may_follow = all_read && self.scanner.after_cr() && !self.dropped;
        Reading { write: self.gate.pass(kept.into_bytes()), verdict, lf_may_follow }
    }

    fn event(&mut self, now: Instant, span: &Span, kept: &mut Kept) -> Verdict {
        let facts = self.meter.event(kept.block(), span);
        if span.has_data() {
            self.since.data = now;
        }
        let change = self.change(facts, span, kept);
        self.dropped = matches!(change, Change::Drop | Change::Fail(_));
        let told = match change {
            Change::Drop => return Verdict::Pass,
            Change::Fail(ending) => Some(ending),
            Change::Keep => {
                kept.keep(span.start, span.end);
                None
            }
            Change::Replace(event) => {
                kept.replace(span.end, event);
                None
            }
        };
        let verdict = self.judge(now, facts, span, told);
        if let Verdict::Failed(_) = verdict {
            return verdict;
        }
        if facts.output {
            self.since.output = now;
            self.seen.read(now, facts);
            let word = self.meter.word();
            self.delivered.event(span.payload(kept.block(), &mut Vec::new()), word.as_ref());
        }
        self.forwarded.id_or_retry |= span.id_or_retry;
        self.forwarded.message_start |= facts.start;
        self.bound(now, kept);
        verdict
    }

    /// What the client gets of an event (U1, N1 to N5).
    fn change(&mut self, facts: Facts, span: &Span, kept: &Kept) -> Change {
        match &mut self.normalizer {
            _ if facts.usage_only && self.strip_usage => Change::Drop,
            Some(normalizer) => normalizer.event(kept.block(), span, facts, self.meter.error()),
            None => Change::Keep,
        }
    }

    fn judge(&mut self, now: Instant, facts: Facts, span: &Span, told: Option<Ending>) -> Verdict {
        if facts.error && !self.is_committed() {
            return Verdict::Failed(self.error_failure());
        }
        if facts.error {
            return Verdict::Error(told.or_else(|| (!span.error.is_empty()).then(|| self.error_ending())));
        }
        let nothing = !self.is_committed() && !self.meter.saw_output();
        if facts.finish && nothing && self.plan.failover_on_empty {
            return if self.meter.all_finished() { Verdict::Failed(Failure::Empty) } else { Verdict::Pass };
        }
        if !self.is_committed() && (facts.output || facts.finish) {
            self.gate.open();
            self.since.output = now;
        }
        match (facts.terminal, self.is_committed()) {
            (false, _) => Verdict::Pass,
            (true, true) => Verdict::Terminal,
            (true, false) => Verdict::Failed(Failure::Empty),
        }
    }

    /// A3, event by event, so that it does not matter where the reads are cut.
    fn bound(&mut self, now: Instant, kept: &Kept) {
        if self.gate.overflows(kept.size()) {
            self.since.output = now;
        }
    }

    /// E3's word for the upstream's error.
    fn error_ending(&self) -> Ending {
        match self.meter.error().map_or(0, |error| error.status) {
            429 => Ending::RateLimited,
            503 | 529 => Ending::Overloaded,
            _ => Ending::Interrupted,
        }
    }

    fn error_failure(&self) -> Failure {
        match self.meter.error() {
            Some(error) if error.clients_fault => Failure::ClientErrorEvent(error.status),
            Some(error) => Failure::ErrorEvent(error.status),
            None => Failure::ErrorEvent(500),
        }
    }
}

impl Reading {
    const fn of(write: Bytes, verdict: Verdict) -> Self {
        Self { write, verdict, lf_may_follow: false }
    }

    /// No more bytes follow: no LF either, and what would go on is over.
    fn and_over(self, failure: Failure) -> Self {
        let verdict = if self.verdict == Verdict::Pass { Verdict::Over(failure) } else { self.verdict };
        Self::of(self.write, verdict)
    }
}

/// Whether the JSON of an event is whole.
fn is_whole(bytes: &[u8], span: &Span) -> bool {
    let is_json = |text: &[u8]| serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok();
    if !span.error.is_empty() {
        return is_json(bytes.get(span.error.clone()).unwrap_or_default());
    }
    let mut scratch = Vec::new();
    let payload = span.payload(bytes, &mut scratch).trim_ascii();
    payload == b"[DONE]" || is_json(payload)
}
