//! The real binary, with a configuration of its own, for one test.

use super::{PATIENCE, client, until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

/// The secret of the virtual key `test`, which may use every model.
pub(crate) const KEY: &str = "test-key";

/// A configuration: the least that works, and what a test adds to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setup {
    providers: Vec<String>,
    models: Vec<String>,
    targets: Vec<String>,
    model: String,
    listen: String,
    server: String,
    admin: String,
    defaults: String,
    log: String,
    keys: Vec<String>,
    own_key: String,
    sections: Vec<String>,
    env: Vec<(String, String)>,
    /// A whole file instead.
    shipped: Option<String>,
}

impl Setup {
    /// Provider `up` at this URL, serving `public-model` as `upstream-model` with the key `provider-key`.
    pub(crate) fn new(url: &str) -> Self {
        Self::with_provider(url, "")
    }

    /// A file of conf/ as it is shipped, its providers at this URL, its key [`KEY`]; `changes` are words
    /// to replace, such as times that a test cannot wait for.
    pub(crate) fn shipped(file: &str, url: &str, changes: &[(&str, &str)]) -> Self {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("conf").join(file);
        let mut text = std::fs::read_to_string(path).expect("a shipped file");
        for (word, with) in changes {
            assert!(text.contains(word), "{file} has no {word}");
            text = text.replace(word, with);
        }
        let line = |line: &str| match line.trim_start().split_once(": ") {
            Some(("listen", _)) => String::new(),
            Some(("base_url", _)) => format!("    base_url: {url}\n"),
            Some(("api_key", _)) => "    api_key: provider-key\n".to_owned(),
            Some(("sha256", _)) => format!("    sha256: \"{}\"\n", sha256(KEY.as_bytes())),
            _ => format!("{line}\n"),
        };
        Self { shipped: Some(text.lines().map(line).collect()), ..Self::default() }
    }

    /// The same with more settings for the provider, as the inside of a flow mapping.
    pub(crate) fn with_provider(url: &str, settings: &str) -> Self {
        Self::default().target(url, settings)
    }

    /// One more target for `public-model`, tried after those before it.
    pub(crate) fn target(mut self, url: &str, settings: &str) -> Self {
        let number = self.targets.len();
        let name = if number == 0 { "up".into() } else { format!("up{}", number + 1) };
        let key = if settings.contains("api_key") { "" } else { "api_key: provider-key" };
        let settings: Vec<_> = [key, settings].into_iter().filter(|part| !part.is_empty()).collect();
        self.providers.push(format!("{name}: {{ base_url: \"{url}\", {} }}", settings.join(", ")));
        self.targets.push(format!("{{ provider: {name}, model: upstream-model, priority: {number} }}"));
        self
    }

    /// A whole provider, `name: { … }`.
    pub(crate) fn provider(mut self, line: &str) -> Self {
        self.providers.push(line.into());
        self
    }

    /// A whole model, `{ name: …, targets: … }`.
    pub(crate) fn other_model(mut self, line: &str) -> Self {
        self.models.push(line.into());
        self
    }

    /// More settings for `public-model`.
    pub(crate) fn model(mut self, settings: &str) -> Self {
        self.model = format!(", {settings}");
        self
    }

    /// More settings for the first listener.
    pub(crate) fn listen(mut self, settings: &str) -> Self {
        self.listen = format!(", {settings}");
        self
    }

    /// Settings under `server:`.
    pub(crate) fn server(mut self, settings: &str) -> Self {
        self.server = format!(", {settings}");
        self
    }

    /// Settings under `admin:`.
    pub(crate) fn admin(mut self, settings: &str) -> Self {
        self.admin = format!(", {settings}");
        self
    }

    /// Settings under `defaults:`.
    pub(crate) fn defaults(mut self, settings: &str) -> Self {
        self.defaults = settings.into();
        self
    }

    /// Keepalives every 200 ms, also before headers: what most tests of keepalives want.
    pub(crate) fn quick_keepalive(self) -> Self {
        self.defaults("keepalive: { interval: 200ms }")
    }

    /// Settings under `log:` besides the format.
    pub(crate) fn log(mut self, settings: &str) -> Self {
        self.log = settings.into();
        self
    }

    /// More settings for the key that tests send.
    pub(crate) fn own_key(mut self, settings: &str) -> Self {
        self.own_key = format!(", {settings}");
        self
    }

    /// A virtual key: its name, its secret and more settings.
    pub(crate) fn key(mut self, name: &str, secret: &str, settings: &str) -> Self {
        self.keys.push(format!("{{ name: {name}, sha256: {}, {settings} }}", sha256(secret.as_bytes())));
        self
    }

    /// A whole top-level section.
    pub(crate) fn section(mut self, text: &str) -> Self {
        self.sections.push(text.into());
        self
    }

    /// A variable of the process's environment.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    fn yaml(&self, port: u16, admin: u16) -> String {
        if let Some(shipped) = &self.shipped {
            let own =
                format!("listen: [{{ address: \"127.0.0.1:{port}\" }}]\nadmin: {{ address: \"127.0.0.1:{admin}\" }}\n");
            return own + shipped;
        }
        let mut yaml = format!(
            "listen:\n  - {{ address: \"127.0.0.1:{port}\"{} }}\nadmin: {{ address: \"127.0.0.1:{admin}\"{} }}\n\
             server: {{ threads: 2{} }}\n",
            self.listen, self.admin, self.server
        );
        let list = |yaml: &mut String, name: &str, mark: &str, lines: &[String]| {
            if !lines.is_empty() {
                let _ = writeln!(yaml, "{name}:");
                for line in lines {
                    let _ = writeln!(yaml, "  {mark}{line}");
                }
            }
        };
        list(&mut yaml, "providers", "", &self.providers);
        // One attempt, unless a test is about retries: then it says so.
        let once = if self.defaults.contains("retry:") { "" } else { "retry: { attempts: 1 }" };
        let defaults: Vec<_> = [once, &self.defaults].into_iter().filter(|part| !part.is_empty()).collect();
        let _ = writeln!(yaml, "defaults: {{ {} }}", defaults.join(", "));
        let mut models = self.models.clone();
        if !self.targets.is_empty() {
            models.insert(0, format!("{{ name: public-model, targets: [{}]{} }}", self.targets.join(", "), self.model));
        }
        list(&mut yaml, "models", "- ", &models);
        let mut keys = self.keys.clone();
        keys.insert(
            0,
            format!("{{ name: test, sha256: {}, models: [\"*\"]{} }}", sha256(KEY.as_bytes()), self.own_key),
        );
        list(&mut yaml, "keys", "- ", &keys);
        let log = if self.log.is_empty() { "level: info" } else { &self.log };
        let _ = writeln!(yaml, "log: {{ format: json, access: all, {log} }}");
        for section in &self.sections {
            let _ = writeln!(yaml, "{section}");
        }
        yaml
    }

    /// Starts the binary and waits until it is ready.
    pub(crate) async fn start(self) -> Weir {
        let mut last = String::new();
        // A port that was free may be taken by the time the binary binds it.
        for _ in 0..3 {
            match Weir::try_start(&self).await {
                Ok(weir) => return weir,
                Err(said) => last = said,
            }
        }
        panic!("weir did not start:\n{last}");
    }
}

/// A running gateway; killed when dropped.
pub(crate) struct Weir {
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) folder: PathBuf,
    child: Mutex<Child>,
    lines: Arc<Mutex<Vec<String>>>,
    /// Processes that took over from it.
    successors: Mutex<Vec<u32>>,
}

impl Drop for Weir {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap();
        let _ = child.kill();
        let _ = child.wait();
        for pid in self.successors.get_mut().unwrap() {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(Stdio::null()).status();
        }
        if std::thread::panicking() {
            println!("---- weir said:\n{}", self.lines.lock().unwrap().join("\n"));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Weir {
    async fn try_start(setup: &Setup) -> Result<Self, String> {
        let [address, admin] = [(); 2].map(|()| free_address());
        let folder = folder();
        let file = folder.join("weir.yaml");
        let yaml = setup.yaml(address.port(), admin.port());
        std::fs::write(&file, &yaml).expect("a writable folder");
        let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["serve", "--config"])
            .arg(&file)
            .current_dir(&folder)
            .envs(setup.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary");
        let lines = Arc::new(Mutex::new(Vec::new()));
        ALL_LINES.lock().unwrap().push(Arc::clone(&lines));
        let (out, err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        collect(out, Arc::clone(&lines));
        collect(err, Arc::clone(&lines));
        let mut weir = Self { address, admin, folder, child: Mutex::new(child), lines, successors: Mutex::default() };
        let ready = async {
            loop {
                if let Some(status) = weir.child.lock().unwrap().try_wait().expect("a child") {
                    return Err(status);
                }
                if client::get(admin, "/readyz").await.is_some_and(|reply| reply.head.status == 200) {
                    return Ok(());
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        let said = match tokio::time::timeout(PATIENCE, ready).await {
            Ok(Ok(())) => return Ok(weir),
            Ok(Err(status)) => format!("it ended with {status}"),
            Err(_) => "it was never ready".into(),
        };
        let child = weir.child.get_mut().unwrap();
        let _ = child.kill();
        let _ = child.wait();
        Err(format!("{said}\n{yaml}\n{}", weir.said()))
    }

    /// Everything written to standard output and standard error so far.
    pub(crate) fn said(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.lock().unwrap().id()
    }

    /// Sends a signal by its name, such as `HUP`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().expect("kill").success());
    }

    /// The operator's file.
    pub(crate) fn config(&self) -> String {
        std::fs::read_to_string(self.folder.join("weir.yaml")).expect("the config")
    }

    /// Replaces the operator's file as editors do, by renaming.
    pub(crate) fn write_config(&self, text: &str) {
        let new = self.folder.join("weir.yaml.new");
        std::fs::write(&new, text).expect("a writable folder");
        std::fs::rename(new, self.folder.join("weir.yaml")).expect("a rename");
    }

    /// Replaces the operator's file and asks the admin API to load it; gives its answer.
    pub(crate) async fn reload(&self, text: &str) -> client::Received {
        self.write_config(text);
        let mut client = client::Client::connect_to(self.admin).await;
        client.post("/api/reload", "").await;
        client.receive().await
    }

    /// `weir upgrade`: the process that serves now, or what went wrong.
    pub(crate) async fn upgrade(&self) -> Result<u32, String> {
        let file = self.folder.join("weir.yaml");
        let run = move || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
            command.args(["upgrade", "--config"]).arg(file).output().expect("the binary")
        };
        let output = tokio::task::spawn_blocking(run).await.expect("no panic");
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let pid = said.strip_prefix("process ").and_then(|rest| rest.split(' ').next()?.parse().ok());
        let pid = pid.unwrap_or_else(|| panic!("no process in {said:?}"));
        self.successors.lock().unwrap().push(pid);
        Ok(pid)
    }

    /// Sends SIGTERM to the process that serves after upgrades and waits for its end.
    pub(crate) async fn stop_successor(&self) {
        let pid = *self.successors.lock().unwrap().last().expect("a successor");
        assert!(Command::new("kill").args(["-TERM", &pid.to_string()]).status().expect("kill").success());
        until("the end of the successor", || !is_alive(pid)).await;
    }

    /// Sends SIGTERM and waits for the end; answers whether the exit status was 0.
    pub(crate) async fn stop(&self) -> bool {
        self.signal("TERM");
        self.ended().await
    }

    /// Waits for the end; answers whether the exit status was 0.
    pub(crate) async fn ended(&self) -> bool {
        let mut status = None;
        until("the end of the process", || {
            status = self.child.lock().unwrap().try_wait().expect("a child");
            status.is_some()
        })
        .await;
        status.is_some_and(|status| status.success())
    }

    fn records(&self) -> Vec<Value> {
        self.records_with("")
    }

    /// Those whose line has this in it: parsing all of them again and again takes its time.
    fn records_with(&self, what: &str) -> Vec<Value> {
        let lines = self.lines.lock().unwrap();
        lines
            .iter()
            .filter(|line| line.contains(what))
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|line| line.get("request_id").is_some() && line.get("outcome").is_some())
            .collect()
    }

    /// The access record of a request, by the id in its `x-request-id`.
    pub(crate) async fn record(&self, id: &str) -> Value {
        let mine =
            || self.records_with(id).into_iter().filter(|record| field(record, "request_id") == id).collect::<Vec<_>>();
        until("the access record", || !mine().is_empty()).await;
        let mine = mine();
        assert_eq!(mine.len(), 1, "one access record a request: {mine:?}");
        mine.into_iter().next().expect("just counted")
    }

    /// The access record of the only request that was made, for clients that never saw its id.
    pub(crate) async fn only_record(&self) -> Value {
        until("an access record", || !self.records().is_empty()).await;
        let records = self.records();
        assert_eq!(records.len(), 1, "one access record a request: {records:?}");
        records.into_iter().next().expect("just counted")
    }

    /// Waits until this many requests have left their access records.
    pub(crate) async fn all_records(&self, count: usize) -> Vec<Value> {
        until("the access records", || self.records().len() >= count).await;
        self.records()
    }

    /// Every sample of `/metrics`, by its whole name with labels.
    pub(crate) async fn metrics(&self) -> BTreeMap<String, f64> {
        let reply = client::get(self.admin, "/metrics").await.expect("metrics");
        assert_eq!(reply.head.status, 200);
        let text = String::from_utf8(reply.body.to_vec()).expect("text");
        text.lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
            .map(|line| {
                let (name, value) = line.rsplit_once(' ').expect("name and value");
                (name.to_owned(), value.parse().expect("a number"))
            })
            .collect()
    }

    /// The sum of a metric over all series that have these labels (`outcome="completed"`).
    pub(crate) async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        self.metrics()
            .await
            .iter()
            .filter(|(series, _)| series.split('{').next() == Some(name))
            .filter(|(series, _)| labels.iter().all(|label| series.contains(label)))
            .map(|(_, value)| value)
            .sum()
    }

    /// Waits until a metric has a value.
    pub(crate) async fn settles(&self, name: &str, wanted: f64) {
        super::within(name, async {
            while (self.metric(name, &[]).await - wanted).abs() > 0.001 {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

/// A process that has ended may wait for its parent to notice.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

/// A member of an access record as text; empty if it isn't there.
pub(crate) fn field(record: &Value, name: &str) -> String {
    match record.get(name) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// A count in an access record.
pub(crate) fn number(record: &Value, name: &str) -> Option<u64> {
    record.get(name).and_then(Value::as_u64)
}

/// What became of each attempt, in order: `provider:result`.
pub(crate) fn tries(record: &Value) -> Vec<String> {
    let attempts = record.get("attempts").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let try_ = |attempt: &Value| {
        let target = field(attempt, "target");
        format!("{}:{}", target.split('/').next().unwrap_or_default(), field(attempt, "result"))
    };
    attempts.iter().map(try_).collect()
}

/// The outcome's word.
pub(crate) fn word(record: &Value) -> String {
    field(record, "outcome")
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    const_hex::encode(sha2::Sha256::digest(bytes))
}

/// What each gateway of this process has written.
static ALL_LINES: Mutex<Vec<Arc<Mutex<Vec<String>>>>> = Mutex::new(Vec::new());

/// Whether a gateway of this test, running or not, wrote this.
pub(crate) fn said_by_any(words: &str) -> bool {
    ALL_LINES.lock().unwrap().iter().any(|lines| lines.lock().unwrap().iter().any(|line| line.contains(words)))
}

/// An address that nobody listens on, and that nobody else takes: each test process has a window of ports of its
/// own, below those that the system gives out by itself. Who listens on a window's first port has it.
pub(crate) fn free_address() -> SocketAddr {
    const FIRST: u16 = 10_000;
    const WINDOW: u16 = 100;
    const WINDOWS: u16 = 220;
    static OWN: LazyLock<(u16, std::net::TcpListener)> = LazyLock::new(|| {
        let begin = u16::try_from(std::process::id() % u32::from(WINDOWS)).expect("less than 220");
        let mut windows = (0..WINDOWS).map(|next| FIRST + (begin + next) % WINDOWS * WINDOW);
        let own = windows.find_map(|first| Some((first, std::net::TcpListener::bind(("127.0.0.1", first)).ok()?)));
        own.expect("a window of ports that nobody has")
    });
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let port = || OWN.0 + 1 + NEXT.fetch_add(1, Ordering::Relaxed) % (WINDOW - 1);
    let mut addresses = std::iter::repeat_with(|| SocketAddr::from(([127, 0, 0, 1], port()))).take(WINDOW.into());
    addresses.find(|address| std::net::TcpListener::bind(address).is_ok()).expect("a free port in the window")
}

fn folder() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a writable folder");
    folder
}

/// Reads a pipe to its end in a thread of its own; ends with the child.
fn collect(pipe: impl std::io::Read + Send + 'static, lines: Arc<Mutex<Vec<String>>>) {
    std::thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while matches!(pipe.read_until(b'\n', &mut line), Ok(1..)) {
            lines.lock().unwrap().push(String::from_utf8_lossy(&line).trim_end().to_owned());
            line.clear();
        }
    });
}
