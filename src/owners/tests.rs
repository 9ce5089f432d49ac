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
    let (key, target, account, model) = (key.to_owned(), "up/m".to_owned(), "1f".to_owned(), "m".to_owned());
    Owner { key, target, account, model, unsettled }
}

/// Files of the first version have no account.
#[tokio::test]
async fn a12_a_file_of_an_older_version_is_read_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let first = "CREATE TABLE owners (id TEXT PRIMARY KEY, key TEXT NOT NULL, target TEXT NOT NULL, \
        model TEXT NOT NULL, unsettled INTEGER NOT NULL, until INTEGER NOT NULL, shared INTEGER NOT NULL DEFAULT 0) STRICT;
        INSERT INTO owners VALUES ('resp_old', 'a', 'up/m', 'm', 1, 99999999999, 1);";
    rusqlite::Connection::open(beside(&folder.path().join("weir.db"))).unwrap().execute_batch(first).unwrap();
    for _ in 0..2 {
        let owners = open(folder.path());
        let old = Owner { account: String::new(), ..owner("a", true) };
        assert_eq!(owners.find("resp_old").await, Ok(Some(old)));
        owners.keep("resp_new", owner("b", false), Duration::from_hours(1)).done().await;
        assert_eq!(owners.find("resp_new").await, Ok(Some(owner("b", false))));
    }
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

/// What a statement of our own asks the file beside the map.
fn beside_it<T: rusqlite::types::FromSql>(folder: &Path, sql: &str) -> T {
    let file = rusqlite::Connection::open(beside(&folder.join("weir.db"))).unwrap();
    file.busy_timeout(Duration::from_secs(10)).unwrap();
    file.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a12_what_nobody_fetched_is_due_again_and_again_for_a_day() {
    let folder = tempfile::tempdir().unwrap();
    let owners = open(folder.path());
    let (day, here) = (Duration::from_hours(24), || vec!["up/m".to_owned(), "up/n".to_owned()]);
    let before = super::now();
    owners.keep("resp_bg", owner("a", true), day).done().await;
    owners.keep("resp_paid", owner("a", false), day).done().await;
    let elsewhere = Owner { target: "gone/m".to_owned(), ..owner("a", true) };
    owners.keep("resp_elsewhere", elsewhere, day).done().await;
    assert_eq!(owners.due(here(), 8).await, [], "not at once");
    let due = || beside_it::<i64>(folder.path(), "SELECT due FROM owners WHERE id = 'resp_bg'");
    assert!((before + 30..=super::now() + 30).contains(&due()));

    let mut waits = 0;
    let mut times = 0;
    loop {
        let all = "UPDATE owners SET due = 0 RETURNING 0";
        beside_it::<i64>(folder.path(), all);
        let before = super::now();
        let asked = owners.due(here(), 8).await;
        if asked.is_empty() {
            break;
        }
        assert_eq!(asked, [("resp_bg".to_owned(), owner("a", true))]);
        assert_eq!(owners.due(here(), 8).await, [], "one at a time");
        let wanted = [60, 120, 300].get(times).copied().unwrap_or(600);
        assert!((before + wanted..=super::now() + wanted).contains(&due()), "{times}");
        waits += wanted;
        times += 1;
    }
    assert!((85_800..=87_000).contains(&waits), "a day: {waits} s");
    // Who comes later can still book it.
    assert!(owners.settle("resp_bg").await);
}

#[tokio::test]
async fn a12_what_was_booked_is_not_due() {
    let folder = tempfile::tempdir().unwrap();
    let owners = open(folder.path());
    owners.keep("resp_bg", owner("a", true), Duration::from_hours(1)).done().await;
    assert!(owners.settle("resp_bg").await);
    beside_it::<i64>(folder.path(), "UPDATE owners SET due = 0 RETURNING 0");
    assert_eq!(owners.due(vec!["up/m".to_owned()], 8).await, []);
}
