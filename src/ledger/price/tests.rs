use super::*;
use crate::ledger::billing::Basis;
use crate::meter::usage::Source;
use proptest::prelude::*;

fn bill(usage: Usage) -> Bill {
    Bill { usage, source: Source::Reported, charged: usage, basis: Basis::Full, why: "" }
}

fn usage(input: u64, cache_read: u64, short_write: u64, long_write: u64, output: u64) -> Usage {
    Usage {
        input: Some(input),
        cache_read: Some(cache_read),
        cache_write_5m: Some(short_write),
        cache_write_1h: Some(long_write),
        output: Some(output),
        ..Usage::default()
    }
}

fn prices(yaml: &str, sell: Sell) -> Prices {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prices.yaml");
    std::fs::write(&file, yaml).unwrap();
    Prices::load(&PriceConfig { cost: vec![file], sell }).unwrap()
}

fn cost(prices: &Prices, provider: &str, model: &str, tier: Option<&str>, usage: Usage) -> Money {
    let bill = bill(usage);
    let sale = Sale {
        model: "public",
        provider,
        provider_model: model,
        tier: Tier { served: tier, ..Tier::default() },
        bill: &bill,
        other_models: &[],
        failed: &[],
    };
    prices.price(&sale)
}

fn markup(by: &str) -> Sell {
    Sell::Markup(by.to_owned())
}

/// Each row calculated by hand; the first ones are the reports' own.
#[test]
fn l3_costs_to_the_nano_dollar() {
    let prices = prices(
        r#"
prices:
  - { provider: a, model: sonnet, input: "3", cache_read: "0.30", cache_write_5m: "3.75", cache_write_1h: "6", output: "15" }
  - { provider: a, model: opus, input: "5", cache_write_5m: "6.25", output: "25" }
  - { provider: o, model: sol, input: "1.25", cache_read: "0.125", output: "10", web_search: "0.01" }
  - { provider: o, model: plain, input: "2", output: "8" }
  - { provider: o, model: audio, input: "2.5", cache_read: "1.25", audio_input: "40", output: "10", audio_output: "80" }
  - { provider: o, model: thinker, input: "1", output: "2", reasoning: "3" }
  - { provider: o, model: embed, input: "0.02" }
"#,
        markup("1"),
    );
    let audio = Usage { audio_input: Some(20), audio_output: Some(5), ..usage(100, 40, 0, 0, 10) };
    let thinking = Usage { reasoning: Some(78), ..usage(0, 0, 0, 0, 135) };
    let searching = Usage { web_search: Some(2), ..usage(0, 0, 0, 0, 0) };
    for (name, provider, model, usage, nano) in [
        ("B158: 3 + 12304 written, 550 out", "a", "sonnet", usage(12_307, 0, 12_304, 0, 550), 54_399_000),
        ("B160: 6 + 159217 written, 2745 out", "a", "opus", usage(159_223, 0, 159_217, 0, 2_745), 1_063_761_250),
        ("B161: 40 for 5 min, 60 for 1 h", "a", "sonnet", usage(100, 0, 40, 60, 0), 510_000),
        ("B167: 19 + 39000 read", "a", "sonnet", usage(39_019, 39_000, 0, 0, 0), 11_757_000),
        ("B200: 17903 of which 17817 cached", "o", "sol", usage(17_903, 17_817, 0, 0, 0), 2_334_625),
        ("B202: cached above prompt", "o", "sol", usage(10, 12, 0, 0, 0), 1_250),
        ("B197: reasoning is in the output", "o", "plain", thinking, 1_080_000),
        ("reasoning with its own price: 57 x 2 + 78 x 3", "o", "thinker", thinking, 348_000),
        ("B208: no audio price, text price", "o", "plain", audio, 60 * 2_000 + 40 * 2_000 + 10 * 8_000),
        (
            "B209: 40 text, 20 audio, 40 cached; 5 text, 5 audio out",
            "o",
            "audio",
            audio,
            40 * 2_500 + 20 * 40_000 + 40 * 1_250 + 5 * 10_000 + 5 * 80_000,
        ),
        ("cache writes without a price are input", "o", "plain", usage(100, 0, 50, 50, 0), 200_000),
        ("1 h writes without a price are 5 min writes", "a", "opus", usage(100, 0, 0, 100, 0), 625_000),
        ("B214: two searches", "o", "sol", searching, 20_000_000),
        ("embeddings", "o", "embed", usage(50, 0, 0, 0, 0), 1_000),
        ("a fraction of a nano is rounded half up once", "o", "sol", usage(1, 1, 0, 0, 0), 125),
    ] {
        let money = cost(&prices, provider, model, None, usage);
        assert_eq!(money.cost, Some(Nano(nano)), "{name}");
        assert_eq!(money.charge, money.cost, "{name}");
        assert!(money.unpriced.is_empty(), "{name}");
    }
}

#[test]
fn l3_an_unknown_price_is_null_and_flagged_and_nothing_costs_nothing() {
    let prices = prices("prices: [{ provider: o, model: sol, input: '1' }]", markup("1"));
    let unknown = cost(&prices, "o", "other", None, usage(1, 0, 0, 0, 0));
    assert_eq!((unknown.charge, unknown.cost), (None, None));
    assert_eq!(unknown.unpriced, ["charge", "cost"]);
    let half = cost(&prices, "o", "sol", None, usage(1, 0, 0, 0, 1));
    assert_eq!((half.cost, half.unpriced), (None, vec!["charge", "cost"]), "output has no price");
    let nothing = cost(&prices, "o", "other", None, Usage::default());
    assert_eq!((nothing.charge, nothing.cost), (Some(Nano(0)), Some(Nano(0))));
    let searched = cost(&prices, "o", "sol", None, Usage { web_search: Some(1), ..usage(1_000_000, 0, 0, 0, 0) });
    assert_eq!(searched.cost, Some(Nano(1_000_000_000)));
    assert_eq!(searched.unpriced, ["charge.web_search", "cost.web_search"]);
    assert!(prices.knows("o", "sol") && !prices.knows("x", "sol") && !prices.knows("o", "other"));
}

#[test]
fn l3_tiers_by_input_length_and_service_tier() {
    let prices = prices(
        r#"
prices:
  - provider: o
    model: "sol*"
    input: "2"
    cache_read: "1"
    output: "10"
    above: [{ input_tokens: 1000, input: "4" }, { input_tokens: 2000, input: "8", output: "20" }]
    service_tiers:
      flex: { input: "1", output: "5" }
      priority: { input: "6", above: [{ input_tokens: 1000, input: "12" }] }
"#,
        markup("1"),
    );
    for (name, tier, usage, nano) in [
        ("at the threshold", None, usage(1_000, 0, 0, 0, 1), 2_000_000 + 10_000),
        ("above it, all of it", None, usage(1_001, 0, 0, 0, 1), 1_001 * 4_000 + 10_000),
        ("above the second", None, usage(2_001, 0, 0, 0, 1), 2_001 * 8_000 + 20_000),
        ("cached input counts as length", None, usage(1_001, 1_000, 0, 0, 0), 4_000 + 1_000 * 1_000),
        ("flex", Some("flex"), usage(10, 0, 0, 0, 10), 60_000),
        ("flex has no cache price: the plain one", Some("flex"), usage(10, 10, 0, 0, 0), 10_000),
        ("priority's own long price", Some("priority"), usage(1_001, 0, 0, 0, 1), 1_001 * 12_000 + 10_000),
        ("an unknown tier is the plain price", Some("default"), usage(10, 0, 0, 0, 0), 20_000),
    ] {
        assert_eq!(cost(&prices, "o", "sol-2026", tier, usage).cost, Some(Nano(nano)), "{name}");
    }
}

#[test]
fn l3_markup_and_sell_book() {
    let yaml = "prices: [{ provider: o, model: sol, input: '1.25', output: '10' }]";
    let marked = cost(&prices(yaml, markup("1.20")), "o", "sol", None, usage(3, 0, 0, 0, 0));
    assert_eq!((marked.cost, marked.charge), (Some(Nano(3_750)), Some(Nano(4_500))));
    assert!(marked.sell_version.unwrap().ends_with("*1.20"));
    let folder = tempfile::tempdir().unwrap();
    let sell = folder.path().join("sell.yaml");
    std::fs::write(&sell, "prices: [{ model: public, input: '2', output: '20' }]").unwrap();
    let prices = prices(yaml, Sell::Book(sell));
    let sold = cost(&prices, "o", "sol", None, usage(3, 0, 0, 0, 1));
    assert_eq!((sold.cost, sold.charge), (Some(Nano(13_750)), Some(Nano(26_000))));
    assert_ne!(sold.sell_version, sold.cost_version);
    assert!(prices.sells("public", "o", "sol") && !prices.sells("other", "o", "sol"));
}

#[test]
fn u5_charge_and_cost_each_over_their_own_usage() {
    let prices = prices("prices: [{ model: sol, input: '1', output: '2' }]", markup("1"));
    let mut bill = bill(usage(10, 0, 0, 0, 100));
    bill.charged = Usage { output: Some(4), ..bill.usage };
    let others = [("sol".to_owned(), usage(1, 0, 0, 0, 1))];
    let sale = Sale {
        model: "m",
        provider: "p",
        provider_model: "sol",
        tier: Tier::default(),
        bill: &bill,
        other_models: &others,
        failed: &[],
    };
    let money = prices.price(&sale);
    assert_eq!(money.cost, Some(Nano(10_000 + 200_000 + 3_000)));
    assert_eq!(money.charge, Some(Nano(10_000 + 8_000 + 3_000)));
    let free = Bill { charged: Usage::default(), ..bill };
    assert_eq!(prices.price(&Sale { bill: &free, ..sale }).charge, Some(Nano(0)), "free is free for all models");
}

#[test]
fn l3_litellms_list_as_it_is() {
    let list = r#"{
      "sample_spec": { "input_cost_per_token": 0.0, "litellm_provider": "one of …" },
      "gpt-x": { "litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 1.25e-06, "output_cost_per_token": 1e-05,
        "cache_read_input_token_cost": 1.25e-07, "input_cost_per_token_flex": 6.25e-07, "output_cost_per_token_flex": 5e-06,
        "input_cost_per_token_above_200k_tokens": 2.5e-06, "input_cost_per_token_above_200k_tokens_priority": 5e-06,
        "search_context_cost_per_query": { "search_context_size_low": 0.01, "search_context_size_medium": 0.025 } },
      "azure/eu/gpt-x": { "litellm_provider": "azure", "input_cost_per_token": 1.375e-06, "output_cost_per_token": 1.1e-05 },
      "claude-x": { "litellm_provider": "anthropic", "input_cost_per_token": 3e-06, "output_cost_per_token": 1.5e-05,
        "cache_creation_input_token_cost": 3.75e-06, "cache_creation_input_token_cost_above_1hr": 6e-06 },
      "dashscope/qwen-x": { "litellm_provider": "dashscope", "tiered_pricing": [
        { "range": [0, 32000.0], "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06 },
        { "range": [32000.0, 128000.0], "input_cost_per_token": 2e-06, "output_cost_per_token": 4e-06 } ] },
      "tts-x": { "litellm_provider": "openai", "input_cost_per_character": 1.5e-05 },
      "odd": { "litellm_provider": "openai", "input_cost_per_token": null, "output_cost_per_token": -1 }
    }"#;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("litellm.json");
    std::fs::write(&file, list).unwrap();
    let prices = Prices::load(&PriceConfig { cost: vec![file], sell: markup("1") }).unwrap();
    let search = Usage { web_search: Some(1), ..Usage::default() };
    for (name, provider, model, tier, usage, nano) in [
        ("bare", "openai", "gpt-x", None, usage(1_000, 400, 0, 0, 10), 600 * 1_250 + 400 * 125 + 100_000),
        ("flex", "openai", "gpt-x", Some("flex"), usage(1_000, 0, 0, 0, 10), 625_000 + 50_000),
        ("long", "openai", "gpt-x", None, usage(200_001, 0, 0, 0, 0), 200_001 * 2_500),
        ("long, priority", "openai", "gpt-x", Some("priority"), usage(200_001, 0, 0, 0, 0), 200_001 * 5_000),
        ("search", "openai", "gpt-x", None, search, 25_000_000),
        ("with prefix", "azure", "eu/gpt-x", None, usage(8, 0, 0, 0, 0), 11_000),
        ("1 h cache", "anthropic", "claude-x", None, usage(100, 0, 40, 60, 0), 150_000 + 360_000),
        ("steps, low", "dashscope", "qwen-x", None, usage(32_000, 0, 0, 0, 1), 32_002_000),
        ("steps, high", "dashscope", "qwen-x", None, usage(32_001, 0, 0, 0, 1), 64_006_000),
    ] {
        assert_eq!(cost(&prices, provider, model, tier, usage).cost, Some(Nano(nano)), "{name}");
    }
    for (provider, model) in [("vllm", "gpt-x"), ("openai", "tts-x"), ("openai", "odd"), ("openai", "sample_spec")] {
        assert!(!prices.knows(provider, model), "{provider}/{model}");
    }
}

#[test]
fn c1_all_mistakes_of_a_price_file_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prices.yaml");
    let yaml = "prices:\n- { model: a, input: 'x', output: '-1' }\n- { model: a, input: '1' }\n";
    std::fs::write(&file, yaml).unwrap();
    let missing = folder.path().join("none.json");
    let config = PriceConfig { cost: vec![file.clone(), missing], sell: markup("a lot") };
    let errors = Prices::load(&config).unwrap_err();
    let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    for part in ["prices[0] (a).input", "prices[0] (a).output", "priced twice", "none.json", "a lot"] {
        assert!(text.contains(part), "{part} not in:\n{text}");
    }
    std::fs::write(&file, "prices:\n- { model: a, inptu: '1' }\n").unwrap();
    let errors = Prices::load(&PriceConfig { cost: vec![file], sell: markup("1") }).unwrap_err();
    assert!(errors[0].message.contains("inptu"), "{errors:?}");
}

fn count() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![Just(None), (0_u64..1_000).prop_map(Some), (0_u64..(1 << 40)).prop_map(Some)]
}

prop_compose! {
    fn any_usage()(v in proptest::array::uniform9(count())) -> Usage {
        Usage {
            input: v[0], cache_read: v[1], cache_write_5m: v[2], cache_write_1h: v[3], output: v[4],
            reasoning: v[5], audio_input: v[6], audio_output: v[7], web_search: v[8],
        }
    }
}

proptest! {
    #[test]
    fn l3_parts_never_overlap(usage in any_usage()) {
        let (parts, _) = parts(&usage);
        if let Some(input) = usage.input {
            let sum = parts.input + parts.cache_read + parts.cache_write_5m + parts.cache_write_1h + parts.audio_input;
            prop_assert_eq!(sum, input);
        }
        if let Some(output) = usage.output {
            prop_assert_eq!(parts.output + parts.reasoning + parts.audio_output, output);
        }
    }

    /// With one price for everything, the money is that price times the whole: nothing twice, nothing lost.
    #[test]
    fn l3_one_price_for_all_is_price_times_whole(usage in any_usage()) {
        let mut entry = Entry::default();
        for part in rates::Part::ALL {
            if part != rates::Part::WebSearch {
                entry.standard.base.set(part, Atto(1_000_000_000));
            }
        }
        let (parts, _) = parts(&usage);
        let whole = parts.input + parts.cache_read + parts.cache_write_5m + parts.cache_write_1h + parts.audio_input
            + parts.output + parts.reasoning + parts.audio_output;
        let sum = entry.sum(&parts, None).sum.unwrap();
        prop_assert_eq!(round(sum, Decimal::ONE), i64::try_from(whole).ok().map(Nano));
    }

    /// More tokens of any part never cost less.
    #[test]
    fn b203_spend_never_decreases(usage in any_usage(), more in 1_u64..1_000) {
        let mut entry = Entry::default();
        for (index, part) in rates::Part::ALL.into_iter().enumerate() {
            entry.standard.base.set(part, Atto(1_000_000 * (index as u128 + 1)));
        }
        let price = |usage: &Usage| entry.sum(&parts(usage).0, None).sum.unwrap();
        let larger = Usage { output: usage.output.map(|output| output + more), ..usage };
        prop_assert!(price(&larger) >= price(&usage));
    }
}

#[test]
fn l3_failed_attempts_are_in_the_cost_and_never_in_the_charge() {
    let yaml =
        r#"prices: [{ provider: a, model: x, input: "3", output: "15" }, { provider: b, model: y, input: "1" }]"#;
    let prices = prices(yaml, markup("2"));
    let bill = bill(usage(10, 0, 0, 0, 2));
    let failed = [(Arc::from("b/y"), usage(1_000, 0, 0, 0, 0))];
    let sale = Sale {
        model: "m",
        provider: "a",
        provider_model: "x",
        tier: Tier::default(),
        bill: &bill,
        other_models: &[],
        failed: &failed,
    };
    let money = prices.price(&sale);
    assert_eq!((money.charge, money.cost), (Some(Nano(120_000)), Some(Nano(1_060_000))));
    let unknown = [(Arc::from("c/z"), usage(1, 0, 0, 0, 0))];
    let money = prices.price(&Sale { failed: &unknown, ..sale });
    assert_eq!((money.charge, money.cost, money.unpriced), (Some(Nano(120_000)), None, vec!["cost"]));
}
