//! What an upstream does with one request: a head and a list of steps, the same for HTTP/1.1 and HTTP/2.

use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Something the test lets happen, instead of a sleep. Fired before it is waited for counts too.
#[derive(Clone, Debug, Default)]
pub(crate) struct Signal(Arc<Notify>);

impl Signal {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn fire(&self) {
        self.0.notify_one();
    }

    pub(crate) async fn wait(&self) {
        self.0.notified().await;
    }
}

/// How an HTTP/1.1 body says where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Chunked,
    /// This `content-length`, true or not.
    Length(usize),
    /// The connection's end.
    Close,
}

/// One step of a body.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// One write; with `Framing::Chunked`, one chunk; in HTTP/2, one DATA frame.
    Write(Bytes),
    /// Bytes without framing; in HTTP/2 they spoil the connection.
    Raw(Bytes),
    /// Silence.
    Pause(Duration),
    /// Silence until the test says so.
    Wait(Signal),
    /// Close our side without what the framing still owes.
    Fin,
    /// Close the whole connection at once; TLS without its close notify.
    Cut,
    /// Reset the connection; in HTTP/2, the stream with `INTERNAL_ERROR`.
    Rst,
    /// Reset the stream with this code (HTTP/2; in HTTP/1.1 as `Rst`).
    Reset(u32),
    /// GOAWAY, then on with the script (HTTP/2; nothing in HTTP/1.1).
    GoAway,
    /// Nothing ever again, connection open.
    Hang,
}

/// One scripted answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// 0: no head at all.
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) framing: Framing,
    /// What happens between the request and the head.
    pub(crate) before: Vec<Step>,
    pub(crate) steps: Vec<Step>,
}

impl Reply {
    fn new(status: u16, framing: Framing) -> Self {
        Self { status, headers: Vec::new(), framing, before: Vec::new(), steps: Vec::new() }
    }

    /// A 200 event stream, chunked, nothing in it yet; ends well when the script ends.
    pub(crate) fn sse() -> Self {
        Self::new(200, Framing::Chunked).header("content-type", "text/event-stream")
    }

    /// An event stream with all its bytes in one write.
    pub(crate) fn stream(bytes: impl AsRef<[u8]>) -> Self {
        Self::sse().write(bytes)
    }

    /// A JSON answer with its length.
    pub(crate) fn json(status: u16, body: impl AsRef<[u8]>) -> Self {
        let length = body.as_ref().len();
        Self::new(status, Framing::Length(length)).header("content-type", "application/json").write(body)
    }

    /// Takes the request and never answers.
    pub(crate) fn silent() -> Self {
        Self::new(0, Framing::Close).step(Step::Hang)
    }

    /// Takes the request and resets the connection instead of a head.
    pub(crate) fn reset() -> Self {
        Self::new(0, Framing::Close).step(Step::Rst)
    }

    /// Bytes of one's own instead of a head.
    pub(crate) fn raw(bytes: impl AsRef<[u8]>) -> Self {
        Self::new(0, Framing::Close).step(Step::Raw(Bytes::copy_from_slice(bytes.as_ref())))
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| known != name || name == "set-cookie");
        self.headers.push((name.into(), value.into()));
        self
    }

    pub(crate) fn framing(mut self, framing: Framing) -> Self {
        self.framing = framing;
        self
    }

    /// A step before the head.
    pub(crate) fn first(mut self, step: Step) -> Self {
        self.before.push(step);
        self
    }

    pub(crate) fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// One write.
    pub(crate) fn write(self, bytes: impl AsRef<[u8]>) -> Self {
        self.step(Step::Write(Bytes::copy_from_slice(bytes.as_ref())))
    }

    /// Bytes without framing.
    pub(crate) fn raw_bytes(self, bytes: impl AsRef<[u8]>) -> Self {
        self.step(Step::Raw(Bytes::copy_from_slice(bytes.as_ref())))
    }

    /// Writes of `size` bytes each.
    pub(crate) fn pieces(mut self, bytes: impl AsRef<[u8]>, size: usize) -> Self {
        for piece in bytes.as_ref().chunks(size) {
            self = self.write(piece);
        }
        self
    }

    /// One write up to each cut.
    pub(crate) fn cuts(mut self, bytes: impl AsRef<[u8]>, cuts: &[usize]) -> Self {
        let bytes = bytes.as_ref();
        let mut from = 0;
        for &cut in cuts.iter().chain([&bytes.len()]) {
            if cut > from {
                self = self.write(&bytes[from..cut]);
                from = cut;
            }
        }
        self
    }

    /// Writes with a gap between them, so that each is a read of its own (`¦` in CASES.md).
    pub(crate) fn gaps<B: AsRef<[u8]>>(mut self, pieces: impl IntoIterator<Item = B>) -> Self {
        for piece in pieces {
            self = self.write(piece).pause(50);
        }
        self
    }

    pub(crate) fn pause(self, millis: u64) -> Self {
        self.step(Step::Pause(Duration::from_millis(millis)))
    }

    pub(crate) fn wait(self, signal: &Signal) -> Self {
        self.step(Step::Wait(signal.clone()))
    }

    pub(crate) fn fin(self) -> Self {
        self.step(Step::Fin)
    }

    pub(crate) fn cut(self) -> Self {
        self.step(Step::Cut)
    }

    pub(crate) fn rst(self) -> Self {
        self.step(Step::Rst)
    }

    pub(crate) fn hang(self) -> Self {
        self.step(Step::Hang)
    }
}
