//! Polls clusters for their ResourceGroups. A cluster whose poll fails is polled again with a growing delay; its evidence becomes
//! stale when its period ends, and nothing of it is guessed meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use muster_contract::evidence::{EvidenceSource, Fidelity, Provenance};
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use muster_service::supervisor::{Stage, Supervisor};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use ureq::Agent;
use ureq::http::StatusCode;
use ureq::http::header::{ACCEPT, AUTHORIZATION};

use super::config::{PullSetupError, PulledCluster, read};
use super::evidence::{EvaluatedGroups, PeriodicEvidence, no_desired_state};
use super::group::ResourceGroups;
use crate::margo::Devices;
use crate::outbound;
use crate::problem::Problem;

/// Polls under way at once.
const POLLS_MAX: usize = 16;
/// Longest answer in bytes, all pages together.
const ANSWER_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Pages of one list.
const PAGES_MAX: usize = 32;
/// Most that a poll is delayed beyond its interval because polls before it failed.
const DELAY_MAX: Duration = Duration::from_secs(5 * 60);

/// Why a poll failed.
#[derive(Debug, thiserror::Error)]
enum PollError {
    #[error("cannot read the token in {0}")]
    Token(String, #[source] std::io::Error),
    #[error("cannot reach the cluster")]
    Unreachable(#[source] Box<ureq::Error>),
    #[error("the cluster answers with status {0}")]
    Status(u16),
    #[error("the list of the cluster has more than {PAGES_MAX} pages or {ANSWER_BYTES_MAX} bytes")]
    TooLong,
    #[error("{}", .0.detail)]
    Problem(Problem),
    #[error("the gateway stops")]
    Stopped,
}

/// Reads a cluster over HTTP.
#[derive(Debug)]
struct ClusterReader {
    cluster: PulledCluster,
    agent: Agent,
}

/// Polls one cluster.
struct ClusterPoller {
    reader: Arc<ClusterReader>,
    devices: Devices,
    permits: Arc<Semaphore>,
    evidence: PeriodicEvidence,
    is_failing: bool,
    /// Groups that could not be used at the last poll.
    refused: usize,
}

/// Polls the clusters of a file under a supervisor.
///
/// # Errors
/// The file, or one that it names, cannot be used.
pub(crate) fn start(file: &Path, devices: &Devices, supervisor: &Supervisor) -> Result<(), PullSetupError> {
    let permits = Arc::new(Semaphore::new(POLLS_MAX));
    let pollers = read(file)?.into_iter().map(|cluster| ClusterPoller::new(cluster, devices, &permits));
    let pollers = pollers.collect::<Result<Vec<_>, _>>()?;
    tracing::info!(clusters = pollers.len(), "pulling from clusters");
    let token = supervisor.token(Stage::Serve);
    let all = pollers.into_iter().map(move |poller| poller.run(token.clone()));
    supervisor.spawn(Stage::Serve, "pull", async move { drop(join_all(all).await) });
    Ok(())
}

impl ClusterPoller {
    fn new(
        cluster: PulledCluster,
        devices: &Devices,
        permits: &Arc<Semaphore>,
    ) -> Result<Self, PullSetupError> {
        let read = |path: &std::path::PathBuf| {
            std::fs::read(path).map_err(|source| PullSetupError::Read { path: path.clone(), source })
        };
        let pem = cluster.ca_file.as_ref().map(read).transpose()?;
        let agent = outbound::agent(pem.as_deref(), cluster.timeout);
        let period = cluster.period;
        Ok(Self {
            reader: Arc::new(ClusterReader { cluster, agent }),
            devices: devices.clone(),
            permits: Arc::clone(permits),
            evidence: PeriodicEvidence {
                source: EvidenceSource { origin: Provenance::Pull, fidelity: Fidelity::Sampled },
                period,
                is_ordered: false,
            },
            is_failing: false,
            refused: 0,
        })
    }

    async fn run(mut self, token: CancellationToken) {
        let interval = self.reader.cluster.interval;
        let (mut delays, mut rng) = (FullJitter::new(interval, DELAY_MAX), Rng::new());
        while !token.is_cancelled() {
            let begun = Instant::now();
            let polled = token.run_until_cancelled(self.poll()).await;
            let Some(polled) = polled else { return };
            let delay = match &polled {
                Ok(()) => {
                    delays.reset();
                    Duration::ZERO
                }
                Err(_) => delays.next(&mut rng),
            };
            self.record(polled);
            let pause = (interval + delay).saturating_sub(begun.elapsed());
            token.run_until_cancelled(sleep(pause)).await;
        }
    }

    async fn poll(&mut self) -> Result<(), PollError> {
        let Ok(permit) = self.permits.acquire().await else { return Err(PollError::Stopped) };
        // Groups are as old as the beginning of the poll.
        let (at, reader) = (self.devices.now(), Arc::clone(&self.reader));
        let groups = spawn_blocking(move || reader.groups()).await.map_err(|_| PollError::Stopped)??;
        drop(permit);
        let key = &self.reader.cluster.device;
        let evaluated = EvaluatedGroups::of(&self.devices, key, &groups, self.evidence, at)
            .await
            .map_err(PollError::Problem)?;
        let evaluated = evaluated.ok_or_else(|| PollError::Problem(no_desired_state()))?;
        evaluated.deliver(&self.devices, key).await.map_err(PollError::Problem)?;
        let refused = evaluated.refused.len();
        self.devices.metrics.pull_refused_groups.inc_by(refused as u64);
        if let Some(first) = evaluated.refused.first().filter(|_| refused != self.refused) {
            tracing::warn!(device.id = %key, refused, first = first.detail, "cannot use ResourceGroups of a cluster");
        }
        self.refused = refused;
        Ok(())
    }

    /// Counts a poll, and logs the first failure and the end of failures.
    fn record(&mut self, polled: Result<(), PollError>) {
        let (metrics, cluster) = (&self.devices.metrics, &self.reader.cluster);
        metrics.pull_polls.inc();
        match (polled, self.is_failing) {
            (Err(error), was_failing) => {
                metrics.pull_failures.inc();
                if !was_failing {
                    metrics.pull_failing_clusters.inc();
                    let error = chain(&error);
                    tracing::warn!(error, device.id = %cluster.device, cluster.url = cluster.url, "cannot poll a cluster");
                }
                self.is_failing = true;
            }
            (Ok(()), true) => {
                metrics.pull_failing_clusters.dec();
                tracing::info!(device.id = %cluster.device, "polled a cluster again");
                self.is_failing = false;
            }
            (Ok(()), false) => {}
        }
    }
}

impl ClusterReader {
    /// All groups of the cluster.
    fn groups(&self) -> Result<ResourceGroups, PollError> {
        let mut all =
            ResourceGroups { groups: Vec::new(), is_list: true, is_whole: true, next: String::new() };
        let (mut url, mut left) = (self.cluster.url.clone(), ANSWER_BYTES_MAX);
        for _ in 0..PAGES_MAX {
            let page = self.page(&url, &mut left)?;
            if !page.is_list {
                return Ok(page);
            }
            all.groups.extend(page.groups);
            if page.next.is_empty() {
                return Ok(all);
            }
            let next: String = form_urlencoded::byte_serialize(page.next.as_bytes()).collect();
            let joint = if self.cluster.url.contains('?') { '&' } else { '?' };
            url = format!("{}{joint}continue={next}", self.cluster.url);
        }
        Err(PollError::TooLong)
    }

    fn page(&self, url: &str, left: &mut u64) -> Result<ResourceGroups, PollError> {
        let mut request = self.agent.get(url).header(ACCEPT, "application/json");
        if let Some(path) = &self.cluster.token_file {
            let token = std::fs::read_to_string(path);
            let token = token.map_err(|error| PollError::Token(path.display().to_string(), error))?;
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.trim()));
        }
        let answer = request.call().map_err(|error| PollError::Unreachable(Box::new(error)))?;
        let (head, mut body) = answer.into_parts();
        if head.status != StatusCode::OK {
            return Err(PollError::Status(head.status.as_u16()));
        }
        let bytes = body.with_config().limit(*left).read_to_vec().map_err(|error| match error {
            ureq::Error::BodyExceedsLimit(_) => PollError::TooLong,
            error => PollError::Unreachable(Box::new(error)),
        })?;
        *left = left.saturating_sub(bytes.len() as u64);
        ResourceGroups::read(&bytes).map_err(PollError::Problem)
    }
}
