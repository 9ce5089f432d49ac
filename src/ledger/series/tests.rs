//! Buckets, lines and percentiles.

use super::*;

const AT: i64 = 1_800_000_000 * SECOND;

fn ledger(rows: &[(i64, &str, &str, i64, i64)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let connection = super::super::schema::open_writer(&folder.path().join("weir.db")).unwrap();
    for (at, (second, model, outcome, first, charge)) in rows.iter().enumerate() {
        connection
            .execute(
                "INSERT INTO settled (request_id, key, model, attempts, maybe_billed, stream, status, effective_status, \
                 outcome, source, charged, billing, billing_why, anomalies, received, day, admitted, first_output, \
                 duration, waited, bytes, output_events, keepalives, settled_at, owner, charge, output) \
                 VALUES (?1, ?2, ?3, '[]', 0, 1, 200, 200, ?4, 'reported', '{}', '', '', 0, ?5, '', 1000, ?6, ?7, 0, 0, \
                 0, 0, 0, 1, ?8, 7)",
                params![at.to_string(), format!("key-{model}"), model, outcome, AT + second * SECOND, first, first * 2, charge],
            )
            .unwrap();
    }
    folder
}

fn ask(folder: &tempfile::TempDir, asked: &Asked) -> Value {
    series(&folder.path().join("weir.db"), asked, true).unwrap()
}

fn asked(group: Group, seconds: i64) -> Asked {
    Asked { group, since: AT, until: AT + seconds * SECOND, step: Some(60 * SECOND), key: None }
}

#[test]
fn m5_each_bucket_has_its_requests_and_percentiles() {
    let mut rows: Vec<_> = (1..=100).map(|at| (at % 60, "sol", "completed", at * 10_000 + 1000, 5)).collect();
    rows.extend([(61, "luna", "stalled", 71_000, 3), (-1, "luna", "stalled", 0, 9), (180, "sol", "completed", 0, 9)]);
    let folder = ledger(&rows);
    let told = ask(&folder, &asked(Group::Model, 180));
    assert_eq!(told["t"], json!([AT / SECOND, AT / SECOND + 60, AT / SECOND + 120]));
    let [sol, luna] = [&told["groups"][0], &told["groups"][1]];
    assert_eq!((&sol["name"], &luna["name"]), (&json!("sol"), &json!("luna")));
    assert_eq!(sol["series"]["requests"], json!([100, 0, 0]));
    assert_eq!(luna["series"]["errors"], json!([0, 1, 0]));
    assert_eq!(sol["series"]["ttft_p50_ms"], json!([500.0, null, null]));
    assert_eq!(sol["series"]["ttft_p99_ms"], json!([990.0, null, null]));
    assert_eq!(luna["series"]["duration_p90_ms"], json!([null, 142.0, null]));
    assert_eq!((&sol["totals"]["charge_usd"], &sol["totals"]["output"]), (&json!("0.000000500"), &json!(700)));
    let all = ask(&folder, &asked(Group::All, 180));
    assert_eq!(all["groups"][0]["series"]["requests"], json!([100, 1, 0]));
    let cause = ask(&folder, &asked(Group::Cause, 180));
    assert_eq!(cause["groups"][1]["name"], "stalled ");
    let one = ask(&folder, &Asked { key: Some("key-luna".to_owned()), ..asked(Group::Model, 180) });
    assert_eq!(one["groups"].as_array().unwrap().len(), 1);
    let empty = ask(&folder, &Asked { key: Some("nobody".to_owned()), ..asked(Group::Model, 180) });
    assert_eq!(empty["groups"], json!([]));
}

#[test]
fn m5_many_names_and_long_ranges_stay_small() {
    let names: Vec<String> = (0..40).map(|at| format!("m{at:02}")).collect();
    let rows: Vec<_> = names.iter().map(|name| (1, name.as_str(), "completed", 2000, 1)).collect();
    let told = ask(&ledger(&rows), &Asked { step: Some(1), ..asked(Group::Model, 90 * 86_400) });
    let groups = told["groups"].as_array().unwrap();
    assert_eq!(groups.len(), MOST_GROUPS + 1);
    assert_eq!((&groups[16]["name"], &groups[16]["totals"]["requests"]), (&json!("other"), &json!(24)));
    assert!(told["t"].as_array().unwrap().len() <= 2001, "{}", told["step_s"]);
    let day = ask(&ledger(&rows), &Asked { step: None, ..asked(Group::Model, 86_400) });
    assert_eq!(day["step_s"], 900);
}
