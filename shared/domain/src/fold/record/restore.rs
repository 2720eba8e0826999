//! The records of a fleet, and the fleet that records define: every count is rebuilt from them.

use muster_contract::DeviceKey;
use muster_contract::view::AsOf;

use super::super::app_spec;
use super::super::device::Device;
use super::super::fleet::{Fleet, Scope};
use super::super::hearing::HearingState;
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
        let mut fleet = Self::default();
        fleet.hearing = hearing;
        for record in records {
            fleet.admit(record);
        }
        fleet.as_of = as_of;
        fleet.change_log.reset(as_of.ledger_seq);
        fleet.drain_changed_devices();
        fleet
    }

    pub(in crate::fold) fn record_of(&self, device: &Device) -> DeviceRecord {
        let row = |row: &super::super::standing::Row| RowRecord {
            deployment: self.totals.deployment(row.deployment).id.clone(),
            target: row.target,
            since: row.since(),
            spec: self.totals.specs.get(row.spec).cloned(),
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
        let number = self.name_device(&state.key);
        self.regroup(number, &labels);
        let before = self.context(number);
        let held = &mut self.devices[number as usize].state;
        *held = state.state(held.name.clone(), held.unheard_in);
        self.update_refusing(number);
        self.update_rows(number, before, Scope::Device, |_| {});
        for RowRecord { deployment, target, since, spec, mut report, deadline } in rows {
            let place = self.name_row(number, &deployment);
            let context = self.context(number);
            if let Some(report) = &mut report {
                report.intern(&mut self.totals.component_sets);
            }
            let spec = spec.map_or(app_spec::NONE, |spec| self.totals.specs.intern(spec));
            self.update_rows(number, context, Scope::Row(place), |row| {
                row.restore_target(target, since);
                row.spec = spec;
                row.report = report.take();
                row.deadline.clone_from(&deadline);
            });
        }
    }
}
