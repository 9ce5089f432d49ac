//! Keeps pages of other sites, which a browser on this machine may show, from the admin API (C4).
//!
//! Called by the admin listener for each request to it, besides the token. Touches nothing.

use super::answer_json;
use http::header::{CONTENT_TYPE, HOST, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use serde_json::json;
use std::net::IpAddr;

/// Refuses what another site may have made a browser send. Changes: another site's page cannot send JSON without
/// asking first, and nobody answers that (`takes_json`); where there is nothing to send, the browser says whose page it
/// is. Where no token is asked for, a name that was pointed at this machine is no address of its own.
///
/// # Errors
/// The answer to such a request.
pub(super) fn guard(
    method: &Method,
    headers: &HeaderMap,
    has_token: bool,
    takes_json: bool,
) -> Result<(), Box<Response<Vec<u8>>>> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let refuse = |status, error: &str| Err(Box::new(answer_json(status, &json!({ "error": error }))));
    let host = text(HOST).unwrap_or_default();
    if !matches!(*method, Method::GET | Method::HEAD) {
        let kind = text(CONTENT_TYPE).and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
        if takes_json && *method != Method::DELETE && !kind.eq_ignore_ascii_case("application/json") {
            return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "send JSON, with content-type: application/json");
        }
        let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        let is_foreign = site.is_some_and(|site| site != b"same-origin" && site != b"none");
        let mut origins = headers.get_all(ORIGIN).into_iter();
        if is_foreign || !origins.all(|origin| is_of(origin, host)) {
            return refuse(StatusCode::FORBIDDEN, "another site may not change anything here");
        }
    }
    if !has_token && !is_own_address(host) {
        return refuse(StatusCode::FORBIDDEN, "without an admin token, ask at an IP address or localhost");
    }
    Ok(())
}

fn is_of(origin: &HeaderValue, host: &str) -> bool {
    let host_of = |origin: &str| origin.split_once("://").is_some_and(|(_, of)| of.eq_ignore_ascii_case(host));
    origin.to_str().is_ok_and(host_of)
}

fn is_own_address(host: &str) -> bool {
    let name = host.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(name, _)| name);
    let name = name.unwrap_or_else(|| host.rsplit_once(':').map_or(host, |(name, _)| name));
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: (&str, &str) = ("content-type", "application/json; charset=utf-8");
    const HERE: (&str, &str) = ("host", "127.0.0.1:9090");

    fn status(method: &Method, lines: &[(&'static str, &'static str)], has_token: bool, takes_json: bool) -> u16 {
        let value = HeaderValue::from_static;
        let headers = lines.iter().map(|(name, text)| ((*name).parse().unwrap(), value(text))).collect();
        let guarded = guard(method, &headers, has_token, takes_json);
        guarded.map_or_else(|answer| answer.status().as_u16(), |()| 200)
    }

    #[test]
    fn c2_another_site_changes_nothing() {
        for (lines, has_token, expected) in [
            (&[JSON, HERE][..], false, 200),
            (&[JSON, ("host", "[::1]:9090")], false, 200),
            (&[JSON, ("host", "localhost:9090"), ("origin", "http://localhost:9090")], false, 200),
            (&[JSON, HERE, ("sec-fetch-site", "same-origin")], false, 200),
            (&[JSON, HERE, ("sec-fetch-site", "none")], false, 200),
            (&[HERE], false, 415),
            (&[("content-type", "text/plain"), HERE], true, 415),
            (&[JSON, HERE, ("sec-fetch-site", "cross-site")], true, 403),
            (&[JSON, HERE, ("sec-fetch-site", "same-site")], true, 403),
            (&[JSON, HERE, ("origin", "https://evil.example")], true, 403),
            (&[JSON, HERE, ("origin", "http://127.0.0.1:8080")], true, 403),
            (&[JSON, HERE, ("origin", "127.0.0.1:9090")], true, 403),
            (&[JSON, HERE, ("origin", "null")], false, 403),
            (&[JSON, ("host", "evil.example:9090")], false, 403),
            (&[JSON, ("host", "127.0.0.1.evil.example")], false, 403),
            (&[JSON, ("host", "weir.example:9090")], true, 200),
        ] {
            assert_eq!(status(&Method::POST, lines, has_token, true), expected, "{lines:?}");
        }
        assert_eq!(status(&Method::DELETE, &[HERE], false, true), 200);
        assert_eq!(status(&Method::DELETE, &[], false, true), 403);
    }

    #[test]
    fn c2_what_takes_no_body_takes_none_from_another_site_either() {
        assert_eq!(status(&Method::POST, &[HERE], false, false), 200, "curl -X POST");
        for foreign in
            [("sec-fetch-site", "cross-site"), ("sec-fetch-site", "same-site"), ("origin", "http://a.example")]
        {
            assert_eq!(status(&Method::POST, &[HERE, foreign], true, false), 403, "{foreign:?}");
        }
        assert_eq!(status(&Method::POST, &[("host", "evil.example:9090")], false, false), 403);
    }

    #[test]
    fn c4_a_name_that_was_pointed_here_reads_nothing_where_there_is_no_token() {
        assert_eq!(status(&Method::GET, &[HERE], false, false), 200);
        assert_eq!(status(&Method::GET, &[("host", "evil.example:9090")], false, false), 403);
        assert_eq!(status(&Method::GET, &[("host", "weir.example")], true, false), 200);
    }
}
