//! Plans the whole reply to one request: status, headers, and the steps of the body.
//!
//! Called by the server part, which only carries the plan out. Touches no socket; the time of
//! creation is given.

use super::answer::{Answer, Fault, Piece};
use super::ask::Ask;
use super::chat::Chat;
use super::messages::Messages;
use super::responses::Responses;
use crate::protocol::{Endpoint, Protocol};
use base64::Engine;
use serde_json::{Value, json};
use std::time::Duration;

/// Small, since nobody searches with it; real ones have 1,536 and more.
const EMBEDDING_DIMENSIONS: u64 = 256;
/// One write at most, as servers do.
const WRITE_BYTES: usize = 16 * 1024;

/// One protocol's way to write an answer down.
pub(super) trait Render {
    /// What comes before the first content.
    fn prelude(&mut self, out: &mut String);
    /// One piece, with whatever opens and closes around it.
    fn piece(&mut self, piece: &Piece, out: &mut String);
    /// The regular end.
    fn end(&mut self, out: &mut String);
    /// The protocol's own error event.
    fn failed(&mut self, overloaded: bool, out: &mut String);
    /// The answer as one JSON object.
    fn whole(&mut self) -> Value;
}

/// One step of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Send(String),
    Wait(Duration),
    /// Nothing more, for ever.
    Hang,
    /// The connection breaks.
    Cut,
}

/// The plan of a reply.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) before_head: Duration,
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    /// Bytes of the whole body; `None`: chunks.
    pub(super) length: Option<usize>,
    pub(super) steps: Vec<Step>,
}

impl Reply {
    /// The plan for a request to one of the endpoints.
    pub(super) fn to(endpoint: Endpoint, body: &[u8], created: u64) -> Self {
        let Some(ask) = Ask::read(endpoint, body) else {
            return Self::error(endpoint.protocol(), 400, "The body is not a JSON object.");
        };
        let answer = Answer::to(&ask);
        let mut reply = match answer.fault {
            Some(Fault::Status(status)) => {
                let message = format!("The model {} answers every request with this error.", ask.model);
                Self::error(endpoint.protocol(), status, &message)
            }
            _ => match endpoint {
                Endpoint::Chat | Endpoint::Completions => {
                    Self::answered(&ask, &answer, &mut Chat::new(&ask, &answer, created))
                }
                Endpoint::Responses => Self::answered(&ask, &answer, &mut Responses::new(&ask, &answer, created)),
                Endpoint::Messages => Self::answered(&ask, &answer, &mut Messages::new(&ask, &answer)),
                Endpoint::Embeddings => Self::json(200, &embeddings(&ask)),
                Endpoint::CountTokens => Self::json(200, &json!({ "input_tokens": ask.input_tokens })),
                Endpoint::InputTokens => {
                    let count = json!({ "object": "response.input_tokens", "input_tokens": ask.input_tokens });
                    Self::json(200, &count)
                }
            },
        };
        reply.before_head += answer.before_head;
        reply.identify(endpoint.protocol());
        reply
    }

    /// The list of models, in the shape of whoever asks.
    pub(super) fn models(anthropic: bool, created: u64) -> Self {
        let models = [
            "demo",
            "demo-fast",
            "demo-slow",
            "demo-silent",
            "demo-quiet",
            "demo-stall",
            "demo-cut",
            "demo-dies",
            "demo-error",
            "demo-overloaded",
            "demo-429",
            "demo-500",
            "demo-400",
            "demo-big",
            "demo-burst",
            "demo-tools",
            "demo-thinking",
        ];
        let model = |id: &&str| {
            if anthropic {
                json!({ "type": "model", "id": id, "display_name": id, "created_at": "2026-01-01T00:00:00Z" })
            } else {
                json!({ "id": id, "object": "model", "created": created, "owned_by": "weir" })
            }
        };
        let data = models.iter().map(model).collect::<Vec<_>>();
        if anthropic {
            let (first, last) = (models.first(), models.last());
            return Self::json(200, &json!({ "data": data, "has_more": false, "first_id": first, "last_id": last }));
        }
        Self::json(200, &json!({ "object": "list", "data": data }))
    }

    /// An error in a protocol's envelope.
    pub(super) fn error(protocol: Protocol, status: u16, message: &str) -> Self {
        let body = match protocol {
            Protocol::Messages => {
                let kind = match status {
                    401 => "authentication_error",
                    402 => "billing_error",
                    403 => "permission_error",
                    404 => "not_found_error",
                    413 => "request_too_large",
                    429 => "rate_limit_error",
                    529 => "overloaded_error",
                    400..500 => "invalid_request_error",
                    _ => "api_error",
                };
                json!({ "type": "error", "error": { "type": kind, "message": message }, "request_id": id("req_01", 22) })
            }
            Protocol::Chat | Protocol::Responses => {
                let (kind, code) = match status {
                    401 => ("invalid_request_error", Some("invalid_api_key")),
                    429 => ("requests", Some("rate_limit_exceeded")),
                    503 | 529 => ("server_error", Some("engine_overloaded")),
                    400..500 => ("invalid_request_error", None),
                    _ => ("server_error", None),
                };
                json!({ "error": { "message": message, "type": kind, "param": null, "code": code } })
            }
        };
        let mut reply = Self::json(status, &body);
        if status == 429 {
            reply.headers.push(("retry-after", "1".to_owned()));
        }
        reply
    }

    fn json(status: u16, body: &Value) -> Self {
        let body = body.to_string();
        Self {
            before_head: Duration::ZERO,
            status,
            headers: vec![("content-type", "application/json".to_owned())],
            length: Some(body.len()),
            steps: vec![Step::Send(body)],
        }
    }

    fn answered(ask: &Ask, answer: &Answer, render: &mut dyn Render) -> Self {
        if ask.stream {
            return Self {
                before_head: Duration::ZERO,
                status: 200,
                headers: vec![("content-type", "text/event-stream; charset=utf-8".to_owned())],
                length: None,
                steps: merged(steps(answer, render)),
            };
        }
        let mut reply = match answer.fault {
            Some(Fault::Error) => Self::error(ask.protocol(), 500, "The server had an error."),
            Some(Fault::Overloaded) if ask.protocol() == Protocol::Messages => {
                Self::error(Protocol::Messages, 529, "Overloaded")
            }
            Some(Fault::Overloaded) => Self::error(ask.protocol(), 503, "The engine is currently overloaded."),
            Some(Fault::Stall | Fault::Cut | Fault::Dies | Fault::Status(_)) | None => Self::json(200, &render.whole()),
        };
        reply.before_head = answer.duration();
        match answer.fault {
            Some(Fault::Stall) => reply.before_head = Duration::MAX,
            Some(Fault::Dies) => reply.steps = vec![Step::Cut],
            Some(Fault::Cut) => {
                if let Some(Step::Send(body)) = reply.steps.first_mut() {
                    halve(body);
                }
                reply.steps.push(Step::Cut);
            }
            Some(Fault::Error | Fault::Overloaded | Fault::Status(_)) | None => {}
        }
        reply
    }

    /// The headers by which providers name a request.
    fn identify(&mut self, protocol: Protocol) {
        match protocol {
            Protocol::Chat | Protocol::Responses => {
                self.headers.push(("x-request-id", id("req_", 32)));
                self.headers.push(("openai-version", "2020-10-01".to_owned()));
                self.headers.push(("openai-processing-ms", self.before_head.as_millis().to_string()));
            }
            Protocol::Messages => self.headers.push(("request-id", id("req_01", 22))),
        }
    }
}

/// The body of a stream, one step after the other.
fn steps(answer: &Answer, render: &mut dyn Render) -> Vec<Step> {
    let mut steps = Vec::new();
    if answer.fault == Some(Fault::Overloaded) {
        return vec![written(|out| render.failed(true, out))];
    }
    steps.push(written(|out| render.prelude(out)));
    if answer.fault == Some(Fault::Dies) {
        steps.push(Step::Wait(answer.silence));
        steps.push(Step::Cut);
        return steps;
    }
    for (at, piece) in answer.pieces.iter().enumerate() {
        steps.push(Step::Wait(if at == 0 { answer.before_first } else { answer.before_each }));
        if at == answer.turning_point() {
            steps.push(Step::Wait(answer.silence));
            match answer.fault {
                Some(Fault::Stall) => {
                    steps.push(Step::Hang);
                    return steps;
                }
                Some(Fault::Error) => {
                    steps.push(written(|out| render.failed(false, out)));
                    return steps;
                }
                Some(Fault::Cut) => {
                    steps.push(written(|out| {
                        render.piece(piece, out);
                        halve(out);
                    }));
                    steps.push(Step::Cut);
                    return steps;
                }
                Some(Fault::Dies | Fault::Overloaded | Fault::Status(_)) | None => {}
            }
        }
        steps.push(written(|out| render.piece(piece, out)));
    }
    steps.push(written(|out| render.end(out)));
    steps
}

fn written(write: impl FnOnce(&mut String)) -> Step {
    let mut out = String::new();
    write(&mut out);
    Step::Send(out)
}

/// Drops waits of no length and joins what then stands side by side, up to one write.
fn merged(steps: Vec<Step>) -> Vec<Step> {
    let mut merged: Vec<Step> = Vec::new();
    for step in steps {
        match (step, merged.last_mut()) {
            (Step::Wait(Duration::ZERO), _) => {}
            (Step::Send(more), Some(Step::Send(text))) if text.len() + more.len() <= WRITE_BYTES => {
                text.push_str(&more);
            }
            (step, _) => merged.push(step),
        }
    }
    merged
}

/// Keeps the first half of a text, cut between two characters.
fn halve(text: &mut String) {
    text.truncate(text.floor_char_boundary(text.len() / 2));
}

/// Vectors that depend only on the text, as floats or in base64 as OpenAI's SDKs ask for.
fn embeddings(ask: &Ask) -> Value {
    let dimensions = ask.body.get("dimensions").and_then(Value::as_u64).unwrap_or(EMBEDDING_DIMENSIONS).clamp(1, 4096);
    let base64 = ask.body.get("encoding_format").is_some_and(|format| format == "base64");
    let inputs = match ask.body.get("input") {
        Some(Value::Array(inputs)) if !inputs.first().is_some_and(Value::is_number) => inputs.clone(),
        Some(input) => vec![input.clone()],
        None => vec![],
    };
    let embedding = |(index, input): (usize, &Value)| {
        let seed = input.to_string().bytes().fold(7_u64, |seed, byte| seed.wrapping_mul(31) ^ u64::from(byte));
        let mut random = fastrand::Rng::with_seed(seed);
        let vector = (0..dimensions).map(|_| random.f32() - 0.5).collect::<Vec<_>>();
        let vector = if base64 {
            let bytes = vector.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
            json!(base64::engine::general_purpose::STANDARD.encode(bytes))
        } else {
            json!(vector)
        };
        json!({ "object": "embedding", "index": index, "embedding": vector })
    };
    let data = inputs.iter().enumerate().map(embedding).collect::<Vec<_>>();
    let usage = json!({ "prompt_tokens": ask.input_tokens, "total_tokens": ask.input_tokens });
    json!({ "object": "list", "data": data, "model": ask.model, "usage": usage })
}

/// Sets a member of an object.
pub(super) fn set(object: &mut Value, name: &str, value: impl Into<Value>) {
    if let Some(members) = object.as_object_mut() {
        members.insert(name.to_owned(), value.into());
    }
}

/// Writes a data-only event.
pub(super) fn data(out: &mut String, value: &Value) {
    out.push_str("data: ");
    out.push_str(&value.to_string());
    out.push_str("\n\n");
}

/// Writes an event named by its own `type`.
pub(super) fn event(out: &mut String, value: &Value) {
    out.push_str("event: ");
    out.push_str(value.get("type").and_then(Value::as_str).unwrap_or_default());
    out.push('\n');
    data(out, value);
}

/// A new id: the prefix, then random letters and digits.
pub(super) fn id(prefix: &str, length: usize) -> String {
    let mut id = prefix.to_owned();
    id.extend((0..length).map(|_| fastrand::alphanumeric()));
    id
}
