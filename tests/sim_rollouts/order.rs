//! The order of rollouts by the documents and decisions that DOWNLINK has: an oracle beside the publisher's own index.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::rollout::{RolloutPhase, WaitsFor};
use muster_contract::{DeploymentId, DeviceKey};
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

/// The phase of a content of a deployment whose rollout has not succeeded. A content that every device had before the first decision
/// about it needs no rollout.
fn unfinished(hub: &Hub, fleet: &Fleet, id: &DeploymentId, path: &str) -> Option<RolloutPhase> {
    let governed = || fleet.rollouts.iter().filter(|(_, file)| file.path == path).map(|(key, _)| key);
    let digests: BTreeSet<_> = governed().filter_map(|key| wanted(fleet, key, id)).collect();
    digests.into_iter().find_map(|digest| {
        let is_lacking = |key: &DeviceKey| {
            wanted(fleet, key, id) == Some(digest)
                && entry(hub.document(key), id).is_none_or(|entry| entry.digest != digest)
        };
        let Some(record) = hub.record(&(id.clone(), path.to_owned()), digest) else {
            return governed().any(is_lacking).then_some(RolloutPhase::Running);
        };
        let phase = record.phase();
        // A content that Git wants again is released again only to devices that lack it.
        let is_wanted_again = phase == RolloutPhase::Superseded && !governed().any(is_lacking);
        (phase != RolloutPhase::Succeeded && !is_wanted_again).then_some(phase)
    })
}
