//! What the file refers to (environment, secrets, certificates), and the files in `conf/`.

use super::*;
use crate::config::shape::NOT_BUILT;
use crate::config::{EgressProxy, TlsVersion};
use crate::shared;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A folder of its own for one test, gone afterwards.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-config-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn put(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn b259_an_unset_variable_is_named_and_stops_the_start() {
    refused(&[
        ("${OPENAI_API_KEY}", "${UNSET}", "2:67: providers.openai.api_key: the environment variable UNSET is not set"),
        ("${OPENAI_API_KEY}", "${EMPTY}", "providers.openai.api_key: ${EMPTY} is empty"),
        ("${OPENAI_API_KEY}", "${BROKEN}", "${BROKEN} is not fit for an HTTP header"),
        ("${OPENAI_API_KEY}", "${OPENAI", "`${` without its `}`"),
        ("${OPENAI_API_KEY}", "${A-B}", "the name of an environment variable"),
        ("${OPENAI_API_KEY}", "", "providers.openai.api_key: the value is empty"),
        ("127.0.0.1:8080", "\"127.0.0.1:${UNSET}\"", "listen[0].address: the environment variable UNSET"),
    ]);
    let loaded = read(&least(&[("127.0.0.1:8080", "\"127.0.0.1:${PORT}\"")])).unwrap();
    assert_eq!(loaded.config.listen[0].address.port(), 8080);
}

#[test]
fn c1_secrets_in_files() {
    let folder = Folder::new("secrets");
    folder.put("good", &format!("{CANARY}\n"));
    folder.put("empty", "\n");
    folder.put("two", &format!("{CANARY}\n{CANARY}\n"));
    folder.put("large", &"x".repeat(70_000));
    let read =
        |name: &str| parse(&least(&[("${OPENAI_API_KEY}", &format!("file:{name}"))]), "weir.yaml", &env, &folder.0);
    assert_eq!(read("good").unwrap().config.providers["openai"].api_keys[0].expose(), CANARY);
    for (name, words) in [
        ("missing", "cannot open the file missing (entity not found)"),
        ("empty", "the file empty is empty"),
        ("two", "the file two is not fit for an HTTP header"),
        ("large", "the file large is too large"),
        (".", "cannot read the file ."),
    ] {
        let lines = lines(read(name));
        assert!(lines.len() == 1 && lines[0].contains(words), "{name}: {lines:#?}");
        assert!(!lines[0].contains(CANARY));
    }
}

#[test]
fn c1_secrets_never_print() {
    let text = least(&[
        ("https://api.openai.com", "\"https://api.openai.com?key=${K}\""),
        ("api_key:", "headers: { x-secret: \"${K}\" }, api_keys: [\"${K}\"], x:"),
    ]);
    let text = text.replace(", x: \"${OPENAI_API_KEY}\"", "") + "admin: { token: \"${K}\" }\n";
    let loaded = read(&text).unwrap();
    assert_eq!(loaded.config.providers["openai"].headers[0].1, CANARY);
    assert!(!format!("{loaded:?}").contains("CANARY"));
    // Where a secret landed in the wrong place, no message repeats it.
    for (from, to) in [
        ("address: 127.0.0.1:8080", "address: \"${K}\""),
        ("base_url: https://api.openai.com", "base_url: \"${K}\""),
        ("base_url: https://api.openai.com", "base_url: https://x:sk-CANARY@y"),
        ("api_key:", "auth: \"${K}\", api_key:"),
        ("api_key:", "http2: sk-CANARY, api_key:"),
        ("api_key: \"${OPENAI_API_KEY}\"", "api_key: { sk: sk-CANARY }"),
        ("api_key: \"${OPENAI_API_KEY}\"", "api_key: [sk-CANARY]"),
        ("provider: openai", "provider: \"${K}\""),
        (SHA, "sk-CANARY"),
        ("models: [\"*\"]", "models: [\"${K}\"]"),
        ("keys:", "server: { drain: \"${K}\" }\nkeys:"),
        ("{ openai:", "{ extra: sk-CANARY, openai:"),
        ("${OPENAI_API_KEY}", "file:${K}"),
        ("${OPENAI_API_KEY}", "sk-CANARY${EMPTY}é"),
        ("api_key:", "ca: \"${K}\", api_key:"),
        ("keys:", "log: { file: \"${K}/log\" }\nkeys:"),
        ("prices: {}", "prices: { cost: [\"${K}\"], sell: \"${K}\" }"),
        ("prices: {}", "prices: { sell: { markup: \"${K}\" } }"),
        ("prices: {}", "ledger: { postgres: { url: \"${K}\" } }"),
        ("prices: {}", "ledger: { postgres: { url: \"postgres://x:${K}@h:sk-CANARY/d?sk-CANARY=1\" } }"),
        ("prices: {}", "ledger: { timezone: \"${K}\" }"),
    ] {
        let report = read(&least(&[(from, to)])).unwrap_err();
        assert!(!format!("{report} {report:?}").contains("CANARY"), "{report}");
    }
}

#[test]
fn c1_certificates_are_looked_at() {
    let folder = Folder::new("pem");
    let make = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (one, two) = (make(), make());
    folder.put("one.crt", &one.cert.pem());
    folder.put("one.key", &one.signing_key.serialize_pem());
    folder.put("two.key", &two.signing_key.serialize_pem());
    folder.put("text", "no PEM\n");
    let read = |cert: &str, key: &str| {
        let tls = format!("8080, tls: {{ certificates: [{{ cert: {cert}, key: {key} }}] }}");
        parse(&least(&[("8080", &tls)]), "weir.yaml", &env, &folder.0)
    };
    let config = read("one.crt", "one.key").unwrap().config;
    assert_eq!(config.listen[0].tls.as_ref().unwrap().certificates[0].cert, folder.0.join("one.crt"));
    for (cert, key, words) in [
        ("one.crt", "two.key", "certificates[0].key: "),
        ("one.crt", "text", "holds no private key"),
        ("text", "one.key", "holds no certificate"),
        ("none", "one.key", "cannot read"),
    ] {
        let lines = lines(read(cert, key));
        assert!(lines.len() == 1 && lines[0].contains(words), "{cert} {key}: {lines:#?}");
    }
    let ca = parse(&least(&[("api_key:", "ca: text, api_key:")]), "weir.yaml", &env, &folder.0);
    assert!(lines(ca)[0].contains("providers.openai.ca: "));
    let tls = |more: &str| {
        let tls = format!("8080, tls: {{ certificates: [{{ cert: one.crt, key: one.key }}], {more} }}");
        parse(&least(&[("8080", &tls)]), "weir.yaml", &env, &folder.0)
    };
    let config = tls("min_version: \"1.3\", client_ca: one.crt").unwrap().config;
    let read = config.listen[0].tls.as_ref().unwrap();
    assert_eq!((read.min_version, read.client_ca.as_ref()), (TlsVersion::V13, Some(&folder.0.join("one.crt"))));
    assert!(lines(tls("client_ca: text"))[0].contains("tls.client_ca: "));
    assert!(lines(tls("min_version: \"1.1\""))[0].contains("tls.min_version: "));
    let shown = |cert: &str| {
        let settings = format!("client_cert: {{ {cert} }}, api_key:");
        parse(&least(&[("api_key:", &settings)]), "weir.yaml", &env, &folder.0)
    };
    assert!(shown("cert: one.crt, key: one.key").unwrap().config.providers["openai"].client_cert.is_some());
    assert!(lines(shown("cert: one.crt, key: two.key"))[0].contains("providers.openai.client_cert.key: "));
}

#[test]
fn c1_an_egress_proxy_is_an_http_one() {
    let read = |text: &str| EgressProxy::read(text).map(|proxy| (proxy.host, proxy.port, proxy.authorization));
    let secret = |text: &str| Some(Secret::new(text.to_owned()));
    assert_eq!(read("http://proxy"), Some(("proxy".to_owned(), 80, None)));
    assert_eq!(read("http://[::1]:3128/"), Some(("::1".to_owned(), 3128, None)));
    assert_eq!(read("http://a:b%40c%3A@p:1"), Some(("p".to_owned(), 1, secret("Basic YTpiQGM6"))));
    assert_eq!(read("http://a@p:1"), Some(("p".to_owned(), 1, secret("Basic YTo="))));
    for bad in
        ["", "proxy:3128", "https://proxy", "socks5://proxy", "http://", "http://p/path", "http://p?q", "http://a:b@"]
    {
        assert_eq!(read(bad), None, "{bad}");
    }
    let report =
        parse(&least(&[("api_key:", "egress_proxy: \"https://me:sk-CANARY@p\", api_key:")]), "w", &env, Path::new(""));
    let lines = lines(report);
    assert!(lines[0].contains("providers.openai.egress_proxy: ") && !lines[0].contains("CANARY"), "{lines:?}");
}

/// Issue 2: the example of the design yields nothing but "not built yet".
#[test]
fn c1_example_of_the_design() {
    let Some(example) = shared::read("weir.example.yaml") else { return };
    let folder = Folder::new("example");
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    folder.put("tls.crt", &pair.cert.pem());
    folder.put("tls.key", &pair.signing_key.serialize_pem());
    folder.put("internal-ca.pem", &pair.cert.pem());
    folder.put("clients.pem", &pair.cert.pem());
    folder.put("c.crt", &pair.cert.pem());
    folder.put("c.key", &pair.signing_key.serialize_pem());
    folder.put("openai-2.key", "sk-2\n");
    folder.put("prices.yaml", "prices: []\n");
    folder.put("litellm.json", r#"{"gpt-5.6-sol": {"litellm_provider": "openai", "input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}}"#);
    let text = String::from_utf8(example).unwrap().replace("/etc/weir/", "");
    let lines = lines(parse(&text, "weir.yaml", &env, &folder.0));
    for line in &lines {
        assert!(line.ends_with("this key is not built yet; remove it"), "{line}");
    }
    let keys: BTreeSet<&str> = NOT_BUILT.iter().copied().collect();
    let found: BTreeSet<String> = lines.iter().map(|line| pattern_of(line)).collect();
    assert_eq!(found, keys.iter().map(|key| (*key).to_owned()).collect(), "every key of the table is in the example");
}

/// `weir.yaml:1:2: providers.vllm.normalize: …` → `providers.*.normalize`
fn pattern_of(line: &str) -> String {
    let path = line.split(": ").nth(1).unwrap();
    let path: String = path.chars().filter(|c| !c.is_ascii_digit()).collect();
    match path.strip_prefix("providers.").and_then(|rest| rest.split_once('.')) {
        Some((_, key)) => format!("providers.*.{key}"),
        None => path,
    }
}

fn conf() -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = fs::read_dir(repository().join("conf"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "yaml"))
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(path).unwrap()))
        .filter(|(_, text)| text.contains("\nlisten:"))
        .collect();
    files.sort();
    files
}

#[test]
fn c1_shipped_files_load_without_warnings() {
    let files = conf();
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    for name in ["anthropic.yaml", "demo.yaml", "openai.yaml", "self-hosted.yaml", "weir.yaml"] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    for (name, text) in files {
        let loaded = parse(&text, &name, &env, &repository().join("conf")).unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(loaded.warnings, [], "{name}");
    }
}

/// conf/weir.yaml says of each key what its default is: it must be the default.
#[test]
fn c1_shipped_defaults_are_the_defaults() {
    let text = fs::read_to_string(repository().join("conf/weir.yaml")).unwrap();
    let shipped = parse(&text, "weir.yaml", &env, &repository().join("conf")).unwrap().config;
    let least = read(&least(&[])).unwrap().config;
    assert_eq!(format!("{:?}", shipped.server), format!("{:?}", least.server));
    assert_eq!(format!("{:?}", shipped.admin), format!("{:?}", least.admin));
    assert_eq!((&shipped.log, shipped.metrics), (&least.log, least.metrics));
    assert_eq!((&shipped.otlp, shipped.timelines), (&least.otlp, least.timelines));
    assert_eq!(format!("{:?}", shipped.prices), format!("{:?}", least.prices));
    assert_eq!(shipped.billing, least.billing);
    let ledger = |config: &Config, folder: &Path| {
        let mut ledger = config.ledger.clone();
        ledger.path = ledger.path.strip_prefix(folder).unwrap().to_owned();
        format!("{ledger:?}")
    };
    assert_eq!(ledger(&shipped, &repository().join("conf")), ledger(&least, Path::new("/nonexistent")));
    assert_eq!(format!("{:?}", shipped.providers["openai"]), format!("{:?}", least.providers["openai"]));
    let settings = |model: &Model| {
        let Model { timeouts, keepalive, retry, health, on_client_gone, chat_error_done, affinity, .. } = model.clone();
        (timeouts, keepalive, retry, health, on_client_gone, chat_error_done, affinity)
    };
    assert_eq!(settings(&shipped.models[0]), settings(&least.models[0]));
}

fn keys_of(schema: &Value, into: &mut BTreeSet<String>) {
    match schema {
        Value::Object(members) => {
            if let Some(Value::Object(keys)) = members.get("properties") {
                into.extend(keys.keys().cloned());
            }
            members.values().for_each(|value| keys_of(value, into));
        }
        Value::Array(items) => items.iter().for_each(|item| keys_of(item, into)),
        _ => {}
    }
}

#[test]
fn c1_schema_and_weir_yaml_have_the_same_keys() {
    let schema = schema();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let mut keys = BTreeSet::new();
    keys_of(&schema, &mut keys);
    let text = fs::read_to_string(repository().join("conf/weir.yaml")).unwrap();
    let endpoints = "chat, responses, messages, completions, embeddings, count_tokens, input_tokens";
    assert!(text.contains(endpoints));
    for key in keys.iter().filter(|key| !endpoints.contains(key.as_str())) {
        assert!(text.contains(&format!("{key}:")), "conf/weir.yaml does not explain {key}");
    }
    for key in NOT_BUILT.iter().filter(|key| !key.contains(['.', '['])) {
        assert!(!keys.contains(*key), "{key} is built: remove it from the table");
    }
}

/// Each section says what it is for and refuses what it does not know; nothing may be null.
#[test]
fn c1_schema_is_strict_and_explained() {
    fn walk(value: &Value, place: &str) {
        match value {
            Value::Object(members) => {
                if let Some(Value::Object(keys)) = members.get("properties") {
                    let closed = members.get("additionalProperties") == Some(&Value::Bool(false));
                    assert!(closed, "{place} takes unknown keys");
                    for (key, schema) in keys {
                        let said = schema.get("description").or_else(|| members.get("description"));
                        assert!(said.is_some(), "{place}/{key} has no description");
                    }
                }
                assert_ne!(members.get("type"), Some(&Value::from("null")), "{place} may be null");
                for (name, value) in members {
                    walk(value, &format!("{place}/{name}"));
                }
            }
            Value::Array(items) => {
                for item in items {
                    assert_ne!(*item, Value::from("null"), "{place} may be null");
                    walk(item, place);
                }
            }
            _ => {}
        }
    }
    walk(&schema(), "");
}

#[test]
fn c1_load_names_the_file() {
    let folder = Folder::new("load");
    let missing = load(&folder.0.join("none.yaml")).unwrap_err().to_string();
    assert!(missing.contains("none.yaml: cannot read the file"), "{missing}");
    folder.put("key", "sk-1\n");
    folder.put("weir.yaml", &least(&[("${OPENAI_API_KEY}", "file:key")]));
    let config = load(&folder.0.join("weir.yaml")).unwrap().config;
    assert_eq!(config.providers["openai"].api_keys[0].expose(), "sk-1");
}
