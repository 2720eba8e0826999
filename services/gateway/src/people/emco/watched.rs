//! The question that a stream of EMCO's notifications follows.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use muster_client::emco::Subject;
use muster_contract::status::{Rollup, StatusAnswer};
use serde_json::json;

use super::request::{Anchor, StatusRequest};
use crate::problem::Problem;

/// The question of a stream.
#[derive(Debug, Clone)]
pub(crate) struct WatchedStatus {
    /// The question as a text, by which two are the same one.
    key: String,
    pub(super) anchor: Arc<Anchor>,
    pub(super) request: Arc<StatusRequest>,
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
        let key =
            json!([request.query, request.axis, matches!(anchor.subject(), Subject::Deployment)]).to_string();
        Self { key, anchor: Arc::new(anchor), request: Arc::new(request) }
    }

    /// Whether a deployment has no target left. A device or site stays while the hub knows it.
    pub(super) fn is_gone(&self, answer: &StatusAnswer) -> bool {
        let Rollup { targets, leaving, superseded, .. } = &answer.rollup;
        let is_empty = targets + leaving + superseded == 0;
        self.anchor.subject() == Subject::Deployment && !self.request.is_filtered() && is_empty
    }

    /// The problem of a deployment, device or site that is gone.
    pub(crate) fn absent(&self) -> Problem {
        self.anchor.absent()
    }
}
