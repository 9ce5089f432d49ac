//! The built-in scripted model (`builtin: demo`): an upstream inside the process.
//!
//! Started by the server when a provider asks for it, and by tests. Owns one loopback socket.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::sync::watch;

/// The model, bound to its port but not serving yet.
#[derive(Debug)]
pub struct Demo {
    listener: std::net::TcpListener,
}

impl Demo {
    /// Binds a loopback port that the system chooses; needs no runtime.
    ///
    /// # Errors
    /// No socket can be opened or bound.
    pub fn bind() -> io::Result<(Self, SocketAddr)> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((Self { listener }, address))
    }

    /// Serves until `shutdown` turns true (or its sender is gone), then drops whatever still runs.
    ///
    /// # Errors
    /// The listener cannot be used by this runtime.
    pub async fn serve(self, mut shutdown: watch::Receiver<bool>) -> io::Result<()> {
        let _listener = tokio::net::TcpListener::from_std(self.listener)?;
        let _gone = shutdown.wait_for(|stop| *stop).await;
        Ok(())
    }
}
