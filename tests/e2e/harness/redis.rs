//! Debian's Redis, started on a free port. Absent, its tests fail.

use super::{free_address, within};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A Redis server, gone with the value.
pub(crate) struct Redis {
    folder: tempfile::TempDir,
    port: u16,
    process: Option<Child>,
}

impl Redis {
    pub(crate) async fn start() -> Self {
        let port = free_address().port();
        let mut server = Self { folder: tempfile::tempdir().expect("a folder"), port, process: None };
        server.run().await;
        server
    }

    /// Starts it (again), with nothing in it.
    pub(crate) async fn run(&mut self) {
        // The package redis-tools brings the server's program under this name, and no service.
        let mut command = Command::new("redis-check-rdb");
        command.arg0("redis-server").args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.current_dir(self.folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(command.spawn().expect("Debian's redis-tools (make setup-redis)"));
        within("Redis", async {
            while self.ask("PING").as_deref() != Some("+PONG") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The first line of an answer, such as `:3`; `None` when nobody answers.
    pub(crate) fn ask(&self, command: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(super::PATIENCE)).ok()?;
        write!(stream, "{command}\r\n").ok()?;
        let mut bytes = [0; 1024];
        let read = stream.read(&mut bytes).ok()?;
        String::from_utf8_lossy(&bytes[..read]).lines().next().map(str::to_owned)
    }

    /// A number that Redis holds under a key; 0 if there is none.
    pub(crate) fn number(&self, command: &str) -> i64 {
        let answer = self.ask(command).expect("an answer");
        let answer = if answer.starts_with('$') { self.bulk(command) } else { answer };
        answer.trim_start_matches(':').parse().unwrap_or(0)
    }

    fn bulk(&self, command: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("Redis");
        write!(stream, "{command}\r\nQUIT\r\n").expect("Redis");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text.lines().nth(1).unwrap_or_default().to_owned()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}
