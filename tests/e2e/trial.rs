//! `weir test MODEL`: what works, what does not, and what to do about it.

use crate::harness::*;
use std::process::Output;

/// A config with these providers (name, URL, settings), and a model with all of them.
fn config(providers: &[(&str, String, &str)], model: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut yaml = "listen: [{ address: 127.0.0.1:0 }]\nproviders:\n".to_owned();
    for (name, url, settings) in providers {
        yaml += &format!("  {name}: {{ base_url: \"{url}\", {settings} }}\n");
    }
    let targets: Vec<_> =
        providers.iter().map(|(name, ..)| format!("{{ provider: {name}, model: upstream-model }}")).collect();
    yaml += &format!(
        "models: [{{ name: public-model, aliases: [other], targets: [{}], {model} }}]\nkeys: []\n",
        targets.join(", ")
    );
    let file = folder.path().join("weir.yaml");
    std::fs::write(&file, yaml).expect("a writable folder");
    let file = file.to_str().expect("UTF-8").to_owned();
    (folder, file)
}

async fn run(args: &[&str]) -> (Option<i32>, String) {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let running = tokio::task::spawn_blocking(move || {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        weir_command(&args)
    });
    let Output { status, stdout, stderr } = within("weir test", running).await.expect("a thread");
    (status.code(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

/// The lines of one target.
fn lines<'s>(said: &'s str, target: &str) -> String {
    let mine = |line: &&'s str| !line.starts_with(target);
    let begun = said.lines().skip_while(mine).collect::<Vec<_>>();
    let rest = begun.iter().skip(1).take_while(|line| line.starts_with("  "));
    begun.iter().take(1).chain(rest).copied().collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn each_target_says_whether_it_works_and_what_to_do() {
    let fine = Upstream::start(Reply::stream(chat_ok())).await;
    let refused = r#"{"error":{"message":"Incorrect API key provided: bad-key","type":"invalid_request_error","code":"invalid_api_key"}}"#;
    let wrong = Upstream::start(Reply::json(401, refused)).await;
    let mute = Upstream::start(Reply::sse().write(CHAT_ROLE).hang()).await;
    let missing = Upstream::start(Reply::json(404, r#"{"error":{"message":"no such model"}}"#)).await;
    let page = Upstream::start(Reply::json(200, "<html>").header("content-type", "text/html")).await;
    let broken = Upstream::start(Reply::sse().write(CHAT_ROLE).write(chat_delta("Hel")).cut()).await;
    let (_folder, file) = config(
        &[
            ("fine", fine.url(), "api_keys: [one, two]"),
            ("wrong", wrong.url(), "api_key: bad-key"),
            ("mute", mute.url(), "api_key: k"),
            ("missing", missing.url(), "api_key: k"),
            ("page", page.url(), "api_key: k"),
            ("broken", broken.url(), "api_key: k"),
            ("nobody", "http://127.0.0.1:1".to_owned(), "api_key: k"),
        ],
        "timeouts: { first_content: 3s }",
    );
    let (status, said) = run(&["test", "public-model", "--config", &file]).await;
    assert_eq!(status, Some(1), "{said}");
    for key in
        ["fine/upstream-model key 1 (chat): ok, status 200, first token ", "fine/upstream-model key 2 (chat): ok"]
    {
        assert!(said.contains(key), "{said}");
    }
    assert!(lines(&said, "fine").ends_with("12 tokens in, 2 out"), "{said}");
    let rows = [
        ("wrong", ["account, status 401", "it says: Incorrect API key provided: ****", "providers.wrong.api_key"]),
        ("mute", ["first_content, status 200", "remedy: ", "timeouts.first_content"]),
        ("missing", ["client_status, status 404", "it says: no such model", "check the target's model"]),
        ("page", ["not_an_answer, status 200", "remedy: ", "providers.page.base_url"]),
        ("broken", ["broken, status 200, first token", "remedy: ", "providers.broken.base_url"]),
        ("nobody", ["connect, no status", "remedy: ", "is the server running"]),
    ];
    for (target, words) in rows {
        let mine = lines(&said, target);
        for word in words {
            assert!(mine.contains(word), "{target} does not say {word}:\n{said}");
        }
    }
    // As serving asks: the target's model, the key, the usage.
    let asked = fine.request(0).await;
    let body = asked.json();
    assert_eq!((asked.path.as_str(), &body["model"], &body["stream"]), (CHAT, &"upstream-model".into(), &true.into()));
    assert_eq!(body["stream_options"]["include_usage"], true);
    assert!(asked.header("authorization").is_some_and(|key| key == "Bearer one" || key == "Bearer two"));
}

#[tokio::test]
async fn the_protocol_is_the_models_or_the_one_asked_for() {
    for (dialect, model) in [(Dialect::ALL[1], "protocols: [responses]"), (Dialect::ALL[2], "protocols: [messages]")] {
        let upstream = Upstream::start(Reply::stream((dialect.ok)())).await;
        let (_folder, file) = config(&[("up", upstream.url(), "api_key: k, auth: x-api-key")], model);
        let (status, said) = run(&["test", "other", "--config", &file]).await;
        assert_eq!(status, Some(0), "{said}");
        let (input, output) = dialect.tokens;
        assert!(said.contains(&format!("({}): ok", dialect.name)), "{said}");
        assert!(said.contains(&format!("{input} tokens in, {output} out")), "{said}");
        let asked = upstream.request(0).await;
        assert_eq!((asked.path.as_str(), asked.header("x-api-key")), (dialect.path, Some("k")));
        assert_eq!(asked.header("anthropic-version").is_some(), dialect.name == "messages");
    }
    let upstream = Upstream::start(Reply::stream(msg_ok())).await;
    let (_folder, file) = config(&[("up", upstream.url(), "api_key: k")], "");
    let (status, said) = run(&["test", "public-model", "--protocol", "messages", "--config", &file]).await;
    assert_eq!((status, upstream.count()), (Some(0), 1), "{said}");
    let (status, said) = run(&["test", "none", "--config", &file]).await;
    assert!(status == Some(1) && said.contains("no model named \"none\"; there are: public-model"), "{said}");
}

#[tokio::test]
async fn the_demo_model_works_without_a_gateway() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/demo.yaml");
    let (status, said) = run(&["test", "demo", "--config", file]).await;
    assert!(status == Some(0) && said.contains("demo/demo (chat): ok"), "{said}");
}
