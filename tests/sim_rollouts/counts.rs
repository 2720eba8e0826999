//! The counts of a wave and its gate by LEDGER's facts alone: an oracle beside the rules of `muster-domain`, which it does not call.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::rollout::{
    AtMost, GateEvidence, MINIMUM_SAMPLE, Offline, Retries, Rollout, RolloutRecord, Wave,
};
use muster_contract::{DeploymentId, DeviceKey, Timestamp};

use super::members::Members;
use super::oracle::{KnownDevice, Proof};

/// The counts of a wave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) targets: u64,
    pub(crate) released: u64,
    pub(crate) confirmed: u64,
    pub(crate) soaked: u64,
    pub(crate) failed: u64,
    /// Failed ones that have no end, and have missed a deadline.
    pub(crate) overdue: u64,
    pub(crate) debt: u64,
    /// Silent ones, however they count.
    pub(crate) dark: u64,
}

/// The gate behind a wave by its devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Open,
    Shut,
    Failed,
}

/// The state of a device of a wave.
enum Counted {
    Confirmed(Timestamp),
    Failed,
    Overdue,
    Silent(Timestamp),
    Open,
}

/// Reads the counts of one rollout at a sequence of LEDGER, as of a time.
pub(crate) struct Counter<'a> {
    pub(crate) known: &'a BTreeMap<DeviceKey, KnownDevice>,
    pub(crate) members: &'a Members<'a>,
    pub(crate) record: &'a RolloutRecord,
    pub(crate) content: (&'a DeploymentId, Digest),
    pub(crate) now: Timestamp,
}

impl Counter<'_> {
    /// The counts of a wave.
    pub(crate) fn of(&self, wave: usize) -> Counts {
        let policy = self.members.waves.get(wave);
        let mut counts = Counts::default();
        let mut silent = Vec::new();
        for key in self.members.of_wave(wave) {
            counts.targets += 1;
            let Some(state) = self.known.get(key).and_then(|known| self.counted(known)) else { continue };
            counts.released += 1;
            match state {
                Counted::Confirmed(since) => {
                    counts.confirmed += 1;
                    let soak = policy.map_or(Duration::ZERO, |wave| wave.soak);
                    counts.soaked += u64::from(soak.is_zero() || self.has_passed(since, soak));
                }
                Counted::Failed => counts.failed += 1,
                Counted::Overdue => {
                    counts.failed += 1;
                    counts.overdue += 1;
                }
                Counted::Silent(since) => silent.push((since, key)),
                Counted::Open => {}
            }
        }
        counts.dark = silent.len() as u64;
        self.count_silent(wave, silent, &mut counts);
        counts
    }

    /// Counts silent devices by the policy of their wave, the longest silent ones first.
    fn count_silent(&self, wave: usize, mut silent: Vec<(Timestamp, &DeviceKey)>, counts: &mut Counts) {
        let began = self.record.began(self.members.name(wave));
        let (Some(policy), Some(began)) = (self.members.waves.get(wave), began) else { return };
        silent.iter_mut().for_each(|(since, _)| *since = (*since).max(began));
        silent.sort();
        let over = |after: Duration| {
            let is_over = |since: Timestamp| since.checked_add(after).is_ok_and(|end| end <= self.now);
            silent.iter().filter(|(since, _)| is_over(*since)).count() as u64
        };
        match policy.offline {
            Offline::Wait => {}
            Offline::Debt { after, max } => counts.debt = over(after).min(max.get().into()),
            Offline::Fail { after } => counts.failed += over(after),
        }
    }

    /// The state of a device that has the content by LEDGER.
    fn counted(&self, known: &KnownDevice) -> Option<Counted> {
        let (id, digest) = self.content;
        known.entry(id, digest)?;
        if !known.is_fresh() {
            return Some(Counted::Silent(known.heard_at.unwrap_or(Timestamp::MIN)));
        }
        let Rollout { retries, deadlines, .. } = self.members.rollout;
        match known.proof(id, digest) {
            Proof::Confirmed(since) => return Some(Counted::Confirmed(since)),
            Proof::Failed(tried) if !tries_again(retries.as_ref(), tried) => return Some(Counted::Failed),
            Proof::Failed(_) | Proof::Nothing => {}
        }
        let missed = known.missed(id, digest).filter(|_| known.is_complete());
        let is_overdue = missed.is_some_and(|(kind, since)| {
            deadlines.of_device(kind).is_some_and(|time| self.has_passed(since, time))
        });
        Some(if is_overdue { Counted::Overdue } else { Counted::Open })
    }

    /// Whether so much time has passed since then, without the pauses of the rollout.
    fn has_passed(&self, since: Timestamp, time: Duration) -> bool {
        let paused = |(from, until): (Timestamp, Option<Timestamp>)| {
            let (from, until) = (from.max(since), until.unwrap_or(self.now).min(self.now));
            until.duration_since(from).as_nanos().max(0)
        };
        let held: i128 = self.record.pauses().map(paused).sum();
        let passed = self.now.duration_since(since).as_nanos() - held;
        passed >= i128::try_from(time.as_nanos()).unwrap()
    }

    /// The gate behind a wave by its counts.
    pub(crate) fn verdict(&self, wave: usize, counts: &Counts) -> Verdict {
        verdict(self.members.waves.get(wave), counts)
    }

    /// Debt of all waves.
    pub(crate) fn debt(&self) -> u64 {
        (0..=self.members.waves.len()).map(|wave| self.of(wave).debt).sum()
    }
}

/// Whether a failure is to be tried again by a policy.
fn tries_again(retries: Option<&Retries>, tried: &[muster_contract::retry::Retry]) -> bool {
    let Some(Retries { max, classes, .. }) = retries else { return false };
    let is_covered = |code: &String| classes.is_empty() || classes.contains(code);
    !tried.is_empty()
        && tried.iter().all(|retry| retry.attempt <= max.get() && is_covered(&retry.last_error.code))
}

/// The gate behind a wave by counts; without a wave, of the devices that no wave matches.
pub(crate) fn verdict(wave: Option<&Wave>, counts: &Counts) -> Verdict {
    let Counts { targets, confirmed, soaked, failed, debt, .. } = *counts;
    let counted = targets - debt;
    let share = wave.map_or(100, |wave| u64::from(wave.success.at_least.get()));
    let ended = confirmed + failed;
    let is_beyond = match wave.map(|wave| (wave.failure.at_most, wave.failure.minimum_sample)) {
        None => failed > 0,
        Some((AtMost::Count(count), _)) => failed > u64::from(count),
        Some((AtMost::Percent(percent), sample)) => {
            let sample = sample.map_or(MINIMUM_SAMPLE, std::num::NonZeroU32::get);
            ended >= u64::from(sample).min(counted) && failed * 100 > u64::from(percent.get()) * ended
        }
    };
    let must_be_complete = wave.is_some_and(|wave| !wave.success.evidence.is_lower());
    if is_beyond || (counted - failed) * 100 < share * counted {
        Verdict::Failed
    } else if soaked * 100 >= share * counted
        && (counted > 0 || debt == 0)
        && (!must_be_complete || ended == counted)
    {
        Verdict::Open
    } else {
        Verdict::Shut
    }
}

impl Counts {
    /// Whether recorded counts are these.
    pub(crate) fn are(&self, evidence: &GateEvidence) -> bool {
        let GateEvidence { targets, released, confirmed, soaked, failed, debt, dark, .. } = evidence;
        *targets == self.targets
            && *released == self.released
            && *confirmed == self.confirmed
            && *soaked == self.soaked
            && *failed == self.failed
            && *debt == self.debt
            && *dark == Some(self.dark)
    }

    /// The same if devices past a deadline did not count as failed.
    pub(crate) const fn without_overdue(self) -> Self {
        Self { failed: self.failed - self.overdue, overdue: 0, ..self }
    }
}
