//! What still holds is said again before LEDGER forgets it, so that the window alone always rebuilds the present.
//!
//! LEDGER itself is the list of what grows old: whoever holds the border reads its old end again, at its leisure, and
//! hands it in here. What still holds, and was not said again since, is said again: the same fact with the same number,
//! marked. Of each deployment and device only the newest fact can hold, so no more is said again than there are of
//! those, once in [`REASSERT_AFTER`]; and they grow old at different times, as they came.
//!
//! A message in quarantine is said again while it may be news of its device, so that the doubt it casts does not end by
//! itself and a person can still decide about it. Liveness has its own rhythm (`watch`), incidents are history, and what
//! devices shall run is said again by the publisher.

use muster_contract::fact::{DeviceFact, Fact, QuarantineFact, StatusFact};
use muster_contract::limits::REASSERT_AFTER;
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, State, Timestamp};

use super::device::Device;
use super::{Border, ids};
use crate::lease::elapsed;

impl Border {
    /// Takes in a fact that LEDGER holds for long; true where it is said again.
    pub fn grow_old(&mut self, subject: &LedgerSubject, fact: &Fact, now: Timestamp) -> bool {
        let Some(key) = subject.device() else { return false };
        let Some(place) = self.places.get(key).copied() else { return false };
        let deployment = match subject {
            LedgerSubject::Status(_, id) | LedgerSubject::Deadline(_, id) => Some(id),
            _ => None,
        };
        let device = &self.devices[place];
        let said_at = device.latest().holds_since(fact, deployment);
        let old = said_at.is_some_and(|said_at| elapsed(said_at, now) >= REASSERT_AFTER);
        if !old || !is_of_use(device, fact, deployment) {
            return false;
        }
        self.now = now;
        let id = ids::said_again(subject, fact, now);
        self.publish(place, subject.clone(), &marked(fact.clone()), Some(id));
        true
    }
}

impl Border {
    /// Takes in a fact at an old position of a LEDGER that fills up; true where it is re-asserted. A position is given
    /// once, and no clock is asked: a fact that holds and is not re-asserted would be lost with the position.
    pub fn reassert_early(
        &mut self,
        subject: &LedgerSubject,
        fact: &Fact,
        position: u64,
        now: Timestamp,
    ) -> bool {
        let Some(place) = subject.device().and_then(|key| self.places.get(key).copied()) else {
            return false;
        };
        self.now = now;
        if let Fact::Liveness(fact) = fact {
            return self.repeat_liveness(place, fact);
        }
        let deployment = match subject {
            LedgerSubject::Status(_, id) | LedgerSubject::Deadline(_, id) => Some(id),
            _ => None,
        };
        let device = &self.devices[place];
        if device.latest().holds_since(fact, deployment).is_none() || !is_of_use(device, fact, deployment) {
            return false;
        }
        let id = ids::reasserted(subject, position);
        self.publish(place, subject.clone(), &marked(fact.clone()), Some(id));
        true
    }
}

/// Whether any view could need it: not of a retired device, not of a deployment that was removed and is not wanted.
fn is_of_use(device: &Device, fact: &Fact, deployment: Option<&DeploymentId>) -> bool {
    let wanted = |id: &DeploymentId| device.desired.targets.iter().any(|target| target.deployment == *id);
    let gone = matches!(fact, Fact::Status(fact) if fact.status.state == State::Removed);
    device.desired.retired_at.is_none() && (!gone || deployment.is_some_and(wanted))
}

fn marked(fact: Fact) -> Fact {
    match fact {
        Fact::Status(fact) => Fact::Status(StatusFact { reasserted: true, ..fact }),
        Fact::Device(fact) => Fact::Device(DeviceFact { reasserted: true, ..fact }),
        Fact::Quarantine(fact) => Fact::Quarantine(QuarantineFact { reasserted: true, ..fact }),
        other => other,
    }
}
