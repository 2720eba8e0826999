//! Stands in for ingest where a test has none: takes requests to record incidents, and remembers them.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::sync::{Arc, Mutex};

use muster_bus::Bus;
use muster_contract::incident::{IncidentAnswer, IncidentKind, IncidentRequest};
use muster_contract::subjects::REQUEST_INCIDENT;

/// The incidents that services requested.
#[derive(Debug, Clone, Default)]
pub struct IncidentLog(Arc<Mutex<Vec<IncidentRequest>>>);

impl IncidentLog {
    /// Takes requests from now on, for as long as the test's runtime lives.
    ///
    /// # Panics
    ///
    /// Where the subject cannot be served.
    pub async fn start(bus: &Bus) -> Self {
        let (log, mut questions) = (Self::default(), bus.questions(REQUEST_INCIDENT).await.unwrap());
        let requests = log.0.clone();
        tokio::spawn(async move {
            while let Some(question) = questions.next().await {
                let request: IncidentRequest = serde_json::from_slice(&question.payload).unwrap();
                request.check().unwrap();
                requests.lock().unwrap().push(request);
                let answer = serde_json::to_vec(&IncidentAnswer { ledger_seq: Some(1) }).unwrap();
                question.answer(answer.into()).await;
            }
        });
        log
    }

    /// The requests in their order.
    ///
    /// # Panics
    ///
    /// Never, unless another test's thread has.
    pub fn all(&self) -> Vec<IncidentRequest> {
        self.0.lock().unwrap().clone()
    }

    /// The requests about views: key and cause.
    pub fn of_views(&self) -> Vec<(String, muster_contract::incident::ForeignView)> {
        let view = |request: IncidentRequest| match request.what {
            IncidentKind::ForeignView { key, cause, .. } => Some((key, cause)),
            _ => None,
        };
        self.all().into_iter().filter_map(view).collect()
    }

    /// The requests about documents: device and cause.
    pub fn of_documents(&self) -> Vec<(String, muster_contract::incident::ForeignDocument)> {
        let document = |request: IncidentRequest| match &request.what {
            IncidentKind::ForeignDocument { cause, .. } => Some((request.key()?.to_string(), *cause)),
            _ => None,
        };
        self.all().into_iter().filter_map(document).collect()
    }
}
