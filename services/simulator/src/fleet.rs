//! A whole fleet on this machine: a NATS server, the services, and agents that each sit behind a link of their own.
//! Every one is a process of its own; this file starts them in order and stops them in order.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use muster_contract::DeviceKey;

use crate::child::{Child, Spec};
use crate::error::Error;
use crate::http;
use crate::link::Link;
use crate::places::Places;
use crate::repository::{BRANCH, Repository};

/// Where clients look for a NATS server if nobody tells them: taken if it is free.
const NATS_PORT: u16 = 4222;
/// Time a process gets to become ready.
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// Time between two looks at it.
const READY_POLL: Duration = Duration::from_millis(50);
/// Room that the server may promise to streams: above what UPLINK alone may fill. Nothing of it is taken in advance.
const STORE_BYTES_MAX: &str = "16GB";

/// The tempo of a demo: everything that takes minutes in a real fleet takes seconds.
const TEMPO: Tempo = Tempo {
    heartbeat: "1s",
    lease: "4s",
    reconnect_max: "2s",
    retry_min: "1s",
    retry_max: "3s",
    git_poll: "500ms",
    snapshot_every: "30s",
};

/// How fast the parts of a fleet are.
pub(crate) struct Tempo {
    pub(crate) heartbeat: &'static str,
    pub(crate) lease: &'static str,
    pub(crate) reconnect_max: &'static str,
    pub(crate) retry_min: &'static str,
    pub(crate) retry_max: &'static str,
    pub(crate) git_poll: &'static str,
    pub(crate) snapshot_every: &'static str,
}

/// A device, and the link it sits behind.
#[derive(Debug)]
pub struct Device {
    /// Which device it is.
    pub key: DeviceKey,
    /// Its agent's link to the hub.
    pub link: Link,
    /// Where its agent serves its metrics; not behind the link.
    pub http: SocketAddr,
}

/// A running fleet.
#[derive(Debug)]
pub struct Fleet {
    /// Address of the NATS server, not behind any link.
    pub nats: SocketAddr,
    /// The devices.
    pub devices: Arc<Vec<Device>>,
    server: Child,
    services: Vec<Child>,
    agents: Vec<Child>,
}

impl Fleet {
    /// Starts the server, then the services, then the agents, and waits until the services are ready.
    ///
    /// # Errors
    /// Something could not be started, or ended, or is not ready in time. What was started ends with the error.
    pub async fn start(
        places: &Places,
        repository: &Repository,
        devices: &[DeviceKey],
    ) -> Result<Self, Error> {
        let nats = server_address()?;
        let mut server = start_server(places, nats)?;
        await_ready(&mut server, Sign::Port(nats)).await?;
        let mut services = Vec::new();
        for (name, args) in services_of(places, repository, &TEMPO) {
            let (mut process, http) = start_service(places, name, name, nats, args)?;
            await_ready(&mut process, Sign::Ready(http)).await?;
            services.push(process);
        }
        let (mut behind, mut agents) = (Vec::new(), Vec::new());
        for key in devices {
            let (device, process) = start_agent(places, key, nats).await?;
            behind.push(device);
            agents.push(process);
        }
        Ok(Self { nats, devices: Arc::new(behind), server, services, agents })
    }

    /// Fails if any process ended by itself.
    ///
    /// # Errors
    /// Its name, exit status and log.
    pub fn expect_running(&mut self) -> Result<(), Error> {
        self.server.expect_running()?;
        self.services.iter_mut().try_for_each(Child::expect_running)?;
        self.agents.iter_mut().try_for_each(Child::expect_running)
    }

    /// Stops the agents with their workloads, then the services in the reverse order of their start, then the server.
    ///
    /// # Errors
    /// The first process whose end could not be awaited; all are asked to end.
    pub async fn stop(self) -> Result<(), Error> {
        let mut first = Ok(());
        let ended = join_all(self.agents.into_iter().map(Child::stop)).await;
        for result in ended {
            first = first.and(result.map(drop));
        }
        for service in self.services.into_iter().rev() {
            first = first.and(service.stop().await.map(drop));
        }
        first.and(self.server.stop().await.map(drop))
    }
}

/// The names and arguments of the services, in the order of their start. Any order works; this one is quiet.
pub(crate) fn services_of(
    places: &Places,
    repository: &Repository,
    tempo: &Tempo,
) -> [(&'static str, Vec<String>); 3] {
    let data = |name: &str| places.dir.join(name).display().to_string();
    let ingest = ["--lease", tempo.lease].map(str::to_owned).to_vec();
    let rollup = ["--data-dir", &data("rollup"), "--snapshot-every", tempo.snapshot_every];
    let git = repository.dir().display().to_string();
    let publisher = [
        "--git-url",
        &git,
        "--git-branch",
        BRANCH,
        "--git-poll",
        tempo.git_poll,
        "--data-dir",
        &data("publisher"),
    ];
    [
        ("muster-ingest", ingest),
        ("muster-rollup", rollup.map(str::to_owned).to_vec()),
        ("muster-publisher", publisher.map(str::to_owned).to_vec()),
    ]
}

fn start_service(
    places: &Places,
    program: &str,
    name: &str,
    nats: SocketAddr,
    args: Vec<String>,
) -> Result<(Child, SocketAddr), Error> {
    let http = free_address(0)?;
    let spec = Spec {
        name: name.to_owned(),
        program: find_program(&places.programs, program)?,
        args: common_args(nats, http).into_iter().chain(args).collect(),
    };
    Ok((Child::start(spec, &places.dir)?, http))
}

/// What every service is told: where the server is, and where to serve health.
pub(crate) fn common_args(nats: SocketAddr, http: SocketAddr) -> Vec<String> {
    let (url, http) = (format!("nats://{nats}"), http.to_string());
    ["--nats-url", &url, "--http-addr", &http, "--log-format", "text"].map(str::to_owned).to_vec()
}

/// What an agent is told about its device.
pub(crate) fn agent_args(key: &DeviceKey, data: &Path, runtime: &str, tempo: &Tempo) -> Vec<String> {
    let args = [
        "--site",
        key.site.as_str(),
        "--device",
        key.device.as_str(),
        "--data-dir",
        &data.display().to_string(),
        "--runtime",
        runtime,
        "--on-exit",
        "stop",
        "--heartbeat",
        tempo.heartbeat,
        "--reconnect-max",
        tempo.reconnect_max,
        "--retry-min",
        tempo.retry_min,
        "--retry-max",
        tempo.retry_max,
    ];
    args.map(str::to_owned).to_vec()
}

/// Where a device keeps its things.
pub(crate) fn device_dir(places: &Places, key: &DeviceKey) -> PathBuf {
    places.dir.join("devices").join(key.site.as_str()).join(key.device.as_str())
}

async fn start_agent(places: &Places, key: &DeviceKey, nats: SocketAddr) -> Result<(Device, Child), Error> {
    let link = open_link(key, nats).await?;
    let args = agent_args(key, &device_dir(places, key), "process", &TEMPO);
    let name = agent_name(key);
    let (process, http) = start_service(places, "muster-agent", &name, link.address(), args)?;
    Ok((Device { key: key.clone(), link, http }, process))
}

/// Name of a device's agent process.
pub(crate) fn agent_name(key: &DeviceKey) -> String {
    format!("agent-{}-{}", key.site, key.device)
}

/// A link to the server, for somebody.
pub(crate) async fn open_link(whose: impl std::fmt::Display, nats: SocketAddr) -> Result<Link, Error> {
    Link::open(nats).await.map_err(|source| Error::Network { what: format!("a link for {whose}"), source })
}

fn start_server(places: &Places, address: SocketAddr) -> Result<Child, Error> {
    Child::start(server_spec(places, address)?, &places.dir)
}

/// How to start the server; writes its configuration.
pub(crate) fn server_spec(places: &Places, address: SocketAddr) -> Result<Spec, Error> {
    let program = places.nats_server.clone();
    if !program.is_file() {
        return Err(Error::NoServer { path: program });
    }
    let config = places.dir.join("nats.conf");
    let store = places.dir.join("nats");
    let text = format!(
        "server_name: muster-demo\nlisten: \"{address}\"\njetstream {{ store_dir: {:?}, max_file_store: {STORE_BYTES_MAX} }}\n",
        store.display().to_string()
    );
    std::fs::write(&config, text).map_err(|source| Error::Prepare { path: config.clone(), source })?;
    let args = vec!["--config".to_owned(), config.display().to_string()];
    Ok(Spec { name: "nats-server".to_owned(), program, args })
}

/// Finds a program of Muster.
///
/// # Errors
/// It is not in that directory.
pub fn find_program(dir: &Path, name: &str) -> Result<PathBuf, Error> {
    let program = dir.join(name);
    if program.is_file() {
        Ok(program)
    } else {
        Err(Error::NoProgram { name: name.to_owned(), dir: dir.to_owned() })
    }
}

fn server_address() -> Result<SocketAddr, Error> {
    free_address(NATS_PORT).or_else(|_| free_address(0))
}

/// An address of the loopback interface that is free now. Whoever is started on it must say so if it is not any more.
fn free_address(port: u16) -> Result<SocketAddr, Error> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .and_then(|listener| listener.local_addr())
        .map_err(|source| Error::Network { what: "a free port".to_owned(), source })
}

/// By what one sees that a process is ready.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sign {
    /// It accepts connections.
    Port(SocketAddr),
    /// It says so at `/ready`.
    Ready(SocketAddr),
}

impl Sign {
    async fn look(self) -> Result<(), String> {
        match self {
            Self::Port(address) => {
                tokio::net::TcpStream::connect(address).await.map(drop).map_err(|error| error.to_string())
            }
            Self::Ready(address) => match http::get(address, "/ready").await {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(answer.body.trim().to_owned()),
                Err(error) => Err(error.to_string()),
            },
        }
    }
}

/// Waits until a process is ready.
pub(crate) async fn await_ready(process: &mut Child, sign: Sign) -> Result<(), Error> {
    let deadline = tokio::time::Instant::now() + READY_PATIENCE;
    loop {
        process.expect_running()?;
        match sign.look().await {
            Ok(()) => return Ok(()),
            Err(last) if tokio::time::Instant::now() >= deadline => {
                let (name, log) = (process.name().to_owned(), process.log().to_owned());
                return Err(Error::NotReady { name, waited: READY_PATIENCE, last, log });
            }
            Err(_) => tokio::time::sleep(READY_POLL).await,
        }
    }
}
