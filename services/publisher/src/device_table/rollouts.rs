//! Computes the changes that rollouts hold: those of the last accepted commit that governed devices do not have. Nothing is
//! stored for them: a change is held as long as the published document of a governed device differs from the commit, so a
//! release is done once DOWNLINK has the document, and a restart forgets nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use muster_contract::canonical::Digest;
use muster_contract::labels::Labels;
use muster_contract::query::SomeDevices;
use muster_contract::rollout::{ReleaseRefusal, Rollout, RolloutTarget, TargetsAnswer};
use muster_contract::{DeploymentId, DeviceKey};

use super::DeviceTable;
use crate::content::Content;
use crate::published::{Entry, PublishedState};
use crate::source::Fleet;

/// Devices that a held change names, at most: a status lists many changes.
const HELD_NAMED_MAX: usize = 3;

/// A change that is held: the deployment, the digest that Git wants and the path of the rollout.
pub(crate) type ChangeKey = (DeploymentId, Option<Digest>, String);

impl DeviceTable {
    /// The held changes of the last accepted commit, with their devices. Devices whose commit has a mistake, or is unknown
    /// here, are not among them.
    pub(crate) fn held_changes(&self) -> BTreeMap<ChangeKey, SomeDevices> {
        let mut changes: BTreeMap<ChangeKey, SomeDevices> = BTreeMap::new();
        let Some(fleet) = &self.fleet else { return changes };
        for (key, file) in &fleet.rollouts {
            if self.guard.has(key) || fleet.held_back.contains(key) {
                continue;
            }
            for id in self.differing(fleet, key) {
                let wanted = wanted(fleet, key, &id).map(|content| content.digest());
                let devices = changes.entry((id, wanted, file.path.clone())).or_default();
                devices.count += 1;
                if devices.first.len() < HELD_NAMED_MAX {
                    devices.first.push(key.clone());
                }
            }
        }
        changes
    }

    /// The deployments of a governed device whose published content is not the one that Git wants. A deployment that a
    /// request replaces is not held.
    fn differing(&self, fleet: &Fleet, key: &DeviceKey) -> BTreeSet<DeploymentId> {
        let nothing = PublishedState::default();
        let held = self.held.get(key).unwrap_or(&nothing);
        let contents = fleet.devices.get(key).into_iter().flatten();
        if contents.map(|content| content.digest()).eq(held.git_contents().map(|content| content.digest())) {
            return BTreeSet::new();
        }
        let digests = |contents: &mut dyn Iterator<Item = &Arc<Content>>| -> BTreeMap<DeploymentId, Digest> {
            contents.map(|content| (content.id().clone(), content.digest())).collect()
        };
        let wanted = digests(&mut fleet.devices.get(key).into_iter().flatten());
        let published = digests(&mut held.git_contents());
        let ids = wanted.keys().chain(published.keys()).collect::<BTreeSet<_>>();
        let is_requested = |id: &DeploymentId| held.requested().any(|content| content.id() == id);
        let differs = |id: &&DeploymentId| wanted.get(*id) != published.get(*id) && !is_requested(id);
        ids.into_iter().filter(differs).cloned().collect()
    }

    /// A page of the governed devices that have a deployment or shall have it; `None` before the first good commit.
    pub(crate) fn targets(
        &self,
        id: &DeploymentId,
        after: Option<&DeviceKey>,
        limit: usize,
    ) -> Option<TargetsAnswer> {
        let fleet = self.fleet.as_ref()?;
        Some(page(fleet, after, limit, |key| self.target(fleet, key, id)))
    }

    /// The rollout at a path, if Git wants a content of a deployment for one of its devices.
    pub(crate) fn rollout_of(&self, id: &DeploymentId, digest: Digest, path: &str) -> Option<&Rollout> {
        let fleet = self.fleet.as_ref()?;
        let is_wanted =
            |key: &DeviceKey| wanted(fleet, key, id).is_some_and(|content| content.digest() == digest);
        let mut governed = fleet.rollouts.iter().filter(|(_, file)| file.path == path);
        governed.find(|(key, _)| is_wanted(key)).map(|(_, file)| &file.rollout)
    }

    /// Whether a device that a `rollout.yaml` governs has a content.
    pub(crate) fn has_device_with(&self, id: &DeploymentId, digest: Digest, path: &str) -> bool {
        let Some(fleet) = &self.fleet else { return false };
        let mut governed = fleet.rollouts.iter().filter(|(_, file)| file.path == path);
        governed.any(|(key, _)| self.published_digest(key, id) == Some(digest))
    }

    /// The number of devices that a `rollout.yaml` governs, for which Git wants a content and which have it.
    pub(crate) fn released(&self, id: &DeploymentId, digest: Digest, path: &str) -> u64 {
        let Some(fleet) = &self.fleet else { return 0 };
        let governed = fleet.rollouts.iter().filter(|(_, file)| file.path == path);
        let has_it = governed.filter(|(key, _)| {
            self.published_digest(key, id) == Some(digest)
                && wanted(fleet, key, id).is_some_and(|content| content.digest() == digest)
        });
        has_it.count() as u64
    }

    /// Whether Git wants a content for a device that a `rollout.yaml` governs, or such a device has it.
    pub(crate) fn is_in_use(&self, id: &DeploymentId, digest: Digest, path: &str) -> bool {
        self.rollout_of(id, digest, path).is_some() || self.has_device_with(id, digest, path)
    }

    /// The path of the rollout that governs a device.
    pub(crate) fn rollout_path(&self, key: &DeviceKey) -> Option<&str> {
        Some(&self.fleet.as_ref()?.rollouts.get(key)?.path)
    }

    /// The digest of the deployment that is published to a device.
    pub(crate) fn published_digest(&self, key: &DeviceKey, id: &DeploymentId) -> Option<Digest> {
        self.held.get(key).and_then(|held| entry(held, id)).map(|entry| entry.content.digest())
    }

    fn target(&self, fleet: &Fleet, key: &DeviceKey, id: &DeploymentId) -> Option<RolloutTarget> {
        let wanted = wanted(fleet, key, id).map(|content| content.digest());
        let entry = self.held.get(key).and_then(|held| entry(held, id));
        // A deployment that a request replaces is no target until the request is removed.
        if entry.is_some_and(|entry| entry.content.is_requested()) {
            return None;
        }
        let published = entry.map(|entry| entry.content.digest());
        if wanted.is_none() && published.is_none() {
            return None;
        }
        Some(RolloutTarget {
            key: key.clone(),
            labels: Labels::clone(&fleet.labels_of(key)),
            rollout: fleet.rollouts.get(key)?.path.clone(),
            wanted,
            published,
            target_generation: entry.map(|entry| entry.target),
            published_at: entry.and(self.held.get(key)).and_then(|held| held.issued_at),
            refused: self.refused(fleet, key),
        })
    }

    /// Why a device gets no release at present, whatever its content is.
    fn refused(&self, fleet: &Fleet, key: &DeviceKey) -> Option<ReleaseRefusal> {
        if self.guard.has(key) {
            Some(ReleaseRefusal::GitUnknown)
        } else {
            fleet.held_back.contains(key).then_some(ReleaseRefusal::HeldBack)
        }
    }

    /// The content that Git wants for a device; `None` if Git no longer has the deployment there, or its commit is
    /// unknown.
    pub(crate) fn wanted(&self, key: &DeviceKey, id: &DeploymentId) -> Option<Arc<Content>> {
        wanted(self.fleet_of(key)?, key, id).cloned()
    }

    /// A content of Git that some device has, by its digest.
    pub(crate) fn published_content(&self, id: &DeploymentId, digest: Digest) -> Option<Arc<Content>> {
        let published = self.held.values().flat_map(PublishedState::git_contents);
        published.into_iter().find(|content| content.id() == id && content.digest() == digest).cloned()
    }
}

/// A page of the governed devices for which a commit wants a deployment, without the contents that they have.
pub(crate) fn targets_of(
    fleet: &Fleet,
    id: &DeploymentId,
    after: Option<&DeviceKey>,
    limit: usize,
) -> TargetsAnswer {
    page(fleet, after, limit, |key| {
        Some(RolloutTarget {
            key: key.clone(),
            labels: Labels::clone(&fleet.labels_of(key)),
            rollout: fleet.rollouts.get(key)?.path.clone(),
            wanted: Some(wanted(fleet, key, id)?.digest()),
            published: None,
            target_generation: None,
            published_at: None,
            refused: None,
        })
    })
}

/// A page of the governed devices that are targets.
fn page(
    fleet: &Fleet,
    after: Option<&DeviceKey>,
    limit: usize,
    target: impl Fn(&DeviceKey) -> Option<RolloutTarget>,
) -> TargetsAnswer {
    let rows = fleet.rollouts.range::<DeviceKey, _>((after.map_or(Unbounded, Excluded), Unbounded));
    let (mut targets, mut rollouts, mut next) = (Vec::<RolloutTarget>::new(), BTreeMap::new(), None);
    for (key, file) in rows {
        let Some(target) = target(key) else { continue };
        if targets.len() == limit {
            next = targets.last().map(|target| target.key.to_string());
            break;
        }
        rollouts.insert(file.path.clone(), file.rollout.clone());
        targets.push(target);
    }
    TargetsAnswer { revision: fleet.revision.clone(), rollouts, targets, decisions: Vec::new(), next }
}

/// The content of a deployment that a commit wants for a device.
fn wanted<'a>(fleet: &'a Fleet, key: &DeviceKey, id: &DeploymentId) -> Option<&'a Arc<Content>> {
    fleet.devices.get(key)?.iter().find(|content| content.id() == id)
}

/// The published entry of a deployment.
fn entry<'a>(held: &'a PublishedState, id: &DeploymentId) -> Option<&'a Entry> {
    held.document.as_ref()?.entries.iter().find(|entry| entry.content.id() == id)
}
