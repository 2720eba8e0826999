//! A naive reading of LEDGER, apart from the fold: what the facts up to a sequence prove about a device.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::canonical::Digest;
use muster_contract::desired::{DesiredDeployment, DesiredState};
use muster_contract::fact::{Fact, Liveness, StatusFact};
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, DeviceKey, Generation, State, Timestamp};

/// The state of a content on a device that facts prove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    Confirmed(Timestamp),
    Failed,
    Nothing,
}

/// One device by its facts.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownDevice {
    desired: Option<DesiredState>,
    is_fresh: bool,
    head: u64,
    received: BTreeSet<u64>,
    reports: BTreeMap<DeploymentId, (StatusFact, Timestamp)>,
    /// Target generations that have missed a deadline of the hub.
    missed: BTreeSet<Generation>,
    /// When it was last not heard.
    pub(crate) silent_at: Option<Timestamp>,
}

impl KnownDevice {
    pub(crate) fn apply(&mut self, at: Timestamp, fact: &Fact) {
        match fact {
            Fact::Desired(document) => self.desired = Some(document.clone()),
            Fact::Liveness(fact) => {
                self.is_fresh = fact.state == Liveness::Fresh;
                self.head = self.head.max(fact.head);
                if !self.is_fresh {
                    self.silent_at = Some(at);
                }
            }
            Fact::Status(report) => {
                self.received.insert(report.seq.get());
                self.head = self.head.max(report.head.get());
                let before = self.reports.get(&report.deployment);
                if before.is_none_or(|(before, _)| before.seq < report.seq) {
                    self.reports.insert(report.deployment.clone(), (report.clone(), at));
                }
            }
            Fact::Deadline(fact) => _ = self.missed.insert(fact.generation),
            _ => {}
        }
    }

    pub(crate) const fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    /// Whether a content has missed a deadline of the hub as its target.
    pub(crate) fn has_missed(&self, id: &DeploymentId, digest: Digest) -> bool {
        let mut entries = self.entries().filter(|entry| entry.id == *id && entry.digest == digest);
        entries.any(|entry| self.missed.contains(&entry.target_generation))
    }

    /// The deployments that it shall run by LEDGER.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &DesiredDeployment> {
        self.desired.iter().flat_map(|document| &document.deployments)
    }

    /// The proof about a content: the device is heard, has no report under way, has the content as its target, and has reported
    /// the result.
    pub(crate) fn proof(&self, id: &DeploymentId, digest: Digest) -> Proof {
        let Some(entry) = self.entries().find(|entry| entry.id == *id && entry.digest == digest) else {
            return Proof::Nothing;
        };
        let is_whole = (1..=self.head).all(|number| self.received.contains(&number));
        let Some((report, at)) = self.reports.get(id).filter(|_| self.is_fresh && is_whole) else {
            return Proof::Nothing;
        };
        let is_of_content = report.digest == digest && report.generation >= entry.target_generation;
        match report.status.state {
            State::Installed if is_of_content => Proof::Confirmed(*at),
            State::Failed if is_of_content => Proof::Failed,
            _ => Proof::Nothing,
        }
    }
}

/// The device of a fact.
pub(crate) fn device_of(subject: &LedgerSubject) -> Option<&DeviceKey> {
    match subject {
        LedgerSubject::Desired(key)
        | LedgerSubject::Liveness(key)
        | LedgerSubject::Status(key, _)
        | LedgerSubject::Deadline(key, _) => Some(key),
        _ => None,
    }
}

/// Every device by the facts up to a sequence.
pub(crate) fn known_at(
    ledger: &[(Timestamp, LedgerSubject, Fact)],
    sequence: u64,
) -> BTreeMap<DeviceKey, KnownDevice> {
    let mut known: BTreeMap<DeviceKey, KnownDevice> = BTreeMap::new();
    for (at, subject, fact) in ledger.iter().take(usize::try_from(sequence).unwrap()) {
        if let Some(key) = device_of(subject) {
            known.entry(key.clone()).or_default().apply(*at, fact);
        }
    }
    known
}
