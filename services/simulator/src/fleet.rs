//! A whole fleet on this machine: a NATS server, the services, and agents, each behind a link of its own. Each is a process;
//! this file starts and stops them in order.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use muster_contract::DeviceKey;

use crate::child::{Child, Spec};
use crate::error::Error;
use crate::http;
use crate::link::Link;
use crate::ports::{address_at_or_free, free_address};
use crate::repository::{BRANCH, Repository};
use crate::run_paths::RunPaths;

/// The default port of NATS clients: the server of the fleet uses it if it is free.
const NATS_PORT: u16 = 4222;
/// The default port of the page of the fleet, used if it is free.
const PAGE_PORT: u16 = 8080;
/// Time a process gets to become ready.
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// Time between two looks at it.
const READY_POLL: Duration = Duration::from_millis(50);
/// Room that the server may promise to streams: above what UPLINK alone may fill. Nothing of it is taken in advance.
const STORE_BYTES_MAX: &str = "16GB";

/// The timing of a demo: everything that takes minutes in a real fleet takes seconds.
const TIMING: Timing = Timing {
    heartbeat: "1s",
    lease: "4s",
    reconnect_max: "2s",
    retry_min: "1s",
    retry_max: "3s",
    git_poll: "500ms",
    snapshot_every: "30s",
};

/// The intervals and timeouts of the parts of a fleet.
pub(crate) struct Timing {
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
pub(crate) struct Device {
    /// Which device it is.
    pub key: DeviceKey,
    /// Its agent's link to the hub.
    pub link: Link,
    /// Where its agent serves its metrics; not behind the link.
    pub http: SocketAddr,
}

/// A running fleet.
#[derive(Debug)]
pub(crate) struct Fleet {
    /// Address of the NATS server, not behind any link.
    pub nats: SocketAddr,
    /// Address of the page of the fleet.
    pub page: SocketAddr,
    /// The devices.
    pub devices: Arc<Vec<Device>>,
    server: Child,
    services: Vec<Child>,
    agents: Vec<Child>,
}

impl Fleet {
    /// Starts the server, then the services, then the agents, and waits until the services are ready. `planner` is the time
    /// between two rounds of a planner; there is none without it.
    ///
    /// # Errors
    /// Something could not be started, or ended, or is not ready in time. What was started ends with the error.
    pub(crate) async fn start(
        paths: &RunPaths,
        repository: &Repository,
        devices: &[DeviceKey],
        planner: Option<Duration>,
    ) -> Result<Self, Error> {
        let nats = address_at_or_free(NATS_PORT)?;
        let mut server = start_server(paths, nats)?;
        await_ready(&mut server, ReadyProbe::Port(nats)).await?;
        let mut services = Vec::new();
        let page = address_at_or_free(PAGE_PORT)?;
        for (name, args) in services_of(paths, repository, planner, page) {
            let (mut process, http) = start_service(paths, name, name, nats, args)?;
            await_ready(&mut process, ReadyProbe::Ready(http)).await?;
            services.push(process);
        }
        let (mut behind, mut agents) = (Vec::new(), Vec::new());
        for key in devices {
            let (device, process) = start_agent(paths, key, nats).await?;
            behind.push(device);
            agents.push(process);
        }
        Ok(Self { nats, page, devices: Arc::new(behind), server, services, agents })
    }

    /// Fails if any process ended by itself.
    ///
    /// # Errors
    /// Its name, exit status and log.
    pub(crate) fn expect_running(&mut self) -> Result<(), Error> {
        self.server.expect_running()?;
        self.services.iter_mut().try_for_each(Child::expect_running)?;
        self.agents.iter_mut().try_for_each(Child::expect_running)
    }

    /// Stops the agents with their workloads, then the services in the reverse order of their start, then the server.
    ///
    /// # Errors
    /// The first process whose end could not be awaited; all are asked to end.
    pub(crate) async fn stop(self) -> Result<(), Error> {
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
fn services_of(
    paths: &RunPaths,
    repository: &Repository,
    planner: Option<Duration>,
    page: SocketAddr,
) -> Vec<(&'static str, Vec<String>)> {
    let data = |name: &str| paths.dir.join(name).display().to_string();
    let ingest = ["--lease", TIMING.lease].map(str::to_owned).to_vec();
    let rollup = ["--data-dir", &data("rollup"), "--snapshot-every", TIMING.snapshot_every];
    let git = repository.dir().display().to_string();
    let publisher = [
        "--git-url",
        &git,
        "--git-branch",
        BRANCH,
        "--git-poll",
        TIMING.git_poll,
        "--data-dir",
        &data("publisher"),
    ];
    // It is ready once it has read LEDGER and the publisher has answered it.
    let planner = planner.map(|every| {
        let every = format!("{}ms", every.as_millis());
        ("muster-planner", vec!["--every".to_owned(), every])
    });
    let services = [
        ("muster-ingest", ingest),
        ("muster-rollup", rollup.map(str::to_owned).to_vec()),
        ("muster-publisher", publisher.map(str::to_owned).to_vec()),
    ];
    let page = ["--insecure-http", "--people-addr", &page.to_string()].map(str::to_owned).to_vec();
    services.into_iter().chain(planner).chain([("muster-gateway", page)]).collect()
}

fn start_service(
    paths: &RunPaths,
    program: &str,
    name: &str,
    nats: SocketAddr,
    args: Vec<String>,
) -> Result<(Child, SocketAddr), Error> {
    let http = free_address()?;
    let spec = Spec {
        name: name.to_owned(),
        program: find_program(&paths.programs, program)?,
        args: common_args(nats, http).into_iter().chain(args).collect(),
    };
    Ok((Child::start(spec, &paths.dir)?, http))
}

/// The arguments of every service: the address of the server, and the address to serve health on.
fn common_args(nats: SocketAddr, http: SocketAddr) -> Vec<String> {
    let (url, http) = (format!("nats://{nats}"), http.to_string());
    ["--nats-url", &url, "--http-addr", &http, "--log-format", "text"].map(str::to_owned).to_vec()
}

/// The arguments of an agent.
pub(crate) fn agent_args(key: &DeviceKey, data: &Path, runtime: &str, timing: &Timing) -> Vec<String> {
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
        timing.heartbeat,
        "--reconnect-max",
        timing.reconnect_max,
        "--retry-min",
        timing.retry_min,
        "--retry-max",
        timing.retry_max,
    ];
    args.map(str::to_owned).to_vec()
}

/// The data directory of a device.
pub(crate) fn device_dir(paths: &RunPaths, key: &DeviceKey) -> PathBuf {
    paths.dir.join("devices").join(key.site.as_str()).join(key.device.as_str())
}

async fn start_agent(paths: &RunPaths, key: &DeviceKey, nats: SocketAddr) -> Result<(Device, Child), Error> {
    let link = open_link(key, nats).await?;
    let args = agent_args(key, &device_dir(paths, key), "process", &TIMING);
    let name = agent_name(key);
    let (process, http) = start_service(paths, "muster-agent", &name, link.address(), args)?;
    Ok((Device { key: key.clone(), link, http }, process))
}

/// Name of a device's agent process.
pub(crate) fn agent_name(key: &DeviceKey) -> String {
    format!("agent-{}-{}", key.site, key.device)
}

/// Opens a link to the server.
pub(crate) async fn open_link(whose: impl std::fmt::Display, nats: SocketAddr) -> Result<Link, Error> {
    Link::open(nats).await.map_err(|source| Error::Network { what: format!("a link for {whose}"), source })
}

/// Writes the server's configuration and starts it.
fn start_server(paths: &RunPaths, address: SocketAddr) -> Result<Child, Error> {
    let program = paths.nats_server.clone();
    if !program.is_file() {
        return Err(Error::NoServer { path: program });
    }
    let config = paths.dir.join("nats.conf");
    let store = paths.dir.join("nats");
    let text = format!(
        "server_name: muster-demo\nlisten: \"{address}\"\njetstream {{ store_dir: {:?}, max_file_store: {STORE_BYTES_MAX} }}\n",
        store.display().to_string()
    );
    std::fs::write(&config, text).map_err(|source| Error::Prepare { path: config.clone(), source })?;
    let args = vec!["--config".to_owned(), config.display().to_string()];
    Child::start(Spec { name: "nats-server".to_owned(), program, args }, &paths.dir)
}

/// Finds a program of Muster.
///
/// # Errors
/// It is not in that directory.
pub(crate) fn find_program(dir: &Path, name: &str) -> Result<PathBuf, Error> {
    let program = dir.join(name);
    if program.is_file() {
        Ok(program)
    } else {
        Err(Error::NoProgram { name: name.to_owned(), dir: dir.to_owned() })
    }
}

/// The sign by which a process counts as ready.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ReadyProbe {
    /// It accepts connections.
    Port(SocketAddr),
    /// It answers 200 at `/ready`.
    Ready(SocketAddr),
}

impl ReadyProbe {
    async fn check_processes(self) -> Result<(), String> {
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
pub(crate) async fn await_ready(process: &mut Child, probe: ReadyProbe) -> Result<(), Error> {
    let deadline = tokio::time::Instant::now() + READY_PATIENCE;
    loop {
        process.expect_running()?;
        match probe.check_processes().await {
            Ok(()) => return Ok(()),
            Err(last) if tokio::time::Instant::now() >= deadline => {
                let (name, log) = (process.name().to_owned(), process.log().to_owned());
                return Err(Error::NotReady { name, waited: READY_PATIENCE, last, log });
            }
            Err(_) => tokio::time::sleep(READY_POLL).await,
        }
    }
}
