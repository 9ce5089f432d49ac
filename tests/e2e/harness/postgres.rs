//! Debian's `postgresql`, started on a free port in a folder of its own. Absent, its tests fail.

use super::{free_address, within};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A PostgreSQL server, gone with the value.
pub(crate) struct Postgres {
    folder: tempfile::TempDir,
    port: u16,
    process: Option<Child>,
}

/// The newest installed version's program, as the user that PostgreSQL insists on.
fn program(name: &str) -> Command {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("Debian's postgresql (make setup-postgres)");
    let newest: PathBuf = versions.map(|entry| entry.expect("an entry").path()).max().expect("Debian's postgresql");
    let mut command = Command::new(newest.join("bin").join(name));
    let id = |args: &[&str]| {
        let output = Command::new("id").args(args).output().expect("id").stdout;
        String::from_utf8(output).expect("a number").trim().parse::<u32>().expect("a number")
    };
    if id(&["-u"]) == 0 {
        command.gid(id(&["-g", "postgres"])).uid(id(&["-u", "postgres"]));
    }
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

impl Postgres {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).expect("permissions");
        let port = free_address().port();
        let mut server = Self { folder, port, process: None };
        let made = program("initdb")
            .args(["--no-sync", "--auth=trust", "--username=weir", "--encoding=UTF8", "-D"])
            .arg(server.data())
            .status();
        assert!(made.expect("initdb").success(), "initdb");
        server.run().await;
        server
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Starts it (again); after a kill the children of the one before may hold its memory for a moment.
    pub(crate) async fn run(&mut self) {
        within("PostgreSQL", async {
            loop {
                if self.process.as_mut().is_none_or(|process| process.try_wait().expect("a child").is_some()) {
                    let mut command = program("postgres");
                    command.args(["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-p", &self.port.to_string()]);
                    command.arg("-D").arg(self.data()).arg("-k").arg(self.folder.path());
                    self.process = Some(command.spawn().expect("postgres"));
                }
                if tokio_postgres::connect(&self.url(), tokio_postgres::NoTls).await.is_ok() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    /// Pulls its plug.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("a child");
            process.wait().expect("a child");
        }
        let _ = std::fs::remove_file(self.data().join("postmaster.pid"));
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://weir@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    /// The answer to a question that has one line of one text.
    pub(crate) async fn ask(&self, sql: &str) -> String {
        let Ok((client, connection)) = tokio_postgres::connect(&self.url(), tokio_postgres::NoTls).await else {
            return String::new();
        };
        tokio::spawn(connection);
        // Before the sink has made its tables there is nothing to be told.
        let row = client.query_opt(sql, &[]).await.ok().flatten();
        row.and_then(|row| row.get::<_, Option<String>>(0)).unwrap_or_default()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}
