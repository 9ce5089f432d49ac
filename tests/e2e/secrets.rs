//! B308, B310, B311, B113: canary keys, and everything that is written anywhere.

use crate::harness::*;

const CLIENT: &str = "CANARY-client-key-5f3a";
const PROVIDER: &str = "CANARY-provider-key-77b1";
const IN_URL: &str = "CANARY-url-key-19c2";
const ADMIN: &str = "CANARY-admin-token-3c9d";
const PROMPT: &str = "CANARY-prompt-text-0d4e";
const ANSWER: &str = "CANARY-answer-text-8a6f";

fn ask(dialect: Dialect) -> String {
    dialect.ask().replace("\"hi\"", &format!("\"{PROMPT}\""))
}

async fn everything(weir: &Weir) -> String {
    // What is written with a delay is written when the access records of all requests are there.
    let metrics = weir.metrics().await;
    let names: Vec<_> = metrics.keys().cloned().collect();
    weir.said() + &names.join("\n")
}

#[tokio::test]
async fn b308_b310_b113_no_secret_and_no_content_is_ever_written() {
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let url = format!("{}/?key={IN_URL}", upstream.url());
    let weir = Setup::with_provider(&url, &format!("api_key: {PROVIDER}"))
        .provider(&format!("closed: {{ base_url: \"http://127.0.0.1:1/?key={IN_URL}\", api_key: {PROVIDER} }}"))
        .other_model("{ name: closed-model, targets: [{ provider: closed, model: m }] }")
        .key("canary", CLIENT, "models: [\"*\"]")
        .log("level: trace")
        .start()
        .await;
    let bearer = format!("Bearer {CLIENT}");
    let key = [("authorization", bearer.as_str())];
    let mut bodies = String::new();
    let mut count = 0;
    for dialect in Dialect::ALL {
        let stream = (dialect.ok)().replace("Hel", ANSWER);
        let error = format!(r#"{{"error":{{"message":"bad key {PROVIDER} at key={IN_URL}","type":"t"}}}}"#);
        let good = [Reply::stream(&stream), Reply::json(200, (dialect.json)().replace("Hello", ANSWER))];
        let bad = [
            Reply::json(400, &error),
            Reply::json(401, &error),
            Reply::json(500, &error),
            Reply::reset(),
            Reply::raw(format!("HTTP/1.1 {PROVIDER}\r\n\r\n")),
            Reply::stream(format!("data: {{bad {ANSWER}\n\n")),
            Reply::stream(dialect.begun().replace("Hel", ANSWER)),
        ];
        for reply in good {
            upstream.push(reply);
            assert_eq!(weir.post_with(dialect.path, &key, ask(dialect)).await.status(), 200);
            count += 1;
        }
        for reply in bad {
            upstream.push(reply);
            // A pooled connection that dies is tried once more (A11).
            let received = weir.post_with(dialect.path, &key, ask(dialect)).await;
            bodies += &received.text().replace(ANSWER, "");
            bodies += &format!("{:?}", received.head);
            count += 1;
        }
        let closed = ask(dialect).replace("public-model", "closed-model");
        bodies += &weir.post_with(dialect.path, &key, closed).await.text();
        let path = format!("{}?key={CLIENT}&api_key={CLIENT}", dialect.path);
        bodies += &weir.post_with(&path, &[("authorization", "Bearer x")], ask(dialect)).await.text();
        bodies += &weir.post_with(dialect.path, &key, format!("{{\"x\":\"{PROMPT}")).await.text();
        bodies += &weir.post_with(dialect.path, &[("authorization", &format!("{bearer}x"))], ask(dialect)).await.text();
        count += 4;
    }
    weir.all_records(count).await;
    let written = everything(&weir).await;
    assert!(written.len() > 1_000, "trace writes something");
    for canary in [CLIENT, PROVIDER, IN_URL, PROMPT, ANSWER] {
        for (place, text) in [("logs or metrics", &written), ("an answer", &bodies)] {
            let line = text.lines().find(|line| line.contains(canary));
            assert!(line.is_none(), "{canary} in {place}: {}", line.unwrap_or_default());
        }
    }
    // It did go where it belongs.
    let sent = upstream.request(0).await;
    assert_eq!(sent.header("authorization"), Some(format!("Bearer {PROVIDER}").as_str()));
    assert!(sent.path.contains(IN_URL), "{}", sent.path);
}

#[tokio::test]
async fn b259_a_provider_key_that_is_not_set_stops_the_start() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("unset-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("weir.yaml");
    let yaml = "listen: [{ address: \"127.0.0.1:0\" }]\nproviders: { up: { base_url: \"http://127.0.0.1:1\", api_key: \"${WEIR_TEST_UNSET}\" } }\nmodels: [{ name: m, targets: [{ provider: up, model: m }] }]\nkeys: []\n";
    std::fs::write(&file, yaml).unwrap();
    for command in [&["check"][..], &["serve", "--config"][..]] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(command)
            .arg(&file)
            .env_remove("WEIR_TEST_UNSET")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{command:?}: {said}");
        assert!(said.contains("WEIR_TEST_UNSET") && said.contains("weir.yaml:2:"), "{command:?}: {said}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Everything that the process wrote: files beside the ledger, logs, metrics, pages of the admin API, error bodies.
#[tokio::test]
async fn g1_l1_no_secret_and_no_content_is_in_any_file_page_or_metric() {
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = Setup::with_provider(&upstream.url(), &format!("api_key: {PROVIDER}"))
        .key("canary", CLIENT, "models: [\"*\"], tag: gold")
        .section("key_store: sqlite")
        .admin(&format!("token: {ADMIN}"))
        .log("level: trace")
        .start()
        .await;
    let admin = async |method: &str, path: &str, body: &str| {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {ADMIN}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            weir.admin,
            body.len()
        );
        let mut client = Client::connect_to(weir.admin).await;
        client.send(head).await;
        client.receive().await
    };
    let made = admin("POST", "/api/keys", r#"{"name":"made","tag":"t"}"#).await;
    assert_eq!(made.status(), 201, "{}", made.text());
    let minted = made.json()["secret"].as_str().unwrap().to_owned();
    until("the key to be in force", || weir.said().contains("the key store changed")).await;
    let mut pages = String::new();
    let mut ids = Vec::new();
    for (dialect, key) in Dialect::ALL.into_iter().flat_map(|dialect| [(dialect, CLIENT), (dialect, minted.as_str())]) {
        let error = format!(r#"{{"error":{{"message":"bad key {PROVIDER}","type":"t","param":"{PROVIDER}"}}}}"#);
        for reply in [
            Reply::stream((dialect.ok)().replace("Hel", ANSWER)),
            Reply::json(200, (dialect.json)().replace("Hello", ANSWER)),
            Reply::json(400, &error),
            Reply::json(401, &error),
        ] {
            upstream.push(reply);
            let received = weir.post_with(dialect.path, &[("x-api-key", key)], ask(dialect)).await;
            if received.status() != 200 {
                pages += &received.text();
            }
            pages += &format!("{:?}", received.head);
            ids.push(received.id().to_owned());
        }
        // Refused ones: with half a body, with the key in the wrong place, with the key as a model.
        for (headers, body) in [
            (&[("x-api-key", key)][..], format!("{{\"x\":\"{PROMPT}")),
            (&[("authorization", key)], ask(dialect)),
            (&[("x-api-key", &format!("{key}x"))], ask(dialect)),
        ] {
            pages += &weir.post_with(dialect.path, headers, body).await.text();
        }
        pages += &weir
            .post_with(dialect.path, &[("x-api-key", key)], ask(dialect).replace("public-model", "none"))
            .await
            .text();
    }
    assert_eq!(admin("PATCH", "/api/keys/made", r#"{"tag":"u"}"#).await.status(), 200);
    assert_eq!(admin("POST", "/api/switches", r#"{"key":"made","off":true}"#).await.status(), 200);
    weir.booked(ids.last().unwrap()).await;
    let mut paths: Vec<String> =
        ["/metrics", "/readyz", "/healthz", "/api/keys", "/api/keys/made", "/api/keys/canary", "/api/targets"]
            .map(str::to_owned)
            .into();
    paths.extend(
        ["/api/switches", "/api/usage?by=key,model,target,tag", "/api/requests", "/api/running", "/nothing"]
            .map(str::to_owned),
    );
    paths.extend(ids.iter().map(|id| format!("/api/requests/{id}")));
    for path in &paths {
        let page = admin("GET", path, "").await;
        pages += &format!("{:?}{}", page.head, page.text());
    }
    let mut wrong = Client::connect_to(weir.admin).await;
    wrong.send(format!("GET /api/keys HTTP/1.1\r\nhost: w\r\nauthorization: Bearer {ADMIN}x\r\n\r\n")).await;
    let refused = wrong.receive().await;
    assert_eq!(refused.status(), 401);
    pages += &refused.text();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(weir.folder.join("data")).unwrap() {
        // A socket for upgrades lies there too.
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            files.extend(std::fs::read(entry.path()).unwrap());
        }
    }
    assert!(files.len() > 20_000 && pages.len() > 10_000);
    let files = String::from_utf8_lossy(&files).into_owned();
    for canary in [CLIENT, PROVIDER, PROMPT, ANSWER, ADMIN, minted.as_str()] {
        for (place, text) in [("the log", &weir.said()), ("a page", &pages), ("a file", &files)] {
            let at = text.find(canary);
            let around =
                at.map(|at| String::from_utf8_lossy(&text.as_bytes()[at.saturating_sub(100)..at]).into_owned());
            assert!(at.is_none(), "{canary} in {place}, after {around:?}");
        }
    }
}
