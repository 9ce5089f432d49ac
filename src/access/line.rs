//! One line of the access log as it is put together, member by member: JSON, or text for people.
//!
//! Used by [`super::write`] alone. Writes straight into a buffer that a thread uses again and
//! again: what a line costs is its bytes. `tests/plain.rs` has the same in its simple form.

use crate::config::LogFormat;
use crate::ledger::money::Nano;
use crate::logging;
use crate::record::Attempt;
use std::borrow::Cow;
use std::fmt::Write;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What a thread writes its lines on.
#[derive(Debug, Default)]
pub(super) struct Paper {
    text: String,
    /// Of the last line: the second in which its request was received, and how it is written.
    second: Option<(u64, String)>,
}

impl Paper {
    /// A new line, with its time.
    pub(super) fn line(&mut self, format: LogFormat, received: SystemTime) -> Line<'_> {
        let since = received.duration_since(UNIX_EPOCH).unwrap_or_default();
        if self.second.as_ref().is_none_or(|(second, _)| *second != since.as_secs()) {
            let whole = UNIX_EPOCH + Duration::from_secs(since.as_secs());
            let mut text = humantime::format_rfc3339_seconds(whole).to_string();
            text.pop(); // its Z
            self.second = Some((since.as_secs(), text));
        }
        let second = self.second.as_ref().map_or("", |(_, text)| text.as_str());
        self.text.clear();
        let mut line = Line { text: &mut self.text, format };
        line.text.push_str(match format {
            LogFormat::Json => r#"{"ts":""#,
            LogFormat::Text => "",
        });
        line.text.push_str(second);
        line.text.push('.');
        line.padded(1_000, u64::from(since.subsec_millis()));
        line.text.push_str(match format {
            LogFormat::Json => r#"Z""#,
            LogFormat::Text => "Z access",
        });
        line
    }
}

/// A member's name, with what parts it from the member before it: there always is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name {
    pub(super) json: &'static str,
    pub(super) text: &'static str,
}

/// The [`Name`] of that word, made by the compiler.
macro_rules! name {
    ($name:literal) => {
        crate::access::line::Name { json: concat!(",\"", $name, "\":"), text: concat!(" ", $name, "=") }
    };
}
pub(super) use name;

/// A line in the making. What is `None` is left out.
#[derive(Debug)]
pub(super) struct Line<'p> {
    text: &'p mut String,
    format: LogFormat,
}

// Writing to a string cannot fail.
impl<'p> Line<'p> {
    /// Text of any kind.
    pub(super) fn text(&mut self, name: Name, text: Option<&str>) {
        let Some(text) = text else { return };
        self.name(name);
        match self.format {
            LogFormat::Json => self.quoted(text),
            LogFormat::Text => self.text.push_str(&logging::word(text)),
        }
    }

    /// One of Weir's own words, or digits: it never needs escaping.
    pub(super) fn word(&mut self, name: Name, word: Option<&str>) {
        let Some(word) = word else { return };
        self.name(name);
        self.quote();
        self.text.push_str(word);
        self.quote();
    }

    /// A number without a sign.
    pub(super) fn number(&mut self, name: Name, number: Option<u64>) {
        let Some(number) = number else { return };
        self.name(name);
        self.digits(number);
    }

    /// `true` or `false`.
    pub(super) fn flag(&mut self, name: Name, flag: bool) {
        self.name(name);
        self.text.push_str(if flag { "true" } else { "false" });
    }

    /// A time in milliseconds, to the microsecond.
    pub(super) fn time(&mut self, name: Name, time: Option<Duration>) {
        let Some(time) = time else { return };
        self.name(name);
        self.milliseconds(time);
    }

    /// A client's address.
    pub(super) fn address(&mut self, name: Name, address: Option<IpAddr>) {
        let Some(address) = address else { return };
        self.name(name);
        self.quote();
        match address {
            IpAddr::V4(address) => {
                for (at, octet) in address.octets().into_iter().enumerate() {
                    if at > 0 {
                        self.text.push('.');
                    }
                    self.digits(octet.into());
                }
            }
            IpAddr::V6(address) => {
                let _infallible = write!(self.text, "{address}");
            }
        }
        self.quote();
    }

    /// USD with nine decimals, as text: no reader takes it for a float.
    pub(super) fn money(&mut self, name: Name, amount: Option<Nano>) {
        let Some(Nano(amount)) = amount else { return };
        self.name(name);
        self.quote();
        if amount < 0 {
            self.text.push('-');
        }
        let amount = amount.unsigned_abs();
        self.digits(amount / 1_000_000_000);
        self.text.push('.');
        self.padded(1_000_000_000, amount % 1_000_000_000);
        self.quote();
    }

    /// Every try: a list of objects, or `target:result:took` of each.
    pub(super) fn attempts(&mut self, name: Name, attempts: &[Attempt]) {
        if attempts.is_empty() {
            return;
        }
        self.name(name);
        match self.format {
            LogFormat::Json => {
                for (at, attempt) in attempts.iter().enumerate() {
                    self.text.push(if at == 0 { '[' } else { ',' });
                    self.attempt(attempt);
                }
                self.text.push(']');
            }
            LogFormat::Text => {
                let begin = self.text.len();
                for (at, attempt) in attempts.iter().enumerate() {
                    if at > 0 {
                        self.text.push(',');
                    }
                    self.brief(attempt);
                }
                let said = self.text.get(begin..).unwrap_or_default();
                let quoted = match logging::word(said) {
                    Cow::Owned(quoted) => quoted,
                    Cow::Borrowed(_) => return,
                };
                self.text.truncate(begin);
                self.text.push_str(&quoted);
            }
        }
    }

    /// The whole line, without its end.
    pub(super) fn end(self) -> &'p str {
        if self.format == LogFormat::Json {
            self.text.push('}');
        }
        self.text
    }

    /// As an object, its members by name.
    fn attempt(&mut self, attempt: &Attempt) {
        self.text.push_str(r#"{"began_ms":"#);
        self.milliseconds(attempt.began);
        self.text.push_str(r#","ended_ms":"#);
        self.milliseconds(attempt.ended);
        self.flag(name!("maybe_billed"), attempt.maybe_billed);
        self.text(name!("result"), Some(attempt.result));
        match attempt.status {
            Some(status) => self.number(name!("status"), Some(status.into())),
            None => self.text.push_str(r#","status":null"#),
        }
        self.text(name!("target"), Some(&attempt.target));
        self.text.push('}');
    }

    /// For people.
    fn brief(&mut self, attempt: &Attempt) {
        let took = attempt.ended.saturating_sub(attempt.began).as_millis();
        self.text.push_str(&attempt.target);
        self.text.push(':');
        self.text.push_str(attempt.result);
        self.text.push(':');
        self.digits(u64::try_from(took).unwrap_or(u64::MAX));
        self.text.push_str("ms");
    }

    fn name(&mut self, name: Name) {
        self.text.push_str(match self.format {
            LogFormat::Json => name.json,
            LogFormat::Text => name.text,
        });
    }

    /// Around what needs no escaping.
    fn quote(&mut self) {
        if self.format == LogFormat::Json {
            self.text.push('"');
        }
    }

    /// A string of JSON.
    fn quoted(&mut self, text: &str) {
        // Without an early end, so that many bytes are looked at by one instruction.
        let is_plain = |byte: u8| !matches!(byte, ..b' ' | b'"' | b'\\');
        if !text.bytes().fold(true, |plain, byte| plain & is_plain(byte)) {
            self.text.push_str(&serde_json::to_string(text).unwrap_or_default());
            return;
        }
        self.text.push('"');
        self.text.push_str(text);
        self.text.push('"');
    }

    fn digits(&mut self, number: u64) {
        self.text.push_str(itoa::Buffer::new().format(number));
    }

    /// A number below `limit`, which is a power of ten, with its zeros in front.
    fn padded(&mut self, limit: u64, number: u64) {
        let mut buffer = itoa::Buffer::new();
        self.text.push_str(buffer.format(limit + number).strip_prefix('1').unwrap_or_default());
    }

    /// As a float is written: JSON has one decimal at least, text none without need.
    fn milliseconds(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (whole, rest) = (micros / 1_000, micros % 1_000);
        self.digits(whole);
        if rest > 0 {
            self.text.push('.');
            self.padded(1_000, rest);
            let kept = self.text.trim_end_matches('0').len();
            self.text.truncate(kept);
        } else if self.format == LogFormat::Json {
            self.text.push_str(".0");
        }
    }
}
