//! M1, B295 to B301: what starts and stops each clock, against an upstream that keeps its times.

use crate::harness::*;
use serde_json::Value;

/// Between the steps of a script.
const STEP: u64 = 400;
/// A little earlier is the clock's own rounding.
const EARLY: f64 = 5.0;
/// So much later is not the next step yet. A machine that stalls is later; then the script is played again.
const LATE: f64 = 200.0;
const TRIES: usize = 50;

/// Events of a script: those before any output, the first output that is not visible, the first that is, the rest.
struct Script {
    name: &'static str,
    dialect: Dialect,
    /// One after the other, a step apart; none stops a clock.
    before: Vec<String>,
    hidden: Option<String>,
    visible: String,
    end: String,
}

fn chat(delta: &str) -> String {
    let base = r#""id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"upstream-model""#;
    format!("data: {{{base},\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":null}}]}}\n\n")
}

fn scripts() -> Vec<Script> {
    let [chat_d, responses_d, messages_d] = Dialect::ALL;
    let over = [CHAT_FINISH, CHAT_USAGE, DONE].concat();
    let of_chat = |name, before: Vec<String>, hidden: Option<&str>| Script {
        name,
        dialect: chat_d,
        before,
        hidden: hidden.map(chat),
        visible: chat_delta("Hello"),
        end: over.clone(),
    };
    let pong = || ": ping\n\n".to_owned();
    let msg = messages_d.events();
    let resp = responses_d.events();
    let part = r#""item_id":"rs_1","output_index":0,"summary_index":0"#;
    vec![
        of_chat("B295 an empty role chunk", vec![CHAT_ROLE.into(), pong()], Some(r#"{"reasoning_content":"hm"}"#)),
        of_chat(
            "B295 null content",
            vec![chat(r#"{"role":"assistant","content":null,"reasoning_content":null}"#)],
            Some(r#"{"content":null,"reasoning_content":"hm"}"#),
        ),
        of_chat("B301 reasoning", vec![CHAT_ROLE.into()], Some(r#"{"reasoning":"hm"}"#)),
        of_chat("B299 usage first", vec![CHAT_USAGE.into()], None),
        Script {
            name: "B301 response.created and a summary of reasoning",
            dialect: responses_d,
            before: vec![resp[0].clone() + &resp[1], resp[2].clone()],
            hidden: Some(typed(&format!(
                r#"{{"type":"response.reasoning_summary_text.delta",{part},"sequence_number":3,"delta":"hm"}}"#
            ))),
            visible: resp[3].clone(),
            end: resp[4..].concat(),
        },
        Script {
            name: "B298 message_start, a ping and thinking",
            dialect: messages_d,
            before: vec![msg[0].clone(), typed(r#"{"type":"ping"}"#)],
            hidden: Some(
                typed(r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}"#)
                    + &typed(
                        r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#,
                    ),
            ),
            visible: msg[1..3].concat(),
            end: msg[3..].concat(),
        },
    ]
}

fn ms(record: &Value, name: &str) -> f64 {
    record.get(name).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {name} in {record}"))
}

async fn sum(weir: &Weir, name: &str) -> f64 {
    weir.metric(&format!("{name}_sum"), &[]).await * 1000.0
}

#[tokio::test]
async fn m1_b295_b296_b298_b299_b301_each_clock_stops_at_what_it_is_defined_by() {
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = Setup::new(&upstream.url()).start().await;
    for script in scripts() {
        let mut tries = 0;
        while !is_in_time(&upstream, &weir, &script).await {
            tries += 1;
            assert!(tries < TRIES, "{}: too late each time", script.name);
        }
    }
}

/// Plays a script. Nothing may be too early; answers whether nothing was too late either.
async fn is_in_time(upstream: &Upstream, weir: &Weir, script: &Script) -> bool {
    let mut reply = Reply::sse();
    for event in &script.before {
        reply = reply.write(event).pause(STEP);
    }
    #[expect(clippy::cast_precision_loss, reason = "a few steps")]
    let first = (script.before.len() as u64 * STEP) as f64;
    let mut visible = first;
    if let Some(hidden) = &script.hidden {
        reply = reply.write(hidden).pause(STEP);
        visible += f64::from(u32::try_from(STEP).unwrap());
    }
    upstream.push(reply.write(&script.visible).pause(50).write(&script.end));
    let names = ["weir_time_to_first_token_seconds", "weir_time_to_first_visible_token_seconds"];
    let before = [sum(weir, names[0]).await, sum(weir, names[1]).await];
    let counted = weir.metric("weir_requests_total", &["outcome=\"completed\""]).await;
    let answer = weir.post(script.dialect.path, script.dialect.ask()).await;
    let record = weir.record(answer.id()).await;
    let name = script.name;
    assert_eq!(word(&record), "completed", "{name}: {record}");
    let (ttft, ttfv) = (ms(&record, "ttft_ms"), ms(&record, "ttfv_ms"));
    assert!(ttft >= first - EARLY, "{name}: first token after {ttft} ms, not {first}");
    assert!(ttfv >= visible - EARLY, "{name}: visible after {ttfv} ms, not {visible}");
    let read = ms(&record, "upstream_first_output_ms");
    assert!(read >= first - EARLY && read <= ms(&record, "duration_ms"), "{name}: {record}");
    let head = ms(&record, "upstream_first_byte_ms");
    println!("{name}: head {head}, first token {ttft} of {first}, visible {ttfv} of {visible}");
    until_counted(weir, counted + 1.0).await;
    for (at, of_record) in [(0, ttft), (1, ttfv)] {
        let moved = sum(weir, names[at]).await - before[at];
        assert!((moved - of_record).abs() < 1.0, "{name}: {} moved by {moved} ms, not {of_record}", names[at]);
    }
    let row = weir.booked(answer.id()).await;
    let booked = row["first_output"].as_f64().unwrap() / 1000.0 - ms(&record, "admitted_ms");
    assert!((booked - ttft).abs() < 0.01, "{name}: {booked} ms in the ledger, {ttft} in the access record");
    head < LATE && ttft < first + LATE && ttfv < visible + LATE
}

async fn until_counted(weir: &Weir, wanted: f64) {
    within("the count", async {
        while weir.metric("weir_requests_total", &["outcome=\"completed\""]).await < wanted {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn m1_b299_b307_cut_and_refused_requests_are_counted_once_and_stop_no_clock_they_did_not_reach() {
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = Setup::new(&upstream.url()).start().await;
    for dialect in Dialect::ALL {
        // Cut after output, cut before it, an error event alone, refused for its key.
        upstream.push(Reply::sse().write(dialect.begun()).rst());
        assert!(!weir.post(dialect.path, dialect.ask()).await.body.is_empty());
        upstream.push(Reply::sse().write(dialect.before()).rst());
        weir.post(dialect.path, dialect.ask()).await;
        let refused = weir.post_with(dialect.path, &[("authorization", "Bearer wrong")], dialect.ask()).await;
        assert_eq!(refused.status(), 401);
    }
    upstream.push(Reply::stream("data: {\"error\":{\"message\":\"no\",\"type\":\"server_error\"}}\n\n"));
    weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(weir.all_records(10).await.len(), 10);
    for (outcome, count) in [("upstream_interrupted", 6.0), ("rejected", 3.0), ("upstream_error", 1.0)] {
        let label = format!("outcome=\"{outcome}\"");
        assert_eq!(weir.metric("weir_requests_total", &[&label]).await, count, "{outcome}");
    }
    // Only the three that wrote output have a first token; the refused ones are not timed at all.
    assert_eq!(weir.metric("weir_time_to_first_token_seconds_count", &[]).await, 3.0);
    assert_eq!(weir.metric("weir_time_to_first_visible_token_seconds_count", &[]).await, 3.0);
    assert_eq!(weir.metric("weir_request_duration_seconds_count", &[]).await, 7.0);
    assert_eq!(weir.metric("weir_requests_total", &[]).await, 10.0);
    assert_eq!(weir.metric("weir_streams_active", &[]).await, 0.0);
}
