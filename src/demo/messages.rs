//! Renders an answer as Anthropic's message events.

use super::answer::{Answer, End, Piece};
use super::ask::Ask;
use super::reply::{Render, event, id};
use serde_json::{Value, json};

/// The kinds of content block, in the order in which they come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    ToolUse,
}

pub(super) struct Messages<'a> {
    ask: &'a Ask,
    answer: &'a Answer,
    id: String,
    tool_id: String,
    signature: String,
    open: Option<Block>,
    /// Of the open block, or of the next one.
    index: u64,
}

impl<'a> Messages<'a> {
    pub(super) fn new(ask: &'a Ask, answer: &'a Answer) -> Self {
        let (id, tool_id, signature) = (id("msg_01", 22), id("toolu_01", 22), id("EqQB", 64));
        Self { ask, answer, id, tool_id, signature, open: None, index: 0 }
    }

    fn empty(&self, block: Block) -> Value {
        match block {
            Block::Thinking => json!({ "type": "thinking", "thinking": "", "signature": "" }),
            Block::Text => json!({ "type": "text", "text": "" }),
            Block::ToolUse => json!({ "type": "tool_use", "id": self.tool_id, "name": self.tool_name(), "input": {} }),
        }
    }

    fn tool_name(&self) -> &str {
        self.ask.tool.as_ref().map_or("", |(name, _)| name)
    }

    fn open(&mut self, block: Block, out: &mut String) {
        if self.open == Some(block) {
            return;
        }
        self.close(out);
        self.open = Some(block);
        event(out, &json!({ "type": "content_block_start", "index": self.index, "content_block": self.empty(block) }));
        if self.index == 0 {
            event(out, &json!({ "type": "ping" }));
        }
    }

    fn delta(&self, delta: &Value, out: &mut String) {
        event(out, &json!({ "type": "content_block_delta", "index": self.index, "delta": delta }));
    }

    fn close(&mut self, out: &mut String) {
        let Some(block) = self.open.take() else { return };
        if block == Block::Thinking {
            self.delta(&json!({ "type": "signature_delta", "signature": self.signature }), out);
        }
        event(out, &json!({ "type": "content_block_stop", "index": self.index }));
        self.index += 1;
    }

    const fn stop_reason(&self) -> &'static str {
        match self.answer.end {
            End::Stop => "end_turn",
            End::Length => "max_tokens",
            End::Call => "tool_use",
        }
    }

    fn usage(&self, output: u64) -> Value {
        json!({
            "input_tokens": self.ask.input_tokens, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            "cache_creation": { "ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0 },
            "output_tokens": output, "service_tier": "standard",
        })
    }

    fn message(&self, content: &[Value], stop_reason: Option<&str>, output: u64) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.ask.model, "content": content,
            "stop_reason": stop_reason, "stop_sequence": null, "usage": self.usage(output),
        })
    }
}

impl Render for Messages<'_> {
    fn prelude(&mut self, out: &mut String) {
        event(out, &json!({ "type": "message_start", "message": self.message(&[], None, 1) }));
    }

    fn piece(&mut self, piece: &Piece, out: &mut String) {
        match piece {
            Piece::Reasoning(text) => {
                self.open(Block::Thinking, out);
                self.delta(&json!({ "type": "thinking_delta", "thinking": text }), out);
            }
            Piece::Text(text) => {
                self.open(Block::Text, out);
                self.delta(&json!({ "type": "text_delta", "text": text }), out);
            }
            Piece::Call(part) => {
                self.open(Block::ToolUse, out);
                self.delta(&json!({ "type": "input_json_delta", "partial_json": part }), out);
            }
        }
    }

    fn end(&mut self, out: &mut String) {
        self.close(out);
        event(
            out,
            &json!({
                "type": "message_delta", "delta": { "stop_reason": self.stop_reason(), "stop_sequence": null },
                "usage": self.usage(self.answer.output_tokens()),
            }),
        );
        event(out, &json!({ "type": "message_stop" }));
    }

    fn failed(&mut self, overloaded: bool, out: &mut String) {
        let (kind, message) =
            if overloaded { ("overloaded_error", "Overloaded") } else { ("api_error", "Internal server error") };
        event(out, &json!({ "type": "error", "error": { "type": kind, "message": message }, "request_id": null }));
    }

    fn whole(&mut self) -> Value {
        let mut content = Vec::new();
        let thinking = self.answer.joined(|piece| matches!(piece, Piece::Reasoning(_)));
        if !thinking.is_empty() {
            content.push(json!({ "type": "thinking", "thinking": thinking, "signature": self.signature }));
        }
        let text = self.answer.joined(|piece| matches!(piece, Piece::Text(_)));
        if !text.is_empty() {
            content.push(json!({ "type": "text", "text": text }));
        }
        let input = self.answer.joined(|piece| matches!(piece, Piece::Call(_)));
        if let Ok(input) = serde_json::from_str::<Value>(&input) {
            content.push(json!({ "type": "tool_use", "id": self.tool_id, "name": self.tool_name(), "input": input }));
        }
        self.message(&content, Some(self.stop_reason()), self.answer.output_tokens())
    }
}
