use super::{Owner, Owners, beside};
use crate::config;
use std::path::Path;
use std::time::Duration;

fn open(folder: &Path) -> Owners {
    let text = format!(
        "listen: [{{ address: \"127.0.0.1:0\" }}]
providers: {{ up: {{ base_url: \"http://127.0.0.1:1\" }} }}
models: [{{ name: m, targets: [{{ provider: up, model: m }}] }}]
keys: []
ledger: {{ path: \"{}/weir.db\" }}
",
        folder.display()
    );
    let loaded = config::parse(&text, "weir.yaml", &|_| None, Path::new("")).unwrap();
    Owners::open(&loaded.config.ledger).unwrap()
}

fn owner(key: &str, unsettled: bool) -> Owner {
    Owner { key: key.to_owned(), target: "up/m".to_owned(), model: "m".to_owned(), unsettled }
}

#[tokio::test]
async fn a12_what_is_kept_is_found_until_it_is_over_forgotten_or_settled() {
    let folder = tempfile::tempdir().unwrap();
    let owners = open(folder.path());
    let day = Duration::from_hours(24);
    owners.keep("resp_1", owner("a", true), day).done().await;
    owners.keep("resp_over", owner("a", false), Duration::ZERO).done().await;
    assert_eq!(owners.find("resp_1").await, Ok(Some(owner("a", true))));
    assert_eq!(owners.find("resp_over").await, Ok(None));
    assert_eq!(owners.find("resp_2").await, Ok(None));
    assert!(owners.settle("resp_1").await && !owners.settle("resp_1").await, "once");
    assert!(!owners.settle("resp_2").await);
    assert_eq!(owners.find("resp_1").await, Ok(Some(owner("a", false))));
    owners.forget("resp_1");
    assert_eq!(owners.find("resp_1").await, Ok(None));
    assert!(beside(&folder.path().join("weir.db")).exists());
}

#[tokio::test]
async fn a12_many_at_once_are_all_durable() {
    let folder = tempfile::tempdir().unwrap();
    let owners = open(folder.path());
    let keeping: Vec<_> = (0..500)
        .map(|n| owners.keep(&format!("resp_{n}"), owner(&n.to_string(), false), Duration::from_mins(1)))
        .collect();
    for keeping in keeping {
        keeping.done().await;
    }
    drop(owners);
    let again = open(folder.path());
    for n in [0, 255, 256, 499] {
        assert_eq!(again.find(&format!("resp_{n}")).await.unwrap().unwrap().key, n.to_string());
    }
}
