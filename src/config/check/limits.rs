//! The checks of budgets.

use super::Check;
use crate::config::keypath::KeyPath;
use crate::config::{Budget, LimitStore, raw};
use crate::limit::remote;

impl Check<'_> {
    pub(super) fn limit_store(&mut self, raw: raw::LimitStore) -> LimitStore {
        let redis = match raw.store {
            None | Some(raw::Store::Local) => None,
            Some(raw::Store::Redis(url)) => Some(url.0),
        };
        if let Some(url) = &redis
            && let Err(error) = remote::client(url.expose())
        {
            self.error(&KeyPath::root().key("limits").key("store").key("redis"), error.to_string());
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
