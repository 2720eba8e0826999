//! The waves that `muster watch approvals` has told, and the events that follow from the next answer. It asks nothing.

use std::collections::BTreeMap;

use muster_client::operations::PendingApproval;
use muster_client::rollout::{ApprovalRequest, ApprovalState, RequestKey};
use muster_contract::{DeploymentId, Timestamp};

use super::{ApprovalEvent, ApprovalEventKind};

/// The waves that wait, as they were told.
#[derive(Debug, Default)]
pub(super) struct ToldWaves {
    waiting: BTreeMap<RequestKey, ApprovalRequest>,
    has_answered: bool,
}

impl ToldWaves {
    /// Whether the publisher and the query service have answered before.
    pub(super) const fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// The deployments of the waves that wait.
    pub(super) fn deployments(&self) -> impl Iterator<Item = DeploymentId> {
        self.waiting.keys().map(|(deployment, ..)| deployment.clone())
    }

    /// The waves that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = PendingApproval> {
        self.waiting.values().cloned().map(PendingApproval::Wave)
    }

    /// Applies an answer; returns the events since the last one, and whether it is the first.
    pub(super) fn apply(&mut self, state: ApprovalState, at: Timestamp) -> (Vec<ApprovalEvent>, bool) {
        let is_first = !std::mem::replace(&mut self.has_answered, true);
        (self.events(state, at), is_first)
    }

    fn events(&mut self, state: ApprovalState, at: Timestamp) -> Vec<ApprovalEvent> {
        let ApprovalState { mut waiting, approved, unknown } = state;
        let event = |event, request| ApprovalEvent {
            event,
            request: PendingApproval::Wave(request),
            state: None,
            at,
        };
        let mut events = Vec::new();
        for (key, request) in std::mem::take(&mut self.waiting) {
            if unknown.contains(&key.0) {
                waiting.insert(key, request);
            } else if !waiting.contains_key(&key) {
                let is_approved = approved.contains(&key);
                let kind = if is_approved { ApprovalEventKind::Approved } else { ApprovalEventKind::Ended };
                events.push(event(kind, request));
            } else {
                self.waiting.insert(key, request);
            }
        }
        for (key, request) in &waiting {
            if self.waiting.get(key) != Some(request) && !unknown.contains(&key.0) {
                events.push(event(ApprovalEventKind::Waiting, request.clone()));
            }
        }
        self.waiting = waiting;
        events
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::canonical::Digest;
    use muster_domain::rollout::ApprovalCount;

    use super::*;

    fn request(given: usize) -> (RequestKey, ApprovalRequest) {
        let request = ApprovalRequest {
            deployment: "web".parse().unwrap(),
            digest: Digest::of_bytes(b"v2"),
            rollout: "fleet/rollout.yaml".to_owned(),
            wave: "quarter".to_owned(),
            devices: 3,
            approvals: ApprovalCount { given, needed: 2, void: 0 },
        };
        let ApprovalRequest { deployment, digest, rollout, wave, .. } = request.clone();
        ((deployment, digest, rollout, wave), request)
    }

    fn state(waiting: &[usize], is_approved: bool, is_unknown: bool) -> ApprovalState {
        let key = request(0).0;
        ApprovalState {
            waiting: waiting.iter().map(|given| request(*given)).collect(),
            approved: is_approved.then(|| key.clone()).into_iter().collect(),
            unknown: is_unknown.then_some(key.0).into_iter().collect(),
        }
    }

    #[test]
    fn a_request_is_told_once_then_when_it_changes_and_how_it_ends() {
        use ApprovalEventKind::{Approved, Ended, Waiting};
        let mut waves = ToldWaves::default();
        let mut events = |state| {
            let (events, _) = waves.apply(state, Timestamp::UNIX_EPOCH);
            events.iter().map(|event| event.event).collect::<Vec<_>>()
        };
        for (what, expected) in [
            (state(&[0], false, false), vec![Waiting]),
            (state(&[0], false, false), vec![]),
            (state(&[], false, true), vec![]),
            (state(&[1], false, false), vec![Waiting]),
            (state(&[], true, false), vec![Approved]),
            (state(&[], true, false), vec![]),
            (state(&[0], false, false), vec![Waiting]),
            (state(&[], false, false), vec![Ended]),
        ] {
            assert_eq!(events(what), expected);
        }
    }
}
