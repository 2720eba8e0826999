//! The demo: starts a fleet, breaks its links by a schedule, commits releases meanwhile (one of them bad), restores the
//! links, and prints the result. Meanwhile it shows the screen of `muster watch`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_bus::{Bus, BusConfig};
use muster_contract::DeviceKey;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::demo::Config;
use crate::error::Error;
use crate::fleet::{Fleet, find_program};
use crate::header::{self, Header};
use crate::hub::Hub;
use crate::link_faults::LinkFaults;
use crate::repository::{self, Repository};
use crate::result::{self, Accounting, Commits, DemoResult};
use crate::run_paths::RunPaths;

/// Time between two commits.
const COMMIT_EVERY: Duration = Duration::from_secs(8);
/// Which commit has a mistake in it, counted from 1.
const BAD_COMMIT: u64 = 2;
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
pub async fn run(config: &Config, stop: &CancellationToken) -> Result<DemoResult, Error> {
    let paths = RunPaths::prepare(&config.location)?;
    let repository = Repository::create(paths.dir.join("repository")).await?;
    let devices = config.device_keys();
    repository::write_devices(&repository, &devices)?;
    repository::write_release(&repository, &config.site_names(), 1)?;
    repository.commit("Release 1").await?;
    let mut fleet = Fleet::start(&paths, &repository, &devices).await?;
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
fn header(config: &Config, paths: &RunPaths, fleet: &Fleet) -> Result<Header, Error> {
    let program = find_program(&paths.programs, "muster")?;
    let question = format!("{} --nats-url nats://{} status", from_here(&program).display(), fleet.nats);
    Ok(Header::new(&fleet.devices, question, config.seed, from_here(&paths.logs())))
}

/// A path as one types it here: short enough for a line of a small terminal, where it is below this directory.
fn from_here(path: &Path) -> PathBuf {
    let here = std::path::absolute(".").unwrap_or_default();
    path.strip_prefix(&here).unwrap_or(path).to_owned()
}

/// Shows the fleet, unless a program reads the output.
fn show(config: &Config, header: &Header, bus: &Bus) -> Option<JoinHandle<()>> {
    if config.json {
        tracing::info!("the fleet is up\n{}", header.text().trim_end());
        return None;
    }
    Some(header::show(header.clone(), bus.clone()))
}

async fn play(
    config: &Config,
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
    let link_faults = LinkFaults::begin(&fleet.devices, hub, config.seed);
    let commits = commit_releases(config, fleet, repository, header, faults_end, stop).await?;
    let (links, time_to_truth) = link_faults.end().await;
    header.faults_ended();
    tracing::info!("every link is mended now; the fleet converges");
    // Ctrl-C asks for the end, not for a verdict: then the fleet is shown as it is.
    let patience = if stop.is_cancelled() { begin } else { end.unwrap_or(begin) + GRACE };
    let converged = converge(fleet, hub, devices.len(), patience, stop).await?;
    if let Some(end) = end {
        stop.run_until_cancelled(tokio::time::sleep_until(end)).await;
    }
    let lines = hub.devices().await.unwrap_or_default();
    let views = hub.deployments().await.unwrap_or_default();
    Ok(DemoResult {
        converged: converged && result::is_converged(devices.len(), &lines, &views),
        seed: config.seed,
        seconds: begin.elapsed().as_secs(),
        devices: result::freshness(&lines),
        deployments: views.iter().map(Into::into).collect(),
        accounting: Accounting::of(&lines),
        links,
        commits,
        time_to_truth,
    })
}

/// Commits releases while the links break.
async fn commit_releases(
    config: &Config,
    fleet: &mut Fleet,
    repository: &Repository,
    header: &Header,
    until: Option<Instant>,
    stop: &CancellationToken,
) -> Result<Commits, Error> {
    let mut commits = Commits { made: 1, bad: 0 };
    loop {
        let next = Instant::now() + COMMIT_EVERY;
        let over = until.is_some_and(|until| next >= until);
        let pause = tokio::time::sleep_until(until.filter(|_| over).unwrap_or(next));
        if stop.run_until_cancelled(pause).await.is_none() || over {
            return Ok(commits);
        }
        fleet.expect_running()?;
        commits.made += 1;
        let release = u32::try_from(commits.made).unwrap_or(u32::MAX);
        if commits.made == BAD_COMMIT {
            commits.bad += 1;
            repository::write_bad_release(repository, release)?;
            repository.commit("Release with a slip of the pen").await?;
            header.bad_release(release);
        } else {
            repository::write_release(repository, &config.site_names(), release)?;
            repository.commit(&format!("Release {release}")).await?;
            header.new_release(release);
        }
        tracing::info!(release, "committed");
    }
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
