//! A device as a snapshot keeps it. A fleet is its devices: every count is made anew from them.

use muster_contract::labels::Labels;
use muster_contract::view::AsOf;
use muster_contract::{DeploymentId, DeviceKey, Generation, Timestamp};
use serde::{Deserialize, Serialize};

use super::blueprint::{self, Blueprint};
use super::device::{Device, StoredDevice};
use super::fleet::{Fleet, Scope};
use super::hearing::HearingState;
use super::report::Report;
use super::standing::Deadline;

/// Everything the fold knows of one device. Its JSON is the snapshot's format: a change of meaning needs a new format
/// version in whoever stores it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceRecord {
    about: StoredDevice,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    labels: Labels,
    /// Ordered by deployment.
    rows: Vec<RowRecord>,
}

/// Everything the fold knows of a deployment on a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RowRecord {
    deployment: DeploymentId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<Generation>,
    /// Since when it shall run that, or nothing any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    /// What shall run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    print: Option<Blueprint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    report: Option<Report>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deadline: Option<Box<Deadline>>,
}

impl DeviceRecord {
    /// The device.
    pub const fn key(&self) -> &DeviceKey {
        &self.about.key
    }
}

impl Fleet {
    /// The record of a device.
    pub fn record(&self, key: &DeviceKey) -> Option<DeviceRecord> {
        self.find(key).map(|device| self.record_of(device))
    }

    /// The records of all devices, ordered by site and device.
    pub fn records(&self) -> impl Iterator<Item = DeviceRecord> + '_ {
        let sites = self.totals.site_numbers.values().map(|number| self.totals.site(*number));
        let devices = sites.flat_map(|site| site.members.iter());
        devices.map(|number| self.record_of(&self.devices[number as usize]))
    }

    /// At most `max` records of the devices after one, in the same order.
    pub fn records_after(&self, after: Option<&DeviceKey>, max: usize) -> Vec<DeviceRecord> {
        self.devices_after(None, after, None).take(max).map(|device| self.record_of(device)).collect()
    }

    /// The fleet as it was at `as_of`, from all its records and what the hub listened to then. No device counts as changed,
    /// every view does.
    pub fn restore(
        as_of: AsOf,
        hearing: HearingState,
        records: impl IntoIterator<Item = DeviceRecord>,
    ) -> Self {
        let mut fleet = Self::default();
        fleet.hearing = hearing;
        for record in records {
            fleet.admit(record);
        }
        fleet.as_of = as_of;
        fleet.shifts.begin(as_of.ledger_seq);
        fleet.take_changed_devices();
        fleet
    }

    pub(super) fn record_of(&self, device: &Device) -> DeviceRecord {
        let row = |row: &super::standing::Row| RowRecord {
            deployment: self.totals.deployment(row.deployment).id.clone(),
            target: row.target,
            since: row.since(),
            print: self.totals.blueprints.get(row.blueprint).cloned(),
            report: row.report.clone(),
            deadline: row.deadline.clone(),
        };
        let mut rows: Vec<_> = device.rows.iter().map(row).collect();
        rows.sort_by(|one, other| one.deployment.cmp(&other.deployment));
        let about = device.about.stored(self.site_of(device));
        DeviceRecord { about, labels: self.labels_of(device), rows }
    }

    fn admit(&mut self, record: DeviceRecord) {
        let DeviceRecord { about, labels, rows } = record;
        let number = self.name_device(&about.key);
        self.regroup(number, &labels);
        let before = self.facet(number);
        let held = &mut self.devices[number as usize].about;
        *held = about.about(held.name.clone(), held.unheard_in);
        self.settle(number, before, Scope::Device, |_| {});
        for RowRecord { deployment, target, since, print, mut report, deadline } in rows {
            let place = self.name_row(number, &deployment);
            let facet = self.facet(number);
            if let Some(report) = &mut report {
                report.share(&mut self.totals.casts);
            }
            let print = print.map_or(blueprint::NONE, |print| self.totals.blueprints.take(print));
            self.settle(number, facet, Scope::Row(place), |row| {
                row.put_back(target, since);
                row.blueprint = print;
                row.report = report.take();
                row.deadline.clone_from(&deadline);
            });
        }
    }
}
