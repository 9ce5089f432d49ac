//! What the ledger's file says, and price files for it.

use super::weir::Weir;
use super::within;
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OpenFlags, OptionalExtension};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Weir's own price file: USD per million tokens, for whatever provider.
pub(crate) const OWN_PRICES: &str = r#"
prices:
  - { model: upstream-model, input: "3", cache_read: "0.30", cache_write_5m: "3.75", cache_write_1h: "6", output: "15" }
"#;
/// The same prices in LiteLLM's shape.
pub(crate) const LITELLM_PRICES: &str = r#"{
  "sample_spec": { "input_cost_per_token": 0.0 },
  "up/upstream-model": {
    "litellm_provider": "up", "mode": "chat", "max_tokens": 8192,
    "input_cost_per_token": 3e-06, "output_cost_per_token": 1.5e-05, "cache_read_input_token_cost": 3e-07,
    "cache_creation_input_token_cost": 3.75e-06, "cache_creation_input_token_cost_above_1hr": 6e-06
  }
}"#;

/// A price file in a folder of its own, and the section that names it, with a fifth on top.
pub(crate) fn prices(name: &str, content: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join(name);
    std::fs::write(&file, content).expect("a writable folder");
    let section = format!("prices: {{ cost: [\"{}\"], sell: {{ markup: \"1.20\" }} }}", file.display());
    (folder, section)
}

/// The whole row of a settled request.
pub(crate) fn row(ledger: &Path, id: &str) -> Option<Value> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let connection = Connection::open_with_flags(ledger, flags).expect("a ledger");
    let mut statement = connection.prepare("SELECT * FROM records WHERE request_id = ?1").expect("the view");
    let read = |row: &rusqlite::Row<'_>| {
        let mut object = serde_json::Map::new();
        for (index, name) in row.as_ref().column_names().enumerate() {
            let value = match row.get::<_, Sql>(index)? {
                Sql::Integer(number) => number.into(),
                Sql::Text(text) => text.into(),
                Sql::Real(_) | Sql::Blob(_) | Sql::Null => Value::Null,
            };
            object.insert(name.to_owned(), value);
        }
        Ok(Value::Object(object))
    };
    statement.query_row([id], read).optional().expect("a row")
}

/// The first line of a question to a ledger, its columns one after the other.
pub(crate) fn ask(ledger: &Path, sql: &str) -> String {
    let connection = Connection::open_with_flags(ledger, OpenFlags::SQLITE_OPEN_READ_ONLY).expect("a ledger");
    let mut statement = connection.prepare(sql).expect("a question");
    let columns = statement.column_count();
    let read = |row: &rusqlite::Row<'_>| {
        let cell = |index| match row.get::<_, Sql>(index) {
            Ok(Sql::Integer(number)) => number.to_string(),
            Ok(Sql::Text(text)) => text,
            Ok(other) => format!("{other:?}"),
            Err(error) => error.to_string(),
        };
        Ok((0..columns).map(cell).collect::<Vec<_>>().join(" "))
    };
    statement.query_row([], read).expect("an answer")
}

/// Runs the binary's own commands.
pub(crate) fn weir_command(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir")).args(args).output().expect("the binary")
}

/// `weir ledger verify` says that all is well.
pub(crate) fn verify(ledger: &Path) {
    let output = weir_command(&["ledger", "verify", "--ledger", ledger.to_str().expect("UTF-8")]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

impl Weir {
    /// The ledger's file, unless a test put it elsewhere.
    pub(crate) fn ledger(&self) -> PathBuf {
        self.folder.join("data/weir.db")
    }

    /// The row of a request, once it is settled.
    pub(crate) async fn booked(&self, id: &str) -> Value {
        within("the settled row", async {
            loop {
                if let Some(row) = row(&self.ledger(), id) {
                    return row;
                }
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        })
        .await
    }

    /// A question to the ledger.
    pub(crate) fn ask(&self, sql: &str) -> String {
        ask(&self.ledger(), sql)
    }
}
