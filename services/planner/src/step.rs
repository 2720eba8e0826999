//! The effects of a rollout's next step: the requests to the publisher, in their order. Pure: it sends nothing, and asks for
//! nothing.

use muster_contract::limits::{DECISION_REASON_BYTES_MAX, RELEASE_DEVICES_MAX, ROLLBACK_DEVICES_MAX};
use muster_contract::rollout::{DecideRequest, GateEvidence, ReleaseRequest, RolloutPhase, RolloutVerb};
use muster_contract::state::cut;
use muster_contract::{DeviceKey, WaveName};
use muster_domain::rollout::{RolloutProgress, Step};

/// A request to the publisher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Record a decision.
    Decide(DecideRequest),
    /// Release a content, or take it back.
    Release(ReleaseRequest),
}

/// The effects of a rollout's next step; none if it waits for devices or persons. Each is requested once the one before it has
/// succeeded.
pub fn effects(rollout: &RolloutProgress) -> Vec<Effect> {
    match &rollout.state.step {
        Step::Release { wave, targets, needs_approval: false } => release_wave(rollout, *wave, targets),
        Step::RollBack { targets } => roll_back(rollout, targets),
        Step::Fail { wave, because, verb } => {
            let reason = rollout.state.waves.get(*wave).map(|wave| rollout.failure(wave, *because));
            vec![decide(rollout, *verb, None, reason, rollout.evidence(*wave))]
        }
        Step::Done if rollout.record.is_some() && rollout.phase() == RolloutPhase::Running => {
            vec![decide(rollout, RolloutVerb::Finish, None, None, None)]
        }
        Step::Release { .. } | Step::Wait { .. } | Step::Held { .. } | Step::Done => Vec::new(),
    }
}

/// Releases to targets of a wave. The record that the wave begins comes first, so no release lacks its evidence.
fn release_wave(rollout: &RolloutProgress, at: usize, targets: &[usize]) -> Vec<Effect> {
    let begin = rollout.begin(at);
    let begin = begin.map(|(name, evidence)| decide(rollout, RolloutVerb::Begin, Some(name), None, evidence));
    let has_content = rollout.targets.iter().filter(|target| target.published == target.wanted);
    let mut released = has_content.count() as u64;
    let releases = groups(rollout, targets, RELEASE_DEVICES_MAX).map(|devices| {
        let before = Some(released);
        released += devices.len() as u64;
        let digest = Some(rollout.digest);
        Effect::Release(ReleaseRequest { digest, released: before, ..release_of(rollout, devices) })
    });
    begin.into_iter().chain(releases).collect()
}

/// Gives targets of a rollout that is rolled back the content that they had before.
fn roll_back(rollout: &RolloutProgress, targets: &[usize]) -> Vec<Effect> {
    let releases = groups(rollout, targets, ROLLBACK_DEVICES_MAX).map(|devices| {
        Effect::Release(ReleaseRequest { before: Some(rollout.digest), ..release_of(rollout, devices) })
    });
    releases.collect()
}

/// A decision about a rollout.
fn decide(
    rollout: &RolloutProgress,
    verb: RolloutVerb,
    wave: Option<WaveName>,
    reason: Option<String>,
    evidence: Option<GateEvidence>,
) -> Effect {
    Effect::Decide(DecideRequest {
        deployment: rollout.deployment.clone(),
        digest: rollout.digest,
        rollout: rollout.file.clone(),
        verb,
        wave,
        reason: reason.map(|reason| cut(reason, DECISION_REASON_BYTES_MAX)),
        evidence,
        // A person may have decided since the round has judged the rollout.
        expected: Some(rollout.phase()),
        // A commit may have changed the policy since.
        revision: Some(rollout.revision.clone()),
    })
}

/// The devices of targets, in groups of `max`.
fn groups<'a>(
    rollout: &'a RolloutProgress,
    targets: &'a [usize],
    max: usize,
) -> impl Iterator<Item = Vec<DeviceKey>> + 'a {
    let key = |at: &usize| rollout.targets[*at].key.clone();
    targets.chunks(max).map(move |some| some.iter().map(key).collect())
}

/// A release of no content to devices, for the commit of the rollout.
fn release_of(rollout: &RolloutProgress, devices: Vec<DeviceKey>) -> ReleaseRequest {
    let revision = Some(rollout.revision.clone());
    ReleaseRequest { revision, ..ReleaseRequest::new(rollout.deployment.clone(), devices) }
}
