//! L3 and U5: what a request is charged for, to the nano-dollar, and why.

use crate::harness::*;
use serde_json::{Value, json};
use std::time::Duration;

const CHAT_D: Dialect = Dialect::ALL[0];
const RESP_D: Dialect = Dialect::ALL[1];
const MSG_D: Dialect = Dialect::ALL[2];

fn nano(row: &Value, name: &str) -> Option<i64> {
    row.get(name).and_then(Value::as_i64)
}

/// Cost in nano-USD by hand: USD per million tokens is micro-USD per token, a thousand nano-USD.
/// Charge is a fifth more.
#[tokio::test]
async fn l3_b158_b167_b200_charge_and_cost_of_each_dialect_by_both_kinds_of_price_file() {
    let cached_chat = chat_ok().replace(
        r#"{"prompt_tokens":12,"completion_tokens":2,"total_tokens":14}"#,
        r#"{"prompt_tokens":17903,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":17817}}"#,
    );
    let both =
        r#"{"input_tokens":5,"cache_read_input_tokens":1000,"cache_creation_input_tokens":200,"output_tokens":1}"#;
    let end =
        r#"{"input_tokens":5,"cache_read_input_tokens":1000,"cache_creation_input_tokens":200,"output_tokens":40}"#;
    let hour = r#"{"input_tokens":1,"cache_creation_input_tokens":100,"cache_creation":{"ephemeral_5m_input_tokens":40,"ephemeral_1h_input_tokens":60},"output_tokens":1}"#;
    let rows = [
        ("chat: 12·3 + 2·15", CHAT_D, chat_ok(), 66_000, 79_200),
        ("B200 chat: 86·3 + 17817·0.3 + 2·15", CHAT_D, cached_chat, 5_633_100, 6_759_720),
        ("responses: 12·3 + 8·0.3 + 5·15", RESP_D, resp_ok(), 113_400, 136_080),
        (
            "responses, nothing cached: 20·3 + 5·15",
            RESP_D,
            resp_with("completed", r#"{"input_tokens":20,"output_tokens":5}"#),
            135_000,
            162_000,
        ),
        ("B148 messages: 25·3 + 15·15", MSG_D, msg_ok(), 300_000, 360_000),
        ("B149 messages: 5·3 + 1000·0.3 + 200·3.75 + 40·15", MSG_D, msg_with(both, &[end]), 1_665_000, 1_998_000),
        (
            "B161 messages: 1·3 + 40·3.75 + 60·6 + 2·15",
            MSG_D,
            msg_with(hour, &[r#"{"output_tokens":2}"#]),
            543_000,
            651_600,
        ),
    ];
    for (file, content) in [("prices.yaml", OWN_PRICES), ("litellm.json", LITELLM_PRICES)] {
        let (_folder, section) = prices(file, content);
        let upstream = Upstream::start(Reply::json(500, "{}")).await;
        let weir = Setup::new(&upstream.url()).section(&section).start().await;
        let mut sums = (0, 0);
        for (name, dialect, stream, cost, charge) in &rows {
            upstream.push(Reply::stream(stream));
            let received = weir.post(dialect.path, dialect.ask()).await;
            let row = weir.booked(received.id()).await;
            assert_eq!(
                (nano(&row, "cost"), nano(&row, "charge")),
                (Some(*cost), Some(*charge)),
                "{file}, {name}: {row}"
            );
            assert_eq!((field(&row, "billing"), row["unpriced"].clone()), ("full".into(), Value::Null), "{name}");
            let record = weir.record(received.id()).await;
            assert_eq!(field(&record, "charge"), format!("0.{charge:09}"), "{file}, {name}: M3");
            sums = (sums.0 + cost, sums.1 + charge);
        }
        for (dialect, cost) in [(CHAT_D, 66_000), (RESP_D, 113_400), (MSG_D, 300_000)] {
            upstream.push(Reply::json(200, (dialect.json)()));
            let received = weir.post(dialect.path, dialect.ask_json()).await;
            let row = weir.booked(received.id()).await;
            assert_eq!(nano(&row, "cost"), Some(cost), "{file}, {} without stream: {row}", dialect.name);
            sums = (sums.0 + cost, sums.1 + cost * 6 / 5);
        }
        agree(&weir, 10, sums);
    }
}

/// L6: table, CSV and JSON tell these sums of cost and charge.
fn agree(weir: &Weir, requests: i64, (cost, charge): (i64, i64)) {
    let run = |format: &str| {
        let ledger = weir.ledger();
        let output = weir_command(&["usage", "--ledger", ledger.to_str().unwrap(), "--format", format, "--by", "key"]);
        assert!(output.status.success(), "{format}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let usd = |nano: i64| format!("{}.{:09}", nano / 1_000_000_000, nano % 1_000_000_000);
    let table: Value = serde_json::from_str(&run("json")).unwrap();
    let line = &table[0];
    let found = (&line["requests"], &line["cost_nano_usd"], &line["charge_nano_usd"], &line["charge_usd"]);
    assert_eq!(found, (&json!(requests), &json!(cost), &json!(charge), &json!(usd(charge))));
    let csv = run("csv");
    let cells: Vec<_> = csv.lines().nth(1).unwrap().split(',').collect();
    let found = (cells[1].to_owned(), &cells[cells.len() - 3..]);
    assert_eq!(found, (requests.to_string(), &[&*usd(charge), &*usd(cost), &*usd(charge - cost)][..]));
    let text = run("table");
    for cell in [usd(cost), usd(charge), usd(charge - cost)] {
        assert_eq!(text.matches(&cell).count(), 2, "the line and the total have {cell}:\n{text}");
    }
}

#[tokio::test]
async fn l3_an_unknown_price_is_null_and_counted() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let received = weir.post(CHAT, CHAT_ASK).await;
    let row = weir.booked(received.id()).await;
    assert_eq!((nano(&row, "charge"), nano(&row, "cost")), (None, None), "{row}");
    assert_eq!((number(&row, "input"), number(&row, "output")), (Some(12), Some(2)));
    assert_eq!(field(&row, "unpriced"), "charge,cost");
    assert!(weir.record(received.id()).await.get("charge").is_none());
    weir.settles("weir_unpriced_total", 1.0).await;
}

/// One request that did not end well.
struct Case {
    name: &'static str,
    dialect: Dialect,
    reply: Reply,
    /// The client leaves once this has come.
    leaves_after: Option<&'static str>,
    outcome: &'static str,
    source: &'static str,
    /// Output tokens, from and to.
    output: Option<(u64, u64)>,
    charged: bool,
    why: &'static str,
}

fn long_message() -> String {
    let delta =
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" the quick brown fox"}}"#;
    let start = msg_start(r#"{"input_tokens":25,"output_tokens":1}"#);
    let text = typed(&delta.replace(" fox", " end"));
    start + &MSG_D.events()[1] + &typed(delta).repeat(199) + &text
}

fn cases() -> Vec<Case> {
    let before_usage = || CHAT_D.events()[..4].concat();
    let case = |name, dialect, reply| Case {
        name,
        dialect,
        reply,
        leaves_after: None,
        outcome: "client_gone",
        source: "estimated",
        output: Some((1, 4)),
        charged: true,
        why: "estimated input and delivered output",
    };
    vec![
        Case {
            leaves_after: Some(" end"),
            source: "partial",
            output: Some((640, 960)),
            why: "reported input, estimated delivered output",
            ..case("B164 a placeholder is no output", MSG_D, Reply::sse().write(long_message()).hang())
        },
        Case {
            leaves_after: Some("\"stop\""),
            ..case("B220 after the finish, before the usage", CHAT_D, Reply::sse().write(before_usage()).hang())
        },
        Case {
            leaves_after: Some("Hel"),
            ..case("B61 U5 in the middle", RESP_D, Reply::sse().write(RESP_D.begun()).hang())
        },
        Case {
            outcome: "upstream_interrupted",
            ..case("B46 a stream that breaks off", CHAT_D, Reply::sse().write(CHAT_D.begun()).step(Step::Rst))
        },
        Case {
            outcome: "upstream_interrupted",
            source: "partial",
            why: "reported input, estimated delivered output",
            ..case("B166 the same with reported input", MSG_D, Reply::sse().write(MSG_D.begun()).step(Step::Rst))
        },
        Case {
            outcome: "upstream_error",
            source: "reported",
            output: Some((3, 3)),
            why: "reported usage",
            ..case(
                "B193 a failed response tells its usage",
                RESP_D,
                Reply::stream(resp_with("failed", r#"{"input_tokens":20,"output_tokens":3}"#).replace(
                    "\"status\":\"failed\"",
                    "\"status\":\"failed\",\"error\":{\"code\":\"server_error\",\"message\":\"x\"}",
                )),
            )
        },
        Case {
            outcome: "client_error",
            source: "none",
            output: None,
            charged: false,
            why: "refused: nothing was generated",
            ..case("B218 400", CHAT_D, Reply::json(400, r#"{"error":{"message":"no","type":"invalid_request_error"}}"#))
        },
        Case {
            outcome: "upstream_error",
            source: "none",
            output: None,
            charged: false,
            why: "no output was delivered",
            ..case("B218 500", MSG_D, Reply::json(500, r#"{"error":{"message":"no"}}"#))
        },
        Case {
            outcome: "completed",
            source: "estimated",
            why: "whole answer, estimated usage",
            ..case("B196 no usage at all", RESP_D, Reply::stream(resp_with("completed", "null")))
        },
        Case {
            outcome: "completed",
            output: Some((1, 100)),
            why: "whole answer, estimated usage",
            ..case(
                "F5 a coding that cannot be read",
                CHAT_D,
                Reply::stream("\u{1}\u{2}opaque bytes").header("content-encoding", "foo"),
            )
        },
    ]
}

#[tokio::test]
async fn u4_u5_what_did_not_end_well_has_one_row_that_says_what_is_charged_and_why() {
    let (_folder, section) = prices("prices.yaml", OWN_PRICES);
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = Setup::new(&upstream.url()).section(&section).start().await;
    let cases = cases();
    for case in &cases {
        let name = case.name;
        upstream.push(case.reply.clone());
        let mut client = Client::connect(&weir).await;
        // An estimate is capped by the request's own maximum: not here.
        let ask = case.dialect.ask().replace("\"max_tokens\":100,", "\"max_tokens\":10000,");
        let head = client.open(case.dialect.path, ask).await;
        let id = head.id().to_owned();
        match case.leaves_after {
            Some(mark) => client.read_past(mark).await,
            None => drop(client.rest().await),
        }
        drop(client);
        let row = weir.booked(&id).await;
        assert_eq!(field(&row, "outcome"), case.outcome, "{name}: {row}");
        assert_eq!(field(&row, "source"), case.source, "{name}: {row}");
        let output = number(&row, "output");
        match case.output {
            Some((from, to)) => assert!(output.is_some_and(|count| (from..=to).contains(&count)), "{name}: {row}"),
            None => assert_eq!(output, None, "{name}: {row}"),
        }
        let charge = nano(&row, "charge");
        assert!(if case.charged { charge > Some(0) } else { charge == Some(0) }, "{name}: {row}");
        assert_eq!(field(&row, "billing_why"), case.why, "{name}: {row}");
    }
    assert_eq!(weir.ask("SELECT count(*) FROM records"), cases.len().to_string());
    verify(&weir.ledger());
}

#[tokio::test]
async fn l1_refused_before_dispatch_no_row_and_each_dispatched_one_its_own() {
    let upstream = Upstream::start(Reply::json(200, r#"{"data":[]}"#)).await;
    let passthrough =
        r#"passthrough: [{ path: "/v1/files", methods: [GET], provider: up, keys: [test], shared_account: true }]"#;
    let weir = Setup::new(&upstream.url()).section(passthrough).start().await;
    assert_eq!(weir.post_with(CHAT, &[("authorization", "Bearer wrong")], CHAT_ASK).await.status(), 401);
    assert_eq!(weir.post(CHAT, r#"{"model":"no-such-model","messages":[]}"#).await.status(), 404);
    assert_eq!(weir.post(CHAT, "{").await.status(), 400);
    let through = weir.call("GET", "/v1/files", &[]).await;
    assert_eq!(through.status(), 200);
    let row = weir.booked(through.id()).await;
    assert_eq!((field(&row, "target"), field(&row, "outcome")), ("up".into(), "completed".into()), "{row}");
    assert_eq!(nano(&row, "charge"), Some(0), "{row}");
    // B223: nobody waited for the answer.
    upstream.push(Reply::sse().write(CHAT_D.before()).hang());
    let mut client = Client::connect(&weir).await;
    client.post(CHAT, CHAT_ASK).await;
    upstream.request(1).await;
    drop(client);
    let gone = "SELECT count(*), max(output), max(charge) FROM records WHERE outcome = 'client_gone'";
    until("the row", || weir.ask(gone) == "1 Null 0").await;
    assert_eq!(weir.ask("SELECT count(*) FROM records"), "2", "nothing for what was refused");
    assert_eq!(weir.ask("SELECT count(*) FROM open"), "0");
}

#[tokio::test]
async fn u5_b220_drain_brings_the_reported_usage_and_policy_decides() {
    let (_folder, section) = prices("prices.yaml", OWN_PRICES);
    let section = format!("{section}\nbilling: {{ client_gone: full, upstream_interrupted: free }}");
    let go_on = Signal::new();
    let events = CHAT_D.events();
    let reply = Reply::sse().write(events[..4].concat()).wait(&go_on).write(events[4..].concat());
    let upstream = Upstream::start(reply).await;
    let setup = Setup::new(&upstream.url()).section(&section).defaults("on_client_gone: { drain: 1h }");
    let weir = setup.start().await;
    let mut row = Value::Null;
    // Nobody outside sees that Weir has noticed it; where it had not, the answer was sent as ever.
    for _ in 0..10 {
        let mut client = Client::connect(&weir).await;
        let head = client.open(CHAT, CHAT_ASK).await;
        client.read_past("\"stop\"").await;
        drop(client);
        tokio::time::sleep(Duration::from_millis(100)).await;
        go_on.fire();
        row = weir.booked(head.id()).await;
        if field(&row, "outcome") == "client_gone" {
            break;
        }
    }
    assert_eq!((field(&row, "outcome"), field(&row, "source")), ("client_gone".into(), "reported".into()), "{row}");
    assert_eq!((number(&row, "output"), nano(&row, "charge")), (Some(2), Some(79_200)), "{row}");
    assert_eq!(field(&row, "billing"), "full");
    upstream.push(Reply::sse().write(MSG_D.begun()).step(Step::Rst));
    let row = weir.booked(weir.post(MESSAGES, MSG_D.ask()).await.id()).await;
    assert_eq!((field(&row, "billing"), nano(&row, "charge")), ("free".into(), Some(0)), "{row}");
    assert!(nano(&row, "cost") > Some(0), "the usage is kept: {row}");
}

#[tokio::test]
async fn l3_failed_attempts_cost_and_the_winner_is_charged() {
    let (_folder, section) = prices("prices.yaml", OWN_PRICES);
    let first = Upstream::start(Reply::sse().write(MSG_D.before()).step(Step::Rst)).await;
    let second = Upstream::start(Reply::stream(msg_ok())).await;
    let setup = Setup::new(&first.url()).target(&second.url(), "").section(&section);
    let weir = setup.defaults("retry: { attempts: 3 }").start().await;
    let row = weir.booked(weir.post(MESSAGES, MSG_D.ask()).await.id()).await;
    assert_eq!(field(&row, "target"), "up2/upstream-model", "{row}");
    assert_eq!((nano(&row, "charge"), nano(&row, "cost")), (Some(360_000), Some(375_000)), "25·3 more: {row}");
    assert_eq!((number(&row, "maybe_billed"), number(&row, "input")), (Some(1), Some(25)), "{row}");
}

#[tokio::test]
async fn f6_f9_a_reply_too_large_to_be_held_is_metered_too() {
    let data = "0.123456,".repeat(150_000);
    let body = format!(r#"{{"object":"list","data":[{data}1],"usage":{{"prompt_tokens":1234,"total_tokens":1234}}}}"#);
    for framing in [Framing::Chunked, Framing::Length(body.len())] {
        let upstream = Upstream::start(Reply::json(200, &body).framing(framing)).await;
        let weir = Setup::new(&upstream.url()).start().await;
        let received = weir.post("/v1/embeddings", r#"{"model":"public-model","input":"x"}"#).await;
        assert!(received.body == body.as_bytes());
        let row = weir.booked(received.id()).await;
        assert_eq!((number(&row, "input"), field(&row, "source")), (Some(1234), "reported".into()), "{row}");
    }
}

const TIERED: &str = r#"
prices:
  - model: upstream-model
    input: "4"
    cache_read: "0.40"
    output: "16"
    audio_input: "40"
    service_tiers: { flex: { input: "2", cache_read: "0.20", output: "8" }, priority: { input: "8", output: "32" } }
  - { model: advisor, input: "10", output: "50" }
"#;

/// A stream of one dialect in which the events with these numbers name a service tier.
fn tiered(dialect: Dialect, tier: &str, at: &[usize]) -> String {
    let name = |(index, event): (usize, &String)| {
        if !at.contains(&index) {
            return event.clone();
        }
        match dialect.name {
            "chat" => event.replacen("{\"id\"", &format!("{{\"service_tier\":\"{tier}\",\"id\""), 1),
            "responses" => event.replacen("\"status\"", &format!("\"service_tier\":\"{tier}\",\"status\""), 1),
            _ => event.replacen("\"input_tokens\"", &format!("\"service_tier\":\"{tier}\",\"input_tokens\""), 1),
        }
    };
    dialect.events().iter().enumerate().map(name).collect()
}

/// Wherever the answer names its tier, it is recorded beside the requested one, and priced; for a provider
/// that always names the same one, the requested one is.
#[tokio::test]
async fn b211_b212_the_tier_served_is_recorded_and_priced_or_the_one_requested() {
    let (_folder, section) = prices("prices.yaml", TIERED);
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let echo = Upstream::start(Reply::stream(tiered(CHAT_D, "default", &[0]))).await;
    let weir = Setup::new(&upstream.url())
        .provider(&format!("echo: {{ base_url: \"{}\", api_key: k, price_tier: requested }}", echo.url()))
        .other_model("{ name: echoed, targets: [{ provider: echo, model: upstream-model }] }")
        .section(&section)
        .start()
        .await;
    let rows = [
        ("only in the first chunk", CHAT_D, vec![0], 12 * 2_000 + 2 * 8_000),
        ("only in the last chunk", CHAT_D, vec![4], 12 * 2_000 + 2 * 8_000),
        ("in response.completed", RESP_D, vec![5], 12 * 2_000 + 8 * 200 + 5 * 8_000),
        ("in message_start", MSG_D, vec![0], 25 * 2_000 + 15 * 8_000),
        ("nowhere: as requested", CHAT_D, vec![], 12 * 8_000 + 2 * 32_000),
    ];
    for (name, dialect, at, cost) in rows {
        upstream.push(Reply::stream(tiered(dialect, "flex", &at)));
        let ask = dialect.ask().replacen('{', "{\"service_tier\":\"priority\",", 1);
        let row = weir.booked(weir.post(dialect.path, ask).await.id()).await;
        let served = if at.is_empty() { "" } else { "flex" };
        let tiers = (field(&row, "tier_requested"), field(&row, "tier_served"));
        assert_eq!(tiers, ("priority".into(), served.into()), "{name}");
        assert_eq!(nano(&row, "cost"), Some(cost), "{name}: {row}");
    }
    let ask = CHAT_ASK.replace("public-model", "echoed").replacen('{', "{\"service_tier\":\"priority\",", 1);
    let row = weir.booked(weir.post(CHAT, ask).await.id()).await;
    assert_eq!((field(&row, "tier_requested"), field(&row, "tier_served")), ("priority".into(), "default".into()));
    assert_eq!(nano(&row, "cost"), Some(12 * 8_000 + 2 * 32_000), "B212: {row}");
}

#[tokio::test]
async fn b209_cached_audio_is_subtracted_once() {
    let (_folder, section) = prices("prices.yaml", TIERED);
    let usage = r#"{"prompt_tokens":100,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":40,"audio_tokens":50,"cached_tokens_details":{"audio_tokens":30,"text_tokens":10}}}"#;
    let stream = chat_ok().replace(r#"{"prompt_tokens":12,"completion_tokens":2,"total_tokens":14}"#, usage);
    let upstream = Upstream::start(Reply::stream(stream)).await;
    let weir = Setup::new(&upstream.url()).section(&section).start().await;
    let row = weir.booked(weir.post(CHAT, CHAT_ASK).await.id()).await;
    assert_eq!(nano(&row, "cost"), Some(40 * 4_000 + 20 * 40_000 + 40 * 400 + 2 * 16_000), "{row}");
}

#[tokio::test]
async fn b217_another_model_inside_the_answer_is_recorded_and_priced_as_itself() {
    let (_folder, section) = prices("prices.yaml", TIERED);
    let end = r#"{"input_tokens":25,"output_tokens":15,"iterations":[{"type":"message","model":"upstream-model","input_tokens":25,"output_tokens":15},{"type":"advisor_message","model":"advisor","input_tokens":1000,"output_tokens":9}]}"#;
    let stream = msg_with(r#"{"input_tokens":25,"output_tokens":1}"#, &[end]);
    let upstream = Upstream::start(Reply::stream(stream)).await;
    let weir = Setup::new(&upstream.url()).section(&section).start().await;
    let row = weir.booked(weir.post(MESSAGES, MSG_D.ask()).await.id()).await;
    assert_eq!((number(&row, "input"), number(&row, "output")), (Some(25), Some(15)), "{row}");
    let others: Value = serde_json::from_str(&field(&row, "other_models")).expect("JSON");
    assert_eq!(others.to_string().matches("advisor").count(), 1, "{others}");
    assert!(others.to_string().contains("1000"), "{others}");
    assert_eq!(nano(&row, "cost"), Some(25 * 4_000 + 15 * 16_000 + 1000 * 10_000 + 9 * 50_000), "{row}");
}
