//! What a random upstream sends, and when: valid streams of the three protocols, and what goes wrong with them.

use super::*;
use fastrand::Rng;

/// `max_event_bytes` in the schedule: all events but the huge one are smaller.
pub(super) const MAX_EVENT: usize = 2048;

pub(super) const CHAT_ERROR: &str = "data: {\"error\":{\"message\":\"x\",\"type\":\"server_error\"}}\n\n";
pub(super) const CHAT_FAULT: &str = "data: {\"error\":{\"message\":\"x\",\"type\":\"invalid_request_error\"}}\n\n";
pub(super) const MSG_ERROR: &str =
    "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"x\"}}\n\n";
pub(super) const RESP_ERROR: &str = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"server_is_overloaded\",\"message\":\"x\"}}}\n\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Comment,
    /// Data that is no content.
    Quiet,
    Output,
    Finish,
    Usage,
    Terminal,
    Error,
    /// An error that is the client's own.
    Fault,
    Huge,
}

#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) bytes: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) sequence: Option<u64>,
}

impl Piece {
    /// Without its last line ends.
    pub(super) fn core(&self) -> usize {
        self.bytes.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |last| last + 1)
    }

    pub(super) fn has_id(&self) -> bool {
        self.bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&self.bytes).starts_with(b"id:")
    }
}

/// How an upstream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    End,
    Broken,
    Silence,
}

#[derive(Debug)]
pub(super) struct Script {
    pub(super) line_end: &'static str,
    pub(super) pieces: Vec<Piece>,
    /// From the attempt's start to its head; `None`: it never comes.
    pub(super) head: Option<Duration>,
    /// Time since the step before, and the bytes.
    pub(super) steps: Vec<(Duration, Vec<u8>)>,
    pub(super) fate: (Duration, Fate),
}

impl Script {
    pub(super) fn random(rng: &mut Rng, protocol: Protocol) -> Self {
        let mut events = match protocol {
            Protocol::Chat => chat(rng),
            Protocol::Messages => messages(rng),
            Protocol::Responses => responses(rng),
        };
        noise(rng, protocol, &mut events);
        let (cut, clean) = fault(rng, protocol, &mut events);
        let line_end = *rng.choice(&["\n", "\n", "\r\n", "\r"]).unwrap();
        let mut sequence = 0;
        let mut pieces = Vec::new();
        for (text, kind) in events {
            let numbered = text.contains("SEQ");
            let text = text.replace("SEQ", &sequence.to_string()).replace('\n', line_end);
            pieces.push(Piece { bytes: text.into_bytes(), kind, sequence: numbered.then_some(sequence) });
            sequence += u64::from(numbered);
        }
        if rng.u8(0..4) == 0 {
            pieces[0].bytes.splice(0..0, *b"\xEF\xBB\xBF");
        }
        let mut bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.bytes.clone()).collect();
        if cut {
            bytes.truncate(rng.usize(0..=bytes.len()));
        }
        let steps = steps(rng, &bytes);
        let fate = if clean { Fate::End } else { *rng.choice(&[Fate::End, Fate::Broken, Fate::Silence]).unwrap() };
        let head = (rng.u8(0..10) > 0).then(|| Duration::from_millis(rng.u64(0..7000)));
        Self { line_end, pieces, head, steps, fate: (gap(rng, 2), fate) }
    }
}

fn chat(rng: &mut Rng) -> Vec<(String, Kind)> {
    let mut events = vec![(ROLE.to_owned(), Kind::Quiet)];
    for _ in 0..rng.usize(0..6) {
        let outputs = [
            HEL,
            LO,
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"你好🌍\u{2028}\"}}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\ndata: \"delta\":{\"reasoning\":\"hm\"}}]}\n\n",
            "id: 4\ndata:{\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"t\"}]}}]}\n\n",
        ];
        events.push(((*rng.choice(&outputs).unwrap()).to_owned(), Kind::Output));
    }
    events.push((STOP.to_owned(), Kind::Finish));
    if rng.bool() {
        events.push((USAGE.to_owned(), Kind::Usage));
    }
    events.push(("data: [DONE]\n\n".to_owned(), Kind::Terminal));
    events
}

fn messages(rng: &mut Rng) -> Vec<(String, Kind)> {
    let mut events = vec![(MSG_START.to_owned(), Kind::Quiet), (MSG_BLOCK.to_owned(), Kind::Quiet)];
    for _ in 0..rng.usize(0..6) {
        events.push((MSG_HEL.to_owned(), Kind::Output));
    }
    events.push((MSG_STOP.to_owned(), Kind::Finish));
    events.push((MSG_END.to_owned(), Kind::Terminal));
    events
}

fn responses(rng: &mut Rng) -> Vec<(String, Kind)> {
    let mut events = vec![(RESP_CREATED.replace(":0,", ":SEQ,"), Kind::Quiet)];
    for _ in 0..rng.usize(0..6) {
        events.push((RESP_HEL.replace("41", "SEQ"), Kind::Output));
    }
    events.push((RESP_DONE.replace("42", "SEQ"), Kind::Terminal));
    events
}

fn noise(rng: &mut Rng, protocol: Protocol, events: &mut Vec<(String, Kind)>) {
    for _ in 0..rng.usize(0..4) {
        let at = rng.usize(0..events.len());
        let (text, kind) = match rng.u8(0..4) {
            0 => ("data: null\n\n", Kind::Quiet),
            1 => ("id: 7\n: x\n\n", Kind::Comment),
            2 if protocol == Protocol::Messages => (MSG_PING, Kind::Quiet),
            _ => (": PROCESSING\n\n", Kind::Comment),
        };
        events.insert(at, (text.to_owned(), kind));
    }
}

/// Answers whether the bytes are cut, and whether the stream ends well.
fn fault(rng: &mut Rng, protocol: Protocol, events: &mut Vec<(String, Kind)>) -> (bool, bool) {
    let at = rng.usize(0..events.len());
    match rng.u8(0..9) {
        0..=2 => return (false, true),
        3 => {
            let error = match protocol {
                Protocol::Chat => CHAT_ERROR,
                Protocol::Messages => MSG_ERROR,
                Protocol::Responses => RESP_ERROR,
            };
            events.insert(at, (error.to_owned(), Kind::Error));
        }
        4 if protocol == Protocol::Chat => events.insert(at, (CHAT_FAULT.to_owned(), Kind::Fault)),
        5 => drop(events.pop()),
        6 => events.insert(at, (format!("data: {}\n\n", "x".repeat(MAX_EVENT + 500)), Kind::Huge)),
        _ => return (true, false),
    }
    (false, false)
}

/// The bytes in random reads: all in one, single bytes, or pieces.
fn steps(rng: &mut Rng, bytes: &[u8]) -> Vec<(Duration, Vec<u8>)> {
    let size = *rng.choice(&[usize::MAX, 1, 40, 300]).unwrap();
    let mut rest = bytes;
    let mut chunks = Vec::new();
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(rng.usize(1..=size).min(rest.len()));
        chunks.push(chunk.to_vec());
        rest = after;
    }
    let count = chunks.len();
    chunks.into_iter().map(|chunk| (gap(rng, count), chunk)).collect()
}

/// Mostly none; about two long ones among `count`.
fn gap(rng: &mut Rng, count: usize) -> Duration {
    match rng.usize(0..count.max(1)) {
        0 => Duration::from_millis(rng.u64(0..12_000)),
        1 => Duration::from_millis(rng.u64(0..40_000)),
        2..=8 => Duration::from_millis(rng.u64(0..1500)),
        _ => Duration::ZERO,
    }
}
