//! How one line looks, as JSON or for people, and what is taken out of it.
//!
//! Called for each line that is written. Touches nothing.

use crate::config::LogFormat;
use log::kv::{Error, Key, Value, VisitSource};
use serde::Serializer;
use serde::ser::SerializeMap;
use std::borrow::Cow;
use std::fmt::Write;
use std::time::SystemTime;

/// Renders one record, without its line end.
pub(super) fn of(record: &log::Record<'_>, format: LogFormat, now: SystemTime) -> String {
    let mut pairs = Pairs(Vec::new());
    // Only our own visitor could fail, and it never does.
    let _infallible = record.key_values().visit(&mut pairs);
    let message = record.args().to_string();
    let message = scrubbed(&message);
    let time = humantime::format_rfc3339_millis(now);
    match format {
        LogFormat::Json => json(record, &time.to_string(), &message, &pairs.0).unwrap_or_default(),
        LogFormat::Text => {
            let mut line = format!("{time} {:5} {} {}", record.level(), record.target(), visible(&message));
            for (key, value) in &pairs.0 {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                // Writing to a string cannot fail.
                let _infallible = write!(line, " {key}={}", word(&text));
            }
            line
        }
    }
}

fn json(
    record: &log::Record<'_>,
    time: &str,
    message: &str,
    pairs: &[(String, serde_json::Value)],
) -> serde_json::Result<String> {
    let mut line = Vec::new();
    let mut serializer = serde_json::Serializer::new(&mut line);
    let mut map = serializer.serialize_map(None)?;
    map.serialize_entry("ts", time)?;
    map.serialize_entry("level", record.level().as_str())?;
    map.serialize_entry("target", record.target())?;
    map.serialize_entry("message", message)?;
    for (key, value) in pairs {
        // No member twice: readers disagree about which one counts.
        match key.as_str() {
            "ts" | "level" | "target" | "message" => map.serialize_entry(&format!("{key}_"), value)?,
            _ => map.serialize_entry(key, value)?,
        }
    }
    map.end()?;
    Ok(String::from_utf8(line).unwrap_or_default())
}

/// The key-values of a record, each key once, with their types kept.
struct Pairs(Vec<(String, serde_json::Value)>);

impl<'kvs> VisitSource<'kvs> for Pairs {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), Error> {
        let value = if let Some(flag) = value.to_bool() {
            flag.into()
        } else if let Some(number) = value.to_u64() {
            number.into()
        } else if let Some(number) = value.to_i64() {
            number.into()
        } else if let Some(number) = value.to_f64() {
            number.into()
        } else {
            scrubbed(&value.to_string()).into()
        };
        self.0.retain(|(earlier, _)| earlier != key.as_str());
        self.0.push((key.to_string(), value));
        Ok(())
    }
}

/// A text without what can hold a key (B308, B310): the raw head that Pingora quotes in an error
/// about a malformed one (`buf: …`), and the query of a URL.
pub(super) fn scrubbed(text: &str) -> Cow<'_, str> {
    let (kept, cut) = match text.split_once("buf: ") {
        Some((before, _head)) => (before, "buf: (left out)"),
        None => (text, ""),
    };
    if cut.is_empty() && !kept.contains('?') {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len());
    let mut parts = kept.split('?');
    clean.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let end = part.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ',' | ')' | ']' | '>' | '`'));
        let (query, rest) = part.split_at(end.unwrap_or(part.len()));
        clean.push_str(if query.is_empty() { "?" } else { "?…" });
        clean.push_str(rest);
    }
    clean.push_str(cut);
    Cow::Owned(clean)
}

/// A text on one line: control characters are escaped, so that nobody forges a second one.
fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(escape).collect())
}

/// A value of a text line: quoted when it would not read as one word.
pub(crate) fn word(text: &str) -> Cow<'_, str> {
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '"' | '=');
    if !text.is_empty() && text.chars().all(plain) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{text:?}"))
}
