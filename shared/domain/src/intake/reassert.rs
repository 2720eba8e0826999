//! Re-asserts facts that still hold before LEDGER discards them, so that the facts of LEDGER's window always rebuild the present
//! state.
//!
//! LEDGER itself lists the old facts: the caller reads its oldest part in the background and hands the facts in. A fact that
//! still holds, and was not published since, is published again with the same number, marked as re-asserted. Only the newest
//! fact of each deployment and device can hold, so at most that many are re-asserted in one [`REASSERT_AFTER`], spread over
//! time as they were first published.
//!
//! A message in quarantine is re-asserted while it may supersede the state of its device, so that the uncertainty does not end
//! without a decision. A refusal of a desired state is re-asserted while it stands; other incidents are history. Liveness is
//! republished by `timers`, and the publisher re-asserts desired states.

use muster_contract::fact::{DeviceFact, Fact, QuarantineFact, StatusFact};
use muster_contract::limits::REASSERT_AFTER;
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, State, Timestamp};

use super::device::DeviceIntake;
use super::ids;
use super::state::IntakeState;
use crate::lease::elapsed;

impl IntakeState {
    /// Re-asserts a fact if it holds and is old enough; true if it does.
    pub fn reassert_if_old(&mut self, subject: &LedgerSubject, fact: &Fact, now: Timestamp) -> bool {
        let Some(index) = self.known_index(subject) else { return false };
        let deployment = deployment_of(subject);
        let device = &self.devices[index];
        let published_at = device.latest().published_since(fact, deployment);
        let is_old = published_at.is_some_and(|published_at| elapsed(published_at, now) >= REASSERT_AFTER);
        if !is_old || !is_needed(device, fact, deployment) {
            return false;
        }
        self.now = now;
        let id = ids::reasserted_by_age(subject, fact, now);
        self.publish(index, subject.clone(), mark_reasserted(fact.clone()), Some(id));
        true
    }

    /// Re-asserts a fact at an old position of a LEDGER that is nearly full, if the fact holds; true if it does. Each position
    /// is handed in once, and age does not matter: a fact that holds and is not re-asserted would be lost with its position.
    pub fn reassert_early(
        &mut self,
        subject: &LedgerSubject,
        fact: &Fact,
        position: u64,
        now: Timestamp,
    ) -> bool {
        let Some(index) = self.known_index(subject) else { return false };
        self.now = now;
        if let Fact::Liveness(fact) = fact {
            return self.republish_liveness(index, fact);
        }
        let deployment = deployment_of(subject);
        let device = &self.devices[index];
        let holds = device.latest().published_since(fact, deployment).is_some();
        if !holds || !is_needed(device, fact, deployment) {
            return false;
        }
        let id = ids::reasserted_for_room(subject, position);
        self.publish(index, subject.clone(), mark_reasserted(fact.clone()), Some(id));
        true
    }

    fn known_index(&self, subject: &LedgerSubject) -> Option<usize> {
        self.indexes.get(subject.device()?).copied()
    }
}

const fn deployment_of(subject: &LedgerSubject) -> Option<&DeploymentId> {
    match subject {
        LedgerSubject::Status(_, id) | LedgerSubject::Deadline(_, id) => Some(id),
        _ => None,
    }
}

/// Whether any view needs the fact: no view needs a retired device, or a removed deployment that is no target.
fn is_needed(device: &DeviceIntake, fact: &Fact, deployment: Option<&DeploymentId>) -> bool {
    let is_target = |id: &DeploymentId| device.desired.targets.iter().any(|target| target.deployment == *id);
    let is_removed = matches!(fact, Fact::Status(fact) if fact.status.state == State::Removed);
    device.desired.retired_at.is_none() && (!is_removed || deployment.is_some_and(is_target))
}

fn mark_reasserted(fact: Fact) -> Fact {
    match fact {
        Fact::Status(fact) => Fact::Status(StatusFact { reasserted: true, ..fact }),
        Fact::Device(fact) => Fact::Device(DeviceFact { reasserted: true, ..fact }),
        Fact::Quarantine(fact) => Fact::Quarantine(QuarantineFact { reasserted: true, ..fact }),
        other => other,
    }
}
