//! Snippets of a file and the lines that must come out.

use super::*;

const SHA: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const SHA2: &str = "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752";
const CANARY: &str = "sk-CANARY-2f9c";

fn env(name: &str) -> Option<String> {
    match name {
        "PORT" => Some("8080".to_owned()),
        "NUMBER" => Some("3".to_owned()),
        "EMPTY" => Some(String::new()),
        "BROKEN" => Some(format!("{CANARY}\nsecond line")),
        "UNSET" => None,
        _ => Some(CANARY.to_owned()),
    }
}

fn read(text: &str) -> Result<Loaded, Report> {
    parse(text, "weir.yaml", &env, Path::new("/nonexistent"))
}

/// The least file of DESIGN section 4, with some of its lines replaced.
fn least(replace: &[(&str, &str)]) -> String {
    let mut text = format!(
        "listen: [{{ address: 127.0.0.1:8080 }}]\n\
         providers: {{ openai: {{ base_url: https://api.openai.com, api_key: \"${{OPENAI_API_KEY}}\" }} }}\n\
         models: [{{ name: gpt-5.6-sol, targets: [{{ provider: openai, model: gpt-5.6-sol }}] }}]\n\
         keys: [{{ name: me, sha256: \"{SHA}\", models: [\"*\"] }}]\n"
    );
    for (from, to) in replace {
        assert!(text.contains(from), "nothing to replace: {from}");
        text = text.replacen(from, to, 1);
    }
    text
}

fn lines(result: Result<Loaded, Report>) -> Vec<String> {
    match result {
        Ok(_) => Vec::new(),
        Err(report) => report.to_string().lines().map(str::to_owned).collect(),
    }
}

#[test]
fn c1_least_file_loads() {
    let loaded = read(&least(&[])).unwrap();
    assert_eq!(loaded.warnings, []);
    assert_eq!(loaded.config.model("gpt-5.6-sol").unwrap().targets[0].word(), "openai/gpt-5.6-sol");
}
