//! Makes the secret of a new key.
//!
//! Called when a key is made. Touches the system's random numbers.

use sha2::{Digest, Sha256};

/// How each begins, so that people and secret scanners know it when they see it.
const MARK: &str = "weir-";
/// 43 of 62 letters: 256 bits.
const LETTERS: usize = 43;
/// Of them shown in lists.
const SHOWN: usize = 6;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A new secret; prints as stars.
pub struct Minted(String);

impl Minted {
    /// From the system's random numbers.
    ///
    /// # Panics
    /// Never: when the system has none, the process ends, since no secret may be made then.
    #[must_use]
    pub(super) fn new() -> Self {
        let random = rustls::crypto::ring::default_provider().secure_random;
        let mut secret = MARK.to_owned();
        while secret.len() < MARK.len() + LETTERS {
            let mut bytes = [0_u8; 64];
            if random.fill(&mut bytes).is_err() {
                std::process::abort();
            }
            // Beyond the last whole round the first letters would come more often.
            let fair = bytes.iter().filter(|byte| **byte < 248);
            let letters = fair.filter_map(|byte| ALPHABET.get(usize::from(byte % 62)).copied()).map(char::from);
            secret.extend(letters.take(MARK.len() + LETTERS - secret.len()));
        }
        Self(secret)
    }

    /// The secret itself: to be shown once.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// How it begins.
    pub(super) fn prefix(&self) -> &str {
        self.0.get(..MARK.len() + SHOWN).unwrap_or_default()
    }

    pub(super) fn digest(&self) -> [u8; 32] {
        Sha256::digest(&self.0).into()
    }
}

impl std::fmt::Debug for Minted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}
