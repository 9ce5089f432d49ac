//! Stored responses and conversations: whose they are, where they lie, and when their usage is booked (A12).
//!
//! Called by admission, and by the stages that see an answer. Asks and tells the map of owners.

use super::Gateway;
use super::admit::Denial;
use super::arrears;
use super::exchange::{Admitted, Exchange};
use crate::admission::facts::Facts;
use crate::admission::keys::may_use;
use crate::config::Key;
use crate::live::Live;
use crate::meter::Meter;
use crate::meter::usage::{Source, Usage};
use crate::outcome::Outcome;
use crate::owners::{Keeping, Owner};
use crate::protocol::{Endpoint, Protocol};
use crate::refusal::Reason;
use crate::relay::{Next, Relay};
use crate::route::{Route, Target};
use crate::upstream::call::request_head;
use bytes::Bytes;
use http::{HeaderMap, Method};
use pingora_http::RequestHeader;
use pingora_proxy::Session;
use serde::Deserialize;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

/// Longer than any id seen.
const MAX_ID_BYTES: usize = 256;

/// A path that names a stored object, or makes a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredPlace {
    /// `None`: a conversation is made.
    pub(super) id: Option<String>,
    /// The methods that it takes.
    pub(super) allow: &'static str,
    /// It is the object itself, not a part of it.
    whole: bool,
}

/// A call that goes to the one target where an object is stored.
#[derive(Clone, Debug)]
pub struct StoredCall {
    method: Method,
    path: String,
    place: StoredPlace,
    /// Nobody has booked its usage yet.
    unsettled: bool,
}

impl StoredCall {
    /// Weir's own, for a response.
    pub(super) fn fetch(id: &str) -> Self {
        let place = StoredPlace { id: Some(id.to_owned()), allow: "GET", whole: true };
        Self { method: Method::GET, path: format!("{}/{id}", Endpoint::Responses.path()), place, unsettled: true }
    }
}

/// What a request has to do with the map of owners.
#[derive(Debug, Default)]
pub struct Storing {
    /// An id was told, and is on its way to the disk.
    keeping: Option<Keeping>,
    /// The id of the answer, once it was told.
    id: Option<String>,
    /// The usage that passes is another request's, or a later one's to book.
    pub(super) elsewhere: bool,
}

impl Storing {
    /// What an attempt told that left nothing behind.
    pub(super) fn forget_attempt(&mut self) {
        (self.keeping, self.id) = (None, None);
    }
}

/// The stored object that a path names (A12).
pub(super) fn place(path: &str) -> Option<StoredPlace> {
    let parts: Vec<&str> = path.strip_prefix("/v1/")?.split('/').collect();
    let (id, allow, whole) = match parts.as_slice() {
        ["responses", id] => (Some(*id), "GET, DELETE", true),
        ["responses", id, "cancel"] => (Some(*id), "POST", false),
        ["responses", id, "input_items"] => (Some(*id), "GET", false),
        ["conversations"] => (None, "POST", false),
        ["conversations", id] => (Some(*id), "GET, POST, DELETE", true),
        ["conversations", id, "items"] => (Some(*id), "GET, POST", false),
        ["conversations", id, "items", item] if is_id(item) => (Some(*id), "GET, DELETE", false),
        _ => return None,
    };
    if id.is_some_and(|id| !is_id(id)) {
        return None;
    }
    Some(StoredPlace { id: id.map(str::to_owned), allow, whole })
}

fn is_id(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=MAX_ID_BYTES).contains(&text.len()) && text.bytes().all(plain)
}

impl Gateway {
    /// Lets in a request that names a stored object in its path.
    pub(super) async fn stored(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        place: StoredPlace,
        key: Arc<Key>,
    ) -> Result<Arc<Admitted>, Denial> {
        let head = session.req_header();
        let (method, path) = (head.method.clone(), head.uri.path().to_owned());
        let stream = head.uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "stream=true"));
        if !place.allow.split(", ").any(|allowed| allowed == method.as_str()) {
            return Err(Reason::MethodNotAllowed { allow: place.allow }.into());
        }
        let (route, owner) = match &place.id {
            Some(id) => {
                let owner = owner(exchange, id, &key, "id").await?;
                let route = at_home(&exchange.live, &owner).ok_or(Reason::StoredNotFound { param: "id" })?;
                (route, Some(owner))
            }
            None => (anywhere(exchange, &key).ok_or(Reason::UnknownPath)?, None),
        };
        let unsettled = owner.as_ref().is_some_and(|owner| owner.unsettled);
        if route.is_off() {
            return Err(Reason::ModelOff { model: route.name.to_string() }.into());
        }
        if let Some((id, owner)) = deleted_unpaid(&method, &place, owner) {
            // Once it is deleted nobody can tell what it has used.
            let since = Instant::now();
            arrears::ask(&exchange.shared, id, &owner).await;
            exchange.waited(since);
        }
        if method == Method::POST {
            exchange.body = self.whole_body(session, exchange).await?;
        }
        exchange.record.admitted = Some(exchange.age());
        exchange.record.endpoint = Some(Endpoint::Responses);
        exchange.record.model = Some(Arc::clone(&route.name));
        exchange.record.stream = stream;
        exchange.storing.elsewhere = true;
        let facts = Facts::none(route.name.to_string(), stream);
        let stored = Some(StoredCall { method, path, place, unsettled });
        Ok(Arc::new(Admitted { endpoint: Endpoint::Responses, key, facts, route, stored }))
    }
}

/// A response that is about to be deleted, and whose usage nobody has booked yet.
fn deleted_unpaid<'p>(method: &Method, place: &'p StoredPlace, owner: Option<Owner>) -> Option<(&'p str, Owner)> {
    let owner = owner.filter(|owner| owner.unsettled && place.whole && *method == Method::DELETE)?;
    Some((place.id.as_deref()?, owner))
}

/// The route of a request that names stored objects in its body: to their home alone (A12). Others keep theirs, but
/// for a background request, which only goes where those are allowed.
pub(super) async fn bound(
    exchange: &Exchange,
    facts: &Facts,
    key: &Key,
    mut route: Arc<Route>,
) -> Result<Arc<Route>, Denial> {
    let named = [("previous_response_id", &facts.previous_response_id), ("conversation", &facts.conversation)];
    for (param, id) in named {
        let Some(id) = id else { continue };
        let owner = owner(exchange, id, key, param).await?;
        let provider = owner.target.split('/').next().unwrap_or_default();
        let of = |target: &&Arc<Target>| *target.word == owner.target;
        // Another of its models: what is stored belongs to the account.
        let near = |target: &&Arc<Target>| target.config.provider.name == provider;
        let home = route.targets.iter().find(of).or_else(|| route.targets.iter().find(near));
        let home = Arc::clone(home.ok_or(Reason::StoredNotFound { param })?);
        route = Arc::new(route.home(home, &owner.account));
    }
    if facts.background {
        let takes = |target: &&Arc<Target>| target.config.provider.responses.background;
        let targets: Vec<_> = route.targets.iter().filter(takes).map(Arc::clone).collect();
        if targets.is_empty() {
            return Err(Reason::Background.into());
        }
        route = Arc::new(route.only(targets));
    }
    Ok(route)
}

/// Unknown and another key's are the same to the client.
async fn owner(exchange: &Exchange, id: &str, key: &Key, param: &'static str) -> Result<Owner, Denial> {
    let found = exchange.shared.owners.find(id).await.map_err(|_| Reason::Ledger)?;
    Ok(found.filter(|owner| owner.key == key.name).ok_or(Reason::StoredNotFound { param })?)
}

/// The one target, under the model that the object was made with if it is still there.
pub(super) fn at_home(live: &Live, owner: &Owner) -> Option<Arc<Route>> {
    let of = |route: &Arc<Route>| route.targets.iter().find(|target| *target.word == owner.target).map(Arc::clone);
    let own = live.route(&owner.model).and_then(|route| Some((route, of(route)?)));
    let (route, target) = own.or_else(|| live.models().find_map(|route| Some((route, of(route)?))))?;
    Some(Arc::new(route.home(target, &owner.account)))
}

/// Where a conversation is made that names no model: at the first target of the key's first model.
fn anywhere(exchange: &Exchange, key: &Key) -> Option<Arc<Route>> {
    let speaks = |route: &&Arc<Route>| {
        let protocols = route.model.protocols.as_ref();
        may_use(key, &route.name) && protocols.is_none_or(|known| known.contains(&Protocol::Responses))
    };
    let route = exchange.live.models().find(speaks)?;
    let first = route.targets.iter().filter(|target| !target.health.is_off()).min_by_key(|one| one.config.priority)?;
    Some(Arc::new(route.only(vec![Arc::clone(first)])))
}

/// What goes up of a call to a stored object.
pub(super) fn head(
    call: &StoredCall,
    target: &Target,
    query: Option<&str>,
    length: usize,
    headers: HeaderMap,
) -> pingora_core::Result<RequestHeader> {
    let path = target.site.stored_path(&call.path, query);
    request_head(call.method.clone(), &path, length, target.site.authority(), headers)
}

/// Of a whole reply, what the map has to know.
#[derive(Default, Deserialize)]
pub(super) struct Object<'a> {
    #[serde(borrow, default)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    status: Option<Cow<'a, str>>,
}

impl<'a> Object<'a> {
    /// Nothing is known of what is no such thing.
    pub(super) fn read(body: &'a [u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_default()
    }

    /// A response that will not change any more.
    pub(super) fn has_ended(&self) -> bool {
        self.status.is_some() && !self.is_running()
    }

    fn is_running(&self) -> bool {
        matches!(self.status.as_deref(), Some("queued" | "in_progress"))
    }
}

/// A whole reply is here, and has not gone out: its id has to be durable before.
pub(super) async fn replied(exchange: &mut Exchange, admitted: &Admitted, target: &Target, body: &Bytes) {
    if admitted.endpoint != Endpoint::Responses {
        return;
    }
    let object = Object::read(body);
    let Some(call) = &admitted.stored else {
        if let Some(id) = object.id.as_deref().filter(|id| is_id(id)) {
            let unsettled = admitted.facts.background && object.is_running();
            keep(exchange, admitted, target, id, unsettled);
            exchange.storing.elsewhere = unsettled;
        }
        return kept(exchange).await;
    };
    match (&call.place.id, call.method.as_str()) {
        (None, _) => {
            if let Some(id) = object.id.as_deref().filter(|id| is_id(id)) {
                keep(exchange, admitted, target, id, false);
            }
            kept(exchange).await;
        }
        (Some(id), "DELETE") if call.place.whole => exchange.shared.owners.forget(id),
        (Some(id), "GET") if call.place.whole && call.unsettled && !object.is_running() => {
            let id = id.clone();
            book(exchange, &id).await;
        }
        (Some(_), _) => {}
    }
}

/// The beginning of a reply that is too large to be held.
pub(super) fn began(exchange: &mut Exchange, admitted: &Admitted, target: &Target, first: &[u8]) {
    const MARK: &[u8] = b"\"id\":";
    if admitted.endpoint != Endpoint::Responses || admitted.stored.is_some() {
        return;
    }
    let from = memchr::memmem::find(first, MARK).map(|at| at + MARK.len());
    let text = from.and_then(|from| first.get(from..)).map(<[u8]>::trim_ascii_start);
    let text = text.and_then(|text| text.strip_prefix(b"\"")).and_then(|text| text.split(|byte| *byte == b'"').next());
    if let Some(id) = text.and_then(|text| std::str::from_utf8(text).ok()).filter(|id| is_id(id)) {
        keep(exchange, admitted, target, id, false);
    }
}

/// Some of a stream has passed: once it has told its id, that is remembered. Costs a look at a flag.
pub(super) fn passed(exchange: &mut Exchange) {
    if exchange.storing.id.is_some() {
        return;
    }
    let (Some(admitted), Some(aim)) = (&exchange.admitted, &exchange.aim) else { return };
    if admitted.endpoint != Endpoint::Responses || admitted.stored.is_some() {
        return;
    }
    let id = exchange.relay.as_ref().and_then(Relay::meter).and_then(Meter::answer_id);
    if let Some(id) = id.filter(|id| is_id(id)).map(str::to_owned) {
        let (admitted, target) = (Arc::clone(admitted), Arc::clone(&aim.target));
        keep(exchange, &admitted, &target, &id, admitted.facts.background);
    }
}

/// A stream is about to end: its id has to be durable, and its usage booked once.
pub(super) async fn ending(exchange: &mut Exchange, next: Next) {
    kept(exchange).await;
    let Some(admitted) = exchange.admitted.clone().filter(|admitted| admitted.endpoint == Endpoint::Responses) else {
        return;
    };
    let whole = matches!(next, Next::Done(Outcome::Completed | Outcome::Truncated, _));
    match &admitted.stored {
        Some(StoredCall { place: StoredPlace { id: Some(id), whole: true, .. }, unsettled: true, .. }) if whole => {
            book(exchange, id).await;
        }
        None if admitted.facts.background => ended_in_background(exchange, whole).await,
        Some(_) | None => {}
    }
}

/// The client of a background stream has left: it goes on, and whoever fetches it later pays, unless its end was seen.
pub(super) async fn left(exchange: &mut Exchange) {
    let reported = exchange.record.source == Source::Reported && exchange.record.usage != Usage::default();
    exchange.booking.at_departure = None;
    ended_in_background(exchange, reported).await;
}

async fn ended_in_background(exchange: &mut Exchange, whole: bool) {
    let Some(id) = exchange.storing.id.clone() else { return };
    exchange.storing.elsewhere = true;
    if whole {
        book(exchange, &id).await;
    }
}

/// The usage that passes is this request's to book, if nobody was first.
async fn book(exchange: &mut Exchange, id: &str) {
    exchange.storing.elsewhere = !exchange.shared.owners.settle(id).await;
}

fn keep(exchange: &mut Exchange, admitted: &Admitted, target: &Target, id: &str, unsettled: bool) {
    if admitted.facts.store == Some(false) {
        return;
    }
    let account = exchange.aim.as_ref().map_or("", |aim| target.site.fingerprint(aim.account));
    let owner = Owner {
        key: admitted.key.name.clone(),
        target: target.word.to_string(),
        account: account.to_owned(),
        model: admitted.route.name.to_string(),
        unsettled,
    };
    let keep = target.config.provider.responses.keep;
    exchange.storing.keeping = Some(exchange.shared.owners.keep(id, owner, keep));
    exchange.storing.id = Some(id.to_owned());
}

async fn kept(exchange: &mut Exchange) {
    if let Some(keeping) = exchange.storing.keeping.take() {
        let since = Instant::now();
        keeping.done().await;
        exchange.waited(since);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a12_paths_of_stored_objects() {
        for (path, expected) in [
            ("/v1/responses/resp_1", Some((Some("resp_1"), "GET, DELETE"))),
            ("/v1/responses/resp_1/cancel", Some((Some("resp_1"), "POST"))),
            ("/v1/responses/resp_1/input_items", Some((Some("resp_1"), "GET"))),
            ("/v1/conversations", Some((None, "POST"))),
            ("/v1/conversations/conv_1", Some((Some("conv_1"), "GET, POST, DELETE"))),
            ("/v1/conversations/conv_1/items", Some((Some("conv_1"), "GET, POST"))),
            ("/v1/conversations/conv_1/items/msg_1", Some((Some("conv_1"), "GET, DELETE"))),
            ("/v1/responses/", None),
            ("/v1/responses/..", None),
            ("/v1/responses/a%2Fb", None),
            ("/v1/responses/resp_1/other", None),
            ("/v1/responses/resp_1/cancel/x", None),
            ("/v1/conversations/conv_1/items/..", None),
            ("/v1/files/f", None),
        ] {
            let found = place(path);
            let found = found.as_ref().map(|place| (place.id.as_deref(), place.allow));
            assert_eq!(found, expected, "{path}");
        }
    }
}
