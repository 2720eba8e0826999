//! Computes the changes that rollouts hold: those of the last accepted commit that governed devices do not have. Nothing is
//! stored for them: a change is held as long as the published document of a governed device differs from the commit, so a
//! release is done once DOWNLINK has the document, and a restart forgets nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use muster_contract::canonical::Digest;
use muster_contract::desired::RetryDelays;
use muster_contract::labels::Labels;
use muster_contract::query::SomeDevices;
use muster_contract::rollout::{ReleaseRefusal, Rollout, RolloutTarget, TargetsAnswer};
use muster_contract::{DeploymentId, DeviceKey};

use super::DeviceTable;
use super::fleet_counts::FleetCounts;
use super::rollout_index::{Contribution, RolloutIndex};
use crate::content::Content;
use crate::published::{Entry, PublishedState};
use crate::source::{Fleet, RolloutFile};

/// Devices that a held change names, at most: a status lists many changes.
const HELD_NAMED_MAX: usize = 3;

/// A change that is held: the deployment, the digest that Git wants and the path of the rollout.
pub(crate) type ChangeKey = (DeploymentId, Option<Digest>, String);

impl DeviceTable {
    /// The held changes of the last accepted commit, with their devices. Devices whose commit has a mistake, or is unknown
    /// here, are not among them.
    pub(crate) fn held_changes(&self) -> BTreeMap<ChangeKey, SomeDevices> {
        self.index.held_changes(HELD_NAMED_MAX)
    }

    /// Rebuilds index and counts after a change of the commit.
    pub(super) fn build_index(&mut self) {
        self.counts = FleetCounts::of(&self.held, self.fleet.as_ref());
        let Some(fleet) = &self.fleet else { return };
        let mut index = RolloutIndex::of(fleet);
        for (key, file) in &fleet.rollouts {
            index.apply(key, &file.path, &self.contributions(fleet, key), true);
        }
        self.index = index;
    }

    /// Changes the state of one device, and index and counts with it.
    pub(super) fn change_device<T>(&mut self, key: &DeviceKey, change: impl FnOnce(&mut Self) -> T) -> T {
        self.index_device(key, false);
        let changed = change(self);
        self.index_device(key, true);
        changed
    }

    fn index_device(&mut self, key: &DeviceKey, is_added: bool) {
        if let Some(held) = self.held.get(key) {
            self.counts.apply(key, held, self.fleet.as_ref(), is_added);
        }
        let Some(fleet) = &self.fleet else { return };
        let Some(file) = fleet.rollouts.get(key) else { return };
        let contributions = self.contributions(fleet, key);
        self.index.apply(key, &file.path, &contributions, is_added);
    }

    /// The contributions of a governed device to the index. A deployment is not held if a request replaces it, or if the commit of
    /// the device has a mistake or is unknown here.
    fn contributions(&self, fleet: &Fleet, key: &DeviceKey) -> Vec<Contribution> {
        let published = self.held.get(key).into_iter().flat_map(PublishedState::contents);
        let published: BTreeMap<_, _> = published.map(|content| (content.id(), content)).collect();
        let wanted = fleet.devices.get(key).into_iter().flatten();
        let wanted: BTreeMap<_, _> = wanted.map(|content| (content.id(), content.digest())).collect();
        let may_be_held = self.refused(fleet, key).is_none();
        let ids: BTreeSet<_> = published.keys().chain(wanted.keys()).copied().collect();
        let contribution = |id: &DeploymentId| {
            let (wanted, content) = (wanted.get(id).copied(), published.get(id));
            let published = content.map(|content| content.digest());
            let is_requested = content.is_some_and(|content| content.is_requested());
            let is_held = may_be_held && !is_requested && wanted != published;
            Contribution { id: id.clone(), wanted, published, is_held, is_requested }
        };
        ids.into_iter().map(contribution).collect()
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
        let is_wanted = self.index.counts(id, digest, path).wanted > 0;
        self.index.file(path).filter(|_| is_wanted).map(|file| &file.rollout)
    }

    /// The deployments that a deployment comes after, by the path of each `rollout.yaml` that says so.
    pub(crate) fn after(&self, id: &DeploymentId) -> Vec<(String, BTreeSet<DeploymentId>)> {
        let after = |file: &RolloutFile| Some((file.path.clone(), file.rollout.after.get(id)?.clone()));
        self.index.files_of(id).filter_map(after).collect()
    }

    /// Whether a device that a `rollout.yaml` governs has a deployment or shall have it.
    pub(crate) fn has_deployment(&self, id: &DeploymentId, path: &str) -> bool {
        self.index.files_of(id).any(|file| file.path == path)
    }

    /// The contents of a deployment that targets under a `rollout.yaml` shall have, each with whether one lacks it.
    pub(crate) fn wanted_contents(
        &self,
        id: &DeploymentId,
        path: &str,
    ) -> impl Iterator<Item = (Digest, bool)> + '_ {
        self.index.wanted(id, path)
    }

    /// Whether a device that a `rollout.yaml` governs has a content.
    pub(crate) fn has_device_with(&self, id: &DeploymentId, digest: Digest, path: &str) -> bool {
        self.index.counts(id, digest, path).published > 0
    }

    /// The number of devices that a `rollout.yaml` governs, for which Git wants a content and which have it.
    pub(crate) fn released(&self, id: &DeploymentId, digest: Digest, path: &str) -> u64 {
        self.index.counts(id, digest, path).released
    }

    /// Whether Git wants a content for a device that a `rollout.yaml` governs, or such a device has it.
    pub(crate) fn is_in_use(&self, id: &DeploymentId, digest: Digest, path: &str) -> bool {
        self.rollout_of(id, digest, path).is_some() || self.has_device_with(id, digest, path)
    }

    /// The path of the rollout that governs a device.
    pub(crate) fn rollout_path(&self, key: &DeviceKey) -> Option<&str> {
        Some(&self.fleet.as_ref()?.rollouts.get(key)?.path)
    }

    /// The delays between the attempts of a device, if the rollout that governs it gives them.
    pub(crate) fn retry_delays(&self, key: &DeviceKey) -> Option<RetryDelays> {
        let rollout = &self.fleet.as_ref()?.rollouts.get(key)?.rollout;
        Some(rollout.retries.as_ref()?.backoff?.into())
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
    let (revision, decisions, waits_for) = (fleet.revision.clone(), Vec::new(), BTreeMap::new());
    TargetsAnswer { revision, rollouts, targets, decisions, waits_for, next }
}

/// The content of a deployment that a commit wants for a device.
fn wanted<'a>(fleet: &'a Fleet, key: &DeviceKey, id: &DeploymentId) -> Option<&'a Arc<Content>> {
    fleet.devices.get(key)?.iter().find(|content| content.id() == id)
}

/// The published entry of a deployment.
fn entry<'a>(held: &'a PublishedState, id: &DeploymentId) -> Option<&'a Entry> {
    held.document.as_ref()?.entries.iter().find(|entry| entry.content.id() == id)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::content::tests::{content, request};
    use crate::published::Document;
    use muster_contract::desired::{Source, SourceKind};
    use muster_contract::{Generation, Timestamp};

    const DEVICES: [&str; 4] = ["a/one", "a/two", "b/one", "b/two"];
    const PATHS: [&str; 2] = ["fleet/rollout.yaml", "sites/b/rollout.yaml"];

    /// An event of a table. Contents are chosen by bits: two deployments, each absent or with one of three commands.
    #[derive(Debug, Clone)]
    enum Event {
        /// Contents, governing file and mistake of each device.
        Commit(Vec<(u8, u8, bool)>),
        Publish(usize),
        /// Another writer's document of a device: contents, of a request or of another commit.
        Foreign(usize, u8, bool),
        Follows,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            vec((any::<u8>(), 0..3_u8, any::<bool>()), DEVICES.len()).prop_map(Event::Commit),
            (1..5_usize).prop_map(Event::Publish),
            (0..DEVICES.len(), any::<u8>(), any::<bool>())
                .prop_map(|(device, bits, is_request)| Event::Foreign(device, bits, is_request)),
            Just(Event::Follows),
        ]
    }

    fn contents(bits: u8) -> Vec<Arc<Content>> {
        let one = |id: &str, bits: u8| {
            (!bits.is_multiple_of(4)).then(|| content(id, ["run", "walk", "rest"][usize::from(bits % 4) - 1]))
        };
        [one("api", bits), one("web", bits / 4)].into_iter().flatten().collect()
    }

    fn fleet(revision: String, devices: &[(u8, u8, bool)]) -> Fleet {
        let mut fleet = Fleet { revision, ..Fleet::default() };
        for (name, (bits, path, has_mistake)) in DEVICES.iter().zip(devices) {
            let key: DeviceKey = name.parse().unwrap();
            fleet.devices.insert(key.clone(), contents(*bits));
            if let Some(path) = PATHS.get(usize::from(*path)) {
                let rollout =
                    serde_json::from_str(r#"{"apiVersion": "muster/v1", "kind": "Rollout"}"#).unwrap();
                let file = RolloutFile { path: (*path).to_owned(), rollout };
                fleet.rollouts.insert(key.clone(), Arc::new(file));
            }
            if *has_mistake && bits % 3 == 0 {
                fleet.held_back.insert(key);
            }
        }
        fleet
    }

    fn foreign(bits: u8, is_request: bool, sequence: u64) -> PublishedState {
        let generation = Generation::new(sequence + 100).unwrap();
        let source =
            if is_request { request("asked") } else { Source::new(SourceKind::Git, "theirs".to_owned()) };
        let contents = contents(bits).into_iter();
        let requested = |content: Arc<Content>| {
            if is_request { Arc::new(content.requested_by(request("asked"))) } else { content }
        };
        let entries =
            contents.map(|content| Entry { content: requested(content), target: generation }).collect();
        let labels = Arc::default();
        let document = Document { generation, retired: false, source, labels, entries };
        let (generation, document) = (Some(generation), Some(document));
        PublishedState { sequence, generation, document, is_current: true, ..PublishedState::default() }
    }

    proptest! {
        #[test]
        fn index_and_counts_equal_rebuilt_ones_after_any_events(events in vec(event(), 1..30)) {
            let mut table = DeviceTable::default();
            for (at, event) in (1_u64..).zip(events) {
                match event {
                    Event::Commit(devices) => _ = table.accept(fleet(format!("c{at}"), &devices)),
                    Event::Publish(max) => {
                        for (key, draft) in table.next(max) {
                            table.stored(&key, draft, at, Timestamp::UNIX_EPOCH);
                        }
                    }
                    Event::Foreign(device, bits, is_request) => {
                        let key = DEVICES[device].parse().unwrap();
                        table.read_again(&key, foreign(bits, is_request, at));
                    }
                    Event::Follows => _ = table.follows(&BTreeSet::from(["theirs".to_owned()])),
                }
                let kept = (std::mem::take(&mut table.index), table.counts.clone());
                table.build_index();
                prop_assert_eq!((&kept.0, &kept.1), (&table.index, &table.counts));
            }
        }
    }
}
