//! The pages that read the ledger: `/api/usage` and `/api/requests/{id}` (L6).
//!
//! Called by the admin application, on a thread that may block. Reads the ledger's file, as the
//! commands do; touches nothing.

use super::answer_json;
use crate::ledger::cli::{self, By, CliError, Format};
use http::{Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use std::path::Path;
use uuid::Uuid;

const USAGE: &str = "/api/usage";
const REQUESTS: &str = "/api/requests/";

/// Whether a path is one of these pages.
pub(super) fn is_page(path: &str) -> bool {
    path == USAGE || path.strip_prefix(REQUESTS).is_some_and(|id| !id.is_empty() && !id.contains('/'))
}

/// What went wrong, as a status and a sentence for the operator.
struct Failure(StatusCode, String);

/// The page; blocks on the disk.
pub(super) fn answer(ledger: &Path, path: &str, query: &str) -> Response<Vec<u8>> {
    let page = match path.strip_prefix(REQUESTS) {
        Some(id) => request(ledger, id),
        None => usage(ledger, query),
    };
    match page {
        Ok(body) => answer_json(StatusCode::OK, &body),
        Err(Failure(status, error)) => answer_json(status, &json!({ "error": error })),
    }
}

fn request(ledger: &Path, id: &str) -> Result<Value, Failure> {
    let id: Uuid = id.parse().map_err(|_| asked("this is no request id; it is the x-request-id of an answer"))?;
    let found = cli::request(ledger, id).map_err(unreadable)?;
    found.ok_or_else(|| Failure(StatusCode::NOT_FOUND, "no such request is settled, or its row is gone".to_owned()))
}

fn usage(ledger: &Path, query: &str) -> Result<Value, Failure> {
    let (mut by, mut since, mut until) = (Vec::new(), None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decoded(value)?;
        match name {
            "by" => by = columns(&value)?,
            "since" => since = Some(value),
            "until" => until = Some(value),
            _ => return Err(asked("the parameters are by, since and until")),
        }
    }
    let (since, until) = (since.as_deref(), until.as_deref());
    cli::check_times(since, until).map_err(|CliError(error)| Failure(StatusCode::BAD_REQUEST, error))?;
    let text = cli::usage(ledger, &by, since, until, Format::Json).map_err(unreadable)?;
    serde_json::from_str(&text).map_err(|error| unreadable(CliError(error.to_string())))
}

/// `key,day`
fn columns(value: &str) -> Result<Vec<By>, Failure> {
    let words = value.split(',').filter(|word| !word.is_empty());
    let columns = words.map(By::of_word).collect::<Option<Vec<_>>>();
    columns.ok_or_else(|| {
        let words = By::ALL.map(By::word).join(", ");
        Failure(StatusCode::BAD_REQUEST, format!("by is one or more of {words}, separated by commas"))
    })
}

/// A plus sign stays one: instants have it in their offset, and nothing here has spaces.
fn decoded(value: &str) -> Result<String, Failure> {
    let text = percent_decode_str(value).decode_utf8();
    text.map(std::borrow::Cow::into_owned).map_err(|_| asked("the query is not UTF-8"))
}

fn asked(error: &str) -> Failure {
    Failure(StatusCode::BAD_REQUEST, error.to_owned())
}

fn unreadable(CliError(error): CliError) -> Failure {
    log::warn!(error:%; "the admin API cannot read the ledger");
    Failure(StatusCode::SERVICE_UNAVAILABLE, error)
}
