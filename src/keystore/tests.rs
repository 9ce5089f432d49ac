use super::{Minted, Store, StoreError, Stored, beside};
use crate::config::{self, Config};
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

fn config(folder: &Path) -> Arc<Config> {
    let text = format!(
        "listen: [{{ address: \"127.0.0.1:0\" }}]
providers: {{ up: {{ base_url: \"http://127.0.0.1:1\" }} }}
models: [{{ name: sol, targets: [{{ provider: up, model: m }}] }}]
keys: [{{ name: of-file, sha256: {}, models: [\"*\"] }}]
key_store: sqlite
ledger: {{ path: \"{}/weir.db\" }}
",
        "7".repeat(64),
        folder.display()
    );
    config::parse(&text, "weir.yaml", &|_| None, Path::new("")).unwrap().config
}

fn settings(value: Value) -> Map<String, Value> {
    serde_json::from_value(value).unwrap()
}

async fn all(store: &Store) -> Vec<Stored> {
    store.list().await.unwrap()
}

#[test]
fn g1_secrets_are_long_random_and_of_plain_letters() {
    let minted: Vec<_> = (0..200).map(|_| Minted::new()).collect();
    let texts: HashSet<_> = minted.iter().map(|minted| minted.expose().to_owned()).collect();
    assert_eq!(texts.len(), 200);
    let letters: HashSet<_> = texts.iter().flat_map(|text| text[5..].chars()).collect();
    assert_eq!(letters.len(), 62);
    for minted in &minted {
        assert!(minted.expose().starts_with("weir-") && minted.expose().len() == 48);
        assert_eq!(minted.prefix(), &minted.expose()[..11]);
        assert_eq!(format!("{minted:?}"), "***");
    }
}

#[tokio::test]
async fn g1_a_key_is_made_changed_and_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let store = Store::of(&config).unwrap();
    assert!(all(&store).await.is_empty());
    let (made, minted) = store.create("alice", &settings(json!({ "tag": "gold" })), &config).await.unwrap();
    assert_eq!(all(&store).await, std::slice::from_ref(&made));
    assert_eq!(made.settings, settings(json!({ "tag": "gold", "models": ["*"] })));
    let file = std::fs::read(beside(&folder.path().join("weir.db"))).unwrap();
    let wal = std::fs::read(folder.path().join("weir.keys.db-wal")).unwrap_or_default();
    let secret = minted.expose().as_bytes();
    assert!(memchr::memmem::find(&[file, wal].concat(), secret).is_none(), "the secret is in the file");

    let changed = store.set("alice", &settings(json!({ "tag": null, "models": ["sol"] })), &config).await.unwrap();
    assert_eq!(changed.settings, settings(json!({ "models": ["sol"] })));
    assert_eq!(changed.sha256, made.sha256);
    let revoked = store.revoke("alice", false, &config).await.unwrap();
    assert!(revoked.revoked.is_some() && !revoked.cut);
    assert!(store.revoke("alice", true, &config).await.unwrap().cut, "later, too");
    let again = store.create("alice", &Map::new(), &config).await.unwrap().0;
    assert!(again.revoked.is_none() && !again.cut && again.sha256 != made.sha256, "the name is free again");
}

#[tokio::test]
async fn g1_what_cannot_be_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let store = Store::of(&config).unwrap();
    store.create("alice", &Map::new(), &config).await.unwrap();
    let before = all(&store).await;
    let said = |error: StoreError| error.to_string();
    let says = [
        said(store.create("alice", &Map::new(), &config).await.unwrap_err()),
        said(store.create("of-file", &Map::new(), &config).await.unwrap_err()),
        said(store.create("", &Map::new(), &config).await.unwrap_err()),
        said(store.create("bob", &settings(json!({ "models": ["lol"] })), &config).await.unwrap_err()),
        said(store.create("bob", &settings(json!({ "sha256": "0" })), &config).await.map(|_| ()).unwrap_err()),
        said(store.set("alice", &settings(json!({ "models": null })), &config).await.unwrap_err()),
        said(store.set("alice", &settings(json!({ "colour": "red" })), &config).await.unwrap_err()),
        said(store.set("bob", &Map::new(), &config).await.unwrap_err()),
        said(store.revoke("of-file", false, &config).await.unwrap_err()),
        said(store.show("bob").await.unwrap_err()),
    ];
    let wanted = [
        "already",
        "under \"keys:\"",
        "name",
        "no model named \"lol\"; use \"*\" or some of: sol",
        "sha256",
        "\"models\" is missing",
        "colour: no such key",
        "no key named \"bob\"",
        "under \"keys:\"",
        "no key named \"bob\"",
    ];
    for (said, wanted) in says.iter().zip(wanted) {
        assert!(said.contains(wanted), "{said:?} has no {wanted:?}");
    }
    assert_eq!(all(&store).await, before);
}

#[tokio::test]
async fn g1_another_database_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let path = beside(&config.ledger.path);
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE theirs (a)").unwrap();
    let error = Store::of(&config).unwrap().create("alice", &Map::new(), &config).await.unwrap_err();
    assert!(error.to_string().contains("no key store of Weir's"), "{error}");
}
