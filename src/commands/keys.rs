//! `weir keys`: makes, shows, changes and revokes the keys of the store (G1).
//!
//! Called by main. Reads the operator's file and works on the store itself, so that it needs no running gateway; one
//! that runs follows within a second. Prints a new secret once, to standard output and nowhere else.

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use weir::config::{self, Budget, Config};
use weir::keystore::{Store, Stored};

/// What to do with the virtual keys.
#[derive(Subcommand)]
pub(crate) enum Keys {
    /// Make a key and print its secret, once.
    Create {
        /// Its name, in logs, records and reports.
        name: String,
        #[command(flatten)]
        settings: Settings,
        #[command(flatten)]
        place: Place,
    },
    /// All keys of the store.
    List {
        #[command(flatten)]
        place: Place,
    },
    /// One key of the store.
    Show {
        /// Its name.
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// Change a key; `none` removes a setting.
    Set {
        /// Its name.
        name: String,
        #[command(flatten)]
        settings: Settings,
        #[command(flatten)]
        place: Place,
    },
    /// Revoke a key for ever.
    Revoke {
        /// Its name.
        name: String,
        /// End its running streams, too.
        #[arg(long)]
        now: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Print the SHA-256 of a secret, for `keys:` in the config.
    Hash {
        /// The secret; read from standard input if left out.
        secret: Option<String>,
    },
}

/// Where the store is, and how it is printed.
#[derive(Args)]
pub(crate) struct Place {
    /// The operator's file, which says where the keys are.
    #[arg(long, short, default_value = "weir.yaml")]
    config: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What a key may do. The words are those of the config's `keys:`.
#[derive(Args)]
pub(crate) struct Settings {
    /// Models it may use, separated by commas; all when a key is made without.
    #[arg(long, value_delimiter = ',')]
    models: Option<Vec<String>>,
    /// Free text for reports.
    #[arg(long)]
    tag: Option<String>,
    /// Last day or moment it is valid: 2027-12-31.
    #[arg(long)]
    expires: Option<String>,
    /// Addresses and networks it may come from, separated by commas.
    #[arg(long, value_delimiter = ',')]
    allow_ips: Option<Vec<String>>,
    /// Requests in a minute.
    #[arg(long)]
    rpm: Option<String>,
    /// Tokens in a minute.
    #[arg(long)]
    tpm: Option<String>,
    /// Requests at once.
    #[arg(long)]
    concurrent: Option<String>,
    /// What it may be charged, such as 20.00/month (day, month, total); may be given several times.
    #[arg(long)]
    budget: Option<Vec<String>>,
    /// What happens to running streams when a budget is used up: finish or cut.
    #[arg(long)]
    on_reached: Option<String>,
}

impl Settings {
    /// The members that were given; null for those to be removed.
    fn members(self) -> anyhow::Result<Map<String, Value>> {
        let word = |text: String| if text == "none" { Value::Null } else { json!(text) };
        let number = |text: String| text.parse::<u64>().map_or_else(|_| word(text), |number| json!(number));
        let list = |words: Vec<String>| if words == ["none"] { Value::Null } else { json!(words) };
        let budgets = self.budget.as_deref().map(budgets).transpose()?;
        let members = [
            ("models", self.models.map(list)),
            ("tag", self.tag.map(word)),
            ("expires", self.expires.map(word)),
            ("allow_ips", self.allow_ips.map(list)),
            ("rpm", self.rpm.map(number)),
            ("tpm", self.tpm.map(number)),
            ("concurrent", self.concurrent.map(number)),
            ("budgets", budgets),
            ("on_reached", self.on_reached.map(word)),
        ];
        Ok(members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
    }
}

fn budgets(words: &[String]) -> anyhow::Result<Value> {
    if words == ["none"] {
        return Ok(Value::Null);
    }
    let budgets = words.iter().map(|word| {
        let _: Budget = word.parse().with_context(|| format!("--budget {word}"))?;
        let (usd, per) = word.split_once('/').unwrap_or((word, ""));
        Ok(json!({ "usd": usd, "per": per }))
    });
    budgets.collect::<anyhow::Result<Vec<_>>>().map(Value::Array)
}

/// `weir keys …`.
pub(crate) fn keys(command: Keys) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match command {
        Keys::Create { name, settings, place } => {
            let (config, store) = open(&place)?;
            let (stored, minted) = runtime.block_on(store.create(&name, &settings.members()?, &config))?;
            if place.json {
                let mut shown = stored.shown();
                if let Some(members) = shown.as_object_mut() {
                    members.insert("secret".to_owned(), json!(minted.expose()));
                }
                say(&shown.to_string())?;
            } else {
                say(minted.expose())?;
                note(&format!("{name} is made. This is its secret; it is shown only now, and kept nowhere."));
            }
        }
        Keys::List { place } => {
            let (config, store) = open(&place)?;
            let all = runtime.block_on(store.list())?;
            if place.json {
                say(&Value::Array(all.iter().map(Stored::shown).collect()).to_string())?;
            } else {
                say(&table(&all))?;
                for stored in all.iter().filter(|stored| config.keys.iter().any(|key| key.name == stored.name)) {
                    note(&format!("{} stands in the config, too, and is in force as it is there", stored.name));
                }
            }
        }
        Keys::Show { name, place } => show(&runtime.block_on(open(&place)?.1.show(&name))?, place.json)?,
        Keys::Set { name, settings, place } => {
            let (config, store) = open(&place)?;
            let changes = settings.members()?;
            anyhow::ensure!(!changes.is_empty(), "nothing to change; see weir keys set --help");
            show(&runtime.block_on(store.set(&name, &changes, &config))?, place.json)?;
        }
        Keys::Revoke { name, now, place } => {
            let (config, store) = open(&place)?;
            show(&runtime.block_on(store.revoke(&name, now, &config))?, place.json)?;
        }
        Keys::Hash { secret } => hash(secret)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn open(place: &Place) -> anyhow::Result<(Arc<Config>, Store)> {
    let loaded = config::load(&place.config).map_err(|report| anyhow::anyhow!("the config has mistakes\n{report}"))?;
    let store = Store::of(&loaded.config)?;
    Ok((loaded.config, store))
}

fn hash(secret: Option<String>) -> anyhow::Result<()> {
    let secret = match secret {
        Some(secret) => secret,
        None => std::io::read_to_string(std::io::stdin()).context("cannot read the secret")?,
    };
    let secret = secret.trim_end_matches(['\r', '\n']);
    anyhow::ensure!(!secret.is_empty(), "an empty secret is no key");
    say(&const_hex::encode(Sha256::digest(secret)))
}

fn show(stored: &Stored, json: bool) -> anyhow::Result<()> {
    let shown = stored.shown();
    if json {
        return say(&shown.to_string());
    }
    let members = shown.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let lines: Vec<_> = members.map(|(name, value)| format!("{name:<12} {}", plain(name, value))).collect();
    say(&lines.join("\n"))
}

/// A value as the command line would have it.
fn plain(name: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(|item| plain(name, item)).collect::<Vec<_>>().join(","),
        Value::Object(budget) if name == "budgets" => {
            let part = |name: &str| budget.get(name).and_then(Value::as_str).unwrap_or_default();
            format!("{}/{}", part("usd"), part("per"))
        }
        other => other.to_string(),
    }
}

fn table(all: &[Stored]) -> String {
    const HEADS: [&str; 6] = ["name", "prefix", "state", "models", "tag", "limits"];
    const LIMITS: [&str; 5] = ["rpm", "tpm", "concurrent", "budgets", "expires"];
    let row = |stored: &Stored| {
        let member = |name: &str| stored.settings.get(name).map(|value| plain(name, value)).unwrap_or_default();
        let limits = LIMITS.iter().filter(|name| stored.settings.contains_key(**name));
        let limits: Vec<_> = limits.map(|name| format!("{name} {}", member(name))).collect();
        let state = if stored.revoked.is_some() { "revoked" } else { "in force" };
        let (name, prefix) = (stored.name.clone(), format!("{}…", stored.prefix));
        [name, prefix, state.to_owned(), member("models"), member("tag"), limits.join(", ")]
    };
    let rows: Vec<[String; 6]> = std::iter::once(HEADS.map(str::to_owned)).chain(all.iter().map(row)).collect();
    let wide = |at: usize| {
        rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<_> = (0..HEADS.len()).map(wide).collect();
    let line = |row: &[String; 6]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn say(text: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
