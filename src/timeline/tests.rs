//! What stays in the ring, and who is said to have ended a request.

use super::verdict::{End, verdict};
use super::{Sight, Timeline, Timelines, brief};
use crate::record::Record;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

fn timeline(id: u128) -> Timeline {
    let record = Record { id: Uuid::from_u128(id), ..Record::sample() };
    Timeline { record: Arc::new(record), charge: None, sight: Sight::default() }
}

fn kept(ring: &Timelines) -> Vec<u128> {
    ring.recent().iter().map(|timeline| timeline.record.id.as_u128()).collect()
}

#[test]
fn m4_the_ring_keeps_the_last_and_no_more() {
    let ring = Timelines::new(3);
    assert_eq!(kept(&ring), [0; 0]);
    for id in 1..=5 {
        ring.push(|| timeline(id));
    }
    assert_eq!(kept(&ring), [5, 4, 3]);
    assert!(ring.find(Uuid::from_u128(4)).is_some() && ring.find(Uuid::from_u128(2)).is_none());
    ring.resize(2);
    assert_eq!(kept(&ring), [5, 4]);
    ring.push(|| timeline(6));
    assert_eq!(kept(&ring), [6, 5]);
    ring.resize(9);
    ring.push(|| timeline(7));
    assert_eq!(kept(&ring), [7, 6, 5]);
    ring.resize(0);
    ring.push(|| panic!("nothing is made that is not kept"));
    assert_eq!(kept(&ring), [0; 0]);
}

#[test]
fn m4_many_writers_and_readers_at_once() {
    let ring = Arc::new(Timelines::new(100));
    std::thread::scope(|scope| {
        for writer in 0..4_u128 {
            let ring = Arc::clone(&ring);
            scope.spawn(move || (0..500).for_each(|at| ring.push(|| timeline(writer * 1000 + at))));
        }
        for _ in 0..50 {
            assert!(ring.recent().len() <= 100);
        }
    });
    let mut all = kept(&ring);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 100);
}

#[test]
fn m4_who_ended_it() {
    let ms = Duration::from_millis;
    let end =
        |outcome, cause| End { outcome, cause, attempts: 1, target: "up/sol", duration: ms(4200), ..End::default() };
    let gone = |silent, duration| End {
        silent: Some(ms(silent)),
        duration: ms(duration),
        ..end("client_gone", "client_gone")
    };
    let blocked = End { longest_write: ms(60_000), ..gone(60_000, 61_000) };
    let table = [
        (end("completed", "terminal"), "model", "finished its answer"),
        (End { attempts: 2, ..end("completed", "terminal") }, "model", "It took 2 attempts"),
        (End { attempts: 0, ..end("completed", "models") }, "weir", "answered by itself"),
        (end("truncated", "terminal"), "model", "token limit"),
        (end("stalled", "idle"), "model", "up/sol went silent: no byte within timeouts.idle"),
        (end("upstream_interrupted", "broken"), "model", "broke off after 4.2 s: the connection was reset"),
        (end("upstream_error", "connect"), "model", "up/sol failed: it could not be reached"),
        (End { status: 400, ..end("client_error", "client_status") }, "model", "the client's own mistake (400)"),
        (end("timeout", "total"), "weir", "longer than timeouts.total"),
        (End { status: 401, attempts: 0, ..end("rejected", "invalid_api_key") }, "weir", "with 401: invalid api key"),
        (end("drained", "draining"), "weir", "shutting down"),
        (end("budget_reached", "budget"), "weir", "budget ran out"),
        (end("internal", "dropped"), "weir", "A fault of Weir's own"),
        (end("crashed", ""), "weir", "recovery settled it"),
        (gone(200, 4200), "client", "closed the connection after 4.2 s, before any output"),
        (gone(7200, 9000), "client", "The last byte was 7.2 s old"),
        (End { got_output: true, ..gone(20, 4200) }, "client", "in the middle of the answer"),
        (blocked, "client", "did not take what was written to it for 60.0 s"),
        (gone(60_050, 71_000), "edge", "closed after 60 s without a byte"),
        (gone(59_950, 71_000), "edge", "closed after 60 s without a byte"),
        (gone(61_000, 71_000), "client", "closed the connection"),
        (gone(3000, 100_100), "edge", "closed 100 s after the request began"),
        (gone(3000, 600_100), "client", "closed the connection"),
    ];
    for (end, who, words) in table {
        let (by, why) = verdict(&end);
        assert!(by.word() == who && why.contains(words), "{end:?}: {} {why}", by.word());
    }
}

#[test]
fn m4_ring_and_ledger_tell_the_same_of_a_request() {
    let ring = brief::of_ring(&timeline(1));
    let row = serde_json::json!({
        "request_id": Uuid::from_u128(1).to_string(), "received": 1_800_000_001_000_000_i64, "key": "team-a",
        "client": "192.0.2.7", "endpoint": "chat", "model": "sol", "target": "vllm/sol-8b", "stream": 1,
        "status": 200, "effective_status": 200, "outcome": "completed", "duration": 2_000_000,
        "admitted": 10_000, "upstream_first_byte": 300_000, "upstream_first_output": 400_000,
        "first_output": 410_000, "first_visible": 510_000, "last_output": 1_410_000,
        "input": 100, "output": 21, "reasoning": 5, "keepalives": 2, "bytes": 5000, "output_events": 20,
        "attempts": [
            {"target": "openai/sol", "result": "connect", "status": 200, "began": 10_000, "ended": 100_000},
            {"target": "vllm/sol-8b", "result": "ok", "status": 200, "began": 100_000, "ended": 2_000_000},
        ],
    });
    let serde_json::Value::Object(row) = row else { unreachable!() };
    assert_eq!(brief::of_row(&row), ring);
    assert_eq!(ring["ttft_ms"], 400.0);
}
