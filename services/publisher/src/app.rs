//! Wiring, and the order of the drain: first nobody asks any more (poll, requests), then the publish under way is
//! finished.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use fastrand::Rng;
use muster_bus::{Bus, BusConfig, Call, Serving};
use muster_service::backoff::FullJitter;
use muster_service::clock::SystemClock;
use muster_service::error::chain;
use muster_service::exit;
use muster_service::life::{Life, Stage};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::announce::{Announcer, Desk, Surroundings};
use crate::config::{Cli, Config, GitConfig};
use crate::error::StartError;
use crate::git::Repository;
use crate::metrics::Metrics;
use crate::poll::Poller;
use crate::requests::{self, Ask};
use crate::status::Status;

const NAME: &str = "muster-publisher";
/// Least and longest upper bound of the delay before requests are offered again.
const OFFER_MIN: Duration = Duration::from_millis(200);
/// See [`OFFER_MIN`].
const OFFER_MAX: Duration = Duration::from_secs(10);

/// A publisher that runs.
#[derive(Debug)]
pub struct Handle {
    /// What it says of itself.
    pub status: Arc<Status>,
    /// The mirror's place, if it is to go with the publisher.
    _mirror: Option<TempDir>,
}

/// Runs the publisher until it is asked to stop.
pub fn main() -> ExitCode {
    match Cli::parse().check() {
        Ok(config) => {
            muster_service::run(
                NAME,
                &config.common.clone(),
                |life| async move { start(config, &life).await },
            )
        }
        Err(problems) => exit::usage(NAME, &problems),
    }
}

/// Starts the publisher within a life. It is ready once it has read what DOWNLINK holds.
///
/// # Errors
/// Why it cannot run, for a person to mend.
pub async fn start(config: Config, life: &Life) -> Result<Handle, StartError> {
    let recovered = life.health().latch("the desired state that DOWNLINK holds");
    let metrics = Metrics::register(life.health());
    let source = config.git.as_ref().map(|git| (&git.url, &git.branch));
    let status = Arc::new(Status::new(source));
    let around =
        Surroundings { clock: Arc::new(SystemClock), status: status.clone(), metrics, git: source.is_some() };
    let (place, mirror) = place(&config)?;

    let bus =
        BusConfig { creds: config.common.creds, ..BusConfig::service(config.common.nats_url.as_str(), NAME) };
    let bus = Bus::connect(bus, &life.stop_token()).await?;
    bus.converge().await?;

    let (announcer, desk) = Announcer::new(bus.clone(), around.clone(), Rng::new());
    life.spawn(Stage::Publish, "announce", announcer.run(recovered, life.token(Stage::Publish)));
    let (serving, asked) = (desk.clone(), status.clone());
    life.spawn(Stage::Intake, "requests", serve(bus, serving, asked, life.token(Stage::Intake)));
    if let Some(git) = config.git {
        let poller = poller(git, place, desk, around);
        life.spawn(Stage::Intake, "poll", poller.run(life.token(Stage::Intake)));
    }
    Ok(Handle { status, _mirror: mirror })
}

/// Where the mirror lies, and the private directory if it is one.
fn place(config: &Config) -> Result<(PathBuf, Option<TempDir>), StartError> {
    if let Some(named) = &config.data_dir {
        return Ok((named.clone(), None));
    }
    let private = tempfile::Builder::new().prefix("muster-publisher-").tempdir();
    let private = private.map_err(StartError::Directory)?;
    Ok((private.path().to_owned(), Some(private)))
}

fn poller(git: GitConfig, place: PathBuf, desk: Desk, around: Surroundings) -> Poller {
    let GitConfig { url, branch, poll, token_file } = git;
    tracing::info!(git.url = %url, git.branch = branch.as_str(), every = ?poll, "watching a Git repository");
    Poller::new(Repository::new(url, branch, token_file, &place), poll, desk, around, Rng::new())
}

/// Answers requests until `stop`; those already taken are answered then.
async fn serve(bus: Bus, desk: Desk, status: Arc<Status>, stop: CancellationToken) {
    let offering = offer(&bus, desk, status);
    if let Some(serving) = stop.run_until_cancelled(offering).await {
        stop.cancelled().await;
        serving.stop().await;
    }
}

async fn offer(bus: &Bus, desk: Desk, status: Arc<Status>) -> Serving {
    let (mut retry, mut chance) = (FullJitter::new(OFFER_MIN, OFFER_MAX), Rng::new());
    loop {
        let (desk, status) = (desk.clone(), status.clone());
        let handler = move |call| answer(call, desk.clone(), status.clone());
        match bus.serve(requests::spec(), handler).await {
            Ok(serving) => return serving,
            Err(error) => {
                let retry_in = retry.next(&mut chance);
                tracing::warn!(error = chain(&error), ?retry_in, "cannot take requests yet");
                tokio::time::sleep(retry_in).await;
            }
        }
    }
}

async fn answer(call: Call, desk: Desk, status: Arc<Status>) -> Result<bytes::Bytes, muster_bus::Fault> {
    match requests::understand(&call) {
        Ok(Ask::Status) => requests::reply(Ok(status.answer())),
        Ok(Ask::Change(request)) => requests::reply(desk.change(request).await),
        Err(error) => requests::reply::<()>(Err(error)),
    }
}
