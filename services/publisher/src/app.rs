//! Wiring, and the order of the drain: first nobody asks any more (poll, requests), then the publish under way is
//! finished.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use bytes::Bytes;
use fastrand::Rng;
use muster_bus::{Bus, BusConfig, Call, Fault, IncidentReporter, LinkHealth};
use muster_contract::query::ErrorBody;
use muster_service::clock::SystemClock;
use muster_service::exit;
use muster_service::health::Latch;
use muster_service::life::{Life, Stage};
use tokio_util::sync::CancellationToken;

use crate::announce::{Announcer, Desk, Surroundings};
use crate::clone_dir::CloneDir;
use crate::config::{Cli, Config, GitConfig};
use crate::copies::Copies;
use crate::error::StartError;
use crate::git::Repository;
use crate::listening;
use crate::metrics::Metrics;
use crate::poll::{Habits, HangReport, Poller};
use crate::presence::Heartbeats;
use crate::renew;
use crate::requests::{self, Ask};
use crate::status::Status;
use crate::verify;

const NAME: &str = "muster-publisher";
/// Bytes of a request that is understood where it comes in: its documents are parsed well within a millisecond.
const PARSED_AT_ONCE_MAX: usize = 4 * 1024;

/// A publisher that runs.
#[derive(Debug)]
pub struct Handle {
    /// What it says of itself.
    pub status: Arc<Status>,
    /// The way to what it publishes.
    pub desk: Desk,
    /// The mirror's place, if it is to go with the publisher.
    _mirror: Option<CloneDir>,
}

/// Runs the publisher until it is asked to stop.
pub fn main() -> ExitCode {
    match muster_service::config::parse::<Cli>().check() {
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

/// Starts the publisher within a life. It is ready once it has read what DOWNLINK holds and answers requests. A Git
/// source that does not answer makes it no less ready: requests are met, and the status and the metrics tell.
///
/// # Errors
/// Why it cannot run, for a person to mend.
pub async fn start(config: Config, life: &Life) -> Result<Handle, StartError> {
    let recovered = life.health().latch("the desired state that DOWNLINK holds");
    let offered = life.health().latch("answering requests");
    let metrics = Metrics::register(life.health());
    let source = config.git.as_ref().map(|git| (&git.url, &git.branch));
    let status = Arc::new(Status::new(source));
    let (incidents, requests) = IncidentReporter::new();
    let (clock, git) = (Arc::new(SystemClock), source.is_some());
    let around = Surroundings { clock, status: status.clone(), metrics, incidents, git };
    let (place, mirror) = place(&config)?;

    let bus = BusConfig {
        creds: config.common.creds,
        tls_ca: config.common.tls_ca,
        uplink_bytes_max: config.streams.uplink_bytes_max,
        ledger_bytes_max: config.streams.ledger_bytes_max,
        replicas: config.streams.replicas,
        ..BusConfig::service(config.common.nats_url.as_str(), NAME)
    };
    // A start that is interrupted is dropped by its caller, which is no failure; so nothing here asks it to stop.
    let bus = Bus::connect(bus, &CancellationToken::new()).await?;
    LinkHealth::register(life.health()).follow(&bus);
    bus.converge_streams().await?;

    let (announcer, desk) = Announcer::new(bus.clone(), around.clone(), Rng::new());
    life.spawn(Stage::Publish, "announce", announcer.run(recovered, life.token(Stage::Publish)));
    life.spawn(
        Stage::Publish,
        "incidents",
        requests.run(bus.clone(), Rng::new(), life.token(Stage::Publish)),
    );
    let verifying = verify::run(bus.clone(), desk.clone(), Rng::new(), life.token(Stage::Intake));
    life.spawn(Stage::Intake, "verify", verifying);
    let stop = life.token(Stage::Intake);
    let renewing = renew::run(bus.clone(), desk.clone(), around.clock.clone(), Rng::new(), stop);
    life.spawn(Stage::Intake, "renew", renewing);
    let counter = Counter { desk: desk.clone(), status: status.clone() };
    life.spawn(Stage::Intake, "requests", counter.serve(bus.clone(), offered, life.token(Stage::Intake)));
    let listening =
        listening::run(bus.clone(), Heartbeats(desk.clone()), Rng::new(), life.token(Stage::Intake));
    life.spawn(Stage::Intake, "presence", listening);
    let copying = listening::run(bus.clone(), Copies(desk.clone()), Rng::new(), life.token(Stage::Intake));
    life.spawn(Stage::Intake, "copies", copying);
    if let Some(git) = config.git {
        let hang = HangReport::new(&around, life.health().clone());
        let poller = poller(git, &place, desk.clone(), around, hang);
        life.spawn(Stage::Intake, "poll", poller.run(life.token(Stage::Intake)));
    }
    Ok(Handle { status, desk, _mirror: mirror })
}

/// Where the mirror lies, and the private directory if it is one.
fn place(config: &Config) -> Result<(PathBuf, Option<CloneDir>), StartError> {
    if let Some(named) = &config.data_dir {
        return Ok((named.clone(), None));
    }
    let private = CloneDir::create().map_err(StartError::Directory)?;
    Ok((private.path().to_owned(), Some(private)))
}

fn poller(git: GitConfig, place: &Path, desk: Desk, around: Surroundings, hang: HangReport) -> Poller {
    let GitConfig { url, branch, poll, timeout, token_file, allow_empty, policy } = git;
    tracing::info!(git.url = %url, git.branch = branch.as_str(), every = ?poll, "watching a Git repository");
    if token_file.is_some() && url.is_clear_text() {
        tracing::warn!(git.url = %url, "the token goes over the network in clear text: use https");
    }
    let habits = Habits { every: poll, timeout, allow_empty, policy };
    let repository = Repository::new(url, branch, token_file, place).with_remote_timeout(timeout);
    Poller::new(repository, habits, desk, around, hang, Rng::new())
}

/// Understands a call. A long one is a lot of YAML, and nobody else waits for it.
async fn understood(call: Call) -> Result<Ask, ErrorBody> {
    if call.payload.len() <= PARSED_AT_ONCE_MAX {
        return requests::understand(&call);
    }
    let understood = tokio::task::spawn_blocking(move || requests::understand(&call)).await;
    understood.unwrap_or_else(|error| {
        Err(requests::internal(format!("reading the request failed, which is a mistake of ours: {error}")))
    })
}

/// Where requests are answered.
#[derive(Clone)]
struct Counter {
    desk: Desk,
    status: Arc<Status>,
}

impl Counter {
    /// Answers requests until `stop`; those already taken are answered then.
    async fn serve(self, bus: Bus, offered: Latch, stop: CancellationToken) {
        let handler = move |call| self.clone().answer(call);
        bus.offer(requests::spec(), handler, || offered.release(), stop).await;
    }

    async fn answer(self, call: Call) -> Result<Bytes, Fault> {
        match understood(call).await {
            Ok(Ask::Status(query)) => requests::reply(Ok(self.status.answer_to(&query))),
            Ok(Ask::Change(request)) => requests::reply(self.desk.change(request).await),
            Err(error) => requests::reply::<()>(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use muster_contract::query::{ApplyRequest, ErrorCode};

    use super::*;

    fn call(documents: String) -> Call {
        let request = ApplyRequest { key: "a/one".parse().unwrap(), documents, file: None };
        let payload = serde_json::to_vec(&request).unwrap().into();
        let (subject, headers) = ("muster.publisher.apply".to_owned(), muster_bus::Headers::default());
        Call { endpoint: "apply", subject, payload, headers, requester: muster_bus::Requester::Unverified }
    }

    #[test]
    fn a_long_request_is_parsed_where_nobody_else_waits_for_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        let long = "# nothing\n".repeat(PARSED_AT_ONCE_MAX);
        for (documents, at_once) in [("# nothing\n".to_owned(), true), (long, false)] {
            runtime.block_on(async {
                // Nobody parses elsewhere before the first look.
                let (looked, wait) = std::sync::mpsc::channel::<()>();
                let busy = tokio::task::spawn_blocking(move || wait.recv());
                let mut answer = pin!(understood(call(documents)));
                let first = answer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert_eq!(first.is_ready(), at_once);
                drop(looked);
                assert!(busy.await.unwrap().is_err());
                let answer = if at_once { first } else { std::task::Poll::Ready(answer.await) };
                let std::task::Poll::Ready(Err(refused)) = answer else { panic!("holds no deployment") };
                assert_eq!(refused.code, ErrorCode::BadRequest, "{refused:?}");
            });
        }
    }
}
