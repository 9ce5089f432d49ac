//! How the process ends (C3): not ready at once, serve a little longer, let streams finish, end the rest.
//!
//! Called by Pingora, once. Pingora alone would sleep its whole grace period.

use crate::admin::{AdminState, Readiness};
use crate::config;
use crate::gateway::Shared;
use async_trait::async_trait;
use pingora_core::server::{ShutdownSignal, ShutdownSignalWatch};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How often the running requests are counted.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What the endings of cut streams may take to be written.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Waits for the signal and drains.
pub(super) struct Drain {
    shared: Arc<Shared>,
    state: Arc<AdminState>,
    delay: Duration,
    limit: Duration,
}

impl Drain {
    pub(super) const fn new(shared: Arc<Shared>, state: Arc<AdminState>, server: &config::Server) -> Self {
        Self { shared, state, delay: server.drain_delay, limit: server.drain }
    }

    async fn drained(&self) {
        while self.shared.running.load(Ordering::Acquire) > 0 {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn drain(&self, again: &mut Signal, interrupt: &mut Signal) {
        self.state.set_readiness(Readiness::Draining);
        log::info!("draining: not ready, requests are still served");
        tokio::select! {
            () = tokio::time::sleep(self.delay) => {}
            _ = again.recv() => return,
            _ = interrupt.recv() => return,
        }
        self.shared.draining.store(true, Ordering::Release);
        log::info!(running = self.shared.running.load(Ordering::Acquire); "draining: new requests are refused");
        tokio::select! {
            () = self.drained() => {}
            () = tokio::time::sleep(self.limit) => {}
            _ = again.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}

#[async_trait]
impl ShutdownSignalWatch for Drain {
    async fn recv(&self) -> ShutdownSignal {
        let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
        let (Ok(mut terminate), Ok(mut interrupt)) = signals else {
            log::error!("signals cannot be received: the process has to be killed");
            return std::future::pending().await;
        };
        tokio::select! {
            _ = terminate.recv() => self.drain(&mut terminate, &mut interrupt).await,
            _ = interrupt.recv() => {}
        }
        self.shared.draining.store(true, Ordering::Release);
        self.state.set_readiness(Readiness::Draining);
        self.shared.end_now.send_modify(|end| end.all = true);
        let _ = tokio::time::timeout(LAST_WORDS, self.drained()).await;
        log::info!(running = self.shared.running.load(Ordering::Acquire); "exiting");
        ShutdownSignal::GracefulTerminate
    }
}
