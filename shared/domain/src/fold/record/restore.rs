//! The records of a fleet, and the fleet that records define: every count is rebuilt from them.

use muster_contract::labels::Labels;
use muster_contract::view::AsOf;
use muster_contract::{DeviceKey, Generation, Timestamp};

use super::super::app_spec;
use super::super::device::{Device, StoredDevice};
use super::super::fleet::{Fleet, Scope};
use super::super::hearing::HearingState;
use super::super::report::Report;
use super::super::standing::{Deadline, Row};
use super::{DeviceRecord, RowRecord};

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
        self.devices_after(|_| true, after, None).take(max).map(|device| self.record_of(device)).collect()
    }

    /// The fleet as it was at `as_of`, from all its records and the hearing state of that time. No device counts as changed,
    /// every view does.
    pub fn restore(
        as_of: AsOf,
        hearing: HearingState,
        records: impl IntoIterator<Item = DeviceRecord>,
    ) -> Self {
        let mut fleet = Self::to_restore(hearing);
        for record in records {
            fleet.admit(record);
        }
        fleet.restored(as_of)
    }

    /// A fleet before its first record.
    pub(super) fn to_restore(hearing: HearingState) -> Self {
        let mut fleet = Self::default();
        fleet.hearing = hearing;
        fleet
    }

    /// The fleet after its last record.
    pub(super) fn restored(mut self, as_of: AsOf) -> Self {
        self.as_of = as_of;
        self.change_log.reset(as_of.ledger_seq);
        self.drain_changed_devices();
        self
    }

    pub(in crate::fold) fn record_of(&self, device: &Device) -> DeviceRecord {
        let row = |row: &Row| RowRecord {
            deployment: self.totals.deployment(row.deployment).id.clone(),
            target: row.target,
            since: row.since(),
            spec: self.totals.specs.shared(row.spec),
            report: row.report.clone(),
            deadline: row.deadline.clone(),
        };
        let mut rows: Vec<_> = device.rows.iter().map(row).collect();
        rows.sort_by(|one, other| one.deployment.cmp(&other.deployment));
        let state = device.state.stored(self.site_of(device));
        DeviceRecord { state, labels: self.labels_of(device), rows }
    }

    fn admit(&mut self, record: DeviceRecord) {
        let DeviceRecord { state, labels, rows } = record;
        let number = self.admit_device(state, &labels);
        let places = self.name_rows(number, rows.iter().map(|row| &row.deployment));
        let mut contents: Vec<_> = self.devices[number as usize].rows.iter().map(|_| None).collect();
        for (place, row) in places.into_iter().zip(rows) {
            contents[place] = Some(self.interned(row));
        }
        self.fill_rows(number, contents);
    }

    /// Everything of a device but its rows; its number.
    pub(super) fn admit_device(&mut self, state: StoredDevice, labels: &Labels) -> u32 {
        let number = self.name_device(&state.key);
        self.regroup(number, labels);
        let before = self.context(number);
        let held = &mut self.devices[number as usize].state;
        *held = state.state(held.name.clone(), held.unheard_in);
        self.update_refusing(number);
        self.update_rows(number, before, Scope::Device, |_| {});
        number
    }

    /// Fills rows of a device, each with the content at its place.
    pub(super) fn fill_rows(&mut self, number: u32, contents: Vec<Option<RestoredRow>>) {
        let (context, mut contents) = (self.context(number), contents.into_iter());
        self.update_rows(number, context, Scope::Rows, |row| {
            if let Some(Some(content)) = contents.next() {
                content.apply(row);
            }
        });
    }

    /// A row with its spec and components as the fleet holds them.
    fn interned(&mut self, row: RowRecord) -> RestoredRow {
        let RowRecord { target, since, spec, mut report, deadline, .. } = row;
        if let Some(report) = &mut report {
            report.intern(&mut self.totals.component_sets);
        }
        let spec = spec.map_or(app_spec::NONE, |spec| self.totals.specs.intern_shared(&spec));
        RestoredRow { target, since, spec, report, deadline }
    }
}

/// The content of a row from a record.
pub(super) struct RestoredRow {
    pub(super) target: Option<Generation>,
    pub(super) since: Option<Timestamp>,
    pub(super) spec: u32,
    pub(super) report: Option<Report>,
    pub(super) deadline: Option<Box<Deadline>>,
}

impl RestoredRow {
    fn apply(self, row: &mut Row) {
        row.restore_target(self.target, self.since);
        (row.spec, row.report, row.deadline) = (self.spec, self.report, self.deadline);
    }
}
