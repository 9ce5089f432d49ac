//! What two processes of Weir, or `weir upgrade` and one of them, say to each other over `server.upgrade_socket` (C3).
//!
//! Used by the server's two sides of an upgrade and by the command. One JSON object a line; the listening sockets
//! travel beside the line that names them. Blocking: its callers have threads of their own.

use crate::limit::Legacy;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Sockets in one message; the kernel takes 253.
const MOST_SOCKETS: usize = 128;
/// Longer than any line that is said here.
const MOST_BYTES: usize = 64 * 1024;
/// How long one side waits for the other's next word, unless it is at work.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// The new process is ready to serve and wants the sockets.
    Ready {
        /// Of the new process.
        pid: u32,
        /// Of the new binary.
        version: String,
        /// It wants to hear what keys and models use.
        #[serde(default)]
        limits: bool,
    },
    /// Here they are, in this order.
    Sockets {
        /// Where each listens.
        addresses: Vec<SocketAddr>,
        /// What keys and models use follows, and again and again once the old process drains.
        #[serde(default)]
        limits: bool,
    },
    /// What one key or model uses in the old process.
    Used(Legacy),
    /// That was all that is used.
    AllUsed,
    /// The new process serves.
    Serving,
    /// The old process lets nobody in any more.
    Draining {
        /// Of the old process.
        pid: u32,
        /// Requests that it still serves.
        running: u64,
    },
    /// `weir upgrade`: start the new process.
    Upgrade,
    /// The new process serves, and the old one drains.
    Upgraded {
        /// Of the new process.
        pid: u32,
        /// Of the old process.
        old: u32,
        /// Requests that the old one still serves.
        running: u64,
    },
    /// Nothing has changed; the old process serves on.
    Failed {
        /// For the operator.
        reason: String,
    },
}

/// One end of the talk.
#[derive(Debug)]
pub struct Talk {
    stream: UnixStream,
    read: Vec<u8>,
    sockets: Vec<OwnedFd>,
}

impl Talk {
    /// Over a connection that was accepted.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, read: Vec::new(), sockets: Vec::new() })
    }

    /// To the process that serves.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn connect(path: &Path) -> io::Result<Self> {
        Self::new(UnixStream::connect(path)?)
    }

    /// Waits longer, or shorter, for the next word.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn wait_for(&self, patience: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(patience))
    }

    /// Whether the other side runs as the same user, or as root.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        let Ok(peer) = rustix::net::sockopt::socket_peercred(&self.stream) else { return false };
        peer.uid.is_root() || peer.uid == rustix::process::geteuid()
    }

    /// Says a word.
    ///
    /// # Errors
    /// The other side is gone.
    pub fn say(&mut self, word: &Word) -> io::Result<()> {
        let mut line = serde_json::to_vec(word)?;
        line.push(b'\n');
        self.stream.write_all(&line)
    }

    /// Hands the sockets over; `limits`: what keys and models use is told next.
    ///
    /// # Errors
    /// The other side is gone, or there are too many.
    pub fn hand_over(&mut self, sockets: &[(SocketAddr, OwnedFd)], limits: bool) -> io::Result<()> {
        let addresses = sockets.iter().map(|(address, _)| *address).collect();
        let mut line = serde_json::to_vec(&Word::Sockets { addresses, limits })?;
        line.push(b'\n');
        let borrowed: Vec<BorrowedFd<'_>> = sockets.iter().map(|(_, socket)| socket.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SOCKETS))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !beside.push(SendAncillaryMessage::ScmRights(&borrowed)) {
            return Err(io::Error::other(format!("more than {MOST_SOCKETS} listeners cannot be handed over")));
        }
        let parts = [IoSlice::new(&line)];
        let sent = retry_on_intr(|| sendmsg(&self.stream, &parts, &mut beside, SendFlags::NOSIGNAL))?;
        self.stream.write_all(line.get(sent..).unwrap_or_default())
    }

    /// The next word.
    ///
    /// # Errors
    /// The other side is gone, says nothing for too long, or something else.
    pub fn hear(&mut self) -> io::Result<Word> {
        let end = loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                break end;
            }
            if self.read.len() > MOST_BYTES {
                return Err(io::Error::other("a line without end"));
            }
            self.more()?;
        };
        let line: Vec<u8> = self.read.drain(..=end).collect();
        Ok(serde_json::from_slice(&line)?)
    }

    /// Tells what keys and models use.
    ///
    /// # Errors
    /// The other side is gone.
    pub fn tell(&mut self, legacy: Vec<Legacy>) -> io::Result<()> {
        for one in legacy {
            self.say(&Word::Used(one))?;
        }
        self.say(&Word::AllUsed)
    }

    /// What keys and models use in the other process.
    ///
    /// # Errors
    /// The other side is gone, says nothing for too long, or something else.
    pub fn hear_legacy(&mut self) -> io::Result<Vec<Legacy>> {
        let mut all = Vec::new();
        loop {
            match self.hear()? {
                Word::Used(one) => all.push(one),
                Word::AllUsed => return Ok(all),
                other => return Err(io::Error::other(format!("it said {other:?} instead of what is used"))),
            }
        }
    }

    /// The sockets that came beside what was heard.
    pub fn sockets(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.sockets)
    }

    fn more(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SOCKETS))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut buffer)];
        // A process that is stopped and continued comes back from a wait that has a bound.
        let got = retry_on_intr(|| recvmsg(&self.stream, &mut into, &mut beside, RecvFlags::CMSG_CLOEXEC))?;
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(sockets) = message {
                self.sockets.extend(sockets);
            }
        }
        if got.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read.extend_from_slice(buffer.get(..got.bytes).unwrap_or_default());
        Ok(())
    }
}

/// Why an upgrade came to nothing; the old process serves on.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// Nobody listens on the upgrade socket.
    #[error(
        "no process of Weir answers at {path} ({reason}); start one without --upgrade, or correct server.upgrade_socket"
    )]
    Nobody {
        /// The socket.
        path: String,
        /// The system's words.
        reason: io::Error,
    },
    /// The other side said why.
    #[error("{0}")]
    Refused(String),
    /// The talk broke off.
    #[error("the serving process broke off the upgrade: {0}")]
    Broken(#[from] io::Error),
}

/// What an upgrade came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upgraded {
    /// Of the process that serves now.
    pub pid: u32,
    /// Of the one that drains.
    pub old: u32,
    /// Requests that the old one still serves.
    pub running: u64,
}

/// `weir upgrade`: asks the serving process to start its successor, and waits until that serves.
///
/// # Errors
/// Why not; the old process serves on then.
pub fn upgrade(socket: &Path) -> Result<Upgraded, UpgradeError> {
    let mut talk =
        Talk::connect(socket).map_err(|reason| UpgradeError::Nobody { path: socket.display().to_string(), reason })?;
    talk.say(&Word::Upgrade)?;
    talk.wait_for(PATIENCE * 2)?;
    match talk.hear()? {
        Word::Upgraded { pid, old, running } => Ok(Upgraded { pid, old, running }),
        Word::Failed { reason } => Err(UpgradeError::Refused(reason)),
        other => Err(UpgradeError::Refused(format!("the serving process said something else: {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Whose;
    use crate::limit::meter::Use;

    #[test]
    fn c3_an_older_binary_says_nothing_of_limits() {
        let heard = |line: &str| serde_json::from_str::<Word>(line).unwrap();
        let ready = Word::Ready { pid: 7, version: "1".to_owned(), limits: false };
        assert_eq!(heard(r#"{"ready":{"pid":7,"version":"1"}}"#), ready);
        let sockets = Word::Sockets { addresses: Vec::new(), limits: false };
        assert_eq!(heard(r#"{"sockets":{"addresses":[]}}"#), sockets);
    }

    #[test]
    fn c3_sockets_travel_with_their_addresses_and_words_in_order() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut old, mut new) = (Talk::new(one).unwrap(), Talk::new(other).unwrap());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ready = Word::Ready { pid: 7, version: "1".to_owned(), limits: true };
        new.say(&ready).unwrap();
        new.say(&Word::Serving).unwrap();
        assert_eq!(old.hear().unwrap(), ready);
        assert_eq!(old.hear().unwrap(), Word::Serving);
        assert!(old.is_trusted());
        old.hand_over(&[(address, listener.into())], true).unwrap();
        let uses = Use { requests: vec![(Duration::from_millis(1), 7)], running: 2, ..Use::default() };
        let told = vec![Legacy { whose: Whose::Key, name: "a".to_owned(), uses }];
        old.tell(told.clone()).unwrap();
        old.tell(Vec::new()).unwrap();
        assert_eq!(new.hear().unwrap(), Word::Sockets { addresses: vec![address], limits: true });
        let sockets = new.sockets();
        assert_eq!(sockets.len(), 1);
        let taken = std::net::TcpListener::from(sockets.into_iter().next().unwrap());
        assert_eq!(taken.local_addr().unwrap(), address);
        assert_eq!(new.hear_legacy().unwrap(), told);
        assert_eq!(new.hear_legacy().unwrap(), []);
        drop(old);
        assert_eq!(new.hear().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
