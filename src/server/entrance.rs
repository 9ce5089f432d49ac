//! Pingora's listening service over sockets that Weir opened or took over, and that Weir closes (C3).
//!
//! Pingora closes its listeners only when it ends whole: here they close when the drain says so, while connections
//! live on. Made by the server, run by Pingora.

use async_trait::async_trait;
use pingora_core::apps::ServerApp;
use pingora_core::server::{ListenFds, RuntimeOpts, ShutdownWatch};
use pingora_core::services::Service as PingoraService;
use pingora_core::services::listening::Service;
use std::os::fd::{IntoRawFd, OwnedFd};
use tokio::sync::watch;

/// A service with its own sockets.
pub(super) struct Entrance<A> {
    pub(super) service: Service<A>,
    /// By the address that the service was told.
    pub(super) sockets: Vec<(String, OwnedFd)>,
    /// Turns true when nobody is let in any more.
    pub(super) closing: watch::Receiver<bool>,
}

#[async_trait]
impl<A: ServerApp + Send + Sync + 'static> PingoraService for Entrance<A> {
    async fn start_service(&mut self, fds: Option<ListenFds>, _: ShutdownWatch, listeners_per_fd: usize) {
        if let Some(fds) = &fds {
            let mut fds = fds.lock();
            for (address, socket) in self.sockets.drain(..) {
                fds.add(address, socket.into_raw_fd());
            }
        }
        self.service.start_service(fds, self.closing.clone(), listeners_per_fd).await;
    }

    fn name(&self) -> &str {
        PingoraService::name(&self.service)
    }

    fn threads(&self) -> Option<usize> {
        PingoraService::threads(&self.service)
    }

    fn runtime_opts_override(&self, global: &RuntimeOpts) -> Option<RuntimeOpts> {
        PingoraService::runtime_opts_override(&self.service, global)
    }

    fn listen_addresses(&self) -> Option<Vec<String>> {
        PingoraService::listen_addresses(&self.service)
    }
}
