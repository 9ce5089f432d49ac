//! Lets a request in, or says why not: path, key, body, model (A10, B1, B2, G1).
//!
//! Called by the gateway, once per request, before anything goes upstream.

use super::Gateway;
use super::exchange::{Admitted, Exchange, Unrouted, clipped};
use super::pump::Break;
use super::stored::{self, StoredPlace};
use crate::admission::address::client_address;
use crate::admission::cors;
use crate::admission::facts::{self, BodyError};
use crate::admission::keys::{Keys, may_come_from, may_use};
use crate::config::Key;
use crate::console::{self, Asset};
use crate::protocol::{Endpoint, Protocol};
use crate::refusal::Reason;
use crate::switches::Switch;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, header};
use percent_encoding::percent_decode_str;
use pingora_proxy::Session;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

/// What a request turned out to be.
pub(super) enum Entry {
    /// To be routed by its model.
    Routed(Arc<Admitted>),
    /// `GET /v1/models`, or one of them.
    Models { key: Arc<Key>, id: Option<String> },
    /// A browser asks whether a page may call (B3).
    Preflight,
    /// `GET /v1/weir/usage` (M6).
    OwnUsage(Arc<Key>),
    /// A file of the page at `/weir` (M6).
    Page(Asset),
    /// Through to one provider, named here as its target, as it is (A10).
    Unrouted { key: Arc<Key>, target: Arc<str> },
}

/// Why it was not let in.
pub(super) enum Denial {
    /// To be told.
    Refused(Reason),
    /// Nobody is there to be told.
    Gone,
}

impl From<Reason> for Denial {
    fn from(reason: Reason) -> Self {
        Self::Refused(reason)
    }
}

/// What the path alone says.
enum Place {
    Endpoint(Endpoint),
    Models(Option<String>),
    OwnUsage,
    Page(Asset),
    /// A stored response or conversation (A12).
    Stored(StoredPlace),
    Other,
}

impl Gateway {
    /// Decides what a request is and whether it may come in.
    pub(super) async fn admit(&self, session: &mut Session, exchange: &mut Exchange) -> Result<Entry, Denial> {
        let head = session.req_header();
        let path = head.uri.path().to_owned();
        let method = head.method.clone();
        exchange.protocol = protocol_of(&path, &head.headers);
        exchange.record.client_request_id =
            head.headers.get("x-request-id").and_then(|id| id.to_str().ok()).map(|id| clipped(id, 128));
        let server = &exchange.live.config.server;
        let peer = session.client_addr().and_then(|address| address.as_inet()).map(std::net::SocketAddr::ip);
        exchange.record.client = client_address(peer, &head.headers, &server.trusted_proxies);
        exchange.origin = cors::origin(&head.headers, &server.cors_origins);
        let too_much = exchange.shared.load.is_too_much(server, exchange.shared.running.load(Ordering::Acquire));
        let place = place_of(&path);
        if let Place::Endpoint(endpoint) = place {
            exchange.record.endpoint = Some(endpoint);
        }
        if exchange.shared.draining.load(Ordering::Acquire) {
            return Err(Reason::Draining.into());
        }
        if exchange.over || too_much {
            if exchange.over {
                session.as_downstream_mut().set_keepalive(None);
            }
            return Err(Reason::Overloaded.into());
        }
        if method == Method::OPTIONS {
            let asks = session.req_header().headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
            let allow = if matches!(place, Place::Models(_)) { "GET" } else { "GET, POST" };
            let refused = Err(Reason::MethodNotAllowed { allow }.into());
            return if asks && exchange.origin.is_some() { Ok(Entry::Preflight) } else { refused };
        }
        if session.as_downstream().is_upgrade_req() || path == "/v1/realtime" {
            return Err(Reason::UpgradeRequired.into());
        }
        if let Place::Page(asset) = place {
            let reads = matches!(method, Method::GET | Method::HEAD);
            let wrong = Reason::MethodNotAllowed { allow: "GET, HEAD" };
            return if reads { Ok(Entry::Page(asset)) } else { Err(wrong.into()) };
        }
        let key = holder(session, exchange)?;
        match place {
            Place::Endpoint(_) if method != Method::POST => Err(Reason::MethodNotAllowed { allow: "POST" }.into()),
            Place::Endpoint(endpoint) => self.routed(session, exchange, endpoint, key).await.map(Entry::Routed),
            Place::Models(_) | Place::OwnUsage if method != Method::GET => {
                Err(Reason::MethodNotAllowed { allow: "GET" }.into())
            }
            Place::Models(id) => Ok(Entry::Models { key, id }),
            Place::OwnUsage => Ok(Entry::OwnUsage(key)),
            // What the operator passes through goes there.
            Place::Stored(place) => match unrouted(exchange, &path, &method, &key) {
                Err(Denial::Refused(Reason::UnknownPath)) => {
                    // Boxed, as all that is rare: its room would be moved about with every request's.
                    Box::pin(self.stored(session, exchange, place, key)).await.map(Entry::Routed)
                }
                other => other.map(|target| Entry::Unrouted { key, target }),
            },
            Place::Page(_) | Place::Other => {
                unrouted(exchange, &path, &method, &key).map(|target| Entry::Unrouted { key, target })
            }
        }
    }

    async fn routed(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        endpoint: Endpoint,
        key: Arc<Key>,
    ) -> Result<Arc<Admitted>, Denial> {
        let body = self.whole_body(session, exchange).await?;
        exchange.record.admitted = Some(exchange.age());
        let facts = facts::read(endpoint, &body).map_err(Reason::Body)?;
        exchange.record.stream = facts.stream;
        exchange.record.tier_requested = facts.service_tier.as_deref().map(|tier| clipped(tier, 64));
        let model = facts.model.clone();
        let Some(route) = exchange.live.route(&model).cloned() else {
            return Err(Reason::ModelNotFound { model }.into());
        };
        if !may_use(&key, &route.name) {
            return Err(Reason::ModelNotAllowed { model }.into());
        }
        exchange.record.model = Some(Arc::clone(&route.name));
        if route.model.protocols.as_ref().is_some_and(|protocols| !protocols.contains(&endpoint.protocol())) {
            return Err(Reason::EndpointNotServed { model, endpoint }.into());
        }
        let switched_off = exchange.shared.switches.is_off(Switch::Model, &route.name);
        if switched_off || route.is_off() {
            return Err(Reason::ModelOff { model }.into());
        }
        let route = stored::bound(exchange, &facts, &key, route).await?;
        exchange.body = body;
        Ok(Arc::new(Admitted { endpoint, key, facts, route, stored: None }))
    }

    /// The request's body, decoded (B1).
    pub(super) async fn whole_body(&self, session: &mut Session, exchange: &mut Exchange) -> Result<Bytes, Denial> {
        let coding = Coding::of(&session.req_header().headers)?;
        let body = self.body(session, exchange).await?;
        let body = coding.decode(body, exchange.live.config.server.max_body)?;
        if !exchange.held.set(body.len(), exchange.live.config.server.max_held_bytes) {
            return Err(Reason::HeldBytes.into());
        }
        Ok(body)
    }

    /// The request's body as it came (B1).
    async fn body(&self, session: &mut Session, exchange: &mut Exchange) -> Result<Bytes, Denial> {
        let server = &exchange.live.config.server;
        let (limit, max_held, total_time) = (server.max_body, server.max_held_bytes, server.request_body);
        let headers = &session.req_header().headers;
        let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > limit) {
            return Err(Reason::BodyTooLarge { limit }.into());
        }
        if let Some(expect) = headers.get(header::EXPECT) {
            if !expect.as_bytes().eq_ignore_ascii_case(b"100-continue") {
                return Err(Reason::Expectation.into());
            }
            session.as_downstream_mut().write_continue_response().await.map_err(|_| Denial::Gone)?;
        }
        let since = std::time::Instant::now();
        let reading = self.read_body(session, exchange, announced, limit, max_held);
        let read = tokio::time::timeout(total_time, reading).await;
        exchange.waited(since);
        read.unwrap_or(Err(Denial::Refused(Reason::BodyTimeout)))
    }

    async fn read_body(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        announced: Option<u64>,
        limit: u64,
        max_held: u64,
    ) -> Result<Bytes, Denial> {
        let mut body = BytesMut::new();
        let mut first = None;
        loop {
            let piece = match session.as_downstream_mut().read_request_body().await {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(error) => {
                    session.as_downstream_mut().set_keepalive(None);
                    return Err(broken_body(&error));
                }
            };
            let so_far = body.len() + first.as_ref().map_or(0, Bytes::len) + piece.len();
            if so_far as u64 > limit {
                return Err(Reason::BodyTooLarge { limit }.into());
            }
            if !exchange.held.set(so_far, max_held) {
                return Err(Reason::HeldBytes.into());
            }
            match first.take() {
                None if body.is_empty() => first = Some(piece),
                None => body.extend_from_slice(&piece),
                Some(before) => {
                    let size = announced.and_then(|length| usize::try_from(length).ok());
                    body.reserve(size.unwrap_or(so_far).max(so_far));
                    body.extend_from_slice(&before);
                    body.extend_from_slice(&piece);
                }
            }
        }
        Ok(first.unwrap_or_else(|| body.freeze()))
    }
}

fn holder(session: &Session, exchange: &mut Exchange) -> Result<Arc<Key>, Reason> {
    let stored = exchange.shared.stored_keys.ring();
    let keys = Keys { file: &exchange.live.keys, names: &exchange.live.key_names, store: &stored };
    let found = keys.find(&session.req_header().headers, SystemTime::now());
    let key = found.map_err(Reason::Key)?;
    exchange.record.key = Some(Arc::from(key.name.as_str()));
    exchange.record.tag = key.tag.as_deref().map(Arc::from);
    if exchange.shared.switches.is_off(Switch::Key, &key.name) {
        return Err(Reason::KeyOff);
    }
    if may_come_from(&key, exchange.record.client) { Ok(key) } else { Err(Reason::IpNotAllowed) }
}

fn unrouted(exchange: &mut Exchange, path: &str, method: &Method, key: &Key) -> Result<Arc<str>, Denial> {
    let entries = exchange.live.config.passthrough.iter().filter(|entry| {
        let rest = path.strip_prefix(entry.path.as_str());
        rest.is_some_and(|rest| rest.is_empty() || entry.prefix && rest.starts_with('/'))
    });
    let mut known = entries.filter(|entry| entry.keys.contains(&key.name)).peekable();
    if known.peek().is_none() || climbs(path) {
        return Err(Reason::UnknownPath.into());
    }
    let entry = known.find(|entry| entry.methods.contains(method));
    let site = entry.and_then(|entry| exchange.live.sites.get(&entry.provider.name));
    let Some(site) = site else { return Err(Reason::MethodNotAllowed { allow: "GET, POST, DELETE" }.into()) };
    let target = Arc::from(site.provider.name.as_str());
    exchange.record.target = Some(Arc::clone(&target));
    exchange.unrouted = Some(Unrouted { site: Arc::clone(site) });
    Ok(target)
}

/// Whether some server could read the path as one that leaves its prefix: `..` as it is, encoded
/// (once or more), before a backslash or with parameters (`..;x`). A10's prefixes are a promise.
fn climbs(path: &str) -> bool {
    /// No server decodes more often by mistake.
    const ROUNDS: usize = 4;
    let mut path = path.to_owned();
    for _ in 0..ROUNDS {
        let mut parts = path.split(['/', '\\']).map(|part| part.split(';').next().unwrap_or_default().trim());
        if parts.any(|part| part == "..") {
            return true;
        }
        let decoded = percent_decode_str(&path).decode_utf8_lossy().into_owned();
        if decoded == path {
            return false;
        }
        path = decoded;
    }
    true
}

fn broken_body(error: &pingora_core::Error) -> Denial {
    log::debug!(error:%; "the request body broke off");
    match error.etype() {
        pingora_core::ErrorType::InvalidHTTPHeader => Denial::Refused(Reason::BodyIncomplete),
        // Pingora does not export these two.
        kind if matches!(kind.as_str(), "InvalidChunk" | "InvalidTrailerEnd") => Denial::Refused(Reason::BodyChunks),
        _ => Denial::Gone,
    }
}

/// The request's own content coding (B1).
#[derive(Clone, Copy)]
enum Coding {
    Plain,
    Gzip,
    Zstd,
}

impl Coding {
    fn of(headers: &HeaderMap) -> Result<Self, Reason> {
        let mut codings = headers.get_all(header::CONTENT_ENCODING).iter();
        let coding = codings.next().map_or(&b""[..], |value| value.as_bytes().trim_ascii());
        if codings.next().is_some() {
            return Err(Reason::UnsupportedEncoding);
        }
        match coding.to_ascii_lowercase().as_slice() {
            b"" | b"identity" => Ok(Self::Plain),
            b"gzip" | b"x-gzip" => Ok(Self::Gzip),
            b"zstd" => Ok(Self::Zstd),
            _ => Err(Reason::UnsupportedEncoding),
        }
    }

    fn decode(self, body: Bytes, limit: u64) -> Result<Bytes, Reason> {
        let mut plain = Vec::new();
        let bound = limit.saturating_add(1);
        let read = match self {
            Self::Plain => return Ok(body),
            Self::Gzip => flate2::read::MultiGzDecoder::new(&body[..]).take(bound).read_to_end(&mut plain),
            Self::Zstd => zstd::stream::read::Decoder::new(&body[..])
                .and_then(|decoder| decoder.take(bound).read_to_end(&mut plain)),
        };
        if read.is_err() {
            return Err(Reason::Undecodable);
        }
        if plain.len() as u64 > limit { Err(Reason::BodyTooLarge { limit }) } else { Ok(Bytes::from(plain)) }
    }
}

fn place_of(path: &str) -> Place {
    if let Some(endpoint) = Endpoint::of_path(path) {
        return Place::Endpoint(endpoint);
    }
    if path == "/v1/weir/usage" {
        return Place::OwnUsage;
    }
    if let Some(asset) = console::holder(path) {
        return Place::Page(asset);
    }
    if let Some(place) = stored::place(path) {
        return Place::Stored(place);
    }
    match path.strip_prefix("/v1/models") {
        Some("") => Place::Models(None),
        Some(rest) => match rest.strip_prefix('/') {
            Some(id) if !id.is_empty() => Place::Models(Some(percent_decode_str(id).decode_utf8_lossy().into_owned())),
            Some(_) | None => Place::Other,
        },
        None => Place::Other,
    }
}

/// Whose envelope an error on that path wears.
fn protocol_of(path: &str, headers: &HeaderMap) -> Protocol {
    match Endpoint::of_path(path) {
        Some(endpoint) => endpoint.protocol(),
        None if path.starts_with("/v1/messages") || headers.contains_key("anthropic-version") => Protocol::Messages,
        None if path.starts_with("/v1/responses") || path.starts_with("/v1/conversations") => Protocol::Responses,
        None => Protocol::Chat,
    }
}

impl From<Break> for Denial {
    fn from(_: Break) -> Self {
        Self::Gone
    }
}

impl From<BodyError> for Denial {
    fn from(error: BodyError) -> Self {
        Self::Refused(Reason::Body(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a10_no_path_climbs_out_of_its_prefix() {
        for path in [
            "/v1/files/../admin",
            "/v1/files/..",
            "/v1/files/%2e%2e/admin",
            "/v1/files/.%2E/admin",
            "/v1/files/..%2f..%2fadmin",
            "/v1/files/%252e%252e%252fadmin",
            "/v1/files/..%5cadmin",
            "/v1/files/..;x=1/admin",
            "/v1/files/..%3bx/admin",
            "/v1/files/%2e%2e%20/admin",
            "/v1/files/%2525252525252e",
        ] {
            assert!(climbs(path), "{path}");
        }
        for path in
            ["/v1/files/file-1/content", "/v1/files/a..b", "/v1/files/...", "/v1/files/a%20b%2Fc", "/v1/files/%ff"]
        {
            assert!(!climbs(path), "{path}");
        }
    }
}
