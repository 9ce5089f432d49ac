use super::*;
use std::process::Command;

#[path = "../../../tests/e2e/harness/small.rs"]
mod small;

use small::Small;

fn remount(disk: &Small, options: &str) {
    let status = Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(disk.path()).status();
    assert!(status.unwrap().success());
}

async fn request(ledger: &Ledger) -> Result<(), String> {
    let id = Uuid::now_v7();
    let (ticket, durable) = ledger.begin(row(id)).await.map_err(|refused| refused.to_string())?;
    if let Err(error) = durable.wait().await {
        ticket.cancel();
        return Err(error.to_string());
    }
    ticket.settle(settled(id, 10, 4));
    Ok(())
}

#[tokio::test]
async fn l5_disk_full_refuses_new_requests_and_loses_nothing() {
    let disk = Small::new("1m");
    let path = disk.path().join("weir.db");
    let ledger = open(&config(&path));
    // These run already when the disk fills up.
    let mut running = Vec::new();
    for _ in 0..20 {
        let id = Uuid::now_v7();
        let (ticket, durable) = ledger.begin(row(id)).await.unwrap();
        durable.wait().await.unwrap();
        running.push((id, ticket));
    }
    let mut served = 0;
    while request(&ledger).await.is_ok() {
        served += 1;
        assert!(served < 100_000, "the disk never fills up");
    }
    assert!(matches!(ledger.health(), Health::Broken { .. }), "{:?}", ledger.health());
    assert_eq!(ledger.begin(row(Uuid::now_v7())).await.unwrap_err(), Refused::Broken);
    for (id, ticket) in running {
        ticket.settle(settled(id, 1, 1));
        served += 1;
    }
    remount(&disk, "size=64m");
    until("it works again", || ledger.health() == Health::Ok).await;
    request(&ledger).await.unwrap();
    served += 1;
    ledger.close();
    assert_eq!(ledger.stats().lost, 0);
    assert_eq!(ask(&path, "SELECT count(*) FROM records WHERE outcome = 'completed'"), served.to_string());
    assert_eq!(ask(&path, "SELECT count(*) FROM records"), served.to_string());
}

#[tokio::test]
async fn l5_disk_full_with_serve_goes_on_and_writes_later() {
    let disk = Small::new("1m");
    let path = disk.path().join("weir.db");
    let ledger = open(&LedgerConfig { on_failure: OnFailure::Serve, ..config(&path) });
    let mut served = 0;
    while ledger.health() == Health::Ok {
        request(&ledger).await.unwrap();
        served += 1;
        assert!(served < 100_000, "the disk never fills up");
    }
    for _ in 0..50 {
        request(&ledger).await.unwrap();
        served += 1;
    }
    remount(&disk, "size=64m");
    until("it works again", || ledger.health() == Health::Ok && ledger.stats().pending == 0).await;
    ledger.close();
    assert_eq!(ask(&path, "SELECT count(*) FROM records"), served.to_string());
    assert_eq!(ask(&path, "SELECT opened - cancelled FROM counters"), served.to_string());
}

#[tokio::test]
async fn l5_a_read_only_file_system_is_refused_at_start_with_a_remedy() {
    let disk = Small::new("4m");
    let path = disk.path().join("weir.db");
    open(&config(&path)).close();
    remount(&disk, "ro");
    let error = Ledger::open(&config(&path), terms(), None).unwrap_err().to_string();
    assert!(error.contains("weir.db") && error.contains("write"), "{error}");
}

#[test]
fn l5_what_is_not_a_ledger_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let garbage = folder.path().join("garbage.db");
    std::fs::write(&garbage, "not a database at all, but long enough to have a header ".repeat(40)).unwrap();
    let other = folder.path().join("other.db");
    Connection::open(&other).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let newer = folder.path().join("newer.db");
    open(&config(&newer)).close();
    Connection::open(&newer).unwrap().pragma_update(None, "user_version", 99).unwrap();
    for (path, part) in [(&garbage, "backup"), (&other, "not a ledger"), (&newer, "newer Weir")] {
        let before = std::fs::read(path).unwrap();
        let error = Ledger::open(&config(path), terms(), None).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        if *path == garbage {
            assert_eq!(std::fs::read(path).unwrap(), before);
        }
    }
    assert_eq!(ask(&other, "SELECT count(*) FROM sqlite_schema"), "1");
}

#[tokio::test]
async fn l5_a_file_that_breaks_while_it_is_open_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let ledger = open(&config(&path));
    request(&ledger).await.unwrap();
    until("written", || ledger.stats().pending == 0).await;
    Connection::open(&path).unwrap().execute_batch("DROP TABLE daily").unwrap();
    let id = Uuid::now_v7();
    let (ticket, durable) = ledger.begin(row(id)).await.unwrap();
    durable.wait().await.unwrap();
    ticket.settle(settled(id, 10, 4));
    until("noticed", || ledger.health() != Health::Ok).await;
    assert_eq!(ledger.begin(row(Uuid::now_v7())).await.unwrap_err(), Refused::Broken);
}

#[tokio::test]
async fn l2_a_clock_that_goes_backwards_changes_no_order_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let ledger = open(&config(&path));
    for (n, received) in [(1, "2026-11-30T12:00:00Z"), (2, "2026-11-29T12:00:00Z"), (3, "1969-12-31T00:00:00Z")] {
        let id = Uuid::now_v7();
        let received: SystemTime = received.parse::<jiff::Timestamp>().unwrap().try_into().unwrap();
        let (ticket, durable) = ledger.begin(OpenRow { received, ..row(id) }).await.unwrap();
        durable.wait().await.unwrap();
        let record = Record { received, ..record(id, Outcome::Completed, usage(n, 0)) };
        ticket.settle(settlement(record, &terms().load()));
    }
    ledger.close();
    assert_eq!(ask(&path, "SELECT input, day FROM records ORDER BY seq"), "1 2026-11-30\n2 2026-11-29\n3 1969-12-31");
}
