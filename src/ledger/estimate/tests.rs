use super::*;

/// Keeps everything and counts at the end: what [`Delivered`] approximates.
fn simple(protocol: Protocol, events: &[Vec<u8>], model: &str) -> u64 {
    let mut text = Vec::new();
    for event in events {
        text.extend(delivered_text(protocol, event).unwrap_or_default());
    }
    tokens(&String::from_utf8_lossy(&text), model).unwrap_or(0)
}

fn sampled(protocol: Protocol, events: &[Vec<u8>], model: &str) -> Option<u64> {
    let mut delivered = Delivered::new(protocol);
    for event in events {
        delivered.event(event, None);
    }
    delivered.tokens(model)
}

fn messages_delta(text: &str) -> Vec<u8> {
    let event =
        serde_json::json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}});
    serde_json::to_vec(&event).unwrap()
}

const WORDS: [&str; 8] =
    [" the quick", " brown", " fox jumps over", " it,", " fn main() {\n", " Größe", " 流れ", " \"quoted\\\" text"];

#[test]
fn u4_counts_as_the_published_encodings_do() {
    for (text, model, count) in [
        ("hello world", "gpt-5.6-sol", 2),
        ("hello world", "gpt-4", 2),
        ("tiktoken is great!", "gpt-4", 6),
        ("tiktoken is great!", "gpt-4o", 6),
        ("antidisestablishmentarianism", "gpt-4", 6),
    ] {
        assert_eq!(tokens(text, model), Some(count), "{text} {model}");
    }
    assert_eq!(tokens("", "gpt-4"), None);
}

#[test]
fn u4_text_of_each_protocol_and_nothing_else() {
    for (protocol, data, expected) in [
        (
            Protocol::Chat,
            r#"{"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":"Hel\u006co"}}],"obfuscation":"abc"}"#,
            "Hello",
        ),
        (
            Protocol::Chat,
            r#"{"choices":[{"delta":{"reasoning_content":"hm","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]}}]}"#,
            "hmf{}",
        ),
        (
            Protocol::Chat,
            r#"{"choices":[{"delta":{"reasoning":"hm","reasoning_details":[{"text":"hm"}]},"message":{"content":"all of it"}}]}"#,
            "hm",
        ),
        (
            Protocol::Chat,
            r#"{"choices":[{"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"a"}]}]}}]}"#,
            "a",
        ),
        (Protocol::Chat, r#"{"choices":[{"text":"old"}],"usage":null}"#, "old"),
        (
            Protocol::Messages,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"so"}}"#,
            "so",
        ),
        (
            Protocol::Messages,
            r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{\"a\""}}"#,
            "{\"a\"",
        ),
        (
            Protocol::Messages,
            r#"{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"EqQB"}}"#,
            "",
        ),
        (
            Protocol::Messages,
            r#"{"type":"content_block_start","content_block":{"type":"web_search_tool_result","content":"encrypted"}}"#,
            "",
        ),
        (Protocol::Responses, r#"{"type":"response.output_text.delta","delta":"Hi","sequence_number":4}"#, "Hi"),
        (Protocol::Responses, r#"{"type":"response.output_text.done","text":"Hi there"}"#, ""),
    ] {
        let text = delivered_text(protocol, data.as_bytes()).unwrap();
        assert_eq!(String::from_utf8_lossy(&text), expected, "{data}");
    }
}

#[test]
fn u4_a_whole_reply_is_measured_too() {
    let mut delivered = Delivered::new(Protocol::Chat);
    delivered.reply(br#"{"id":"content","choices":[{"message":{"role":"assistant","content":"hello world"}}]}"#);
    assert_eq!(delivered.tokens("gpt-5"), Some(2));
}

#[test]
fn u4_short_streams_are_counted_exactly() {
    let events: Vec<_> = (0..200).map(|n| messages_delta(WORDS[n % WORDS.len()])).collect();
    let exact = simple(Protocol::Messages, &events, "m");
    assert_eq!(sampled(Protocol::Messages, &events, "m"), Some(exact));
}

#[test]
fn b164_long_streams_are_within_five_percent() {
    let mut rng = fastrand::Rng::with_seed(7);
    for length in [1_000, 5_000, 40_000] {
        let text =
            |rng: &mut fastrand::Rng| (0..rng.usize(1..5)).map(|_| WORDS[rng.usize(..WORDS.len())]).collect::<String>();
        let events: Vec<_> = (0..length).map(|_| messages_delta(&text(&mut rng))).collect();
        let exact = simple(Protocol::Messages, &events, "m");
        let estimate = sampled(Protocol::Messages, &events, "m").unwrap();
        assert!(estimate.abs_diff(exact) * 20 < exact, "{length} events: {estimate} for {exact}");
    }
}

#[test]
fn u4_memory_is_bounded_whatever_the_stream() {
    let mut delivered = Delivered::new(Protocol::Messages);
    let event = messages_delta(&"word ".repeat(40_000));
    for _ in 0..2_000 {
        delivered.event(&event, None);
    }
    let kept: usize = delivered.stretches.iter().map(|stretch| stretch.text.capacity()).sum();
    assert!(kept < 512 * 1024, "{kept} bytes in {} stretches", delivered.stretches.len());
    let estimate = delivered.tokens("m").unwrap();
    let exact = 2_000 * 40_000;
    assert!(estimate.abs_diff(exact) * 20 < exact, "{estimate}");
}

#[test]
fn b206_what_cannot_be_measured_adds_nothing() {
    let mut delivered = Delivered::new(Protocol::Responses);
    delivered.event(br#"{"type":"response.image_generation_call.partial_image","partial_image_b64":"AAAA"}"#, None);
    delivered.event(b"not json", None);
    assert_eq!((delivered.tokens("m"), delivered.rough()), (None, None));
    delivered.event(br#"{"type":"response.output_text.delta","delta":"four"}"#, None);
    assert!(delivered.rough().is_some());
}

#[test]
fn u4_bpe_is_linear_on_hostile_text() {
    // Quadratic encoders need minutes for this; the bound is generous for a debug build.
    let began = std::time::Instant::now();
    assert!(tokens(&"a".repeat(300_000), "gpt-5").is_some());
    assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
}

#[test]
fn g2_a_picture_in_a_body_is_no_text() {
    let text = "word ".repeat(1_000);
    let picture = "iVBORw0KGgo/+AbC".repeat(64 * 1024);
    let plain = format!(r#"{{"messages":[{{"content":"{text}"}}]}}"#);
    assert_eq!(prompt(plain.as_bytes()), rough(plain.len() as u64 - 6), "quotes aside, all of it is text");
    for url in [picture.clone(), format!("data:image/png;base64,{picture}"), picture.replace('/', "\\/")] {
        let body = format!(r#"{{"messages":[{{"content":"{text}"}},{{"image":"{url}"}}]}}"#);
        let tokens = prompt(body.as_bytes());
        assert!((2_800..3_000).contains(&tokens), "{tokens}");
    }
    let chinese = "字".repeat(4_000);
    assert_eq!(prompt(chinese.as_bytes()), rough(12_000));
}
