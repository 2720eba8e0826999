//! Records of many devices in few bytes: deployments, specs and components are written with the first record that names them, and
//! rows name them by number. A reader needs all records from the first one on.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use muster_contract::labels::Labels;
use muster_contract::{DeploymentId, Generation, Timestamp};
use serde::{Deserialize, Serialize};

use super::super::app_spec::AppSpec;
use super::super::component_set::ComponentSet;
use super::super::device::StoredDevice;
use super::super::report::PackedReport;
use super::super::standing::Deadline;
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

/// Deployment, target, second since which it is that, spec, report and deadline.
#[derive(Debug, Serialize, Deserialize)]
struct PackedRow(
    u32,
    Option<Generation>,
    Option<i64>,
    Option<u32>,
    Option<PackedReport>,
    Option<Box<Deadline>>,
);

/// A record names a number that no record before it has defined, or a time that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("a row of the device names a number or a time that is not there")]
pub struct BadRecord;

/// Packs records.
#[derive(Debug, Default)]
pub struct RecordPacker {
    deployments: Numbers<DeploymentId>,
    specs: Numbers<Arc<AppSpec>>,
    component_sets: Numbers<Arc<ComponentSet>>,
}

/// The numbers of things, in the order in which they came.
#[derive(Debug)]
struct Numbers<T> {
    numbers: HashMap<T, u32>,
    /// Those that are not written yet.
    new: Vec<T>,
}

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), new: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> Numbers<T> {
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

/// Unpacks records in the order in which they were packed.
#[derive(Debug, Default)]
pub struct RecordUnpacker {
    deployments: Vec<DeploymentId>,
    specs: Vec<Arc<AppSpec>>,
    component_sets: Vec<Arc<ComponentSet>>,
}

impl RecordUnpacker {
    /// The record.
    ///
    /// # Errors
    /// It names what no record before it has.
    pub fn unpack(&mut self, packed: PackedRecord) -> Result<DeviceRecord, BadRecord> {
        let PackedRecord { deployments, specs, component_sets, state, labels, rows } = packed;
        self.deployments.extend(deployments);
        self.specs.extend(specs);
        self.component_sets.extend(component_sets);
        let rows = rows.into_iter().map(|row| self.row(row)).collect::<Option<_>>().ok_or(BadRecord)?;
        Ok(DeviceRecord { state, labels, rows })
    }

    fn row(
        &self,
        PackedRow(deployment, target, since, spec, report, deadline): PackedRow,
    ) -> Option<RowRecord> {
        Some(RowRecord {
            deployment: numbered(&self.deployments, deployment)?,
            target,
            since: since.map(Timestamp::from_second).transpose().ok()?,
            spec: spec.map_or(Some(None), |spec| numbered(&self.specs, spec).map(Some))?,
            report: report.map_or(Some(None), |report| {
                report.report(|set| numbered(&self.component_sets, set)).map(Some)
            })?,
            deadline,
        })
    }
}

fn numbered<T: Clone>(all: &[T], number: u32) -> Option<T> {
    all.get(number as usize).cloned()
}
