//! Reads Weir's own price file (YAML).
//!
//! Called when books are loaded. Touches only the bytes it is given. The shape:
//!
//! ```yaml
//! prices:
//!   - provider: openai          # left out: any provider, or a sell book
//!     model: gpt-5.6-sol        # exact, or a prefix that ends in *
//!     input: "1.25"             # USD per million tokens, a decimal
//!     cache_read: "0.125"
//!     output: "10"
//!     web_search: "0.01"        # USD per call
//!     above: [{ input_tokens: 200000, input: "2.50", output: "15" }]
//!     service_tiers: { flex: { input: "0.625", output: "5" } }
//! ```

use super::rates::{Entry, Part, Rates, Schedule};
use crate::ledger::money::Decimal;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// A model's price.
pub(super) struct Priced {
    /// Empty: any.
    pub(super) provider: String,
    pub(super) model: String,
    pub(super) entry: Entry,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    prices: Vec<RawEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    #[serde(default)]
    provider: String,
    model: String,
    input: Option<String>,
    cache_read: Option<String>,
    cache_write_5m: Option<String>,
    cache_write_1h: Option<String>,
    output: Option<String>,
    reasoning: Option<String>,
    audio_input: Option<String>,
    audio_output: Option<String>,
    web_search: Option<String>,
    #[serde(default)]
    above: Vec<RawAbove>,
    #[serde(default)]
    service_tiers: BTreeMap<String, RawTier>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTier {
    input: Option<String>,
    cache_read: Option<String>,
    cache_write_5m: Option<String>,
    cache_write_1h: Option<String>,
    output: Option<String>,
    reasoning: Option<String>,
    audio_input: Option<String>,
    audio_output: Option<String>,
    web_search: Option<String>,
    #[serde(default)]
    above: Vec<RawAbove>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAbove {
    input_tokens: u64,
    input: Option<String>,
    cache_read: Option<String>,
    cache_write_5m: Option<String>,
    cache_write_1h: Option<String>,
    output: Option<String>,
    reasoning: Option<String>,
    audio_input: Option<String>,
    audio_output: Option<String>,
    web_search: Option<String>,
}

/// The nine members of any of the three, in the order of [`Part::ALL`] (a flattened struct would lose its strictness).
macro_rules! members {
    ($raw:expr) => {
        [
            ("input", &$raw.input),
            ("cache_read", &$raw.cache_read),
            ("cache_write_5m", &$raw.cache_write_5m),
            ("cache_write_1h", &$raw.cache_write_1h),
            ("audio_input", &$raw.audio_input),
            ("output", &$raw.output),
            ("reasoning", &$raw.reasoning),
            ("audio_output", &$raw.audio_output),
            ("web_search", &$raw.web_search),
        ]
    };
}

/// Reads the file; all mistakes at once.
pub(super) fn read(content: &[u8]) -> Result<Vec<Priced>, Vec<String>> {
    let text = std::str::from_utf8(content).map_err(|error| vec![format!("not UTF-8: {error}")])?;
    let file: File = serde_saphyr::from_str(text).map_err(|error| vec![error.to_string()])?;
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for (index, raw) in file.prices.into_iter().enumerate() {
        let place = format!("prices[{index}] ({})", raw.model);
        if !seen.insert((raw.provider.clone(), raw.model.clone())) {
            errors.push(format!("{place}: this provider and model are priced twice; keep one"));
        }
        let mut entry = Entry {
            standard: Schedule {
                base: rates(&members!(raw), &place, &mut errors),
                above: above(&raw.above, &place, &mut errors),
            },
            tiers: BTreeMap::new(),
        };
        for (name, tier) in &raw.service_tiers {
            let place = format!("{place}.service_tiers.{name}");
            let base = rates(&members!(tier), &place, &mut errors);
            let schedule = Schedule { base, above: above(&tier.above, &place, &mut errors) };
            entry.tiers.insert(name.clone(), schedule);
        }
        all.push(Priced { provider: raw.provider, model: raw.model, entry });
    }
    if errors.is_empty() { Ok(all) } else { Err(errors) }
}

fn above(raw: &[RawAbove], place: &str, errors: &mut Vec<String>) -> BTreeMap<u64, Rates> {
    raw.iter()
        .map(|step| {
            let place = format!("{place}.above {}", step.input_tokens);
            (step.input_tokens, rates(&members!(step), &place, errors))
        })
        .collect()
}

fn rates(members: &[(&str, &Option<String>); 9], place: &str, errors: &mut Vec<String>) -> Rates {
    let mut rates = Rates::default();
    for (part, (name, text)) in Part::ALL.into_iter().zip(members) {
        let Some(text) = text else { continue };
        let price = Decimal::parse(text)
            .and_then(|decimal| if part == Part::WebSearch { decimal.per_call() } else { decimal.per_million() });
        match price {
            Ok(price) => rates.set(part, price),
            Err(error) => errors.push(format!("{place}.{name}: {text:?}: {error}")),
        }
    }
    rates
}
