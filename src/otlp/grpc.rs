//! One call of OTLP's trace service: gRPC, unary, on an HTTP/2 connection that is kept.
//!
//! Called by the export's thread alone. Touches the network.

use super::message::ExportResponse;
use crate::config::BaseUrl;
use bytes::{BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use http::{HeaderMap, Request, StatusCode, header};
use prost::Message;
use rustls::pki_types::ServerName;
use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Name, connection, TLS and preface.
const CONNECT: Duration = Duration::from_secs(5);
/// One call, as other exporters have it.
const CALL: Duration = Duration::from_secs(10);
/// An answer is a handful of bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// The receiver of spans.
pub(super) struct Receiver {
    url: BaseUrl,
    uri: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    line: Option<SendRequest<Bytes>>,
}

/// Why a batch was not taken.
#[derive(Debug)]
pub(super) enum Failed {
    /// It may work later.
    Later(String),
    /// It will not.
    Refused(String),
}

fn later(error: impl Display) -> Failed {
    Failed::Later(error.to_string())
}

impl Receiver {
    /// Not connected yet.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub(super) fn new(url: &BaseUrl) -> io::Result<Self> {
        let tls = if url.tls {
            let name = ServerName::try_from(url.host.clone()).map_err(io::Error::other)?;
            Some((TlsConnector::from(Arc::new(tls()?)), name))
        } else {
            None
        };
        let host = if url.host.contains(':') { format!("[{}]", url.host) } else { url.host.clone() };
        let scheme = if url.tls { "https" } else { "http" };
        let uri = format!("{scheme}://{host}:{}{EXPORT}", url.port);
        Ok(Self { url: url.clone(), uri, tls, line: None })
    }

    /// Sends one message. Answers how many of its spans were not taken.
    ///
    /// # Errors
    /// Why none was.
    pub(super) async fn export(&mut self, message: &[u8]) -> Result<u64, Failed> {
        let line = match self.line.take() {
            Some(line) => line,
            None => timeout(CONNECT, self.connect()).await.map_err(later)?.map_err(later)?,
        };
        let (line, result) = timeout(CALL, call(line, &self.uri, frame(message))).await.map_err(later)?;
        self.line = line;
        result
    }

    async fn connect(&self) -> io::Result<SendRequest<Bytes>> {
        let socket = TcpStream::connect((self.url.host.as_str(), self.url.port)).await?;
        socket.set_nodelay(true)?;
        match &self.tls {
            None => shake_hands(socket).await,
            Some((tls, name)) => shake_hands(tls.connect(name.clone(), socket).await?).await,
        }
    }
}

async fn shake_hands<S>(socket: S) -> io::Result<SendRequest<Bytes>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (line, connection) = h2::client::handshake(socket).await.map_err(io::Error::other)?;
    // Whoever waits for an answer gets its error, too.
    tokio::spawn(async move { drop(connection.await) });
    Ok(line)
}

/// The connection comes back where another call may use it.
async fn call(line: SendRequest<Bytes>, uri: &str, frame: Bytes) -> (Option<SendRequest<Bytes>>, Result<u64, Failed>) {
    let mut line = match line.ready().await {
        Ok(line) => line,
        Err(error) => return (None, Err(later(error))),
    };
    match ask(&mut line, uri, frame).await {
        Ok((answer, head, trailers)) => (Some(line), read(&answer, &head, trailers.as_ref())),
        Err(failed) => (None, Err(failed)),
    }
}

async fn ask(
    line: &mut SendRequest<Bytes>,
    uri: &str,
    frame: Bytes,
) -> Result<(Bytes, http::response::Parts, Option<HeaderMap>), Failed> {
    let request = Request::post(uri)
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .header(header::USER_AGENT, concat!("weir/", env!("CARGO_PKG_VERSION")))
        .body(())
        .map_err(later)?;
    let (answer, mut body) = line.send_request(request, false).map_err(later)?;
    body.send_data(frame, true).map_err(later)?;
    let (head, mut body) = answer.await.map_err(later)?.into_parts();
    let mut whole = BytesMut::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.map_err(later)?;
        body.flow_control().release_capacity(chunk.len()).map_err(later)?;
        if whole.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Err(later("an answer without end"));
        }
        whole.extend_from_slice(&chunk);
    }
    let trailers = body.trailers().await.map_err(later)?;
    Ok((whole.freeze(), head, trailers))
}

/// What the receiver says.
fn read(answer: &Bytes, head: &http::response::Parts, trailers: Option<&HeaderMap>) -> Result<u64, Failed> {
    let header = |name: &str| trailers.and_then(|all| all.get(name)).or_else(|| head.headers.get(name));
    let said = |name: &str| header(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match said("grpc-status") {
        "0" => {}
        // Cancelled, deadline, exhausted, aborted, out of range, unavailable, data loss: what OTLP sends again.
        code @ ("1" | "4" | "8" | "10" | "11" | "14" | "15") => {
            return Err(later(format!("grpc-status {code} {}", said("grpc-message"))));
        }
        "" if head.status == StatusCode::OK => return Err(later("an answer without grpc-status")),
        "" if matches!(head.status.as_u16(), 429 | 502..=504) => return Err(later(head.status)),
        "" => return Err(Failed::Refused(format!("{}: is this an OTLP receiver that takes gRPC?", head.status))),
        code => return Err(Failed::Refused(format!("grpc-status {code} {}", said("grpc-message")))),
    }
    // Byte 0: not compressed; four bytes of length.
    let message = answer.get(5..).unwrap_or_default();
    let partial = ExportResponse::decode(message).ok().and_then(|response| response.partial_success);
    Ok(partial.map_or(0, |partial| {
        if partial.rejected_spans > 0 {
            log::warn!(said = partial.error_message.as_str(); "the OTLP receiver did not take all spans");
        }
        u64::try_from(partial.rejected_spans).unwrap_or(0)
    }))
}

fn frame(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(5 + message.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX)); // a batch has less than a few MiB
    frame.put_slice(message);
    frame.freeze()
}

/// The system's roots, HTTP/2 alone.
fn tls() -> io::Result<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs()?);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}
