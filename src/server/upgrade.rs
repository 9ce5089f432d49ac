//! The upgrade (C3): the serving process hands its sockets to a new one that is ready, and drains.
//!
//! The old side listens on `server.upgrade_socket`, on threads of its own; the new side asks at its start. Until the
//! new process says that it serves, the old one has changed nothing: whatever goes wrong, it serves on.

use super::Source;
use super::sockets::Sockets;
use crate::gateway::Shared;
use crate::handover::{PATIENCE, Talk, UpgradeError, Word};
use crate::limit::{Legacy, Limits};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How often the starting process is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often a process that drains tells what its keys and models still use: a slot that is free here is free there
/// no later.
const TELL_EVERY: Duration = Duration::from_millis(250);

/// The process that serves, as its successor sees it.
#[derive(Debug)]
pub(super) struct Incumbent {
    pub(super) shared: Arc<Shared>,
    pub(super) sockets: Arc<Sockets>,
    /// The process that has taken over; 0: none.
    pub(super) successor: watch::Sender<u32>,
    pub(super) socket: PathBuf,
    /// The operator's file.
    pub(super) source: Source,
    /// The binary as it is called now, which may be another file by the time of the upgrade.
    pub(super) program: PathBuf,
    /// A new process is taking over.
    pub(super) busy: AtomicBool,
    /// Those who asked for an upgrade and have no answer yet.
    pub(super) asking: Arc<AtomicUsize>,
}

/// One who waits for an answer.
struct Asking<'a>(&'a AtomicUsize);

impl<'a> Asking<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Incumbent {
    /// Listens for a successor. An upgrade is a convenience: without the socket the server serves all the same.
    /// `took_over`: the socket there was the predecessor's.
    pub(super) fn listen(self: Arc<Self>, took_over: bool) {
        let path = self.socket.display().to_string();
        if !took_over && UnixStream::connect(&self.socket).is_ok() {
            let remedy = "another process has this upgrade socket; give each its own server.upgrade_socket";
            log::warn!(path = path.as_str(); "upgrades are not possible: {remedy}");
            return;
        }
        let listening = bind(&self.socket).and_then(|listener| {
            let work = move || self.accept(&listener);
            std::thread::Builder::new().name("upgrade".to_owned()).spawn(work)
        });
        if let Err(error) = listening {
            log::warn!(path = path.as_str(), error:%; "upgrades are not possible: the upgrade socket cannot be made");
        }
    }

    /// Until the process ends, or another one has taken over.
    fn accept(self: Arc<Self>, listener: &UnixListener) {
        while *self.successor.borrow() == 0 {
            let Ok((stream, _)) = listener.accept() else {
                std::thread::park_timeout(LOOK_EVERY); // no descriptors left
                continue;
            };
            let own = Arc::clone(&self);
            // Nobody waits for it: it ends with the talk, or with the process.
            let _unless_no_thread = std::thread::Builder::new().name("upgrade".to_owned()).spawn(move || {
                if let Err(error) = own.answer(stream) {
                    log::warn!(error:%; "an upgrade broke off; this process serves on");
                }
            });
        }
    }

    fn answer(&self, stream: UnixStream) -> io::Result<()> {
        let mut talk = Talk::new(stream)?;
        if !talk.is_trusted() {
            log::warn!("a process of another user asked for an upgrade, and was refused");
            return Ok(());
        }
        let first = match talk.hear() {
            // A process that only looks whether somebody listens.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            first => first?,
        };
        let failed = |reason: &str| Word::Failed { reason: reason.to_owned() };
        match first {
            Word::Ready { .. } | Word::Upgrade if *self.shared.leaving.borrow() => {
                talk.say(&failed("this process is shutting down"))
            }
            Word::Ready { pid, version, limits } => {
                if self.busy.swap(true, Ordering::AcqRel) {
                    return talk.say(&failed("another upgrade is under way"));
                }
                let handed = self.hand_over(&mut talk, pid, &version, limits);
                self.busy.store(false, Ordering::Release);
                handed?;
                if limits {
                    self.keep_telling(&mut talk);
                }
                Ok(())
            }
            Word::Upgrade => {
                let _asking = Asking::new(&self.asking);
                let answer = match self.start_successor() {
                    Ok(pid) => Word::Upgraded { pid, old: std::process::id(), running: self.running() },
                    Err(reason) => {
                        log::error!(reason = reason.as_str(); "the upgrade failed; this process serves on");
                        Word::Failed { reason }
                    }
                };
                talk.say(&answer)
            }
            _ => talk.say(&failed("an upgrade begins otherwise")),
        }
    }

    fn hand_over(&self, talk: &mut Talk, pid: u32, version: &str, limits: bool) -> io::Result<()> {
        talk.hand_over(&self.sockets.copies()?, limits)?;
        if limits {
            talk.tell(self.shared.limits.legacy())?;
        }
        match talk.hear()? {
            Word::Serving => {}
            other => return Err(io::Error::other(format!("the new process said {other:?} instead of serving"))),
        }
        self.successor.send_replace(pid);
        log::info!(pid, version; "another process has taken over");
        // The drain has begun by itself; whether the successor hears of it changes nothing.
        let _ = talk.say(&Word::Draining { pid: std::process::id(), running: self.running() });
        Ok(())
    }

    /// Until this process ends, or the successor does.
    fn keep_telling(&self, talk: &mut Talk) {
        while talk.tell(self.shared.limits.legacy()).is_ok() {
            std::thread::park_timeout(TELL_EVERY);
        }
    }

    fn running(&self) -> u64 {
        self.shared.running.load(Ordering::Acquire)
    }

    /// Checks the file with the new binary, starts it, and waits until it has taken over.
    fn start_successor(&self) -> Result<u32, String> {
        let program = self.program.display();
        let path = &self.source.path;
        let checked = Command::new(&self.program).arg("check").arg(path).stdin(Stdio::null()).output();
        let checked = checked.map_err(|error| format!("{program} cannot be run: {error}"))?;
        if !checked.status.success() {
            let said =
                String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr);
            return Err(format!("the new process would refuse the config:\n{}", said.trim_end()));
        }
        let mut command = Command::new(&self.program);
        command.args(["serve", "--upgrade", "--config"]).arg(path).stdin(Stdio::null());
        let child = command.spawn().map_err(|error| format!("{program} cannot be started: {error}"))?;
        log::info!(pid = child.id(); "a new process was started, to take over");
        self.wait_for(child)
    }

    fn wait_for(&self, mut child: Child) -> Result<u32, String> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let successor = *self.successor.borrow();
            if successor != 0 {
                return Ok(successor);
            }
            match child.try_wait() {
                Ok(Some(status)) => {
                    return Err(format!("the new process ended with {status}; the log, or its output, says why"));
                }
                Ok(None) => std::thread::park_timeout(LOOK_EVERY),
                Err(error) => return Err(format!("the new process cannot be watched: {error}")),
            }
        }
        let _ = child.kill();
        let _ = child.wait();
        Err(format!("the new process did not serve within {} s, and was ended", PATIENCE.as_secs()))
    }
}

/// Replaces what is there in one step, so that there is always a socket to ask at.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(new);
    let _from_a_crash = std::fs::remove_file(&new);
    let listener = UnixListener::bind(&new)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&new, path)?;
    Ok(listener)
}

/// A new process in the middle of taking over.
#[derive(Debug)]
pub(super) struct Taking {
    talk: Talk,
    /// The old process tells what its keys and models use.
    tells: bool,
}

/// What a new process gets.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) sockets: Vec<(SocketAddr, OwnedFd)>,
    pub(super) legacy: Vec<Legacy>,
}

impl Taking {
    /// Says that this process is ready, and gets the sockets.
    ///
    /// # Errors
    /// Why not; the old process serves on.
    pub(super) fn begin(socket: &Path) -> Result<(Self, Handed), UpgradeError> {
        let mut talk = Talk::connect(socket)
            .map_err(|reason| UpgradeError::Nobody { path: socket.display().to_string(), reason })?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        talk.say(&Word::Ready { pid: std::process::id(), version, limits: true })?;
        match talk.hear()? {
            Word::Sockets { addresses, limits } => {
                let legacy = if limits { talk.hear_legacy()? } else { Vec::new() };
                let sockets = talk.sockets();
                if sockets.len() != addresses.len() {
                    return Err(UpgradeError::Refused("some of the sockets were lost on the way".to_owned()));
                }
                let sockets = addresses.into_iter().zip(sockets).collect();
                Ok((Self { talk, tells: limits }, Handed { sockets, legacy }))
            }
            Word::Failed { reason } => Err(UpgradeError::Refused(reason)),
            other => Err(UpgradeError::Refused(format!("the serving process said something else: {other:?}"))),
        }
    }

    /// Says that this process serves; from here on the old one lets nobody in. Then hears what it still uses, on a
    /// thread of its own, until it ends.
    pub(super) fn serving(mut self, limits: Arc<Limits>) {
        let heard = self.talk.say(&Word::Serving).and_then(|()| self.talk.hear());
        match heard {
            Ok(Word::Draining { pid, running }) => log::info!(pid, running; "took over; the old process drains"),
            Ok(other) => log::warn!(said:? = other; "took over; the old process said something else"),
            Err(error) => log::warn!(error:%; "took over; the old process did not answer"),
        }
        if !self.tells {
            return;
        }
        let also = Arc::clone(&limits);
        let follow = move || {
            while let Ok(legacy) = self.talk.hear_legacy() {
                limits.inherit(&legacy);
            }
            limits.outlive();
        };
        if let Err(error) = std::thread::Builder::new().name("predecessor".to_owned()).spawn(follow) {
            log::warn!(error:%; "what the old process still uses of its limits cannot be followed");
            also.outlive();
        }
    }
}
