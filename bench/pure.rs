//! What the parts without IO cost: scanner, meter and relay on recorded streams, the body edit.
//!
//! `make bench` runs it. Prints a table and one line of JSON; a figure is the best of several
//! rounds, since everything that disturbs only makes it worse. Reads `../shared/captures` where
//! that is there (or `WEIR_SHARED`), else the project's own golden streams.

use bytes::Bytes;
use std::hint::black_box;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir::admission::{edit, facts};
use weir::meter::Meter;
use weir::protocol::{Endpoint, Protocol};
use weir::sse::Scanner;

/// Each figure is measured this often; the best counts.
const ROUNDS: u32 = 7;
/// What one upstream read brings at most.
const READ_BYTES: usize = 64 * 1024;
const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// One recorded stream.
struct Stream {
    protocol: Protocol,
    bytes: Bytes,
}

/// One line of the table.
struct Figure {
    what: &'static str,
    bytes: usize,
    events: usize,
    took: Duration,
}

fn main() {
    let (source, streams) = streams();
    let large = vec![Stream { protocol: Protocol::Chat, bytes: large_event() }];
    let figures = [
        figure("scanner, 64 KiB reads", || each(&streams, READ_BYTES, scan)),
        figure("scanner and meter, 64 KiB reads", || each(&streams, READ_BYTES, meter)),
        figure("scanner and meter, 1 KiB reads", || each(&streams, 1024, meter)),
        figure("a 16 MiB event in 1 KiB reads", || each(&large, 1024, scan)),
        figure("facts and edit of a 20 MiB body", body),
    ];
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{:34} {:>8} {:>12} {:>10}", format!("on {source}"), "GB/s", "ns/event", "ms");
    for figure in &figures {
        let _ = writeln!(
            out,
            "{:34} {:>8.2} {:>12.0} {:>10.2}",
            figure.what,
            figure.gigabytes(),
            figure.nanos(),
            figure.millis()
        );
    }
    let json: Vec<_> = figures.iter().map(Figure::json).collect();
    let _ = writeln!(
        out,
        "{}",
        serde_json::json!({"bench": "pure", "version": env!("CARGO_PKG_VERSION"), "on": source, "figures": json})
    );
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
impl Figure {
    fn gigabytes(&self) -> f64 {
        self.bytes as f64 / self.took.as_secs_f64() / 1e9
    }

    fn nanos(&self) -> f64 {
        self.took.as_secs_f64() * 1e9 / self.events as f64
    }

    fn millis(&self) -> f64 {
        self.took.as_secs_f64() * 1e3
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "what": self.what, "bytes": self.bytes, "events": self.events,
            "gb_per_s": self.gigabytes(), "ns_per_event": self.nanos(),
        })
    }
}

fn figure(what: &'static str, mut work: impl FnMut() -> (usize, usize)) -> Figure {
    let (mut best, mut done) = (Duration::MAX, (0, 1));
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        done = work();
        best = best.min(begin.elapsed());
    }
    Figure { what, bytes: done.0, events: done.1.max(1), took: best }
}

/// Bytes and events of all streams, read in pieces of `read`.
fn each(streams: &[Stream], read: usize, work: fn(&Stream, usize) -> usize) -> (usize, usize) {
    streams.iter().fold((0, 0), |(bytes, events), stream| (bytes + stream.bytes.len(), events + work(stream, read)))
}

fn scan(stream: &Stream, read: usize) -> usize {
    let mut scanner = Scanner::new(MAX_EVENT_BYTES * 2);
    let mut events = 0;
    let mut rest = stream.bytes.clone();
    while !rest.is_empty() {
        let chunk = rest.split_to(rest.len().min(read));
        black_box(scanner.push(chunk).is_ok());
        events += scanner.spans().len();
    }
    events
}

fn meter(stream: &Stream, read: usize) -> usize {
    let mut scanner = Scanner::new(MAX_EVENT_BYTES * 2);
    let mut meter = Meter::new(stream.protocol, None);
    let mut events = 0;
    let mut rest = stream.bytes.clone();
    while !rest.is_empty() {
        let chunk = rest.split_to(rest.len().min(read));
        let Ok(block) = scanner.push(chunk) else { return events };
        for span in scanner.spans() {
            black_box(meter.event(&block.bytes, span));
        }
        events += scanner.spans().len();
    }
    black_box(meter.usage());
    events
}

fn body() -> (usize, usize) {
    let image = "A".repeat(20 * 1024 * 1024);
    let body = Bytes::from(format!(
        r#"{{"model":"public","stream":true,"messages":[{{"role":"user","content":"{image}"}}]}}"#
    ));
    let Ok(facts) = facts::read(Endpoint::Chat, &body) else { return (0, 0) };
    black_box(edit::apply(&body, &facts, &edit::Edit { model: "theirs", include_usage: true }));
    (body.len(), 1)
}

fn large_event() -> Bytes {
    let text = "x".repeat(MAX_EVENT_BYTES);
    Bytes::from(format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"))
}

fn streams() -> (&'static str, Vec<Stream>) {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let shared = std::env::var_os("WEIR_SHARED").map_or(beside, PathBuf::from).join("captures");
    let recorded = read_all(&shared);
    if recorded.is_empty() {
        return ("golden streams", read_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")));
    }
    ("recorded streams", recorded)
}

fn read_all(folder: &Path) -> Vec<Stream> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|ext| ext == "sse")).collect();
    files.sort();
    let read = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.to_owned();
        let protocol = Protocol::ALL.into_iter().find(|protocol| name.starts_with(protocol.word()))?;
        Some(Stream { protocol, bytes: Bytes::from(std::fs::read(path).ok()?) })
    };
    files.into_iter().filter_map(read).collect()
}
