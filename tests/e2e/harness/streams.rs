//! The streams of CASES.md, the request bodies that ask for them, and what to do with received bytes.

use bytes::Bytes;

/// Paths of the three protocols.
pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const RESPONSES: &str = "/v1/responses";
pub(crate) const MESSAGES: &str = "/v1/messages";

/// Weir's keepalive with the default text and style.
pub(crate) const KEEPALIVE: &str = ": weir-keepalive\n\n";

/// One of the three protocols, with all that a test over all three needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dialect {
    pub(crate) name: &'static str,
    pub(crate) path: &'static str,
    /// A whole good stream.
    pub(crate) ok: fn() -> String,
    /// Its input and output tokens.
    pub(crate) tokens: (u64, u64),
    /// How many of its events come before the first output.
    pub(crate) prelude: usize,
    /// A good JSON answer with the same tokens.
    pub(crate) json: fn() -> String,
}

impl Dialect {
    pub(crate) const ALL: [Self; 3] = [
        Self { name: "chat", path: CHAT, ok: chat_ok, tokens: (12, 2), prelude: 1, json: chat_json },
        Self { name: "responses", path: RESPONSES, ok: resp_ok, tokens: (20, 5), prelude: 3, json: resp_json },
        Self { name: "messages", path: MESSAGES, ok: msg_ok, tokens: (25, 15), prelude: 2, json: msg_json },
    ];

    /// A request body for a stream.
    pub(crate) fn ask(self) -> String {
        match self.name {
            "chat" => r#"{"model":"public-model","stream":true,"messages":[{"role":"user","content":"hi"}]}"#.into(),
            "responses" => r#"{"model":"public-model","stream":true,"input":"hi"}"#.into(),
            _ => {
                let messages = r#"[{"role":"user","content":"hi"}]"#;
                format!(r#"{{"model":"public-model","max_tokens":100,"stream":true,"messages":{messages}}}"#)
            }
        }
    }

    /// A request body for a JSON answer.
    pub(crate) fn ask_json(self) -> String {
        self.ask().replace(r#""stream":true,"#, "")
    }

    /// The events of `ok`, each with its blank line.
    pub(crate) fn events(self) -> Vec<String> {
        events((self.ok)().as_bytes())
    }

    /// What a client that did not ask for usage gets of `ok`.
    pub(crate) fn seen(self) -> String {
        self.events().into_iter().filter(|event| !is_usage_chunk(event)).collect()
    }

    /// `ok` up to and with its first output.
    pub(crate) fn begun(self) -> String {
        self.events()[..=self.prelude].concat()
    }

    /// `ok` before its first output.
    pub(crate) fn before(self) -> String {
        self.events()[..self.prelude].concat()
    }
}

/// Chat requests: not asking for usage, and asking.
pub(crate) const CHAT_ASK: &str =
    r#"{"model":"public-model","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
pub(crate) const CHAT_ASK_USAGE: &str =
    r#"{"model":"public-model","stream":true,"stream_options":{"include_usage":true},"messages":[]}"#;

pub(crate) const CHAT_ROLE: &str = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"upstream-model\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n";
pub(crate) const CHAT_FINISH: &str = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"upstream-model\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
pub(crate) const CHAT_USAGE: &str = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"upstream-model\",\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":2,\"total_tokens\":14}}\n\n";
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// E2: what Weir adds to a chat stream that breaks off.
pub(crate) const CHAT_INTERRUPTED: &str = "data: {\"error\":{\"message\":\"Stream interrupted\",\"type\":\"api_error\",\"code\":\"stream_interrupted\"}}\n\ndata: [DONE]\n\n";

/// A chat chunk with some text.
pub(crate) fn chat_delta(text: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"upstream-model\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":{}}},\"finish_reason\":null}}]}}\n\n",
        serde_json::Value::from(text)
    )
}

/// CHAT-OK: role, "Hel", "lo", finish, usage 12/2, `[DONE]`.
pub(crate) fn chat_ok() -> String {
    [CHAT_ROLE, &chat_delta("Hel"), &chat_delta("lo"), CHAT_FINISH, CHAT_USAGE, DONE].concat()
}

/// CHAT-OK as a client sees it that did not ask for usage.
pub(crate) fn chat_seen() -> String {
    [CHAT_ROLE, &chat_delta("Hel"), &chat_delta("lo"), CHAT_FINISH, DONE].concat()
}

fn chat_json() -> String {
    r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"upstream-model","choices":[{"index":0,"message":{"role":"assistant","content":"Hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":2,"total_tokens":14}}"#.into()
}

/// An event with its `event:` line, named after the `type` in its data.
pub(crate) fn typed(data: &str) -> String {
    let kind =
        serde_json::from_str::<serde_json::Value>(data).expect("JSON")["type"].as_str().expect("a type").to_owned();
    format!("event: {kind}\ndata: {data}\n\n")
}

/// MSG-OK: input 25, output 15.
pub(crate) fn msg_ok() -> String {
    [
        msg_start(r#"{"input_tokens":25,"output_tokens":1}"#),
        typed(r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#),
        typed(r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hel"}}"#),
        typed(r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"lo"}}"#),
        typed(r#"{"type":"content_block_stop","index":0}"#),
        msg_delta(r#"{"output_tokens":15}"#),
        typed(r#"{"type":"message_stop"}"#),
    ]
    .concat()
}

pub(crate) fn msg_start(usage: &str) -> String {
    typed(&format!(
        r#"{{"type":"message_start","message":{{"id":"msg_1","type":"message","role":"assistant","model":"upstream-model","content":[],"stop_reason":null,"stop_sequence":null,"usage":{usage}}}}}"#
    ))
}

pub(crate) fn msg_delta(usage: &str) -> String {
    typed(&format!(
        r#"{{"type":"message_delta","delta":{{"stop_reason":"end_turn","stop_sequence":null}},"usage":{usage}}}"#
    ))
}

/// MSG-OK with other usage at its start and end.
pub(crate) fn msg_with(start: &str, deltas: &[&str]) -> String {
    let ok = Dialect::ALL[2].events();
    let mut stream = msg_start(start) + &ok[1..5].concat();
    for delta in deltas {
        stream += &msg_delta(delta);
    }
    stream + &ok[6]
}

fn msg_json() -> String {
    r#"{"id":"msg_1","type":"message","role":"assistant","model":"upstream-model","content":[{"type":"text","text":"Hello"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":25,"output_tokens":15}}"#.into()
}

/// RESP-OK: input 20 of which 8 cached, output 5.
pub(crate) fn resp_ok() -> String {
    resp_with(
        "completed",
        r#"{"input_tokens":20,"input_tokens_details":{"cached_tokens":8},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":25}"#,
    )
}

/// RESP-OK with another terminal event and usage (or `null`).
pub(crate) fn resp_with(end: &str, usage: &str) -> String {
    let head = r#""id":"resp_abc","object":"response","created_at":1,"model":"upstream-model""#;
    let open = format!(r#"{{{head},"status":"in_progress","output":[]}}"#);
    let over = format!(r#"{{{head},"status":"{end}","output":[],"usage":{usage}}}"#);
    let delta = r#""type":"response.output_text.delta","item_id":"msg_1","output_index":0,"content_index":0"#;
    [
        typed(&format!(r#"{{"type":"response.created","sequence_number":0,"response":{open}}}"#)),
        typed(&format!(r#"{{"type":"response.in_progress","sequence_number":1,"response":{open}}}"#)),
        typed(r#"{"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"id":"msg_1","type":"message","status":"in_progress","role":"assistant","content":[]}}"#),
        typed(&format!(r#"{{{delta},"sequence_number":3,"delta":"Hel"}}"#)),
        typed(&format!(r#"{{{delta},"sequence_number":4,"delta":"lo"}}"#)),
        typed(&format!(r#"{{"type":"response.{end}","sequence_number":5,"response":{over}}}"#)),
    ]
    .concat()
}

fn resp_json() -> String {
    r#"{"id":"resp_abc","object":"response","created_at":1,"model":"upstream-model","status":"completed","output":[{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"Hello","annotations":[]}]}],"usage":{"input_tokens":20,"input_tokens_details":{"cached_tokens":8},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":25}}"#.into()
}

/// A stream that ends its lines with LF, cut into events; what is left over is the last one.
pub(crate) fn events(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
    text.split_inclusive("\n\n").map(str::to_owned).collect()
}

/// Whether an event is one that U1 drops: usage, no or empty choices, no error, no filter result.
pub(crate) fn is_usage_chunk(event: &str) -> bool {
    let data: Vec<_> = event
        .lines()
        .filter_map(|line| line.strip_prefix("data:"))
        .map(|data| data.strip_prefix(' ').unwrap_or(data))
        .collect();
    let Ok(value) = serde_json::from_str::<serde_json::Value>(&data.join("\n")) else { return false };
    let none = |name: &str| value.get(name).is_none_or(serde_json::Value::is_null);
    let empty = value.get("choices").is_none_or(|choices| choices.as_array().is_some_and(Vec::is_empty));
    value.get("type").is_none()
        && value.get("usage").is_some_and(serde_json::Value::is_object)
        && empty
        && none("error")
        && none("prompt_filter_results")
        && none("content_filter_results")
}

/// Received bytes without Weir's own keepalives, and how many those were.
pub(crate) fn without_keepalives(bytes: &[u8]) -> (String, usize) {
    let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (text.replace(KEEPALIVE, ""), text.matches(KEEPALIVE).count())
}

/// The data of an event as JSON.
pub(crate) fn data(event: &str) -> serde_json::Value {
    let line = event.lines().find_map(|line| line.strip_prefix("data:")).expect("a data line");
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"))
}

/// As `Bytes`, to compare without lifetimes.
pub(crate) fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}
