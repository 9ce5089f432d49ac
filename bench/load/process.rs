//! What the kernel knows of a process: processor time, memory, descriptors; and processes of our own.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Processor time of some processes, from a moment on.
pub(crate) struct Cpu {
    pids: Vec<u32>,
    began: f64,
}

impl Cpu {
    pub(crate) fn of(pids: &[u32]) -> Self {
        Self { pids: pids.to_vec(), began: pids.iter().map(|pid| seconds(*pid)).sum() }
    }

    /// Seconds of user and system time since.
    pub(crate) fn since(&self) -> f64 {
        self.pids.iter().map(|pid| seconds(*pid)).sum::<f64>() - self.began
    }
}

/// User and system time of a process so far, by its threads' own clocks (nanoseconds).
fn seconds(pid: u32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let nanos: u64 = threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).ok())
        .filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .sum();
    std::time::Duration::from_nanos(nanos).as_secs_f64()
}

/// Resident memory in KiB.
pub(crate) fn resident(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
}

pub(crate) fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

pub(crate) fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// A process that ends with its owner.
pub(crate) struct Running {
    child: Child,
    out: Option<BufReader<ChildStdout>>,
}

impl Running {
    /// Starts it; what it says on standard error goes to `log`.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Self {
        let log = std::fs::File::create(log).expect("the bench's own folder");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let out = child.stdout.take().map(BufReader::new);
        Self { child, out }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it says.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        if let Some(out) = &mut self.out {
            out.read_line(&mut line).expect("a pipe");
        }
        line.trim().to_owned()
    }

    /// Closes its standard input.
    pub(crate) fn go_on(&mut self) {
        drop(self.child.stdin.take());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that is free now.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}
