//! Reads one `usage` object, whatever its dialect calls things (U3).
//!
//! Called by the tally. Touches nothing.

use super::usage::ABSURD;
use crate::json::{Kind, Malformed, Text, Walker};

/// The numbers of one `usage` object, or of several merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) prompt: Option<u64>,
    pub(super) completion: Option<u64>,
    pub(super) input: Option<u64>,
    pub(super) output: Option<u64>,
    pub(super) total: Option<u64>,
    pub(super) cache_read: Option<u64>,
    pub(super) cache_write: Option<u64>,
    pub(super) cache_write_5m: Option<u64>,
    pub(super) cache_write_1h: Option<u64>,
    pub(super) reasoning: Option<u64>,
    pub(super) audio_input: Option<u64>,
    pub(super) audio_cached: Option<u64>,
    pub(super) audio_output: Option<u64>,
    pub(super) web_search: Option<u64>,
}

impl Counts {
    /// Field by field by `rule`, which gets the earlier and the later number.
    pub(super) fn merged(self, later: Self, rule: impl Fn(Option<u64>, Option<u64>) -> Option<u64>) -> Self {
        Self {
            prompt: rule(self.prompt, later.prompt),
            completion: rule(self.completion, later.completion),
            input: rule(self.input, later.input),
            output: rule(self.output, later.output),
            total: rule(self.total, later.total),
            cache_read: rule(self.cache_read, later.cache_read),
            cache_write: rule(self.cache_write, later.cache_write),
            cache_write_5m: rule(self.cache_write_5m, later.cache_write_5m),
            cache_write_1h: rule(self.cache_write_1h, later.cache_write_1h),
            reasoning: rule(self.reasoning, later.reasoning),
            audio_input: rule(self.audio_input, later.audio_input),
            audio_cached: rule(self.audio_cached, later.audio_cached),
            audio_output: rule(self.audio_output, later.audio_output),
            web_search: rule(self.web_search, later.web_search),
        }
    }

    pub(super) fn has_tokens(&self) -> bool {
        self.prompt.or(self.completion).or(self.input).or(self.output).is_some()
    }
}

/// One `usage` object, read.
#[derive(Debug, Default)]
pub(super) struct Report<'a> {
    pub(super) counts: Counts,
    /// The list of `iterations`, if it has any.
    pub(super) iterations: Option<&'a [u8]>,
    /// The model of an iteration.
    pub(super) model: Option<Text<'a>>,
    /// The service tier (messages, Mistral).
    pub(super) tier: Option<Text<'a>>,
}

impl<'a> Report<'a> {
    /// `None` if the text is no object. Broken numbers are added to `bad`.
    pub(super) fn read(usage: &'a [u8], bad: &mut u64) -> Option<Self> {
        let mut report = Self::default();
        let mut flat = Counts::default();
        let counts = &mut report.counts;
        let (iterations, model, tier) = (&mut report.iterations, &mut report.model, &mut report.tier);
        let read = Walker::new(usage).object(|walker, name| match &*name.bytes() {
            b"prompt_tokens" => count(walker, &mut counts.prompt, bad),
            b"completion_tokens" => count(walker, &mut counts.completion, bad),
            b"input_tokens" => count(walker, &mut counts.input, bad),
            b"output_tokens" => count(walker, &mut counts.output, bad),
            b"total_tokens" => count(walker, &mut counts.total, bad),
            b"prompt_tokens_details" | b"prompt_token_details" | b"input_tokens_details" | b"input_token_details" => {
                input_details(walker, counts, bad)
            }
            b"completion_tokens_details" | b"output_tokens_details" | b"output_token_details" => {
                output_details(walker, counts, bad)
            }
            b"cached_tokens" | b"prompt_cache_hit_tokens" | b"cache_read_input_tokens" => {
                count(walker, &mut flat.cache_read, bad)
            }
            b"cache_creation_input_tokens" => count(walker, &mut flat.cache_write, bad),
            b"reasoning_tokens" => count(walker, &mut flat.reasoning, bad),
            b"cache_creation" => cache_creation(walker, counts, bad),
            b"server_tool_use" => member(walker, "web_search_requests", &mut counts.web_search, bad),
            b"num_search_queries" => count(walker, &mut counts.web_search, bad),
            b"iterations" => {
                *iterations = Some(walker.skip()?).filter(|list| list.first() == Some(&b'['));
                Ok(())
            }
            b"model" => {
                *model = walker.string()?;
                Ok(())
            }
            b"service_tier" => {
                *tier = walker.string()?;
                Ok(())
            }
            _ => walker.skip().map(drop),
        });
        counts.cache_read = counts.cache_read.or(flat.cache_read);
        counts.cache_write = counts.cache_write.or(flat.cache_write);
        counts.reasoning = counts.reasoning.or(flat.reasoning);
        *iterations = iterations.filter(|list| list.contains(&b'{'));
        (read == Ok(true)).then_some(report)
    }
}

fn input_details(walker: &mut Walker<'_>, counts: &mut Counts, bad: &mut u64) -> Result<(), Malformed> {
    walker
        .object(|walker, name| match &*name.bytes() {
            b"cached_tokens" => count(walker, &mut counts.cache_read, bad),
            b"cache_write_tokens" | b"cache_creation_tokens" => count(walker, &mut counts.cache_write, bad),
            b"audio_tokens" => count(walker, &mut counts.audio_input, bad),
            b"cached_tokens_details" => member(walker, "audio_tokens", &mut counts.audio_cached, bad),
            _ => walker.skip().map(drop),
        })
        .map(drop)
}

fn output_details(walker: &mut Walker<'_>, counts: &mut Counts, bad: &mut u64) -> Result<(), Malformed> {
    walker
        .object(|walker, name| match &*name.bytes() {
            b"reasoning_tokens" | b"thinking_tokens" => count(walker, &mut counts.reasoning, bad),
            b"audio_tokens" => count(walker, &mut counts.audio_output, bad),
            _ => walker.skip().map(drop),
        })
        .map(drop)
}

fn cache_creation(walker: &mut Walker<'_>, counts: &mut Counts, bad: &mut u64) -> Result<(), Malformed> {
    walker
        .object(|walker, name| match &*name.bytes() {
            b"ephemeral_5m_input_tokens" => count(walker, &mut counts.cache_write_5m, bad),
            b"ephemeral_1h_input_tokens" => count(walker, &mut counts.cache_write_1h, bad),
            _ => walker.skip().map(drop),
        })
        .map(drop)
}

/// One count inside the next value.
pub(super) fn member(
    walker: &mut Walker<'_>,
    wanted: &str,
    slot: &mut Option<u64>,
    bad: &mut u64,
) -> Result<(), Malformed> {
    walker
        .object(|walker, name| if name.is(wanted) { count(walker, slot, bad) } else { walker.skip().map(drop) })
        .map(drop)
}

/// Reads a count into `slot` if it is one; `null` leaves it, anything else leaves it and is bad.
fn count(walker: &mut Walker<'_>, slot: &mut Option<u64>, bad: &mut u64) -> Result<(), Malformed> {
    let found = match walker.peek()? {
        Kind::Null => {
            walker.skip()?;
            return Ok(());
        }
        Kind::String => walker.string()?.and_then(Text::decoded).and_then(|text| whole(text.trim().as_bytes())),
        _ => whole(walker.skip()?),
    };
    match found {
        Some(found) => *slot = Some(found),
        None => *bad += 1,
    }
    Ok(())
}

/// A whole number from 0 to 2^40, in whatever way it is written (`12`, `12.0`, `1.2e1`; B203, B205).
pub(super) fn whole(raw: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(raw).ok()?;
    if let Ok(plain) = text.parse::<u64>() {
        return Some(plain).filter(|plain| *plain <= ABSURD);
    }
    if !text.starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
        return None;
    }
    let number: f64 = text.parse().ok()?;
    // Written out, a whole float is a plain number; what is too large for that is absurd anyway.
    let plain = format!("{:.0}", number + 0.0).parse().ok()?;
    (number.fract() == 0.0 && number >= 0.0 && plain <= ABSURD).then_some(plain)
}
