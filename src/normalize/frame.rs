//! Writes an event anew around its changed data, all its other lines as they were (F1, N3).
//!
//! Called by the normaliser for events that need a change. Touches nothing.

use super::edit::Edits;
use crate::sse::Span;
use memchr::memchr2;

/// The event at `span` of `bytes`, its data (`payload`) with `edits`, its name with `name` if given.
pub(super) fn event(bytes: &[u8], span: &Span, payload: &[u8], edits: Edits<'_>, name: Option<&[u8]>) -> Vec<u8> {
    let part = |from: usize, to: usize| bytes.get(from..to).unwrap_or_default();
    let mut out = Vec::with_capacity(span.end - span.start + 192);
    let own = span.name.clone();
    // Between two data lines it stays as it is: nobody sends that.
    let name = name.filter(|_| own.end <= span.data.start || own.start >= span.data.end);
    // An `event:` line behind the data is left where it is, with its new value.
    let (behind, named) = (own.start >= span.data.end, own.start > span.start);
    match name {
        Some(name) if named && !behind => {
            out.extend_from_slice(part(span.start, own.start));
            out.extend_from_slice(colon(bytes, own.start));
            out.extend_from_slice(name);
            out.extend_from_slice(part(own.end, span.data.start));
        }
        Some(name) if !named => {
            let line = data_line(bytes, span);
            out.extend_from_slice(part(span.start, line));
            out.extend_from_slice(b"event: ");
            out.extend_from_slice(name);
            out.extend_from_slice(line_end(bytes, span.data.end));
            out.extend_from_slice(part(line, span.data.start));
        }
        Some(_) | None => out.extend_from_slice(part(span.start, span.data.start)),
    }
    data(bytes, span, payload, edits, &mut out);
    match name {
        Some(name) if named && behind => {
            out.extend_from_slice(part(span.data.end, own.start));
            out.extend_from_slice(colon(bytes, own.start));
            out.extend_from_slice(name);
            out.extend_from_slice(part(own.end, span.end));
        }
        Some(_) | None => out.extend_from_slice(part(span.data.end, span.end)),
    }
    out
}

/// The LF that an event which is held back has lost when its CR was the last byte that was read: the
/// relay drops it with the event (F4).
pub(super) fn owed(bytes: &[u8], span: &Span) -> &'static [u8] {
    let open = bytes.get(span.end - 1) == Some(&b'\r') && line_end(bytes, span.data.end) == b"\r\n";
    if open { b"\n" } else { b"" }
}

/// The changed data as the value of one line; lines of other fields that stood between several
/// data lines follow it.
fn data(bytes: &[u8], span: &Span, payload: &[u8], edits: Edits<'_>, out: &mut Vec<u8>) {
    let raw = bytes.get(span.data.clone()).unwrap_or_default();
    if edits.is_empty() {
        out.extend_from_slice(raw);
        return;
    }
    let from = out.len();
    edits.apply(payload, out);
    if span.data_lines < 2 {
        return;
    }
    // Between two data lines stands an LF: white space of the JSON, or the JSON was none.
    for byte in out.iter_mut().skip(from).filter(|byte| **byte == b'\n') {
        *byte = b' ';
    }
    let mut rest = raw;
    let mut first = true;
    while let Some(end) = memchr2(b'\n', b'\r', rest) {
        let (line, after) = rest.split_at(end);
        if !std::mem::replace(&mut first, false) && !is_data(line) {
            out.extend_from_slice(line_end(bytes, span.data.end));
            out.extend_from_slice(line);
        }
        rest = after.strip_prefix(b"\r\n").or_else(|| after.get(1..)).unwrap_or_default();
    }
}

fn is_data(line: &[u8]) -> bool {
    line.strip_prefix(b"data").is_some_and(|rest| rest.is_empty() || rest.starts_with(b":"))
}

/// Where the first data line begins.
fn data_line(bytes: &[u8], span: &Span) -> usize {
    let before = bytes.get(span.start..span.data.start).unwrap_or_default();
    [&b"data: "[..], b"data:", b"data"]
        .iter()
        .find(|field| before.ends_with(field))
        .map_or(span.start, |field| span.data.start - field.len())
}

/// What is missing between the field's name and its value.
fn colon(bytes: &[u8], value: usize) -> &'static [u8] {
    let before = value.checked_sub(1).and_then(|at| bytes.get(at));
    if matches!(before, Some(b':' | b' ')) { b"" } else { b": " }
}

/// The line end at `at`, an LF if there is none.
fn line_end(bytes: &[u8], at: usize) -> &'static [u8] {
    match (bytes.get(at), bytes.get(at + 1)) {
        (Some(b'\r'), Some(b'\n')) => b"\r\n",
        (Some(b'\r'), _) => b"\r",
        _ => b"\n",
    }
}
