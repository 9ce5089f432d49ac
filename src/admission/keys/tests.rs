use super::{CREDENTIAL_HEADERS, KeyError, KeyRing, Keys, may_come_from, may_use};
use crate::config::{AllowedModels, Key, Limits};
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

fn key(name: &str, secret: &str, expires: Option<SystemTime>) -> Arc<Key> {
    Arc::new(Key {
        name: name.to_owned(),
        sha256: Sha256::digest(secret).into(),
        models: AllowedModels::Named(vec!["sol".to_owned()]),
        tag: None,
        expires,
        allow_ips: vec![],
        limits: Limits::default(),
    })
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)
}

fn find(lines: &[(&'static str, &str)]) -> Result<String, KeyError> {
    let soon = now() + Duration::from_secs(1);
    let past = now() - Duration::from_secs(1);
    let ring = KeyRing::new(&[
        key("a", "wr-a", None),
        key("b", "wr-b", Some(soon)),
        key("old", "wr-old", Some(past)),
        key("last", "wr-last", Some(now())),
    ]);
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    of_file(&ring).find(&headers, now()).map(|key| key.name.clone())
}

fn of_file(file: &KeyRing) -> Keys<'_> {
    static NONE: LazyLock<(HashSet<String>, KeyRing)> = LazyLock::new(Default::default);
    Keys { file, names: &NONE.0, store: &NONE.1 }
}

#[test]
fn g1_table_of_keys() {
    const AUTH: &str = "authorization";
    const API: &str = "x-api-key";
    for (lines, expected) in [
        (&[(AUTH, "Bearer wr-a")][..], Ok("a")),
        (&[(AUTH, "bEaReR \t wr-b  ")], Ok("b")),
        (&[(API, "wr-b")], Ok("b")),
        (&[(API, " wr-a ")], Ok("a")),
        (&[(AUTH, "Bearer wr-last")], Ok("last")),
        (&[], Err(KeyError::Missing)),
        (&[("api-key", "wr-a")], Err(KeyError::Missing)),
        (&[(API, "")], Err(KeyError::Missing)),
        (&[(AUTH, "Bearer")], Err(KeyError::Unknown)),
        (&[(AUTH, "Bearer ")], Err(KeyError::Unknown)),
        (&[(AUTH, "wr-a")], Err(KeyError::Unknown)),
        (&[(AUTH, "Basic wr-a")], Err(KeyError::Unknown)),
        (&[(AUTH, "Bearerwr-a")], Err(KeyError::Unknown)),
        (&[(AUTH, "Bearer wr-A")], Err(KeyError::Unknown)),
        (&[(AUTH, "Bearer wr-")], Err(KeyError::Unknown)),
        (&[(AUTH, "Bearer \u{5b57}")], Err(KeyError::Unknown)),
        (&[(AUTH, "Bearer wr-old")], Err(KeyError::Expired)),
        // both
        (&[(AUTH, "Bearer wr-a"), (API, "wr-a")], Ok("a")),
        (&[(AUTH, "Bearer wr-a"), (API, "dummy")], Ok("a")),
        (&[(AUTH, "Bearer dummy"), (API, "wr-a")], Ok("a")),
        (&[(AUTH, "Basic x"), (API, "wr-a")], Ok("a")),
        (&[(AUTH, "Bearer wr-a"), (API, "wr-old")], Ok("a")),
        (&[(AUTH, "Bearer wr-a"), (API, "wr-b")], Err(KeyError::Two)),
        (&[(AUTH, "Bearer x"), (API, "y")], Err(KeyError::Unknown)),
        (&[(AUTH, "Bearer x"), (API, "wr-old")], Err(KeyError::Expired)),
        // repeated
        (&[(API, "wr-a"), (API, "wr-a")], Err(KeyError::Repeated)),
        (&[(AUTH, "Bearer wr-a"), (AUTH, "Bearer wr-a")], Err(KeyError::Repeated)),
        (&[(AUTH, "Bearer wr-a"), (API, "x"), (API, "y")], Err(KeyError::Repeated)),
    ] {
        assert_eq!(find(lines), expected.map(str::to_owned), "{lines:?}");
    }
}

#[test]
fn g1_an_empty_ring_knows_nobody() {
    let mut headers = HeaderMap::new();
    headers.insert("x-api-key", HeaderValue::from_static("x"));
    assert_eq!(of_file(&KeyRing::default()).find(&headers, now()).unwrap_err(), KeyError::Unknown);
}

#[test]
fn g1_any_key_of_many_is_found() {
    let keys: Vec<_> = (0..300).map(|n| key(&n.to_string(), &format!("secret-{n}"), None)).collect();
    let ring = KeyRing::new(&keys);
    for n in [0, 1, 149, 298, 299] {
        let mut headers = HeaderMap::new();
        headers.insert("x-api-key", HeaderValue::from_str(&format!("secret-{n}")).unwrap());
        assert_eq!(of_file(&ring).find(&headers, now()).unwrap().name, n.to_string());
    }
}

#[test]
fn g1_the_file_wins_over_the_store() {
    let file = KeyRing::new(&[key("a", "of-file", None)]);
    let store = KeyRing::new(&[key("a", "of-store", None), key("b", "b-of-store", None), key("c", "of-file", None)]);
    let names = HashSet::from(["a".to_owned()]);
    let keys = Keys { file: &file, names: &names, store: &store };
    for (secret, expected) in [
        ("of-file", Ok("a")),
        ("of-store", Err(KeyError::Unknown)),
        ("b-of-store", Ok("b")),
        ("c", Err(KeyError::Unknown)),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert("x-api-key", HeaderValue::from_static(secret));
        let found = keys.find(&headers, now()).map(|key| key.name.clone());
        assert_eq!(found, expected.map(str::to_owned), "{secret}");
    }
}

#[test]
fn b260_every_header_that_is_taken_as_a_credential_is_on_the_list() {
    for name in ["authorization", "x-api-key"] {
        assert!(CREDENTIAL_HEADERS.iter().any(|header| header == name));
    }
}

#[test]
fn g1_models_and_addresses() {
    let mut any = (*key("k", "s", None)).clone();
    assert!(may_use(&any, "sol") && !may_use(&any, "so") && !may_use(&any, "SOL"));
    any.models = AllowedModels::All;
    assert!(may_use(&any, "whatever"));
    assert!(may_come_from(&any, None), "no list");
    any.allow_ips = vec!["203.0.113.0/24".parse().unwrap(), "2001:db8::/32".parse().unwrap()];
    for (ip, expected) in [
        ("203.0.113.9", true),
        ("203.0.114.9", false),
        ("::ffff:203.0.113.9", true),
        ("2001:db8::1", true),
        ("2001:db9::1", false),
    ] {
        assert_eq!(may_come_from(&any, Some(ip.parse().unwrap())), expected, "{ip}");
    }
    assert!(!may_come_from(&any, None));
}
