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
    cost: Vec<Shelf>,
    sell: Selling,
    /// Providers that name the same tier whatever they serve (B212).
    as_requested: Vec<String>,
}

#[derive(Clone, Debug)]
enum Selling {
    Markup { by: Decimal, word: Arc<str> },
    Book(Shelf),
}

/// A book, and what is written into records that were priced by it.
#[derive(Clone, Debug)]
struct Shelf {
    book: Arc<Book>,
    /// As a sell book; of a cost book: with the markup.
    sold_as: Arc<str>,
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
    /// By provider (empty: any), and by model.
    exact: HashMap<String, HashMap<String, Entry>>,
    /// Models that end in `*`, longest prefix first.
    prefixes: Vec<(String, String, Entry)>,
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
#[derive(Clone, Copy)]
struct Side<'p> {
    sum: Option<Atto>,
    /// Where the first price was found.
    shelf: Option<&'p Shelf>,
    searches_unpriced: bool,
}

impl Prices {
    /// Reads all files; all mistakes at once.
    pub fn load(config: &PriceConfig) -> Result<Self, Vec<PriceError>> {
        let mut errors = Vec::new();
        let mut cost = Vec::new();
        for path in &config.cost {
            match Book::load(path) {
                Ok(book) => cost.push(book),
                Err(mut found) => errors.append(&mut found),
            }
        }
        let mut cost: Vec<_> = cost.into_iter().map(Shelf::new).collect();
        let sell = match &config.sell {
            Sell::Markup(text) => match Decimal::parse(text) {
                Ok(by) => {
                    for shelf in &mut cost {
                        shelf.sold_as = format!("{}*{text}", shelf.book.version).into();
                    }
                    Some(Selling::Markup { by, word: text.as_str().into() })
                }
                Err(error) => {
                    errors
                        .push(PriceError { file: "prices.sell.markup".into(), message: format!("{text:?}: {error}") });
                    None
                }
            },
            Sell::Book(path) => match Book::load(path) {
                Ok(book) => Some(Selling::Book(Shelf::new(book))),
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
        let versions =
            |prices: &Self| prices.cost.iter().map(|shelf| Arc::clone(&shelf.book.version)).collect::<Vec<_>>();
        let same_sell = match (&self.sell, &other.sell) {
            (Selling::Markup { word, .. }, Selling::Markup { word: other, .. }) => word == other,
            (Selling::Book(shelf), Selling::Book(other)) => shelf.book.version == other.book.version,
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
            Selling::Book(shelf) => shelf.book.find("", model).is_some(),
        }
    }

    /// Prices one request: `cost` over what was used, `charge` over what is charged for. Rounded once each.
    #[must_use]
    pub fn price(&self, sale: &Sale<'_>) -> Money {
        let used = self.cost_of(sale, &sale.bill.usage, true);
        let mut cost = used;
        for (target, usage) in sale.failed {
            let (provider, model) = target.split_once('/').unwrap_or((target, ""));
            let attempt =
                add_up((model, *usage), &[], self.tier(provider, sale.tier), |model| self.entry(provider, model));
            cost.sum = cost.sum.zip(attempt.sum).and_then(|(sum, more)| sum.0.checked_add(more.0)).map(Atto);
            cost.shelf = cost.shelf.or(attempt.shelf);
            cost.searches_unpriced |= attempt.searches_unpriced;
        }
        // What is free of charge is so for all its models; the bill says which.
        let with_others = sale.bill.charged != Usage::default();
        let (charge, by) = match &self.sell {
            // Nearly always.
            Selling::Markup { by, .. } if with_others && sale.bill.charged == sale.bill.usage => (used, *by),
            Selling::Markup { by, .. } => (self.cost_of(sale, &sale.bill.charged, with_others), *by),
            Selling::Book(shelf) => {
                (sell_of(shelf, sale, self.tier(sale.provider, sale.tier), with_others), Decimal::ONE)
            }
        };
        let cost_nano = cost.sum.and_then(|sum| round(sum, Decimal::ONE));
        let charge_nano = charge.sum.and_then(|sum| round(sum, by));
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
        Money {
            charge: charge_nano,
            cost: cost_nano,
            sell_version: charge.shelf.map(|shelf| Arc::clone(&shelf.sold_as)),
            cost_version: cost.shelf.map(|shelf| Arc::clone(&shelf.book.version)),
            unpriced,
        }
    }

    fn cost_of(&self, sale: &Sale<'_>, usage: &Usage, with_others: bool) -> Side<'_> {
        let find = |model: &str| self.entry(sale.provider, model);
        let main = (sale.provider_model, *usage);
        add_up(main, if with_others { sale.other_models } else { &[] }, self.tier(sale.provider, sale.tier), find)
    }

    /// The first book that knows it wins.
    fn entry(&self, provider: &str, model: &str) -> Option<(&Entry, &Shelf)> {
        self.cost.iter().find_map(|shelf| Some((shelf.book.find(provider, model)?, shelf)))
    }
}

impl Shelf {
    fn new(book: Book) -> Self {
        let sold_as = Arc::clone(&book.version);
        Self { book: Arc::new(book), sold_as }
    }
}

fn sell_of<'p>(shelf: &'p Shelf, sale: &Sale<'_>, tier: Option<&str>, with_others: bool) -> Side<'p> {
    let find = |model: &str| Some((shelf.book.find("", model)?, shelf));
    let main = (sale.model, sale.bill.charged);
    add_up(main, if with_others { sale.other_models } else { &[] }, tier, find)
}

/// Adds the parts of all models; nothing used costs nothing, price or no price.
fn add_up<'p>(
    main: (&str, Usage),
    others: &[(String, Usage)],
    tier: Option<&str>,
    find: impl Fn(&str) -> Option<(&'p Entry, &'p Shelf)>,
) -> Side<'p> {
    let mut side = Side { sum: Some(Atto(0)), shelf: None, searches_unpriced: false };
    for (model, usage) in std::iter::once(main).chain(others.iter().map(|(name, usage)| (name.as_str(), *usage))) {
        let (parts, _) = parts(&usage);
        let found = find(model);
        if let Some((entry, shelf)) = found {
            let priced = entry.sum(&parts, tier);
            side.shelf.get_or_insert(shelf);
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
            match model.strip_suffix('*') {
                Some(prefix) => book.prefixes.push((provider, prefix.to_owned(), entry)),
                None => {
                    book.exact.entry(provider).or_default().insert(model, entry);
                }
            }
        }
        book.prefixes.sort_by_key(|(provider, prefix, _)| (std::cmp::Reverse(prefix.len()), provider.is_empty()));
        book
    }

    /// Exact before prefix, its own provider before any.
    fn find(&self, provider: &str, model: &str) -> Option<&Entry> {
        let exact = |provider: &str| self.exact.get(provider)?.get(model);
        let prefixed = || {
            let is_it = |(owner, prefix, _): &&(String, String, Entry)| {
                (owner == provider || owner.is_empty()) && model.starts_with(prefix.as_str())
            };
            self.prefixes.iter().find(is_it).map(|(.., entry)| entry)
        };
        exact(provider).or_else(|| exact("")).or_else(prefixed)
    }
}
