//! Settles rows that nobody else will settle: their process died, or their ticket was dropped (L2).
//!
//! Called at open, by the writer every few seconds, and for dropped tickets. Touches the database
//! and the lock files of owners that are gone.

use super::apply::Apply;
use super::billing::Facts;
use super::owner::Gone;
use super::ticket::{Aside, Settlement};
use crate::meter::usage::Usage;
use crate::outcome::Outcome;
use crate::protocol::Endpoint;
use crate::record::Record;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// Rows in one transaction, so that running requests do not wait long.
const STEP: i64 = 500;

const READ: &str = "SELECT request_id, received, client_request_id, key, tag, client, endpoint, model, target, \
    stream, tier_requested, input_estimate, checkpoint, status, source, input, cache_read, cache_write_5m, \
    cache_write_1h, output, reasoning, audio_input, audio_output, web_search, output_estimate, bytes, \
    output_events, first_output, tier_served FROM open WHERE request_id = ?1";

/// Owners with open rows that are gone, except `me`.
pub(super) fn gone(connection: &Connection, database: &Path, me: i64) -> rusqlite::Result<Vec<(i64, Gone)>> {
    let mut owners = connection.prepare_cached(
        "SELECT id, instance FROM owners WHERE id <> ?1 AND (ended IS NULL OR id IN (SELECT owner FROM open))",
    )?;
    let rows = owners.query_map([me], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?;
    let mut gone = Vec::new();
    for row in rows {
        let (id, instance) = row?;
        if let Some(found) = Gone::check(database, &instance) {
            gone.push((id, found));
        }
    }
    Ok(gone)
}

/// Settles the next rows of a dead owner; true when none is left.
pub(super) fn step(apply: &mut Apply<'_>, owner: i64) -> rusqlite::Result<bool> {
    let mut ids = apply.transaction.prepare_cached("SELECT request_id FROM open WHERE owner = ?1 LIMIT ?2")?;
    let ids = ids.query_map([owner, STEP], |row| row.get::<_, String>(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
    for id in &ids {
        settle_open(apply, id, Outcome::Crashed, "process_died")?;
        apply.done.recovered += 1;
    }
    let finished = i64::try_from(ids.len()).unwrap_or(i64::MAX) < STEP;
    if finished {
        apply
            .transaction
            .execute("UPDATE owners SET ended = coalesce(ended, ?2) WHERE id = ?1", params![owner, apply.now])?;
    }
    Ok(finished)
}

/// Settles one open row from its last checkpoint; nothing if there is no such row.
pub(super) fn settle_open(
    apply: &mut Apply<'_>,
    id: &str,
    outcome: Outcome,
    cause: &'static str,
) -> rusqlite::Result<()> {
    let left = apply.transaction.prepare_cached(READ)?.query_row([id], Left::read).optional()?;
    let Some(left) = left else { return Ok(()) };
    let settlement = left.settlement(apply, outcome, cause);
    apply.settle(&settlement)
}

/// What an open row tells.
struct Left {
    record: Record,
    input_estimate: Option<u64>,
    output_estimate: Option<u64>,
}

impl Left {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let text = |index| row.get::<_, Option<String>>(index);
        let number = |index| row.get::<_, Option<i64>>(index).map(|number| number.and_then(|n| u64::try_from(n).ok()));
        let name = |index| text(index).map(|name| name.map(Arc::<str>::from));
        let id: String = row.get(0)?;
        let received = time(row.get(1)?);
        let first_output = number(27)?.map(Duration::from_micros);
        // Without a checkpoint nothing is known of its length.
        let duration = number(12)?.map_or(Duration::ZERO, Duration::from_micros);
        let status = number(13)?.and_then(|status| u16::try_from(status).ok()).unwrap_or(0);
        let endpoint = text(6)?;
        let usage = Usage {
            input: number(15)?,
            cache_read: number(16)?,
            cache_write_5m: number(17)?,
            cache_write_1h: number(18)?,
            output: number(19)?,
            reasoning: number(20)?,
            audio_input: number(21)?,
            audio_output: number(22)?,
            web_search: number(23)?,
        };
        let record = Record {
            id: Uuid::parse_str(&id).unwrap_or_default(),
            client_request_id: text(2)?,
            upstream_request_id: None,
            answer_id: None,
            key: name(3)?,
            tag: name(4)?,
            client: text(5)?.and_then(|address| address.parse().ok()),
            endpoint: endpoint.and_then(|word| Endpoint::ALL.into_iter().find(|endpoint| endpoint.word() == word)),
            model: name(7)?,
            target: name(8)?,
            attempts: Vec::new(),
            stream: row.get(9)?,
            status,
            effective_status: status,
            outcome: Outcome::Crashed,
            cause: None,
            received,
            admitted: None,
            upstream_first_byte: None,
            upstream_first_output: None,
            first_output,
            first_visible: None,
            last_output: None,
            duration,
            waited: Duration::ZERO,
            bytes: number(25)?.unwrap_or(0),
            output_events: number(26)?.unwrap_or(0),
            keepalives: 0,
            usage,
            source: crate::meter::usage::Source::None,
            tier_requested: text(10)?,
            tier_served: text(28)?,
            trace: None,
        };
        Ok(Self { record, input_estimate: number(11)?, output_estimate: number(24)? })
    }

    fn settlement(self, apply: &Apply<'_>, outcome: Outcome, cause: &'static str) -> Settlement {
        let mut record = self.record;
        record.outcome = outcome;
        record.cause = Some(cause);
        let facts = Facts {
            outcome,
            reported: record.usage,
            output_delivered: record.output_events > 0,
            input_estimate: self.input_estimate,
            delivered_estimate: self.output_estimate,
            received_estimate: None,
            max_output: None,
        };
        Settlement::new(apply.terms, record, &facts, Aside::default())
    }
}

fn time(micros: i64) -> SystemTime {
    let since = Duration::from_micros(micros.unsigned_abs());
    let time = if micros < 0 { UNIX_EPOCH.checked_sub(since) } else { UNIX_EPOCH.checked_add(since) };
    time.unwrap_or(UNIX_EPOCH)
}
