//! Reads the PROXY protocol's header, versions 1 and 2, in front of a connection (B3).
//!
//! Called once per connection of a listener with `proxy_protocol: true`. Reads not one byte more than the header.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::io::{AsyncRead, AsyncReadExt};

/// How version 2 begins.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Version 1, with its line end.
const LONGEST_LINE: usize = 107;
/// Version 2: addresses and what balancers add to them (TLS data, ids); more is no header.
const LONGEST_BLOCK: usize = 4096;

/// Where the client is. `None`: the balancer speaks for itself (a health check), or does not know.
///
/// # Errors
/// When what comes is no PROXY header, or the connection ends.
pub(super) async fn read_header(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SocketAddr>> {
    let mut start = [0; SIGNATURE.len()];
    // The shortest line of version 1 is longer.
    io.read_exact(&mut start).await?;
    if start == *SIGNATURE { block(io).await } else { line(io, &start).await }
}

async fn line(io: &mut (impl AsyncRead + Unpin), start: &[u8]) -> io::Result<Option<SocketAddr>> {
    if !start.starts_with(b"PROXY ") {
        return Err(bad("it does not begin with a PROXY header"));
    }
    let mut line = start.to_vec();
    while !line.ends_with(b"\r\n") {
        if line.len() >= LONGEST_LINE {
            return Err(bad("its PROXY line is too long"));
        }
        line.push(io.read_u8().await?);
    }
    let text = std::str::from_utf8(&line).map_err(|_| bad("its PROXY line is no text"))?;
    let words: Vec<&str> = text.trim_end_matches("\r\n").split(' ').collect();
    let malformed = || bad("its PROXY line is malformed");
    match words.as_slice() {
        ["PROXY", "UNKNOWN", ..] => Ok(None),
        ["PROXY", family @ ("TCP4" | "TCP6"), source, to, port, to_port] => {
            let (source, to): (IpAddr, IpAddr) =
                (source.parse().map_err(|_| malformed())?, to.parse().map_err(|_| malformed())?);
            let port: u16 = port.parse().map_err(|_| malformed())?;
            let _: u16 = to_port.parse().map_err(|_| malformed())?;
            if source.is_ipv4() != (*family == "TCP4") || to.is_ipv4() != source.is_ipv4() {
                return Err(malformed());
            }
            Ok(Some(SocketAddr::new(source, port)))
        }
        _ => Err(malformed()),
    }
}

async fn block(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SocketAddr>> {
    let (version, family, length) = (io.read_u8().await?, io.read_u8().await?, usize::from(io.read_u16().await?));
    if version >> 4 != 2 || length > LONGEST_BLOCK {
        return Err(bad("its PROXY header is of no known version"));
    }
    let mut data = vec![0; length];
    io.read_exact(&mut data).await?;
    let short = || bad("its PROXY header is too short");
    let port = |at: usize| {
        let bytes = data.get(at..at + 2).and_then(|bytes| <[u8; 2]>::try_from(bytes).ok());
        bytes.map(u16::from_be_bytes).ok_or_else(short)
    };
    match (version & 0x0f, family) {
        (1, 0x11) => {
            let source: [u8; 4] = data.get(..4).and_then(|bytes| bytes.try_into().ok()).ok_or_else(short)?;
            Ok(Some(SocketAddr::new(Ipv4Addr::from(source).into(), port(8)?)))
        }
        (1, 0x21) => {
            let source: [u8; 16] = data.get(..16).and_then(|bytes| bytes.try_into().ok()).ok_or_else(short)?;
            Ok(Some(SocketAddr::new(Ipv6Addr::from(source).into(), port(32)?)))
        }
        // The balancer itself, or no address of the Internet.
        (0 | 1, _) => Ok(None),
        _ => Err(bad("its PROXY header has an unknown command")),
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Said<'a> = Result<Option<&'a str>, io::ErrorKind>;

    /// What the header says, and what of the bytes is left.
    async fn read(mut bytes: &[u8]) -> (Result<Option<String>, io::ErrorKind>, usize) {
        let read = read_header(&mut bytes).await;
        (read.map(|found| found.map(|address| address.to_string())).map_err(|error| error.kind()), bytes.len())
    }

    fn v2(command: u8, family: u8, data: &[u8]) -> Vec<u8> {
        let length = u16::try_from(data.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[0x20 | command, family], &length, data, b"GET /"].concat()
    }

    #[tokio::test]
    async fn b3_proxy_headers_are_read_to_their_last_byte() {
        use io::ErrorKind::{InvalidData, UnexpectedEof};
        let ip6 = [[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]; 2].concat();
        let four = [192, 0, 2, 7, 10, 0, 0, 1, 0x14, 0x51, 0x01, 0xbb];
        let rows: Vec<(Vec<u8>, Said<'_>)> = vec![
            (b"PROXY TCP4 192.0.2.7 10.0.0.1 5201 443\r\nGET /".to_vec(), Ok(Some("192.0.2.7:5201"))),
            (b"PROXY TCP6 2001:db8::1 2001:db8::2 5201 443\r\nGET /".to_vec(), Ok(Some("[2001:db8::1]:5201"))),
            (b"PROXY UNKNOWN\r\nGET /".to_vec(), Ok(None)),
            (b"PROXY UNKNOWN a b c d\r\nGET /".to_vec(), Ok(None)),
            (v2(1, 0x11, &four), Ok(Some("192.0.2.7:5201"))),
            (v2(1, 0x11, &[&four[..], b"\x04\0\x01x"].concat()), Ok(Some("192.0.2.7:5201"))),
            (v2(1, 0x21, &[&ip6[..], &[0x14, 0x51, 1, 0xbb]].concat()), Ok(Some("[2001:db8::1]:5201"))),
            (v2(0, 0, &[]), Ok(None)),
            (v2(0, 0x11, &four), Ok(None)),
            (v2(1, 0x31, &[0; 216]), Ok(None)),
            (v2(1, 0x11, &four[..9]), Err(InvalidData)),
            (v2(2, 0x11, &four), Err(InvalidData)),
            (v2(1, 0x11, &[0; 5000]), Err(InvalidData)),
            (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(), Err(InvalidData)),
            (b"PROXY TCP4 192.0.2.7 10.0.0.1 5201\r\n".to_vec(), Err(InvalidData)),
            (b"PROXY TCP4 2001:db8::1 10.0.0.1 1 2\r\n".to_vec(), Err(InvalidData)),
            (b"PROXY TCP4 192.0.2.7 10.0.0.1 5201 99999\r\n".to_vec(), Err(InvalidData)),
            (b"PROXY TCP4 192.0.2.7 10.0.0.1 5201 443\nGET /\r\n".to_vec(), Err(InvalidData)),
            ([&b"PROXY UNKNOWN "[..], &[b'x'; 200]].concat(), Err(InvalidData)),
            (b"PROXY TCP4 192.0".to_vec(), Err(UnexpectedEof)),
            (b"PRO".to_vec(), Err(UnexpectedEof)),
        ];
        for (bytes, expected) in rows {
            let (found, left) = read(&bytes).await;
            assert_eq!(
                found,
                expected.map(|address| address.map(str::to_owned)),
                "{:?}",
                bytes.escape_ascii().to_string()
            );
            if found.is_ok() {
                assert_eq!(left, 5, "{:?}", bytes.escape_ascii().to_string());
            }
        }
    }
}
