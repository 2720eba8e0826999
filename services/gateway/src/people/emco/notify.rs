//! The question that a stream of EMCO's notifications follows, and its present answer. Streams of the same question share one task and its
//! requests ([`polled`](super::super::watch::polled)).

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use muster_client::ask::AskError;
use muster_client::emco::notification::notification;
use muster_client::status::{all, gathered};
use muster_contract::query::Output;
use muster_contract::status::{Rollup, StatusAnswer};
use serde_json::{Value, json};

use super::request::{Anchor, StatusRequest};
use crate::people::People;
use crate::problem::Problem;

/// Most targets of one notification: it is made anew every few seconds.
const TARGETS_MAX: usize = 1_000;

/// The question of a stream.
#[derive(Debug, Clone)]
pub(crate) struct WatchedStatus {
    /// The question as a text, by which two are the same one.
    key: String,
    anchor: Arc<Anchor>,
    request: Arc<StatusRequest>,
}

impl PartialEq for WatchedStatus {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for WatchedStatus {}

impl Hash for WatchedStatus {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl WatchedStatus {
    pub(super) fn new(anchor: Anchor, request: StatusRequest) -> Self {
        // Names that Muster does not have are in no notification.
        let key = json!([anchor.device(), request.query, request.axis]).to_string();
        Self { key, anchor: Arc::new(anchor), request: Arc::new(request) }
    }

    /// The notification and the sequence of LEDGER that it is true as of; `None` if the deployment or device is gone.
    ///
    /// # Errors
    /// No service answers.
    pub(in crate::people) async fn read(&self, people: &People) -> Result<Option<(u64, Value)>, AskError> {
        let query = self.request.query.clone();
        let output = query.output;
        // Answers of many pages take turns with those of requests. The gateway never closes the semaphore.
        let _permit = people.gathers.acquire().await.ok();
        let answer = match output {
            Output::Summary => all(&people.hub, &query, None).await,
            Output::All | Output::Detail => gathered(&people.hub, query, Some(TARGETS_MAX)).await,
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) if error.not_found().is_some() => return Ok(None),
            Err(error) => return Err(error),
        };
        if self.is_gone(&answer) {
            return Ok(None);
        }
        let mut value = notification(&answer, self.anchor.device(), self.request.axis, output);
        let shown = answer.targets.len() as u64;
        let left_out = answer.total.unwrap_or(shown).saturating_sub(shown);
        if output != Output::Summary && left_out > 0 {
            value["clustersLeftOut"] = json!(left_out);
        }
        Ok(Some((answer.as_of.ledger_seq, value)))
    }

    /// Whether a deployment has no target left. A device stays while the hub knows it.
    fn is_gone(&self, answer: &StatusAnswer) -> bool {
        let Rollup { targets, leaving, superseded, .. } = &answer.rollup;
        let is_empty = targets + leaving + superseded == 0;
        self.anchor.device().is_none() && !self.request.is_filtered() && is_empty
    }

    /// The problem of a deployment or device that is gone.
    pub(in crate::people) fn absent(&self) -> Problem {
        self.anchor.absent()
    }
}
