//! Who may see what, and that real clients get whole answers.

use super::{AdminState, App, Readiness};
use crate::config::Secret;
use crate::metrics::Metrics;
use http::Method;
use pingora_core::apps::HttpServerApp;
use pingora_core::protocols::http::ServerSession;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

fn state(token: Option<&str>) -> AdminState {
    let metrics = Arc::new(Metrics::new(9).unwrap());
    AdminState::new(metrics, token.map(|token| Secret::new(token.to_owned())), "/nonexistent/weir.db".into())
}

fn get(state: &AdminState, path: &str, authorization: &str) -> (u16, String) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let answer = state.answer(&Method::GET, path, query, authorization.as_bytes());
    (answer.status().as_u16(), String::from_utf8(answer.into_body()).unwrap())
}

#[test]
fn c3_readiness_follows_the_life_of_the_process() {
    let state = state(None);
    for (readiness, status, word) in [
        (Readiness::Starting, 503, "starting"),
        (Readiness::Ready, 200, "ready"),
        (Readiness::Draining, 503, "draining"),
    ] {
        state.set_readiness(readiness);
        assert_eq!(state.readiness(), readiness);
        assert_eq!(get(&state, "/readyz", ""), (status, format!("{{\"status\":\"{word}\"}}\n")));
        assert_eq!(get(&state, "/healthz", "").0, 200);
    }
}

#[test]
fn c4_the_token_guards_all_but_health() {
    let state = state(Some("s3cret"));
    let table = [
        ("/healthz", "", 200),
        ("/readyz", "", 503),
        ("/metrics", "", 401),
        ("/metrics", "Bearer", 401),
        ("/metrics", "Bearer ", 401),
        ("/metrics", "Bearer s3cre", 401),
        ("/metrics", "Bearer s3cret2", 401),
        ("/metrics", "Digest s3cret", 401),
        ("/metrics", "Bearer s3cret", 200),
        ("/metrics", "bearer s3cret", 200),
        ("/api/requests", "", 401),
        ("/api/requests", "Bearer s3cret", 503),
        ("/api/usage", "", 401),
        ("/api/requests/0192f3a4-0000-7000-8000-000000000001", "Bearer s3cre", 401),
    ];
    for (path, authorization, status) in table {
        assert_eq!(get(&state, path, authorization).0, status, "{path} {authorization}");
    }
    state.set_token(Some(Secret::new("other".to_owned())));
    assert_eq!(get(&state, "/metrics", "Bearer s3cret").0, 401);
    state.set_token(None);
    assert_eq!(get(&state, "/metrics", "").0, 200);
}

#[test]
fn c4_only_reading_methods_and_known_pages() {
    let state = state(None);
    let posted = state.answer(&Method::POST, "/metrics", "", b"");
    assert_eq!((posted.status().as_u16(), posted.headers()["allow"].as_bytes()), (405, &b"GET, HEAD"[..]));
    for path in ["/", "/metrics/", "/metricsx", "/consolex"] {
        let (status, body) = get(&state, path, "");
        assert_eq!(status, 404, "{path}");
        assert!(serde_json::from_str::<serde_json::Value>(&body).is_ok());
    }
    assert!(get(&state, "/metrics", "").1.contains("weir_build_info"));
}

#[test]
fn l6_what_cannot_be_asked_and_what_cannot_be_read() {
    let state = state(None);
    for (page, status, words) in [
        ("/api/usage?by=colour", 400, "by is one or more of key, model, target, day, outcome, tag"),
        ("/api/usage?since=yesterday", 400, "neither a date such as"),
        ("/api/usage?since=2026-11-30&until=2026-11-30T12:00:00%2B01:00", 400, "must both be dates"),
        ("/api/usage?from=2026-11-30", 400, "the parameters are by, since and until"),
        ("/api/requests?outcome=done", 400, "outcome is one or more of completed, truncated"),
        ("/api/requests?limit=1001", 400, "limit is a number from 1 to 1000"),
        ("/api/requests?since=now", 400, "since is an instant such as"),
        ("/api/requests?before=7", 400, "before is the id of a request"),
        ("/api/running?key=x", 400, "the only parameter is limit"),
        ("/api/running", 503, "/nonexistent/weir.db"),
        ("/api/usage?by=%ff", 400, "not UTF-8"),
        ("/api/requests/7", 400, "this is no request id"),
        ("/api/usage", 503, "/nonexistent/weir.db"),
        ("/api/usage?since=2026-11-30T12:00:00+01:00", 503, "/nonexistent/weir.db"),
        ("/api/requests/0192f3a4-0000-7000-8000-000000000001", 503, "/nonexistent/weir.db"),
        ("/api/requests/", 404, "no such page"),
        ("/api/requests/a/b", 404, "no such page"),
    ] {
        let (got, body) = get(&state, page, "");
        assert_eq!(got, status, "{page}: {body}");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert!(body["error"].as_str().unwrap().contains(words), "{page}: {body}");
    }
    assert_eq!(state.answer(&Method::POST, "/api/usage", "", b"").status().as_u16(), 405);
}

/// Sends the requests over one connection, each once the answer to the one before has ended as
/// given, and answers all that came back.
async fn exchange(requests: &[(&str, &str)]) -> String {
    let app = Arc::new(App { state: Arc::new(state(None)) });
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let (_stop, stopped) = watch::channel(false);
    let server = tokio::spawn(async move {
        let mut session = ServerSession::new_http1(Box::new(server));
        while let Some(reusable) = app.process_new_http(session, &stopped).await {
            session = ServerSession::new_http1(reusable.consume().0);
        }
    });
    let mut text = Vec::new();
    for (request, end) in requests {
        client.write_all(request.as_bytes()).await.unwrap();
        while client.read_buf(&mut text).await.unwrap() > 0 && !text.ends_with(end.as_bytes()) {}
    }
    drop(client);
    server.await.unwrap();
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn c4_head_has_the_length_but_no_body_and_the_connection_lives_on() {
    let head = "HEAD /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    let text = exchange(&[(head, "\r\n\r\n"), ("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", "}\n")]).await;
    let (first, rest) = text.split_once("\r\n\r\n").unwrap();
    assert!(first.to_lowercase().contains("content-length: 16"), "{text}");
    assert!(rest.starts_with("HTTP/1.1 200 OK") && rest.ends_with("{\"status\":\"ok\"}\n"), "{text}");
}

#[tokio::test]
async fn c4_a_body_nobody_asked_for_does_not_confuse_the_connection() {
    let post = "POST /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello";
    let text = exchange(&[(post, "}\n")]).await;
    assert!(text.starts_with("HTTP/1.1 405"), "{text}");
    assert!(text.to_lowercase().contains("connection: close"), "{text}");
}
