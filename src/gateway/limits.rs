//! Reserves what a request is likely to use, and watches a stream whose key wants it cut (G2, G3).
//!
//! Called by the spine between admission and the first attempt, by a stream every few kilobytes
//! where a key has `on_reached: cut`, and by the books when they are closed. Touches the limiter
//! and the price books.

use super::exchange::{Admitted, Exchange};
use crate::config::Key;
use crate::ledger::billing::{Basis, Bill};
use crate::ledger::estimate::{self, Delivered};
use crate::ledger::money::Nano;
use crate::ledger::price::{Sale, Tier};
use crate::limit::{Ask, Claim, Gauges, Grant, Refused};
use crate::meter::Meter;
use crate::meter::usage::{ABSURD, Source, Usage};
use crate::protocol::Protocol;
use crate::refusal::{Limited, Reason};
use crate::route::Target;
use http::{HeaderMap, HeaderValue};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// A stream's charge is looked at again when this much more of it was written: some ten tokens.
const CUT_EVERY_BYTES: u64 = 2 * 1024;

/// A routed request asks to be let through.
pub(super) async fn reserve(exchange: &mut Exchange, admitted: &Admitted) -> Result<(), Reason> {
    exchange.ask = ask(exchange, admitted);
    claim(exchange, &admitted.key, Some(admitted)).await?;
    let cuts = exchange.grant.as_ref().is_some_and(Grant::cuts);
    exchange.look_at_charge = (cuts && admitted.facts.stream).then_some(0);
    Ok(())
}

/// A passthrough request asks to be let through: nothing is known of what it will use.
pub(super) async fn reserve_unrouted(exchange: &mut Exchange, key: &Arc<Key>) -> Result<(), Reason> {
    claim(exchange, key, None).await
}

async fn claim(exchange: &mut Exchange, key: &Arc<Key>, admitted: Option<&Admitted>) -> Result<(), Reason> {
    let model = admitted.map(|admitted| &admitted.route.model);
    let (received, ask) = (exchange.record.received, exchange.ask);
    let since = Instant::now();
    let claim = Claim { id: exchange.record.id, key, model, received, ask };
    let (grant, gauges) = exchange.shared.limits.reserve(&claim).await;
    exchange.waited(since);
    match grant {
        Ok(grant) => {
            exchange.grant = Some(grant);
            exchange.gauges = Some(gauges).filter(|_| exchange.live.config.server.limit_headers);
            Ok(())
        }
        Err(Refused::Store) => {
            exchange.shared.metrics.limit_rejected(Reason::LimitStore.word());
            Err(Reason::LimitStore)
        }
        Err(Refused::Denied(denied)) => {
            let limited = Limited { denied, at: received };
            exchange.gauges = Some(gauges);
            exchange.shared.metrics.limit_rejected(limited.word());
            Err(Reason::Limited(limited))
        }
    }
}

/// What a request is likely to use: its input by the body's length, all the output it may ask for.
fn ask(exchange: &Exchange, admitted: &Admitted) -> Ask {
    if admitted.stored.is_some() {
        // What is stored was paid for, or is booked without a reservation when it has ended.
        return Ask::NOTHING;
    }
    let facts = &admitted.facts;
    let model = &admitted.route.model;
    let choices = u64::from(facts.n.unwrap_or(1));
    let named = facts.max_output_tokens.map(|most| most.min(ABSURD));
    let most = if admitted.endpoint.streams() { named.unwrap_or(model.default_max_tokens) } else { 0 };
    let input = estimate::prompt(&exchange.body);
    let output = most.saturating_mul(choices).min(ABSURD);
    let usage = Usage { input: Some(input), output: Some(output), ..Usage::default() };
    // Which target will answer is not known yet: the dearest.
    let charges = || admitted.route.targets.iter().map(|target| charge(exchange, admitted, target, usage));
    let charge = if admitted.key.limits.budgets.is_empty() { Nano(0) } else { charges().max().unwrap_or_default() };
    Ask { input, output, output_named: named.is_some() || most == 0, charge }
}

/// What usage is charged at a target; nothing where there is no price.
fn charge(exchange: &Exchange, admitted: &Admitted, target: &Target, usage: Usage) -> Nano {
    let bill = Bill { usage, source: Source::Estimated, charged: usage, basis: Basis::Full, why: "" };
    let record = &exchange.record;
    let money = exchange.live.terms.prices.price(&Sale {
        model: &admitted.route.name,
        provider: &target.config.provider.name,
        provider_model: &target.config.model,
        tier: Tier { requested: record.tier_requested.as_deref(), served: record.tier_served.as_deref() },
        bill: &bill,
        other_models: &[],
        failed: &[],
    });
    money.charge.unwrap_or_default()
}

/// `on_reached: cut`: whether the budgets of the key no longer bear what this stream has come to.
pub(super) fn outgrown(exchange: &mut Exchange) -> bool {
    exchange.look_at_charge = Some(exchange.record.bytes + CUT_EVERY_BYTES);
    let Some(relay) = exchange.relay.as_ref().filter(|relay| relay.is_committed()) else { return false };
    let (Some(admitted), Some(aim)) = (exchange.admitted.clone(), exchange.aim.clone()) else { return false };
    let meter = relay.meter();
    let mut usage = meter.map(Meter::usage).unwrap_or_default();
    if usage.input.is_none() {
        usage.input = Some(exchange.ask.input);
    }
    // As the ledger does: an estimate is never more than the request's own maximum (U4).
    let most = admitted.facts.max_output_tokens.unwrap_or(u64::MAX);
    let delivered = relay.delivered().and_then(Delivered::rough).map(|tokens| tokens.min(most));
    usage.output = usage.output.max(delivered);
    let charge = charge(exchange, &admitted, &aim.target, usage);
    exchange.grant.as_mut().is_some_and(|grant| !grant.grow(charge))
}

/// G3: what is left of the minute, by the names that the client's SDK knows.
pub(super) fn headers(gauges: &Gauges, protocol: Protocol, now: SystemTime, headers: &mut HeaderMap) {
    let [requests, tokens] = names(protocol);
    for (names, gauge) in [(requests, gauges.requests), (tokens, gauges.tokens)] {
        let Some(gauge) = gauge else { continue };
        let reset = match protocol {
            Protocol::Chat | Protocol::Responses => span(gauge.resets),
            Protocol::Messages => humantime::format_rfc3339_seconds(now + gauge.resets).to_string(),
        };
        headers.insert(names.limit, HeaderValue::from(gauge.most));
        headers.insert(names.remaining, HeaderValue::from(gauge.left));
        // Digits, letters and a few signs.
        if let Ok(reset) = HeaderValue::try_from(reset) {
            headers.insert(names.reset, reset);
        }
    }
}

/// Of one kind of limit.
struct GaugeNames {
    limit: &'static str,
    remaining: &'static str,
    reset: &'static str,
}

/// For requests and for tokens.
const fn names(protocol: Protocol) -> [GaugeNames; 2] {
    match protocol {
        Protocol::Chat | Protocol::Responses => [
            GaugeNames {
                limit: "x-ratelimit-limit-requests",
                remaining: "x-ratelimit-remaining-requests",
                reset: "x-ratelimit-reset-requests",
            },
            GaugeNames {
                limit: "x-ratelimit-limit-tokens",
                remaining: "x-ratelimit-remaining-tokens",
                reset: "x-ratelimit-reset-tokens",
            },
        ],
        Protocol::Messages => [
            GaugeNames {
                limit: "anthropic-ratelimit-requests-limit",
                remaining: "anthropic-ratelimit-requests-remaining",
                reset: "anthropic-ratelimit-requests-reset",
            },
            GaugeNames {
                limit: "anthropic-ratelimit-tokens-limit",
                remaining: "anthropic-ratelimit-tokens-remaining",
                reset: "anthropic-ratelimit-tokens-reset",
            },
        ],
    }
}

/// As OpenAI writes it: `850ms`, `12s`, `1m1s`.
fn span(span: Duration) -> String {
    match (span.as_secs(), span.subsec_millis()) {
        (0, 0) => "0s".to_owned(),
        (0, millis) => format!("{millis}ms"),
        (seconds @ 1..60, _) => format!("{seconds}s"),
        (seconds, _) => format!("{}m{}s", seconds / 60, seconds % 60),
    }
}

/// Gives the reservation back for what was used.
pub(super) fn settle(grant: Option<Grant>, usage: &Usage, charge: Option<Nano>) {
    if let Some(grant) = grant {
        grant.settle(usage.tokens().unwrap_or(0), charge.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Gauge;

    #[test]
    fn g3_what_is_left_is_told_by_the_names_of_each_protocol() {
        let now = humantime::parse_rfc3339("2026-11-30T22:00:00Z").unwrap();
        let gauge = |left, resets| Some(Gauge { most: 600, left, resets: Duration::from_millis(resets) });
        let gauges = Gauges { requests: gauge(599, 60_500), tokens: gauge(0, 850) };
        let told = |protocol| {
            let mut told = HeaderMap::new();
            headers(&gauges, protocol, now, &mut told);
            let mut lines: Vec<String> =
                told.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
            lines.sort_unstable();
            lines
        };
        let openai = [
            "x-ratelimit-limit-requests: 600",
            "x-ratelimit-limit-tokens: 600",
            "x-ratelimit-remaining-requests: 599",
            "x-ratelimit-remaining-tokens: 0",
            "x-ratelimit-reset-requests: 1m0s",
            "x-ratelimit-reset-tokens: 850ms",
        ];
        assert_eq!(told(Protocol::Chat), openai);
        assert_eq!(told(Protocol::Responses), openai);
        assert_eq!(
            told(Protocol::Messages),
            [
                "anthropic-ratelimit-requests-limit: 600",
                "anthropic-ratelimit-requests-remaining: 599",
                "anthropic-ratelimit-requests-reset: 2026-11-30T22:01:00Z",
                "anthropic-ratelimit-tokens-limit: 600",
                "anthropic-ratelimit-tokens-remaining: 0",
                "anthropic-ratelimit-tokens-reset: 2026-11-30T22:00:00Z",
            ]
        );
    }
}
