//! The demo: starts a fleet, breaks its links by a schedule, commits releases meanwhile, restores the links, and returns the
//! result. Meanwhile it shows the screen of `muster watch`.
//!
//! A short run has releases that go out at once, one of them refused ([`releases`]). A run with time for it has releases that
//! go out in waves, one of them bad ([`waves`]).

mod releases;
mod rollout;
mod waves;

use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_bus::{Bus, BusConfig};
use muster_contract::DeviceKey;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::demo::DemoConfig;
use crate::error::Error;
use crate::fleet::{Fleet, find_program};
use crate::header::{self, Header};
use crate::hub::Hub;
use crate::link_faults::LinkFaults;
use crate::repository::{self, Repository};
use crate::result::{self, Accounting, DemoResult};
use crate::run_paths::RunPaths;

use self::releases::Stage;
use self::waves::Waves;

/// Calm at the end of a run of given length, in which everything must converge.
const CALM: Duration = Duration::from_secs(12);
/// Time beyond the given length that a slow machine gets to converge.
const GRACE: Duration = Duration::from_secs(30);
/// Time between two looks at whether it has.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Runs the demo until its time is over or `stop` is cancelled.
///
/// # Errors
/// The fleet could not be started, or a part of it ended by itself.
pub async fn run(config: &DemoConfig, stop: &CancellationToken) -> Result<DemoResult, Error> {
    let paths = RunPaths::prepare(&config.location)?;
    let repository = Repository::create(paths.dir.join("repository")).await?;
    let devices = config.device_keys();
    repository::write_devices(&repository, &devices)?;
    repository::write_release(&repository, &config.site_names(), 1)?;
    repository.commit("Release 1").await?;
    let mut fleet =
        Fleet::start(&paths, &repository, &devices, config.rollouts.map(|pace| pace.plan_every)).await?;
    let bus = connect(&fleet, stop).await?;
    let header = header(config, &paths, &fleet)?;
    let screen = show(config, &header, &bus);
    let hub = Hub::new(bus);
    let played = play(config, &mut fleet, &repository, &hub, &header, &devices, stop).await;
    if let Some(screen) = screen {
        screen.abort();
        // It ends by being aborted, which is no failure.
        let _ = screen.await;
    }
    // Before the server goes: that its connection ends is then no news.
    drop(hub);
    tracing::info!("stopping the fleet");
    let stopped = fleet.stop().await;
    let result = played?;
    stopped?;
    Ok(result)
}

async fn connect(fleet: &Fleet, stop: &CancellationToken) -> Result<Bus, Error> {
    let config = BusConfig::service(format!("nats://{}", fleet.nats), "muster-simulator");
    Bus::connect(config, stop).await.map_err(Error::Bus)
}

/// The header of the demo.
fn header(config: &DemoConfig, paths: &RunPaths, fleet: &Fleet) -> Result<Header, Error> {
    let program = find_program(&paths.programs, "muster")?;
    let question = format!("{} --nats-url nats://{} status", from_here(&program).display(), fleet.nats);
    Ok(Header::new(&fleet.devices, fleet.page, question, config.seed, from_here(&paths.logs())))
}

/// A path as one types it here: short enough for a line of a small terminal, where it is below this directory.
fn from_here(path: &Path) -> PathBuf {
    let here = std::path::absolute(".").unwrap_or_default();
    path.strip_prefix(&here).unwrap_or(path).to_owned()
}

/// Shows the fleet, unless a program reads the output.
fn show(config: &DemoConfig, header: &Header, bus: &Bus) -> Option<JoinHandle<()>> {
    if config.json {
        tracing::info!("the fleet is up\n{}", header.text().trim_end());
        return None;
    }
    Some(header::show(header.clone(), bus.clone()))
}

async fn play(
    config: &DemoConfig,
    fleet: &mut Fleet,
    repository: &Repository,
    hub: &Hub,
    header: &Header,
    devices: &[DeviceKey],
    stop: &CancellationToken,
) -> Result<DemoResult, Error> {
    let begin = Instant::now();
    let end = config.length.map(|length| begin + length);
    let faults_end = end.map(|end| end.checked_sub(CALM).unwrap_or(begin).max(begin));
    let link_faults = LinkFaults::start(&fleet.devices, hub, config.seed);
    let mut stage = Stage { config, fleet, repository, header, until: faults_end, stop };
    let canary = devices.first().cloned();
    let waves = config.rollouts.zip(canary);
    let mut waves = waves.map(|(pace, canary)| Waves::new(pace, canary, hub.bus().clone()));
    let commits = match &mut waves {
        Some(waves) => waves.run(&mut stage).await?,
        None => releases::run(&mut stage).await?,
    };
    let (links, time_to_truth) = link_faults.end().await;
    header.faults_ended();
    tracing::info!("every link is mended now; the fleet converges");
    // Ctrl-C asks for the end, not for a verdict: then the fleet is shown as it is.
    let now = Instant::now();
    let patience = if stop.is_cancelled() { now } else { end.unwrap_or(now) + GRACE };
    stage.until = Some(patience);
    let rollouts = match waves {
        Some(waves) => waves.finish(&mut stage).await?,
        None => Vec::new(),
    };
    let converged = converge(fleet, hub, devices.len(), patience, stop).await?;
    if let Some(end) = end {
        stop.run_until_cancelled(tokio::time::sleep_until(end)).await;
    }
    let lines = hub.devices().await.unwrap_or_default();
    let views = hub.deployments().await.unwrap_or_default();
    Ok(DemoResult {
        converged: converged
            && result::is_converged(devices.len(), &lines, &views)
            && rollouts.iter().all(|rollout| rollout.has_ended),
        seed: config.seed,
        seconds: begin.elapsed().as_secs(),
        devices: result::freshness(&lines),
        deployments: views.iter().map(Into::into).collect(),
        accounting: Accounting::of(&lines),
        links,
        commits,
        rollouts,
        time_to_truth,
    })
}

async fn converge(
    fleet: &mut Fleet,
    hub: &Hub,
    devices: usize,
    patience: Instant,
    stop: &CancellationToken,
) -> Result<bool, Error> {
    loop {
        fleet.expect_running()?;
        if let (Ok(lines), Ok(views)) = (hub.devices().await, hub.deployments().await)
            && result::is_converged(devices, &lines, &views)
        {
            return Ok(true);
        }
        if Instant::now() >= patience || stop.is_cancelled() {
            return Ok(false);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
