//! What clients and SDKs rely on, event by event, and the server over a real socket.

use super::Demo;
use super::answer::Answer;
use super::ask::Ask;
use super::reply::{Reply, Step};
use crate::meter::usage::Source;
use crate::meter::{Facts, Finish, Meter};
use crate::protocol::Endpoint;
use crate::sse::Scanner;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// The three protocols' endpoints and a body that each understands.
const ENDPOINTS: [Endpoint; 3] = [Endpoint::Chat, Endpoint::Responses, Endpoint::Messages];

fn body(endpoint: Endpoint, model: &str) -> Value {
    let turns = json!([{ "role": "user", "content": "Hello out there, how are you today my friend?" }]);
    let name = if endpoint == Endpoint::Responses { "input" } else { "messages" };
    json!({ "model": model, "stream": true, "max_tokens": 100_000, name: turns,
        "stream_options": { "include_usage": true } })
}

fn reply(endpoint: Endpoint, body: &Value) -> Reply {
    Reply::to(endpoint, body.to_string().as_bytes(), 1_700_000_000)
}

fn sent(reply: &Reply) -> String {
    let text = |step: &Step| match step {
        Step::Send(text) => Some(text.clone()),
        Step::Wait(_) | Step::Hang | Step::Cut => None,
    };
    reply.steps.iter().filter_map(text).collect()
}

/// The JSON of each event, in order; `[DONE]` as a string. Checks the frame of each.
fn events(text: &str) -> Vec<Value> {
    assert!(text.is_empty() || text.ends_with("\n\n"), "ends inside an event: {text}");
    let event = |block: &str| {
        let data = match block.split_once('\n') {
            Some((name, data)) => {
                let data = data.strip_prefix("data: ").unwrap();
                let value: Value = serde_json::from_str(data).unwrap();
                assert_eq!(name.strip_prefix("event: "), value["type"].as_str());
                data
            }
            None => block.strip_prefix("data: ").unwrap(),
        };
        if data == "[DONE]" { json!(data) } else { serde_json::from_str(data).unwrap() }
    };
    text.split_terminator("\n\n").map(event).collect()
}

fn streamed(endpoint: Endpoint, model: &str) -> Vec<Value> {
    events(&sent(&reply(endpoint, &body(endpoint, model))))
}

fn types(events: &[Value]) -> Vec<&str> {
    let mut types = events.iter().map(|event| event["type"].as_str().unwrap()).collect::<Vec<_>>();
    types.dedup();
    types
}

fn text(events: &[Value], pointer: &str) -> String {
    events.iter().filter_map(|event| event.pointer(pointer)?.as_str()).collect()
}

#[test]
fn chat_stream_is_what_the_sdk_expects() {
    let events = streamed(Endpoint::Chat, "demo-fast");
    let (done, events) = events.split_last().unwrap();
    assert_eq!(done, "[DONE]");
    assert_eq!(events[0].pointer("/choices/0/delta/role").unwrap(), "assistant");
    assert!(text(events, "/choices/0/delta/content").starts_with("You said: Hello out there, how are you today my."));
    let (usage, events) = events.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], events.len() - 2);
    let finish = events.iter().filter(|event| !event["choices"][0]["finish_reason"].is_null()).collect::<Vec<_>>();
    assert_eq!(finish.len(), 1);
    assert_eq!(finish[0]["choices"][0]["finish_reason"], "stop");
    for event in events {
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!(event["id"], events[0]["id"]);
        assert_eq!(event.get("usage"), Some(&Value::Null));
    }
}

#[test]
fn u1_chat_usage_only_when_asked() {
    let mut body = body(Endpoint::Chat, "demo-fast");
    for not_asked in [Value::Null, json!({ "include_usage": false }), json!({ "include_usage": null })] {
        body["stream_options"] = not_asked;
        let events = events(&sent(&reply(Endpoint::Chat, &body)));
        assert!(events.iter().all(|event| event.get("usage").is_none()));
    }
}

#[test]
fn responses_stream_is_what_the_sdk_expects() {
    let events = streamed(Endpoint::Responses, "demo-thinking-fast");
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], at);
    }
    assert_eq!(
        types(&events),
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.reasoning_summary_part.added",
            "response.reasoning_summary_text.delta",
            "response.reasoning_summary_text.done",
            "response.reasoning_summary_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let response = &events.last().unwrap()["response"];
    let texts = events.iter().filter(|event| event["type"] == "response.output_text.delta").cloned();
    let texts = text(&texts.collect::<Vec<_>>(), "/delta");
    assert_eq!(response["output"][1]["content"][0]["text"], texts);
    assert_eq!(response["output"][0]["type"], "reasoning");
    let (usage, deltas) = (&response["usage"], events.iter().filter(|event| event.get("delta").is_some()).count());
    assert_eq!(usage["output_tokens"], deltas);
    assert!(usage["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 5);
    assert_eq!(usage["total_tokens"].as_u64().unwrap(), usage["input_tokens"].as_u64().unwrap() + deltas as u64);
}

#[test]
fn messages_stream_is_what_the_sdk_expects() {
    let events = streamed(Endpoint::Messages, "demo-thinking-fast");
    assert_eq!(
        types(&events),
        [
            "message_start",
            "content_block_start",
            "ping",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let thought = events.iter().filter(|event| event["index"] == 0).collect::<Vec<_>>();
    assert_eq!(thought[0]["content_block"]["type"], "thinking");
    assert_eq!(thought[thought.len() - 2]["delta"]["type"], "signature_delta");
    assert!(text(&events, "/delta/text").starts_with("You said: Hello"));
    let end = &events[events.len() - 2];
    assert_eq!(end["delta"]["stop_reason"], "end_turn");
    assert_eq!(end["usage"]["input_tokens"], events[0]["message"]["usage"]["input_tokens"]);
    let pieces = ["/delta/text", "/delta/thinking"].map(|at| events.iter().filter(|e| e.pointer(at).is_some()).count());
    assert_eq!(end["usage"]["output_tokens"], pieces[0] + pieces[1]);
}

#[test]
fn tools_are_called_with_whole_json_arguments_and_only_once() {
    let schema = json!({ "type": "object", "properties": {
        "city": { "type": "string" }, "days": { "type": "integer" }, "unit": { "enum": ["c", "f"] } } });
    let expected = json!({ "city": "demo", "days": 1, "unit": "c" });
    for endpoint in ENDPOINTS {
        let mut body = body(endpoint, "demo-tools-fast");
        let result = match endpoint {
            Endpoint::Chat => {
                body["tools"] =
                    json!([{ "type": "function", "function": { "name": "weather", "parameters": schema } }]);
                json!({ "role": "tool", "tool_call_id": "x", "content": "rain" })
            }
            Endpoint::Responses => {
                body["tools"] = json!([{ "type": "function", "name": "weather", "parameters": schema }]);
                json!({ "type": "function_call_output", "call_id": "x", "output": "rain" })
            }
            _ => {
                body["tools"] = json!([{ "name": "weather", "input_schema": schema }]);
                json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "x", "content": "rain" }] })
            }
        };
        let streamed = events(&sent(&reply(endpoint, &body)));
        let (arguments, name) = match endpoint {
            Endpoint::Chat => {
                let at = "/choices/0/delta/tool_calls/0/function";
                (text(&streamed, &format!("{at}/arguments")), text(&streamed, &format!("{at}/name")))
            }
            Endpoint::Responses => {
                let call = &streamed.last().unwrap()["response"]["output"][1];
                (call["arguments"].as_str().unwrap().to_owned(), call["name"].as_str().unwrap().to_owned())
            }
            _ => (text(&streamed, "/delta/partial_json"), text(&streamed, "/content_block/name")),
        };
        assert_eq!(serde_json::from_str::<Value>(&arguments).unwrap(), expected, "{endpoint:?}");
        assert_eq!(name, "weather", "{endpoint:?}");
        let turns = if endpoint == Endpoint::Responses { "input" } else { "messages" };
        body[turns].as_array_mut().unwrap().push(result);
        let again = sent(&reply(endpoint, &body));
        for call in ["\"tool_calls\"", "function_call_arguments", "\"tool_use\""] {
            assert!(!again.contains(call), "{endpoint:?}: {again}");
        }
    }
}

#[test]
fn whole_replies_equal_streamed_ones() {
    for endpoint in ENDPOINTS {
        let mut body = body(endpoint, "demo-thinking-fast");
        let stream = events(&sent(&reply(endpoint, &body)));
        body["stream"] = json!(false);
        let reply = reply(endpoint, &body);
        let text_sent = sent(&reply);
        assert_eq!((reply.status, reply.length), (200, Some(text_sent.len())));
        let whole: Value = serde_json::from_str(&text_sent).unwrap();
        let same = |whole_at: &str, streamed: Value| assert_eq!(whole.pointer(whole_at), Some(&streamed), "{whole_at}");
        match endpoint {
            Endpoint::Chat => {
                same("/choices/0/message/content", json!(text(&stream, "/choices/0/delta/content")));
                let reasoning = text(&stream, "/choices/0/delta/reasoning_content");
                same("/choices/0/message/reasoning_content", json!(reasoning));
                same("/usage", stream[stream.len() - 2]["usage"].clone());
            }
            Endpoint::Responses => {
                let response = &stream.last().unwrap()["response"];
                same("/usage", response["usage"].clone());
                same("/output/1/content", response["output"][1]["content"].clone());
                same("/output/0/summary", response["output"][0]["summary"].clone());
            }
            _ => {
                same("/content/0/thinking", json!(text(&stream, "/delta/thinking")));
                same("/content/1/text", json!(text(&stream, "/delta/text")));
                same("/usage", stream[stream.len() - 2]["usage"].clone());
            }
        }
    }
}

#[test]
fn token_limits_truncate_and_say_so() {
    for (endpoint, limit) in [
        (Endpoint::Chat, "max_completion_tokens"),
        (Endpoint::Responses, "max_output_tokens"),
        (Endpoint::Messages, "max_tokens"),
    ] {
        let mut body = body(endpoint, "demo-fast");
        body[limit] = json!(5);
        let events = events(&sent(&reply(endpoint, &body)));
        let end = match endpoint {
            Endpoint::Chat => events[events.len() - 3].pointer("/choices/0/finish_reason"),
            Endpoint::Responses => events.last().unwrap().pointer("/type"),
            _ => events[events.len() - 2].pointer("/delta/stop_reason"),
        };
        let expected = match endpoint {
            Endpoint::Chat => "length",
            Endpoint::Responses => "response.incomplete",
            _ => "max_tokens",
        };
        assert_eq!(end.unwrap(), expected);
    }
}

#[test]
fn faults_stop_where_their_names_say() {
    for endpoint in ENDPOINTS {
        let plan = |model: &str| reply(endpoint, &body(endpoint, model)).steps;
        assert_eq!(plan("demo-fast-stall").last(), Some(&Step::Hang));
        let [Step::Send(prelude), Step::Cut] = &plan("demo-fast-dies")[..] else { panic!("not only a prelude") };
        assert!(matches!(&plan("demo-silent-dies")[..], [Step::Send(_), Step::Wait(_), Step::Cut]));
        assert!((1..=2).contains(&events(prelude).len()));
        let [Step::Send(overloaded)] = &plan("demo-fast-overloaded")[..] else { panic!("more than an error") };
        assert!(overloaded.contains("verloaded"));
        let [Step::Send(cut), Step::Cut] = &plan("demo-fast-cut")[..] else { panic!("not cut") };
        assert!(!cut.ends_with('\n') && cut.contains("said"));
        let failed = streamed(endpoint, "demo-fast-error");
        let error = failed.last().unwrap();
        assert!(error.get("error").is_some() || error["response"]["status"] == "failed", "{error}");
        assert!(failed.len() > 6);
        for (model, status) in [("demo-429", 429), ("demo-500", 500), ("demo-400", 400)] {
            let reply = reply(endpoint, &body(endpoint, model));
            assert_eq!(reply.status, status);
            assert_eq!(reply.headers.iter().any(|(name, _)| *name == "retry-after"), status == 429);
            let body: Value = serde_json::from_str(&sent(&reply)).unwrap();
            assert_eq!(body["type"] == "error", endpoint == Endpoint::Messages);
            assert!(body["error"]["message"].is_string());
        }
    }
}

#[test]
fn paces_are_what_their_names_say() {
    let waits = |model: &str| {
        let reply = reply(Endpoint::Chat, &body(Endpoint::Chat, model));
        let wait = |step: &Step| if let Step::Wait(time) = step { Some(*time) } else { None };
        (reply.before_head, reply.steps.iter().filter_map(wait).collect::<Vec<_>>())
    };
    let (head, normal) = waits("demo");
    assert!(head.is_zero() && (150..300).contains(&normal[0].as_millis()));
    assert!(normal.len() > 50 && normal[1..].iter().all(|wait| (17..33).contains(&wait.as_millis())));
    assert_eq!(waits("demo-slow").1[0], Duration::from_secs(5));
    assert_eq!(waits("demo-quiet").0, Duration::from_secs(8));
    assert_eq!(waits("demo-silent").1.iter().filter(|wait| wait.as_secs() == 8).count(), 1);
    assert_eq!(waits("demo-fast"), (Duration::ZERO, vec![]));
}

#[test]
fn big_and_burst_are_as_large_as_promised() {
    for endpoint in ENDPOINTS {
        let burst = streamed(endpoint, "demo-burst");
        assert!(burst.len() > 20_000);
        let big = sent(&reply(endpoint, &body(endpoint, "demo-fast-big")));
        assert!(big.split("\n\n").any(|event| event.len() > 1024 * 1024));
    }
}

#[test]
fn embeddings_in_floats_and_base64_are_the_same_numbers() {
    use base64::Engine;
    let mut body = json!({ "model": "demo", "input": ["one", "two"], "dimensions": 3 });
    let floats: Value = serde_json::from_str(&sent(&reply(Endpoint::Embeddings, &body))).unwrap();
    body["encoding_format"] = json!("base64");
    let packed: Value = serde_json::from_str(&sent(&reply(Endpoint::Embeddings, &body))).unwrap();
    assert_eq!(floats["data"].as_array().unwrap().len(), 2);
    assert_ne!(floats["data"][0]["embedding"], floats["data"][1]["embedding"]);
    let bytes = base64::engine::general_purpose::STANDARD.decode(packed["data"][1]["embedding"].as_str().unwrap());
    let unpacked =
        bytes.unwrap().chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect::<Vec<_>>();
    assert_eq!(json!(unpacked), floats["data"][1]["embedding"]);
}

#[test]
fn any_json_is_answered_without_panic() {
    for endpoint in Endpoint::ALL {
        for body in ["", "[]", "{}", r#"{"model":1,"messages":3,"input":{},"tools":[{}],"n":-1,"max_tokens":0}"#] {
            for stream in [true, false] {
                let body = body.replacen('{', &format!("{{\"stream\":{stream},"), 1).replace(",}", "}");
                let reply = Reply::to(endpoint, body.as_bytes(), 0);
                assert!([200, 400].contains(&reply.status));
            }
        }
    }
}

/// Reads a plan's body with the gateway's own scanner and meter, as the relay does.
fn metered(endpoint: Endpoint, model: &str) -> (Meter, Vec<Facts>) {
    let sent = sent(&reply(endpoint, &body(endpoint, model)));
    let mut scanner = Scanner::new(16 * 1024 * 1024);
    let block = scanner.push(sent.into()).unwrap();
    let mut meter = Meter::new(endpoint.protocol(), Some(1));
    let facts = scanner.spans().iter().map(|span| meter.event(&block.bytes, span)).collect();
    (meter, facts)
}

#[test]
fn the_gateways_own_meter_understands_every_stream() {
    for endpoint in ENDPOINTS {
        for model in ["demo-fast", "demo-thinking-fast", "demo-burst", "demo-fast-big"] {
            let (meter, facts) = metered(endpoint, model);
            let case = format!("{endpoint:?} {model}");
            assert!(!facts.iter().any(|facts| facts.malformed || facts.error), "{case}");
            assert_eq!(facts.iter().filter(|facts| facts.terminal).count(), 1, "{case}");
            assert!(facts.last().unwrap().terminal, "{case}");
            assert_eq!((meter.finish(), meter.anomalies()), (Some(Finish::Stop), 0), "{case}");
            assert_eq!(meter.source(), Source::Reported, "{case}");
            let ask = Ask::read(endpoint, body(endpoint, model).to_string().as_bytes()).unwrap();
            let answer = Answer::to(&ask);
            let usage = meter.usage();
            assert_eq!(usage.input, Some(ask.input_tokens), "{case}");
            assert_eq!(usage.output, Some(answer.output_tokens()), "{case}");
            if endpoint != Endpoint::Messages {
                assert_eq!(usage.reasoning, Some(answer.reasoning_tokens()), "{case}");
            }
            // Reasoning shows before the answer's text, never the other way round.
            let shown = |facts: &&Facts| facts.output;
            assert_eq!(facts.iter().find(shown).unwrap().visible, !model.contains("thinking"), "{case}");
        }
        for (model, output) in [("demo-fast-error", true), ("demo-fast-overloaded", false)] {
            let (meter, facts) = metered(endpoint, model);
            assert!(facts.last().unwrap().error && facts.last().unwrap().terminal, "{endpoint:?} {model}");
            assert!(meter.error().is_some());
            assert_eq!(facts.iter().any(|facts| facts.output), output, "{endpoint:?} {model}");
        }
        let (_, facts) = metered(endpoint, "demo-fast-dies");
        assert!(facts.iter().all(|facts| !facts.output && !facts.finish && !facts.terminal), "{endpoint:?} dies");
    }
}

/// A running model; dropping the sender stops it.
fn start() -> (std::net::SocketAddr, watch::Sender<bool>) {
    let (demo, address) = Demo::bind().unwrap();
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(demo.serve(stopped));
    (address, stop)
}

async fn ask(socket: &mut TcpStream, head: &str, body: &str) {
    let request = format!("{head} HTTP/1.1\r\nhost: demo\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    socket.write_all(request.as_bytes()).await.unwrap();
}

/// Reads until the text arrives, or the end.
async fn read_until(socket: &mut TcpStream, end: &str) -> String {
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).ends_with(end) {
        if socket.read_buf(&mut text).await.unwrap() == 0 {
            break;
        }
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let (address, _stop) = start();
    let mut socket = TcpStream::connect(address).await.unwrap();
    for endpoint in ENDPOINTS {
        ask(&mut socket, &format!("POST {}", endpoint.path()), &body(endpoint, "demo-fast").to_string()).await;
        let answer = read_until(&mut socket, "0\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(
            answer.contains("content-type: text/event-stream") || answer.contains("Content-Type: text/event-stream")
        );
        assert!(answer.contains("Hello"));
    }
    ask(&mut socket, "GET /v1/models", "").await;
    assert!(read_until(&mut socket, "\"list\"}").await.contains("demo-thinking"));
    ask(&mut socket, "GET /nowhere", "").await;
    assert!(read_until(&mut socket, "}}").await.starts_with("HTTP/1.1 404"));
}

#[tokio::test]
async fn a_cut_stream_ends_without_its_last_chunk() {
    let (address, _stop) = start();
    let mut socket = TcpStream::connect(address).await.unwrap();
    ask(&mut socket, "POST /v1/messages", &body(Endpoint::Messages, "demo-fast-cut").to_string()).await;
    let answer = read_until(&mut socket, "0\r\n\r\n").await;
    assert!(answer.contains("message_start") && !answer.contains("message_stop"));
    assert!(!answer.ends_with("0\r\n\r\n"));
}

#[tokio::test]
async fn the_head_of_a_slow_stream_comes_at_once() {
    let (address, _stop) = start();
    // A machine that stalls spoils a try.
    for _ in 0..10 {
        let mut socket = TcpStream::connect(address).await.unwrap();
        ask(&mut socket, "POST /v1/responses", &body(Endpoint::Responses, "demo-slow").to_string()).await;
        let head = tokio::time::timeout(Duration::from_secs(2), read_until(&mut socket, "\n\n\r\n")).await;
        if let Ok(head) = head {
            assert!(head.contains("response.created"));
            return;
        }
    }
    panic!("not within two seconds, each time");
}

#[tokio::test]
async fn shutdown_ends_stalled_streams_too() {
    let (demo, address) = Demo::bind().unwrap();
    let (stop, stopped) = watch::channel(false);
    let server = tokio::spawn(demo.serve(stopped));
    let mut socket = TcpStream::connect(address).await.unwrap();
    ask(&mut socket, "POST /v1/chat/completions", &body(Endpoint::Chat, "demo-fast-stall").to_string()).await;
    read_until(&mut socket, "\n\n\r\n").await;
    stop.send(true).unwrap();
    server.await.unwrap().unwrap();
    assert_eq!(socket.read(&mut [0; 16]).await.unwrap_or(0), 0);
}
