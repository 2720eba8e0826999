//! Incidents that a service of the hub reports: ingest records them, because ingest alone writes facts.
//!
//! Reporting never waits. A task requests each incident until ingest has answered, in the order of reports; what does not
//! fit into the queue is logged and left out, so that a flood of incidents costs bounded memory. Ingest bounds the rate.

use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use muster_contract::DeviceKey;
use muster_contract::incident::{IncidentAnswer, IncidentKind, IncidentRequest};
use muster_contract::query::{ErrorCode, ErrorReply};
use muster_contract::subjects::REQUEST_INCIDENT;
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::bus::Bus;

/// Incidents that wait for ingest.
const WAITING_MAX: usize = 256;
/// How long ingest may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Least and longest upper bound of the delay before ingest is asked again.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Where a service reports incidents. Clones report to the same task.
#[derive(Debug, Clone)]
pub struct IncidentReporter {
    requests: mpsc::Sender<IncidentRequest>,
}

/// The task that has ingest record what was reported.
#[derive(Debug)]
pub struct IncidentRequests {
    requests: mpsc::Receiver<IncidentRequest>,
}

/// What ingest answered.
enum Answer {
    Recorded(IncidentAnswer),
    Refused(String),
    /// No answer, or that there is none yet.
    Retry(String),
}

impl IncidentReporter {
    /// A reporter and its task, which is to be [run](IncidentRequests::run).
    pub fn new() -> (Self, IncidentRequests) {
        let (sender, requests) = mpsc::channel(WAITING_MAX);
        (Self { requests: sender }, IncidentRequests { requests })
    }

    /// Logs an incident of a device, or of the hub, and has it recorded.
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
    /// Requests what is reported until `stop`. The incident under way when that comes may be lost.
    pub async fn run(mut self, bus: Bus, mut rng: Rng, stop: CancellationToken) {
        let requesting = async {
            while let Some(request) = self.requests.recv().await {
                record(&bus, &mut rng, &request).await;
            }
        };
        stop.run_until_cancelled(requesting).await;
    }

    /// What was reported and not requested yet, for whoever stands in for ingest in a test.
    pub fn reported(&mut self) -> Vec<IncidentRequest> {
        std::iter::from_fn(|| self.requests.try_recv().ok()).collect()
    }
}

/// Requests an incident until ingest has answered.
async fn record(bus: &Bus, rng: &mut Rng, request: &IncidentRequest) {
    let mut retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
    loop {
        match ask(bus, request).await {
            Answer::Recorded(answer) => {
                tracing::debug!(ledger.seq = answer.ledger_seq, "incident recorded");
                return;
            }
            Answer::Refused(error) => {
                tracing::error!(error, "ingest refuses to record an incident");
                return;
            }
            Answer::Retry(error) => {
                let retry_in = retry.next(rng);
                tracing::debug!(error, ?retry_in, "cannot record an incident yet");
                tokio::time::sleep(retry_in).await;
            }
        }
    }
}

async fn ask(bus: &Bus, request: &IncidentRequest) -> Answer {
    // Cannot fail: the document is an object with string keys.
    let payload = Bytes::from(serde_json::to_vec(request).unwrap_or_default());
    let answer = match bus.request(REQUEST_INCIDENT, payload, ANSWER_WITHIN).await {
        Ok(answer) => answer,
        Err(error) => return Answer::Retry(chain(&error)),
    };
    if let Ok(ErrorReply { error }) = serde_json::from_slice(&answer) {
        let is_final = error.code == ErrorCode::BadRequest;
        return if is_final { Answer::Refused(error.message) } else { Answer::Retry(error.message) };
    }
    serde_json::from_slice(&answer).map_or_else(|error| Answer::Retry(error.to_string()), Answer::Recorded)
}
