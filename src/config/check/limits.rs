//! The checks of budgets.

use super::Check;
use crate::config::keypath::KeyPath;
use crate::config::{Budget, LimitStore, raw};

impl Check<'_> {
    pub(super) fn limit_store(&mut self, raw: raw::LimitStore) -> LimitStore {
        let redis = match raw.store {
            None | Some(raw::Store::Local) => None,
            Some(raw::Store::Redis(url)) => Some(url.0),
        };
        if let Some(url) = &redis {
            let text = url.expose();
            let message = if text.starts_with("rediss://") {
                "TLS to the store is not built; use redis:// over a private network or a tunnel"
            } else if text.starts_with("redis://") && redis::parse_redis_url(text).is_some() {
                ""
            } else {
                "write the address of a Redis or Valkey, such as redis://:password@10.0.0.9:6379/0"
            };
            if !message.is_empty() {
                self.error(&KeyPath::root().key("limits").key("store").key("redis"), message.to_owned());
            }
        }
        LimitStore { redis, on_failure: raw.on_failure }
    }

    pub(super) fn budgets(&mut self, raw: Vec<raw::Budget>, path: &KeyPath) -> Vec<Budget> {
        let mut out: Vec<Budget> = Vec::new();
        for (at, raw) in raw.into_iter().enumerate() {
            let (Some(usd), Some(per)) = (raw.usd, raw.per) else { continue };
            if out.iter().any(|other| other.per == per) {
                let message = format!("there is a budget per {} already; remove one", per.word());
                self.error(&path.item(at).key("per"), message);
            }
            out.push(Budget { usd: usd.0, per });
        }
        out
    }
}
