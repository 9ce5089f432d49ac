//! Renders an answer as chat completion chunks, and as those of the older text completions.

use super::answer::{Answer, End, Piece};
use super::ask::Ask;
use super::reply::{Render, data, id, set};
use crate::protocol::Endpoint;
use serde_json::{Value, json};

pub(super) struct Chat<'a> {
    ask: &'a Ask,
    answer: &'a Answer,
    id: String,
    call_id: String,
    created: u64,
    /// Whether the tool call's head went out.
    called: bool,
}

impl<'a> Chat<'a> {
    pub(super) fn new(ask: &'a Ask, answer: &'a Answer, created: u64) -> Self {
        let id = id(if ask.endpoint == Endpoint::Completions { "cmpl-" } else { "chatcmpl-" }, 29);
        Self { ask, answer, id, call_id: self::id("call_", 24), created, called: false }
    }

    fn is_text(&self) -> bool {
        self.ask.endpoint == Endpoint::Completions
    }

    fn object(&self, choices: &Value, usage: Value, whole: bool) -> Value {
        let object = match (self.is_text(), whole) {
            (true, _) => "text_completion",
            (false, true) => "chat.completion",
            (false, false) => "chat.completion.chunk",
        };
        let mut object = json!({
            "id": self.id, "object": object, "created": self.created, "model": self.ask.model,
            "choices": choices, "system_fingerprint": "fp_weir_demo",
        });
        if !self.is_text() {
            set(&mut object, "service_tier", "default");
        }
        if whole || self.ask.include_usage {
            set(&mut object, "usage", usage);
        }
        object
    }

    /// The same delta for each choice, each in a chunk of its own.
    fn chunks(&self, delta: &Value, finish: Option<&str>, out: &mut String) {
        for index in 0..self.ask.choices {
            let choice = if self.is_text() {
                json!({ "index": index, "text": delta["content"].as_str().unwrap_or_default(), "logprobs": null, "finish_reason": finish })
            } else {
                json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": finish })
            };
            data(out, &self.object(&json!([choice]), Value::Null, false));
        }
    }

    const fn finish_reason(&self) -> &'static str {
        match self.answer.end {
            End::Stop => "stop",
            End::Length => "length",
            End::Call => "tool_calls",
        }
    }

    fn usage(&self) -> Value {
        let output = self.answer.output_tokens() * self.ask.choices;
        json!({
            "prompt_tokens": self.ask.input_tokens, "completion_tokens": output,
            "total_tokens": self.ask.input_tokens + output,
            "prompt_tokens_details": { "cached_tokens": 0, "audio_tokens": 0 },
            "completion_tokens_details": {
                "reasoning_tokens": self.answer.reasoning_tokens() * self.ask.choices, "audio_tokens": 0,
                "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
            },
        })
    }

    fn tool_name(&self) -> &str {
        self.ask.tool.as_ref().map_or("", |(name, _)| name)
    }
}

impl Render for Chat<'_> {
    fn prelude(&mut self, out: &mut String) {
        if !self.is_text() {
            self.chunks(&json!({ "role": "assistant", "content": "", "refusal": null }), None, out);
        }
    }

    fn piece(&mut self, piece: &Piece, out: &mut String) {
        match piece {
            Piece::Reasoning(text) => self.chunks(&json!({ "reasoning_content": text }), None, out),
            Piece::Text(text) => self.chunks(&json!({ "content": text }), None, out),
            Piece::Call(part) => {
                if !std::mem::replace(&mut self.called, true) {
                    let head = json!({ "index": 0, "id": self.call_id, "type": "function",
                        "function": { "name": self.tool_name(), "arguments": "" } });
                    self.chunks(&json!({ "tool_calls": [head] }), None, out);
                }
                let call = json!({ "index": 0, "function": { "arguments": part } });
                self.chunks(&json!({ "tool_calls": [call] }), None, out);
            }
        }
    }

    fn end(&mut self, out: &mut String) {
        self.chunks(&json!({}), Some(self.finish_reason()), out);
        if self.ask.include_usage {
            data(out, &self.object(&json!([]), self.usage(), false));
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn failed(&mut self, overloaded: bool, out: &mut String) {
        let (message, code) = if overloaded {
            ("The engine is currently overloaded, please try again later", json!("engine_overloaded"))
        } else {
            ("The server had an error while processing your request. Sorry about that!", Value::Null)
        };
        data(out, &json!({ "error": { "message": message, "type": "server_error", "param": null, "code": code } }));
    }

    fn whole(&mut self) -> Value {
        let text = self.answer.joined(|piece| matches!(piece, Piece::Text(_)));
        let reasoning = self.answer.joined(|piece| matches!(piece, Piece::Reasoning(_)));
        let arguments = self.answer.joined(|piece| matches!(piece, Piece::Call(_)));
        let mut message = json!({ "role": "assistant", "content": text, "refusal": null, "annotations": [] });
        if !reasoning.is_empty() {
            set(&mut message, "reasoning_content", reasoning);
        }
        if !arguments.is_empty() {
            let call = json!({ "id": self.call_id, "type": "function",
                "function": { "name": self.tool_name(), "arguments": arguments } });
            set(&mut message, "tool_calls", vec![call]);
        }
        let choices = (0..self.ask.choices).map(|index| {
            if self.is_text() {
                json!({ "index": index, "text": text, "logprobs": null, "finish_reason": self.finish_reason() })
            } else {
                json!({ "index": index, "message": message, "logprobs": null, "finish_reason": self.finish_reason() })
            }
        });
        self.object(&Value::Array(choices.collect()), self.usage(), true)
    }
}
