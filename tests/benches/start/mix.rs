//! Which facts LEDGER holds of a device, in which order: mostly states of its deployment, and beside them liveness, desired
//! states, deadlines, incidents, rejected reports and the decisions about them. Pure; [`super::fleet`] writes them.

#![allow(clippy::unwrap_used, reason = "a failure here is the bench's result")]

use muster_contract::desired::DesiredState;
use muster_contract::fact::{DeadlineFact, Fact, Incident, QuarantineFact, StatusFact};
use muster_contract::quarantine::QuarantineVerdict;
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeviceKey, Generation, Timestamp};
use muster_tests::schemas::example;
use serde_json::json;

use super::fleet::{DEPLOYMENT, NUMBER_IN_TEMPLATE, report};

/// The kind of a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FactKind {
    Status,
    Liveness,
    /// Published to DOWNLINK, from which LEDGER sources it.
    Desired,
    Deadline,
    Incident,
    Quarantine,
    Decision,
}

/// The facts of a device, again and again in this order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mix(&'static [FactKind]);

/// States and liveness alone: the mix of the first measurements.
pub(crate) const STATES: Mix = Mix({
    use FactKind::{Liveness, Status};
    &[Status, Status, Status, Status, Status, Status, Status, Liveness]
});
/// The facts of a fleet with rollouts, faults and bad reports. Each 32 facts are 22 states, 4 liveness facts, 2 desired states,
/// and one of each other kind.
pub(crate) const FLEET: Mix = Mix({
    use FactKind::{Deadline, Decision, Desired, Incident, Liveness, Quarantine, Status};
    &[
        Desired, Status, Status, Status, Status, Status, Status, Liveness, Status, Status, Status, Deadline,
        Status, Status, Status, Liveness, Desired, Status, Status, Status, Status, Incident, Status,
        Liveness, Status, Status, Quarantine, Status, Decision, Status, Status, Liveness,
    ]
});

impl Mix {
    /// The kind of a device's fact `round`, and its number: that of the next state, document or report. Devices are out of step,
    /// so that a short LEDGER has all kinds, too.
    pub(crate) fn at(self, device: u64, round: u64) -> (FactKind, u64) {
        let place = device % self.0.len() as u64 + round;
        let kind = self.kind(place);
        let number = match kind {
            // Liveness counts the states that were received.
            FactKind::Liveness => self.count(device, round, FactKind::Status),
            kind => self.count(device, round, kind) + 1,
        };
        (kind, number)
    }

    fn kind(self, place: u64) -> FactKind {
        self.0[(place % self.0.len() as u64) as usize]
    }

    /// Facts of this kind before a device's fact `round`.
    fn count(self, device: u64, round: u64, kind: FactKind) -> u64 {
        let length = self.0.len() as u64;
        let end = device % length + round;
        let count = |places: std::ops::Range<u64>| places.filter(|at| self.kind(*at) == kind).count() as u64;
        round / length * count(0..length) + count(end - round % length..end)
    }
}

/// Texts of facts whose digits of [`NUMBER_IN_TEMPLATE`] are replaced.
pub(crate) struct Templates {
    status: String,
    desired: String,
    deadline: String,
    incident: String,
    quarantine: String,
    decision: String,
}

impl Templates {
    pub(crate) fn new() -> Self {
        let number = Generation::new(NUMBER_IN_TEMPLATE).unwrap();
        let status = StatusFact::of(report(NUMBER_IN_TEMPLATE), Timestamp::now(), false);
        let mut desired: DesiredState = example("DesiredState.two-deployments");
        desired.generation = number;
        desired.deployments[0].id = DEPLOYMENT.parse().unwrap();
        desired.deployments.iter_mut().for_each(|entry| entry.target_generation = Generation::FIRST);
        let deadline = DeadlineFact { generation: Generation::FIRST, ..example("DeadlineFact.stuck") };
        let text = |fact: Fact| String::from_utf8(fact.to_bytes()).unwrap();
        Self {
            status: text(Fact::Status(status)),
            desired: text(Fact::Desired(desired)),
            deadline: text(Fact::Deadline(deadline)),
            incident: text(Fact::Incident(example::<Incident>("Incident.gap"))),
            quarantine: text(Fact::Quarantine(example::<QuarantineFact>("QuarantineFact.without-a-number"))),
            decision: text(Fact::Verdict(example::<QuarantineVerdict>("QuarantineVerdict.dropped"))),
        }
    }

    /// The subject and the document of a device's fact.
    pub(crate) fn fact(&self, key: DeviceKey, (kind, number): (FactKind, u64)) -> (LedgerSubject, String) {
        let numbered = |text: &String| text.replace(&NUMBER_IN_TEMPLATE.to_string(), &number.to_string());
        let deployment = || DEPLOYMENT.parse().unwrap();
        match kind {
            FactKind::Status => (LedgerSubject::Status(key, deployment()), numbered(&self.status)),
            FactKind::Liveness => (LedgerSubject::Liveness(key), liveness(number)),
            FactKind::Desired => (LedgerSubject::Desired(key), numbered(&self.desired)),
            FactKind::Deadline => (LedgerSubject::Deadline(key, deployment()), self.deadline.clone()),
            FactKind::Incident => (LedgerSubject::Incident(Some(key)), self.incident.clone()),
            FactKind::Quarantine => (LedgerSubject::Quarantine(Some(key)), self.quarantine.clone()),
            FactKind::Decision => (LedgerSubject::Verdict(Some(key)), self.decision.clone()),
        }
    }
}

fn liveness(received: u64) -> String {
    json!({
        "apiVersion": "muster/v1", "kind": "LivenessFact", "state": "fresh", "lastHeardAt": Timestamp::now(),
        "epoch": 1, "head": received, "account": {"received": received, "coalesced": 0, "quarantined": 0},
    })
    .to_string()
}
