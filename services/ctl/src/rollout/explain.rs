//! Explains where a rollout stands: the predicate that blocks it, with its bound and the numbers, and the devices. Pure.

use muster_contract::canonical::Digest;
use muster_contract::rollout::{Rollout, RolloutPhase, Wave};
use muster_contract::{DeploymentId, DeviceKey, Timestamp};
use muster_domain::rollout::{
    ApprovalCount, Blocked, Gate, Known, Lines, RolloutProgress, Step, WaveState, listed,
};
use serde::Serialize;

use crate::render::format::span;

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
    /// The predicate that blocks it; absent if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Predicate>,
    /// The released devices of the wave that are not confirmed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceGroup>,
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
    /// Time at which it may be met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Most devices that may be in flight, or unavailable in a group; for a budget with `minAvailable` the available ones that a
    /// group keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
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

/// Explains a rollout by its file and the lines that it was judged by.
pub(super) fn explain(rollout: &RolloutProgress, file: Option<&Rollout>, lines: &Lines) -> RolloutWhy {
    let wave_at = match &rollout.state.step {
        Step::Release { wave, .. }
        | Step::Check { wave }
        | Step::Ready { wave }
        | Step::Wait { wave, .. }
        | Step::Fail { wave, .. } => Some(*wave),
        Step::Held { .. } | Step::RollBack { .. } | Step::Done => None,
    };
    let wave = wave_at.and_then(|at| rollout.state.waves.get(at));
    let devices = wave.map_or_else(Vec::new, |wave| groups(rollout, wave, lines));
    let blocked = predicate(rollout, file, wave);
    let why = match (&blocked, wave) {
        (Some(predicate), Some(wave)) => sentence(predicate, wave, rollout, file, &devices),
        _ => None,
    };
    let RolloutProgress { deployment, digest, file, revision, ledger_seq, .. } = rollout;
    RolloutWhy {
        deployment: deployment.clone(),
        digest: *digest,
        rollout: file.clone(),
        revision: revision.clone(),
        phase: rollout.phase(),
        ledger_seq: *ledger_seq,
        why: why.unwrap_or_else(|| rollout.why()),
        blocked,
        devices,
    }
}

fn predicate(
    rollout: &RolloutProgress,
    file: Option<&Rollout>,
    wave: Option<&WaveState>,
) -> Option<Predicate> {
    let policy = wave.and_then(|wave| policy(file?, &wave.name));
    let rule = blocking_rule(&rollout.state.step, wave)?;
    let until = match rollout.state.step {
        Step::Wait { because: Blocked::Window(next), .. } => next,
        Step::Wait { because: Blocked::Rate(next), .. } => Some(next),
        _ => None,
    };
    let limit = match rule {
        BlockingRule::InFlight => policy.and_then(|policy| policy.max_in_flight).map(|limit| limit.get()),
        BlockingRule::Budget => file
            .and_then(|file| file.budget.as_ref())
            .and_then(|budget| budget.max_unavailable.or(budget.min_available))
            .map(|limit| limit.get()),
        _ => None,
    };
    let targets = wave.map(|wave| wave.tally.targets - wave.tally.debt);
    let share = policy.map_or(100, |policy| u64::from(policy.success.at_least.get()));
    Some(Predicate {
        rule,
        wave: wave.map(|wave| wave.name.clone()),
        needed: targets.map(|targets| (targets * share).div_ceil(100)),
        targets,
        lo: wave.map(|wave| wave.tally.confirmed),
        hi: wave.map(|wave| wave.tally.targets - wave.tally.debt - wave.tally.failed),
        approvals: wave.and_then(|wave| wave.approvals).filter(|_| rule == BlockingRule::Approval),
        until,
        limit,
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
            Blocked::Gate => BlockingRule::Gate,
            Blocked::InFlight => BlockingRule::InFlight,
            Blocked::Budget => BlockingRule::Budget,
            Blocked::Rate(_) => BlockingRule::Rate,
            Blocked::Approval => BlockingRule::Approval,
            Blocked::Window(_) => BlockingRule::Window,
        },
    })
}

/// The wave of a file with this name; `None` is the wave of unmatched devices, or of a file without waves.
fn policy<'a>(file: &'a Rollout, name: &str) -> Option<&'a Wave> {
    file.waves.iter().find(|wave| wave.name.as_str() == name)
}

fn sentence(
    predicate: &Predicate,
    wave: &WaveState,
    rollout: &RolloutProgress,
    file: Option<&Rollout>,
    devices: &[DeviceGroup],
) -> Option<String> {
    let name = &wave.name;
    let rest = if devices.is_empty() { String::new() } else { format!(": {}", in_words(devices)) };
    Some(match predicate.rule {
        BlockingRule::Gate => format!("the gate behind wave {name} {}{rest}", bounds(predicate)),
        BlockingRule::Soak => {
            let soak = file.and_then(|file| policy(file, name)).map(|policy| span(policy.soak.as_secs()));
            let (bounds, soaked, soak) = (bounds(predicate), wave.tally.soaked, soak.unwrap_or_default());
            format!("the gate behind wave {name} {bounds}, {soaked} of them for {soak}{rest}")
        }
        BlockingRule::Approval => {
            let (ApprovalCount { given, needed }, id) = (predicate.approvals?, &rollout.deployment);
            format!(
                "wave {name} has {given} of {needed} approvals: `muster rollout approve {id} --wave {name}` gives one"
            )
        }
        BlockingRule::InFlight => {
            let limit = predicate.limit.unwrap_or_default();
            format!("wave {name} may have {limit} devices in flight, and has as many{rest}")
        }
        BlockingRule::Budget => {
            let budget = file.and_then(|file| file.budget.as_ref())?;
            let (group, limit) = (&budget.group_by, predicate.limit.unwrap_or_default());
            let bound = match budget.max_unavailable {
                Some(_) => format!("has {limit} or more devices unavailable"),
                None => format!("must keep {limit} devices available, and has no more"),
            };
            format!("wave {name} waits for the budget: each group by {group} that is next {bound}{rest}")
        }
        BlockingRule::Window => match predicate.until {
            Some(until) => format!("wave {name} waits for a window: none is open until {until}"),
            None => format!("wave {name} waits for a window, and this machine knows the time zone of none"),
        },
        BlockingRule::Check | BlockingRule::Rate | BlockingRule::Failure | BlockingRule::Decision => {
            return None;
        }
    })
}

/// The bound of a gate and the numbers that it is compared with.
fn bounds(predicate: &Predicate) -> String {
    let Predicate { needed, targets, lo, hi, .. } = *predicate;
    let [needed, targets, lo, hi] = [needed, targets, lo, hi].map(Option::unwrap_or_default);
    format!("needs {needed} of {targets} confirmed and has lo={lo} hi={hi}")
}

/// The released devices of a wave that are not confirmed, by the hub's knowledge of each.
fn groups(rollout: &RolloutProgress, wave: &WaveState, lines: &Lines) -> Vec<DeviceGroup> {
    let of = |known: Known| {
        let members = wave.members.iter().filter(|at| rollout.known[**at] == known);
        let keys: Vec<_> = members.map(|at| &rollout.targets[*at].key).collect();
        let heard = |key: &&DeviceKey| lines.of_devices.get(*key).and_then(|line| line.last_heard_at);
        let silent_since = keys.iter().filter_map(heard).min().filter(|_| known == Known::NotHeard);
        let (count, first) = (keys.len() as u64, keys.into_iter().take(NAMED_MAX).cloned().collect());
        (count > 0).then_some(DeviceGroup { known, count, first, silent_since })
    };
    let all = [
        Known::Failed,
        Known::TriesAgain,
        Known::NotHeard,
        Known::ReportsMissing,
        Known::UnderWay,
        Known::NotInLedger,
    ];
    all.into_iter().filter_map(of).collect()
}

fn in_words(groups: &[DeviceGroup]) -> String {
    let one = |group: &DeviceGroup| {
        let names: Vec<_> = group.first.iter().collect();
        let more = group.count - names.len() as u64;
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let words = match group.known {
            Known::Failed => "failed".to_owned(),
            Known::NotHeard => group
                .silent_since
                .map_or_else(|| "never heard".to_owned(), |since| format!("not heard since {since}")),
            Known::TriesAgain => "trying again".to_owned(),
            Known::ReportsMissing => "with missing reports".to_owned(),
            Known::UnderWay => "under way".to_owned(),
            Known::NotInLedger => "not in LEDGER yet".to_owned(),
            Known::NotReleased => "not released".to_owned(),
            Known::Confirmed => "confirmed".to_owned(),
        };
        format!("{} {words} ({}{more})", group.count, listed(&names))
    };
    groups.iter().map(one).collect::<Vec<_>>().join(", ")
}
