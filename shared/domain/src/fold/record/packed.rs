//! Records of many devices in few bytes: deployments, specs and components are written with the first record that names them, and
//! rows name them by number. A reader needs all records from the first one on, and looks the name of a deployment or a spec up once.
//! The order of the fields of rows and reports is the format.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use muster_contract::labels::Labels;
use muster_contract::view::AsOf;
use muster_contract::{DeploymentId, Generation, Timestamp};
use serde::{Deserialize, Serialize};

use super::super::app_spec::{self, AppSpec};
use super::super::component_set::ComponentSet;
use super::super::device::StoredDevice;
use super::super::fleet::Fleet;
use super::super::hearing::HearingState;
use super::super::report::PackedReport;
use super::super::standing::{Deadline, Row};
use super::super::totals::Totals;
use super::restore::RestoredRow;
use super::{DeviceRecord, RowRecord};

/// A record whose rows name what earlier records have by number.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PackedRecord {
    /// The deployments that no earlier record names, in the order of their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    deployments: Vec<DeploymentId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    specs: Vec<Arc<AppSpec>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    component_sets: Vec<Arc<ComponentSet>>,
    state: StoredDevice,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    labels: Labels,
    rows: Vec<PackedRow>,
}

/// Deployment, target generation, second since which the target is that, spec, report and deadline.
#[derive(Debug, Serialize, Deserialize)]
struct PackedRow(
    u32,
    Option<Generation>,
    Option<i64>,
    Option<u32>,
    Option<PackedReport>,
    Option<Box<Deadline>>,
);

/// A record is damaged: it names a number that no earlier record defines, or a time that does not exist; it has a deployment twice; or its
/// device has a record already.
#[derive(Debug, thiserror::Error)]
#[error("a record of a device is damaged, or is there twice")]
pub struct BadRecord;

/// Packs records.
#[derive(Debug, Default)]
pub struct RecordPacker {
    deployments: NumberTable<DeploymentId>,
    specs: NumberTable<Arc<AppSpec>>,
    component_sets: NumberTable<Arc<ComponentSet>>,
}

/// The numbers of things, in the order in which they came.
#[derive(Debug)]
struct NumberTable<T> {
    numbers: HashMap<T, u32>,
    /// Those that are not written yet.
    new: Vec<T>,
}

impl<T> Default for NumberTable<T> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), new: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> NumberTable<T> {
    fn of(&mut self, thing: &T) -> u32 {
        if let Some(number) = self.numbers.get(thing) {
            return *number;
        }
        let number = self.numbers.len() as u32;
        self.numbers.insert(thing.clone(), number);
        self.new.push(thing.clone());
        number
    }

    fn take_new(&mut self) -> Vec<T> {
        std::mem::take(&mut self.new)
    }
}

impl RecordPacker {
    /// The record in its packed form. It is written after those that were packed before.
    pub fn pack(&mut self, record: DeviceRecord) -> PackedRecord {
        let DeviceRecord { state, labels, rows } = record;
        let rows = rows.into_iter().map(|row| self.row(row)).collect();
        PackedRecord {
            deployments: self.deployments.take_new(),
            specs: self.specs.take_new(),
            component_sets: self.component_sets.take_new(),
            state,
            labels,
            rows,
        }
    }

    fn row(&mut self, row: RowRecord) -> PackedRow {
        let RowRecord { deployment, target, since, spec, report, deadline } = row;
        let deployment = self.deployments.of(&deployment);
        let spec = spec.map(|spec| self.specs.of(&spec));
        let report = report.map(|report| report.packed(|set| self.component_sets.of(set)));
        PackedRow(deployment, target, since.map(Timestamp::as_second), spec, report, deadline)
    }
}

/// The deployments, specs and component sets of the records up to now, by the numbers that rows name them by.
#[derive(Debug, Default)]
pub(super) struct Tables {
    deployments: Vec<TableEntry<DeploymentId>>,
    specs: Vec<TableEntry<Arc<AppSpec>>>,
    component_sets: Vec<Arc<ComponentSet>>,
}

/// A deployment or a spec as its record defines it, or its number in the fleet once a row has it.
#[derive(Debug)]
enum TableEntry<T> {
    New(T),
    Numbered(u32),
}

impl<T> TableEntry<T> {
    /// The number in the fleet for one more row; `number_of` counts the row.
    fn number(&mut self, number_of: impl FnOnce(&Self) -> u32) -> u32 {
        let number = number_of(self);
        *self = Self::Numbered(number);
        number
    }
}

impl Fleet {
    /// As [`Self::restore`], from packed records in the order in which they were packed.
    ///
    /// # Errors
    /// A record is damaged.
    pub fn restore_packed(
        as_of: AsOf,
        hearing: HearingState,
        records: impl IntoIterator<Item = PackedRecord>,
    ) -> Result<Self, BadRecord> {
        let (mut fleet, mut tables) = (Self::to_restore(hearing), Tables::default());
        for record in records {
            fleet.admit_packed(record, &mut tables).ok_or(BadRecord)?;
        }
        Ok(fleet.restored(as_of))
    }

    fn admit_packed(&mut self, record: PackedRecord, tables: &mut Tables) -> Option<()> {
        let PackedRecord { deployments, specs, component_sets, state, labels, rows } = record;
        tables.deployments.extend(deployments.into_iter().map(TableEntry::New));
        tables.specs.extend(specs.into_iter().map(TableEntry::New));
        tables.component_sets.extend(component_sets);
        let number = self.admit_device(state, &labels);
        if !self.devices[number as usize].rows.is_empty() {
            return None;
        }
        let (mut named, mut contents) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
        for row in rows {
            let (deployment, content) = self.totals.unpack(row, tables)?;
            if named.iter().any(|row: &Row| row.deployment == deployment) {
                return None;
            }
            named.push(Row::new(deployment));
            contents.push(Some(content));
        }
        self.devices[number as usize].rows = named.into_boxed_slice();
        self.fill_rows(number, contents);
        Some(())
    }
}

impl Totals {
    /// The number of a row's deployment, and the row's content; `None` if it names what is not there.
    fn unpack(&mut self, row: PackedRow, tables: &mut Tables) -> Option<(u32, RestoredRow)> {
        let PackedRow(deployment, target, since, spec, report, deadline) = row;
        let spec = match spec {
            None => app_spec::NONE,
            Some(spec) => tables.specs.get_mut(spec as usize)?.number(|spec| match spec {
                TableEntry::New(spec) => self.specs.intern_shared(spec),
                TableEntry::Numbered(number) => self.specs.one_more(*number),
            }),
        };
        let mut report = match report {
            None => None,
            Some(report) => Some(report.report(|set| tables.component_sets.get(set as usize).cloned())?),
        };
        if let Some(report) = &mut report {
            report.intern(&mut self.component_sets);
        }
        let since = since.map(Timestamp::from_second).transpose().ok()?;
        let deployment =
            tables.deployments.get_mut(deployment as usize)?.number(|deployment| match deployment {
                TableEntry::New(id) => self.name_deployment(id),
                TableEntry::Numbered(number) => self.one_more(*number),
            });
        Some((deployment, RestoredRow { target, since, spec, report, deadline }))
    }
}
