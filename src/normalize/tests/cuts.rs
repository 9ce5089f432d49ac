//! N3 on generated streams: where reads are cut changes nothing, and a normal stream stays as it is.

use super::{Settings, asked, endpoint, normal_of};
use crate::protocol::Protocol;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// A member of an object, or its absence.
fn member(of: &'static [&'static str]) -> impl Strategy<Value = Option<&'static str>> {
    option::weighted(0.7, select(of))
}

/// Members that are there, as the inside of an object.
fn inside(members: Vec<Option<&'static str>>) -> String {
    members.into_iter().flatten().collect::<Vec<_>>().join(",")
}

const USAGE: &str = r#""usage":{"prompt_tokens":12,"completion_tokens":2,"total_tokens":14}"#;

fn delta() -> impl Strategy<Value = String> {
    let text = member(&[
        r#""content":"a""#,
        r#""content":"é\u00e9 \"x\"""#,
        r#""content":null"#,
        r#""content":"""#,
        r#""content":[{"type":"text","text":"b"},{"type":"thinking","thinking":[{"type":"text","text":"t"}]}]"#,
    ]);
    let reasoning = member(&[r#""reasoning":"r""#, r#""reasoning_content":"rc""#, r#""reasoning":null"#]);
    let calls = option::weighted(
        0.2,
        select(&[
            r#""tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":""}}]"#,
            r#""tool_calls":[{"index":0,"function":{"arguments":"{}"}}]"#,
            r#""tool_calls":[{"index":1,"id":null,"function":{"arguments":"1"}}]"#,
        ]),
    );
    let role = option::weighted(0.3, Just(r#""role":"assistant""#));
    let whole = (role, text, reasoning, calls)
        .prop_map(|(role, text, reasoning, calls)| format!("{{{}}}", inside(vec![role, text, reasoning, calls])));
    prop_oneof![8 => whole, 1 => Just("null".to_owned())]
}

fn choice() -> impl Strategy<Value = String> {
    let finish = member(&[
        r#""finish_reason":null"#,
        r#""finish_reason":"""#,
        r#""finish_reason":"stop""#,
        r#""finish_reason":"eos""#,
        r#""finish_reason":"max_tokens""#,
    ]);
    let index = member(&[r#""index":0"#, r#""index":1"#]);
    let private = option::weighted(0.2, select(&[r#""native_finish_reason":"x""#, USAGE]));
    (index, option::weighted(0.9, delta()), finish, private).prop_map(|(index, delta, finish, private)| {
        let mut members: Vec<String> = [index, finish, private].into_iter().flatten().map(str::to_owned).collect();
        members.extend(delta.map(|delta| format!("\"delta\":{delta}")));
        format!("{{{}}}", members.join(","))
    })
}

fn chunk() -> impl Strategy<Value = String> {
    let head = (
        member(&[r#""id":"c1""#, r#""id":"""#, r#""id":"c2""#]),
        member(&[r#""object":"chat.completion.chunk""#, r#""object":"""#]),
        member(&[r#""created":7"#, r#""created":0"#, r#""created":8.0"#]),
        member(&[r#""model":"m""#, r#""model":"""#]),
        option::weighted(0.2, Just(USAGE)),
        option::weighted(0.2, select(&[r#""x_groq":{"id":"x"}"#, r#""provider":"p""#, r#""usage":null"#])),
    );
    (head, vec(choice(), 0..3)).prop_map(|((id, object, created, model, usage, private), choices)| {
        let head = inside(vec![id, object, created, model, usage, private]);
        let joint = if head.is_empty() { "" } else { "," };
        format!("{{{head}{joint}\"choices\":[{}]}}", choices.join(","))
    })
}

/// The data of an event of the other two protocols, with its type.
fn named(protocol: Protocol) -> impl Strategy<Value = (&'static str, String)> {
    let kinds: &[(&str, &str)] = match protocol {
        Protocol::Messages => &[
            ("message_start", r#""message":{"id":"m","model":"up","usage":{"input_tokens":1,"output_tokens":1}}"#),
            ("content_block_delta", r#""index":0,"delta":{"type":"text_delta","text":"a"}"#),
            ("ping", r#""x":1"#),
            ("message_delta", r#""delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}"#),
        ],
        Protocol::Chat | Protocol::Responses => &[
            ("response.created", r#""response":{"id":"r","model":"up","status":"in_progress"}"#),
            ("response.content_part.added", r#""output_index":0,"content_index":1,"part":{"type":"output_text"}"#),
            ("response.output_text.delta", r#""output_index":0,"content_index":1,"delta":"a""#),
            (
                "response.completed",
                r#""response":{"id":"r","model":"up","usage":{"input_tokens":1,"output_tokens":2}}"#,
            ),
        ],
    };
    let sequence = option::weighted(0.4, 0_u64..4);
    (select(kinds.to_vec()), sequence).prop_map(|((kind, rest), sequence)| {
        let sequence = sequence.map(|at| format!("\"sequence_number\":{at},")).unwrap_or_default();
        (kind, format!("{{\"type\":\"{kind}\",{sequence}{rest}}}"))
    })
}

/// One event of a stream with its framing, whose line ends are the stream's.
fn event(protocol: Protocol) -> BoxedStrategy<String> {
    let framed = move |(kind, data, space, line): (&str, String, bool, bool)| {
        let name = if line && protocol != Protocol::Chat { format!("event: {kind}\n") } else { String::new() };
        format!("{name}data:{}{data}\n\n", if space { " " } else { "" })
    };
    let data = match protocol {
        Protocol::Chat => chunk().prop_map(|data| ("", data)).boxed(),
        Protocol::Responses | Protocol::Messages => named(protocol).boxed(),
    };
    let whole = (data, any::<bool>(), any::<bool>())
        .prop_map(move |((kind, data), space, line)| framed((kind, data, space, line)));
    let other = select(vec![": ping\n\n", "data: null\n\n", "id: 7\nretry: 5\n\n", "data: {\ndata: }\n\n", "\n"]);
    prop_oneof![12 => whole, 1 => other.prop_map(str::to_owned)].boxed()
}

fn stream() -> impl Strategy<Value = (Protocol, String)> {
    let of = |protocol: Protocol| {
        let end = if protocol == Protocol::Chat { "data: [DONE]\n\n" } else { "" };
        let ends = select(vec!["\n", "\r\n", "\r"]);
        (vec(event(protocol), 0..8), any::<bool>(), ends).prop_map(move |(events, done, line)| {
            let whole = events.concat() + if done { end } else { "" };
            (protocol, whole.replace('\n', line))
        })
    };
    prop_oneof![3 => of(Protocol::Chat), 1 => of(Protocol::Responses), 1 => of(Protocol::Messages)]
}

fn settings() -> impl Strategy<Value = Settings> {
    (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>())
        .prop_map(|(rewrite_model, normalize, usage_chunk_strict, native_errors)| Settings {
            rewrite_model,
            normalize,
            usage_chunk_strict,
            native_errors,
        })
        .prop_filter("something is asked", |settings| *settings != Settings::default())
}

/// The chunks between the cuts.
fn cut<'a>(stream: &'a [u8], at: &[Index]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = at.iter().map(|index| index.index(stream.len() + 1)).collect();
    cuts.extend([0, stream.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect()
}

/// The asked-for end of a protocol has settings that mean something there.
fn works(settings: Settings, protocol: Protocol) -> bool {
    settings.at(endpoint(protocol)).is_some()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn n3_cutting_and_then_normalising_is_normalising(
        (protocol, stream) in stream(), settings in settings(), include in any::<bool>(), at in vec(any::<Index>(), 0..9),
    ) {
        prop_assume!(works(settings, protocol));
        let asked = asked(endpoint(protocol), include);
        let whole = normal_of(settings, &asked, [stream.as_bytes()]);
        prop_assert_eq!(&normal_of(settings, &asked, cut(stream.as_bytes(), &at)), &whole);
        prop_assert_eq!(&normal_of(settings, &asked, stream.as_bytes().chunks(1)), &whole);
    }

    #[test]
    fn n3_a_generated_stream_once_normal_stays_as_it_is(
        (protocol, stream) in stream(), settings in settings(), include in any::<bool>(),
    ) {
        prop_assume!(works(settings, protocol));
        let asked = asked(endpoint(protocol), include);
        let once = normal_of(settings, &asked, [stream.as_bytes()]);
        prop_assume!(once.failed.is_none());
        let twice = normal_of(settings, &asked, [&once.bytes[..]]);
        prop_assert_eq!(String::from_utf8_lossy(&twice.bytes), String::from_utf8_lossy(&once.bytes));
    }
}
