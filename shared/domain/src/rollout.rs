//! The rules of a rollout: the wave of each device, the gate behind each wave, and the next step. Pure.
//!
//! A gate opens on confirmed devices alone. A device that is not heard, or whose reports are missing, counts neither for
//! nor against; it keeps its place in flight until it is heard. Membership depends on the rollout and the device alone, so
//! every program gets the same waves. Recorded decisions come first: no evidence continues a rollout that is paused.

mod clock;
mod gate;
mod line;
mod live;
mod outlook;
mod policy;
mod progress;
mod recompute;
mod sentence;
mod steps;
mod waves;
mod windows;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use muster_contract::labels::Labels;
use muster_contract::rollout::{
    Approval, REST_WAVE, Rollout, RolloutPhase, RolloutRecord, RolloutVerb, Wave,
};
use muster_contract::{DeviceKey, Timestamp};
use serde::Serialize;

use self::clock::RolloutClock;
pub use self::gate::{Gate, Tally};
pub use self::line::Line;
pub(crate) use self::line::missed;
pub use self::live::{Content, LiveRollout, LiveTarget, TargetDevice};
pub use self::outlook::{BudgetClash, DarkDevice, End, Outlook, outlook};
pub use self::policy::group;
pub use self::progress::{Known, Lines, RolloutProgress, progress};
pub use self::recompute::{
    NotRecomputable, PastLines, Recomputed, past_progress, recomputable, recompute, rests_on_evidence,
};
pub use self::sentence::listed;
use self::steps::{Steps, Targets};
use self::waves::effective;
pub use self::waves::{RolloutId, matches, waves_of};
pub use self::windows::is_zone;

/// A device that a rollout governs.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The device.
    pub key: &'a DeviceKey,
    /// Its labels.
    pub labels: &'a Labels,
    /// Whether it has the rollout's content in its desired state.
    pub is_released: bool,
    /// The evidence about that content on the device.
    pub evidence: Evidence,
    /// Whether LEDGER has a report of the device about that content: it has begun.
    pub has_begun: bool,
    /// Time since which it is not heard; `None` while it is.
    pub silent_since: Option<Timestamp>,
    /// Time at which it got the content, or later; `None` if nobody knows.
    pub released_at: Option<Timestamp>,
    /// Whether a release would not reach it now.
    pub is_refused: bool,
}

/// The hub's knowledge of the rollout's content on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// The device is heard, all of its reports are in, and it has installed the content: nothing has changed since then.
    Confirmed(Timestamp),
    /// The device is heard, all of its reports are in, and the content has failed.
    Failed,
    /// The device is heard, all of its reports are in, and it has missed a deadline of the rollout: it counts as failed.
    Overdue,
    /// The device has not been heard for so long that its wave leaves it out.
    Debt,
    /// Anything else: not released, under way, not heard, or with missing reports.
    Unknown,
}

/// The state of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutState {
    /// The waves in order; the wave of unmatched devices is the last, if there are any.
    pub waves: Vec<WaveState>,
    /// The next step.
    pub step: Step,
}

/// The state of a wave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaveState {
    /// Its name.
    pub name: String,
    /// Its targets, by their indices in the given list.
    pub members: Vec<usize>,
    /// Its counts.
    pub tally: Tally,
    /// Released targets whose content LEDGER shows.
    #[serde(skip)]
    pub in_ledger: u64,
    /// The gate behind it.
    pub gate: Gate,
    /// The approvals before it or of its evidence, if it needs some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approvals: Option<ApprovalCount>,
}

/// The approvals of a wave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalCount {
    /// Number of different requesters that have approved it lately.
    pub given: usize,
    /// Number that it needs.
    pub needed: usize,
}

/// The next step of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// Release the content to these targets, by their indices in the given list.
    Release {
        /// The wave.
        wave: usize,
        /// The targets.
        targets: Vec<usize>,
        /// Whether approvals are missing: the wave has not begun.
        needs_approval: bool,
    },
    /// The evidence of the wave is enough: ask its checks, and record the result.
    Check {
        /// The wave.
        wave: usize,
    },
    /// The evidence of the wave is enough: record that its gate waits for approvals.
    Ready {
        /// The wave.
        wave: usize,
    },
    /// Nothing may be released yet: the wave's gate or its limit in flight blocks the rollout.
    Wait {
        /// The wave.
        wave: usize,
        /// The predicate that is not met yet.
        because: Blocked,
    },
    /// The wave has failed, so its rollout decides this.
    Fail {
        /// The wave.
        wave: usize,
        /// Why it has failed.
        because: Failure,
        /// The decision.
        verb: RolloutVerb,
    },
    /// A recorded decision ends the rollout or holds it.
    Held {
        /// The phase that it led to.
        phase: RolloutPhase,
    },
    /// The rollout is aborted or rolled back: give these targets, which still have the content, the one before it.
    RollBack {
        /// The targets.
        targets: Vec<usize>,
    },
    /// Every target has the content, and every gate is open.
    Done,
}

/// The predicate that blocks a waiting rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Blocked {
    /// The gate behind the wave.
    Gate,
    /// The wave's limit of devices in flight.
    InFlight,
    /// The budget of the groups of the devices that are next.
    Budget,
    /// The wave's rate; the next device may get the content then.
    Rate(Timestamp),
    /// The approvals of the wave's evidence.
    Approval,
    /// The rollout's windows; the next one begins then. `None` if this machine knows the time zone of none.
    Window(Option<Timestamp>),
}

/// Why a wave has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Failure {
    /// Its gate: too many failures, or success out of reach.
    Gate,
    /// Its gate, because devices that missed their deadline count as failed.
    DeviceDeadline,
    /// One of its checks.
    Check,
    /// Its gate was not open within its deadline.
    WaveDeadline,
    /// The last gate was not open within the rollout's deadline.
    RolloutDeadline,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gate => f.write_str("its gate is not open"),
            Self::InFlight => f.write_str("as many devices as allowed are in flight"),
            Self::Budget => f.write_str("the budget of its devices' groups has no room"),
            Self::Rate(next) => write!(f, "its rate leaves room for a further device at {next}"),
            Self::Approval => f.write_str("its evidence needs approvals"),
            Self::Window(Some(next)) => write!(f, "no window of the rollout is open until {next}"),
            Self::Window(None) => f.write_str("this machine knows no time zone of the rollout's windows"),
        }
    }
}

/// The state of a rollout by its decisions and targets, as of `now`.
pub fn state(
    rollout: &Rollout,
    id: &RolloutId,
    record: Option<&RolloutRecord>,
    targets: &[Target<'_>],
    now: Timestamp,
) -> RolloutState {
    let waves = effective(rollout);
    let members: Vec<_> = targets.iter().map(|target| (target.key, target.labels)).collect();
    let wave_indices = waves_of(&waves, id, &members);
    let targets = &policy::with_offline_policies(&waves, &wave_indices, record, targets, now)[..];
    let tallies = tallies(&waves, &wave_indices, targets, &RolloutClock { record, now });
    let listed = Listed { targets, wave_indices: &wave_indices };
    let mut state = Judgement { rollout, id, record, waves: &waves, now }.state(&tallies, &listed);
    for (at, wave) in state.waves.iter_mut().enumerate() {
        wave.members = listed.members(at);
    }
    state
}

/// The inputs of a judgement besides the targets.
struct Judgement<'a> {
    rollout: &'a Rollout,
    id: &'a RolloutId,
    record: Option<&'a RolloutRecord>,
    waves: &'a [Wave],
    now: Timestamp,
}

impl Judgement<'_> {
    /// The waves without their members, and the next step. The wave of unmatched devices is the last of the counts.
    fn state(&self, tallies: &[Tally], targets: &dyn Targets) -> RolloutState {
        let Self { rollout, id, record, waves, now } = *self;
        let mut states: Vec<_> = tallies.iter().enumerate().map(|(at, tally)| self.wave(at, tally)).collect();
        let phase = record.map(RolloutRecord::phase).unwrap_or_default();
        let step = decided(phase, targets).unwrap_or_else(|| {
            Steps { rollout, id, record, phase, waves, states: &states, now }.next(targets)
        });
        if states.last().is_some_and(|rest| rest.tally.targets == 0) {
            states.pop();
        }
        RolloutState { waves: states, step }
    }

    fn wave(&self, at: usize, tally: &Tally) -> WaveState {
        let Self { rollout, record, waves, now, .. } = *self;
        let approvals = waves.get(at).and_then(|wave| approvals(rollout, wave, record, now));
        // The gate was open once if a later wave has begun.
        let has_begun = |name: &str| record.is_some_and(|record| record.began(name).is_some());
        let has_passed = waves.iter().skip(at + 1).any(|later| has_begun(later.name.as_str()))
            || at < waves.len() && has_begun(REST_WAVE);
        let gate = match waves.get(at).filter(|_| !has_passed) {
            None => gate::judge(waves.get(at), tally),
            Some(wave) => gate::judge_others(wave, gate::judge(Some(wave), tally), record, approvals),
        };
        let name = waves.get(at).map_or_else(|| REST_WAVE.to_owned(), |wave| wave.name.to_string());
        WaveState { name, members: Vec::new(), tally: *tally, in_ledger: 0, gate, approvals }
    }
}

/// Targets in a list, with the wave of each.
struct Listed<'a> {
    targets: &'a [Target<'a>],
    wave_indices: &'a [usize],
}

impl Targets for Listed<'_> {
    fn all(&self) -> Cow<'_, [Target<'_>]> {
        Cow::Borrowed(self.targets)
    }

    fn members(&self, wave: usize) -> Vec<usize> {
        (0..self.wave_indices.len()).filter(|target| self.wave_indices[*target] == wave).collect()
    }
}

/// The approvals of a wave that needs some.
fn approvals(
    rollout: &Rollout,
    wave: &Wave,
    record: Option<&RolloutRecord>,
    now: Timestamp,
) -> Option<ApprovalCount> {
    if wave.approval.is_none() {
        return None;
    }
    let since = now.checked_sub(rollout.approvals.expires_after).unwrap_or(Timestamp::MIN);
    let of = rollout.approvals.of.as_ref();
    let of_record = |record: &RolloutRecord| {
        // An approval of evidence counts from the moment at which there was evidence to approve.
        let ready = (wave.approval == Approval::After).then(|| record.ready(wave.name.as_str()));
        match ready {
            Some(None) => 0,
            Some(Some(ready)) => record.approvals(&wave.name, since.max(ready), of),
            None => record.approvals(&wave.name, since, of),
        }
    };
    let given = record.map_or(0, of_record);
    let needed = usize::try_from(rollout.approvals.need.get()).unwrap_or(usize::MAX);
    Some(ApprovalCount { given, needed })
}

/// The step that recorded decisions leave; `None` if the evidence decides.
fn decided(phase: RolloutPhase, targets: &dyn Targets) -> Option<Step> {
    match phase {
        RolloutPhase::Running | RolloutPhase::Succeeded | RolloutPhase::Superseded => None,
        RolloutPhase::Paused | RolloutPhase::Stopped => Some(Step::Held { phase }),
        RolloutPhase::Aborted | RolloutPhase::RolledBack => {
            let targets = targets.all();
            let is_kept = |target: &Target<'_>| phase == RolloutPhase::Aborted && target.has_begun;
            let is_left = |at: &usize| targets[*at].is_released && !is_kept(&targets[*at]);
            let left: Vec<_> = (0..targets.len()).filter(is_left).collect();
            Some(if left.is_empty() { Step::Held { phase } } else { Step::RollBack { targets: left } })
        }
    }
}

/// The counts of each wave; the wave of unmatched devices is the last.
fn tallies(
    waves: &[Wave],
    wave_indices: &[usize],
    targets: &[Target<'_>],
    clock: &RolloutClock<'_>,
) -> Vec<Tally> {
    let mut tallies = vec![Tally::default(); waves.len() + 1];
    // Without a soak time a target counts even if a clock ahead of this one dated its confirmation.
    let soaked_by = |soak: Duration| if soak.is_zero() { Timestamp::MAX } else { clock.began_by(soak) };
    let soaked_by: Vec<_> = waves.iter().map(|wave| soaked_by(wave.soak)).collect();
    for (at, target) in wave_indices.iter().zip(targets) {
        if let Some(tally) = tallies.get_mut(*at) {
            tally.add(target, soaked_by.get(*at).copied().unwrap_or(Timestamp::MAX));
        }
    }
    tallies
}

#[cfg(test)]
mod tests;
