//! HTTP/2 on both sides: an upstream that plays the same scripts, and a client.

use super::client::Head;
use super::pki::Pki;
use super::reply::{Reply, Step};
use super::upstream::{Seen, SeenRequest};
use super::weir::{KEY, Weir};
use super::within;
use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

/// An HTTP/2 upstream, by prior knowledge or behind TLS with ALPN; gone when dropped.
pub(crate) struct H2Upstream {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Seen>,
    /// Connections with a lower number have gone mute.
    mute: Arc<AtomicUsize>,
    tls: bool,
    task: JoinHandle<()>,
}

impl Drop for H2Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl std::ops::Deref for H2Upstream {
    type Target = Seen;

    fn deref(&self) -> &Seen {
        &self.seen
    }
}

impl H2Upstream {
    /// Without TLS: the provider needs `http2: prior_knowledge`.
    pub(crate) async fn start(default: Reply) -> Self {
        Self::listen(default, None).await
    }

    /// With TLS: HTTP/2 by ALPN.
    pub(crate) async fn start_tls(default: Reply, pki: &Pki) -> Self {
        Self::listen(default, Some(pki.acceptor(&[b"h2"]))).await
    }

    async fn listen(default: Reply, acceptor: Option<tokio_rustls::TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let seen = Seen::new(default);
        let tls = acceptor.is_some();
        let mute = Arc::new(AtomicUsize::new(0));
        let (shared, muted) = (Arc::clone(&seen), Arc::clone(&mute));
        let task = tokio::spawn(async move {
            let mut tasks = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                socket.set_nodelay(true).expect("nodelay");
                let (shared, acceptor, muted) = (Arc::clone(&shared), acceptor.clone(), Arc::clone(&muted));
                tasks.spawn(async move {
                    match acceptor {
                        None => serve(socket, shared, muted).await,
                        Some(acceptor) => {
                            if let Ok(tls) = acceptor.accept(socket).await {
                                serve(tls, shared, muted).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, seen, mute, tls, task }
    }

    /// All connections so far read and write nothing any more but stay open: packets are lost.
    pub(crate) fn go_mute(&self) {
        self.mute.store(self.seen.connections(), Ordering::Relaxed);
    }

    /// For `base_url`.
    pub(crate) fn url(&self) -> String {
        let port = self.address.port();
        if self.tls { format!("https://localhost:{port}") } else { format!("http://127.0.0.1:{port}") }
    }
}

/// What a script can do to the whole connection of its stream.
#[derive(Clone, Default)]
struct Line {
    goaway: Arc<Notify>,
    cut: Arc<Notify>,
    /// Bytes that are no HTTP/2 and go out before the next write.
    garbage: Arc<Mutex<Vec<u8>>>,
}

/// A connection that can be spoilt.
struct Wire<S> {
    io: S,
    number: usize,
    muted: Arc<AtomicUsize>,
    garbage: Arc<Mutex<Vec<u8>>>,
}

impl<S> Wire<S> {
    fn mute(&self) -> bool {
        self.number < self.muted.load(Ordering::Relaxed)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.mute() { Poll::Pending } else { Pin::new(&mut self.get_mut().io).poll_read(cx, buf) }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.mute() {
            return Poll::Pending;
        }
        let mut garbage = this.garbage.lock().unwrap();
        while !garbage.is_empty() {
            let wrote = ready!(Pin::new(&mut this.io).poll_write(cx, &garbage))?;
            garbage.drain(..wrote);
        }
        drop(garbage);
        Pin::new(&mut this.io).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

async fn serve(io: impl AsyncRead + AsyncWrite + Unpin, seen: Arc<Seen>, muted: Arc<AtomicUsize>) {
    let number = seen.connected();
    let line = Line::default();
    let wire = Wire { io, number, muted, garbage: Arc::clone(&line.garbage) };
    let Ok(mut connection) = h2::server::handshake(wire).await else { return };
    let mut tasks = JoinSet::new();
    loop {
        let next = tokio::select! {
            next = connection.accept() => next,
            () = line.goaway.notified() => { connection.graceful_shutdown(); continue; }
            () = line.cut.notified() => return,
        };
        let Some(Ok((request, respond))) = next else { return };
        tasks.spawn(stream(request, respond, number, Arc::clone(&seen), line.clone()));
    }
}

async fn stream(
    request: http::Request<RecvStream>,
    respond: SendResponse<Bytes>,
    connection: usize,
    seen: Arc<Seen>,
    line: Line,
) {
    let (parts, mut body) = request.into_parts();
    let mut whole = BytesMut::new();
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
        whole.extend_from_slice(&data);
    }
    let headers = parts
        .headers
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    let (at, reply) = seen.note(SeenRequest {
        method: parts.method.to_string(),
        path: parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
        headers,
        body: whole.freeze(),
        connection,
        closed: None,
        played: false,
    });
    match play(respond, &reply, &line).await {
        Ok(()) => seen.played(at),
        Err(Gone) => seen.closed(at),
    }
}

/// The other side has reset the stream or closed the connection.
struct Gone;

async fn play(mut respond: SendResponse<Bytes>, reply: &Reply, line: &Line) -> Result<(), Gone> {
    for step in &reply.before {
        match step {
            Step::Pause(time) => tokio::select! {
                () = tokio::time::sleep(*time) => {}
                _ = std::future::poll_fn(|cx| respond.poll_reset(cx)) => return Err(Gone),
            },
            Step::Wait(signal) => tokio::select! {
                () = signal.wait() => {}
                _ = std::future::poll_fn(|cx| respond.poll_reset(cx)) => return Err(Gone),
            },
            other => panic!("{other:?} before the head is not for HTTP/2"),
        }
    }
    if reply.status == 0 {
        for step in &reply.steps {
            match step {
                Step::Rst | Step::Fin => respond.send_reset(Reason::INTERNAL_ERROR),
                Step::Reset(code) => respond.send_reset(Reason::from(*code)),
                Step::GoAway => line.goaway.notify_one(),
                Step::Hang => {
                    let _ = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
                    return Err(Gone);
                }
                Step::Cut => line.cut.notify_one(),
                Step::Raw(bytes) => {
                    line.garbage.lock().unwrap().extend_from_slice(bytes);
                    respond.send_reset(Reason::INTERNAL_ERROR);
                }
                other => panic!("{other:?} without a head is not for HTTP/2"),
            }
        }
        return Ok(());
    }
    let mut head = http::Response::builder().status(reply.status);
    for (name, value) in &reply.headers {
        head = head.header(name, value);
    }
    let head = head.body(()).expect("a head");
    let mut send = respond.send_response(head, false).map_err(|_| Gone)?;
    for step in &reply.steps {
        match step {
            Step::Write(bytes) => write(&mut send, bytes.clone()).await?,
            // Anything to be written takes it along.
            Step::Raw(bytes) => {
                line.garbage.lock().unwrap().extend_from_slice(bytes);
                write(&mut send, Bytes::from_static(b"\n")).await?;
            }
            Step::Cut => {
                line.cut.notify_one();
                return Ok(());
            }
            Step::Pause(time) => tokio::select! {
                () = tokio::time::sleep(*time) => {}
                _ = std::future::poll_fn(|cx| send.poll_reset(cx)) => return Err(Gone),
            },
            Step::Wait(signal) => tokio::select! {
                () = signal.wait() => {}
                _ = std::future::poll_fn(|cx| send.poll_reset(cx)) => return Err(Gone),
            },
            Step::Fin => break,
            Step::Rst => {
                send.send_reset(Reason::INTERNAL_ERROR);
                return Ok(());
            }
            Step::Reset(code) => {
                send.send_reset(Reason::from(*code));
                return Ok(());
            }
            Step::GoAway => line.goaway.notify_one(),
            Step::Hang => {
                let _ = std::future::poll_fn(|cx| send.poll_reset(cx)).await;
                return Err(Gone);
            }
        }
    }
    send.send_data(Bytes::new(), true).map_err(|_| Gone)
}

async fn write(send: &mut SendStream<Bytes>, mut bytes: Bytes) -> Result<(), Gone> {
    if bytes.is_empty() {
        return send.send_data(bytes, false).map_err(|_| Gone);
    }
    while !bytes.is_empty() {
        send.reserve_capacity(bytes.len());
        let Some(Ok(capacity)) = std::future::poll_fn(|cx| send.poll_capacity(cx)).await else { return Err(Gone) };
        let piece = bytes.split_to(capacity.min(bytes.len()));
        send.send_data(piece, false).map_err(|_| Gone)?;
    }
    // Let the connection's task send it before the next step.
    tokio::task::yield_now().await;
    Ok(())
}

/// One HTTP/2 connection to the gateway.
pub(crate) struct H2Client {
    send: h2::client::SendRequest<Bytes>,
    task: Arc<Running>,
}

/// The connection's task; ends with the client and all its answers.
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// One answer in arrival.
pub(crate) struct H2Stream {
    pub(crate) head: Head,
    body: RecvStream,
    /// For resetting the request.
    sender: SendStream<Bytes>,
    pub(crate) received: BytesMut,
    /// Why it broke, if it did.
    pub(crate) error: Option<h2::Error>,
    /// Keeps the connection while the answer is read.
    _task: Arc<Running>,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct H2Received {
    pub(crate) head: Head,
    pub(crate) body: Bytes,
    pub(crate) ended: bool,
}

impl H2Client {
    /// By prior knowledge.
    pub(crate) async fn connect(weir: &Weir) -> Self {
        let socket = within("a connection", TcpStream::connect(weir.address)).await.expect("a connection");
        Self::over(socket).await
    }

    /// By prior knowledge, taking this many bytes of each stream at a time.
    pub(crate) async fn with_window(weir: &Weir, bytes: u32) -> Self {
        let socket = within("a connection", TcpStream::connect(weir.address)).await.expect("a connection");
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(bytes);
        let (send, connection) = within("an h2 handshake", builder.handshake(socket)).await.expect("h2");
        let task = tokio::spawn(async move {
            let _ = connection.await;
        });
        Self { send, task: Arc::new(Running(task)) }
    }

    /// By ALPN.
    pub(crate) async fn connect_tls(weir: &Weir, pki: &Pki) -> Self {
        let socket = within("a connection", TcpStream::connect(weir.address)).await.expect("a connection");
        let name = "localhost".try_into().expect("a name");
        let tls = within("TLS", pki.connector(&[b"h2"]).connect(name, socket)).await.expect("TLS");
        assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]), "the listener offers h2");
        Self::over(tls).await
    }

    async fn over(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (send, connection) = within("an h2 handshake", h2::client::handshake(io)).await.expect("h2");
        let task = tokio::spawn(async move {
            let _ = connection.await;
        });
        Self { send, task: Arc::new(Running(task)) }
    }

    /// Sends a POST with the test key and waits for the head of its answer.
    pub(crate) async fn open(&self, path: &str, body: impl AsRef<[u8]>) -> H2Stream {
        let (response, sender) = self.start(path, body).await;
        let (parts, body) = within("a head", response).await.expect("a head").into_parts();
        let headers = parts
            .headers
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect();
        let head = Head { status: parts.status.as_u16(), headers };
        H2Stream { head, body, sender, received: BytesMut::new(), error: None, _task: Arc::clone(&self.task) }
    }

    /// Sends a POST and waits for nothing.
    pub(crate) async fn start(
        &self,
        path: &str,
        body: impl AsRef<[u8]>,
    ) -> (h2::client::ResponseFuture, SendStream<Bytes>) {
        self.try_start(path, body).await.expect("an h2 connection")
    }

    /// The same; `None` when the gateway has ended the connection.
    pub(crate) async fn try_start(
        &self,
        path: &str,
        body: impl AsRef<[u8]>,
    ) -> Option<(h2::client::ResponseFuture, SendStream<Bytes>)> {
        let mut send = within("an h2 connection", self.send.clone().ready()).await.ok()?;
        let request = http::Request::builder()
            .method("POST")
            .uri(format!("http://weir{path}"))
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {KEY}"))
            .body(())
            .expect("a request");
        let (response, mut sender) = send.send_request(request, false).ok()?;
        // One frame: bodies of HTTP/2 tests fit the window.
        sender.send_data(Bytes::copy_from_slice(body.as_ref()), true).ok()?;
        Some((response, sender))
    }

    /// Waits until the connection takes no new stream: GOAWAY has come.
    pub(crate) async fn is_told_to_leave(&self) {
        within("GOAWAY", async {
            while self.send.clone().ready().await.is_ok() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// One whole answer.
    pub(crate) async fn post(&self, path: &str, body: impl AsRef<[u8]>) -> H2Received {
        let mut stream = self.open(path, body).await;
        stream.rest().await;
        H2Received { head: stream.head.clone(), body: stream.received.freeze(), ended: stream.error.is_none() }
    }
}

impl H2Stream {
    /// The next DATA frame; `None` at the end, and then `error` tells whether it ended well.
    pub(crate) async fn chunk(&mut self) -> Option<Bytes> {
        match within("a DATA frame", self.body.data()).await? {
            Ok(data) => {
                let _ = self.body.flow_control().release_capacity(data.len());
                self.received.extend_from_slice(&data);
                Some(data)
            }
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }

    pub(crate) async fn read_until(&mut self, what: &str, holds: impl Fn(&[u8]) -> bool) {
        while !holds(&self.received) {
            assert!(self.chunk().await.is_some(), "{what} never came in {:?}", self.received);
        }
    }

    pub(crate) async fn rest(&mut self) {
        while self.chunk().await.is_some() {}
    }

    /// Cancels the request.
    pub(crate) fn cancel(&mut self) {
        self.sender.send_reset(Reason::CANCEL);
    }
}
