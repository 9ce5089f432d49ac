//! The key store in PostgreSQL, shared by all gateways that use it (G4).
//!
//! Called by the store and its watch. Touches the network.

use super::{StoreError, Stored};
use crate::ledger::sink::{Connector, SinkError};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Row};

/// A server that takes longer is treated as gone.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Keeps two gateways from making the tables at once (`wkey` in ASCII).
const LOCK: i64 = 0x776b_6579;
/// The only format so far.
const FORMAT: i64 = 1;
const TABLES: &str = "CREATE TABLE IF NOT EXISTS weir_keys (
    name text PRIMARY KEY, sha256 text NOT NULL UNIQUE, prefix text NOT NULL, settings text NOT NULL,
    created bigint NOT NULL, changed bigint NOT NULL, revoked bigint, cut boolean NOT NULL DEFAULT false);
    CREATE TABLE IF NOT EXISTS weir_keys_state (format bigint NOT NULL, version bigint NOT NULL)";
const COLUMNS: &str = "name, sha256, prefix, settings, created, changed, revoked, cut";

/// Where it is.
#[derive(Clone, Debug)]
pub struct Remote {
    connector: Arc<Connector>,
}

/// A live connection.
pub(super) struct Session {
    client: Client,
    driver: JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Remote {
    pub(super) fn new(connector: Connector) -> Self {
        Self { connector: Arc::new(connector) }
    }

    /// Connects, and makes the tables.
    pub(super) async fn session(&self) -> Result<Session, StoreError> {
        within(async {
            let (client, driver) = self.connector.connect().await?;
            let mut session = Session { client, driver };
            session.prepare().await?;
            Ok(session)
        })
        .await
    }

    pub(super) async fn list(&self) -> Result<Vec<Stored>, StoreError> {
        let mut session = self.session().await?;
        Ok(session.read().await?.1)
    }

    pub(super) async fn write(
        &self,
        name: &str,
        change: impl FnOnce(Option<Stored>) -> Result<Stored, StoreError> + Send,
    ) -> Result<Stored, StoreError> {
        let mut session = self.session().await?;
        within(session.write(name, change)).await
    }
}

impl Session {
    async fn prepare(&mut self) -> Result<(), StoreError> {
        let transaction = self.client.transaction().await?;
        transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
        transaction.batch_execute(TABLES).await?;
        match transaction.query_opt("SELECT format FROM weir_keys_state", &[]).await? {
            Some(row) if row.get::<_, i64>(0) > FORMAT => {
                return Err(SinkError("the key tables are of a newer Weir".to_owned()).into());
            }
            Some(_) => {}
            None => {
                transaction.execute("INSERT INTO weir_keys_state (format, version) VALUES ($1, 0)", &[&FORMAT]).await?;
            }
        }
        Ok(transaction.commit().await?)
    }

    /// Changes with each write.
    pub(super) async fn version(&mut self) -> Result<i64, StoreError> {
        within(async { Ok(self.client.query_one("SELECT version FROM weir_keys_state", &[]).await?.get(0)) }).await
    }

    /// The version, and all keys of it.
    pub(super) async fn read(&mut self) -> Result<(i64, Vec<Stored>), StoreError> {
        within(async {
            // In this order: what is written in between is read again.
            let version = self.client.query_one("SELECT version FROM weir_keys_state", &[]).await?.get(0);
            let rows = self.client.query(&format!("SELECT {COLUMNS} FROM weir_keys ORDER BY name"), &[]).await?;
            Ok((version, rows.iter().map(stored).collect::<Result<_, _>>()?))
        })
        .await
    }

    async fn write(
        &mut self,
        name: &str,
        change: impl FnOnce(Option<Stored>) -> Result<Stored, StoreError> + Send,
    ) -> Result<Stored, StoreError> {
        let transaction = self.client.transaction().await?;
        // The one row is the lock of all writers.
        transaction.execute("UPDATE weir_keys_state SET version = version + 1", &[]).await?;
        let before =
            transaction.query_opt(&format!("SELECT {COLUMNS} FROM weir_keys WHERE name = $1"), &[&name]).await?;
        let after = change(before.as_ref().map(stored).transpose()?)?;
        let settings = serde_json::Value::Object(after.settings.clone()).to_string();
        let digest = const_hex::encode(after.sha256);
        let sql = format!(
            "INSERT INTO weir_keys ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (name) DO UPDATE SET \
             sha256 = $2, prefix = $3, settings = $4, created = $5, changed = $6, revoked = $7, cut = $8"
        );
        transaction
            .execute(
                &sql,
                &[
                    &after.name,
                    &digest,
                    &after.prefix,
                    &settings,
                    &after.created,
                    &after.changed,
                    &after.revoked,
                    &after.cut,
                ],
            )
            .await?;
        transaction.commit().await?;
        Ok(after)
    }
}

async fn within<T>(work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = |_| SinkError(format!("no answer within {TIMEOUT:?}"));
    tokio::time::timeout(TIMEOUT, work).await.map_err(late)?
}

fn stored(row: &Row) -> Result<Stored, StoreError> {
    let broken = |what: String| StoreError::from(SinkError(format!("a stored key cannot be read: {what}")));
    Ok(Stored {
        name: row.get(0),
        sha256: const_hex::decode_to_array(row.get::<_, String>(1)).map_err(|error| broken(error.to_string()))?,
        prefix: row.get(2),
        settings: serde_json::from_str(&row.get::<_, String>(3)).map_err(|error| broken(error.to_string()))?,
        created: row.get(4),
        changed: row.get(5),
        revoked: row.get(6),
        cut: row.get(7),
    })
}
