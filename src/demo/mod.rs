//! The built-in scripted model (`builtin: demo`): an upstream inside the process, so that the
//! gateway's whole real path runs against it, over a real socket.
//!
//! Started by the server when a provider asks for it, and by tests. Owns one loopback socket.
//!
//! The model's name says what happens, word by word after `demo`, in any combination:
//!
//! | word | what happens |
//! | --- | --- |
//! | (none) | first token after 150 to 300 ms, 30 to 60 tokens a second |
//! | `fast` | no delays |
//! | `slow` | first token after 5 s, the head at once |
//! | `quiet` | no response head for 8 s |
//! | `silent` | some tokens, 8 s of silence, the rest |
//! | `stall` | some tokens, then nothing, with the connection open |
//! | `cut` | some tokens, then the connection breaks inside an event |
//! | `dies` | the prelude, then the connection breaks; with `silent` after that silence |
//! | `error` | some tokens, then a native error event |
//! | `overloaded` | a native overload error as the first event |
//! | `400` … `599` | that HTTP status; 429 with `retry-after: 1` |
//! | `thinking` | reasoning before the answer |
//! | `tools` | calls the request's first tool (so does any model when the user says "tool") |
//! | `big` | an event of 1 MiB first |
//! | `burst` | 20,000 small events at once |

mod answer;
mod ask;
mod chat;
mod messages;
mod reply;
mod responses;
#[cfg(test)]
mod tests;

use crate::protocol::{Endpoint, Protocol};
use bytes::Bytes;
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::ServerSession;
use pingora_http::ResponseHeader;
use reply::{Reply, Step};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, SystemTime};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// More than any gateway in front of it lets through.
const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;
/// Longer than a gateway pools an idle connection.
const IDLE_SECONDS: u64 = 300;
/// Out of file descriptors or the like: time for some to come back.
const AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(50);

/// The model, bound to its port but not serving yet.
#[derive(Debug)]
pub struct Demo {
    listener: std::net::TcpListener,
}

impl Demo {
    /// Binds a loopback port that the system chooses; needs no runtime. Connections wait in the
    /// kernel until [`Self::serve`] runs.
    ///
    /// # Errors
    /// No socket can be opened or bound.
    pub fn bind() -> io::Result<(Self, SocketAddr)> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((Self { listener }, address))
    }

    /// Serves until `shutdown` turns true (or its sender is gone), then drops whatever still runs:
    /// to drain, let it turn true after the last stream.
    ///
    /// # Errors
    /// The listener cannot be used by this runtime.
    pub async fn serve(self, mut shutdown: watch::Receiver<bool>) -> io::Result<()> {
        let listener = TcpListener::from_std(self.listener)?;
        tokio::select! {
            () = accept(&listener) => Ok(()),
            _gone = shutdown.wait_for(|stop| *stop) => Ok(()),
        }
    }
}

/// Accepts for ever. The set owns every connection's task and aborts it when dropped.
async fn accept(listener: &TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_ended) = connections.join_next() => continue,
        };
        match accepted {
            Ok((socket, _)) => {
                connections.spawn(connection(socket));
            }
            Err(error) => {
                log::warn!(error:%; "demo model cannot accept a connection");
                tokio::time::sleep(AFTER_ACCEPT_ERROR).await;
            }
        }
    }
}

/// Serves one connection, request by request. Any error only ends it: the other side is gone.
async fn connection(socket: TcpStream) {
    let _best_effort = socket.set_nodelay(true);
    let mut stream: Stream = Box::new(pingora_core::protocols::l4::stream::Stream::from(socket));
    loop {
        let mut session = ServerSession::new_http1(stream);
        match exchange(&mut session).await {
            Ok(Done::Whole) => {}
            Ok(Done::Broken) | Err(_) => return,
        }
        match session.finish().await {
            Ok(Some(reusable)) => stream = reusable.into_parts().0,
            Ok(None) | Err(_) => return,
        }
    }
}

/// What became of an exchange.
enum Done {
    /// Answered; the connection may serve the next.
    Whole,
    /// The connection must be dropped as it is.
    Broken,
}

async fn exchange(session: &mut ServerSession) -> pingora_core::Result<Done> {
    session.set_keepalive(Some(IDLE_SECONDS));
    if !session.read_request().await? {
        return Ok(Done::Broken);
    }
    let mut body = Vec::new();
    while let Some(part) = session.read_request_body().await? {
        if body.len() + part.len() > MAX_BODY_BYTES {
            session.set_keepalive(None);
            return carry_out(session, Reply::error(Protocol::Chat, 413, "The body is too large.")).await;
        }
        body.extend_from_slice(&part);
    }
    let reply = plan(session, &body);
    carry_out(session, reply).await
}

fn plan(session: &ServerSession, body: &[u8]) -> Reply {
    let created = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    let head = session.req_header();
    let anthropic = head.headers.contains_key("anthropic-version");
    match (head.method.as_str(), Endpoint::of_path(head.uri.path())) {
        ("POST", Some(endpoint)) => Reply::to(endpoint, body, created),
        ("GET", None) if head.uri.path() == "/v1/models" => Reply::models(anthropic, created),
        (_, endpoint) => {
            let protocol = if anthropic { Protocol::Messages } else { Protocol::Chat };
            let protocol = endpoint.map_or(protocol, Endpoint::protocol);
            Reply::error(protocol, 404, "The demo model does not know this path.")
        }
    }
}

async fn carry_out(session: &mut ServerSession, reply: Reply) -> pingora_core::Result<Done> {
    pause(session, Some(reply.before_head)).await?;
    let mut head = ResponseHeader::build(reply.status, Some(reply.headers.len() + 1))?;
    for (name, value) in reply.headers {
        head.insert_header(name, value)?;
    }
    match reply.length {
        Some(length) => head.insert_header("content-length", length)?,
        None => head.insert_header("transfer-encoding", "chunked")?,
    }
    session.write_response_header(Box::new(head)).await?;
    for step in reply.steps {
        match step {
            Step::Send(text) => session.write_response_body(Bytes::from(text), false).await?,
            Step::Wait(duration) => pause(session, Some(duration)).await?,
            Step::Hang => pause(session, None).await?,
            Step::Cut => return Ok(Done::Broken),
        }
    }
    Ok(Done::Whole)
}

/// Waits (`None`: for ever), but not longer than the other side is there.
async fn pause(session: &mut ServerSession, duration: Option<Duration>) -> pingora_core::Result<()> {
    match duration {
        Some(Duration::ZERO) => Ok(()),
        Some(duration) => tokio::select! {
            () = tokio::time::sleep(duration) => Ok(()),
            gone = session.read_body_or_idle(true) => gone.map(drop),
        },
        None => session.read_body_or_idle(true).await.map(drop),
    }
}
