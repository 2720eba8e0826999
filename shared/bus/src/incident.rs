//! Reports incidents of a service to ingest, because only ingest writes facts.
//!
//! Reporting never waits. A task sends the incidents to ingest in the order of reports, each until ingest has answered. An
//! incident that finds the queue full is only logged, so that a flood costs bounded memory. Ingest limits the rate.

use std::time::Duration;

use bytes::Bytes;
use muster_contract::DeviceKey;
use muster_contract::incident::{IncidentAnswer, IncidentKind, IncidentRequest};
use muster_contract::query::{ErrorCode, ErrorReply};
use muster_contract::subjects::REQUEST_INCIDENT;
use muster_service::error::BoxError;
use muster_service::retry::{RetryPolicy, retry};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::bus::Bus;

/// Capacity of the queue of incidents.
const WAITING_MAX: usize = 256;
/// How long ingest may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Delays before a request is repeated.
const RETRY: RetryPolicy = RetryPolicy { min: Duration::from_millis(100), max: Duration::from_secs(5) };

/// Queues incidents. Clones share the queue.
#[derive(Debug, Clone)]
pub struct IncidentReporter {
    requests: mpsc::Sender<IncidentRequest>,
}

/// The task that sends queued incidents to ingest.
#[derive(Debug)]
pub struct IncidentRequests {
    requests: mpsc::Receiver<IncidentRequest>,
}

impl IncidentReporter {
    /// A reporter and its task, which the caller must [run](IncidentRequests::run).
    pub fn new() -> (Self, IncidentRequests) {
        let (sender, requests) = mpsc::channel(WAITING_MAX);
        (Self { requests: sender }, IncidentRequests { requests })
    }

    /// Logs an incident of a device, or of the hub, and queues it for ingest.
    pub fn report(&self, key: Option<DeviceKey>, what: IncidentKind) {
        let device = key.as_ref().map(ToString::to_string);
        tracing::error!(device, incident = ?what, "incident");
        if self.requests.try_send(IncidentRequest::new(key, what)).is_err() {
            tracing::warn!(
                "cannot record the incident: too many wait for ingest, or the service is stopping"
            );
        }
    }
}

impl IncidentRequests {
    /// Sends queued incidents until `stop`. The incident under way then may be lost.
    pub async fn run(mut self, bus: Bus, stop: CancellationToken) {
        let requesting = async {
            while let Some(request) = self.requests.recv().await {
                record(&bus, &request).await;
            }
        };
        stop.run_until_cancelled(requesting).await;
    }

    /// The queued incidents, for a test that stands in for ingest.
    pub fn reported(&mut self) -> Vec<IncidentRequest> {
        std::iter::from_fn(|| self.requests.try_recv().ok()).collect()
    }
}

/// Sends an incident until ingest has answered.
async fn record(bus: &Bus, request: &IncidentRequest) {
    match retry(RETRY, "cannot record an incident yet", |_| ask(bus, request)).await {
        Ok(answer) => tracing::debug!(ledger.seq = answer.ledger_seq, "incident recorded"),
        Err(Refused(error)) => tracing::error!(error, "ingest refuses to record an incident"),
    }
}

/// Ingest refuses the request: another attempt changes nothing.
struct Refused(String);

async fn ask(bus: &Bus, request: &IncidentRequest) -> Result<Result<IncidentAnswer, Refused>, BoxError> {
    // Cannot fail: the document is an object with string keys.
    let payload = Bytes::from(serde_json::to_vec(request).unwrap_or_default());
    let answer = bus.request(REQUEST_INCIDENT, payload, ANSWER_WITHIN).await?;
    match serde_json::from_slice(&answer) {
        Ok(ErrorReply { error, .. }) if error.code == ErrorCode::BadRequest => {
            Ok(Err(Refused(error.message)))
        }
        Ok(ErrorReply { error, .. }) => Err(error.message.into()),
        Err(_) => Ok(Ok(serde_json::from_slice(&answer)?)),
    }
}
