//! The pages of the admin API that answer with what was recorded: which path is which page (L6, M4, M5).
//!
//! Called by the admin application, on a thread that may block. Reads the ledger's file, as the
//! commands do, and what the gateway shares; touches nothing.

use super::limits::LIMITS;
use super::query::{Failure, Query};
use super::{answer_json, limits, overview, requests};
use crate::gateway::Shared;
use crate::ledger::cli::{self, By, CliError, Format};
use http::{Response, StatusCode};
use serde_json::{Value, json};
use std::path::Path;

const REQUEST: &str = "/api/requests/";

/// For whoever asks for another.
pub(super) const PAGES: [&str; 7] =
    ["/api/usage", "/api/requests", "/api/requests/ID", "/api/running", "/api/overview", "/api/series", LIMITS];

/// Whether a path is one of these pages.
pub(super) fn is_page(path: &str) -> bool {
    PAGES.contains(&path) || path.strip_prefix(REQUEST).is_some_and(|id| !id.is_empty() && !id.contains('/'))
}

/// The page; blocks on the disk. `shared`: once the gateway runs.
pub(super) fn answer(
    shared: Option<&Shared>,
    ready: bool,
    ledger: &Path,
    path: &str,
    query: &str,
) -> Response<Vec<u8>> {
    let timelines = shared.map(|shared| &shared.timelines);
    let page = match path {
        "/api/usage" => usage(ledger, query),
        "/api/requests" => requests::list(timelines, ledger, query),
        "/api/running" => requests::running(ledger, query),
        "/api/overview" => overview::overview(shared, ledger, ready),
        "/api/series" => overview::series(ledger, query),
        LIMITS => Ok(limits::page(shared.map(|shared| &*shared.limits))),
        _ => requests::one(timelines, ledger, path.strip_prefix(REQUEST).unwrap_or_default()),
    };
    match page {
        Ok(body) => answer_json(StatusCode::OK, &body),
        Err(Failure(status, error)) => answer_json(status, &json!({ "error": error })),
    }
}

fn usage(ledger: &Path, query: &str) -> Result<Value, Failure> {
    let query = Query::read(query, &["by", "since", "until"])?;
    let by = query.get("by").map(columns).transpose()?.unwrap_or_default();
    let (since, until) = (query.get("since"), query.get("until"));
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

pub(super) fn unreadable(CliError(error): CliError) -> Failure {
    log::warn!(error:%; "the admin API cannot read the ledger");
    Failure(StatusCode::SERVICE_UNAVAILABLE, error)
}
