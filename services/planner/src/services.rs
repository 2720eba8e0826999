//! Requests to the publisher and to the query service, and their answers. It decides nothing.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Bus, RequestError};
use muster_contract::DeploymentId;
use muster_contract::history::Point;
use muster_contract::lag::AnswerLag;
use muster_contract::query::{
    DeploymentAnswer, ErrorCode, ErrorReply, GitStatus, Output, PAGE_MAX, PublisherQuery, PublisherStatus,
    Query,
};
use muster_contract::rollout::{
    DecideAnswer, DecideRequest, ReleaseAnswer, ReleaseRequest, TargetsAnswer, TargetsQuery,
};
use muster_contract::subjects::{PUBLISHER_PREFIX, QUERY_PREFIX};
use muster_domain::rollout::Lines;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::error::RoundError;

/// Timeout of a request: a release to 1,000 devices takes a second on a slow link.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// How long a point of LEDGER that is rebuilt for a decision is waited for.
const REBUILT_WITHIN: Duration = Duration::from_secs(30);
/// Time between two questions for it.
const REBUILT_ASK_EVERY: Duration = Duration::from_millis(200);
/// Most pages of one list.
pub(crate) const PAGES_MAX: usize = 1000;

/// Carries requests to services; a trait so that tests can lose, delay and answer them.
pub trait Requests: Clone + Send + Sync + 'static {
    /// Sends a request and waits for one reply.
    fn request(
        &self,
        subject: &str,
        payload: Bytes,
        timeout: Duration,
    ) -> impl Future<Output = Result<Bytes, RequestError>> + Send;
}

impl Requests for Bus {
    async fn request(&self, subject: &str, payload: Bytes, timeout: Duration) -> Result<Bytes, RequestError> {
        Self::request(self, subject, payload, timeout).await
    }
}

/// The services of the hub.
#[derive(Debug, Clone)]
pub struct Services<R>(R);

impl<R> Services<R> {
    /// The services that answer these requests.
    pub const fn new(requests: R) -> Self {
        Self(requests)
    }
}

impl<R: Requests> Services<R> {
    /// The deployments with a held change or an open rollout.
    ///
    /// # Errors
    /// The publisher does not answer.
    pub async fn deployments(&self) -> Result<BTreeSet<DeploymentId>, RoundError> {
        let subject = format!("{PUBLISHER_PREFIX}.status");
        let (mut deployments, mut after) = (BTreeSet::new(), String::new());
        for _ in 0..PAGES_MAX {
            let query = PublisherQuery { rollouts_after: Some(after), ..PublisherQuery::default() };
            let status: PublisherStatus = self.ask(subject.clone(), &query).await?;
            let Some(GitStatus { rollout_deployments, has_more_deployments, .. }) = status.git else {
                return Ok(deployments);
            };
            after = rollout_deployments.last().map(ToString::to_string).unwrap_or_default();
            deployments.extend(rollout_deployments);
            if !has_more_deployments {
                return Ok(deployments);
            }
        }
        Err(RoundError::Endless { subject })
    }

    /// All targets of a deployment.
    ///
    /// # Errors
    /// The publisher does not answer, knows no good commit, or reads another one meanwhile.
    pub async fn targets(&self, id: &DeploymentId) -> Result<TargetsAnswer, RoundError> {
        let subject = format!("{PUBLISHER_PREFIX}.targets");
        let mut query =
            TargetsQuery { deployment: id.clone(), limit: Some(PAGE_MAX), after: None, revision: None };
        let mut whole: TargetsAnswer = self.ask(subject.clone(), &query).await?;
        for _ in 0..PAGES_MAX {
            query.after = whole.next.take();
            if query.after.is_none() {
                return Ok(whole);
            }
            let page: TargetsAnswer = self.ask(subject.clone(), &query).await?;
            if !whole.append(page) {
                return Err(RoundError::CommitChanged);
            }
        }
        Err(RoundError::Endless { subject })
    }

    /// The line of each device in the view of a deployment; none before LEDGER knows of the deployment.
    ///
    /// # Errors
    /// The query service does not answer, or has not read all of LEDGER.
    pub async fn lines(&self, id: &DeploymentId) -> Result<Lines, RoundError> {
        self.lines_of(id, Point::default()).await
    }

    /// The same at a sequence of LEDGER: every page is of that one.
    ///
    /// # Errors
    /// As [`Self::lines`], or the point is not rebuilt in time.
    pub async fn lines_at(&self, id: &DeploymentId, ledger_seq: u64) -> Result<Lines, RoundError> {
        self.lines_of(id, Point::at_seq(ledger_seq)).await
    }

    async fn lines_of(&self, id: &DeploymentId, point: Point) -> Result<Lines, RoundError> {
        let subject = format!("{QUERY_PREFIX}.deployment");
        let mut query = Query {
            id: Some(id.clone()),
            output: Output::All,
            limit: Some(PAGE_MAX),
            point,
            ..Query::default()
        };
        let mut lines = Lines::default();
        for _ in 0..PAGES_MAX {
            let answer: Value = match self.ask_until_rebuilt(&subject, &query).await {
                Err(RoundError::Refused { body, .. })
                    if body.code == ErrorCode::NotFound && query.point.is_now() =>
                {
                    return Ok(lines);
                }
                answer => answer?,
            };
            let unreadable = |source| RoundError::Unreadable { subject: subject.clone(), source };
            let lag: AnswerLag = serde_json::from_value(answer.clone()).map_err(unreadable)?;
            if lag.rollup.is_some() {
                return Err(RoundError::Lagging);
            }
            let page: DeploymentAnswer = serde_json::from_value(answer).map_err(unreadable)?;
            lines.read_page(page.view.as_of.ledger_seq, query.after.is_none());
            lines.of_devices.extend(page.devices.into_iter().map(|line| (line.key.clone(), line)));
            query.after = page.next;
            if query.after.is_none() {
                return Ok(lines);
            }
        }
        Err(RoundError::Endless { subject })
    }

    /// Asks about the past until the point is rebuilt; about the present once.
    async fn ask_until_rebuilt(&self, subject: &str, query: &Query) -> Result<Value, RoundError> {
        let deadline = Instant::now() + REBUILT_WITHIN;
        loop {
            match self.ask(subject.to_owned(), query).await {
                Err(RoundError::Refused { body, .. })
                    if matches!(body.code, ErrorCode::NotReady | ErrorCode::TooManyRequests)
                        && !query.point.is_now()
                        && Instant::now() < deadline =>
                {
                    sleep(REBUILT_ASK_EVERY).await;
                }
                answer => return answer,
            }
        }
    }

    /// Requests the release of a content to devices.
    ///
    /// # Errors
    /// It does not answer, or cannot read the devices' documents. Some devices may have the content: ask again.
    pub async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, RoundError> {
        self.ask(format!("{PUBLISHER_PREFIX}.release"), request).await
    }

    /// Requests that a decision is recorded.
    ///
    /// # Errors
    /// It does not answer, or the decision is not possible in the rollout's state: evaluate it again.
    pub async fn decide(&self, request: &DecideRequest) -> Result<DecideAnswer, RoundError> {
        self.ask(format!("{PUBLISHER_PREFIX}.decide"), request).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        subject: String,
        request: &impl Serialize,
    ) -> Result<T, RoundError> {
        let unreadable = |source| RoundError::Unreadable { subject: subject.clone(), source };
        let payload = Bytes::from(serde_json::to_vec(request).map_err(unreadable)?);
        let reply = self.0.request(&subject, payload, ANSWER_WITHIN).await;
        let reply = reply.map_err(|source| RoundError::Request { subject: subject.clone(), source })?;
        match serde_json::from_slice::<ErrorReply>(&reply) {
            Ok(ErrorReply { error: body }) => Err(RoundError::Refused { subject, body }),
            Err(_) => serde_json::from_slice(&reply).map_err(unreadable),
        }
    }
}
