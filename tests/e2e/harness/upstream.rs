//! An HTTP/1.1 upstream on plain sockets: every byte and every silence is the script's.

use super::pki::Pki;
use super::reply::{Framing, Reply, Step};
use super::{until, within};
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::server::TlsStream;

/// One request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct SeenRequest {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    /// Without chunk framing.
    pub(crate) body: Bytes,
    /// Which connection, counted from 0.
    pub(crate) connection: usize,
    /// When the other side closed the connection or reset the stream.
    pub(crate) closed: Option<Instant>,
    /// Whether the whole script was played.
    pub(crate) played: bool,
}

impl SeenRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("the upstream got JSON")
    }

    fn says(&self, what: &str) -> bool {
        self.headers.iter().any(|(_, value)| value.contains(what))
            || super::client::contains(&self.body, what.as_bytes())
    }
}

/// What an upstream saw and what it will do.
pub(crate) struct Seen {
    requests: Mutex<Vec<SeenRequest>>,
    connections: Mutex<usize>,
    queue: Mutex<VecDeque<Reply>>,
    default: Mutex<Reply>,
    /// What a request must contain, and what it gets then.
    rules: Mutex<Vec<(String, Reply)>>,
    written: std::sync::atomic::AtomicUsize,
}

impl Seen {
    pub(crate) fn new(default: Reply) -> Arc<Self> {
        Arc::new(Self {
            requests: Mutex::default(),
            connections: Mutex::default(),
            queue: Mutex::default(),
            default: Mutex::new(default),
            rules: Mutex::default(),
            written: std::sync::atomic::AtomicUsize::default(),
        })
    }

    pub(crate) fn connected(&self) -> usize {
        let mut connections = self.connections.lock().unwrap();
        *connections += 1;
        *connections - 1
    }

    /// Notes a request; says what to do with it and under which number it is kept.
    pub(crate) fn note(&self, request: SeenRequest) -> (usize, Reply) {
        let ruled =
            self.rules.lock().unwrap().iter().find(|(what, _)| request.says(what)).map(|(_, reply)| reply.clone());
        let mut requests = self.requests.lock().unwrap();
        requests.push(request);
        let queued = ruled.or_else(|| self.queue.lock().unwrap().pop_front());
        (requests.len() - 1, queued.unwrap_or_else(|| self.default.lock().unwrap().clone()))
    }

    pub(crate) fn closed(&self, at: usize) {
        self.requests.lock().unwrap()[at].closed.get_or_insert_with(Instant::now);
    }

    pub(crate) fn played(&self, at: usize) {
        self.requests.lock().unwrap()[at].played = true;
    }

    /// The next request that has no reply yet gets this one.
    pub(crate) fn push(&self, reply: Reply) {
        self.queue.lock().unwrap().push_back(reply);
    }

    /// Every request with this in its body or a header gets this reply, before all others.
    pub(crate) fn when(&self, what: &str, reply: Reply) {
        self.rules.lock().unwrap().push((what.into(), reply));
    }

    /// How many requests had this in their body or a header.
    pub(crate) fn asked(&self, what: &str) -> usize {
        self.requests.lock().unwrap().iter().filter(|request| request.says(what)).count()
    }

    /// Every request for which nothing is queued gets this one.
    pub(crate) fn set_default(&self, reply: Reply) {
        *self.default.lock().unwrap() = reply;
    }

    pub(crate) fn requests(&self) -> Vec<SeenRequest> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    /// Body bytes that could be written so far, over all requests.
    pub(crate) fn written(&self) -> usize {
        self.written.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub(crate) fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn connections(&self) -> usize {
        *self.connections.lock().unwrap()
    }

    /// Waits for request number `at`.
    pub(crate) async fn request(&self, at: usize) -> SeenRequest {
        until("the upstream's request", || self.count() > at).await;
        self.requests.lock().unwrap()[at].clone()
    }

    /// Waits until the other side has closed the connection (or stream) of request `at`.
    pub(crate) async fn gone(&self, at: usize) -> Instant {
        let look = || self.requests.lock().unwrap().get(at).and_then(|request| request.closed);
        until("the upstream connection to be closed", || look().is_some()).await;
        look().expect("just seen")
    }
}

/// The upstream; gone when dropped.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Seen>,
    tls: bool,
    task: JoinHandle<()>,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl std::ops::Deref for Upstream {
    type Target = Seen;

    fn deref(&self) -> &Seen {
        &self.seen
    }
}

impl Upstream {
    /// Answers every request with `default` unless something is pushed.
    pub(crate) async fn start(default: Reply) -> Self {
        Self::listen(default, None).await
    }

    /// The same behind TLS, HTTP/1.1 by ALPN.
    pub(crate) async fn start_tls(default: Reply, pki: &Pki) -> Self {
        Self::listen(default, Some(pki.acceptor(&[b"http/1.1"]))).await
    }

    /// The same for those only who show a certificate of this authority.
    pub(crate) async fn start_strict(default: Reply, pki: &Pki) -> Self {
        Self::listen(default, Some(pki.strict_acceptor())).await
    }

    async fn listen(default: Reply, tls: Option<tokio_rustls::TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let seen = Seen::new(default);
        let (shared, acceptor) = (Arc::clone(&seen), tls.clone());
        let task = tokio::spawn(async move {
            let mut tasks = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let (shared, acceptor) = (Arc::clone(&shared), acceptor.clone());
                tasks.spawn(async move {
                    socket.set_nodelay(true).expect("nodelay");
                    let connection = match acceptor {
                        None => Connection::Plain(socket),
                        Some(acceptor) => match acceptor.accept(socket).await {
                            Ok(tls) => Connection::Tls(Box::new(tls)),
                            Err(_) => return,
                        },
                    };
                    serve(connection, &shared).await;
                });
            }
        });
        Self { address, seen, tls: tls.is_some(), task }
    }

    /// For `base_url`.
    pub(crate) fn url(&self) -> String {
        let port = self.address.port();
        if self.tls { format!("https://localhost:{port}") } else { format!("http://127.0.0.1:{port}") }
    }
}

/// A socket with or without TLS.
enum Connection {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    /// Closing it now sends a reset.
    fn reset(self) {
        let socket = match &self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => tls.get_ref().0,
        };
        socket.set_zero_linger().expect("linger");
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}

/// How a script left its connection.
enum Left {
    Open,
    Finished,
    /// Closed at once; TLS without its close notify.
    Cut,
    Reset,
}

/// Serves the requests of one connection, one after the other.
async fn serve(connection: Connection, seen: &Seen) {
    let number = seen.connected();
    let (mut reader, mut writer) = tokio::io::split(connection);
    let mut buffer = BytesMut::new();
    let mut last = None;
    while let Some(request) = read_request(&mut reader, &mut buffer, number).await {
        let (at, reply) = seen.note(request);
        last = Some(at);
        let left = tokio::select! {
            left = play(&mut writer, &reply, seen) => left,
            () = gone(&mut reader, &mut buffer) => { seen.closed(at); return; }
        };
        match left {
            // A write failed: the other side is gone.
            Err(_) => {
                seen.closed(at);
                return;
            }
            Ok(Left::Open) => seen.played(at),
            Ok(Left::Finished) => {
                seen.played(at);
                let _ = writer.shutdown().await;
                gone(&mut reader, &mut buffer).await;
                seen.closed(at);
                return;
            }
            Ok(Left::Cut) => {
                seen.played(at);
                return;
            }
            Ok(Left::Reset) => {
                seen.played(at);
                reader.unsplit(writer).reset();
                return;
            }
        }
    }
    if let Some(at) = last {
        seen.closed(at);
    }
}

/// Returns when the other side has closed.
async fn gone(reader: &mut ReadHalf<Connection>, buffer: &mut BytesMut) {
    while matches!(reader.read_buf(buffer).await, Ok(1..)) {}
}

async fn read_request(
    reader: &mut ReadHalf<Connection>,
    buffer: &mut BytesMut,
    connection: usize,
) -> Option<SeenRequest> {
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        if !matches!(reader.read_buf(buffer).await, Ok(1..)) {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&buffer.split_to(end)).into_owned();
    buffer.advance(4);
    let mut lines = head.split("\r\n");
    let mut start = lines.next()?.split(' ');
    let (method, path) = (start.next()?.to_owned(), start.next()?.to_owned());
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let value = |wanted: &str| headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
    let body = if value("transfer-encoding").is_some_and(|value| value.contains("chunked")) {
        read_chunked(reader, buffer).await?
    } else {
        let length = value("content-length").map_or(0, |value| value.parse().expect("a length"));
        read_exactly(reader, buffer, length).await?
    };
    Some(SeenRequest { method, path, headers, body, connection, closed: None, played: false })
}

async fn read_exactly(reader: &mut ReadHalf<Connection>, buffer: &mut BytesMut, length: usize) -> Option<Bytes> {
    buffer.reserve(length.saturating_sub(buffer.len()));
    while buffer.len() < length {
        if !matches!(reader.read_buf(buffer).await, Ok(1..)) {
            return None;
        }
    }
    Some(buffer.split_to(length).freeze())
}

async fn read_chunked(reader: &mut ReadHalf<Connection>, buffer: &mut BytesMut) -> Option<Bytes> {
    let mut body = BytesMut::new();
    loop {
        let end = loop {
            if let Some(at) = buffer.windows(2).position(|two| two == b"\r\n") {
                break at;
            }
            if !matches!(reader.read_buf(buffer).await, Ok(1..)) {
                return None;
            }
        };
        let line = buffer.split_to(end + 2);
        let size = String::from_utf8_lossy(&line);
        let size = usize::from_str_radix(size.trim().split(';').next()?, 16).expect("a chunk size");
        let chunk = read_exactly(reader, buffer, size + 2).await?;
        assert_eq!(&chunk[size..], b"\r\n", "a chunk ends with CRLF");
        if size == 0 {
            return Some(body.freeze());
        }
        body.extend_from_slice(&chunk[..size]);
    }
}

async fn play(writer: &mut WriteHalf<Connection>, reply: &Reply, seen: &Seen) -> io::Result<Left> {
    for step in &reply.before {
        if let Some(left) = act(step).await {
            return Ok(left);
        }
    }
    let mut begin = if reply.status == 0 { Vec::new() } else { head(reply).into_bytes() };
    for step in &reply.steps {
        // A write goes out together with the head before it: no stall of this process can come between the two.
        let bytes = match step {
            Step::Write(bytes) => framed(bytes, reply.framing),
            Step::Raw(bytes) => bytes.to_vec(),
            _ => Vec::new(),
        };
        begin.extend_from_slice(&bytes);
        writer.write_all(&begin).await?;
        writer.flush().await?;
        begin.clear();
        if let Some(left) = act(step).await {
            return Ok(left);
        }
        if let Step::Write(bytes) | Step::Raw(bytes) = step {
            seen.wrote(bytes.len());
        }
    }
    if reply.framing == Framing::Chunked {
        begin.extend_from_slice(b"0\r\n\r\n");
    }
    writer.write_all(&begin).await?;
    writer.flush().await?;
    Ok(if reply.framing == Framing::Close { Left::Finished } else { Left::Open })
}

fn head(reply: &Reply) -> String {
    let mut head = format!("HTTP/1.1 {} Scripted\r\n", reply.status);
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    match reply.framing {
        Framing::Chunked => head += "transfer-encoding: chunked\r\n",
        Framing::Length(length) => head += &format!("content-length: {length}\r\n"),
        Framing::Close => head += "connection: close\r\n",
    }
    head + "\r\n"
}

/// What one write of a body looks like on the wire.
fn framed(bytes: &Bytes, framing: Framing) -> Vec<u8> {
    if framing != Framing::Chunked || bytes.is_empty() {
        return bytes.to_vec();
    }
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// Everything of a step that is no writing.
async fn act(step: &Step) -> Option<Left> {
    match step {
        Step::Write(_) | Step::Raw(_) => tokio::task::yield_now().await,
        Step::Pause(time) => tokio::time::sleep(*time).await,
        Step::Wait(signal) => within("a signal of the test", signal.wait()).await,
        Step::Fin => return Some(Left::Finished),
        Step::Cut => return Some(Left::Cut),
        Step::Rst | Step::Reset(_) => return Some(Left::Reset),
        Step::GoAway => {}
        Step::Hang => std::future::pending().await,
    }
    None
}
