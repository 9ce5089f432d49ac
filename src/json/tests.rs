use super::{Kind, Malformed, Walker};

#[test]
fn members_are_visited_once_and_in_order() {
    let text = br#" { "a" : [1, {"b": "\"x\\"}] , "c\u0064" : null, "e":"f" } "#;
    let mut seen = Vec::new();
    let mut walker = Walker::new(text);
    let was_object = walker
        .object(|walker, name| {
            seen.push((name.name().into_owned(), String::from_utf8_lossy(walker.skip()?).into_owned()));
            Ok(())
        })
        .unwrap();
    assert!(was_object);
    walker.end().unwrap();
    let expected = [("a", r#"[1, {"b": "\"x\\"}]"#), ("cd", "null"), ("e", r#""f""#)];
    assert_eq!(seen, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
}

#[test]
fn what_is_not_json_is_refused_where_it_stops() {
    for (text, at) in [("{\"a\":", 5), ("\"abc", 4), ("[1", 2), ("nul", 0), ("", 0), ("\"a\\", 3)] {
        assert_eq!(Walker::new(text.as_bytes()).skip(), Err(Malformed { at }), "{text}");
    }
}

#[test]
fn depth_has_a_floor() {
    let deep = "[".repeat(100_000);
    assert!(Walker::new(deep.as_bytes()).skip().is_err());
}

#[test]
fn kinds_are_told_by_the_first_byte() {
    for (text, kind) in [
        ("{}", Kind::Object),
        (" []", Kind::Array),
        ("\"\"", Kind::String),
        ("-1", Kind::Number),
        ("true", Kind::Bool),
        ("null", Kind::Null),
    ] {
        assert_eq!(Walker::new(text.as_bytes()).peek(), Ok(kind));
    }
}

#[test]
fn filled_values() {
    let rows = [
        ("\"x\"", true),
        ("\"\"", false),
        ("null", false),
        ("false", false),
        ("true", true),
        ("0", true),
        ("[ ]", false),
        ("[0]", true),
        ("{\n}", false),
        ("{\"a\":null}", true),
    ];
    for (text, filled) in rows {
        let mut walker = Walker::new(text.as_bytes());
        assert_eq!(walker.filled(), Ok(filled), "{text}");
        walker.end().unwrap();
    }
}

#[test]
fn names_with_escapes_match_as_what_they_mean() {
    let mut seen = Vec::new();
    Walker::new(br#"{"a":1,"\u0062c":2,"\ud800":3}"#)
        .object(|walker, name| {
            seen.push(name.bytes().into_owned());
            walker.skip().map(|_| ())
        })
        .unwrap();
    assert_eq!(seen, [b"a".to_vec(), b"bc".to_vec(), Vec::new()]);
}

#[test]
fn strings_end_at_their_first_bare_quote_wherever_that_is() {
    for len in 0..80 {
        for filler in ["a", "\u{21}", "\u{23}", "\u{5b}", "\u{5d}", "\u{a2}\u{dc}", "\u{7f}"] {
            let text: String = filler.repeat(len);
            for (rest, escaped) in [("\"", false), ("\\\"\"", true), ("\\\\\"tail, and more of it\"", true)] {
                let whole = format!("{text}{rest}");
                let end = text.len() + rest.find("\"tail").unwrap_or(rest.len() - 1);
                assert_eq!(super::string_end(whole.as_bytes()), Some((end, escaped)), "{whole}");
            }
            assert_eq!(super::string_end(text.as_bytes()), None);
        }
    }
}

#[test]
fn what_cannot_be_unescaped_stays_as_it_is() {
    for (raw, text) in [("plain", "plain"), ("a\\n\\\"b", "a\n\"b"), ("\\ud800", "\\ud800"), ("\\", "\\")] {
        assert_eq!(&*super::unescaped(raw.as_bytes()), text.as_bytes());
    }
}
