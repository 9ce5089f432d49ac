//! The fault matrix: what each fault comes to in each phase.
//!
//! One table for all protocols, and the cells in which one differs. A word says all: what the
//! client reads, the status, the outcome, the attempts and whether the target cools down.

use super::world::{Fault, Phase};
use crate::harness::Dialect;

/// What a cell comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comes {
    /// Nothing of it reached the client: the next target answers, or, if there is none, an error.
    /// The word is the attempt's.
    Fails(&'static str),
    /// The client's answer ends with Weir's own error event (E2, E3), for this cause.
    Ends(&'static str),
    /// The whole answer, although something went wrong after its last content (E1), or was slow.
    Whole,
    /// The same, and Weir wrote the terminal event itself (E1).
    Added,
    /// The upstream's own error event is the end (E4).
    Own,
    /// There is no such cell.
    None,
}

use Comes::{Added, Ends, Fails, None, Own, Whole};

const HEAD: Comes = Fails("head");
const EARLY: Comes = Fails("broken");
const EVENT: Comes = Fails("error_event");
const CUT: Comes = Ends("broken");
const MUTE: Comes = Ends("idle");

/// The statuses as such.
const S429: Comes = Fails("rate_limited");
const S500: Comes = Fails("status");
const S529: Comes = Fails("overloaded");

#[rustfmt::skip]
const TABLE: [(Phase, [Comes; 10]); 10] = [
    // A port where nobody listens; a listener that never accepts; answers that come before the request.
    //                 FIN               RST               stall                     trickle error  429    500    529    garbage end
    (Phase::Connect,  [Fails("connect"), Fails("connect"), Fails("connect_timeout"), None,   EVENT, S429,  S500,  S529,  HEAD,   None]),
    (Phase::Sent,     [HEAD,             HEAD,             Fails("first_byte"),      Whole,  EVENT, S429,  S500,  S529,  HEAD,   None]),
    // A status whose body never comes whole is that status.
    (Phase::Headers,  [EARLY,            EARLY,            Fails("idle"),            Whole,  EVENT, S429,  S500,  S529,  EARLY,  Fails("empty")]),
    (Phase::Prelude,  [EARLY,            EARLY,            Fails("idle"),            Whole,  EVENT, EVENT, EVENT, EVENT, EARLY,  Fails("empty")]),
    // Half an event was never sent on; no error event can stand on its line.
    (Phase::InFirst,  [EARLY,            EARLY,            Fails("idle"),            Whole,  None,  None,  None,  None,  EARLY,  Fails("empty")]),
    (Phase::Between,  [CUT,              CUT,              MUTE,                     Whole,  Own,   Own,   Own,   Own,   CUT,    Ends("ended_early")]),
    (Phase::Inside,   [CUT,              CUT,              MUTE,                     Whole,  None,  None,  None,  None,  CUT,    Ends("ended_early")]),
    (Phase::Finished, [Added,            Added,            Added,                    Whole,  Own,   Own,   Own,   Own,   Added,  Added]),
    (Phase::Usage,    [Added,            Added,            Added,                    Whole,  Own,   Own,   Own,   Own,   Added,  Added]),
    (Phase::Terminal, [Whole,            Whole,            Whole,                    Whole,  Whole, Whole, Whole, Whole, Whole,  Whole]),
];

/// What a cell comes to.
pub(super) fn cell(dialect: Dialect, phase: Phase, fault: Fault) -> Comes {
    // A responses stream finishes with its terminal event: before that, it has not.
    let phase = match (dialect.name, phase) {
        ("responses", Phase::Finished | Phase::Usage) => Phase::Between,
        (_, phase) => phase,
    };
    let (_, row) = TABLE.iter().find(|(known, _)| *known == phase).expect("every phase has its row");
    row[fault as usize]
}

/// The status for the client when nothing else is left (A7), and the record's outcome.
pub(super) fn alone(word: &str, fault: Fault) -> (u16, &'static str) {
    match word {
        "connect" | "empty" => (502, "upstream_error"),
        "connect_timeout" => (504, "upstream_error"),
        "head" | "broken" => (502, "upstream_interrupted"),
        "first_byte" | "idle" => (504, "stalled"),
        "error_event" | "rate_limited" | "status" | "overloaded" => (fault.status(), "upstream_error"),
        other => panic!("{other} is not in the table"),
    }
}

/// What stands in the envelope of an error that the upstream did not put in words: type for chat
/// and responses, code, type for messages, sentence.
pub(super) fn envelope(word: &str, fault: Fault) -> (&'static str, Option<&'static str>, &'static str, &'static str) {
    let timeout = "The model did not answer in time. Please try again later.";
    match (word, fault) {
        ("connect", _) => {
            let message = "The model's server could not be reached. Please try again later.";
            ("server_error", Some("upstream_unavailable"), "api_error", message)
        }
        ("connect_timeout" | "first_byte" | "idle", _) => {
            ("server_error", Some("upstream_timeout"), "timeout_error", timeout)
        }
        ("head" | "broken" | "empty", _) => {
            let message = "The model's answer broke off before it began. Please try again later.";
            ("server_error", Some("upstream_broken"), "api_error", message)
        }
        (_, Fault::S429) => {
            let message = "The model's rate limit was reached. Please try again later.";
            ("rate_limit_error", Option::None, "rate_limit_error", message)
        }
        (_, Fault::S529) => {
            ("server_error", Option::None, "overloaded_error", "The model is overloaded. Please try again later.")
        }
        (_, _) => ("server_error", Option::None, "api_error", "The model failed to answer. Please try again later."),
    }
}
