//! Decides whose request it is: recognises the virtual key (G1).
//!
//! Called by the gateway on each request head. Touches nothing; the ring is built from the config
//! and from the store, and replaced whole when either changes.

use crate::config::{AllowedModels, Key};
use http::header::{AUTHORIZATION, COOKIE, HeaderName, PROXY_AUTHORIZATION};
use http::{HeaderMap, HeaderValue};
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;
use subtle::ConstantTimeEq;

#[cfg(test)]
mod tests;

/// Anthropic's header for a key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Every header that carries or may carry a client's credential. None of them ever goes up
/// (F8, B260), whatever the operator allows.
pub static CREDENTIAL_HEADERS: [HeaderName; 10] = [
    AUTHORIZATION,
    X_API_KEY,
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-goog-api-key"),
    HeaderName::from_static("x-auth-token"),
    HeaderName::from_static("x-access-token"),
    HeaderName::from_static("ocp-apim-subscription-key"),
    PROXY_AUTHORIZATION,
    COOKIE,
    HeaderName::from_static("cookie2"),
];

/// Why no key was recognised. The client sees one constant 401 for all of them (B311); the word
/// is for the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Neither header brings a key.
    #[error("no key")]
    Missing,
    /// No key of that text.
    #[error("unknown key")]
    Unknown,
    /// The key's time is over.
    #[error("expired key")]
    Expired,
    /// Two different valid keys.
    #[error("two valid keys")]
    Two,
    /// One of the headers came more than once.
    #[error("repeated key header")]
    Repeated,
}

impl KeyError {
    /// The record's word for the cause.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Missing => "missing_key",
            Self::Unknown => "unknown_key",
            Self::Expired => "expired_key",
            Self::Two => "two_keys",
            Self::Repeated => "repeated_key",
        }
    }
}

/// Keys by their digests: those of one config, or those of the store.
#[derive(Clone, Debug, Default)]
pub struct KeyRing {
    by_digest: HashMap<[u8; 32], Arc<Key>>,
}

impl KeyRing {
    /// The ring of these keys.
    #[must_use]
    pub fn new(keys: &[Arc<Key>]) -> Self {
        Self { by_digest: keys.iter().map(|key| (key.sha256, Arc::clone(key))).collect() }
    }

    /// Whether a key of that name is in it.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.by_digest.values().any(|key| key.name == name)
    }

    /// The key of that name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Arc<Key>> {
        self.by_digest.values().find(|key| key.name == name)
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_digest.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_digest.is_empty()
    }

    /// What the time of it tells is a place in a table of digests, hashed with a random seed: nothing about a secret,
    /// of which the digest is not known before. The digests themselves are compared in constant time.
    fn holder(&self, secret: &[u8]) -> Option<&Arc<Key>> {
        let digest: [u8; 32] = Sha256::digest(secret).into();
        let found = self.by_digest.get(&digest)?;
        bool::from(found.sha256.ct_eq(&digest)).then_some(found)
    }
}

/// The keys of the file, and those of the store, together. Where a name or a digest stands in both, the file wins.
#[derive(Clone, Copy, Debug)]
pub struct Keys<'a> {
    /// Of the file.
    pub file: &'a KeyRing,
    /// Names in the file: a stored key of the same name is not in force.
    pub names: &'a HashSet<String>,
    /// Of the store.
    pub store: &'a KeyRing,
}

impl Keys<'_> {
    /// The key that a request's headers bring, valid at `now` (G1): `authorization: Bearer` or
    /// `x-api-key`; of both, they must be equal or exactly one valid.
    pub fn find(&self, headers: &HeaderMap, now: SystemTime) -> Result<Arc<Key>, KeyError> {
        let bearer = only(headers, &AUTHORIZATION)?.and_then(bearer);
        let plain = only(headers, &X_API_KEY)?.map(|value| value.as_bytes().trim_ascii());
        let plain = plain.filter(|secret| !secret.is_empty());
        let has_header = headers.contains_key(AUTHORIZATION) && bearer.is_none();
        match (bearer, plain) {
            (None, None) if has_header => Err(KeyError::Unknown),
            (None, None) => Err(KeyError::Missing),
            (Some(secret), None) | (None, Some(secret)) => self.valid(secret, now),
            (Some(bearer), Some(plain)) => match (self.valid(bearer, now), self.valid(plain, now)) {
                (Ok(key), Ok(other)) if Arc::ptr_eq(&key, &other) => Ok(key),
                (Ok(_), Ok(_)) => Err(KeyError::Two),
                (Ok(key), Err(_)) | (Err(_), Ok(key)) => Ok(key),
                (Err(KeyError::Expired), Err(_)) | (Err(_), Err(KeyError::Expired)) => Err(KeyError::Expired),
                (Err(error), Err(_)) => Err(error),
            },
        }
    }

    fn valid(&self, secret: &[u8], now: SystemTime) -> Result<Arc<Key>, KeyError> {
        let key = self.holder(secret).ok_or(KeyError::Unknown)?;
        if key.expires.is_some_and(|expires| now > expires) { Err(KeyError::Expired) } else { Ok(Arc::clone(key)) }
    }

    fn holder(&self, secret: &[u8]) -> Option<&Arc<Key>> {
        let stored = || self.store.holder(secret).filter(|key| !self.names.contains(&key.name));
        self.file.holder(secret).or_else(stored)
    }
}

/// Whether the key may use the model of that public name (not an alias).
#[must_use]
pub fn may_use(key: &Key, model: &str) -> bool {
    match &key.models {
        AllowedModels::All => true,
        AllowedModels::Named(names) => names.iter().any(|name| name == model),
    }
}

/// Whether the key may be used from that address; an unknown address only by a key without a list.
/// An IPv4 address inside IPv6 counts as IPv4.
#[must_use]
pub fn may_come_from(key: &Key, client: Option<IpAddr>) -> bool {
    key.allow_ips.is_empty()
        || client.is_some_and(|ip| {
            let plain = ip.to_canonical();
            key.allow_ips.iter().any(|net| net.contains(&plain) || net.contains(&ip))
        })
}

/// The header's value, if it came once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h HeaderValue>, KeyError> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() { Err(KeyError::Repeated) } else { Ok(first) }
}

/// The token of `Bearer TOKEN`, the scheme in any case.
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, rest) = value.as_bytes().trim_ascii().split_at_checked(6)?;
    let token = rest.trim_ascii();
    let apart = rest.first().is_some_and(u8::is_ascii_whitespace);
    (apart && scheme.eq_ignore_ascii_case(b"bearer") && !token.is_empty()).then_some(token)
}
