//! The targets of a rollout by a commit, and the wave of each.

use muster_contract::canonical::Digest;
use muster_contract::desired::{DesiredDeployment, DesiredState};
use muster_contract::labels::Labels;
use muster_contract::rollout::{Rollout, RolloutTarget, Wave};
use muster_contract::{DeploymentId, DeviceKey, Timestamp};
use muster_domain::rollout::{RolloutId, waves_of};
use muster_publisher::source::Fleet;

use super::hub::Hub;

/// One rollout of the accepted commit: its waves, and its targets with the index of the wave of each.
pub(crate) struct Members<'a> {
    pub(crate) rollout: &'a Rollout,
    pub(crate) waves: Vec<Wave>,
    pub(crate) targets: Vec<(DeviceKey, usize)>,
}

impl Members<'_> {
    /// The name of a wave.
    pub(crate) fn name(&self, wave: usize) -> &str {
        self.waves.get(wave).map_or("rest", |wave| wave.name.as_str())
    }

    pub(crate) fn of_wave(&self, wave: usize) -> impl Iterator<Item = &DeviceKey> {
        self.targets.iter().filter(move |(_, at)| *at == wave).map(|(key, _)| key)
    }

    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        (0..=self.waves.len()).find(|at| self.name(*at) == name)
    }
}

/// The rollout of a content under a `rollout.yaml` by a commit.
pub(crate) fn members<'a>(
    fleet: &'a Fleet,
    id: &DeploymentId,
    digest: Digest,
    path: &str,
) -> Option<Members<'a>> {
    let governed = fleet.rollouts.iter().filter(|(_, file)| file.path == path);
    let keys: Vec<_> =
        governed.clone().map(|(key, _)| key).filter(|key| wanted(fleet, key, id) == Some(digest)).collect();
    let rollout = &governed.map(|(_, file)| file).next()?.rollout;
    let waves = if rollout.waves.is_empty() {
        vec![serde_json::from_value(serde_json::json!({ "name": "first", "count": 1 })).unwrap()]
    } else {
        rollout.waves.clone()
    };
    let labels: Vec<_> = keys.iter().map(|key| fleet.labels_of(key)).collect();
    let targets: Vec<(&DeviceKey, &Labels)> =
        keys.iter().copied().zip(labels.iter().map(|labels| &**labels)).collect();
    let rollout_id = RolloutId { deployment: id.clone(), digest };
    let indices = waves_of(&waves, &rollout_id, &targets);
    let targets = keys.into_iter().cloned().zip(indices).collect();
    Some(Members { rollout, waves, targets })
}

/// The targets of a deployment by a commit, without what devices have.
pub(crate) fn targets_of(fleet: &Fleet, id: &DeploymentId) -> Vec<RolloutTarget> {
    let target = |key: &DeviceKey| {
        Some(RolloutTarget {
            key: key.clone(),
            labels: (*fleet.labels_of(key)).clone(),
            rollout: fleet.rollouts.get(key)?.path.clone(),
            wanted: Some(wanted(fleet, key, id)?),
            published: None,
            target_generation: None,
            published_at: None,
            refused: None,
        })
    };
    fleet.rollouts.keys().filter_map(target).collect()
}

/// The content that a commit wants for a device.
pub(crate) fn wanted(fleet: &Fleet, key: &DeviceKey, id: &DeploymentId) -> Option<Digest> {
    let contents = fleet.devices.get(key)?;
    contents.iter().find(|content| content.id() == id).map(|content| content.digest())
}

/// Time at which a device got the content that it has, by the publisher's clock.
pub(crate) fn got_at(hub: &Hub, key: &DeviceKey, (id, digest): (&DeploymentId, Digest)) -> Option<Timestamp> {
    let all = hub.documents.get(key)?.iter().rev().map(|(_, document)| document);
    let has =
        |document: &&DesiredState| entry(Some(document), id).is_some_and(|entry| entry.digest == digest);
    Some(all.take_while(has).last()?.issued_at)
}

pub(crate) fn entry<'a>(
    document: Option<&'a DesiredState>,
    id: &DeploymentId,
) -> Option<&'a DesiredDeployment> {
    document?.deployments.iter().find(|entry| entry.id == *id)
}
