//! Explains a rollout in one sentence: its next step, the decision that holds it, or the predicate that blocks it and the devices
//! that it waits for.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use muster_contract::rollout::{Check, Deadlines, RolloutPhase, RolloutRecord, RolloutVerb, WaitsFor, Wave};
use muster_contract::{DeviceKey, Timestamp};

use super::approvals::ApprovalCount;
use super::gate::{Gate, Tally};
use super::policy::group;
use super::progress::{Known, RolloutProgress};
use super::state::{Blocked, Failure, Step, WaveState};

/// Devices or rollouts that a sentence names, at most.
const NAMED_MAX: usize = 20;

impl RolloutProgress {
    /// The next step, or what it waits for, in one sentence.
    pub fn why(&self) -> String {
        let wave = |at: &usize| self.state.waves.get(*at);
        match &self.state.step {
            Step::Done => self.done(),
            Step::Release { wave: at, targets, needs_approval } => {
                let Some(wave) = wave(at) else { return String::new() };
                let by = wave.approvals.filter(|_| *needs_approval).map_or_else(String::new, |count| {
                    format!(", which has {}: {}", given(count), self.approval_command(wave))
                });
                let next = devices(targets.len() + self.unnamed);
                format!("next: release to {next} of wave {}{by}{}", wave.name, self.refusals(targets))
            }
            Step::Check { wave: at } => wave(at).map_or_else(String::new, |wave| self.checking(*at, wave)),
            // An approval counts from that record on: until then nobody is asked for one.
            Step::Ready { wave: at } => wave(at).map_or_else(String::new, |wave| {
                format!("next: record that the evidence of wave {} is there to be approved", wave.name)
            }),
            Step::Wait { wave: at, because } => {
                wave(at).map_or_else(String::new, |wave| self.waiting(*at, wave, *because))
            }
            Step::Fail { wave: at, because, verb } => wave(at).map_or_else(String::new, |wave| {
                format!("{}; next: {}", self.failure(wave, *because), verb.as_str())
            }),
            Step::Held { phase } => self.decided(*phase),
            Step::RollBack { targets } => {
                let (decided, count) = (self.decided(self.phase()), devices(targets.len() + self.unnamed));
                format!("{decided}; next: roll back {count}{}", self.refusals(targets))
            }
        }
    }

    /// Why a wave has failed, with its devices.
    pub fn failure(&self, wave: &WaveState, because: Failure) -> String {
        let WaveState { name, gate, .. } = wave;
        let failed = self.devices_with(wave, Known::Failed);
        let late = |what| {
            let devices = self.not_confirmed(wave);
            format!("the gate behind wave {name} is not open by the deadline of the {what}: {devices}")
        };
        match because {
            // A wave may count devices that are not heard as failed.
            Failure::Gate if failed.is_empty() => {
                format!("wave {name} has {gate}: {}", self.not_confirmed(wave))
            }
            Failure::Gate => format!("wave {name} has {gate} ({})", listed(&failed)),
            Failure::DeviceDeadline => {
                let overdue = self.devices_with(wave, Known::Overdue);
                let (count, devices) = (devices(overdue.len()), listed(&overdue));
                format!(
                    "wave {name} has {gate}: {count} without an end by the deadline of a device ({devices})"
                )
            }
            Failure::Check => {
                let record = self.record.as_ref().and_then(|record| record.checked(name));
                let reason = record.and_then(|check| check.reason.as_deref()).unwrap_or("no reason is given");
                format!("a check of wave {name} has failed: {reason}")
            }
            Failure::WaveDeadline => late("wave"),
            Failure::RolloutDeadline => late("rollout"),
        }
    }

    /// The targets of a release or a rollback that the publisher would refuse, each with the reason.
    fn refusals(&self, targets: &[usize]) -> String {
        let refused =
            |at: &usize| self.targets.get(*at).and_then(|target| Some((&target.key, target.refused?)));
        let refused: Vec<_> = targets.iter().filter_map(refused).collect();
        if refused.is_empty() {
            return String::new();
        }
        let named = first(refused.iter().map(|(key, reason)| format!("{key} {}", reason.words())));
        format!("; the publisher refuses {}: {named}", devices(refused.len()))
    }

    /// The listed targets without the content.
    fn lacking(&self) -> Vec<usize> {
        (0..self.targets.len()).filter(|at| self.known[*at] == Known::NotReleased).collect()
    }

    fn done(&self) -> String {
        match self.debt() {
            0 => "done: every target has the content, and every gate is open".to_owned(),
            1 => "done: every gate is open; 1 target is not heard and left out".to_owned(),
            debt => format!("done: every gate is open; {debt} targets are not heard and left out"),
        }
    }

    /// The recorded decision that holds or ends the rollout, with its author and reason.
    fn decided(&self, phase: RolloutPhase) -> String {
        let Some(decision) = self.record.as_ref().and_then(RolloutRecord::last) else { return String::new() };
        let by = decision.requested_by.as_ref().map_or_else(String::new, |by| format!(" by {}", by.label()));
        let why = decision.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        let way_on = phase.continued_by().map_or_else(String::new, |verb| {
            format!("; `muster rollout {verb} {}` continues it", self.deployment)
        });
        let words = self.record.as_ref().map_or_else(|| phase.words(), RolloutRecord::words);
        let unreached: Vec<_> = self.unreached.iter().collect();
        let unreached = match unreached.len() {
            0 => String::new(),
            count => {
                let (devices, names) = (devices(count), listed(&unreached));
                format!("; not heard, and may still run it: {devices} ({names})")
            }
        };
        format!("{words} since {}{by}{why}{unreached}{way_on}", whole_second(decision.at))
    }

    /// The first deadline of the wave that the next step is about, or of the rollout, and the decision at it. Without one nothing but
    /// devices, persons and commits ends the wait: it is unbounded.
    pub fn deadline(&self) -> Option<(Timestamp, RolloutVerb)> {
        let record = self.record.as_ref()?;
        let Deadlines { wave: of_wave, rollout, at_end, .. } = self.policy.deadlines;
        let at = self.state.step.wave().filter(|at| self.state.waves[*at].gate != Gate::Open);
        let began = at.and_then(|at| record.began(&self.state.waves[at].name));
        let end = |began: Option<Timestamp>, time: Option<Duration>| began?.checked_add(time?).ok();
        let ends = [end(began, of_wave), end(record.first_began(), rollout)];
        let is_running = matches!(self.phase(), RolloutPhase::Running);
        let first = ends.into_iter().flatten().min().filter(|_| is_running);
        first.map(|end| (whole_second(end), at_end.verb()))
    }

    /// Whether it is open and has no deadline.
    pub fn is_unbounded(&self) -> bool {
        let is_open = match &self.state.step {
            Step::Held { phase } => *phase == RolloutPhase::Paused,
            Step::RollBack { .. } => true,
            step => step.wave().is_some(),
        };
        is_open && self.deadline().is_none()
    }

    /// The deadline in words; `None` if the rollout has ended.
    pub fn bound(&self) -> Option<String> {
        let unbounded = || self.is_unbounded().then(|| "unbounded: no deadline ends this".to_owned());
        let until = |(at, verb): (Timestamp, RolloutVerb)| format!("deadline {at}, then {}", verb.as_str());
        self.deadline().map(until).or_else(unbounded)
    }

    /// The checks that a wave waits for, with the last answer if it was inconclusive.
    fn checking(&self, at: usize, wave: &WaveState) -> String {
        let checks = self.policy.waves.get(at).map_or(&[][..], |wave| &wave.checks);
        let names: Vec<_> = checks.iter().map(Check::name).collect();
        let inconclusive = self
            .record
            .as_ref()
            .and_then(|record| record.checked(&wave.name))
            .and_then(|check| check.reason.as_deref())
            .map_or_else(String::new, |reason| format!("; nothing is known yet: {reason}"));
        format!(
            "waiting for the checks of wave {} by the planner: {}{inconclusive}",
            wave.name,
            names.join(", ")
        )
    }

    /// The predicate that blocks a wave, with its bound, its numbers and the devices.
    fn waiting(&self, at: usize, wave: &WaveState, because: Blocked) -> String {
        let WaveState { name, gate, tally, .. } = wave;
        let policy = self.policy.waves.get(at);
        let devices = self.not_confirmed(wave);
        let rest = if devices.is_empty() { String::new() } else { format!(": {devices}") };
        match because {
            Blocked::NothingToRelease => format!(
                "nothing to release: every target had the content before a wave began{}; the gate behind wave {name} {}{rest}",
                self.refusals(&self.lacking()),
                wave.bounds(policy)
            ),
            Blocked::Approval => {
                let (given, by) = (given(wave.approvals.unwrap_or_default()), self.approval_command(wave));
                format!("waiting for approvals of the evidence of wave {name}: {given}; {by}")
            }
            Blocked::After => format!("wave {name} waits for {}", self.waited_for()),
            Blocked::Window(Some(until)) => {
                format!("wave {name} waits for a window: none is open until {until}")
            }
            Blocked::Window(None) => {
                format!("wave {name} waits for a window, and this machine knows the time zone of none")
            }
            Blocked::Rate(_) => format!("waiting in wave {name}: {because}"),
            Blocked::InFlight => {
                let limit = policy.and_then(|policy| policy.max_in_flight).map_or(0, NonZeroU32::get);
                format!("wave {name} may have {limit} devices in flight, and has as many{rest}")
            }
            Blocked::Budget => {
                let (budget, unavailable) = (self.budget(), self.unavailable(wave));
                let unavailable = if unavailable.is_empty() {
                    String::new()
                } else {
                    format!(" ({})", listed(&unavailable))
                };
                format!("wave {name} waits for the budget: {budget}{unavailable}{rest}")
            }
            Blocked::Gate if *gate == Gate::Empty => format!(
                "wave {name} matches no target of {deployment}, so nothing can prove the content there: correct its devices, site or \
                 selector, set allowEmpty: true, or pass it by `muster rollout next {deployment} --force --reason …`",
                deployment = self.deployment
            ),
            Blocked::Gate if *gate == Gate::Soaking => {
                let soak = policy.map_or_else(String::new, |policy| span(policy.soak));
                let (bounds, soaked) = (wave.bounds(policy), tally.soaked);
                format!("the gate behind wave {name} {bounds}, {soaked} of them for {soak}{rest}")
            }
            Blocked::Gate => format!("the gate behind wave {name} {}{rest}", wave.bounds(policy)),
        }
    }

    /// The rollouts that it comes after and that have not succeeded, with the phase of each.
    fn waited_for(&self) -> String {
        let one = |WaitsFor { deployment, phase }: &WaitsFor| {
            let words = match phase {
                RolloutPhase::Running | RolloutPhase::Superseded => "has not ended",
                phase => phase.words(),
            };
            format!("the rollout of {deployment}, which {words}")
        };
        first(self.waits_for.iter().map(one))
    }

    /// The command that approves a wave.
    fn approval_command(&self, wave: &WaveState) -> String {
        let by = self.policy.approvals.of.as_ref().map_or_else(String::new, |of| format!(" by {of}"));
        format!("`muster rollout approve {} --wave {}`{by} gives one", self.deployment, wave.name)
    }

    /// The bound of the budget.
    fn budget(&self) -> String {
        let Some(budget) = &self.policy.budget else { return String::new() };
        let bound = match (budget.max_unavailable, budget.min_available) {
            (Some(most), _) => format!("has {most} or more devices unavailable"),
            (None, least) => {
                let least = least.map_or(0, NonZeroU32::get);
                format!("must keep {least} devices available, and has no more")
            }
        };
        format!("each group by {} that is next {bound}", budget.group_by)
    }

    /// The unavailable devices of the groups in which devices of a wave wait for room, as far as they are listed.
    fn unavailable(&self, wave: &WaveState) -> Vec<&DeviceKey> {
        let Some(budget) = &self.policy.budget else { return Vec::new() };
        let group = |at: usize| group(budget, &self.targets[at].labels);
        let waiting = wave.members.iter().filter(|at| self.known[**at] == Known::NotReleased);
        let groups: BTreeSet<_> = waiting.map(|at| group(*at)).collect();
        let is_available =
            |at: usize| self.silent_since.get(at).is_none_or(Option::is_none) && !self.known[at].is_open();
        let all = (0..self.targets.len()).filter(|at| groups.contains(&group(*at)) && !is_available(*at));
        all.map(|at| &self.targets[at].key).collect()
    }

    /// The released devices of a wave that are not confirmed, by the hub's knowledge of each.
    fn not_confirmed(&self, wave: &WaveState) -> String {
        let silent = match self.silent_since(wave) {
            None => "not heard".to_owned(),
            Some(since) if since == Timestamp::MIN => "never heard".to_owned(),
            Some(since) => format!("not heard since {}", whole_second(since)),
        };
        let mut parts = Vec::new();
        for (known, words) in [
            (Known::Failed, "failed"),
            (Known::Overdue, "past the deadline"),
            (Known::TriesAgain, "trying again"),
            (Known::NotHeard, &silent),
            (Known::ReportsMissing, "with missing reports"),
            (Known::UnderWay, "under way"),
            (Known::NotInLedger, "not in LEDGER yet"),
        ] {
            let devices = self.devices_with(wave, known);
            if !devices.is_empty() {
                parts.push(format!("{} {words} ({})", devices.len(), listed(&devices)));
            }
        }
        parts.join(", ")
    }

    /// Longest silence of a wave's released devices: the time at which it began.
    pub fn silent_since(&self, wave: &WaveState) -> Option<Timestamp> {
        let members = wave.members.iter().filter(|at| self.known[**at] == Known::NotHeard);
        members.filter_map(|at| *self.silent_since.get(*at)?).min()
    }

    fn devices_with(&self, wave: &WaveState, known: Known) -> Vec<&DeviceKey> {
        let members = wave.members.iter().filter(|at| self.known[**at] == known);
        members.map(|at| &self.targets[*at].key).collect()
    }
}

impl WaveState {
    /// The number of targets that must be confirmed.
    pub fn needed(&self, policy: Option<&Wave>) -> u64 {
        let share = policy.map_or(100, |policy| u64::from(policy.success.at_least.get()));
        ((self.tally.targets - self.tally.debt) * share).div_ceil(100)
    }

    /// The bound of the gate and the numbers that it is compared with.
    fn bounds(&self, policy: Option<&Wave>) -> String {
        let Tally { targets, confirmed, failed, debt, .. } = self.tally;
        let (needed, targets) = (self.needed(policy), targets - debt);
        format!("needs {needed} of {targets} confirmed and has {confirmed}, at most {}", targets - failed)
    }
}

/// A time without its fraction of a second.
fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// A time in the largest unit that divides it.
fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    let units = [(24 * 60 * 60, "d"), (60 * 60, "h"), (60, "m")];
    let unit = units.into_iter().find(|(length, _)| seconds > 0 && seconds.is_multiple_of(*length));
    unit.map_or_else(|| format!("{seconds}s"), |(length, unit)| format!("{}{unit}", seconds / length))
}

/// The names of the first devices, and the number of further ones.
pub fn listed(devices: &[&DeviceKey]) -> String {
    first(devices.iter().map(ToString::to_string))
}

/// The first of some texts, and the number of further ones.
fn first(all: impl ExactSizeIterator<Item = String>) -> String {
    let more = all.len().saturating_sub(NAMED_MAX);
    let named = all.take(NAMED_MAX).collect::<Vec<_>>().join(", ");
    if more == 0 { named } else { format!("{named} and {more} more") }
}

fn devices(count: usize) -> String {
    if count == 1 { "1 device".to_owned() } else { format!("{count} devices") }
}

/// The approvals of a wave in words.
fn given(ApprovalCount { given, needed, void }: ApprovalCount) -> String {
    let void = match void {
        0 => String::new(),
        count => format!(" ({count} of an earlier rollout.yaml no longer count)"),
    };
    format!("{given} of {needed} approvals{void}")
}
