//! A raw HTTP/1.1 client that sends exactly what it is told and sees every chunk arrive.

use super::pki::Pki;
use super::weir::{KEY, Weir};
use super::within;
use bytes::{Buf, Bytes, BytesMut};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// The head of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
}

impl Head {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Weir's request id.
    pub(crate) fn id(&self) -> &str {
        self.get("x-request-id").expect("every answer has an x-request-id (F10)")
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) head: Head,
    pub(crate) body: Bytes,
    /// Whether the body ended as its framing promised (last chunk, length reached).
    pub(crate) ended: bool,
}

impl Received {
    pub(crate) fn status(&self) -> u16 {
        self.head.status
    }

    pub(crate) fn id(&self) -> &str {
        self.head.id()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {:?}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

enum Left {
    Chunked,
    Length(usize),
    Close,
    Over,
}

/// One connection to the gateway.
pub(crate) struct Client {
    io: Box<dyn Io>,
    buffer: BytesMut,
    left: Left,
    /// Body bytes since the last head.
    pub(crate) body: BytesMut,
    /// When each chunk (or read) of the body arrived, and how many bytes it had.
    pub(crate) arrivals: Vec<(Instant, usize)>,
    /// Whether the body ended as its framing promised.
    pub(crate) ended: bool,
}

impl Client {
    pub(crate) async fn connect(weir: &Weir) -> Self {
        Self::connect_to(weir.address).await
    }

    /// `None`: nobody listens (any more).
    pub(crate) async fn try_connect(address: SocketAddr) -> Option<Self> {
        TcpStream::connect(address).await.ok().map(Self::over)
    }

    pub(crate) async fn connect_to(address: SocketAddr) -> Self {
        let socket = within("a connection", TcpStream::connect(address)).await.expect("a connection");
        socket.set_nodelay(true).expect("nodelay");
        Self::over(socket)
    }

    pub(crate) async fn connect_tls(weir: &Weir, pki: &Pki) -> Self {
        let socket = within("a connection", TcpStream::connect(weir.address)).await.expect("a connection");
        socket.set_nodelay(true).expect("nodelay");
        Self::tls_over(socket, pki).await
    }

    /// `None`: the handshake failed.
    pub(crate) async fn try_connect_tls(weir: &Weir, tls: tokio_rustls::TlsConnector) -> Option<Self> {
        let socket = within("a connection", TcpStream::connect(weir.address)).await.expect("a connection");
        let name = "localhost".try_into().expect("a name");
        within("TLS", tls.connect(name, socket)).await.ok().map(Self::over)
    }

    /// TLS, and whether an earlier session was resumed.
    pub(crate) async fn resume_tls(weir: &Weir, tls: tokio_rustls::TlsConnector) -> (Self, bool) {
        let socket = within("a connection", TcpStream::connect(weir.address)).await.expect("a connection");
        let name = "localhost".try_into().expect("a name");
        let stream = within("TLS", tls.connect(name, socket)).await.expect("TLS");
        let resumed = stream.get_ref().1.handshake_kind() == Some(tokio_rustls::rustls::HandshakeKind::Resumed);
        (Self::over(stream), resumed)
    }

    /// TLS on a connection that has said something before.
    pub(crate) async fn tls_over(socket: TcpStream, pki: &Pki) -> Self {
        let name = "localhost".try_into().expect("a name");
        let tls = within("TLS", pki.connector(&[b"http/1.1"]).connect(name, socket)).await.expect("TLS");
        Self::over(tls)
    }

    fn over(io: impl Io + 'static) -> Self {
        Self {
            io: Box::new(io),
            buffer: BytesMut::new(),
            left: Left::Over,
            body: BytesMut::new(),
            arrivals: Vec::new(),
            ended: false,
        }
    }

    /// Sends bytes as they are.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        within("the client's write", self.io.write_all(bytes.as_ref())).await.expect("a write");
        self.io.flush().await.expect("a flush");
    }

    /// Sends bytes as they are; an error means that the gateway has closed.
    pub(crate) async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        within("the client's write", self.io.write_all(bytes.as_ref())).await?;
        self.io.flush().await
    }

    /// Sends a POST with the test key. It may be answered, and the connection closed, before it has been sent whole.
    pub(crate) async fn post(&mut self, path: &str, body: impl AsRef<[u8]>) {
        let _ = self.try_send(request(path, &[], body.as_ref())).await;
    }

    /// Sends a POST with the test key and reads the head of its answer.
    pub(crate) async fn open(&mut self, path: &str, body: impl AsRef<[u8]>) -> Head {
        self.post(path, body).await;
        self.head().await
    }

    /// Closes our sending side and leaves the other open.
    pub(crate) async fn half_close(&mut self) {
        self.io.shutdown().await.expect("a shutdown");
    }

    async fn more(&mut self) -> bool {
        matches!(within("bytes from weir", self.io.read_buf(&mut self.buffer)).await, Ok(1..))
    }

    /// Reads the head of the next answer; 100 Continue counts as one.
    pub(crate) async fn head(&mut self) -> Head {
        self.try_head().await.expect("an answer before the connection closes")
    }

    /// `None`: the connection closed first.
    pub(crate) async fn try_head(&mut self) -> Option<Head> {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at;
            }
            if !self.more().await {
                return None;
            }
        };
        let text = String::from_utf8(self.buffer.split_to(end).to_vec()).expect("a head in ASCII");
        self.buffer.advance(4);
        let mut lines = text.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().expect("a status");
        let headers = lines
            .map(|line| line.split_once(':').expect("name: value"))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let head = Head { status, headers };
        let chunked = head.get("transfer-encoding").is_some_and(|value| value == "chunked");
        let length = head.get("content-length").map(|value| value.parse().expect("a length"));
        assert!(!(chunked && length.is_some()), "never both framings (B257): {head:?}");
        self.left = match (chunked, length) {
            _ if status < 200 || status == 204 || status == 304 => Left::Over,
            (true, _) => Left::Chunked,
            (false, Some(length)) => Left::Length(length),
            (false, None) => Left::Close,
        };
        self.body.clear();
        self.arrivals.clear();
        self.ended = false;
        Some(head)
    }

    /// The next chunk of the body (or what one read brought); `None` when it is over, and then
    /// `ended` tells whether it ended well.
    pub(crate) async fn chunk(&mut self) -> Option<Bytes> {
        let chunk = match self.left {
            Left::Over => return None,
            Left::Chunked => self.next_chunk().await,
            Left::Length(0) => {
                self.ended = true;
                None
            }
            Left::Length(left) => self.some(left).await.inspect(|chunk| self.left = Left::Length(left - chunk.len())),
            Left::Close => {
                let some = self.some(usize::MAX).await;
                self.ended = some.is_none();
                some
            }
        };
        if let Some(chunk) = &chunk {
            self.arrivals.push((Instant::now(), chunk.len()));
            self.body.extend_from_slice(chunk);
        } else {
            self.left = Left::Over;
        }
        chunk
    }

    async fn some(&mut self, most: usize) -> Option<Bytes> {
        if self.buffer.is_empty() && !self.more().await {
            return None;
        }
        Some(self.buffer.split_to(most.min(self.buffer.len())).freeze())
    }

    async fn next_chunk(&mut self) -> Option<Bytes> {
        let end = loop {
            if let Some(at) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                break at;
            }
            if !self.more().await {
                return None;
            }
        };
        let size = std::str::from_utf8(&self.buffer[..end]).expect("a chunk size");
        let size = usize::from_str_radix(size, 16).expect("a chunk size");
        while self.buffer.len() < end + 2 + size + 2 {
            if !self.more().await {
                return None;
            }
        }
        self.buffer.advance(end + 2);
        let chunk = self.buffer.split_to(size).freeze();
        assert_eq!(&self.buffer[..2], b"\r\n", "a chunk ends with CRLF");
        self.buffer.advance(2);
        if size == 0 {
            self.ended = true;
            return None;
        }
        Some(chunk)
    }

    /// Reads until the body so far satisfies a condition; panics if it ends first.
    pub(crate) async fn read_until(&mut self, what: &str, holds: impl Fn(&[u8]) -> bool) {
        while !holds(&self.body) {
            assert!(self.chunk().await.is_some(), "{what} never came in {:?}", String::from_utf8_lossy(&self.body));
        }
    }

    /// Reads until these bytes are in the body.
    pub(crate) async fn read_past(&mut self, wanted: &str) {
        self.read_until(wanted, |body| contains(body, wanted.as_bytes())).await;
    }

    /// Reads the body to its end.
    pub(crate) async fn rest(&mut self) -> Bytes {
        while self.chunk().await.is_some() {}
        self.body.clone().freeze()
    }

    /// Reads one whole answer.
    pub(crate) async fn receive(&mut self) -> Received {
        let head = self.head().await;
        let body = self.rest().await;
        Received { head, body, ended: self.ended }
    }

    /// Whether the gateway closes the connection without another byte.
    pub(crate) async fn is_closed(&mut self) -> bool {
        self.buffer.is_empty() && !self.more().await
    }
}

pub(crate) fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    memchr::memmem::find(bytes, wanted).is_some()
}

/// A POST with the test key, more headers (an `authorization` replaces the key) and a length.
pub(crate) fn request(path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n", body.len());
    let given = |name: &str| headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
    if !given("content-type") {
        head += "content-type: application/json\r\n";
    }
    if !given("authorization") && !given("x-api-key") {
        head += &format!("authorization: Bearer {KEY}\r\n");
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    [head.as_bytes(), body].concat()
}

/// A GET without a key; `None` if nobody answers.
pub(crate) async fn get(address: SocketAddr, path: &str) -> Option<Received> {
    let socket = TcpStream::connect(address).await.ok()?;
    let mut client = Client::over(socket);
    client.try_send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")).await.ok()?;
    let head = client.try_head().await?;
    let body = client.rest().await;
    Some(Received { head, body, ended: client.ended })
}

impl Weir {
    /// One POST with the test key on a connection of its own.
    pub(crate) async fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Received {
        let mut client = Client::connect(self).await;
        client.post(path, body).await;
        client.receive().await
    }

    /// One POST with more headers.
    pub(crate) async fn post_with(&self, path: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Received {
        let mut client = Client::connect(self).await;
        let _ = client.try_send(request(path, headers, body.as_ref())).await;
        client.receive().await
    }

    /// One request of any method with the test key and without a body.
    pub(crate) async fn call(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Received {
        let mut client = Client::connect(self).await;
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        client.send(head + "\r\n").await;
        client.receive().await
    }
}
