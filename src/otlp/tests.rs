//! `traceparent` in and out, and what spans say, read with the OpenTelemetry project's own messages.

use super::context::{Server, Trace, read};
use super::export::request;
use super::span::spans;
use crate::ledger::money::Nano;
use crate::outcome::Outcome;
use crate::record::Record;
use http::{HeaderMap, HeaderValue};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use pingora_http::RequestHeader;
use prost::Message;
use std::collections::BTreeMap;

const CLIENTS: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in all {
        map.append(*name, HeaderValue::from_str(value).unwrap());
    }
    map
}

#[test]
fn w3c_a_valid_traceparent_is_read() {
    let (id, parent, flags) = read(CLIENTS.as_bytes()).unwrap();
    assert_eq!(const_hex::encode(id), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!((const_hex::encode(parent).as_str(), flags), ("b7ad6b7169203331", 1));
    let later = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff";
    assert_eq!(read(later.as_bytes()).unwrap().2, 3, "a later version, and flags that nobody knows");
    assert!(read(format!("{later}-what-is-new").as_bytes()).is_some());
}

#[test]
fn w3c_an_invalid_traceparent_is_none() {
    for bad in [
        "",
        "00",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01more",
        "00-0af7651916cd43dd8448eb211c80319-cb7ad6b7169203331-001",
        "00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01",
        "00-0xf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
    ] {
        assert_eq!(read(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn w3c_a_new_trace_begins_where_none_can_be_read() {
    for given in [&[][..], &[("traceparent", "no")], &[("traceparent", CLIENTS), ("traceparent", CLIENTS)]] {
        let mut all = given.to_vec();
        all.push(("tracestate", "a=b"));
        let trace = Trace::of(&headers(&all));
        assert!(trace.is_sampled() && trace.parent.is_none() && trace.state.is_empty(), "{given:?}");
        assert!(trace.id != [0; 16] && trace.span != [0; 8]);
        assert_ne!(trace.id, Trace::of(&headers(&all)).id);
    }
}

#[test]
fn w3c_the_attempt_is_the_upstreams_parent() {
    let up = |given: &[(&'static str, &str)]| {
        let mut trace = Trace::of(&headers(given));
        let mut head = RequestHeader::build("POST", b"/", None).unwrap();
        for (name, value) in given {
            head.append_header(*name, *value).unwrap();
        }
        trace.attempt_begins();
        trace.attempt_begins();
        trace.goes_up(server(), &mut head).unwrap();
        let last = const_hex::encode(trace.hops[1].span);
        (head.headers.get("traceparent").unwrap().to_str().unwrap().to_owned(), last, head)
    };
    let (sent, span, head) = up(&[("traceparent", CLIENTS), ("tracestate", "a=b")]);
    assert_eq!(sent, format!("00-0af7651916cd43dd8448eb211c80319c-{span}-01"));
    assert_eq!(head.headers.get("tracestate").unwrap(), "a=b");
    let (sent, _, _) = up(&[("traceparent", &CLIENTS.replace("-01", "-00"))]);
    assert!(sent.ends_with("-00"), "not recorded, passed on all the same: {sent}");
    let (_, _, head) = up(&[("traceparent", "no"), ("tracestate", "a=b")]);
    assert!(head.headers.get("tracestate").is_none(), "of a trace that nobody could read");
}

fn server() -> Server {
    Server { provider: "vllm".into(), model: Some("sol-8b".into()), address: "10.0.0.9".into(), port: 8000 }
}

/// The way of the wire.
fn told(record: &Record, trace: &Trace) -> Vec<Span> {
    let bytes = request(spans(record, trace, Some(Nano(54_399_000)))).encode_to_vec();
    let mut message = ExportTraceServiceRequest::decode(bytes.as_slice()).unwrap();
    message.resource_spans.remove(0).scope_spans.remove(0).spans
}

fn attributes(span: &Span) -> BTreeMap<String, String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::BoolValue(flag) => flag.to_string(),
        Value::IntValue(number) => number.to_string(),
        Value::DoubleValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    let value = |value: &Option<_>| -> Option<String> {
        let value: &opentelemetry_proto::tonic::common::v1::AnyValue = value.as_ref()?;
        value.value.as_ref().map(text)
    };
    span.attributes.iter().map(|pair| (pair.key.clone(), value(&pair.value).unwrap())).collect()
}

fn sample() -> (Record, Trace) {
    let mut trace = Trace::of(&headers(&[("traceparent", CLIENTS), ("tracestate", "a=b")]));
    trace.attempt_begins();
    trace.attempt_begins();
    trace.goes_up(server(), &mut RequestHeader::build("POST", b"/", None).unwrap()).unwrap();
    trace.answered_by(Some("sol-8b-2026-11-01".to_owned()));
    (Record::sample(), trace)
}

#[test]
fn otlp_a_completed_stream_with_a_failover() {
    let (record, trace) = sample();
    let all = told(&record, &trace);
    let [request, first, second] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!((request.name.as_str(), request.kind, request.flags), ("chat sol", 2, 0x301));
    assert_eq!(
        (const_hex::encode(&request.parent_span_id).as_str(), &*request.trace_state),
        ("b7ad6b7169203331", "a=b")
    );
    assert_eq!(request.start_time_unix_nano, 1_800_000_001_000_000_000);
    assert_eq!(request.end_time_unix_nano - request.start_time_unix_nano, 2_000_000_000);
    assert!(request.status.is_none());
    for (name, value) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "vllm"),
        ("gen_ai.request.model", "sol"),
        ("gen_ai.response.model", "sol-8b-2026-11-01"),
        ("gen_ai.response.id", "chatcmpl-1"),
        ("gen_ai.usage.input_tokens", "100"),
        ("gen_ai.usage.output_tokens", "21"),
        ("http.response.status_code", "200"),
        ("weir.key", "team-a"),
        ("weir.outcome", "completed"),
        ("weir.ttft_ms", "400"),
        ("weir.charge", "0.054399000"),
    ] {
        assert_eq!(attributes(request).get(name).map(String::as_str), Some(value), "{name}");
    }
    assert_eq!((first.name.as_str(), first.kind, first.flags), ("chat", 3, 0x101), "it never had a server");
    assert_eq!(first.status.as_ref().map(|status| (status.code, status.message.as_str())), Some((2, "connect")));
    assert_eq!((second.name.as_str(), second.status.is_none()), ("chat sol-8b", true));
    assert_eq!(attributes(second)["server.port"], "8000");
    assert!(all.iter().all(|span| span.trace_id == request.trace_id));
    assert!(all[1..].iter().all(|span| span.parent_span_id == request.span_id));
}

#[test]
fn otlp_a_clients_own_fault_is_no_error_of_the_server() {
    let (mut record, trace) = sample();
    let mut status = |outcome, cause, status: u16| {
        (record.outcome, record.cause) = (outcome, Some(cause));
        (record.status, record.effective_status) = (status, status);
        let span = told(&record, &trace).remove(0);
        (span.status.as_ref().map(|status| status.code), attributes(&span).get("error.type").cloned())
    };
    let word = |word: &str| Some(word.to_owned());
    assert_eq!(status(Outcome::Rejected, "invalid_api_key", 401), (None, word("invalid_api_key")));
    assert_eq!(status(Outcome::Stalled, "idle", 504), (Some(2), word("idle")));
    assert_eq!(status(Outcome::ClientGone, "client_gone", 200), (None, None));
}
