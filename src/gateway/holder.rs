//! What a key's holder sees of its own: `GET /v1/weir/usage`, and the page at `/weir` that shows it (M6).
//!
//! Called by the gateway. Reads the ledger's file off the workers: this key's rows and nothing of others, no cost, no
//! target.

use super::Gateway;
use super::exchange::Exchange;
use super::pump::Break;
use crate::config::{Config, Key};
use crate::console::Asset;
use crate::ledger::cli::{self, By, CliError, Format};
use crate::ledger::series::{self, Asked, Group};
use crate::outcome::Outcome;
use crate::refusal::Reason;
use http::HeaderValue;
use percent_encoding::percent_decode_str;
use pingora_proxy::Session;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::Semaphore;

/// Reading long histories is work: so many holders at once, the others wait.
static READERS: Semaphore = Semaphore::const_new(2);
/// Days with today, where nothing is said.
const DAYS: u64 = 30;
const DAY: Duration = Duration::from_hours(24);
/// Of a line of usage: what concerns the holder.
const OWN: [&str; 11] = [
    "day",
    "model",
    "requests",
    "input",
    "cache_read",
    "cache_write",
    "output",
    "reasoning",
    "web_search",
    "estimated",
    "charge_usd",
];

impl Gateway {
    /// The key's own usage, by day and model.
    pub(super) async fn own_usage(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        key: &Arc<Key>,
    ) -> Result<(), Break> {
        let query = session.req_header().uri.query().unwrap_or_default().to_owned();
        let Some(days) = days(&query) else { return self.refuse(session, exchange, &Reason::Query).await };
        let (name, config) = (key.name.clone(), Arc::clone(&exchange.live.config));
        let since = std::time::Instant::now();
        let Ok(_turn) = READERS.acquire().await else { return Err(Break::ClientGone) };
        let work = tokio::task::spawn_blocking(move || usage(&config, &name, days));
        let told = work.await.map_err(|error| CliError(error.to_string())).and_then(|told| told);
        exchange.waited(since);
        match told {
            Ok(told) => {
                exchange.conclude(Outcome::Completed, "usage");
                self.reply(session, exchange, 200, &[], told.to_string().into()).await
            }
            Err(CliError(error)) => {
                log::warn!(error:%; "a key's usage cannot be read");
                self.refuse(session, exchange, &Reason::Ledger).await
            }
        }
    }

    /// A file of the holder's page, which asks for the key by itself.
    pub(super) async fn page(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        asset: &Asset,
    ) -> Result<(), Break> {
        // A file that everybody gets is no request of the API: no record, no timeline, no metric.
        exchange.forget();
        log::debug!(path = session.req_header().uri.path(); "a file of the holder's page");
        let extra = asset.headers().map(|(name, value)| (name, HeaderValue::from_static(value)));
        self.reply(session, exchange, 200, &extra, asset.body.into()).await
    }
}

/// `days=7`, or nothing.
fn days(query: &str) -> Option<u64> {
    let mut days = DAYS;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=')?;
        let value = percent_decode_str(value).decode_utf8().ok()?;
        days = (name == "days").then(|| value.parse().ok()).flatten().filter(|days| (1..=366).contains(days))?;
    }
    Some(days)
}

fn usage(config: &Config, key: &str, days: u64) -> Result<Value, CliError> {
    let path = &config.ledger.path;
    let now = SystemTime::now();
    let back = DAY.saturating_mul(u32::try_from(days.saturating_sub(1)).unwrap_or(u32::MAX));
    let day = crate::ledger::day_of(now.checked_sub(back).unwrap_or(now), &config.ledger.timezone);
    let sums = |by: &[By]| {
        let text = cli::usage_of_key(path, key, by, Some(&day), None, Format::Json)?;
        let lines: Vec<Map<String, Value>> =
            serde_json::from_str(&text).map_err(|error| CliError(error.to_string()))?;
        let own =
            |line: Map<String, Value>| line.into_iter().filter(|(name, _)| OWN.contains(&name.as_str())).collect();
        Ok::<_, CliError>(lines.into_iter().map(own).map(Value::Object).collect::<Vec<_>>())
    };
    let micros = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    };
    let from = now.checked_sub(back.max(DAY)).unwrap_or(now);
    let asked = |group| Asked { group, since: micros(from), until: micros(now), step: None, key: Some(key.to_owned()) };
    Ok(json!({
        "object": "weir.usage",
        "key": key,
        "since": day,
        "timezone": config.ledger.timezone.iana_name().unwrap_or("UTC"),
        "total": sums(&[])?.into_iter().next(),
        "models": sums(&[By::Model])?,
        "days": sums(&[By::Day, By::Model])?,
        "latency": series::series(path, &asked(Group::Model), false)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::days;

    #[test]
    fn m6_only_days_can_be_asked_for() {
        for (query, expected) in [
            ("", Some(30)),
            ("days=7", Some(7)),
            ("days=%37", Some(7)),
            ("days=0", None),
            ("days=367", None),
            ("days=x", None),
            ("key=other", None),
            ("days", None),
        ] {
            assert_eq!(days(query), expected, "{query}");
        }
    }
}
