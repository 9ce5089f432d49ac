//! Whatever events come: no panic, cuts never matter, and no part of the usage exceeds its whole.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use weir::meter::{Facts, Meter, UpstreamError};
use weir::protocol::Protocol;
use weir::sse::Scanner;

fn meter<'a>(protocol: Protocol, chunks: impl Iterator<Item = &'a [u8]>) -> (Vec<Facts>, String, Meter) {
    let mut scanner = Scanner::new(1 << 20);
    let mut meter = Meter::new(protocol, None);
    let mut facts = Vec::new();
    for chunk in chunks {
        let block = scanner.push(Bytes::copy_from_slice(chunk)).expect("smaller than the maximum");
        facts.extend(
            scanner.spans().iter().map(|span| meter.event(&block.bytes, span)).filter(|it| *it != Facts::default()),
        );
    }
    let state = format!("{meter:?}");
    (facts, state, meter)
}

fn check(meter: &Meter) {
    let usage = meter.usage();
    let sum = |parts: &[Option<u64>]| parts.iter().flatten().sum::<u64>();
    if let Some(input) = usage.input {
        let parts = [usage.cache_read, usage.cache_write_5m, usage.cache_write_1h, usage.audio_input];
        assert!(sum(&parts) <= input, "{usage:?}");
    }
    if let Some(output) = usage.output {
        assert!(sum(&[usage.reasoning, usage.audio_output]) <= output, "{usage:?}");
    }
}

/// Somewhere to start from: a stream that is well formed.
const GOLDENS: [&str; 3] = [
    include_str!("../../tests/golden/chat-ok.sse"),
    include_str!("../../tests/golden/responses-ok.sse"),
    include_str!("../../tests/golden/messages-ok.sse"),
];

fuzz_target!(|input: &[u8]| {
    let [step, protocol, at, bytes @ ..] = input else { return };
    let step = usize::from(*step).max(1);
    let which = usize::from(protocol % 3);
    let protocol = Protocol::ALL[which];
    // Alone, or in the middle of a good stream.
    let golden = if *at == 0 { &[] } else { GOLDENS[which].as_bytes() };
    let (before, after) = golden.split_at(golden.len() * usize::from(*at) / 256);
    let stream = [before, bytes, after].concat();
    let (facts, state, whole) = meter(protocol, std::iter::once(&stream[..]));
    let cut = meter(protocol, stream.chunks(step));
    assert_eq!((&facts, &state), (&cut.0, &cut.1));
    check(&whole);
    // The same bytes as a whole reply and as an error body.
    let mut reply = Meter::new(protocol, None);
    let malformed = reply.reply(bytes).malformed;
    assert_eq!(malformed, reply.malformed() == 1);
    check(&reply);
    let _ = UpstreamError::from_json(protocol, bytes);
});
