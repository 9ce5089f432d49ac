//! Where an HTTP/1 request leaves Pingora's phases.
//!
//! Pingora's future for a request has room for all that its own proxying may need (13 KiB), as long
//! as the request lasts. A request that Weir answers by itself leaves it in `request_filter`: session
//! and exchange go into the lobby, that future is dropped, and [`Gateway::attend`] goes on with them.
//! Entered by the server's loop over an HTTP/1 connection; HTTP/2 streams have no lobby and stay.

use super::Gateway;
use super::admit::{Denial, Entry};
use super::exchange::Exchange;
use pingora_core::apps::{HttpPersistentSettings, ReusedHttpStream};
use pingora_core::protocols::http::ServerSession;
use pingora_proxy::Session;
use std::cell::Cell;
use std::fmt::{Debug, Formatter};
use std::future::{Future, poll_fn};
use std::io::Cursor;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

tokio::task_local! {
    static LOBBY: Lobby;
    /// The connection that this task serves is one too many (B3).
    static OVER: ();
}

/// What one request of an HTTP/1 connection has come to.
#[derive(Default)]
struct Lobby {
    head_read: Cell<bool>,
    left: Cell<Option<Box<Departed>>>,
}

/// A request that has left Pingora's phases.
pub struct Departed {
    session: Session,
    exchange: Box<Exchange>,
    entry: Result<Entry, Denial>,
}

impl Debug for Departed {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Departed").field("id", &self.exchange.id).finish_non_exhaustive()
    }
}

/// How far Pingora came with a request.
#[derive(Debug)]
pub enum Passage {
    /// To its end.
    Through(Option<ReusedHttpStream>),
    /// Weir answers it.
    Left(Box<Departed>),
    /// No whole head came within the bound (B1).
    TooSlow,
}

/// Follows Pingora's future for one request until it is done or the request leaves it. `bound` is for its head.
pub fn enter(
    mut work: Pin<Box<dyn Future<Output = Option<ReusedHttpStream>> + Send + '_>>,
    bound: Duration,
) -> impl Future<Output = Passage> + Send + '_ {
    let bound = tokio::time::sleep(bound);
    LOBBY.scope(Lobby::default(), async move {
        let mut bound = std::pin::pin!(bound);
        let mut is_bound = true;
        poll_fn(move |context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Passage::Through(done));
            }
            if let Some(departed) = LOBBY.with(|lobby| lobby.left.take()) {
                return Poll::Ready(Passage::Left(departed));
            }
            if is_bound && bound.as_mut().poll(context).is_ready() {
                if !LOBBY.with(|lobby| lobby.head_read.get()) {
                    return Poll::Ready(Passage::TooSlow);
                }
                is_bound = false;
            }
            Poll::Pending
        })
        .await
    })
}

/// Serves a connection that is one too many.
pub fn over<F: Future>(work: F) -> impl Future<Output = F::Output> {
    OVER.scope((), work)
}

/// Whether the connection of this task is one too many (B3).
pub(super) fn is_over() -> bool {
    OVER.try_with(|()| ()).is_ok()
}

/// Called when a request's context is made, which is right after its head was read.
pub(super) fn head_was_read() {
    let _ = LOBBY.try_with(|lobby| lobby.head_read.set(true));
}

/// Leaves Pingora's future, which is not polled again; comes back only where there is no lobby, with what came in.
pub(super) async fn leave(
    session: &mut Session,
    exchange: &mut Option<Box<Exchange>>,
    entry: Result<Entry, Denial>,
) -> Result<Entry, Denial> {
    if LOBBY.try_with(|_| ()).is_err() {
        return entry;
    }
    let Some(mine) = exchange.take() else { return entry };
    let hollow = Session::new_h1(Box::new(Cursor::new(Vec::new())));
    let session = std::mem::replace(session, hollow);
    let departed = Box::new(Departed { session, exchange: mine, entry });
    LOBBY.with(|lobby| lobby.left.set(Some(departed)));
    std::future::pending().await
}

impl Gateway {
    /// Answers a request that has left Pingora's phases, and gives its connection back if it can be used again.
    pub async fn attend(&self, departed: Box<Departed>) -> Option<ReusedHttpStream> {
        let Departed { mut session, mut exchange, entry } = *departed;
        let answered = self.answer(&mut session, &mut exchange, entry).await;
        let answered = super::concluded(&mut exchange, answered);
        exchange.finish();
        drop(exchange);
        if let Err(error) = answered {
            session.downstream_session.on_proxy_failure(error);
            return None;
        }
        let mut kept = HttpPersistentSettings::for_session(&session);
        kept.set_user_context(Box::new(()));
        let downstream: ServerSession = *session.downstream_session;
        let reusable = downstream.finish().await.ok().flatten()?;
        Some(ReusedHttpStream::from_reusable_stream(reusable, kept))
    }
}
