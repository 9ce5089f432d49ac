//! Applies messages to the file inside one transaction.
//!
//! Called by the writer for each batch, and by recovery. Touches the transaction it is given; what
//! it counts is kept aside, so that a transaction that is rolled back has changed nothing.

use super::mailbox::Message;
use super::recovery;
use super::row::{self, Gathered, Row, SUMS, Texts};
use super::ticket::{Checkpoint, OpenRow};
use super::values::Values;
use super::{Correction, Settlement, Terms};
use crate::outcome::Outcome;
use crate::protocol::Endpoint;
use rusqlite::{CachedStatement, OptionalExtension, Statement, Transaction};
use std::sync::atomic::Ordering;
use std::time::SystemTime;
use uuid::Uuid;

const OPEN: &str = "INSERT INTO open (request_id, owner, received, client_request_id, key, tag, client, endpoint, \
    model, target, stream, tier_requested, input_estimate) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) ON CONFLICT (request_id) DO NOTHING";
const CHECKPOINT: &str = "UPDATE open SET target = coalesce(?2, target), checkpoint = ?3, status = ?4, source = ?5, \
    input = ?6, cache_read = ?7, cache_write_5m = ?8, cache_write_1h = ?9, output = ?10, reasoning = ?11, \
    audio_input = ?12, audio_output = ?13, web_search = ?14, output_estimate = ?15, bytes = ?16, \
    output_events = ?17, first_output = ?18, tier_served = ?19 WHERE request_id = ?1";
const CLOSE: &str = "DELETE FROM open WHERE request_id = ?1";
const COUNT: &str = "UPDATE counters SET opened = opened + ?1, cancelled = cancelled + ?2 WHERE id = 0";
/// Also back: a sink that was replaced has less than the one before.
const SHIPPED: &str = "UPDATE counters SET shipped_to = ?1, corrections_shipped_to = ?2 \
    WHERE id = 0 AND (shipped_to <> ?1 OR corrections_shipped_to <> ?2)";
const CORRECT: &str = "INSERT INTO corrections (id, request_id, made, day, charge, cost, input, output, why) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (id) DO NOTHING";
const CORRECTED: &str = "SELECT day, coalesce(key, ''), coalesce(tag, ''), coalesce(model, ''), \
    coalesce(target, ''), outcome FROM settled WHERE request_id = ?1";

/// What a transaction did, to be counted once it is committed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub(super) opened: i64,
    pub(super) cancelled: i64,
    pub(super) settled: u64,
    pub(super) recovered: u64,
    pub(super) unpriced: u64,
    pub(super) conflicts: u64,
}

/// One transaction in the making.
pub(super) struct Apply<'t> {
    pub(super) transaction: &'t Transaction<'t>,
    pub(super) terms: &'t Terms,
    pub(super) timezone: &'t jiff::tz::TimeZone,
    pub(super) owner: i64,
    pub(super) now: i64,
    texts: &'t Texts,
    statements: Statements<'t>,
    gathered: Gathered,
    pub(super) done: Done,
}

/// What every request needs, looked up when first needed and once for the whole transaction.
#[derive(Default)]
struct Statements<'t> {
    open: Option<CachedStatement<'t>>,
    close: Option<CachedStatement<'t>>,
    insert: Option<CachedStatement<'t>>,
}

/// The statement in its slot.
fn ready<'s, 't>(
    slot: &'s mut Option<CachedStatement<'t>>,
    transaction: &'t Transaction<'_>,
    sql: &str,
) -> rusqlite::Result<&'s mut Statement<'t>> {
    Ok(match slot {
        Some(statement) => statement,
        None => slot.insert(transaction.prepare_cached(sql)?),
    })
}

impl<'t> Apply<'t> {
    pub(super) fn new(
        transaction: &'t Transaction<'t>,
        terms: &'t Terms,
        timezone: &'t jiff::tz::TimeZone,
        owner: i64,
        texts: &'t Texts,
    ) -> Self {
        let (statements, gathered, done) = (Statements::default(), Gathered::default(), Done::default());
        Self { transaction, terms, timezone, owner, now: row::now(), texts, statements, gathered, done }
    }

    /// Applies one message. The answer is for [`Message::Correct`]: whether there was such a record.
    pub(super) fn message(&mut self, message: &Message) -> rusqlite::Result<bool> {
        match message {
            Message::Open { row, .. } => self.open(row)?,
            // Of a request that has ended meanwhile it would be overwritten at once.
            Message::Checkpoint { way, .. } if way.end.load(Ordering::Acquire) => {}
            Message::Checkpoint { id, checkpoint, .. } => self.checkpoint(*id, checkpoint)?,
            Message::Settle { settlement, .. } => self.settle(settlement)?,
            Message::Abandon(id) => recovery::settle_open(self, &id.to_string(), Outcome::Internal, "dropped")?,
            Message::Cancel(id) => self.cancel(*id)?,
            Message::Correct { correction, .. } => return self.correct(correction),
            Message::Shipped { settled, corrections } => {
                self.transaction.prepare_cached(SHIPPED)?.execute([settled, corrections])?;
            }
            Message::Hurry | Message::Close => {}
        }
        Ok(true)
    }

    /// Writes what was gathered; the transaction may be committed then.
    pub(super) fn finish(self) -> rusqlite::Result<Done> {
        if !self.gathered.is_empty() {
            let mut add = self.transaction.prepare_cached(&self.texts.add_to_daily)?;
            for (place, sums) in self.gathered.iter() {
                let mut values = Values::of(&mut add);
                for name in place {
                    values.verbatim(Some(name));
                }
                for sum in sums {
                    values.integer(*sum);
                }
                values.execute()?;
            }
        }
        if self.done.opened != 0 || self.done.cancelled != 0 {
            self.transaction.prepare_cached(COUNT)?.execute([self.done.opened, self.done.cancelled])?;
        }
        Ok(self.done)
    }

    fn open(&mut self, row: &OpenRow) -> rusqlite::Result<()> {
        let opened = Values::of(ready(&mut self.statements.open, self.transaction, OPEN)?)
            .id(row.id)
            .integer(self.owner)
            .integer(row::micros_since_1970(row.received))
            .text(row.client_request_id.as_deref())
            .verbatim(row.key.as_deref())
            .verbatim(row.tag.as_deref())
            .address(row.client)
            .verbatim(row.endpoint.map(Endpoint::word))
            .verbatim(row.model.as_deref())
            .verbatim(row.target.as_deref())
            .integer(i64::from(row.stream))
            .text(row.tier_requested.as_deref())
            .number(row.input_estimate)
            .execute()?;
        self.done.opened += i64::from(opened > 0);
        Ok(())
    }

    fn checkpoint(&self, id: Uuid, checkpoint: &Checkpoint) -> rusqlite::Result<()> {
        Values::of(&mut *self.transaction.prepare_cached(CHECKPOINT)?)
            .id(id)
            .text(checkpoint.target.as_deref())
            .time(checkpoint.elapsed)
            .integer(i64::from(checkpoint.status))
            .verbatim(Some(checkpoint.source.word()))
            .numbers(row::members(&checkpoint.usage))
            .number(checkpoint.output_estimate)
            .number(checkpoint.bytes)
            .number(checkpoint.output_events)
            .time(checkpoint.first_output)
            .text(checkpoint.tier_served.as_deref())
            .execute()
            .map(drop)
    }

    /// Exactly once: a second settle of the same request changes nothing and is counted as a conflict.
    pub(super) fn settle(&mut self, settlement: &Settlement) -> rusqlite::Result<()> {
        let day = day(settlement.record.received, self.timezone);
        let row = Row::new(settlement, &day);
        let was_open = self.close(settlement.record.id)?;
        let insert = ready(&mut self.statements.insert, self.transaction, &self.texts.insert)?;
        let inserted = row.write(Values::of(insert), self.owner, self.now)? > 0;
        if !inserted {
            self.done.conflicts += 1;
            // The open row that is gone now had been counted.
            self.done.opened -= i64::from(was_open);
            log::error!(request_id:% = settlement.record.id; "a request was settled twice; the first one stands");
            return Ok(());
        }
        // Served while the ledger was broken, or its opening failed: it is opened and settled at once.
        self.done.opened += i64::from(!was_open);
        self.done.settled += 1;
        self.done.unpriced += u64::from(!settlement.money.unpriced.is_empty());
        row.gather(&mut self.gathered);
        Ok(())
    }

    /// Removes the open row; whether there was one.
    fn close(&mut self, id: Uuid) -> rusqlite::Result<bool> {
        let close = ready(&mut self.statements.close, self.transaction, CLOSE)?;
        Ok(Values::of(close).id(id).execute()? > 0)
    }

    fn cancel(&mut self, id: Uuid) -> rusqlite::Result<()> {
        self.done.cancelled += i64::from(self.close(id)?);
        Ok(())
    }

    /// A row of its own, added to the day of the record that it corrects.
    fn correct(&mut self, correction: &Correction) -> rusqlite::Result<bool> {
        let request_id = correction.request_id.to_string();
        let place = self
            .transaction
            .query_row(CORRECTED, [&request_id], |row| {
                Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?])
            })
            .optional()?;
        let Some(place): Option<row::Place<String>> = place else { return Ok(false) };
        let inserted = Values::of(&mut *self.transaction.prepare_cached(CORRECT)?)
            .id(correction.id)
            .id(correction.request_id)
            .integer(self.now)
            .verbatim(place.first().map(String::as_str))
            .integer(correction.charge.0)
            .integer(correction.cost.0)
            .integer(correction.input)
            .integer(correction.output)
            .text(Some(&correction.why))
            .execute()?;
        if inserted > 0 {
            let sums = SUMS.map(|name| match name {
                "charge" => correction.charge.0,
                "cost" => correction.cost.0,
                "input" => correction.input,
                "output" => correction.output,
                _ => 0,
            });
            self.gathered.add(place.each_ref().map(String::as_str), sums);
        }
        Ok(true)
    }
}

/// The day of a moment where the ledger's days begin, `2026-11-30`.
#[must_use]
pub fn day(time: SystemTime, timezone: &jiff::tz::TimeZone) -> String {
    let stamp = jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    timezone.to_datetime(stamp).date().to_string()
}
