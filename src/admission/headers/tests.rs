use super::{CREDENTIAL_HEADERS, FRAMING, cache_control, down, goes_down, goes_up, up};
use crate::config::Secret;
use http::{HeaderMap, HeaderName, HeaderValue};

fn name(text: &str) -> HeaderName {
    HeaderName::from_bytes(text.as_bytes()).unwrap()
}

fn map(lines: &[(&str, &str)]) -> HeaderMap {
    lines.iter().map(|(key, value)| (name(key), HeaderValue::from_str(value).unwrap())).collect()
}

fn lines(headers: &HeaderMap) -> Vec<String> {
    headers.iter().map(|(key, value)| format!("{key}: {}", value.to_str().unwrap())).collect()
}

#[test]
fn f8_table_of_what_goes_up() {
    let allow = [name("x-session"), name("authorization"), name("content-length"), name("openai-organization")];
    for (header, expected) in [
        ("content-type", true),
        ("accept", true),
        ("user-agent", true),
        ("anthropic-version", true),
        ("anthropic-beta", true),
        ("anthropic-dangerous-direct-browser-access", true),
        ("openai-beta", true),
        ("x-stainless-retry-count", true),
        ("idempotency-key", true),
        ("traceparent", true),
        ("tracestate", true),
        ("x-session", true),
        // B260, B262: no credential, even if the operator lists it
        ("authorization", false),
        ("x-api-key", false),
        ("api-key", false),
        ("cookie", false),
        ("proxy-authorization", false),
        // what names the client's account
        ("openai-organization", false),
        ("openai-project", false),
        ("anthropic-organization-id", false),
        // B247, B256: framing and connection
        ("accept-encoding", false),
        ("content-length", false),
        ("content-encoding", false),
        ("transfer-encoding", false),
        ("connection", false),
        ("te", false),
        ("host", false),
        ("expect", false),
        ("upgrade", false),
        // everything else
        ("x-forwarded-for", false),
        ("x-request-id", false),
        ("forwarded", false),
        ("referer", false),
        ("origin", false),
        ("baggage", false),
        ("x-anthropic-version", false),
    ] {
        assert_eq!(goes_up(&name(header), &allow), expected, "{header}");
    }
}

#[test]
fn f7_table_of_what_goes_down() {
    let pass = [name("x-extra"), name("location"), name("transfer-encoding"), name("x-ratelimit-reset-tokens")];
    for (header, one, several) in [
        ("content-type", true, true),
        ("retry-after", true, true),
        ("retry-after-ms", true, true),
        ("x-should-retry", true, true),
        ("openai-processing-ms", true, true),
        ("openai-version", true, true),
        ("x-extra", true, true),
        ("x-ratelimit-remaining-requests", true, false),
        ("anthropic-ratelimit-tokens-limit", true, false),
        ("x-ratelimit-reset-tokens", true, true),
        // B112
        ("location", false, false),
        ("set-cookie", false, false),
        ("content-length", false, false),
        ("content-encoding", false, false),
        ("transfer-encoding", false, false),
        ("connection", false, false),
        ("proxy-authenticate", false, false),
        ("www-authenticate", false, false),
        ("server", false, false),
        ("openai-organization", false, false),
        ("anthropic-organization-id", false, false),
        ("request-id", false, false),
        ("x-request-id", false, false),
        ("cf-ray", false, false),
        ("alt-svc", false, false),
        ("authorization", false, false),
    ] {
        assert_eq!(goes_down(&name(header), &pass, false), one, "{header}");
        assert_eq!(goes_down(&name(header), &pass, true), several, "{header}, several targets");
    }
}

#[test]
fn b260_nothing_on_the_lists_passes_whatever_is_allowed() {
    let all: Vec<_> = CREDENTIAL_HEADERS.iter().chain(&FRAMING).cloned().collect();
    for header in &all {
        assert!(!goes_up(header, &all) && !goes_down(header, &all, false), "{header}");
    }
}

#[test]
fn b256_what_connection_names_stays_behind() {
    let answer = map(&[
        ("connection", "close, X-Hop ,,"),
        ("connection", "retry-after"),
        ("keep-alive", "timeout=5"),
        ("x-hop", "1"),
        ("te", "trailers"),
        ("retry-after", "5"),
        ("content-type", "text/event-stream"),
    ]);
    assert_eq!(lines(&down(&answer, &[name("x-hop")], false, &[])), ["content-type: text/event-stream"]);
    let request = map(&[("connection", "anthropic-beta"), ("anthropic-beta", "x"), ("accept", "*/*")]);
    assert_eq!(lines(&up(&request, &[])), ["accept: */*"]);
}

#[test]
fn b263_b268_values_pass_unchanged_but_no_secret_does() {
    let secrets = [Secret::new("canary-1".to_owned()), Secret::new(String::new())];
    let answer = map(&[
        ("retry-after", "561600"),
        ("x-ratelimit-remaining-requests", "5"),
        ("x-should-retry", "false"),
        ("openai-version", "2020-10-01"),
        ("x-echo", "Bearer canary-1"),
    ]);
    let mut passed = lines(&down(&answer, &[name("x-echo")], false, &secrets));
    passed.sort();
    let expected = [
        "openai-version: 2020-10-01",
        "retry-after: 561600",
        "x-ratelimit-remaining-requests: 5",
        "x-should-retry: false",
    ];
    assert_eq!(passed, expected);
}

#[test]
fn b265_repeated_headers_all_pass_in_order() {
    let request = map(&[("anthropic-beta", "a"), ("anthropic-beta", "b")]);
    assert_eq!(lines(&up(&request, &[])), ["anthropic-beta: a", "anthropic-beta: b"]);
}

#[test]
fn b272_cache_control_is_merged() {
    for (existing, expected) in [
        (None, "no-cache, no-transform"),
        (Some(""), "no-cache, no-transform"),
        (Some("no-cache"), "no-cache, no-transform"),
        (Some("No-Transform , no-store"), "No-Transform, no-store, no-cache"),
        (Some("private, max-age=0"), "private, max-age=0, no-cache, no-transform"),
        (Some("no-cache, no-transform"), "no-cache, no-transform"),
    ] {
        let existing = existing.map(HeaderValue::from_static);
        assert_eq!(cache_control(existing.as_ref()), expected, "{existing:?}");
    }
    let odd = HeaderValue::from_bytes(b"\xff").unwrap();
    assert_eq!(cache_control(Some(&odd)), "no-cache, no-transform");
}
