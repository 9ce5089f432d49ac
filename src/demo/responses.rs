//! Renders an answer as OpenAI's response events.

use super::answer::{Answer, End, Piece};
use super::ask::Ask;
use super::reply::{Render, event, id, set};
use serde_json::{Value, json};

/// The kinds of output item, in the order in which they come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call,
}

struct Item {
    kind: Kind,
    id: String,
    call_id: String,
    text: String,
}

pub(super) struct Responses<'a> {
    ask: &'a Ask,
    answer: &'a Answer,
    id: String,
    created: u64,
    sequence: u64,
    open: Option<Item>,
    done: Vec<Value>,
}

impl<'a> Responses<'a> {
    pub(super) fn new(ask: &'a Ask, answer: &'a Answer, created: u64) -> Self {
        Self { ask, answer, id: id("resp_", 48), created, sequence: 0, open: None, done: Vec::new() }
    }

    /// Writes one event with the next sequence number.
    fn event(&mut self, mut value: Value, out: &mut String) {
        set(&mut value, "sequence_number", self.sequence);
        self.sequence += 1;
        event(out, &value);
    }

    /// Writes one event about the open item.
    fn about(&mut self, kind: &str, item: &Item, members: Value, out: &mut String) {
        let mut value = json!({ "type": kind, "item_id": item.id, "output_index": self.done.len() });
        if let (Value::Object(value), Value::Object(members)) = (&mut value, members) {
            value.extend(members);
        }
        self.event(value, out);
    }

    fn item(&self, item: &Item, status: &str) -> Value {
        let begun = !item.text.is_empty();
        match item.kind {
            Kind::Reasoning => {
                let summary = if begun { vec![json!({ "type": "summary_text", "text": item.text })] } else { vec![] };
                json!({ "id": item.id, "type": "reasoning", "summary": summary })
            }
            Kind::Message => {
                let content = if begun { vec![text_part(&item.text)] } else { vec![] };
                json!({ "id": item.id, "type": "message", "status": status, "role": "assistant", "content": content })
            }
            Kind::Call => {
                let name = self.ask.tool.as_ref().map_or("", |(name, _)| name);
                json!({ "id": item.id, "type": "function_call", "status": status, "call_id": item.call_id,
                    "name": name, "arguments": item.text })
            }
        }
    }

    /// The open item, of this kind: the one before it is closed first.
    fn open(&mut self, kind: Kind, out: &mut String) -> Item {
        if let Some(item) = self.open.take_if(|item| item.kind == kind) {
            return item;
        }
        self.close("completed", out);
        let prefix = match kind {
            Kind::Reasoning => "rs_",
            Kind::Message => "msg_",
            Kind::Call => "fc_",
        };
        let item = Item { kind, id: id(prefix, 48), call_id: id("call_", 24), text: String::new() };
        let (added, index) = (self.item(&item, "in_progress"), self.done.len());
        self.event(json!({ "type": "response.output_item.added", "output_index": index, "item": added }), out);
        match kind {
            Kind::Reasoning => {
                let part = json!({ "summary_index": 0, "part": { "type": "summary_text", "text": "" } });
                self.about("response.reasoning_summary_part.added", &item, part, out);
            }
            Kind::Message => {
                let part = json!({ "content_index": 0, "part": text_part("") });
                self.about("response.content_part.added", &item, part, out);
            }
            Kind::Call => {}
        }
        item
    }

    fn close(&mut self, status: &str, out: &mut String) {
        let Some(item) = self.open.take() else { return };
        match item.kind {
            Kind::Reasoning => {
                let text = json!({ "summary_index": 0, "text": item.text });
                self.about("response.reasoning_summary_text.done", &item, text, out);
                let part = json!({ "summary_index": 0, "part": { "type": "summary_text", "text": item.text } });
                self.about("response.reasoning_summary_part.done", &item, part, out);
            }
            Kind::Message => {
                let text = json!({ "content_index": 0, "logprobs": [], "text": item.text });
                self.about("response.output_text.done", &item, text, out);
                let part = json!({ "content_index": 0, "part": text_part(&item.text) });
                self.about("response.content_part.done", &item, part, out);
            }
            Kind::Call => {
                let name = self.ask.tool.as_ref().map_or("", |(name, _)| name);
                let arguments = json!({ "name": name, "arguments": item.text });
                self.about("response.function_call_arguments.done", &item, arguments, out);
            }
        }
        let (done, index) = (self.item(&item, status), self.done.len());
        self.event(json!({ "type": "response.output_item.done", "output_index": index, "item": done }), out);
        self.done.push(done);
    }

    /// The response object as it stands now.
    fn response(&self, status: &str, error: &Value) -> Value {
        let body = |name: &str, default: Value| self.ask.body.get(name).cloned().unwrap_or(default);
        let finished = matches!(status, "completed" | "incomplete");
        let details = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "background": false,
            "completed_at": (status == "completed").then_some(self.created), "error": error,
            "incomplete_details": details, "instructions": body("instructions", Value::Null),
            "max_output_tokens": body("max_output_tokens", Value::Null), "model": self.ask.model, "output": self.done,
            "parallel_tool_calls": true, "previous_response_id": body("previous_response_id", Value::Null),
            "reasoning": { "effort": null, "summary": null }, "service_tier": "default",
            "store": body("store", json!(true)), "temperature": 1.0,
            "text": { "format": { "type": "text" }, "verbosity": "medium" },
            "tool_choice": body("tool_choice", json!("auto")), "tools": body("tools", json!([])), "top_p": 1.0,
            "truncation": "disabled", "usage": finished.then(|| self.usage()), "user": null,
            "metadata": body("metadata", json!({})),
        })
    }

    fn usage(&self) -> Value {
        let (input, output) = (self.ask.input_tokens, self.answer.output_tokens());
        json!({
            "input_tokens": input, "input_tokens_details": { "cached_tokens": 0 }, "output_tokens": output,
            "output_tokens_details": { "reasoning_tokens": self.answer.reasoning_tokens() },
            "total_tokens": input + output,
        })
    }

    const fn final_status(&self) -> &'static str {
        match self.answer.end {
            End::Stop | End::Call => "completed",
            End::Length => "incomplete",
        }
    }
}

fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "annotations": [], "logprobs": [], "text": text })
}

impl Render for Responses<'_> {
    fn prelude(&mut self, out: &mut String) {
        for kind in ["response.created", "response.in_progress"] {
            let response = self.response("in_progress", &Value::Null);
            self.event(json!({ "type": kind, "response": response }), out);
        }
    }

    fn piece(&mut self, piece: &Piece, out: &mut String) {
        let (kind, name, mut members) = match piece {
            Piece::Reasoning(_) => {
                (Kind::Reasoning, "response.reasoning_summary_text.delta", json!({ "summary_index": 0 }))
            }
            Piece::Text(_) => {
                (Kind::Message, "response.output_text.delta", json!({ "content_index": 0, "logprobs": [] }))
            }
            Piece::Call(_) => (Kind::Call, "response.function_call_arguments.delta", json!({})),
        };
        let mut item = self.open(kind, out);
        set(&mut members, "delta", piece.text());
        self.about(name, &item, members, out);
        item.text.push_str(piece.text());
        self.open = Some(item);
    }

    fn end(&mut self, out: &mut String) {
        let status = self.final_status();
        self.close(status, out);
        let response = self.response(status, &Value::Null);
        self.event(json!({ "type": format!("response.{status}"), "response": response }), out);
    }

    /// Overload comes as an `error` event, other faults as `response.failed`: OpenAI sends both.
    fn failed(&mut self, overloaded: bool, out: &mut String) {
        if overloaded {
            let message = "Our servers are currently overloaded. Please try again later.";
            let error = json!({ "type": "error", "code": "server_is_overloaded", "message": message, "param": null });
            self.event(error, out);
            return;
        }
        let message = "The server had an error processing your request. Sorry about that!";
        let response = self.response("failed", &json!({ "code": "server_error", "message": message }));
        self.event(json!({ "type": "response.failed", "response": response }), out);
    }

    fn whole(&mut self) -> Value {
        let answer = self.answer;
        let mut unsent = String::new();
        for piece in &answer.pieces {
            self.piece(piece, &mut unsent);
            unsent.clear();
        }
        self.close(self.final_status(), &mut unsent);
        self.response(self.final_status(), &Value::Null)
    }
}
