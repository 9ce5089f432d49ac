//! Removes rows that are old enough, and shipped if there is a sink; daily aggregates stay (L4).
//!
//! Called by the writer between commits. Touches the database.

use super::config::LedgerConfig;
use super::row::{SUMS, SUMS_OF_SETTLED, micros, now};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use std::time::Duration;

/// Rows removed in one transaction, so that running requests do not wait long.
const STEP: i64 = 1_000;

/// What may go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retention {
    /// Settled longer ago than this.
    pub(super) keep: Duration,
    /// Only what the sink has.
    pub(super) shipped_only: bool,
}

impl Retention {
    /// As configured.
    pub(super) const fn of(config: &LedgerConfig) -> Self {
        Self { keep: config.retention, shipped_only: config.postgres.is_some() }
    }

    /// Removes the oldest rows, always from the front, so that what is left has no gap; true when more may go.
    pub(super) fn step(self, connection: &mut Connection) -> rusqlite::Result<bool> {
        let before = now().saturating_sub(micros(self.keep));
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let (pruned, shipped): (i64, i64) =
            transaction.query_row("SELECT pruned_to, shipped_to FROM counters WHERE id = 0", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        let most = if self.shipped_only { shipped.min(pruned + STEP) } else { pruned + STEP };
        // The first row that has to stay ends it, even when the clock once went backwards.
        let young: Option<i64> = transaction
            .query_row(
                "SELECT seq FROM settled WHERE seq > ?1 AND seq <= ?2 AND settled_at >= ?3 ORDER BY seq LIMIT 1",
                [pruned, most, before],
                |row| row.get(0),
            )
            .optional()?;
        let newest: Option<i64> = transaction.query_row("SELECT max(seq) FROM settled", [], |row| row.get(0))?;
        let to = young.map_or(most, |seq| seq - 1).min(newest.unwrap_or(pruned));
        if to <= pruned {
            return Ok(false);
        }
        let names = SUMS.join(", ");
        let adds = SUMS.map(|name| format!("{name} = {name} + excluded.{name}")).join(", ");
        transaction.execute(
            &format!(
                "INSERT INTO pruned (day, {names}) SELECT day, {SUMS_OF_SETTLED} FROM settled \
                 WHERE seq <= ?1 GROUP BY day ON CONFLICT (day) DO UPDATE SET {adds}"
            ),
            [to],
        )?;
        transaction.execute("DELETE FROM settled WHERE seq <= ?1", [to])?;
        transaction.execute("UPDATE counters SET pruned_to = ?1 WHERE id = 0", [to])?;
        transaction.commit()?;
        Ok(young.is_none() && to == pruned + STEP)
    }
}
