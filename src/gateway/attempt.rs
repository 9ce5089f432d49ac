//! Tries targets until one answers, or says why none did (A1 to A7).
//!
//! Called by the gateway, once per routed request. Touches the health of targets.

use super::Gateway;
use super::answer::plan_index;
use super::booking;
use super::exchange::{Admitted, Aim, Exchange};
use super::failed::{Failed, Tried, ending, error_headers, masked, outcome_failure, pause, reason};
use super::pump::Break;
use super::stored;
use crate::admission::{edit, headers};
use crate::otlp::Server;
use crate::outcome::{Blame, Failure, Outcome};
use crate::protocol::Endpoint;
use crate::record::Attempt;
use crate::refusal::{ErrorParts, upstream_error_body};
use crate::relay::{Ask, Input, Next, Relay};
use crate::route::{Choice, Target, Traits, affinity};
use crate::upstream::call::{Call, post_head};
use pingora_http::RequestHeader;
use pingora_proxy::Session;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Gateway {
    /// Answers a routed request.
    pub(super) async fn attempts(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        admitted: &Arc<Admitted>,
    ) -> Result<(), Break> {
        let model = &admitted.route.model;
        exchange.relay = Some(relay(exchange, admitted, admitted.facts.stream));
        let traits = Traits {
            prompt_cache_key: admitted.facts.prompt_cache_key.as_deref(),
            user: admitted.facts.user.as_deref(),
            key: &admitted.key.name,
        };
        let affinity = affinity(&model.affinity, &traits);
        let mut tried: Vec<Arc<Target>> = Vec::new();
        let mut failures: Vec<(Box<Failed>, Option<Arc<Target>>)> = Vec::new();
        loop {
            let tokens = exchange.ask.tokens(None);
            let Some(mut choice) = admitted.route.choose(Instant::now(), affinity, &tried, tokens) else {
                failures.push((Box::new(Failure::Busy.into()), None));
                break;
            };
            if let Err(reason) = booking::open(exchange, Some(admitted), Some(&choice.target.word)).await {
                return self.refuse(session, exchange, &reason).await;
            }
            let failed = match self.once(session, exchange, admitted, &choice).await? {
                Tried::Done(outcome, cause) => {
                    choice.settle(Instant::now(), exchange.record.usage.tokens());
                    exchange.conclude(outcome, cause);
                    return self.last_words(session, exchange).await;
                }
                Tried::Failed(failed) => failed,
            };
            choice.settle(Instant::now(), exchange.record.usage.tokens().or(Some(0)));
            let (failure, hint) = (failed.failure, failed.retry_after);
            let Choice { target, permit, .. } = choice;
            drop(permit);
            // A1: a provider may have other keys that still work.
            let other_key = matches!(failure, Failure::Account(_))
                && admitted.route.account.is_none()
                && target.has_account(Instant::now());
            if !other_key {
                tried.push(Arc::clone(&target));
            }
            failures.push((failed, Some(target)));
            if !goes_on(exchange, admitted, failure, failures.len(), Duration::ZERO) {
                break;
            }
            if other_key || admitted.route.has_untried(&tried) {
                continue;
            }
            let Some(wait) = pause(failure, hint, failures.len()) else { break };
            if !goes_on(exchange, admitted, failure, failures.len(), wait) {
                break;
            }
            match self.wait(session, exchange, tokio::time::sleep(wait)).await {
                Ok(()) => {}
                Err(Break::Relay(Next::Failed(failure))) => {
                    failures.push((Box::new(failure.into()), None));
                    break;
                }
                Err(Break::Relay(Next::Done(outcome, cause))) => {
                    exchange.conclude(outcome, cause);
                    return if exchange.last_words.is_some() {
                        self.last_words(session, exchange).await
                    } else {
                        self.close(session).await
                    };
                }
                Err(other) => return Err(other),
            }
        }
        self.give_up(session, exchange, admitted, failures).await
    }

    /// One attempt; where only `stream_options` is refused, once more without them (U1, B185).
    async fn once(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        admitted: &Arc<Admitted>,
        choice: &Choice,
    ) -> Result<Tried, Break> {
        let asked = strips_usage(admitted) && choice.target.takes_stream_options();
        let mut asks = asked;
        loop {
            let began = exchange.age();
            exchange.attempt_begins(&choice.target.word);
            let result = self.attempt(session, exchange, admitted, choice, asks).await;
            let tried = judge(exchange, choice, began, result)?;
            match &tried {
                Tried::Failed(failed) if asks && failed.refuses_stream_options => asks = false,
                // It was the options, and not something the client can make every request fail with.
                Tried::Done(..) if asked && !asks => {
                    choice.target.refuses_stream_options.store(true, Ordering::Relaxed);
                    return Ok(tried);
                }
                Tried::Done(..) | Tried::Failed(_) => return Ok(tried),
            }
        }
    }

    /// One try at one target; `asks`: with the usage chunk asked for (U1).
    async fn attempt(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        admitted: &Arc<Admitted>,
        choice: &Choice,
        asks: bool,
    ) -> Result<Tried, Break> {
        let target = &choice.target;
        exchange.aim = Some(Aim { target: Arc::clone(target), account: choice.account });
        exchange.record.upstream_first_byte = None;
        exchange.record.upstream_request_id = None;
        let Ok(call) = Self::call(session, exchange, admitted, target, asks) else {
            return Ok(Tried::failed(Failure::Connect));
        };
        let mut timeouts = admitted.route.model.timeouts;
        if !admitted.facts.stream {
            timeouts.first_byte = timeouts.non_stream;
        }
        let shared = Arc::clone(&exchange.shared);
        let calling = Box::pin(shared.connections.call(&target.site, &call, &timeouts));
        let answer = match self.wait(session, exchange, calling).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(Failure::FirstByte)) if !admitted.facts.stream => {
                return Ok(Tried::failed(Failure::NonStream));
            }
            Ok(Err(failure)) => return Ok(Tried::failed(failure)),
            Err(broken) => return self.broke(session, exchange, broken).await,
        };
        drop(call);
        self.answered(session, exchange, admitted, target, answer).await
    }

    /// A wait inside an attempt was broken off: a failure of the attempt, or the end of the response.
    pub(super) async fn broke(
        &self,
        session: &mut Session,
        exchange: &Exchange,
        broken: Break,
    ) -> Result<Tried, Break> {
        match broken {
            Break::ClientGone | Break::Relay(Next::Wait) => Err(Break::ClientGone),
            Break::Relay(Next::Failed(failure)) => Ok(Tried::failed(failure)),
            Break::Relay(Next::Done(outcome, cause)) => {
                if exchange.last_words.is_none() {
                    self.close(session).await?;
                }
                Ok(Tried::Done(outcome, cause))
            }
        }
    }

    /// What goes up to one target: the client's request with the target's model name, path and credentials.
    fn call(
        session: &mut Session,
        exchange: &mut Exchange,
        admitted: &Admitted,
        target: &Target,
        asks: bool,
    ) -> pingora_core::Result<Call> {
        if let Some(stored) = &admitted.stored {
            let from = session.req_header();
            let up = headers::up(&from.headers, &target.site.provider.allow_headers);
            let body: Vec<_> = Some(exchange.body.clone()).filter(|body| !body.is_empty()).into_iter().collect();
            let mut head = stored::head(stored, target, from.uri.query(), edit::total_len(&body), up)?;
            super::head_up(session, &mut head, exchange)?;
            return Ok(Call { head, body });
        }
        let wanted = edit::Edit { model: &target.config.model, include_usage: asks };
        let body = edit::apply(&exchange.body, &admitted.facts, &wanted);
        let site = &target.site;
        let from = session.req_header();
        let path = site.path(admitted.endpoint, from.uri.query());
        let up = headers::up(&from.headers, &site.provider.allow_headers);
        let mut head = post_head(&path, edit::total_len(&body), site.authority(), up)?;
        super::head_up(session, &mut head, exchange)?;
        Ok(Call { head, body })
    }

    /// Nothing is left to try (A7).
    async fn give_up(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        admitted: &Admitted,
        failures: Vec<(Box<Failed>, Option<Arc<Target>>)>,
    ) -> Result<(), Break> {
        let telling = failures.into_iter().rev().max_by_key(|(failed, _)| failed.failure.telling());
        let Some((failed, target)) = telling else { return Err(Break::ClientGone) };
        let failure = failed.failure;
        let parts = failed.parts.clone().map(|parts| masked(parts, target.as_deref(), admitted));
        exchange.record.effective_status = failure.status();
        exchange.conclude(failure.outcome(), failure.word());
        if exchange.client.opened {
            return self.end_stream(session, exchange, failure, parts).await;
        }
        match (failure, parts) {
            (
                Failure::Status(_) | Failure::ClientStatus(_) | Failure::ErrorEvent(_) | Failure::ClientErrorEvent(_),
                Some(parts),
            ) => {
                let body = upstream_error_body(exchange.protocol, &parts, &exchange.id);
                let headers = error_headers(&failed, failure);
                self.reply(session, exchange, failure.status(), &headers, body.into()).await
            }
            (failure, _) => {
                let reason = reason(failure, failed.retry_after);
                let refusal = reason.refusal(exchange.protocol);
                let body = refusal.body(exchange.protocol, &exchange.id);
                self.reply(session, exchange, refusal.status, &refusal.headers(), body.into()).await
            }
        }
    }

    /// The client has a stream open already: one native error event (K3, A7).
    async fn end_stream(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        failure: Failure,
        parts: Option<ErrorParts>,
    ) -> Result<(), Break> {
        let ending = ending(failure, parts);
        let Some(relay) = &mut exchange.relay else { return Err(Break::ClientGone) };
        let action = relay.on(Instant::now(), Input::GiveUp(ending, failure.outcome(), failure.word()));
        self.act(session, exchange, action).await?;
        if exchange.last_words.is_some() {
            return self.last_words(session, exchange).await;
        }
        self.close(session).await
    }
}

/// Whether one more attempt may start after a wait (A4, A5).
fn goes_on(exchange: &Exchange, admitted: &Admitted, failure: Failure, tried: usize, wait: Duration) -> bool {
    let retry = &admitted.route.model.retry;
    failure.may_retry() && tried < retry.attempts as usize && exchange.age() + wait < retry.deadline
}

/// Books an ended attempt: record, health of target and account (A6, A8).
fn judge(
    exchange: &mut Exchange,
    choice: &Choice,
    began: Duration,
    result: Result<Tried, Break>,
) -> Result<Tried, Break> {
    let (failure, word) = match &result {
        Ok(Tried::Done(outcome, cause)) => (outcome_failure(*outcome), if outcome.is_fault() { *cause } else { "ok" }),
        Ok(Tried::Failed(failed)) => (Some(failed.failure), failed.failure.word()),
        Err(Break::ClientGone) => (None, "client_gone"),
        Err(Break::Relay(_)) => (Some(Failure::Broken), Failure::Broken.word()),
    };
    let now = Instant::now();
    let target = &choice.target;
    let config = &exchange.admitted.as_ref().map(|admitted| admitted.route.model.health);
    if let (Some(failure), Some(config)) = (failure, config) {
        let account = target.accounts.get(choice.account);
        match failure.blame() {
            Blame::Nobody => {}
            Blame::Target => {
                target.health.failed(now, config);
            }
            Blame::Throttled => {
                let hint = if let Ok(Tried::Failed(failed)) = &result { failed.retry_after } else { None };
                target.health.throttled(now, hint, config);
            }
            Blame::Account => {
                if let Some(account) = account {
                    account.cool(now, config.cooldown_account);
                }
                log::error!(target_name = &*target.word; "the provider refuses the key or its account is used up: see the provider's billing page and api_key");
            }
        }
    } else if matches!(&result, Ok(Tried::Done(Outcome::Completed | Outcome::Truncated, _))) {
        let began = exchange.began + began;
        target.health.worked(began);
        if let Some(account) = target.accounts.get(choice.account) {
            account.worked(began);
        }
    }
    exchange.shared.metrics.target_healthy(&target.word, target.is_healthy());
    let (status, ended) = (exchange.upstream_status.take(), exchange.age());
    exchange.attempt_ended(Attempt {
        target: Arc::clone(&target.word),
        result: word,
        status,
        began,
        ended,
        maybe_billed: failure.is_some_and(Failure::maybe_billed),
    });
    result
}

/// The attempt's own place in the trace, where traces are exported; elsewhere the client's passes (F8).
pub(super) fn trace(exchange: &mut Exchange, head: &mut RequestHeader) -> pingora_core::Result<()> {
    let (site, model) = match (&exchange.aim, &exchange.unrouted) {
        (Some(aim), _) => (&aim.target.site, Some(aim.target.config.model.clone())),
        (None, Some(unrouted)) => (&unrouted.site, None),
        (None, None) => return Ok(()),
    };
    let Some(trace) = &mut exchange.record.trace else { return Ok(()) };
    let (address, port) = (site.url.host.clone(), site.url.port);
    trace.goes_up(Server { provider: site.provider.name.clone(), model, address, port }, head)
}

/// The state machine of a request; without `stream` it is its clock only.
pub(super) fn relay(exchange: &Exchange, admitted: &Admitted, stream: bool) -> Relay {
    let plan = admitted.route.plans.get(plan_index(admitted.endpoint.protocol()));
    let plan = plan.unwrap_or(&admitted.route.plans[0]);
    let ask = Ask {
        request_id: exchange.id.clone(),
        model: admitted.facts.model.clone(),
        created_at: exchange.record.received.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        stream,
        choices: admitted.facts.n,
        strip_usage: strips_usage(admitted),
    };
    Relay::new(Arc::clone(plan), ask, exchange.began)
}

/// U1: a chat stream whose client did not ask for usage.
fn strips_usage(admitted: &Admitted) -> bool {
    let chat = matches!(admitted.endpoint, Endpoint::Chat | Endpoint::Completions);
    chat && admitted.facts.stream && !admitted.facts.include_usage
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Protocol;

    #[test]
    fn plans_stand_in_the_order_of_protocols() {
        for (at, protocol) in Protocol::ALL.into_iter().enumerate() {
            assert_eq!(plan_index(protocol), at);
        }
    }
}
