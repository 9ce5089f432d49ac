//! Sums over the ledger, for people and for programs (L6).
//!
//! Called by the commands and the admin API. Reads the database, touches nothing.

use super::cli::CliError;
use super::money::Nano;
use super::row::micros_since_1970;
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, params_from_iter};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::time::SystemTime;

/// How a report looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people, with a total.
    #[default]
    Table,
    /// Comma-separated, RFC 4180.
    Csv,
    /// One array of objects; money as decimal strings and in nano-USD.
    Json,
}

/// What rows are summed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The virtual key.
    Key,
    /// The public model.
    Model,
    /// `provider/model`.
    Target,
    /// The day in the ledger's time zone.
    Day,
    /// How it ended.
    Outcome,
    /// The key's tag.
    Tag,
}

impl By {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Key, Self::Model, Self::Target, Self::Day, Self::Outcome, Self::Tag];

    /// The word on the command line, which is the column.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Model => "model",
            Self::Target => "target",
            Self::Day => "day",
            Self::Outcome => "outcome",
            Self::Tag => "tag",
        }
    }

    /// The one with this word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|by| by.word() == word)
    }
}

/// The numbers of a line, in this order.
const NUMBERS: [&str; 11] = [
    "requests",
    "input",
    "cache_read",
    "cache_write",
    "output",
    "reasoning",
    "web_search",
    "unpriced",
    "estimated",
    "charge",
    "cost",
];
const FROM_DAILY: &str = "sum(requests), sum(input), sum(cache_read), sum(cache_write_5m + cache_write_1h), \
    sum(output), sum(reasoning), sum(web_search), sum(unpriced), sum(estimated), sum(charge), sum(cost)";
const FROM_RECORDS: &str = "count(*), sum(coalesce(input, 0)), sum(coalesce(cache_read, 0)), \
    sum(coalesce(cache_write_5m, 0) + coalesce(cache_write_1h, 0)), sum(coalesce(output, 0)), \
    sum(coalesce(reasoning, 0)), sum(coalesce(web_search, 0)), sum(unpriced IS NOT NULL), \
    sum(source IN ('partial', 'estimated')), sum(coalesce(charge, 0)), sum(coalesce(cost, 0))";

/// One line of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    names: Vec<String>,
    numbers: [i64; 11],
}

impl Line {
    const fn charge(&self) -> i64 {
        let [.., charge, _] = self.numbers;
        charge
    }

    const fn cost(&self) -> i64 {
        let [.., cost] = self.numbers;
        cost
    }

    /// Counts as text, then charge, cost and margin in USD.
    fn cells(&self) -> Vec<String> {
        let counts = self.numbers.iter().take(NUMBERS.len() - 2).map(ToString::to_string);
        let money = [self.charge(), self.cost(), self.charge().saturating_sub(self.cost())];
        self.names.iter().cloned().chain(counts).chain(money.map(|nano| Nano(nano).to_string())).collect()
    }
}

/// One end of the time asked for.
enum Bound {
    Day(String),
    Instant(i64),
}

fn bound(text: &str) -> Result<Bound, CliError> {
    if let Ok(date) = text.parse::<jiff::civil::Date>()
        && text.len() == "2026-11-30".len()
    {
        return Ok(Bound::Day(date.to_string()));
    }
    let stamp: jiff::Timestamp = text.parse().map_err(|_| {
        CliError(format!("{text:?} is neither a date such as 2026-11-30 nor an instant such as 2026-11-30T12:00:00Z"))
    })?;
    let time = SystemTime::try_from(stamp).map_err(|error| CliError(error.to_string()))?;
    Ok(Bound::Instant(micros_since_1970(time)))
}

/// Both ends of the time asked for.
fn range(since: Option<&str>, until: Option<&str>) -> Result<(Option<Bound>, Option<Bound>), CliError> {
    match (since.map(bound).transpose()?, until.map(bound).transpose()?) {
        (Some(Bound::Day(_)), Some(Bound::Instant(_))) | (Some(Bound::Instant(_)), Some(Bound::Day(_))) => {
            Err(CliError("since and until must both be dates or both be instants".to_owned()))
        }
        range => Ok(range),
    }
}

/// Whether the time asked for is one.
pub(super) fn check_times(since: Option<&str>, until: Option<&str>) -> Result<(), CliError> {
    range(since, until).map(drop)
}

/// The sums; sorted by their names.
pub(super) fn usage(
    connection: &Connection,
    by: &[By],
    since: Option<&str>,
    until: Option<&str>,
    key: Option<&str>,
) -> Result<Vec<Line>, CliError> {
    let (since, until) = range(since, until)?;
    let mut conditions = Vec::new();
    let mut values = Vec::new();
    let mut condition = |text: &str, value: Sql| {
        values.push(value);
        conditions.push(format!("{text} ?{}", values.len()));
    };
    let daily = !matches!(since, Some(Bound::Instant(_))) && !matches!(until, Some(Bound::Instant(_)));
    match since {
        Some(Bound::Day(day)) => condition("day >=", Sql::Text(day)),
        Some(Bound::Instant(at)) => condition("received >=", Sql::Integer(at)),
        None => {}
    }
    match until {
        Some(Bound::Day(day)) => condition("day <=", Sql::Text(day)),
        Some(Bound::Instant(at)) => condition("received <", Sql::Integer(at)),
        None => {}
    }
    if let Some(key) = key {
        condition("key =", Sql::Text(key.to_owned()));
    }
    let (table, sums) = if daily { ("daily", FROM_DAILY) } else { ("records", FROM_RECORDS) };
    let names = by.iter().map(|by| format!("coalesce({}, '')", by.word())).collect::<Vec<_>>();
    let filter = if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
    let columns = names.iter().map(String::as_str).chain([sums]).collect::<Vec<_>>().join(", ");
    let places = (1..=names.len()).map(|place| place.to_string()).collect::<Vec<_>>().join(", ");
    let group = if by.is_empty() { String::new() } else { format!(" GROUP BY {places} ORDER BY {places}") };
    let mut statement = connection.prepare(&format!("SELECT {columns} FROM {table}{filter}{group}"))?;
    let lines = statement.query_map(params_from_iter(values), |row| {
        let mut line = Line::default();
        for index in 0..names.len() {
            line.names.push(row.get(index)?);
        }
        for (index, number) in line.numbers.iter_mut().enumerate() {
            // NULL: a sum over no rows at all.
            *number = row.get::<_, Option<i64>>(names.len() + index)?.unwrap_or(0);
        }
        Ok(line)
    })?;
    Ok(lines.collect::<rusqlite::Result<Vec<_>>>()?)
}

/// As text, with a line end.
pub(super) fn render(lines: &[Line], by: &[By], format: Format) -> String {
    match format {
        Format::Table => table(lines, by),
        Format::Csv => csv(lines, by),
        Format::Json => json(lines, by),
    }
}

/// Counts, then money in USD.
fn headings(by: &[By], money: [&'static str; 3]) -> Vec<&'static str> {
    let counts = NUMBERS.into_iter().take(NUMBERS.len() - 2);
    by.iter().map(|by| by.word()).chain(counts).chain(money).collect()
}

fn table(lines: &[Line], by: &[By]) -> String {
    let mut rows = vec![headings(by, ["charge", "cost", "margin"]).into_iter().map(str::to_owned).collect()];
    rows.extend(lines.iter().map(Line::cells));
    if !by.is_empty() {
        let mut total = Line { names: vec![String::new(); by.len()], ..Line::default() };
        if let Some(first) = total.names.first_mut() {
            "total".clone_into(first);
        }
        for line in lines {
            for (sum, number) in total.numbers.iter_mut().zip(line.numbers) {
                *sum = sum.saturating_add(number);
            }
        }
        rows.push(total.cells());
    }
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = if column < by.len() { write!(line, "{cell:<width$}  ") } else { write!(line, "{cell:>width$}  ") };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn csv(lines: &[Line], by: &[By]) -> String {
    let heading = headings(by, ["charge_usd", "cost_usd", "margin_usd"]).join(",");
    let mut text = format!("{heading}\r\n");
    for line in lines {
        let cells = line.cells().into_iter().map(|cell| quoted(&cell)).collect::<Vec<_>>().join(",");
        text.push_str(&cells);
        text.push_str("\r\n");
    }
    text
}

fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\r', '\n']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

fn json(lines: &[Line], by: &[By]) -> String {
    let objects = lines.iter().map(|line| {
        let mut object = Map::new();
        for (by, name) in by.iter().zip(&line.names) {
            object.insert(by.word().to_owned(), json!(name));
        }
        for (name, number) in NUMBERS.into_iter().zip(line.numbers).take(NUMBERS.len() - 2) {
            object.insert(name.to_owned(), json!(number));
        }
        let margin = line.charge().saturating_sub(line.cost());
        for (name, nano) in [("charge", line.charge()), ("cost", line.cost()), ("margin", margin)] {
            object.insert(format!("{name}_usd"), json!(Nano(nano).to_string()));
            object.insert(format!("{name}_nano_usd"), json!(nano));
        }
        Value::Object(object)
    });
    format!("{}\n", Value::Array(objects.collect()))
}
