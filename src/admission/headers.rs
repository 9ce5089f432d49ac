//! Decides which headers go up to a provider (F8) and down to a client (F7): two allow-lists.
//!
//! Called by the gateway per attempt. Touches nothing.

use super::keys::CREDENTIAL_HEADERS;
use crate::config::Secret;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

#[cfg(test)]
mod tests;

/// Up, by name (F8).
static UP: [HeaderName; 7] = [
    header::CONTENT_TYPE,
    header::ACCEPT,
    header::USER_AGENT,
    HeaderName::from_static("openai-beta"),
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
];

/// Up, by prefix (F8).
const UP_PREFIXES: [&str; 2] = ["anthropic-", "x-stainless-"];

/// Beginnings of names that tell the client's account (F8).
const ACCOUNT_PREFIXES: [&str; 6] = [
    "openai-organization",
    "openai-project",
    "anthropic-organization",
    "anthropic-workspace",
    "anthropic-account",
    "anthropic-api-key",
];

/// Down, by name (F7).
static DOWN: [HeaderName; 6] = [
    header::CONTENT_TYPE,
    header::RETRY_AFTER,
    HeaderName::from_static("retry-after-ms"),
    HeaderName::from_static("x-should-retry"),
    HeaderName::from_static("openai-processing-ms"),
    HeaderName::from_static("openai-version"),
];

/// Down, by prefix, unless several targets serve the model: the numbers are one account's (F7).
const LIMIT_PREFIXES: [&str; 2] = ["x-ratelimit-", "anthropic-ratelimit-"];

/// Of one connection (RFC 9110, 7.6.1) or of the framing, which Weir makes itself: they pass in
/// neither direction, whatever the operator allows (B253, B256, B257).
static FRAMING: [HeaderName; 13] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::ACCEPT_ENCODING,
    header::HOST,
    header::EXPECT,
];

/// Never down, whatever the operator passes: an upstream's place (B112) and what it wants to
/// remember of one client or ask of Weir's own key.
static NEVER_DOWN: [HeaderName; 5] = [
    header::LOCATION,
    HeaderName::from_static("content-location"),
    header::SET_COOKIE,
    header::WWW_AUTHENTICATE,
    HeaderName::from_static("proxy-authentication-info"),
];

/// Whether a client's header goes up (F8), given the provider's `allow_headers`.
#[must_use]
pub fn goes_up(name: &HeaderName, allow: &[HeaderName]) -> bool {
    let text = name.as_str();
    let never = CREDENTIAL_HEADERS.contains(name) || FRAMING.contains(name) || starts(text, &ACCOUNT_PREFIXES);
    !never && (UP.contains(name) || starts(text, &UP_PREFIXES) || allow.contains(name))
}

/// Whether an upstream's header goes down (F7), given the provider's `pass_headers` and whether
/// several targets serve the model.
#[must_use]
pub fn goes_down(name: &HeaderName, pass: &[HeaderName], several_targets: bool) -> bool {
    let never = FRAMING.contains(name) || NEVER_DOWN.contains(name) || CREDENTIAL_HEADERS.contains(name);
    let limits = !several_targets && starts(name.as_str(), &LIMIT_PREFIXES);
    !never && (DOWN.contains(name) || limits || pass.contains(name))
}

/// The part of a client's headers that goes up, in order; what `connection` names is left out (B256).
#[must_use]
pub fn up(headers: &HeaderMap, allow: &[HeaderName]) -> HeaderMap {
    let of_connection = named_by_connection(headers);
    let goes = |name: &HeaderName| goes_up(name, allow) && !of_connection.contains(name);
    headers.iter().filter(|(name, _)| goes(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The part of an upstream's headers that goes down, in order; what `connection` names is left
/// out (B256), and so is a value that holds one of the provider's keys (B263).
#[must_use]
pub fn down(headers: &HeaderMap, pass: &[HeaderName], several_targets: bool, secrets: &[Secret]) -> HeaderMap {
    let of_connection = named_by_connection(headers);
    let goes = |name: &HeaderName| goes_down(name, pass, several_targets) && !of_connection.contains(name);
    headers
        .iter()
        .filter(|(name, value)| goes(name) && !holds_secret(value.as_bytes(), secrets))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Whether the bytes hold one of the secrets (B263).
#[must_use]
pub fn holds_secret(bytes: &[u8], secrets: &[Secret]) -> bool {
    let found = |secret: &Secret| memchr::memmem::find(bytes, secret.expose().as_bytes()).is_some();
    secrets.iter().any(|secret| !secret.expose().is_empty() && found(secret))
}

/// The headers that `connection` says are of that connection only.
#[must_use]
pub fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter();
    let tokens = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    tokens.filter_map(|token| HeaderName::from_bytes(token.trim_ascii()).ok()).collect()
}

/// A stream's `cache-control`: the upstream's directives with `no-cache` and `no-transform` (B272).
#[must_use]
pub fn cache_control(existing: Option<&HeaderValue>) -> HeaderValue {
    const NEEDED: [&str; 2] = ["no-cache", "no-transform"];
    let plain = HeaderValue::from_static("no-cache, no-transform");
    let Some(existing) = existing.and_then(|value| value.to_str().ok()) else { return plain };
    let mut directives: Vec<&str> = existing.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    for needed in NEEDED {
        if !directives.iter().any(|word| word.eq_ignore_ascii_case(needed)) {
            directives.push(needed);
        }
    }
    HeaderValue::from_str(&directives.join(", ")).unwrap_or(plain)
}

fn starts(name: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}
