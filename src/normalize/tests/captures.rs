//! Every recorded stream in its normal form: its shape, its words, its usage.

use super::{ALL, Normal, SHAPE, Settings, asked, endpoint, events, json, normal_of, shared};
use crate::meter::Meter;
use crate::meter::usage::Usage;
use crate::normalize::Repairs;
use crate::normalize::repair::PRIVATE;
use crate::protocol::Protocol;
use crate::sse::Scanner;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Recording {
    file: String,
    protocol: String,
    provider: String,
}

struct Capture {
    name: String,
    provider: String,
    protocol: Protocol,
    bytes: Vec<u8>,
}

fn captures() -> Vec<Capture> {
    let Some(index) = shared::read("captures/index.json") else { return Vec::new() };
    let index: Vec<Recording> = serde_json::from_slice(&index).unwrap();
    let capture = |recording: Recording| Capture {
        bytes: shared::read(&format!("captures/{}", recording.file)).unwrap(),
        protocol: Protocol::ALL.into_iter().find(|protocol| protocol.word() == recording.protocol).unwrap(),
        name: recording.file,
        provider: recording.provider,
    };
    index.into_iter().map(capture).collect()
}

impl Capture {
    fn normal(&self, settings: Settings, include_usage: bool) -> Normal {
        normal_of(settings, &asked(endpoint(self.protocol), include_usage), [&self.bytes[..]])
    }
}

/// Settings under which streams are looked at: one shape only, and everything with and without usage asked.
const WAYS: [(Settings, bool); 3] = [(SHAPE, true), (ALL, true), (ALL, false)];

fn each(mut check: impl FnMut(&str, &Capture, Settings, bool, &Normal)) {
    for capture in captures() {
        for (settings, include_usage) in WAYS {
            let normal = capture.normal(settings, include_usage);
            let name = format!("{} ({settings:?}, usage {include_usage})", capture.name);
            check(&name, &capture, settings, include_usage, &normal);
        }
    }
}

/// What a client hears: the choice or index, what kind of thing it is, and its words. Reads raw and normal forms.
fn said(protocol: Protocol, stream: &[u8]) -> Vec<(u64, &'static str, String)> {
    let mut out = Vec::new();
    for (_, data) in events(stream).iter().filter(|(_, data)| data != "[DONE]") {
        let event = json(data);
        let index = |value: &Value, name: &str| value[name].as_u64().unwrap_or(0);
        match protocol {
            Protocol::Chat => {
                for choice in event["choices"].as_array().into_iter().flatten() {
                    let at = index(choice, "index");
                    let delta = &choice["delta"];
                    let mut say = |kind, value: &Value| match value {
                        Value::String(text) if !text.is_empty() => out.push((at, kind, text.clone())),
                        _ => {}
                    };
                    say(
                        "reasoning",
                        if delta["reasoning"].is_string() { &delta["reasoning"] } else { &delta["reasoning_content"] },
                    );
                    for part in delta["content"].as_array().into_iter().flatten() {
                        say("content", &part["text"]);
                        say("reasoning", &part["thinking"]);
                        part["thinking"]
                            .as_array()
                            .into_iter()
                            .flatten()
                            .for_each(|part| say("reasoning", &part["text"]));
                    }
                    say("content", &delta["content"]);
                    say("refusal", &delta["refusal"]);
                    for call in delta["tool_calls"].as_array().into_iter().flatten() {
                        say("call", &call["id"]);
                        say("name", &call["function"]["name"]);
                        say("arguments", &call["function"]["arguments"]);
                    }
                    say("finish", &choice["finish_reason"]);
                }
            }
            Protocol::Responses | Protocol::Messages => {
                let mut event = event;
                for inner in ["response", "message"] {
                    if let Some(inner) = event.get_mut(inner).and_then(Value::as_object_mut) {
                        inner.remove("model");
                    }
                }
                let members = event.as_object_mut().unwrap();
                members.remove("sequence_number");
                let kind = members["type"].as_str().unwrap_or_default().replace("reasoning_part", "content_part");
                members["type"] = kind.into();
                members.remove("content_index");
                out.push((0, "event", event.to_string()));
            }
        }
    }
    out
}

#[test]
fn n3_the_same_words_in_the_same_pieces() {
    each(|name, capture, _, _, normal| {
        assert_eq!(said(capture.protocol, &normal.bytes), said(capture.protocol, &capture.bytes), "{name}");
    });
}

#[test]
fn n2_every_event_has_the_protocols_shape() {
    each(|name, capture, settings, include_usage, normal| {
        let events = events(&normal.bytes);
        let chunks: Vec<Value> =
            events.iter().filter(|(_, data)| data != "[DONE]").map(|(_, data)| json(data)).collect();
        let problems: Vec<String> = match capture.protocol {
            Protocol::Chat => chat_problems(&chunks, settings, include_usage),
            Protocol::Responses => events
                .iter()
                .zip(0_u64..)
                .flat_map(|((line, data), at)| named_problems(line, &json(data), Some(at)))
                .collect(),
            Protocol::Messages => {
                events.iter().flat_map(|(line, data)| named_problems(line, &json(data), None)).collect()
            }
        };
        assert_eq!(problems, Vec::<String>::new(), "{name}");
        assert!(!events.is_empty());
        let done = events.iter().position(|(_, data)| data == "[DONE]");
        assert!(done.is_none_or(|at| at == events.len() - 1), "{name}: [DONE] is last");
    });
}

/// A small schema of the protocol, by hand.
fn chat_problems(chunks: &[Value], settings: Settings, include_usage: bool) -> Vec<String> {
    let mut problems = Vec::new();
    let mut need = |is: bool, what: &str, chunk: &Value| {
        if !is {
            problems.push(format!("{what}: {chunk}"));
        }
    };
    for (at, chunk) in chunks.iter().enumerate() {
        need(chunk["id"].as_str().is_some_and(|id| !id.is_empty()) && chunk["id"] == chunks[0]["id"], "id", chunk);
        need(chunk["object"] == "chat.completion.chunk", "object", chunk);
        need(
            chunk["created"].as_u64().is_some_and(|at| at > 0) && chunk["created"] == chunks[0]["created"],
            "created",
            chunk,
        );
        need(chunk["model"].is_string() && chunk["model"] == chunks[0]["model"], "model", chunk);
        need(!settings.rewrite_model || chunk["model"] == "the-client's/\"name\"", "the client's model", chunk);
        let none = Vec::new();
        let choices = chunk["choices"].as_array();
        need(choices.is_some(), "choices", chunk);
        let choices = choices.unwrap_or(&none);
        let usage = &chunk["usage"];
        need(usage.is_object() || usage.is_null(), "usage", chunk);
        if settings.usage_chunk_strict && !include_usage {
            need(chunk.get("usage").is_none(), "no usage was asked for", chunk);
        }
        if settings.usage_chunk_strict && usage.is_object() {
            need(choices.is_empty() && at == chunks.len() - 1, "usage alone and last", chunk);
        }
        let filtered = ["prompt_filter_results", "moderation"]
            .iter()
            .any(|filter| chunk[filter].is_object() || chunk[filter].is_array());
        need(!choices.is_empty() || usage.is_object() || filtered, "a reason to be there", chunk);
        for choice in choices {
            need(choice["index"].is_u64(), "index", choice);
            need(choice.get("usage").is_none() && choice.get("message").is_none(), "nothing beside the delta", choice);
            need(choice.get("finish_reason").is_some(), "finish_reason", choice);
            let known = [Value::Null, "stop".into(), "length".into(), "tool_calls".into(), "content_filter".into()];
            need(known.contains(&choice["finish_reason"]), "a known finish_reason", choice);
            let delta = &choice["delta"];
            need(delta.is_object(), "delta", choice);
            for text in ["role", "content", "refusal", "reasoning_content"] {
                need(delta[text].is_string() || delta[text].is_null(), text, choice);
            }
            need(delta.get("reasoning").is_none(), "one name for reasoning", choice);
            for call in delta["tool_calls"].as_array().into_iter().flatten() {
                need(call["index"].is_u64(), "tool call index", choice);
            }
        }
        for (_, private) in PRIVATE {
            let inside =
                choices.iter().any(|choice| choice.get(private).is_some() || choice["delta"].get(private).is_some());
            need(chunk.get(private).is_none() && !inside, private, chunk);
        }
    }
    problems
}

fn named_problems(line: &str, event: &Value, sequence: Option<u64>) -> Vec<String> {
    let mut problems = Vec::new();
    if event["type"] != line || line.is_empty() {
        problems.push(format!("event: {line}, data: {event}"));
    }
    if sequence.is_some() && event["sequence_number"].as_u64() != sequence {
        problems.push(format!("sequence_number is not {sequence:?}: {event}"));
    }
    problems
}

#[test]
fn n3_a_normal_stream_stays_as_it_is() {
    each(|name, capture, settings, include_usage, normal| {
        let again = normal_of(settings, &asked(endpoint(capture.protocol), include_usage), [&normal.bytes[..]]);
        assert_eq!(String::from_utf8_lossy(&again.bytes), String::from_utf8_lossy(&normal.bytes), "{name}");
    });
}

#[test]
fn n3_what_needs_no_change_is_not_touched() {
    let mut untouched = 0;
    for capture in captures() {
        let normal = capture.normal(SHAPE, true);
        if normal.repairs == Repairs::default() {
            assert_eq!(normal.bytes, capture.bytes, "{}", capture.name);
            untouched += 1;
        }
        let own = matches!(capture.provider.as_str(), "openai" | "anthropic" | "alibaba" | "deepseek" | "ollama-cloud");
        if own {
            assert_eq!(normal.repairs.phrases(), [], "{}", capture.name);
        }
    }
    assert!(untouched >= 25 || captures().is_empty(), "{untouched}");
}

/// Members that nobody asked to change keep their bytes: numbers their digits, strings their escapes.
#[test]
fn n3_other_members_keep_their_bytes_and_their_order() {
    type Raw<'a> = BTreeMap<&'a str, &'a serde_json::value::RawValue>;
    let changed = [
        "id",
        "object",
        "created",
        "model",
        "choices",
        "usage",
        "response",
        "message",
        "sequence_number",
        "content_index",
    ];
    for capture in captures() {
        let settings = Settings { usage_chunk_strict: false, ..ALL };
        let normal = events(&capture.normal(settings, true).bytes);
        let members = |data: &str| -> String {
            let data = &data.replace("response.reasoning_part", "response.content_part");
            let Ok(raw) = serde_json::from_str::<Raw<'_>>(data) else { return data.to_owned() };
            let kept = raw
                .iter()
                .filter(|(name, _)| !changed.contains(name) && !PRIVATE.iter().any(|(_, private)| private == *name));
            kept.map(|(name, value)| [name, "=", value.get(), ";"].concat()).collect()
        };
        let mut after = normal.iter().map(|(_, data)| members(data));
        for (_, data) in events(&capture.bytes) {
            let before = members(&data);
            if before.is_empty() || before.starts_with("system_fingerprint=\"\"") {
                continue;
            }
            assert!(after.any(|found| found == before), "{}: {before}", capture.name);
        }
    }
}

fn usage(protocol: Protocol, stream: &[u8]) -> Usage {
    let mut scanner = Scanner::new(1 << 24);
    let mut meter = Meter::new(protocol, None);
    let block = scanner.push(Bytes::copy_from_slice(stream)).unwrap();
    for span in scanner.spans() {
        meter.event(&block.bytes, span);
    }
    meter.usage()
}

#[test]
fn n4_the_usage_is_the_same() {
    each(|name, capture, settings, include_usage, normal| {
        let (before, after) = (usage(capture.protocol, &capture.bytes), usage(capture.protocol, &normal.bytes));
        if capture.protocol == Protocol::Chat && settings.usage_chunk_strict && !include_usage {
            assert_eq!(after, Usage::default(), "{name}");
        } else {
            assert_eq!(after, before, "{name}");
        }
    });
}

#[test]
fn n3_where_reads_are_cut_never_matters() {
    for capture in captures() {
        let asked = asked(endpoint(capture.protocol), true);
        let whole = capture.normal(ALL, true);
        let sizes: &[usize] = if capture.bytes.len() < 50_000 { &[1, 2, 7, 61] } else { &[61, 1000] };
        for size in sizes.iter().copied() {
            let cut = normal_of(ALL, &asked, capture.bytes.chunks(size));
            assert!(cut == whole, "{} in reads of {size}", capture.name);
        }
    }
}

/// N1 alone remembers how chunks begin: each still becomes what it becomes as the first of a stream.
#[test]
fn n1_a_chunk_becomes_the_same_after_others() {
    for capture in captures() {
        let asked = asked(endpoint(capture.protocol), true);
        let model = Settings { rewrite_model: true, ..Settings::default() };
        let together = normal_of(model, &asked, [&capture.bytes[..]]).bytes;
        let mut scanner = Scanner::new(1 << 24);
        let block = scanner.push(Bytes::copy_from_slice(&capture.bytes)).unwrap();
        let alone = |span: &crate::sse::Span| normal_of(model, &asked, [&block.bytes[span.start..span.end]]).bytes;
        let alone: Vec<u8> = scanner.spans().iter().flat_map(alone).collect();
        assert!(together == alone, "{}", capture.name);
        let told = events(&together);
        assert!(
            told.iter().all(|(_, data)| capture.protocol != Protocol::Chat
                || data == "[DONE]"
                || json(data)["model"] == asked.model),
            "{}",
            capture.name
        );
    }
}

/// The table in the README: what each provider's recordings have needed.
#[test]
fn n2_the_readme_says_what_is_changed() {
    let mut found: BTreeMap<String, Repairs> = BTreeMap::new();
    for capture in captures() {
        let others = Settings { rewrite_model: false, ..ALL };
        let repairs = capture.normal(SHAPE, true).repairs.and(capture.normal(others, true).repairs);
        let entry = found.entry(capture.provider).or_default();
        *entry = entry.and(repairs);
    }
    if found.is_empty() {
        return;
    }
    let mut table = String::from("| provider | what differs | what Weir makes of it |\n| --- | --- | --- |\n");
    for (provider, repairs) in found {
        let phrases = repairs.phrases();
        if phrases.is_empty() {
            table.push_str(&["| ", &provider, " | nothing | |\n"].concat());
        }
        for (at, (differs, becomes)) in phrases.iter().enumerate() {
            let provider = if at == 0 { provider.as_str() } else { "" };
            table.push_str(&["| ", provider, " | ", differs, " | ", becomes, " |\n"].concat());
        }
    }
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let shown = readme.split("<!-- normalise table -->").nth(1).unwrap_or_default().trim();
    assert_eq!(shown, table.trim(), "the table between the markers in README.md has to be:\n\n{table}");
}
