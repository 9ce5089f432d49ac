//! PostgreSQL's side of the sink: its tables, and how far they are.
//!
//! Called by the sink alone. Touches the connection.

use super::SinkError;
use super::connect::Connector;
use super::local::Local;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Transaction};

/// One script for each version; a database at version n has seen the first n.
const MIGRATIONS: [&str; 1] = [include_str!("1.sql")];
/// Keeps two gateways from migrating at once (`weir` in ASCII).
const MIGRATION_LOCK: i64 = 0x7765_6972;

/// The columns of `weir_settled` that are not text, beside `seq`; those in the second list hold JSON.
const NUMBERS: &str = "maybe_billed stream status effective_status input cache_read cache_write_5m cache_write_1h \
    output reasoning audio_input audio_output web_search charge cost anomalies received admitted upstream_first_byte \
    upstream_first_output first_output first_visible last_output duration waited bytes output_events keepalives settled_at";
const JSON: &str = "attempts other_models charged";

const CORRECTIONS: &str = "INSERT INTO weir_corrections \
    (ledger, seq, id, request_id, made, day, charge, cost, input, output, why) \
    SELECT $2, seq, id, request_id, made, day, charge, cost, input, output, why \
    FROM jsonb_to_recordset($1::text::jsonb) AS r(seq bigint, id uuid, request_id uuid, made bigint, day text, \
    charge bigint, cost bigint, input bigint, output bigint, why text) ON CONFLICT (id) DO NOTHING";

/// Up to where everything is shipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) settled: i64,
    pub(super) corrections: i64,
}

/// A live connection.
pub(super) struct Remote {
    client: Client,
    /// Drives the connection; ends with it.
    driver: JoinHandle<()>,
    ledger: String,
    insert: String,
    position: Position,
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Remote {
    /// Connects, migrates and finds its place.
    pub(super) async fn connect(connector: &Connector, ledger: &str) -> Result<Self, SinkError> {
        let (client, driver) = connector.connect().await?;
        let mut remote =
            Self { client, driver, ledger: ledger.to_owned(), insert: insert(), position: Position::default() };
        remote.migrate().await?;
        let sql = "INSERT INTO weir_cursors (ledger) VALUES ($1) ON CONFLICT (ledger) DO NOTHING";
        remote.client.execute(sql, &[&remote.ledger]).await?;
        Ok(remote)
    }

    pub(super) const fn position(&self) -> Position {
        self.position
    }

    /// Ships one batch of each kind in one transaction; answers how many rows it held.
    pub(super) async fn ship(&mut self, local: &mut Local, batch: usize) -> Result<u64, SinkError> {
        let transaction = self.client.transaction().await?;
        // The lock on the cursor keeps two processes on one ledger (an upgrade) from shipping at once.
        let sql = "SELECT settled, settled_id, corrections FROM weir_cursors WHERE ledger = $1 FOR UPDATE";
        let row = transaction.query_one(sql, &[&self.ledger]).await?;
        let (mut settled, last_id): (i64, String) = (row.get(0), row.get(1));
        let mut corrections: i64 = row.get(2);
        if settled > 0 && !local.is_same(settled, last_id).await? {
            log::warn!(
                "the ledger is not the one that was shipped (restored from a copy?); everything is shipped again"
            );
            (settled, corrections) = (0, 0);
        }
        let rows = local.settled(settled, batch).await?;
        let fixes = local.corrections(corrections, batch).await?;
        if rows.count > 0 {
            transaction.execute(&self.insert, &[&rows.json, &self.ledger]).await?;
            move_cursor(&transaction, &self.ledger, "settled = $2, settled_id = $3", &[&rows.last, &rows.last_id])
                .await?;
        }
        if fixes.count > 0 {
            transaction.execute(CORRECTIONS, &[&fixes.json, &self.ledger]).await?;
            move_cursor(&transaction, &self.ledger, "corrections = $2", &[&fixes.last]).await?;
        }
        transaction.commit().await?;
        self.position = Position { settled: rows.last, corrections: fixes.last };
        Ok(rows.count + fixes.count)
    }

    async fn migrate(&mut self) -> Result<(), SinkError> {
        let transaction = self.client.transaction().await?;
        transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK]).await?;
        transaction.batch_execute("CREATE TABLE IF NOT EXISTS weir_schema (version bigint NOT NULL)").await?;
        let version = transaction.query_opt("SELECT version FROM weir_schema", &[]).await?;
        let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
        let version: i64 = if let Some(row) = version {
            row.get(0)
        } else {
            transaction.execute("INSERT INTO weir_schema (version) VALUES (0)", &[]).await?;
            0
        };
        if version > known {
            return Err(SinkError(format!(
                "the tables are of a newer Weir (version {version}, this one knows {known})"
            )));
        }
        for script in MIGRATIONS.iter().skip(usize::try_from(version).unwrap_or(0)) {
            transaction.batch_execute(script).await?;
        }
        transaction.execute("UPDATE weir_schema SET version = $1", &[&known]).await?;
        Ok(transaction.commit().await?)
    }
}

async fn move_cursor(
    transaction: &Transaction<'_>,
    ledger: &String,
    set: &str,
    values: &[&(dyn tokio_postgres::types::ToSql + Sync)],
) -> Result<(), SinkError> {
    let mut all: Vec<&(dyn tokio_postgres::types::ToSql + Sync)> = vec![ledger];
    all.extend(values);
    transaction.execute(&format!("UPDATE weir_cursors SET {set} WHERE ledger = $1"), &all).await?;
    Ok(())
}

/// One statement for a whole batch, which comes as one JSON array.
fn insert() -> String {
    let columns = crate::ledger::row::COLUMNS.split(',').map(str::trim).filter(|column| *column != "owner");
    let columns: Vec<&str> = columns.collect();
    let has = |list: &str, column: &str| list.split_whitespace().any(|name| name == column);
    let kinds = columns.iter().map(|column| match *column {
        "request_id" => format!("{column} uuid"),
        _ if has(NUMBERS, column) => format!("{column} bigint"),
        _ => format!("{column} text"),
    });
    let kinds = kinds.collect::<Vec<_>>().join(", ");
    let chosen =
        columns.iter().map(|column| if has(JSON, column) { format!("{column}::jsonb") } else { (*column).to_owned() });
    let chosen = chosen.collect::<Vec<_>>().join(", ");
    let columns = columns.join(", ");
    format!(
        "INSERT INTO weir_settled (ledger, seq, {columns}) SELECT $2, seq, {chosen} \
         FROM jsonb_to_recordset($1::text::jsonb) AS r(seq bigint, {kinds}) ON CONFLICT (request_id) DO NOTHING"
    )
}
