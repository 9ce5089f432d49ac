//! Tries a target with one small real request, as serving would call it (`weir test MODEL`).
//!
//! Called by the command, once per target. Touches the network by the same connections, sites, decoder, scanner and
//! meter that serve clients; books nothing and spends a few tokens.

mod trouble;

pub use trouble::Trouble;

use crate::config::{Auth, Model, Target};
use crate::meter::Meter;
use crate::meter::usage::Usage;
use crate::outcome::Failure;
use crate::protocol::{Endpoint, Protocol};
use crate::sse::Scanner;
use crate::upstream::call::{Answer, Call, Connections, post_head};
use crate::upstream::decode::Coding;
use crate::upstream::site::Site;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout_at;

/// What the model is asked; the shortest answer that is still output.
const PROMPT: &str = "Reply with the single word: ok";
/// For Messages, which wants a maximum.
const MAX_TOKENS: u32 = 32;
/// Of an answer that is no stream, this much is read: more than any error.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// One event of such an answer is never as large.
const MAX_EVENT_BYTES: usize = 1024 * 1024;

/// What came of it.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The upstream's status, if it sent a head.
    pub status: Option<u16>,
    /// From the start of the attempt, connecting included, to the first output.
    pub first_token: Option<Duration>,
    /// From the start to the end.
    pub took: Duration,
    /// What the upstream reported.
    pub usage: Usage,
    /// Why it did not work.
    pub trouble: Option<Trouble>,
}

/// The protocol to try a target in: the model's first, else what its provider's way of authentication suggests.
#[must_use]
pub fn protocol(model: &Model, target: &Target) -> Protocol {
    let listed = model.protocols.as_ref().and_then(|protocols| protocols.first().copied());
    listed.unwrap_or(if target.provider.auth == Auth::XApiKey { Protocol::Messages } else { Protocol::Chat })
}

/// Sends one request to one target, with one of its provider's keys, and reads the answer, within the model's timeouts.
pub async fn run(
    connections: &Connections,
    site: &Arc<Site>,
    target: &Target,
    model: &Model,
    protocol: Protocol,
    account: usize,
) -> Trial {
    let began = Instant::now();
    let mut trial =
        Trial { status: None, first_token: None, took: Duration::ZERO, usage: Usage::default(), trouble: None };
    let mut reading = Reading { protocol, account, model, began, told: None };
    let trying = reading.attempt(connections, site, target, &mut trial);
    let failure = match timeout_at((began + model.timeouts.total).into(), trying).await {
        Ok(Ok(())) => None,
        Ok(Err(failure)) => Some(failure),
        Err(_) => Some(Failure::Total),
    };
    trial.trouble = failure.map(|failure| Trouble::of(failure, reading.told.take(), &target.provider));
    trial.took = began.elapsed();
    trial
}

/// One answer while it is read.
struct Reading<'a> {
    protocol: Protocol,
    account: usize,
    model: &'a Model,
    began: Instant,
    /// The upstream's own words for its error.
    told: Option<String>,
}

impl Reading<'_> {
    async fn attempt(
        &mut self,
        connections: &Connections,
        site: &Arc<Site>,
        target: &Target,
        trial: &mut Trial,
    ) -> Result<(), Failure> {
        let call = call(site, target, self.protocol, self.account).ok_or(Failure::Connect)?;
        let answer = connections.call(site, &call, &self.model.timeouts).await?;
        let Answer { mut session, .. } = *answer;
        let Some(head) = session.response_header() else { return Err(Failure::Head) };
        let (status, headers) = (head.status, head.headers.clone());
        trial.status = Some(status.as_u16());
        let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let coding = Coding::of(text(header::CONTENT_ENCODING));
        let is_stream = text(header::CONTENT_TYPE).is_some_and(|kind| kind.contains("text/event-stream"));
        let mut body = Body { session: &mut session, coding };
        let read = if status.is_success() && is_stream {
            self.stream(&mut body, trial).await
        } else {
            self.whole(&mut body, status.as_u16()).await
        };
        session.shutdown().await;
        read
    }

    /// A stream of events, to its end.
    async fn stream(&mut self, body: &mut Body<'_>, trial: &mut Trial) -> Result<(), Failure> {
        let timeouts = &self.model.timeouts;
        let mut scanner = Scanner::new(MAX_EVENT_BYTES);
        let mut meter = Meter::new(self.protocol, None);
        let mut last_output = Instant::now();
        let ended = loop {
            let (patience, stalled) = match trial.first_token {
                None => (timeouts.first_content, Failure::FirstContent),
                Some(_) => (timeouts.no_output, Failure::NoOutput),
            };
            let (silent, stuck) = (Instant::now() + timeouts.idle, last_output + patience);
            let (until, failure) = if silent < stuck { (silent, Failure::Idle) } else { (stuck, stalled) };
            let chunk = match timeout_at(until.into(), body.next()).await {
                Ok(Ok(Some(chunk))) => chunk,
                Ok(Ok(None)) => break Ok(()),
                Ok(Err(failure)) => break Err(failure),
                Err(_) => break Err(failure),
            };
            let block = scanner.push(chunk).map_err(|_| Failure::TooLarge)?;
            let mut terminal = false;
            for span in scanner.spans() {
                let facts = meter.event(&block.bytes, span);
                terminal |= facts.terminal;
                if facts.output {
                    last_output = Instant::now();
                    trial.first_token.get_or_insert_with(|| self.began.elapsed());
                }
            }
            if terminal {
                break Ok(());
            }
        };
        trial.usage = meter.usage();
        if let Some(error) = meter.error() {
            self.told.clone_from(&error.message);
            return Err(Failure::ErrorEvent(error.status));
        }
        match ended {
            // E1: what comes after the finish changes nothing.
            _ if meter.finish().is_some() => Ok(()),
            Ok(()) if meter.saw_output() => Err(Failure::Broken),
            Ok(()) => Err(Failure::Empty),
            Err(failure) => Err(failure),
        }
    }

    /// Anything else: an error, or an answer that is not what was asked for.
    async fn whole(&mut self, body: &mut Body<'_>, status: u16) -> Result<(), Failure> {
        let mut whole = BytesMut::new();
        let until = Instant::now() + self.model.timeouts.idle;
        while whole.len() < MAX_BODY_BYTES {
            match timeout_at(until.into(), body.next()).await {
                Ok(Ok(Some(chunk))) => whole.extend_from_slice(&chunk),
                Ok(_) | Err(_) => break,
            }
        }
        let (failure, told) = trouble::of_reply(self.protocol, status, &whole);
        self.told = told;
        Err(failure)
    }
}

/// The body, decoded.
struct Body<'s> {
    session: &'s mut pingora_core::protocols::http::client::HttpSession,
    coding: Coding,
}

impl Body<'_> {
    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        let chunk = self.session.read_response_body().await.map_err(|_| Failure::Broken)?;
        match (&mut self.coding, chunk) {
            (Coding::Decoded(decoder), Some(chunk)) => decoder.push(&chunk).map(Some).map_err(|_| Failure::Broken),
            (_, chunk) => Ok(chunk),
        }
    }
}

/// The request; `None`: the provider's path or headers are no HTTP.
fn call(site: &Site, target: &Target, protocol: Protocol, account: usize) -> Option<Call> {
    let body = Bytes::from(body(target, protocol));
    let endpoint = match protocol {
        Protocol::Chat => Endpoint::Chat,
        Protocol::Responses => Endpoint::Responses,
        Protocol::Messages => Endpoint::Messages,
    };
    let mut headers = HeaderMap::new();
    headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::USER_AGENT, HeaderValue::from_static(concat!("weir/", env!("CARGO_PKG_VERSION"))));
    if protocol == Protocol::Messages {
        headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
    }
    let mut head = post_head(&site.path(endpoint, None), body.len(), site.authority(), headers).ok()?;
    site.authorize(account, &mut head).ok()?;
    Some(Call { head, body: vec![body] })
}

fn body(target: &Target, protocol: Protocol) -> String {
    let messages = serde_json::json!([{ "role": "user", "content": PROMPT }]);
    let model = target.model.as_str();
    let body = match protocol {
        Protocol::Chat if target.provider.inject_usage => serde_json::json!({
            "model": model, "stream": true, "messages": messages, "stream_options": { "include_usage": true }
        }),
        Protocol::Chat => serde_json::json!({ "model": model, "stream": true, "messages": messages }),
        Protocol::Responses => {
            serde_json::json!({ "model": model, "stream": true, "input": PROMPT, "store": false })
        }
        Protocol::Messages => serde_json::json!({
            "model": model, "stream": true, "messages": messages, "max_tokens": MAX_TOKENS
        }),
    };
    body.to_string()
}
