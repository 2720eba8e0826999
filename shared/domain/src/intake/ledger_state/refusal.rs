//! The refusal of its desired state that stands, and how many refusals were published within an hour. A re-asserted refusal
//! is no new one.

use muster_contract::Timestamp;
use muster_contract::desired_refusal::DesiredRefusal;
use muster_contract::limits::DESIRED_REFUSALS_PER_HOUR;
use serde::{Deserialize, Serialize};

use super::{DeviceLedgerState, HOUR};
use crate::lease::elapsed;

/// A refusal of the desired state, by its incident.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PublishedRefusal {
    pub(crate) refusal: DesiredRefusal,
    /// When its fact was last published.
    published_at: Timestamp,
}

impl PublishedRefusal {
    /// When it was last published, if an incident with this refusal is its fact.
    pub(super) fn published_since(&self, refusal: &DesiredRefusal) -> Option<Timestamp> {
        self.is_reasserted_by(refusal).then_some(self.published_at)
    }

    fn is_reasserted_by(&self, refusal: &DesiredRefusal) -> bool {
        self.refusal.is_same(refusal) && self.refusal.since == refusal.since
    }
}

impl DeviceLedgerState {
    /// Whether another refusal of the desired state may be published now.
    pub(crate) fn may_refuse_desired(&self, at: Timestamp) -> bool {
        self.desired_refusals.iter().filter(|published_at| elapsed(**published_at, at) < HOUR).count()
            < DESIRED_REFUSALS_PER_HOUR
    }

    /// Applies a refusal whose incident names the time `at`.
    pub(super) fn apply_refusal(&mut self, refusal: &DesiredRefusal, at: Timestamp, published_at: Timestamp) {
        let known = self.desired_refusal.as_mut();
        if let Some(known) = known.filter(|known| known.is_reasserted_by(refusal)) {
            known.published_at = known.published_at.max(published_at);
            return;
        }
        self.desired_refusals.push(at);
        self.desired_refusal = Some(PublishedRefusal { refusal: refusal.clone(), published_at });
    }
}
