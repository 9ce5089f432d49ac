//! The query of an admin page, read strictly: a name that means nothing is an error, not ignored.
//!
//! Called by the pages. Touches nothing.

use http::StatusCode;
use percent_encoding::percent_decode_str;
use std::time::{Duration, SystemTime};

/// What went wrong, as a status and a sentence for the operator.
#[derive(Debug)]
pub(super) struct Failure(pub(super) StatusCode, pub(super) String);

/// A question that cannot be answered as it is asked.
pub(super) fn asked(error: &str) -> Failure {
    Failure(StatusCode::BAD_REQUEST, error.to_owned())
}

/// Names and values, decoded.
#[derive(Debug)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Only these names may be asked for.
    pub(super) fn read(query: &str, names: &[&str]) -> Result<Self, Failure> {
        let mut pairs = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !names.contains(&name) {
                let known = match names {
                    [] => "this page has no parameters".to_owned(),
                    [one] => format!("the only parameter is {one}"),
                    [first @ .., last] => format!("the parameters are {} and {last}", first.join(", ")),
                };
                return Err(asked(&known));
            }
            pairs.push((name.to_owned(), decoded(value)?));
        }
        Ok(Self(pairs))
    }

    /// The last value of a name.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The same, where empty means not asked.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.get(name).filter(|value| !value.is_empty()).map(str::to_owned)
    }

    /// A moment in microseconds since 1970: an RFC 3339 instant, a date in UTC, or a time back from now such as `15m`.
    pub(super) fn moment(&self, name: &str, now: SystemTime) -> Result<Option<i64>, Failure> {
        let Some(text) = self.get(name).filter(|value| !value.is_empty()) else { return Ok(None) };
        let time = if let Ok(back) = humantime::parse_duration(text) {
            now.checked_sub(back)
        } else if let Ok(stamp) = text.parse::<jiff::Timestamp>() {
            SystemTime::try_from(stamp).ok()
        } else {
            let date = text.parse::<jiff::civil::Date>().ok();
            let start = date.and_then(|date| format!("{date}T00:00:00Z").parse::<jiff::Timestamp>().ok());
            start.and_then(|start| SystemTime::try_from(start).ok())
        };
        let since = time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        let micros = since.and_then(|since| i64::try_from(since.as_micros()).ok());
        micros.map(Some).ok_or_else(|| {
            asked(&format!(
                "{name} is an instant such as 2026-11-30T12:00:00Z, a date, or a time back from now such as 15m"
            ))
        })
    }

    /// A number within bounds, or `default`.
    pub(super) fn number(&self, name: &str, default: usize, max: usize) -> Result<usize, Failure> {
        let Some(text) = self.get(name).filter(|value| !value.is_empty()) else { return Ok(default) };
        let number = text.parse().ok().filter(|number| (1..=max).contains(number));
        number.ok_or_else(|| asked(&format!("{name} is a number from 1 to {max}")))
    }

    /// A duration such as `1m`.
    pub(super) fn span(&self, name: &str) -> Result<Option<Duration>, Failure> {
        let Some(text) = self.get(name).filter(|value| !value.is_empty()) else { return Ok(None) };
        let span = humantime::parse_duration(text).ok().filter(|span| !span.is_zero());
        span.map(Some).ok_or_else(|| asked(&format!("{name} is a time such as 1m")))
    }
}

/// A plus sign stays one: instants have it in their offset, and nothing here has spaces.
fn decoded(value: &str) -> Result<String, Failure> {
    let text = percent_decode_str(value).decode_utf8();
    text.map(std::borrow::Cow::into_owned).map_err(|_| asked("the query is not UTF-8"))
}
