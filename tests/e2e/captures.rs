//! Recorded streams of real providers through the real binary: bytes, usage and terminal as recorded.

use crate::harness::*;
use serde_json::Value;
use std::path::Path;

/// Files above this are not sent byte by byte: a chunk for each byte takes its time.
const BYTEWISE_LIMIT: usize = 32 * 1024;

struct Capture {
    name: String,
    dialect: Dialect,
    bytes: Vec<u8>,
    index: Value,
}

fn captures(folder: &Path) -> Vec<Capture> {
    let index = std::fs::read(folder.join("captures/index.json")).expect("an index");
    let index: Vec<Value> = serde_json::from_slice(&index).expect("JSON");
    assert!(index.len() >= 45, "{} captures", index.len());
    let load = |index: Value| {
        let name = field(&index, "file");
        let protocol = field(&index, "protocol");
        let dialect = *Dialect::ALL.iter().find(|dialect| dialect.name == protocol).expect("a protocol");
        let bytes = std::fs::read(folder.join("captures").join(&name)).expect("the file");
        Capture { name, dialect, bytes, index }
    };
    index.into_iter().map(load).collect()
}

impl Capture {
    /// What a client gets that asked for usage, or didn't.
    fn expected(&self, asked: bool) -> String {
        let all = events(&self.bytes);
        let mut text: String = all.into_iter().filter(|event| asked || !is_usage_chunk(event)).collect();
        if self.ends_in_an_error_field() {
            text += CHAT_INTERRUPTED;
        } else if self.dialect.name == "chat" && self.index["has_done"] == false {
            text += DONE;
        }
        text
    }

    /// One that clients do not see (B20).
    fn ends_in_an_error_field(&self) -> bool {
        self.index["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "unknown_field:error"))
    }

    fn outcome(&self) -> &'static str {
        if self.ends_in_an_error_field() {
            return "upstream_error";
        }
        let text = String::from_utf8_lossy(&self.bytes);
        let cut =
            ["\"finish_reason\":\"length\"", "\"stop_reason\":\"max_tokens\"", "\"type\":\"response.incomplete\""];
        if cut.iter().any(|mark| text.contains(mark)) { "truncated" } else { "completed" }
    }

    fn check(&self, received: &Received, record: &Value, asked: bool, how: &str) {
        let name = format!("{}, {how}, usage asked for: {asked}", self.name);
        assert_eq!(received.status(), 200, "{name}");
        assert!(received.ended, "{name}: no clean end");
        let (got, wanted) = (received.text(), self.expected(asked));
        if got != wanted {
            let at = got.bytes().zip(wanted.bytes()).position(|(a, b)| a != b).unwrap_or(got.len().min(wanted.len()));
            let near =
                |text: &str| text.bytes().skip(at.saturating_sub(80)).take(200).map(char::from).collect::<String>();
            panic!("{name}: they differ at {at}:\n got {:?}\nwant {:?}", near(&got), near(&wanted));
        }
        assert_eq!(word(record), self.outcome(), "{name}: {record}");
        let usage = &self.index["usage"];
        if usage.is_null() {
            assert_ne!(field(record, "source"), "reported", "{name}: {record}");
            return;
        }
        assert_eq!(field(record, "source"), "reported", "{name}: {record}");
        for (theirs, ours) in
            [("input", "input"), ("output", "output"), ("cached_input", "cache_read"), ("reasoning", "reasoning")]
        {
            if let Some(count) = usage[theirs].as_u64() {
                assert_eq!(number(record, ours).unwrap_or(0), count, "{name}: {ours} in {record}");
            }
        }
        if let Some(count) = usage["cache_write"].as_u64() {
            let written = ["cache_write_5m", "cache_write_1h"].map(|kind| number(record, kind).unwrap_or(0));
            assert_eq!(written.iter().sum::<u64>(), count, "{name}: cache writes in {record}");
        }
    }
}

async fn replay(how: &str, wanted: impl Fn(&Capture) -> bool, mut reply: impl FnMut(&Capture) -> Reply) {
    let Some(folder) = shared() else { return };
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = Setup::new(&upstream.url()).start().await;
    for capture in captures(&folder).iter().filter(|capture| wanted(capture)) {
        let mut asks = vec![(capture.dialect.ask(), false)];
        if capture.dialect.name == "chat" {
            asks.push((CHAT_ASK_USAGE.to_owned(), true));
        }
        for (ask, asked) in asks {
            upstream.push(reply(capture));
            let received = weir.post(capture.dialect.path, &ask).await;
            let record = weir.record(received.id()).await;
            capture.check(&received, &record, asked, how);
            let booked = weir.booked(received.id()).await;
            capture.check(&received, &booked, asked, &format!("{how}, in the ledger"));
        }
    }
}

#[tokio::test]
async fn captures_whole() {
    replay("whole", |_| true, |capture| Reply::stream(&capture.bytes)).await;
}

#[tokio::test]
async fn captures_one_byte_per_read() {
    let small = |capture: &Capture| capture.bytes.len() < BYTEWISE_LIMIT;
    replay("bytewise", small, |capture| Reply::sse().pieces(&capture.bytes, 1)).await;
}

#[tokio::test]
async fn captures_cut_at_random() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let cut = move |capture: &Capture| {
        let mut cuts: Vec<_> = (0..200).map(|_| random.usize(1..capture.bytes.len())).collect();
        cuts.sort_unstable();
        Reply::sse().cuts(&capture.bytes, &cuts)
    };
    replay(&format!("seed {seed}"), |_| true, cut).await;
}

#[tokio::test]
async fn captures_over_http2() {
    let Some(folder) = shared() else { return };
    let upstream = H2Upstream::start(Reply::json(500, "{}")).await;
    let weir = Setup::with_provider(&upstream.url(), "http2: prior_knowledge").listen("h2c: true").start().await;
    let client = H2Client::connect(&weir).await;
    for capture in captures(&folder) {
        upstream.push(Reply::sse().pieces(&capture.bytes, 1_000));
        let reply = client.post(capture.dialect.path, capture.dialect.ask()).await;
        let received = Received { head: reply.head, body: reply.body, ended: reply.ended };
        let record = weir.record(received.id()).await;
        capture.check(&received, &record, false, "over HTTP/2");
    }
}
