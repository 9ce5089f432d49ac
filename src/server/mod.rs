//! Puts the process together: state, listeners, admin, demo, shutdown.
//!
//! Called by `main`. Owns the process's life.

mod alarming;
mod app;
mod core;
mod doors;
mod entrance;
mod listen;
mod notify;
mod proxied;
mod reload;
mod shipping;
mod shutdown;
mod sockets;
mod spending;
mod upgrade;
mod watch;

pub use listen::ListenError;

use crate::admin::{self, AdminState, Readiness};
use crate::config::{Config, Origin};
use crate::demo::Demo;
use crate::gateway::{Arrears, Gateway, Shared};
use crate::handover::UpgradeError;
use crate::keystore::StoreError;
use crate::ledger::OpenError;
use crate::ledger::sink::SinkError;
use crate::owners::OwnersError;
use crate::upstream::site::BadRoots;
use async_trait::async_trait;
use core::Core;
use doors::Doors;
use entrance::Entrance;
use pingora_core::apps::HttpServerOptions;
use pingora_core::listeners::tls::TlsSettings;
use pingora_core::server::configuration::ServerConf;
use pingora_core::server::{RunArgs, Server, ShutdownWatch};
use pingora_core::services::background::{BackgroundService, background_service};
use pingora_core::services::listening::Service;
use pingora_proxy::HttpProxy;
use reload::Reloader;
use shutdown::Drain;
use sockets::Sockets;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use upgrade::{Incumbent, Taking};
use watch::Watch;

/// Weir cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address or its TLS files.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A provider's `ca:` file.
    #[error(transparent)]
    Roots(#[from] BadRoots),
    /// The ledger's file.
    #[error(transparent)]
    Ledger(#[from] OpenError),
    /// The key store.
    #[error(transparent)]
    Keys(#[from] StoreError),
    /// The shared store of limits.
    #[error(transparent)]
    Limits(#[from] crate::limit::remote::StartError),
    /// The ledger cannot be read.
    #[error(transparent)]
    Spent(#[from] crate::ledger::cli::CliError),
    /// The map of stored responses.
    #[error(transparent)]
    Owners(#[from] OwnersError),
    /// The PostgreSQL sink's URL or roots.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The process that was to hand over its sockets.
    #[error("cannot take over: {0}")]
    Upgrade(#[from] UpgradeError),
    /// The export of traces.
    #[error("cannot export traces: {0}")]
    Traces(std::io::Error),
    /// A thread of our own.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The metrics registry.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The built-in model's socket.
    #[error("the demo provider cannot listen: {0}")]
    Demo(std::io::Error),
}

/// Where the config comes from.
#[derive(Clone, Debug)]
pub struct Source {
    /// The operator's file.
    pub path: PathBuf,
    /// All files that it depends on, itself included, as [`crate::config::load_with_files`] tells them.
    pub files: Vec<PathBuf>,
}

/// Serves until the process is told to stop. Answers whether every request had finished by then (C3).
///
/// `source` is where the config comes from, to be reloaded; `takes_over`: the sockets are those of the process that
/// serves now, which drains.
///
/// # Errors
/// When it cannot start; a process that it was to take over serves on then.
pub fn serve(config: &Arc<Config>, source: Option<Source>, takes_over: bool) -> Result<bool, StartError> {
    let doors = Arc::new(Doors::new(&config.listen)?);
    let bound = if takes_over { None } else { Some(Bound::new(Arc::default(), config)?) };
    let demo = config.providers.values().any(|provider| provider.origin == Origin::Demo);
    let demo = if demo { Some(Demo::bind().map_err(StartError::Demo)?) } else { None };
    let demo_address = demo.as_ref().map(|(_, address)| *address);
    let Core { shared, sink, exporting } = Core::new(config, demo_address)?;
    let state = core::operators(config, &shared, sink.as_ref())?;
    let stored_keys = core::follow_keys(config, &shared)?;
    core::watch_memory(&shared)?;
    let spending = core::begin_counting(config, &shared.limits)?;
    let reloader = Reloader::new(source.as_ref(), &shared, &state, &doors, demo_address);
    let watch = Watch::start(reloader)?;

    // From here on only the sockets are missing.
    let (taking, bound) = match bound {
        Some(bound) => (None, bound),
        None => Bound::take_over(config, &shared)?,
    };
    let addresses = bound.clients.iter().map(|(address, _)| *address).chain([bound.admin.0]).collect();
    let (drain, incumbent) = succession(config, source, &shared, &state, &bound.sockets);
    let greeter = Greeter { addresses, shared: Arc::clone(&shared), state, taking: Mutex::new(taking), incumbent };
    let mut server = services(config, &shared, &doors, bound, &drain)?;
    if let Some((demo, _)) = demo {
        server.add_service(background_service("demo", Model(tokio::sync::Mutex::new(Some(demo)))));
    }
    server.add_service(background_service("spending", spending));
    server.add_service(background_service("arrears", Arrears(Arc::clone(&shared))));
    server.add_service(background_service("alarms", alarming::Alarming(Arc::clone(&shared))));
    let shipping = sink.map(shipping::Shipping::start).transpose()?;
    let (providers, models, keys) = (config.providers.len(), config.models.len(), config.keys.len());
    log::info!(providers, models, keys; "the config is in force");
    server.add_service(background_service("ready", greeter));
    server.run(RunArgs { shutdown_signal: Box::new(drain) });
    watch.end();
    if let Some(shipping) = shipping {
        shipping.end(&shared.ledger);
    }
    drop(stored_keys);
    shared.ledger.close();
    if let Some(exporting) = exporting {
        exporting.end();
    }
    Ok(shared.running.load(Ordering::Acquire) == 0)
}

/// How the process ends, and who may take over from it: only what was started with a file.
fn succession(
    config: &Config,
    source: Option<Source>,
    shared: &Arc<Shared>,
    state: &Arc<AdminState>,
    sockets: &Arc<Sockets>,
) -> (Drain, Option<Arc<Incumbent>>) {
    let (successor, asking) = (tokio::sync::watch::Sender::new(0), Arc::default());
    let drain = Drain {
        shared: Arc::clone(shared),
        state: Arc::clone(state),
        sockets: Arc::clone(sockets),
        closing: tokio::sync::watch::Sender::new(false),
        closing_admin: tokio::sync::watch::Sender::new(false),
        successor: successor.subscribe(),
        asking: Arc::clone(&asking),
    };
    let incumbent = source.zip(std::env::current_exe().ok()).map(|(source, program)| {
        let (shared, sockets) = (Arc::clone(shared), Arc::clone(sockets));
        let socket = config.upgrade_socket();
        Arc::new(Incumbent {
            shared,
            sockets,
            successor,
            socket,
            source,
            program,
            busy: AtomicBool::new(false),
            asking,
        })
    });
    (drain, incumbent)
}

/// The sockets of the config, in its order, to listen with.
struct Bound {
    sockets: Arc<Sockets>,
    clients: Vec<(SocketAddr, OwnedFd)>,
    admin: (SocketAddr, OwnedFd),
}

impl Bound {
    /// So that a taken port is an error at start, and not a process that serves nobody.
    fn new(sockets: Arc<Sockets>, config: &Config) -> Result<Self, ListenError> {
        let clients = config.listen.iter().map(|listen| sockets.open(listen.address)).collect::<Result<Vec<_>, _>>()?;
        let admin = sockets.open(config.admin.address)?;
        let kept: Vec<_> = clients.iter().chain([&admin]).map(|(address, _)| *address).collect();
        sockets.keep(&kept);
        Ok(Self { sockets, clients, admin })
    }

    /// With the sockets of the process that serves, whose limits count here, too.
    fn take_over(config: &Config, shared: &Shared) -> Result<(Option<Taking>, Self), StartError> {
        let (taking, handed) = Taking::begin(&config.upgrade_socket())?;
        shared.limits.inherit(&handed.legacy);
        Ok((Some(taking), Self::new(Arc::new(Sockets::new(handed.sockets)), config)?))
    }
}

/// Pingora's services for clients and operators.
fn services(
    config: &Config,
    shared: &Arc<Shared>,
    doors: &Doors,
    bound: Bound,
    drain: &Drain,
) -> Result<Server, ListenError> {
    let mut server = Server::new_with_opt_and_conf(None, conf(config));
    let conf = Arc::clone(&server.configuration);
    server.bootstrap();
    let mut entrances = [false, true].map(|h2c| (h2c, proxy(&conf, config, shared, h2c, None), Vec::new()));
    for (at, (listen, (address, socket))) in config.listen.iter().zip(bound.clients).enumerate() {
        if listen.proxy_protocol {
            let tls = doors.door(at).as_ref().map(listen::settings).transpose()?.map(TlsSettings::build);
            let mut service = proxy(&conf, config, shared, listen.h2c, Some(app::Front { tls }));
            service.add_listener(listen::endpoint(address, None)?);
            let sockets = vec![(address.to_string(), socket)];
            server.add_service(Entrance { service, sockets, closing: drain.closing.subscribe() });
        } else if let Some((_, service, sockets)) = entrances.iter_mut().find(|(h2c, ..)| *h2c == listen.h2c) {
            service.add_listener(listen::endpoint(address, doors.door(at))?);
            sockets.push((address.to_string(), socket));
        }
    }
    for (_, service, sockets) in entrances {
        if !sockets.is_empty() {
            server.add_service(Entrance { service, sockets, closing: drain.closing.subscribe() });
        }
    }
    let mut admin = admin::service(Arc::clone(&drain.state));
    admin.threads = Some(1);
    admin.add_tcp(&bound.admin.0.to_string());
    let sockets = vec![(bound.admin.0.to_string(), bound.admin.1)];
    server.add_service(Entrance { service: admin, sockets, closing: drain.closing_admin.subscribe() });
    Ok(server)
}

/// Estimates and look-ups of names; hundreds of clients that leave at once must not become hundreds
/// of threads.
const BLOCKING_THREADS: usize = 16;

/// Pingora's settings, from ours alone.
fn conf(config: &Config) -> ServerConf {
    ServerConf {
        threads: config.server.threads,
        grace_period_seconds: Some(0),
        graceful_shutdown_timeout_seconds: Some(1),
        max_retries: 1,
        max_blocking_threads: Some(BLOCKING_THREADS),
        ..ServerConf::default()
    }
}

fn proxy(
    conf: &Arc<ServerConf>,
    config: &Config,
    shared: &Arc<Shared>,
    h2c: bool,
    front: Option<app::Front>,
) -> Service<app::Connections> {
    let gateway = Gateway::new(Arc::clone(shared));
    let mut proxy = HttpProxy::new(gateway.clone(), Arc::clone(conf));
    let mut options = HttpServerOptions::default();
    options.h2c = h2c;
    options.h2_idle_timeout = Some(config.server.keepalive_timeout);
    proxy.server_options = Some(options);
    proxy.h2_options = Some(app::http2());
    proxy.handle_init_modules();
    let name = if h2c { "clients (h2c)" } else { "clients" };
    let app = app::App::new(proxy, gateway, config.server.header_timeout);
    Service::new(name.to_owned(), app::Connections::new(app, Arc::clone(shared), front))
}

/// The built-in model in the background.
struct Model(tokio::sync::Mutex<Option<Demo>>);

#[async_trait]
impl BackgroundService for Model {
    async fn start(&self, shutdown: ShutdownWatch) {
        let Some(demo) = self.0.lock().await.take() else { return };
        let (_keep, never) = tokio::sync::watch::channel(false);
        tokio::select! {
            served = demo.serve(never) => {
                if let Err(error) = served {
                    log::error!(error:%; "the demo provider stopped");
                }
            }
            () = ended(shutdown) => {}
        }
    }
}

async fn ended(mut shutdown: ShutdownWatch) {
    let _ = shutdown.wait_for(|stop| *stop).await;
}

/// Says ready once every listener takes connections.
struct Greeter {
    addresses: Vec<SocketAddr>,
    shared: Arc<Shared>,
    state: Arc<AdminState>,
    /// The process that is to drain from now on.
    taking: Mutex<Option<Taking>>,
    incumbent: Option<Arc<Incumbent>>,
}

#[async_trait]
impl BackgroundService for Greeter {
    async fn start(&self, _: ShutdownWatch) {
        const AGAIN: Duration = Duration::from_millis(5);
        for address in &self.addresses {
            while tokio::net::TcpStream::connect(reachable(*address)).await.is_err() {
                tokio::time::sleep(AGAIN).await;
            }
        }
        self.state.set_readiness(Readiness::Ready);
        log::info!(addresses:? = self.addresses; "serving");
        let taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner).take();
        let took_over = taking.is_some();
        if let Some(taking) = taking {
            // It blocks; a panic in it would have told itself.
            let limits = Arc::clone(&self.shared.limits);
            let _done = tokio::task::spawn_blocking(|| taking.serving(limits)).await;
        }
        if let Some(incumbent) = &self.incumbent {
            Arc::clone(incumbent).listen(took_over);
        }
        notify::serving();
    }
}

/// A wildcard address is reached over loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
