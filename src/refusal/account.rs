//! Whose trouble an upstream's error is: the list of used-up money and bad credentials (A6).

#[cfg(test)]
mod tests;

/// Codes and types, compared without case. None of them can be provoked by what a client sends.
/// Deliberately absent: Anthropic's `permission_error` and Google's `PERMISSION_DENIED` (also for
/// another workspace's file, which any client can name), `model_not_found`, Moonshot's
/// `access_terminated_error` (judges the client's user agent), and everything about rates.
const WORDS: [&str; 22] = [
    // OpenAI: the account's credit or monthly budget is used up (429, code and type).
    "insufficient_quota",
    // OpenAI: the hard limit set by the account (429; 400 from images).
    "billing_hard_limit_reached",
    // OpenAI: no valid payment method (429).
    "billing_not_active",
    // OpenAI: the account was closed (401, 403).
    "account_deactivated",
    "organization_deactivated",
    // OpenAI: closed for a breach of its policies (403, type).
    "access_terminated",
    // OpenAI, Groq, DeepSeek: the key is wrong (401; Groq and some proxies 400 or 403).
    "invalid_api_key",
    // OpenAI: the organisation header does not fit the key (401).
    "invalid_organization",
    // OpenAI: judges the address of whoever calls, which is Weir (403).
    "unsupported_country_region_territory",
    // OpenAI: the key's own address list (401, 403).
    "ip_not_authorized",
    // Anthropic: payment trouble (402; 400 and 403 from resellers of it).
    "billing_error",
    // Anthropic and its resellers: the key is wrong (401; 403).
    "authentication_error",
    // Groq: the organisation is barred (400, 403).
    "organization_restricted",
    // Groq: a spend limit is reached (400).
    "blocked_api_access",
    // Moonshot: the balance is used up (429, type).
    "exceeded_current_quota_error",
    // DeepSeek, SiliconFlow and others by name.
    "insufficient_balance",
    // New API and One API, the gateways many resellers run (403).
    "insufficient_user_quota",
    // Alibaba Model Studio: overdue payment (400, 403).
    "arrearage",
    // Alibaba Model Studio: the free quota is used up (403).
    "allocationquota.freetieronly",
    // Volcengine Ark: overdue payment (403).
    "accountoverdueerror",
    // Zhipu: overdue payment (429).
    "1113",
    // Google: the key is wrong (400 with this reason or status).
    "api_key_invalid",
];

/// How messages begin where no code tells it. Only beginnings count: a provider that quotes the
/// request (a model's name) must not let a client cool the operator's key.
const SENTENCES: [&str; 8] = [
    // Anthropic (400 invalid_request_error).
    "your credit balance is too low",
    "you have reached your specified api usage limits",
    "this organization has been disabled",
    // OpenAI (429), where a proxy dropped the code.
    "you exceeded your current quota, please check your plan",
    // xAI (403 permission-denied; 429).
    "your team has either used all available credits",
    "your newly created team doesn't have any credits",
    // OpenRouter (403): the key's own spend limit.
    "key limit exceeded (",
    // Google (400 INVALID_ARGUMENT).
    "api key not valid",
];

/// Whether an upstream's error is about the operator's account there: bad credentials or used-up
/// money (A6). 401 and 402 always are; 400, 403, 412 (Fireworks) and 429 by code, type or the
/// beginning of the message.
#[must_use]
pub fn is_account_trouble(status: u16, code: Option<&str>, kind: Option<&str>, message: Option<&str>) -> bool {
    let listed =
        |word: Option<&str>| word.is_some_and(|word| WORDS.iter().any(|known| known.eq_ignore_ascii_case(word)));
    match status {
        401 | 402 => true,
        400 | 403 | 412 | 429 => listed(code) || listed(kind) || message.is_some_and(begins_as_listed),
        _ => false,
    }
}

fn begins_as_listed(message: &str) -> bool {
    let message = message.trim_start().as_bytes();
    SENTENCES.iter().any(|known| {
        message.get(..known.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(known.as_bytes()))
    })
}
