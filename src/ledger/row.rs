//! How a settled request is written: its columns, and what it adds to its day.
//!
//! Called by the writer and by recovery. Touches nothing but the statement it is given.

use super::Settlement;
use super::price::parts;
use super::values::Values;
use crate::meter::usage::{Source, Usage};
use crate::protocol::Endpoint;
use crate::record::{Attempt, Record};
use serde::{Serialize, Serializer};
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The columns of `settled` but `seq`, in the order of [`Row::write`].
pub(super) const COLUMNS: &str = "request_id, client_request_id, upstream_request_id, answer_id, key, tag, client, \
    endpoint, protocol, model, target, attempts, maybe_billed, stream, status, effective_status, outcome, cause, \
    source, input, cache_read, cache_write_5m, cache_write_1h, output, reasoning, audio_input, audio_output, \
    web_search, other_models, charged, billing, billing_why, charge, cost, sell_version, cost_version, unpriced, \
    tier_requested, tier_served, anomalies, received, day, admitted, upstream_first_byte, upstream_first_output, \
    first_output, first_visible, last_output, duration, waited, bytes, output_events, keepalives, settled_at, owner";

/// The summed columns of `daily` and `pruned`, in the order of [`Sums`].
pub(super) const SUMS: [&str; 14] = [
    "requests",
    "unpriced",
    "estimated",
    "input",
    "cache_read",
    "cache_write_5m",
    "cache_write_1h",
    "output",
    "reasoning",
    "audio_input",
    "audio_output",
    "web_search",
    "charge",
    "cost",
];

/// The same over rows of `settled`: what one of them, and all of a day, add.
pub(super) const SUMS_OF_SETTLED: &str = "count(*), \
    sum(unpriced IS NOT NULL), sum(source IN ('partial', 'estimated')), \
    sum(coalesce(input, 0)), sum(coalesce(cache_read, 0)), sum(coalesce(cache_write_5m, 0)), \
    sum(coalesce(cache_write_1h, 0)), sum(coalesce(output, 0)), sum(coalesce(reasoning, 0)), \
    sum(coalesce(audio_input, 0)), sum(coalesce(audio_output, 0)), sum(coalesce(web_search, 0)), \
    sum(coalesce(charge, 0)), sum(coalesce(cost, 0))";

/// Numbers in the order of [`SUMS`].
pub(super) type Sums = [i64; 14];

/// Day, key, tag, model, target, outcome; empty: none.
pub(super) type Place<T> = [T; 6];

/// One request, ready to be written.
pub(super) struct Row<'s> {
    settlement: &'s Settlement,
    day: &'s str,
}

/// Sums by place over one transaction, in the order of the places.
#[derive(Default)]
pub(super) struct Gathered(Vec<(Place<String>, Sums)>);

/// The long texts of SQL, made once.
pub(super) struct Texts {
    /// `INSERT` for a row.
    pub(super) insert: String,
    /// Adds to a day.
    pub(super) add_to_daily: String,
}

impl Texts {
    pub(super) fn new() -> Self {
        Self { insert: insert(), add_to_daily: add_to_daily() }
    }
}

/// `INSERT` for a row; a request that is settled already changes nothing.
fn insert() -> String {
    let count = COLUMNS.split(',').count();
    let mut places = String::new();
    for index in 1..=count {
        let _ = write!(places, "{}?{index}", if index == 1 { "" } else { ", " });
    }
    format!("INSERT INTO settled ({COLUMNS}) VALUES ({places}) ON CONFLICT (request_id) DO NOTHING")
}

/// `INSERT … ON CONFLICT DO UPDATE` that adds sums to a day's aggregate.
fn add_to_daily() -> String {
    let names = SUMS.join(", ");
    let places = (7..7 + SUMS.len()).map(|index| format!("?{index}")).collect::<Vec<_>>().join(", ");
    let adds = SUMS.map(|name| format!("{name} = {name} + excluded.{name}")).join(", ");
    format!(
        "INSERT INTO daily (day, key, tag, model, target, outcome, {names}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, {places}) \
         ON CONFLICT (day, key, tag, model, target, outcome) DO UPDATE SET {adds}"
    )
}

impl Gathered {
    /// Adds to a place.
    pub(super) fn add(&mut self, place: Place<&str>, more: Sums) {
        let found = self.0.binary_search_by(|(there, _)| there.iter().map(String::as_str).cmp(place));
        match found.map(|index| self.0.get_mut(index)) {
            Ok(Some((_, sums))) => {
                for (sum, more) in sums.iter_mut().zip(more) {
                    *sum = sum.saturating_add(more);
                }
            }
            Ok(None) => debug_assert!(false, "what was found is there"),
            Err(free) => self.0.insert(free, (place.map(str::to_owned), more)),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(Place<String>, Sums)> {
        self.0.iter()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'s> Row<'s> {
    /// `day` is that of the settlement's arrival.
    pub(super) const fn new(settlement: &'s Settlement, day: &'s str) -> Self {
        Self { settlement, day }
    }

    /// Writes it; `owner` and `now` say who wrote it and when. How many rows that changed.
    pub(super) fn write(&self, mut values: Values<'_, '_>, owner: i64, now: i64) -> rusqlite::Result<usize> {
        let Settlement { record, bill, money, other_models, anomalies } = self.settlement;
        let maybe_billed = record.attempts.iter().filter(|attempt| attempt.maybe_billed).count();
        let unpriced = (!money.unpriced.is_empty()).then(|| money.unpriced.join(","));
        let (_, odd) = parts(&bill.usage);
        names(&mut values, record)
            .json(&record.attempts.iter().map(AttemptJson::from).collect::<Vec<_>>())
            .integer(i64::try_from(maybe_billed).unwrap_or(i64::MAX))
            .integer(i64::from(record.stream))
            .integer(i64::from(record.status))
            .integer(i64::from(record.effective_status))
            .verbatim(Some(record.outcome.word()))
            .text(record.cause)
            .verbatim(Some(bill.source.word()))
            .numbers(members(&bill.usage));
        others(&mut values, other_models)
            .json(&UsageJson(&bill.charged))
            .verbatim(Some(bill.basis.word()))
            .text(Some(bill.why))
            .integer(money.charge.map(|nano| nano.0))
            .integer(money.cost.map(|nano| nano.0))
            .text(money.sell_version.as_deref())
            .text(money.cost_version.as_deref())
            .text(unpriced.as_deref())
            .text(record.tier_requested.as_deref())
            .text(record.tier_served.as_deref())
            .number(anomalies.saturating_add(odd))
            .integer(micros_since_1970(record.received))
            .verbatim(Some(self.day));
        times(&mut values, record).integer(now).integer(owner).execute()
    }

    /// Adds its numbers to its place.
    pub(super) fn gather(&self, gathered: &mut Gathered) {
        let Settlement { record, bill, money, .. } = self.settlement;
        let place = [
            self.day,
            record.key.as_deref().unwrap_or_default(),
            record.tag.as_deref().unwrap_or_default(),
            record.model.as_deref().unwrap_or_default(),
            record.target.as_deref().unwrap_or_default(),
            record.outcome.word(),
        ];
        let (charge, cost) = (money.charge.map(|nano| nano.0), money.cost.map(|nano| nano.0));
        gathered.add(place, sums(&bill.usage, bill.source, !money.unpriced.is_empty(), charge, cost));
    }
}

fn names<'v, 's, 'c>(values: &'v mut Values<'s, 'c>, record: &Record) -> &'v mut Values<'s, 'c> {
    values
        .id(record.id)
        .text(record.client_request_id.as_deref())
        .text(record.upstream_request_id.as_deref())
        .text(record.answer_id.as_deref())
        .text(record.key.as_deref())
        .text(record.tag.as_deref())
        .address(record.client)
        .verbatim(record.endpoint.map(Endpoint::word))
        .verbatim(record.endpoint.map(|endpoint| endpoint.protocol().word()))
        .text(record.model.as_deref())
        .text(record.target.as_deref())
}

fn others<'v, 's, 'c>(values: &'v mut Values<'s, 'c>, others: &[(String, Usage)]) -> &'v mut Values<'s, 'c> {
    if others.is_empty() {
        return values.verbatim(None);
    }
    let others = others.iter().map(|(model, usage)| OtherJson { model, usage: UsageJson(usage) });
    values.json(&others.collect::<Vec<_>>())
}

fn times<'v, 's, 'c>(values: &'v mut Values<'s, 'c>, record: &Record) -> &'v mut Values<'s, 'c> {
    values
        .time(record.admitted)
        .time(record.upstream_first_byte)
        .time(record.upstream_first_output)
        .time(record.first_output)
        .time(record.first_visible)
        .time(record.last_output)
        .time(record.duration)
        .time(record.waited)
        .number(record.bytes)
        .number(record.output_events)
        .number(record.keepalives)
}

fn sums(usage: &Usage, source: Source, unpriced: bool, charge: Option<i64>, cost: Option<i64>) -> Sums {
    let estimated = match source {
        Source::Partial | Source::Estimated => 1,
        Source::Reported | Source::None => 0,
    };
    let tokens = members(usage).map(|member| integer(member.unwrap_or(0)));
    let all = [1, i64::from(unpriced), estimated]
        .into_iter()
        .chain(tokens)
        .chain([charge, cost].map(Option::unwrap_or_default));
    let mut sums = Sums::default();
    for (sum, number) in sums.iter_mut().zip(all) {
        *sum = number;
    }
    sums
}

/// In the order of the columns.
pub(super) const fn members(usage: &Usage) -> [Option<u64>; 9] {
    [
        usage.input,
        usage.cache_read,
        usage.cache_write_5m,
        usage.cache_write_1h,
        usage.output,
        usage.reasoning,
        usage.audio_input,
        usage.audio_output,
        usage.web_search,
    ]
}

/// A try as the row keeps it; members in the order of the alphabet, as ever.
#[derive(Serialize)]
struct AttemptJson<'r> {
    began: i64,
    ended: i64,
    maybe_billed: bool,
    result: &'static str,
    status: Option<u16>,
    target: &'r str,
}

impl<'r> From<&'r Attempt> for AttemptJson<'r> {
    fn from(attempt: &'r Attempt) -> Self {
        Self {
            began: micros(attempt.began),
            ended: micros(attempt.ended),
            maybe_billed: attempt.maybe_billed,
            result: attempt.result,
            status: attempt.status,
            target: &attempt.target,
        }
    }
}

/// Usage as the row keeps it: what is known, in the order of the alphabet.
struct UsageJson<'r>(&'r Usage);

impl Serialize for UsageJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let members = [
            ("audio_input", self.0.audio_input),
            ("audio_output", self.0.audio_output),
            ("cache_read", self.0.cache_read),
            ("cache_write_1h", self.0.cache_write_1h),
            ("cache_write_5m", self.0.cache_write_5m),
            ("input", self.0.input),
            ("output", self.0.output),
            ("reasoning", self.0.reasoning),
            ("web_search", self.0.web_search),
        ];
        serializer.collect_map(members.into_iter().filter_map(|(name, member)| Some((name, member?))))
    }
}

/// Usage of another model.
#[derive(Serialize)]
struct OtherJson<'r> {
    model: &'r str,
    usage: UsageJson<'r>,
}

/// SQLite's integers are signed; a count that large is absurd anyway ([`crate::meter::usage::ABSURD`]).
pub(super) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn micros_since_1970(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => micros(since),
        Err(before) => -micros(before.duration()),
    }
}

pub(super) fn now() -> i64 {
    micros_since_1970(SystemTime::now())
}

#[cfg(test)]
mod tests;
