//! One price entry: its members, its tiers, and the disjoint parts they are multiplied with (L3).
//!
//! Called by the books. Touches nothing.

use crate::ledger::money::Atto;
use crate::meter::usage::Usage;
use std::collections::BTreeMap;

/// What has a price of its own. The order is that of [`Rates`] and [`Parts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Input,
    CacheRead,
    CacheWrite5m,
    CacheWrite1h,
    AudioInput,
    Output,
    Reasoning,
    AudioOutput,
    WebSearch,
}

impl Part {
    pub(super) const ALL: [Self; 9] = [
        Self::Input,
        Self::CacheRead,
        Self::CacheWrite5m,
        Self::CacheWrite1h,
        Self::AudioInput,
        Self::Output,
        Self::Reasoning,
        Self::AudioOutput,
        Self::WebSearch,
    ];

    /// Whose price it takes when it has none.
    const fn parent(self) -> Option<Self> {
        match self {
            Self::Input | Self::Output | Self::WebSearch => None,
            Self::CacheRead | Self::CacheWrite5m | Self::AudioInput => Some(Self::Input),
            Self::CacheWrite1h => Some(Self::CacheWrite5m),
            Self::Reasoning | Self::AudioOutput => Some(Self::Output),
        }
    }
}

/// Tokens of one request cut into parts that do not overlap; their sum is input plus output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Input that is neither cached nor audio.
    pub input: u64,
    /// Read from a cache.
    pub cache_read: u64,
    /// Written to a five-minute cache.
    pub cache_write_5m: u64,
    /// Written to a one-hour cache.
    pub cache_write_1h: u64,
    /// Audio in, not cached.
    pub audio_input: u64,
    /// Output that is neither reasoning nor audio.
    pub output: u64,
    /// Reasoning.
    pub reasoning: u64,
    /// Audio out.
    pub audio_output: u64,
    /// Calls.
    pub web_search: u64,
}

impl Parts {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// All input tokens: what the tiers by length look at.
    const fn input_length(&self) -> u64 {
        self.input + self.cache_read + self.cache_write_5m + self.cache_write_1h + self.audio_input
    }

    const fn of(&self, part: Part) -> u64 {
        match part {
            Part::Input => self.input,
            Part::CacheRead => self.cache_read,
            Part::CacheWrite5m => self.cache_write_5m,
            Part::CacheWrite1h => self.cache_write_1h,
            Part::AudioInput => self.audio_input,
            Part::Output => self.output,
            Part::Reasoning => self.reasoning,
            Part::AudioOutput => self.audio_output,
            Part::WebSearch => self.web_search,
        }
    }
}

/// Cuts a usage vector into its parts. A part larger than what is left of its whole is cut to it
/// (B202: never a negative number); the second value counts those.
#[must_use]
pub fn parts(usage: &Usage) -> (Parts, u64) {
    let mut anomalies = 0;
    let mut take = |left: &mut u64, wanted: Option<u64>| {
        let wanted = wanted.unwrap_or(0);
        let taken = wanted.min(*left);
        anomalies += u64::from(taken < wanted);
        *left -= taken;
        taken
    };
    // A vector without its whole is as large as its parts: better charged than lost.
    let whole_input = usage.input.unwrap_or_else(|| {
        [usage.cache_read, usage.cache_write_5m, usage.cache_write_1h, usage.audio_input]
            .into_iter()
            .flatten()
            .fold(0, u64::saturating_add)
    });
    let whole_output =
        usage.output.unwrap_or_else(|| usage.reasoning.unwrap_or(0).saturating_add(usage.audio_output.unwrap_or(0)));
    let mut input = whole_input;
    let cache_read = take(&mut input, usage.cache_read);
    let long_write = take(&mut input, usage.cache_write_1h);
    let short_write = take(&mut input, usage.cache_write_5m);
    let audio_input = take(&mut input, usage.audio_input);
    let mut output = whole_output;
    let audio_output = take(&mut output, usage.audio_output);
    let reasoning = take(&mut output, usage.reasoning);
    let web_search = usage.web_search.unwrap_or(0);
    let parts = Parts {
        input,
        cache_read,
        cache_write_5m: short_write,
        cache_write_1h: long_write,
        audio_input,
        output,
        reasoning,
        audio_output,
        web_search,
    };
    (parts, anomalies)
}

/// Prices by part; `None`: it has none of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rates(pub(super) [Option<Atto>; 9]);

impl Rates {
    fn of(&self, part: Part) -> Option<Atto> {
        self.0.get(part as usize).copied().flatten()
    }

    pub(super) fn set(&mut self, part: Part, price: Atto) {
        for (candidate, slot) in Part::ALL.into_iter().zip(&mut self.0) {
            if candidate == part {
                *slot = Some(price);
            }
        }
    }
}

/// Rates, and others for the whole request when its input is longer than a threshold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Schedule {
    pub(super) base: Rates,
    pub(super) above: BTreeMap<u64, Rates>,
}

impl Schedule {
    /// From the most special layer to the plainest.
    fn long(&self, input: u64) -> impl Iterator<Item = &Rates> {
        self.above.range(..input).rev().map(|(_, rates)| rates)
    }
}

/// Everything that is known of one model's price.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) standard: Schedule,
    /// By service tier.
    pub(super) tiers: BTreeMap<String, Schedule>,
}

/// What the parts come to.
pub(super) struct Priced {
    /// `None`: a part has tokens but neither it nor its parents have a price.
    pub(super) sum: Option<Atto>,
    /// Searches were made and have no price; they are left out of the sum.
    pub(super) searches_unpriced: bool,
}

impl Entry {
    /// Adds up exactly. Reasoning without a price of its own is output.
    pub(super) fn sum(&self, parts: &Parts, tier: Option<&str>) -> Priced {
        let tier = tier.and_then(|name| self.tiers.get(name));
        let input = parts.input_length();
        let mut priced = Priced { sum: Some(Atto(0)), searches_unpriced: false };
        for part in Part::ALL {
            let count = parts.of(part);
            if count == 0 {
                continue;
            }
            match self.price(part, tier, input) {
                Some(price) => {
                    priced.sum =
                        priced.sum.and_then(|sum| sum.0.checked_add(price.0.checked_mul(u128::from(count))?).map(Atto));
                }
                None if part == Part::WebSearch => priced.searches_unpriced = true,
                None => priced.sum = None,
            }
        }
        priced
    }

    /// The tier's long price, the long price, the tier's, the plain one; then the parent's likewise.
    fn price(&self, part: Part, tier: Option<&Schedule>, input: u64) -> Option<Atto> {
        let mut part = Some(part);
        while let Some(current) = part {
            let of = |rates: &Rates| rates.of(current);
            let price = tier
                .and_then(|tier| tier.long(input).find_map(of))
                .or_else(|| self.standard.long(input).find_map(of))
                .or_else(|| of(&tier?.base))
                .or_else(|| of(&self.standard.base));
            if price.is_some() {
                return price;
            }
            part = current.parent();
        }
        None
    }
}
