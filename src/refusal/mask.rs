//! Decides whether an upstream's message tells too much for the client (A6).
//!
//! Called for each text of an upstream's error. Touches nothing. It looks at words, not at
//! grammar; in doubt it masks, except for what providers write about the client's own request
//! (paths like `messages.0.content`, tool call ids), which a client needs to see.

use crate::config::Secret;
use std::net::IpAddr;

#[cfg(test)]
mod tests;

/// What must not be shown, of the attempt whose error it is.
#[derive(Clone, Copy, Debug)]
pub struct MaskList<'a> {
    /// The model's name at the target.
    pub target_model: &'a str,
    /// The name that the client sent.
    pub public_model: &'a str,
    /// The provider's host, a name or an address.
    pub provider_host: &'a str,
    /// The provider's keys.
    pub keys: &'a [Secret],
}

/// Longer messages are no sentences for people (a page, a stack trace, a prompt): they are masked.
const MAX_MESSAGE: usize = 4096;

/// Words of transport errors: what stands near them is a host, whatever it looks like (B112, B113, B136).
const TRANSPORT: [&str; 18] = [
    "://",
    "localhost",
    "econnre",
    "connection refused",
    "connection reset",
    "connect error",
    "connect to host",
    "cannot connect",
    "could not connect",
    "dial tcp",
    "enotfound",
    "getaddrinfo",
    "no such host",
    "name or service not known",
    "httpconnectionpool",
    "httpsconnectionpool",
    "traceback (most recent",
    "rst_stream",
];

/// How keys, organisations and projects begin at the providers that mark them.
const MARKED: [&str; 22] = [
    "sk-", "sk_", "pk-", "pk_", "rk-", "gsk_", "xai-", "hf_", "nvapi-", "pplx-", "csk-", "fw_", "tgp_", "r8_", "aiza",
    "akia", "org-", "org_", "proj_", "proj-", "wrkspc_", "team-",
];

/// Of [`MARKED`], what follows the mark, at least: shorter is a word (`team-mate`).
const MARKED_TAIL: usize = 6;

/// Shorter strings after "key" are names, longer ones with digits are keys.
const KEY_LENGTH: usize = 16;

/// Last labels that make a dotted word a host. No list of all: `choices.message.content` has the
/// shape of a host too. The provider's own host is found whatever it ends in.
const HOST_ENDINGS: [&str; 26] = [
    "com", "net", "org", "io", "ai", "dev", "cloud", "app", "co", "cn", "eu", "de", "uk", "fr", "jp", "kr", "sg", "ru",
    "tech", "xyz", "internal", "local", "lan", "corp", "intra", "svc",
];

/// What a message says that speaks of a credential. Not bare "key" or "token": those are about
/// JSON members and counts.
const ABOUT_KEYS: [&str; 9] =
    ["api key", "api_key", "apikey", "api-key", "access token", "secret", "bearer", "credential", "authoriz"];

/// What a message says that speaks of an account; then a UUID is its id.
const ABOUT_ACCOUNTS: [&str; 7] =
    ["organization", "organisation", "(org", "project", "subscription", "tenant", "workspace"];

/// Whether the message holds a host, an organisation's or project's id, a key, or the target's
/// model name where the client knows it by another. In doubt, yes.
#[must_use]
pub fn masks(message: &str, secrets: &MaskList<'_>) -> bool {
    if message.len() > MAX_MESSAGE || secrets.keys.iter().any(|key| holds(message, key.expose())) {
        return true;
    }
    let lower = message.to_lowercase();
    let (public, target) = (secrets.public_model.to_lowercase(), secrets.target_model.to_lowercase());
    // `sol` inside the public name `gpt-5.6-sol` tells nothing, nor do the digits of a date in it;
    // but `gpt-5.6-sol-8b` tells more than that.
    let rest = if public.is_empty() { lower.clone() } else { lower.replace(&public, " ") };
    let told_in = if public.contains(&target) { &rest } else { &lower };
    TRANSPORT.iter().any(|word| lower.contains(word))
        || holds(&lower, &secrets.provider_host.to_lowercase())
        || names(told_in, &target)
        || has_telling_word(&lower)
        || has_key(&rest)
}

fn holds(message: &str, secret: &str) -> bool {
    !secret.is_empty() && message.contains(secret)
}

/// The target's model name, not as a part of a longer word.
fn names(lower: &str, target: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let alone = |(at, found): (usize, &str)| {
        let (before, after) = (lower.get(..at), lower.get(at.saturating_add(found.len())..));
        !inside(before.and_then(|text| text.chars().next_back())) && !inside(after.and_then(|text| text.chars().next()))
    };
    !target.is_empty() && lower.match_indices(target).any(alone)
}

/// Words as people separate them; what belongs to hosts, keys and addresses stays together.
fn words(lower: &str) -> impl Iterator<Item = &str> {
    let apart = |c: char| {
        !(c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '*' | '+' | '/' | '@' | '[' | ']' | '%'))
    };
    lower.split(apart).map(|word| word.trim_matches(['.', ':', '/', '-'])).filter(|word| !word.is_empty())
}

fn has_telling_word(lower: &str) -> bool {
    let about_account = ABOUT_ACCOUNTS.iter().any(|word| lower.contains(word));
    words(lower).any(|word| {
        is_address(word) || is_host(word) || parts(word).any(|part| is_marked(part) || (about_account && is_uuid(part)))
    })
}

/// Something like a key in a message that speaks of one.
fn has_key(lower: &str) -> bool {
    let about_key = ABOUT_KEYS.iter().any(|word| lower.contains(word));
    about_key && words(lower).flat_map(parts).any(looks_like_key)
}

fn parts(word: &str) -> impl Iterator<Item = &str> {
    word.split([':', '/', '@'])
}

/// An IP address, with or without port.
fn is_address(word: &str) -> bool {
    let without_port = word.rsplit_once(':').map(|(host, _)| host);
    [Some(word), without_port].into_iter().flatten().any(|host| {
        let bare = host.trim_matches(['[', ']', '/']);
        // `::` alone and `1::2` stand in code and paths; an address has more to it.
        bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4() || bare.len() > 6)
    })
}

/// `name.tld`, `name.tld:port/path`, `user@name.tld`, `machine-7:8000`.
fn is_host(word: &str) -> bool {
    let word = word.rsplit_once('@').map_or(word, |(_, host)| host);
    let word = word.split('/').next().unwrap_or_default();
    let (name, port) = word.split_once(':').map_or((word, None), |(name, port)| (name, Some(port)));
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | '_');
    if name.is_empty() || !name.chars().all(plain) || !name.contains(char::is_alphabetic) {
        return false;
    }
    let dotted = name.rsplit_once('.').is_some_and(|(rest, last)| !rest.is_empty() && HOST_ENDINGS.contains(&last));
    let has_port = port.is_some_and(|port| (2..=5).contains(&port.len()) && port.chars().all(|c| c.is_ascii_digit()));
    dotted || (has_port && name.contains(['-', '.']))
}

/// `sk-…`, `org-…`, `proj_…` and their like, also with stars in them.
fn is_marked(word: &str) -> bool {
    MARKED.iter().any(|mark| {
        word.strip_prefix(mark).is_some_and(|tail| {
            tail.len() >= MARKED_TAIL
                && (tail.contains(|c: char| c.is_ascii_digit() || c == '*') || tail.len() >= KEY_LENGTH)
        })
    })
}

fn is_uuid(word: &str) -> bool {
    word.len() == 36 && word.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// A long word with digits in it that is no path or tool call, or one that was starred out.
fn looks_like_key(word: &str) -> bool {
    if word.contains("***") {
        return true;
    }
    let known_id = ["toolu_", "call_", "msg_", "resp_", "chatcmpl-", "req_", "fc_", "rs_", "srvtoolu_"];
    let digits = word.chars().filter(char::is_ascii_digit).count();
    let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '+' | '/'));
    word.len() >= KEY_LENGTH && digits >= 3 && plain && !known_id.iter().any(|known| word.starts_with(known))
}
