//! The ledger over time: requests, errors, tokens, money and percentiles of times, per bucket (M5, M6).
//!
//! Called by the admin API and for a key's holder. Reads the database, touches nothing.

use super::cli::{CliError, reader};
use super::money::Nano;
use crate::outcome::Outcome;
use rusqlite::{Connection, Row, params};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

/// What the lines of a chart are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The public model.
    Model,
    /// `provider/model`.
    Target,
    /// The virtual key.
    Key,
    /// How it ended, with its cause.
    Cause,
    /// One line for everything.
    All,
}

impl Group {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Model, Self::Target, Self::Key, Self::Cause, Self::All];

    /// The word in the query.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Target => "target",
            Self::Key => "key",
            Self::Cause => "cause",
            Self::All => "all",
        }
    }

    const fn column(self) -> &'static str {
        match self {
            Self::Model => "coalesce(model, '')",
            Self::Target => "coalesce(target, '')",
            Self::Key => "coalesce(key, '')",
            Self::Cause => "outcome || ' ' || coalesce(cause, '')",
            Self::All => "''",
        }
    }
}

/// Which part of the ledger; times in microseconds since 1970.
#[derive(Clone, Debug)]
pub struct Asked {
    /// What is drawn apart.
    pub group: Group,
    /// The first moment.
    pub since: i64,
    /// Behind the last.
    pub until: i64,
    /// The width of a bucket in microseconds; `None`: one that suits.
    pub step: Option<i64>,
    /// Of this key alone.
    pub key: Option<String>,
}

/// Widths that people read well, in seconds.
const STEPS: [i64; 17] = [1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400];
/// About as many points as a chart shows.
const BUCKETS: i64 = 120;
/// More buckets than this are no chart.
const MOST_BUCKETS: i64 = 2000;
/// More lines than this are no chart; the smallest become `other`.
const MOST_GROUPS: usize = 16;
/// Past so many rows a share of them is read and scaled up: a chart is no bill.
const MOST_ROWS: i64 = 400_000;
const SECOND: i64 = 1_000_000;

/// The sums of one bucket of one line.
#[derive(Clone, Debug, Default)]
struct Bucket {
    requests: i64,
    errors: i64,
    input: i64,
    output: i64,
    charge: i64,
    cost: i64,
    /// Microseconds.
    first: Vec<i64>,
    took: Vec<i64>,
}

impl Bucket {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.input += other.input;
        self.output += other.output;
        self.charge = self.charge.saturating_add(other.charge);
        self.cost = self.cost.saturating_add(other.cost);
        self.first.extend(other.first);
        self.took.extend(other.took);
    }
}

type Lines = HashMap<String, HashMap<i64, Bucket>>;

/// The series, as the API shows them. `money`: with the operator's cost.
pub fn series(path: &Path, asked: &Asked, money: bool) -> Result<Value, CliError> {
    let step = step(asked);
    let connection = reader(path)?;
    let share = share(&connection, asked)?;
    let from = asked.since - asked.since.rem_euclid(step);
    let sql = format!(
        "SELECT {}, received, outcome, stream, first_output, admitted, duration, input, output, charge, cost \
         FROM settled WHERE received >= ?1 AND received < ?2 AND (?3 IS NULL OR key = ?3) AND seq % ?4 = 0",
        asked.group.column()
    );
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query(params![asked.since, asked.until, asked.key, share])?;
    let mut lines = Lines::new();
    while let Some(row) = rows.next()? {
        let received: i64 = row.get(1)?;
        let name = row.get_ref(0)?.as_str().unwrap_or_default();
        if !lines.contains_key(name) {
            lines.insert(name.to_owned(), HashMap::new());
        }
        if let Some(line) = lines.get_mut(name) {
            take(line.entry((received - from).div_euclid(step)).or_default(), row, share)?;
        }
    }
    let count = (asked.until - from).div_euclid(step).clamp(0, MOST_BUCKETS);
    let times: Vec<i64> =
        (0..=count).map(|at| (from + at * step) / SECOND).filter(|at| *at * SECOND < asked.until).collect();
    let groups: Vec<Value> =
        ranked(lines).into_iter().map(|(name, line)| drawn(&name, line, times.len(), money)).collect();
    Ok(json!({
        "by": asked.group.word(),
        "since": asked.since / SECOND,
        "until": asked.until / SECOND,
        "step_s": step / SECOND,
        "read_one_of": share,
        "t": times,
        "groups": groups,
    }))
}

fn step(asked: &Asked) -> i64 {
    let range = (asked.until - asked.since).max(SECOND);
    let least = range / MOST_BUCKETS + 1;
    let suits = || STEPS.into_iter().map(|step| step * SECOND).find(|step| range / step <= BUCKETS);
    let step = asked.step.or_else(suits).unwrap_or(range / BUCKETS).max(least);
    // Whole seconds, upwards.
    (step + SECOND - 1) / SECOND * SECOND
}

/// One of how many rows is read.
fn share(connection: &Connection, asked: &Asked) -> Result<i64, CliError> {
    let end = |order: &str| {
        let sql =
            format!("SELECT seq FROM settled WHERE received >= ?1 AND received < ?2 ORDER BY received {order} LIMIT 1");
        match connection.query_row(&sql, params![asked.since, asked.until], |row| row.get::<_, i64>(0)) {
            Err(rusqlite::Error::QueryReturnedNoRows) => Ok(0),
            found => found,
        }
    };
    Ok((end("DESC")? - end("ASC")?).abs() / MOST_ROWS + 1)
}

fn take(bucket: &mut Bucket, row: &Row<'_>, share: i64) -> Result<(), CliError> {
    let number = |at: usize| row.get::<_, Option<i64>>(at).map(Option::unwrap_or_default);
    let outcome = row.get_ref(2)?.as_str().unwrap_or_default();
    let fault = Outcome::ALL.into_iter().find(|known| known.word() == outcome).is_some_and(Outcome::is_fault);
    bucket.requests += share;
    bucket.errors += if fault { share } else { 0 };
    bucket.input += number(7)?.saturating_mul(share);
    bucket.output += number(8)?.saturating_mul(share);
    bucket.charge = bucket.charge.saturating_add(number(9)?.saturating_mul(share));
    bucket.cost = bucket.cost.saturating_add(number(10)?.saturating_mul(share));
    if let (1, Some(first)) = (number(3)?, row.get::<_, Option<i64>>(4)?) {
        bucket.first.push((first - number(5)?).max(0));
    }
    bucket.took.push(number(6)?);
    Ok(())
}

/// The busiest lines first; those past the bound become one.
fn ranked(lines: Lines) -> Vec<(String, HashMap<i64, Bucket>)> {
    let mut lines: Vec<_> = lines.into_iter().collect();
    let requests = |line: &HashMap<i64, Bucket>| line.values().map(|bucket| bucket.requests).sum::<i64>();
    lines.sort_by_cached_key(|(name, line)| (std::cmp::Reverse(requests(line)), name.clone()));
    if lines.len() > MOST_GROUPS {
        let mut other: HashMap<i64, Bucket> = HashMap::new();
        for (at, bucket) in lines.split_off(MOST_GROUPS).into_iter().flat_map(|(_, line)| line) {
            other.entry(at).or_default().add(bucket);
        }
        lines.push(("other".to_owned(), other));
    }
    lines
}

/// One line: an array per figure, `null` where nothing was.
fn drawn(name: &str, mut line: HashMap<i64, Bucket>, count: usize, money: bool) -> Value {
    let mut whole = Bucket::default();
    let mut figures: Vec<(&str, Vec<Value>)> = Vec::new();
    let mut note = |name: &'static str, at: usize, value: Value| {
        let known = figures.iter().position(|(known, _)| *known == name);
        let place = known.unwrap_or_else(|| {
            figures.push((name, vec![Value::Null; count]));
            figures.len() - 1
        });
        if let Some(cell) = figures.get_mut(place).and_then(|(_, cells)| cells.get_mut(at)) {
            *cell = value;
        }
    };
    for at in 0..count {
        let Some(mut bucket) = i64::try_from(at).ok().and_then(|at| line.remove(&at)) else {
            for name in ["requests", "errors", "input", "output", "charge_usd"] {
                note(name, at, json!(0));
            }
            continue;
        };
        note("requests", at, json!(bucket.requests));
        note("errors", at, json!(bucket.errors));
        note("input", at, json!(bucket.input));
        note("output", at, json!(bucket.output));
        note("charge_usd", at, usd(bucket.charge));
        if money {
            note("cost_usd", at, usd(bucket.cost));
        }
        for (names, times) in [(TTFT, &mut bucket.first), (DURATION, &mut bucket.took)] {
            for (name, value) in names.into_iter().zip(percentiles(times)) {
                note(name, at, value);
            }
        }
        whole.add(bucket);
    }
    let percent = |times: &mut Vec<i64>| {
        let [p50, p90, p99] = percentiles(times);
        json!({ "p50": p50, "p90": p90, "p99": p99, "count": times.len() })
    };
    let mut totals = json!({
        "requests": whole.requests,
        "errors": whole.errors,
        "input": whole.input,
        "output": whole.output,
        "charge_usd": Nano(whole.charge).to_string(),
        "ttft_ms": percent(&mut whole.first),
        "duration_ms": percent(&mut whole.took),
    });
    if money && let Some(totals) = totals.as_object_mut() {
        totals.insert("cost_usd".to_owned(), json!(Nano(whole.cost).to_string()));
    }
    let figures: serde_json::Map<String, Value> =
        figures.into_iter().map(|(name, cells)| (name.to_owned(), Value::Array(cells))).collect();
    json!({ "name": name, "totals": totals, "series": figures })
}

const TTFT: [&str; 3] = ["ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms"];
const DURATION: [&str; 3] = ["duration_p50_ms", "duration_p90_ms", "duration_p99_ms"];

/// A chart's money may be a float; sums and bills are not made from it.
#[expect(clippy::cast_precision_loss, reason = "a chart has fewer pixels than a float has digits")]
fn usd(nano: i64) -> Value {
    json!(nano as f64 / 1e9)
}

/// The nearest-rank percentiles 50, 90 and 99, in milliseconds.
#[expect(clippy::cast_precision_loss, reason = "2^53 microseconds are 285 years")]
fn percentiles(times: &mut [i64]) -> [Value; 3] {
    times.sort_unstable();
    [50, 90, 99].map(|percent| {
        let rank = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(rank).map_or(Value::Null, |micros| json!(*micros as f64 / 1000.0))
    })
}

#[cfg(test)]
mod tests;
