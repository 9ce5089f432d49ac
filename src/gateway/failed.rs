//! A failed attempt: what the upstream said, what the client is told, how long to wait.
//!
//! Called by the attempts and by the stages that read an answer. Touches nothing.

use super::exchange::Admitted;
use crate::admission::keys::KeyError;
use crate::config::ErrorBodies;
use crate::outcome::{Failure, Outcome};
use crate::refusal::{Clock, Ending, ErrorParts, MaskList, Reason};
use crate::route::Target;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use std::time::Duration;

/// A5: a longer hint is not worth waiting for while a client waits.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// A5: the first backoff; doubles, with jitter.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);

/// What one attempt came to.
pub(super) enum Tried {
    /// The response is over, told to the client.
    Done(Outcome, &'static str),
    /// Nothing of it reached the client.
    Failed(Box<Failed>),
}

impl Tried {
    /// A failure without words of the upstream's.
    pub(super) fn failed(failure: Failure) -> Self {
        Self::Failed(Box::new(failure.into()))
    }
}

/// A failed attempt.
#[derive(Debug)]
pub(super) struct Failed {
    /// Why.
    pub failure: Failure,
    /// What the upstream said, if it said something.
    pub parts: Option<ErrorParts>,
    /// Headers of its error that go to the client (F7).
    pub headers: HeaderMap,
    /// `retry-after`, if it sent one.
    pub retry_after: Option<Duration>,
    /// It is only the `stream_options` that it does not take (U1).
    pub refuses_stream_options: bool,
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Self { failure, parts: None, headers: HeaderMap::new(), retry_after: None, refuses_stream_options: false }
    }
}

/// What an ended response says about its target.
pub(super) const fn outcome_failure(outcome: Outcome) -> Option<Failure> {
    match outcome {
        Outcome::UpstreamInterrupted => Some(Failure::Broken),
        Outcome::Stalled => Some(Failure::NoOutput),
        Outcome::UpstreamError => Some(Failure::ErrorEvent(500)),
        Outcome::Completed
        | Outcome::Truncated
        | Outcome::ClientGone
        | Outcome::ClientError
        | Outcome::Timeout
        | Outcome::Rejected
        | Outcome::BudgetReached
        | Outcome::Drained
        | Outcome::Internal
        | Outcome::Crashed => None,
    }
}

/// How long to wait before the same target is tried again; `None`: it is not worth it (A5).
pub(super) fn pause(failure: Failure, hint: Option<Duration>, tried: usize) -> Option<Duration> {
    if matches!(failure, Failure::Account(_)) {
        return None;
    }
    match hint {
        Some(hint) if hint > LONGEST_WAIT => None,
        Some(hint) => Some(hint),
        None => {
            let doubled = FIRST_BACKOFF * (1 << tried.saturating_sub(1).min(5));
            Some(doubled.mul_f64(0.5 + fastrand::f64() / 2.0))
        }
    }
}

/// A6: an upstream's words without what they tell too much.
pub(super) fn masked(parts: ErrorParts, target: Option<&Target>, admitted: &Admitted) -> ErrorParts {
    let Some(target) = target else { return parts };
    let provider = &target.site.provider;
    let mask = MaskList {
        target_model: &target.config.model,
        public_model: &admitted.facts.model,
        provider_host: &target.site.url.host,
        keys: &provider.api_keys,
    };
    parts.masked((provider.error_bodies == ErrorBodies::Mask).then_some(&mask))
}

/// F7, A7: what of an upstream's error headers goes along, and that the SDK need not try again.
pub(super) fn error_headers(failed: &Failed, failure: Failure) -> Vec<(HeaderName, HeaderValue)> {
    let mut headers: Vec<_> = failed.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    headers.retain(|(name, _)| *name != header::CONTENT_TYPE);
    if failure.may_retry() {
        headers.push((HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false")));
    }
    headers
}

/// The client's sentence for a failure that the upstream did not put in words.
pub(super) fn reason(failure: Failure, retry_after: Option<Duration>) -> Reason {
    let clock = match failure {
        Failure::ConnectTimeout => Clock::Connect,
        Failure::SendTimeout => Clock::Send,
        Failure::FirstByte => Clock::FirstByte,
        Failure::Idle | Failure::NoOutput => Clock::Idle,
        Failure::FirstContent => Clock::FirstContent,
        Failure::NonStream => Clock::NonStream,
        Failure::Total => Clock::Total,
        Failure::Resolve | Failure::Connect => return Reason::UpstreamConnect,
        Failure::Send | Failure::Head | Failure::NotAnAnswer | Failure::Empty | Failure::Broken | Failure::TooLarge => {
            return Reason::UpstreamBroken;
        }
        Failure::Status(_) | Failure::ClientStatus(_) | Failure::ErrorEvent(_) | Failure::ClientErrorEvent(_) => {
            return Reason::UpstreamStatus { status: failure.status(), retry_after };
        }
        Failure::Account(_) => return Reason::UpstreamAccount,
        Failure::Busy => return Reason::Overloaded,
        Failure::Draining => return Reason::Draining,
        Failure::Revoked => return Reason::Key(KeyError::Unknown),
        Failure::Ledger => return Reason::Ledger,
    };
    Reason::UpstreamTimeout { clock }
}

/// The native ending for a failure after the client's stream was opened.
pub(super) fn ending(failure: Failure, parts: Option<ErrorParts>) -> Ending {
    match failure {
        Failure::ClientStatus(_) | Failure::ClientErrorEvent(_) => parts.map_or(Ending::Interrupted, Ending::Upstream),
        Failure::Status(429) | Failure::ErrorEvent(429) => Ending::RateLimited,
        Failure::Status(503 | 529) | Failure::ErrorEvent(503 | 529) | Failure::Busy => Ending::Overloaded,
        Failure::Resolve | Failure::Connect | Failure::ConnectTimeout | Failure::Account(_) => Ending::Unavailable,
        Failure::SendTimeout | Failure::FirstByte | Failure::Idle | Failure::FirstContent | Failure::NoOutput => {
            Ending::Stalled
        }
        Failure::Total | Failure::NonStream => Ending::Timeout,
        Failure::Draining => Ending::Draining,
        Failure::Revoked => Ending::Revoked,
        Failure::Ledger => Ending::Internal,
        Failure::Send
        | Failure::Head
        | Failure::Status(_)
        | Failure::ErrorEvent(_)
        | Failure::NotAnAnswer
        | Failure::Empty
        | Failure::Broken
        | Failure::TooLarge => Ending::Interrupted,
    }
}

/// The upstream's own `retry-after`, in any of its forms (B143): seconds, milliseconds, a date.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(millis) = text("retry-after-ms").and_then(|text| text.parse::<f64>().ok())
        && (0.0..1e9).contains(&millis)
    {
        return Duration::try_from_secs_f64(millis / 1000.0).ok();
    }
    let value = text("retry-after")?;
    if let Ok(seconds) = value.parse::<f64>() {
        return (0.0..1e8).contains(&seconds).then(|| Duration::try_from_secs_f64(seconds).ok())?;
    }
    let date = httpdate::parse_http_date(value).ok()?;
    date.duration_since(std::time::SystemTime::now()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b143_retry_after_in_all_its_forms() {
        let of = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_str(value).unwrap());
            retry_after(&headers)
        };
        assert_eq!(of("retry-after", "2"), Some(Duration::from_secs(2)));
        assert_eq!(of("retry-after-ms", "1500"), Some(Duration::from_millis(1500)));
        for odd in ["-1", "", "abc", "1e9"] {
            assert_eq!(of("retry-after", odd), None, "{odd}");
        }
        let soon = std::time::SystemTime::now() + Duration::from_secs(3);
        let wait = of("retry-after", &httpdate::fmt_http_date(soon)).unwrap();
        assert!((Duration::from_millis(1900)..=Duration::from_secs(3)).contains(&wait), "{wait:?}");
    }
}
