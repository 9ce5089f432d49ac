//! What Weir answers by itself: refusals, the list of models; and the heads of passthrough.
//!
//! Called by the gateway and its stages.

use super::Gateway;
use super::exchange::Exchange;
use super::pump::{Break, id_headers};
use crate::admission::keys::may_use;
use crate::admission::{cors, headers};
use crate::config::Key;
use crate::outcome::Outcome;
use crate::protocol::Protocol;
use crate::record::Attempt;
use crate::refusal::Reason;
use crate::switches::Switch;
use crate::upstream::site::Site;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use pingora_core::Error;
use pingora_http::RequestHeader;
use pingora_proxy::Session;
use serde_json::{Value, json};
use std::sync::Arc;

impl Gateway {
    /// Tells the client why not, in its own envelope.
    pub(super) async fn refuse(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        reason: &Reason,
    ) -> Result<(), Break> {
        let refusal = reason.refusal(exchange.protocol);
        let outcome = if matches!(reason, Reason::Draining) { Outcome::Drained } else { Outcome::Rejected };
        exchange.conclude(outcome, reason.word());
        let body = refusal.body(exchange.protocol, &exchange.id);
        self.reply(session, exchange, refusal.status, &refusal.headers(), body.into()).await
    }

    /// A whole JSON reply of Weir's own.
    pub(super) async fn reply(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        status: u16,
        extra: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<(), Break> {
        let head = json_head(exchange, status, extra, body.len());
        self.open(session, exchange, head).await?;
        exchange.record.bytes += body.len() as u64;
        let body = if session.req_header().method == http::Method::HEAD { Bytes::new() } else { body };
        let written = session.as_downstream_mut().write_response_body(body, true).await;
        written.map_err(|_| Break::ClientGone)?;
        if !session.as_downstream_mut().is_body_done() {
            if session.req_header().headers.contains_key(header::EXPECT) {
                session.as_downstream_mut().set_keepalive(None);
            } else {
                self.linger(session).await;
            }
        }
        Ok(())
    }

    /// Tells a browser what the page may send (B3). The request itself needs its key all the same.
    pub(super) async fn preflight(&self, session: &mut Session, exchange: &mut Exchange) -> Result<(), Break> {
        exchange.conclude(Outcome::Completed, "preflight");
        let asked = session.req_header().headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
        let mut head = Response::new(());
        *head.status_mut() = StatusCode::NO_CONTENT;
        cors::preflight(head.headers_mut(), asked);
        id_headers(exchange, head.headers_mut());
        self.open(session, exchange, head).await?;
        self.close(session).await
    }

    /// `GET /v1/models` and `/v1/models/{id}`: only what the key may use (A10).
    pub(super) async fn models(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        key: &Key,
        id: Option<&str>,
    ) -> Result<(), Break> {
        let anthropic = session.req_header().headers.contains_key("anthropic-version");
        let (shared, live) = (Arc::clone(&exchange.shared), Arc::clone(&exchange.live));
        let is_on = |name: &str| !shared.switches.is_off(Switch::Model, name);
        let usable = live.config.models.iter().filter(|model| may_use(key, &model.name) && is_on(&model.name));
        let named = |name: &str| if anthropic { anthropic_model(name) } else { openai_model(name) };
        let value = match id {
            None => list(&usable.map(|model| named(&model.name)).collect::<Vec<_>>(), anthropic),
            Some(id) => {
                let mut usable = usable;
                let found = usable.find(|model| model.name == id || model.aliases.iter().any(|alias| alias == id));
                let Some(_) = found else {
                    let reason = Reason::ModelNotFound { model: id.to_owned() };
                    return self.refuse(session, exchange, &reason).await;
                };
                named(id)
            }
        };
        exchange.conclude(Outcome::Completed, "models");
        self.reply(session, exchange, 200, &[], value.to_string().into()).await
    }
}

fn json_head(exchange: &Exchange, status: u16, extra: &[(HeaderName, HeaderValue)], length: usize) -> Response<()> {
    let mut head = Response::new(());
    *head.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = head.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in extra {
        headers.insert(name.clone(), value.clone());
    }
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    id_headers(exchange, headers);
    head
}

fn openai_model(name: &str) -> Value {
    json!({"id": name, "object": "model", "created": 0, "owned_by": "weir"})
}

fn anthropic_model(name: &str) -> Value {
    json!({"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"})
}

fn list(models: &[Value], anthropic: bool) -> Value {
    if !anthropic {
        return json!({"object": "list", "data": models});
    }
    let id = |model: Option<&Value>| model.and_then(|model| model.get("id")).cloned().unwrap_or(Value::Null);
    let (first, last) = (id(models.first()), id(models.last()));
    json!({"data": models, "has_more": false, "first_id": first, "last_id": last})
}

/// The head of a passthrough request as it goes up (A10, F8).
pub(super) fn unrouted_head(session: &Session, site: &Site, head: &mut RequestHeader) -> pingora_core::Result<()> {
    let from = session.req_header();
    let path = site.raw_path(from.uri.path(), from.uri.query());
    let mut clean = RequestHeader::build(from.method.clone(), path.as_bytes(), None)?;
    clean.set_version(head.version);
    clean.insert_header(header::HOST, site.authority())?;
    for (name, value) in &headers::up(&from.headers, &site.provider.allow_headers) {
        clean.append_header(name.clone(), value.clone())?;
    }
    for name in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONTENT_ENCODING] {
        if let Some(value) = head.headers.get(&name) {
            clean.insert_header(name, value.clone())?;
        }
    }
    site.authorize(0, &mut clean)?;
    *head = clean;
    Ok(())
}

/// A passthrough request is one attempt at its provider.
pub(super) fn book_unrouted(exchange: &mut Exchange) {
    let Some(target) = exchange.record.target.clone() else { return };
    let result = if exchange.record.outcome.is_fault() { "failed" } else { "ok" };
    let status = Some(exchange.record.status).filter(|status| *status > 0);
    let ended = exchange.age();
    let began = std::time::Duration::ZERO;
    exchange.attempt_ended(Attempt { target, result, status, began, ended, maybe_billed: false });
}

/// How a passthrough request ended.
pub(super) fn unrouted_outcome(status: u16, error: Option<&Error>) -> (Outcome, &'static str) {
    match (error, status) {
        (Some(error), _) if *error.esource() == pingora_core::ErrorSource::Downstream => {
            (Outcome::ClientGone, "client_gone")
        }
        (Some(_), 0) => (Outcome::UpstreamError, "connect"),
        (Some(_), _) => (Outcome::UpstreamInterrupted, "broken"),
        (None, 400..=499) => (Outcome::ClientError, "client_status"),
        (None, 500..) => (Outcome::UpstreamError, "status"),
        (None, _) => (Outcome::Completed, "passthrough"),
    }
}

/// Which protocol's plan a request runs by.
pub(super) const fn plan_index(protocol: Protocol) -> usize {
    match protocol {
        Protocol::Chat => 0,
        Protocol::Responses => 1,
        Protocol::Messages => 2,
    }
}
