//! Debian's Redis, started on a free port. Absent, its tests fail.

use super::{Pki, free_address, within};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A Redis server, gone with the value.
pub(crate) struct Redis {
    folder: tempfile::TempDir,
    port: u16,
    /// Where it speaks TLS, and the files that it does it with.
    tls: Option<(u16, [PathBuf; 3])>,
    process: Option<Child>,
}

impl Redis {
    pub(crate) async fn start() -> Self {
        let mut server = Self::new(None);
        server.run().await;
        server
    }

    /// With a port for TLS, too.
    pub(crate) async fn start_tls(pki: &Pki) -> Self {
        let mut server = Self::new(Some(pki));
        server.run().await;
        server
    }

    fn new(pki: Option<&Pki>) -> Self {
        let [port, tls] = [(); 2].map(|()| free_address().port());
        let folder = tempfile::tempdir().expect("a folder");
        let tls = pki.map(|pki| (tls, pki.write(folder.path())));
        Self { folder, port, tls, process: None }
    }

    /// Starts it (again), with nothing in it.
    pub(crate) async fn run(&mut self) {
        // The package redis-tools brings the server's program under this name, and no service.
        let mut command = Command::new("redis-check-rdb");
        command.arg0("redis-server").args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        if let Some((port, [ca, cert, key])) = &self.tls {
            command.args(["--tls-port", &port.to_string(), "--tls-auth-clients", "no"]);
            command.arg("--tls-ca-cert-file").arg(ca).arg("--tls-cert-file").arg(cert).arg("--tls-key-file").arg(key);
        }
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

    /// The same with TLS, trusting the authority in this file.
    pub(crate) fn tls_url(&self, ca: &Path) -> String {
        let (port, _) = self.tls.as_ref().expect("started with TLS");
        format!("rediss://localhost:{port}?sslrootcert={}", ca.display())
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
