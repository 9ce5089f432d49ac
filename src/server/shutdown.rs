//! How the process ends (C3): not ready at once, serve a little longer, let streams finish, end the rest; or, after
//! an upgrade, serve what it has for as long as that takes.
//!
//! Called by Pingora, once. Pingora alone would sleep its whole grace period.

use super::notify;
use super::sockets::Sockets;
use crate::admin::{AdminState, Readiness};
use crate::config;
use crate::gateway::Shared;
use async_trait::async_trait;
use pingora_core::server::{ShutdownSignal, ShutdownSignalWatch};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// How often the running requests are counted.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What the endings of cut streams may take to be written.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Waits for the signal, or for a successor, and drains.
pub(super) struct Drain {
    pub(super) shared: Arc<Shared>,
    pub(super) state: Arc<AdminState>,
    pub(super) sockets: Arc<Sockets>,
    /// Turns true when nobody is let in any more.
    pub(super) closing: watch::Sender<bool>,
    /// The same of operators, who watch a drain to its end.
    pub(super) closing_admin: watch::Sender<bool>,
    /// The process that has taken over; 0: none.
    pub(super) successor: watch::Receiver<u32>,
    /// Those who asked for it and have no answer yet.
    pub(super) asking: Arc<AtomicUsize>,
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    async fn any(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

impl Drain {
    /// The times of the config in force: they are only needed now.
    fn times(&self) -> config::Server {
        self.shared.live.load().config.server.clone()
    }

    fn running(&self) -> u64 {
        self.shared.running.load(Ordering::Acquire)
    }

    async fn drained(&self) {
        while self.running() > 0 {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Each answer from here on is the last one on its connection (`connection: close`, GOAWAY).
    fn leave(&self) {
        self.state.set_readiness(Readiness::Draining);
        self.shared.leaving.send_replace(true);
    }

    /// No new connections.
    fn close(&self) {
        self.sockets.close();
        self.closing.send_replace(true);
    }

    /// SIGTERM.
    async fn drain(&self, signals: &mut Signals) {
        notify::stopping();
        self.leave();
        log::info!("draining: not ready, requests are still served");
        tokio::select! {
            () = tokio::time::sleep(self.times().drain_delay) => {}
            () = signals.any() => return,
        }
        self.close();
        self.refuse_and_wait(signals).await;
    }

    /// Late requests on open connections are refused; what runs has its time.
    async fn refuse_and_wait(&self, signals: &mut Signals) {
        self.shared.draining.store(true, Ordering::Release);
        log::info!(running = self.running(); "draining: the listeners are closed, new requests are refused");
        tokio::select! {
            () = self.drained() => {}
            () = tokio::time::sleep(self.times().drain) => {}
            () = signals.any() => {}
        }
    }

    /// Another process serves: this one keeps what it has, and serves what still comes on open connections.
    async fn retire(&self, signals: &mut Signals) {
        self.leave();
        self.close();
        self.closing_admin.send_replace(true);
        let times = self.times();
        log::info!(running = self.running(); "retired: another process serves, this one finishes what it has");
        let finished = async {
            // Clients with an idle connection use it once more, or notice.
            tokio::time::sleep(times.drain_delay).await;
            self.drained().await;
            while self.asking.load(Ordering::Acquire) > 0 {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::select! {
            _ = tokio::time::timeout(times.upgrade_drain, finished) => {}
            () = signals.any() => self.refuse_and_wait(signals).await,
        }
    }
}

#[async_trait]
impl ShutdownSignalWatch for Drain {
    async fn recv(&self) -> ShutdownSignal {
        let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
        let (Ok(terminate), Ok(interrupt)) = signals else {
            log::error!("signals cannot be received: the process has to be killed");
            return std::future::pending().await;
        };
        let mut signals = Signals { terminate, interrupt };
        let mut successor = self.successor.clone();
        // Without a way to upgrade there is no sender, and never a successor.
        let succeeded = async move {
            if successor.wait_for(|pid| *pid != 0).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            _ = signals.terminate.recv() => self.drain(&mut signals).await,
            _ = signals.interrupt.recv() => notify::stopping(),
            () = succeeded => self.retire(&mut signals).await,
        }
        self.leave();
        self.shared.draining.store(true, Ordering::Release);
        self.close();
        self.shared.end_now.send_modify(|end| end.all = true);
        let _ = tokio::time::timeout(LAST_WORDS, self.drained()).await;
        self.closing_admin.send_replace(true);
        log::info!(running = self.running(); "exiting");
        ShutdownSignal::GracefulTerminate
    }
}
