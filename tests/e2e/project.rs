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

/// Somebody who is woken by an alert finds it by its name.
#[test]
fn the_runbook_has_a_heading_for_each_alert_and_no_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let words_after = |text: &str, start: &str| {
        let mut names: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(start)).map(str::to_owned).collect();
        names.sort();
        names
    };
    let alerts = words_after(&read("conf/prometheus/alerts.rules.yaml"), "      - alert: ");
    let runbook = read("docs/runbook.md");
    assert!(alerts.len() > 20, "{alerts:?}");
    assert_eq!(words_after(&runbook, "### "), alerts);
    let heading = |name: &str| name.to_lowercase().replace([',', '.'], "").replace(' ', "-");
    let places: Vec<_> =
        runbook.lines().filter_map(|line| line.trim_start_matches('#').strip_prefix(' ')).map(heading).collect();
    for link in runbook.split("](#").skip(1).filter_map(|rest| rest.split(')').next()) {
        assert!(places.iter().any(|place| place == link), "the runbook points to #{link}, which it has not");
    }
    assert!(read("README.md").contains("](docs/runbook.md)"));
}

/// The README's command, with the binary that is tested.
#[test]
fn a3_k3_the_demo_of_a_dying_target_shows_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(std::fs::read_to_string(root.join("README.md")).unwrap().contains("    make failover\n"));
    let port = crate::harness::free_address().port();
    let run = std::process::Command::new("make")
        .args(["-s", "failover", "CARGO=true", &format!("FAILOVER_PORT={port}")])
        .arg(format!("WEIR={}", env!("CARGO_BIN_EXE_weir")))
        .current_dir(root)
        .output();
    let run = run.unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}\n{}", String::from_utf8_lossy(&run.stderr));
    let (before, after) = said.split_once("event: message_start\n").expect("an answer");
    assert!(before.matches(": weir-keepalive\n\n").count() >= 1, "{said}");
    assert!(after.contains("event: message_stop\n") && !after.contains("event: message_start"), "{said}");
    let (_, attempts) = after.split_once("\"attempts\":").expect("the access record");
    let (dies, answers) = (attempts.find("demo-silent-dies\""), attempts.find("\"demo/demo\""));
    assert!(dies.is_some() && dies < answers && attempts.contains("\"broken\""), "{attempts}");
}
