//! What a request asks the scripted model for, read from its JSON body.
//!
//! Called once per request. Touches only the body: no socket, no clock. A tree of values is
//! fine here: this is an upstream, not the gateway's own path.

use crate::protocol::{Endpoint, Protocol};
use serde_json::{Map, Value, json};

/// Choices of one chat request that are answered; more are not needed to show anything.
const MAX_CHOICES: u64 = 8;
/// Words of the user's message that the answer repeats.
const QUOTED_WORDS: usize = 8;

/// One request, understood.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) endpoint: Endpoint,
    pub(super) model: String,
    pub(super) stream: bool,
    /// `stream_options.include_usage` (chat).
    pub(super) include_usage: bool,
    /// Generated tokens at most.
    pub(super) max_tokens: Option<u64>,
    /// `n` (chat).
    pub(super) choices: u64,
    /// The first words of the last user message.
    pub(super) quote: String,
    /// Bytes of all strings of the prompt, four to a token.
    pub(super) input_tokens: u64,
    /// The tool that is to be called, with its arguments as JSON text.
    pub(super) tool: Option<(String, String)>,
    /// The whole body, for what only one endpoint needs.
    pub(super) body: Value,
}

impl Ask {
    /// Reads a body; `None` if it is no JSON object.
    pub(super) fn read(endpoint: Endpoint, body: &[u8]) -> Option<Self> {
        let body = serde_json::from_slice::<Value>(body).ok().filter(Value::is_object)?;
        let model = body.get("model").and_then(Value::as_str).unwrap_or("demo").to_owned();
        let user = last_user_text(endpoint, &body);
        let prompt = ["messages", "input", "system", "instructions", "prompt", "tools"];
        let prompt_bytes: u64 = prompt.iter().filter_map(|name| body.get(*name)).map(string_bytes).sum();
        let max_tokens = ["max_completion_tokens", "max_output_tokens", "max_tokens"];
        Some(Self {
            endpoint,
            stream: endpoint.streams() && body.get("stream").and_then(Value::as_bool).unwrap_or(false),
            include_usage: body.pointer("/stream_options/include_usage").and_then(Value::as_bool).unwrap_or(false),
            max_tokens: max_tokens.iter().find_map(|name| body.get(*name).and_then(Value::as_u64)),
            choices: body.get("n").and_then(Value::as_u64).unwrap_or(1).clamp(1, MAX_CHOICES),
            quote: user.split_whitespace().take(QUOTED_WORDS).collect::<Vec<_>>().join(" "),
            input_tokens: prompt_bytes.div_ceil(4).max(1),
            tool: tool(endpoint, &body, &model, &user),
            model,
            body,
        })
    }

    /// Whose events and errors the answer speaks.
    pub(super) const fn protocol(&self) -> Protocol {
        self.endpoint.protocol()
    }
}

/// The messages or items of a request; empty where it has none.
fn turns(endpoint: Endpoint, body: &Value) -> &[Value] {
    let name = if endpoint.protocol() == Protocol::Responses { "input" } else { "messages" };
    body.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn last_user_text(endpoint: Endpoint, body: &Value) -> String {
    let from_user = |turn: &&Value| turn.get("role").and_then(Value::as_str) == Some("user");
    match turns(endpoint, body).iter().rev().find(from_user) {
        Some(turn) => turn.get("content").map(text).unwrap_or_default(),
        None => ["input", "prompt"].iter().find_map(|name| body.get(*name)).map(text).unwrap_or_default(),
    }
}

/// The text of a content: a string, a list of parts, or one part.
fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(text).collect::<Vec<_>>().join(" "),
        Value::Object(part) => part.get("text").map(text).unwrap_or_default(),
        Value::Null | Value::Bool(_) | Value::Number(_) => String::new(),
    }
}

fn string_bytes(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.len() as u64,
        Value::Array(values) => values.iter().map(string_bytes).sum(),
        Value::Object(members) => members.values().map(string_bytes).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// The first tool, when the model is one that calls tools or the user speaks of one, and the last
/// turn is not already a tool's answer (it would never end).
fn tool(endpoint: Endpoint, body: &Value, model: &str, user: &str) -> Option<(String, String)> {
    let wanted = model.split('-').any(|word| word == "tools") || user.to_lowercase().contains("tool");
    let forbidden = body.get("tool_choice").is_some_and(|choice| choice == "none" || choice["type"] == "none");
    if !wanted || forbidden || turns(endpoint, body).last().is_some_and(answers_a_tool) {
        return None;
    }
    body.get("tools")?.as_array()?.iter().find_map(|tool| {
        let tool = tool.get("function").unwrap_or(tool);
        let name = tool.get("name")?.as_str()?;
        let schema = tool.get("parameters").or_else(|| tool.get("input_schema")).unwrap_or(&Value::Null);
        Some((name.to_owned(), arguments(schema).to_string()))
    })
}

fn answers_a_tool(turn: &Value) -> bool {
    let parts = turn.get("content").and_then(Value::as_array);
    turn["role"] == "tool"
        || turn["type"] == "function_call_output"
        || parts.is_some_and(|parts| parts.iter().any(|part| part["type"] == "tool_result"))
}

/// A value for each property of a tool's schema, of the right type.
fn arguments(schema: &Value) -> Value {
    let properties = schema.get("properties").and_then(Value::as_object);
    let filled = properties.into_iter().flatten().map(|(name, schema)| {
        let value = match (schema.pointer("/enum/0"), schema["type"].as_str()) {
            (Some(first), _) => first.clone(),
            (None, Some("number" | "integer")) => json!(1),
            (None, Some("boolean")) => json!(true),
            (None, Some("array")) => json!([]),
            (None, Some("object")) => arguments(schema),
            (None, _) => json!("demo"),
        };
        (name.clone(), value)
    });
    Value::Object(filled.collect::<Map<_, _>>())
}
