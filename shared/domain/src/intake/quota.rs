//! Checks what one device may add to the hub: the deployments that its reports may name, and how often its epoch may rise.
//!
//! | the deployment of a report | the report is |
//! |---|---|
//! | is in the device's current document | accepted |
//! | has a standing that is not `removed`, or the report is older than the one that removed it | accepted |
//! | was in a document of the last 30 days | accepted, while the device has fewer than 128 open ones beside its document |
//! | of a device without any document | accepted, while the device names no more than `unsolicited` in 30 days |
//! | else | rejected |
//!
//! The 128 count beside the current document because a device whose deployments are all replaced reports the old ones until
//! they are removed. A rejected number counts as quarantined, so the account stays whole; but the number of a report for a newer
//! document than the hub has stays missing, because the hub may have lost that document: the device sends the report again.
//! While the hub cannot read its documents, a report that this table rejects is accepted as long as the device has fewer than
//! [`UNVERIFIED_MAX`] open deployments, and reported fewer than that many unverified ones within 30 days, open or removed.
//! Beyond that it is rejected, and its number stays missing.
//!
//! The epoch rises at most 6 times an hour. The numbers of an epoch that is rejected for that stay missing; ingest opens the
//! epoch once it may rise, and then requests them.
//!
//! The intake may not know the newest documents: its caller asks [`IntakeState::needs_document`] and applies the newest document
//! before it hands in a report. The rate of reports is not limited here.

use muster_contract::limits::{DEPLOYMENTS_PER_DEVICE_MAX, LEDGER_AGE_MAX};
use muster_contract::report::{Report, StatusReport};
use muster_contract::{DeploymentId, DeviceKey, Timestamp};

use super::device::DeviceIntake;
use super::limits::UNVERIFIED_MAX;
use super::reject_reason::RejectReason;
use super::state::{IntakeState, Rules};
use crate::account::Admission;

impl DeviceIntake {
    /// Whether a report may name its deployment.
    fn check_deployment(
        &self,
        report: &StatusReport,
        rules: &Rules,
        now: Timestamp,
    ) -> Result<(), RejectReason> {
        let (id, state) = (&report.deployment, self.latest());
        if self.is_target(id) || state.has_standing(id, (report.epoch, report.seq)) {
            return Ok(());
        }
        let deployment = id.clone();
        if self.sent.contains(id, now) {
            let beside = state.open_standings().filter(|id| !self.is_target(id)).count();
            let has_room = beside < DEPLOYMENTS_PER_DEVICE_MAX;
            return if has_room { Ok(()) } else { Err(RejectReason::TooManyDeployments { deployment }) };
        }
        match self.desired.generation {
            Some(known) if report.generation > known => {
                Err(RejectReason::DocumentLost { deployment, generation: report.generation, known })
            }
            None if !self.sent.has_document => self.check_unsolicited(id, rules.unsolicited, now),
            _ => Err(RejectReason::NotSent { deployment }),
        }
    }

    fn is_target(&self, id: &DeploymentId) -> bool {
        self.desired.targets.iter().any(|target| target.deployment == *id)
    }

    /// Whether a report may name a deployment that [`Self::check_deployment`] rejects, while the device's documents cannot be
    /// read.
    fn check_unverified(&self, id: &DeploymentId, now: Timestamp) -> Result<(), RejectReason> {
        let state = self.latest();
        let is_unverified =
            |known: &&DeploymentId| *known != id && !self.is_target(known) && !self.sent.contains(known, now);
        let unverified = state.reported_within(LEDGER_AGE_MAX, now).filter(is_unverified).count();
        let has_room = unverified < UNVERIFIED_MAX && state.open_standings().count() < UNVERIFIED_MAX;
        has_room.then_some(()).ok_or_else(|| RejectReason::DocumentsUnreadable { deployment: id.clone() })
    }

    fn check_unsolicited(&self, id: &DeploymentId, most: usize, now: Timestamp) -> Result<(), RejectReason> {
        let others = self.latest().reported_within(LEDGER_AGE_MAX, now).filter(|known| *known != id).count();
        let has_room = others < most;
        has_room.then_some(()).ok_or_else(|| RejectReason::Unsolicited { deployment: id.clone(), most })
    }
}

impl IntakeState {
    /// Whether the intake, by the documents that it knows, would reject a report for its deployment. The caller then applies
    /// every document that the device can have had when it sent the report.
    pub fn needs_document(&self, key: &DeviceKey, report: &Report, stored_at: Timestamp) -> bool {
        let (Report::Status(report), Some(index)) = (report, self.indexes.get(key)) else { return false };
        self.devices[*index].check_deployment(report, &self.rules, stored_at).is_err()
    }

    /// Sets whether desired documents cannot be read. While they cannot, a report for a deployment that the intake does not
    /// know is accepted as long as the device has fewer than [`UNVERIFIED_MAX`]: a healthy device must not suffer from an
    /// unhealthy hub, and a hostile one must not gain by it.
    pub const fn set_documents_unreadable(&mut self, unreadable: bool) {
        self.documents_unreadable = unreadable;
    }

    /// Whether what a report would add to the hub is within the device's quota.
    pub(super) fn check_quota(
        &self,
        index: usize,
        report: &Report,
        admission: Admission,
        stored_at: Timestamp,
    ) -> Result<(), RejectReason> {
        let device = &self.devices[index];
        let (adds, rises) = match admission {
            Admission::New | Admission::Amended => (true, false),
            Admission::NewEpoch { .. } => (true, true),
            _ => (false, false),
        };
        if let Report::Status(report) = report
            && adds
        {
            let mut checked = device.check_deployment(report, &self.rules, stored_at);
            if self.documents_unreadable && checked.is_err() {
                checked = device.check_unverified(&report.deployment, stored_at);
            }
            checked?;
        }
        if rises && !device.latest().may_raise_epoch(stored_at) {
            return Err(RejectReason::EpochRisesTooOften { epoch: report.epoch() });
        }
        Ok(())
    }
}
