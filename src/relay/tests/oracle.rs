//! The rules once more, slowly: what a client must have got of a script of which so many bytes came.
//!
//! It knows the events from the script that was made, needs no parser and keeps no state.

use super::script::{Kind, MAX_EVENT, Script};
use super::*;

/// How an attempt or a response is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Last {
    Failed(Failure),
    /// What Weir adds, the outcome and the cause.
    Done(String, Outcome, &'static str),
    TooLarge,
}

/// What the bytes so far come to.
#[derive(Clone, Debug, Default)]
pub(super) struct Judged {
    pub(super) forward: Vec<u8>,
    pub(super) committed: bool,
    pub(super) finished: bool,
    /// Events with output, and with data.
    pub(super) outputs: u64,
    pub(super) data: usize,
    pub(super) ids: bool,
    pub(super) next_sequence: u64,
    /// The identity that a failed response gives.
    pub(super) started: bool,
    /// An LF may follow what the client has.
    pub(super) after_cr: bool,
    pub(super) usage: Option<(u64, u64)>,
    pub(super) last: Option<Last>,
}

pub(super) fn judge(script: &Script, protocol: Protocol, strip: bool, came: usize, tail: bool) -> Judged {
    let slack = usize::from(script.line_end == "\r\n");
    let mut judged = Judged::default();
    let mut start = 0;
    for piece in &script.pieces {
        let end = start + piece.bytes.len();
        let got = came.min(end).saturating_sub(start);
        if got > MAX_EVENT {
            judged.last = Some(Last::TooLarge);
            return judged;
        }
        let whole = came + slack >= end && got > 0;
        let counts = tail && piece.kind != Kind::Comment && got >= piece.core() && got > 0;
        if !whole && !counts {
            return judged;
        }
        judged.note(piece.kind, protocol);
        if let Some(Last::Failed(_)) = judged.last {
            return judged;
        }
        let stripped = strip && piece.kind == Kind::Usage;
        if !stripped {
            judged.forward.extend_from_slice(if whole { &piece.bytes[..got] } else { &piece.bytes });
            judged.ids |= piece.has_id();
        }
        judged.after_cr = !stripped && whole && came < end;
        judged.next_sequence = piece.sequence.map_or(judged.next_sequence, |sequence| sequence + 1);
        judged.started |= piece.sequence == Some(0);
        if judged.last.is_some() {
            return judged;
        }
        start = end;
    }
    judged
}

impl Judged {
    fn note(&mut self, kind: Kind, protocol: Protocol) {
        self.data += usize::from(kind != Kind::Comment);
        let responses = protocol == Protocol::Responses;
        match kind {
            Kind::Comment | Kind::Quiet | Kind::Huge => {}
            Kind::Output => {
                self.outputs += 1;
                self.committed = true;
            }
            Kind::Finish => {
                self.committed = true;
                self.finished = true;
                self.usage = (protocol == Protocol::Messages).then_some((25, 15));
            }
            Kind::Usage => self.usage = Some((12, 2)),
            Kind::Terminal => {
                self.committed |= responses;
                if responses {
                    self.usage = Some((20, 5));
                }
                self.last = Some(if self.committed {
                    Last::Done(String::new(), Outcome::Completed, "terminal")
                } else {
                    Last::Failed(Failure::Empty)
                });
            }
            Kind::Error | Kind::Fault => self.last = Some(self.error(kind, protocol)),
        }
    }

    fn error(&self, kind: Kind, protocol: Protocol) -> Last {
        let chat = protocol == Protocol::Chat;
        match (kind, self.committed) {
            (Kind::Fault, false) => Last::Failed(Failure::ClientErrorEvent(400)),
            (_, false) => Last::Failed(Failure::ErrorEvent(if chat { 500 } else { 529 })),
            (_, true) => {
                let outcome = if kind == Kind::Fault { Outcome::ClientError } else { Outcome::UpstreamError };
                Last::Done(if chat { "data: [DONE]\n\n".to_owned() } else { String::new() }, outcome, "error_event")
            }
        }
    }

    /// Nothing more comes.
    pub(super) fn over(&self, protocol: Protocol, failure: Failure) -> Last {
        if !self.committed {
            return Last::Failed(failure);
        }
        let cause = if failure == Failure::Empty { "ended_early" } else { failure.word() };
        let error = self.cut(protocol);
        self.unless_finished(protocol, Last::Done(error, Outcome::UpstreamInterrupted, cause))
    }

    /// E2's error event.
    pub(super) fn cut(&self, protocol: Protocol) -> String {
        match protocol {
            Protocol::Chat => chat_cut(),
            Protocol::Messages => msg_cut(),
            Protocol::Responses => self.failed("server_error", "Response stream interrupted, please retry"),
        }
    }

    /// One of E3's, which all have one sentence and `server_error` for responses.
    pub(super) fn ending(&self, protocol: Protocol, words: [&str; 3], outcome: Outcome, cause: &'static str) -> Last {
        let [message, chat, messages] = words;
        let error = match protocol {
            Protocol::Chat => chat_error(message, chat),
            Protocol::Messages => msg_error(messages, message),
            Protocol::Responses => self.failed("server_error", message),
        };
        self.unless_finished(protocol, Last::Done(error, outcome, cause))
    }

    /// Weir writes the terminal event.
    pub(super) fn unless_finished(&self, protocol: Protocol, last: Last) -> Last {
        if !self.finished {
            return last;
        }
        let terminal = if protocol == Protocol::Chat { "data: [DONE]\n\n" } else { MSG_END };
        Last::Done(terminal.to_owned(), Outcome::Completed, "terminal_added")
    }

    fn failed(&self, code: &str, message: &str) -> String {
        let seen = if self.committed && self.started {
            ("resp_abc", "m", 9, self.next_sequence)
        } else {
            ("resp_0190", "public", 1000, if self.committed { self.next_sequence } else { 0 })
        };
        resp_failed(seen, code, message)
    }
}

/// The attempt that runs, as the oracle sees it.
pub(super) struct Live {
    pub(super) script: Script,
    pub(super) came: usize,
    pub(super) judged: Judged,
    /// Time that went by in writes since its head.
    pub(super) busy: Duration,
    pub(super) head: Instant,
    /// On the clock without the writes:
    pub(super) byte: Instant,
    pub(super) data: Instant,
    pub(super) output: Instant,
    pub(super) last_cr: Option<Instant>,
    pub(super) no_mark: bool,
}

impl Live {
    /// What the client must have.
    pub(super) fn expected(&self) -> &[u8] {
        let forward = &self.judged.forward[..];
        match (self.judged.committed, self.no_mark) {
            (false, _) => &[],
            (true, true) => forward.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(forward),
            (true, false) => forward,
        }
    }

    pub(super) fn new(script: Script, head: Instant) -> Self {
        Self {
            script,
            came: 0,
            judged: Judged::default(),
            busy: Duration::ZERO,
            head,
            byte: head,
            data: head,
            output: head,
            last_cr: None,
            no_mark: false,
        }
    }

    /// More bytes came at `clock`.
    pub(super) fn note(&mut self, judged: Judged, clock: Instant, opened: bool) {
        self.byte = clock;
        if judged.data > self.judged.data {
            self.data = clock;
        }
        if judged.outputs > self.judged.outputs || judged.committed && !self.judged.committed {
            self.output = clock;
        }
        self.no_mark |= judged.committed && !self.judged.committed && opened;
        self.judged = judged;
    }
}
