//! Churn for some time: nothing may grow.

use crate::client::{Kind, Load};
use crate::contenders::{Who, Yard, own};
use crate::process::{Running, descriptors, resident, threads};
use crate::wire::Script;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Pages move about; a leak of one stream's memory each time would be hundreds of MiB.
pub(crate) const MAY_GROW_MIB: f64 = 24.0;
/// Descriptors, threads and series: some connections of the pool come and go.
pub(crate) const MAY_GROW: f64 = 60.0;
/// So many new connections a second.
const PER_SECOND: f64 = 60.0;

/// What had grown at the end.
pub(crate) struct Grown {
    pub(crate) memory_grown: f64,
    pub(crate) others_grown: f64,
}

impl Grown {
    pub(crate) fn is_flat(&self) -> bool {
        self.memory_grown <= MAY_GROW_MIB && self.others_grown <= MAY_GROW
    }
}

/// Looks at Weir after a fifth of the time (it is warm then), and at the end.
pub(crate) fn run(yard: &Yard, time: Duration) -> Grown {
    let upstream = yard.upstream();
    let weir = yard.start(Who::Weir, &upstream);
    let pid = weir.pids()[0];
    let (seconds, ports) = (time.as_secs_f64(), weir.ports);
    let load = |port, tls, h2, script, body| {
        let kind = Kind::Churn { per_second: PER_SECOND, seconds };
        let load = Load {
            kind,
            port,
            tls,
            h2,
            folder: yard.folder.clone(),
            model: "bench".to_owned(),
            script,
            pids: Vec::new(),
            body,
        };
        let spec = serde_json::to_string(&load).expect("plain data");
        Running::start(own("load").arg(spec), &yard.folder.join("soak.log"))
    };
    let stream = Script { events: 20, gap_us: 50_000, first_ms: 20, ..Script::default() };
    let short = Script { json: true, ..Script::default() };
    let mut loads = [load(ports[0], false, false, stream, 0), load(ports[1], true, false, short, 64 * 1024)];
    let warm = Instant::now() + time / 5;
    std::thread::sleep(warm.saturating_duration_since(Instant::now()));
    let before = look(pid, weir.admin);
    let mut shown = Instant::now();
    let end = Instant::now() + time.mul_f64(0.75);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_secs(1));
        if shown.elapsed() > Duration::from_mins(1) {
            shown = Instant::now();
            println!("  soak: {}", say(look(pid, weir.admin)));
        }
    }
    let after = look(pid, weir.admin);
    for load in &mut loads {
        let outcome: crate::client::Outcome = serde_json::from_str(&load.line()).expect("an outcome");
        println!("  soak: {} requests, {} errors", outcome.requests, outcome.errors);
    }
    println!("  soak: {} -> {}", say(before), say(after));
    let grown = |before: usize, after: usize| after.saturating_sub(before) as f64;
    Grown {
        memory_grown: (after.0 - before.0) / 1024.0,
        others_grown: grown(before.1, after.1) + grown(before.2, after.2) + grown(before.3, after.3),
    }
}

/// Memory in KiB, descriptors, threads, series.
type Look = (f64, usize, usize, usize);

fn look(pid: u32, admin: u16) -> Look {
    (resident(pid), descriptors(pid), threads(pid), series(admin))
}

fn say((memory, descriptors, threads, series): Look) -> String {
    format!("{:.1} MiB, {descriptors} descriptors, {threads} threads, {series} series", memory / 1024.0)
}

fn series(admin: u16) -> usize {
    let mut text = String::new();
    let asked = TcpStream::connect(("127.0.0.1", admin)).and_then(|mut socket| {
        socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        socket.read_to_string(&mut text)
    });
    asked.map_or(0, |_| text.lines().filter(|line| line.starts_with("weir_")).count())
}
