//! How much the ledger takes, on this machine's disk: `cargo test --release ledger::tests::speed -- --ignored --nocapture`.

use super::*;
use std::time::Instant;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, in seconds and on the real disk"]
async fn l1_requests_settled_per_second_and_the_wait_for_an_open_row() {
    let folder = tempfile::tempdir_in("target").unwrap();
    let path = folder.path().join("weir.db");
    for at_once in [1_u64, 20, 200, 2_000] {
        let ledger = open(&config(&path));
        let terms = terms();
        let began = Instant::now();
        let until = began + Duration::from_secs(3);
        let streams: Vec<_> =
            (0..at_once).map(|_| tokio::spawn(stream(ledger.clone(), terms.load_full(), until))).collect();
        let mut waits = Vec::new();
        for stream in streams {
            waits.extend(stream.await.unwrap());
        }
        let commits = ledger.stats().commits;
        ledger.close();
        let seconds = began.elapsed().as_secs_f64();
        waits.sort_unstable();
        let percentile = |share: usize| waits[(waits.len() - 1) * share / 100];
        println!(
            "{at_once} at once: {:.0} requests/s, {:.0} commits/s, open row p50 {:?} p99 {:?}",
            f64::from(u32::try_from(waits.len()).unwrap()) / seconds,
            f64::from(u32::try_from(commits).unwrap()) / seconds,
            percentile(50),
            percentile(99)
        );
    }
}

async fn stream(ledger: Ledger, terms: Arc<Terms>, until: Instant) -> Vec<Duration> {
    let mut waits = Vec::new();
    while Instant::now() < until {
        let id = Uuid::now_v7();
        let began = Instant::now();
        let (ticket, durable) = ledger.begin(row(id)).await.unwrap();
        durable.wait().await.unwrap();
        waits.push(began.elapsed());
        ticket.settle(settlement(record(id, Outcome::Completed, usage(10, 4)), &terms));
    }
    waits
}
