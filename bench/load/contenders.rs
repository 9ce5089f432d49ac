//! Who is measured: how each is configured and started, in front of the same upstream.

use crate::client::KEY;
use crate::process::{Running, free_port};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A proxy, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Direct,
    Stock,
    Nginx,
    Haproxy,
    Weir,
}

impl Who {
    pub(crate) const ALL: [Self; 5] = [Self::Direct, Self::Stock, Self::Nginx, Self::Haproxy, Self::Weir];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Stock => "stock",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Weir => "weir",
        }
    }
}

/// The scripted upstream, running.
pub(crate) struct Upstream {
    _process: Running,
    /// Plain and TLS.
    pub(crate) ports: (u16, u16),
}

/// A contender, running.
pub(crate) struct Contender {
    pub(crate) who: Who,
    process: Option<Running>,
    /// Plain; TLS and HTTP/2; plain, but with TLS to the upstream.
    pub(crate) ports: [u16; 3],
    /// Weir's operators' port.
    pub(crate) admin: u16,
}

impl Contender {
    /// The processes that do its work.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.process.iter().map(Running::pid).collect()
    }
}

/// Where all of it lives: certificates, configurations, logs, the ledger.
pub(crate) struct Yard {
    pub(crate) folder: PathBuf,
    weir: PathBuf,
}

impl Yard {
    pub(crate) fn new(folder: PathBuf, weir: PathBuf) -> Self {
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder below target");
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
        let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        std::fs::write(folder.join("cert.pem"), &cert).expect("writable");
        std::fs::write(folder.join("key.pem"), &key).expect("writable");
        std::fs::write(folder.join("both.pem"), format!("{cert}{key}")).expect("writable");
        Self { folder, weir }
    }

    pub(crate) fn upstream(&self) -> Upstream {
        let mut process = Running::start(own("upstream").arg(&self.folder), &self.folder.join("upstream.log"));
        let line = process.line();
        let mut ports = line.split(' ').filter_map(|port| port.parse().ok());
        let ports = (ports.next().expect("a port"), ports.next().expect("a port"));
        Upstream { _process: process, ports }
    }

    /// Starts a contender and waits until it takes connections.
    pub(crate) fn start(&self, who: Who, upstream: &Upstream) -> Contender {
        let (plain, secure) = upstream.ports;
        if who == Who::Direct {
            return Contender { who, process: None, ports: [plain, secure, plain], admin: 0 };
        }
        let ports = [free_port(), free_port(), free_port()];
        let admin = free_port();
        let folder = self.folder.join(who.name());
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder below target");
        let mut command = match who {
            Who::Stock => {
                let mut command = own("stock");
                command.arg(&self.folder).args(ports.map(|port| port.to_string()));
                command.args([plain.to_string(), secure.to_string()]);
                command
            }
            Who::Nginx => {
                let file = write(&folder.join("nginx.conf"), &self.nginx(&folder, ports, upstream.ports));
                let mut command = Command::new("nginx");
                command.arg("-c").arg(file);
                command
            }
            Who::Haproxy => {
                let file = write(&folder.join("haproxy.cfg"), &self.haproxy(ports, upstream.ports));
                let mut command = Command::new("haproxy");
                command.arg("-f").arg(file).arg("-db");
                command
            }
            Who::Weir | Who::Direct => {
                let file = write(&folder.join("weir.yaml"), &self.weir(&folder, ports, admin, upstream.ports));
                let mut command = Command::new(&self.weir);
                command.args(["serve", "--config"]).arg(file);
                command
            }
        };
        let process = Running::start(&mut command, &folder.join("log"));
        for port in ports {
            await_port(port, &folder);
        }
        Contender { who, process: Some(process), ports, admin }
    }

    fn nginx(&self, folder: &Path, [plain, secure, up]: [u16; 3], upstream: (u16, u16)) -> String {
        let (here, yard) = (folder.display(), self.folder.display());
        let mut temporary = String::new();
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            let _ = write!(temporary, "{kind}_temp_path {here}/{kind}; ");
        }
        format!(
            "daemon off; master_process off; worker_processes 1; worker_rlimit_nofile 20000;
            pid {here}/pid; error_log {here}/error.log warn;
            events {{ worker_connections 19500; }}
            http {{
              access_log off; {temporary}
              client_max_body_size 64m; keepalive_requests 100000000; keepalive_timeout 75s;
              upstream plain {{ server 127.0.0.1:{}; keepalive 512; keepalive_requests 100000000; }}
              upstream secure {{ server 127.0.0.1:{}; keepalive 512; keepalive_requests 100000000; }}
              proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header Host localhost;
              proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 1h;
              server {{
                listen 127.0.0.1:{plain} backlog=4096; listen 127.0.0.1:{secure} ssl http2 backlog=4096;
                ssl_certificate {yard}/cert.pem; ssl_certificate_key {yard}/key.pem;
                location / {{ proxy_pass http://plain; }}
              }}
              server {{ listen 127.0.0.1:{up} backlog=4096; location / {{ proxy_pass https://secure; }} }}
            }}",
            upstream.0, upstream.1
        )
    }

    fn haproxy(&self, [plain, secure, up]: [u16; 3], upstream: (u16, u16)) -> String {
        let yard = self.folder.display();
        format!(
            "global\n maxconn 9500\n nbthread 1\n\
            defaults\n mode http\n timeout connect 5s\n timeout client 1h\n timeout server 1h\n\
            frontend plain\n bind 127.0.0.1:{plain} backlog 4096\n bind 127.0.0.1:{secure} ssl crt {yard}/both.pem alpn h2,http/1.1\n default_backend plain\n\
            frontend up\n bind 127.0.0.1:{up} backlog 4096\n default_backend secure\n\
            backend plain\n http-reuse always\n server s 127.0.0.1:{}\n\
            backend secure\n http-reuse always\n server s 127.0.0.1:{} ssl verify none alpn h2,http/1.1\n",
            upstream.0, upstream.1
        )
    }

    /// With all that is on by default (keepalive, gate, meter, ledger, access record, metrics), and limits.
    fn weir(&self, folder: &Path, [plain, secure, up]: [u16; 3], admin: u16, upstream: (u16, u16)) -> String {
        let (here, yard) = (folder.display(), self.folder.display());
        let prices = write(
            &folder.join("prices.yaml"),
            "prices:\n  - { provider: plain, model: bench, input: '1.25', output: '10' }\n  - { provider: secure, model: bench, input: '1.25', output: '10' }\n",
        );
        let key = const_hex::encode(Sha256::digest(KEY));
        format!(
            "listen:
  - {{ address: \"127.0.0.1:{plain}\" }}
  - {{ address: \"127.0.0.1:{secure}\", tls: {{ certificates: [{{ cert: {yard}/cert.pem, key: {yard}/key.pem }}] }} }}
  - {{ address: \"127.0.0.1:{up}\" }}
admin: {{ address: \"127.0.0.1:{admin}\" }}
server: {{ threads: 1 }}
providers:
  plain: {{ base_url: \"http://127.0.0.1:{}\", api_key: none }}
  secure: {{ base_url: \"https://localhost:{}\", api_key: none, ca: {yard}/cert.pem }}
models:
  - {{ name: bench, targets: [{{ provider: plain, model: bench }}] }}
  - {{ name: secure, targets: [{{ provider: secure, model: bench }}] }}
keys:
  - name: bench
    sha256: \"{key}\"
    models: [\"*\"]
    rpm: 100000000
    tpm: 1000000000000
    concurrent: 100000
    budgets: [{{ usd: \"100000000.00\", per: month }}]
prices: {{ cost: [{}], sell: {{ markup: \"1.2\" }} }}
ledger: {{ path: {here}/weir.db }}
",
            upstream.0,
            upstream.1,
            prices.display()
        )
    }
}

/// This program in another part.
pub(crate) fn own(part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("it runs"));
    command.arg(part);
    command
}

fn write(path: &Path, text: &str) -> PathBuf {
    std::fs::write(path, text).expect("the bench's own folder");
    path.to_owned()
}

fn await_port(port: u16, folder: &Path) {
    let end = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < end, "does not start: see {}/log", folder.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}
