//! What the parts without IO are given to do: recorded streams and request bodies.
//!
//! Included by `pure` (time) and `instructions` (counts).

use bytes::Bytes;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use weir::admission::{edit, facts};
use weir::config::{Keepalive, Timeouts};
use weir::meter::Meter;
use weir::protocol::{Endpoint, Protocol};
use weir::relay::keepalive::Frames;
use weir::relay::{Ask, Input, Plan, Relay};
use weir::sse::Scanner;

pub(crate) const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// One recorded stream.
pub(crate) struct Stream {
    pub(crate) name: String,
    pub(crate) protocol: Protocol,
    pub(crate) bytes: Bytes,
}

/// The chunks that reads of `read` bytes bring.
pub(crate) fn chunks(bytes: &Bytes, read: usize) -> impl Iterator<Item = Bytes> {
    let mut rest = bytes.clone();
    std::iter::from_fn(move || {
        let chunk = rest.split_to(rest.len().min(read));
        (!chunk.is_empty()).then_some(chunk)
    })
}

/// Events found.
pub(crate) fn scan(stream: &Stream, read: usize) -> usize {
    let mut scanner = Scanner::new(MAX_EVENT_BYTES * 2);
    let mut events = 0;
    for chunk in chunks(&stream.bytes, read) {
        black_box(scanner.push(chunk).is_ok());
        events += scanner.spans().len();
    }
    events
}

/// Events found and understood.
pub(crate) fn meter(stream: &Stream, read: usize) -> usize {
    let mut scanner = Scanner::new(MAX_EVENT_BYTES * 2);
    let mut meter = Meter::new(stream.protocol, None);
    let mut events = 0;
    for chunk in chunks(&stream.bytes, read) {
        let Ok(block) = scanner.push(chunk) else { return events };
        for span in scanner.spans() {
            black_box(meter.event(&block.bytes, span));
        }
        events += scanner.spans().len();
    }
    black_box(meter.usage());
    events
}

/// The whole relay: scanner, meter, gate, clocks, keepalive, a sample of the text. Answers the
/// events that the scanner finds.
pub(crate) fn relay(stream: &Stream, read: usize) -> usize {
    let now = Instant::now();
    let plan = Plan {
        protocol: stream.protocol,
        keepalive: Frames::new(&Keepalive::default()),
        timeouts: Timeouts::default(),
        max_event_bytes: MAX_EVENT_BYTES * 2,
        failover_on_empty: false,
        chat_error_done: true,
    };
    let ask = Ask {
        request_id: "0199".to_owned(),
        model: "public".to_owned(),
        created_at: 1_780_000_000,
        stream: true,
        choices: None,
        strip_usage: true,
    };
    let mut relay = Relay::new(Arc::new(plan), ask, now);
    black_box(relay.on(now, Input::Head));
    for chunk in chunks(&stream.bytes, read) {
        let action = relay.on(now, Input::Chunk(chunk));
        relay.wrote(now, now);
        black_box(relay.next_wake());
        if action.next != weir::relay::Next::Wait {
            break;
        }
    }
    usize::try_from(relay.seen().output_events).unwrap_or(0)
}

/// A chat request whose one message has `text` bytes.
pub(crate) fn request(text: usize) -> Bytes {
    let text = "A".repeat(text);
    let tool = r#"{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string","description":"A city, \"quoted\""}}}}}"#;
    Bytes::from(format!(
        r#"{{"model":"public","stream":true,"temperature":0.5,"tools":[{tool},{tool}],"messages":[{{"role":"system","content":"Be brief."}},{{"role":"user","content":"{text}"}}]}}"#
    ))
}

/// What admission does with a body: read its facts, write the model's name anew.
pub(crate) fn body(body: &Bytes) -> usize {
    let Ok(facts) = facts::read(Endpoint::Chat, body) else { return 0 };
    black_box(edit::apply(body, &facts, &edit::Edit { model: "theirs", include_usage: true }));
    body.len()
}

/// The project's own golden streams, which are always there.
pub(crate) fn golden() -> Vec<Stream> {
    read_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden"))
}

/// The recordings beside the project (or where `WEIR_SHARED` says); none if they are not there.
pub(crate) fn recorded() -> Vec<Stream> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    read_all(&std::env::var_os("WEIR_SHARED").map_or(beside, PathBuf::from).join("captures"))
}

fn read_all(folder: &Path) -> Vec<Stream> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|ext| ext == "sse")).collect();
    files.sort();
    let read = |path: PathBuf| {
        let name = path.file_stem()?.to_str()?.to_owned();
        let protocol = Protocol::ALL.into_iter().find(|protocol| name.starts_with(protocol.word()))?;
        Some(Stream { name, protocol, bytes: Bytes::from(std::fs::read(path).ok()?) })
    };
    files.into_iter().filter_map(read).collect()
}
