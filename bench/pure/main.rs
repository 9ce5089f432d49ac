//! What the parts without network cost: scanner, meter, relay and normaliser on recorded streams, the
//! body edit, the ledger on this disk; and what public SSE parsers need for the same bytes.
//!
//! `make bench` runs it. Prints tables and writes `target/bench/pure.json`; a figure is the best of
//! several rounds, since everything that disturbs only makes it worse. Reads `../shared/captures` where
//! that is there (or `WEIR_SHARED`), else the project's own golden streams.

#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    reason = "figures for people"
)]

mod ledger;
mod normalize;
#[path = "../workloads.rs"]
mod workloads;

use bytes::Bytes;
use serde_json::{Value, json};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir::protocol::Protocol;
use workloads::{MAX_EVENT_BYTES, Stream, chunks};

/// Each figure is measured this often; the best counts.
const ROUNDS: u32 = 9;
/// What one upstream read brings at most.
const READ_BYTES: usize = 64 * 1024;

/// One line of the table.
struct Figure {
    what: &'static str,
    bytes: usize,
    events: usize,
    took: Duration,
}

fn main() {
    let recorded = workloads::recorded();
    let (source, streams) =
        if recorded.is_empty() { ("golden streams", workloads::golden()) } else { ("recorded streams", recorded) };
    let large = [Stream { name: "large".to_owned(), protocol: Protocol::Chat, bytes: large_event() }];
    let request = workloads::request(20 * 1024 * 1024);
    let figures = [
        figure("scanner", || each(&streams, READ_BYTES, workloads::scan)),
        figure("scanner and meter", || each(&streams, READ_BYTES, workloads::meter)),
        figure("scanner and meter, 1 KiB reads", || each(&streams, 1024, workloads::meter)),
        figure("relay: all of it", || each(&streams, READ_BYTES, workloads::relay)),
        figure("a 16 MiB event, whole", || each(&large, MAX_EVENT_BYTES * 2, workloads::meter)),
        figure("a 16 MiB event in 1 KiB reads", || each(&large, 1024, workloads::meter)),
        figure("facts and edit of a 20 MiB body", || (workloads::body(&request), 1)),
        figure("sse-core (another parser)", || each(&streams, READ_BYTES, sse_core)),
        figure("sseer (another parser), lines only", || each(&streams, READ_BYTES, sseer)),
    ];
    println!("{:36} {:>8} {:>12} {:>10}", format!("on {source}, 64 KiB reads"), "GB/s", "ns/event", "ms");
    for figure in &figures {
        println!("{:36} {:>8.2} {:>12.0} {:>10.2}", figure.what, figure.gigabytes(), figure.nanos(), figure.millis());
    }
    let figures: Vec<_> = figures.iter().map(Figure::json).collect();
    let normalize = normalize::run(&streams);
    let ledger = ledger::run(&target());
    let all = json!({
        "version": env!("CARGO_PKG_VERSION"), "on": source, "figures": figures,
        "normalize_ns_per_event": normalize, "ledger": ledger,
    });
    let file = target().join("pure.json");
    std::fs::write(&file, format!("{all:#}\n")).expect("a folder below target");
    println!("\n{}", file.display());
}

/// `target/bench`.
fn target() -> PathBuf {
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = temporary.parent().unwrap_or(temporary).join("bench");
    std::fs::create_dir_all(&folder).expect("a folder below target");
    folder
}

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

    fn json(&self) -> Value {
        json!({
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

fn sse_core(stream: &Stream, read: usize) -> usize {
    let mut decoder = sse_core::SseDecoder::new();
    let mut events = 0;
    for mut chunk in chunks(&stream.bytes, read) {
        while let Some(event) = decoder.next(&mut chunk) {
            events += usize::from(black_box(event).is_ok());
        }
    }
    events
}

/// Its line parser; events would have to be put together from these.
fn sseer(stream: &Stream, _: usize) -> usize {
    let mut rest = stream.bytes.clone();
    let mut lines = 0;
    while let Some(line) = sseer::parser::parse_line_from_bytes(&mut rest) {
        black_box(line);
        lines += 1;
    }
    lines
}

fn large_event() -> Bytes {
    let text = "x".repeat(MAX_EVENT_BYTES);
    Bytes::from(format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"))
}
