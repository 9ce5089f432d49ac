//! Rows of CASES.md as a table: a stream, what the client must get of it, what the record must say.

use super::reply::Reply;
use super::streams::Dialect;
use super::upstream::Upstream;
use super::weir::{Setup, field, number};
use serde_json::Value;

/// One row. Unless said otherwise the client gets the upstream's bytes and the request completes.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    name: &'static str,
    dialect: Dialect,
    ask: String,
    stream: Vec<u8>,
    expected: Vec<u8>,
    outcome: &'static str,
    tokens: Vec<(&'static str, Option<u64>)>,
    source: Option<&'static str>,
}

impl Row {
    /// `name` begins with the row's or rule's id.
    pub(crate) fn new(name: &'static str, dialect: Dialect, stream: impl Into<Vec<u8>>) -> Self {
        let stream = stream.into();
        let (input, output) = dialect.tokens;
        Self {
            name,
            dialect,
            ask: dialect.ask(),
            expected: stream.clone(),
            stream,
            outcome: "completed",
            tokens: vec![("input", Some(input)), ("output", Some(output))],
            source: Some("reported"),
        }
    }

    /// What the client gets.
    pub(crate) fn expect(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.expected = bytes.into();
        self
    }

    /// What the client asks.
    pub(crate) fn ask(mut self, body: &str) -> Self {
        body.clone_into(&mut self.ask);
        self
    }

    pub(crate) fn outcome(mut self, outcome: &'static str) -> Self {
        self.outcome = outcome;
        self
    }

    /// Input and output tokens, as reported.
    pub(crate) fn tokens(self, input: u64, output: u64) -> Self {
        self.usage("input", Some(input)).usage("output", Some(output))
    }

    /// One number of the token vector; `None`: it must not be there.
    pub(crate) fn usage(mut self, name: &'static str, count: Option<u64>) -> Self {
        self.tokens.retain(|(known, _)| *known != name);
        self.tokens.push((name, count));
        self
    }

    /// The record need not say anything of tokens (they are estimated, or there is no stream).
    pub(crate) fn any_usage(mut self) -> Self {
        self.tokens.clear();
        self.source = None;
        self
    }

    fn check(&self, how: &str, received: &[u8], record: &Value) {
        let name = self.name;
        assert!(
            received == self.expected,
            "{name}, {how}: the client got\n{}\nand not\n{}",
            String::from_utf8_lossy(received),
            String::from_utf8_lossy(&self.expected)
        );
        assert_eq!(field(record, "outcome"), self.outcome, "{name}, {how}: {record}");
        for (kind, count) in &self.tokens {
            assert_eq!(number(record, kind), *count, "{name}, {how}: {kind} in {record}");
        }
        if let Some(source) = self.source {
            assert_eq!(field(record, "source"), source, "{name}, {how}: {record}");
        }
    }
}

/// Runs rows through one gateway, each with its stream in one write and with one byte per write.
pub(crate) async fn check(rows: &[Row]) {
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = Setup::new(&upstream.url()).start().await;
    for row in rows {
        let whole = ("whole", Reply::stream(&row.stream));
        let bytewise = ("bytewise", Reply::sse().pieces(&row.stream, 1));
        for (how, reply) in [whole, bytewise] {
            upstream.push(reply);
            let received = weir.post(row.dialect.path, &row.ask).await;
            assert_eq!(received.status(), 200, "{}, {how}: {}", row.name, received.text());
            assert!(received.ended, "{}, {how}: no clean end", row.name);
            let record = weir.record(received.id()).await;
            row.check(how, &received.body, &record);
            row.check(&format!("{how}, in the ledger"), &received.body, &weir.booked(received.id()).await);
        }
    }
}
