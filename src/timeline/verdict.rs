//! Says who ended a request, and why, in a sentence: "who cut this stream?" (M4).
//!
//! Called for the admin API, with what a timeline or a ledger row tells. Touches nothing.

use std::time::Duration;

/// Who ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    /// The application.
    Client,
    /// Something between the application and Weir: a load balancer, a proxy, a CDN.
    Edge,
    /// Weir itself: a refusal, a limit, a clock that bounds the whole request, a shutdown.
    Weir,
    /// The provider: it finished, failed, broke off or went silent.
    Model,
}

impl EndedBy {
    /// The word in the API.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Edge => "edge",
            Self::Weir => "weir",
            Self::Model => "model",
        }
    }
}

/// What is known of an end.
#[derive(Clone, Copy, Debug, Default)]
pub struct End<'a> {
    /// The word of E5.
    pub outcome: &'a str,
    /// The word for the cause.
    pub cause: &'a str,
    /// What went to the client, or would have been right.
    pub status: u16,
    /// From head to end.
    pub duration: Duration,
    /// Nothing was written to the client for this long before the end; `None`: not known.
    pub silent: Option<Duration>,
    /// How long the longest write took.
    pub longest_write: Duration,
    /// Tries at targets.
    pub attempts: usize,
    /// The last target.
    pub target: &'a str,
    /// It got some output.
    pub got_output: bool,
}

/// The seconds at which load balancers, proxies and CDNs cut by default, idle or in all. 600 is left out: the official
/// SDKs give up then, too.
const EDGE_SECONDS: [u64; 14] = [29, 30, 50, 55, 60, 100, 120, 180, 230, 240, 300, 350, 900, 3600];
/// How much later than its limit such a cut is seen.
const EDGE_LATE: Duration = Duration::from_millis(400);
/// Or earlier: its clock started with the last byte that it passed on, and ours with the write after it.
const EDGE_EARLY: Duration = Duration::from_millis(100);
/// A client that takes longer than this for 16 KiB does not read.
const BLOCKED: Duration = Duration::from_secs(10);

/// Who, and why.
#[must_use]
pub fn verdict(end: &End<'_>) -> (EndedBy, String) {
    let took = seconds(end.duration);
    let target = if end.target.is_empty() { "the provider" } else { end.target };
    let (who, mut why) = match end.outcome {
        "completed" if end.attempts == 0 => (EndedBy::Weir, "Weir answered by itself.".to_owned()),
        "completed" => (EndedBy::Model, "The model finished its answer.".to_owned()),
        "truncated" => (EndedBy::Model, "The answer reached its token limit.".to_owned()),
        "client_gone" => return gone(end),
        "client_error" => {
            let why = format!("{target} refused the request as the client's own mistake ({}).", end.status);
            (EndedBy::Model, why)
        }
        "upstream_error" => (EndedBy::Model, format!("{target} failed: {}.", failure(end.cause))),
        "upstream_interrupted" => {
            (EndedBy::Model, format!("The answer of {target} broke off after {took}: {}.", failure(end.cause)))
        }
        "stalled" => (EndedBy::Model, format!("{target} went silent: {}.", failure(end.cause))),
        "timeout" => (EndedBy::Weir, format!("It took {took}, longer than timeouts.{} allows.", end.cause)),
        "rejected" if end.cause == "key_revoked" => {
            (EndedBy::Weir, "The key was revoked, and its running streams with it.".to_owned())
        }
        "rejected" => (EndedBy::Weir, format!("Weir refused it with {}: {}.", end.status, end.cause.replace('_', " "))),
        "budget_reached" => (EndedBy::Weir, "The key's budget ran out, and on_reached is cut.".to_owned()),
        "drained" => (EndedBy::Weir, "Weir was shutting down.".to_owned()),
        "crashed" => (EndedBy::Weir, "The process died; recovery settled it with its last checkpoint.".to_owned()),
        _ => (EndedBy::Weir, format!("A fault of Weir's own: {}.", end.cause.replace('_', " "))),
    };
    if end.attempts > 1 {
        why.push_str(&format!(" It took {} attempts.", end.attempts));
    }
    (who, why)
}

/// The connection to the client closed. What closes it at the very second of a common timeout is probably no client.
fn gone(end: &End<'_>) -> (EndedBy, String) {
    let took = seconds(end.duration);
    if end.longest_write >= BLOCKED {
        let why = format!("The client did not take what was written to it for {}.", seconds(end.longest_write));
        return (EndedBy::Client, why);
    }
    let (quiet, limit) = match end.silent {
        Some(silent) => (silent, edge_limit(silent)),
        None => (Duration::ZERO, None),
    };
    if let Some(limit) = limit {
        let why = format!(
            "The client's connection closed after {limit} s without a byte, a usual idle timeout: probably a load \
             balancer or proxy in front of Weir. Set keepalive.interval below it."
        );
        return (EndedBy::Edge, why);
    }
    if let Some(limit) = edge_limit(end.duration) {
        let why = format!(
            "The client's connection closed {limit} s after the request began, a usual limit: probably a load balancer \
             or proxy in front of Weir."
        );
        return (EndedBy::Edge, why);
    }
    let progress = if end.got_output { "in the middle of the answer" } else { "before any output" };
    let quiet = if quiet >= Duration::from_secs(1) {
        format!(" The last byte was {} old.", seconds(quiet))
    } else {
        String::new()
    };
    (EndedBy::Client, format!("The client closed the connection after {took}, {progress}.{quiet}"))
}

fn edge_limit(time: Duration) -> Option<u64> {
    EDGE_SECONDS.into_iter().find(|limit| {
        let limit = Duration::from_secs(*limit);
        time + EDGE_EARLY >= limit && time <= limit + EDGE_LATE
    })
}

/// What a failure's word means.
fn failure(word: &str) -> String {
    let text = match word {
        "resolve" => "its name did not resolve",
        "connect" => "it could not be reached",
        "connect_timeout" => "it could not be reached within timeouts.connect",
        "send" => "the connection broke while the request was sent",
        "send_timeout" => "it did not take the request within timeouts.send",
        "first_byte" => "no head within timeouts.first_byte",
        "head" => "the connection ended before a head",
        "rate_limited" => "it is rate limited (429)",
        "overloaded" => "it is overloaded",
        "status" => "an error status",
        "account" => "it refuses Weir's key, or the account is used up",
        "not_an_answer" => "what it sent is no answer",
        "empty" => "its answer was empty",
        "ended_early" => "it ended without its terminal event",
        "broken" => "the connection was reset",
        "too_large" => "an event or reply was larger than the bounds",
        "idle" => "no byte within timeouts.idle",
        "first_content" => "no content within timeouts.first_content",
        "no_output" => "no output within timeouts.no_output",
        "error_event" => "it sent an error event",
        "busy" => "all targets were busy (max_concurrent)",
        other => return other.replace('_', " "),
    };
    text.to_owned()
}

/// `350 ms`, `12.3 s`
fn seconds(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}
