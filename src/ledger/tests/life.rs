use super::mailbox::{Mailbox, Message, Way};
use super::retention::Retention;
use super::*;

#[tokio::test]
async fn l1_one_row_for_a_settled_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let ledger = open(&config(&path));
    let id = Uuid::now_v7();
    let (ticket, durable) = ledger.begin(row(id)).await.unwrap();
    durable.wait().await.unwrap();
    assert_eq!(ask(&path, "SELECT request_id, key FROM open"), format!("{id} team-a"), "open before any content");
    ticket.settle(settled(id, 10, 4));
    ledger.close();
    assert_eq!(
        ask(
            &path,
            "SELECT request_id, key, tag, model, target, outcome, source, input, cache_read, output, charge, cost, \
             billing, billing_why, protocol, endpoint, first_output, duration, bytes FROM records"
        ),
        format!(
            "{id} team-a research public demo/fox completed reported 10 - 4 27000 18000 full \
             whole answer, reported usage messages messages 301000 901000 4321"
        )
    );
    assert_eq!(ask(&path, "SELECT count(*) FROM open"), "0");
    assert_eq!(ask(&path, "SELECT opened, cancelled FROM counters"), "1 0");
    assert_eq!(
        ask(
            &path,
            "SELECT key, tag, model, target, outcome, requests, input, output, charge, cost, unpriced FROM daily"
        ),
        "team-a research public demo/fox completed 1 10 4 27000 18000 0"
    );
    let attempts = ask(&path, "SELECT attempts FROM records");
    let attempts: serde_json::Value = serde_json::from_str(&attempts).unwrap();
    assert_eq!(attempts[0]["result"], "ok");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no lock file, no WAL is left behind");
}

#[tokio::test]
async fn l1_an_opening_is_written_also_if_nobody_waits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let ledger = open(&config(&path));
    let (ticket, durable) = ledger.begin(row(Uuid::now_v7())).await.unwrap();
    until("the row is on disk", || ask(&path, "SELECT count(*) FROM open") == "1").await;
    durable.wait().await.unwrap();
    ticket.cancel();
}

#[tokio::test]
async fn l1_who_waits_for_an_opening_hurries_the_writer_unless_it_is_there() {
    for is_there in [false, true] {
        let (sender, inbox) = std::sync::mpsc::channel();
        let mailbox = Arc::new(Mailbox::new(sender, &config(Path::new("unused"))));
        let (committed, waiting) = tokio::sync::oneshot::channel();
        let durable = Durable { mailbox, committed: Some(waiting), on_failure: OnFailure::Reject };
        let waits = durable.wait();
        if is_there {
            committed.send(Ok(())).unwrap();
            waits.await.unwrap();
            assert!(inbox.try_recv().is_err());
            continue;
        }
        let (waited, ()) = tokio::join!(waits, async {
            let hurry = inbox.try_recv().unwrap();
            assert!(matches!(hurry, Message::Hurry) && hurry.is_urgent());
            committed.send(Ok(())).unwrap();
        });
        waited.unwrap();
    }
}

#[tokio::test]
async fn l1_a_checkpoint_is_written_unless_the_end_is_on_its_way() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let ledger = open(&config(&path));
    for (ends, written) in [(true, "0"), (false, "1")] {
        let id = Uuid::now_v7();
        let (ticket, durable) = ledger.begin(row(id)).await.unwrap();
        durable.wait().await.unwrap();
        let way = Arc::new(Way { end: ends.into(), ..Way::default() });
        let checkpoint = Box::new(Checkpoint { output_events: 1, ..Checkpoint::default() });
        ledger.inner.mailbox.send(Message::Checkpoint { id, checkpoint, way });
        until("the checkpoint is taken", || ledger.stats().pending == 0).await;
        assert_eq!(ask(&path, "SELECT output_events FROM open"), written);
        ticket.cancel();
        until("the row is gone", || ask(&path, "SELECT count(*) FROM open") == "0").await;
    }
}

#[tokio::test]
async fn l1_strict_settles_are_on_disk_when_they_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let ledger = open(&LedgerConfig { durability: Durability::Strict, ..config(&path) });
    let id = Uuid::now_v7();
    let (ticket, durable) = ledger.begin(row(id)).await.unwrap();
    durable.wait().await.unwrap();
    assert!(ticket.settle(settled(id, 1, 1)).wait().await);
    assert_eq!(ask(&path, "SELECT count(*) FROM records"), "1");
}

#[tokio::test]
async fn l1_a_dropped_ticket_is_settled_as_internal_from_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let ledger = open(&config(&path));
    let id = Uuid::now_v7();
    let (ticket, durable) = ledger.begin(row(id)).await.unwrap();
    durable.wait().await.unwrap();
    let input = Usage { input: Some(30), cache_read: Some(5), ..Usage::default() };
    ticket.checkpoint(Checkpoint {
        usage: input,
        source: Source::Partial,
        output_estimate: Some(11),
        output_events: 3,
        status: 200,
        bytes: 99,
        ..Checkpoint::default()
    });
    drop(ticket);
    ledger.close();
    assert_eq!(
        ask(
            &path,
            "SELECT outcome, cause, source, input, cache_read, output, charge, cost, bytes, billing_why FROM records"
        ),
        "internal dropped partial 30 5 11 78000 52000 99 reported input, estimated delivered output"
    );
}

#[tokio::test]
async fn l1_a_refused_request_leaves_no_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let ledger = open(&config(&path));
    let (ticket, _) = ledger.begin(row(Uuid::now_v7())).await.unwrap();
    ticket.cancel();
    ledger.close();
    assert_eq!(ask(&path, "SELECT count(*) FROM open"), "0");
    assert_eq!(ask(&path, "SELECT count(*) FROM records"), "0");
    assert_eq!(ask(&path, "SELECT opened, cancelled FROM counters"), "1 1");
}

#[tokio::test]
async fn l2_a_second_process_leaves_the_rows_of_a_living_one_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let old = open(&config(&path));
    let id = Uuid::now_v7();
    let (ticket, durable) = old.begin(row(id)).await.unwrap();
    durable.wait().await.unwrap();
    let new = open(&config(&path));
    assert_eq!(new.stats().recovered, 0);
    assert_eq!(ask(&path, "SELECT count(*) FROM open"), "1");
    ticket.settle(settled(id, 10, 4));
    old.close();
    new.close();
    assert_eq!(ask(&path, "SELECT request_id, outcome FROM records"), format!("{id} completed"));
}

#[test]
fn l2_rows_of_a_dead_owner_are_settled_as_crashed_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    open(&config(&path)).close();
    let connection = Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "INSERT INTO owners (instance, pid, started) VALUES ('gone', 1, 0);
             INSERT INTO open (request_id, owner, received, stream, key, model, target, input, output_events, output_estimate)
             SELECT '01890000-0000-7000-8000-000000000001', id, 1700000000000000, 1, 'k', 'public', 'demo/fox', 10, 5, 6
             FROM owners WHERE instance = 'gone';
             INSERT INTO open (request_id, owner, received, stream, key, model, target)
             SELECT '01890000-0000-7000-8000-000000000002', id, 1700000000000000, 1, 'k', 'public', 'demo/fox'
             FROM owners WHERE instance = 'gone';
             UPDATE counters SET opened = 2;",
        )
        .unwrap();
    drop(connection);
    let ledger = open(&config(&path));
    assert_eq!(ledger.stats().recovered, 2);
    ledger.close();
    assert_eq!(
        ask(
            &path,
            "SELECT outcome, cause, source, input, output, charge, cost, day, billing_why FROM records ORDER BY request_id"
        ),
        "crashed process_died partial 10 6 33000 22000 2023-11-14 reported input, estimated delivered output\n\
         crashed process_died none - - 0 0 2023-11-14 no output was delivered"
    );
}

#[tokio::test]
async fn l4_corrections_are_rows_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let ledger = open(&config(&path));
    let id = Uuid::now_v7();
    let (ticket, _) = ledger.begin(row(id)).await.unwrap();
    ticket.settle(settled(id, 10, 4));
    let correction = Correction {
        id: Uuid::now_v7(),
        request_id: id,
        charge: money::Nano(-7_000),
        cost: money::Nano(1),
        input: -3,
        output: 0,
        why: "goodwill".to_owned(),
    };
    ledger.correct(correction.clone()).await.unwrap();
    ledger.correct(correction.clone()).await.unwrap();
    let unknown = Correction { id: Uuid::now_v7(), request_id: Uuid::now_v7(), ..correction };
    assert!(ledger.correct(unknown).await.unwrap_err().contains("no settled request"));
    ledger.close();
    assert_eq!(ask(&path, "SELECT charge, cost, input, corrections FROM records"), "20000 18001 7 1");
    assert_eq!(ask(&path, "SELECT charge, cost, input FROM settled"), "27000 18000 10");
    assert_eq!(ask(&path, "SELECT charge, cost, input, requests FROM daily"), "20000 18001 7 1");
}

#[tokio::test]
async fn l4_days_begin_where_the_operator_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let timezone = jiff::tz::TimeZone::get("Asia/Tokyo").unwrap();
    let ledger = open(&LedgerConfig { timezone, ..config(&path) });
    let id = Uuid::now_v7();
    let (ticket, _) = ledger.begin(row(id)).await.unwrap();
    let evening: SystemTime = "2026-06-30T15:30:00Z".parse::<jiff::Timestamp>().unwrap().try_into().unwrap();
    let record = Record { received: evening, ..record(id, Outcome::Completed, usage(1, 1)) };
    ticket.settle(settlement(record, &terms().load()));
    ledger.close();
    assert_eq!(ask(&path, "SELECT day FROM records"), "2026-07-01");
}

#[tokio::test]
async fn c2_the_ledger_takes_another_config_and_running_requests_keep_their_durability() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let ledger = open(&config(&path));
    let [old, new] = [Uuid::now_v7(), Uuid::now_v7()];
    let evening: SystemTime = "2026-06-30T15:30:00Z".parse::<jiff::Timestamp>().unwrap().try_into().unwrap();
    let ends = |id| {
        let record = Record { received: evening, ..record(id, Outcome::Completed, usage(1, 1)) };
        settlement(record, &terms().load())
    };
    let (begun, _) = ledger.begin(row(old)).await.unwrap();
    let timezone = jiff::tz::TimeZone::get("Asia/Tokyo").unwrap();
    let (durability, retention) = (Durability::Strict, Duration::from_hours(24 * 3_650));
    ledger.reconfigure(&LedgerConfig { durability, retention, timezone, ..config(&path) });
    let (strict, _) = ledger.begin(row(new)).await.unwrap();
    assert!(strict.settle(ends(new)).wait().await);
    assert_eq!(ask(&path, "SELECT day FROM records"), "2026-07-01", "on disk, on Tokyo's day");
    assert!(!begun.settle(ends(old)).is_waited_for(), "it began with group");
    assert_eq!(Retention::of(&ledger.inner.mailbox.config.load()).keep, retention);
    ledger.close();
}

#[tokio::test]
async fn l4_retention_removes_from_the_front_and_keeps_the_days() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let ledger = open(&LedgerConfig { retention: Duration::ZERO, ..config(&path) });
    for n in 0..5 {
        let id = Uuid::now_v7();
        let (ticket, durable) = ledger.begin(row(id)).await.unwrap();
        durable.wait().await.unwrap();
        ticket.settle(settled(id, n, 1));
    }
    ledger.close();
    let mut connection = schema::open_writer(&path).unwrap();
    let keep_all = Retention { keep: Duration::from_mins(1), shipped_only: false };
    assert!(!keep_all.step(&mut connection).unwrap());
    connection.execute("UPDATE counters SET shipped_to = 3, pruned_to = 0", []).unwrap();
    let shipped = Retention { keep: Duration::ZERO, shipped_only: true };
    shipped.step(&mut connection).unwrap();
    assert_eq!(ask(&path, "SELECT group_concat(seq) FROM settled"), "4,5", "what is not shipped stays");
    assert_eq!(ask(&path, "SELECT sum(requests), sum(input) FROM daily"), "5 10");
    assert_eq!(ask(&path, "SELECT sum(requests), sum(input) FROM pruned"), "3 3");
    assert_eq!(ask(&path, "SELECT pruned_to FROM counters"), "3");
}

#[tokio::test]
async fn b242_everything_that_waits_is_written_at_close() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let ledger = open(&config(&path));
    for _ in 0..500 {
        let id = Uuid::now_v7();
        let (ticket, _) = ledger.begin(row(id)).await.unwrap();
        ticket.settle(settled(id, 10, 4));
    }
    drop(ledger);
    assert_eq!(
        ask(&path, "SELECT count(*), sum(input), sum(output), sum(charge) FROM records"),
        "500 5000 2000 13500000"
    );
    assert_eq!(ask(&path, "SELECT requests, input, output, charge FROM daily"), "500 5000 2000 13500000");
}

#[tokio::test]
async fn l1_a_request_settled_twice_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let ledger = open(&config(&path));
    let id = Uuid::now_v7();
    for _ in 0..2 {
        let (ticket, _) = ledger.begin(row(id)).await.unwrap();
        ticket.settle(settled(id, 10, 4));
    }
    until("both are written", || ledger.stats().pending == 0).await;
    assert_eq!(ledger.stats().conflicts, 1);
    ledger.close();
    assert_eq!(ask(&path, "SELECT count(*), sum(charge) FROM records"), "1 27000");
    assert_eq!(ask(&path, "SELECT opened, cancelled FROM counters"), "1 0");
}
