//! Makes the spans of an ended request: names, times and attributes, no content.
//!
//! Called once per request, when it has ended. Touches nothing. The names are those of OpenTelemetry's conventions
//! for generative AI and HTTP; what they have no name for is `weir.…`, with the words of the access record.

use super::context::{Hop, Trace};
use super::message::{AnyValue, KeyValue, Span, Status, Value};
use crate::ledger::money::Nano;
use crate::outcome::Outcome;
use crate::protocol::Endpoint;
use crate::record::{Attempt, Record};
use std::time::{Duration, SystemTime};

/// `SPAN_KIND_SERVER`
const SERVER: i32 = 2;
/// `SPAN_KIND_CLIENT`
const CLIENT: i32 = 3;
/// `STATUS_CODE_ERROR`
const ERROR: i32 = 2;
/// `SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK`: it is known whether the parent is in another process …
const KNOWN: u32 = 0x100;
/// … and it is: `SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK`.
const REMOTE: u32 = 0x200;

/// That of the request first, then those of its attempts in order.
pub(super) fn spans(record: &Record, trace: &Trace, charge: Option<Nano>) -> Vec<Span> {
    let attempts = record.attempts.iter().zip(&trace.hops);
    let attempts = attempts.map(|(attempt, hop)| of_attempt(record, trace, attempt, hop));
    std::iter::once(of_request(record, trace, charge)).chain(attempts).collect()
}

fn of_request(record: &Record, trace: &Trace, charge: Option<Nano>) -> Span {
    let operation = operation(record.endpoint);
    let server = trace.hops.last().and_then(|hop| hop.server.as_ref());
    let failed = match record.outcome {
        Outcome::Completed | Outcome::Truncated | Outcome::ClientGone => None,
        other => Some(record.cause.unwrap_or(other.word())),
    };
    let mut all = Attributes::default();
    all.generative(record, trace, operation);
    all.put("error.type", failed);
    all.put("http.request.method", record.endpoint.map(|_| "POST"));
    all.put("http.route", record.endpoint.map(Endpoint::path));
    all.put("http.response.status_code", Some(u64::from(record.status)).filter(|status| *status > 0));
    all.put("client.address", record.client.map(|client| client.to_string()));
    all.own(record, charge);
    Span {
        parent_span_id: trace.parent.map(Vec::from).unwrap_or_default(),
        flags: u32::from(trace.flags) | KNOWN | trace.parent.map_or(0, |_| REMOTE),
        // As for HTTP: what is the client's own fault is no error of the server.
        status: failed.filter(|_| !(400..500).contains(&record.effective_status)).map(status),
        ..span(trace, trace.span, SERVER, name(operation, record.model.as_deref().filter(|_| server.is_some())))
            .between(record.received, Duration::ZERO, record.duration, all)
    }
}

fn of_attempt(record: &Record, trace: &Trace, attempt: &Attempt, hop: &Hop) -> Span {
    let operation = operation(record.endpoint);
    let server = hop.server.as_ref();
    let model = server.and_then(|server| server.model.as_deref());
    let failed = Some(attempt.result).filter(|result| !matches!(*result, "ok" | "client_gone"));
    let mut all = Attributes::default();
    all.put("gen_ai.operation.name", operation);
    all.put("gen_ai.provider.name", server.map(|server| server.provider.as_str()));
    all.put("gen_ai.request.model", model);
    all.put("server.address", server.map(|server| server.address.as_str()));
    all.put("server.port", server.map(|server| u64::from(server.port)));
    all.put("error.type", failed);
    all.put("http.request.method", record.endpoint.map(|_| "POST"));
    all.put("http.response.status_code", attempt.status.map(u64::from));
    all.put("weir.target", Some(&*attempt.target));
    all.put("weir.result", Some(attempt.result));
    all.put("weir.maybe_billed", Some(attempt.maybe_billed));
    Span {
        parent_span_id: trace.span.to_vec(),
        flags: u32::from(trace.flags) | KNOWN,
        status: failed.map(status),
        ..span(trace, hop.span, CLIENT, name(operation, model)).between(
            record.received,
            attempt.began,
            attempt.ended,
            all,
        )
    }
}

fn span(trace: &Trace, id: [u8; 8], kind: i32, name: String) -> Span {
    let (trace_id, trace_state) = (trace.id.to_vec(), trace.state.clone());
    Span { trace_id, id: id.to_vec(), trace_state, kind, name, ..Span::default() }
}

impl Span {
    fn between(mut self, received: SystemTime, from: Duration, to: Duration, attributes: Attributes) -> Self {
        let since = received.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let nanos = |after: Duration| u64::try_from((since + after).as_nanos()).unwrap_or(u64::MAX);
        (self.start_time_unix_nano, self.end_time_unix_nano) = (nanos(from), nanos(to));
        self.attributes = attributes.0;
        self
    }
}

fn status(word: &str) -> Status {
    Status { message: word.to_owned(), code: ERROR }
}

/// `chat gpt-5.6-sol`, as the conventions ask for.
fn name(operation: Option<&str>, model: Option<&str>) -> String {
    let operation = operation.unwrap_or("request");
    model.map_or_else(|| operation.to_owned(), |model| format!("{operation} {model}"))
}

/// The conventions' word for what an endpoint does; `None`: no endpoint of Weir's own.
const fn operation(endpoint: Option<Endpoint>) -> Option<&'static str> {
    Some(match endpoint {
        None => return None,
        Some(Endpoint::Chat | Endpoint::Responses | Endpoint::Messages) => "chat",
        Some(Endpoint::Completions) => "text_completion",
        Some(Endpoint::Embeddings) => "embeddings",
        Some(Endpoint::CountTokens | Endpoint::InputTokens) => "count_tokens",
    })
}

#[derive(Default)]
struct Attributes(Vec<KeyValue>);

impl Attributes {
    /// What is not known is left out.
    fn put(&mut self, key: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            let value = Some(AnyValue { value: Some(value.into()) });
            self.0.push(KeyValue { key: key.to_owned(), value });
        }
    }

    /// What the conventions for generative AI have a name for. Tokens stand here alone, so that sums count them once.
    fn generative(&mut self, record: &Record, trace: &Trace, operation: Option<&str>) {
        let server = trace.hops.last().and_then(|hop| hop.server.as_ref());
        let usage = &record.usage;
        let written = match (usage.cache_write_5m, usage.cache_write_1h) {
            (None, None) => None,
            (short, long) => Some(short.unwrap_or(0).saturating_add(long.unwrap_or(0))),
        };
        self.put("gen_ai.operation.name", operation);
        self.put("gen_ai.provider.name", server.map(|server| server.provider.as_str()));
        self.put("gen_ai.request.model", record.model.as_deref());
        self.put("gen_ai.response.model", trace.answered.as_deref());
        self.put("gen_ai.response.id", record.answer_id.as_deref());
        self.put("gen_ai.usage.input_tokens", usage.input);
        self.put("gen_ai.usage.output_tokens", usage.output);
        self.put("gen_ai.usage.cache_read.input_tokens", usage.cache_read);
        self.put("gen_ai.usage.cache_creation.input_tokens", written);
        self.put("gen_ai.usage.reasoning.output_tokens", usage.reasoning);
    }

    /// What they have none for, in the words of the access record.
    fn own(&mut self, record: &Record, charge: Option<Nano>) {
        let effective = u64::from(record.effective_status);
        self.put("weir.request_id", Some(record.id.to_string()));
        self.put("weir.client_request_id", record.client_request_id.as_deref());
        self.put("weir.upstream_request_id", record.upstream_request_id.as_deref());
        self.put("weir.endpoint", record.endpoint.map(Endpoint::word));
        self.put("weir.key", record.key.as_deref());
        self.put("weir.tag", record.tag.as_deref());
        self.put("weir.target", record.target.as_deref());
        self.put("weir.outcome", Some(record.outcome.word()));
        self.put("weir.cause", record.cause);
        self.put("weir.effective_status", (record.effective_status != record.status).then_some(effective));
        self.put("weir.stream", Some(record.stream));
        self.put("weir.ttft_ms", record.time_to_first_token().map(milliseconds));
        self.put("weir.ttfv_ms", record.time_to_first_visible_token().map(milliseconds));
        self.put("weir.overhead_ms", Some(milliseconds(record.overhead())));
        self.put("weir.bytes", Some(record.bytes));
        self.put("weir.output_events", Some(record.output_events));
        self.put("weir.keepalives", Some(record.keepalives));
        self.put("weir.source", Some(record.source.word()));
        self.put("weir.charge", charge.map(|usd| usd.to_string()));
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
