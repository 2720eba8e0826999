//! Index of the governed devices by rollout: how many devices shall have a content, how many have it, and which ones differ from
//! the commit. The table updates it with each change of one device, so a request about a rollout does not read the whole fleet.
//!
//! The index adds and retracts contributions; [`super::rollouts`] computes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_contract::canonical::Digest;
use muster_contract::query::SomeDevices;
use muster_contract::{DeploymentId, DeviceKey};

use super::rollouts::ChangeKey;
use crate::source::{Fleet, RolloutFile};

/// The governed devices of one commit, by rollout.
#[derive(Debug, Default, PartialEq)]
pub(super) struct RolloutIndex {
    /// The governed devices in order. The number of a device is its position here.
    devices: Vec<DeviceKey>,
    numbers: BTreeMap<DeviceKey, u32>,
    /// Each `rollout.yaml` by its path.
    files: BTreeMap<String, Arc<RolloutFile>>,
    rows: BTreeMap<DeploymentId, BTreeMap<String, Row>>,
}

/// The rollouts of one deployment under one `rollout.yaml`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Row {
    contents: BTreeMap<Digest, Counts>,
    /// The numbers of the devices with a held change, by the digest that Git wants.
    held: BTreeMap<Option<Digest>, BTreeSet<u32>>,
}

/// Counts of devices for one content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Devices for which Git wants the content.
    pub(super) wanted: u64,
    /// Devices that have the content.
    pub(super) published: u64,
    /// Devices of both kinds.
    pub(super) released: u64,
    /// Devices for which Git wants the content and no request replaces the deployment.
    pub(super) targets: u64,
    /// Those of them that have another content, or none.
    pub(super) lacking: u64,
}

/// The contribution of one device to the rollouts of one deployment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contribution {
    pub(super) id: DeploymentId,
    pub(super) wanted: Option<Digest>,
    pub(super) published: Option<Digest>,
    /// Whether the change is held.
    pub(super) is_held: bool,
    /// Whether a request replaces the deployment.
    pub(super) is_requested: bool,
}

impl RolloutIndex {
    /// An index of a commit's governed devices, without contributions.
    pub(super) fn of(fleet: &Fleet) -> Self {
        let devices: Vec<_> = fleet.rollouts.keys().cloned().collect();
        let numbers = (0_u32..).zip(&devices).map(|(number, key)| (key.clone(), number)).collect();
        let files = fleet.rollouts.values().map(|file| (file.path.clone(), Arc::clone(file))).collect();
        Self { devices, numbers, files, rows: BTreeMap::new() }
    }

    /// Adds the contributions of a device, or retracts them.
    pub(super) fn apply(
        &mut self,
        key: &DeviceKey,
        path: &str,
        contributions: &[Contribution],
        is_added: bool,
    ) {
        let Some(number) = self.numbers.get(key).copied() else { return };
        for contribution in contributions {
            let rows = self.rows.entry(contribution.id.clone()).or_default();
            if !rows.contains_key(path) {
                rows.insert(path.to_owned(), Row::default());
            }
            let Some(row) = rows.get_mut(path) else { continue };
            row.apply(number, contribution, is_added);
            if *row == Row::default() {
                rows.remove(path);
            }
            if rows.is_empty() {
                self.rows.remove(&contribution.id);
            }
        }
    }

    /// The counts of a content under a `rollout.yaml`.
    pub(super) fn counts(&self, id: &DeploymentId, digest: Digest, path: &str) -> Counts {
        let row = self.rows.get(id).and_then(|rows| rows.get(path));
        row.and_then(|row| row.contents.get(&digest)).copied().unwrap_or_default()
    }

    /// The contents of a deployment that targets under a `rollout.yaml` shall have, each with whether one lacks it.
    pub(super) fn wanted(&self, id: &DeploymentId, path: &str) -> impl Iterator<Item = (Digest, bool)> + '_ {
        let row = self.rows.get(id).and_then(|rows| rows.get(path));
        let contents = row.into_iter().flat_map(|row| &row.contents);
        contents
            .filter(|(_, counts)| counts.targets > 0)
            .map(|(digest, counts)| (*digest, counts.lacking > 0))
    }

    /// Each `rollout.yaml` that governs a device with a deployment.
    pub(super) fn files_of(&self, id: &DeploymentId) -> impl Iterator<Item = &RolloutFile> {
        let paths = self.rows.get(id).into_iter().flat_map(BTreeMap::keys);
        paths.filter_map(|path| self.file(path))
    }

    /// The `rollout.yaml` at a path, if it governs a device.
    pub(super) fn file(&self, path: &str) -> Option<&RolloutFile> {
        self.files.get(path).map(Arc::as_ref)
    }

    /// The held changes, each with its number of devices and the first `named_max` of them.
    pub(super) fn held_changes(&self, named_max: usize) -> BTreeMap<ChangeKey, SomeDevices> {
        let some = |numbers: &BTreeSet<u32>| SomeDevices {
            count: numbers.len() as u64,
            first: numbers
                .iter()
                .filter_map(|number| self.devices.get(*number as usize))
                .take(named_max)
                .cloned()
                .collect(),
        };
        let rows =
            self.rows.iter().flat_map(|(id, rows)| rows.iter().map(move |(path, row)| (id, path, row)));
        rows.flat_map(|(id, path, row)| {
            row.held.iter().map(move |(digest, numbers)| ((id.clone(), *digest, path.clone()), some(numbers)))
        })
        .collect()
    }
}

impl Row {
    fn apply(&mut self, number: u32, contribution: &Contribution, is_added: bool) {
        let Contribution { wanted, published, is_held, is_requested, .. } = contribution;
        let is_released = wanted == published;
        let mut count = |digest: Option<Digest>, of: fn(&mut Counts) -> &mut u64| {
            let Some(digest) = digest else { return };
            let counts = self.contents.entry(digest).or_default();
            let count = of(counts);
            *count = if is_added { *count + 1 } else { count.saturating_sub(1) };
            if *counts == Counts::default() {
                self.contents.remove(&digest);
            }
        };
        count(*wanted, |counts| &mut counts.wanted);
        count(*published, |counts| &mut counts.published);
        count(wanted.filter(|_| is_released), |counts| &mut counts.released);
        let target = wanted.filter(|_| !is_requested);
        count(target, |counts| &mut counts.targets);
        count(target.filter(|_| !is_released), |counts| &mut counts.lacking);
        if *is_held {
            let numbers = self.held.entry(*wanted).or_default();
            _ = if is_added { numbers.insert(number) } else { numbers.remove(&number) };
            if numbers.is_empty() {
                self.held.remove(wanted);
            }
        }
    }
}
