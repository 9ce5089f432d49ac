//! What it costs to give events another shape (N1 to N5), by provider.

use crate::workloads::{MAX_EVENT_BYTES, Stream};
use serde_json::{Value, json};
use std::hint::black_box;
use std::time::{Duration, Instant};
use weir::meter::Meter;
use weir::normalize::{Asked, Normalizer, Settings};
use weir::protocol::{Endpoint, Protocol};
use weir::sse::Scanner;

const ROUNDS: usize = 50;

/// Nanoseconds for one event: meter alone, with the model's name rewritten, with one shape, with all.
pub(crate) fn run(streams: &[Stream]) -> Value {
    let off = Settings { rewrite_model: false, normalize: false, usage_chunk_strict: false, native_errors: false };
    let rewrite = Settings { rewrite_model: true, ..off };
    let shape = Settings { normalize: true, ..off };
    let all = Settings { rewrite_model: true, normalize: true, usage_chunk_strict: true, native_errors: true };
    println!("\n{:>8} {:>8} {:>8} {:>8}   ns/event", "meter", "rewrite", "shape", "all");
    let mut rows = serde_json::Map::new();
    for stream in streams {
        let figures = [None, Some(rewrite), Some(shape), Some(all)].map(|settings| cost(stream, settings));
        let [meter, rewrite, shape, all] = figures;
        println!("{meter:8.0} {rewrite:8.0} {shape:8.0} {all:8.0}   {}", stream.name);
        rows.insert(stream.name.clone(), json!(figures));
    }
    Value::Object(rows)
}

fn cost(stream: &Stream, settings: Option<Settings>) -> f64 {
    let endpoint = match stream.protocol {
        Protocol::Chat => Endpoint::Chat,
        Protocol::Responses => Endpoint::Responses,
        Protocol::Messages => Endpoint::Messages,
    };
    let asked = Asked { endpoint, model: "public", include_usage: true, request_id: "0197", created_at: 1_700_000_000 };
    let mut scanner = Scanner::new(MAX_EVENT_BYTES);
    let Ok(block) = scanner.push(stream.bytes.clone()) else { return 0.0 };
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let mut meter = Meter::new(stream.protocol, None);
        let mut normalizer = settings.and_then(|settings| Normalizer::new(settings, &asked, None));
        for span in scanner.spans() {
            let facts = meter.event(&block.bytes, span);
            if let Some(normalizer) = &mut normalizer {
                black_box(normalizer.event(&block.bytes, span, facts, meter.error()));
            }
        }
        best = best.min(began.elapsed());
    }
    best.as_secs_f64() * 1e9 / scanner.spans().len().max(1) as f64
}
