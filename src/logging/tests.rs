//! Which lines appear, in what form, and that no key gets through.

use super::line::{of, scrubbed, word};
use super::{ACCESS, LogError, Logger, Sink};
use crate::config::{self, LogFormat};
use log::{Level, LevelFilter, Log};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

fn config(format: LogFormat, level: LevelFilter, file: Option<PathBuf>) -> config::Log {
    config::Log { format, level, access_permille: 1000, file }
}

/// A file name of this process alone.
fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("weir-log-{name}-{}", std::process::id()))
}

fn logger(level: LevelFilter, path: &Path) -> Logger {
    let config = config(LogFormat::Json, level, Some(path.to_path_buf()));
    Logger::new(&config, Sink::open(config.file.clone()).unwrap())
}

fn say(logger: &Logger, target: &str, level: Level, message: &str) {
    logger.log(&log::Record::builder().target(target).level(level).args(format_args!("{message}")).build());
}

#[test]
fn m3_lines_carry_key_values_with_their_types() {
    let pairs = [("port", 8080_u64.into()), ("text", log::kv::Value::from("a b")), ("level", true.into())];
    let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
    let pairs = &pairs[..];
    let check = |format| {
        let args = format_args!("hello \"there\"\nINFO forged");
        let record =
            log::Record::builder().target("weir::server").level(Level::Warn).args(args).key_values(&pairs).build();
        of(&record, format, now)
    };
    assert_eq!(
        check(LogFormat::Json),
        r#"{"ts":"1970-01-01T00:00:01.500Z","level":"WARN","target":"weir::server","message":"hello \"there\"\nINFO forged","port":8080,"text":"a b","level_":true}"#
    );
    assert_eq!(
        check(LogFormat::Text),
        r#"1970-01-01T00:00:01.500Z WARN  weir::server hello "there"\nINFO forged port=8080 text="a b" level=true"#
    );
}

#[test]
fn b308_other_crates_never_get_below_info() {
    let file = path("b308");
    for level in [LevelFilter::Info, LevelFilter::Debug, LevelFilter::Trace] {
        let logger = logger(level, &file);
        for target in ["pingora_proxy", "pingora_core::protocols::http", "h2::codec", "rustls::client", "weirdo"] {
            for level in [Level::Debug, Level::Trace] {
                say(&logger, target, level, "authorization: Bearer CANARY");
            }
        }
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "");
    fs::remove_file(file).unwrap();
}

#[test]
fn b308_a_malformed_head_is_not_quoted() {
    let line = "HTTP server fails to read: InvalidHTTPHeader context: buf: GET / HTTP/1.1\\r\\nx-api-key: CANARY";
    assert_eq!(scrubbed(line), "HTTP server fails to read: InvalidHTTPHeader context: buf: (left out)");
}

#[test]
fn b310_queries_are_masked() {
    let table = [
        ("no query", "no query"),
        ("why? because", "why? because"),
        ("POST /v1/x?key=CANARY, Host: a", "POST /v1/x?…, Host: a"),
        ("\"https://h/p?key=CANARY&b=c\" failed, then /q?a", "\"https://h/p?…\" failed, then /q?…"),
        ("?key=CANARY", "?…"),
    ];
    for (text, expected) in table {
        assert_eq!(scrubbed(text), expected);
    }
}

#[test]
fn m3_levels_and_the_access_target() {
    let file = path("levels");
    let logger = logger(LevelFilter::Warn, &file);
    say(&logger, "weir::server", Level::Info, "too low");
    say(&logger, "weir::server", Level::Warn, "own warning");
    say(&logger, "pingora_core", Level::Info, "too low");
    say(&logger, "pingora_core", Level::Warn, "their warning");
    say(&logger, ACCESS, Level::Info, "as it comes");
    let text = fs::read_to_string(&file).unwrap();
    let lines = text.lines().collect::<Vec<_>>();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].contains("own warning") && lines[1].contains("their warning"));
    assert_eq!(lines[2], "as it comes");
    fs::remove_file(file).unwrap();
}

#[test]
fn m3_the_file_is_opened_anew_after_rotation() {
    let (file, rotated) = (path("rotate"), path("rotated"));
    let logger = logger(LevelFilter::Info, &file);
    say(&logger, ACCESS, Level::Info, "one");
    fs::rename(&file, &rotated).unwrap();
    say(&logger, ACCESS, Level::Info, "two");
    logger.reopen().unwrap();
    say(&logger, ACCESS, Level::Info, "three");
    assert_eq!(fs::read_to_string(&rotated).unwrap(), "one\ntwo\n");
    assert_eq!(fs::read_to_string(&file).unwrap(), "three\n");
    for file in [file, rotated] {
        fs::remove_file(file).unwrap();
    }
}

#[test]
fn c2_a_file_that_cannot_be_opened_is_named_and_changes_nothing() {
    let error = Sink::open(Some("/nowhere/at/all.log".into())).unwrap_err();
    assert!(matches!(error, LogError::Open { .. }));
    assert!(error.to_string().contains("/nowhere/at/all.log"));
}

#[test]
fn m3_values_of_text_lines_read_as_one_word() {
    let table = [
        ("plain", "plain"),
        ("", "\"\""),
        ("a b", "\"a b\""),
        ("x=1", "\"x=1\""),
        ("\"a\n\"", "\"\\\"a\\n\\\"\""),
        ("a\nb", "\"a\\nb\""),
    ];
    for (value, expected) in table {
        assert_eq!(word(value), expected);
    }
}
