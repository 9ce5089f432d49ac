//! The table of endings, row by row.

use super::{Blame, Failure, Outcome};
use std::collections::BTreeSet;

/// A failure, whether another target may be tried, the outcome if none is left, who is cooled
/// down, and the status while no header was sent.
type Row = (Failure, bool, Outcome, Blame, u16);

const ROWS: &[Row] = &[
    (Failure::Resolve, true, Outcome::UpstreamError, Blame::Target, 502),
    (Failure::Connect, true, Outcome::UpstreamError, Blame::Target, 502),
    (Failure::ConnectTimeout, true, Outcome::UpstreamError, Blame::Target, 504),
    (Failure::Send, true, Outcome::UpstreamInterrupted, Blame::Target, 502),
    (Failure::SendTimeout, true, Outcome::Stalled, Blame::Target, 504),
    (Failure::FirstByte, true, Outcome::Stalled, Blame::Target, 504),
    (Failure::Head, true, Outcome::UpstreamInterrupted, Blame::Target, 502),
    (Failure::Status(500), true, Outcome::UpstreamError, Blame::Target, 500),
    (Failure::Status(429), true, Outcome::UpstreamError, Blame::Throttled, 429),
    (Failure::Account(401), true, Outcome::UpstreamError, Blame::Account, 503),
    (Failure::ClientStatus(404), false, Outcome::ClientError, Blame::Nobody, 404),
    (Failure::NotAnAnswer, true, Outcome::UpstreamError, Blame::Target, 502),
    (Failure::Empty, true, Outcome::UpstreamError, Blame::Target, 502),
    (Failure::Broken, true, Outcome::UpstreamInterrupted, Blame::Target, 502),
    (Failure::TooLarge, true, Outcome::UpstreamError, Blame::Target, 502),
    (Failure::Idle, true, Outcome::Stalled, Blame::Target, 504),
    (Failure::FirstContent, true, Outcome::Stalled, Blame::Target, 504),
    (Failure::NoOutput, true, Outcome::Stalled, Blame::Target, 504),
    (Failure::ErrorEvent(529), true, Outcome::UpstreamError, Blame::Target, 529),
    (Failure::ErrorEvent(429), true, Outcome::UpstreamError, Blame::Throttled, 429),
    (Failure::ErrorEvent(7), true, Outcome::UpstreamError, Blame::Target, 502),
    (Failure::ClientErrorEvent(400), false, Outcome::ClientError, Blame::Nobody, 400),
    (Failure::Total, false, Outcome::Timeout, Blame::Nobody, 504),
    (Failure::NonStream, false, Outcome::Timeout, Blame::Target, 504),
    (Failure::Busy, true, Outcome::UpstreamError, Blame::Nobody, 503),
    (Failure::Draining, false, Outcome::Drained, Blame::Nobody, 503),
    (Failure::Revoked, false, Outcome::Rejected, Blame::Nobody, 401),
];

#[test]
fn e5_a2_a6_a8_what_follows_from_each_failure() {
    for (failure, retry, outcome, blame, status) in ROWS {
        let found = (failure.may_retry(), failure.outcome(), failure.blame(), failure.status());
        assert_eq!(found, (*retry, *outcome, *blame, *status), "{failure:?}");
    }
}

#[test]
fn a2_what_may_not_be_retried_is_the_most_telling() {
    for (failure, retry, ..) in ROWS {
        assert_eq!(failure.telling() == 9, !retry, "{failure:?}");
    }
}

#[test]
fn a7_429_then_529_and_503_then_5xx_then_timeouts_then_connect() {
    let order = [
        Failure::Status(429),
        Failure::Status(529),
        Failure::Status(500),
        Failure::FirstByte,
        Failure::Head,
        Failure::Connect,
        Failure::Busy,
    ];
    assert!(order.is_sorted_by(|more, less| more.telling() > less.telling()));
    assert_eq!(Failure::Status(503).telling(), Failure::ErrorEvent(529).telling());
}

#[test]
fn a8_a_clients_own_fault_never_cools_a_target() {
    for (failure, ..) in ROWS.iter().filter(|(_, _, outcome, ..)| *outcome == Outcome::ClientError) {
        assert_eq!(failure.blame(), Blame::Nobody, "{failure:?}");
    }
}

#[test]
fn l3_only_what_reached_a_model_may_have_been_billed() {
    for failure in [Failure::Connect, Failure::Send, Failure::Status(500), Failure::Busy, Failure::Draining] {
        assert!(!failure.maybe_billed(), "{failure:?}");
    }
    for failure in [Failure::FirstByte, Failure::Broken, Failure::Empty, Failure::FirstContent, Failure::Total] {
        assert!(failure.maybe_billed(), "{failure:?}");
    }
}

#[test]
fn e5_each_outcome_has_one_word_and_faults_are_not_the_clients() {
    let words: BTreeSet<&str> = Outcome::ALL.iter().map(|outcome| outcome.word()).collect();
    assert_eq!(words.len(), Outcome::ALL.len());
    let faults: Vec<&str> = Outcome::ALL.iter().filter(|outcome| outcome.is_fault()).map(|one| one.word()).collect();
    assert_eq!(faults, ["upstream_error", "upstream_interrupted", "stalled", "timeout", "internal", "crashed"]);
}
