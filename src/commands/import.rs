//! `weir import litellm FILE`: another gateway's config as Weir's.
//!
//! Called by main. Reads one file, prints Weir's to standard output and what is missing in it to standard error.

use anyhow::Context as _;
use clap::Subcommand;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use weir::import::litellm;

/// Where from.
#[derive(Subcommand)]
pub(crate) enum Import {
    /// LiteLLM's config.yaml.
    Litellm {
        /// The file.
        file: PathBuf,
    },
}

/// Prints the imported config.
pub(crate) fn import(from: &Import) -> anyhow::Result<ExitCode> {
    let Import::Litellm { file } = from;
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let imported = litellm::import(&text, &name).with_context(|| file.display().to_string())?;
    std::io::stdout().write_all(imported.yaml.as_bytes())?;
    let mut errors = std::io::stderr();
    for note in &imported.notes {
        writeln!(errors, "not carried over: {note}")?;
    }
    Ok(ExitCode::SUCCESS)
}
