use super::{ErrorParts, upstream_error_body};
use crate::protocol::Protocol;
use crate::refusal::MaskList;
use serde_json::{Value, json};

fn parts(status: u16, kind: &str, code: &str, param: &str, message: &str) -> ErrorParts {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    ErrorParts { status, kind: some(kind), code: some(code), param: some(param), message: some(message) }
}

#[test]
fn a6_every_shape_of_error_body_is_read() {
    for (status, body, expected) in [
        (
            400,
            r#"{"error":{"message":"m","type":"invalid_request_error","param":"messages","code":"c"}}"#,
            parts(400, "invalid_request_error", "c", "messages", "m"),
        ),
        (400, r#"{"error":{"message":"m","type":null,"param":null,"code":null}}"#, parts(400, "", "", "", "m")),
        (
            529,
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"req_1"}"#,
            parts(529, "overloaded_error", "", "", "Overloaded"),
        ),
        (
            400,
            r#"{"object":"error","message":"m","type":"BadRequestError","param":null,"code":400}"#,
            parts(400, "BadRequestError", "", "", "m"),
        ),
        (403, r#"{"code":"permission-denied","error":"m"}"#, parts(403, "", "permission-denied", "", "m")),
        (404, r#"{"error":"model not found"}"#, parts(404, "", "", "", "model not found")),
        (422, r#"{"detail":[{"loc":["body"],"msg":"field required"}]}"#, parts(422, "", "", "", "field required")),
        (404, r#"{"detail":"Not Found"}"#, parts(404, "", "", "", "Not Found")),
        (
            400,
            r#"[{"error":{"code":400,"message":"m","status":"INVALID_ARGUMENT"}}]"#,
            parts(400, "", "INVALID_ARGUMENT", "", "m"),
        ),
        (429, r#"{"error":{"code":1113,"message":"m"}}"#, parts(429, "", "1113", "", "m")),
        (502, "<html><body>nginx</body></html>", parts(502, "", "", "", "")),
        (502, r#"{"error":{"message":"<html>nginx</html>"}}"#, parts(502, "", "", "", "")),
        (500, "", parts(500, "", "", "", "")),
        (500, "null", parts(500, "", "", "", "")),
        (500, "[]", parts(500, "", "", "", "")),
        (500, r#""text""#, parts(500, "", "", "", "")),
        (500, r#"{"error":{"message":{"nested":1},"type":["x"]}}"#, parts(500, "", "", "", "")),
    ] {
        assert_eq!(ErrorParts::read(status, body.as_bytes()), expected, "{body}");
    }
}

#[test]
fn a6_b113_masking_keeps_type_code_and_param() {
    let mask = MaskList { target_model: "sol-8b", public_model: "sol", provider_host: "10.0.0.7", keys: &[] };
    let told = parts(400, "invalid_request_error", "bad", "messages", "10.0.0.7 does not know sol-8b");
    let shown = told.clone().masked(Some(&mask));
    assert_eq!(shown, ErrorParts { message: None, ..told.clone() });
    let body: Value = serde_json::from_slice(&upstream_error_body(Protocol::Chat, &shown, "r")).unwrap();
    let message = "The model refused the request as invalid.";
    let expected =
        json!({"error": {"message": message, "type": "invalid_request_error", "param": "messages", "code": "bad"}});
    assert_eq!(body, expected);
    assert_eq!(told.clone().masked(None), told, "error_bodies: pass");
    // A code or type that tells too much goes as well.
    let told = parts(404, "sol-8b", "api.hoster.com", "sk-abcdef0123456789", "fine");
    assert_eq!(told.masked(Some(&mask)), parts(404, "", "", "", "fine"));
}

#[test]
fn a6_an_error_without_a_type_gets_one_by_status() {
    for (status, chat, messages) in [
        (400, "invalid_request_error", "invalid_request_error"),
        (403, "invalid_request_error", "permission_error"),
        (404, "invalid_request_error", "not_found_error"),
        (413, "invalid_request_error", "request_too_large"),
        (422, "invalid_request_error", "invalid_request_error"),
        (429, "rate_limit_error", "rate_limit_error"),
        (500, "server_error", "api_error"),
        (529, "server_error", "overloaded_error"),
    ] {
        let parts = ErrorParts { status, ..ErrorParts::default() };
        for (protocol, kind) in [(Protocol::Chat, chat), (Protocol::Responses, chat), (Protocol::Messages, messages)] {
            let body: Value = serde_json::from_slice(&upstream_error_body(protocol, &parts, "rid")).unwrap();
            assert_eq!(body["error"]["type"], kind, "{status} {protocol}");
            assert!(body["error"]["message"].as_str().unwrap().ends_with('.'));
        }
    }
    let body = upstream_error_body(Protocol::Messages, &parts(529, "overloaded_error", "", "", "Overloaded"), "rid");
    let expected =
        json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "rid"});
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), expected);
}
