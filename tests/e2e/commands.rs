//! L6 and M1: one request, and its tokens and money in every place that tells them.

use crate::harness::*;
use serde_json::Value;
use std::process::{Command, Output};

/// 12 tokens in at 3 USD, 2 out at 15 USD a million; a quarter on top.
const PRICES: &str = "prices: [{ provider: up, model: upstream-model, input: '3', output: '15' }]\n";
const COST: i64 = 12 * 3_000 + 2 * 15_000;
const CHARGE: i64 = COST * 5 / 4;

fn run(weir: &Weir, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(args).current_dir(&weir.folder).output().expect("the binary")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

async fn page(weir: &Weir, path: &str) -> (u16, Value) {
    let reply = get(weir.admin, path).await.expect("an answer");
    (reply.head.status, serde_json::from_slice(&reply.body).expect("JSON"))
}

#[tokio::test]
async fn l6_m1_commands_admin_pages_and_metrics_tell_the_same() {
    let prices = tempfile::tempdir().unwrap();
    let file = prices.path().join("prices.yaml");
    std::fs::write(&file, PRICES).unwrap();
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let section = format!("prices: {{ cost: [\"{}\"], sell: {{ markup: \"1.25\" }} }}", file.display());
    let weir = Setup::new(&upstream.url()).section(&section).start().await;
    let received = weir.post(CHAT, r#"{"model":"public-model","stream":true,"messages":[]}"#).await;
    let id = received.id().to_owned();
    weir.settles("weir_ledger_settled_records_total", 1.0).await;

    let (status, request) = page(&weir, &format!("/api/requests/{id}")).await;
    assert_eq!((status, &request["request_id"], &request["outcome"]), (200, &id.into(), &"completed".into()));
    assert_eq!((&request["input"], &request["output"]), (&12.into(), &2.into()));
    assert_eq!((&request["cost"], &request["charge"]), (&COST.into(), &CHARGE.into()));

    let (status, usage) = page(&weir, "/api/usage?by=key,target&since=2000-01-01").await;
    assert_eq!((status, usage.as_array().map(Vec::len)), (200, Some(1)));
    assert_eq!((&usage[0]["key"], &usage[0]["target"]), (&"test".into(), &"up/upstream-model".into()));
    assert_eq!(usage[0]["charge_nano_usd"], CHARGE);
    let json = run(&weir, &["usage", "--by", "key,target", "--since", "2000-01-01", "--format", "json"]);
    assert!(json.status.success(), "{}", said(&json));
    assert_eq!(serde_json::from_slice::<Value>(&json.stdout).unwrap(), usage, "the same over the admin API");
    assert_eq!(page(&weir, "/api/usage?until=2000-01-01").await.1[0]["requests"], 0);
    assert_eq!(page(&weir, "/api/requests/00000000-0000-7000-8000-000000000000").await.0, 404);

    for (metric, nano) in [("weir_charge_usd_total", CHARGE), ("weir_cost_usd_total", COST)] {
        let usd = weir.metric(metric, &["model=\"public-model\""]).await;
        assert_eq!(format!("{usd:.9}"), format!("0.{nano:09}"), "{metric}");
    }
    for (metric, least) in [("weir_ledger_healthy", 1.0), ("weir_ledger_commit_seconds_count", 1.0)] {
        assert!(weir.metric(metric, &[]).await >= least, "{metric}");
    }
    assert_eq!(weir.metric("weir_unpriced_total", &[]).await, 0.0);

    let verify = run(&weir, &["ledger", "verify"]);
    assert!(verify.status.success() && said(&verify).contains("clean"), "{}", said(&verify));
    let backup = run(&weir, &["ledger", "backup", "copy.db"]);
    assert!(backup.status.success(), "{}", said(&backup));
    let copy = run(&weir, &["usage", "--by=model", "--format=csv", "--ledger", "copy.db"]);
    assert!(said(&copy).contains("public-model,1,12,"), "{}", said(&copy));
}

#[tokio::test]
async fn l6_commands_say_what_is_wrong() {
    let weir = Setup::new("http://127.0.0.1:1").start().await;
    let rows: [(&[&str], i32, &str); 7] = [
        (&["usage", "--by", "colour"], 2, "possible values: key, model, target, day, outcome, tag"),
        (&["usage", "--since", "yesterday"], 1, "neither a date such as"),
        (&["usage", "--since", "2026-11-30", "--until", "2026-11-30T12:00:00Z"], 1, "must both be dates"),
        (&["usage", "--ledger", "none.db"], 1, "there is no ledger at none.db"),
        (&["usage", "--config", "none.yaml"], 1, "correct the config or use --ledger PATH"),
        (&["ledger", "verify", "--ledger", "weir.yaml"], 1, "weir.yaml"),
        (&["ledger", "backup", "weir.yaml"], 1, "exists already"),
    ];
    for (args, status, words) in rows {
        let output = run(&weir, args);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(status), 0), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(words), "{args:?}: {}", said(&output));
    }
    // A ledger without a row is clean; one with a row that was opened and is nowhere is not.
    assert!(run(&weir, &["ledger", "backup", "copy.db"]).status.success());
    let verify = || run(&weir, &["ledger", "verify", "--ledger", "copy.db"]);
    assert!(verify().status.success(), "{}", said(&verify()));
    let copy = rusqlite::Connection::open(weir.folder.join("copy.db")).unwrap();
    assert_eq!(copy.execute("UPDATE counters SET opened = opened + 1", []).unwrap(), 1);
    assert_eq!(verify().status.code(), Some(1), "{}", said(&verify()));
    assert!(said(&verify()).contains("PROBLEM: "), "{}", said(&verify()));
}
