//! Estimates tokens that nobody reported, from the delivered text (U4).
//!
//! [`Delivered`] is filled by the pump while a stream runs; the counting itself is called off the
//! hot path when the stream has ended without usage. Touches nothing.
//!
//! The simple version keeps all delivered text and counts it at the end. This one keeps the text of
//! every event only at the start and of every second, fourth, … event later, so that memory and
//! time per stream stay bounded, and scales each stretch by the bytes of its events.
//!
//! The encoder is `bpe-openai`: it counts in linear time whatever the text (others are quadratic on
//! text that a user can choose), is kept by GitHub, and brings the two encodings that matter.

use crate::json::{self, Kind, Malformed, Walker};
use crate::meter::Word;
use crate::protocol::Protocol;
use std::borrow::Cow;

#[cfg(test)]
mod tests;

/// Sampled events in one stretch before the stride doubles.
const EVENTS_PER_STRETCH: u32 = 256;
/// Bytes of text in one stretch before the stride doubles.
const TEXT_PER_STRETCH: usize = 4 * 1024;
/// Text beyond this is counted by proportion: a second of BPE is enough for an estimate.
const MAX_COUNTED: usize = 4 * 1024 * 1024;
/// Bytes of English text per token, for guesses without BPE.
const BYTES_PER_TOKEN: u64 = 4;

/// Tokens of a text by the encoding closest to the model's; `None` for no text. Costs about a
/// microsecond per 20 bytes: not for the hot path.
#[must_use]
pub fn tokens(text: &str, model: &str) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let counted = floor_boundary(text, MAX_COUNTED);
    let count = encoder(model).count(counted);
    let count = u64::try_from(count).ok()?;
    Some(scale(count, text.len(), counted.len()))
}

/// Tokens of a request body of this many bytes, for admission: a guess, without reading it.
#[must_use]
pub const fn rough(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// Tokens of a request body, for admission: a guess, in which files inside the body, written as
/// base64, do not count as text. Costs about a microsecond per 20 KiB.
#[must_use]
pub fn prompt(body: &[u8]) -> u64 {
    /// Shorter texts in quotes are text, whatever they look like.
    const LONG: usize = 2 * 1024;
    /// What providers take for a picture of common size.
    const TOKENS_PER_FILE: u64 = 1_600;
    if body.len() < LONG {
        return rough(body.len() as u64);
    }
    let (mut text, mut files, mut from) = (0, 0, 0);
    for to in memchr::memchr_iter(b'"', body).chain([body.len()]) {
        let piece = body.get(from..to).unwrap_or_default();
        if piece.len() >= LONG && is_base64(piece) {
            files += 1;
        } else {
            text += piece.len() as u64;
        }
        from = to + 1;
    }
    rough(text) + files * TOKENS_PER_FILE
}

/// By a sample: text has spaces, line breaks or letters beyond ASCII.
fn is_base64(piece: &[u8]) -> bool {
    /// Behind `data:image/png;base64,`.
    const SAMPLE: std::ops::Range<usize> = 128..640;
    let digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_' | b'=' | b'\\');
    piece.get(SAMPLE).is_some_and(|sample| sample.iter().all(digit))
}

/// The older encoding for the models that used it; the newer one, also the closest for others.
fn encoder(model: &str) -> &'static bpe_openai::Tokenizer {
    let name = model.rsplit('/').next().unwrap_or(model);
    let older = (name.starts_with("gpt-4") && !name.starts_with("gpt-4o") && !name.starts_with("gpt-4.1"))
        || name.starts_with("gpt-3")
        || name.starts_with("gpt-35")
        || name.starts_with("text-embedding")
        || name.starts_with("claude");
    if older { bpe_openai::cl100k_base() } else { bpe_openai::o200k_base() }
}

/// A bounded sample of the output of one stream.
#[derive(Clone, Debug)]
pub struct Delivered {
    protocol: Protocol,
    /// Each samples every event, every second, every fourth, …
    stretches: Vec<Stretch>,
    /// Whether the word of the meter's known delta is all of its text; `None` until that was looked at.
    word_is_text: Option<bool>,
}

#[derive(Clone, Debug, Default)]
struct Stretch {
    text: Vec<u8>,
    /// Bytes of text of the sampled events; more than `text` holds when one was cut.
    text_bytes: u64,
    /// Events, and of them sampled.
    events: u64,
    sampled: u32,
    /// Bytes of their data, and of all events' in this stretch.
    sampled_bytes: u64,
    all_bytes: u64,
}

impl Delivered {
    /// Nothing delivered yet.
    #[must_use]
    pub const fn new(protocol: Protocol) -> Self {
        Self { protocol, stretches: Vec::new(), word_is_text: None }
    }

    /// Notes the data (JSON) of one output event that went to the client. `word` is the meter's: most events
    /// are the one before them with another word, and need not be walked once more.
    pub fn event(&mut self, data: &[u8], word: Option<&Word>) {
        let data = data.trim_ascii();
        if word.is_some_and(|word| !word.is_known) {
            self.word_is_text = None;
        }
        let due = self.is_due();
        let word = word.and_then(|word| data.get(word.at.clone()));
        let text = match (due, self.word_is_text, word) {
            (false, ..) => None,
            (true, Some(true), Some(word)) => Some(json::unescaped(word)),
            (true, known, word) => {
                let text = delivered_text(self.protocol, data).ok();
                if let (None, Some(word)) = (known, word) {
                    self.word_is_text = Some(text.as_deref() == Some(&*json::unescaped(word)));
                }
                text.map(Cow::Owned)
            }
        };
        self.note(data, text.as_deref());
    }

    /// Notes a whole JSON reply (F6, F9).
    pub fn reply(&mut self, json: &[u8]) {
        let mut text = Vec::new();
        let due = self.is_due();
        let read = Walker::new(json).object(|walker, name| all_text(walker, &name.bytes(), &mut text));
        // Data that is not JSON has no text to count.
        self.note(json, Some(&*text).filter(|_| due && read.is_ok()));
    }

    /// Whether the next event is to be sampled; begins a new stretch where one is full.
    fn is_due(&mut self) -> bool {
        // A stretch is at least one stride long, so that their number grows with the logarithm only.
        let stride = 1_u64 << self.stretches.len().saturating_sub(1).min(63);
        if self.stretches.last().is_none_or(|last| last.is_full() && last.events >= stride) {
            self.stretches.push(Stretch::default());
        }
        let stride_bits = u32::try_from(self.stretches.len()).unwrap_or(64).saturating_sub(1).min(63);
        // Counted within the stretch, so that each begins with a sample.
        self.stretches.last().is_some_and(|stretch| stretch.events.trailing_zeros() >= stride_bits)
    }

    /// Counts an event, and keeps its text if it is sampled.
    fn note(&mut self, data: &[u8], text: Option<&[u8]>) {
        let bytes = u64::try_from(data.len()).unwrap_or(u64::MAX);
        let Some(stretch) = self.stretches.last_mut() else { return };
        stretch.events += 1;
        stretch.all_bytes += bytes;
        if let Some(text) = text {
            stretch.add(bytes, text);
        }
    }

    /// What is kept of the text, stretch by stretch.
    #[cfg(test)]
    pub(crate) fn sampled_text(&self) -> Vec<&[u8]> {
        self.stretches.iter().map(|stretch| &*stretch.text).collect()
    }

    /// A cheap guess for checkpoints, without BPE; `None` before any text.
    #[must_use]
    pub fn rough(&self) -> Option<u64> {
        let sum = self.stretches.iter().map(|stretch| stretch.scaled(rough(stretch.text_bytes))).sum();
        (sum > 0).then_some(sum)
    }

    /// The estimate; off the hot path. `None`: nothing that can be measured (an image adds nothing, B206).
    #[must_use]
    pub fn tokens(&self, model: &str) -> Option<u64> {
        let sum = self.stretches.iter().map(|stretch| stretch.tokens(model)).sum();
        (sum > 0).then_some(sum)
    }
}

impl Stretch {
    const fn is_full(&self) -> bool {
        self.sampled >= EVENTS_PER_STRETCH || self.text.len() >= TEXT_PER_STRETCH
    }

    fn add(&mut self, bytes: u64, text: &[u8]) {
        self.sampled += 1;
        self.sampled_bytes += bytes;
        self.text_bytes += u64::try_from(text.len()).unwrap_or(u64::MAX);
        // One event may be a whole answer: keep as much of it as four stretches.
        let room = (4 * TEXT_PER_STRETCH).saturating_sub(self.text.len());
        self.text.extend_from_slice(text.get(..room.min(text.len())).unwrap_or_default());
    }

    fn tokens(&self, model: &str) -> u64 {
        let text: Cow<'_, str> = String::from_utf8_lossy(&self.text);
        let count = tokens(&text, model).unwrap_or(0);
        let kept = u64::try_from(self.text.len()).unwrap_or(u64::MAX);
        self.scaled(proportion(count, self.text_bytes, kept))
    }

    /// From the sampled events to all of the stretch.
    fn scaled(&self, count: u64) -> u64 {
        proportion(count, self.all_bytes, self.sampled_bytes)
    }
}

/// `count` × `whole` / `part`, rounded.
fn proportion(count: u64, whole: u64, part: u64) -> u64 {
    if part == 0 || whole == part {
        return count;
    }
    let (count, whole, part) = (u128::from(count), u128::from(whole), u128::from(part));
    u64::try_from((count * whole + part / 2) / part).unwrap_or(u64::MAX)
}

fn scale(count: u64, whole: usize, part: usize) -> u64 {
    proportion(count, u64::try_from(whole).unwrap_or(u64::MAX), u64::try_from(part).unwrap_or(u64::MAX))
}

fn floor_boundary(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// The generated text in one event's data.
fn delivered_text(protocol: Protocol, data: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut text = Vec::new();
    Walker::new(data).object(|walker, name| match (protocol, &*name.bytes()) {
        (Protocol::Chat, b"choices") => walker
            .array(|walker| walker.object(|walker, name| choice(walker, &name.bytes(), &mut text)).map(drop))
            .map(drop),
        (Protocol::Messages, b"delta") => {
            walker.object(|walker, name| all_text(walker, &name.bytes(), &mut text)).map(drop)
        }
        // `.done` repeats what `.delta` brought.
        (Protocol::Responses, b"delta") => append(walker, &mut text),
        _ => walker.skip().map(drop),
    })?;
    Ok(text)
}

/// A chat choice: `delta`, or `text` of a completion; never `message`, which some send beside the delta, cumulative.
fn choice(walker: &mut Walker<'_>, name: &[u8], text: &mut Vec<u8>) -> Result<(), Malformed> {
    match name {
        b"delta" => walker.object(|walker, name| all_text(walker, &name.bytes(), text)).map(drop),
        b"text" => append(walker, text),
        _ => walker.skip().map(drop),
    }
}

/// Every string below whose name says that a model wrote it.
fn all_text(walker: &mut Walker<'_>, name: &[u8], text: &mut Vec<u8>) -> Result<(), Malformed> {
    match walker.peek()? {
        // The same reasoning once more, in parts.
        _ if name == b"reasoning_details" => walker.skip().map(drop),
        Kind::Object => walker.object(|walker, name| all_text(walker, &name.bytes(), text)).map(drop),
        Kind::Array => walker.array(|walker| all_text(walker, name, text)).map(drop),
        Kind::String if is_generated(name) => append(walker, text),
        _ => walker.skip().map(drop),
    }
}

fn is_generated(name: &[u8]) -> bool {
    matches!(
        name,
        b"content"
            | b"text"
            | b"reasoning"
            | b"reasoning_content"
            | b"thinking"
            | b"refusal"
            | b"arguments"
            | b"partial_json"
            | b"name"
            | b"transcript"
    )
}

fn append(walker: &mut Walker<'_>, text: &mut Vec<u8>) -> Result<(), Malformed> {
    if let Some(found) = walker.string()? {
        match found.decoded() {
            Some(decoded) => text.extend_from_slice(decoded.as_bytes()),
            None => text.extend_from_slice(found.raw()),
        }
    }
    Ok(())
}
