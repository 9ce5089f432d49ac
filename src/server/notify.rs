//! Tells a service manager how the process is (systemd's `Type=notify`).
//!
//! Called by the server when it serves and when it ends. Does nothing without `NOTIFY_SOCKET`.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// This process serves, and is the service's main one: after an upgrade it is another than at the start.
pub(super) fn serving() {
    tell(&format!("READY=1\nMAINPID={}", std::process::id()));
}

/// This process ends, and with it the service.
pub(super) fn stopping() {
    tell("STOPPING=1");
}

#[expect(clippy::disallowed_methods, reason = "no setting: the service manager's own way to name its socket")]
fn tell(what: &str) {
    let Ok(path) = std::env::var("NOTIFY_SOCKET") else { return };
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(what.as_bytes(), &address));
    if let Err(error) = sent {
        log::warn!(error:%; "the service manager cannot be told");
    }
}
