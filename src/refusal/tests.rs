use super::{Clock, Limited, Reason};
use crate::admission::facts::BodyError;
use crate::admission::keys::KeyError;
use crate::ledger::money::Nano;
use crate::limit::{Denied, Full, Short, Whose};
use crate::protocol::{Endpoint, Protocol};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};

const SECOND: Duration = Duration::from_secs(1);

fn limited(short: Short, frees: Option<Duration>) -> Reason {
    let denied = Denied { whose: Whose::Key, full: Full { short, frees } };
    Reason::Limited(Limited { denied, at: SystemTime::UNIX_EPOCH })
}

fn budget(held: bool) -> Reason {
    let budget = "20.00/day".parse().unwrap();
    limited(Short::Budget { budget, left: Nano(0), asked: Nano(1), held }, Some(SECOND))
}

fn all() -> Vec<(Reason, [u16; 3])> {
    let model = || "gpt-9".to_owned();
    vec![
        (Reason::Key(KeyError::Missing), [401; 3]),
        (Reason::IpNotAllowed, [403; 3]),
        (Reason::KeyOff, [403; 3]),
        (Reason::ModelOff { model: model() }, [503; 3]),
        (Reason::ModelNotFound { model: model() }, [404; 3]),
        (Reason::ModelNotAllowed { model: model() }, [403; 3]),
        (Reason::EndpointNotServed { model: model(), endpoint: Endpoint::Messages }, [404; 3]),
        (Reason::UnknownPath, [404; 3]),
        (Reason::MethodNotAllowed { allow: "POST" }, [405; 3]),
        (Reason::Body(BodyError::Missing { param: "model" }), [400; 3]),
        (Reason::BodyTooLarge { limit: 33_554_432 }, [413; 3]),
        (Reason::BodyTimeout, [408; 3]),
        (Reason::BodyIncomplete, [400; 3]),
        (Reason::BodyChunks, [400; 3]),
        (Reason::UnsupportedEncoding, [415; 3]),
        (Reason::Undecodable, [400; 3]),
        (Reason::Expectation, [417; 3]),
        (Reason::HeldBytes, [503; 3]),
        (Reason::Overloaded, [503; 3]),
        (Reason::Query, [400; 3]),
        (Reason::Draining, [503; 3]),
        (Reason::Ledger, [503; 3]),
        (Reason::LimitStore, [503; 3]),
        (Reason::UpgradeRequired, [426; 3]),
        (Reason::Background, [400; 3]),
        (Reason::StoredNotFound { param: "previous_response_id" }, [404; 3]),
        (limited(Short::Tokens { most: 1000 }, Some(SECOND)), [429; 3]),
        (limited(Short::TooLarge { most: 1000, asked: 2000 }, None), [429; 3]),
        (budget(false), [429, 429, 402]),
        (Reason::UpstreamConnect, [502; 3]),
        (Reason::UpstreamTimeout { clock: Clock::FirstByte }, [504; 3]),
        (Reason::UpstreamBroken, [502; 3]),
        (Reason::UpstreamStatus { status: 429, retry_after: Some(SECOND) }, [429; 3]),
        (Reason::UpstreamStatus { status: 529, retry_after: None }, [503, 503, 529]),
        (Reason::UpstreamStatus { status: 302, retry_after: None }, [502; 3]),
        (Reason::UpstreamAccount, [503; 3]),
        (Reason::Internal, [500; 3]),
    ]
}

#[test]
fn e5_every_reason_has_its_status_and_a_whole_envelope() {
    for (reason, statuses) in all() {
        for (protocol, status) in Protocol::ALL.into_iter().zip(statuses) {
            let refusal = reason.refusal(protocol);
            assert_eq!(refusal.status, status, "{reason:?} {protocol}");
            let body: Value = serde_json::from_slice(&refusal.body(protocol, "0190-rid")).unwrap();
            let error = body["error"].as_object().unwrap();
            let message = error["message"].as_str().unwrap();
            assert!(message.ends_with('.') && message.starts_with(|c: char| c.is_uppercase() || c == '"'), "{message}");
            let names: Vec<_> = error.keys().map(String::as_str).collect();
            match protocol {
                Protocol::Chat | Protocol::Responses => {
                    assert_eq!(names, ["code", "message", "param", "type"]);
                    assert!(error["code"].is_string(), "{reason:?}");
                    assert_eq!(body.as_object().unwrap().len(), 1);
                }
                Protocol::Messages => {
                    assert_eq!(names, ["message", "type"]);
                    assert_eq!((&body["type"], &body["request_id"]), (&json!("error"), &json!("0190-rid")));
                    assert!(ANTHROPIC.contains(&error["type"].as_str().unwrap()), "{reason:?}");
                }
            }
            // B112: nothing of the inside.
            assert!(!message.contains("://") && !message.contains("127."), "{message}");
        }
    }
}

/// The types that Anthropic documents.
const ANTHROPIC: [&str; 10] = [
    "invalid_request_error",
    "authentication_error",
    "billing_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "timeout_error",
    "overloaded_error",
];

#[test]
fn words_are_distinct() {
    let mut words: Vec<_> = all().iter().map(|(reason, _)| reason.word()).collect();
    words.sort_unstable();
    let some = words.len();
    words.dedup();
    assert_eq!(
        words.len(),
        some - 3,
        "upstream_status is in the table three times, the limit on tokens twice, all others once"
    );
}

#[test]
fn b311_one_401_for_every_cause() {
    for protocol in Protocol::ALL {
        let body = |error| Reason::Key(error).refusal(protocol).body(protocol, "");
        for error in [KeyError::Unknown, KeyError::Expired, KeyError::Two, KeyError::Repeated] {
            assert_eq!(body(error), body(KeyError::Missing));
            assert_ne!(error.word(), KeyError::Missing.word());
        }
    }
}

#[test]
fn g3_a_used_up_budget_is_told_in_the_clients_words() {
    let chat = budget(false).refusal(Protocol::Chat);
    assert_eq!(
        (chat.openai_type, chat.code, chat.should_retry),
        ("insufficient_quota", Some("insufficient_quota"), Some(false))
    );
    let messages = budget(false).refusal(Protocol::Messages);
    assert_eq!((messages.status, messages.anthropic_type, messages.should_retry), (402, "billing_error", Some(false)));
    assert_eq!(budget(true).refusal(Protocol::Chat).should_retry, Some(true), "it frees when a request ends");
}

#[test]
fn a7_b3_headers_say_when_to_come_back() {
    let headers = |reason: Reason| {
        let named = reason.refusal(Protocol::Chat).headers();
        named.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect::<Vec<_>>()
    };
    let wait = Duration::from_millis(1001);
    let limited = limited(Short::Requests { most: 1 }, Some(wait));
    assert_eq!(headers(limited), ["retry-after: 2"], "rounded up: a second early is a second refusal");
    let upstream = Reason::UpstreamStatus { status: 429, retry_after: Some(Duration::from_secs(7)) };
    assert_eq!(headers(upstream), ["retry-after: 7", "x-should-retry: false"]);
    assert_eq!(headers(Reason::UpstreamConnect), ["x-should-retry: false"]);
    assert_eq!(headers(Reason::UpstreamAccount), ["x-should-retry: false"]);
    assert_eq!(headers(Reason::Overloaded), ["retry-after: 1", "x-should-retry: true"]);
    assert_eq!(headers(Reason::MethodNotAllowed { allow: "GET, POST" }), ["allow: GET, POST"]);
    assert_eq!(headers(Reason::Internal), [""; 0]);
    // B257: no framing header is ever among them.
    for (reason, _) in all() {
        assert!(headers(reason).iter().all(|line| !line.starts_with("content-") && !line.starts_with("transfer-")));
    }
}

#[test]
fn b278_a_refused_body_names_limit_place_and_member() {
    let told = |reason: Reason| reason.refusal(Protocol::Chat);
    assert!(told(Reason::BodyTooLarge { limit: 20_971_520 }).message.contains("20971520"));
    let refusal = told(Reason::Body(BodyError::Malformed { line: 3, column: 7, at: 41 }));
    assert_eq!(refusal.message, "The request body is not valid JSON at line 3, column 7 (byte 41).");
    let refusal = told(Reason::Body(BodyError::Missing { param: "model" }));
    assert_eq!((refusal.param, refusal.code), (Some("model"), Some("missing_required_parameter")));
}

#[test]
fn what_a_client_made_up_stays_short_and_on_one_line() {
    let model = format!("a\r\n\u{1b}{}", "字".repeat(400));
    let message = Reason::ModelNotFound { model }.refusal(Protocol::Chat).message;
    assert!(message.chars().count() < 220 && !message.contains(char::is_control), "{message}");
}
