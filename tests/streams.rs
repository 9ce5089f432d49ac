//! Scanner and meter against streams that nobody here made: the web platform's own cases, and what
//! real providers sent (`../shared`; see `shared/mod.rs`).
#![expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, clippy::print_stderr, reason = "a test")]

mod shared;

use base64::Engine;
use bytes::Bytes;
use serde::Deserialize;
use weir::meter::usage::Usage;
use weir::meter::{Facts, Meter};
use weir::protocol::Protocol;
use weir::sse::{Scanner, Span};

/// One case of the web platform tests.
#[derive(Deserialize)]
struct Case {
    name: String,
    bytes: String,
    expected: Vec<Dispatched>,
    #[serde(default)]
    initial_last_event_id: String,
    retry_ms: Option<u64>,
    #[serde(default)]
    expect_rejected: bool,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
struct Dispatched {
    event: String,
    data: String,
    id: String,
}

/// What an event source dispatches, from the scanner's spans. Ids and retries it reads from the lines
/// itself: the scanner only tells that there are some.
fn dispatched(chunks: &[&[u8]], first_id: &str) -> (Vec<Dispatched>, Option<u64>) {
    let mut scanner = Scanner::new(1 << 24);
    let (mut events, mut id, mut retry) = (Vec::new(), first_id.to_owned(), None);
    for chunk in chunks {
        let block = scanner.push(Bytes::copy_from_slice(chunk)).unwrap();
        for span in scanner.spans() {
            let mut buffer = Vec::new();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            if span.id_or_retry {
                meta(&text(&block.bytes[span.start..span.end]), &mut id, &mut retry);
            }
            if span.data_lines > 0 {
                let name = text(&block.bytes[span.name.clone()]);
                let event = if name.is_empty() { "message".to_owned() } else { name };
                events.push(Dispatched { event, data: text(span.payload(&block.bytes, &mut buffer)), id: id.clone() });
            }
        }
    }
    (events, retry)
}

fn meta(event: &str, id: &mut String, retry: &mut Option<u64>) {
    for line in event.trim_start_matches('\u{feff}').split(['\r', '\n']) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" if !value.contains('\0') => value.clone_into(id),
            "retry" if value.bytes().all(|byte| byte.is_ascii_digit()) => *retry = value.parse().ok().or(*retry),
            _ => {}
        }
    }
}

#[test]
fn f4_web_platform_cases() {
    let Some(json) = shared::read("wpt-sse.json") else { return };
    let cases: Vec<Case> = serde_json::from_slice(&json).unwrap();
    let mut checked = 0;
    for case in &cases {
        // About the content type, of which the scanner knows nothing.
        if case.expect_rejected {
            continue;
        }
        let stream = base64::engine::general_purpose::STANDARD.decode(&case.bytes).unwrap();
        let expected = (case.expected.clone(), case.retry_ms);
        let halves = (0..=stream.len()).map(|at| vec![&stream[..at], &stream[at..]]);
        for chunks in halves.chain([stream.chunks(1).collect()]) {
            let (events, retry) = dispatched(&chunks, &case.initial_last_event_id);
            assert_eq!(events, expected.0, "{}", case.name);
            assert!(expected.1.is_none() || retry == expected.1, "{}: {retry:?}", case.name);
        }
        checked += 1;
    }
    assert!(checked >= 30, "{checked} of {} cases", cases.len());
}

/// What `index.json` says of a recording.
#[derive(Deserialize)]
struct Recording {
    file: String,
    protocol: String,
    events: usize,
    comments: usize,
    has_done: bool,
    terminal: String,
    first_content_event_index: Option<usize>,
    usage: Option<Reported>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Reported {
    input: Option<u64>,
    output: Option<u64>,
    cached_input: Option<u64>,
    cache_write: Option<u64>,
    reasoning: Option<u64>,
}

impl From<Usage> for Reported {
    fn from(usage: Usage) -> Self {
        let writes = [usage.cache_write_5m, usage.cache_write_1h];
        Self {
            input: usage.input,
            output: usage.output,
            cached_input: usage.cache_read,
            cache_write: writes.iter().any(Option::is_some).then(|| writes.into_iter().flatten().sum()),
            reasoning: usage.reasoning,
        }
    }
}

/// All that a recording gives, so that two ways of cutting it can be compared.
#[derive(Debug, PartialEq)]
struct Seen {
    bytes: Vec<u8>,
    facts: Vec<(Facts, bool, String)>,
    meter: String,
}

fn protocol(word: &str) -> Protocol {
    Protocol::ALL.into_iter().find(|protocol| protocol.word() == word).unwrap()
}

fn seen(protocol: Protocol, chunks: &[&[u8]]) -> (Seen, Meter) {
    let mut scanner = Scanner::new(1 << 24);
    let mut meter = Meter::new(protocol, None);
    let (mut bytes, mut facts) = (Vec::new(), Vec::new());
    let mut read = |meter: &mut Meter, block: &[u8], span: &Span| {
        let payload = String::from_utf8_lossy(span.payload(block, &mut Vec::new())).into_owned();
        facts.push((meter.event(block, span), span.has_data(), payload));
    };
    for chunk in chunks {
        let block = scanner.push(Bytes::copy_from_slice(chunk)).unwrap();
        for span in scanner.spans() {
            read(&mut meter, &block.bytes, span);
        }
        bytes.extend_from_slice(&block.bytes);
    }
    let tail = scanner.finish();
    if let Some(span) = &tail.span {
        read(&mut meter, &tail.bytes, span);
    }
    bytes.extend_from_slice(&tail.bytes);
    let state = format!("{meter:?}");
    (Seen { bytes, facts, meter: state }, meter)
}

/// Cuts at places that the seed gives, 1 to about 400 bytes apart.
fn cut(stream: &[u8], seed: u64) -> Vec<&[u8]> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut rest = stream;
    let mut chunks = Vec::new();
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(random.usize(1..=400).min(rest.len()));
        chunks.push(chunk);
        rest = after;
    }
    chunks
}

fn recordings() -> Option<Vec<(Recording, Vec<u8>)>> {
    let index: Vec<Recording> = serde_json::from_slice(&shared::read("captures/index.json")?).unwrap();
    let read = |recording: Recording| {
        let stream = shared::read(&format!("captures/{}", recording.file))?;
        Some((recording, stream))
    };
    let all: Option<Vec<_>> = index.into_iter().map(read).collect();
    assert!(all.as_ref().is_some_and(|all| all.len() >= 45));
    all
}

#[test]
fn recordings_mean_what_their_index_says() {
    let mut wrong = Vec::new();
    for (recording, stream) in recordings().unwrap_or_default() {
        let protocol = protocol(&recording.protocol);
        let (seen, meter) = seen(protocol, &[&stream]);
        // Data events only; a native error in an SSE field `error` is none by the index's count.
        let data: Vec<_> =
            seen.facts.iter().filter(|(_, has_data, payload)| *has_data && !payload.is_empty()).collect();
        let first = data.iter().position(|(facts, ..)| facts.output);
        let done = data.iter().any(|(.., payload)| payload == "[DONE]");
        let ends: Vec<bool> = data.iter().map(|(facts, ..)| facts.terminal).filter(|terminal| *terminal).collect();
        let comments =
            stream.split(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| line.first() == Some(&b':')).count();
        let usage = Some(Reported::from(meter.usage())).filter(|usage| usage.input.or(usage.output).is_some());
        let ended = recording.terminal != "none";
        let expected = (
            recording.events,
            recording.comments,
            recording.has_done,
            recording.first_content_event_index,
            &recording.usage,
            ended,
        );
        let found = (data.len(), comments, done, first, &usage, !ends.is_empty());
        if found != expected || meter.anomalies() + meter.malformed() > 0 {
            wrong.push(format!(
                "{}\n  index {expected:?}\n  found {found:?} {} {}",
                recording.file,
                meter.anomalies(),
                meter.malformed()
            ));
        }
        assert_eq!(seen.bytes, stream, "{}", recording.file);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn where_recordings_are_cut_never_matters() {
    for (recording, stream) in recordings().unwrap_or_default() {
        let protocol = protocol(&recording.protocol);
        let (whole, _) = seen(protocol, &[&stream]);
        let (bytewise, _) = seen(protocol, &stream.chunks(1).collect::<Vec<_>>());
        assert!(whole == bytewise, "{} byte by byte", recording.file);
        for seed in 0..4 {
            let (cut, _) = seen(protocol, &cut(&stream, seed));
            assert!(whole == cut, "{} with seed {seed}", recording.file);
        }
    }
}
