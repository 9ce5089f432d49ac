//! A key of the key store, read by the same schema and checks as those under `keys:` (G1).
//!
//! Called by the key store for each of its rows, and by whoever makes or changes one. Touches nothing.

use super::check::check_keys;
use super::finding::Findings;
use super::secret::Outside;
use super::{AllowedModels, Config, Key, raw, schema, shape, tree};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::path::Path;
use std::sync::{Arc, LazyLock};

static SCHEMA: LazyLock<Value> = LazyLock::new(schema::stored_keys);

/// Why a stored key cannot be used: sentences that name the member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct BadKey(pub Vec<String>);

/// Makes a key of its name, its digest and its settings, which have the members of an entry of `keys:` besides
/// those two. With a `config`, the models must be its own; without one, any name will do, since models come and go.
///
/// # Errors
/// Everything that is wrong with it.
pub fn stored_key(
    name: &str,
    sha256: [u8; 32],
    settings: &Map<String, Value>,
    config: Option<&Config>,
) -> Result<Arc<Key>, BadKey> {
    if let Some(own) = ["name", "sha256"].into_iter().find(|own| settings.contains_key(*own)) {
        return Err(BadKey(vec![format!("{own}: is the key's own, and cannot be set")]));
    }
    let mut entry = settings.clone();
    entry.insert("name".to_owned(), json!(name));
    entry.insert("sha256".to_owned(), json!(const_hex::encode(sha256)));
    // JSON is YAML, too.
    let text = json!({ "keys": [entry] }).to_string();
    let mut findings = Findings::new("");
    let files = RefCell::default();
    let outside = Outside { env: &|_| None, base_dir: Path::new(""), files: &files };
    let key = tree::read(&text, &mut findings).and_then(|root| {
        let shaped = shape::read(&root, &SCHEMA, &outside, &mut findings);
        let file: raw::StoredKeys = serde_json::from_value(shaped).ok()?;
        check_keys(file.keys, config, &root, &mut findings).pop()
    });
    let found = findings.sorted();
    match key {
        Some(key) if found.is_empty() => Ok(key),
        _ => Err(BadKey(found.iter().map(sentence).collect())),
    }
}

fn sentence(finding: &super::Finding) -> String {
    let member = finding.path.trim_start_matches("keys[0]").trim_start_matches('.');
    if member.is_empty() { finding.message.clone() } else { format!("{member}: {}", finding.message) }
}

impl AllowedModels {
    /// As the file has it.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        match self {
            Self::All => vec!["*".to_owned()],
            Self::Named(names) => names.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn g1_a_stored_key_has_the_words_of_the_file() {
        let all = r#"{"models":["a","b"],"tag":"t","expires":"2030-01-01","allow_ips":["10.0.0.0/8"]}"#;
        let key = stored_key("k", [7; 32], &settings(all), None).unwrap();
        assert_eq!((key.name.as_str(), key.sha256, key.tag.as_deref()), ("k", [7; 32], Some("t")));
        assert_eq!(key.models, AllowedModels::Named(vec!["a".into(), "b".into()]));
        assert!(key.expires.is_some() && key.allow_ips.len() == 1);
    }

    #[test]
    fn g1_what_is_wrong_with_a_stored_key_is_said_by_member() {
        for (bad, says) in [
            (r#"{"models":[]}"#, "models: is empty"),
            ("{}", "\"models\" is missing"),
            (r#"{"models":["*"],"expires":"soon"}"#, "expires: write a day"),
            (r#"{"models":["*"],"allow_ips":["x"]}"#, "allow_ips[0]: write an address"),
            (r#"{"models":["*"],"tags":"x"}"#, "tags: no such key; did you mean \"tag\"?"),
            (r#"{"models":["*"],"tag":"${HOME}"}"#, "tag: "),
        ] {
            let error = stored_key("k", [7; 32], &settings(bad), None).unwrap_err().to_string();
            assert!(error.contains(says), "{bad}: {error}");
        }
        assert!(stored_key("", [7; 32], &settings(r#"{"models":["*"]}"#), None).is_err());
    }
}
