//! The sections of money and records: `prices:`, `billing:`, `ledger:`.

use super::files::Folder;
use super::*;
use crate::ledger::billing::Basis;
use crate::ledger::config::Sell;
use crate::ledger::{Durability, OnFailure};

const PRICES: &str = "prices: [{ provider: openai, model: gpt-5.6-sol, input: \"1\", output: \"2\" }]\n";

/// The least file with a section in place of its `prices: {}`, beside some price files.
fn beside(files: &[(&str, &str)], name: &str, section: &str) -> Result<Loaded, Report> {
    let folder = Folder::new(name);
    for (name, text) in files {
        folder.put(name, text);
    }
    parse(&least(&[("prices: {}", section)]), "weir.yaml", &env, &folder.0)
}

fn warnings(loaded: &Loaded) -> Vec<String> {
    loaded.warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn l1_without_its_sections_there_is_a_ledger_with_the_defaults() {
    let config = read(&least(&[])).unwrap().config;
    let ledger = &config.ledger;
    assert_eq!(ledger.path, Path::new("/nonexistent/data/weir.db"));
    assert_eq!((ledger.durability, ledger.on_failure), (Durability::Group, OnFailure::Reject));
    assert_eq!(ledger.checkpoint, Duration::from_secs(5));
    assert_eq!(ledger.retention, Duration::from_hours(90 * 24));
    assert_eq!(ledger.timezone, jiff::tz::TimeZone::UTC);
    assert!(ledger.postgres.is_none());
    assert_eq!(config.prices.sell, Sell::Markup("1".to_owned()));
    assert_eq!((config.billing.client_gone, config.billing.crashed), (Basis::Delivered, Basis::Delivered));
}

#[test]
fn l1_every_key_of_the_ledger_is_read() {
    let section = "ledger: { path: /var/lib/weir/l.db, durability: strict, checkpoint: 1s, on_failure: serve, \
                   retention: 400d, timezone: Europe/Berlin, postgres: { url: \"${PG_URL}\", batch: 7 } }\n\
                   billing: { client_gone: free, stalled: full }\nprices: {}";
    let config = read(&least(&[("prices: {}", section)])).unwrap().config;
    let ledger = &config.ledger;
    assert_eq!(ledger.path, Path::new("/var/lib/weir/l.db"));
    assert_eq!((ledger.durability, ledger.on_failure), (Durability::Strict, OnFailure::Serve));
    assert_eq!((ledger.checkpoint, ledger.retention), (Duration::from_secs(1), Duration::from_hours(400 * 24)));
    assert_eq!(ledger.timezone.iana_name(), Some("Europe/Berlin"));
    let postgres = ledger.postgres.as_ref().unwrap();
    assert_eq!((postgres.batch, postgres.url.expose()), (7, &*format!("postgres://weir:{CANARY}@db.internal/weir")));
    assert!(!format!("{config:?}").contains("CANARY"));
    let billing = config.billing;
    assert_eq!((billing.client_gone, billing.stalled, billing.drained), (Basis::Free, Basis::Full, Basis::Delivered));
}

#[test]
fn c1_mistakes_of_the_ledger_are_refused() {
    refused(&[
        ("prices: {}", "ledger: { timezone: Mars/Olympus }", "5:21: ledger.timezone: write the name of a time zone"),
        ("prices: {}", "ledger: { timezone: Etc/Unknown }", "ledger.timezone: write the name of a time zone"),
        ("prices: {}", "ledger: { checkpoint: 0s }", "ledger.checkpoint: this time must be longer than 0"),
        ("prices: {}", "ledger: { retention: 0s }", "ledger.retention: this time must be longer than 0"),
        ("prices: {}", "ledger: { path: / }", "ledger.path: this is a folder; name a file in it"),
        ("prices: {}", "ledger: { durability: fast }", "ledger.durability: use one of: group, strict"),
        ("prices: {}", "ledger: { on_failure: ignore }", "ledger.on_failure: use one of: reject, serve"),
        ("prices: {}", "ledger: { postgres: { batch: 5 } }", "ledger.postgres: \"url\" is missing"),
        ("prices: {}", "ledger: { postgres: { url: \"mysql://h/d\" } }", "ledger.postgres.url: write postgres://"),
        ("prices: {}", "ledger: { postgres: { url: \"postgres://h:x/d\" } }", "ledger.postgres.url: write postgres://"),
        (
            "prices: {}",
            "ledger: { postgres: { url: \"postgres://h/d?sslrootcert=/nonexistent\" } }",
            "a file named by sslrootcert must hold certificates",
        ),
        (
            "prices: {}",
            "ledger: { postgres: { url: \"${PG_URL}\", batch: 0 } }",
            "write a whole number from 1 to 10000",
        ),
        ("prices: {}", "billing: { stalled: half }", "billing.stalled: use one of: delivered, full, free"),
        ("prices: {}", "billing: { completed: free }", "billing.completed: no such key"),
        ("prices: {}", "prices: { sell: { markup: \"-1\" } }", "prices.sell.markup: write a decimal such as"),
        ("prices: {}", "prices: { sell: { markup: 20% } }", "prices.sell.markup: write a decimal such as"),
        ("prices: {}", "prices: { sell: {} }", "prices.sell: \"markup\" is missing"),
        ("prices: {}", "prices: { cost: prices.yaml }", "prices.cost: this is a single value; write a list"),
        ("prices: {}", "prices: { sell: none.yaml }", "prices.sell: none.yaml: cannot be read"),
    ]);
}

#[test]
fn l3_each_mistake_of_a_price_file_is_a_finding() {
    let files = [
        ("good.yaml", PRICES),
        (
            "bad.yaml",
            "prices: [{ model: a, input: \"-1\", output: \"2\" }, { model: b, input: \"x\", output: \"2\" }]\n",
        ),
        ("bad.json", "{ \"a\""),
    ];
    let section = "prices: { cost: [good.yaml, bad.yaml, bad.json, none.yaml] }";
    let lines = lines(beside(&files, "bad-prices", section));
    let starts = [
        "weir.yaml:5:29: prices.cost[1]: bad.yaml: prices[0] (a)",
        "weir.yaml:5:29: prices.cost[1]: bad.yaml: prices[1] (b)",
        "weir.yaml:5:39: prices.cost[2]: bad.json: ",
        "weir.yaml:5:49: prices.cost[3]: none.yaml: cannot be read",
    ];
    assert_eq!(lines.len(), starts.len(), "{lines:#?}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{line}");
    }
}

#[test]
fn l3_prices_are_read_with_the_config() {
    let loaded = beside(&[("p.yaml", PRICES)], "prices", "prices: { cost: [p.yaml], sell: { markup: 1.20 } }").unwrap();
    assert_eq!(warnings(&loaded), [""; 0]);
    assert_eq!(loaded.config.prices.sell, Sell::Markup("1.20".to_owned()));
    assert!(loaded.config.price_books.knows("openai", "gpt-5.6-sol"));
}

#[test]
fn l3_what_has_no_price_is_said() {
    let warned = |files: &[(&str, &str)], name, section, expected: &[&str]| {
        let lines = warnings(&beside(files, name, section).unwrap());
        assert_eq!(lines.len(), expected.len(), "{section}: {lines:#?}");
        for (line, start) in lines.iter().zip(expected) {
            assert!(line.starts_with(start), "{line}");
        }
    };
    let other = PRICES.replace("openai", "azure");
    let files = [("p.yaml", PRICES), ("other.yaml", other.as_str()), ("sell.yaml", "prices: []\n")];
    let target = "weir.yaml:3:41: models[0].targets[0]: no file under prices.cost prices this provider and model";
    let sale = "weir.yaml:3:18: models[0].name: the file of prices.sell has no price for this model";
    warned(&files, "none", "log: {}", &["weir.yaml:1:1: prices: there are no prices, so tokens are recorded"]);
    warned(&files, "silent", "prices: { cost: [], sell: { markup: \"2\" } }", &[]);
    warned(&files, "cost", "prices: { cost: [other.yaml] }", &[target]);
    warned(&files, "first", "prices: { cost: [other.yaml, p.yaml] }", &[]);
    warned(&files, "sell", "prices: { cost: [p.yaml], sell: sell.yaml }", &[sale]);
    warned(&files, "only-sell", "prices: { sell: sell.yaml }", &[sale]);
    warned(&files, "own", "prices: { cost: [other.yaml], sell: sell.yaml }", &[sale, target]);
}
