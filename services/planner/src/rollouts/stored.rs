//! The listed targets of rollouts in the form of a checkpoint. A target names its device by a number in a list of all devices.
//!
//! A checkpoint holds no decision: a restored rollout is judged only once the publisher has answered about its decisions, for the
//! same commit, and only if its list was copied a short time ago by LEDGER's time. Otherwise its targets are listed first.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::rollout::Rollout;
use muster_contract::{DeploymentId, DeviceKey, Generation, Timestamp};
use muster_domain::fold::DeviceNumber;
use muster_domain::rollout::{Content, LiveRollout, LiveTarget, RolloutId, TargetDevice};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{DeviceByKey, LISTED_FOR, TrackedDeployment, TrackedRollout, TrackedRollouts};
use crate::evidence::Evidence;

/// A device of a checkpoint, and its number in the restored fleet.
type ListedDevice = (Arc<TargetDevice>, Option<DeviceNumber>);

/// The number of each device in a checkpoint.
pub(crate) type DeviceNumbers = HashMap<DeviceKey, u32>;

/// The listed targets of a deployment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoredDeployment {
    deployment: DeploymentId,
    revision: String,
    /// Time that listing took, in milliseconds.
    listing_ms: u64,
    /// LEDGER's time of the copy, if it was known.
    copied_at: Option<Timestamp>,
    /// Age of the list then, in milliseconds.
    age_ms: u64,
    /// Whether the targets may have changed since they were listed.
    is_outdated: bool,
    rollouts: Vec<StoredRollout>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct StoredRollout {
    file: String,
    digest: Digest,
    policy: Rollout,
    targets: Vec<StoredTarget>,
}

/// The number of the device, whether it has the content, whether the publisher's list refuses it, and generation and time (nanoseconds
/// since 1970) at which it got the content.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct StoredTarget(u32, bool, bool, Option<Generation>, Option<i64>);

/// The age of a restored list.
#[derive(Debug, Clone, Copy)]
pub(super) struct RestoredList {
    /// LEDGER's time of the copy, if it was known.
    copied_at: Option<Timestamp>,
    /// Age of the list then.
    age: Duration,
}

impl RestoredList {
    /// The age of the list now; `None` if the copy is too old for decisions, or its age is unknown.
    pub(super) fn age(self, ledger_time: Option<Timestamp>) -> Option<Duration> {
        // LEDGER's time is read to within seconds, so that the copy may seem to be from the future.
        let since_copy = ledger_time?.duration_since(self.copied_at?).unsigned_abs();
        if since_copy <= LISTED_FOR { Some(self.age + since_copy) } else { None }
    }
}

impl StoredTarget {
    fn of(target: &LiveTarget, numbers: &DeviceNumbers) -> Option<Self> {
        let LiveTarget { device, content, is_refused } = target;
        let at = content.at.and_then(|at| i64::try_from(at.as_nanosecond()).ok());
        Some(Self(*numbers.get(&device.key)?, content.is_wanted, *is_refused, content.generation, at))
    }

    fn target(self, devices: &[ListedDevice]) -> Option<(LiveTarget, Option<DeviceNumber>)> {
        let Self(number, is_wanted, is_refused, generation, at) = self;
        let at = at.and_then(|at| Timestamp::from_nanosecond(at.into()).ok());
        let content = Content { is_wanted, generation, at };
        let (device, in_fleet) = devices.get(usize::try_from(number).ok()?)?.clone();
        Some((LiveTarget { device, content, is_refused }, in_fleet))
    }
}

impl TrackedRollouts {
    /// The devices of all rollouts.
    pub(crate) fn devices(&self) -> Vec<Arc<TargetDevice>> {
        self.devices.iter().map(|DeviceByKey(device)| device.clone()).collect()
    }

    /// The deployments with rollouts.
    pub(crate) fn deployments(&self) -> Vec<DeploymentId> {
        self.deployments.keys().cloned().collect()
    }

    /// The listed targets of a deployment, copied at LEDGER's time; `None` if it is not followed, or has a device without a number.
    pub(crate) fn stored(
        &self,
        id: &DeploymentId,
        numbers: &DeviceNumbers,
        ledger_time: Option<Timestamp>,
    ) -> Option<StoredDeployment> {
        let TrackedDeployment { revision, rollouts, listed: (listed_at, took), is_outdated, restored } =
            self.deployments.get(id)?;
        let listed_here = RestoredList { copied_at: ledger_time, age: listed_at.elapsed() };
        let RestoredList { copied_at, age } = restored.unwrap_or(listed_here);
        let of_rollout = |TrackedRollout { live, .. }: &TrackedRollout| {
            let targets = live.listed_targets().map(|target| StoredTarget::of(&target, numbers));
            Some(StoredRollout {
                file: live.file().to_owned(),
                digest: live.digest(),
                policy: live.policy().clone(),
                targets: targets.collect::<Option<_>>()?,
            })
        };
        Some(StoredDeployment {
            deployment: id.clone(),
            revision: revision.clone(),
            listing_ms: milliseconds(*took),
            copied_at,
            age_ms: milliseconds(age),
            is_outdated: *is_outdated,
            rollouts: rollouts.iter().map(of_rollout).collect::<Option<_>>()?,
        })
    }

    /// Follows the stored deployments, with the evidence about each of their targets. It works on all processors, because millions of
    /// targets take seconds. A deployment with a target that has no device is not followed.
    pub(crate) fn restore(
        &mut self,
        devices: Vec<TargetDevice>,
        stored: Vec<StoredDeployment>,
        evidence: &Evidence,
        now: Instant,
    ) {
        let with_number = |TargetDevice { key, labels }| {
            let number = evidence.number(&key);
            (Arc::new(TargetDevice { key: evidence.shared_key(key), labels }), number)
        };
        let devices: Vec<ListedDevice> = devices.into_iter().map(with_number).collect();
        self.devices.extend(devices.iter().map(|(device, _)| DeviceByKey(device.clone())));
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(stored.len());
        let left = Mutex::new(stored.into_iter());
        let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
        let tracked =
            || std::iter::from_fn(next).filter_map(|stored| stored.tracked(&devices, evidence, now));
        thread::scope(|scope| {
            let threads: Vec<_> =
                (0..processors).map(|_| scope.spawn(|| tracked().collect::<Vec<_>>())).collect();
            // The planner lists the deployments of a thread that has panicked, as it lists new ones.
            self.deployments.extend(threads.into_iter().filter_map(|thread| thread.join().ok()).flatten());
        });
    }
}

impl StoredDeployment {
    fn tracked(
        self,
        devices: &[ListedDevice],
        evidence: &Evidence,
        now: Instant,
    ) -> Option<(DeploymentId, TrackedDeployment)> {
        let Self { deployment, revision, listing_ms, copied_at, age_ms, is_outdated, rollouts } = self;
        let line = evidence.target_lines(&deployment);
        let of_rollout = |StoredRollout { file, digest, policy, targets }: StoredRollout| {
            let targets = targets.into_iter().map(|target| target.target(devices));
            let (targets, numbers): (Vec<_>, Vec<_>) =
                targets.collect::<Option<Vec<_>>>()?.into_iter().unzip();
            let id = RolloutId { deployment: deployment.clone(), digest };
            let live = LiveRollout::new(id, file, revision.clone(), policy, targets);
            let mut rollout = TrackedRollout { has_decisions: false, ..TrackedRollout::new(live) };
            for (at, number) in numbers.into_iter().enumerate() {
                rollout.live.observe(at, Some(&line(number)));
            }
            Some(rollout)
        };
        let rollouts = rollouts.into_iter().map(of_rollout).collect::<Option<Vec<_>>>()?;
        let listed = (now, Duration::from_millis(listing_ms));
        let restored = Some(RestoredList { copied_at, age: Duration::from_millis(age_ms) });
        let tracked =
            TrackedDeployment { revision: revision.clone(), rollouts, listed, is_outdated, restored };
        Some((deployment, tracked))
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
