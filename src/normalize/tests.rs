//! Rules N1 to N5: rows by hand, and every recorded stream.

mod captures;
mod cuts;
mod rows;

use super::{Asked, Change, Normalizer, Repairs, Settings};
use crate::meter::Meter;
use crate::protocol::{Endpoint, Protocol};
use crate::refusal::Ending;
use crate::shared;
use crate::sse::Scanner;
use bytes::Bytes;
use serde_json::Value;

const ALL: Settings = Settings { rewrite_model: true, normalize: true, usage_chunk_strict: true, native_errors: true };
const SHAPE: Settings =
    Settings { rewrite_model: false, normalize: true, usage_chunk_strict: false, native_errors: false };

/// What became of a stream.
#[derive(Debug, PartialEq, Eq)]
struct Normal {
    bytes: Vec<u8>,
    repairs: Repairs,
    failed: Option<Ending>,
}

const fn endpoint(protocol: Protocol) -> Endpoint {
    match protocol {
        Protocol::Chat => Endpoint::Chat,
        Protocol::Responses => Endpoint::Responses,
        Protocol::Messages => Endpoint::Messages,
    }
}

fn asked(endpoint: Endpoint, include_usage: bool) -> Asked<'static> {
    Asked { endpoint, model: "the-client's/\"name\"", include_usage, request_id: "0197", created_at: 1_700_000_000 }
}

/// The relay in small: each event through meter and normaliser, in the chunks given.
fn normal_of<'a>(settings: Settings, asked: &Asked<'_>, chunks: impl IntoIterator<Item = &'a [u8]>) -> Normal {
    let protocol = asked.endpoint.protocol();
    let mut scanner = Scanner::new(1 << 24);
    let mut meter = Meter::new(protocol, None);
    let mut normalizer = Normalizer::new(settings, asked, None).unwrap();
    let (mut out, mut dropped, mut done) = (Vec::new(), false, false);
    for chunk in chunks {
        let block = scanner.push(Bytes::copy_from_slice(chunk)).unwrap();
        if !dropped {
            out.extend_from_slice(&block.bytes[..block.lead]);
        }
        for span in scanner.spans() {
            let facts = meter.event(&block.bytes, span);
            let stripped = facts.usage_only && !asked.include_usage && protocol == Protocol::Chat;
            let change =
                if stripped { Change::Drop } else { normalizer.event(&block.bytes, span, facts, meter.error()) };
            dropped = change == Change::Drop;
            done |= facts.terminal;
            match change {
                Change::Keep => out.extend_from_slice(&block.bytes[span.start..span.end]),
                Change::Drop => {}
                Change::Replace(event) => out.extend_from_slice(&event),
                Change::Fail(ending) => {
                    let repairs = normalizer.repairs();
                    return Normal { bytes: out, repairs, failed: Some(ending) };
                }
            }
        }
    }
    if !done {
        out.extend_from_slice(&normalizer.before_terminal().unwrap_or_default());
    }
    Normal { bytes: out, repairs: normalizer.repairs(), failed: None }
}

/// Name, data of each event that has data.
fn events(stream: &[u8]) -> Vec<(String, String)> {
    let mut scanner = Scanner::new(1 << 24);
    let block = scanner.push(Bytes::copy_from_slice(stream)).unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let named = |span: &crate::sse::Span| {
        (text(&block.bytes[span.name.clone()]), text(span.payload(&block.bytes, &mut Vec::new())))
    };
    scanner.spans().iter().filter(|span| span.data_lines > 0).map(named).collect()
}

fn json(data: &str) -> Value {
    serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))
}
