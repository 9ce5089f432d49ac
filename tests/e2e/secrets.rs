//! B308, B310, B311, B113: canary keys, and everything that is written anywhere.

use crate::harness::*;

const CLIENT: &str = "CANARY-client-key-5f3a";
const PROVIDER: &str = "CANARY-provider-key-77b1";
const IN_URL: &str = "CANARY-url-key-19c2";
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
