//! The key store: virtual keys that are not in the operator's file (G1, G4).
//!
//! Changed by `weir keys` and the admin API, read by the gateway's [`watch`] thread. Touches a SQLite file beside the
//! ledger, or the PostgreSQL of `ledger.postgres`. Holds digests, never a secret.

mod local;
mod mint;
mod remote;
pub mod watch;

#[cfg(test)]
mod tests;

pub use mint::Minted;

use crate::config::{self, BadKey, Config};
use crate::ledger::sink::{Connector, SinkError};
use local::Local;
use remote::Remote;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The store cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file names none.
    #[error("there is no key store; add \"key_store: sqlite\" (or postgres) to the config and restart")]
    NoStore,
    /// The SQLite file.
    #[error("the key store {path}: {cause}")]
    Local {
        /// The file.
        path: String,
        /// What `SQLite` or the system said.
        cause: String,
    },
    /// PostgreSQL.
    #[error("the key store: {0}")]
    Remote(#[from] SinkError),
    /// A key of that name is in force.
    #[error("there is a key named {0:?} already; choose another name, or change it with \"weir keys set\"")]
    Taken(String),
    /// The name stands in the file.
    #[error("the key {0:?} stands in the config, under \"keys:\"; it is changed there")]
    InFile(String),
    /// No key of that name.
    #[error("there is no key named {0:?} in the store")]
    Unknown(String),
    /// It was revoked.
    #[error("the key {0:?} was revoked; make another one")]
    Revoked(String),
    /// What was asked for cannot be a key.
    #[error("{0}")]
    Bad(#[from] BadKey),
}

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Remote(error.into())
    }
}

/// One key as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Unique.
    pub name: String,
    /// SHA-256 of the secret.
    pub sha256: [u8; 32],
    /// How the secret begins, to tell keys apart.
    pub prefix: String,
    /// The members of an entry of `keys:`, besides name and digest.
    pub settings: Map<String, Value>,
    /// Seconds since 1970.
    pub created: i64,
    /// Seconds since 1970.
    pub changed: i64,
    /// Seconds since 1970, once it is.
    pub revoked: Option<i64>,
    /// Revoked with `--now`: its running streams end, too.
    pub cut: bool,
}

impl Stored {
    /// For people and programs: all but the digest.
    #[must_use]
    pub fn shown(&self) -> Value {
        let time =
            |seconds: i64| jiff::Timestamp::from_second(seconds).map_or_else(|_| String::new(), |at| at.to_string());
        let mut shown = json!({
            "name": self.name,
            "prefix": self.prefix,
            "created": time(self.created),
            "changed": time(self.changed),
            "revoked": self.revoked.map(time),
        });
        if let Some(members) = shown.as_object_mut() {
            members.extend(self.settings.clone());
        }
        shown
    }

    /// As a key that requests can be checked with.
    ///
    /// # Errors
    /// When a member means nothing to this version.
    pub fn key(&self, config: Option<&Config>) -> Result<std::sync::Arc<config::Key>, BadKey> {
        config::stored_key(&self.name, self.sha256, &self.settings, config)
    }

    fn merge(&mut self, changes: &Map<String, Value>) {
        for (member, value) in changes {
            if value.is_null() {
                self.settings.remove(member);
            } else {
                self.settings.insert(member.clone(), value.clone());
            }
        }
    }
}

/// Where the keys are.
#[derive(Clone, Debug)]
pub enum Store {
    /// In a file of this machine.
    Local(Local),
    /// In PostgreSQL.
    Remote(Remote),
}

impl Store {
    /// The store that the file names. Connects to nothing yet.
    ///
    /// # Errors
    /// When it names none, or PostgreSQL's URL cannot be used.
    pub fn of(config: &Config) -> Result<Self, StoreError> {
        match config.key_store {
            None => Err(StoreError::NoStore),
            Some(config::KeyStore::Sqlite) => Ok(Self::Local(Local::new(beside(&config.ledger.path)))),
            Some(config::KeyStore::Postgres) => {
                let url = config.ledger.postgres.as_ref().ok_or(StoreError::NoStore)?;
                Ok(Self::Remote(Remote::new(Connector::new(url.url.expose())?)))
            }
        }
    }

    /// All keys, also revoked ones, by name.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn list(&self) -> Result<Vec<Stored>, StoreError> {
        match self {
            Self::Local(local) => local.list(),
            Self::Remote(remote) => remote.list().await,
        }
    }

    /// One key.
    ///
    /// # Errors
    /// When there is none of that name, or the store cannot be read.
    pub async fn show(&self, name: &str) -> Result<Stored, StoreError> {
        let found = self.list().await?.into_iter().find(|key| key.name == name);
        found.ok_or_else(|| StoreError::Unknown(name.to_owned()))
    }

    /// Makes a key. Its secret is in what is returned, and nowhere else. The name of a revoked key can be used again.
    ///
    /// # Errors
    /// When the name is in use, a setting means nothing, or the store cannot be written.
    pub async fn create(
        &self,
        name: &str,
        settings: &Map<String, Value>,
        config: &Config,
    ) -> Result<(Stored, Minted), StoreError> {
        if config.keys.iter().any(|key| key.name == name) {
            return Err(StoreError::InFile(name.to_owned()));
        }
        let minted = Minted::new();
        let now = now();
        let mut stored = Stored {
            name: name.to_owned(),
            sha256: minted.digest(),
            prefix: minted.prefix().to_owned(),
            settings: Map::new(),
            created: now,
            changed: now,
            revoked: None,
            cut: false,
        };
        stored.merge(settings);
        stored.settings.entry("models").or_insert_with(|| json!(["*"]));
        stored.key(Some(config))?;
        self.write(name, |before| match before {
            Some(before) if before.revoked.is_none() => Err(StoreError::Taken(before.name)),
            Some(_) | None => Ok(stored.clone()),
        })
        .await
        .map(|stored| (stored, minted))
    }

    /// Changes settings; a null removes one. Answers the key as it is then.
    ///
    /// # Errors
    /// When there is no such key, a setting means nothing, or the store cannot be written.
    pub async fn set(&self, name: &str, changes: &Map<String, Value>, config: &Config) -> Result<Stored, StoreError> {
        self.write(name, |before| {
            let mut stored = before.ok_or_else(|| unknown(name, config))?;
            if stored.revoked.is_some() {
                return Err(StoreError::Revoked(name.to_owned()));
            }
            stored.merge(changes);
            stored.changed = now();
            stored.key(Some(config))?;
            Ok(stored)
        })
        .await
    }

    /// Revokes for ever. With `cut` its running streams end, too; that can be asked for later as well.
    ///
    /// # Errors
    /// When there is no such key, or the store cannot be written.
    pub async fn revoke(&self, name: &str, cut: bool, config: &Config) -> Result<Stored, StoreError> {
        self.write(name, |before| {
            let mut stored = before.ok_or_else(|| unknown(name, config))?;
            stored.revoked.get_or_insert_with(now);
            stored.cut |= cut;
            stored.changed = now();
            Ok(stored)
        })
        .await
    }

    /// Replaces one key by what `change` makes of it, in one transaction.
    async fn write(
        &self,
        name: &str,
        change: impl FnOnce(Option<Stored>) -> Result<Stored, StoreError> + Send,
    ) -> Result<Stored, StoreError> {
        match self {
            Self::Local(local) => local.write(name, change),
            Self::Remote(remote) => remote.write(name, change).await,
        }
    }
}

fn unknown(name: &str, config: &Config) -> StoreError {
    if config.keys.iter().any(|key| key.name == name) {
        StoreError::InFile(name.to_owned())
    } else {
        StoreError::Unknown(name.to_owned())
    }
}

/// The store's file: `data/weir.db` has `data/weir.keys.db` beside it.
#[must_use]
pub fn beside(ledger: &Path) -> PathBuf {
    ledger.with_extension("keys.db")
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
