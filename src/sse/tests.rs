//! The scanner against a slow parser that is plainly right, and the rules one by one.

use super::{Block, Scanner, Span, Tail};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

const MAX: usize = 16 * 1024 * 1024;

/// What an event says, without offsets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Event {
    raw: Vec<u8>,
    name: Vec<u8>,
    data: Option<Vec<u8>>,
    error: Vec<u8>,
    id_or_retry: bool,
}

/// The slow parser: all lines of the whole stream, collected up to each blank one; the rest that has no blank line.
fn reference(stream: &[u8]) -> (Vec<Event>, Event) {
    let mut events = Vec::new();
    let mut event = Event::default();
    let mut at = 0;
    while at < stream.len() {
        let end = stream[at..].iter().position(|byte| matches!(byte, b'\n' | b'\r')).map_or(stream.len(), |i| at + i);
        let next = match &stream[end..] {
            [b'\r', b'\n', ..] => end + 2,
            [_, ..] => end + 1,
            [] => end,
        };
        let mut line = &stream[at..end];
        if at == 0 {
            line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
        }
        event.raw.extend_from_slice(&stream[at..next]);
        if line.is_empty() && end < stream.len() {
            events.push(std::mem::take(&mut event));
        } else {
            let colon = line.iter().position(|byte| *byte == b':');
            let name = &line[..colon.unwrap_or(line.len())];
            let value = colon.map_or(&b""[..], |colon| &line[colon + 1..]);
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match name {
                b"event" => event.name = value.to_vec(),
                b"error" => event.error = value.to_vec(),
                b"id" | b"retry" => event.id_or_retry = true,
                b"data" => match &mut event.data {
                    None => event.data = Some(value.to_vec()),
                    Some(data) => {
                        data.push(b'\n');
                        data.extend_from_slice(value);
                    }
                },
                _ => {}
            }
        }
        at = next;
    }
    (events, event)
}

fn event_of(bytes: &[u8], span: &Span) -> Event {
    Event {
        raw: bytes[span.start..span.end].to_vec(),
        name: bytes[span.name.clone()].to_vec(),
        data: (span.data_lines > 0).then(|| span.payload(bytes, &mut Vec::new()).to_vec()),
        error: bytes[span.error.clone()].to_vec(),
        id_or_retry: span.id_or_retry,
    }
}

/// Feeds the chunks; checks that lead and spans tile each block; a lead goes to the event it ends.
fn scanned(chunks: &[&[u8]]) -> (Vec<Event>, Tail, Vec<u8>) {
    let mut scanner = Scanner::new(MAX);
    let mut events: Vec<Event> = Vec::new();
    let mut out = Vec::new();
    let mut fed = 0;
    for chunk in chunks {
        fed += chunk.len();
        let block = scanner.push(Bytes::copy_from_slice(chunk)).unwrap();
        let mut at = block.lead;
        if block.lead > 0 {
            assert_eq!(block.lead, 1);
            events.last_mut().unwrap().raw.push(block.bytes[0]);
        }
        for span in scanner.spans() {
            assert_eq!(span.start, at, "spans tile the block");
            at = span.end;
            events.push(event_of(&block.bytes, span));
        }
        assert_eq!(at, block.bytes.len(), "spans tile the block");
        out.extend_from_slice(&block.bytes);
        assert_eq!(out.len() + scanner.held(), fed, "nothing is lost or kept twice");
    }
    let tail = scanner.finish();
    assert_eq!(scanner.held(), 0);
    (events, tail, out)
}

fn cut<'a>(stream: &'a [u8], at: &[Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = at.iter().map(|index| index.index(stream.len() + 1)).collect();
    places.sort_unstable();
    let mut chunks = Vec::new();
    let mut from = 0;
    for place in places {
        chunks.push(&stream[from..place]);
        from = place;
    }
    chunks.push(&stream[from..]);
    chunks
}

fn check(stream: &[u8], chunks: &[&[u8]]) {
    let (expected, rest) = reference(stream);
    let (events, tail, out) = scanned(chunks);
    assert_eq!(events, expected);
    assert_eq!([&out[..], &tail.bytes].concat(), stream);
    assert_eq!(tail.bytes, rest.raw);
    assert_eq!(tail.span.is_some(), rest.data.is_some() || !rest.error.is_empty());
    if let Some(span) = tail.span {
        assert_eq!(event_of(&tail.bytes, &span), rest);
        // With its completion the rest is exactly one more event, the same one.
        let whole = [stream, tail.completion].concat();
        let (events, left) = reference(&whole);
        assert_eq!(events.len(), expected.len() + 1, "{:?}", tail.completion);
        assert_eq!(left, Event::default());
        assert_eq!(events.last().unwrap().data, rest.data);
    }
}

fn bytewise(stream: &[u8]) -> Vec<&[u8]> {
    stream.chunks(1).collect()
}

/// Pieces that sit on every edge of the grammar.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "\n",
        "\n",
        "\r",
        "\r",
        "\r\n",
        "\r\n",
        "\u{feff}",
        "data",
        "data:",
        "data: ",
        "data:  ",
        "Data: ",
        "datax:",
        "event: ",
        "event:",
        "id: 7",
        "id",
        "retry: 9",
        "error: {}",
        "error",
        "erro",
        ":",
        ": hi",
        " ",
        "{\"a\":1}",
        "[DONE]",
        "x",
        "你好🌍",
        "\u{2028}",
        "\0",
    ]);
    vec(piece, 0..24).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn where_chunks_split_never_matters(stream in pieces(), at in vec(any::<Index>(), 0..9)) {
        check(&stream, &[&stream]);
        check(&stream, &cut(&stream, &at));
        check(&stream, &bytewise(&stream));
    }

    #[test]
    fn any_bytes_go_through(stream in vec(any::<u8>(), 0..200), at in vec(any::<Index>(), 0..9)) {
        check(&stream, &cut(&stream, &at));
    }

    #[test]
    fn f2_the_maximum_is_the_same_however_reads_are_cut(stream in pieces(), at in vec(any::<Index>(), 0..9), max in 1_usize..40) {
        let run = |chunks: &[&[u8]]| {
            let mut scanner = Scanner::new(max);
            let mut out = Vec::new();
            for chunk in chunks {
                match scanner.push(Bytes::copy_from_slice(chunk)) {
                    Ok(block) => out.extend_from_slice(&block.bytes),
                    Err(error) => {
                        out.extend_from_slice(&error.before.bytes);
                        return (out, true);
                    }
                }
            }
            (out, false)
        };
        prop_assert_eq!(run(&[&stream]), run(&bytewise(&stream)));
        prop_assert_eq!(run(&[&stream]), run(&cut(&stream, &at)));
    }
}

#[test]
fn f4_rows() {
    type Row<'a> = (&'a str, &'a str, &'a [(&'a str, Option<&'a str>)]);
    let rows: &[Row<'_>] = &[
        ("B01 no space", "data:{}\n\n", &[("", Some("{}"))]),
        ("B01 crlf", "data: {}\r\n\r\n", &[("", Some("{}"))]),
        ("B02 cr", "event: a\rdata: {}\r\rdata: 2\r\r", &[("a", Some("{}")), ("", Some("2"))]),
        ("B08 mark", "\u{feff}data: 1\n\n\u{feff}data: 2\n\n", &[("", Some("1")), ("", None)]),
        ("B11 mark", "\u{feff}event: message_start\ndata: 1\n\n", &[("message_start", Some("1"))]),
        ("B13 lines", "data: a\ndata: b\n\n", &[("", Some("a\nb"))]),
        ("B14 lines apart", "data: a\r: x\r\nid: 1\ndata: b\ndata\ndata:\n\n", &[("", Some("a\nb\n\n"))]),
        ("B16 separators", "data: A\u{2028}B\u{85}C\n\n", &[("", Some("A\u{2028}B\u{85}C"))]),
        ("B17 no data", "retry: 3000\n\nid: 9\n\n", &[("", None), ("", None)]),
        ("comments", ": x\n\n:\n\n\n", &[("", None), ("", None), ("", None)]),
        ("empty data", "data\n\ndata:\n\ndata: \n\n", &[("", Some("")), ("", Some("")), ("", Some(""))]),
        ("case", "Data: x\nDATA: x\n data: x\n\n", &[("", None)]),
        ("last name", "event: a\nevent: b\ndata: x\n\n", &[("b", Some("x"))]),
        ("name reset", "event: a\nevent\ndata: x\n\ndata: y\n\n", &[("", Some("x")), ("", Some("y"))]),
        ("two spaces", "data:  x\n\n", &[("", Some(" x"))]),
    ];
    for (row, stream, expected) in rows {
        for chunks in [vec![stream.as_bytes()], bytewise(stream.as_bytes())] {
            let (events, tail, _) = scanned(&chunks);
            let events: Vec<_> = events
                .iter()
                .map(|event| {
                    (
                        std::str::from_utf8(&event.name).unwrap(),
                        event.data.as_deref().map(|data| std::str::from_utf8(data).unwrap()),
                    )
                })
                .collect();
            assert_eq!(&events, expected, "{row}");
            assert!(tail.bytes.is_empty(), "{row}");
        }
        check(stream.as_bytes(), &bytewise(stream.as_bytes()));
    }
}

fn push(scanner: &mut Scanner, chunk: &'static [u8]) -> Block {
    scanner.push(Bytes::from_static(chunk)).unwrap()
}

#[test]
fn b02_an_event_that_ends_in_cr_leaves_at_once() {
    let mut scanner = Scanner::new(MAX);
    assert_eq!(push(&mut scanner, b"data: x\r\r").bytes, "data: x\r\r");
    assert_eq!(scanner.spans().len(), 1);
    assert!(!scanner.after_cr() && scanner.cr_only(), "the first CR was followed by another: CR-only so far");
    assert_eq!(push(&mut scanner, b"data: y\r\r").bytes, "data: y\r\r");
    assert!(scanner.cr_only());
    assert_eq!(scanner.finish(), Tail { completion: b"\r", ..Tail::default() });
}

#[test]
fn b04_cr_and_lf_in_two_reads_are_one_line_end() {
    let mut scanner = Scanner::new(MAX);
    assert_eq!(push(&mut scanner, b"data: x\r").bytes, "");
    assert!(!scanner.after_cr(), "nothing was released");
    assert_eq!(push(&mut scanner, b"\n\r"), Block { bytes: Bytes::from_static(b"data: x\r\n\r"), lead: 0 });
    assert_eq!(scanner.spans().len(), 1);
    assert!(scanner.after_cr(), "k2: an LF may follow");
    assert_eq!(push(&mut scanner, b""), Block::default(), "b10: an empty read changes nothing");
    assert!(scanner.after_cr());
    assert_eq!(push(&mut scanner, b"\n"), Block { bytes: Bytes::from_static(b"\n"), lead: 1 });
    assert!(scanner.spans().is_empty() && !scanner.after_cr() && !scanner.cr_only());
}

#[test]
fn b04_the_lead_comes_before_the_next_events() {
    let mut scanner = Scanner::new(MAX);
    push(&mut scanner, b"data: x\r\n\r");
    let block = push(&mut scanner, b"\n\ndata: y\n\ndata");
    assert_eq!((&block.bytes[..], block.lead), (&b"\n\ndata: y\n\n"[..], 1));
    assert_eq!(scanner.spans().iter().map(|span| span.start..span.end).collect::<Vec<_>>(), [1..2, 2..11]);
    assert_eq!(scanner.held(), 4);
}

#[test]
fn b08_b10_a_mark_in_three_reads_after_an_empty_one() {
    let (events, ..) = scanned(&[b"", b"\xEF", b"", b"\xBB", b"\xBFdata: 1\n", b"\n"]);
    assert_eq!(events[0].data.as_deref(), Some(&b"1"[..]));
    assert!(events[0].raw.starts_with(b"\xEF\xBB\xBF"), "the mark passes unchanged");
}

#[test]
fn b20_an_error_field_counts_as_data() {
    let stream = b"error: {\"code\":400}\n\nerror\n\n";
    let (events, ..) = scanned(&bytewise(stream));
    assert_eq!(events[0].error, b"{\"code\":400}");
    assert!(events[1].error.is_empty());
    let mut scanner = Scanner::new(MAX);
    scanner.push(Bytes::from_static(stream)).unwrap();
    assert_eq!(scanner.spans().iter().map(Span::has_data).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn e1_a_last_event_without_its_blank_line_gets_the_newlines_it_lacks() {
    let rows: &[(&str, Option<&str>, &str)] = &[
        ("", None, "\n"),
        ("data: 1\n\n", None, "\n"),
        ("data: 1\n\n: x\nevent: e\n", None, "\n"),
        ("data: 1\n\ndata: 2", Some("2"), "\n\n"),
        ("data: 1\n\ndata: 2\n", Some("2"), "\n"),
        ("data: 1\r\n\r\ndata: 2", Some("2"), "\r\n\r\n"),
        ("data: 1\r\n\r\ndata: 2\r", Some("2"), "\n\r\n"),
        ("data: 1\r\n\r\ndata: 2\r\n", Some("2"), "\r\n"),
        ("data: 1\r\rdata: 2", Some("2"), "\r\r"),
        ("data: 1\r\rdata: 2\r", Some("2"), "\r"),
        ("data: 1\n\ndata: 2\r", Some("2"), "\n\n"),
        ("data: 2", Some("2"), "\n\n"),
    ];
    for (stream, data, completion) in rows {
        let (_, tail, _) = scanned(&bytewise(stream.as_bytes()));
        let found =
            tail.span.map(|span| String::from_utf8(span.payload(&tail.bytes, &mut Vec::new()).to_vec()).unwrap());
        assert_eq!((found.as_deref(), tail.completion), (*data, completion.as_bytes()), "{stream:?}");
        check(stream.as_bytes(), &[stream.as_bytes()]);
    }
}

#[test]
fn whole_events_are_slices_of_the_chunk() {
    let chunk = Bytes::from(b"data: 1\n\ndata: 2\n\ndata: 3".to_vec());
    let mut scanner = Scanner::new(MAX);
    let block = scanner.push(chunk.clone()).unwrap();
    assert_eq!(block.bytes.as_ptr(), chunk.as_ptr());
    assert_eq!(block.bytes.len(), 18);
    let span = &scanner.spans()[0];
    let data = block.bytes[span.start..].as_ptr();
    assert_eq!(
        span.payload(&block.bytes, &mut Vec::new()).as_ptr(),
        data.wrapping_add(6),
        "one data line is not copied"
    );
}

#[test]
fn b34_b35_a_large_event_in_small_reads_is_looked_at_once() {
    // 16 MiB in 1 KiB reads: rescanning would look at 128 GiB and take minutes.
    let kib = Bytes::from(vec![b'x'; 1024]);
    let mut scanner = Scanner::new(MAX + 1024);
    push(&mut scanner, b"data: ");
    for _ in 0..16 * 1024 {
        assert!(scanner.push(kib.clone()).unwrap().bytes.is_empty());
    }
    let block = push(&mut scanner, b"\n\ndata: y");
    assert_eq!(block.bytes.len(), MAX + 8);
    assert_eq!(scanner.spans()[0].data, 6..MAX + 6);
    assert_eq!(scanner.held(), 7);
    assert!(scanner.memory() < 4096, "the large buffer went with its event");
}

#[test]
fn f2_a_larger_event_is_refused_but_those_before_it_are_good() {
    let mut scanner = Scanner::new(10);
    let error = scanner.push(Bytes::from_static(b"data: 1\n\ndata: 23456\n\n")).unwrap_err();
    assert_eq!((error.max, &error.before.bytes[..]), (10, &b"data: 1\n\n"[..]));
    assert_eq!(scanner.spans().len(), 1);
}

#[test]
fn a_burst_of_blank_lines_does_not_keep_its_spans() {
    let mut scanner = Scanner::new(MAX);
    scanner.push(Bytes::from(vec![b'\n'; 65536])).unwrap();
    assert_eq!(scanner.spans().len(), 65536);
    push(&mut scanner, b"data: 1\n\n");
    push(&mut scanner, b"data: 1\n\n");
    assert!(scanner.memory() <= 64 * size_of::<Span>());
}
