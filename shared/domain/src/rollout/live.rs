//! A rollout with incremental counts: a fact changes one row and the counts of its wave, and a judgement reads only counts. It
//! returns the state that [`state`](super::state()) returns for the same targets; a test compares the two under random facts.
//!
//! A judgement reads all targets only for a step that names some of them, or if the rollout has a policy for devices that are not
//! heard or past a deadline, and there are some.

mod listed;
mod refusals;
mod row;
mod targets;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::limits::RELEASE_DEVICES_MAX;
use muster_contract::rollout::{Deadlines, Offline, Rollout, RolloutRecord, RolloutTarget, WaitsFor, Wave};
use muster_contract::{DeploymentId, DeviceKey, Generation, Timestamp};

pub use self::listed::{Content, LiveTarget, TargetDevice};
use self::row::{Counted, Nanoseconds, Row};
use self::targets::LiveTargets;
use super::clock::{Pause, RolloutClock, end_of};
use super::gate::Tally;
use super::judgement::{Judgement, tallies};
use super::line::Line;
use super::policy;
use super::progress::{Known, RolloutProgress};
use super::state::{Blocked, RolloutState, Step, waits_for_person};
use super::target::{Evidence, Target};
use super::waves::{RolloutId, effective, unmatched, waves_of};

/// Time between two judgements of a rollout that has a policy for devices that are not heard, or past a deadline, while there is one.
const DEVICES_JUDGED_AFTER: Duration = Duration::from_secs(2);

/// A rollout that facts update.
#[derive(Debug)]
pub struct LiveRollout {
    id: RolloutId,
    file: String,
    revision: String,
    policy: Rollout,
    waves: Vec<Wave>,
    /// Whether each wave matches no target and must not be empty.
    unmatched: Vec<bool>,
    record: Option<RolloutRecord>,
    /// The rollouts that it comes after and that have not succeeded.
    waits_for: Vec<WaitsFor>,
    /// The targets, ordered by device.
    rows: Vec<Row>,
    /// The counts of each wave.
    tallies: Vec<Tally>,
    /// Released targets of each wave whose content LEDGER shows.
    in_ledger: Vec<u64>,
    /// Targets that are not heard.
    silent: usize,
    /// Targets without an end that have missed a deadline of the hub.
    past_deadline: usize,
    /// The periods in which it is paused.
    pauses: Vec<Pause>,
    /// Whether they have changed, so that soak times end at other times.
    has_other_pauses: bool,
    /// Ends of soak times, with the index of the target. An end whose row has changed since is ignored.
    soaks: BinaryHeap<Reverse<(Nanoseconds, u32)>>,
    state: RolloutState,
    judged_at: Timestamp,
}

impl LiveRollout {
    /// A rollout with these targets, ordered by device, before any evidence.
    pub fn new(
        id: RolloutId,
        file: String,
        revision: String,
        policy: Rollout,
        targets: Vec<LiveTarget>,
    ) -> Self {
        let waves = effective(&policy);
        let members: Vec<_> =
            targets.iter().map(|target| (&target.device.key, &target.device.labels)).collect();
        let (wave_indices, unmatched) = (waves_of(&waves, &id, &members), unmatched(&waves, &members));
        let mut tallies = vec![Tally::default(); waves.len() + 1];
        wave_indices.iter().for_each(|wave| tallies[*wave].targets += 1);
        // A list of its own: collected in place, the rows would keep the room of the larger targets.
        let mut rows = Vec::with_capacity(targets.len());
        rows.extend(targets.into_iter().zip(wave_indices).map(|(target, wave)| Row::new(target, wave)));
        let mut rollout = Self {
            rows,
            in_ledger: vec![0; tallies.len()],
            record: None,
            waits_for: Vec::new(),
            silent: 0,
            past_deadline: 0,
            pauses: Vec::new(),
            has_other_pauses: false,
            soaks: BinaryHeap::new(),
            state: RolloutState { waves: Vec::new(), step: Step::Done },
            judged_at: Timestamp::MIN,
            id,
            file,
            revision,
            policy,
            waves,
            unmatched,
            tallies,
        };
        (0..rollout.rows.len()).for_each(|at| _ = rollout.observe(at, None));
        rollout
    }

    /// The deployment.
    pub const fn deployment(&self) -> &DeploymentId {
        &self.id.deployment
    }

    /// The content.
    pub const fn digest(&self) -> Digest {
        self.id.digest
    }

    /// Path of the `rollout.yaml`.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The number of targets.
    pub const fn targets(&self) -> usize {
        self.rows.len()
    }

    /// The commit that names the targets.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// The content of the `rollout.yaml`.
    pub const fn policy(&self) -> &Rollout {
        &self.policy
    }

    /// The targets as documents have them, without the publisher's answers that LEDGER does not show yet.
    pub fn listed_targets(&self) -> impl Iterator<Item = LiveTarget> + '_ {
        self.rows.iter().map(Row::listed)
    }

    /// The decisions about it.
    pub const fn record(&self) -> Option<&RolloutRecord> {
        self.record.as_ref()
    }

    /// Replaces the decisions. True if they differ.
    pub fn set_record(&mut self, record: Option<RolloutRecord>) -> bool {
        let is_new = self.record != record;
        self.record = record;
        let pauses: Vec<_> = self.record.iter().flat_map(RolloutRecord::pauses).collect();
        if self.pauses != pauses {
            (self.pauses, self.has_other_pauses) = (pauses, true);
        }
        is_new
    }

    /// Whether it waits for a rollout that only a person or a commit continues.
    pub fn waits_for_person(&self) -> bool {
        waits_for_person(&self.state.step, &self.waits_for)
    }

    /// Replaces the rollouts that it waits for. True if they differ.
    pub fn set_waits_for(&mut self, waits_for: Vec<WaitsFor>) -> bool {
        let is_new = self.waits_for != waits_for;
        self.waits_for = waits_for;
        is_new
    }

    /// The index of a target.
    pub fn find(&self, key: &DeviceKey) -> Option<usize> {
        self.rows.binary_search_by(|row| row.device.key.cmp(key)).ok()
    }

    /// The device of a target.
    pub fn key(&self, at: usize) -> Option<&DeviceKey> {
        self.rows.get(at).map(|row| &row.device.key)
    }

    /// Sets the content of a target, unless a newer one is known; `document` is the generation of the document that has the content.
    /// Observe the target afterwards.
    pub fn set_content(&mut self, at: usize, content: Content, document: Generation) {
        if let Some(row) = self.rows.get_mut(at) {
            row.set_content(content, document);
        }
    }

    /// Sets the publisher's answer about a target: whether it has the content now. Observe the target afterwards.
    pub fn set_answer(&mut self, at: usize, has_content: bool, now: Timestamp) {
        if let Some(row) = self.rows.get_mut(at) {
            row.set_answer(has_content, now);
        }
    }

    /// Whether LEDGER does not yet show an answer of the publisher.
    pub fn awaits_ledger(&self) -> bool {
        self.rows.iter().any(|row| row.awaits_ledger())
    }

    /// Counts a target by its line. True if its counts have changed.
    pub fn observe(&mut self, at: usize, line: Option<&Line<'_>>) -> bool {
        let Some(row) = self.rows.get(at) else { return false };
        let observation = row.observe(line, self.policy.retries.as_ref());
        if row.has_same(observation) {
            return false;
        }
        self.retract(at);
        self.rows[at].set_observation(observation);
        self.add(at);
        true
    }

    fn retract(&mut self, at: usize) {
        let row = &self.rows[at];
        let tally = &mut self.tallies[usize::from(row.wave)];
        self.silent -= usize::from(row.is_silent);
        self.past_deadline -= usize::from(row.is_past_deadline);
        if row.known == Known::NotReleased || row.counted == Counted::Nowhere {
            return;
        }
        tally.released -= 1;
        tally.dark -= u64::from(row.is_silent);
        self.in_ledger[usize::from(row.wave)] -= u64::from(row.known.is_in_ledger());
        match row.evidence() {
            Evidence::Confirmed(_) => {
                tally.confirmed -= 1;
                tally.soaked -= u64::from(row.counted == Counted::Soaked);
            }
            Evidence::Failed => tally.failed -= 1,
            Evidence::Overdue | Evidence::Debt | Evidence::Unknown => {}
        }
    }

    fn add(&mut self, at: usize) {
        let row = &mut self.rows[at];
        let wave = usize::from(row.wave);
        let tally = &mut self.tallies[wave];
        row.counted = Counted::Unsoaked;
        self.silent += usize::from(row.is_silent);
        self.past_deadline += usize::from(row.is_past_deadline);
        if row.known == Known::NotReleased {
            return;
        }
        tally.released += 1;
        tally.dark += u64::from(row.is_silent);
        self.in_ledger[wave] += u64::from(row.known.is_in_ledger());
        match row.evidence() {
            Evidence::Confirmed(since) => {
                tally.confirmed += 1;
                let soak = self.waves.get(wave).map_or(Duration::ZERO, |wave| wave.soak);
                if soak.is_zero() {
                    row.counted = Counted::Soaked;
                    tally.soaked += 1;
                } else if let Some(end) = end_of(&self.pauses, since, soak) {
                    self.soaks.push(Reverse((Nanoseconds::of(end), at as u32)));
                }
            }
            Evidence::Failed => tally.failed += 1,
            Evidence::Overdue | Evidence::Debt | Evidence::Unknown => {}
        }
    }

    /// Counts the targets whose soak time is over.
    fn end_soaks(&mut self, now: Timestamp) {
        if std::mem::take(&mut self.has_other_pauses) || now < self.judged_at {
            // The clock was set back, or stood: the ends of soak times are computed again.
            self.soaks.clear();
            for at in 0..self.rows.len() {
                self.retract(at);
                self.add(at);
            }
        }
        let now = Nanoseconds::of(now);
        while let Some(Reverse((end, at))) =
            self.soaks.peek().copied().filter(|Reverse((end, _))| *end <= now)
        {
            self.soaks.pop();
            let row = &mut self.rows[at as usize];
            let wave = usize::from(row.wave);
            let Some(soak) = self.waves.get(wave).map(|wave| wave.soak) else { continue };
            if let Evidence::Confirmed(since) = row.evidence()
                && row.counted != Counted::Soaked
                && end_of(&self.pauses, since, soak).map(Nanoseconds::of) == Some(end)
            {
                row.counted = Counted::Soaked;
                self.tallies[wave].soaked += 1;
            }
        }
    }

    /// Judges the rollout as of `now`. Calls `line` only for devices that are not heard or past a deadline.
    pub fn judge<'l>(
        &mut self,
        line: &dyn Fn(&DeviceKey) -> Option<Line<'l>>,
        now: Timestamp,
    ) -> &RolloutState {
        self.end_soaks(now);
        let this = &*self;
        let counted = this.judges_devices().then(|| this.counted(line, now));
        let (targets, tallies) = counted.unzip();
        let tallies = tallies.unwrap_or_else(|| this.tallies.clone());
        let Self { policy, id, record, waves, unmatched, .. } = this;
        let must_wait = !this.waits_for.is_empty();
        let record = record.as_ref();
        let judgement = Judgement { rollout: policy, id, record, waves, unmatched, must_wait, now };
        let mut state = judgement.state(&tallies, &LiveTargets { rollout: this, counted: targets });
        for (wave, in_ledger) in state.waves.iter_mut().zip(&this.in_ledger) {
            wave.in_ledger = *in_ledger;
        }
        (self.state, self.judged_at) = (state, now);
        &self.state
    }

    /// Whether time alone may change the evidence about a device: it is silent, or past a deadline of the hub.
    fn judges_devices(&self) -> bool {
        let Deadlines { device, never_started, .. } = self.policy.deadlines;
        self.silent > 0 && self.waves.iter().any(|wave| wave.offline != Offline::Wait)
            || self.past_deadline > 0 && device.or(never_started).is_some()
    }

    /// The targets and the counts under the policies for devices that are not heard or past a deadline.
    fn counted<'l>(
        &self,
        line: &dyn Fn(&DeviceKey) -> Option<Line<'l>>,
        now: Timestamp,
    ) -> (Vec<Target<'_>>, Vec<Tally>) {
        let mut targets = self.list();
        for (row, target) in self.rows.iter().zip(&mut targets) {
            if row.is_silent {
                target.silent_since = super::progress::silent_since(line(target.key).as_ref());
            }
            if self.known(row, line, now) == Known::Overdue {
                target.evidence = Evidence::Overdue;
            }
        }
        let wave_indices: Vec<_> = self.rows.iter().map(|row| usize::from(row.wave)).collect();
        let counted =
            policy::with_offline_policies(&self.waves, &wave_indices, self.record.as_ref(), &targets, now);
        let clock = RolloutClock { record: self.record.as_ref(), now };
        let tallies = tallies(&self.waves, &wave_indices, &counted, &clock);
        (counted, tallies)
    }

    /// The knowledge of a target under the deadlines of the rollout.
    fn known<'l>(&self, row: &Row, line: &dyn Fn(&DeviceKey) -> Option<Line<'l>>, now: Timestamp) -> Known {
        let line = row.is_past_deadline.then(|| line(&row.device.key)).flatten();
        let clock = RolloutClock { record: self.record.as_ref(), now };
        row.known.by_deadlines(line.as_ref(), &self.policy.deadlines, &clock)
    }

    fn list(&self) -> Vec<Target<'_>> {
        self.rows.iter().map(Row::target).collect()
    }

    /// The last judgement.
    pub const fn state(&self) -> &RolloutState {
        &self.state
    }

    /// The time from which the judgement may change without a fact; `None` if only facts can change it.
    pub fn wakes_at(&self) -> Option<Timestamp> {
        let (record, deadlines) = (self.record.as_ref(), &self.policy.deadlines);
        let after = |began: Option<Timestamp>, time: Option<Duration>| began?.checked_add(time?).ok();
        let of_wave = |wave: &Wave| after(record?.began(wave.name.as_str()), deadlines.wave);
        let of_step = match self.state.step {
            Step::Wait { because: Blocked::Rate(next) | Blocked::Window(Some(next)), .. } => Some(next),
            _ => None,
        };
        let of_devices = || self.judged_at.checked_add(DEVICES_JUDGED_AFTER).ok();
        let times = [
            of_step,
            self.soaks.peek().map(|Reverse((end, _))| end.timestamp()),
            after(record.and_then(RolloutRecord::first_began), deadlines.rollout),
            self.judges_devices().then(of_devices).flatten(),
        ];
        let times = times.into_iter().chain(self.waves.iter().map(of_wave)).flatten();
        times.filter(|time| *time > self.judged_at).min()
    }

    /// The last judgement, of LEDGER up to `ledger_seq`, with the targets that its next step names: targets that get or lose the
    /// content, or that a waiting or failed wave waits for. It names at most [`RELEASE_DEVICES_MAX`] of those that get or lose the
    /// content, so that a large wave does not hold up other rollouts. Calls `line` only for targets that are not
    /// heard or past a deadline.
    pub fn progress<'l>(
        &self,
        line: &dyn Fn(&DeviceKey) -> Option<Line<'l>>,
        ledger_seq: u64,
    ) -> RolloutProgress {
        let mut state = self.state.clone();
        let mut unnamed = 0;
        if let Step::Release { targets, .. } | Step::RollBack { targets } = &mut state.step {
            // Targets that would be refused come last, so that the others do not wait for them.
            targets.sort_by_key(|at| self.rows[*at].refusals.is_any());
            unnamed = targets.len().saturating_sub(RELEASE_DEVICES_MAX);
            targets.truncate(RELEASE_DEVICES_MAX);
        }
        let named = self.named(&state.step);
        if let Step::Release { targets, .. } | Step::RollBack { targets } = &mut state.step {
            *targets = targets.iter().filter_map(|at| named.binary_search(at).ok()).collect();
        }
        for (at, wave) in state.waves.iter_mut().enumerate() {
            let is_of_wave = |index: &usize| usize::from(self.rows[named[*index]].wave) == at;
            wave.members = (0..named.len()).filter(is_of_wave).collect();
        }
        let known = named.iter().map(|at| self.known(&self.rows[*at], line, self.judged_at)).collect();
        let silent_since = |at: &usize| {
            let row = self.rows.get(*at).filter(|row| row.is_silent)?;
            super::progress::silent_since(line(&row.device.key).as_ref())
        };
        let silent_since = named.iter().map(silent_since).collect();
        let targets = named.iter().map(|at| self.listed(&self.rows[*at])).collect();
        RolloutProgress {
            deployment: self.id.deployment.clone(),
            digest: self.id.digest,
            file: self.file.clone(),
            revision: self.revision.clone(),
            record: self.record.clone(),
            ledger_seq,
            ledger_through: None,
            judged_at: self.judged_at,
            waits_for: self.waits_for.clone(),
            policy: self.policy.clone(),
            targets,
            unnamed,
            known,
            silent_since,
            unreached: Vec::new(),
            state,
        }
    }

    /// The targets that a step names, ordered by device.
    fn named(&self, step: &Step) -> Vec<usize> {
        match step {
            Step::Release { targets, .. } | Step::RollBack { targets } => {
                let mut targets = targets.clone();
                targets.sort_unstable();
                targets
            }
            Step::Fail { wave, .. } | Step::Wait { wave, .. } => {
                let is_named = |row: &Row| usize::from(row.wave) == *wave && row.known.is_open();
                let mut named: Vec<_> = (0..self.rows.len()).filter(|at| is_named(&self.rows[*at])).collect();
                if matches!(step, Step::Wait { because: Blocked::Budget, .. }) {
                    named.extend(self.named_by_budget(*wave));
                    named.sort_unstable();
                    named.dedup();
                }
                named
            }
            Step::Check { .. } | Step::Ready { .. } | Step::Held { .. } | Step::Done => Vec::new(),
        }
    }

    /// The first device of each group in which devices of a wave wait for room, and the unavailable devices of these groups.
    fn named_by_budget(&self, wave: usize) -> Vec<usize> {
        let Some(budget) = &self.policy.budget else { return Vec::new() };
        let group = |at: usize| policy::group(budget, &self.rows[at].device.labels);
        let mut first_waiting = BTreeMap::new();
        for (at, row) in self.rows.iter().enumerate() {
            if usize::from(row.wave) == wave && row.known == Known::NotReleased {
                first_waiting.entry(group(at)).or_insert(at);
            }
        }
        let is_unavailable = |row: &Row| row.is_silent || row.known.is_open();
        let unavailable = (0..self.rows.len())
            .filter(|at| is_unavailable(&self.rows[*at]) && first_waiting.contains_key(group(*at)));
        unavailable.chain(first_waiting.values().copied()).collect()
    }

    fn listed(&self, row: &Row) -> RolloutTarget {
        RolloutTarget {
            key: row.device.key.clone(),
            labels: row.device.labels.clone(),
            rollout: self.file.clone(),
            wanted: Some(self.id.digest),
            published: (row.known != Known::NotReleased).then_some(self.id.digest),
            target_generation: row.generation,
            published_at: row.released_at(),
            refused: None,
        }
    }
}

#[cfg(test)]
mod tests;
