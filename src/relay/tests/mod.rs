//! The relay driven by hand: what is written, and how it goes on, for every way a stream can go.

#![expect(clippy::string_slice, reason = "the texts that are cut are ASCII")]

mod cuts;
mod endings;
mod failover;
mod keepalives;
mod oracle;
mod schedule;
mod script;
mod seen;
mod stalls;
mod strip;
mod terminals;

use super::keepalive::Frames;
use super::*;
use crate::config::Keepalive;
use std::time::Duration;

pub(super) const ROLE: &str = r#"data: {"id":"c1","model":"m","created":7,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

"#;
pub(super) const HEL: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hel\"}}]}\n\n";
pub(super) const LO: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"lo\"}}]}\n\n";
pub(super) const STOP: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
pub(super) const LENGTH: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n";
pub(super) const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":2,\"total_tokens\":14}}\n\n";

pub(super) const MSG_START: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_1","model":"m","usage":{"input_tokens":25,"output_tokens":1}}}

"#;
pub(super) const MSG_BLOCK: &str = "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n";
pub(super) const MSG_HEL: &str = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hel\"}}\n\n";
pub(super) const MSG_STOP: &str = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}\n\n";
pub(super) const MSG_END: &str = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
pub(super) const MSG_PING: &str = "event: ping\ndata: {\"type\": \"ping\"}\n\n";

pub(super) const RESP_CREATED: &str = "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"resp_abc\",\"model\":\"m\",\"created_at\":9}}\n\n";
pub(super) const RESP_HEL: &str = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":41,\"delta\":\"Hel\"}\n\n";
pub(super) const RESP_DONE: &str = "event: response.completed\ndata: {\"type\":\"response.completed\",\"sequence_number\":42,\"response\":{\"id\":\"resp_abc\",\"usage\":{\"input_tokens\":20,\"output_tokens\":5}}}\n\n";
pub(super) const RESP_INCOMPLETE: &str = "event: response.incomplete\ndata: {\"type\":\"response.incomplete\",\"sequence_number\":42,\"response\":{\"incomplete_details\":{\"reason\":\"max_output_tokens\"}}}\n\n";

/// Weir's own endings, as E2 and E3 spell them.
pub(super) fn chat_error(message: &str, code: &str) -> String {
    format!(
        "data: {{\"error\":{{\"message\":\"{message}\",\"type\":\"api_error\",\"code\":\"{code}\"}}}}\n\ndata: [DONE]\n\n"
    )
}

pub(super) fn chat_cut() -> String {
    chat_error("Stream interrupted", "stream_interrupted")
}

pub(super) fn msg_error(kind: &str, message: &str) -> String {
    format!(
        "event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":\"{kind}\",\"message\":\"{message}\"}}}}\n\n"
    )
}

pub(super) fn msg_cut() -> String {
    msg_error("api_error", "Response stream interrupted, please retry")
}

pub(super) fn resp_failed(seen: (&str, &str, u64, u64), code: &str, message: &str) -> String {
    let (id, model, created, sequence) = seen;
    let rest = r#""incomplete_details":null,"instructions":null,"metadata":{},"#;
    let tail = r#""output":[],"parallel_tool_calls":true,"temperature":null,"tool_choice":"auto","tools":[],"top_p":null,"usage":null"#;
    format!(
        "event: response.failed\ndata: {{\"type\":\"response.failed\",\"sequence_number\":{sequence},\"response\":{{\"id\":\"{id}\",\"object\":\"response\",\"created_at\":{created},\"status\":\"failed\",\"error\":{{\"code\":\"{code}\",\"message\":\"{message}\"}},{rest}\"model\":\"{model}\",{tail}}}}}\n\n"
    )
}

pub(super) fn resp_cut() -> String {
    resp_failed(("resp_abc", "m", 9, 42), "server_error", "Response stream interrupted, please retry")
}

/// What one request's stream is like; tests change what they are about.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) plan: Plan,
    pub(super) keepalive: Keepalive,
    pub(super) ask: Ask,
}

impl Setup {
    /// The defaults, but no keepalives in the way.
    pub(super) fn new(protocol: Protocol) -> Self {
        let day = Duration::from_hours(24);
        let keepalive = Keepalive { interval: day, before_headers: Some(day), ..Keepalive::default() };
        let plan = Plan {
            protocol,
            keepalive: Frames::new(&keepalive),
            timeouts: Timeouts::default(),
            max_event_bytes: 16 * 1024 * 1024,
            failover_on_empty: false,
            chat_error_done: true,
        };
        let ask = Ask {
            request_id: "0190".to_owned(),
            model: "public".to_owned(),
            created_at: 1000,
            stream: true,
            choices: None,
            strip_usage: false,
        };
        Self { plan, keepalive, ask }
    }

    /// With the default keepalive: every 10 s.
    pub(super) fn alive(protocol: Protocol) -> Self {
        Self { keepalive: Keepalive::default(), ..Self::new(protocol) }
    }

    pub(super) fn start(&self) -> Play {
        let plan = Plan { keepalive: Frames::new(&self.keepalive), ..self.plan.clone() };
        let began = Instant::now();
        let relay = Relay::new(Arc::new(plan), self.ask.clone(), began);
        Play { relay, began, now: began, out: Vec::new(), writes: Vec::new(), next: Next::Wait }
    }
}

/// One relay under a clock that only the test moves.
pub(super) struct Play {
    pub(super) relay: Relay,
    pub(super) began: Instant,
    pub(super) now: Instant,
    pub(super) out: Vec<u8>,
    /// When (in seconds since it began) how many bytes were written.
    pub(super) writes: Vec<(f64, usize)>,
    pub(super) next: Next,
}

/// What happens to it.
#[derive(Clone, Debug)]
pub(super) enum Do {
    Head,
    /// Bytes of the upstream.
    Up(Vec<u8>),
    End,
    Broken,
    /// This many seconds go by, ticks included.
    Wait(f64),
    Drain,
    GiveUp(Ending, Outcome, &'static str),
}

pub(super) fn up(bytes: impl AsRef<[u8]>) -> Do {
    Do::Up(bytes.as_ref().to_vec())
}

impl Play {
    pub(super) fn on(&mut self, input: Input) {
        assert_eq!(self.next == Next::Wait, !matches!(self.next, Next::Done(..)), "over: {:?}", self.next);
        let action = self.relay.on(self.now, input);
        if !action.write.is_empty() {
            self.writes.push(((self.now - self.began).as_secs_f64(), action.write.len()));
            self.out.extend_from_slice(&action.write);
            self.relay.wrote(self.now, self.now);
        }
        self.next = action.next;
    }

    pub(super) fn head(&mut self) -> &mut Self {
        self.next = Next::Wait;
        self.on(Input::Head);
        self
    }

    pub(super) fn up(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.on(Input::Chunk(Bytes::copy_from_slice(bytes.as_ref())));
        self
    }

    /// Time goes by; the pump ticks at each wake.
    pub(super) fn wait(&mut self, seconds: f64) -> &mut Self {
        let until = self.now + Duration::from_secs_f64(seconds);
        while self.next == Next::Wait && self.relay.next_wake() <= until {
            self.now = self.now.max(self.relay.next_wake());
            self.on(Input::Tick);
            assert!(self.next != Next::Wait || self.relay.next_wake() > self.now, "a wake that is past after its tick");
        }
        self.now = self.now.max(until);
        self
    }

    pub(super) fn act(&mut self, step: &Do) {
        match step {
            Do::Head => drop(self.head()),
            Do::Up(bytes) => drop(self.up(bytes)),
            Do::End => self.on(Input::End),
            Do::Broken => self.on(Input::Broken),
            Do::Wait(seconds) => drop(self.wait(*seconds)),
            Do::Drain => self.on(Input::Drain),
            Do::GiveUp(ending, outcome, cause) => {
                self.next = Next::Wait;
                self.on(Input::GiveUp(ending.clone(), *outcome, cause));
            }
        }
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }
}

/// Plays the steps after a head; the client must have got exactly `out`, and the last word be `next`.
pub(super) fn check(name: &str, setup: &Setup, steps: &[Do], out: &[&str], next: Next) {
    let mut play = setup.start();
    play.head();
    for step in steps {
        play.act(step);
    }
    assert_eq!((play.text(), play.next), (out.concat(), next), "{name}");
}
