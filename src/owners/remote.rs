//! The map in PostgreSQL, shared by gateways (G4).
//!
//! Called by the map's thread alone. Touches the network.

use super::local::Row;
use super::{Owner, now, patience};
use crate::ledger::sink::{Connector, SinkError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

/// A server that takes longer is treated as gone.
const TIMEOUT: Duration = Duration::from_secs(2);
/// After a failure it is left alone for this long.
const PAUSE: Duration = Duration::from_secs(1);
/// Keeps two gateways from making the table at once (`wown` in ASCII).
const LOCK: i64 = 0x776f_776e;
const TABLE: &str = "CREATE TABLE IF NOT EXISTS weir_owners (
    id text PRIMARY KEY, key text NOT NULL, target text NOT NULL, model text NOT NULL, unsettled boolean NOT NULL,
    until bigint NOT NULL);
    ALTER TABLE weir_owners ADD COLUMN IF NOT EXISTS account text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS due bigint NOT NULL DEFAULT 0, ADD COLUMN IF NOT EXISTS asked integer NOT NULL DEFAULT 0;
    CREATE INDEX IF NOT EXISTS weir_owners_due ON weir_owners (due) WHERE unsettled";

/// Where it is, and the connection while there is one.
pub(super) struct Remote {
    connector: Connector,
    session: Option<(Client, JoinHandle<()>)>,
    not_before: Option<Instant>,
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.hang_up();
    }
}

impl Remote {
    pub(super) const fn new(connector: Connector) -> Self {
        Self { connector, session: None, not_before: None }
    }

    pub(super) async fn keep(&mut self, rows: &[Row]) -> Result<(), SinkError> {
        let columns = |pick: fn(&Row) -> &str| rows.iter().map(pick).collect::<Vec<_>>();
        let (ids, keys) = (columns(|row| &row.id), columns(|row| &row.owner.key));
        let (targets, models) = (columns(|row| &row.owner.target), columns(|row| &row.owner.model));
        let accounts = columns(|row| &row.owner.account);
        let unsettled: Vec<bool> = rows.iter().map(|row| row.owner.unsettled).collect();
        let numbers = |pick: fn(&Row) -> i64| rows.iter().map(pick).collect::<Vec<_>>();
        let (until, due) = (numbers(|row| row.until), numbers(|row| row.due));
        self.with(async |client| {
            let sql = "INSERT INTO weir_owners (id, key, target, account, model, unsettled, until, due) \
                SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], \
                $6::boolean[], $7::bigint[], $8::bigint[]) ON CONFLICT (id) DO NOTHING";
            client.execute(sql, &[&ids, &keys, &targets, &accounts, &models, &unsettled, &until, &due]).await.map(drop)
        })
        .await
    }

    pub(super) async fn find(&mut self, id: &str) -> Result<Option<Row>, SinkError> {
        self.with(async |client| {
            let sql = "SELECT key, target, account, model, unsettled, until FROM weir_owners \
                WHERE id = $1 AND until > $2";
            let row = client.query_opt(sql, &[&id, &now()]).await?;
            Ok(row.map(|row| Row {
                id: id.to_owned(),
                owner: owner(&row),
                until: row.get(5),
                // PostgreSQL hands it out.
                due: i64::MAX,
            }))
        })
        .await
    }

    /// Answers whether it was unsettled.
    pub(super) async fn settle(&mut self, id: &str) -> Result<bool, SinkError> {
        self.with(async |client| {
            let sql = "UPDATE weir_owners SET unsettled = false WHERE id = $1 AND unsettled";
            Ok(client.execute(sql, &[&id]).await? == 1)
        })
        .await
    }

    /// Hands out what is to be asked for, to one gateway at a time, and notes when it is to be asked for again.
    pub(super) async fn due(&mut self, targets: &[String], most: usize) -> Result<Vec<(String, Owner)>, SinkError> {
        let sql = format!(
            "UPDATE weir_owners SET due = $1 + {}, asked = asked + 1 WHERE id IN (
                SELECT id FROM weir_owners WHERE unsettled AND due <= $1 AND asked < $2 AND until > $1
                AND target = ANY($3) ORDER BY due LIMIT $4 FOR UPDATE SKIP LOCKED)
            RETURNING key, target, account, model, unsettled, id",
            patience::NEXT
        );
        let (now, limit) = (now(), i64::try_from(most).unwrap_or(i64::MAX));
        let asked = i32::try_from(patience::MOST).unwrap_or(i32::MAX);
        self.with(async |client| {
            let rows = client.query(&sql, &[&now, &asked, &targets, &limit]).await?;
            Ok(rows.iter().map(|row| (row.get(5), owner(row))).collect())
        })
        .await
    }

    pub(super) async fn forget(&mut self, id: &str) -> Result<(), SinkError> {
        self.with(async |client| client.execute("DELETE FROM weir_owners WHERE id = $1", &[&id]).await.map(drop)).await
    }

    pub(super) async fn expire(&mut self) -> Result<(), SinkError> {
        self.with(async |client| client.execute("DELETE FROM weir_owners WHERE until <= $1", &[&now()]).await.map(drop))
            .await
    }

    async fn with<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, SinkError> {
        if self.not_before.is_some_and(|at| Instant::now() < at) {
            return Err(SinkError("it was away a moment ago".to_owned()));
        }
        let done = tokio::time::timeout(TIMEOUT, async {
            let (client, _) = match self.session.take() {
                Some(session) if !session.0.is_closed() => self.session.insert(session),
                Some(_) | None => self.session.insert(connect(&self.connector).await?),
            };
            Ok(work(client).await?)
        });
        let done = done.await.unwrap_or_else(|_| Err(SinkError(format!("no answer within {TIMEOUT:?}"))));
        if done.is_err() {
            self.hang_up();
            self.not_before = Some(Instant::now() + PAUSE);
        } else {
            self.not_before = None;
        }
        done
    }

    fn hang_up(&mut self) {
        if let Some((_, driver)) = self.session.take() {
            driver.abort();
        }
    }
}

async fn connect(connector: &Connector) -> Result<(Client, JoinHandle<()>), SinkError> {
    let (mut client, driver) = connector.connect().await?;
    let transaction = client.transaction().await?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    transaction.batch_execute(TABLE).await?;
    transaction.commit().await?;
    Ok((client, driver))
}

/// Its first five columns.
fn owner(row: &tokio_postgres::Row) -> Owner {
    Owner { key: row.get(0), target: row.get(1), account: row.get(2), model: row.get(3), unsettled: row.get(4) }
}
