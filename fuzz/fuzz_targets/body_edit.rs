//! In-place edits of request bodies: what comes out says what was asked for, and all else is as it was.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use weir::admission::edit::{Edit, apply, total_len};
use weir::admission::facts;
use weir::protocol::Endpoint;

fuzz_target!(|body: &[u8]| {
    let body = Bytes::copy_from_slice(body);
    let Ok(before) = facts::read(Endpoint::Chat, &body) else { return };
    let edit = Edit { model: "other \"model\"", include_usage: before.stream };
    let pieces = apply(&body, &before, &edit);
    let edited: Bytes = pieces.concat().into();
    assert_eq!(edited.len(), total_len(&pieces));
    let after = facts::read(Endpoint::Chat, &edited).expect("still a body");
    assert_eq!(after.model, edit.model);
    assert_eq!(after.include_usage, before.include_usage || edit.include_usage);
    assert_eq!((after.stream, after.n, &after.user), (before.stream, before.n, &before.user));
    assert_eq!(apply(&edited, &after, &edit), [edited], "what is as wanted stays untouched");
});
