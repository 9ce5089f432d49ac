//! The access record: one line per request, without content or secrets (M3).
//!
//! Called once per request, when it has ended. Touches the log. What it may say is the list in
//! `say` and nothing else; both forms are made from it.

mod line;
#[cfg(test)]
mod tests;

use crate::config;
use crate::ledger::money::Nano;
use crate::logging::ACCESS;
use crate::outcome::Outcome;
use crate::protocol::Endpoint;
use crate::record::Record;
use line::{Line, Paper, name};
use std::cell::RefCell;
use uuid::Uuid;

thread_local! {
    /// What the lines of a thread are written on.
    static PAPER: RefCell<Paper> = RefCell::default();
}

/// Writes the record of one request, if it is among those to be written. `charge`: where a price is known.
pub fn write(record: &Record, charge: Option<Nano>, config: &config::Log) {
    if !chosen(record.id, record.outcome, config.access_permille) {
        return;
    }
    // Taken for the time being; a thread that is about to end has none left.
    let mut paper = PAPER.try_with(RefCell::take).unwrap_or_default();
    let line = say(record, charge, paper.line(config.format, record.received));
    let args = format_args!("{line}");
    // Not by the macro, which would drop it below `level: info`.
    log::logger().log(&log::Record::builder().target(ACCESS).level(log::Level::Info).args(args).build());
    let _its_last_line = PAPER.try_with(|kept| kept.replace(paper));
}

/// Errors always, unless nothing is wanted; of the others the asked share, always the same ones.
fn chosen(id: Uuid, outcome: Outcome, permille: u16) -> bool {
    let error = match outcome {
        Outcome::Completed | Outcome::Truncated | Outcome::ClientGone => false,
        Outcome::ClientError
        | Outcome::UpstreamError
        | Outcome::UpstreamInterrupted
        | Outcome::Stalled
        | Outcome::Timeout
        | Outcome::Rejected
        | Outcome::BudgetReached
        | Outcome::Drained
        | Outcome::Internal
        | Outcome::Crashed => true,
    };
    // The low half of a UUIDv7 is random.
    permille > 0 && (error || id.as_u128() & u128::from(u32::MAX) < u128::from(permille) * (1 << 32) / 1000)
}

/// All that an access record says, in order; what is not known is left out.
fn say<'p>(record: &Record, charge: Option<Nano>, mut line: Line<'p>) -> &'p str {
    let usage = &record.usage;
    let effective = (record.effective_status != record.status).then_some(u64::from(record.effective_status));
    line.word(name!("request_id"), Some(record.id.hyphenated().encode_lower(&mut Uuid::encode_buffer())));
    line.text(name!("client_request_id"), record.client_request_id.as_deref());
    line.text(name!("upstream_request_id"), record.upstream_request_id.as_deref());
    line.text(name!("answer_id"), record.answer_id.as_deref());
    line.text(name!("key"), record.key.as_deref());
    line.text(name!("tag"), record.tag.as_deref());
    line.address(name!("client"), record.client);
    line.word(name!("endpoint"), record.endpoint.map(Endpoint::word));
    line.text(name!("model"), record.model.as_deref());
    line.text(name!("target"), record.target.as_deref());
    line.number(name!("status"), Some(record.status.into()));
    line.number(name!("effective_status"), effective);
    line.word(name!("outcome"), Some(record.outcome.word()));
    line.text(name!("cause"), record.cause);
    line.flag(name!("stream"), record.stream);
    line.time(name!("admitted_ms"), record.admitted);
    line.time(name!("upstream_first_byte_ms"), record.upstream_first_byte);
    line.time(name!("upstream_first_output_ms"), record.upstream_first_output);
    line.time(name!("ttft_ms"), record.time_to_first_token());
    line.time(name!("ttfv_ms"), record.time_to_first_visible_token());
    line.time(name!("last_output_ms"), record.last_output);
    line.time(name!("duration_ms"), Some(record.duration));
    line.time(name!("overhead_ms"), Some(record.overhead()));
    line.number(name!("bytes"), Some(record.bytes));
    line.number(name!("output_events"), Some(record.output_events));
    line.number(name!("keepalives"), Some(record.keepalives));
    line.number(name!("input"), usage.input);
    line.number(name!("cache_read"), usage.cache_read);
    line.number(name!("cache_write_5m"), usage.cache_write_5m);
    line.number(name!("cache_write_1h"), usage.cache_write_1h);
    line.number(name!("output"), usage.output);
    line.number(name!("reasoning"), usage.reasoning);
    line.number(name!("audio_input"), usage.audio_input);
    line.number(name!("audio_output"), usage.audio_output);
    line.number(name!("web_search"), usage.web_search);
    line.word(name!("source"), Some(record.source.word()));
    line.money(name!("charge"), charge);
    line.text(name!("tier_requested"), record.tier_requested.as_deref());
    line.text(name!("tier_served"), record.tier_served.as_deref());
    line.attempts(name!("attempts"), &record.attempts);
    line.end()
}
