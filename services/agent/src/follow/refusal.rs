//! The refusal of a desired state, which stands until the device accepts a document or finds the accepted one in DOWNLINK
//! again. It is stored, so that the first heartbeat after a restart still carries it: without it the hub would record its end.
//!
//! Any replica of DOWNLINK may answer a read, also one that lags behind a push. The agent therefore refuses a rejected document
//! only after two reads, a few seconds apart, have shown it. [`super::decision`] decides which documents are rejected.

use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::desired_refusal::{DesiredRefusal, DesiredRefusalCode};
use muster_contract::limits::DESIRED_REFUSAL_MESSAGE_BYTES_MAX;
use muster_contract::state::cut;
use muster_contract::{Generation, Timestamp};
use muster_service::error::chain;
use serde::Deserialize;
use tokio::time::Instant;

use super::Follower;
use super::decision::RejectReason;
use crate::store;

/// Time between the two reads of DOWNLINK that must show a rejected document before it is refused: long enough for a replica that
/// is behind to catch up.
pub(super) const CONFIRM_AFTER: Duration = Duration::from_secs(3);

/// The refusal that stands; `None` if the device refuses nothing.
pub(crate) type CurrentRefusal = Option<DesiredRefusal>;

/// A document that a read of DOWNLINK showed, and that was rejected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RejectedDocument {
    digest: Digest,
    /// When a read showed it first.
    pub(super) read_at: Instant,
    is_refused: bool,
}

/// The generation of a document that is otherwise not readable.
#[derive(Deserialize)]
struct GenerationOnly {
    generation: Generation,
}

/// The refusal that a rejected document makes. The same refusal keeps the time from which it stands.
pub fn refusal(
    reason: &RejectReason,
    payload: &[u8],
    known: Option<&DesiredRefusal>,
    now: Timestamp,
) -> DesiredRefusal {
    let (generation, code) = match reason {
        RejectReason::Invalid(_) => {
            let read = serde_json::from_slice::<GenerationOnly>(payload);
            (read.ok().map(|read| read.generation), DesiredRefusalCode::Invalid)
        }
        RejectReason::Older { offered, .. } => (Some(*offered), DesiredRefusalCode::Older),
        RejectReason::Other(generation) => (Some(*generation), DesiredRefusalCode::OtherContent),
    };
    let message = cut(chain(reason), DESIRED_REFUSAL_MESSAGE_BYTES_MAX);
    let new = DesiredRefusal { generation, code, message, since: now };
    match known.filter(|known| known.is_same(&new)) {
        Some(known) => DesiredRefusal { since: known.since, ..new },
        None => new,
    }
}

impl Follower {
    /// Records that a read showed a rejected document; true if it is to be refused now. Otherwise it is read again, unless it is
    /// refused already.
    pub(super) fn confirm_rejection(&mut self, digest: Digest) -> bool {
        let new = RejectedDocument { digest, read_at: Instant::now(), is_refused: false };
        let known = self.rejected_document.filter(|known| known.digest == digest).unwrap_or(new);
        let is_confirmed = known.is_refused || known.read_at.elapsed() >= CONFIRM_AFTER;
        self.rejected_document = Some(RejectedDocument { is_refused: is_confirmed, ..known });
        if !is_confirmed {
            let at = known.read_at + CONFIRM_AFTER;
            self.read_again_at = Some(self.read_again_at.map_or(at, |planned| planned.min(at)));
        }
        is_confirmed && !known.is_refused
    }

    /// Stores and reports that a document is refused.
    pub(super) async fn refuse(&mut self, reason: &RejectReason, payload: &[u8]) {
        let refusal = refusal(reason, payload, self.refused.borrow().as_ref(), self.clock.now());
        self.change_refusal(Some(refusal)).await;
    }

    /// Ends a refusal: DOWNLINK holds the accepted document.
    pub(super) async fn end_refusal(&mut self) {
        self.rejected_document = None;
        self.change_refusal(None).await;
    }

    async fn change_refusal(&mut self, refusal: CurrentRefusal) {
        if *self.refused.borrow() == refusal {
            return;
        }
        // The hub learns of it also where the disk is full.
        if let Err(error) = store::refuse(&self.db, refusal.clone()).await {
            self.metrics.storage_failed();
            tracing::warn!(
                error = chain(&error),
                "cannot store the refusal of a desired state: a restart forgets it until the document is read again"
            );
        }
        self.refused.send_replace(refusal);
    }
}

#[cfg(test)]
mod tests {
    use super::super::decision::{Decision, decide};
    use super::*;

    fn rejected(payload: &[u8]) -> RejectReason {
        let Decision::Reject(reason) = decide(None, payload) else { panic!("it must be rejected") };
        reason
    }

    #[test]
    fn a_refusal_names_the_generation_of_a_bad_document_and_a_short_message() {
        let now = Timestamp::UNIX_EPOCH;
        let unknown = format!(r#"{{"generation":7,"kind":"{}"}}"#, "x".repeat(1_000));
        let of = |payload: &[u8]| refusal(&rejected(payload), payload, None, now);
        let seven = of(unknown.as_bytes());
        assert_eq!((seven.generation, seven.code), (Generation::new(7), DesiredRefusalCode::Invalid));
        assert!(seven.message.len() <= DESIRED_REFUSAL_MESSAGE_BYTES_MAX, "{seven:?}");
        assert_eq!(of(b"{").generation, None);
        assert_eq!(of(br#"{"generation":0}"#).generation, None);
    }

    #[test]
    fn the_same_refusal_keeps_its_time_and_another_has_its_own() {
        let [early, late] = [0, 60].map(|second| Timestamp::from_second(second).unwrap());
        let older = |offered| RejectReason::Older {
            kept: Generation::new(7).unwrap(),
            offered: Generation::new(offered).unwrap(),
        };
        let first = refusal(&older(4), b"", None, early);
        assert_eq!(refusal(&older(4), b"", Some(&first), late).since, early);
        assert_eq!(refusal(&older(5), b"", Some(&first), late).since, late);
    }
}
