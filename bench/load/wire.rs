//! What upstream and load generator say to each other: scripts, stamps, HTTP/1.1 by hand.
//!
//! By hand, so that both ends cost little and hide nothing: the figures are about what stands between.

use memchr::{memchr, memmem};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

/// Stands before each stamp, and nowhere else in what the upstream sends.
pub(crate) const MARK: u8 = b'@';
/// A stamp: nanoseconds since 1970.
const DIGITS: usize = 19;

/// A socket, with or without TLS.
pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// What the upstream does with one request; travels in the request's body.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Script {
    /// A JSON reply instead of a stream.
    pub(crate) json: bool,
    /// Milliseconds before the head.
    pub(crate) first_ms: u64,
    /// Events with content.
    pub(crate) events: u64,
    /// Microseconds between two events; 0: as fast as they are taken, in large writes.
    pub(crate) gap_us: u64,
    /// The first gap is cut by the stream's number, so that streams do not beat in step.
    pub(crate) spread: bool,
    /// Bytes of text in each event.
    pub(crate) text: usize,
    /// Bytes of one write; 0: as large as they come.
    pub(crate) piece: usize,
    /// Silent after its events until the client leaves.
    pub(crate) hold: bool,
}

pub(crate) fn now_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// One event, written at `stamp`.
pub(crate) fn event(out: &mut Vec<u8>, stamp: u64, text: usize) {
    out.extend_from_slice(
        br#"data: {"id":"chatcmpl-CfJ2Zk8Q0bench0bench0bench00","object":"chat.completion.chunk","created":1780000000,"model":"bench","service_tier":"default","system_fingerprint":"fp_bench","choices":[{"index":0,"delta":{"content":""#,
    );
    out.push(MARK);
    out.extend_from_slice(format!("{stamp:019}").as_bytes());
    out.resize(out.len() + text, b'x');
    out.extend_from_slice(br#""},"logprobs":null,"finish_reason":null}]}"#);
    out.extend_from_slice(b"\n\n");
}

/// What begins and ends a stream as OpenAI writes it.
pub(crate) const OPENING: &[u8] = b"data: {\"id\":\"chatcmpl-CfJ2Zk8Q0bench0bench0bench00\",\"object\":\"chat.completion.chunk\",\"created\":1780000000,\"model\":\"bench\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n";
pub(crate) const CLOSING: &[u8] = b"data: {\"id\":\"chatcmpl-CfJ2Zk8Q0bench0bench0bench00\",\"object\":\"chat.completion.chunk\",\"created\":1780000000,\"model\":\"bench\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: {\"id\":\"chatcmpl-CfJ2Zk8Q0bench0bench0bench00\",\"object\":\"chat.completion.chunk\",\"created\":1780000000,\"model\":\"bench\",\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":34,\"total_tokens\":46}}\n\ndata: [DONE]\n\n";
pub(crate) const REPLY: &[u8] = b"{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion\",\"created\":1780000000,\"model\":\"bench\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hello.\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":3,\"total_tokens\":15}}";

/// Reads the stamps out of a body, however it is cut.
#[derive(Default)]
pub(crate) struct Stamps {
    rest: Vec<u8>,
}

impl Stamps {
    /// Calls `found` with each stamp that is whole now.
    pub(crate) fn read(&mut self, bytes: &[u8], mut found: impl FnMut(u64)) {
        let joined;
        let mut bytes = if self.rest.is_empty() {
            bytes
        } else {
            self.rest.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.rest);
            &joined
        };
        while let Some(at) = memchr(MARK, bytes) {
            let Some(digits) = bytes.get(at + 1..at + 1 + DIGITS) else {
                self.rest = bytes[at..].to_vec();
                return;
            };
            found(digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')));
            bytes = &bytes[at + 1 + DIGITS..];
        }
    }
}

/// A message head: its bytes, and what of the body was read with it.
pub(crate) struct Head {
    pub(crate) text: Vec<u8>,
    pub(crate) rest: Vec<u8>,
}

/// Reads up to the blank line; `None` at the end of the connection.
pub(crate) async fn read_head(io: &mut dyn Io, mut buffer: Vec<u8>) -> std::io::Result<Option<Head>> {
    loop {
        if let Some(at) = memmem::find(&buffer, b"\r\n\r\n") {
            let rest = buffer.split_off(at + 4);
            return Ok(Some(Head { text: buffer, rest }));
        }
        if io.read_buf(&mut buffer).await? == 0 {
            return Ok(None);
        }
    }
}

impl Head {
    /// A field's value, in lower case.
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        let text = String::from_utf8_lossy(&self.text).to_ascii_lowercase();
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim).map(str::to_owned))
    }

    pub(crate) fn length(&self) -> Option<usize> {
        self.field("content-length")?.parse().ok()
    }

    pub(crate) fn status(&self) -> u16 {
        let text = self.text.get(9..12).unwrap_or_default();
        std::str::from_utf8(text).ok().and_then(|code| code.parse().ok()).unwrap_or(0)
    }
}

/// How an HTTP/1.1 body ends.
pub(crate) enum Framing {
    /// So many bytes are left.
    Length(usize),
    Chunked(Chunked),
    /// With the connection.
    Close,
}

/// Where a chunked body is.
#[derive(Default)]
pub(crate) struct Chunked {
    /// Bytes left of this chunk, its line end included.
    left: usize,
    line: Vec<u8>,
    last: bool,
}

impl Framing {
    pub(crate) fn of(head: &Head) -> Self {
        match (head.length(), head.field("transfer-encoding")) {
            (_, Some(coding)) if coding == "chunked" => Self::Chunked(Chunked::default()),
            (Some(length), _) => Self::Length(length),
            _ => Self::Close,
        }
    }

    /// Passes the body's own bytes to `body`; true at its end.
    pub(crate) fn read(&mut self, bytes: &[u8], mut body: impl FnMut(&[u8])) -> bool {
        match self {
            Self::Close => {
                body(bytes);
                false
            }
            Self::Length(left) => {
                let mine = bytes.len().min(*left);
                body(&bytes[..mine]);
                *left -= mine;
                *left == 0
            }
            Self::Chunked(chunked) => chunked.read(bytes, body),
        }
    }
}

impl Chunked {
    fn read(&mut self, mut bytes: &[u8], mut body: impl FnMut(&[u8])) -> bool {
        while !bytes.is_empty() {
            if self.left > 0 {
                let mine = bytes.len().min(self.left);
                // The last two are the line end.
                body(&bytes[..mine.min(self.left.saturating_sub(2))]);
                self.left -= mine;
                bytes = &bytes[mine..];
                continue;
            }
            let Some(end) = memchr(b'\n', bytes) else {
                self.line.extend_from_slice(bytes);
                return false;
            };
            self.line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            let line = line.trim_ascii();
            if self.last {
                if line.is_empty() {
                    return true;
                }
                continue;
            }
            let digits = std::str::from_utf8(line).unwrap_or_default().split(';').next().unwrap_or_default();
            let size = usize::from_str_radix(digits.trim(), 16).unwrap_or(0);
            self.last = size == 0;
            self.left = if size == 0 { 0 } else { size + 2 };
        }
        false
    }
}
