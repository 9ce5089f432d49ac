//! What is measured, in which order, and what becomes of the figures.

use crate::client::{Kind, Load, Outcome};
use crate::contenders::{Contender, Upstream, Who, Yard, own};
use crate::process::{Cpu, Running, resident};
use crate::report::{Report, Row, Target, machine};
use crate::soak;
use crate::wire::Script;
use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

const MIB: usize = 1024 * 1024;
/// Just below Weir's default `max_event_bytes`.
const LARGEST_TEXT: usize = 16 * MIB - 1024;
/// What a model needs for its first token, at least; a proxy may use that time.
const MODEL_MS: u64 = 50;

/// How thorough.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    seconds: f64,
    soak: f64,
}

/// One run.
struct Run<'a> {
    yard: &'a Yard,
    upstream: Upstream,
    running: Vec<Contender>,
    report: Report,
    effort: Effort,
}

/// How the client comes, and which of a contender's ports it takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Tls,
    H2,
    /// TLS, and HTTP/2 where the proxy speaks it, to the upstream.
    Up,
}

/// All scenarios, or those whose letter is named.
pub(crate) fn run(yard: &Yard, letters: &[&str]) {
    let quick = std::env::var_os("BENCH_QUICK").is_some_and(|value| value != "0");
    let effort = if quick {
        Effort { rounds: 1, seconds: 2.0, soak: 10.0 }
    } else {
        Effort { rounds: 3, seconds: 3.0, soak: 30.0 }
    };
    println!("{:#}", machine());
    let upstream = yard.upstream();
    let running = Who::ALL.map(|who| yard.start(who, &upstream)).into();
    let mut run = Run { yard, upstream, running, report: Report::default(), effort };
    let wanted = |letter: &str| letters.is_empty() || letters.contains(&letter);
    for letter in ["a", "b", "c", "d", "e", "f", "g", "s"].into_iter().filter(|letter| wanted(letter)) {
        match letter {
            "a" => run.paced(),
            "b" => run.open(),
            "c" => run.burst(),
            "d" => run.requests(),
            "e" => run.large_events(),
            "f" => run.secured(),
            "g" => run.uploads(),
            _ => run.soak(),
        }
    }
    let file = if letters.is_empty() { "load.json".to_owned() } else { format!("load-{}.json", letters.concat()) };
    run.report.write(&yard.folder.with_file_name(file));
}

impl Run<'_> {
    /// (a) One event per read, spread evenly over time.
    fn paced(&mut self) {
        const WHAT: &str = "(a) paced streams, one event per read";
        for (count, gap_us) in [(100, 10_000), (400, 40_000)] {
            let script = Script { events: 1_000_000, gap_us, spread: true, ..Script::default() };
            let outcomes = self.streams(&Who::ALL, Way::Plain, count, &script);
            let name = format!("{count} streams, 10,000 events/s");
            let target = (count == 100).then_some(Target::Times(0.85, Who::Stock));
            self.row(WHAT, format!("{name}: CPU per event"), "µs", &outcomes, per_event, target);
            self.added(WHAT, &name, &outcomes, |outcome| &outcome.latency, "latency", false);
        }
    }

    /// (b) Open and silent streams, in fresh processes.
    fn open(&mut self) {
        const WHAT: &str = "(b) open idle streams";
        let script = Script { events: 1, hold: true, ..Script::default() };
        let mut memory = BTreeMap::new();
        for who in [Who::Stock, Who::Nginx, Who::Haproxy, Who::Weir] {
            memory.insert(who.name(), self.held(who, 2_000, &script, 0.0).0);
        }
        let row =
            |what: &str, unit, figures, target| Row { scenario: WHAT, what: what.to_owned(), unit, figures, target };
        self.report.add(row("2,000: memory per stream", "KiB", memory, Some(Target::AtMost(40.0))));
        let (memory, cpu) = self.held(Who::Weir, 9_000, &script, 12.0);
        let only = |figure| BTreeMap::from([(Who::Weir.name(), figure)]);
        self.report.add(row("9,000: memory per stream", "KiB", only(memory), Some(Target::AtMost(40.0))));
        self.report.add(row("9,000: CPU at rest, a keepalive each 10 s", "% of a core", only(cpu * 100.0), None));
    }

    /// Memory per held stream in KiB, and the share of a core that they need over some seconds.
    fn held(&self, who: Who, count: usize, script: &Script, seconds: f64) -> (f64, f64) {
        let contender = self.yard.start(who, &self.upstream);
        let warm = Kind::Closed { connections: 20, requests: 400 };
        self.load(&contender, Way::Plain, warm, &Script { json: true, ..Script::default() }, 0);
        let pid = contender.pids()[0];
        let before = resident(pid);
        let load = Self::spec(&contender, Way::Plain, Kind::Hold { count }, script, 0, self.yard);
        let mut holding = start(&load, self.yard);
        let line = holding.line();
        let open: f64 = line.strip_prefix("open ").and_then(|count| count.parse().ok()).unwrap_or(0.0);
        if open < count as f64 {
            println!("  {}: only {open} of {count} streams were opened", who.name());
        }
        let memory = (resident(pid) - before) / open.max(1.0);
        let cpu = if seconds > 0.0 {
            std::thread::sleep(Duration::from_secs(2));
            let cpu = Cpu::of(&[pid]);
            std::thread::sleep(Duration::from_secs_f64(seconds));
            cpu.since() / seconds
        } else {
            0.0
        };
        holding.go_on();
        (memory, cpu)
    }

    /// (c) As fast as it goes, in large reads.
    fn burst(&mut self) {
        const WHAT: &str = "(c) a burst of 20,000 events in large reads";
        let script = Script { events: 20_000, ..Script::default() };
        let kind = Kind::Closed { connections: 1, requests: 10 };
        let outcomes = self.each(&Who::ALL, Way::Plain, &kind, &script, 0);
        self.row(WHAT, "CPU per event".into(), "µs", &outcomes, per_event, Some(Target::AtMost(1.0)));
        self.row(WHAT, "events/s".into(), "thousands", &outcomes, |one| one.events as f64 / one.seconds / 1e3, None);
    }

    /// (d) What a request costs, and how soon its first token is there.
    fn requests(&mut self) {
        const WHAT: &str = "(d) short requests";
        const STORM: &str = "(d) a storm of 1,000 new connections in 0.5 s";
        let json = Script { json: true, ..Script::default() };
        let kind = Kind::Closed { connections: 20, requests: 3_000 };
        let outcomes = self.each(&Who::ALL, Way::Plain, &kind, &json, 0);
        let target = Some(Target::Times(1.7, Who::Stock));
        self.row(WHAT, "20 connections: CPU per request".into(), "µs", &outcomes, per_request, target);
        let short = Script { events: 3, ..Script::default() };
        let outcomes = self.each(&Who::ALL, Way::Plain, &kind, &short, 0);
        self.row(WHAT, "streams of 3 events: CPU per request".into(), "µs", &outcomes, per_request, None);
        let kind = Kind::Closed { connections: 200, requests: 8_000 };
        let outcomes = self.each(&Who::ALL, Way::Plain, &kind, &json, 0);
        self.row(
            WHAT,
            "200 connections: requests/s".into(),
            "1/s",
            &outcomes,
            |one| one.requests as f64 / one.seconds,
            None,
        );

        let model = Script { first_ms: MODEL_MS, events: 3, gap_us: 5_000, ..Script::default() };
        let kind = Kind::Rate { per_second: 150.0, seconds: self.effort.seconds };
        let outcomes = self.each(&Who::ALL, Way::Plain, &kind, &model, 0);
        self.added(WHAT, "150 requests/s", &outcomes, |one| &one.ttft, "TTFT", true);

        let kind = Kind::Storm { count: 1_000, seconds: 0.5 };
        let instant = Script { events: 3, ..Script::default() };
        for (name, script) in [("a model that takes 50 ms", model), ("a model that takes no time", instant)] {
            let outcomes = self.each(&Who::ALL, Way::Plain, &kind, &script, 0);
            let off = script.first_ms as f64;
            let target = (off > 0.0).then_some(Target::Times(2.0, Who::Nginx));
            let ttft = |share| move |one: &Outcome| quantile(&one.ttft, share) / 1e3 - off;
            self.row(STORM, format!("{name}: TTFT p50 beyond"), "ms", &outcomes, ttft(0.5), target);
            self.row(STORM, format!("{name}: TTFT p99 beyond"), "ms", &outcomes, ttft(0.99), None);
        }
    }

    /// (e) Events that need many reads.
    fn large_events(&mut self) {
        const WHAT: &str = "(e) large events in 1 KiB pieces";
        let mut costs = Vec::new();
        for (name, text, events) in [("1 MiB", MIB, 16), ("16 MiB", LARGEST_TEXT, 1)] {
            let script = Script { events, text, piece: 1024, ..Script::default() };
            let kind = Kind::Closed { connections: 1, requests: 2 };
            let outcomes = self.each(&Who::ALL, Way::Plain, &kind, &script, 0);
            let cost = |one: &Outcome| one.cpu * 1e3 / (one.bytes as f64 / MIB as f64);
            costs.push(merged(&outcomes, Who::Weir, cost));
            self.row(WHAT, format!("{name}: CPU per MiB"), "ms", &outcomes, cost, None);
        }
        if let [Some(small), Some(large)] = costs[..] {
            let figures = BTreeMap::from([(Who::Weir.name(), large / small)]);
            let what = "linear: a MiB of the large to one of the small".to_owned();
            self.report.add(Row { scenario: WHAT, what, unit: "×", figures, target: Some(Target::AtMost(2.0)) });
        }
    }

    /// (f) TLS and HTTP/2, on either side.
    fn secured(&mut self) {
        const WHAT: &str = "(f) 100 paced streams with TLS and HTTP/2";
        let script = Script { events: 1_000_000, gap_us: 10_000, spread: true, ..Script::default() };
        let rounds = std::mem::replace(&mut self.effort.rounds, 1);
        for (name, way) in [
            ("TLS from the client", Way::Tls),
            ("TLS and h2 from the client", Way::H2),
            ("TLS (h2) to the upstream", Way::Up),
        ] {
            let outcomes = self.streams(&[Who::Stock, Who::Nginx, Who::Haproxy, Who::Weir], way, 100, &script);
            self.row(WHAT, format!("{name}: CPU per event"), "µs", &outcomes, per_event, None);
            self.row(WHAT, format!("{name}: latency p99"), "µs", &outcomes, |one| quantile(&one.latency, 0.99), None);
        }
        self.effort.rounds = rounds;
    }

    /// (g) Large request bodies.
    fn uploads(&mut self) {
        const WHAT: &str = "(g) request bodies of 20 MiB";
        let kind = Kind::Closed { connections: 2, requests: 8 };
        let json = Script { json: true, ..Script::default() };
        let outcomes = self.each(&Who::ALL, Way::Plain, &kind, &json, 20 * MIB);
        let cost = |one: &Outcome| one.cpu * 1e3 / (one.requests as f64 * 20.0);
        self.row(WHAT, "CPU per MiB".into(), "ms", &outcomes, cost, None);
        self.row(WHAT, "time to the reply, p50".into(), "ms", &outcomes, |one| quantile(&one.ttft, 0.5) / 1e3, None);
        let memory = self.running.iter().filter(|one| one.who != Who::Direct);
        let figures = memory.map(|one| (one.who.name(), resident(one.pids()[0]) / 1024.0)).collect();
        self.report.add(Row { scenario: WHAT, what: "resident afterwards".into(), unit: "MiB", figures, target: None });
    }

    /// (s) Nothing grows.
    fn soak(&mut self) {
        let outcome = soak::run(self.yard, Duration::from_secs_f64(self.effort.soak));
        let only = |figure| BTreeMap::from([(Who::Weir.name(), figure)]);
        let what = format!("{} s of churn, a third leaves early: memory grown", self.effort.soak);
        let row = |what, unit, figure, target| Row { scenario: "(s) soak", what, unit, figures: only(figure), target };
        self.report.add(row(what, "MiB", outcome.memory_grown, Some(Target::AtMost(soak::MAY_GROW_MIB))));
        self.report.add(row(
            "descriptors, threads, series grown".into(),
            "",
            outcome.others_grown,
            Some(Target::AtMost(soak::MAY_GROW)),
        ));
    }

    fn streams(&self, who: &[Who], way: Way, count: usize, script: &Script) -> Vec<(Who, Outcome)> {
        let kind = Kind::Streams { count, seconds: self.effort.seconds };
        self.each(who, way, &kind, script, 0)
    }

    /// One load on each contender in turn, as often as there are rounds.
    fn each(&self, who: &[Who], way: Way, kind: &Kind, script: &Script, body: usize) -> Vec<(Who, Outcome)> {
        let mut outcomes = Vec::new();
        for _ in 0..self.effort.rounds {
            for contender in self.running.iter().filter(|one| who.contains(&one.who)) {
                let outcome = self.load(contender, way, kind.clone(), script, body);
                if outcome.errors > 0 {
                    println!(
                        "  {}: {} of {} requests failed",
                        contender.who.name(),
                        outcome.errors,
                        outcome.requests + outcome.errors
                    );
                }
                outcomes.push((contender.who, outcome));
            }
        }
        outcomes
    }

    fn load(&self, contender: &Contender, way: Way, kind: Kind, script: &Script, body: usize) -> Outcome {
        let load = Self::spec(contender, way, kind, script, body, self.yard);
        let spec = serde_json::to_string(&load).expect("plain data");
        let output = own("load").arg(spec).stderr(Stdio::inherit()).output().expect("it runs");
        serde_json::from_slice(&output.stdout).expect("an outcome")
    }

    fn spec(contender: &Contender, way: Way, kind: Kind, script: &Script, body: usize, yard: &Yard) -> Load {
        let [plain, secure, up] = contender.ports;
        let (port, tls, h2) = match way {
            Way::Plain => (plain, false, false),
            Way::Tls => (secure, true, false),
            Way::H2 => (secure, true, true),
            Way::Up => (up, false, false),
        };
        let model = if way == Way::Up { "secure" } else { "bench" }.to_owned();
        let (folder, script, pids) = (yard.folder.clone(), script.clone(), contender.pids());
        Load { kind, port, tls, h2, folder, model, script, pids, body }
    }

    fn row(
        &mut self,
        scenario: &'static str,
        what: String,
        unit: &'static str,
        outcomes: &[(Who, Outcome)],
        figure: impl Fn(&Outcome) -> f64,
        target: Option<Target>,
    ) {
        let figures = Who::ALL.into_iter().filter_map(|who| Some((who.name(), merged(outcomes, who, &figure)?)));
        self.report.add(Row { scenario, what, unit, figures: figures.collect(), target });
    }

    /// What each adds to the way without a proxy.
    fn added(
        &mut self,
        scenario: &'static str,
        name: &str,
        outcomes: &[(Who, Outcome)],
        of: fn(&Outcome) -> &Vec<f64>,
        noun: &str,
        is_target: bool,
    ) {
        for (word, share) in [("p50", 0.5), ("p99", 0.99)] {
            let figure = |outcome: &Outcome| quantile(of(outcome), share);
            let Some(direct) = merged(outcomes, Who::Direct, figure) else { continue };
            let figures = Who::ALL.into_iter().filter(|who| *who != Who::Direct);
            let figures =
                figures.filter_map(|who| Some((who.name(), merged(outcomes, who, figure)? - direct))).collect();
            let target = is_target.then_some(Target::Times(1.2, Who::Nginx));
            self.report.add(Row {
                scenario,
                what: format!("{name}: added {noun} {word}"),
                unit: "µs",
                figures,
                target,
            });
        }
    }
}

fn start(load: &Load, yard: &Yard) -> Running {
    let spec = serde_json::to_string(load).expect("plain data");
    Running::start(own("load").arg(spec), &yard.folder.join("load.log"))
}

fn per_event(outcome: &Outcome) -> f64 {
    outcome.cpu * 1e6 / (outcome.events as f64).max(1.0)
}

fn per_request(outcome: &Outcome) -> f64 {
    outcome.cpu * 1e6 / (outcome.requests as f64).max(1.0)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length")]
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = ((sorted.len().saturating_sub(1)) as f64 * share).round() as usize;
    sorted.get(at).copied().unwrap_or(0.0)
}

/// The median over the rounds.
fn merged(outcomes: &[(Who, Outcome)], who: Who, figure: impl Fn(&Outcome) -> f64) -> Option<f64> {
    let mut figures: Vec<f64> =
        outcomes.iter().filter(|(whose, _)| *whose == who).map(|(_, one)| figure(one)).collect();
    figures.sort_by(f64::total_cmp);
    let (low, high) = (figures.get(figures.len().saturating_sub(1) / 2)?, figures.get(figures.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}
