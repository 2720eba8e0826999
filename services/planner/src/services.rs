//! Requests to the publisher, and their answers. It decides nothing.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Bus, RequestError};
use muster_contract::query::{
    ApplyRequest, ErrorReply, GitStatus, PAGE_MAX, PublishAnswer, PublisherQuery, PublisherStatus,
    RemoveRequest,
};
use muster_contract::rollout::{
    DecideAnswer, DecideRequest, ReleaseAnswer, ReleaseRequest, TargetsAnswer, TargetsQuery,
};
use muster_contract::subjects::PUBLISHER_PREFIX;
use muster_contract::{DeploymentId, DeviceKey};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::PlannerError;

/// Timeout of a request: a release to 1,000 devices takes a second on a slow link.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
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
    pub async fn deployments(&self) -> Result<BTreeSet<DeploymentId>, PlannerError> {
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
        Err(PlannerError::Endless { subject, pages: PAGES_MAX })
    }

    /// The first target of a deployment, with its commit and all decisions about it.
    ///
    /// # Errors
    /// The publisher does not answer, or knows no good commit.
    pub async fn head(&self, id: &DeploymentId) -> Result<TargetsAnswer, PlannerError> {
        let query = TargetsQuery { deployment: id.clone(), limit: Some(1), after: None, revision: None };
        self.ask(targets_subject(), &query).await
    }

    /// The page of a deployment's targets that follows a device; the first one without a device.
    ///
    /// # Errors
    /// The publisher does not answer, or knows no good commit.
    pub async fn targets(
        &self,
        id: &DeploymentId,
        after: Option<String>,
    ) -> Result<TargetsAnswer, PlannerError> {
        let query = TargetsQuery { deployment: id.clone(), limit: Some(PAGE_MAX), after, revision: None };
        self.ask(targets_subject(), &query).await
    }

    /// Requests the release of a content to devices.
    ///
    /// # Errors
    /// It does not answer, or cannot read the devices' documents. Some devices may have the content: ask again.
    pub async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, PlannerError> {
        self.ask(format!("{PUBLISHER_PREFIX}.release"), request).await
    }

    /// Requests that a decision is recorded.
    ///
    /// # Errors
    /// It does not answer, or the decision is not possible in the rollout's state: evaluate it again.
    pub async fn decide(&self, request: &DecideRequest) -> Result<DecideAnswer, PlannerError> {
        self.ask(format!("{PUBLISHER_PREFIX}.decide"), request).await
    }

    /// Requests that a device runs a deployment, as a Margo document.
    ///
    /// # Errors
    /// It does not answer, or refuses the document.
    pub async fn apply(&self, node: &DeviceKey, document: &str) -> Result<(), PlannerError> {
        let request = ApplyRequest { key: node.clone(), documents: document.to_owned(), file: None };
        self.ask::<PublishAnswer>(format!("{PUBLISHER_PREFIX}.apply"), &request).await.map(drop)
    }

    /// Requests that a device runs a deployment no more.
    ///
    /// # Errors
    /// It does not answer, or the deployment was not applied by request.
    pub async fn remove(&self, request: &RemoveRequest) -> Result<(), PlannerError> {
        self.ask::<PublishAnswer>(format!("{PUBLISHER_PREFIX}.remove"), request).await.map(drop)
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        subject: String,
        request: &impl Serialize,
    ) -> Result<T, PlannerError> {
        let unreadable = |source| PlannerError::Unreadable { subject: subject.clone(), source };
        let payload = Bytes::from(serde_json::to_vec(request).map_err(unreadable)?);
        let reply = self.0.request(&subject, payload, ANSWER_WITHIN).await;
        let reply = reply.map_err(|source| PlannerError::Request { subject: subject.clone(), source })?;
        // A page of targets is long: it is read once.
        let refusal = has_error_first(&reply).then(|| serde_json::from_slice::<ErrorReply>(&reply));
        match refusal {
            Some(Ok(ErrorReply { error: body, .. })) => Err(PlannerError::Refused { subject, body }),
            Some(Err(_)) | None => serde_json::from_slice(&reply).map_err(unreadable),
        }
    }
}

/// The subject of requests for targets.
pub(crate) fn targets_subject() -> String {
    format!("{PUBLISHER_PREFIX}.targets")
}

/// Whether the first key of a JSON object is `error`.
fn has_error_first(reply: &[u8]) -> bool {
    let keys = reply.trim_ascii_start().strip_prefix(b"{");
    keys.is_some_and(|keys| keys.trim_ascii_start().starts_with(b"\"error\""))
}
