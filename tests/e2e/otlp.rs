//! Traces: what an OTLP receiver gets over a real socket, read with the OpenTelemetry project's own messages.

use crate::harness::*;
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A receiver of OTLP over gRPC; gone when dropped.
struct Receiver {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<Span>>>,
    task: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    async fn start() -> Self {
        Self::listen(TcpListener::bind("127.0.0.1:0").await.expect("a free port"))
    }

    fn listen(listener: TcpListener) -> Self {
        let address = listener.local_addr().expect("an address");
        let spans = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&spans);
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, Arc::clone(&into)));
            }
        });
        Self { address, spans, task }
    }

    /// Behind TLS, with HTTP/2 by ALPN alone.
    async fn start_tls(pki: &Pki) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (spans, acceptor) = (Arc::new(Mutex::new(Vec::new())), pki.acceptor(&[b"h2"]));
        let into = Arc::clone(&spans);
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (into, acceptor) = (Arc::clone(&into), acceptor.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(socket).await else { return };
                    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
                    serve(stream, into).await;
                });
            }
        });
        Self { address, spans, task }
    }

    fn section(&self) -> String {
        format!("otlp: {{ endpoint: \"http://{}\", enabled: true }}", self.address)
    }

    async fn spans(&self, count: usize) -> Vec<Span> {
        until("spans", || self.spans.lock().unwrap().len() >= count).await;
        self.spans.lock().unwrap().clone()
    }
}

async fn serve(socket: impl AsyncRead + AsyncWrite + Unpin, into: Arc<Mutex<Vec<Span>>>) {
    let Ok(mut connection) = h2::server::handshake(socket).await else { return };
    while let Some(Ok((request, mut answer))) = connection.accept().await {
        let into = Arc::clone(&into);
        tokio::spawn(async move {
            let (head, mut body) = request.into_parts();
            assert_eq!(head.uri.path(), "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
            assert_eq!(
                (&head.headers["content-type"], &head.headers["te"]),
                (&"application/grpc".parse().unwrap(), &"trailers".parse().unwrap())
            );
            let mut bytes = Vec::new();
            while let Some(chunk) = body.data().await {
                let chunk = chunk.expect("a whole message");
                body.flow_control().release_capacity(chunk.len()).unwrap();
                bytes.extend_from_slice(&chunk);
            }
            assert_eq!(bytes[0], 0);
            assert_eq!(u32::from_be_bytes(bytes[1..5].try_into().unwrap()) as usize, bytes.len() - 5);
            let message = ExportTraceServiceRequest::decode(&bytes[5..]).expect("OTLP");
            for resource in message.resource_spans {
                let service = text(&resource.resource.expect("a resource").attributes);
                assert_eq!(service["service.name"], "weir");
                into.lock().unwrap().extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
            let head = http::Response::builder().header("content-type", "application/grpc").body(()).unwrap();
            let mut body = answer.send_response(head, false).unwrap();
            let said = ExportTraceServiceResponse::default().encode_to_vec();
            let length = u32::try_from(said.len()).unwrap().to_be_bytes();
            body.send_data([&[0], &length[..], &said].concat().into(), false).unwrap();
            body.send_trailers(http::HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]))
                .unwrap();
        });
    }
}

fn text(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let value = |value: &Option<AnyValue>| match value.as_ref().and_then(|value| value.value.as_ref()).expect("a value")
    {
        Value::StringValue(text) => text.clone(),
        Value::BoolValue(flag) => flag.to_string(),
        Value::IntValue(number) => number.to_string(),
        Value::DoubleValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(|pair| (pair.key.clone(), value(&pair.value))).collect()
}

fn hex(bytes: &[u8]) -> String {
    const_hex::encode(bytes)
}

fn pairs(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn otlp_a_failover_is_one_request_with_two_attempts_in_the_clients_trace() {
    let receiver = Receiver::start().await;
    let first = Upstream::start(Reply::json(500, "{}")).await;
    let second = Upstream::start(Reply::stream(chat_ok().replace("upstream-model", "dated"))).await;
    let setup = Setup::new(&first.url())
        .target(&second.url(), "")
        .defaults("retry: { attempts: 2 }")
        .section(&receiver.section());
    let weir = setup.start().await;
    let traceparent = format!("00-{TRACE}-{PARENT}-01");
    let secret = format!("Bearer {KEY}");
    let with = [("authorization", &*secret), ("traceparent", &traceparent), ("tracestate", "shop=1")];
    let ask = CHAT_ASK.replace("\"hi\"", "\"my-prompt\"");
    let answer = weir.post_with(CHAT, &with, &ask).await;
    assert_eq!(answer.status(), 200);
    let spans = receiver.spans(3).await;
    let of = |kind: i32| spans.iter().filter(move |span| span.kind == kind).collect::<Vec<_>>();
    let (requests, attempts) = (of(2), of(3));
    assert_eq!((requests.len(), attempts.len()), (1, 2), "{spans:?}");
    let request = requests[0];
    assert_eq!((hex(&request.trace_id).as_str(), hex(&request.parent_span_id).as_str()), (TRACE, PARENT));
    assert_eq!((request.name.as_str(), request.trace_state.as_str()), ("chat public-model", "shop=1"));
    let mut told = text(&request.attributes);
    for name in ["weir.ttft_ms", "weir.ttfv_ms", "weir.overhead_ms"] {
        assert!(told.remove(name).expect(name).parse::<f64>().expect("a number") >= 0.0, "{name}");
    }
    assert_eq!(told.remove("weir.request_id").as_deref(), Some(answer.id()));
    assert!(told.remove("weir.bytes").is_some());
    assert!(told.remove("weir.charge").is_none_or(|usd| usd.starts_with("0.")));
    let expected = [
        ("client.address", "127.0.0.1"),
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "up2"),
        ("gen_ai.request.model", "public-model"),
        ("gen_ai.response.id", "chatcmpl-1"),
        ("gen_ai.response.model", "dated"),
        ("gen_ai.usage.input_tokens", "12"),
        ("gen_ai.usage.output_tokens", "2"),
        ("http.request.method", "POST"),
        ("http.response.status_code", "200"),
        ("http.route", CHAT),
        ("weir.cause", "done"),
        ("weir.endpoint", "chat"),
        ("weir.key", "test"),
        ("weir.keepalives", "0"),
        ("weir.outcome", "completed"),
        ("weir.output_events", "2"),
        ("weir.source", "reported"),
        ("weir.stream", "true"),
        ("weir.target", "up2/upstream-model"),
    ];
    let cause = told.get("weir.cause").cloned().expect("a cause");
    let mut expected = pairs(&expected);
    expected.insert("weir.cause".to_owned(), cause);
    assert_eq!(told, expected);
    for (at, (upstream, result, status)) in [(&first, "status", "500"), (&second, "ok", "200")].into_iter().enumerate()
    {
        let span = attempts[at];
        assert_eq!((&span.trace_id, &span.parent_span_id), (&request.trace_id, &request.span_id));
        let seen = upstream.request(0).await;
        let sent = format!("00-{TRACE}-{}-01", hex(&span.span_id));
        assert_eq!(seen.header("traceparent"), Some(&*sent), "the upstream's parent is the attempt");
        assert_eq!(seen.header("tracestate"), Some("shop=1"));
        let (port, provider) = (upstream.address.port().to_string(), ["up", "up2"][at]);
        let target = format!("{provider}/upstream-model");
        let mut expected = pairs(&[
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.provider.name", provider),
            ("gen_ai.request.model", "upstream-model"),
            ("http.request.method", "POST"),
            ("http.response.status_code", status),
            ("server.address", "127.0.0.1"),
            ("server.port", &port),
            ("weir.maybe_billed", "false"),
            ("weir.result", result),
            ("weir.target", &target),
        ]);
        if result != "ok" {
            expected.insert("error.type".to_owned(), result.to_owned());
        }
        assert_eq!(text(&span.attributes), expected);
        assert!(request.start_time_unix_nano <= span.start_time_unix_nano);
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
        assert!(span.end_time_unix_nano <= request.end_time_unix_nano);
    }
    let all = format!("{spans:?}");
    for content in ["my-prompt", "Hel", "provider-key", KEY] {
        assert!(!all.contains(content), "{content} in {all}");
    }
}

#[tokio::test]
async fn otlp_what_the_client_does_not_record_is_passed_on_and_not_sent() {
    let receiver = Receiver::start().await;
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let setup = Setup::new(&upstream.url()).server("drain_delay: 10ms").section(&receiver.section());
    let weir = setup.start().await;
    let secret = format!("Bearer {KEY}");
    let unsampled = format!("00-{TRACE}-{PARENT}-00");
    weir.post_with(CHAT, &[("authorization", &secret), ("traceparent", &unsampled)], CHAT_ASK).await;
    weir.post_with(CHAT, &[("authorization", &secret), ("traceparent", "nonsense")], CHAT_ASK).await;
    let sent = upstream.request(0).await.header("traceparent").expect("passed on").to_owned();
    assert!(sent.starts_with(&format!("00-{TRACE}-")) && sent.ends_with("-00") && !sent.contains(PARENT), "{sent}");
    // The end of the process sends what is left, at once.
    assert!(weir.stop().await);
    let spans = receiver.spans(2).await;
    assert_eq!(spans.len(), 2, "{spans:?}");
    assert!(spans.iter().all(|span| hex(&span.trace_id) != TRACE), "a new trace instead of an invalid one");
    assert!(spans[0].parent_span_id.is_empty());
}

#[tokio::test]
async fn otlp_a_receiver_that_is_away_costs_no_stream() {
    let address = free_address();
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let section = format!("otlp: {{ endpoint: \"http://{address}\", enabled: true }}");
    let weir = Setup::new(&upstream.url()).section(&section).start().await;
    for _ in 0..20 {
        assert_eq!(weir.post(CHAT, CHAT_ASK).await.text(), chat_seen());
    }
    until("the log to say so", || weir.said().contains("spans cannot be sent to the OTLP receiver")).await;
    assert_eq!(weir.metric("weir_otlp_dropped_spans_total", &[]).await, 0.0, "they wait");
    // It comes back and gets all of them.
    let receiver = Receiver::listen(TcpListener::bind(address).await.expect("the same port"));
    receiver.spans(40).await;
}

#[tokio::test]
async fn otlp_a_receiver_behind_tls_gets_spans_if_its_certificate_is_of_a_known_authority() {
    let (pki, other) = (Pki::new(), Pki::new());
    let (receiver, stranger) = (Receiver::start_tls(&pki).await, Receiver::start_tls(&other).await);
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let folder = tempfile::tempdir().unwrap();
    let [ca, ..] = pki.write(folder.path());
    let setup = |receiver: &Receiver| {
        let port = receiver.address.port();
        Setup::new(&upstream.url())
            .section(&format!("otlp: {{ endpoint: \"https://localhost:{port}\", enabled: true }}"))
            // The system's roots are, for this process, the one in that file.
            .env("SSL_CERT_FILE", &ca.display().to_string())
    };
    let (one, two) = (setup(&receiver).start().await, setup(&stranger).start().await);
    let answer = two.post(CHAT, CHAT_ASK).await;
    assert_eq!(answer.status(), 200, "no request waits for a receiver");
    let answer = one.post(CHAT, CHAT_ASK).await;
    let spans = receiver.spans(2).await;
    let request = spans.iter().find(|span| span.kind == 2).expect("a request");
    assert_eq!(text(&request.attributes)["weir.request_id"], answer.id());
    assert!(stranger.spans.lock().unwrap().is_empty());
}
