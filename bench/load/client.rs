//! The load generator, a process of its own: opens streams by its clock, reads the stamps.
//!
//! A request that should have begun at a moment counts from that moment, however late its turn came.

use crate::process::Cpu;
use crate::wire::{Framing, Io, Script, Stamps, now_nanos, read_head};
use bytes::Bytes;
use h2::client::SendRequest;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until};

/// What is sent as the key; every contender but Weir ignores it.
pub(crate) const KEY: &str = "weir-bench-key";
/// Streams on one HTTP/2 connection.
const STREAMS_PER_H2: usize = 25;
/// Where the number of connections matters and not their rate, so many are opened within [`OPENING`].
const OPENING_AT_ONCE: usize = 100;
const OPENING: Duration = Duration::from_millis(50);

/// What to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) kind: Kind,
    pub(crate) port: u16,
    pub(crate) tls: bool,
    pub(crate) h2: bool,
    pub(crate) folder: PathBuf,
    pub(crate) model: String,
    pub(crate) script: Script,
    /// Whose processor time is measured.
    pub(crate) pids: Vec<u32>,
    /// Bytes of ballast in the request's body.
    pub(crate) body: usize,
}

/// How requests come.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// So many streams at once; measured from the moment that all have begun, for so long.
    Streams { count: usize, seconds: f64 },
    /// So many streams are opened and held until standard input says so; says `open` once they are.
    Hold { count: usize },
    /// So many requests, one after the other on each of so many kept connections.
    Closed { connections: usize, requests: usize },
    /// So many requests a second on kept connections.
    Rate { per_second: f64, seconds: f64 },
    /// So many new connections, evenly within so many seconds.
    Storm { count: usize, seconds: f64 },
    /// New connections at a rate; every third client leaves in the middle.
    Churn { per_second: f64, seconds: f64 },
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Microseconds from the upstream's stamp to here, as evenly spread quantiles.
    pub(crate) latency: Vec<f64>,
    /// Microseconds from when a request was due to its first event (or its whole reply).
    pub(crate) ttft: Vec<f64>,
    pub(crate) events: u64,
    pub(crate) bytes: u64,
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    /// Processor seconds of `pids` while it was measured.
    pub(crate) cpu: f64,
    pub(crate) seconds: f64,
}

/// What streams report to.
#[derive(Default)]
struct Board {
    latency: Vec<u64>,
    ttft: Vec<u64>,
    events: u64,
    bytes: u64,
    requests: u64,
    errors: u64,
    begun: usize,
    /// Only what comes while this is set counts.
    counts: bool,
}

#[derive(Clone)]
struct Shared {
    load: Arc<Load>,
    board: Arc<Mutex<Board>>,
    body: Bytes,
    tls: Option<tokio_rustls::TlsConnector>,
}

/// One way to the gateway.
enum Link {
    One(Box<dyn Io>),
    Two(SendRequest<Bytes>),
}

/// Does it; the outcome goes to standard output.
pub(crate) async fn run(load: Load) -> Outcome {
    let shared = Shared::new(load);
    let kind = shared.load.kind.clone();
    shared.board(|board| board.counts = !matches!(kind, Kind::Streams { .. }));
    let cpu = Cpu::of(&shared.load.pids);
    let began = Instant::now();
    match kind {
        Kind::Streams { count, seconds } => return streams(&shared, count, seconds).await,
        Kind::Hold { count } => hold(&shared, count).await,
        Kind::Closed { connections, requests } => closed(&shared, connections, requests).await,
        Kind::Rate { per_second, seconds } => rate(&shared, per_second, seconds).await,
        Kind::Storm { count, seconds } => storm(&shared, count, seconds).await,
        Kind::Churn { per_second, seconds } => churn(&shared, per_second, seconds).await,
    }
    shared.outcome(cpu.since(), began.elapsed())
}

impl Shared {
    fn new(load: Load) -> Self {
        let mut body = serde_json::json!({
            "model": load.model, "stream": !load.script.json, "script": load.script,
            "messages": [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "Say hello, please."}],
        });
        if load.body > 0 {
            body["ballast"] = "A".repeat(load.body).into();
        }
        let tls = load.tls.then(|| {
            let mut roots = rustls::RootCertStore::empty();
            let certs = CertificateDer::pem_file_iter(load.folder.join("cert.pem")).expect("made before");
            roots.add_parsable_certificates(certs.filter_map(Result::ok));
            let mut config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
            config.alpn_protocols = vec![if load.h2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
            tokio_rustls::TlsConnector::from(Arc::new(config))
        });
        Self { load: Arc::new(load), board: Arc::default(), body: Bytes::from(body.to_string()), tls }
    }

    fn board<T>(&self, change: impl FnOnce(&mut Board) -> T) -> T {
        change(&mut self.board.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn outcome(&self, cpu: f64, took: Duration) -> Outcome {
        self.board(|board| Outcome {
            latency: quantiles(&mut board.latency),
            ttft: quantiles(&mut board.ttft),
            events: board.events,
            bytes: board.bytes,
            requests: board.requests,
            errors: board.errors,
            cpu,
            seconds: took.as_secs_f64(),
        })
    }

    async fn link(&self) -> std::io::Result<Link> {
        let socket = TcpStream::connect(("127.0.0.1", self.load.port)).await?;
        socket.set_nodelay(true)?;
        let io: Box<dyn Io> = match &self.tls {
            Some(tls) => Box::new(tls.connect(ServerName::try_from("localhost").expect("a name"), socket).await?),
            None => Box::new(socket),
        };
        if !self.load.h2 {
            return Ok(Link::One(io));
        }
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(1 << 20).initial_connection_window_size(1 << 24);
        let (send, connection) = builder.handshake::<_, Bytes>(io).await.map_err(std::io::Error::other)?;
        tokio::spawn(connection);
        Ok(Link::Two(send))
    }

    /// One request; `due`: when it should have begun. Answers whether it came to its end.
    async fn exchange(&self, link: &mut Link, due: u64, leave_after: Option<u64>) -> std::io::Result<()> {
        let mut reading = Reading { shared: self, stamps: Stamps::default(), due, events: 0 };
        match link {
            Link::One(io) => {
                let head = format!(
                    "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\nuser-agent: bench\r\ncontent-length: {}\r\n\r\n",
                    self.body.len()
                );
                io.write_all(&[head.as_bytes(), &self.body].concat()).await?;
                io.flush().await?;
                let head = read_head(&mut **io, Vec::with_capacity(1024)).await?;
                let head = head.ok_or(std::io::ErrorKind::UnexpectedEof)?;
                if head.status() != 200 {
                    return Err(std::io::Error::other(format!("status {}", head.status())));
                }
                let mut framing = Framing::of(&head);
                let mut ended = framing.read(&head.rest, |bytes| reading.body(bytes));
                let mut buffer = vec![0; if self.load.script.hold { 1024 } else { 64 * 1024 }];
                while !ended && leave_after.is_none_or(|events| reading.events < events) {
                    let count = io.read(&mut buffer).await?;
                    if count == 0 {
                        return Err(std::io::ErrorKind::UnexpectedEof.into());
                    }
                    ended = framing.read(&buffer[..count], |bytes| reading.body(bytes));
                }
            }
            Link::Two(send) => {
                let mut ready = send.clone().ready().await.map_err(std::io::Error::other)?;
                let scheme = if self.load.tls { "https" } else { "http" };
                let request = http::Request::post(format!("{scheme}://localhost/v1/chat/completions"))
                    .header("authorization", format!("Bearer {KEY}"))
                    .header("content-type", "application/json")
                    .body(())
                    .expect("a request");
                let (answer, mut body) = ready.send_request(request, false).map_err(std::io::Error::other)?;
                body.send_data(self.body.clone(), true).map_err(std::io::Error::other)?;
                let answer = answer.await.map_err(std::io::Error::other)?;
                if answer.status() != 200 {
                    return Err(std::io::Error::other(format!("status {}", answer.status())));
                }
                let mut incoming = answer.into_body();
                while let Some(bytes) = incoming.data().await {
                    let bytes = bytes.map_err(std::io::Error::other)?;
                    let _ = incoming.flow_control().release_capacity(bytes.len());
                    reading.body(&bytes);
                }
            }
        }
        if self.load.script.json {
            reading.first();
        }
        self.board(|board| board.requests += 1);
        Ok(())
    }

    fn failed(&self, error: &std::io::Error) {
        self.board(|board| {
            if board.errors == 0 {
                eprintln!("load: {error}");
            }
            board.errors += 1;
        });
    }
}

/// A body as it comes.
struct Reading<'a> {
    shared: &'a Shared,
    stamps: Stamps,
    due: u64,
    events: u64,
}

impl Reading<'_> {
    fn body(&mut self, bytes: &[u8]) {
        let now = now_nanos();
        let is_first = self.events == 0;
        let (stamps, events) = (&mut self.stamps, &mut self.events);
        self.shared.board(|board| {
            stamps.read(bytes, |stamp| {
                *events += 1;
                if board.counts {
                    board.events += 1;
                    board.latency.push(now.saturating_sub(stamp));
                }
            });
            if board.counts {
                board.bytes += bytes.len() as u64;
            }
        });
        if is_first && self.events > 0 {
            self.first();
        }
    }

    fn first(&self) {
        let took = now_nanos().saturating_sub(self.due);
        self.shared.board(|board| {
            board.begun += 1;
            board.ttft.push(took);
        });
    }
}

/// At most a thousand, evenly spread, in microseconds.
#[expect(clippy::cast_precision_loss, reason = "microseconds for people")]
fn quantiles(nanos: &mut [u64]) -> Vec<f64> {
    const KEPT: usize = 1000;
    nanos.sort_unstable();
    let micros = |nanos: &u64| *nanos as f64 / 1e3;
    if nanos.len() <= KEPT {
        return nanos.iter().map(micros).collect();
    }
    (0..KEPT).filter_map(|at| nanos.get((at * 2 + 1) * nanos.len() / (KEPT * 2))).map(micros).collect()
}

async fn until(mut reached: impl FnMut() -> bool, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    while !reached() {
        if Instant::now() > end {
            return false;
        }
        sleep(Duration::from_millis(5)).await;
    }
    true
}

/// Links for `count` streams at once.
async fn links(shared: &Shared, count: usize) -> Vec<Link> {
    let mut links = Vec::new();
    let connections = if shared.load.h2 { count.div_ceil(STREAMS_PER_H2) } else { count };
    for _ in 0..connections {
        match shared.link().await {
            Ok(link) => links.push(link),
            Err(error) => shared.failed(&error),
        }
    }
    if let (true, Some(Link::Two(_))) = (shared.load.h2, links.first()) {
        let sends: Vec<_> =
            links.into_iter().map(|link| if let Link::Two(send) = link { send } else { unreachable!() }).collect();
        return (0..count).map(|at| Link::Two(sends[at % sends.len()].clone())).collect();
    }
    links
}

async fn streams(shared: &Shared, count: usize, seconds: f64) -> Outcome {
    for mut link in links(shared, count).await {
        let shared = shared.clone();
        tokio::spawn(async move {
            let done = shared.exchange(&mut link, now_nanos(), None).await;
            if let Err(error) = done {
                shared.failed(&error);
            }
        });
    }
    until(
        || shared.board(|board| board.begun + usize::try_from(board.errors).unwrap_or(0)) >= count,
        Duration::from_secs(20),
    )
    .await;
    sleep(Duration::from_millis(200)).await;
    let cpu = Cpu::of(&shared.load.pids);
    let began = Instant::now();
    shared.board(|board| board.counts = true);
    sleep(Duration::from_secs_f64(seconds)).await;
    shared.board(|board| board.counts = false);
    shared.outcome(cpu.since(), began.elapsed())
}

async fn hold(shared: &Shared, count: usize) {
    let gate = Arc::new(tokio::sync::Semaphore::new(OPENING_AT_ONCE));
    let mut held = Vec::new();
    for _ in 0..count {
        let permit = Arc::clone(&gate).acquire_owned().await;
        let own = shared.clone();
        held.push(tokio::spawn(async move {
            let due = now_nanos();
            let link = own.link().await;
            let begins = async {
                match link {
                    Ok(mut link) => {
                        let mut exchange = Box::pin(own.exchange(&mut link, due, None));
                        tokio::select! {
                            done = &mut exchange => return done,
                            () = sleep(OPENING) => drop(permit),
                        }
                        exchange.await
                    }
                    Err(error) => Err(error),
                }
            };
            if let Err(error) = begins.await {
                own.failed(&error);
            }
        }));
    }
    let all = || shared.board(|board| board.begun + usize::try_from(board.errors).unwrap_or(0)) >= count;
    until(all, Duration::from_mins(1)).await;
    println!("open {}", shared.board(|board| board.begun));
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await;
    for one in held {
        one.abort();
    }
}

async fn closed(shared: &Shared, connections: usize, requests: usize) {
    let left = Arc::new(std::sync::atomic::AtomicUsize::new(requests));
    let mut running = Vec::new();
    for mut link in links(shared, connections).await {
        let (shared, left) = (shared.clone(), Arc::clone(&left));
        running.push(tokio::spawn(async move {
            use std::sync::atomic::Ordering::Relaxed;
            while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                if let Err(error) = shared.exchange(&mut link, now_nanos(), None).await {
                    shared.failed(&error);
                    let Ok(next) = shared.link().await else { return };
                    link = next;
                }
            }
        }));
    }
    for one in running {
        let _ = one.await;
    }
}

async fn rate(shared: &Shared, per_second: f64, seconds: f64) {
    let kept: Arc<Mutex<Vec<Link>>> = Arc::default();
    let begin = Instant::now() + Duration::from_millis(20);
    let mut running = Vec::new();
    let mut at = 0.0;
    while at < seconds {
        let due = begin + Duration::from_secs_f64(at);
        at += 1.0 / per_second;
        sleep_until(due).await;
        let late = u64::try_from(due.elapsed().as_nanos()).unwrap_or(0);
        let (shared, kept, due) = (shared.clone(), Arc::clone(&kept), now_nanos() - late);
        running.push(tokio::spawn(async move {
            let free = kept.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let link = match free {
                Some(link) => Ok(link),
                None => shared.link().await,
            };
            let done = match link {
                Ok(mut link) => shared.exchange(&mut link, due, None).await.map(|()| link),
                Err(error) => Err(error),
            };
            match done {
                Ok(link) => kept.lock().unwrap_or_else(PoisonError::into_inner).push(link),
                Err(error) => shared.failed(&error),
            }
        }));
    }
    for one in running {
        let _ = one.await;
    }
}

#[expect(clippy::cast_precision_loss, reason = "a small number")]
async fn storm(shared: &Shared, count: usize, seconds: f64) {
    let begin = Instant::now() + Duration::from_millis(20);
    let mut running = Vec::new();
    for number in 0..count {
        let due = begin + Duration::from_secs_f64(seconds * number as f64 / count as f64);
        sleep_until(due).await;
        let late = u64::try_from(due.elapsed().as_nanos()).unwrap_or(0);
        let (shared, due) = (shared.clone(), now_nanos() - late);
        running.push(tokio::spawn(async move {
            let done = match shared.link().await {
                Ok(mut link) => shared.exchange(&mut link, due, None).await,
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                shared.failed(&error);
            }
        }));
    }
    for one in running {
        let _ = one.await;
    }
}

async fn churn(shared: &Shared, per_second: f64, seconds: f64) {
    let begin = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    let mut number = 0_u64;
    let mut at = 0.0;
    while at < seconds {
        sleep_until(begin + Duration::from_secs_f64(at)).await;
        at += 1.0 / per_second;
        number += 1;
        let shared = shared.clone();
        let leaves = number.is_multiple_of(3).then_some(number % 7 + 1);
        running.spawn(async move {
            let done = match shared.link().await {
                Ok(mut link) => shared.exchange(&mut link, now_nanos(), leaves).await,
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                shared.failed(&error);
            }
        });
        while running.try_join_next().is_some() {}
    }
    while running.join_next().await.is_some() {}
}
