//! Requests to the publisher and to the query service, and their answers. It decides nothing.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Bus, RequestError};
use muster_contract::DeploymentId;
use muster_contract::lag::AnswerLag;
use muster_contract::query::{
    DeploymentAnswer, ErrorCode, ErrorReply, Output, PAGE_MAX, PublisherQuery, PublisherStatus, Query,
};
use muster_contract::rollout::{
    DecideAnswer, DecideRequest, ReleaseAnswer, ReleaseRequest, TargetsAnswer, TargetsQuery,
};
use muster_contract::subjects::{PUBLISHER_PREFIX, QUERY_PREFIX};
use muster_domain::rollout::Lines;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::RoundError;

/// Timeout of a request: a release to 1,000 devices takes a second on a slow link.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// Most pages of one list.
pub(crate) const PAGES_MAX: usize = 1000;

/// Carries requests to services; a trait so that tests can lose, delay and answer them.
pub trait Requests: Send + Sync + 'static {
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
    /// The publisher's status.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn status(&self) -> Result<PublisherStatus, RoundError> {
        self.ask(format!("{PUBLISHER_PREFIX}.status"), &PublisherQuery::default()).await
    }

    /// All targets of a deployment.
    ///
    /// # Errors
    /// The publisher does not answer, knows no good commit, or reads another one meanwhile.
    pub async fn targets(&self, id: &DeploymentId) -> Result<TargetsAnswer, RoundError> {
        let subject = format!("{PUBLISHER_PREFIX}.targets");
        let mut query = TargetsQuery { deployment: id.clone(), limit: Some(PAGE_MAX), after: None };
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
        let subject = format!("{QUERY_PREFIX}.deployment");
        let mut query =
            Query { id: Some(id.clone()), output: Output::All, limit: Some(PAGE_MAX), ..Query::default() };
        let mut lines = Lines::default();
        for _ in 0..PAGES_MAX {
            let answer: Value = match self.ask(subject.clone(), &query).await {
                Err(RoundError::Refused { body, .. }) if body.code == ErrorCode::NotFound => {
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
            // The first page is the oldest.
            if query.after.is_none() {
                lines.ledger_seq = page.view.as_of.ledger_seq;
            }
            lines.of_devices.extend(page.devices.into_iter().map(|line| (line.key.clone(), line)));
            query.after = page.next;
            if query.after.is_none() {
                return Ok(lines);
            }
        }
        Err(RoundError::Endless { subject })
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
