use super::*;
use crate::ledger::tests::{ask, config, open, record, row, settled, settlement, terms, usage as tokens};
use crate::outcome::Outcome;
use crate::record::Record;
use std::path::PathBuf;
use std::time::SystemTime;

fn at(text: &str) -> SystemTime {
    text.parse::<jiff::Timestamp>().unwrap().try_into().unwrap()
}

/// Four requests of two keys on two days, one of them without a price.
async fn filled(folder: &Path) -> PathBuf {
    let path = folder.join("weir.db");
    let ledger = open(&config(&path));
    for (key, target, received, input, output) in [
        ("a", "demo/fox", "2026-11-29T23:59:59.999999Z", 10, 1),
        ("a", "demo/fox", "2026-11-30T00:00:00Z", 100, 2),
        ("b, \"quoted\"", "demo/fox", "2026-11-30T12:00:00Z", 1_000, 3),
        ("a", "demo/unknown", "2026-11-30T13:00:00Z", 7, 7),
    ] {
        let id = Uuid::now_v7();
        let (ticket, _) = ledger.begin(row(id)).await.unwrap();
        let record = Record {
            key: Some(key.into()),
            target: Some(target.into()),
            received: at(received),
            ..record(id, Outcome::Completed, tokens(input, output))
        };
        ticket.settle(settlement(record, &terms().load()));
    }
    ledger.close();
    path
}

#[tokio::test]
async fn l6_usage_by_key_as_table_csv_and_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = filled(folder.path()).await;
    let table = usage(&path, &[By::Key], None, None, Format::Table).unwrap();
    let columns = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = table.lines().map(columns).collect();
    assert_eq!(
        lines,
        [
            "key requests input cache_read cache_write output reasoning web_search unpriced estimated charge cost margin",
            "a 3 117 0 0 10 0 0 1 0 0.000174000 0.000116000 0.000058000",
            "b, \"quoted\" 1 1000 0 0 3 0 0 0 0 0.001509000 0.001006000 0.000503000",
            "total 4 1117 0 0 13 0 0 1 0 0.001683000 0.001122000 0.000561000",
        ]
    );
    let csv = usage(&path, &[By::Key], None, None, Format::Csv).unwrap();
    assert!(
        csv.ends_with("\"b, \"\"quoted\"\"\",1,1000,0,0,3,0,0,0,0,0.001509000,0.001006000,0.000503000\r\n"),
        "{csv}"
    );
    let json: Value = serde_json::from_str(&usage(&path, &[By::Key], None, None, Format::Json).unwrap()).unwrap();
    assert_eq!(json[0]["charge_nano_usd"], 174_000);
    assert_eq!(json[0]["charge_usd"], "0.000174000");
}

#[tokio::test]
async fn l6_dates_are_whole_days_and_instants_are_exact() {
    let folder = tempfile::tempdir().unwrap();
    let path = filled(folder.path()).await;
    let input = |by: &[By], since, until| {
        let json: Value = serde_json::from_str(&usage(&path, by, since, until, Format::Json).unwrap()).unwrap();
        json.as_array().unwrap().iter().map(|line| line["input"].as_i64().unwrap()).collect::<Vec<_>>()
    };
    for (since, until, expected) in [
        (None, None, vec![1_117]),
        (Some("2026-11-30"), None, vec![1_107]),
        (None, Some("2026-11-29"), vec![10]),
        (Some("2026-12-01"), None, vec![0]),
        (Some("2026-11-30T00:00:00Z"), Some("2026-11-30T13:00:00Z"), vec![1_100]),
        (Some("2026-11-30T13:00:00+01:00"), None, vec![1_007]),
    ] {
        assert_eq!(input(&[], since, until), expected, "{since:?} {until:?}");
    }
    assert_eq!(input(&[By::Day], None, None), [10, 1_107]);
    assert_eq!(input(&[By::Day, By::Target], None, None), [10, 1_100, 7]);
    for (since, until) in
        [("yesterday", "2026-11-30"), ("2026-11-30", "2026-11-30T00:00:00Z"), ("2026-13-01", "2026-12-01")]
    {
        assert!(usage(&path, &[], Some(since), Some(until), Format::Table).is_err(), "{since} {until}");
    }
}

#[tokio::test]
async fn l6_every_grouping_has_the_same_total() {
    let folder = tempfile::tempdir().unwrap();
    let path = filled(folder.path()).await;
    let total = |by: &[By], since| {
        let json: Value = serde_json::from_str(&usage(&path, by, since, None, Format::Json).unwrap()).unwrap();
        let sum = |name: &str| json.as_array().unwrap().iter().map(|line| line[name].as_i64().unwrap()).sum::<i64>();
        (sum("requests"), sum("input"), sum("charge_nano_usd"), sum("cost_nano_usd"))
    };
    let all = total(&[], None);
    assert_eq!(all, (4, 1_117, 1_683_000, 1_122_000));
    for by in By::ALL {
        assert_eq!(total(&[by], None), all, "{by:?} over days");
        assert_eq!(total(&[by], Some("1970-01-01T00:00:00Z")), all, "{by:?} over rows");
    }
}

#[tokio::test]
async fn m6_a_key_sees_only_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = filled(folder.path()).await;
    let json: Value = serde_json::from_str(&usage_of_key(&path, "a", &[], None, None, Format::Json).unwrap()).unwrap();
    assert_eq!(json[0]["requests"], 3);
    let all = charged(&path, "2026-11-30", true).unwrap();
    let of = |name: &str| all.iter().find(|one| one.key == name).map(|one| (one.day.0, one.month.0, one.total.0));
    assert_eq!(of("a"), Some((156_000, 174_000, 174_000)));
    assert_eq!(of("nobody"), None);
}

#[tokio::test]
async fn l6_one_request_by_its_id() {
    let folder = tempfile::tempdir().unwrap();
    let path = filled(folder.path()).await;
    let id: Uuid = ask(&path, "SELECT request_id FROM records WHERE input = 10").parse().unwrap();
    let found = request(&path, id).unwrap().unwrap();
    assert_eq!(found["attempts"][0]["target"], "demo/fox");
    assert_eq!(found["charged"]["input"], 10);
    assert_eq!(found["corrections"], serde_json::json!([]));
    assert_eq!(request(&path, Uuid::now_v7()).unwrap(), None);
}

#[tokio::test]
async fn l2_verify_is_clean_until_something_is_missing_doubled_or_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = filled(folder.path()).await;
    let report = verify(&path).unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.rows, 4);
    assert_eq!(report.notices, ["1 rows of public at demo/unknown have no price for charge,cost"]);
    for (name, damage, part) in [
        ("a row in the middle is gone", "DELETE FROM settled WHERE seq = 2", "gaps"),
        ("the last row is gone", "DELETE FROM settled WHERE seq = 4", "last row"),
        ("a charge was edited", "UPDATE settled SET charge = charge + 1 WHERE seq = 1", "daily charge"),
        ("a day was edited", "UPDATE daily SET input = input - 1 WHERE input > 0", "daily input"),
        ("a day is gone", "DELETE FROM daily WHERE day = '2026-11-29'", "2026-11-29: daily requests"),
        ("an open row is gone", "UPDATE counters SET opened = opened + 1", "ever opened"),
        ("a number is negative", "UPDATE settled SET output = -1 WHERE seq = 1", "negative"),
        (
            "settled and still open",
            "INSERT INTO open (request_id, owner, received, stream) SELECT request_id, owner, 0, 1 FROM settled LIMIT 1",
            "at once",
        ),
    ] {
        let copy = folder.path().join("copy.db");
        backup(&path, &copy).unwrap();
        Connection::open(&copy).unwrap().execute_batch(damage).unwrap();
        let report = verify(&copy).unwrap();
        assert!(!report.is_clean() && report.to_string().contains(part), "{name}:\n{report}");
        std::fs::remove_file(copy).unwrap();
    }
}

#[tokio::test]
async fn l4_backup_while_a_gateway_writes_is_a_ledger_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = filled(folder.path()).await;
    let ledger = open(&config(&path));
    let id = Uuid::now_v7();
    let (ticket, durable) = ledger.begin(row(id)).await.unwrap();
    durable.wait().await.unwrap();
    let copy = folder.path().join("backups");
    std::fs::create_dir(&copy).unwrap();
    let copy = copy.join("weir.db");
    backup(&path, &copy).unwrap();
    assert!(backup(&path, &copy).unwrap_err().to_string().contains("exists"), "never over another file");
    ticket.settle(settled(id, 5, 5));
    ledger.close();
    let report = verify(&copy).unwrap();
    assert!(report.is_clean() && report.open == 1 && report.rows == 4, "{report}");
    assert!(report.notices.iter().any(|notice| notice.contains("left open")), "{report}");
    open(&config(&copy)).close();
    let report = verify(&copy).unwrap();
    assert!(report.is_clean() && report.open == 0 && report.rows == 5, "{report}");
    assert_eq!(ask(&path, "SELECT count(*) FROM settled"), "5");
}

#[test]
fn l6_a_missing_or_foreign_file_is_an_error_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none.db");
    let error = usage(&missing, &[], None, None, Format::Table).unwrap_err().to_string();
    assert!(error.contains("none.db"), "{error}");
    assert!(!missing.exists(), "reading creates nothing");
    std::fs::write(&missing, "x".repeat(5_000)).unwrap();
    assert!(verify(&missing).is_err());
}
