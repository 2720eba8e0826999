//! The order of rollouts by the documents and decisions that DOWNLINK has: an oracle beside the publisher's own index.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::DeploymentId;
use muster_contract::rollout::{RolloutPhase, RolloutRecord, WaitsFor};
use muster_publisher::source::Fleet;

use super::hub::Hub;
use super::members::{entry, wanted};

/// The rollouts that those of a deployment wait for, by the path of their `rollout.yaml`.
pub(crate) fn waits(hub: &Hub, fleet: &Fleet, id: &DeploymentId) -> BTreeMap<String, Vec<WaitsFor>> {
    let paths: BTreeSet<_> = fleet.rollouts.values().map(|file| &file.path).collect();
    paths.into_iter().map(|path| (path.clone(), waits_for(hub, fleet, id, path))).collect()
}

/// The same under one `rollout.yaml`.
pub(crate) fn waits_for(hub: &Hub, fleet: &Fleet, id: &DeploymentId, path: &str) -> Vec<WaitsFor> {
    let file = fleet.rollouts.values().find(|file| file.path == path);
    let others = file.and_then(|file| file.rollout.after.get(id)).into_iter().flatten();
    let waits_for = |other: &DeploymentId| {
        let phase = unfinished(hub, fleet, other, path)?;
        Some(WaitsFor { deployment: other.clone(), phase })
    };
    others.filter_map(waits_for).collect()
}

/// The phase of a content of a deployment whose rollout has not succeeded.
fn unfinished(hub: &Hub, fleet: &Fleet, id: &DeploymentId, path: &str) -> Option<RolloutPhase> {
    let mut held = BTreeMap::new();
    for (key, _) in fleet.rollouts.iter().filter(|(_, file)| file.path == path) {
        let Some(digest) = wanted(fleet, key, id) else { continue };
        let has = entry(hub.document(key), id).is_some_and(|entry| entry.digest == digest);
        *held.entry(digest).or_insert(false) |= !has;
    }
    held.into_iter().find_map(|(digest, is_held)| {
        let record = hub.record(&(id.clone(), path.to_owned()), digest);
        let phase = record.map(RolloutRecord::phase).unwrap_or_default();
        let has_begun = record.is_some_and(|record| record.first_began().is_some());
        let is_under_way = is_held || has_begun;
        let is_over = match phase {
            RolloutPhase::Succeeded => true,
            RolloutPhase::Running | RolloutPhase::Superseded => !is_under_way,
            _ => false,
        };
        (!is_over).then_some(phase)
    })
}
