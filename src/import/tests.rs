//! Configs of LiteLLM and what becomes of them: tests/golden/import.

use super::litellm::import;
use super::{Import, NotOne};
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/import").join(name)
}

/// Imported, and checked as an operator's file is.
fn imported(name: &str) -> Import {
    let text = std::fs::read_to_string(golden(&format!("{name}.litellm.yaml"))).unwrap();
    let imported = import(&text, "config.yaml").unwrap();
    let env = |_: &str| Some("placeholder".to_owned());
    let checked = crate::config::parse(&imported.yaml, "weir.yaml", &env, Path::new("/nonexistent"));
    if let Err(report) = checked {
        panic!("{name}: {report}\n{}", imported.yaml);
    }
    imported
}

#[test]
fn litellm_configs_become_weirs() {
    for name in ["one", "many", "odd"] {
        let found = imported(name);
        let wanted = std::fs::read_to_string(golden(&format!("{name}.weir.yaml"))).unwrap_or_default();
        assert_eq!(found.yaml, wanted, "{name} is\n{}", found.yaml);
        for note in &found.notes {
            assert!(found.yaml.contains(note), "{name}: what is missing stands in the file: {note}");
        }
    }
}

#[test]
fn the_master_key_is_a_digest_and_a_variable_is_named() {
    let many = imported("many");
    assert!(!many.yaml.contains("sk-1234") && !many.yaml.contains("sk-literal"), "{}", many.yaml);
    assert!(many.yaml.contains("${AZURE_EU_KEY}") && !many.yaml.contains("os.environ"), "{}", many.yaml);
    let odd = imported("odd");
    assert!(odd.notes.iter().any(|note| note.contains("${LITELLM_MASTER_KEY}")), "{:?}", odd.notes);
}

#[test]
fn what_is_no_config_of_litellm_is_said() {
    assert!(matches!(import("a: [", "x"), Err(NotOne::Yaml(_))));
    for text in ["", "[]", "just text", "listen: []", "model_list: {}", "model_list: [1, {}]"] {
        assert!(matches!(import(text, "x"), Err(NotOne::Models(_))), "{text}");
    }
    let only = import("model_list: [{ model_name: a, litellm_params: { model: bedrock/b } }]", "x").unwrap_err();
    assert!(only.to_string().contains("does not speak the API of bedrock"), "{only}");
}
