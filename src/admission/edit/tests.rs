use super::{Edit, apply, total_len};
use crate::admission::facts::read;
use crate::protocol::Endpoint;
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

fn edited(body: &str, model: &str, include_usage: bool) -> String {
    let body = Bytes::copy_from_slice(body.as_bytes());
    let facts = read(Endpoint::Chat, &body).unwrap();
    let pieces = apply(&body, &facts, &Edit { model, include_usage });
    let whole = pieces.concat();
    assert_eq!(total_len(&pieces), whole.len(), "B277");
    assert!(pieces.iter().all(|piece| !piece.is_empty()));
    String::from_utf8(whole).unwrap()
}

#[test]
fn u1_b178_the_flag_is_set_in_place() {
    for (body, expected) in [
        (r#"{"model":"m"}"#, r#"{"model":"m","stream_options":{"include_usage":true}}"#),
        ("{\"model\":\"m\" \n } ", "{\"model\":\"m\" \n ,\"stream_options\":{\"include_usage\":true}} "),
        (r#"{"stream_options":null,"model":"m"}"#, r#"{"stream_options":{"include_usage":true},"model":"m"}"#),
        (r#"{"model":"m","stream_options":{}}"#, r#"{"model":"m","stream_options":{"include_usage":true}}"#),
        (r#"{"model":"m","stream_options": { } }"#, r#"{"model":"m","stream_options": {"include_usage":true } }"#),
        (
            r#"{"model":"m","stream_options":{ "x" : 1}}"#,
            r#"{"model":"m","stream_options":{"include_usage":true, "x" : 1}}"#,
        ),
        (
            r#"{"model":"m","stream_options":{"x":{"include_usage":false},"include_usage" : false ,"y":2}}"#,
            r#"{"model":"m","stream_options":{"x":{"include_usage":false},"include_usage" : true ,"y":2}}"#,
        ),
        (
            r#"{"stream\u005foptions":{"include\u005fusage":null},"model":"m"}"#,
            r#"{"stream\u005foptions":{"include\u005fusage":true},"model":"m"}"#,
        ),
    ] {
        assert_eq!(edited(body, "m", true), expected);
        assert_eq!(edited(body, "m", false), body, "B187: not asked, not touched");
    }
    let asked = r#"{"model":"m","stream_options":{"include_usage":true}}"#;
    assert_eq!(edited(asked, "m", true), asked);
}

#[test]
fn b284_b286_what_needs_no_change_is_byte_identical() {
    let body = concat!(
        r#"{"z":1.0,"a":12345678901234567890,"mod\u0065l":"m\u0061x","b":"<>&\u2028\/","b":1e400,"dup":1,"dup":2,"#,
        "\"c\":\"\u{2028}\"}"
    );
    for _ in 0..100 {
        assert_eq!(edited(body, "max", false), body);
    }
    assert_eq!(edited(body, "sol-8b", false), body.replace(r#""m\u0061x""#, r#""sol-8b""#));
}

#[test]
fn a1_the_targets_name_replaces_the_models() {
    assert_eq!(
        edited(r#"{"model": "a" ,"b":"a"}"#, "x\"\\\n字", false),
        "{\"model\": \"x\\\"\\\\\\n字\" ,\"b\":\"a\"}"
    );
    // Both edits, in either order of place.
    let flag = r#""stream_options":{"include_usage":true}"#;
    assert_eq!(edited(r#"{"model":"a","stream_options":null}"#, "b", true), format!(r#"{{"model":"b",{flag}}}"#));
    assert_eq!(edited(r#"{"stream_options":null,"model":"a"}"#, "b", true), format!(r#"{{{flag},"model":"b"}}"#));
    assert_eq!(edited(r#"{"model":"a"}"#, "b", true), format!(r#"{{"model":"b",{flag}}}"#));
}

#[test]
fn b275_a_large_body_is_not_copied() {
    let mut text = format!(r#"{{"messages":"{}","model":"a","x":"#, "y".repeat(1 << 20));
    text.push_str("1}");
    let body = Bytes::from(text);
    let facts = read(Endpoint::Chat, &body).unwrap();
    let pieces = apply(&body, &facts, &Edit { model: "b", include_usage: true });
    assert_eq!(pieces[0].as_ptr(), body.as_ptr());
    assert!(pieces.iter().skip(1).map(Bytes::len).sum::<usize>() < 100);
}

/// White space between tokens.
fn space() -> impl Strategy<Value = String> {
    "[ \n\r\t]{0,3}"
}

/// `name` with some characters escaped, in quotes.
fn escaped(name: &str) -> impl Strategy<Value = String> + use<> {
    let name = name.to_owned();
    proptest::collection::vec(0_u8..6, name.chars().count()).prop_map(move |dice| {
        let escape = |(c, die): (char, &u8)| {
            if *die == 0 && u32::from(c) < 0x1_0000 { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() }
        };
        format!("\"{}\"", name.chars().zip(&dice).map(escape).collect::<String>())
    })
}

/// Any JSON value as text, with white space inside.
fn any_value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?",
        "[a-z{}\\[\\],:字 ]{0,8}".prop_map(|text| format!("\"{text}\"")),
        Just(r#""\"}\\""#.to_owned()),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (proptest::collection::vec(inner.clone(), 0..3), space())
                .prop_map(|(list, s)| format!("[{s}{}{s}]", list.join(&format!("{s},")))),
            (proptest::collection::vec((0_u8..3, inner), 0..3), space()).prop_map(|(list, s)| {
                let members: Vec<_> =
                    list.into_iter().map(|(key, value)| format!("\"model{key}\"{s}:{s}{value}")).collect();
                format!("{{{s}{}{s}}}", members.join(","))
            }),
        ]
    })
}

fn options() -> impl Strategy<Value = Option<String>> {
    let flag = (escaped("include_usage"), prop_oneof![Just("true"), Just("false"), Just("null")], space())
        .prop_map(|(name, value, s)| format!("{s}{name}{s}:{s}{value}{s}"));
    let other = (any_value(), space()).prop_map(|(value, s)| format!("{s}\"include_obfuscation\"{s}:{value}{s}"));
    let object = (proptest::option::of(flag), proptest::collection::vec(other, 0..2), any::<bool>(), space()).prop_map(
        |(flag, mut members, first, s)| {
            if let Some(flag) = flag {
                members.insert(if first { 0 } else { members.len() }, flag);
            }
            format!("{{{s}{}{s}}}", members.join(","))
        },
    );
    proptest::option::of(prop_oneof![Just("null".to_owned()), object])
}

fn body() -> impl Strategy<Value = String> {
    let model = prop_oneof![escaped("gpt-5"), escaped("字\u{1f600}x")];
    let model = (escaped("model"), model).prop_map(|(name, value)| (name, value));
    let options = (escaped("stream_options"), options());
    // Duplicates among them are wanted: Weir does not read these.
    let unknown = proptest::collection::vec((0_u8..3, any_value()), 0..5);
    (model, options, unknown, any::<u64>(), space()).prop_map(|(model, (name, options), unknown, seed, s)| {
        let mut members = vec![model];
        members.extend(options.map(|options| (name, options)));
        members.extend(unknown.into_iter().map(|(key, value)| (format!("\"key{key}\""), value)));
        let turn = usize::try_from(seed % 97).unwrap() % members.len();
        members.rotate_left(turn);
        let members: Vec<_> = members.into_iter().map(|(name, value)| format!("{s}{name}{s}:{s}{value}{s}")).collect();
        format!("{s}{{{}}}{s}", members.join(","))
    })
}

/// The simple version: change the tree.
fn changed(body: &str, model: &str, include_usage: bool) -> Value {
    let mut tree: Value = serde_json::from_str(body).unwrap();
    tree["model"] = json!(model);
    if include_usage {
        tree["stream_options"]["include_usage"] = json!(true);
    }
    tree
}

proptest! {
    #[test]
    fn u1_the_edit_changes_these_members_and_nothing_else(body in body(), model in prop_oneof![Just("gpt-5"), Just("a\"字")], flag in any::<bool>()) {
        let bytes = Bytes::from(body.clone());
        let facts = read(Endpoint::Chat, &bytes).unwrap();
        let pieces = apply(&bytes, &facts, &Edit { model, include_usage: flag });
        let whole = String::from_utf8(pieces.concat()).unwrap();
        prop_assert_eq!(serde_json::from_str::<Value>(&whole).unwrap(), changed(&body, model, flag));
        // The slices of the body, in order, are all of it but what was replaced.
        let range = bytes.as_ptr_range();
        let kept: Vec<_> = pieces.iter().filter(|piece| range.contains(&piece.as_ptr())).collect();
        let mut at = 0;
        let mut replaced = 0;
        for piece in &kept {
            let start = piece.as_ptr() as usize - range.start as usize;
            prop_assert!(start >= at);
            replaced += start - at;
            at = start + piece.len();
        }
        replaced += bytes.len() - at;
        let model_bytes = if facts.model == model { 0 } else { facts.spans.model.len() };
        prop_assert!(replaced <= model_bytes + if flag { 5 } else { 0 }, "{} bytes gone", replaced);
        // Once more changes nothing.
        let again = Bytes::from(whole.clone());
        let facts = read(Endpoint::Chat, &again).unwrap();
        prop_assert_eq!(apply(&again, &facts, &Edit { model, include_usage: flag }).concat(), whole.into_bytes());
    }
}
