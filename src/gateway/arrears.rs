//! Background responses that nobody has fetched: Weir asks for them itself, so that their usage is booked (A12).
//!
//! A service beside the gateway; also called by a request that is about to delete such a response. Touches the map of
//! owners, the network, and the books of what has ended; writes to no client.

use super::body::Body;
use super::booking;
use super::exchange::Exchange;
use super::reply::{book_whole, whole_outcome};
use super::shared::{Held, Shared};
use super::stored::{self, Object, StoredCall};
use crate::live::Live;
use crate::outcome::Failure;
use crate::owners::Owner;
use crate::protocol::Endpoint;
use crate::record::Attempt;
use crate::route::{Choice, Route};
use crate::upstream::call::Call;
use crate::upstream::decode::Coding;
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header};
use pingora_core::server::ShutdownWatch;
use pingora_core::services::background::BackgroundService;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// How often the map is asked whose time has come.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Responses that are asked for at once.
const AT_ONCE: usize = 8;
/// One answer, from connecting to its last byte.
const LONGEST_ASK: Duration = Duration::from_mins(1);

/// The service.
#[derive(Debug)]
pub struct Arrears(pub Arc<Shared>);

#[async_trait]
impl BackgroundService for Arrears {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut asking = JoinSet::new();
        let mut tick = interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let its_time = tokio::select! {
                _ = shutdown.wait_for(|stop| *stop) => return,
                Some(_) = asking.join_next() => false,
                _ = tick.tick() => true,
            };
            let room = AT_ONCE.saturating_sub(asking.len());
            if !its_time || room == 0 || self.0.draining.load(Ordering::Relaxed) {
                continue;
            }
            let targets = targets(&self.0.live.load());
            for (id, owner) in self.0.owners.due(targets, room).await {
                let shared = Arc::clone(&self.0);
                asking.spawn(async move { ask(&shared, &id, &owner).await });
            }
        }
    }
}

/// Asks once. What has ended is booked, unless somebody else was first; what has not is asked for again later.
pub(super) async fn ask(shared: &Arc<Shared>, id: &str, owner: &Owner) {
    let live = shared.live.load_full();
    let Some(route) = stored::at_home(&live, owner) else { return };
    let Some(mut choice) = route.choose(Instant::now(), None, &[], 0) else { return };
    let fetched = timeout(LONGEST_ASK, fetch(shared, &live, &route, &choice, id)).await;
    choice.settle(Instant::now(), Some(0));
    match fetched.unwrap_or(Err(Failure::Total)) {
        Ok(body) if Object::read(&body).has_ended() => book(shared, &live, &route, &choice, (id, owner), &body).await,
        Ok(_) => log::debug!(id; "a background response still runs"),
        Err(failure) => log::debug!(id, failure = failure.word(); "a background response could not be fetched"),
    }
}

async fn fetch(shared: &Arc<Shared>, live: &Live, route: &Route, choice: &Choice, id: &str) -> Result<Bytes, Failure> {
    let target = &choice.target;
    let mut headers = HeaderMap::new();
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(header::USER_AGENT, HeaderValue::from_static(concat!("weir/", env!("CARGO_PKG_VERSION"))));
    let head = stored::head(&StoredCall::fetch(id), target, None, 0, headers);
    let mut head = head.map_err(|_| Failure::Connect)?;
    target.site.authorize(choice.account, &mut head).map_err(|_| Failure::Connect)?;
    let call = Call { head, body: Vec::new() };
    let answer = shared.connections.call(&target.site, &call, &route.model.timeouts).await?;
    let Some(head) = answer.session.response_header() else { return Err(Failure::Head) };
    let (status, coding) = (head.status, head.headers.get(header::CONTENT_ENCODING));
    let coding = Coding::of(coding.and_then(|value| value.to_str().ok()));
    let mut body = Body { answer, coding, ended: false };
    if !status.is_success() {
        body.abandon().await;
        return Err(Failure::Status(status.as_u16()));
    }
    let (mut whole, mut held) = (BytesMut::new(), Held::new(Arc::clone(shared)));
    let server = &live.config.server;
    while let Some(chunk) = body.next().await? {
        whole.extend_from_slice(&chunk);
        if whole.len() > server.max_event_bytes || !held.set(whole.len(), server.max_held_bytes) {
            body.abandon().await;
            return Err(Failure::TooLarge);
        }
    }
    shared.connections.done(body.answer, true).await;
    Ok(whole.freeze())
}

/// One row, as a `GET` of its client would have left it.
async fn book(shared: &Arc<Shared>, live: &Live, route: &Route, choice: &Choice, of: (&str, &Owner), body: &Bytes) {
    let ((id, owner), target) = (of, &choice.target);
    let mut exchange = Box::new(Exchange::new(Arc::clone(shared)));
    let stored_keys = shared.stored_keys.ring();
    let key = live.keys.named(&owner.key).or_else(|| stored_keys.named(&owner.key));
    exchange.record.key = Some(Arc::from(owner.key.as_str()));
    exchange.record.tag = key.and_then(|key| key.tag.as_deref()).map(Arc::from);
    exchange.record.endpoint = Some(Endpoint::Responses);
    exchange.record.model = Some(Arc::clone(&route.name));
    exchange.record.admitted = Some(Duration::ZERO);
    let opened = booking::open(&mut exchange, None, Some(&target.word)).await.is_ok();
    let opened = opened && booking::durable(&mut exchange).await.is_ok();
    // From the claim on nothing is waited for: what is claimed is booked.
    if !opened || !shared.owners.settle(id).await {
        return exchange.forget();
    }
    exchange.attempt_begins(&target.word);
    let meter = book_whole(&mut exchange, Endpoint::Responses, None, target, body).0;
    let ended = exchange.age();
    exchange.attempt_ended(Attempt {
        target: Arc::clone(&target.word),
        result: "ok",
        status: Some(200),
        began: Duration::ZERO,
        ended,
        maybe_billed: false,
    });
    exchange.conclude(whole_outcome(&meter), "background");
    exchange.finish();
}

/// What can be asked for by this config.
fn targets(live: &Live) -> Vec<String> {
    live.models().flat_map(|route| &route.targets).map(|target| target.word.to_string()).collect()
}
