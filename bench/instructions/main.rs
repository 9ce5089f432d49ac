//! Instructions that the parts without IO need, counted by valgrind: repeatable where time is not.
//!
//! `make count` (part of `make test`) compares with `bench/instructions.json` and fails where more than
//! its tolerance is needed; `make count-accept` writes that file anew. The program runs itself under
//! valgrind with 1 and with 3 rounds of a workload: half the difference is one round, without start
//! and end of the process.

#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a program for the developers of this project"
)]

#[path = "../workloads.rs"]
mod workloads;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::hint::black_box;
use std::path::Path;
use std::process::{Command, ExitCode};
use workloads::Stream;

/// What one upstream read brings at most.
const READ_BYTES: usize = 64 * 1024;
const BUDGET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/bench/instructions.json");
/// Other compilers and processors choose other instructions.
const ELSEWHERE: f64 = 5.0;

/// What runs a part once.
type Work = fn(&Input);

/// The parts.
const WORK: [(&str, Work); 5] = [
    ("scanner", |input| each(input, workloads::scan)),
    ("scanner and meter", |input| each(input, workloads::meter)),
    ("relay", |input| each(input, workloads::relay)),
    ("relay, an event a read", |input| {
        for stream in &input.streams {
            black_box(workloads::relay(stream, 256));
        }
    }),
    ("body edit", |input| {
        black_box(workloads::body(&input.request));
    }),
];

struct Input {
    streams: Vec<Stream>,
    request: Bytes,
}

fn each(input: &Input, work: fn(&Stream, usize) -> usize) {
    for stream in &input.streams {
        black_box(work(stream, READ_BYTES));
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *words.as_slice() {
        ["run", source, part, rounds] => {
            run(source, part, rounds.parse().expect("a number"));
            ExitCode::SUCCESS
        }
        ["accept"] => {
            let counted =
                json!({ "tolerance": 0.05, "compiler": compiler(), "processor": processor(), "counts": counts() });
            std::fs::write(BUDGET, format!("{counted:#}\n")).expect("the project's own folder");
            ExitCode::SUCCESS
        }
        _ => compare(),
    }
}

/// Under valgrind.
fn run(source: &str, part: &str, rounds: u32) {
    let streams = if source == "golden" { workloads::golden() } else { workloads::recorded() };
    println!("{} streams, {} is the first", streams.len(), streams.first().map_or("none", |first| &first.name));
    let input = Input { streams, request: workloads::request(64 * 1024) };
    let (_, work) = WORK.iter().find(|(name, _)| *name == part).expect("a part");
    for _ in 0..rounds {
        work(&input);
    }
}

/// For each source and part the instructions of one round.
fn counts() -> Value {
    let mut all = Map::new();
    for source in ["golden", "recorded"] {
        if source == "recorded" && workloads::recorded().is_empty() {
            continue;
        }
        let counts = WORK.iter().map(|(part, _)| {
            let once = (instructions(source, part, 3) - instructions(source, part, 1)) / 2;
            println!("{source:9} {part:24} {once:>12}");
            ((*part).to_owned(), json!(once))
        });
        all.insert(source.to_owned(), Value::Object(counts.collect()));
    }
    Value::Object(all)
}

fn instructions(source: &str, part: &str, rounds: u32) -> i64 {
    let output = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"])
        .arg(std::env::current_exe().expect("it runs"))
        .args(["run", source, part, &rounds.to_string()])
        .output()
        .unwrap_or_else(|error| panic!("valgrind: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find(|line| line.contains("I ") && line.contains("refs:"));
    let number = line.and_then(|line| line.rsplit(':').next());
    let number = number.map(|number| number.replace(',', "").trim().parse::<i64>());
    number.and_then(Result::ok).unwrap_or_else(|| panic!("valgrind counts nothing: {said}"))
}

fn compare() -> ExitCode {
    let budget = std::fs::read(Path::new(BUDGET)).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    let Some(budget) = budget else {
        println!("no {BUDGET}: make count-accept");
        return ExitCode::FAILURE;
    };
    let is_same = budget["compiler"] == json!(compiler()) && budget["processor"] == json!(processor());
    let tolerance = budget["tolerance"].as_f64().unwrap_or(0.0) * if is_same { 1.0 } else { ELSEWHERE };
    let mut over = 0;
    for (source, parts) in counts().as_object().into_iter().flatten() {
        for (part, count) in parts.as_object().into_iter().flatten() {
            let (count, allowed) =
                (count.as_f64().unwrap_or(0.0), budget["counts"][source][part].as_f64().unwrap_or(0.0));
            let change = count / allowed - 1.0;
            if allowed <= 0.0 {
                over += 1;
                println!("{source}, {part}: not in {BUDGET}: make count-accept beside the recordings");
            } else if change > tolerance {
                over += 1;
                println!("{source}, {part}: {:.1} % more instructions than {BUDGET} allows", change * 100.0);
            } else if change < -tolerance {
                println!("{source}, {part}: {:.1} % fewer; make count-accept keeps it so", -change * 100.0);
            }
        }
    }
    if over == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What the vectorised searches of the dependencies look at.
fn processor() -> &'static str {
    if cfg!(target_arch = "x86_64") && has_avx2() { "x86_64, avx2" } else { std::env::consts::ARCH }
}

fn has_avx2() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.split_ascii_whitespace().any(|flag| flag == "avx2"))
}

fn compiler() -> String {
    let output = Command::new("rustc").arg("--version").output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
