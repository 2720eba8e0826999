//! Explains where a rollout stands: its sentence, the predicate that blocks it with its bound and the numbers, and the devices.
//! Pure.

use muster_contract::canonical::Digest;
use muster_contract::rollout::{Approvers, RolloutPhase, RolloutVerb, WaitsFor, Wave};
use muster_contract::{DeploymentId, DeviceKey, Timestamp};
use muster_domain::rollout::{ApprovalCount, Blocked, Gate, Known, RolloutProgress, Step, WaveState};
use serde::Serialize;

/// Devices that an explanation names of each group.
const NAMED_MAX: usize = 20;

/// Why a rollout stands where it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutWhy {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The content.
    pub digest: Digest,
    /// Path of the `rollout.yaml`.
    pub rollout: String,
    /// The commit.
    pub revision: String,
    /// The phase by decisions.
    pub phase: RolloutPhase,
    /// LEDGER up to this sequence gives the numbers.
    pub ledger_seq: u64,
    /// The reason, in one sentence.
    pub why: String,
    /// The deadline that ends the wait; absent if it is unbounded, or there is none because the rollout has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<RolloutDeadline>,
    /// Whether only devices, persons or commits end the wait.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unbounded: bool,
    /// The predicate that blocks it; absent if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Predicate>,
    /// The released devices of the wave that are not confirmed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceGroup>,
}

/// The end of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RolloutDeadline {
    /// Time of it.
    pub at: Timestamp,
    /// The decision at it.
    pub then: RolloutVerb,
}

/// A predicate that is not met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Predicate {
    /// The rule.
    pub rule: BlockingRule,
    /// The wave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wave: Option<String>,
    /// Targets that must be confirmed, of `targets`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needed: Option<u64>,
    /// Targets of the wave, without those that are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<u64>,
    /// Targets that are confirmed: the lower bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lo: Option<u64>,
    /// Targets that are not known to have failed: the upper bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hi: Option<u64>,
    /// The approvals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approvals: Option<ApprovalCount>,
    /// The persons whose approvals count; absent if everybody's do who may approve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approvers: Option<Approvers>,
    /// Time at which it may be met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Most devices that may be in flight, or unavailable in a group; for a budget with `minAvailable` the available ones that a
    /// group keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The rollouts that it comes after and that have not succeeded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<WaitsFor>,
}

/// The rule of a predicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum BlockingRule {
    /// The gate behind the wave: too few targets are confirmed.
    Gate,
    /// The gate behind the wave: too few targets are confirmed for the soak time.
    Soak,
    /// The wave, or its evidence, has too few approvals.
    Approval,
    /// The checks of the wave have not passed.
    Check,
    /// As many devices as allowed got the content within the last minute.
    Rate,
    /// As many devices as allowed are in flight.
    InFlight,
    /// The budget of the groups has no room.
    Budget,
    /// No window is open.
    Window,
    /// A rollout that it comes after has not succeeded.
    After,
    /// The wave has failed.
    Failure,
    /// A recorded decision holds or ends the rollout.
    Decision,
}

/// Devices of which the hub knows the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceGroup {
    /// The knowledge of them.
    pub known: Known,
    /// Their exact number.
    pub count: u64,
    /// The first of them.
    pub first: Vec<DeviceKey>,
    /// Time since which the first one of those that are not heard is silent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_since: Option<Timestamp>,
}

/// Explains a rollout.
pub fn explain(rollout: &RolloutProgress) -> RolloutWhy {
    let wave_at = rollout.state.step.wave();
    let wave = wave_at.and_then(|at| rollout.state.waves.get(at));
    let policy = wave_at.and_then(|at| rollout.policy.waves.get(at));
    let RolloutProgress { deployment, digest, file, revision, ledger_seq, .. } = rollout;
    RolloutWhy {
        deployment: deployment.clone(),
        digest: *digest,
        rollout: file.clone(),
        revision: revision.clone(),
        phase: rollout.phase(),
        ledger_seq: *ledger_seq,
        why: rollout.why(),
        deadline: rollout.deadline().map(|(at, then)| RolloutDeadline { at, then }),
        unbounded: rollout.is_unbounded(),
        blocked: predicate(rollout, wave, policy),
        devices: wave.map_or_else(Vec::new, |wave| groups(rollout, wave)),
    }
}

fn predicate(
    rollout: &RolloutProgress,
    wave: Option<&WaveState>,
    policy: Option<&Wave>,
) -> Option<Predicate> {
    let rule = blocking_rule(&rollout.state.step, wave)?;
    let until = match rollout.state.step {
        Step::Wait { because: Blocked::Window(next), .. } => next,
        Step::Wait { because: Blocked::Rate(next), .. } => Some(next),
        _ => None,
    };
    let limit = match rule {
        BlockingRule::InFlight => policy.and_then(|policy| policy.max_in_flight),
        BlockingRule::Budget => {
            let budget = rollout.policy.budget.as_ref();
            budget.and_then(|budget| budget.max_unavailable.or(budget.min_available))
        }
        _ => None,
    };
    let targets = wave.map(|wave| wave.tally.targets - wave.tally.debt);
    Some(Predicate {
        rule,
        wave: wave.map(|wave| wave.name.clone()),
        needed: wave.map(|wave| wave.needed(policy)),
        targets,
        lo: wave.map(|wave| wave.tally.confirmed),
        hi: wave.map(|wave| wave.tally.targets - wave.tally.debt - wave.tally.failed),
        approvals: wave.and_then(|wave| wave.approvals).filter(|_| rule == BlockingRule::Approval),
        approvers: rollout.policy.approvals.of.clone().filter(|_| rule == BlockingRule::Approval),
        until,
        limit: limit.map(|limit| limit.get()),
        waits_for: if rule == BlockingRule::After { rollout.waits_for.clone() } else { Vec::new() },
    })
}

/// The rule that blocks a step; `None` if none does.
fn blocking_rule(step: &Step, wave: Option<&WaveState>) -> Option<BlockingRule> {
    Some(match step {
        Step::Release { needs_approval: true, .. } | Step::Ready { .. } => BlockingRule::Approval,
        Step::Check { .. } => BlockingRule::Check,
        Step::Release { .. } | Step::Done => return None,
        Step::Fail { .. } => BlockingRule::Failure,
        Step::Held { .. } | Step::RollBack { .. } => BlockingRule::Decision,
        Step::Wait { because, .. } => match because {
            Blocked::Gate if wave.is_some_and(|wave| wave.gate == Gate::Soaking) => BlockingRule::Soak,
            Blocked::Gate | Blocked::NothingToRelease => BlockingRule::Gate,
            Blocked::InFlight => BlockingRule::InFlight,
            Blocked::Budget => BlockingRule::Budget,
            Blocked::Rate(_) => BlockingRule::Rate,
            Blocked::Approval => BlockingRule::Approval,
            Blocked::Window(_) => BlockingRule::Window,
            Blocked::After => BlockingRule::After,
        },
    })
}

/// The released devices of a wave that are not confirmed, by the hub's knowledge of each.
fn groups(rollout: &RolloutProgress, wave: &WaveState) -> Vec<DeviceGroup> {
    let of = |known: Known| {
        let members = wave.members.iter().filter(|at| rollout.known[**at] == known);
        let keys: Vec<_> = members.map(|at| rollout.targets[*at].key.clone()).collect();
        let silent = rollout.silent_since(wave).filter(|since| *since != Timestamp::MIN);
        let silent_since = silent.filter(|_| known == Known::NotHeard);
        let (count, first) = (keys.len() as u64, keys.into_iter().take(NAMED_MAX).collect());
        (count > 0).then_some(DeviceGroup { known, count, first, silent_since })
    };
    let all = [
        Known::Failed,
        Known::Overdue,
        Known::TriesAgain,
        Known::NotHeard,
        Known::ReportsMissing,
        Known::UnderWay,
        Known::NotInLedger,
    ];
    all.into_iter().filter_map(of).collect()
}
