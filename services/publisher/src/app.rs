//! Wires the publisher's tasks and drains them in order: first the sources (poll, requests), then the publish under way.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use fastrand::Rng;
use muster_bus::{Bus, BusConfig, IncidentReporter, LinkHealth};
use muster_service::clock::SystemClock;
use muster_service::exit;
use muster_service::supervisor::{Stage, Supervisor};
use tokio_util::sync::CancellationToken;

use crate::announce::{Announcer, AnnouncerHandle, Context};
use crate::clone_dir::CloneDir;
use crate::config::{Cli, Config, GitConfig};
use crate::error::StartError;
use crate::git::Repository;
use crate::ledger_copies::LedgerCopies;
use crate::metrics::Metrics;
use crate::past_commits::PastCommits;
use crate::poll::{HangReport, PollSettings, Poller};
use crate::presence::Heartbeats;
use crate::renew;
use crate::responder::Responder;
use crate::status::Status;
use crate::stream_listener;
use crate::verify;

const NAME: &str = "muster-publisher";

/// A running publisher.
#[derive(Debug)]
pub struct Handle {
    /// Its status.
    pub status: Arc<Status>,
    /// Its announcer.
    pub announcer: AnnouncerHandle,
    /// The private directory of the mirror, removed with the publisher.
    _mirror: Option<CloneDir>,
}

/// Runs the publisher until it is asked to stop.
pub fn main() -> ExitCode {
    match muster_service::config::parse::<Cli>().check() {
        Ok(config) => muster_service::run(NAME, &config.common.clone(), |supervisor| async move {
            start(config, &supervisor).await
        }),
        Err(problems) => exit::usage(NAME, &problems),
    }
}

/// Starts the publisher's tasks under a supervisor. It is ready once it has read DOWNLINK and answers requests. A Git source
/// that does not answer does not affect readiness: requests are answered, and the status and the metrics show the failure.
///
/// # Errors
/// Why it cannot run; a person must act.
pub async fn start(config: Config, supervisor: &Supervisor) -> Result<Handle, StartError> {
    let recovered = supervisor.health().latch("the desired state that DOWNLINK holds");
    let offered = supervisor.health().latch("answering requests");
    let metrics = Metrics::register(supervisor.health());
    let source = config.git.as_ref().map(|git| (&git.url, &git.branch));
    let status = Arc::new(Status::new(source));
    let (incidents, requests) = IncidentReporter::new();
    let (clock, git) = (Arc::new(SystemClock), source.is_some());
    let context = Context { clock, status: status.clone(), metrics, incidents, git };
    let (data_dir, mirror) = data_dir(&config)?;

    let bus = BusConfig {
        creds: config.common.creds,
        tls_ca: config.common.tls_ca,
        uplink_bytes_max: config.streams.uplink_bytes_max,
        ledger_bytes_max: config.streams.ledger_bytes_max,
        replicas: config.streams.replicas,
        ..BusConfig::service(config.common.nats_url.as_str(), NAME)
    };
    // The caller drops an interrupted start, so this one needs no token.
    let bus = Bus::connect(bus, &CancellationToken::new()).await?;
    LinkHealth::register(supervisor.health()).follow(&bus);
    bus.converge_streams().await?;

    let (task, announcer) = Announcer::new(bus.clone(), context.clone(), Rng::new());
    supervisor.spawn(Stage::Publish, "announce", task.run(recovered, supervisor.token(Stage::Publish)));
    supervisor.spawn(
        Stage::Publish,
        "incidents",
        requests.run(bus.clone(), supervisor.token(Stage::Publish)),
    );
    let verifying = verify::run(bus.clone(), announcer.clone(), supervisor.token(Stage::Intake));
    supervisor.spawn(Stage::Intake, "verify", verifying);
    let stop = supervisor.token(Stage::Intake);
    let renewing = renew::run(bus.clone(), announcer.clone(), context.clock.clone(), stop);
    supervisor.spawn(Stage::Intake, "renew", renewing);
    let repository = config.git.as_ref().map(|git| repository(git, &data_dir));
    let past = repository
        .clone()
        .zip(config.git.as_ref())
        .map(|(repository, git)| PastCommits::new(repository, git.policy));
    let service = Responder { announcer: announcer.clone(), status: status.clone(), past };
    supervisor.spawn(
        Stage::Intake,
        "requests",
        service.serve(bus.clone(), offered, supervisor.token(Stage::Intake)),
    );
    let listening =
        stream_listener::run(bus.clone(), Heartbeats(announcer.clone()), supervisor.token(Stage::Intake));
    supervisor.spawn(Stage::Intake, "presence", listening);
    let copying =
        stream_listener::run(bus.clone(), LedgerCopies(announcer.clone()), supervisor.token(Stage::Intake));
    supervisor.spawn(Stage::Intake, "copies", copying);
    if let Some((git, repository)) = config.git.zip(repository) {
        let hang = HangReport::new(&context, supervisor.health().clone());
        let poller = poller(git, repository, announcer.clone(), context, hang);
        supervisor.spawn(Stage::Intake, "poll", poller.run(supervisor.token(Stage::Intake)));
    }
    Ok(Handle { status, announcer, _mirror: mirror })
}

/// The directory of the mirror, and its guard if it is a private one.
fn data_dir(config: &Config) -> Result<(PathBuf, Option<CloneDir>), StartError> {
    if let Some(named) = &config.data_dir {
        return Ok((named.clone(), None));
    }
    let private = CloneDir::create().map_err(StartError::Directory)?;
    Ok((private.path().to_owned(), Some(private)))
}

fn repository(git: &GitConfig, data_dir: &Path) -> Repository {
    let GitConfig { url, branch, timeout, token_file, .. } = git.clone();
    Repository::new(url, branch, token_file, data_dir).with_remote_timeout(timeout)
}

fn poller(
    git: GitConfig,
    repository: Repository,
    announcer: AnnouncerHandle,
    context: Context,
    hang: HangReport,
) -> Poller {
    let GitConfig { url, branch, poll, timeout, token_file, allow_empty, policy } = git;
    tracing::info!(git.url = %url, git.branch = branch.as_str(), every = ?poll, "watching a Git repository");
    if token_file.is_some() && url.is_clear_text() {
        tracing::warn!(git.url = %url, "the token goes over the network in clear text: use https");
    }
    let settings = PollSettings { every: poll, timeout, allow_empty, policy };
    Poller::new(repository, settings, announcer, context, hang, Rng::new())
}
