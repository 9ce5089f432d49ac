//! What tokens cost and what they are sold for (L3).
//!
//! Called when a request settles, by recovery and by `weir check`. Loading reads files; pricing
//! touches nothing. No float ever touches money.

mod litellm;
mod own;
mod rates;

#[cfg(test)]
mod tests;

pub use rates::{Parts, parts};

use super::billing::Bill;
use super::config::{PriceConfig, Sell};
use super::money::{Atto, Decimal, Nano, round};
use crate::meter::usage::Usage;
use rates::Entry;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Hex digits of a version: enough that two files never share one.
const VERSION_DIGITS: usize = 16;

/// The price books of one configuration, immutable; reload makes a new one.
#[derive(Clone, Debug)]
pub struct Prices {
    cost: Vec<Arc<Book>>,
    sell: Selling,
    /// Providers that name the same tier whatever they serve (B212).
    as_requested: Vec<String>,
}

#[derive(Clone, Debug)]
enum Selling {
    Markup { by: Decimal, word: Arc<str> },
    Book(Arc<Book>),
}

impl Default for Prices {
    /// No prices, markup 1: everything is unpriced.
    fn default() -> Self {
        Self {
            cost: Vec::new(),
            sell: Selling::Markup { by: Decimal::ONE, word: "1".into() },
            as_requested: Vec::new(),
        }
    }
}

/// One price file.
#[derive(Debug, Default)]
struct Book {
    /// From the hash of its content.
    version: Arc<str>,
    /// By provider (empty: any) and model.
    exact: HashMap<(String, String), Arc<Entry>>,
    /// Models that end in `*`, longest prefix first.
    prefixes: Vec<(String, String, Arc<Entry>)>,
}

/// One mistake in a price file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", file.display())]
pub struct PriceError {
    /// Which file.
    pub file: PathBuf,
    /// What, where, and the remedy.
    pub message: String,
}

/// What is priced.
#[derive(Clone, Copy, Debug)]
pub struct Sale<'a> {
    /// The public model.
    pub model: &'a str,
    /// Provider of the winning attempt.
    pub provider: &'a str,
    /// Its model's name there.
    pub provider_model: &'a str,
    /// The service tiers of the request.
    pub tier: Tier<'a>,
    /// The decision of [`super::billing::decide`].
    pub bill: &'a Bill,
    /// Usage of other models inside the same answer (U3).
    pub other_models: &'a [(String, Usage)],
    /// What failed attempts had reported, by `provider/model`: in the cost, never in the charge (L3).
    pub failed: &'a [(Arc<str>, Usage)],
}

/// The service tier that was asked for and the one that the upstream says it served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tier<'a> {
    /// In the request.
    pub requested: Option<&'a str>,
    /// In the answer.
    pub served: Option<&'a str>,
}

/// Charge and cost of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Money {
    /// What the client pays; `None`: no price known.
    pub charge: Option<Nano>,
    /// What the upstream costs; `None`: no price known.
    pub cost: Option<Nano>,
    /// Version of the sell book.
    pub sell_version: Option<Arc<str>>,
    /// Version of the cost book.
    pub cost_version: Option<Arc<str>>,
    /// What had no price: `charge`, `cost`, `charge.web_search`, `cost.web_search`. Empty: all is priced.
    pub unpriced: Vec<&'static str>,
}

/// One side of the calculation.
struct Side {
    sum: Option<Atto>,
    version: Option<Arc<str>>,
    searches_unpriced: bool,
}

impl Prices {
    /// Reads all files; all mistakes at once.
    pub fn load(config: &PriceConfig) -> Result<Self, Vec<PriceError>> {
        let mut errors = Vec::new();
        let mut cost = Vec::new();
        for path in &config.cost {
            match Book::load(path) {
                Ok(book) => cost.push(Arc::new(book)),
                Err(mut found) => errors.append(&mut found),
            }
        }
        let sell = match &config.sell {
            Sell::Markup(text) => match Decimal::parse(text) {
                Ok(by) => Some(Selling::Markup { by, word: text.as_str().into() }),
                Err(error) => {
                    errors
                        .push(PriceError { file: "prices.sell.markup".into(), message: format!("{text:?}: {error}") });
                    None
                }
            },
            Sell::Book(path) => match Book::load(path) {
                Ok(book) => Some(Selling::Book(Arc::new(book))),
                Err(mut found) => {
                    errors.append(&mut found);
                    None
                }
            },
        };
        match sell {
            Some(sell) if errors.is_empty() => Ok(Self { cost, sell, as_requested: Vec::new() }),
            _ => Err(errors),
        }
    }

    /// Whether they come from the same files' content and are used alike.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let versions = |prices: &Self| prices.cost.iter().map(|book| Arc::clone(&book.version)).collect::<Vec<_>>();
        let same_sell = match (&self.sell, &other.sell) {
            (Selling::Markup { word, .. }, Selling::Markup { word: other, .. }) => word == other,
            (Selling::Book(book), Selling::Book(other)) => book.version == other.version,
            (Selling::Markup { .. }, Selling::Book(_)) | (Selling::Book(_), Selling::Markup { .. }) => false,
        };
        same_sell && versions(self) == versions(other) && self.as_requested == other.as_requested
    }

    /// B212: what these providers say of the tier they served is not believed; the requested one is priced.
    #[must_use]
    pub fn by_requested_tier(self, providers: Vec<String>) -> Self {
        Self { as_requested: providers, ..self }
    }

    /// The tier to price by: the one served, else the one requested.
    fn tier<'t>(&self, provider: &str, tier: Tier<'t>) -> Option<&'t str> {
        let as_requested = self.as_requested.iter().any(|name| name == provider);
        if as_requested { tier.requested } else { tier.served.or(tier.requested) }
    }

    /// Whether the cost book knows a target; for `weir check` and the metric.
    #[must_use]
    pub fn knows(&self, provider: &str, provider_model: &str) -> bool {
        self.entry(provider, provider_model).is_some()
    }

    /// Whether a public model that this target serves has a price to sell at.
    #[must_use]
    pub fn sells(&self, model: &str, provider: &str, provider_model: &str) -> bool {
        match &self.sell {
            Selling::Markup { .. } => self.knows(provider, provider_model),
            Selling::Book(book) => book.find("", model).is_some(),
        }
    }

    /// Prices one request: `cost` over what was used, `charge` over what is charged for. Rounded once each.
    #[must_use]
    pub fn price(&self, sale: &Sale<'_>) -> Money {
        let mut cost = self.cost_of(sale, &sale.bill.usage, true);
        for (target, usage) in sale.failed {
            let (provider, model) = target.split_once('/').unwrap_or((target, ""));
            let attempt =
                add_up((model, *usage), &[], self.tier(provider, sale.tier), |model| self.entry(provider, model));
            cost.sum = cost.sum.zip(attempt.sum).and_then(|(sum, more)| sum.0.checked_add(more.0)).map(Atto);
            cost.version = cost.version.or(attempt.version);
            cost.searches_unpriced |= attempt.searches_unpriced;
        }
        let cost_nano = cost.sum.and_then(|sum| round(sum, Decimal::ONE));
        // What is free of charge is so for all its models; the bill says which.
        let with_others = sale.bill.charged != Usage::default();
        let (charge, charge_nano, sell_version) = match &self.sell {
            Selling::Markup { by, word } => {
                let side = self.cost_of(sale, &sale.bill.charged, with_others);
                let nano = side.sum.and_then(|sum| round(sum, *by));
                let version = side.version.as_ref().map(|version| format!("{version}*{word}").into());
                (side, nano, version)
            }
            Selling::Book(book) => {
                let side = sell_of(book, sale, self.tier(sale.provider, sale.tier), with_others);
                let nano = side.sum.and_then(|sum| round(sum, Decimal::ONE));
                let version = side.version.clone();
                (side, nano, version)
            }
        };
        let mut unpriced = Vec::new();
        for (missing, word) in [
            (charge_nano.is_none(), "charge"),
            (cost_nano.is_none(), "cost"),
            (charge.searches_unpriced, "charge.web_search"),
            (cost.searches_unpriced, "cost.web_search"),
        ] {
            if missing {
                unpriced.push(word);
            }
        }
        Money { charge: charge_nano, cost: cost_nano, sell_version, cost_version: cost.version, unpriced }
    }

    fn cost_of(&self, sale: &Sale<'_>, usage: &Usage, with_others: bool) -> Side {
        let find = |model: &str| self.entry(sale.provider, model);
        let main = (sale.provider_model, *usage);
        add_up(main, if with_others { sale.other_models } else { &[] }, self.tier(sale.provider, sale.tier), find)
    }

    /// The first book that knows it wins.
    fn entry(&self, provider: &str, model: &str) -> Option<(Arc<Entry>, Arc<str>)> {
        self.cost.iter().find_map(|book| Some((book.find(provider, model)?, Arc::clone(&book.version))))
    }
}

fn sell_of(book: &Arc<Book>, sale: &Sale<'_>, tier: Option<&str>, with_others: bool) -> Side {
    let find = |model: &str| Some((book.find("", model)?, Arc::clone(&book.version)));
    let main = (sale.model, sale.bill.charged);
    add_up(main, if with_others { sale.other_models } else { &[] }, tier, find)
}

/// Adds the parts of all models; nothing used costs nothing, price or no price.
fn add_up(
    main: (&str, Usage),
    others: &[(String, Usage)],
    tier: Option<&str>,
    find: impl Fn(&str) -> Option<(Arc<Entry>, Arc<str>)>,
) -> Side {
    let mut side = Side { sum: Some(Atto(0)), version: None, searches_unpriced: false };
    for (model, usage) in std::iter::once(main).chain(others.iter().map(|(name, usage)| (name.as_str(), *usage))) {
        let (parts, _) = parts(&usage);
        let found = find(model);
        if let Some((entry, version)) = found {
            let priced = entry.sum(&parts, tier);
            side.version.get_or_insert(version);
            side.searches_unpriced |= priced.searches_unpriced;
            side.sum = side.sum.zip(priced.sum).and_then(|(sum, more)| sum.0.checked_add(more.0)).map(Atto);
        } else if !parts.is_empty() {
            side.sum = None;
        }
    }
    side
}

impl Book {
    fn load(path: &Path) -> Result<Self, Vec<PriceError>> {
        let error = |message: String| PriceError { file: path.to_owned(), message };
        let content = std::fs::read(path).map_err(|cause| vec![error(format!("cannot be read: {cause}"))])?;
        let json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        let entries = if json { litellm::read(&content).map_err(|message| vec![message]) } else { own::read(&content) };
        let entries = entries.map_err(|messages| messages.into_iter().map(error).collect::<Vec<_>>())?;
        let mut version = const_hex::encode(Sha256::digest(&content));
        version.truncate(VERSION_DIGITS);
        Ok(Self::new(version.into(), entries))
    }

    fn new(version: Arc<str>, entries: Vec<own::Priced>) -> Self {
        let mut book = Self { version, ..Self::default() };
        for own::Priced { provider, model, entry } in entries {
            let entry = Arc::new(entry);
            match model.strip_suffix('*') {
                Some(prefix) => book.prefixes.push((provider, prefix.to_owned(), entry)),
                None => {
                    book.exact.insert((provider, model), entry);
                }
            }
        }
        book.prefixes.sort_by_key(|(provider, prefix, _)| (std::cmp::Reverse(prefix.len()), provider.is_empty()));
        book
    }

    /// Exact before prefix, its own provider before any.
    fn find(&self, provider: &str, model: &str) -> Option<Arc<Entry>> {
        let exact = |provider: &str| self.exact.get(&(provider.to_owned(), model.to_owned()));
        if let Some(entry) = exact(provider).or_else(|| exact("")) {
            return Some(Arc::clone(entry));
        }
        self.prefixes
            .iter()
            .find(|(owner, prefix, _)| (owner == provider || owner.is_empty()) && model.starts_with(prefix.as_str()))
            .map(|(.., entry)| Arc::clone(entry))
    }
}
