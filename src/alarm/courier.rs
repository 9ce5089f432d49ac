//! Brings a notice to the operator's webhook: one POST of JSON, tried a few times.
//!
//! Called by the server's task. Touches the network; tells the log, never with the URL, which may hold a token.

use super::Notice;
use crate::config::Webhook;
use crate::upstream::call::post_head;
use crate::upstream::resolve::Resolver;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use pingora_core::connectors::http::Connector;
use pingora_core::protocols::ALPN;
use pingora_core::upstreams::peer::HttpPeer;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;

/// For one try, from the name's look-up to the answer's head.
const PATIENCE: Duration = Duration::from_secs(5);
/// Before the second, third and fourth try; a receiver that restarts is back by then.
const PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(25)];

/// A try came to nothing. Its words hold nothing of the URL.
#[derive(Debug, thiserror::Error)]
enum Undelivered {
    #[error("its name does not resolve")]
    Unresolved,
    #[error("{0}")]
    Network(String),
    #[error("it answered with status {0}")]
    Status(u16),
    #[error("no answer within 5 s")]
    Late,
}

impl From<Box<pingora_core::Error>> for Undelivered {
    fn from(error: Box<pingora_core::Error>) -> Self {
        Self::Network(error.etype().as_str().to_owned())
    }
}

/// The way to the webhook.
pub struct Courier {
    connector: Connector,
    resolver: Resolver,
}

impl std::fmt::Debug for Courier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Courier").finish_non_exhaustive()
    }
}

impl Default for Courier {
    fn default() -> Self {
        Self { connector: Connector::new(None), resolver: Resolver::default() }
    }
}

impl Courier {
    /// Sends it, up to four times. What cannot be delivered is an error in the log.
    pub async fn deliver(&self, webhook: Webhook, notice: Notice) {
        let body = Bytes::from(notice.json().to_string());
        let (alert, subject) = notice.about();
        for pause in PAUSES.into_iter().map(Some).chain([None]) {
            let tried = timeout(PATIENCE, self.post(&webhook, body.clone())).await;
            let Err(error) = tried.unwrap_or(Err(Undelivered::Late)) else {
                log::info!(alert, subject; "the webhook of alerts took a notice");
                return;
            };
            if let Some(pause) = pause {
                log::warn!(alert, subject, error:%; "the webhook of alerts did not take a notice; it is tried again");
                tokio::time::sleep(pause).await;
            } else {
                log::error!(alert, subject, error:%; "the webhook of alerts did not take a notice; see alerts.webhook");
            }
        }
    }

    async fn post(&self, webhook: &Webhook, body: Bytes) -> Result<(), Undelivered> {
        let addresses = self.resolver.addresses(&webhook.host, webhook.port).await;
        let mut failure = Undelivered::Unresolved;
        for address in addresses.map_err(|_| Undelivered::Unresolved)? {
            let mut session = match self.connector.get_http_session(&peer(webhook, address)).await {
                Ok((session, _)) => session,
                Err(error) => {
                    failure = error.into();
                    continue;
                }
            };
            let authority = HeaderValue::from_str(&webhook.authority());
            let authority = authority.map_err(|_| Undelivered::Network("bad host".to_owned()))?;
            let head = post_head(webhook.target.expose(), body.len(), authority, HeaderMap::new())?;
            session.write_request_header(Box::new(head)).await?;
            session.write_request_body(body, true).await?;
            session.finish_request_body().await?;
            session.read_response_header().await?;
            let status = session.response_header().map_or(0, |head| head.status.as_u16());
            session.shutdown().await;
            return if (200..300).contains(&status) { Ok(()) } else { Err(Undelivered::Status(status)) };
        }
        Err(failure)
    }
}

#[expect(clippy::disallowed_methods, reason = "a socket address, not a name: it cannot block")]
fn peer(webhook: &Webhook, address: SocketAddr) -> HttpPeer {
    let mut peer = HttpPeer::new(address, webhook.tls, webhook.host.clone());
    peer.options.alpn = ALPN::H1;
    peer
}
