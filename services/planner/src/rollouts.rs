//! The rollouts that the planner follows, each with a row for every target. Facts change rows and mark their rollouts. This module
//! judges no rollout and sends no request.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::rollout::{ReleaseRefusal, RolloutRecord, RolloutTarget, TargetsAnswer, WaitsFor};
use muster_contract::{DeploymentId, DeviceKey, Timestamp};
use muster_domain::rollout::{Content, LiveRollout, LiveTarget, RolloutId, TargetDevice};
use tokio::time::Instant;

pub(crate) use self::listing::Listing;
use self::stored::RestoredList;
use crate::evidence::{ChangedByFacts, Document, Evidence};

mod listing;
pub(crate) mod stored;

/// Time after which the targets of a deployment are listed again: a request may have replaced a deployment on a device, or the
/// publisher may have begun to refuse one.
pub(crate) const LISTED_FOR: Duration = Duration::from_secs(60);
/// Listing may take one part in so many of the planner's time.
const LISTING_SHARE: u32 = 20;
/// Time in which LEDGER must show a release that the publisher has confirmed; afterwards the targets are listed again.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);

/// A rollout: deployment, content and path of the `rollout.yaml`.
pub(crate) type RolloutKey = (DeploymentId, Digest, String);

/// The rollouts of all deployments with a held change or an open rollout.
#[derive(Debug, Default)]
pub(crate) struct TrackedRollouts {
    deployments: BTreeMap<DeploymentId, TrackedDeployment>,
    /// The devices of all rollouts, each by its name.
    devices: HashSet<DeviceByKey>,
}

/// The rollouts of a deployment.
#[derive(Debug)]
struct TrackedDeployment {
    revision: String,
    rollouts: Vec<TrackedRollout>,
    /// When the list of its targets was complete, and how long listing took.
    listed: (Instant, Duration),
    /// Whether its targets may have changed since.
    is_outdated: bool,
    /// The age of a restored list, until LEDGER's time shows whether decisions may rest on it.
    restored: Option<RestoredList>,
}

/// A device that is found by its name.
#[derive(Debug)]
pub(crate) struct DeviceByKey(Arc<TargetDevice>);

impl Borrow<DeviceKey> for DeviceByKey {
    fn borrow(&self) -> &DeviceKey {
        &self.0.key
    }
}

impl Hash for DeviceByKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key.hash(state);
    }
}

impl PartialEq for DeviceByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for DeviceByKey {}

/// A rollout that is followed.
#[derive(Debug)]
pub(crate) struct TrackedRollout {
    pub(crate) live: LiveRollout,
    /// Whether the publisher has answered about its decisions. The targets of a checkpoint are not judged before that.
    has_decisions: bool,
    /// Whether a fact, a decision or an answer has changed it since the last judgement.
    pub(crate) is_touched: bool,
    /// Time of the next judgement. A touched rollout is judged earlier, unless a request has failed.
    pub(crate) due: Option<Instant>,
    /// Whether a request of the last step has failed.
    pub(crate) has_failed: bool,
    /// The devices that were refused, with the time from which a release to each is requested again, unless its list refuses it.
    pub(crate) refusals: BTreeMap<DeviceKey, Refusal>,
    /// When the publisher confirmed a release that LEDGER may not show yet.
    pub(crate) answered_at: Option<Instant>,
    /// The step that was logged last.
    pub(crate) logged: String,
}

/// A refused release.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refusal {
    pub(crate) reason: ReleaseRefusal,
    pub(crate) until: Instant,
}

impl TrackedRollout {
    fn new(live: LiveRollout) -> Self {
        let (refusals, logged) = (BTreeMap::new(), String::new());
        let (due, answered_at) = (None, None);
        let (has_decisions, is_touched, has_failed) = (true, true, false);
        Self { live, has_decisions, is_touched, due, has_failed, refusals, answered_at, logged }
    }

    pub(crate) fn key(&self) -> RolloutKey {
        (self.live.deployment().clone(), self.live.digest(), self.live.file().to_owned())
    }

    /// Whether it must be judged now.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let is_time = self.due.is_some_and(|due| due <= now);
        self.has_decisions && (is_time || self.is_touched && !self.has_failed)
    }

    /// Forgets refusals whose time is over.
    pub(crate) fn forget_refusals(&mut self, now: Instant) {
        let Self { live, refusals, .. } = self;
        refusals.retain(|key, refusal| {
            let is_kept = refusal.until > now;
            if let Some(at) = live.find(key).filter(|_| !is_kept) {
                live.set_refused_by_answer(at, false);
            }
            is_kept
        });
    }
}

impl TrackedRollouts {
    /// All rollouts.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = &mut TrackedRollout> {
        self.deployments.values_mut().flat_map(|tracked| &mut tracked.rollouts)
    }

    /// Whether a rollout must be judged now.
    pub(crate) fn has_due(&mut self, now: Instant) -> bool {
        self.all().any(|rollout| rollout.is_due(now))
    }

    /// The rollout of a key.
    pub(crate) fn rollout(&mut self, (id, digest, file): &RolloutKey) -> Option<&mut TrackedRollout> {
        let rollouts = &mut self.deployments.get_mut(id)?.rollouts;
        rollouts.iter_mut().find(|rollout| rollout.live.digest() == *digest && rollout.live.file() == file)
    }

    /// Drops the rollouts of all other deployments.
    pub(crate) fn retain(&mut self, ids: &BTreeSet<DeploymentId>) {
        self.deployments.retain(|id, _| ids.contains(id));
        self.devices.retain(|DeviceByKey(device)| Arc::strong_count(device) > 1);
    }

    /// Applies the commit, the decisions of a deployment and the rollouts that it waits for, at a moment and LEDGER's time then. False if
    /// its targets must be listed. A restored list that is too old, or of unknown age, gets no decisions: nothing is judged before it
    /// is listed again.
    pub(crate) fn set_head(
        &mut self,
        id: &DeploymentId,
        head: &TargetsAnswer,
        now: Instant,
        ledger_time: Option<Timestamp>,
    ) -> bool {
        let deployments = u32::try_from(self.deployments.len()).unwrap_or(u32::MAX);
        let Some(tracked) = self.deployments.get_mut(id) else { return false };
        if tracked.revision != head.revision {
            return false;
        }
        if let Some(restored) = tracked.restored {
            let listed_at = restored.age(ledger_time).and_then(|age| now.checked_sub(age));
            let Some(listed_at) = listed_at else { return false };
            (tracked.listed.0, tracked.restored) = (listed_at, None);
        }
        for rollout in &mut tracked.rollouts {
            let record = record_of(&head.decisions, &rollout.live);
            rollout.is_touched |= rollout.live.set_record(record);
            rollout.is_touched |= rollout.live.set_waits_for(waits_of(&head.waits_for, &rollout.live));
            rollout.has_decisions = true;
        }
        tracked.is_outdated |= tracked.rollouts.iter_mut().any(|rollout| rollout.is_unshown(now));
        let (at, took) = tracked.listed;
        let (age, rest) = (now.duration_since(at), took * LISTING_SHARE);
        let is_due = tracked.is_outdated && age > rest || age > LISTED_FOR.max(rest * deployments);
        !is_due
    }

    /// Marks the targets of a deployment as out of date.
    pub(crate) fn outdate(&mut self, id: &DeploymentId) {
        if let Some(tracked) = self.deployments.get_mut(id) {
            tracked.is_outdated = true;
        }
    }

    /// Marks the targets of a deployment as out of date if they were listed so long ago.
    pub(crate) fn outdate_older(&mut self, id: &DeploymentId, age: Duration) {
        if let Some(tracked) = self.deployments.get_mut(id) {
            tracked.is_outdated |= tracked.listed.0.elapsed() >= age;
        }
    }

    /// Replaces the rollouts of a deployment by those of its targets, whose list is complete now. Observe the deployment afterwards.
    pub(crate) fn insert(&mut self, listing: Listing, now: Instant) {
        let Listing { id, began, answer, groups, .. } = listing;
        let Some(TargetsAnswer { revision, rollouts: policies, decisions, waits_for, .. }) = answer else {
            return;
        };
        let mut before = self.deployments.remove(&id).map(|tracked| tracked.rollouts).unwrap_or_default();
        let mut rollouts = Vec::new();
        for ((file, digest), targets) in groups {
            let Some(policy) = policies.get(&file).cloned() else { continue };
            let rollout_id = RolloutId { deployment: id.clone(), digest };
            let mut live = LiveRollout::new(rollout_id, file, revision.clone(), policy, targets);
            live.set_record(record_of(&decisions, &live));
            live.set_waits_for(waits_of(&waits_for, &live));
            let mut rollout = TrackedRollout::new(live);
            if let Some(at) = before.iter().position(|old| old.key() == rollout.key()) {
                let old = before.swap_remove(at);
                (rollout.refusals, rollout.logged) = (old.refusals, old.logged);
                rollout.due = old.due;
                rollout.recall_refusals();
            }
            rollouts.push(rollout);
        }
        let listed = (now, now.duration_since(began));
        let tracked = TrackedDeployment { revision, rollouts, listed, is_outdated: false, restored: None };
        self.deployments.insert(id, tracked);
    }

    /// A target with its device, which the rollouts of the device share.
    fn target(&mut self, target: RolloutTarget, evidence: &Evidence) -> LiveTarget {
        let content = Content {
            is_wanted: target.published == target.wanted,
            generation: target.target_generation,
            at: target.published_at,
        };
        let known =
            self.devices.get(&target.key).filter(|DeviceByKey(device)| device.labels == target.labels);
        let device = known.map(|DeviceByKey(device)| device.clone()).unwrap_or_else(|| {
            let key = evidence.shared_key(target.key);
            let device = Arc::new(TargetDevice { key, labels: target.labels });
            self.devices.replace(DeviceByKey(device.clone()));
            device
        });
        LiveTarget { device, content, is_refused: target.refused.is_some() }
    }

    /// Counts the devices and documents that facts have changed.
    pub(crate) fn observe(&mut self, touched: &ChangedByFacts, evidence: &Evidence) {
        for document in &touched.documents {
            self.apply_document(document);
        }
        for rollout in self.all() {
            if touched.all {
                rollout.observe_all(evidence);
                rollout.is_touched = true;
                continue;
            }
            for key in &touched.devices {
                if let Some(at) = rollout.live.find(key) {
                    rollout.is_touched |= rollout.observe(at, evidence);
                }
            }
        }
    }

    /// Counts all targets of a deployment.
    pub(crate) fn observe_deployment(&mut self, id: &DeploymentId, evidence: &Evidence) {
        for rollout in self.deployments.get_mut(id).into_iter().flat_map(|tracked| &mut tracked.rollouts) {
            rollout.observe_all(evidence);
        }
    }

    /// Applies the contents that a document gives a device.
    pub(crate) fn apply_document(&mut self, document: &Document) {
        let Document { key, generation, at: issued_at, is_retired, entries } = document;
        if !self.devices.contains(key) {
            return;
        }
        for (id, tracked) in &mut self.deployments {
            let entry = entries.iter().find(|entry| entry.id == *id);
            let targets = tracked.rollouts.iter_mut().filter_map(|rollout| {
                let at = rollout.live.find(key)?;
                Some((rollout, at))
            });
            for (rollout, at) in targets {
                tracked.is_outdated |= *is_retired || entry.is_some_and(|entry| entry.is_requested);
                let content = Content {
                    is_wanted: entry.is_some_and(|entry| entry.digest == rollout.live.digest()),
                    generation: entry.map(|entry| entry.generation),
                    at: Some(*issued_at),
                };
                rollout.live.set_content(at, content, *generation);
            }
        }
    }
}

impl TrackedRollout {
    fn observe(&mut self, at: usize, evidence: &Evidence) -> bool {
        let Some(key) = self.live.key(at) else { return false };
        let line = evidence.target_line(self.live.deployment(), key);
        self.live.observe(at, Some(&line))
    }

    fn observe_all(&mut self, evidence: &Evidence) {
        for at in 0..self.live.targets() {
            self.observe(at, evidence);
        }
    }

    /// Whether LEDGER has failed to show a release in time. Clears the time of the release.
    fn is_unshown(&mut self, now: Instant) -> bool {
        let is_over = |at: &mut Instant| now.duration_since(*at) > SHOWN_WITHIN;
        self.answered_at.take_if(is_over).is_some() && self.live.awaits_ledger()
    }

    fn recall_refusals(&mut self) {
        for key in self.refusals.keys() {
            if let Some(at) = self.live.find(key) {
                self.live.set_refused_by_answer(at, true);
            }
        }
    }
}

fn record_of(decisions: &[RolloutRecord], rollout: &LiveRollout) -> Option<RolloutRecord> {
    let is_of =
        |record: &&RolloutRecord| record.digest == rollout.digest() && record.rollout == rollout.file();
    decisions.iter().find(is_of).cloned()
}

/// The rollouts that a rollout waits for.
fn waits_of(of_files: &BTreeMap<String, Vec<WaitsFor>>, rollout: &LiveRollout) -> Vec<WaitsFor> {
    of_files.get(rollout.file()).cloned().unwrap_or_default()
}
