//! Decides which web pages may call from a browser (B3).
//!
//! Called by the gateway, once per request. Touches nothing.

use http::{HeaderMap, HeaderValue, header};

/// What a page may read of an answer's head, besides what browsers always show.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "x-request-id, request-id, retry-after, retry-after-ms, x-should-retry, openai-processing-ms, openai-version, \
     x-ratelimit-limit-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-requests, \
     x-ratelimit-remaining-tokens, x-ratelimit-reset-requests, x-ratelimit-reset-tokens",
);
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");
/// How long a browser need not ask again, in seconds.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
const ANY: HeaderValue = HeaderValue::from_static("*");

/// What to answer the page that a request comes from, if it is one that may call.
#[must_use]
pub fn origin(headers: &HeaderMap, allowed: &[String]) -> Option<HeaderValue> {
    if allowed.is_empty() {
        return None;
    }
    let origin = headers.get(header::ORIGIN)?;
    if allowed.iter().any(|allowed| allowed == "*") {
        return Some(ANY);
    }
    allowed.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes()).then(|| origin.clone())
}

/// Lets the page read the answer. Keys come in headers that pages set themselves, so no cookies are let through.
pub fn allow(headers: &mut HeaderMap, origin: &HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    headers.append(header::VARY, HeaderValue::from_static("origin"));
}

/// Says what the page may send: what it `asked` for, since what goes up is chosen elsewhere (F8).
pub fn preflight(headers: &mut HeaderMap, asked: Option<HeaderValue>) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    if let Some(asked) = asked {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked);
    }
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b3_only_listed_pages_may_call() {
        let listed = vec!["https://app.example".to_owned()];
        let any = vec!["*".to_owned()];
        for (sent, allowed, expected) in [
            (Some("https://app.example"), &listed[..], Some("https://app.example")),
            (Some("https://app.example.evil"), &listed, None),
            (Some("http://app.example"), &listed, None),
            (None, &listed, None),
            (Some("https://app.example"), &[], None),
            (Some("https://x.example"), &any, Some("*")),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(sent) = sent {
                headers.insert(header::ORIGIN, HeaderValue::from_static(sent));
            }
            assert_eq!(origin(&headers, allowed), expected.map(HeaderValue::from_static), "{sent:?}");
        }
    }
}
