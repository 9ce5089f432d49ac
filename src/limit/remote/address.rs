//! Where the shared store is, and how it is spoken to: `redis://`, or `rediss://` with TLS.
//!
//! Called by the check of the config and by the keeper. Reads the file that `sslrootcert` names.
//!
//! With TLS the certificate and its name are always verified. `sslrootcert=FILE` in the query names a PEM file to trust
//! instead of the system's roots, as in PostgreSQL's URLs.

use redis::{Client, TlsCertificates};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Why an address cannot be used. Says nothing of it: it holds a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not an address of Redis.
    #[error("write the address of a Redis or Valkey, such as redis://:password@10.0.0.9:6379/0, or rediss:// with TLS")]
    Address,
    /// A certificate that is not verified.
    #[error(
        "the store's certificate is always verified: leave #insecure out, and name its authority by ?sslrootcert=FILE"
    )]
    Insecure,
    /// `sslrootcert` without TLS.
    #[error("sslrootcert is for rediss://, which is with TLS")]
    WithoutTls,
    /// The file of `sslrootcert`.
    #[error("the file named by sslrootcert must hold certificates")]
    Roots,
}

/// The client of an address; connects to nobody yet.
///
/// # Errors
/// When the address or the file that it names cannot be used.
pub fn client(address: &str) -> Result<Client, AddressError> {
    let mut url = redis::parse_redis_url(address).ok_or(AddressError::Address)?;
    if url.fragment().is_some() {
        return Err(AddressError::Insecure);
    }
    let (roots, kept): (Vec<_>, Vec<_>) = url.query_pairs().into_owned().partition(|(name, _)| name == "sslrootcert");
    url.set_query(None);
    if !kept.is_empty() {
        url.query_pairs_mut().extend_pairs(kept);
    }
    let client = match (url.scheme(), roots.last()) {
        ("redis", None) => Client::open(url),
        ("redis", Some(_)) => return Err(AddressError::WithoutTls),
        ("rediss", file) => {
            let root_cert = file.map(|(_, file)| read(file)).transpose()?;
            Client::build_with_tls(url, TlsCertificates { client_tls: None, root_cert })
        }
        _ => return Err(AddressError::Address),
    };
    client.map_err(|_| AddressError::Address)
}

fn read(file: &str) -> Result<Vec<u8>, AddressError> {
    let pem = std::fs::read(file).map_err(|_| AddressError::Roots)?;
    let count = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>().map_err(|_| AddressError::Roots)?;
    if count.is_empty() { Err(AddressError::Roots) } else { Ok(pem) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g4_addresses_of_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let [good, empty] = ["good.pem", "empty.pem"].map(|name| folder.path().join(name).display().to_string());
        let key = rcgen::generate_simple_self_signed(vec!["store".to_owned()]).unwrap();
        std::fs::write(&good, key.cert.pem()).unwrap();
        std::fs::write(&empty, "").unwrap();
        for (address, expected) in [
            ("redis://10.0.0.9", None),
            ("redis://:p@10.0.0.9:6379/3?protocol=resp3", None),
            ("rediss://user:p@store.internal:6380", None),
            (&format!("rediss://store.internal?sslrootcert={good}"), None),
            (&format!("rediss://store.internal?sslrootcert={empty}"), Some(AddressError::Roots)),
            ("rediss://store.internal?sslrootcert=/nonexistent", Some(AddressError::Roots)),
            (&format!("redis://store.internal?sslrootcert={good}"), Some(AddressError::WithoutTls)),
            ("rediss://store.internal/#insecure", Some(AddressError::Insecure)),
            ("http://10.0.0.9", Some(AddressError::Address)),
            ("unix:///run/redis", Some(AddressError::Address)),
            ("10.0.0.9:6379", Some(AddressError::Address)),
        ] {
            assert_eq!(client(address).err(), expected, "{address}");
        }
    }
}
