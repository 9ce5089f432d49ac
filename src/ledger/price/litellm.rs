//! Reads LiteLLM's price list (`model_prices_and_context_window.json`) as it is.
//!
//! Called when books are loaded. Touches only the bytes it is given. Numbers are read from their
//! text, never as floats. What is priced per character, second or image has no token price here.
//!
//! A key is `provider/model` or a bare model with `litellm_provider`; both are found under the
//! operator's provider of that name.

use super::own::Priced;
use super::rates::{Entry, Part, Schedule};
use crate::ledger::money::{Atto, Decimal};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Explains the members; not a model.
const SAMPLE: &str = "sample_spec";
/// Service tiers that come as suffixes.
const TIERS: [(&str, &str); 3] = [("_priority", "priority"), ("_flex", "flex"), ("_batches", "batch")];

type Members<'a> = BTreeMap<String, &'a RawValue>;

#[derive(Deserialize)]
struct List<'a>(#[serde(borrow)] BTreeMap<String, &'a RawValue>);

/// Reads the list. A model whose prices cannot be read is left out, since the list is not ours to correct.
pub(super) fn read(content: &[u8]) -> Result<Vec<Priced>, String> {
    let list: List<'_> =
        serde_json::from_slice(content).map_err(|error| format!("not LiteLLM's price list: {error}"))?;
    let mut all = Vec::new();
    for (name, raw) in list.0 {
        if name == SAMPLE {
            continue;
        }
        let members: Members<'_> =
            serde_json::from_str(raw.get()).map_err(|error| format!("{name}: not an object: {error}"))?;
        let entry = entry(&members);
        if entry == Entry::default() {
            continue;
        }
        let provider = members.get("litellm_provider").and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
        let provider = provider.unwrap_or_default();
        if let Some((first, rest)) = name.split_once('/') {
            // `azure/eu/gpt-5` is what provider `azure` calls `eu/gpt-5`.
            all.push(Priced { provider: first.to_owned(), model: rest.to_owned(), entry: entry.clone() });
        }
        if !provider.is_empty() {
            all.push(Priced { provider, model: name, entry });
        }
    }
    if all.is_empty() { Err("no model in it has a token price; is it LiteLLM's list?".to_owned()) } else { Ok(all) }
}

fn entry(members: &Members<'_>) -> Entry {
    let mut entry = Entry::default();
    for (name, raw) in members {
        match name.as_str() {
            "search_context_cost_per_query" => searches(raw, &mut entry),
            "tiered_pricing" => steps(raw, &mut entry),
            _ => member(name, raw, &mut entry),
        }
    }
    entry
}

/// One `…_cost_per_token…` member, its suffixes told apart.
fn member(name: &str, raw: &RawValue, entry: &mut Entry) {
    let (name, tier) = TIERS
        .into_iter()
        .find_map(|(suffix, tier)| Some((name.strip_suffix(suffix)?, Some(tier))))
        .unwrap_or((name, None));
    let (name, threshold) = long_input(name);
    let (Some(part), Some(price)) = (part(name), price(raw)) else { return };
    let schedule = match tier {
        Some(tier) => entry.tiers.entry(tier.to_owned()).or_default(),
        None => &mut entry.standard,
    };
    put(schedule, threshold, part, price);
}

fn put(schedule: &mut Schedule, threshold: Option<u64>, part: Part, price: Atto) {
    match threshold {
        Some(threshold) => schedule.above.entry(threshold).or_default().set(part, price),
        None => schedule.base.set(part, price),
    }
}

/// `…_above_200k_tokens` and its threshold.
fn long_input(name: &str) -> (&str, Option<u64>) {
    let found = name.strip_suffix("k_tokens").and_then(|rest| rest.rsplit_once("_above_"));
    match found.and_then(|(name, thousands)| Some((name, thousands.parse::<u64>().ok()?))) {
        Some((name, thousands)) => (name, Some(thousands * 1_000)),
        None => (name, None),
    }
}

fn part(name: &str) -> Option<Part> {
    Some(match name {
        "input_cost_per_token" => Part::Input,
        "cache_read_input_token_cost" => Part::CacheRead,
        "cache_creation_input_token_cost" => Part::CacheWrite5m,
        "cache_creation_input_token_cost_above_1hr" => Part::CacheWrite1h,
        "input_cost_per_audio_token" => Part::AudioInput,
        "output_cost_per_token" => Part::Output,
        "output_cost_per_reasoning_token" => Part::Reasoning,
        "output_cost_per_audio_token" => Part::AudioOutput,
        _ => return None,
    })
}

/// A number, bare or in quotes.
fn price(raw: &RawValue) -> Option<Atto> {
    Decimal::parse(raw.get().trim_matches('"')).and_then(Decimal::per_unit).ok()
}

/// The price of a search by context size: `medium`, the default of the API.
fn searches(raw: &RawValue, entry: &mut Entry) {
    let sizes: Members<'_> = serde_json::from_str(raw.get()).unwrap_or_default();
    if let Some(price) = sizes.get("search_context_size_medium").and_then(|raw| price(raw)) {
        entry.standard.base.set(Part::WebSearch, price);
    }
}

/// `tiered_pricing: [{ range: [0, 256000], input_cost_per_token, … }]`.
fn steps(raw: &RawValue, entry: &mut Entry) {
    let steps: Vec<Members<'_>> = serde_json::from_str(raw.get()).unwrap_or_default();
    for step in steps {
        let range: Vec<&RawValue> =
            step.get("range").and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        let Some(from) = range.first().and_then(|raw| Decimal::parse(raw.get()).ok()?.whole()) else { continue };
        let threshold = (from > 0).then_some(from);
        for (name, raw) in &step {
            if let (Some(part), Some(price)) = (part(name), price(raw)) {
                put(&mut entry.standard, threshold, part, price);
            }
        }
    }
}
