//! The scripted upstream, a process of its own: HTTP/1.1 and HTTP/2, with and without TLS.
//!
//! It writes by its clock and never waits for who reads, so that a proxy that stalls shows its
//! whole stall: no coordinated omission.

use crate::wire::{CLOSING, Io, OPENING, REPLY, Script, event, now_nanos, read_head};
use bytes::Bytes;
use memchr::memmem;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, sleep_until};

/// One write of a burst.
const BURST_BYTES: usize = 64 * 1024;
/// How HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0";

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// Serves for ever; says its two ports (plain, TLS) on standard output.
pub(crate) async fn serve(folder: &Path) {
    let plain = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let tls = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let ports = (plain.local_addr().expect("bound").port(), tls.local_addr().expect("bound").port());
    println!("{} {}", ports.0, ports.1);
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server_tls(folder)));
    tokio::spawn(async move {
        loop {
            let Ok((socket, _)) = tls.accept().await else { continue };
            let acceptor = acceptor.clone();
            let _ = socket.set_nodelay(true);
            tokio::spawn(async move {
                let Ok(socket) = acceptor.accept(socket).await else { return };
                let is_h2 = socket.get_ref().1.alpn_protocol() == Some(b"h2");
                connection(Box::new(socket), is_h2).await;
            });
        }
    });
    loop {
        let Ok((socket, _)) = plain.accept().await else { continue };
        let _ = socket.set_nodelay(true);
        tokio::spawn(async move {
            let is_h2 = begins_as_h2(&socket).await;
            connection(Box::new(socket), is_h2).await;
        });
    }
}

fn server_tls(folder: &Path) -> rustls::ServerConfig {
    let certs = CertificateDer::pem_file_iter(folder.join("cert.pem")).expect("made before");
    let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).expect("made before");
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(certs.filter_map(Result::ok).collect(), key)
        .expect("a pair");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

async fn begins_as_h2(socket: &TcpStream) -> bool {
    let mut first = [0; 14];
    let mut seen = 0;
    while seen < first.len() {
        match socket.peek(&mut first).await {
            Ok(0) | Err(_) => return false,
            Ok(count) if first[..count] != PREFACE[..count] => return false,
            Ok(count) => seen = count,
        }
    }
    true
}

async fn connection(io: Box<dyn Io>, is_h2: bool) {
    if is_h2 {
        two(io).await;
    } else {
        let _ = one(io).await;
    }
}

/// The script in a request's body.
fn script(body: &[u8]) -> Script {
    let Some(at) = memmem::find(body, b"\"script\":") else { return Script::default() };
    let mut read = serde_json::Deserializer::from_slice(&body[at + 9..]).into_iter::<Script>();
    read.next().and_then(Result::ok).unwrap_or_default()
}

async fn one(mut io: Box<dyn Io>) -> std::io::Result<()> {
    let mut rest = Vec::with_capacity(2048);
    loop {
        let Some(head) = read_head(&mut *io, rest).await? else { return Ok(()) };
        let mut framing = crate::wire::Framing::of(&head);
        let mut body = Vec::new();
        let has_body =
            head.length() != Some(0) && (head.length().is_some() || head.field("transfer-encoding").is_some());
        if has_body && !framing.read(&head.rest, |bytes| body.extend_from_slice(bytes)) {
            let mut buffer = vec![0; 64 * 1024];
            loop {
                let count = io.read(&mut buffer).await?;
                if count == 0 {
                    return Ok(());
                }
                if framing.read(&buffer[..count], |bytes| body.extend_from_slice(bytes)) {
                    break;
                }
            }
        }
        let script = script(&body);
        drop(body);
        sleep(Duration::from_millis(script.first_ms)).await;
        let mut out = One { io: &mut *io };
        if script.json {
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", REPLY.len());
            out.raw(&[head.as_bytes(), REPLY].concat()).await?;
        } else {
            out.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
                .await?;
            play(&script, &mut Out::One(&mut out)).await?;
            out.raw(b"0\r\n\r\n").await?;
        }
        rest = Vec::with_capacity(2048);
    }
}

struct One<'a> {
    io: &'a mut dyn Io,
}

impl One<'_> {
    async fn raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.io.write_all(bytes).await?;
        self.io.flush().await
    }
}

/// Where a body goes.
enum Out<'a, 'b> {
    One(&'a mut One<'b>),
    Two(&'a mut h2::SendStream<Bytes>),
}

impl Out<'_, '_> {
    async fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::One(one) => {
                let mut frame = format!("{:x}\r\n", bytes.len()).into_bytes();
                frame.extend_from_slice(bytes);
                frame.extend_from_slice(b"\r\n");
                one.raw(&frame).await
            }
            Self::Two(stream) => {
                let mut rest = Bytes::copy_from_slice(bytes);
                while !rest.is_empty() {
                    stream.reserve_capacity(rest.len());
                    let room = std::future::poll_fn(|context| stream.poll_capacity(context)).await;
                    let room = room.ok_or(std::io::ErrorKind::BrokenPipe)?.map_err(std::io::Error::other)?;
                    let piece = rest.split_to(room.min(rest.len()));
                    stream.send_data(piece, false).map_err(std::io::Error::other)?;
                }
                Ok(())
            }
        }
    }

    /// Until the reader leaves.
    async fn hold(&mut self) -> std::io::Result<()> {
        match self {
            Self::One(one) => {
                let mut byte = [0];
                let _reset_or_end = one.io.read(&mut byte).await?;
            }
            Self::Two(stream) => {
                let _ = std::future::poll_fn(|context| stream.poll_reset(context)).await;
            }
        }
        Err(std::io::ErrorKind::BrokenPipe.into())
    }
}

async fn play(script: &Script, out: &mut Out<'_, '_>) -> std::io::Result<()> {
    out.send(OPENING).await?;
    let mut buffer = Vec::with_capacity(script.text + 512);
    if script.gap_us == 0 {
        for _ in 0..script.events {
            event(&mut buffer, now_nanos(), script.text);
            if buffer.len() >= BURST_BYTES || script.hold {
                for piece in buffer.chunks(if script.piece == 0 { buffer.len() } else { script.piece }) {
                    out.send(piece).await?;
                }
                buffer.clear();
            }
        }
        if !buffer.is_empty() {
            out.send(&buffer).await?;
        }
    } else {
        let gap = Duration::from_micros(script.gap_us);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // The golden ratio spreads any number of streams evenly.
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let share = if script.spread { (number as f64 * 0.618_033_988_75).fract() } else { 0.0 };
        let mut due = Instant::now() + gap.mul_f64(share);
        for _ in 0..script.events {
            sleep_until(due).await;
            event(&mut buffer, now_nanos(), script.text);
            out.send(&buffer).await?;
            buffer.clear();
            due += gap;
        }
    }
    if script.hold {
        return out.hold().await;
    }
    out.send(CLOSING).await
}

async fn two(io: Box<dyn Io>) {
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(1 << 20).initial_connection_window_size(1 << 24).max_concurrent_streams(1000);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(io).await else { return };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        tokio::spawn(async move {
            let mut body = Vec::new();
            let mut incoming = request.into_body();
            while let Some(Ok(bytes)) = incoming.data().await {
                let _ = incoming.flow_control().release_capacity(bytes.len());
                body.extend_from_slice(&bytes);
            }
            let script = script(&body);
            sleep(Duration::from_millis(script.first_ms)).await;
            let kind = if script.json { "application/json" } else { "text/event-stream" };
            let head = http::Response::builder().header("content-type", kind).body(()).expect("a head");
            let Ok(mut stream) = respond.send_response(head, false) else { return };
            let mut out = Out::Two(&mut stream);
            let played = if script.json { out.send(REPLY).await } else { play(&script, &mut out).await };
            if played.is_ok() {
                let _ = stream.send_data(Bytes::new(), true);
            }
        });
    }
}
