//! Turns a provider's name into addresses without blocking anybody (A13).
//!
//! Called when an attempt connects. Touches the system's resolver, so that hosts files, search
//! domains and a cluster's own rules hold; remembers answers for a while and keeps an old one
//! when the resolver fails.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// `getaddrinfo` does not tell the record's own lifetime; this is short enough to follow a moved
/// service and long enough to keep the resolver out of the way of requests.
const FRESH_FOR: Duration = Duration::from_secs(30);
/// More addresses than this are not tried within one connect.
const MAX_ADDRESSES: usize = 4;

/// The name does not resolve, and never did.
#[derive(Debug, thiserror::Error)]
#[error("{host} does not resolve: {reason}")]
pub struct Unresolved {
    host: String,
    reason: String,
}

#[derive(Clone, Debug)]
struct Known {
    addresses: Vec<SocketAddr>,
    at: Instant,
}

/// The names that were looked up.
#[derive(Debug, Default)]
pub struct Resolver {
    known: Mutex<HashMap<(String, u16), Known>>,
}

impl Resolver {
    /// The addresses of `host`, the one that worked last first, then families in turn.
    ///
    /// # Errors
    /// When the resolver has no answer and no earlier one is known.
    pub async fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Unresolved> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let known = self.known(host, port);
        if let Some(known) = &known
            && known.at.elapsed() < FRESH_FOR
        {
            return Ok(known.addresses.clone());
        }
        match tokio::net::lookup_host((host, port)).await.map(|found| families_in_turn(found.collect())) {
            Ok(addresses) if !addresses.is_empty() => {
                self.learn(host, port, addresses.clone());
                Ok(addresses)
            }
            answer => {
                let reason = answer.err().map_or_else(|| "no addresses".to_owned(), |error| error.to_string());
                let Some(known) = known else { return Err(Unresolved { host: host.to_owned(), reason }) };
                log::warn!(host, reason; "name lookup failed, the last known addresses are used");
                Ok(known.addresses)
            }
        }
    }

    /// `address` took a connection: it is tried first from now on.
    pub fn worked(&self, host: &str, port: u16, address: SocketAddr) {
        let Ok(mut known) = self.known.lock() else { return };
        let Some(known) = known.get_mut(&(host.to_owned(), port)) else { return };
        if let Some(at) = known.addresses.iter().position(|known| *known == address)
            && let Some(until) = known.addresses.get_mut(..=at)
        {
            until.rotate_right(1);
        }
    }

    fn known(&self, host: &str, port: u16) -> Option<Known> {
        self.known.lock().ok()?.get(&(host.to_owned(), port)).cloned()
    }

    fn learn(&self, host: &str, port: u16, addresses: Vec<SocketAddr>) {
        if let Ok(mut known) = self.known.lock() {
            known.insert((host.to_owned(), port), Known { addresses, at: Instant::now() });
        }
    }
}

/// IPv6 and IPv4 alternate, so that a broken family costs one try, not all (RFC 8305 in small).
fn families_in_turn(found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let (mut six, mut four): (Vec<_>, Vec<_>) = found.into_iter().partition(SocketAddr::is_ipv6);
    let mut turn = Vec::with_capacity(MAX_ADDRESSES);
    six.reverse();
    four.reverse();
    while turn.len() < MAX_ADDRESSES {
        let before = turn.len();
        turn.extend(six.pop());
        turn.extend(four.pop());
        if turn.len() == before {
            break;
        }
    }
    turn.truncate(MAX_ADDRESSES);
    turn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a13_families_take_turns() {
        let all = ["[::1]:1", "[::2]:1", "127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1"].map(|text| text.parse().unwrap());
        let turn = families_in_turn(all.to_vec());
        assert_eq!(turn, ["[::1]:1", "127.0.0.1:1", "[::2]:1", "127.0.0.2:1"].map(|text| text.parse().unwrap()));
    }

    #[tokio::test]
    async fn a13_a_name_that_stops_resolving_keeps_its_last_addresses() {
        let resolver = Resolver::default();
        let address: SocketAddr = "192.0.2.1:80".parse().unwrap();
        let old = Instant::now().checked_sub(FRESH_FOR * 2).unwrap();
        let known = Known { addresses: vec![address], at: old };
        resolver.known.lock().unwrap().insert(("gone.invalid".to_owned(), 80), known);
        assert_eq!(resolver.addresses("gone.invalid", 80).await.unwrap(), [address]);
        assert!(resolver.addresses("never.invalid", 80).await.is_err());
    }

    #[test]
    fn a13_the_address_that_worked_comes_first() {
        let resolver = Resolver::default();
        let [a, b, c] = ["192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80"].map(|text| text.parse().unwrap());
        resolver.learn("x", 80, vec![a, b, c]);
        resolver.worked("x", 80, b);
        assert_eq!(resolver.known("x", 80).unwrap().addresses, [b, a, c]);
    }
}
