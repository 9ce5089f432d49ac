//! What is counted, that it is counted once, and that no client can make a series.

use super::names::Names;
use super::{Kind, Metrics};
use crate::ledger::Stats;
use crate::ledger::money::Nano;
use crate::ledger::sink::SinkStats;
use crate::meter::usage::Source;
use crate::outcome::Outcome;
use crate::record::{Attempt, Record};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

fn metrics(max_key_series: usize) -> Metrics {
    let metrics = Metrics::new(max_key_series).unwrap();
    metrics.know(Names::new(&["sol", "moon"], &["openai/sol", "vllm/sol-8b"]));
    metrics
}

fn text(metrics: &Metrics) -> String {
    String::from_utf8(metrics.render()).unwrap()
}

/// The value of one series, written as in the text format.
fn value(metrics: &Metrics, series: &str) -> Option<f64> {
    let text = text(metrics);
    let line = text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit(' ').next()?.parse().ok()
}

fn series(metrics: &Metrics) -> BTreeSet<String> {
    let text = text(metrics);
    let lines = text.lines().filter(|line| line.starts_with("weir_"));
    lines.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
}

#[test]
fn m1_a_finished_stream_fills_each_metric_it_should() {
    let metrics = metrics(9);
    metrics.finished(&Record::sample());
    let place = r#"{model="sol",target="vllm/sol-8b"}"#;
    let table = [
        (r#"weir_requests_total{endpoint="chat",key="team-a",model="sol",outcome="completed"}"#.to_owned(), 1.0),
        (r#"weir_request_duration_seconds_sum{endpoint="chat",model="sol",stream="true"}"#.to_owned(), 2.0),
        // 410 ms after the head, of which the client took 10 to send its body.
        (format!("weir_time_to_first_token_seconds_sum{place}"), 0.4),
        (format!("weir_time_to_first_visible_token_seconds_sum{place}"), 0.5),
        // From the start of the second attempt, at 100 ms.
        (format!("weir_upstream_time_to_first_byte_seconds_sum{place}"), 0.2),
        (format!("weir_upstream_time_to_first_token_seconds_sum{place}"), 0.3),
        // 1 s for 20 tokens after the first.
        (format!("weir_time_per_output_token_seconds_sum{place}"), 0.05),
        (r#"weir_gateway_overhead_seconds_sum{endpoint="chat"}"#.to_owned(), 0.01),
        (r#"weir_attempts_total{result="connect",target="openai/sol"}"#.to_owned(), 1.0),
        (r#"weir_attempts_total{result="ok",target="vllm/sol-8b"}"#.to_owned(), 1.0),
        (r#"weir_tokens_total{key="team-a",kind="input",model="sol"}"#.to_owned(), 100.0),
        (r#"weir_tokens_total{key="team-a",kind="output",model="sol"}"#.to_owned(), 21.0),
        (r#"weir_tokens_total{key="team-a",kind="reasoning",model="sol"}"#.to_owned(), 5.0),
        (r#"weir_keepalives_total{model="sol"}"#.to_owned(), 2.0),
    ];
    for (series, expected) in table {
        let value = value(&metrics, &series).unwrap_or_else(|| panic!("no {series}"));
        assert!((value - expected).abs() < 1e-9, "{series}: {value}, not {expected}");
    }
    assert!(!text(&metrics).contains("usage_missing"));
}

#[test]
fn m1_every_metric_can_be_filled_and_is_declared_well() {
    let metrics = metrics(9);
    let mut record = Record::sample();
    record.source = Source::Estimated;
    record.usage.web_search = Some(1);
    record.attempts[0].result = "first_byte";
    metrics.finished(&record);
    metrics.gate_overflowed("sol");
    metrics.event_malformed("openai/sol");
    metrics.usage_anomaly("openai/sol");
    metrics.limit_rejected("rpm");
    metrics.limit_store(true);
    metrics.config_reloaded(true);
    metrics.otlp_dropped(1);
    metrics.certificates(&[("tls.crt".to_owned(), 1)]);
    metrics.charged(&record, Some(Nano(1)), Some(Nano(1)), true);
    metrics.ledger_committed(Duration::from_millis(3));
    metrics.ledger(&Stats::default(), true);
    metrics.sink(&SinkStats::default());
    let text = text(&metrics);
    assert!(metrics.entries().len() > 35);
    for entry in metrics.entries() {
        let count = if entry.kind == Kind::Histogram { "_count" } else { "" };
        let shown = text.lines().any(|line| {
            line.strip_prefix(entry.name)
                .and_then(|rest| rest.strip_prefix(count))
                .is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' '))
        });
        assert!(shown, "{} was not filled", entry.name);
        assert!(entry.name.starts_with("weir_") && entry.help.ends_with('.'), "{}", entry.name);
        assert_eq!(entry.name.ends_with("_total"), entry.kind == Kind::Counter, "{}", entry.name);
        assert_eq!(entry.kind == Kind::Histogram, entry.name.ends_with("_seconds") && entry.kind != Kind::Gauge);
        assert!(entry.kind != Kind::Histogram || !entry.labels.contains(&"key"), "{}", entry.name);
    }
    assert!(text.contains("process_resident_memory_bytes"));
}

#[test]
fn b304_b305_ten_thousand_random_names_add_no_series() {
    let metrics = metrics(5);
    let mut record = Record::sample();
    let random = |at: usize, kind: &str| -> std::sync::Arc<str> { format!("{kind}-{at}-{}", "x".repeat(99)).into() };
    let once = |record: &mut Record, at: usize| {
        record.model = Some(random(at, "model"));
        record.target = Some(random(at, "target"));
        record.key = Some(random(at, "key"));
        record.attempts[0].target = random(at, "target");
        metrics.finished(record);
        metrics.gate_overflowed(&random(at, "model"));
        metrics.target_healthy(&random(at, "target"), false);
        metrics.event_malformed(&random(at, "target"));
        metrics.usage_anomaly(&random(at, "target"));
    };
    for at in 0..6 {
        once(&mut record, at);
    }
    let before = series(&metrics);
    for at in 6..10_000 {
        once(&mut record, at);
    }
    assert_eq!(series(&metrics), before);
    assert!(!text(&metrics).contains("model-0") && !text(&metrics).contains("target-0"));
    let key = r#"weir_requests_total{endpoint="chat",key="other",model="other",outcome="completed"}"#;
    assert_eq!(value(&metrics, key), Some(9_995.0));
}

#[test]
fn b307_each_request_is_counted_once_whatever_its_end() {
    let metrics = metrics(9);
    let mut random = fastrand::Rng::with_seed(307);
    for _ in 0..10_000 {
        let mut record = Record::sample();
        record.outcome = Outcome::ALL[random.usize(..Outcome::ALL.len())];
        record.cause = random.choice([None, Some("idle"), Some("total"), Some("invalid_api_key")]).unwrap();
        if random.bool() {
            (record.model, record.target, record.key, record.endpoint) = (None, None, None, None);
            record.attempts.clear();
        }
        metrics.finished(&record);
    }
    let requests = text(&metrics);
    let counts = requests.lines().filter(|line| line.starts_with("weir_requests_total"));
    let total: u64 = counts.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(total, 10_000);
}

#[test]
fn m1_refused_requests_are_counted_but_not_timed() {
    let metrics = metrics(9);
    let mut record = Record::sample();
    record.outcome = Outcome::Rejected;
    (record.model, record.target, record.attempts) = (None, None, vec![]);
    metrics.finished(&record);
    let text = text(&metrics);
    assert!(text.contains(r#"model="none",outcome="rejected""#));
    assert!(!text.contains("weir_request_duration_seconds") && !text.contains("overhead"));
}

#[test]
fn b302_long_requests_fall_into_different_finite_buckets() {
    let metrics = metrics(9);
    for seconds in [45, 400] {
        let mut record = Record::sample();
        record.duration = Duration::from_secs(seconds);
        metrics.finished(&record);
    }
    let bucket = |le: &str| {
        let labels = format!(r#"{{endpoint="chat",model="sol",stream="true",le="{le}"}}"#);
        value(&metrics, &format!("weir_request_duration_seconds_bucket{labels}"))
    };
    assert_eq!((bucket("45"), bucket("300"), bucket("600")), (Some(1.0), Some(1.0), Some(2.0)));
    for buckets in [&super::REQUEST_SECONDS[..], &super::TOKEN_SECONDS, &super::OVERHEAD_SECONDS] {
        assert!(buckets.is_sorted() && buckets[0] <= 0.001 && buckets[buckets.len() - 1] >= 600.0);
    }
}

#[test]
fn b235_gauges_return_to_zero_however_a_request_ends() {
    let metrics = metrics(9);
    let guards = (metrics.request_started(), metrics.stream_started(), metrics.stream_started());
    assert_eq!(value(&metrics, "weir_streams_active"), Some(2.0));
    assert_eq!(value(&metrics, "weir_requests_active"), Some(1.0));
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _guards = guards;
        panic!("in the middle");
    }));
    assert!(unwound.is_err());
    assert_eq!(value(&metrics, "weir_streams_active"), Some(0.0));
    assert_eq!(value(&metrics, "weir_requests_active"), Some(0.0));
}

#[test]
fn s1_stalls_are_counted_by_the_clock_that_ran_out_once_each() {
    let metrics = metrics(9);
    let mut record = Record::sample();
    let attempt = |result| Attempt { result, ..Record::sample().attempts[0].clone() };
    record.attempts = vec![attempt("first_byte"), attempt("connect"), attempt("idle")];
    (record.outcome, record.cause) = (Outcome::Stalled, Some("idle"));
    metrics.finished(&record);
    (record.attempts, record.outcome, record.cause) = (vec![attempt("ok")], Outcome::Timeout, Some("total"));
    metrics.finished(&record);
    for (clock, count) in [("first_byte", Some(1.0)), ("idle", Some(1.0)), ("total", Some(1.0)), ("connect", None)] {
        assert_eq!(value(&metrics, &format!(r#"weir_stalls_total{{clock="{clock}",model="sol"}}"#)), count);
    }
}

#[test]
fn a8_targets_are_healthy_until_told_and_vanish_with_the_config() {
    let metrics = metrics(9);
    let health = |target: &str| value(&metrics, &format!(r#"weir_target_healthy{{target="{target}"}}"#));
    metrics.target_healthy("vllm/sol-8b", false);
    assert_eq!((health("openai/sol"), health("vllm/sol-8b")), (Some(1.0), Some(0.0)));
    metrics.know(Names::new(&["sol"], &["vllm/sol-8b", "azure/sol"]));
    assert_eq!((health("openai/sol"), health("vllm/sol-8b"), health("azure/sol")), (None, Some(0.0), Some(1.0)));
}

#[test]
fn c2_a_refused_reload_shows() {
    let metrics = metrics(9);
    assert_eq!(value(&metrics, "weir_config_reload_successful"), Some(1.0));
    metrics.config_reloaded(false);
    assert_eq!(value(&metrics, "weir_config_reload_successful"), Some(0.0));
    assert_eq!(value(&metrics, r#"weir_config_reload_total{result="refused"}"#), Some(1.0));
}

#[test]
fn m1_hidden_reasoning_does_not_make_tokens_look_fast() {
    let mut record = Record::sample();
    assert_eq!(record.time_per_output_token(), Some(Duration::from_millis(50)));
    record.first_visible = record.first_output;
    assert_eq!(record.time_per_output_token(), Some(Duration::from_secs(1) / 15));
    record.usage.output = Some(6);
    assert_eq!(record.time_per_output_token(), None);
}

#[test]
fn m1_money_is_counted_by_config_names_and_what_has_no_price_is_told() {
    let metrics = metrics(9);
    let mut record = Record::sample();
    metrics.charged(&record, Some(Nano(1_500_000_001)), Some(Nano(250_000_000)), false);
    metrics.charged(&record, None, Some(Nano(250_000_000)), true);
    (record.model, record.target) = (Some("of-a-client".into()), Some("x/y".into()));
    metrics.charged(&record, Some(Nano(1)), None, true);
    for (series, expected) in [
        (r#"weir_charge_usd_total{key="team-a",model="sol"}"#, 1.500_000_001),
        (r#"weir_cost_usd_total{model="sol",target="vllm/sol-8b"}"#, 0.5),
        (r#"weir_unpriced_total{target="vllm/sol-8b"}"#, 1.0),
        (r#"weir_unpriced_total{target="other"}"#, 1.0),
        (r#"weir_charge_usd_total{key="team-a",model="other"}"#, 1e-9),
    ] {
        let value = value(&metrics, series).unwrap_or_else(|| panic!("no {series}"));
        assert!((value - expected).abs() < 1e-12, "{series}: {value}");
    }
}

#[test]
fn l5_the_ledgers_sums_grow_by_what_is_new_however_often_they_are_read() {
    let metrics = metrics(9);
    let stats = |lost, pending| Stats { pending, lost, ..Stats::default() };
    metrics.ledger(&stats(0, 3), true);
    assert_eq!(value(&metrics, "weir_ledger_lost_records_total"), Some(0.0), "there before anything is lost");
    // The last one was read before the one before it.
    for (lost, pending) in [(2, 5), (2, 5), (7, 1), (3, 0)] {
        metrics.ledger(&stats(lost, pending), false);
    }
    metrics.ledger(&stats(7, 4), false);
    assert_eq!(value(&metrics, "weir_ledger_lost_records_total"), Some(7.0));
    assert_eq!(value(&metrics, "weir_ledger_pending_records"), Some(4.0));
    assert_eq!(value(&metrics, "weir_ledger_healthy"), Some(0.0));
    assert_eq!(value(&metrics, "weir_sink_lag_seconds"), None, "no sink, no lag");
    metrics.sink(&SinkStats { behind: 9, lag: Duration::from_millis(61_900), ..SinkStats::default() });
    assert_eq!(value(&metrics, "weir_sink_lag_seconds"), Some(61.0));
    assert_eq!(value(&metrics, "weir_sink_pending_records"), Some(9.0));
}

fn file(path: &str) -> String {
    std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// `tests/prometheus/check.py` reads this table to know what dashboards and rules may name.
#[test]
fn m2_the_readme_lists_the_metrics() {
    let mut table = "| metric | kind | labels | what it says |\n| --- | --- | --- | --- |\n".to_owned();
    for entry in metrics(9).entries() {
        let kind = format!("{:?}", entry.kind).to_lowercase();
        let labels = entry.labels.join(", ");
        writeln!(table, "| `{}` | {kind} | {labels} | {} |", entry.name, entry.help).unwrap();
    }
    let readme = file("README.md");
    let shown = readme.split("<!-- metrics table -->").nth(1).unwrap_or_default().trim();
    assert_eq!(shown, table.trim(), "the table between the markers in README.md has to be:\n\n{table}");
}

#[test]
fn e5_the_rules_count_the_outcomes_that_are_faults() {
    let faults = Outcome::ALL.iter().filter(|outcome| outcome.is_fault()).map(|outcome| outcome.word());
    let matcher = format!("outcome=~\"{}\"", faults.collect::<Vec<_>>().join("|"));
    for (path, uses) in [("conf/prometheus/recording.rules.yaml", 4), ("conf/grafana/weir.json", 2)] {
        let text = file(path).replace("\\\"", "\"");
        assert_eq!(text.matches(&matcher).count(), uses, "{path}: {matcher}");
        assert_eq!(text.matches("outcome=~").count(), uses, "{path}");
    }
}
