//! Proves that the ledger adds up: no gap, no double, every day the sum of its rows (L2).
//!
//! Called by `weir ledger verify` and by tests. Reads one snapshot of the database, also while a
//! gateway writes; touches nothing else.

use super::cli::CliError;
use super::owner::Gone;
use super::row::{SUMS, SUMS_OF_SETTLED, Sums};
use rusqlite::{Connection, Row, Transaction};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Settled rows that are still kept.
    pub rows: i64,
    /// Settled rows that retention removed.
    pub pruned: i64,
    /// Rows open now.
    pub open: i64,
    /// Corrections.
    pub corrections: i64,
    /// What must not be: rows are missing, doubled or wrong.
    pub problems: Vec<String>,
    /// What a person should know: unpriced rows, rows left open by a dead process.
    pub notices: Vec<String>,
}

impl Report {
    /// Nothing is wrong. Notices do not count.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Adds a problem if a count is not what it should be.
    fn expect(&mut self, what: &str, found: i64, expected: i64) {
        if found != expected {
            self.problems.push(format!("{what}: {found}, expected {expected}"));
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} settled rows, {} removed by retention, {} open, {} corrections",
            self.rows, self.pruned, self.open, self.corrections
        )?;
        for notice in &self.notices {
            writeln!(f, "notice: {notice}")?;
        }
        for problem in &self.problems {
            writeln!(f, "PROBLEM: {problem}")?;
        }
        writeln!(f, "{}", if self.is_clean() { "clean" } else { "NOT CLEAN" })
    }
}

/// Checks everything within one read transaction.
pub(super) fn verify(connection: &mut Connection, database: &Path) -> Result<Report, CliError> {
    let mut report = Report::default();
    let snapshot = connection.transaction()?;
    integrity(&snapshot, &mut report)?;
    if report.is_clean() {
        counts(&snapshot, &mut report)?;
        sums(&snapshot, &mut report)?;
        rows(&snapshot, &mut report)?;
        left_open(&snapshot, database, &mut report)?;
    }
    Ok(report)
}

fn integrity(snapshot: &Transaction<'_>, report: &mut Report) -> Result<(), CliError> {
    let mut check = snapshot.prepare("PRAGMA integrity_check(20)")?;
    let lines = check.query_map([], |row| row.get::<_, String>(0))?;
    for line in lines {
        match line {
            Ok(line) if line == "ok" => {}
            Ok(line) => report.problems.push(format!("the file is damaged: {line}")),
            Err(error) => report.problems.push(format!("the file is damaged: {error}")),
        }
    }
    Ok(())
}

fn number(snapshot: &Transaction<'_>, sql: &str) -> rusqlite::Result<i64> {
    snapshot.query_row(sql, [], |row| row.get::<_, Option<i64>>(0)).map(|number| number.unwrap_or(0))
}

/// Gaps and doubles: rows are numbered without holes, and every row ever opened is somewhere.
fn counts(snapshot: &Transaction<'_>, report: &mut Report) -> Result<(), CliError> {
    report.rows = number(snapshot, "SELECT count(*) FROM settled NOT INDEXED")?;
    report.pruned = number(snapshot, "SELECT pruned_to FROM counters")?;
    report.open = number(snapshot, "SELECT count(*) FROM open")?;
    report.corrections = number(snapshot, "SELECT count(*) FROM corrections")?;
    let last = number(snapshot, "SELECT max(seq) FROM sqlite_sequence WHERE name = 'settled'")?;
    let first = number(snapshot, "SELECT min(seq) FROM settled")?;
    if report.rows > 0 {
        report.expect("number of the first row", first, report.pruned + 1);
        report.expect("number of the last row", number(snapshot, "SELECT max(seq) FROM settled")?, last);
    }
    report.expect("rows that are there (gaps)", report.rows, last - report.pruned);
    let opened = number(snapshot, "SELECT opened FROM counters")?;
    let cancelled = number(snapshot, "SELECT cancelled FROM counters")?;
    report.expect("rows ever opened", opened, last + cancelled + report.open);
    let doubles = "SELECT count(*) - count(DISTINCT request_id) FROM settled NOT INDEXED";
    report.expect("requests settled twice", number(snapshot, doubles)?, 0);
    let both = "SELECT count(*) FROM open JOIN settled USING (request_id)";
    report.expect("requests open and settled at once", number(snapshot, both)?, 0);
    Ok(())
}

/// Every day's aggregates are the sums of its rows, of what retention removed, and of its corrections.
fn sums(snapshot: &Transaction<'_>, report: &mut Report) -> Result<(), CliError> {
    let columns = SUMS.map(|name| format!("sum({name})")).join(", ");
    let names = SUMS.join(", ");
    let daily = by_day(snapshot, &format!("SELECT day, {columns} FROM daily GROUP BY day"))?;
    let mut rows = by_day(snapshot, &format!("SELECT day, {SUMS_OF_SETTLED} FROM settled GROUP BY day"))?;
    let corrections = "SELECT day, 0, 0, 0, sum(input), 0, 0, 0, sum(output), 0, 0, 0, 0, sum(charge), sum(cost) \
        FROM corrections GROUP BY day";
    for (day, more) in
        by_day(snapshot, &format!("SELECT day, {names} FROM pruned"))?.into_iter().chain(by_day(snapshot, corrections)?)
    {
        for (sum, more) in rows.entry(day).or_default().iter_mut().zip(more) {
            *sum = sum.saturating_add(more);
        }
    }
    let days: std::collections::BTreeSet<&String> = daily.keys().chain(rows.keys()).collect();
    for day in days {
        let of = |sums: &BTreeMap<String, Sums>| sums.get(day).copied().unwrap_or_default();
        for ((name, found), expected) in SUMS.into_iter().zip(of(&daily)).zip(of(&rows)) {
            report.expect(&format!("{day}: daily {name}"), found, expected);
        }
    }
    Ok(())
}

fn by_day(snapshot: &Transaction<'_>, sql: &str) -> rusqlite::Result<BTreeMap<String, Sums>> {
    let read = |row: &Row<'_>| {
        let mut sums = Sums::default();
        for (index, sum) in sums.iter_mut().enumerate() {
            *sum = row.get::<_, Option<i64>>(index + 1)?.unwrap_or(0);
        }
        Ok((row.get(0)?, sums))
    };
    let mut statement = snapshot.prepare(sql)?;
    statement.query_map([], read)?.collect()
}

/// Rows that cannot be, and rows without a price.
fn rows(snapshot: &Transaction<'_>, report: &mut Report) -> Result<(), CliError> {
    let negative =
        SUMS.into_iter().skip(3).map(|name| format!("coalesce({name}, 0) < 0")).collect::<Vec<_>>().join(" OR ");
    let found = number(snapshot, &format!("SELECT count(*) FROM settled WHERE {negative}"))?;
    report.expect("rows with a negative number", found, 0);
    if report.pruned == 0 {
        let orphans = "SELECT count(*) FROM corrections WHERE request_id NOT IN (SELECT request_id FROM settled)";
        report.expect("corrections of unknown requests", number(snapshot, orphans)?, 0);
    }
    let mut unpriced = snapshot.prepare(
        "SELECT coalesce(model, '?'), coalesce(target, '?'), unpriced, count(*) FROM settled \
         WHERE unpriced IS NOT NULL GROUP BY 1, 2, 3",
    )?;
    let groups = unpriced.query_map([], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?, row.get::<_, i64>(3)?))
    })?;
    for group in groups {
        let (model, target, what, count) = group?;
        report.notices.push(format!("{count} rows of {model} at {target} have no price for {what}"));
    }
    let impossible = number(snapshot, "SELECT count(*) FROM settled WHERE anomalies > 0")?;
    if impossible > 0 {
        report.notices.push(format!("{impossible} rows had counts that could not be true"));
    }
    Ok(())
}

/// Open rows are normal while their owner lives.
fn left_open(snapshot: &Transaction<'_>, database: &Path, report: &mut Report) -> Result<(), CliError> {
    let mut owners = snapshot
        .prepare("SELECT instance, count(*) FROM open JOIN owners ON owners.id = open.owner GROUP BY instance")?;
    let owners = owners.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
    for owner in owners {
        let (instance, count) = owner?;
        if Gone::check(database, &instance).is_some() {
            report.notices.push(format!(
                "{count} rows were left open by a process that is gone; the next start settles them as crashed"
            ));
        }
    }
    Ok(())
}
