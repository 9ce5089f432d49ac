//! The commands that read the ledger: `weir usage`, `weir ledger verify`, `weir ledger backup` (L6).
//!
//! Called by main. Each reads the ledger's file, also while a gateway writes it; prints to standard output.

mod import;
mod keys;
mod test;

pub(crate) use import::{Import, import};
pub(crate) use keys::{Keys, keys};
pub(crate) use test::{Test, test};

use anyhow::Context as _;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use weir::config;
use weir::ledger::cli::{self, By, Format};

/// Which ledger.
#[derive(Args)]
pub(crate) struct Place {
    /// The operator's file, which says where the ledger is.
    #[arg(long, short, default_value = "weir.yaml", conflicts_with = "ledger")]
    config: PathBuf,
    /// The ledger's own file, when the operator's is not at hand.
    #[arg(long, value_name = "PATH")]
    ledger: Option<PathBuf>,
}

/// What to sum up.
#[derive(Args)]
pub(crate) struct Usage {
    /// One line for each of these, separated by commas; left out: one line for everything.
    #[arg(long, value_delimiter = ',', value_parser = by_words())]
    by: Vec<By>,
    /// From this day on (2026-11-30, in the ledger's time zone), or from this instant on (2026-11-30T12:00:00Z).
    #[arg(long)]
    since: Option<String>,
    /// Up to this day, itself included, or up to this instant.
    #[arg(long)]
    until: Option<String>,
    /// How it looks.
    #[arg(long, value_enum, default_value_t)]
    format: Look,
    #[command(flatten)]
    place: Place,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum Look {
    /// For people, with a total.
    #[default]
    Table,
    /// Comma-separated, with a heading.
    Csv,
    /// Money as decimal strings and in nano-USD.
    Json,
}

/// What to do with the ledger.
#[derive(Subcommand)]
pub(crate) enum Ledger {
    /// Prove that nothing is missing, doubled or wrongly summed; the exit status is 1 when something is.
    Verify {
        #[command(flatten)]
        place: Place,
    },
    /// Copy the ledger as it is at one moment, while it is in use.
    Backup {
        /// The new file; it must not exist.
        to: PathBuf,
        #[command(flatten)]
        place: Place,
    },
}

fn by_words() -> impl TypedValueParser<Value = By> {
    PossibleValuesParser::new(By::ALL.map(By::word)).try_map(|word| By::of_word(&word).ok_or("unknown column"))
}

impl Place {
    fn path(self) -> anyhow::Result<PathBuf> {
        let path = if let Some(path) = self.ledger {
            path
        } else {
            let loaded = config::load(&self.config);
            let loaded = loaded.context("cannot tell where the ledger is; correct the config or use --ledger PATH")?;
            loaded.config.ledger.path.clone()
        };
        anyhow::ensure!(
            path.exists(),
            "there is no ledger at {}; `weir serve` makes it when it starts",
            path.display()
        );
        Ok(path)
    }
}

/// `weir usage`.
pub(crate) fn usage(usage: Usage) -> anyhow::Result<ExitCode> {
    let format = match usage.format {
        Look::Table => Format::Table,
        Look::Csv => Format::Csv,
        Look::Json => Format::Json,
    };
    let (since, until) = (usage.since.as_deref(), usage.until.as_deref());
    cli::check_times(since, until)?;
    print(&cli::usage(&usage.place.path()?, &usage.by, since, until, format)?)?;
    Ok(ExitCode::SUCCESS)
}

/// `weir ledger …`.
pub(crate) fn ledger(command: Ledger) -> anyhow::Result<ExitCode> {
    match command {
        Ledger::Verify { place } => {
            let report = cli::verify(&place.path()?)?;
            print(&report.to_string())?;
            Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Ledger::Backup { to, place } => {
            cli::backup(&place.path()?, &to)?;
            print(&format!("{}: ok\n", to.display()))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}
