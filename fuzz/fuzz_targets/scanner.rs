//! Whatever comes, and however it is cut: nothing is lost, doubled or moved, and the events are the same.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use weir::sse::{Scanner, Span};

type Event = (Vec<u8>, Vec<u8>, Vec<u8>, u32, bool);

fn said(bytes: &[u8], span: &Span) -> Event {
    let data = span.payload(bytes, &mut Vec::new()).to_vec();
    (bytes[span.name.clone()].to_vec(), data, bytes[span.error.clone()].to_vec(), span.data_lines, span.id_or_retry)
}

fn scan<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> (Vec<Event>, Vec<u8>, Vec<u8>) {
    let mut scanner = Scanner::new(1 << 20);
    let (mut events, mut out) = (Vec::new(), Vec::new());
    for chunk in chunks {
        let block = scanner.push(Bytes::copy_from_slice(chunk)).expect("smaller than the maximum");
        let mut at = block.lead;
        for span in scanner.spans() {
            assert_eq!(span.start, at, "lead and spans tile the block");
            at = span.end;
            events.push(said(&block.bytes, span));
        }
        assert_eq!(at, block.bytes.len());
        out.extend_from_slice(&block.bytes);
    }
    let tail = scanner.finish();
    events.extend(tail.span.map(|span| said(&tail.bytes, &span)));
    (events, out, tail.bytes.to_vec())
}

fuzz_target!(|input: (Vec<u8>, u8)| {
    let (stream, step) = (input.0, usize::from(input.1).max(1));
    let whole = scan(std::iter::once(&stream[..]));
    assert_eq!([&whole.1[..], &whole.2].concat(), stream);
    assert_eq!(whole, scan(stream.chunks(step)));
    assert_eq!(whole, scan(stream.chunks(1)));
});
