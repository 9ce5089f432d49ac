//! Decides where a client is: at the other end of the connection, or where a trusted proxy says (B3).
//!
//! Called by the gateway, once per request. Touches nothing.

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The client's address: the peer's, unless it is one of the `trusted` proxies; then the rightmost address of
/// `x-forwarded-for` that is none of them, or the leftmost if all are. `None`: a trusted proxy wrote what is no address.
#[must_use]
pub fn client_address(peer: Option<IpAddr>, headers: &HeaderMap, trusted: &[IpNet]) -> Option<IpAddr> {
    let is_trusted = |address: IpAddr| {
        let plain = address.to_canonical();
        trusted.iter().any(|net| net.contains(&plain) || net.contains(&address))
    };
    let mut address = peer?;
    let lines = headers.get_all(FORWARDED_FOR).iter().rev();
    for entry in lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b',')) {
        if !is_trusted(address) {
            break;
        }
        address = parse(std::str::from_utf8(entry).ok()?.trim())?;
    }
    Some(address)
}

/// An address as proxies write it, some with a port.
fn parse(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    bare.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b3_only_trusted_proxies_are_believed() {
        let trusted: Vec<IpNet> = ["10.0.0.0/8", "2001:db8::/32"].map(|net| net.parse().unwrap()).into();
        for (peer, lines, expected) in [
            ("203.0.113.7", &[][..], Some("203.0.113.7")),
            ("203.0.113.7", &["198.51.100.1"], Some("203.0.113.7")),
            ("10.0.0.1", &[], Some("10.0.0.1")),
            ("10.0.0.1", &["198.51.100.1"], Some("198.51.100.1")),
            ("::ffff:10.0.0.1", &["198.51.100.1"], Some("198.51.100.1")),
            // What a client wrote itself stands to the left.
            ("10.0.0.1", &["1.2.3.4, 198.51.100.1"], Some("198.51.100.1")),
            ("10.0.0.1", &["1.2.3.4, 198.51.100.1,10.9.9.9"], Some("198.51.100.1")),
            ("10.0.0.1", &["1.2.3.4", "198.51.100.1", " 10.9.9.9 "], Some("198.51.100.1")),
            ("10.0.0.1", &["10.2.2.2, 10.3.3.3"], Some("10.2.2.2")),
            ("10.0.0.1", &["198.51.100.1:5123"], Some("198.51.100.1")),
            ("10.0.0.1", &["[2001:db9::1]:443"], Some("2001:db9::1")),
            ("10.0.0.1", &["2001:db9::1"], Some("2001:db9::1")),
            ("2001:db8::9", &["[2001:db9::1]"], Some("2001:db9::1")),
            ("10.0.0.1", &["unknown"], None),
            ("10.0.0.1", &["1.2.3.4, "], None),
            ("10.0.0.1", &["garbage, 198.51.100.1"], Some("198.51.100.1")),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(FORWARDED_FOR, line.parse().unwrap());
            }
            let found = client_address(Some(peer.parse().unwrap()), &headers, &trusted);
            assert_eq!(found, expected.map(|text| text.parse().unwrap()), "{peer} {lines:?}");
            assert_eq!(client_address(Some(peer.parse().unwrap()), &headers, &[]), Some(peer.parse().unwrap()));
        }
        assert_eq!(client_address(None, &HeaderMap::new(), &trusted), None);
    }
}
