//! Wires the publisher's tasks and drains them in order: first the sources (poll, requests), then the publish under way.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use bytes::Bytes;
use fastrand::Rng;
use muster_bus::{Bus, BusConfig, Call, Fault, IncidentReporter, LinkHealth};
use muster_contract::query::ErrorBody;
use muster_contract::question::{ANSWER_BYTES_MAX, checked_limit, fewer};
use muster_contract::rollout::{TargetsAnswer, TargetsQuery};
use muster_service::clock::SystemClock;
use muster_service::exit;
use muster_service::health::Latch;
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
use crate::requests::{self, PublisherRequest, bad_request};
use crate::status::Status;
use crate::stream_listener;
use crate::verify;

const NAME: &str = "muster-publisher";
/// Largest request, in bytes, that is parsed on the runtime's thread: parsing takes well under a millisecond.
const PARSED_AT_ONCE_MAX: usize = 4 * 1024;

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
        requests.run(bus.clone(), Rng::new(), supervisor.token(Stage::Publish)),
    );
    let verifying = verify::run(bus.clone(), announcer.clone(), Rng::new(), supervisor.token(Stage::Intake));
    supervisor.spawn(Stage::Intake, "verify", verifying);
    let stop = supervisor.token(Stage::Intake);
    let renewing = renew::run(bus.clone(), announcer.clone(), context.clock.clone(), Rng::new(), stop);
    supervisor.spawn(Stage::Intake, "renew", renewing);
    let repository = config.git.as_ref().map(|git| repository(git, &data_dir));
    let past = repository
        .clone()
        .zip(config.git.as_ref())
        .map(|(repository, git)| PastCommits::new(repository, git.policy));
    let service = RequestService { announcer: announcer.clone(), status: status.clone(), past };
    supervisor.spawn(
        Stage::Intake,
        "requests",
        service.serve(bus.clone(), offered, supervisor.token(Stage::Intake)),
    );
    let listening = stream_listener::run(
        bus.clone(),
        Heartbeats(announcer.clone()),
        Rng::new(),
        supervisor.token(Stage::Intake),
    );
    supervisor.spawn(Stage::Intake, "presence", listening);
    let copying = stream_listener::run(
        bus.clone(),
        LedgerCopies(announcer.clone()),
        Rng::new(),
        supervisor.token(Stage::Intake),
    );
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

/// Parses a call. A long one is parsed on another thread, because parsing much YAML would delay other tasks.
async fn parse_call(call: Call) -> Result<PublisherRequest, ErrorBody> {
    if call.payload.len() <= PARSED_AT_ONCE_MAX {
        return requests::parse_request(&call);
    }
    let parsed = tokio::task::spawn_blocking(move || requests::parse_request(&call)).await;
    parsed.unwrap_or_else(|error| {
        Err(requests::internal(format!(
            "reading the request failed, which is an error of the publisher: {error}"
        )))
    })
}

/// Answers requests.
#[derive(Clone)]
struct RequestService {
    announcer: AnnouncerHandle,
    status: Arc<Status>,
    past: Option<PastCommits>,
}

impl RequestService {
    /// Answers requests until `stop`, and then those that have arrived.
    async fn serve(self, bus: Bus, offered: Latch, stop: CancellationToken) {
        let handler = move |call| self.clone().answer(call);
        bus.offer(requests::spec(), handler, || offered.release(), stop).await;
    }

    async fn answer(self, call: Call) -> Result<Bytes, Fault> {
        match parse_call(call).await {
            Ok(PublisherRequest::Status(query)) => requests::reply(Ok(self.status.answer_to(&query))),
            Ok(PublisherRequest::Targets(query)) => self.targets(query).await,
            Ok(PublisherRequest::Release(release)) => requests::reply(self.announcer.release(release).await),
            Ok(PublisherRequest::Decide(decide)) => requests::reply(self.announcer.decide(decide).await),
            Ok(PublisherRequest::Change(request)) => requests::reply(self.announcer.change(request).await),
            Err(error) => requests::reply::<()>(Err(error)),
        }
    }

    /// A page of targets that fits into a message.
    async fn targets(&self, query: TargetsQuery) -> Result<Bytes, Fault> {
        let mut limit = checked_limit(query.limit)?;
        loop {
            let page = TargetsQuery { limit: Some(limit), ..query.clone() };
            let reply = requests::reply(self.page(page).await)?;
            if reply.len() <= ANSWER_BYTES_MAX || limit == 1 {
                return Ok(reply);
            }
            limit = fewer(limit, reply.len());
        }
    }

    async fn page(&self, query: TargetsQuery) -> Result<TargetsAnswer, ErrorBody> {
        match (query.revision.clone(), &self.past) {
            (None, _) => self.announcer.targets(query).await,
            (Some(revision), Some(past)) => past.targets(&query, &revision).await,
            (Some(_), None) => {
                Err(bad_request("revision: this publisher watches no Git repository".to_owned()))
            }
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
    fn a_long_request_is_parsed_on_another_thread() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        let long = "# nothing\n".repeat(PARSED_AT_ONCE_MAX);
        for (documents, at_once) in [("# nothing\n".to_owned(), true), (long, false)] {
            runtime.block_on(async {
                // The only other thread is busy until after the first poll.
                let (looked, wait) = std::sync::mpsc::channel::<()>();
                let busy = tokio::task::spawn_blocking(move || wait.recv());
                let mut answer = pin!(parse_call(call(documents)));
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
