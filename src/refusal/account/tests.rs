use super::{SENTENCES, WORDS, is_account_trouble};

#[test]
fn a6_table_of_account_trouble() {
    let long = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing";
    for (status, code, kind, message, expected) in [
        (401, None, None, None, true),
        (402, None, None, None, true),
        (429, Some("insufficient_quota"), Some("insufficient_quota"), None, true),
        (429, None, Some("insufficient_quota"), None, true),
        (429, None, Some("exceeded_current_quota_error"), None, true),
        (429, Some("rate_limit_exceeded"), Some("requests"), None, false),
        (429, Some("1113"), None, None, true),
        (429, Some("billing_not_active"), None, None, true),
        (403, Some("AccountOverdueError"), None, None, true),
        (403, Some("permission-denied"), None, Some("Your team has either used all available credits or…"), true),
        (403, None, None, Some("Key limit exceeded (total limit). Manage it"), true),
        (403, None, Some("permission_error"), Some("no access to this file"), false),
        (403, None, None, Some("The content was flagged by moderation"), false),
        (403, Some("access_terminated"), None, None, true),
        (403, None, Some("access_terminated_error"), None, false),
        (400, None, Some("invalid_request_error"), Some(long), true),
        (400, None, Some("invalid_request_error"), Some("This organization has been disabled."), true),
        // What a client can put into the middle of a sentence cools nobody's key.
        (400, None, Some("invalid_request_error"), Some("model: your credit balance is too low"), false),
        (400, None, Some("invalid_request_error"), Some("Your"), false),
        (404, Some("insufficient_quota"), None, None, false),
        (500, Some("insufficient_quota"), None, None, false),
        (200, None, None, None, false),
    ] {
        assert_eq!(is_account_trouble(status, code, kind, message), expected, "{status} {code:?} {kind:?} {message:?}");
    }
}

#[test]
fn a6_the_lists_are_lower_case() {
    for text in WORDS.iter().chain(&SENTENCES) {
        assert_eq!(**text, text.to_lowercase());
    }
}
