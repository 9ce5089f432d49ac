//! One event, or a few, and what becomes of them.

use super::{ALL, SHAPE, Settings, asked, normal_of};
use crate::normalize::Normalizer;
use crate::protocol::Endpoint;
use bytes::Bytes;

const MODEL: Settings =
    Settings { rewrite_model: true, normalize: false, usage_chunk_strict: false, native_errors: false };
const STRICT: Settings =
    Settings { rewrite_model: false, normalize: false, usage_chunk_strict: true, native_errors: false };
const NATIVE: Settings =
    Settings { rewrite_model: false, normalize: false, usage_chunk_strict: false, native_errors: true };

fn check(settings: Settings, endpoint: Endpoint, include_usage: bool, before: &str, after: &str) {
    let normal = normal_of(settings, &asked(endpoint, include_usage), [before.as_bytes()]);
    assert_eq!(String::from_utf8(normal.bytes).unwrap(), after, "{before}");
}

/// A chunk with what all need, around its choices.
fn chunk(rest: &str) -> String {
    format!(r#"{{"id":"c","object":"chat.completion.chunk","created":7,"model":"m",{rest}}}"#)
}

/// Chat: the inside of a choice (or other members) before and after.
fn check_choice(before: &str, after: &str) {
    let event = |choice: &str| format!("data: {}\n\n", chunk(&format!(r#""choices":[{{{choice}}}]"#)));
    let begun = event(r#""index":0,"delta":{"role":"assistant"},"finish_reason":null"#);
    check(SHAPE, Endpoint::Chat, true, &(begun.clone() + &event(before)), &(begun + &event(after)));
}

#[test]
fn n2_choices() {
    let rows = [
        (
            r#""index":0,"delta":{"content":"a"},"finish_reason":null"#,
            r#""index":0,"delta":{"content":"a"},"finish_reason":null"#,
        ),
        (r#""delta":null"#, r#""delta":{},"index":0,"finish_reason":null"#),
        (r#""index":0,"finish_reason":"eos""#, r#""index":0,"finish_reason":"stop","delta":{}"#),
        (r#""index":0,"delta":{},"finish_reason":"""#, r#""index":0,"delta":{},"finish_reason":null"#),
        (r#""index":0,"delta":{},"finish_reason":"end_turn""#, r#""index":0,"delta":{},"finish_reason":"stop""#),
        (r#""index":0,"delta":{},"finish_reason":"stop_sequence""#, r#""index":0,"delta":{},"finish_reason":"stop""#),
        (r#""index":0,"delta":{},"finish_reason":"max_tokens""#, r#""index":0,"delta":{},"finish_reason":"length""#),
        (r#""index":0,"delta":{},"finish_reason":"tool_use""#, r#""index":0,"delta":{},"finish_reason":"tool_calls""#),
        (r#""index":0,"delta":{},"finish_reason":"else""#, r#""index":0,"delta":{},"finish_reason":"else""#),
        (
            r#""native_finish_reason":"x" , "index" : 0,"delta":{},"finish_reason":null"#,
            r#" "index" : 0,"delta":{},"finish_reason":null"#,
        ),
        (r#""trace_details":{"a":[1]},"native_finish_reason":"x""#, r#""index":0,"delta":{},"finish_reason":null"#),
        (
            r#""index":0,"message":{"content":"all"},"delta":{"content":"l"},"finish_reason":null"#,
            r#""index":0,"delta":{"content":"l"},"finish_reason":null"#,
        ),
        (
            r#""index":0,"message":{"reasoning":"r","content":"l"},"finish_reason":null"#,
            r#""index":0,"delta":{"reasoning_content":"r","content":"l"},"finish_reason":null"#,
        ),
    ];
    for (before, after) in rows {
        check_choice(before, after);
    }
}

#[test]
fn n2_the_first_delta_of_a_choice_tells_the_role() {
    let event = |choices: &str| format!("data: {}\n\n", chunk(&format!(r#""choices":[{choices}]"#)));
    let rows = [
        (r#"{"index":0,"finish_reason":null}"#, r#"{"index":0,"finish_reason":null,"delta":{"role":"assistant"}}"#),
        (
            r#"{"delta":{"content":"a"},"index":1,"finish_reason":null}"#,
            r#"{"delta":{"content":"a","role":"assistant"},"index":1,"finish_reason":null}"#,
        ),
        // Once for each.
        (
            r#"{"delta":{"content":"a"},"index":1,"finish_reason":null},{"delta":null,"index":2,"finish_reason":null}"#,
            r#"{"delta":{"content":"a"},"index":1,"finish_reason":null},{"delta":{"role":"assistant"},"index":2,"finish_reason":null}"#,
        ),
        (
            r#"{"index":3,"delta":{"role":"tool"},"finish_reason":null}"#,
            r#"{"index":3,"delta":{"role":"tool"},"finish_reason":null}"#,
        ),
        (r#"{"index":3,"delta":{},"finish_reason":null}"#, r#"{"index":3,"delta":{},"finish_reason":null}"#),
    ];
    let [before, after] = [rows.map(|(before, _)| event(before)), rows.map(|(_, after)| event(after))];
    check(SHAPE, Endpoint::Chat, true, &before.concat(), &after.concat());
}

#[test]
fn n2_reasoning_and_content() {
    let rows = [
        (r#""reasoning":"\u00e9\/""#, r#""reasoning_content":"\u00e9\/""#),
        (r#""reasoning":null,"content":"a""#, r#""reasoning_content":null,"content":"a""#),
        (r#""reasoning":"a","reasoning_content":"a""#, r#""reasoning_content":"a""#),
        (r#""reasoning_content":"a","reasoning":null"#, r#""reasoning_content":"a""#),
        (r#""reasoning_content":null,"reasoning":"a""#, r#""reasoning_content":"a""#),
        (r#""reasoning":"a","reasoning_content":"b""#, r#""reasoning":"a","reasoning_content":"b""#),
        (r#""reasoning":{"effort":1}"#, r#""reasoning":{"effort":1}"#),
        (r#""content":[{"type":"text","text":"a\n"}]"#, r#""content":"a\n""#),
        (
            r#""content":[{"type":"thinking","thinking":[{"type":"text","text":"t"}],"closed":true},{"type":"text","text":"a"}]"#,
            r#""reasoning_content":"t","content":"a""#,
        ),
        (r#""content":[{"type":"thinking","thinking":"t"}],"role":"x""#, r#""reasoning_content":"t","role":"x""#),
        (r#""content":[]"#, r#""content":"""#),
        (r#""content":[{"type":"reference","ids":[1]}]"#, r#""content":[{"type":"reference","ids":[1]}]"#),
        (r#""provider_metadata":{},"content":"a""#, r#""content":"a""#),
    ];
    for (before, after) in rows {
        let choice = |delta: &str| format!(r#""index":0,"delta":{{{delta}}},"finish_reason":null"#);
        check_choice(&choice(before), &choice(after));
    }
}

#[test]
fn n2_tool_calls_are_numbered_by_their_ids() {
    let event = |calls: &str| {
        format!(
            "data: {}\n\n",
            chunk(&format!(
                r#""choices":[{{"delta":{{"role":"a","tool_calls":[{calls}]}},"finish_reason":null,"index":0}}]"#
            ))
        )
    };
    let before = [
        r#"{"id":"a","function":{"name":"f"}}"#,
        r#"{"function":{"arguments":"1"}}"#,
        r#"{"id":"b","function":{"name":"g"}},{"id":"c","index":null}"#,
        r#"{"id":"a","function":{"arguments":"2"}}"#,
        r#"{"id":"d","index":7}"#,
        r#"{"id":"e"}"#,
    ];
    let after = [
        r#"{"id":"a","function":{"name":"f"},"index":0}"#,
        r#"{"function":{"arguments":"1"},"index":0}"#,
        r#"{"id":"b","function":{"name":"g"},"index":1},{"id":"c","index":2}"#,
        r#"{"id":"a","function":{"arguments":"2"},"index":0}"#,
        r#"{"id":"d","index":7}"#,
        r#"{"id":"e","index":8}"#,
    ];
    let stream = |calls: [&str; 6]| calls.map(event).concat();
    check(SHAPE, Endpoint::Chat, true, &stream(before), &stream(after));
}

#[test]
fn n2_nulls_in_parts_of_tool_calls_overwrite_nothing() {
    let choice = |call: &str| format!(r#""index":0,"delta":{{"tool_calls":[{call}]}},"finish_reason":null"#);
    check_choice(
        &choice(r#"{"index":0,"id":null,"type":null,"function":{"name":null,"arguments":"{"}}"#),
        &choice(r#"{"index":0,"function":{"arguments":"{"}}"#),
    );
    check_choice(&choice(r#"{"id":null,"index":0,"function":{"name":null}}"#), &choice(r#"{"index":0,"function":{}}"#));
}

#[test]
fn n2_content_parts_are_numbered_by_their_place() {
    let event = |kind: &str, output: u64, part: u64| {
        let data = format!(r#"{{"type":"{kind}","sequence_number":0,"output_index":{output},"content_index":{part}}}"#);
        format!("event: {kind}\ndata: {data}\n\n")
    };
    let (added, delta) = ("response.content_part.added", "response.output_text.delta");
    let rows = [
        (added, 1, 1, 0),
        (delta, 1, 1, 0),
        (added, 1, 2, 1),
        (delta, 1, 2, 1),
        (added, 2, 0, 0),
        (delta, 2, 0, 0),
        (delta, 3, 4, 4),
    ];
    let stream = |place: fn(&(&str, u64, u64, u64)) -> u64| -> String {
        rows.iter().map(|row| event(row.0, row.1, place(row))).collect()
    };
    check(SHAPE, Endpoint::Responses, true, &stream(|row| row.2), &stream(|row| row.3));
}

#[test]
fn n2_what_a_chunk_is_called() {
    let said = r#""choices":[{"index":0,"delta":{"role":"a","content":"a"},"finish_reason":null}]"#;
    let good = format!("data: {}\n\n", chunk(said));
    let rows = [
        // Without an id of its own, the stream gets Weir's.
        (
            format!("data: {{{said}}}\n\n"),
            format!("data: {{{said},\"id\":\"chatcmpl-0197\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"the-client's/\\\"name\\\"\"}}\n\n"),
        ),
        // A prelude without one waits for the chunk that has it.
        (
            format!("data: {{\"choices\":[],\"id\":\"\",\"object\":\"\",\"created\":0,\"model\":\"\",\"prompt_filter_results\":[1]}}\n\n{good}"),
            format!("data: {{\"choices\":[],\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":7,\"model\":\"m\",\"prompt_filter_results\":[1]}}\n\n{good}"),
        ),
        // The first is the name for all.
        (good.clone() + &good.replace(r#""id":"c""#, r#""id":"d""#).replace(":7,", ":8.5,"), good.clone() + &good),
        // Nothing to say.
        (good.clone() + "data: null\n\ndata: {\"choices\":[]}\n\n: hi\n\n", good.clone() + ": hi\n\n"),
        // Not JSON: as it is (B130).
        (good.clone() + "data: {\"choices\":[\n\n", good.clone() + "data: {\"choices\":[\n\n"),
        // Several data lines become one; other lines stay, in their style.
        (
            "id: 1\r\ndata: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\r\nretry: 5\r\ndata:\"created\":7,\"model\":\"m\",\"provider\":\"x\",\r\ndata: \"choices\":[{\"index\":0,\"delta\":{\"role\":\"a\"},\"finish_reason\":null}]}\r\n\r\n".to_owned(),
            "id: 1\r\ndata: {\"id\":\"c\",\"object\":\"chat.completion.chunk\", \"created\":7,\"model\":\"m\", \"choices\":[{\"index\":0,\"delta\":{\"role\":\"a\"},\"finish_reason\":null}]}\r\nretry: 5\r\n\r\n".to_owned(),
        ),
        // A BOM and no space after the colon.
        (format!("\u{feff}data:{}\n\n", chunk(r#""p":"x","choices":[{"index":0,"delta":{"role":"a"},"finish_reason":null}]"#)),
         format!("\u{feff}data:{}\n\n", chunk(r#""choices":[{"index":0,"delta":{"role":"a"},"finish_reason":null}]"#))),
    ];
    for (before, after) in rows {
        check(SHAPE, Endpoint::Chat, true, &before, &after);
    }
}

#[test]
fn n2_usage_comes_to_the_top() {
    let finish = r#""index":0,"delta":{"role":"a"},"finish_reason":"stop""#;
    let top = format!("data: {}\n\n", chunk(&format!(r#""choices":[{{{finish}}}],"usage":{{"prompt_tokens":1.0}}"#)));
    for before in [
        format!(r#""choices":[{{{finish},"usage":{{"prompt_tokens":1.0}}}}]"#),
        format!(r#""choices":[{{{finish}}}],"x_groq":{{"id":"r","usage":{{"prompt_tokens":1.0}}}}"#),
        format!(r#""choices":[{{"usage":{{"prompt_tokens":1.0}},{finish}}}],"usage":null"#),
    ] {
        check(SHAPE, Endpoint::Chat, true, &format!("data: {}\n\n", chunk(&before)), &top);
    }
    let alone = format!("data: {}\n\n", chunk(r#""choices":[],"x_groq":{"usage":{"prompt_tokens":1}}"#));
    check(SHAPE, Endpoint::Chat, false, &alone, "");
}

#[test]
fn n4_usage_only_when_asked_and_then_in_one_chunk() {
    let chunk = |rest: &str| format!("data: {}\n\n", chunk(rest));
    let choice = r#""choices":[{"index":0,"delta":{},"finish_reason":"stop"}]"#;
    let done = "data: [DONE]\n\n";
    let many = chunk(&format!(r#"{choice},"usage":{{"prompt_tokens":1}}"#))
        + &chunk(r#""choices":[],"usage":{"prompt_tokens":2},"timings":1"#)
        + &chunk(r#""choices":[],"usage":{"prompt_tokens":3},"timings":1"#)
        + done;
    let one = chunk(&format!(r#"{choice},"usage":null"#))
        + &chunk(r#""choices":[],"usage":{"prompt_tokens":3},"timings":1"#)
        + done;
    check(STRICT, Endpoint::Chat, true, &many, &one);
    check(STRICT, Endpoint::Chat, false, &many, &(chunk(choice) + done));
    // Beside choices only: a chunk of its own is made, also where Weir writes the [DONE].
    let beside = chunk(&format!(r#"{choice},"usage":{{"prompt_tokens":1}}"#));
    let made = chunk(&format!(r#"{choice},"usage":null"#)) + &chunk(r#""choices":[],"usage":{"prompt_tokens":1}"#);
    check(STRICT, Endpoint::Chat, true, &(beside.clone() + done), &(made.clone() + done));
    check(STRICT, Endpoint::Chat, true, &beside, &made);
    // A vendor's hiding place, without `normalize`.
    let hidden = chunk(&format!(r#"{choice},"x_groq":{{"usage":{{"prompt_tokens":1}},"id":"r"}}"#));
    check(STRICT, Endpoint::Chat, false, &hidden, &chunk(&format!(r#"{choice},"x_groq":{{"id":"r"}}"#)));
    // Nothing was reported: nothing is invented.
    check(STRICT, Endpoint::Chat, true, &(chunk(choice) + done), &(chunk(choice) + done));
}

#[test]
fn n1_the_clients_name_of_the_model() {
    let rows = [
        (
            Endpoint::Chat,
            r#"{"choices":[],"model":"m","x":1.50}"#,
            r#"{"choices":[],"model":"the-client's/\"name\"","x":1.50}"#,
        ),
        (
            Endpoint::Completions,
            r#"{"choices":[{"text":"a"}],"model":"m"}"#,
            r#"{"choices":[{"text":"a"}],"model":"the-client's/\"name\""}"#,
        ),
        (
            Endpoint::Responses,
            r#"{"type":"response.created","response":{"tools":[{"model":"t"}],"model":"m"}}"#,
            r#"{"type":"response.created","response":{"tools":[{"model":"t"}],"model":"the-client's/\"name\""}}"#,
        ),
        (
            Endpoint::Messages,
            r#"{"type":"message_start","message":{"model":"m","usage":{}}}"#,
            r#"{"type":"message_start","message":{"model":"the-client's/\"name\"","usage":{}}}"#,
        ),
        (Endpoint::Messages, r#"{"type":"ping"}"#, r#"{"type":"ping"}"#),
    ];
    for (endpoint, before, after) in rows {
        check(MODEL, endpoint, true, &format!("data: {before}\n\n"), &format!("data: {after}\n\n"));
    }
}

#[test]
fn n2_event_lines_and_sequence_numbers() {
    let rows = [
        (
            "data: {\"type\":\"response.created\"}\n\n",
            "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0}\n\n",
        ),
        (
            "data:{\"type\":\"a.b\",\"sequence_number\":4}\r\n\r\n",
            "event: a.b\r\ndata:{\"type\":\"a.b\",\"sequence_number\":4}\r\n\r\n",
        ),
        (
            "\u{feff}data: {\"type\":\"a\",\"sequence_number\":null}\r\r",
            "\u{feff}event: a\rdata: {\"type\":\"a\",\"sequence_number\":0}\r\r",
        ),
        (
            "event: response.reasoning_part.done\ndata: {\"type\": \"response.reasoning_part.done\",\"sequence_number\":4}\n\n",
            "event: response.content_part.done\ndata: {\"type\": \"response.content_part.done\",\"sequence_number\":4}\n\n",
        ),
        (
            "event: x\ndata: {\"type\":\"a\",\"sequence_number\":4}\n\n",
            "event: a\ndata: {\"type\":\"a\",\"sequence_number\":4}\n\n",
        ),
        (
            "data: {\"type\":\"a\",\"sequence_number\":4}\nevent:\n\n",
            "data: {\"type\":\"a\",\"sequence_number\":4}\nevent:a\n\n",
        ),
        (
            "data: {\"type\":\"a\",\"sequence_number\":4}\nevent\n\n",
            "data: {\"type\":\"a\",\"sequence_number\":4}\nevent: a\n\n",
        ),
        (
            "event: a\ndata: {\"type\":\"a\",\"sequence_number\":4}\n\n",
            "event: a\ndata: {\"type\":\"a\",\"sequence_number\":4}\n\n",
        ),
        ("data: {\"no\":\"type\"}\n\n", "data: {\"no\":\"type\"}\n\n"),
    ];
    for (before, after) in rows {
        check(SHAPE, Endpoint::Responses, true, before, after);
    }
    let counted = "event: a\ndata: {\"type\":\"a\",\"sequence_number\":4}\n\nevent: b\ndata: {\"type\":\"b\"}\n\n";
    check(SHAPE, Endpoint::Responses, true, counted, &counted.replace("\"b\"}", "\"b\",\"sequence_number\":5}"));
    let message = "data: {\"type\":\"message_stop\"}\n\n";
    check(SHAPE, Endpoint::Messages, true, message, &format!("event: message_stop\n{message}"));
}

#[test]
fn n5_errors_in_weirs_form() {
    use crate::refusal::Ending;
    let failed = |endpoint, data: &str| {
        let stream = format!("data: {data}\n\n");
        let normal = normal_of(NATIVE, &asked(endpoint, true), [stream.as_bytes()]);
        (normal.failed, String::from_utf8(normal.bytes).unwrap())
    };
    let rows = [
        (Endpoint::Chat, r#"{"error":{"message":"boom at 10.0.0.7","type":"server_error"}}"#, Ending::Interrupted),
        (Endpoint::Chat, r#"{"error":{"message":"x","code":"rate_limit_exceeded"}}"#, Ending::RateLimited),
        (Endpoint::Chat, r#"{"error":{"message":"x","code":503}}"#, Ending::Overloaded),
        (
            Endpoint::Messages,
            r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#,
            Ending::Overloaded,
        ),
        (Endpoint::Messages, r#"{"type":"error","error":{"type":"api_error","message":"x"}}"#, Ending::Interrupted),
        (Endpoint::Responses, r#"{"type":"error","code":"server_error","message":"x"}"#, Ending::Interrupted),
    ];
    for (endpoint, data, ending) in rows {
        assert_eq!(failed(endpoint, data), (Some(ending), String::new()), "{data}");
    }
    // A failed response keeps what it says; its error gets E2's words.
    let response = |error: &str| {
        format!(r#"{{"type":"response.failed","response":{{"id":"r","error":{error},"usage":{{"input_tokens":1}}}}}}"#)
    };
    let known = response(r#"{"code":"server_error","message":"Something went wrong."}"#);
    assert_eq!(failed(Endpoint::Responses, &known), (None, format!("data: {known}\n\n")));
    let own = response(r#"{"code":"vector_store_timeout","message":"at node 4"}"#);
    let told = response(r#"{"code":"server_error","message":"Response stream interrupted, please retry"}"#);
    assert_eq!(failed(Endpoint::Responses, &own), (None, format!("data: {told}\n\n")));
}

#[test]
fn nothing_to_do_is_no_normaliser() {
    for endpoint in Endpoint::ALL {
        assert!(Normalizer::new(Settings::default(), &asked(endpoint, true), None).is_none());
        assert!(Normalizer::new(MODEL, &asked(endpoint, true), None).is_some());
    }
    assert!(Normalizer::new(SHAPE, &asked(Endpoint::Embeddings, true), None).is_none());
    assert!(Normalizer::new(STRICT, &asked(Endpoint::Messages, true), None).is_none());
    assert!(Normalizer::new(NATIVE, &asked(Endpoint::CountTokens, true), None).is_none());
}

#[test]
fn n2_whole_replies() {
    let rows = [
        (
            Endpoint::Chat,
            r#"{"id":"c","object":"chat.completion","created":1,"model":"m","provider":"p","choices":[{"index":0,"message":{"reasoning":"r","content":[{"type":"text","text":"a"}],"tool_calls":[{"id":"t"}]},"finish_reason":"eos","usage":{"prompt_tokens":1}}]}"#,
            r#"{"id":"c","object":"chat.completion","created":1,"model":"the-client's/\"name\"","choices":[{"index":0,"message":{"reasoning_content":"r","content":"a","tool_calls":[{"id":"t"}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}"#,
        ),
        (
            Endpoint::Responses,
            r#"{"id":"r","model":"m","output":[]}"#,
            r#"{"id":"r","model":"the-client's/\"name\"","output":[]}"#,
        ),
        (Endpoint::Messages, r#"{"id":"r","model":"m"}"#, r#"{"id":"r","model":"the-client's/\"name\""}"#),
        (Endpoint::Embeddings, r#"{"data":[],"model":"m"}"#, r#"{"data":[],"model":"the-client's/\"name\""}"#),
        (Endpoint::CountTokens, r#"{"input_tokens":1}"#, r#"{"input_tokens":1}"#),
        (Endpoint::Chat, "[1]", "[1]"),
        (Endpoint::Chat, "{\"model\":", "{\"model\":"),
    ];
    for (endpoint, before, after) in rows {
        let mut normalizer = Normalizer::new(ALL, &asked(endpoint, false), None).unwrap();
        let reply = normalizer.reply(&Bytes::copy_from_slice(before.as_bytes()));
        assert_eq!(String::from_utf8(reply.to_vec()).unwrap(), after, "{before}");
        assert_eq!(Normalizer::new(ALL, &asked(endpoint, false), None).unwrap().reply(&reply), reply);
    }
}
