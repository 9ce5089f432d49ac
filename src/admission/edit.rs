//! Changes the two members of a request body that Weir may change: the model's name (for the
//! target) and `stream_options.include_usage` (U1).
//!
//! Called by the gateway once per attempt. Touches nothing: the result are slices of the body
//! with a few new bytes between them, so 20 MiB are not copied and every other byte is as sent.

use super::facts::{Facts, Options};
use bytes::Bytes;
use std::ops::Range;

#[cfg(test)]
mod tests;

/// What an attempt needs changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit<'a> {
    /// The model's name at the target.
    pub model: &'a str,
    /// Whether to ask for the usage chunk; only for streamed chat (U1, B187).
    pub include_usage: bool,
}

/// Pieces that together are the new body, in order, none empty. `facts` must be those of `body`.
/// What already is as wanted stays untouched, byte for byte (B284).
#[must_use]
pub fn apply(body: &Bytes, facts: &Facts, edit: &Edit<'_>) -> Vec<Bytes> {
    let mut changes = Vec::with_capacity(2);
    if facts.model != edit.model {
        changes.push((facts.spans.model.clone(), Bytes::from(serde_json::Value::from(edit.model).to_string())));
    }
    if edit.include_usage && !facts.include_usage {
        changes.push(ask_for_usage(&facts.spans.options));
    }
    changes.sort_by_key(|(range, _)| range.start);
    let mut pieces = Vec::with_capacity(5);
    let mut from = 0;
    for (range, new) in changes {
        push(&mut pieces, slice(body, from..range.start));
        push(&mut pieces, new);
        from = range.end;
    }
    push(&mut pieces, slice(body, from..body.len()));
    pieces
}

/// The new body's length in bytes, for `content-length` (B277).
#[must_use]
pub fn total_len(pieces: &[Bytes]) -> usize {
    pieces.iter().map(Bytes::len).sum()
}

fn ask_for_usage(options: &Options) -> (Range<usize>, Bytes) {
    match options {
        // A comma is right: `model` is always there.
        Options::Absent { close } => {
            (*close..*close, Bytes::from_static(br#","stream_options":{"include_usage":true}"#))
        }
        Options::Null(value) => (value.clone(), Bytes::from_static(br#"{"include_usage":true}"#)),
        Options::Object { open, empty: true } => (*open..*open, Bytes::from_static(br#""include_usage":true"#)),
        Options::Object { open, empty: false } => (*open..*open, Bytes::from_static(br#""include_usage":true,"#)),
        Options::Flag(value) => (value.clone(), Bytes::from_static(b"true")),
    }
}

/// Never out of bounds: a range that does not fit (facts of another body) is cut to fit.
fn slice(body: &Bytes, range: Range<usize>) -> Bytes {
    debug_assert!(range.start <= range.end && range.end <= body.len(), "facts belong to this body");
    let end = range.end.min(body.len());
    body.slice(range.start.min(end)..end)
}

fn push(pieces: &mut Vec<Bytes>, piece: Bytes) {
    if !piece.is_empty() {
        pieces.push(piece);
    }
}
