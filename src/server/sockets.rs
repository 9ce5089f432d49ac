//! The sockets that the process listens on: opened by itself, or taken over from the process before it (C3).
//!
//! Made by the server at start; kept for the next process until nobody is let in any more.

use super::listen::ListenError;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// Every listening socket of the process, the admin's too.
#[derive(Debug, Default)]
pub(super) struct Sockets(Mutex<Vec<(SocketAddr, OwnedFd)>>);

impl Sockets {
    /// Those that another process handed over.
    pub(super) const fn new(handed: Vec<(SocketAddr, OwnedFd)>) -> Self {
        Self(Mutex::new(handed))
    }

    /// The socket for an address: one that was handed over, or a new one. Answers its address and a copy to listen
    /// with; the socket itself stays here.
    ///
    /// # Errors
    /// The address is taken, or not this machine's.
    pub(super) fn open(&self, address: SocketAddr) -> Result<(SocketAddr, OwnedFd), ListenError> {
        let bad = |reason| ListenError::Bind { address, reason };
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = held.iter().find(|(other, _)| *other == address && address.port() != 0);
        if let Some((_, socket)) = known {
            return Ok((address, socket.try_clone().map_err(bad)?));
        }
        let socket = TcpListener::bind(address).map_err(bad)?;
        socket.set_nonblocking(true).map_err(bad)?;
        let address = socket.local_addr().map_err(bad)?;
        let copy = OwnedFd::from(socket.try_clone().map_err(bad)?);
        held.push((address, socket.into()));
        Ok((address, copy))
    }

    /// Closes what was handed over and is not among these.
    pub(super) fn keep(&self, addresses: &[SocketAddr]) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|(address, _)| addresses.contains(address));
    }

    /// Copies of all, for the next process.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub(super) fn copies(&self) -> std::io::Result<Vec<(SocketAddr, OwnedFd)>> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.iter().map(|(address, socket)| Ok((*address, socket.try_clone()?))).collect()
    }

    /// Closes all of them; Pingora closes its own copies when its services end.
    pub(super) fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn c3_a_handed_socket_is_used_and_others_are_closed() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let first = Sockets::default();
        let (one, copy_of_one) = first.open(any).unwrap();
        let (two, copy_of_two) = first.open(any).unwrap();
        let next = Sockets::new(first.copies().unwrap());
        assert_eq!(next.open(one).unwrap().0, one, "not bound again, which would fail");
        next.keep(&[one]);
        assert_eq!(next.copies().unwrap().len(), 1);
        drop((copy_of_one, copy_of_two));
        first.close();
        assert!(std::net::TcpStream::connect(one).is_ok(), "the next process still listens");
        assert!(std::net::TcpStream::connect(two).is_err(), "nobody does any more");
    }
}
