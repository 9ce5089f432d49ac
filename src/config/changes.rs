//! What differs between the config in force and a new one: for the operator, and to keep what only a restart changes.
//!
//! Called at reload (C2). Touches nothing.

use super::{Config, Listen};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A reload that changes more is told by counting.
const MOST_NAMED: usize = 20;

/// What a reload changes, one line per section or name, such as `models: gpt-5.6-sol changed`. Empty: nothing.
#[must_use]
pub fn changes(old: &Config, new: &Config) -> Vec<String> {
    let mut out = Vec::new();
    named(&mut out, "providers", &old.providers, &new.providers);
    let models = |config: &Config| {
        config.models.iter().map(|model| (model.name.clone(), model.clone())).collect::<BTreeMap<_, _>>()
    };
    named(&mut out, "models", &models(old), &models(new));
    let keys =
        |config: &Config| config.keys.iter().map(|key| (key.name.clone(), key.clone())).collect::<BTreeMap<_, _>>();
    named(&mut out, "keys", &keys(old), &keys(new));
    for (section, same) in [
        ("passthrough", old.passthrough == new.passthrough),
        ("key_store", old.key_store == new.key_store),
        ("prices", old.price_books.is_same(&new.price_books)),
        ("billing", old.billing == new.billing),
        ("listen", old.listen == new.listen),
        ("admin", old.admin == new.admin),
        ("server", old.server == new.server),
        ("ledger", old.ledger == new.ledger),
        ("limits", old.limits == new.limits),
        ("log", old.log == new.log),
        ("metrics", old.metrics == new.metrics),
        ("otlp", old.otlp == new.otlp),
        ("timelines", old.timelines == new.timelines),
        ("alerts", old.alerts == new.alerts),
    ] {
        if !same {
            out.push(format!("{section}: changed"));
        }
    }
    out
}

fn named<T: PartialEq>(out: &mut Vec<String>, section: &str, old: &BTreeMap<String, T>, new: &BTreeMap<String, T>) {
    let gone = old.keys().filter(|name| !new.contains_key(*name)).map(|name| (name, "removed"));
    let other = new.iter().filter_map(|(name, value)| match old.get(name) {
        None => Some((name, "added")),
        Some(before) if before != value => Some((name, "changed")),
        Some(_) => None,
    });
    let all: Vec<_> = gone.chain(other).collect();
    if all.len() > MOST_NAMED {
        out.push(format!("{section}: {} changed", all.len()));
        return;
    }
    out.extend(all.into_iter().map(|(name, what)| format!("{section}: {name} {what}")));
}

/// Puts back what only a restart or an upgrade can change, and names what differed there.
#[must_use]
pub fn keep_fixed(running: &Config, new: &mut Config) -> Vec<&'static str> {
    let mut kept = Vec::new();
    if !same_listeners(&running.listen, &new.listen) {
        new.listen.clone_from(&running.listen);
        kept.push("listen");
    }
    let mut keep = |name: &'static str, differs: bool| {
        if differs {
            kept.push(name);
        }
    };
    keep("admin.address", running.admin.address != new.admin.address);
    new.admin.address = running.admin.address;
    let (old, server) = (&running.server, &mut new.server);
    keep("server.threads", old.threads != server.threads);
    server.threads = old.threads;
    keep("server.header_timeout", old.header_timeout != server.header_timeout);
    server.header_timeout = old.header_timeout;
    keep("server.keepalive_timeout", old.keepalive_timeout != server.keepalive_timeout);
    server.keepalive_timeout = old.keepalive_timeout;
    keep("otlp", running.otlp != new.otlp);
    new.otlp.clone_from(&running.otlp);
    keep("key_store", running.key_store != new.key_store);
    new.key_store = running.key_store;
    keep("server.upgrade_socket", old.upgrade_socket != server.upgrade_socket);
    server.upgrade_socket.clone_from(&old.upgrade_socket);
    keep("limits.store", running.limits.redis != new.limits.redis);
    new.limits.redis.clone_from(&running.limits.redis);
    let (old, ledger) = (&running.ledger, &mut new.ledger);
    keep("ledger.path", old.path != ledger.path);
    ledger.path.clone_from(&old.path);
    keep("ledger.postgres", old.postgres != ledger.postgres);
    ledger.postgres.clone_from(&old.postgres);
    kept
}

/// The same sockets with the same kind of TLS; the certificates, the authorities of clients and the oldest version may
/// be others.
fn same_listeners(running: &[Listen], new: &[Listen]) -> bool {
    let plain = |listen: &Listen| {
        let mut plain = listen.clone();
        if let Some(tls) = &mut plain.tls {
            tls.certificates.clear();
            tls.min_version = super::TlsVersion::default();
            tls.client_ca = tls.client_ca.take().map(|_| PathBuf::new());
        }
        plain
    };
    running.len() == new.len() && running.iter().zip(new).all(|(old, new)| plain(old) == plain(new))
}
