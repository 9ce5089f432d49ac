//! The fault matrix: what an upstream does in each cell.

use crate::harness::*;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// How far an attempt has come when the fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Before the request is sent.
    Connect,
    /// The request is there, the head is not.
    Sent,
    /// The head is there.
    Headers,
    /// The prelude is there.
    Prelude,
    /// Half of the first content event is.
    InFirst,
    /// After a content event.
    Between,
    /// Half of a later event is there.
    Inside,
    /// The finish reason is (of responses: the last output).
    Finished,
    /// The usage is.
    Usage,
    /// The terminal event is.
    Terminal,
}

impl Phase {
    pub(super) const ALL: [Self; 10] = [
        Self::Connect,
        Self::Sent,
        Self::Headers,
        Self::Prelude,
        Self::InFirst,
        Self::Between,
        Self::Inside,
        Self::Finished,
        Self::Usage,
        Self::Terminal,
    ];

    /// What has been sent of the body.
    pub(super) fn sent(self, dialect: Dialect) -> String {
        let events = dialect.events();
        let up_to = |count: usize| events[..count].concat();
        let half = |at: usize| up_to(at) + &events[at][..events[at].len() / 2];
        match self {
            Self::Connect | Self::Sent | Self::Headers => String::new(),
            Self::Prelude => dialect.before(),
            Self::InFirst => half(dialect.prelude),
            Self::Between => dialect.begun(),
            Self::Inside => half(dialect.prelude + 1),
            Self::Finished => match dialect.name {
                "chat" => up_to(4),
                "responses" => up_to(5),
                _ => up_to(6),
            },
            Self::Usage => match dialect.name {
                "chat" | "responses" => up_to(5),
                _ => up_to(6),
            },
            Self::Terminal => events.concat(),
        }
    }

    /// What the client has of it: whole events, and no usage that it did not ask for.
    pub(super) fn seen(self, dialect: Dialect) -> String {
        let whole = match self {
            Self::Connect | Self::Sent | Self::Headers | Self::Prelude | Self::InFirst => return String::new(),
            Self::Inside => dialect.begun(),
            Self::Between | Self::Finished | Self::Usage | Self::Terminal => self.sent(dialect),
        };
        events(whole.as_bytes()).into_iter().filter(|event| !is_usage_chunk(event)).collect()
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Closed without what the framing owes.
    Fin,
    Rst,
    /// Silence, the connection open.
    Stall,
    /// The rest, little by little.
    Trickle,
    /// A native error of no special kind.
    Error,
    /// As a status, or in a stream as the native error that stands for it.
    S429,
    S500,
    S529,
    /// Bytes that are no HTTP.
    Garbage,
    /// A clean end.
    End,
}

impl Fault {
    pub(super) const ALL: [Self; 10] = [
        Self::Fin,
        Self::Rst,
        Self::Stall,
        Self::Trickle,
        Self::Error,
        Self::S429,
        Self::S500,
        Self::S529,
        Self::Garbage,
        Self::End,
    ];

    pub(super) const fn status(self) -> u16 {
        match self {
            Self::S429 => 429,
            Self::S529 => 529,
            _ => 500,
        }
    }

    /// `type` and `code` of the native error.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::S429 => ("rate_limit_error", "rate_limit_exceeded"),
            Self::S529 => ("overloaded_error", "server_is_overloaded"),
            _ => ("api_error", "server_error"),
        }
    }

    /// The error as JSON.
    pub(super) fn json(self, dialect: Dialect) -> String {
        let (kind, code) = self.words();
        match dialect.name {
            "messages" => format!(r#"{{"type":"error","error":{{"type":"{kind}","message":"sorry"}}}}"#),
            _ => format!(r#"{{"error":{{"message":"sorry","type":"{kind}","code":"{code}"}}}}"#),
        }
    }

    /// The error as the protocol's own event.
    pub(super) fn event(self, dialect: Dialect) -> String {
        let (_, code) = self.words();
        match dialect.name {
            "chat" => format!("data: {}\n\n", self.json(dialect)),
            "messages" => typed(&self.json(dialect)),
            _ => typed(&format!(
                r#"{{"type":"response.failed","sequence_number":9,"response":{{"id":"resp_abc","status":"failed","error":{{"code":"{code}","message":"sorry"}},"usage":null}}}}"#
            )),
        }
    }

    /// The answer that is an error from its head on.
    fn answer(self, dialect: Dialect) -> Reply {
        match self {
            Self::Error => Reply::json(200, self.json(dialect)),
            Self::S429 => Reply::json(429, self.json(dialect)).header("retry-after", "3"),
            other => Reply::json(other.status(), other.json(dialect)),
        }
    }
}

const TRICKLE: Duration = Duration::from_millis(20);

/// What the upstream does with the request, from [`Phase::Sent`] on; `read`: the client has got
/// what it is to get before the fault.
pub(super) fn reply(dialect: Dialect, phase: Phase, fault: Fault, read: &Signal) -> Reply {
    let status = matches!(fault, Fault::S429 | Fault::S500 | Fault::S529);
    match (phase, fault) {
        (Phase::Sent, Fault::Fin) => return Reply { status: 0, ..Reply::sse().cut() },
        (Phase::Sent, Fault::Rst) => return Reply::reset(),
        (Phase::Sent, Fault::Stall) => return Reply::silent(),
        (Phase::Sent, Fault::Garbage) => return Reply::raw("nonsense\r\n\r\n").fin(),
        (Phase::Sent, Fault::Trickle) => {
            let slow = Reply::stream((dialect.ok)()).first(Step::Pause(Duration::from_millis(150)));
            return slow.first(Step::Pause(Duration::from_millis(150)));
        }
        (Phase::Sent, _) => return fault.answer(dialect),
        (Phase::Headers, _) if status => {
            let whole = fault.answer(dialect);
            return Reply { steps: Vec::new(), ..whole }.pause(50).cut();
        }
        _ => {}
    }
    let sent = phase.sent(dialect);
    let stream = Reply::sse();
    // A gap, so that what was sent is read before the connection breaks.
    let stream = match phase {
        Phase::Connect | Phase::Sent | Phase::Headers => stream.pause(50),
        Phase::Prelude | Phase::InFirst => stream.write(&sent).pause(50),
        Phase::Between | Phase::Inside | Phase::Finished | Phase::Usage | Phase::Terminal => {
            stream.write(&sent).wait(read)
        }
    };
    match fault {
        Fault::Fin => stream.cut(),
        Fault::Rst => stream.rst(),
        Fault::Stall => stream.hang(),
        Fault::Trickle => {
            let pieces = (dialect.ok)().as_bytes()[sent.len()..].chunks(40).map(<[u8]>::to_vec).collect::<Vec<_>>();
            pieces.into_iter().fold(stream, |stream, piece| stream.step(Step::Pause(TRICKLE)).write(piece))
        }
        Fault::Error | Fault::S429 | Fault::S500 | Fault::S529 => stream.write(fault.event(dialect)).hang(),
        Fault::Garbage => stream.raw_bytes("nonsense\r\n\r\n").hang(),
        Fault::End => stream,
    }
}

/// An upstream that never gets as far as reading a request; gone when dropped.
pub(super) struct Doorstep {
    pub(super) address: SocketAddr,
    task: Option<tokio::task::JoinHandle<()>>,
    /// A listener whose queue is full, and what fills it.
    _full: Option<(TcpListener, Vec<TcpStream>)>,
}

impl Drop for Doorstep {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// [`Phase::Connect`].
pub(super) async fn doorstep(dialect: Dialect, fault: Fault) -> Doorstep {
    let socket = TcpSocket::new_v4().expect("a socket");
    // Nobody else may come to listen where nobody is to listen.
    socket.set_reuseaddr(true).expect("an option");
    socket.bind(free_address()).expect("a free port");
    let listener = socket.listen(1).expect("a listener");
    let address = listener.local_addr().expect("an address");
    match fault {
        Fault::Fin | Fault::Rst => return Doorstep { address, task: None, _full: None },
        Fault::Stall => {
            let mut queued = Vec::new();
            // It lets nobody in.
            while let Ok(Ok(socket)) =
                tokio::time::timeout(Duration::from_millis(500), TcpStream::connect(address)).await
            {
                queued.push(socket);
            }
            return Doorstep { address, task: None, _full: Some((listener, queued)) };
        }
        _ => {}
    }
    let bytes = if fault == Fault::Garbage {
        "nonsense\r\n\r\n".to_owned()
    } else {
        let body = fault.json(dialect);
        let status = if fault == Fault::Error { 200 } else { fault.status() };
        let wait = if fault == Fault::S429 { "retry-after: 3\r\n" } else { "" };
        let length = body.len();
        format!(
            "HTTP/1.1 {status} Early\r\ncontent-type: application/json\r\n{wait}content-length: {length}\r\n\r\n{body}"
        )
    };
    let task = tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.write_all(bytes.as_bytes()).await;
            let _ = socket.shutdown().await;
            while matches!(socket.read(&mut [0; 4096]).await, Ok(1..)) {}
        }
    });
    Doorstep { address, task: Some(task), _full: None }
}
