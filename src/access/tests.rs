//! What an access record says, in both forms, and which requests get one.

mod plain;

use super::{Paper, chosen, say};
use crate::config::LogFormat;
use crate::ledger::money::Nano;
use crate::meter::usage::Usage;
use crate::outcome::Outcome;
use crate::record::{Attempt, Record};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::time::{Duration, SystemTime};
use uuid::Uuid;

fn line(record: &Record, charge: Option<Nano>, format: LogFormat) -> String {
    say(record, charge, Paper::default().line(format, record.received)).to_owned()
}

fn json_of(record: &Record) -> Value {
    serde_json::from_str(&line(record, Some(Nano(54_399_000)), LogFormat::Json)).unwrap()
}

#[test]
fn m3_the_json_record_of_a_completed_stream() {
    let expected = json!({
        "ts": "2027-01-15T08:00:01.000Z",
        "request_id": "0192f3a4-0000-7000-8000-000000000001",
        "upstream_request_id": "req_1", "answer_id": "chatcmpl-1", "key": "team-a", "client": "192.0.2.7",
        "endpoint": "chat", "model": "sol", "target": "vllm/sol-8b", "status": 200, "outcome": "completed",
        "stream": true, "admitted_ms": 10.0, "upstream_first_byte_ms": 300.0, "upstream_first_output_ms": 400.0,
        "ttft_ms": 400.0, "ttfv_ms": 500.0, "last_output_ms": 1410.0, "duration_ms": 2000.0, "overhead_ms": 10.0,
        "bytes": 5000, "output_events": 20, "keepalives": 2, "input": 100, "output": 21, "reasoning": 5,
        "source": "reported", "charge": "0.054399000",
        "attempts": [
            { "target": "openai/sol", "result": "connect", "status": 200, "began_ms": 10.0, "ended_ms": 100.0,
              "maybe_billed": false },
            { "target": "vllm/sol-8b", "result": "ok", "status": 200, "began_ms": 100.0, "ended_ms": 2000.0,
              "maybe_billed": false },
        ],
    });
    assert_eq!(json_of(&Record::sample()), expected);
}

#[test]
fn m3_the_text_record_is_one_line_for_people() {
    let mut record = Record::sample();
    record.client_request_id = Some("a b\nforged key=x".to_owned());
    let line = line(&record, None, LogFormat::Text);
    assert!(line.starts_with("2027-01-15T08:00:01.000Z access request_id=0192f3a4-"), "{line}");
    assert!(line.contains(r#" client_request_id="a b\nforged key=x" "#), "{line}");
    assert!(line.contains(" outcome=completed stream=true "), "{line}");
    assert!(line.ends_with("attempts=openai/sol:connect:90ms,vllm/sol-8b:ok:1900ms"), "{line}");
    assert_eq!(line.lines().count(), 1);
}

#[test]
fn b94_both_statuses_are_there_when_they_differ() {
    let mut record = Record::sample();
    assert!(json_of(&record).get("effective_status").is_none());
    record.effective_status = 529;
    assert_eq!((&json_of(&record)["status"], &json_of(&record)["effective_status"]), (&json!(200), &json!(529)));
}

#[test]
fn m3_a_refused_request_without_key_or_model_is_recorded_too() {
    let mut record = Record::sample();
    (record.key, record.model, record.target, record.endpoint) = (None, None, None, None);
    (record.outcome, record.status, record.effective_status) = (Outcome::Rejected, 401, 401);
    record.cause = Some("invalid_api_key");
    record.attempts.clear();
    let written = json_of(&record);
    assert_eq!((&written["outcome"], &written["cause"]), (&json!("rejected"), &json!("invalid_api_key")));
    assert!(written.get("key").is_none() && written.get("attempts").is_none());
}

#[test]
fn m3_the_share_is_kept_and_errors_are_always_written() {
    let ids = (0..20_000).map(|_| Uuid::now_v7()).collect::<Vec<_>>();
    let share = |outcome, permille| ids.iter().filter(|id| chosen(**id, outcome, permille)).count();
    assert!((1_800..2_200).contains(&share(Outcome::Completed, 100)));
    assert_eq!(share(Outcome::Completed, 1000), ids.len());
    assert_eq!(share(Outcome::Stalled, 1), ids.len());
    assert_eq!((share(Outcome::Completed, 0), share(Outcome::Stalled, 0)), (0, 0));
    assert!(ids.iter().all(|id| chosen(*id, Outcome::Completed, 100) <= chosen(*id, Outcome::Completed, 200)));
}

#[test]
fn m3_the_bytes_of_both_forms() {
    let record = Record::sample();
    assert_eq!(
        line(&record, Some(Nano(54_399_000)), LogFormat::Json),
        concat!(
            r#"{"ts":"2027-01-15T08:00:01.000Z","request_id":"0192f3a4-0000-7000-8000-000000000001","#,
            r#""upstream_request_id":"req_1","answer_id":"chatcmpl-1","key":"team-a","client":"192.0.2.7","#,
            r#""endpoint":"chat","model":"sol","target":"vllm/sol-8b","status":200,"outcome":"completed","stream":true,"#,
            r#""admitted_ms":10.0,"upstream_first_byte_ms":300.0,"upstream_first_output_ms":400.0,"ttft_ms":400.0,"#,
            r#""ttfv_ms":500.0,"last_output_ms":1410.0,"duration_ms":2000.0,"overhead_ms":10.0,"bytes":5000,"#,
            r#""output_events":20,"keepalives":2,"input":100,"output":21,"reasoning":5,"source":"reported","#,
            r#""charge":"0.054399000","attempts":[{"began_ms":10.0,"ended_ms":100.0,"maybe_billed":false,"#,
            r#""result":"connect","status":200,"target":"openai/sol"},{"began_ms":100.0,"ended_ms":2000.0,"#,
            r#""maybe_billed":false,"result":"ok","status":200,"target":"vllm/sol-8b"}]}"#,
        )
    );
    assert_eq!(
        line(&record, Some(Nano(54_399_000)), LogFormat::Text),
        concat!(
            "2027-01-15T08:00:01.000Z access request_id=0192f3a4-0000-7000-8000-000000000001 upstream_request_id=req_1 ",
            "answer_id=chatcmpl-1 key=team-a client=192.0.2.7 endpoint=chat model=sol target=vllm/sol-8b status=200 ",
            "outcome=completed stream=true admitted_ms=10 upstream_first_byte_ms=300 upstream_first_output_ms=400 ",
            "ttft_ms=400 ttfv_ms=500 last_output_ms=1410 duration_ms=2000 overhead_ms=10 bytes=5000 output_events=20 ",
            "keepalives=2 input=100 output=21 reasoning=5 source=reported charge=0.054399000 ",
            "attempts=openai/sol:connect:90ms,vllm/sol-8b:ok:1900ms",
        )
    );
}

/// Up to thirty years, to the nanosecond.
fn time() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0..3_000_u64).prop_map(Duration::from_micros),
        (0..600_000_u64).prop_map(Duration::from_millis),
        (0..1_000_000_000_000_000_000_u64).prop_map(Duration::from_nanos),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z0-9/_.-]{0,12}", r#"[ =\"\\\n\t\x01\x7fa-c]{0,6}"#, any::<String>()]
}

fn attempt() -> impl Strategy<Value = Attempt> {
    let result = prop_oneof![Just("ok"), Just("connect_timeout")];
    let parts = (text(), result, any::<Option<u16>>(), time(), time(), any::<bool>());
    parts.prop_map(|(target, result, status, began, ended, maybe_billed)| Attempt {
        target: target.into(),
        result,
        status,
        began,
        ended,
        maybe_billed,
    })
}

prop_compose! {
    fn record()(
        id in any::<u128>(),
        texts in [(); 8].map(|()| proptest::option::of(text())),
        client in any::<Option<IpAddr>>(),
        attempts in vec(attempt(), 0..4),
        statuses in any::<[u16; 2]>(),
        stream in any::<bool>(),
        received in time(),
        times in [(); 6].map(|()| proptest::option::of(time())),
        whole in [(); 2].map(|()| time()),
        counts in any::<[u64; 3]>(),
        tokens in any::<[Option<u64>; 9]>(),
    ) -> Record {
        let [client_request_id, upstream_request_id, answer_id, key, tag, model, tier_requested, tier_served] = texts;
        let [admitted, upstream_first_byte, upstream_first_output, first_output, first_visible, last_output] = times;
        let [input, cache_read, cache_write_5m, cache_write_1h, output, reasoning, audio_input, audio_output, web_search] =
            tokens;
        Record {
            id: Uuid::from_u128(id),
            client_request_id, upstream_request_id, answer_id,
            key: key.map(Into::into),
            tag: tag.map(Into::into),
            target: model.as_deref().map(Into::into),
            model: model.map(Into::into),
            client, attempts, stream,
            status: statuses[0],
            effective_status: statuses[1],
            cause: stream.then_some("first_byte"),
            received: SystemTime::UNIX_EPOCH + received,
            admitted, upstream_first_byte, upstream_first_output, first_output, first_visible, last_output,
            duration: whole[0],
            waited: whole[1],
            bytes: counts[0],
            output_events: counts[1],
            keepalives: counts[2],
            usage: Usage {
                input, cache_read, cache_write_5m, cache_write_1h, output, reasoning, audio_input, audio_output, web_search,
            },
            tier_requested, tier_served,
            ..Record::sample()
        }
    }
}

proptest! {
    #[test]
    fn m3_a_line_is_what_serde_and_format_would_write(records in vec(record(), 1..3), charge in any::<Option<i64>>()) {
        let mut paper = Paper::default();
        for record in &records {
            for format in [LogFormat::Json, LogFormat::Text] {
                let charge = charge.map(Nano);
                let line = say(record, charge, paper.line(format, record.received));
                prop_assert_eq!(line, plain::line(record, charge, format));
            }
        }
    }
}
