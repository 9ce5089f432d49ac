//! Against Debian's `postgresql`, started on a free port in a folder of its own. Absent, these tests fail.

use super::*;
use crate::config::Secret;
use crate::ledger::tests::{ask, config, open, row, settled, until};
use crate::ledger::{Correction, Ledger, LedgerConfig, money::Nano};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use tokio_postgres::NoTls;
use uuid::Uuid;

/// A PostgreSQL server, gone with the value.
struct Server {
    folder: tempfile::TempDir,
    port: u16,
    process: Option<Child>,
}

/// The newest installed version's program, as the user that PostgreSQL insists on.
fn program(name: &str) -> Command {
    let mut versions: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .expect("Debian's postgresql")
        .map(|entry| entry.unwrap().path())
        .collect();
    versions.sort();
    let mut command = Command::new(versions.last().expect("Debian's postgresql").join("bin").join(name));
    let id = |flag: &str| {
        let output = Command::new("id").args([flag, "postgres"]).output().unwrap().stdout;
        String::from_utf8(output).unwrap().trim().parse::<u32>().unwrap()
    };
    let me = Command::new("id").arg("-u").output().unwrap().stdout;
    if me.starts_with(b"0") {
        command.gid(id("-g")).uid(id("-u"));
    }
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

impl Server {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
        // Below the ports that the system gives out by itself: nobody gets it meanwhile.
        let mut ports = std::iter::repeat_with(|| fastrand::u16(8_100..10_000));
        let port = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap();
        let mut server = Self { folder, port, process: None };
        let made = program("initdb")
            .args(["--no-sync", "--auth=trust", "--username=weir", "--encoding=UTF8", "-D"])
            .arg(server.data())
            .status();
        assert!(made.unwrap().success(), "initdb");
        server.start(&[]);
        server
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Until it listens; after a kill the children of the one before may hold its memory for a moment.
    fn start(&mut self, options: &[&str]) {
        for _ in 0..3_000 {
            if self.process.as_mut().is_none_or(|process| process.try_wait().unwrap().is_some()) {
                let mut command = program("postgres");
                command
                    .arg("-D")
                    .arg(self.data())
                    .arg("-p")
                    .arg(self.port.to_string())
                    .arg("-k")
                    .arg(self.folder.path());
                command.args(["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]).args(options);
                self.process = Some(command.spawn().unwrap());
            }
            if std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        panic!("PostgreSQL does not start");
    }

    fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
        let _ = std::fs::remove_file(self.data().join("postmaster.pid"));
    }

    fn url(&self) -> String {
        format!("postgres://weir@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    fn config(&self) -> PostgresConfig {
        PostgresConfig { url: Secret::new(self.url()), batch: 7 }
    }

    async fn client(&self) -> tokio_postgres::Client {
        for _ in 0..3_000 {
            if let Ok((client, connection)) = tokio_postgres::connect(&self.url(), NoTls).await {
                tokio::spawn(connection);
                return client;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("PostgreSQL did not come up");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn requests(ledger: &Ledger, count: u64) -> Vec<Uuid> {
    let mut ids = Vec::new();
    for n in 1..=count {
        let id = Uuid::now_v7();
        let (ticket, durable) = ledger.begin(row(id)).await.unwrap();
        durable.wait().await.unwrap();
        ticket.settle(settled(id, n, 2 * n));
        ids.push(id);
    }
    until("written", || ledger.stats().pending == 0).await;
    ids
}

const SUMS: &str = "SELECT count(*)::text || ' ' || sum(input) || ' ' || sum(output) || ' ' || sum(charge) || ' ' || sum(cost) \
    FROM weir_records";
const LOCAL: &str = "SELECT count(*), sum(input), sum(output), sum(charge), sum(cost) FROM records";

async fn remote(client: &tokio_postgres::Client, sql: &str) -> String {
    client.query_opt(sql, &[]).await.unwrap().and_then(|row| row.get(0)).unwrap_or_default()
}

/// A sink that runs until it is stopped.
struct Running {
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
    watch: SinkWatch,
}

fn run(ledger: &Ledger, config: &PostgresConfig) -> Running {
    let sink = ledger.sink(config).unwrap();
    let watch = sink.stats();
    let (stop, stopped) = watch::channel(false);
    Running { stop, task: tokio::spawn(sink.run(stopped)), watch }
}

impl Running {
    async fn caught_up(&self, shipped: u64) {
        until("all is shipped", || {
            let stats = self.watch.read();
            stats.connected && stats.shipped >= shipped && stats.behind == 0
        })
        .await;
    }

    /// Until the sums there are those here. What the sink itself says may be from before the last requests.
    async fn agrees(&self, client: &tokio_postgres::Client, path: &Path) {
        let local = ask(path, LOCAL);
        let mut there = String::new();
        for _ in 0..6_000 {
            there = remote(client, SUMS).await;
            if there == local {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(there, local);
        self.caught_up(1).await;
    }

    async fn stop(self) {
        self.stop.send(true).unwrap();
        self.task.await.unwrap();
    }
}

fn with_sink(server: &Server, path: &Path) -> Ledger {
    open(&LedgerConfig { postgres: Some(server.config()), ..config(path) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l4_rows_and_corrections_arrive_once_and_the_sums_are_equal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let server = Server::new();
    let client = server.client().await;
    let ledger = with_sink(&server, &path);
    let ids = requests(&ledger, 50).await;
    let sink = run(&ledger, &server.config());
    sink.caught_up(50).await;
    let correction = Correction {
        id: Uuid::now_v7(),
        request_id: ids[3],
        charge: Nano(-5),
        cost: Nano(7),
        input: 1,
        output: -1,
        why: "test".to_owned(),
    };
    ledger.correct(correction).await.unwrap();
    sink.caught_up(51).await;
    assert_eq!(remote(&client, SUMS).await, ask(&path, LOCAL));
    // Columns land where they belong, JSON as JSON.
    let sql = "SELECT concat_ws(' ', request_id, key, tag, model, target, outcome, source, input, output, charge, cost, billing, \
        billing_why, attempts->0->>'target', charged->>'output', corrections, received, duration, settled_at) \
        FROM weir_records ORDER BY seq LIMIT 1";
    let local = "SELECT request_id, key, tag, model, target, outcome, source, input, output, charge, cost, billing, billing_why, \
        attempts->0->>'target', charged->>'output', corrections, received, duration, settled_at FROM records ORDER BY seq LIMIT 1";
    assert_eq!(remote(&client, sql).await, ask(&path, local));
    sink.stop().await;
    // A server that was restored from an older copy gets what it lacks, and nothing twice.
    client
        .batch_execute("DELETE FROM weir_settled WHERE seq > 20; UPDATE weir_cursors SET settled = 10")
        .await
        .unwrap();
    let tenth: String = ask(&path, "SELECT request_id FROM settled WHERE seq = 10");
    client.execute("UPDATE weir_cursors SET settled_id = $1", &[&tenth]).await.unwrap();
    let sink = run(&ledger, &server.config());
    sink.caught_up(40).await;
    assert_eq!(remote(&client, SUMS).await, ask(&path, LOCAL));
    // What comes at the very end is shipped by the last round.
    requests(&ledger, 9).await;
    sink.stop().await;
    assert_eq!(remote(&client, SUMS).await, ask(&path, LOCAL));
    ledger.close();
    assert_eq!(ask(&path, "SELECT shipped_to, corrections_shipped_to FROM counters"), "59 1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l4_a_server_that_is_away_slow_or_refusing_blocks_nobody_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let mut server = Server::new();
    drop(server.client().await);
    server.stop();
    let ledger = with_sink(&server, &path);
    let sink = run(&ledger, &server.config());
    requests(&ledger, 20).await;
    until("it is missed", || sink.watch.read().error.is_some() && sink.watch.read().behind == 20).await;
    assert!(!sink.watch.read().connected);
    server.start(&[]);
    sink.caught_up(20).await;
    assert_eq!(sink.watch.read().error, None);
    // Slow: somebody holds the table.
    let client = server.client().await;
    client.batch_execute("BEGIN; LOCK TABLE weir_settled IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let began = std::time::Instant::now();
    requests(&ledger, 20).await;
    assert!(began.elapsed() < Duration::from_secs(25), "requests wait for the sink");
    client.batch_execute("COMMIT").await.unwrap();
    sink.caught_up(40).await;
    // Killed in the middle and started again, several times.
    for _ in 0..3 {
        requests(&ledger, 30).await;
        server.stop();
        requests(&ledger, 10).await;
        server.start(&[]);
    }
    let client = server.client().await;
    sink.agrees(&client, &path).await;
    // Refusing: the sink is thrown out and may not come back for a while.
    let thrown_out = "ALTER ROLE weir NOLOGIN; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'weir'";
    client.batch_execute(thrown_out).await.unwrap();
    requests(&ledger, 10).await;
    until("it is told", || sink.watch.read().error.is_some_and(|error| error.contains("log in"))).await;
    client.batch_execute("ALTER ROLE weir LOGIN").await.unwrap();
    sink.agrees(&client, &path).await;
    sink.stop().await;
    ledger.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l4_a_ledger_restored_from_a_copy_is_shipped_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let server = Server::new();
    let client = server.client().await;
    let ledger = with_sink(&server, &path);
    requests(&ledger, 5).await;
    ledger.close();
    let copy = folder.path().join("copy.db");
    std::fs::copy(&path, &copy).unwrap();
    let ledger = with_sink(&server, &path);
    requests(&ledger, 10).await;
    let sink = run(&ledger, &server.config());
    sink.caught_up(15).await;
    sink.stop().await;
    ledger.close();
    std::fs::copy(&copy, &path).unwrap();
    let ledger = with_sink(&server, &path);
    requests(&ledger, 12).await;
    let sink = run(&ledger, &server.config());
    sink.caught_up(17).await;
    sink.stop().await;
    ledger.close();
    assert_eq!(
        remote(&client, "SELECT count(*)::text FROM weir_records").await,
        "27",
        "15 of the first life, 12 of the second"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l4_tls_is_verified() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let mut server = Server::new();
    drop(server.client().await);
    server.stop();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (cert, key) = (server.folder.path().join("tls.crt"), server.folder.path().join("tls.key"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(server.data()).unwrap());
    std::os::unix::fs::chown(&key, Some(owner), None).unwrap();
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    let (cert_option, key_option) =
        (format!("ssl_cert_file={}", cert.display()), format!("ssl_key_file={}", key.display()));
    server.start(&["-c", "ssl=on", "-c", &cert_option, "-c", &key_option]);
    drop(server.client().await);
    let ledger = with_sink(&server, &path);
    requests(&ledger, 3).await;
    let url = |query: &str| PostgresConfig {
        url: Secret::new(format!("postgres://weir@localhost:{}/postgres?hostaddr=127.0.0.1&{query}", server.port)),
        batch: 100,
    };
    let unknown = run(&ledger, &url("sslmode=require"));
    until("an unknown certificate is refused", || unknown.watch.read().error.is_some()).await;
    let error = unknown.watch.read().error.unwrap();
    assert!(error.contains("certificate"), "{error}");
    unknown.stop().await;
    let known = run(&ledger, &url(&format!("sslmode=verify-full&sslrootcert={}", cert.display())));
    known.caught_up(3).await;
    let client = server.client().await;
    let sql = "SELECT count(*)::text FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl AND application_name = 'weir'";
    assert_eq!(remote(&client, sql).await, "1");
    known.stop().await;
    let missing = ledger.sink(&url("sslmode=require&sslrootcert=/none.pem")).unwrap_err().to_string();
    assert!(missing.contains("none.pem"), "{missing}");
    ledger.close();
}
