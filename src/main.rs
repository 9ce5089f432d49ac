//! The `weir` command.

mod commands;
mod memory;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser, Subcommand};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use weir::config::{self, Config};
use weir::server::Source;

/// A streaming gateway for LLM APIs.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve clients.
    Serve {
        /// The operator's file.
        #[arg(long, short, default_value = "weir.yaml")]
        config: PathBuf,
        /// Take over the listening sockets of the process that serves with this file; that one drains.
        #[arg(long)]
        upgrade: bool,
    },
    /// Replace the serving process by a new one, without refusing a connection or cutting a stream.
    Upgrade {
        /// The operator's file, which says where to ask (`server.upgrade_socket`).
        #[arg(long, short, default_value = "weir.yaml", conflicts_with = "socket")]
        config: PathBuf,
        /// The upgrade socket itself.
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
    },
    /// Check a config file: every mistake at once, and odd values.
    Check {
        /// The operator's file.
        #[arg(default_value = "weir.yaml")]
        config: PathBuf,
    },
    /// Print the JSON Schema of the config file.
    Schema,
    /// Serve the built-in model, and print lines to try.
    Demo {
        /// Where clients connect.
        #[arg(long, default_value = "127.0.0.1:8080")]
        listen: std::net::SocketAddr,
        /// Where operators connect.
        #[arg(long, default_value = "127.0.0.1:9090")]
        admin: std::net::SocketAddr,
    },
    /// Sum up what was used, charged and spent, from the ledger.
    Usage(commands::Usage),
    /// Prove or copy the ledger.
    Ledger {
        #[command(subcommand)]
        command: commands::Ledger,
    },
    /// Send one small real request to each target of a model.
    Test(commands::Test),
    /// Turn another gateway's config into Weir's, on standard output.
    Import {
        #[command(subcommand)]
        from: commands::Import,
    },
    /// Print the completions of a shell.
    #[command(hide = true)]
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one for each command into a folder.
    #[command(hide = true)]
    Man {
        /// The folder.
        #[arg(long)]
        folder: Option<PathBuf>,
    },
    /// Virtual keys.
    Keys {
        #[command(subcommand)]
        command: commands::Keys,
    },
}

/// The config of `weir demo`.
const DEMO: &str = include_str!("../conf/demo.yaml");
/// The secret of its key.
const DEMO_KEY: &str = "weir-demo-key";

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "weir: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve { config, upgrade } => {
            memory::in_small_pages();
            let (loaded, source) = load(&config)?;
            serve(&loaded, Some(source), upgrade)
        }
        Command::Upgrade { config, socket } => upgrade(&config, socket),
        Command::Check { config } => check(&config),
        Command::Schema => {
            say(&serde_json::to_string_pretty(&config::schema())?)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Demo { listen, admin } => {
            memory::in_small_pages();
            demo(listen, admin)
        }
        Command::Usage(usage) => commands::usage(usage),
        Command::Ledger { command } => commands::ledger(command),
        Command::Keys { command } => commands::keys(command),
        Command::Test(test) => commands::test(&test),
        Command::Import { from } => commands::import(&from),
        Command::Completions { shell } => {
            let mut out = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "weir", &mut out);
            std::io::stdout().write_all(&out)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Man { folder } => man(folder.as_deref()),
    }
}

/// `weir.1`, or with a folder that and one page for each command.
fn man(folder: Option<&Path>) -> anyhow::Result<ExitCode> {
    match folder {
        None => clap_mangen::Man::new(Cli::command()).render(&mut std::io::stdout())?,
        Some(folder) => clap_mangen::generate_to(Cli::command(), folder)
            .with_context(|| format!("cannot write manual pages into {}", folder.display()))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn serve(config: &Arc<Config>, source: Option<Source>, takes_over: bool) -> anyhow::Result<ExitCode> {
    weir::logging::init(&config.log).context("cannot open the log")?;
    let all_finished = weir::server::serve(config, source, takes_over)?;
    Ok(if all_finished { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn upgrade(config: &Path, socket: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    let socket = socket.or_else(|| config::upgrade_socket(config));
    let socket = socket.with_context(|| format!("{} cannot be read; correct it or use --socket", config.display()))?;
    let done = weir::handover::upgrade(&socket).context("not upgraded")?;
    say(&format!("process {} serves; process {} finishes its {} requests", done.pid, done.old, done.running))?;
    Ok(ExitCode::SUCCESS)
}

fn load(path: &Path) -> anyhow::Result<(Arc<Config>, Source)> {
    let (loaded, files) = config::load_with_files(path);
    let loaded = loaded.map_err(|report| anyhow::anyhow!("the config has mistakes\n{report}"))?;
    for warning in &loaded.warnings {
        let _ = writeln!(std::io::stderr(), "warning: {warning}");
    }
    Ok((loaded.config, Source { path: path.to_owned(), files }))
}

fn check(path: &Path) -> anyhow::Result<ExitCode> {
    match config::load(path) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                say(&format!("warning: {warning}"))?;
            }
            let config = &loaded.config;
            let (providers, models, keys) = (config.providers.len(), config.models.len(), config.keys.len());
            say(&format!("{}: ok ({providers} providers, {models} models, {keys} keys)", path.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(report) => {
            say(report.to_string().trim_end())?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn demo(listen: std::net::SocketAddr, admin: std::net::SocketAddr) -> anyhow::Result<ExitCode> {
    let parsed = config::parse(DEMO, "demo.yaml", &|_| None, Path::new("."));
    let mut config = parsed.map_err(|report| anyhow::anyhow!("{report}"))?.config;
    let changed = Arc::make_mut(&mut config);
    for own in &mut changed.listen {
        own.address = listen;
    }
    changed.admin.address = admin;
    // A demo leaves nothing behind where it was started.
    let folder = std::env::temp_dir().join(format!("weir-demo-{}", std::process::id()));
    changed.ledger.path = folder.join("weir.db");
    say(&welcome(listen, admin, &changed.ledger.path))?;
    let served = serve(&config, None, false);
    let _ = std::fs::remove_dir_all(&folder);
    served
}

fn welcome(listen: std::net::SocketAddr, admin: std::net::SocketAddr, ledger: &Path) -> String {
    let ledger = ledger.display();
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("weir"));
    let program = program.display();
    format!(
        r#"Weir's demo: clients on http://{listen}, operators on http://{admin}/console and /metrics, key {DEMO_KEY}

A stream with keepalives in a silence of 8 seconds (lines that begin with a colon):
  curl -N http://{listen}/v1/chat/completions -H 'authorization: Bearer {DEMO_KEY}' -H 'content-type: application/json' -d '{{"model":"demo-silent","stream":true,"messages":[{{"role":"user","content":"Hello"}}]}}'

The same with Anthropic's and OpenAI's SDKs (pip install openai anthropic; npm install openai):
  python3 -c 'import anthropic; s=anthropic.Anthropic(base_url="http://{listen}", api_key="{DEMO_KEY}").messages.stream(model="demo", max_tokens=500, messages=[{{"role":"user","content":"Hello"}}]).__enter__(); [print(t, end="", flush=True) for t in s.text_stream]'
  python3 -c 'import openai; [print(c.choices[0].delta.content or "", end="", flush=True) for c in openai.OpenAI(base_url="http://{listen}/v1", api_key="{DEMO_KEY}").chat.completions.create(model="demo", stream=True, messages=[{{"role":"user","content":"Hello"}}])]'
  node --input-type=module -e 'import OpenAI from "openai"; for await (const e of await new OpenAI({{baseURL:"http://{listen}/v1", apiKey:"{DEMO_KEY}"}}).responses.create({{model:"demo", input:"Hello", stream:true}})) if (e.type=="response.output_text.delta") process.stdout.write(e.delta)'

Other models: demo-slow, demo-quiet, demo-thinking, demo-tools, demo-stall, demo-cut, demo-dies, demo-error, demo-429, demo-500, demo-big.
Each request leaves one line here, and a row in the ledger:
  {program} usage --by model --ledger {ledger}
To look at: http://{admin}/console for operators, http://{listen}/weir for the holder of a key.
Stop with Ctrl-C.
"#
    )
}

fn say(text: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}
