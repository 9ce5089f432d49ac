//! What the documents say of the project is so.

use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn architecture_has_a_line_for_each_source_file_and_no_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let map = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let mut found = Vec::new();
    sources(&root.join("src"), &mut found);
    let names: Vec<_> = found
        .iter()
        .map(|path| path.strip_prefix(root).unwrap().to_str().unwrap().to_owned())
        // Tests beside the code belong to the file they test.
        .filter(|name| !name.ends_with("/tests.rs") && !name.contains("/tests/"))
        .collect();
    let missing: Vec<_> = names.iter().filter(|name| !map.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in ARCHITECTURE.md: {missing:?}");
    let listed = map.split('`').filter(|word| word.starts_with("src/") && Path::new(word).extension().is_some());
    let gone: Vec<_> = listed.filter(|name| !root.join(name).is_file()).collect();
    assert!(gone.is_empty(), "in ARCHITECTURE.md and nowhere else: {gone:?}");
}
