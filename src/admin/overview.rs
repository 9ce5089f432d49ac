//! What is going on now, and how it went over time: `/api/overview`, `/api/series` (M5).
//!
//! Called by the admin application, on a thread that may block. Reads gauges, the ring of timelines, the health of
//! targets and the ledger's file.

use super::api::unreadable;
use super::query::{Failure, Query, asked};
use crate::gateway::Shared;
use crate::ledger::cli::{self, By, CliError, Format};
use crate::ledger::series::{Asked, Group};
use crate::live::Live;
use crate::outcome::Outcome;
use crate::route::Target;
use crate::timeline::Timeline;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// What counts as now.
const WINDOW: Duration = Duration::from_mins(1);
/// As far back as the series go where nothing is said.
const RANGE: Duration = Duration::from_hours(1);

/// Gauges, the last minute, today, and the targets.
pub(super) fn overview(shared: Option<&Shared>, ledger: &Path, ready: bool) -> Result<Value, Failure> {
    let Some(shared) = shared else { return Err(asked("the gateway has not started yet")) };
    let live = shared.live.load();
    let now = SystemTime::now();
    let (requests, streams) = shared.metrics.active();
    let recent = shared.timelines.recent();
    let mut told = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "now": humantime::format_rfc3339_millis(now).to_string(),
        "ready": ready,
        "requests_active": requests,
        "streams_active": streams,
        "last_minute": last_minute(&recent, now),
        "kept": recent.len(),
        "refused": refused(&recent),
        "targets": targets(&live),
        "models": live.config.models.iter().map(|model| &model.name).collect::<Vec<_>>(),
        "keys": live.config.keys.iter().map(|key| &key.name).collect::<Vec<_>>(),
        "ledger_healthy": shared.ledger.health() == crate::ledger::Health::Ok,
        "ledger_pending": shared.ledger.stats().pending,
    });
    if let Some(told) = told.as_object_mut() {
        told.insert("today".to_owned(), today(&live, ledger)?);
    }
    Ok(told)
}

/// Sums of what ended in the last minute, as far as the ring goes back.
fn last_minute(recent: &[Arc<Timeline>], now: SystemTime) -> Value {
    let ended = |timeline: &Timeline| timeline.record.received + timeline.record.duration;
    let age = |timeline: &Timeline| now.duration_since(ended(timeline)).unwrap_or_default();
    let (mut requests, mut errors, mut rejected, mut output) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut firsts = Vec::new();
    for timeline in recent.iter().take_while(|timeline| age(timeline) < WINDOW) {
        requests += 1;
        errors += u64::from(timeline.record.outcome.is_fault());
        rejected += u64::from(timeline.record.outcome == Outcome::Rejected);
        output += timeline.record.usage.output.unwrap_or(0);
        firsts.extend(timeline.record.time_to_first_token().filter(|_| timeline.record.stream));
    }
    firsts.sort_unstable();
    let middle = firsts.get(firsts.len() / 2).map(|time| time.as_secs_f64() * 1000.0);
    json!({ "requests": requests, "errors": errors, "rejected": rejected, "output_tokens": output, "ttft_p50_ms": middle })
}

/// Of what is kept: refused before it was sent anywhere, by cause; the ledger has no rows for these.
fn refused(recent: &[Arc<Timeline>]) -> BTreeMap<&'static str, u64> {
    let mut causes = BTreeMap::new();
    for timeline in recent.iter().filter(|timeline| timeline.record.outcome == Outcome::Rejected) {
        *causes.entry(timeline.record.cause.unwrap_or_default()).or_default() += 1;
    }
    causes
}

/// The same sums as `weir usage --since today`.
fn today(live: &Live, ledger: &Path) -> Result<Value, Failure> {
    let day = crate::ledger::day_of(SystemTime::now(), &live.config.ledger.timezone);
    let sums = |by: &[By]| {
        let text = cli::usage(ledger, by, Some(&day), None, Format::Json)?;
        serde_json::from_str::<Value>(&text).map_err(|error| CliError(error.to_string()))
    };
    let whole = sums(&[]).map_err(unreadable)?;
    let by_key = sums(&[By::Key]).map_err(unreadable)?;
    let timezone = live.config.ledger.timezone.iana_name().unwrap_or("UTC");
    Ok(json!({ "day": day, "timezone": timezone, "sums": whole.get(0), "keys": by_key }))
}

/// Each target once, with the models that it serves.
fn targets(live: &Live) -> Vec<Value> {
    let now = Instant::now();
    let mut all: BTreeMap<&str, (&Arc<Target>, Vec<&str>)> = BTreeMap::new();
    for model in &live.config.models {
        let Some(route) = live.route(&model.name) else { continue };
        for target in &route.targets {
            all.entry(&target.word).or_insert_with(|| (target, Vec::new())).1.push(&model.name);
        }
    }
    all.into_values().map(|(target, models)| told(target, &models, now)).collect()
}

fn told(target: &Target, models: &[&str], now: Instant) -> Value {
    let ms = |time: Option<Duration>| time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let look = target.health.look(now);
    let accounts = target.accounts.iter().map(|account| ms(account.look(now).cools_for));
    json!({
        "target": &*target.word,
        "models": models,
        "healthy": target.is_healthy(),
        "off": target.health.is_off(),
        "cooling": target.is_cooling(now),
        "cools_for_ms": ms(look.cools_for),
        "failures_in_a_row": look.failures_in_a_row,
        "running": target.health.running(),
        "max_concurrent": target.config.max_concurrent,
        "priority": target.config.priority,
        "weight": target.config.weight,
        "accounts_cool_for_ms": accounts.collect::<Vec<_>>(),
    })
}

/// `/api/series?by=model&since=1h&until=…&step=1m&key=…`
pub(super) fn series(ledger: &Path, query: &str) -> Result<Value, Failure> {
    let query = Query::read(query, &["by", "since", "until", "step", "key"])?;
    let asked = series_asked(&query, SystemTime::now())?;
    crate::ledger::series::series(ledger, &asked, true).map_err(unreadable)
}

fn series_asked(query: &Query, now: SystemTime) -> Result<Asked, Failure> {
    let word = query.get("by").unwrap_or("all");
    let group = Group::ALL.into_iter().find(|group| group.word() == word);
    let group = group.ok_or_else(|| asked("by is one of model, target, key, cause and all"))?;
    let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    let today = micros(now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    let until = query.moment("until", now)?.unwrap_or(today);
    let since = query.moment("since", now)?.unwrap_or_else(|| until.saturating_sub(micros(RANGE)));
    if since >= until {
        return Err(asked("since must lie before until"));
    }
    Ok(Asked { group, since, until, step: query.span("step")?.map(micros), key: query.text("key") })
}
