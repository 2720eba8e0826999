//! Checks what one device may add to the hub: the deployments that its reports may name, and how often its epoch may rise.
//!
//! | the deployment of a report | the report is |
//! |---|---|
//! | is in the device's current document | taken in |
//! | has a standing that is not `removed`, or the report is older than the one that removed it | taken in |
//! | was in a document of the last 30 days | taken in, while the device has fewer than 128 open ones beside its document |
//! | of a device without any document | taken in, while the device names no more than `unsolicited` in 30 days |
//! | else | refused |
//!
//! The 128 count beside the current document because a device that is told to replace all of its deployments reports the old
//! ones until they are removed. A refused number counts as quarantined, so the account stays whole; but the number of a report
//! for a newer document than the hub has stays missing, because the hub may have lost that document: the device sends the
//! report again. While the hub cannot read its documents, a report that this table refuses is taken in as long as the device
//! has fewer than [`UNVERIFIED_MAX`] open deployments, and reported fewer than that many unverified ones within 30 days, open or
//! removed. Beyond that it is refused, and its number stays missing.
//!
//! The epoch rises at most 6 times an hour. The numbers of an epoch refused for that stay missing; the hub opens the epoch
//! once there is room and then asks for them.
//!
//! A border may lag behind the documents: its holder asks [`Border::needs_document`] and provides the newest document before
//! it hands in a report. The rate of reports is not limited here.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use muster_contract::desired::DesiredState;
use muster_contract::limits::{DEPLOYMENTS_PER_DEVICE_MAX, LEDGER_AGE_MAX};
use muster_contract::report::{Report, StatusReport};
use muster_contract::{DeploymentId, DeviceKey, Generation, Timestamp};
use serde::{Deserialize, Serialize};

use super::device::Device;
use super::memory::STANDINGS_KEPT;
use super::refuse::Refused;
use super::{Border, Rules};
use crate::account::Admission;
use crate::lease::elapsed;

/// Deployments of one device that are remembered as sent: those of four documents without a deployment in common.
pub const SENT_KEPT: usize = 4 * DEPLOYMENTS_PER_DEVICE_MAX;
/// Deployments that a device may have open, and that it may have reported without a document that the border knows, while the
/// documents cannot be read: those of its document, and as many beside it.
pub const UNVERIFIED_MAX: usize = 2 * DEPLOYMENTS_PER_DEVICE_MAX;
/// LEDGER's window, as refusals name it.
pub(super) const LEDGER_DAYS: u64 = LEDGER_AGE_MAX.as_secs() / (24 * 60 * 60);

const _: () = {
    assert!(SENT_KEPT >= 2 * DEPLOYMENTS_PER_DEVICE_MAX);
    // What the device may have open is remembered: that of its document, and as many beside it.
    assert!(STANDINGS_KEPT >= 2 * DEPLOYMENTS_PER_DEVICE_MAX);
    // Unverified ones are remembered beside those that were open before them, so that their count holds.
    assert!(STANDINGS_KEPT >= 2 * UNVERIFIED_MAX);
    assert!(LEDGER_AGE_MAX.as_secs().is_multiple_of(24 * 60 * 60));
};

/// The deployments of a device's documents, each with the time of the newest document that has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SentDeployments {
    at: BTreeMap<DeploymentId, Timestamp>,
    /// The newest target generation of each, and the time of the first document that has it.
    targets: BTreeMap<DeploymentId, (Generation, Timestamp)>,
    /// The device has, or had, a document.
    has_document: bool,
}

impl SentDeployments {
    /// Records a document's deployments; the ones sent longest ago make room.
    pub(super) fn record<'a>(&mut self, ids: impl Iterator<Item = &'a DeploymentId>, at: Timestamp) {
        self.has_document = true;
        for id in ids {
            match self.at.get_mut(id) {
                Some(known) => *known = at.max(*known),
                None => _ = self.at.insert(id.clone(), at),
            }
        }
        while self.at.len() > SENT_KEPT {
            let oldest = self.at.iter().min_by_key(|(_, at)| **at).map(|(id, _)| id.clone());
            oldest.iter().for_each(|id| _ = self.at.remove(id));
        }
        self.targets.retain(|id, _| self.at.contains_key(id));
    }

    /// Records a document with its targets. One that is read again, or re-asserted, sets no target anew.
    pub(super) fn record_document(&mut self, state: &DesiredState, at: Timestamp) {
        for entry in &state.deployments {
            let new = (entry.target_generation, at);
            let known = self.targets.entry(entry.id.clone()).or_insert(new);
            match known.0.cmp(&new.0) {
                Ordering::Less => *known = new,
                Ordering::Equal => known.1 = known.1.min(at),
                Ordering::Greater => {}
            }
        }
        self.record(state.deployments.iter().map(|entry| &entry.id), at);
    }

    /// When the first document had this target, as far as is known.
    pub(super) fn target_set_at(&self, id: &DeploymentId, generation: Generation) -> Option<Timestamp> {
        self.targets.get(id).filter(|(known, _)| *known == generation).map(|(_, at)| *at)
    }

    fn contains(&self, id: &DeploymentId, now: Timestamp) -> bool {
        self.at.get(id).is_some_and(|at| elapsed(*at, now) <= LEDGER_AGE_MAX)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.at.len()
    }
}

impl Device {
    /// Whether a report may name its deployment.
    fn check_deployment(&self, report: &StatusReport, rules: &Rules, now: Timestamp) -> Result<(), Refused> {
        let (id, memory) = (&report.deployment, self.latest());
        if self.is_target(id) || memory.has_standing(id, (report.epoch, report.seq)) {
            return Ok(());
        }
        let deployment = id.clone();
        if self.sent.contains(id, now) {
            let beside = memory.open_standings().filter(|id| !self.is_target(id)).count();
            let has_room = beside < DEPLOYMENTS_PER_DEVICE_MAX;
            return has_room.then_some(()).ok_or(Refused::TooManyDeployments { deployment });
        }
        match self.desired.generation {
            Some(known) if report.generation > known => {
                Err(Refused::DocumentLost { deployment, generation: report.generation, known })
            }
            None if !self.sent.has_document => self.check_unsolicited(id, rules.unsolicited, now),
            _ => Err(Refused::NotSent { deployment }),
        }
    }

    fn is_target(&self, id: &DeploymentId) -> bool {
        self.desired.targets.iter().any(|target| target.deployment == *id)
    }

    /// Whether a report may name a deployment that [`Self::check_deployment`] refuses, while nobody can read whether the device
    /// was sent it.
    fn check_unverified(&self, id: &DeploymentId, now: Timestamp) -> Result<(), Refused> {
        let memory = self.latest();
        let is_unverified =
            |known: &&DeploymentId| *known != id && !self.is_target(known) && !self.sent.contains(known, now);
        let unverified = memory.reported_within(LEDGER_AGE_MAX, now).filter(is_unverified).count();
        let has_room = unverified < UNVERIFIED_MAX && memory.open_standings().count() < UNVERIFIED_MAX;
        has_room.then_some(()).ok_or_else(|| Refused::DocumentsUnreadable { deployment: id.clone() })
    }

    fn check_unsolicited(&self, id: &DeploymentId, most: usize, now: Timestamp) -> Result<(), Refused> {
        let others = self.latest().reported_within(LEDGER_AGE_MAX, now).filter(|known| *known != id).count();
        let has_room = others < most;
        has_room.then_some(()).ok_or_else(|| Refused::Unsolicited { deployment: id.clone(), most })
    }
}

impl Border {
    /// True where the border, by the documents that it knows, would refuse a report for its deployment. The holder then makes
    /// sure that the border knows every document that the device can have had when it sent the report.
    pub fn needs_document(&self, key: &DeviceKey, report: &Report, stored_at: Timestamp) -> bool {
        let (Report::Status(report), Some(place)) = (report, self.places.get(key)) else { return false };
        self.devices[*place].check_deployment(report, &self.rules, stored_at).is_err()
    }

    /// Says whether desired documents cannot be read. While they cannot, a report for a deployment that the border does not
    /// know is taken in as long as the device has fewer than [`UNVERIFIED_MAX`]: a device that is well must not pay for a hub
    /// that is not, and a hostile one must not gain by it.
    pub const fn documents_unreadable(&mut self, unreadable: bool) {
        self.documents_unreadable = unreadable;
    }

    /// Whether what a report would add to the hub is within the device's quota.
    pub(super) fn check_quota(
        &self,
        place: usize,
        report: &Report,
        admission: Admission,
        stored_at: Timestamp,
    ) -> Result<(), Refused> {
        let device = &self.devices[place];
        let (adds, rises) = match admission {
            Admission::New | Admission::Amended => (true, false),
            Admission::NewEpoch { .. } => (true, true),
            _ => (false, false),
        };
        if let Report::Status(report) = report
            && adds
        {
            let checked = device.check_deployment(report, &self.rules, stored_at);
            match self.documents_unreadable {
                true => checked.or_else(|_| device.check_unverified(&report.deployment, stored_at))?,
                false => checked?,
            }
        }
        if rises && !device.latest().may_rise(stored_at) {
            return Err(Refused::EpochRisesTooOften { epoch: report.epoch() });
        }
        Ok(())
    }
}
