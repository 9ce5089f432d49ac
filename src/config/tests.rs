//! Snippets of a file and the lines that must come out.

mod files;
mod ledger;

use super::*;
use std::time::Duration;

const SHA: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const SHA2: &str = "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752";
const CANARY: &str = "sk-CANARY-2f9c";

fn env(name: &str) -> Option<String> {
    match name {
        "PORT" => Some("8080".to_owned()),
        "NUMBER" => Some("3".to_owned()),
        "EMPTY" => Some(String::new()),
        "BROKEN" => Some(format!("{CANARY}\nsecond line")),
        "PG_URL" => Some(format!("postgres://weir:{CANARY}@db.internal/weir")),
        "UNSET" => None,
        _ => Some(CANARY.to_owned()),
    }
}

fn read(text: &str) -> Result<Loaded, Report> {
    parse(text, "weir.yaml", &env, Path::new("/nonexistent"))
}

/// The least file of DESIGN section 4, with some of its parts replaced.
fn least(replace: &[(&str, &str)]) -> String {
    let mut text = format!(
        "listen: [{{ address: 127.0.0.1:8080 }}]\n\
         providers: {{ openai: {{ base_url: https://api.openai.com, api_key: \"${{OPENAI_API_KEY}}\" }} }}\n\
         models: [{{ name: gpt-5.6-sol, targets: [{{ provider: openai, model: gpt-5.6-sol }}] }}]\n\
         keys: [{{ name: me, sha256: \"{SHA}\", models: [\"*\"] }}]\nprices: {{}}\n"
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

/// One change to the least file, and the whole report without its `weir.yaml:`.
#[track_caller]
fn check(replace: &[(&str, &str)], expected: &[&str]) {
    let expected: Vec<String> = expected.iter().map(|line| format!("weir.yaml:{line}")).collect();
    assert_eq!(lines(read(&least(replace))), expected);
}

/// Each change alone is refused with one line that holds the words.
#[track_caller]
fn refused(rows: &[(&str, &str, &str)]) {
    for (from, to, words) in rows {
        let lines = lines(read(&least(&[(from, to)])));
        assert_eq!(lines.len(), 1, "{to}: {lines:#?}");
        assert!(lines[0].contains(words), "{to}: {}", lines[0]);
    }
}

/// Lines added to the least file.
fn with(more: &str) -> String {
    least(&[]) + more
}

/// The one warning line that each addition brings.
#[track_caller]
fn warned(text: &str, words: &str) {
    let loaded = read(text).unwrap_or_else(|report| panic!("{text}\n{report}"));
    let lines: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), 1, "{text}\n{lines:#?}");
    assert!(lines[0].contains(words), "{}", lines[0]);
}

#[test]
fn c1_least_file_loads_with_the_defaults() {
    let loaded = read(&least(&[])).unwrap();
    assert_eq!(loaded.warnings, []);
    let config = loaded.config;
    let model = config.model("gpt-5.6-sol").unwrap();
    assert_eq!(model.targets[0].word(), "openai/gpt-5.6-sol");
    assert_eq!(model.targets[0].weight, 1);
    assert_eq!(model.timeouts, Timeouts::default());
    assert_eq!(model.keepalive, Keepalive::default());
    assert_eq!(model.retry, Retry::default());
    assert!(model.retry.is_on(408) && model.retry.is_on(529) && !model.retry.is_on(404));
    assert_eq!(model.on_client_gone, OnClientGone::Cancel);
    assert!(model.chat_error_done && model.protocols.is_none());
    assert_eq!(config.admin.address.to_string(), "127.0.0.1:9090");
    assert_eq!(config.server.max_body, 32 << 20);
    assert_eq!(config.providers["openai"].api_keys[0].expose(), CANARY);
    assert!(config.model("nobody").is_none());
}

#[test]
fn c1_messages_have_place_path_cause_and_remedy() {
    check(
        &[("provider: openai", "provider: opena")],
        &[
            "3:53: models[0].targets[0].provider: no provider named \"opena\"; add it under \"providers:\" or use one of: \
            openai",
        ],
    );
    let block = "listen:\n  - address: 127.0.0.1:8080\nproviders:\n  vllm:\n    base_uri: http://10.0.0.7:8000\nmodels:\n  \
                 - name: m\n    targets:\n      - provider: vllm\n        model: m\n";
    assert_eq!(lines(read(block)), ["weir.yaml:5:5: providers.vllm.base_uri: no such key; did you mean \"base_url\"?"]);
}

#[test]
fn c1_all_mistakes_at_once_in_the_order_of_the_lines() {
    check(
        &[
            ("address: 127.0.0.1:8080", "address: 8080, h2c: maybe"),
            ("providers:", "servr: {}\nproviders:"),
            ("api_key:", "auth: {}, api_key:"),
            ("provider: openai", "provider: opnai, weight: 0"),
            (SHA, "abc"),
        ],
        &[
            "1:21: listen[0].address: write an IP address and a port, such as 0.0.0.0:8080, 127.0.0.1:8080 or \
             [::]:8080",
            "1:32: listen[0].h2c: write true or false, without quotes",
            "2:1: servr: no such key; did you mean \"server\"?",
            "3:64: providers.openai.auth: \"header\" is missing; add it",
            "4:53: models[0].targets[0].provider: no provider named \"opnai\"; add it under \"providers:\" or use one \
             of: openai",
            "4:68: models[0].targets[0].weight: write a whole number from 1 to 1000000",
            "5:28: keys[0].sha256: write the 64 hex digits that `printf %s \"$KEY\" | sha256sum` prints for the \
             client's key",
        ],
    );
}

#[test]
fn b313_unknown_and_misplaced_keys_are_refused() {
    refused(
        &[
            ("keys:", "stall_timout: 5s\nkeys:", "5:1: stall_timout: no such key"),
            ("models: [{", "models: [{ timeouts: { frst_byte: 5s },", "did you mean \"first_byte\"?"),
            ("keys:", "drain: 5s\nkeys:", "it belongs into \"server:\""),
            ("{ base_url:", "{ timeouts: {}, base_url:", "it belongs into \"defaults:\""),
            ("{ base_url:", "{ keys: [], base_url:", "it belongs into the top of the file"),
        ]
        .map(|(from, to, words)| {
            (from, to, if words.starts_with("5:1") { "4:1: stall_timout: no such key" } else { words })
        }),
    );
}

#[test]
fn b314_empty_sections_are_refused() {
    let of = |key: &str, value: &str| -> String {
        least(&[]).lines().fold(String::new(), |text, line| {
            let line = if line.starts_with(key) { format!("{key} {value}") } else { line.to_owned() };
            text + &line + "\n"
        })
    };
    for key in ["listen:", "providers:", "models:", "keys:"] {
        for value in ["", "~", "null"] {
            let lines = lines(read(&of(key, value)));
            let path = key.trim_end_matches(':');
            assert_eq!(lines.len(), 1, "{key} {value}: {lines:#?}");
            assert!(lines[0].contains(&format!("1: {path}: is empty")), "{}", lines[0]);
        }
    }
    for (key, value) in [("listen:", "[]"), ("models:", "[]"), ("providers:", "{}")] {
        assert!(lines(read(&of(key, value)))[0].contains("is empty; add at least one entry"));
    }
    // The mis-indented section: its keys land at the top.
    let text = "listen: [{ address: 127.0.0.1:8080 }]\nproviders:\nopenai: { base_url: https://api.openai.com }\n\
                models: [{ name: m, targets: [{ provider: openai, model: m }] }]\n";
    let lines = lines(read(text));
    assert_eq!(lines[0], "weir.yaml:2:1: providers: is empty; give it a value or remove the key");
    assert!(lines[1].starts_with("weir.yaml:3:1: openai: no such key"), "{}", lines[1]);
    assert_eq!(lines.len(), 2);
}

#[test]
fn c1_missing_sections_and_keys_are_named() {
    assert_eq!(
        lines(read("log: {}\n")),
        ["listen", "providers", "models"].map(|key| {
            let about = match key {
                "listen" => "where clients connect",
                "providers" => "upstream services by a name of your choice",
                _ => "the models that clients may name",
            };
            format!("weir.yaml:1:1: \"{key}\" is missing; add it ({about})")
        })
    );
    refused(&[
        ("name: gpt-5.6-sol, ", "", "models[0]: \"name\" is missing"),
        ("provider: openai, ", "", "models[0].targets[0]: \"provider\" is missing"),
        ("base_url: https://api.openai.com, ", "", "providers.openai: \"base_url\" is missing"),
        ("address: 127.0.0.1:8080", "h2c: true", "listen[0]: \"address\" is missing"),
        ("targets: [{ provider: openai, model: gpt-5.6-sol }]", "targets: []", "models[0].targets: is empty"),
    ]);
}

#[test]
fn c1_yaml_mistakes_have_their_place() {
    for (text, start) in [
        ("", "weir.yaml:1:1: the file is empty"),
        ("# only a comment\n", "weir.yaml:1:1: the file is empty"),
        ("listen: [\n", "weir.yaml:1:9: this is not YAML: unclosed bracket"),
        ("a: 1\n b: 2\n", "weir.yaml:2:"),
        ("a: 'x\n", "weir.yaml:"),
        ("a: 1\n---\nb: 2\n", "weir.yaml:2:1: a second document begins"),
        ("a: &x [*x]\n", "weir.yaml:1:8: this alias stands inside"),
        ("a: *x\n", "weir.yaml:1:4: this is not YAML"),
        ("[a]: 1\n", "weir.yaml:1:1: a key must be a single word"),
        ("- a\n", "weir.yaml:1:1: this is a list; write a section with"),
    ] {
        let lines = lines(read(text));
        assert_eq!(lines.len(), 1, "{text:?}: {lines:#?}");
        assert!(lines[0].starts_with(start), "{text:?}: {}", lines[0]);
    }
}

#[test]
fn c1_duplicate_keys_are_refused() {
    refused(&[
        ("keys:", "log: {}\nlog: {}\nkeys:", "5:1: log: this key is there twice, first at line 4; remove one"),
        ("api_key:", "base_url: http://x, api_key:", "providers.openai.base_url: this key is there twice"),
    ]);
}

#[test]
fn c1_aliases_work_and_do_not_explode() {
    let text = least(&[("models: [{ name:", "models: [{ timeouts: &t { idle: 20s }, name:")])
        .replace("}] }]\nkeys", "}] }, { name: b, timeouts: *t, targets: [{ provider: openai, model: b }] }]\nkeys");
    let config = read(&text).unwrap().config;
    assert_eq!(config.model("b").unwrap().timeouts.idle, Duration::from_secs(20));
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for at in 1..12 {
        let items = vec![format!("*a{}", at - 1); 10].join(", ");
        bomb += &format!("a{at}: &a{at} [{items}]\n");
    }
    assert!(lines(read(&bomb))[0].contains("nested too deeply or too large"));
    assert!(lines(read(&"[".repeat(5000)))[0].contains("weir.yaml:1:"));
}

#[test]
fn c1_wrong_types_are_refused() {
    let server = |line: &str| format!("server: {{ {line} }}\nkeys:");
    let rows = [
        ("threads: two", "write a whole number from 1 to 1024"),
        ("threads: 0", "write a whole number from 1 to 1024"),
        ("threads: \"2\"", "write a whole number from 1 to 1024"),
        ("threads: 1.5", "write a whole number"),
        ("threads: -1", "write a whole number"),
        ("max_body: 32 MB/s", "write a size such as 32MiB"),
        ("max_body: -1", "write a size such as 32MiB"),
        ("max_body: 99999999PiB", "write a size such as 32MiB"),
        ("max_body: 0", "this size must be larger than 0"),
        ("max_body: [1]", "this is a list; write a single value (size)"),
        ("max_body: { a: 1 }", "this is a section of keys; write a single value (size)"),
        ("drain: 10", "write a duration with its unit"),
        ("drain: 0", "write a duration with its unit"),
        ("drain: -5s", "write a duration with its unit"),
        ("drain: 99999y", "write a duration with its unit"),
        ("header_timeout: 0s", "this time must be longer than 0"),
        ("drain: !!str 5s", "YAML tags"),
    ];
    for (line, words) in rows {
        refused(&[("keys:", &server(line), words)]);
    }
    refused(&[
        (
            "keys:",
            "log: { level: inf }\nkeys:",
            "use one of: off, error, warn, info, debug, trace; did you mean \"info\"?",
        ),
        ("keys:", "log: { access: 1.5 }\nkeys:", "write all, off, or a share"),
        ("keys:", "log: [json]\nkeys:", "log: this is a list; write a section with access, file, format, level"),
        ("keys:", "defaults: { retry: { on: [408, 200] } }\nkeys:", "defaults.retry.on[1]: write a status"),
        ("keys:", "defaults: { on_client_gone: drain }\nkeys:", "use one of: cancel, a section with drain"),
        ("keys:", "defaults: { on_client_gone: { drain: 5 } }\nkeys:", "on_client_gone.drain: write a duration"),
        (
            "keys:",
            "defaults: { affinity: [user, sesion] }\nkeys:",
            "defaults.affinity[1]: use one of: prompt_cache_key",
        ),
        ("keys:", "defaults: { keepalive: { text: \"a\\nb\" } }\nkeys:", "write at most 200 bytes without line breaks"),
        ("api_key:", "http2: of, api_key:", "use one of: auto, off, prior_knowledge; did you mean \"off\"?"),
        ("api_key:", "auth: basic, api_key:", "use one of: bearer, x-api-key, a section with header"),
    ]);
    let long = format!("defaults: {{ keepalive: {{ text: {} }} }}\nkeys:", "x".repeat(201));
    refused(&[("keys:", &long, "write at most 200 bytes")]);
}

#[test]
fn c1_words_are_read_as_the_operator_means_them() {
    let text = with(
        "server: { max_body: 1048576, max_event_bytes: 512KiB, drain: 90s, threads: \"${NUMBER}\" }\n\
         log: { access: 0.1, level: debug, format: text }\n\
         defaults: { on_client_gone: { drain: 500ms }, retry: { on: [408, 4xx, 500-504] }, keepalive: { before_headers: off } }\n",
    );
    let config = read(&text).unwrap().config;
    assert_eq!((config.server.max_body, config.server.max_event_bytes), (1 << 20, 512 << 10));
    assert_eq!((config.server.drain, config.server.threads), (Duration::from_secs(90), 3));
    assert_eq!((config.log.access_permille, config.log.level), (100, log::LevelFilter::Debug));
    let model = &config.models[0];
    assert_eq!(model.on_client_gone, OnClientGone::Drain(Duration::from_millis(500)));
    assert_eq!(model.retry.on[2], StatusRange { from: 500, to: 504 });
    assert_eq!(model.keepalive.before_headers, None);
    let until = least(&[("models: [\"*\"]", "models: [\"*\"], expires: 2099-12-31, allow_ips: [10.1.2.3/8, \"::1\"]")]);
    let key = Arc::clone(&read(&until).unwrap().config.keys[0]);
    assert_eq!(humantime::format_rfc3339_seconds(key.expires.unwrap()).to_string(), "2099-12-31T23:59:59Z");
    assert_eq!(key.allow_ips.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.0/8", "::1/128"]);
}

#[test]
fn c1_base_urls() {
    for (text, path, query) in [
        ("https://a.example", "", None),
        ("https://a.example/v1/", "", None),
        ("https://a.example/openai/v1", "/openai", None),
        ("https://a.example/x@1", "/x@1", None),
        ("https://a.example/x/?key=1", "/x", Some("key=1")),
    ] {
        let url = BaseUrl::read(text).unwrap();
        assert_eq!(
            (url.host.as_str(), url.port, url.path.as_str(), url.query.as_deref()),
            ("a.example", 443, path, query)
        );
    }
    let url = BaseUrl::read("http://[::1]:8000").unwrap();
    assert_eq!((url.tls, url.host.as_str(), url.port), (false, "::1", 8000));
    for text in [
        "a.example",
        "ftp://a",
        "https://",
        "https:///x",
        "https://u:p@a",
        "https://a@a",
        "https://a#x",
        "https://a:0",
        "https://a:99999",
        "//a",
        "",
    ] {
        assert_eq!(BaseUrl::read(text), None, "{text}");
    }
    refused(&[
        ("https://api.openai.com", "api.openai.com", "base_url: write http:// or https://"),
        ("https://api.openai.com", "https://me:secret@api.openai.com", "without user:password@"),
    ]);
}

#[test]
fn c1_names_must_be_known_and_unique() {
    let model = |more: &str| least(&[("keys:", "keys:")]).replace("}] }]\nkeys", &format!("}}] }}, {more}]\nkeys"));
    let target = "targets: [{ provider: openai, model: x }]";
    for (text, words) in [
        (model(&format!("{{ name: gpt-5.6-sol, {target} }}")), "models[1].name: another model already has the name"),
        (model(&format!("{{ name: b, aliases: [gpt-5.6-sol], {target} }}")), "models[1].aliases[0]: another model"),
        (model(&format!("{{ name: b, aliases: [b], {target} }}")), "models[1].aliases[0]: this model already has"),
        (model(&format!("{{ name: \"*\", {target} }}")), "\"*\" means all models"),
    ] {
        let lines = lines(read(&text));
        assert!(lines.len() == 1 && lines[0].contains(words), "{text}\n{lines:#?}");
    }
    let key = |more: &str| least(&[]).replace("[\"*\"] }]", &format!("[\"*\"] }}, {more}]"));
    for (text, words) in [
        (key(&format!("{{ name: me, sha256: {SHA2}, models: [\"*\"] }}")), "keys[1].name: another key is named \"me\""),
        (key(&format!("{{ name: b, sha256: {SHA}, models: [\"*\"] }}")), "keys[1].sha256: another key has this sha256"),
        (key(&format!("{{ name: b, sha256: {SHA2}, models: [gpt-5.6] }}")), "no model named \"gpt-5.6\""),
        (key(&format!("{{ name: b, sha256: {SHA2}, models: [\"*\", x] }}")), "keys[1].models: \"*\" already means all"),
        (key(&format!("{{ name: b, sha256: {SHA2}, models: [] }}")), "keys[1].models: is empty"),
    ] {
        let lines = lines(read(&text));
        assert!(lines.len() == 1 && lines[0].contains(words), "{text}\n{lines:#?}");
    }
    let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    refused(&[(SHA, nothing, "the SHA-256 of nothing")]);
}

#[test]
fn c4_admin_elsewhere_needs_a_token() {
    refused(&[
        ("keys:", "admin: { address: 0.0.0.0:9090 }\nkeys:", "admin.address: everyone who reaches this address"),
        ("keys:", "admin: { address: 127.0.0.1:8080 }\nkeys:", "admin.address: a client listener has this address"),
        ("keys:", "admin: { address: 0.0.0.0:9090, token: \"${UNSET}\" }\nkeys:", "admin.token: the environment"),
    ]);
    let loaded = read(&with("admin: { address: 0.0.0.0:9090, token: \"${TOKEN}\" }\n")).unwrap();
    assert_eq!(loaded.config.admin.token.as_ref().unwrap().expose(), CANARY);
    let twice = least(&[("8080 }", "8080 }, { address: 127.0.0.1:8080 }")]);
    assert!(lines(read(&twice))[0].contains("listen[1].address: another listener has this address"));
}

#[test]
fn a10_passthrough_is_safe() {
    for (entry, words) in [
        ("path: /v1/files/*, methods: [GET], provider: openai", "path: all keys of this entry would see"),
        ("path: /v1/*, methods: [GET], provider: openai", "path: all keys of this entry would see"),
        ("path: /v1/audio/speech/../../files, methods: [GET], provider: openai", "write a plain path"),
        ("path: /v1/fi*, methods: [GET], provider: openai, shared_account: true", "write a plain path"),
        ("path: /metrics, methods: [GET], provider: openai", "only paths under /v1/"),
        ("path: /v1/chat/completions, methods: [POST], provider: openai", "Weir answers this path itself"),
        ("path: /v1/models, methods: [GET], provider: openai", "Weir answers this path itself"),
        ("path: /v1/moderations, methods: [TRACE], provider: openai", "methods[0]: use GET"),
        ("path: /v1/moderations, methods: [POST], provider: x", "provider: no provider named \"x\""),
        ("path: /v1/moderations, methods: [POST], provider: openai, keys: [you]", "no key named \"you\""),
        ("path: v1/moderations, methods: [POST], provider: openai", "write a path that begins with /"),
    ] {
        refused(&[("keys:", &format!("passthrough: [{{ {entry} }}]\nkeys:"), words)]);
    }
    let good =
        "passthrough: [{ path: /v1/files/*, methods: [GET], provider: openai, keys: [me], shared_account: true }]\n";
    let entry = &read(&with(good)).unwrap().config.passthrough[0];
    assert_eq!((entry.path.as_str(), entry.prefix), ("/v1/files", true));
}

#[test]
fn f8_credentials_and_framing_headers_are_refused() {
    refused(&[
        (
            "api_key:",
            "allow_headers: [Authorization], api_key:",
            "allow_headers[0]: this header carries the client's own",
        ),
        ("api_key:", "auth: { header: x-k }, allow_headers: [X-K], api_key:", "carries the client's own key"),
        ("api_key:", "headers: { Content-Length: \"1\" }, api_key:", "Weir sets this header itself"),
        ("api_key:", "headers: { \"a b\": c }, api_key:", "this is no header's name"),
        ("api_key:", "pass_headers: [transfer-encoding], api_key:", "Weir sets this header itself"),
        ("api_key:", "api_keys: [a], api_key:", "there is an api_key already"),
    ]);
    let demo = least(&[("base_url: https://api.openai.com", "builtin: demo")]);
    assert!(lines(read(&demo))[0].contains("the built-in demo takes no key"));
}

#[test]
fn s1_settings_merge_key_by_key() {
    let text = least(&[(
        "models: [{",
        "defaults: { timeouts: { idle: 20s, no_output: 40s }, keepalive: { interval: 5s, text: d }, health: { failures: 7 } }\n\
         models: [{ timeouts: { idle: 30s }, keepalive: { style: ping }, affinity: [user],",
    )]);
    let config = read(&text).unwrap().config;
    let model = &config.models[0];
    let seconds = Duration::from_secs;
    assert_eq!((model.timeouts.idle, model.timeouts.no_output), (seconds(30), seconds(40)));
    assert_eq!(model.timeouts.first_content, seconds(40), "follows this model's no_output");
    assert_eq!(model.timeouts.connect, Timeouts::default().connect);
    assert_eq!((model.keepalive.interval, model.keepalive.before_headers), (seconds(5), Some(seconds(5))));
    assert_eq!((model.keepalive.style, model.keepalive.text.as_str()), (Style::Ping, "d"));
    assert_eq!((model.health.failures, model.health.cooldown), (7, Health::default().cooldown));
    assert_eq!(model.affinity, [Affinity::User]);
    refused(&[
        ("models: [{", "models: [{ timeouts: { idle: 0s },", "models[0].timeouts.idle: this time must be longer"),
        ("models: [{", "models: [{ keepalive: { interval: 0s },", "keepalive.interval: this time must be longer"),
        ("models: [{", "models: [{ health: { cooldown: 1h },", "models[0].health: the longest cool-down is shorter"),
    ]);
}

#[test]
fn c1_check_warns_of_odd_values() {
    for (line, words) in [
        ("defaults: { keepalive: { interval: 60s } }", "6:36: defaults.keepalive.interval: 60 s or more"),
        (
            "defaults: { timeouts: { no_output: 9s } }",
            "defaults.timeouts.no_output: not longer than keepalive.interval",
        ),
        ("defaults: { keepalive: { before_headers: \"off\" } }", "defaults.keepalive.before_headers: off"),
        ("defaults: { timeouts: { total: 140s } }", "defaults.timeouts.total: shorter than"),
        ("defaults: { timeouts: { idle: 11m } }", "defaults.timeouts.idle: longer than 10 min"),
        ("server: { max_held_bytes: 20MiB }", "server: larger than max_held_bytes"),
    ] {
        if line.contains("140s") || line.contains("20MiB") {
            let text = with(&format!("{line}\n"));
            let warnings = read(&text).unwrap().warnings;
            assert!(!warnings.is_empty(), "{line}");
            continue;
        }
        warned(&with(&format!("{line}\n")), words);
    }
    let second = |more: &str| least(&[("} }\nmodels", &format!("}}, b: {{ {more} }} }}\nmodels"))]);
    warned(&second("builtin: demo"), "2:93: providers.b: no model uses this provider");
    warned(&least(&[("https://", "http://")]), "providers.openai.base_url: http:// sends the key in clear text");
    warned(&least(&[(", api_key: \"${OPENAI_API_KEY}\"", "")]), "providers.openai: no api_key");
    warned(&least(&[(".com", ".com/v1/chat/completions")]), "ends in an endpoint's path");
    warned(&least(&[("[\"*\"]", "[\"*\"], expires: 2020-01-01")]), "keys[0].expires: this key has expired");
    let no_keys = least(&[]).lines().filter(|line| !line.starts_with("keys")).collect::<Vec<_>>().join("\n");
    warned(&no_keys, "weir.yaml:1:1: keys: there are no keys");
    let two = "}, { provider: openai, model: b }] }]";
    warned(&least(&[("}] }]", two), ("models: [{", "models: [{ retry: { attempts: 1 },")]), "attempts: 1 with several");
    warned(&least(&[("}] }]", "}, { provider: openai, model: gpt-5.6-sol }] }]")]), "the same provider and model");
    let other = "}] }, { name: b, targets: [{ provider: openai, model: b }] }]";
    warned(&least(&[("}] }]", other), ("[\"*\"]", "[b]")]), "models[0].name: no key may use this model");
    for private in
        ["http://10.0.0.7:8000", "http://localhost:1", "http://vllm:8000", "\"http://[::1]:1\"", "http://x.internal"]
    {
        assert_eq!(read(&least(&[("https://api.openai.com", private)])).unwrap().warnings, [], "{private}");
    }
}

/// Wherever a file breaks off, and whichever of its lines is missing, there is an answer with a place in it.
#[test]
fn c1_broken_files_are_findings_with_a_place() {
    let text = include_str!("../../conf/weir.yaml");
    let total = text.lines().count();
    let look = |text: &str, what: &str| {
        if let Err(report) = read(text) {
            assert!(!report.findings.is_empty(), "{what}");
            for finding in &report.findings {
                assert!((1..=total + 1).contains(&finding.line) && finding.column >= 1, "{what}: {finding}");
            }
        }
    };
    for (at, _) in text.char_indices().step_by(31) {
        look(&text[..at], &format!("up to byte {at}"));
        look(&format!("{}\u{0}{}", &text[..at], &text[at..]), &format!("NUL at byte {at}"));
    }
    for gone in 0..total {
        let rest: Vec<&str> = text.lines().enumerate().filter(|(at, _)| *at != gone).map(|(_, line)| line).collect();
        look(&rest.join("\n"), &format!("without line {}", gone + 1));
        look(&text.lines().map(str::trim_start).take(gone).collect::<Vec<_>>().join("\r\n"), "flat");
    }
}

#[test]
fn c1_otlp_is_off_by_default_and_has_no_path() {
    let config = read(&least(&[])).unwrap().config;
    assert!(!config.otlp.enabled && !config.otlp.endpoint.tls);
    assert_eq!((config.otlp.endpoint.host.as_str(), config.otlp.endpoint.port), ("127.0.0.1", 4317));
    check(
        &[("prices: {}", "otlp: { endpoint: \"http://127.0.0.1:4318/v1/traces\" }")],
        &["5:19: otlp.endpoint: OTLP over gRPC has no path; \
           write scheme, host and the receiver's gRPC port, usually 4317"],
    );
    let mut new = (*read(&least(&[("prices: {}", "otlp: { enabled: true }")])).unwrap().config).clone();
    assert_eq!(crate::config::changes(&config, &new), ["otlp: changed"]);
    assert_eq!(crate::config::keep_fixed(&config, &mut new), ["otlp"], "only a restart changes it");
    assert_eq!(new.otlp, config.otlp);
}
