use super::{MaskList, masks};
use crate::config::Secret;

fn check(message: &str, expected: bool) {
    let keys = [Secret::new("canary-7f3a".to_owned())];
    let list = MaskList {
        target_model: "sol-8b",
        public_model: "gpt-5.6-sol",
        provider_host: "vllm.example-hoster.biz",
        keys: &keys,
    };
    assert_eq!(masks(message, &list), expected, "{message}");
}

#[test]
fn a6_b112_b113_what_tells_too_much_is_masked() {
    for message in [
        // hosts and addresses
        "Connection refused by vllm.example-hoster.biz",
        "see https://platform.openai.com/docs/guides/error-codes",
        "Cannot connect to host vllm:8000 ssl:default",
        "upstream api.internal.corp failed",
        "upstream machine-7:8000 failed",
        "dial tcp 10.0.0.7:8000: i/o timeout",
        "10.0.0.7 is down",
        "[2001:db8::7]:443 is down",
        "peer 2001:db8::7 closed",
        "mail ops@hoster.com",
        "stream ID 5: RST_STREAM",
        "HTTPSConnectionPool(host='x', port=443): Max retries exceeded",
        // accounts
        "Rate limit reached for gpt-5.6-sol in organization org-AbCdEf123456 on requests per min",
        "Project `proj_abc12345` does not have access",
        "would exceed your organization's rate limit (org: 3f2e1c7a-44aa-4bb1-9a43-0123456789ab)",
        "workspace wrkspc_01VQLazKdXNeiKgtrAY1JMbo is closed",
        // keys
        "Incorrect API key provided: sk-proj-****************abcd.",
        "Incorrect API key provided: sk-abcdef0123456789",
        "bad key:sk-abcdef0123456789",
        "Invalid API key: 0123456789abcdef0123456789abcdef",
        "the secret is canary-7f3a",
        "AIzaSyD-1234567890abcdefghijklmnopqrstu is not valid",
        // the target's name
        "The model `sol-8b` does not exist",
        "SOL-8B is overloaded",
        "hosted/sol-8b: too long",
    ] {
        check(message, true);
    }
    check(&"x ".repeat(3000), true);
}

#[test]
fn a6_what_is_about_the_clients_own_request_passes() {
    for message in [
        "messages.0.content.1.text: Field required",
        "Invalid type for 'messages[0].content': expected a string",
        "max_tokens: 70000 > 64000, which is the maximum allowed number of output tokens for gpt-5.6-sol",
        "The model `gpt-5.6-sol` does not support images.",
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (in the messages).",
        "tool_use ids were found without tool_result blocks: toolu_01A09q90qw90lq917835lq9",
        "No tool output found for function call call_abcDEF1234567890.",
        "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
        "Overloaded",
        "line 1 column:12 is wrong, e.g. use 1.5 or v1.2.3",
        "expected ratio 16:9 at 12:30",
        "your team-mate and the task-list are fine",
        "Invalid key 'prompt_cache_key_2025_10_10' in body",
        "consolation sol-8bit",
        "圖片太大",
    ] {
        check(message, false);
    }
}

#[test]
fn a6_the_name_a_client_knows_is_no_secret() {
    let list = MaskList {
        target_model: "claude-sonnet-5-20260101",
        public_model: "claude-sonnet-5-20260101",
        provider_host: "h",
        keys: &[],
    };
    assert!(!masks("prompt too long for claude-sonnet-5-20260101", &MaskList { provider_host: "", ..list }));
    let list = MaskList { target_model: "sol", public_model: "gpt-5.6-sol", provider_host: "", keys: &[] };
    assert!(!masks("gpt-5.6-sol is too small", &list));
    assert!(masks("sol is too small", &list));
    // The target's name often begins with the public one.
    let list = MaskList { target_model: "gpt-5.6-sol-2026-01-01", ..list };
    assert!(masks("gpt-5.6-sol-2026-01-01 is too small", &list));
    assert!(!masks("gpt-5.6-sol is too small", &list));
    // An empty secret is in every text and hides nothing.
    let keys = [Secret::new(String::new())];
    assert!(!masks("fine", &MaskList { keys: &keys, ..list }));
}
