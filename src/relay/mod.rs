//! Decides what a live stream does next: hold, forward, keep alive, fail or end.
//!
//! Called by the pump, once per attempt, head, chunk, end of input, timer and write. Touches only
//! its own fields: no socket, no clock, no metric. One relay lives as long as its request; each
//! attempt gets a scanner, a meter and a gate of its own.
//!
//! In words: whole events are held until the first content (A3), then pass unchanged (F1); a
//! keepalive goes out between two events when the client has heard nothing for an interval (K1);
//! whatever ends the stream early is said in the client's own protocol (E2, E3).

mod attempt;
mod clock;
mod gaps;
mod gate;
pub mod keepalive;
mod kept;
mod seen;
#[cfg(test)]
mod tests;

pub use gaps::{Gap, Gaps};
pub use seen::Seen;

use crate::config::{Timeouts, When};
use crate::ledger::estimate::Delivered;
use crate::meter::{Finish, Meter};
use crate::normalize::Normalizer;
use crate::outcome::{Failure, Outcome};
use crate::protocol::Protocol;
use crate::refusal::{Ending, ResponseSeen, ending_event};
use attempt::{Attempt, Expiry, Reading, Verdict};
use bytes::Bytes;
use keepalive::{Between, Forwarded, Frames};
use kept::joined;
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
    /// The key was revoked: end now.
    Revoke,
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
    keepalives: u64,
    first_keepalive: Option<Instant>,
    gaps: Gaps,
}

/// What the client has got.
#[derive(Debug)]
struct Client {
    /// The response's head is out.
    opened: bool,
    /// Something was written, or (before that) the request was received.
    last_write: Instant,
    /// The last keepalive of `when: always`, or (before that) the response's head.
    last_beat: Instant,
    /// Nothing more may be written.
    ended: bool,
}

impl Relay {
    /// A request was received at `received` and will be answered by a stream.
    #[must_use]
    pub const fn new(plan: Arc<Plan>, ask: Ask, received: Instant) -> Self {
        let client = Client { opened: false, last_write: received, last_beat: received, ended: false };
        Self {
            plan,
            ask,
            received,
            client,
            attempt: None,
            failed: None,
            keepalives: 0,
            first_keepalive: None,
            gaps: Gaps::NONE,
        }
    }

    /// The one entrance: something happened at `now`.
    pub fn on(&mut self, now: Instant, input: Input) -> Action {
        debug_assert!(!self.client.ended, "a stream that has ended gets no input: the pump returns on Done");
        match &input {
            Input::Head => self.gaps.begin(now),
            Input::Chunk(_) | Input::End => self.gaps.read(now),
            Input::Broken | Input::Tick | Input::Drain | Input::Revoke | Input::GiveUp(..) => {}
        }
        let action = if self.attempt.as_ref().is_some_and(Attempt::awaits_lf) {
            self.last_lf(now, &input)
        } else {
            self.decide(now, input)
        };
        self.settle(now, action)
    }

    /// Right after [`Input::Head`]: what gives the attempt's events the shape that the operator wants (N1 to N5).
    pub fn normalize(&mut self, normalizer: Option<Normalizer>) {
        if let Some(attempt) = &mut self.attempt {
            attempt.normalizer = normalizer.map(Box::new);
        }
    }

    /// When the pump has to call with [`Input::Tick`]; if that is past, at once. After a tick it is
    /// in the future again.
    #[must_use]
    pub fn next_wake(&self) -> Instant {
        let total = self.received + self.plan.timeouts.total;
        let deadline = self.attempt.as_ref().map(|attempt| attempt.deadline().0);
        [deadline, self.keepalive_due()].into_iter().flatten().fold(total, Instant::min)
    }

    /// The last write began at `from` and ended at `to`: the time between was spent on the client,
    /// which is nobody's stall (S2).
    pub fn wrote(&mut self, from: Instant, to: Instant) {
        let spent = to.saturating_duration_since(from);
        self.client.last_write = to;
        self.gaps.forgive(spent);
        if let Some(attempt) = &mut self.attempt {
            attempt.wrote(to, spent);
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
        self.committed().is_some()
    }

    /// When output passed; of the attempt that answers, nothing of those that failed.
    #[must_use]
    pub fn seen(&self) -> &Seen {
        self.attempt.as_ref().map_or(&Seen::NOTHING, |attempt| &attempt.seen)
    }

    /// A sample of the output of the attempt that answers (U4).
    #[must_use]
    pub fn delivered(&self) -> Option<&Delivered> {
        self.attempt.as_ref().map(|attempt| &attempt.delivered)
    }

    /// Keepalives written.
    #[must_use]
    pub const fn keepalives(&self) -> u64 {
        self.keepalives
    }

    /// When the first one was.
    #[must_use]
    pub const fn first_keepalive(&self) -> Option<Instant> {
        self.first_keepalive
    }

    /// The upstream's longest silences.
    #[must_use]
    pub const fn gaps(&self) -> Gaps {
        self.gaps
    }

    /// The last write to the client; `None`: it has got nothing.
    #[must_use]
    pub fn last_write(&self) -> Option<Instant> {
        self.client.opened.then_some(self.client.last_write)
    }

    /// The prelude was too long to hold (A3). It commits, so there is at most one per request.
    #[must_use]
    pub fn gate_overflowed(&self) -> bool {
        self.attempt.as_ref().is_some_and(Attempt::gate_overflowed)
    }

    /// Bytes held: half an event and the prelude (F2).
    #[must_use]
    pub fn held(&self) -> usize {
        self.attempt.as_ref().map_or(0, Attempt::held)
    }

    fn committed(&self) -> Option<&Attempt> {
        self.attempt.as_ref().filter(|attempt| attempt.is_committed())
    }

    fn decide(&mut self, now: Instant, input: Input) -> Action {
        match input {
            Input::Head => {
                self.attempt = Some(Attempt::new(&self.plan, &self.ask, now));
                Action::wait()
            }
            Input::Chunk(chunk) if chunk.is_empty() => Action::wait(),
            Input::Chunk(chunk) => self.read(now, |attempt| attempt.chunk(now, chunk)),
            Input::End => self.read(now, |attempt| attempt.end(now)),
            Input::Broken => self.over(Failure::Broken),
            Input::Tick => self.tick(now),
            Input::Drain if !self.client.opened => Action::failed(Failure::Draining),
            Input::Drain => self.ending(&Ending::Draining, Outcome::Drained, "draining"),
            Input::Revoke if !self.client.opened => Action::failed(Failure::Revoked),
            Input::Revoke => self.ending(&Ending::Revoked, Outcome::Rejected, "key_revoked"),
            Input::GiveUp(ending, outcome, cause) => self.ending(&ending, outcome, cause),
        }
    }

    fn settle(&mut self, now: Instant, action: Action) -> Action {
        if !action.write.is_empty() {
            if !std::mem::replace(&mut self.client.opened, true) {
                self.client.last_beat = now;
            }
            self.client.last_write = now;
        }
        if action.next != Next::Wait {
            self.gaps.stop(now);
        }
        match action.next {
            Next::Wait => {}
            Next::Failed(_) => self.failed = self.attempt.take().map(|attempt| attempt.meter),
            Next::Done(..) => self.client.ended = true,
        }
        action
    }

    /// All is said; only the LF after the final CR is waited for (E1).
    fn last_lf(&mut self, now: Instant, input: &Input) -> Action {
        let lf = match input {
            Input::Chunk(chunk) if chunk.is_empty() => return Action::wait(),
            Input::Tick if now < self.next_wake() => return Action::wait(),
            Input::Chunk(chunk) if chunk.first() == Some(&b'\n') => chunk.slice(..1),
            Input::Chunk(_)
            | Input::Tick
            | Input::Head
            | Input::End
            | Input::Broken
            | Input::Drain
            | Input::Revoke
            | Input::GiveUp(..) => Bytes::new(),
        };
        let last = self.attempt.as_mut().and_then(Attempt::take_last).unwrap_or(Action::wait());
        last.after(lf)
    }

    /// Bytes came, or their clean end.
    fn read(&mut self, now: Instant, read: impl FnOnce(&mut Attempt) -> Reading) -> Action {
        let Some(attempt) = &mut self.attempt else { return Action::failed(Failure::Head) };
        let Reading { write, verdict, lf_may_follow } = read(attempt);
        let write = attempt.first_write(write, self.client.opened);
        let last = match verdict {
            Verdict::Pass => Action::wait(),
            Verdict::Failed(failure) => Action::failed(failure),
            Verdict::Terminal => Action::done(finished(&attempt.meter), "terminal"),
            Verdict::Error(told) => self.after_error(told.as_ref()),
            Verdict::Over(failure) => self.over(failure),
        };
        match (&mut self.attempt, last.next) {
            (Some(attempt), Next::Done(..)) if lf_may_follow => {
                attempt.await_lf(now, last);
                Action { write, next: Next::Wait }
            }
            _ => last.after(write),
        }
    }

    /// The upstream's own error is the terminal event (E4); `told`: it is said in the client's protocol
    /// as well, or instead.
    fn after_error(&self, told: Option<&Ending>) -> Action {
        let clients_fault = self.meter().and_then(Meter::error).is_some_and(|error| error.clients_fault);
        let outcome = if clients_fault { Outcome::ClientError } else { Outcome::UpstreamError };
        let write = match (told, self.plan.protocol) {
            (Some(ending), _) => self.native(ending),
            (None, Protocol::Chat) if self.plan.chat_error_done => Bytes::from_static(DONE),
            (None, Protocol::Chat | Protocol::Responses | Protocol::Messages) => Bytes::new(),
        };
        Action { write, next: Next::Done(outcome, "error_event") }
    }

    /// The upstream brings no more and has sent no terminal event (E1, E2).
    fn over(&mut self, failure: Failure) -> Action {
        match &self.attempt {
            None => Action::failed(Failure::Head),
            Some(attempt) if !attempt.is_committed() => Action::failed(failure),
            Some(_) => {
                let cause = if failure == Failure::Empty { "ended_early" } else { failure.word() };
                self.ending(&Ending::Interrupted, Outcome::UpstreamInterrupted, cause)
            }
        }
    }

    fn tick(&mut self, now: Instant) -> Action {
        if now >= self.received + self.plan.timeouts.total {
            if !self.client.opened {
                return Action::failed(Failure::Total);
            }
            return self.ending(&Ending::Timeout, Outcome::Timeout, Failure::Total.word());
        }
        if let Some(attempt) = &self.attempt {
            let (deadline, expiry) = attempt.deadline();
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
            Expiry::Stall(failure) if !self.is_committed() => Action::failed(failure),
            Expiry::Stall(failure) => self.ending(&Ending::Stalled, Outcome::Stalled, failure.word()),
            Expiry::Terminal | Expiry::LastLf => self.completed(),
        }
    }

    fn keepalive(&mut self, now: Instant) -> Action {
        let Some(between) = self.between() else { return Action::wait() };
        let write = self.plan.keepalive.frame(&between, self.plan.protocol);
        self.client.last_beat = now;
        self.first_keepalive.get_or_insert(now);
        self.keepalives += 1;
        Action { write, next: Next::Wait }
    }

    /// When the next keepalive may go out, if any may (K1, K3, K4).
    fn keepalive_due(&self) -> Option<Instant> {
        self.between()?;
        let plan = &self.plan.keepalive;
        if !self.client.opened {
            return plan.before_headers.map(|wait| self.received + wait);
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
        match self.committed() {
            Some(attempt) if attempt.is_between_events() => Some(Between { forwarded: &attempt.forwarded }),
            Some(_) => None,
            None => Some(Between { forwarded: NOTHING }),
        }
    }

    /// Ends with an error event, unless the client has everything already (E1, E2, E3).
    fn ending(&mut self, ending: &Ending, outcome: Outcome, cause: &'static str) -> Action {
        if self.attempt.as_ref().is_some_and(Attempt::is_finished) {
            return self.completed();
        }
        Action { write: self.native(ending), next: Next::Done(outcome, cause) }
    }

    /// Everything has finished, only the terminal event is missing: Weir writes it (E1).
    fn completed(&mut self) -> Action {
        let owed = self.attempt.as_mut().and_then(|attempt| attempt.normalizer.as_mut()?.before_terminal());
        let terminal = match self.plan.protocol {
            Protocol::Chat => DONE,
            Protocol::Messages => MESSAGE_STOP,
            Protocol::Responses => b"",
        };
        let write = joined(owed.unwrap_or_default(), Bytes::from_static(terminal));
        let outcome = self.meter().map_or(Outcome::Completed, finished);
        Action { write, next: Next::Done(outcome, "terminal_added") }
    }

    /// A native error event that fits what the client has seen (E2, E3, K3).
    fn native(&self, ending: &Ending) -> Bytes {
        let own_id = format!("resp_{}", self.ask.request_id);
        let attempt = self.committed();
        let meter = attempt.map(|attempt| &attempt.meter);
        let model = meter.and_then(Meter::model).filter(|_| !attempt.is_some_and(Attempt::rewrites_model));
        let seen = ResponseSeen {
            id: meter.and_then(Meter::answer_id).unwrap_or(&own_id),
            model: model.or(Some(&self.ask.model)),
            created_at: meter.and_then(Meter::created).or(Some(self.ask.created_at)),
            next_sequence: attempt.map_or(0, Attempt::next_sequence),
        };
        ending_event(self.plan.protocol, ending, &seen, self.plan.chat_error_done)
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

    /// The same, with `write` in front.
    fn after(self, write: Bytes) -> Self {
        Self { write: joined(write, self.write), next: self.next }
    }
}

fn finished(meter: &Meter) -> Outcome {
    match meter.finish() {
        Some(Finish::Length) => Outcome::Truncated,
        Some(Finish::Stop | Finish::Other) | None => Outcome::Completed,
    }
}
