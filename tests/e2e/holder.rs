//! M6: a key's holder sees its own usage, and nothing of others; the pages' files and their policy (M5).

use crate::harness::*;
use serde_json::Value;

const USAGE: &str = "/v1/weir/usage";

async fn own(weir: &Weir, secret: &str, query: &str) -> Received {
    let authorization = format!("Bearer {secret}");
    call(weir, "GET", &format!("{USAGE}{query}"), &[("authorization", &authorization)]).await
}

/// With these headers and no key besides.
async fn call(weir: &Weir, method: &str, path: &str, headers: &[(&str, &str)]) -> Received {
    let mut client = Client::connect(weir).await;
    let headers = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect::<Vec<_>>().concat();
    client.send(format!("{method} {path} HTTP/1.1\r\nhost: weir\r\n{headers}\r\n")).await;
    client.receive().await
}

#[tokio::test]
async fn m6_each_key_sees_its_own_usage_ttft_and_latency_and_nothing_of_others() {
    let (_folder, prices) = prices("prices.yaml", OWN_PRICES);
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let setup = Setup::new(&upstream.url()).section(&prices).key("other-team", "other-key", "models: [\"*\"]");
    let weir = setup.start().await;
    for secret in ["test-key", "test-key", "other-key"] {
        let authorization = format!("Bearer {secret}");
        let answer = weir.post_with(CHAT, &[("authorization", &authorization)], CHAT_ASK).await;
        weir.booked(answer.id()).await;
    }
    for (secret, name, requests, other) in [(KEY, "test", 2, "other-team"), ("other-key", "other-team", 1, "\"test\"")]
    {
        let answer = own(&weir, secret, "").await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let told: Value = answer.json();
        assert_eq!((&told["key"], &told["total"]["requests"]), (&name.into(), &requests.into()), "{told}");
        assert_eq!(told["total"]["output"], 2 * requests);
        // 12 × 3 + 2 × 15 USD per million, a fifth on top.
        assert_eq!(told["total"]["charge_usd"], format!("0.{:09}", 79_200 * requests), "{told}");
        assert_eq!(told["days"][0]["model"], "public-model");
        let group = &told["latency"]["groups"][0];
        assert_eq!((&group["name"], &group["totals"]["ttft_ms"]["count"]), (&"public-model".into(), &requests.into()));
        for secret in [other, "cost_usd", "margin", "upstream-model", "target"] {
            assert!(!answer.text().contains(secret), "{secret} is not {name}'s to see: {}", answer.text());
        }
    }
    assert_eq!(own(&weir, KEY, "?days=1").await.json()["total"]["requests"], 2);
}

#[tokio::test]
async fn m6_what_is_refused_wears_the_envelope() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let key = ("authorization", "Bearer test-key");
    for (method, path, headers, status, word) in [
        ("GET", USAGE, vec![], 401, "invalid_api_key"),
        ("GET", USAGE, vec![("authorization", "Bearer wrong")], 401, "invalid_api_key"),
        ("POST", USAGE, vec![key], 405, "method_not_supported"),
        ("GET", "/v1/weir/usage?key=other", vec![key], 400, "invalid_query"),
        ("GET", "/v1/weir/usage?days=0", vec![key], 400, "invalid_query"),
        ("GET", "/v1/weir/other", vec![key], 404, "unknown_url"),
        ("POST", "/weir", vec![], 405, "method_not_supported"),
        ("GET", "/weir/secret.js", vec![key], 404, "unknown_url"),
    ] {
        let answer = call(&weir, method, path, &headers).await;
        assert_eq!(answer.status(), status, "{method} {path}: {}", answer.text());
        assert_eq!(answer.json()["error"]["code"], word, "{method} {path}");
        assert!(!answer.id().is_empty());
    }
    let anthropic = call(&weir, "GET", USAGE, &[("anthropic-version", "2023-06-01")]).await;
    assert_eq!((anthropic.status(), &anthropic.json()["type"]), (401, &"error".into()));
}

#[tokio::test]
async fn m5_m6_the_pages_need_no_secret_and_may_load_nothing_from_elsewhere() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let admin = |path: &'static str| {
        let address = weir.admin;
        async move { get(address, path).await.expect("an answer") }
    };
    let pages = [
        (call(&weir, "GET", "/weir", &[]).await, "text/html"),
        (call(&weir, "GET", "/weir/holder.js", &[]).await, "text/javascript"),
        (call(&weir, "GET", "/weir/uplot.js", &[]).await, "text/javascript"),
        (admin("/console").await, "text/html"),
        (admin("/console/style.css").await, "text/css"),
        (admin("/console/icon.svg").await, "image/svg+xml"),
    ];
    for (page, kind) in pages {
        assert_eq!(page.status(), 200);
        assert!(page.head.get("content-type").unwrap().starts_with(kind), "{:?}", page.head);
        let policy = page.head.get("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"), "{policy}");
        assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
        assert_eq!(page.head.get("x-content-type-options"), Some("nosniff"));
    }
    // Files are no requests of the API: one that is comes alone.
    let answer = weir.post(CHAT, CHAT_ASK).await;
    weir.record(answer.id()).await;
    assert_eq!(weir.all_records(1).await.len(), 1);
    weir.settles("weir_requests_total", 1.0).await;
    let told = get(weir.admin, "/api/requests").await.expect("an answer").json();
    assert_eq!(told["requests"].as_array().map(Vec::len), Some(1), "{told}");
}
