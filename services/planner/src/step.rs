//! The effects of a rollout's next step: the requests to the publisher, in their order. Pure: it sends nothing, and asks for
//! nothing.

use muster_contract::limits::{DECISION_REASON_BYTES_MAX, RELEASE_DEVICES_MAX, ROLLBACK_DEVICES_MAX};
use muster_contract::rollout::{
    CheckResult, DecideRequest, GateEvidence, ReleaseRequest, RolloutPhase, RolloutVerb,
};
use muster_contract::state::cut;
use muster_contract::{DeviceKey, WaveName};
use muster_domain::rollout::{RolloutProgress, Step};

/// A request to the publisher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Record a decision.
    Decide(DecideRequest),
    /// Release a content, or take it back.
    Release(ReleaseRequest),
}

/// A decision to be recorded.
struct Decision {
    verb: RolloutVerb,
    wave: Option<WaveName>,
    reason: Option<String>,
    evidence: Option<GateEvidence>,
    result: Option<CheckResult>,
}

impl Decision {
    const fn new(verb: RolloutVerb) -> Self {
        Self { verb, wave: None, reason: None, evidence: None, result: None }
    }

    /// The decision about a wave, with its evidence.
    fn about(self, rollout: &RolloutProgress, at: usize) -> Self {
        let wave = rollout.state.waves.get(at).and_then(|wave| wave.name.parse().ok());
        Self { wave, evidence: rollout.evidence(at), ..self }
    }
}

/// The effects of a rollout's next step; none if it waits for devices, persons or checks. Each is requested once the one before it
/// has succeeded. Devices that would be refused are left out.
pub(crate) fn effects(rollout: &RolloutProgress, is_refused: &dyn Fn(&DeviceKey) -> bool) -> Vec<Effect> {
    match &rollout.state.step {
        Step::Release { wave, targets, needs_approval: false } => {
            release_wave(rollout, *wave, &devices(rollout, targets, is_refused))
        }
        Step::RollBack { targets } => roll_back(rollout, &devices(rollout, targets, is_refused)),
        Step::Fail { wave, because, verb } => {
            let reason = rollout.state.waves.get(*wave).map(|wave| rollout.failure(wave, *because));
            let evidence = rollout.evidence(*wave);
            vec![decide(rollout, Decision { reason, evidence, ..Decision::new(*verb) })]
        }
        Step::Ready { wave } => {
            vec![decide(rollout, Decision::new(RolloutVerb::Ready).about(rollout, *wave))]
        }
        Step::Done if rollout.record.is_some() && rollout.phase() == RolloutPhase::Running => {
            let evidence = rollout.last_evidence();
            vec![decide(rollout, Decision { evidence, ..Decision::new(RolloutVerb::Finish) })]
        }
        Step::Release { .. } | Step::Check { .. } | Step::Wait { .. } | Step::Held { .. } | Step::Done => {
            Vec::new()
        }
    }
}

/// The request to record the result of a wave's checks.
pub(crate) fn check_decision(
    rollout: &RolloutProgress,
    at: usize,
    result: CheckResult,
    reason: String,
) -> DecideRequest {
    let decision = Decision::new(RolloutVerb::Check).about(rollout, at);
    request(rollout, Decision { reason: Some(reason), result: Some(result), ..decision })
}

/// Releases to devices of a wave. The record that the wave begins comes first, so no release lacks its evidence.
fn release_wave(rollout: &RolloutProgress, at: usize, devices: &[DeviceKey]) -> Vec<Effect> {
    let begin = rollout.begin(at).map(|(name, evidence)| {
        decide(rollout, Decision { wave: Some(name), evidence, ..Decision::new(RolloutVerb::Begin) })
    });
    let mut released: u64 = rollout.state.waves.iter().map(|wave| wave.tally.released).sum();
    let releases = devices.chunks(RELEASE_DEVICES_MAX).map(|devices| {
        let before = Some(released);
        released += devices.len() as u64;
        let digest = Some(rollout.digest);
        Effect::Release(ReleaseRequest { digest, released: before, ..release_of(rollout, devices) })
    });
    begin.into_iter().chain(releases).collect()
}

/// Gives devices of a rollout that is rolled back the content that they had before.
fn roll_back(rollout: &RolloutProgress, devices: &[DeviceKey]) -> Vec<Effect> {
    let releases = devices.chunks(ROLLBACK_DEVICES_MAX).map(|devices| {
        Effect::Release(ReleaseRequest { before: Some(rollout.digest), ..release_of(rollout, devices) })
    });
    releases.collect()
}

fn decide(rollout: &RolloutProgress, decision: Decision) -> Effect {
    Effect::Decide(request(rollout, decision))
}

fn request(rollout: &RolloutProgress, decision: Decision) -> DecideRequest {
    let Decision { verb, wave, reason, evidence, result } = decision;
    DecideRequest {
        deployment: rollout.deployment.clone(),
        digest: rollout.digest,
        rollout: rollout.file.clone(),
        verb,
        wave,
        reason: reason.map(|reason| cut(reason, DECISION_REASON_BYTES_MAX)),
        evidence,
        result,
        // A person may have decided since the round has judged the rollout.
        expected: Some(rollout.phase()),
        // A commit may have changed the policy since.
        revision: Some(rollout.revision.clone()),
        record: None,
    }
}

/// The targets that a step gives another content.
pub(crate) fn released(step: &Step) -> &[usize] {
    match step {
        Step::Release { targets, .. } | Step::RollBack { targets } => targets,
        Step::Check { .. }
        | Step::Ready { .. }
        | Step::Wait { .. }
        | Step::Fail { .. }
        | Step::Held { .. }
        | Step::Done => &[],
    }
}

/// The devices of targets that are not refused.
fn devices(
    rollout: &RolloutProgress,
    targets: &[usize],
    is_refused: &dyn Fn(&DeviceKey) -> bool,
) -> Vec<DeviceKey> {
    let keys = targets.iter().map(|at| &rollout.targets[*at].key);
    keys.filter(|key| !is_refused(key)).cloned().collect()
}

/// A release of no content to devices, for the commit of the rollout.
fn release_of(rollout: &RolloutProgress, devices: &[DeviceKey]) -> ReleaseRequest {
    let revision = Some(rollout.revision.clone());
    ReleaseRequest { revision, ..ReleaseRequest::new(rollout.deployment.clone(), devices.to_vec()) }
}
