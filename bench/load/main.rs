//! Weir under load, next to others: direct, stock Pingora, nginx, `HAProxy` (`make bench`, `make soak`).
//!
//! Everything is a process of its own (upstream, load generator, each contender) and all run on this
//! machine, so read ratios, not absolutes. Contenders take turns within each scenario. Prints tables
//! and writes `target/bench/load.json`. `BENCH_QUICK=1` takes about two minutes.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    clippy::format_push_string,
    reason = "a program for the developers of this project"
)]

mod client;
mod contenders;
mod process;
mod report;
mod scenarios;
mod soak;
mod stock;
mod upstream;
mod wire;

use std::path::{Path, PathBuf};
use std::time::Duration;

/// As Weir has it, so that stock Pingora is measured with the same one.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *words.as_slice() {
        ["upstream", folder] => single().block_on(upstream::serve(Path::new(folder))),
        ["load", spec] => {
            let load = serde_json::from_str(spec).expect("made by this program");
            let outcome = single().block_on(client::run(load));
            println!("{}", serde_json::to_string(&outcome).expect("plain numbers"));
        }
        ["stock", folder, plain, secure, up, upstream, upstream_tls] => {
            let port = |word: &str| word.parse().expect("a port");
            stock::serve(
                Path::new(folder),
                [port(plain), port(secure), port(up)],
                (port(upstream), port(upstream_tls)),
            );
        }
        ["soak", minutes] => {
            let minutes: f64 = minutes.parse().expect("minutes");
            if !soak::run(&yard(), Duration::from_secs_f64(minutes * 60.0)).is_flat() {
                std::process::exit(1);
            }
        }
        _ => scenarios::run(&yard(), &words),
    }
}

fn single() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn yard() -> contenders::Yard {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let target = target.parent().map_or(target.clone(), Path::to_owned);
    contenders::Yard::new(target.join("bench/run"), PathBuf::from(env!("CARGO_BIN_EXE_weir")))
}
