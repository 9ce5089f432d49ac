//! The rules of sections 1 and U3, and the cases of kinds A, B, D, I, J, K, L, row by row.

use super::usage::{Source, Usage};
use super::{Facts, Finish, Meter, UpstreamError};
use crate::ledger::estimate::Delivered;
use crate::protocol::Protocol;
use crate::sse::Scanner;
use Protocol::{Chat, Messages, Responses};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

const CHAT_OK: &str = include_str!("../../tests/golden/chat-ok.sse");
const MESSAGES_OK: &str = include_str!("../../tests/golden/messages-ok.sse");
const RESPONSES_OK: &str = include_str!("../../tests/golden/responses-ok.sse");

/// Feeds a stream in the chunks given; one line of facts per event.
fn metered<'a>(protocol: Protocol, chunks: impl IntoIterator<Item = &'a [u8]>) -> (Meter, Vec<Facts>) {
    let mut scanner = Scanner::new(1 << 24);
    let mut meter = Meter::new(protocol, None);
    let mut facts = Vec::new();
    for chunk in chunks {
        let block = scanner.push(Bytes::copy_from_slice(chunk)).unwrap();
        facts.extend(scanner.spans().iter().map(|span| meter.event(&block.bytes, span)));
    }
    let tail = scanner.finish();
    if let Some(span) = tail.span {
        facts.push(meter.event(&tail.bytes, &span));
    }
    (meter, facts)
}

fn whole(protocol: Protocol, stream: &str) -> (Meter, Vec<Facts>) {
    metered(protocol, [stream.as_bytes()])
}

/// A stream with these data events.
fn stream(data: &[&str]) -> String {
    data.iter().flat_map(|data| ["data: ", data, "\n\n"]).collect()
}

/// What one event is, after nothing else.
fn facts(protocol: Protocol, data: &str) -> Facts {
    let (_, facts) = whole(protocol, &stream(&[data]));
    facts[0]
}

/// The letters of what is set: o(utput) v(isible) f(inish) t(erminal) u(sage only) e(rror) s(tart) m(alformed).
fn letters(facts: Facts) -> String {
    let Facts { output, visible, finish, terminal, usage_only, error, start, malformed } = facts;
    let set = [
        (output, 'o'),
        (visible, 'v'),
        (finish, 'f'),
        (terminal, 't'),
        (usage_only, 'u'),
        (error, 'e'),
        (start, 's'),
        (malformed, 'm'),
    ];
    set.into_iter().filter_map(|(is, letter)| is.then_some(letter)).collect()
}

fn all_letters(facts: &[Facts]) -> Vec<String> {
    facts.iter().map(|facts| letters(*facts)).collect()
}

/// In the order of the cases: input (all of it), cache read, 5 m, 1 h, output.
type Numbers = (Option<u64>, Option<u64>, Option<u64>, Option<u64>, Option<u64>);

fn numbers(usage: Usage) -> Numbers {
    (usage.input, usage.cache_read, usage.cache_write_5m, usage.cache_write_1h, usage.output)
}

fn chat_usage(usages: &[&str]) -> Meter {
    let data: Vec<String> = usages.iter().map(|usage| format!(r#"{{"choices":[],"usage":{usage}}}"#)).collect();
    whole(Chat, &stream(&data.iter().map(String::as_str).collect::<Vec<_>>())).0
}

/// A messages answer with this usage at its start and these in its deltas.
fn message_usage(start: &str, deltas: &[&str]) -> Meter {
    let mut data = vec![format!(r#"{{"type":"message_start","message":{{"id":"m","model":"own","usage":{start}}}}}"#)];
    data.extend(
        deltas
            .iter()
            .map(|usage| format!(r#"{{"type":"message_delta","delta":{{"stop_reason":null}},"usage":{usage}}}"#)),
    );
    whole(Messages, &stream(&data.iter().map(String::as_str).collect::<Vec<_>>())).0
}

#[test]
fn section_1_chat_words() {
    let choice = |inside: &str| format!(r#"{{"choices":[{{"index":0,{inside}}}]}}"#);
    let delta = |inside: &str| choice(&format!(r#""delta":{{{inside}}},"finish_reason":null"#));
    let rows = [
        (delta(r#""role":"assistant","content":"""#), "s"),
        (delta(r#""role":"assistant","content":null"#), "s"),
        (delta(r#""content":"x""#), "ov"),
        (delta(r#""content":"\n""#), "ov"),
        (delta(r#""role":"assistant","content":"x""#), "ovs"),
        (delta(r#""content":[{"type":"thinking","thinking":[{"type":"text","text":"x"}],"closed":true}]"#), "o"),
        (delta(r#""content":[{"type":"thinking","thinking":[],"closed":true}]"#), ""),
        (delta(r#""content":[{"type":"thinking","thinking":[1]},{"type":"text","text":"x"}]"#), "ov"),
        (delta(r#""content":[{"type":"text","text":""}]"#), ""),
        (delta(r#""content":[]"#), ""),
        (delta(r#""reasoning":"x""#), "o"),
        (delta(r#""reasoning_content":"x","content":null"#), "o"),
        (delta(r#""reasoning_content":"""#), ""),
        (delta(r#""reasoning_details":[{"type":"reasoning.text","text":"x"}]"#), "o"),
        (delta(r#""reasoning_details":[]"#), ""),
        (delta(r#""refusal":"x""#), "ov"),
        (delta(r#""refusal":null"#), ""),
        (delta(r#""audio":{"id":"a"}"#), "ov"),
        (delta(r#""function_call":{"name":"f","arguments":""}"#), "ov"),
        (delta(r#""function_call":{"arguments":""}"#), ""),
        (delta(r#""tool_calls":[{"index":0,"id":"c"}]"#), "ov"),
        (delta(r#""tool_calls":[{"index":0,"function":{"arguments":"{"}}]"#), "ov"),
        (delta(r#""tool_calls":[{"index":0,"type":"function","function":{"arguments":""}}]"#), ""),
        (delta(r#""tool_calls":[]"#), ""),
        (choice(r#""text":"x","finish_reason":null"#), "ov"),
        (choice(r#""text":"","finish_reason":"stop""#), "f"),
        (choice(r#""delta":{},"finish_reason":"stop""#), "f"),
        (choice(r#""delta":{},"finish_reason":"""#), ""),
        (choice(r#""delta":{"content":""},"message":{"content":"all of it"},"finish_reason":"stop""#), "f"),
        (choice(r#""delta":{"content":"x"},"finish_reason":"length""#), "ovf"),
        // B106, and the same without a word of what went wrong.
        (choice(r#""delta":{},"finish_reason":"error""#), "te"),
        (r#"{"choices":[],"usage":{"prompt_tokens":1}}"#.into(), "u"),
        (r#"{"usage":{"prompt_tokens":1}}"#.into(), "u"),
        (r#"{"choices":null,"usage":{}}"#.into(), "u"),
        (r#"{"choices":[],"usage":null}"#.into(), ""),
        // B182: filter results are not content and not to be dropped, with usage or not.
        (r#"{"choices":[],"prompt_filter_results":[{"prompt_index":0}]}"#.into(), ""),
        (r#"{"choices":[],"prompt_filter_results":[{"prompt_index":0}],"usage":{}}"#.into(), ""),
        (r#"{"choices":[],"prompt_filter_results":[],"usage":{}}"#.into(), "u"),
        (r#"{"choices":[],"error":{"message":"x"},"usage":{}}"#.into(), "te"),
        (r#"{"error":"x"}"#.into(), "te"),
        (r#"{"error":null,"choices":[]}"#.into(), ""),
        (r#"{"object":"error","message":"x","code":500}"#.into(), "te"),
        ("[DONE]".into(), "t"),
        (" [DONE] ".into(), "t"),
        ("null".into(), ""),
        (String::new(), ""),
        ("7".into(), ""),
        ("{bad".into(), "m"),
        ("keepalive".into(), "m"),
        ("{} {}".into(), "m"),
    ];
    for (data, expected) in rows {
        assert_eq!(letters(facts(Chat, &data)), expected, "{data}");
    }
}

#[test]
fn section_1_messages_words() {
    let delta = |inside: &str| format!(r#"{{"type":"content_block_delta","index":0,"delta":{{{inside}}}}}"#);
    let block = |inside: &str| format!(r#"{{"type":"content_block_start","index":0,"content_block":{{{inside}}}}}"#);
    let rows = [
        (r#"{"type":"message_start","message":{"id":"m"}}"#.into(), "s"),
        (r#"{"type":"ping"}"#.into(), ""),
        (block(r#""type":"text","text":"""#), ""),
        (block(r#""type":"text","text":"x""#), "ov"),
        (block(r#""type":"text","text":"","citations":[]"#), ""),
        (block(r#""type":"thinking","thinking":"","signature":"""#), ""),
        (block(r#""type":"thinking","thinking":"x""#), "o"),
        (block(r#""type":"redacted_thinking","data":"x""#), "o"),
        (block(r#""type":"tool_use","id":"t","name":"f","input":{}"#), "ov"),
        (block(r#""type":"web_search_tool_result","content":[]"#), "ov"),
        (delta(r#""type":"text_delta","text":"x""#), "ov"),
        (delta(r#""type":"text_delta","text":"""#), ""),
        (delta(r#""type":"thinking_delta","thinking":"x""#), "o"),
        (delta(r#""type":"signature_delta","signature":"x""#), "o"),
        (delta(r#""type":"input_json_delta","partial_json":"""#), ""),
        (delta(r#""type":"input_json_delta","partial_json":"{""#), "ov"),
        (delta(r#""type":"citations_delta","citation":{"type":"char_location"}"#), "ov"),
        (r#"{"type":"content_block_stop","index":0}"#.into(), ""),
        (r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#.into(), "f"),
        (r#"{"type":"message_delta","delta":{"stop_reason":null},"usage":{}}"#.into(), ""),
        (r#"{"type":"message_stop"}"#.into(), "t"),
        (r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#.into(), "te"),
        (r#"{"error":{"message":"x"}}"#.into(), "te"),
        (r#"{"type":"something_new","delta":{"text":"x"}}"#.into(), ""),
        ("[DONE]".into(), ""),
        ("null".into(), ""),
    ];
    for (data, expected) in rows {
        assert_eq!(letters(facts(Messages, &data)), expected, "{data}");
    }
}

#[test]
fn section_1_responses_words() {
    let item = |inside: &str| format!(r#"{{"type":"response.output_item.added","item":{{{inside}}}}}"#);
    let typed = |kind: &str, inside: &str| format!(r#"{{{inside},"type":"response.{kind}"}}"#);
    let rows = [
        (typed("created", r#""response":{"id":"r"}"#), "s"),
        (typed("in_progress", r#""response":{"output":[{"type":"function_call"}]}"#), ""),
        (item(r#""type":"reasoning","encrypted_content":"x""#), ""),
        (item(r#""type":"message","content":[]"#), ""),
        (item(r#""type":"mcp_list_tools","tools":[]"#), ""),
        (item(r#""type":"function_call","arguments":"""#), "ov"),
        (item(r#""type":"web_search_call""#), "ov"),
        (typed("content_part.added", r#""part":{"type":"output_text","text":""}"#), ""),
        (typed("output_text.delta", r#""delta":"x""#), "ov"),
        (typed("output_text.delta", r#""delta":"""#), ""),
        (typed("output_text.done", r#""text":"x""#), "ov"),
        (typed("refusal.delta", r#""delta":"x""#), "ov"),
        (typed("reasoning_summary_text.delta", r#""delta":"x""#), "o"),
        (typed("reasoning_text.delta", r#""delta":"x""#), "o"),
        (typed("function_call_arguments.delta", r#""delta":"{""#), "ov"),
        (typed("function_call_arguments.done", r#""arguments":"{}""#), "ov"),
        (typed("function_call_arguments.done", r#""arguments":"""#), ""),
        (typed("audio.delta", r#""data":"UklG""#), "ov"),
        (typed("content_part.done", r#""part":{"type":"output_text","text":"x"}"#), "ov"),
        (typed("output_item.done", r#""item":{"type":"mcp_list_tools","tools":[1]}"#), ""),
        (typed("output_item.done", r#""item":{"type":"reasoning","summary":[]}"#), ""),
        (typed("output_item.done", r#""item":{"type":"reasoning","summary":[{"text":"x"}]}"#), "o"),
        (typed("output_item.done", r#""item":{"type":"message","content":[{"text":"x"}]}"#), "ov"),
        (typed("web_search_call.searching", r#""item_id":"w""#), ""),
        (typed("output_text.annotation.added", r#""annotation":{}"#), ""),
        (typed("completed", r#""response":{}"#), "ft"),
        (typed("incomplete", r#""response":{}"#), "ft"),
        (typed("failed", r#""response":{"error":{"code":"server_error"}}"#), "te"),
        (r#"{"type":"error","code":"server_error","message":"x"}"#.into(), "te"),
        (r#"{"type":"keepalive","sequence_number":3}"#.into(), ""),
        (r#"{"error":{"message":"x"}}"#.into(), "te"),
    ];
    for (data, expected) in rows {
        assert_eq!(letters(facts(Responses, &data)), expected, "{data}");
    }
}

#[test]
fn goldens_in_all_line_ends_and_cuts() {
    let rows: [(Protocol, &str, &[&str], Numbers, &str); 3] = [
        (Chat, CHAT_OK, &["s", "ov", "ov", "f", "u", "t"], (Some(12), None, None, None, Some(2)), "chatcmpl-golden"),
        (
            Messages,
            MESSAGES_OK,
            &["s", "", "ov", "ov", "", "f", "t"],
            (Some(25), None, None, None, Some(15)),
            "msg_golden",
        ),
        (
            Responses,
            RESPONSES_OK,
            &["s", "", "", "ov", "ov", "ft"],
            (Some(20), Some(8), None, None, Some(5)),
            "resp_golden",
        ),
    ];
    for (protocol, lf, expected, usage, id) in rows {
        // B01, B02, B05, B07, B08: line ends, no space after the colon, a byte-order mark.
        for text in [
            lf.into(),
            lf.replace('\n', "\r\n"),
            lf.replace('\n', "\r"),
            lf.replace(": ", ":"),
            format!("\u{feff}{lf}"),
        ] {
            let bytes = text.as_bytes();
            let cuts = (0..=bytes.len()).map(|at| vec![&bytes[..at], &bytes[at..]]);
            for chunks in cuts.chain([bytes.chunks(1).collect()]) {
                let (meter, facts) = metered(protocol, chunks);
                assert_eq!(all_letters(&facts), expected);
                assert_eq!(numbers(meter.usage()), usage);
                assert_eq!((meter.answer_id(), meter.model()), (Some(id), Some("golden-1")));
                assert_eq!(
                    (meter.source(), meter.finish(), meter.all_finished()),
                    (Source::Reported, Some(Finish::Stop), true)
                );
                assert_eq!((meter.output_events(), meter.anomalies(), meter.malformed()), (2, 0, 0));
            }
        }
    }
}

#[test]
fn b13_b14_events_over_several_data_lines() {
    let text = "event: response.completed\ndata: {\"type\":\"response.completed\",\ndata: \"response\":{\"usage\":{\"input_tokens\":20,\ndata: \"output_tokens\":5}}}\n\n";
    let (meter, facts) = whole(Responses, text);
    assert_eq!((letters(facts[0]).as_str(), numbers(meter.usage())), ("ft", (Some(20), None, None, None, Some(5))));
    let (meter, facts) = whole(Chat, "data: {\"error\":\ndata: {\"message\":\"x\",\ndata: \"code\":503}}\n\n");
    assert_eq!((letters(facts[0]).as_str(), meter.error().unwrap().status), ("te", 503));
}

#[test]
fn b17_b70_b71_b130_what_says_nothing_changes_nothing() {
    let noise = "retry: 3000\n\nid: 9\n\n: x\n\n\ndata: null\n\ndata:\n\ndata: {bad\n\n";
    let text = CHAT_OK.replace("\n\n", &format!("\n\n{noise}"));
    let (meter, facts) = whole(Chat, &text);
    assert_eq!(numbers(meter.usage()), (Some(12), None, None, None, Some(2)));
    assert_eq!((meter.malformed(), meter.output_events()), (6, 2));
    assert_eq!(facts.iter().filter(|facts| facts.malformed).count(), 6);
}

#[test]
fn b20_an_error_field_is_a_native_error() {
    let (meter, facts) = whole(
        Chat,
        "error: {\"code\":400,\"type\":\"invalid_request_error\",\"message\":\"too long\"}\n\ndata: [DONE]\n\n",
    );
    assert_eq!(all_letters(&facts), ["te", "t"]);
    let error = meter.error().unwrap();
    assert_eq!((error.status, error.clients_fault), (400, true));
    // No JSON: a field that nobody knows.
    let (meter, facts) = whole(Chat, "error: oops\n\nerror:\ndata: {}\n\n");
    assert_eq!((all_letters(&facts), meter.error()), (vec![String::new(), String::new()], None));
}

#[test]
fn b22_utf8_cut_at_every_byte() {
    let text = stream(&[r#"{"model":"模型🌍","choices":[{"delta":{"content":"你好🌍"}}]}"#]);
    let (meter, facts) = metered(Chat, text.as_bytes().chunks(1));
    assert_eq!((letters(facts[0]).as_str(), meter.model()), ("ov", Some("模型🌍")));
}

#[test]
fn b41_b43_a_last_event_without_its_blank_line_is_read() {
    for cut in [2, 1, 0] {
        let text = RESPONSES_OK.get(..RESPONSES_OK.len() - 2 + cut).unwrap();
        let (meter, facts) = whole(Responses, text);
        assert_eq!((letters(*facts.last().unwrap()).as_str(), meter.usage().output), ("ft", Some(5)), "{cut}");
    }
}

#[test]
fn e1_all_finished_counts_the_choices_asked_for_or_seen() {
    let event = |index: u32, reason: &str| {
        format!(r#"{{"choices":[{{"index":{index},"delta":{{}},"finish_reason":{reason}}}]}}"#)
    };
    let finished = |choices: Option<u32>, events: &[(u32, &str)]| {
        let mut meter = Meter::new(Chat, choices);
        let mut scanner = Scanner::new(1 << 20);
        for (index, reason) in events {
            let block = scanner.push(stream(&[&event(*index, reason)]).into()).unwrap();
            meter.event(&block.bytes, &scanner.spans()[0]);
        }
        (meter.all_finished(), meter.finish())
    };
    assert_eq!(finished(None, &[]), (false, None));
    assert_eq!(finished(None, &[(0, "\"stop\"")]), (true, Some(Finish::Stop)));
    assert_eq!(finished(None, &[(0, "null"), (1, "null"), (0, "\"stop\"")]), (false, Some(Finish::Stop)));
    assert_eq!(finished(Some(2), &[(0, "\"stop\"")]), (false, Some(Finish::Stop)));
    assert_eq!(finished(Some(2), &[(1, "\"length\""), (0, "\"stop\"")]), (true, Some(Finish::Length)));
    assert_eq!(finished(Some(1), &[(0, "\"tool_calls\"")]), (true, Some(Finish::Other)));
    assert_eq!(finished(Some(1), &[(0, "\"error\"")]), (false, None), "an error is no finish");
}

#[test]
fn finish_words() {
    let rows = [
        (Chat, r#"{"choices":[{"finish_reason":"eos"}]}"#, Finish::Stop),
        (Chat, r#"{"choices":[{"finish_reason":"max_tokens"}]}"#, Finish::Length),
        (Chat, r#"{"choices":[{"finish_reason":"content_filter"}]}"#, Finish::Other),
        (Messages, r#"{"type":"message_delta","delta":{"stop_reason":"max_tokens"}}"#, Finish::Length),
        (Messages, r#"{"type":"message_delta","delta":{"stop_reason":"stop_sequence"}}"#, Finish::Stop),
        (Messages, r#"{"type":"message_delta","delta":{"stop_reason":"pause_turn"}}"#, Finish::Other),
        (
            Responses,
            r#"{"type":"response.incomplete","response":{"incomplete_details":{"reason":"max_output_tokens"}}}"#,
            Finish::Length,
        ),
        (
            Responses,
            r#"{"type":"response.incomplete","response":{"incomplete_details":{"reason":"content_filter"}}}"#,
            Finish::Other,
        ),
    ];
    for (protocol, data, finish) in rows {
        assert_eq!(whole(protocol, &stream(&[data])).0.finish(), Some(finish), "{data}");
    }
}

#[test]
fn kind_i_messages_usage() {
    let start =
        r#"{"input_tokens":4,"cache_creation_input_tokens":11822,"cache_read_input_tokens":0,"output_tokens":1}"#;
    let rows: &[(&str, &str, &[&str], Numbers)] = &[
        (
            "B148",
            r#"{"input_tokens":25,"output_tokens":1}"#,
            &[r#"{"output_tokens":15}"#],
            (Some(25), None, None, None, Some(15)),
        ),
        (
            "B149",
            r#"{"input_tokens":5,"cache_read_input_tokens":1000,"cache_creation_input_tokens":200,"output_tokens":1}"#,
            &[
                r#"{"input_tokens":5,"cache_read_input_tokens":1000,"cache_creation_input_tokens":200,"output_tokens":40}"#,
            ],
            (Some(1205), Some(1000), Some(200), None, Some(40)),
        ),
        (
            "B152",
            "{}",
            &[r#"{"output_tokens":10}"#, r#"{"output_tokens":25}"#, r#"{"output_tokens":40}"#],
            (None, None, None, None, Some(40)),
        ),
        (
            "B154",
            start,
            &[r#"{"input_tokens":0,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":205}"#],
            (Some(11826), Some(0), Some(11822), None, Some(205)),
        ),
        ("B155 absent", start, &[r#"{"output_tokens":205}"#], (Some(11826), Some(0), Some(11822), None, Some(205))),
        (
            "B155 null",
            start,
            &[
                r#"{"input_tokens":null,"cache_creation_input_tokens":null,"cache_read_input_tokens":null,"output_tokens":205}"#,
            ],
            (Some(11826), Some(0), Some(11822), None, Some(205)),
        ),
        (
            "B161",
            r#"{"input_tokens":1,"cache_creation_input_tokens":100,"cache_creation":{"ephemeral_5m_input_tokens":40,"ephemeral_1h_input_tokens":60},"output_tokens":1}"#,
            &[r#"{"output_tokens":2}"#],
            (Some(101), None, Some(40), Some(60), Some(2)),
        ),
        (
            "B163",
            r#"{"input_tokens":1,"cache_creation":{"ephemeral_5m_input_tokens":40,"ephemeral_1h_input_tokens":60}}"#,
            &[r#"{"cache_creation_input_tokens":130,"output_tokens":2}"#],
            (Some(131), None, Some(70), Some(60), Some(2)),
        ),
        (
            "B167",
            r#"{"input_tokens":19,"cache_read_input_tokens":39000,"output_tokens":1}"#,
            &[],
            (Some(39019), Some(39000), None, None, Some(1)),
        ),
    ];
    for (row, start, deltas, expected) in rows {
        let meter = message_usage(start, deltas);
        assert_eq!(numbers(meter.usage()), *expected, "{row}");
        assert_eq!(meter.anomalies(), u64::from(*row == "B163"), "{row}");
    }
}

#[test]
fn b164_the_output_of_the_start_is_a_placeholder() {
    let start = r#"{"input_tokens":5,"cache_read_input_tokens":1000,"output_tokens":1}"#;
    let meter = message_usage(start, &[]);
    assert_eq!((meter.output_is_placeholder(), meter.source()), (true, Source::Partial));
    assert_eq!(meter.usage().input, Some(1005), "b166: folded as in a whole answer");
    let meter = message_usage(start, &[r#"{"output_tokens":40}"#]);
    assert_eq!((meter.output_is_placeholder(), meter.source()), (false, Source::Reported));
    assert!(!Meter::new(Messages, None).output_is_placeholder());
}

#[test]
fn b217_iterations_are_summed_and_other_models_kept_apart() {
    let iterations = r#"{"input_tokens":5,"output_tokens":7,"iterations":[
        {"type":"compaction","input_tokens":100,"output_tokens":20},
        {"type":"message","model":"own","input_tokens":5,"output_tokens":7,"cache_read_input_tokens":50,"cache_creation_input_tokens":3},
        {"type":"advisor_message","model":"other","input_tokens":1000,"output_tokens":9},
        {"type":"advisor_message","model":"other","input_tokens":1,"output_tokens":1,"cache_read_input_tokens":10}]}"#.replace('\n', " ");
    let meter = message_usage(r#"{"input_tokens":5,"output_tokens":1}"#, &[&iterations, &iterations]);
    assert_eq!(numbers(meter.usage()), (Some(158), Some(50), Some(3), None, Some(27)));
    let [(name, usage)] = meter.other_models() else { panic!("{:?}", meter.other_models()) };
    assert_eq!((name.as_str(), numbers(*usage)), ("other", (Some(1011), Some(10), None, None, Some(10))));
    // The start's iterations are preliminary; an empty list is none.
    let meter = message_usage(&iterations, &[r#"{"output_tokens":8,"iterations":[]}"#]);
    assert_eq!(numbers(meter.usage()), (Some(5), None, None, None, Some(8)));
}

/// Name, the usage of each chunk, what comes of it, anomalies.
type ChatRow<'a> = (&'a str, &'a [&'a str], Numbers, u64);

fn check_chat(rows: &[ChatRow<'_>]) {
    for (row, usages, expected, anomalies) in rows {
        let meter = chat_usage(usages);
        assert_eq!((numbers(meter.usage()), meter.anomalies()), (*expected, *anomalies), "{row}");
    }
}

#[test]
fn kind_j_chat_usage() {
    let ok = r#"{"prompt_tokens":12,"completion_tokens":2,"total_tokens":14}"#;
    check_chat(&[
        (
            "B169",
            &[
                r#"{"prompt_tokens":12,"completion_tokens":1}"#,
                r#"{"prompt_tokens":12,"completion_tokens":2}"#,
                r#"{"prompt_tokens":12,"completion_tokens":3}"#,
            ],
            (Some(12), None, None, None, Some(3)),
            0,
        ),
        (
            "B170",
            &[
                r#"{"prompt_tokens":13856,"completion_tokens":133}"#,
                r#"{"prompt_tokens":13856,"completion_tokens":134}"#,
            ],
            (Some(13856), None, None, None, Some(134)),
            0,
        ),
        ("B172", &["null", ok, "null"], (Some(12), None, None, None, Some(2)), 0),
        (
            "B173",
            &[
                r#"{"prompt_tokens":12,"completion_tokens":2,"total_tokens":14,"prompt_tokens_details":{"cached_tokens":0,"cache_write_tokens":null}}"#,
            ],
            (Some(12), Some(0), None, None, Some(2)),
            0,
        ),
        (
            "B175",
            &[
                r#"{"prompt_tokens":12,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":8}}"#,
                r#"{"prompt_tokens":12,"completion_tokens":2,"prompt_tokens_details":null}"#,
            ],
            (Some(12), Some(8), None, None, Some(2)),
            0,
        ),
        ("B176", &[r#"{"prompt_tokens":12,"completion_tokens":null}"#], (Some(12), None, None, None, None), 0),
    ]);
    assert_eq!(chat_usage(&[r#"{"prompt_tokens":12,"completion_tokens":null}"#]).source(), Source::Partial, "B176");
    assert_eq!(chat_usage(&[]).source(), Source::None);
}

#[test]
fn kind_l_what_the_numbers_mean() {
    check_chat(&[
        (
            "B199",
            &[
                r#"{"prompt_tokens":36,"completion_tokens":10,"total_tokens":736,"completion_tokens_details":{"reasoning_tokens":690}}"#,
            ],
            (Some(36), None, None, None, Some(700)),
            0,
        ),
        (
            "B197",
            &[
                r#"{"prompt_tokens":36,"completion_tokens":135,"total_tokens":171,"completion_tokens_details":{"reasoning_tokens":78}}"#,
            ],
            (Some(36), None, None, None, Some(135)),
            0,
        ),
        (
            "B200",
            &[r#"{"prompt_tokens":17903,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":17817}}"#],
            (Some(17903), Some(17817), None, None, Some(1)),
            0,
        ),
        (
            "B202",
            &[r#"{"prompt_tokens":10,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":12}}"#],
            (Some(10), Some(10), None, None, Some(1)),
            1,
        ),
        ("B203", &[r#"{"prompt_tokens":10,"completion_tokens":-100}"#], (Some(10), None, None, None, None), 1),
        ("B205", &[r#"{"prompt_tokens":10,"completion_tokens":9e18}"#], (Some(10), None, None, None, None), 1),
        (
            "B205 plain",
            &[r#"{"prompt_tokens":10,"completion_tokens":1099511627777}"#],
            (Some(10), None, None, None, None),
            1,
        ),
        (
            "largest",
            &[r#"{"prompt_tokens":10,"completion_tokens":1099511627776}"#],
            (Some(10), None, None, None, Some(1 << 40)),
            0,
        ),
        (
            "strings and floats",
            &[r#"{"prompt_tokens":"12","completion_tokens":2.0}"#],
            (Some(12), None, None, None, Some(2)),
            0,
        ),
        (
            "exponents",
            &[r#"{"prompt_tokens":1.2e1,"completion_tokens":-0.0}"#],
            (Some(12), None, None, None, Some(0)),
            0,
        ),
        (
            "broken",
            &[r#"{"prompt_tokens":1.5,"completion_tokens":"many","total_tokens":{}}"#],
            (None, None, None, None, None),
            3,
        ),
        (
            "flat",
            &[r#"{"prompt_tokens":12,"completion_tokens":5,"cached_tokens":3,"reasoning_tokens":4}"#],
            (Some(12), Some(3), None, None, Some(5)),
            0,
        ),
        (
            "DeepSeek",
            &[r#"{"prompt_tokens":12,"completion_tokens":5,"prompt_cache_hit_tokens":3,"prompt_cache_miss_tokens":9}"#],
            (Some(12), Some(3), None, None, Some(5)),
            0,
        ),
        (
            "OpenRouter",
            &[r#"{"prompt_tokens":12,"completion_tokens":5,"prompt_tokens_details":{"cache_write_tokens":7}}"#],
            (Some(12), None, Some(7), None, Some(5)),
            0,
        ),
        (
            "both words",
            &[r#"{"input_tokens":0,"output_tokens":0,"prompt_tokens":12,"completion_tokens":5}"#],
            (Some(12), None, None, None, Some(5)),
            0,
        ),
        ("other words", &[r#"{"input_tokens":12,"output_tokens":5}"#], (Some(12), None, None, None, Some(5)), 0),
    ]);
    let flat = chat_usage(&[r#"{"prompt_tokens":12,"completion_tokens":5,"reasoning_tokens":4}"#]);
    assert_eq!(flat.usage().reasoning, Some(4));
}

#[test]
fn b106_b190_usage_in_other_places() {
    let rows = [
        r#"{"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":12,"completion_tokens":2}}"#,
        r#"{"choices":[{"delta":{},"usage":{"prompt_tokens":12,"completion_tokens":2}}]}"#,
        r#"{"choices":[],"x_groq":{"id":"r","usage":{"prompt_tokens":12,"completion_tokens":2}}}"#,
        r#"{"error":{"message":"x"},"usage":{"prompt_tokens":12,"completion_tokens":2},"choices":[{"finish_reason":"error"}]}"#,
    ];
    for data in rows {
        assert_eq!(numbers(whole(Chat, &stream(&[data])).0.usage()), (Some(12), None, None, None, Some(2)), "{data}");
    }
    let top_first = [rows[0], r#"{"x_groq":{"usage":{"prompt_tokens":1,"completion_tokens":1}}}"#];
    assert_eq!(whole(Chat, &stream(&top_first)).0.usage().input, Some(12), "the top level is not overruled");
}

#[test]
fn b209_cached_audio_is_counted_once() {
    let usage = r#"{"prompt_tokens":100,"completion_tokens":30,"prompt_tokens_details":{"cached_tokens":40,"audio_tokens":50,"cached_tokens_details":{"audio_tokens":30}},"completion_tokens_details":{"audio_tokens":10,"reasoning_tokens":15}}"#;
    let meter = chat_usage(&[usage]);
    let Usage { audio_input, audio_output, reasoning, .. } = meter.usage();
    assert_eq!((audio_input, audio_output, reasoning, meter.anomalies()), (Some(20), Some(10), Some(15), 0));
    let meter =
        chat_usage(&[r#"{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":80,"audio_tokens":50}}"#]);
    assert_eq!(meter.usage().audio_input, Some(20), "never more than what is left of the prompt");
}

#[test]
fn kind_k_responses_usage() {
    let ended = |kind: &str, inside: &str| {
        let data = format!(
            r#"{{"type":"response.{kind}","response":{{"usage":{{"input_tokens":64,"output_tokens":1500}},{inside}}}}}"#
        );
        whole(Responses, &stream(&[&data])).0
    };
    let meter = ended("incomplete", r#""incomplete_details":{"reason":"max_output_tokens"}"#);
    assert_eq!(
        (numbers(meter.usage()), meter.finish()),
        ((Some(64), None, None, None, Some(1500)), Some(Finish::Length)),
        "B191"
    );
    let meter = ended("failed", r#""error":{"code":"server_is_overloaded","message":"x"}"#);
    assert_eq!(
        (numbers(meter.usage()), meter.error().unwrap().status),
        ((Some(64), None, None, None, Some(1500)), 529),
        "B193, B128"
    );
    let meter = ended(
        "completed",
        r#""output":[{"type":"web_search_call"},{"type":"web_search_call"}],"tool_usage":{"web_search":{"num_requests":1}}"#,
    );
    assert_eq!(meter.usage().web_search, Some(1), "B215");
    let meter = whole(Responses, &stream(&[r#"{"type":"response.completed","response":{"usage":null}}"#])).0;
    assert_eq!((meter.source(), meter.usage()), (Source::None, Usage::default()), "B196");
    let progress = r#"{"type":"response.in_progress","sequence_number":41,"response":{"usage":{"input_tokens":1,"output_tokens":1}}}"#;
    let meter = whole(Responses, &stream(&[progress])).0;
    assert_eq!((meter.source(), meter.last_sequence()), (Source::None, Some(41)), "only the terminal event's; B100");
}

#[test]
fn b211_served_tier_wherever_it_is() {
    let rows = [
        (Chat, vec![r#"{"service_tier":"flex","choices":[]}"#, r#"{"choices":[]}"#]),
        (Chat, vec![r#"{"choices":[],"service_tier":null}"#, r#"{"service_tier":"flex","choices":[]}"#]),
        (
            Responses,
            vec![
                r#"{"type":"response.created","response":{"service_tier":"auto"}}"#,
                r#"{"type":"response.completed","response":{"service_tier":"flex"}}"#,
            ],
        ),
        (Messages, vec![r#"{"type":"message_start","message":{"usage":{"service_tier":"flex"}}}"#]),
    ];
    for (protocol, data) in rows {
        assert_eq!(whole(protocol, &stream(&data)).0.service_tier(), Some("flex"), "{data:?}");
    }
}

#[test]
fn b214_searches_are_a_maximum() {
    let meter = message_usage(
        r#"{"input_tokens":1,"server_tool_use":{"web_search_requests":1}}"#,
        &[
            r#"{"output_tokens":5,"server_tool_use":{"web_search_requests":2},"output_tokens_details":{"thinking_tokens":3}}"#,
            r#"{"output_tokens":6,"server_tool_use":{"web_search_requests":2}}"#,
        ],
    );
    assert_eq!((meter.usage().web_search, meter.usage().reasoning), (Some(2), Some(3)));
}

#[test]
fn f9_whole_replies() {
    let rows = [
        (
            Chat,
            r#"{"id":"c","model":"m","created":7,"choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"length"}],"usage":{"prompt_tokens":12,"completion_tokens":2}}"#,
            "ovfs",
            Some(Finish::Length),
        ),
        (
            Chat,
            r#"{"id":"c","model":"m","created":7,"object":"text_completion","choices":[{"text":"x","finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":2}}"#,
            "ovf",
            Some(Finish::Stop),
        ),
        (
            Messages,
            r#"{"id":"c","type":"message","model":"m","content":[{"type":"text","text":"x"}],"stop_reason":"end_turn","usage":{"input_tokens":12,"output_tokens":2}}"#,
            "ovft",
            Some(Finish::Stop),
        ),
        (
            Responses,
            r#"{"id":"c","object":"response","model":"m","created_at":7.0,"status":"completed","error":null,"output":[{"type":"message","content":[{"type":"output_text","text":"x"}]}],"usage":{"input_tokens":12,"output_tokens":2}}"#,
            "ovft",
            Some(Finish::Stop),
        ),
        (
            Responses,
            r#"{"id":"c","object":"response","model":"m","status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[],"usage":{"input_tokens":12,"output_tokens":2}}"#,
            "ft",
            Some(Finish::Length),
        ),
    ];
    for (protocol, json, expected, finish) in rows {
        let mut meter = Meter::new(protocol, None);
        assert_eq!(letters(meter.reply(json.as_bytes())), expected, "{json}");
        assert_eq!(numbers(meter.usage()), (Some(12), None, None, None, Some(2)), "{json}");
        assert_eq!((meter.source(), meter.finish()), (Source::Reported, finish), "{json}");
        assert_eq!((meter.answer_id(), meter.model(), meter.all_finished()), (Some("c"), Some("m"), true), "{json}");
    }
    for (protocol, json) in [
        (Chat, r#"{"error":{"message":"x"}}"#),
        (Chat, r#" [{"error":{"message":"x","code":503}}]"#),
        (Messages, r#"{"type":"error","error":{"type":"api_error","message":"x"}}"#),
        (Responses, r#"{"error":{"message":"x"}}"#),
        (
            Responses,
            r#"{"status":"failed","error":{"code":"server_error","message":"x"},"usage":{"input_tokens":20,"output_tokens":3}}"#,
        ),
    ] {
        let mut meter = Meter::new(protocol, None);
        assert_eq!(letters(meter.reply(json.as_bytes())), "te", "{json}");
        assert_eq!(meter.error().unwrap().message.as_deref(), Some("x"), "{json}");
    }
    assert!(Meter::new(Chat, None).reply(b"<html>").malformed);
    let mut embeddings = Meter::new(Chat, None);
    embeddings.reply(br#"{"object":"list","data":[{"embedding":[0.1]}],"usage":{"prompt_tokens":8,"total_tokens":8}}"#);
    assert_eq!((embeddings.usage().input, embeddings.usage().output), (Some(8), Some(0)));
}

#[test]
fn b94_b110_what_an_error_stands_for() {
    let rows: &[(&str, u16, bool)] = &[
        (r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#, 529, false),
        (r#"{"type":"error","error":{"type":"rate_limit_error","message":"x"}}"#, 429, false),
        (r#"{"type":"error","error":{"type":"api_error","message":"x"}}"#, 500, false),
        (r#"{"type":"error","error":{"type":"authentication_error","message":"x"}}"#, 401, false),
        (r#"{"type":"error","error":{"type":"permission_error","message":"x"}}"#, 403, false),
        (r#"{"type":"error","error":{"type":"not_found_error","message":"x"}}"#, 404, false),
        (r#"{"type":"error","error":{"type":"invalid_request_error","message":"x"}}"#, 400, true),
        (
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to go on"}}"#,
            400,
            false,
        ),
        (r#"{"type":"error","error":{"type":"request_too_large","message":"x"}}"#, 413, true),
        (r#"{"error":{"message":"x","type":"invalid_request_error","code":"invalid_api_key"}}"#, 401, false),
        (r#"{"error":{"message":"x","type":"insufficient_quota","code":"insufficient_quota"}}"#, 429, false),
        (r#"{"error":{"message":"x","type":"server_error","code":null}}"#, 500, false),
        (r#"{"error":{"message":"x","code":"context_length_exceeded"}}"#, 400, true),
        (r#"{"error":{"code":400,"message":"x","type":"exceed_context_size_error"}}"#, 400, true),
        (r#"{"error":{"code":"502","message":"x"}}"#, 502, false),
        (r#"[{"error":{"code":429,"message":"x","status":"RESOURCE_EXHAUSTED"}}]"#, 429, false),
        (r#"{"error":{"status":"UNAVAILABLE","message":"x"}}"#, 503, false),
        (r#"{"error":"x"}"#, 500, false),
        (r#"{"error":"x","code":404}"#, 404, false),
        (r#"{"object":"error","message":"x","type":"BadRequestError","code":400}"#, 400, true),
        (r#"{"object":"error","message":"x","type":"BadRequestError"}"#, 400, true),
        (r#"{"detail":"x"}"#, 500, false),
        (r#"{"detail":[{"loc":["body"],"msg":"x"}]}"#, 500, false),
        (r#"{"detail":"y","error":{"message":"x"}}"#, 500, false),
        (r#"{"type":"error","code":"server_error","message":"x","param":null,"sequence_number":3}"#, 500, false),
        (
            r#"{"type":"response.failed","response":{"id":"r","status":"failed","error":{"code":"invalid_prompt","message":"x"}}}"#,
            400,
            true,
        ),
        (r#""x""#, 500, false),
    ];
    for (json, status, clients_fault) in rows {
        let error = UpstreamError::from_json(Responses, json.as_bytes()).unwrap_or_else(|| panic!("{json}"));
        assert_eq!((error.status, error.clients_fault), (*status, *clients_fault), "{json}");
        assert!(error.message.is_some_and(|message| message == "x" || message.starts_with("Your")), "{json}");
    }
    for json in
        ["{}", "null", "[]", r#"{"message":"x"}"#, r#"{"error":null}"#, r#"{"id":"c","choices":[]}"#, "{bad", "<html>"]
    {
        assert_eq!(UpstreamError::from_json(Chat, json.as_bytes()), None, "{json}");
    }
}

#[test]
fn the_event_name_serves_where_data_has_no_type() {
    let (_, facts) = whole(Messages, "event: message_stop\ndata: {}\n\n");
    assert_eq!(letters(facts[0]), "t");
    let (_, facts) = whole(Messages, "event: ping\ndata: {\"type\":\"message_stop\"}\n\n");
    assert_eq!(letters(facts[0]), "t", "the type in the data wins");
    let (_, facts) = whole(Responses, "event: response.output_text.delta\ndata: {\"delta\":\"x\"}\n\n");
    assert_eq!(letters(facts[0]), "ov");
}

#[test]
fn a_malformed_event_leaves_no_trace() {
    let broken = r#"{"id":"bad","usage":{"prompt_tokens":99,"completion_tokens":9},"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]"#;
    let (meter, facts) = whole(Chat, &stream(&[broken]));
    assert_eq!(letters(facts[0]), "m");
    assert_eq!(
        (meter.answer_id(), meter.usage(), meter.all_finished(), meter.saw_output()),
        (None, Usage::default(), false, false)
    );
}

/// Events that are alike, and almost alike; `@` is where a string goes, `#` a number, `%` an object or array.
fn alike() -> impl Strategy<Value = (Protocol, Vec<String>)> {
    let chat = vec![
        r#"{"id":"c","service_tier":"a","choices":[{"index":0,"delta":{"content":"@"}}]}"#,
        r#"{"id":"c","service_tier":"b","choices":[{"index":0,"delta":{"content":"@"}}]}"#,
        r#"{"id":"c","choices":[{"index":0,"delta":{"content":"@"}}],"obfuscation":"@"}"#,
        r#"{"obfuscation":"@","choices":[{"index":0,"delta":{"reasoning_content":"@","content":null}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"reasoning":"@","reasoning_details":[{"text":"@"}]}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":"@"}}]}"#,
        r#"{"choices":[{"index":1,"text":"@"}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"@"},"finish_reason":"@"}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"@"}}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"@"}}],"error":"@"}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"@"}}]} @"#,
        r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"id":"@","function":{"arguments":"@"}}]}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"@"}}]}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"function_call":{"name":"@","arguments":"@"}}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":[{"type":"@","text":"@","closed":true}]}}],"p":"@"}"#,
        r#"{"choices":[{"index":0,"delta":{"content":%}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"reasoning":"@","reasoning_details":%}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"@"},"logprobs":%}],"obfuscation":%}"#,
        r#"{"usage":%,"choices":[{"index":0,"delta":{"content":"@"}}]}"#,
        r#"{"usage":%,"service_tier":"a","choices":[{"index":0,"delta":{"content":"@"}}]}"#,
        r#"{"usage":%,"usage":{"prompt_tokens":3},"choices":[{"index":0,"delta":{"content":"@"}}]}"#,
        r#"{"usage":{"prompt_tokens":#},"choices":[{"index":0,"delta":{"content":"@"},"usage":%}]}"#,
        r#"{"x_groq":{"usage":%},"choices":[{"index":0,"delta":{"content":"@"}}]}"#,
        r#"{"usage":%,"choices":[{"index":0,"message":{"content":"@"},"delta":{"content":"@"}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"@"},"message":{"content":"@"}}]}"#,
        r#"{"choices":[{"index":0,"message":{"content":%},"delta":{"content":"@"}}]}"#,
        r#"{"choices":[{"index":0,"message":{"content":"@"}}]}"#,
        r#"{"choices":[{"message":{"content":"@"},"message":{"content":""},"delta":{"content":"@"}}]}"#,
        r#"{"choices":[{"delta":{"content":"@"},"delta":{"content":""},"text":"@"}]}"#,
        r#"{"choices":[{"delta":{"a":1,"content":"@","refusal":"@","reasoning":"@","audio":%,"tool_calls":[{"id":"@","name":"@","arguments":"@"}]}}]}"#,
    ];
    let messages = vec![
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"@"}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"@"}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"thinking":"@","text":"@"}}"#,
        r#"{"index":0,"delta":{"type":"text_delta","text":"@"}}"#,
        r#"{"type":"content_block_start","content_block":{"type":"text","text":"@"}}"#,
        r#"{"type":"message_delta","delta":{"text":"@","stop_reason":"@"}}"#,
        r#"{"type":"content_block_delta","delta":{"type":"citations_delta","citation":%}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"@"},"usage":%}"#,
    ];
    let responses = vec![
        r#"{"type":"response.output_text.delta","sequence_number":#,"delta":"@","obfuscation":"@"}"#,
        r#"{"type":"response.output_text.delta","obfuscation":"@","delta":"@","sequence_number":#}"#,
        r#"{"type":"response.output_text.delta","sequence_number": # ,"delta":"@"}"#,
        r#"{"type":"response.output_text.delta","sequence_number":#,"sequence_number":7,"delta":"@"}"#,
        r#"{"type":"response.output_text.delta","sequence_number":"@","delta":"@"}"#,
        r#"{"type":"response.output_text.delta","sequence_number":#,"delta":"@","text":"@"}"#,
        r#"{"type":"response.reasoning_text.delta","sequence_number":#,"delta":"@"}"#,
        r#"{"type":"response.output_text.done","sequence_number":#,"text":"@"}"#,
        r#"{"type":"response.created","sequence_number":#,"response":{"id":"@"},"delta":"@"}"#,
        r#"{"sequence_number":#,"delta":"@"}"#,
        r#"{"type":"response.output_text.delta","delta":"@","logprobs":%,"sequence_number":#}"#,
        r#"{"type":"response.output_text.delta","delta":%,"sequence_number":#}"#,
    ];
    let nested = prop::sample::select(vec![
        "{}",
        "[]",
        "[ ]",
        "null",
        "\"x\"",
        "{",
        "[1,{\"text\":\"a\"}]",
        r#"{"prompt_tokens":4,"completion_tokens":7}"#,
        r#"{ "prompt_tokens" : 5,"completion_tokens":-7 }"#,
        r#"{"completion_tokens":9,"service_tier":"a"}"#,
        r#"{"total_tokens":1,"service_tier":"b"}"#,
        r#"{"service_tier":"a" 1}"#,
        "[{\"text\":\"a\" \"b\"}]",
    ]);
    let spaces = prop::sample::select(vec!["", "", " ", "    ", "\t", "\u{c}", "}"]);
    let numbers =
        prop::sample::select(vec!["0", "7", "41", "007", "5.0", "1e3", "-1", "", "123456789012", "9999999999999"]);
    let words = prop::sample::select(vec!["", "x", "stop", "\\\"", "\\", "\"", "你好", "x\",\"role\":\"y", "\\u0041"]);
    let shapes = prop_oneof![Just((Chat, chat)), Just((Messages, messages)), Just((Responses, responses))];
    // Few shapes at a time: twins come one after the other.
    let pick = (any::<prop::sample::Index>(), vec(words, 7), numbers, nested, spaces);
    (shapes, any::<[prop::sample::Index; 3]>(), vec(pick, 1..12)).prop_map(|((protocol, shapes), few, picks)| {
        let event = |(shape, words, number, nested, spaces): (prop::sample::Index, Vec<&str>, &str, &str, &str)| {
            let shape = shape.get(&few).get(&shapes);
            let text = words.iter().fold((*shape).to_owned(), |text, word| text.replacen('@', word, 1));
            let text = text.replacen('#', number, 1).replace('%', nested);
            let (text, brace) = text.split_at(text.rfind('}').unwrap());
            let name = if words[0] == "x" { "event: content_block_delta\n" } else { "" };
            format!("{name}data: {text}{spaces}{brace}\n\n")
        };
        (protocol, picks.into_iter().map(event).collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn a_twin_means_what_a_walk_would_say((protocol, events) in alike()) {
        let (mut quick, mut slow) = (Meter::new(protocol, None), Meter::new(protocol, None));
        let (mut by_word, mut walked) = (Delivered::new(protocol), Delivered::new(protocol));
        for event in events {
            let mut scanner = Scanner::new(1 << 20);
            let block = scanner.push(event.clone().into()).unwrap();
            slow.twin.forget();
            let span = &scanner.spans()[0];
            let facts = quick.event(&block.bytes, span);
            prop_assert_eq!(facts, slow.event(&block.bytes, span), "{}", event);
            if facts.output {
                let word = quick.word();
                by_word.event(span.payload(&block.bytes, &mut Vec::new()), word.as_ref());
                walked.event(span.payload(&block.bytes, &mut Vec::new()), None);
            }
            prop_assert_eq!(by_word.sampled_text(), walked.sampled_text(), "{}", event);
            prop_assert_eq!(quick.service_tier(), slow.service_tier(), "{}", event);
            prop_assert_eq!(quick.last_sequence(), slow.last_sequence(), "{}", event);
            prop_assert_eq!((quick.usage(), quick.anomalies()), (slow.usage(), slow.anomalies()), "{}", event);
        }
        prop_assert_eq!((quick.seen, quick.finished, quick.finish(), quick.started), (slow.seen, slow.finished, slow.finish(), slow.started));
        prop_assert_eq!((quick.answer_id(), quick.error(), quick.malformed()), (slow.answer_id(), slow.error(), slow.malformed()));
    }
}

#[test]
fn what_a_twin_may_differ_in() {
    let rows = [
        (Chat, r#"{"choices":[{"delta":{"content":"a"}}]}"#, r#"{"choices":[{"delta":{"content":"b c"}}]   }"#, true),
        (Chat, r#"{"choices":[{"delta":{"content":"a"}}]  }"#, r#"{"choices":[{"delta":{"content":"b"}}]}"#, true),
        (Chat, r#"{"choices":[{"delta":{"content":"a"}}]}"#, r#"{"choices":[{"delta":{"content":""}}]}"#, false),
        (Chat, r#"{"choices":[{"delta":{"content":"a"}}]}"#, r#"{"choices":[{"delta":{"content":"a"}}]}}"#, false),
        (
            Chat,
            r#"{"usage":{"prompt_tokens":1},"choices":[{"message":{"content":"a"},"delta":{"content":"a"}}]}"#,
            r#"{"usage":{"prompt_tokens":1,"x":[]},"choices":[{"message":{"content":""},"delta":{"content":"b"}}]}"#,
            true,
        ),
        (
            Chat,
            r#"{"usage":{"prompt_tokens":1},"choices":[{"delta":{"content":"a"}}]}"#,
            r#"{"usage":null,"choices":[{"delta":{"content":"b"}}]}"#,
            false,
        ),
        (
            Chat,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"a"}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"b"}}]}}]}"#,
            true,
        ),
        (
            Chat,
            r#"{"choices":[{"delta":{"reasoning":"a","reasoning_details":[{"text":"a"}]},"logprobs":[1]}]}"#,
            r#"{"choices":[{"delta":{"reasoning":"b","reasoning_details":[{"text":"b"}]},"logprobs":[2,3]}]}"#,
            true,
        ),
        (
            Chat,
            r#"{"choices":[{"delta":{"reasoning_details":[{"text":"a"}]}}]}"#,
            r#"{"choices":[{"delta":{"reasoning_details":[]}}]}"#,
            false,
        ),
        (
            Chat,
            r#"{"choices":[{"delta":{"reasoning_details":[{"text":"a"}]}}]}"#,
            r#"{"choices":[{"delta":{"reasoning_details":{"text":"a"}}}]}"#,
            false,
        ),
        (
            Responses,
            r#"{"type":"response.output_text.delta","delta":"a","sequence_number":9,"logprobs":[1]}"#,
            r#"{"type":"response.output_text.delta","delta":"b","sequence_number":10,"logprobs":[]}"#,
            true,
        ),
        (
            Messages,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}   }"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"b"}      }"#,
            true,
        ),
    ];
    for (protocol, first, second, is_known) in rows {
        let (meter, _) = whole(protocol, &stream(&[first]));
        assert_eq!(meter.twin.knows(second.as_bytes()).is_some(), is_known, "{second}");
    }
    // As deep as can be followed by itself: one level too deep inside its event.
    let deep = format!(r#"{{"usage":{{"a":{}1{}}},"#, "[".repeat(511), "]".repeat(511));
    let rest = r#""choices":[{"delta":{"content":"a"}}]}"#;
    let (meter, _) = whole(Chat, &stream(&[&format!(r#"{{"usage":{{}},{rest}"#)]));
    assert!(meter.twin.knows(format!("{deep}{rest}").as_bytes()).is_none());
    assert_eq!(letters(facts(Chat, &format!("{deep}{rest}"))), "m", "a walk refuses it");
}
