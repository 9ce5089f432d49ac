//! Adds up what a stream reports of its tokens, by rule U3.
//!
//! Filled by the three dialects with the text of each `usage` object, read by the meter. Touches nothing.
//!
//! Numbers are kept as they came and merged as they came; the vector of rule U2 is made of them only
//! when asked for, so that what one event leaves out another can still bring.

use super::counts::{Counts, Report, member};
use super::usage::Usage;
use crate::json::{Text, Walker};

/// More models than an answer can have had; past it further names are not kept.
const MAX_OTHER_MODELS: usize = 16;
/// Longest model name kept, in bytes.
const MAX_NAME: usize = 256;

/// Where a chat chunk had its usage; a better place is not overruled by a worse one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    #[default]
    Vendor,
    Choice,
    Top,
}

/// Which event a messages usage came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// None came yet.
    #[default]
    Nothing,
    /// `message_start`: its output count is a placeholder (B164).
    Start,
    /// `message_delta`, or a whole reply.
    Later,
}

/// What was reported so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    counts: Counts,
    place: Place,
    stage: Stage,
    /// Cached tokens come on top of the input (messages).
    on_top: bool,
    /// The sum of `usage.iterations`, which stands for the tokens in `counts`.
    iterations: Option<Box<Counts>>,
    others: Vec<(String, Usage)>,
    bad: u64,
}

impl Tally {
    /// Chat: the last non-null usage, but what it leaves out stays (B172, B175). Answers the tier in it.
    pub(super) fn chat<'a>(&mut self, usage: &'a [u8], place: Place) -> Option<Text<'a>> {
        let later = Report::read(usage, &mut self.bad)?;
        if place < self.place {
            return later.tier;
        }
        self.place = place;
        if later.counts.has_tokens() {
            self.counts.total = None;
        }
        self.counts = self.counts.merged(later.counts, |earlier, later| later.or(earlier));
        later.tier
    }

    /// A whole chat reply that counts no output and whose total is its input generated nothing (embeddings).
    pub(super) fn nothing_generated(&mut self) {
        let Counts { prompt, completion, output, total, .. } = self.counts;
        if completion.or(output).is_none() && prompt.is_some() && prompt == total {
            self.counts.completion = Some(0);
        }
    }

    /// Responses: the terminal event's usage, and the web searches, which stand beside it (B215).
    pub(super) fn responses(&mut self, usage: Option<&[u8]>, tool_usage: Option<&[u8]>) {
        if let Some(report) = usage.and_then(|usage| Report::read(usage, &mut self.bad)) {
            self.counts = report.counts;
        }
        if let Some(tools) = tool_usage {
            let mut searches = None;
            // The text was walked before: it cannot be malformed.
            let _ = Walker::new(tools).object(|walker, name| {
                if !name.is("web_search") {
                    return walker.skip().map(drop);
                }
                member(walker, "num_requests", &mut searches, &mut self.bad)
            });
            self.counts.web_search = searches.or(self.counts.web_search);
        }
    }

    /// Messages: the field-wise maximum, since all are cumulative; `model` is the answer's own. Answers the tier in it.
    pub(super) fn messages<'a>(&mut self, usage: &'a [u8], model: Option<&str>, stage: Stage) -> Option<Text<'a>> {
        let later = Report::read(usage, &mut self.bad)?;
        self.on_top = true;
        self.counts = self.counts.merged(later.counts, Option::max);
        match later.iterations {
            Some(list) => self.sum_iterations(list, model),
            // Those of the start are as preliminary as its output.
            None if self.stage == Stage::Start => self.iterations = None,
            None => {}
        }
        if self.stage != Stage::Later && (stage == Stage::Start || later.counts.output.is_some()) {
            self.stage = stage;
        }
        later.tier
    }

    pub(super) fn output_is_placeholder(&self) -> bool {
        self.stage == Stage::Start
    }

    pub(super) fn others(&self) -> &[(String, Usage)] {
        &self.others
    }

    /// The vector of rule U2.
    pub(super) fn usage(&self) -> Usage {
        self.resolved().0
    }

    /// Numbers that could not be true: those not taken, and those that contradict each other.
    pub(super) fn anomalies(&self) -> u64 {
        self.bad + self.resolved().1
    }

    fn resolved(&self) -> (Usage, u64) {
        if self.on_top { self.message_counts().as_parts() } else { self.counts.as_subsets() }
    }

    /// The counts of a messages answer, iterations taken for the tokens where they are there.
    fn message_counts(&self) -> Counts {
        let Some(sum) = self.iterations.as_deref() else {
            return self.counts;
        };
        let split = sum.cache_write_5m.or(sum.cache_write_1h).is_some();
        Counts {
            input: sum.input,
            output: sum.output,
            cache_read: sum.cache_read,
            cache_write: sum.cache_write,
            cache_write_5m: if split { sum.cache_write_5m } else { self.counts.cache_write_5m },
            cache_write_1h: if split { sum.cache_write_1h } else { self.counts.cache_write_1h },
            reasoning: sum.reasoning.or(self.counts.reasoning),
            ..self.counts
        }
    }

    /// Sums the entries of the answer's own model; those of others (an advisor) are kept by name.
    fn sum_iterations(&mut self, list: &[u8], model: Option<&str>) {
        let mut sum: Option<Counts> = None;
        let mut others: Vec<(String, Counts)> = Vec::new();
        let bad = &mut self.bad;
        let _ = Walker::new(list).array(|walker| {
            let Some(entry) = Report::read(walker.skip()?, bad) else { return Ok(()) };
            let name = entry.model.and_then(Text::decoded).filter(|name| Some(name.as_ref()) != model);
            let Some(name) = name else {
                sum = Some(sum.unwrap_or_default().merged(entry.counts, added));
                return Ok(());
            };
            if let Some((_, counts)) = others.iter_mut().find(|(other, _)| *other == name) {
                *counts = counts.merged(entry.counts, added);
            } else if others.len() < MAX_OTHER_MODELS && name.len() <= MAX_NAME {
                others.push((name.into_owned(), entry.counts));
            }
            Ok(())
        });
        self.iterations = sum.map(Box::new);
        self.others = others.into_iter().map(|(name, counts)| (name, counts.as_parts().0)).collect();
    }
}

impl Counts {
    /// Cached tokens are part of the prompt (chat, responses).
    fn as_subsets(mut self) -> (Usage, u64) {
        self.input = self.prompt.or(self.input);
        self.output = self.completion.or(self.output);
        if let (Some(input), Some(output), Some(reasoning), Some(total)) =
            (self.input, self.output, self.reasoning, self.total)
            && reasoning > 0
            && total == input.saturating_add(output).saturating_add(reasoning)
        {
            self.output = Some(output.saturating_add(reasoning));
        }
        self.split_writes().vector()
    }

    /// Cached tokens come on top of the input (messages; B167).
    fn as_parts(mut self) -> (Usage, u64) {
        self.input = self.input.or(self.prompt);
        self.output = self.output.or(self.completion);
        let counts = self.split_writes();
        let input = counts.input.map(|input| {
            [counts.cache_read, counts.cache_write_5m, counts.cache_write_1h]
                .into_iter()
                .flatten()
                .fold(input, u64::saturating_add)
        });
        let (usage, anomalies) = Self { input, ..counts }.vector();
        // The total may be known in the end where the split was known at the start (B163).
        let surplus = self.cache_write_5m.or(self.cache_write_1h).is_some() && self.write_total() != self.cache_write;
        (usage, anomalies + u64::from(surplus && self.cache_write.is_some()))
    }

    /// Writes without a split, and those above it, are five-minute ones (B161, B163).
    fn split_writes(mut self) -> Self {
        let Some(total) = self.cache_write else { return self };
        let rest = total.saturating_sub(self.write_total().unwrap_or(0));
        self.cache_write_5m = Some(self.cache_write_5m.unwrap_or(0).saturating_add(rest));
        self
    }

    fn write_total(&self) -> Option<u64> {
        added(self.cache_write_5m, self.cache_write_1h)
    }

    /// Makes the vector; a part larger than its whole is cut to it, so that nothing below goes
    /// under zero, and counts as an anomaly (B202).
    fn vector(self) -> (Usage, u64) {
        let mut anomalies = 0;
        let mut left = self.input;
        let mut part = |count: Option<u64>, left: &mut Option<u64>| {
            let (Some(whole), Some(value)) = (*left, count) else { return count };
            anomalies += u64::from(value > whole);
            *left = Some(whole.saturating_sub(value));
            Some(value.min(whole))
        };
        let cache_read = part(self.cache_read, &mut left);
        let writes = [self.cache_write_5m, self.cache_write_1h].map(|writes| part(writes, &mut left));
        let mut generated = self.output;
        let reasoning = part(self.reasoning, &mut generated);
        let audio_output = part(self.audio_output, &mut generated);
        // Audio that came from the cache is counted there (B209); how much that is, few tell.
        let audio = self.audio_input.map(|audio| audio.saturating_sub(self.audio_cached.unwrap_or(0)));
        let audio_input = audio.map(|audio| left.map_or(audio, |left| audio.min(left)));
        let usage = Usage {
            input: self.input,
            cache_read,
            cache_write_5m: writes[0],
            cache_write_1h: writes[1],
            output: self.output,
            reasoning,
            audio_input,
            audio_output,
            web_search: self.web_search,
        };
        (usage, anomalies)
    }
}

fn added(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    }
}
