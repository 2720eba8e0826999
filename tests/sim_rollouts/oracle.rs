//! A naive reading of LEDGER, apart from the fold: what the facts up to a sequence prove about a device.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::canonical::Digest;
use muster_contract::desired::{DesiredDeployment, DesiredState};
use muster_contract::fact::{DeadlineFact, DeadlineKind, Fact, Liveness, StatusFact};
use muster_contract::retry::Retry;
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, DeviceKey, State, Timestamp};
use muster_domain::fold::{Fleet, Position};

/// The state of a content on a device that facts prove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof<'a> {
    Confirmed(Timestamp),
    /// With the attempts that the device makes after it.
    Failed(&'a [Retry]),
    Nothing,
}

/// One device by its facts.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownDevice {
    desired: Option<DesiredState>,
    is_fresh: bool,
    /// When it was heard last, by ingest.
    pub(crate) heard_at: Option<Timestamp>,
    head: u64,
    received: BTreeSet<u64>,
    reports: BTreeMap<DeploymentId, (StatusFact, Timestamp)>,
    /// The last missed deadline of the hub of each deployment.
    missed: BTreeMap<DeploymentId, DeadlineFact>,
    /// The last time at which, or until which, it was not heard.
    pub(crate) silent_at: Option<Timestamp>,
}

impl KnownDevice {
    pub(crate) fn apply(&mut self, at: Timestamp, subject: &LedgerSubject, fact: &Fact) {
        match (subject, fact) {
            (_, Fact::Desired(document)) => self.desired = Some(document.clone()),
            (_, Fact::Liveness(fact)) => {
                let is_fresh = fact.state == Liveness::Fresh;
                self.head = self.head.max(fact.head);
                self.heard_at = self.heard_at.max(Some(fact.last_heard_at));
                if !(self.is_fresh && is_fresh) {
                    self.silent_at = Some(at);
                }
                self.is_fresh = is_fresh;
            }
            (_, Fact::Status(report)) => {
                self.received.insert(report.seq.get());
                self.head = self.head.max(report.head.get());
                self.heard_at = self.heard_at.max(Some(report.received_at));
                let before = self.reports.get(&report.deployment);
                if before.is_none_or(|(before, _)| before.seq < report.seq) {
                    self.reports.insert(report.deployment.clone(), (report.clone(), at));
                }
            }
            (LedgerSubject::Deadline(_, id), Fact::Deadline(fact)) => {
                self.missed.insert(id.clone(), fact.clone());
            }
            _ => {}
        }
    }

    pub(crate) const fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    /// The deadline of the hub that a content has missed as its target, and the time from which it counted.
    pub(crate) fn missed(&self, id: &DeploymentId, digest: Digest) -> Option<(DeadlineKind, Timestamp)> {
        let missed = self.missed.get(id)?;
        let entry = self.entry(id, digest).filter(|entry| entry.target_generation == missed.generation)?;
        // A device that has begun has met the deadline of a time before.
        let report = self.reports.get(id).map(|(report, _)| report);
        let report = report.filter(|report| report.generation >= entry.target_generation);
        let first = report.and_then(|report| report.first_attempt_at);
        (first.is_none_or(|first| missed.since >= first)).then_some((missed.deadline, missed.since))
    }

    /// The deployments that it shall run by LEDGER.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &DesiredDeployment> {
        self.desired.iter().flat_map(|document| &document.deployments)
    }

    /// A content that it shall run by LEDGER.
    pub(crate) fn entry(&self, id: &DeploymentId, digest: Digest) -> Option<&DesiredDeployment> {
        self.entries().find(|entry| entry.id == *id && entry.digest == digest)
    }

    /// The proof about a content: the device is heard, has no report under way, has the content as its target, and has reported
    /// the result.
    pub(crate) fn proof(&self, id: &DeploymentId, digest: Digest) -> Proof<'_> {
        let Some(entry) = self.entry(id, digest) else { return Proof::Nothing };
        let is_whole = (1..=self.head).all(|number| self.received.contains(&number));
        let Some((report, at)) = self.reports.get(id).filter(|_| self.is_fresh && is_whole) else {
            return Proof::Nothing;
        };
        let is_of_content = report.digest == digest && report.generation >= entry.target_generation;
        match report.status.state {
            State::Installed if is_of_content => Proof::Confirmed(*at),
            State::Failed if is_of_content => Proof::Failed(&report.retries),
            _ => Proof::Nothing,
        }
    }

    /// Whether it is heard, and all of its reports are in.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_fresh && (1..=self.head).all(|number| self.received.contains(&number))
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

/// The facts of LEDGER, as the hub stores them.
pub(crate) type Stored = [(Timestamp, LedgerSubject, Fact)];

/// LEDGER up to a sequence: every device by its facts, and the real fold.
#[derive(Debug, Default)]
pub(crate) struct Past {
    position: usize,
    pub(crate) known: BTreeMap<DeviceKey, KnownDevice>,
    pub(crate) fleet: Fleet,
}

impl Past {
    /// Moves to a sequence. An earlier one is read from the first fact on.
    pub(crate) fn move_to(&mut self, ledger: &Stored, sequence: u64) {
        let end = usize::try_from(sequence).unwrap();
        if end < self.position {
            *self = Self::default();
        }
        for (at, (stored_at, subject, fact)) in ledger.iter().enumerate().take(end).skip(self.position) {
            if let Some(key) = device_of(subject) {
                self.known.entry(key.clone()).or_default().apply(*stored_at, subject, fact);
            }
            let position = Position { ledger_seq: at as u64 + 1, stored_at: *stored_at };
            self.fleet.apply(position, subject, fact.clone());
        }
        self.position = end.min(ledger.len());
    }
}
