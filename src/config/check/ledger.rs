//! The checks of `ledger:` and `prices:`, with every price file read.

use super::Check;
use crate::config::keypath::KeyPath;
use crate::config::raw;
use crate::config::{PriceTier, Provider};
use crate::ledger::LedgerConfig;
use crate::ledger::config::{BATCH, PostgresConfig, PriceConfig, Sell};
use crate::ledger::price::{PriceError, Prices};
use crate::ledger::sink;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Check<'_> {
    pub(super) fn ledger(&mut self, raw: raw::Ledger) -> LedgerConfig {
        let top = KeyPath::root().key("ledger");
        self.not_zero(raw.checkpoint.0, &top.key("checkpoint"));
        self.not_zero(raw.retention.0, &top.key("retention"));
        let path = self.file(&raw.path.0);
        if path.is_dir() {
            self.error(&top.key("path"), "this is a folder; name a file in it, such as data/weir.db".to_owned());
        }
        LedgerConfig {
            path,
            durability: raw.durability,
            checkpoint: raw.checkpoint.0,
            on_failure: raw.on_failure,
            retention: raw.retention.0,
            timezone: raw.timezone.0,
            postgres: raw.postgres.and_then(|postgres| self.postgres(postgres, &top.key("postgres"))),
        }
    }

    fn postgres(&mut self, raw: raw::Postgres, path: &KeyPath) -> Option<PostgresConfig> {
        let url = raw.url?.0;
        let scheme = ["postgres://", "postgresql://"].iter().any(|scheme| url.expose().starts_with(scheme));
        // What the client library says may repeat a part of the URL, so it is not passed on.
        if !scheme || sink::check_url(url.expose()).is_err() {
            let message = "write postgres://user:password@host:port/database with characters such as @ and / in the \
                           password as %40 and %2F; a file named by sslrootcert must hold certificates";
            self.error(&path.key("url"), message.to_owned());
        }
        Some(PostgresConfig { url, batch: raw.batch.unwrap_or(BATCH) })
    }

    pub(super) fn prices(
        &mut self,
        raw: raw::Prices,
        providers: &BTreeMap<String, Arc<Provider>>,
    ) -> (PriceConfig, Arc<Prices>) {
        let sell = match raw.sell {
            raw::Sell::Markup(raw::Markup { markup }) => {
                markup.map_or_else(Sell::default, |factor| Sell::Markup(factor.0))
            }
            raw::Sell::Book(file) => Sell::Book(self.file(&file.0)),
        };
        let config = PriceConfig { cost: raw.cost.iter().map(|file| self.file(&file.0)).collect(), sell };
        let sell_file = if let Sell::Book(file) = &config.sell { Some(file) } else { None };
        self.files.borrow_mut().extend(config.cost.iter().chain(sell_file).cloned());
        let books = Prices::load(&config).unwrap_or_else(|errors| {
            for error in &errors {
                self.price_error(&config, error);
            }
            Prices::default()
        });
        let as_requested = providers.values().filter(|provider| provider.price_tier == PriceTier::Requested);
        let books = books.by_requested_tier(as_requested.map(|provider| provider.name.clone()).collect());
        (config, Arc::new(books))
    }

    /// Each mistake of a price file is a finding of its own, at the place that names the file.
    fn price_error(&mut self, config: &PriceConfig, error: &PriceError) {
        let top = KeyPath::root().key("prices");
        let path = match config.cost.iter().position(|file| *file == error.file) {
            Some(at) => top.key("cost").item(at),
            None => top.key("sell"),
        };
        let message = format!("{}: {}", self.written(&path), error.message);
        self.findings.add(self.root.nearest(&path).at, &path, message);
    }
}
