//! `weir test MODEL`: whether each target of a model answers, and how fast.
//!
//! Called by main. Sends one small real request to each target with each of its provider's keys, all at once; prints a
//! line for each. Books nothing.

use anyhow::Context as _;
use clap::Args;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use weir::config::{self, Config, Model, Origin};
use weir::demo::Demo;
use weir::protocol::Protocol;
use weir::trial::{self, Trial};
use weir::upstream::call::Connections;
use weir::upstream::site::Site;

/// Which model.
#[derive(Args)]
pub(crate) struct Test {
    /// Its name or an alias.
    model: String,
    /// chat, responses or messages; default: the first of the model's protocols.
    #[arg(long, value_parser = protocol)]
    protocol: Option<Protocol>,
    /// The operator's file.
    #[arg(long, short, default_value = "weir.yaml")]
    config: PathBuf,
}

fn protocol(word: &str) -> Result<Protocol, String> {
    let found = Protocol::ALL.into_iter().find(|protocol| protocol.word() == word);
    found.ok_or_else(|| "use one of: chat, responses, messages".to_owned())
}

/// Tries all targets; succeeds if all work.
pub(crate) fn test(test: &Test) -> anyhow::Result<ExitCode> {
    let loaded = config::load(&test.config).map_err(|report| anyhow::anyhow!("the config has mistakes\n{report}"))?;
    let model = loaded.config.model(&test.model).with_context(|| {
        let names: Vec<&str> = loaded.config.models.iter().map(|model| model.name.as_str()).collect();
        format!("no model named {:?}; there are: {}", test.model, names.join(", "))
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let all_work = runtime.block_on(targets(&loaded.config, model, test.protocol))?;
    runtime.shutdown_background();
    Ok(if all_work { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn targets(config: &Arc<Config>, model: &Arc<Model>, protocol: Option<Protocol>) -> anyhow::Result<bool> {
    let demo = demo(config)?;
    let connections = Arc::new(Connections::new());
    let mut running = Vec::new();
    for target in &model.targets {
        let site = Arc::new(Site::new(Arc::clone(&target.provider), demo)?);
        let protocol = protocol.unwrap_or_else(|| trial::protocol(model, target));
        let accounts = target.provider.api_keys.len().max(1);
        for account in 0..accounts {
            let number = if accounts > 1 { format!(" key {}", account + 1) } else { String::new() };
            let name = format!("{}{number} ({protocol})", target.word());
            let (connections, site) = (Arc::clone(&connections), Arc::clone(&site));
            let (target, model) = (Arc::clone(target), Arc::clone(model));
            let trying = async move { trial::run(&connections, &site, &target, &model, protocol, account).await };
            running.push((name, tokio::spawn(trying)));
        }
    }
    let mut all_work = true;
    for (name, trying) in running {
        let trial = trying.await?;
        all_work &= trial.trouble.is_none();
        tell(&name, &trial)?;
    }
    Ok(all_work)
}

/// The built-in model, where the config has it.
fn demo(config: &Config) -> anyhow::Result<Option<SocketAddr>> {
    if !config.providers.values().any(|provider| provider.origin == Origin::Demo) {
        return Ok(None);
    }
    let (demo, address) = Demo::bind().context("the demo provider cannot listen")?;
    let (never, shutdown) = tokio::sync::watch::channel(false);
    tokio::spawn(async move {
        let _never = never;
        let _ = demo.serve(shutdown).await;
    });
    Ok(Some(address))
}

fn tell(name: &str, trial: &Trial) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    let status = trial.status.map_or_else(|| "no status".to_owned(), |status| format!("status {status}"));
    let word = trial.trouble.as_ref().map_or("ok", |trouble| trouble.word);
    let mut parts = vec![word.to_owned(), status];
    parts.extend(trial.first_token.map(|time| format!("first token {:.3} s", time.as_secs_f64())));
    parts.push(format!("in all {:.3} s", trial.took.as_secs_f64()));
    match (trial.usage.input, trial.usage.output) {
        (None, None) => {}
        (input, output) => {
            let count = |tokens: Option<u64>| tokens.map_or_else(|| "?".to_owned(), |tokens| tokens.to_string());
            parts.push(format!("{} tokens in, {} out", count(input), count(output)));
        }
    }
    writeln!(out, "{name}: {}", parts.join(", "))?;
    if let Some(trouble) = &trial.trouble {
        if let Some(told) = &trouble.told {
            writeln!(out, "  it says: {told}")?;
        }
        writeln!(out, "  remedy: {}", trouble.remedy)?;
    }
    Ok(())
}
