//! Decides what a live stream does next: hold, forward, keep alive, fail or end.
//!
//! Called by the pump, once per attempt, head, chunk, end of input, timer and write. Touches only
//! its own fields: no socket, no clock, no metric. One relay lives as long as its request; each
//! attempt gets a scanner, a meter and a gate of its own.
//!
//! In words: whole events are held until the first content (A3), then pass unchanged (F1); a
//! keepalive goes out between two events when the client has heard nothing for an interval (K1);
//! whatever ends the stream early is said in the client's own protocol (E2, E3).

pub mod clock;
pub mod gate;
pub mod keepalive;

use crate::config::{Timeouts, When};
use crate::meter::{Facts, Finish, Meter};
use crate::normalize::{Change, Normalizer};
use crate::outcome::{Failure, Outcome};
use crate::protocol::Protocol;
use crate::refusal::{Ending, ResponseSeen, ending_event};
use crate::sse::{Block, Scanner, Span};
use bytes::{Bytes, BytesMut};
use clock::{LF_GRACE, Since, TERMINAL_GRACE};
use gate::{Gate, MAX_PRELUDE_BYTES};
use keepalive::{Between, Forwarded, Frames};
use std::sync::Arc;
use std::time::Instant;

/// A chat stream's terminal event, as Weir writes it where the upstream did not (E1, E4).
const DONE: &[u8] = b"data: [DONE]\n\n";
/// A messages stream's terminal event, likewise.
const MESSAGE_STOP: &[u8] = b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

/// What a model's streams have in common; made once per model and protocol.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Whose events these are.
    pub protocol: Protocol,
    /// K1 to K3.
    pub keepalive: Frames,
    /// S1.
    pub timeouts: Timeouts,
    /// F2, in bytes.
    pub max_event_bytes: usize,
    /// A2.
    pub failover_on_empty: bool,
    /// E2.
    pub chat_error_done: bool,
}

/// What of one request matters to its stream.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Weir's id of the request (F10).
    pub request_id: String,
    /// The model's name as the client sent it.
    pub model: String,
    /// When it was received, in seconds since 1970.
    pub created_at: u64,
    /// `stream: true`: keepalives are wanted.
    pub stream: bool,
    /// The request's `n` (chat).
    pub choices: Option<u32>,
    /// The client did not ask for the usage chunk (U1).
    pub strip_usage: bool,
}

/// Something happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// The head of an event stream has arrived; a new attempt begins to answer.
    Head,
    /// Bytes of its body.
    Chunk(Bytes),
    /// Its body is complete.
    End,
    /// Its body broke off.
    Broken,
    /// Time has passed.
    Tick,
    /// Shutting down: end now.
    Drain,
    /// No attempt is left, but the client has a stream open already (A7 after K3).
    GiveUp(Ending, Outcome, &'static str),
}

/// What the pump does now: first write, then `next`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// For the client; empty: nothing. The response's head goes out before the first of it.
    pub write: Bytes,
    /// And then.
    pub next: Next,
}

/// How it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Wait for more input.
    Wait,
    /// The attempt is over, nothing of it reached the client (A2).
    Failed(Failure),
    /// The response is over; the second word is its cause.
    Done(Outcome, &'static str),
}

/// One request's stream.
#[derive(Debug)]
pub struct Relay {
    plan: Arc<Plan>,
    ask: Ask,
    received: Instant,
    client: Client,
    attempt: Option<Attempt>,
    /// What the last failed attempt said.
    failed: Option<Meter>,
    seen: Seen,
    /// Preludes that were longer than the gate (A3).
    gate_overflows: u32,
    keepalives: u64,
}

/// What the client has got.
#[derive(Debug)]
struct Client {
    /// The response's head is out.
    opened: bool,
    /// Something was written, or (before that) the request was received.
    last_write: Instant,
    /// The last keepalive of `when: always`.
    last_beat: Instant,
    /// Nothing more may be written.
    ended: bool,
}

/// When output passed, for the latency figures (M1).
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// First output read from the upstream.
    pub first_output_read: Option<Instant>,
    /// First output written to the client.
    pub first_output: Option<Instant>,
    /// First answer text, refusal or tool call written.
    pub first_visible: Option<Instant>,
    /// Last output written.
    pub last_output: Option<Instant>,
    /// Output events written.
    pub output_events: u64,
    pending_output: u64,
    pending_visible: bool,
}

#[derive(Debug)]
struct Attempt {
    scanner: Scanner,
    meter: Meter,
    gate: Gate,
    since: Since,
    forwarded: Forwarded,
    /// Gives the events another shape, where the provider's settings ask for it (N1 to N5).
    normalizer: Option<Box<Normalizer>>,
    /// How the upstream's error is told instead (N5).
    native: Option<Ending>,
    /// The last event was dropped, so a late LF of its line end goes too.
    dropped: bool,
    /// The terminal event ended in a CR: its LF may follow (E1).
    awaiting_lf: Option<(Instant, Outcome, &'static str)>,
}

/// What became of one block of events.
enum Verdict {
    Pass,
    Failed(Failure),
    Terminal(Outcome, &'static str),
    /// A native error of the upstream; `seen_by_client`: SDKs understand its form.
    Error {
        seen_by_client: bool,
        done_follows: bool,
    },
}

impl Relay {
    /// A request was received at `received` and will be answered by a stream.
    #[must_use]
    pub fn new(plan: Arc<Plan>, ask: Ask, received: Instant) -> Self {
        let client = Client { opened: false, last_write: received, last_beat: received, ended: false };
        Self {
            plan,
            ask,
            received,
            client,
            attempt: None,
            failed: None,
            seen: Seen::default(),
            gate_overflows: 0,
            keepalives: 0,
        }
    }

    /// The one entrance: something happened at `now`.
    pub fn on(&mut self, now: Instant, input: Input) -> Action {
        debug_assert!(!self.client.ended, "a stream that has ended gets no input: the pump returns on Done");
        let action = match input {
            Input::Head => {
                self.attempt = Some(Attempt::new(&self.plan, &self.ask, now));
                Action::wait()
            }
            Input::Chunk(chunk) => self.chunk(now, chunk),
            Input::End => self.end(now),
            Input::Broken => self.broken(),
            Input::Tick => self.tick(now),
            Input::Drain if !self.client.opened => Action::failed(Failure::Draining),
            Input::Drain => self.ending(&Ending::Draining, Outcome::Drained, "draining"),
            Input::GiveUp(ending, outcome, cause) => self.ending(&ending, outcome, cause),
        };
        self.settle(now, action)
    }

    /// Right after [`Input::Head`]: what gives the attempt's events the shape that the operator wants (N1 to N5).
    pub fn normalize(&mut self, normalizer: Option<Normalizer>) {
        if let Some(attempt) = &mut self.attempt {
            attempt.normalizer = normalizer.map(Box::new);
        }
    }

    /// When the pump has to call with [`Input::Tick`]: always after the `now` of the last call.
    #[must_use]
    pub fn next_wake(&self) -> Instant {
        let mut wake = self.received + self.plan.timeouts.total;
        if let Some(due) = self.keepalive_due() {
            wake = wake.min(due);
        }
        if let Some(attempt) = &self.attempt {
            wake = wake.min(attempt.deadline(&self.plan.timeouts).0);
        }
        wake
    }

    /// The last write began at `from` and ended at `to`: the time between was spent on the client,
    /// which is nobody's stall (S2).
    pub fn wrote(&mut self, from: Instant, to: Instant) {
        self.client.last_write = to;
        if let Some(attempt) = &mut self.attempt {
            attempt.since.forgive(to.saturating_duration_since(from));
        }
        let seen = &mut self.seen;
        if seen.pending_output > 0 {
            seen.output_events += seen.pending_output;
            seen.pending_output = 0;
            seen.first_output.get_or_insert(to);
            seen.last_output = Some(to);
        }
        if seen.pending_visible {
            seen.pending_visible = false;
            seen.first_visible.get_or_insert(to);
        }
    }

    /// The meter of the attempt that answers or answered last.
    #[must_use]
    pub fn meter(&self) -> Option<&Meter> {
        self.attempt.as_ref().map(|attempt| &attempt.meter).or(self.failed.as_ref())
    }

    /// Whether content has gone out: no other target may be tried (A4).
    #[must_use]
    pub fn is_committed(&self) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.gate.is_open())
    }

    /// When output passed.
    #[must_use]
    pub const fn seen(&self) -> &Seen {
        &self.seen
    }

    /// Keepalives written.
    #[must_use]
    pub const fn keepalives(&self) -> u64 {
        self.keepalives
    }

    /// Preludes that were too long to hold (A3).
    #[must_use]
    pub const fn gate_overflows(&self) -> u32 {
        self.gate_overflows
    }

    /// Bytes held: half an event and the prelude (F2).
    #[must_use]
    pub fn held(&self) -> usize {
        self.attempt.as_ref().map_or(0, |attempt| attempt.scanner.held() + attempt.gate.held())
    }

    fn settle(&mut self, now: Instant, action: Action) -> Action {
        if !action.write.is_empty() {
            self.client.opened = true;
            self.client.last_write = now;
        }
        match action.next {
            Next::Wait => {}
            Next::Failed(_) => self.failed = self.attempt.take().map(|attempt| attempt.meter),
            Next::Done(..) => self.client.ended = true,
        }
        action
    }

    fn chunk(&mut self, now: Instant, chunk: Bytes) -> Action {
        let Some(attempt) = &mut self.attempt else { return Action::wait() };
        attempt.since.byte = now;
        if let Some((_, outcome, cause)) = attempt.awaiting_lf {
            let lf = if chunk.first() == Some(&b'\n') { chunk.slice(..1) } else { Bytes::new() };
            return Action { write: lf, next: Next::Done(outcome, cause) };
        }
        match attempt.scanner.push(chunk) {
            Ok(block) => self.block(now, block),
            Err(too_large) => {
                let before = self.block(now, too_large.before);
                match before.next {
                    Next::Wait => before.followed_by(self.over(Failure::TooLarge)),
                    Next::Failed(_) | Next::Done(..) => before,
                }
            }
        }
    }

    fn block(&mut self, now: Instant, block: Block) -> Action {
        let Some(attempt) = &mut self.attempt else { return Action::wait() };
        if block.bytes.is_empty() {
            return Action::wait();
        }
        let mut kept = Kept::new(block.bytes);
        if !attempt.dropped {
            kept.keep(0, block.lead);
        }
        let (verdict, output) = attempt.read(now, &mut kept, &self.plan, &self.ask, &mut self.seen);
        self.conclude(now, kept, verdict, output)
    }

    /// What a block means for the client, once its events are read.
    fn conclude(&mut self, now: Instant, kept: Kept, verdict: Verdict, content: bool) -> Action {
        let Some(attempt) = &mut self.attempt else { return Action::wait() };
        let bytes = kept.into_bytes();
        if content && !attempt.gate.is_open() {
            attempt.since.output = now;
            let write = attempt.gate.open(bytes);
            return self.pass(now, write, verdict);
        }
        let write = attempt.gate.pass(bytes);
        if attempt.gate.held() > MAX_PRELUDE_BYTES {
            self.gate_overflows += 1;
            attempt.since.output = now;
            let write = attempt.gate.open(write);
            return self.pass(now, write, verdict);
        }
        self.pass(now, write, verdict)
    }

    fn pass(&mut self, now: Instant, write: Bytes, verdict: Verdict) -> Action {
        let Some(attempt) = &mut self.attempt else { return Action::wait() };
        match verdict {
            Verdict::Pass => Action { write, next: Next::Wait },
            Verdict::Failed(failure) => Action::failed(failure),
            Verdict::Terminal(outcome, cause) => {
                if attempt.scanner.after_cr() {
                    attempt.awaiting_lf = Some((now, outcome, cause));
                    return Action { write, next: Next::Wait };
                }
                Action { write, next: Next::Done(outcome, cause) }
            }
            Verdict::Error { seen_by_client, done_follows } => {
                let clients_fault = attempt.meter.error().is_some_and(|error| error.clients_fault);
                let outcome = if clients_fault { Outcome::ClientError } else { Outcome::UpstreamError };
                let more = match self.plan.protocol {
                    _ if !seen_by_client => {
                        let ending = attempt.native.take().unwrap_or(Ending::Interrupted);
                        self.native(&ending)
                    }
                    Protocol::Chat if self.plan.chat_error_done && !done_follows => Bytes::from_static(DONE),
                    Protocol::Chat | Protocol::Responses | Protocol::Messages => Bytes::new(),
                };
                Action { write: joined(write, &more), next: Next::Done(outcome, "error_event") }
            }
        }
    }

    fn end(&mut self, now: Instant) -> Action {
        let Some(attempt) = &mut self.attempt else { return Action::wait() };
        if let Some((_, outcome, cause)) = attempt.awaiting_lf {
            return Action::done(outcome, cause);
        }
        let tail = attempt.scanner.finish();
        let mut before = Action::wait();
        if let Some(span) = tail.span.filter(|span| is_whole(&tail.bytes, span)) {
            let bytes = joined(tail.bytes, &Bytes::from_static(tail.completion));
            let mut kept = Kept::new(bytes);
            let end = kept.bytes.len();
            let span = Span { end, ..span };
            let mut content = false;
            let verdict = attempt.event(now, &span, &mut kept, &self.plan, &self.ask, &mut self.seen, &mut content);
            let action = self.conclude(now, kept, verdict, content);
            match action.next {
                Next::Wait => before = action,
                Next::Failed(_) | Next::Done(..) => return action,
            }
        }
        before.followed_by(self.over(Failure::Empty))
    }

    fn broken(&mut self) -> Action {
        match &self.attempt {
            None => Action::failed(Failure::Head),
            Some(Attempt { awaiting_lf: Some((_, outcome, cause)), .. }) => Action::done(*outcome, cause),
            Some(_) => self.over(Failure::Broken),
        }
    }

    /// The upstream brings no more and has sent no terminal event (E1, E2).
    fn over(&mut self, uncommitted: Failure) -> Action {
        let Some(attempt) = &self.attempt else { return Action::wait() };
        if !attempt.gate.is_open() {
            return Action::failed(uncommitted);
        }
        if attempt.meter.all_finished() {
            return self.completed();
        }
        let cause = if uncommitted == Failure::TooLarge { uncommitted } else { Failure::Broken };
        self.ending(&Ending::Interrupted, Outcome::UpstreamInterrupted, cause.word())
    }

    /// Everything has finished, only the terminal event is missing: Weir writes it (E1).
    fn completed(&mut self) -> Action {
        let normalizer = self.attempt.as_mut().and_then(|attempt| attempt.normalizer.as_mut());
        let owed = normalizer.and_then(|normalizer| normalizer.before_terminal()).unwrap_or_default();
        let write = match self.plan.protocol {
            Protocol::Chat => Bytes::from_static(DONE),
            Protocol::Messages => Bytes::from_static(MESSAGE_STOP),
            Protocol::Responses => Bytes::new(),
        };
        let (outcome, _) = self.attempt.as_ref().map_or((Outcome::Completed, ""), |attempt| finished(&attempt.meter));
        Action { write: joined(owed, &write), next: Next::Done(outcome, "terminal_added") }
    }

    fn tick(&mut self, now: Instant) -> Action {
        if now >= self.received + self.plan.timeouts.total {
            if !self.client.opened {
                return Action::failed(Failure::Total);
            }
            return self.ending(&Ending::Timeout, Outcome::Timeout, Failure::Total.word());
        }
        if let Some(attempt) = &self.attempt {
            let (deadline, expiry) = attempt.deadline(&self.plan.timeouts);
            if now >= deadline {
                return self.expire(expiry);
            }
        }
        match self.keepalive_due() {
            Some(due) if now >= due => self.keepalive(now),
            Some(_) | None => Action::wait(),
        }
    }

    fn expire(&mut self, expiry: Expiry) -> Action {
        match expiry {
            Expiry::Lf(outcome, cause) => Action::done(outcome, cause),
            Expiry::Terminal => self.completed(),
            Expiry::Stall(failure) if !self.is_committed() => Action::failed(failure),
            Expiry::Stall(failure) => self.ending(&Ending::Stalled, Outcome::Stalled, failure.word()),
        }
    }

    fn keepalive(&mut self, now: Instant) -> Action {
        let Some(between) = self.between() else { return Action::wait() };
        let write = self.plan.keepalive.frame(&between, self.plan.protocol);
        self.client.last_beat = now;
        self.keepalives += 1;
        Action { write, next: Next::Wait }
    }

    /// When the next keepalive may go out, if any may (K1, K3, K4).
    fn keepalive_due(&self) -> Option<Instant> {
        self.between()?;
        let plan = &self.plan.keepalive;
        if !self.client.opened {
            return plan.before_headers.map(|wait| self.client.last_write + wait);
        }
        Some(match plan.when {
            When::Silence => self.client.last_write + plan.interval,
            When::Always => self.client.last_beat + plan.interval,
        })
    }

    /// The proof that the client sits between two events.
    fn between(&self) -> Option<Between<'_>> {
        const NOTHING: &Forwarded = &Forwarded { id_or_retry: false, message_start: false };
        if self.client.ended || !self.ask.stream {
            return None;
        }
        match &self.attempt {
            Some(attempt) if attempt.gate.is_open() => {
                let cut_in_line_end = attempt.scanner.after_cr() || attempt.awaiting_lf.is_some();
                (!cut_in_line_end).then_some(Between { forwarded: &attempt.forwarded })
            }
            Some(_) | None => Some(Between { forwarded: NOTHING }),
        }
    }

    /// Ends with an error event, unless the client has everything already.
    fn ending(&mut self, ending: &Ending, outcome: Outcome, cause: &'static str) -> Action {
        match &self.attempt {
            Some(Attempt { awaiting_lf: Some((_, outcome, cause)), .. }) => Action::done(*outcome, cause),
            Some(attempt) if attempt.gate.is_open() && attempt.meter.all_finished() => self.completed(),
            Some(_) | None => Action { write: self.native(ending), next: Next::Done(outcome, cause) },
        }
    }

    /// A native error event that fits what the client has seen (E2, E3, K3).
    fn native(&self, ending: &Ending) -> Bytes {
        let own_id = format!("resp_{}", self.ask.request_id);
        let committed = self.attempt.as_ref().filter(|attempt| attempt.gate.is_open());
        let seen = match committed {
            Some(attempt) => ResponseSeen {
                id: attempt.meter.answer_id().unwrap_or(&own_id),
                model: attempt.meter.model().filter(|_| !attempt.rewrites_model()).or(Some(&self.ask.model)),
                created_at: attempt.meter.created().or(Some(self.ask.created_at)),
                next_sequence: attempt.next_sequence(),
            },
            None => ResponseSeen {
                id: &own_id,
                model: Some(&self.ask.model),
                created_at: Some(self.ask.created_at),
                next_sequence: 0,
            },
        };
        ending_event(self.plan.protocol, ending, &seen, self.plan.chat_error_done)
    }
}

/// A deadline of the upstream's.
#[derive(Clone, Copy, Debug)]
enum Expiry {
    /// The LF after the final CR.
    Lf(Outcome, &'static str),
    /// The terminal event after the finish.
    Terminal,
    /// A stall clock.
    Stall(Failure),
}

impl Attempt {
    fn new(plan: &Plan, ask: &Ask, now: Instant) -> Self {
        Self {
            scanner: Scanner::new(plan.max_event_bytes),
            meter: Meter::new(plan.protocol, ask.choices),
            gate: Gate::new(),
            since: Since::new(now),
            forwarded: Forwarded::default(),
            normalizer: None,
            native: None,
            dropped: false,
            awaiting_lf: None,
        }
    }

    fn deadline(&self, timeouts: &Timeouts) -> (Instant, Expiry) {
        if let Some((since, outcome, cause)) = self.awaiting_lf {
            return (since + LF_GRACE, Expiry::Lf(outcome, cause));
        }
        if self.gate.is_open() && self.meter.all_finished() {
            return (self.since.data + TERMINAL_GRACE, Expiry::Terminal);
        }
        let (at, failure) = self.since.stall(timeouts, self.gate.is_open());
        (at, Expiry::Stall(failure))
    }

    /// Reads the events of the scanner's last block. Answers what it comes to, and whether content was among them.
    fn read(&mut self, now: Instant, kept: &mut Kept, plan: &Plan, ask: &Ask, seen: &mut Seen) -> (Verdict, bool) {
        let mut content = self.gate.is_open();
        let mut verdict = Verdict::Pass;
        let mut next = 0;
        while let Some(span) = self.scanner.spans().get(next).cloned() {
            let span = &span;
            next += 1;
            if let Verdict::Error { seen_by_client: true, .. } = verdict {
                verdict = self.after_error(span, kept);
                break;
            }
            verdict = self.event(now, span, kept, plan, ask, seen, &mut content);
            match verdict {
                Verdict::Pass | Verdict::Error { seen_by_client: true, .. } => {}
                Verdict::Failed(_) | Verdict::Terminal(..) | Verdict::Error { .. } => break,
            }
        }
        (verdict, content)
    }

    /// The upstream's own `[DONE]` right behind its error event goes along (E4).
    fn after_error(&mut self, span: &Span, kept: &mut Kept) -> Verdict {
        let facts = self.meter.event(&kept.bytes, span);
        let done_follows = facts.terminal && !facts.error;
        if done_follows {
            kept.keep(span.start, span.end);
        }
        Verdict::Error { seen_by_client: true, done_follows }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one relay, borrowed apart")]
    fn event(
        &mut self,
        now: Instant,
        span: &Span,
        kept: &mut Kept,
        plan: &Plan,
        ask: &Ask,
        seen: &mut Seen,
        content: &mut bool,
    ) -> Verdict {
        let facts = self.meter.event(&kept.bytes, span);
        if span.has_data() {
            self.since.data = now;
        }
        let change = match &mut self.normalizer {
            _ if facts.usage_only && ask.strip_usage => Change::Drop,
            Some(normalizer) => normalizer.event(&kept.bytes, span, facts, self.meter.error()),
            None => Change::Keep,
        };
        self.dropped = change == Change::Drop;
        match change {
            Change::Keep => kept.keep(span.start, span.end),
            Change::Drop => return Verdict::Pass,
            Change::Replace(event) => kept.replace(span.end, event),
            Change::Fail(ending) => self.native = Some(ending),
        }
        self.forwarded.id_or_retry |= span.id_or_retry;
        self.forwarded.message_start |= facts.start;
        if facts.output {
            self.since.output = now;
            seen.first_output_read.get_or_insert(now);
            seen.pending_output += 1;
            seen.pending_visible |= facts.visible;
        }
        self.verdict(facts, span, plan, content)
    }

    fn verdict(&self, facts: Facts, span: &Span, plan: &Plan, content: &mut bool) -> Verdict {
        if facts.error && !*content {
            return Verdict::Failed(self.error_failure());
        }
        if facts.error {
            let seen_by_client = span.error.is_empty() && self.native.is_none();
            return Verdict::Error { seen_by_client, done_follows: false };
        }
        let empty = !*content && !self.meter.saw_output();
        if empty && facts.finish && plan.failover_on_empty {
            return if self.meter.all_finished() { Verdict::Failed(Failure::Empty) } else { Verdict::Pass };
        }
        *content |= facts.output || facts.finish;
        if !facts.terminal {
            return Verdict::Pass;
        }
        if !*content {
            return Verdict::Failed(Failure::Empty);
        }
        let (outcome, cause) = finished(&self.meter);
        Verdict::Terminal(outcome, cause)
    }

    fn rewrites_model(&self) -> bool {
        self.normalizer.as_ref().is_some_and(|normalizer| normalizer.rewrites_model())
    }

    /// The number after the last one that the client has seen (E2).
    fn next_sequence(&self) -> u64 {
        let counted = self.normalizer.as_ref().and_then(|normalizer| normalizer.next_sequence());
        counted.unwrap_or_else(|| self.meter.last_sequence().map_or(0, |last| last.saturating_add(1)))
    }

    fn error_failure(&self) -> Failure {
        match self.meter.error() {
            Some(error) if error.clients_fault => Failure::ClientErrorEvent(error.status),
            Some(error) => Failure::ErrorEvent(error.status),
            None => Failure::ErrorEvent(500),
        }
    }
}

impl Action {
    const fn wait() -> Self {
        Self { write: Bytes::new(), next: Next::Wait }
    }

    const fn failed(failure: Failure) -> Self {
        Self { write: Bytes::new(), next: Next::Failed(failure) }
    }

    const fn done(outcome: Outcome, cause: &'static str) -> Self {
        Self { write: Bytes::new(), next: Next::Done(outcome, cause) }
    }

    fn followed_by(self, then: Self) -> Self {
        Self { write: joined(self.write, &then.write), next: then.next }
    }
}

/// The parts of a block that go on: one slice, unless something in its middle was dropped.
struct Kept {
    bytes: Bytes,
    pieces: Vec<Bytes>,
    from: usize,
    to: usize,
}

impl Kept {
    const fn new(bytes: Bytes) -> Self {
        Self { bytes, pieces: Vec::new(), from: 0, to: 0 }
    }

    fn keep(&mut self, start: usize, end: usize) {
        if start == self.to {
            self.to = end;
            return;
        }
        if self.from < self.to {
            self.pieces.push(self.bytes.slice(self.from..self.to));
        }
        (self.from, self.to) = (start, end);
    }

    /// The event that ends at `end` goes on as these bytes.
    fn replace(&mut self, end: usize, event: Bytes) {
        if self.from < self.to {
            self.pieces.push(self.bytes.slice(self.from..self.to));
        }
        self.pieces.push(event);
        (self.from, self.to) = (end, end);
    }

    fn into_bytes(self) -> Bytes {
        let last = self.bytes.slice(self.from..self.to);
        if self.pieces.is_empty() {
            return last;
        }
        let mut all = BytesMut::with_capacity(self.bytes.len());
        for piece in self.pieces.iter().chain([&last]) {
            all.extend_from_slice(piece);
        }
        all.freeze()
    }
}

/// One piece of both, without a copy where one is empty.
fn joined(first: Bytes, second: &Bytes) -> Bytes {
    if second.is_empty() {
        return first;
    }
    if first.is_empty() {
        return second.clone();
    }
    let mut all = BytesMut::with_capacity(first.len() + second.len());
    all.extend_from_slice(&first);
    all.extend_from_slice(second);
    all.freeze()
}

fn finished(meter: &Meter) -> (Outcome, &'static str) {
    match meter.finish() {
        Some(Finish::Length) => (Outcome::Truncated, "length"),
        Some(Finish::Stop | Finish::Other) | None => (Outcome::Completed, "terminal"),
    }
}

/// E1: an event without its blank line counts at a clean end if its JSON is whole.
fn is_whole(bytes: &[u8], span: &Span) -> bool {
    if !span.error.is_empty() {
        let error = bytes.get(span.error.clone()).unwrap_or_default();
        return serde_json::from_slice::<serde::de::IgnoredAny>(error).is_ok();
    }
    let mut scratch = Vec::new();
    let payload = span.payload(bytes, &mut scratch);
    payload == b"[DONE]" || serde_json::from_slice::<serde::de::IgnoredAny>(payload).is_ok()
}
