//! The invariants of rollouts, held against every document at the moment when DOWNLINK stores it. [`super::decisions`] holds those
//! of decisions against each decision, and [`super::releases`] those of requests. Evidence is read from LEDGER by
//! [`super::oracle`], not by the fold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::fact::Fact;
use muster_contract::rollout::{Budget, Offline, RolloutPhase, RolloutRecord};
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, DeviceKey, Generation, Timestamp};
use muster_publisher::source::Fleet;

use super::hub::Hub;
use super::members::{Members, entry, got_at, members, wanted};
use super::oracle::{KnownDevice, Past, Proof};
use super::policies;
use super::world::{BEGIN, Millis, SECOND};

/// Time for which a device counts as silent after it was: a planner may have judged it before it was heard.
const SILENCE_COUNTS_FOR: Duration = Duration::from_secs(60);

/// Time between the judgement of a release and its document: messages are slow, and the publisher has others to answer.
const RELEASED_WITHIN: Millis = 40 * SECOND;
/// The time over which the rate of a wave is counted.
const RATE_TIME: Duration = Duration::from_secs(60);

/// Decisions of a record that are never dropped to make room.
pub(crate) const KEPT_AT_LEAST: usize = 20;

pub(crate) const NO_SECOND_RELEASE: &str = "no device gets one content twice";
pub(crate) const NOTHING_WHEN_HELD: &str = "a paused, stopped or rolled back rollout releases nothing";
pub(crate) const BEGUN_FIRST: &str = "a wave is released after the decision that it begins";
pub(crate) const IN_FLIGHT: &str = "no more devices are in flight than the wave allows";
pub(crate) const BUDGET: &str = "no more devices of a group are unavailable than the budget allows";
pub(crate) const WINDOW: &str = "a device gets a content while a window of its rollout is open";
pub(crate) const RATE: &str = "no more devices get a content in a minute than the wave allows";
pub(crate) const KNOWN_EVIDENCE: &str = "a decision has the counts that LEDGER gives at the named sequence";
pub(crate) const JUDGED_COMMIT: &str = "a planner decides about the last accepted commit";
pub(crate) const RECOMPUTED: &str = "a decision that rests on evidence is recomputed the same";
pub(crate) const OPEN_GATE: &str = "a wave begins, is checked or is ready once the gates say so";
pub(crate) const CHECKED: &str = "a check has the result that its services have answered";
pub(crate) const FINISHED: &str =
    "a rollout succeeds once every target has the content and every gate is open";
pub(crate) const APPROVED: &str = "a wave that needs approvals begins with them";
pub(crate) const ONE_BEGIN: &str = "a wave begins once in a run, and none before one that has begun";
pub(crate) const IN_ORDER: &str = "a rollout begins once those that it comes after have succeeded";
pub(crate) const NO_LOST_DECISION: &str = "no decision is lost";
pub(crate) const PHASE_ALLOWS: &str = "a planner decides nothing about a rollout that is held";
pub(crate) const ROLLED_BACK: &str =
    "a device goes back from a content that is rolled back, to one that is not";
pub(crate) const FAILED_EVIDENCE: &str =
    "a wave fails by its counts, its checks or a deadline, as its policy says";

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Breach {
    pub(crate) law: &'static str,
    pub(crate) seen: String,
}

/// Lawful, or not.
pub(crate) type Lawful = Result<(), Breach>;

pub(crate) fn must(holds: bool, law: &'static str, seen: impl FnOnce() -> String) -> Lawful {
    if holds { Ok(()) } else { Err(Breach { law, seen: seen() }) }
}

/// Counts of checks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Checks {
    pub(crate) documents: u64,
    pub(crate) releases: u64,
    pub(crate) decisions: u64,
    /// Decisions that were judged again.
    pub(crate) recomputed: u64,
}

/// The law's own account.
#[derive(Debug, Default)]
pub(crate) struct Law {
    pub(crate) checks: Checks,
    /// The last accepted commit.
    pub(crate) fleet: Option<Fleet>,
    /// Every accepted commit, by its revision.
    pub(crate) fleets: BTreeMap<String, Fleet>,
    pub(crate) known: BTreeMap<DeviceKey, KnownDevice>,
    /// When the publisher refused a release to a device last.
    pub(crate) refused: BTreeMap<DeviceKey, Millis>,
    /// LEDGER up to the sequence of the decision that was judged again last.
    pub(crate) past: Past,
    /// Contents on devices, by target generation, that have ended once: confirmed or failed.
    ended: BTreeSet<(DeviceKey, DeploymentId, Generation)>,
    /// Those that were confirmed once.
    confirmed: BTreeSet<(DeviceKey, DeploymentId, Generation)>,
}

impl Law {
    /// Takes note of an accepted commit.
    pub(crate) fn accept(&mut self, fleet: Fleet) {
        self.fleets.insert(fleet.revision.clone(), fleet.clone());
        self.fleet = Some(fleet);
    }

    /// Takes note of a fact of LEDGER.
    pub(crate) fn fact(&mut self, key: &DeviceKey, at: Timestamp, subject: &LedgerSubject, fact: &Fact) {
        let known = self.known.entry(key.clone()).or_default();
        known.apply(at, subject, fact);
        for entry in known.entries() {
            let content = || (key.clone(), entry.id.clone(), entry.target_generation);
            match known.proof(&entry.id, entry.digest) {
                Proof::Nothing => continue,
                Proof::Confirmed(_) => _ = self.confirmed.insert(content()),
                Proof::Failed(_) => {}
            }
            self.ended.insert(content());
        }
    }

    /// A device gets a document; the hub has it already.
    pub(crate) fn document(&mut self, hub: &Hub, key: &DeviceKey, now: Timestamp) -> Lawful {
        self.checks.documents += 1;
        let all = &hub.documents[key];
        let document = &all[all.len() - 1].1;
        let before = all.len().checked_sub(2).map(|at| &all[at].1);
        let Some(fleet) = &self.fleet else { return Ok(()) };
        let Some(path) = fleet.rollouts.get(key).map(|file| file.path.clone()) else { return Ok(()) };
        if document.retired {
            return Ok(());
        }
        let ids: BTreeSet<_> = [Some(document), before]
            .into_iter()
            .flatten()
            .flat_map(|document| document.deployments.iter().map(|entry| entry.id.clone()))
            .collect();
        for id in ids {
            let (old, new) = (entry(before, &id), entry(Some(document), &id));
            let (was, is) = (old.map(|entry| entry.digest), new.map(|entry| entry.digest));
            if was == is {
                let same =
                    old.map(|entry| entry.target_generation) == new.map(|entry| entry.target_generation);
                must(same, NO_SECOND_RELEASE, || format!("{key} gets {id} again"))?;
                continue;
            }
            self.checks.releases += 1;
            self.change(hub, key, (&id, &path), (was, is), now)?;
        }
        Ok(())
    }

    /// A governed device gets another content.
    fn change(
        &self,
        hub: &Hub,
        key: &DeviceKey,
        (id, path): (&DeploymentId, &str),
        (was, is): (Option<Digest>, Option<Digest>),
        now: Timestamp,
    ) -> Lawful {
        let subject = (id.clone(), path.to_owned());
        let phase = |digest| hub.record(&subject, digest).map(RolloutRecord::phase).unwrap_or_default();
        let seen = || format!("{key} of {path} gets {id} {is:?} in place of {was:?}");
        if was.is_some_and(|was| matches!(phase(was), RolloutPhase::Aborted | RolloutPhase::RolledBack)) {
            // Back to an earlier content, or on to another one that Git wants.
            let is_bad = |digest| has_ended_badly(phase(digest));
            return must(!is.is_some_and(is_bad), ROLLED_BACK, seen);
        }
        let fleet = self.fleet.as_ref().unwrap();
        let Some(is) = is.filter(|is| wanted(fleet, key, id) == Some(*is)) else {
            return must(false, ROLLED_BACK, seen);
        };
        let is_held = phase(is) == RolloutPhase::Paused || has_ended_badly(phase(is));
        must(!is_held, NOTHING_WHEN_HELD, seen)?;
        let members = members(fleet, id, is, path).unwrap();
        let wave = members.targets.iter().find(|(target, _)| target == key).unwrap().1;
        let record = hub.record(&subject, is);
        let has_begun = record.is_some_and(|record| record.began(members.name(wave)).is_some());
        must(has_begun || phase(is) == RolloutPhase::Succeeded, BEGUN_FIRST, || {
            format!("{}: wave {} has no begin; {record:?}", seen(), members.name(wave))
        })?;
        let at = now.as_millisecond() - BEGIN;
        must(policies::was_open(&members.rollout.windows, at, RELEASED_WITHIN), WINDOW, seen)?;
        rate(hub, (id, is), &members, wave)?;
        self.in_flight(hub, (id, is), &members, wave, now)?;
        self.budget(hub, (id, is), &members, key, now)
    }

    /// Whether a device has a content that is not among some.
    fn has_none_of(
        ended: &BTreeSet<(DeviceKey, DeploymentId, Generation)>,
        hub: &Hub,
        key: &DeviceKey,
        (id, digest): (&DeploymentId, Digest),
    ) -> bool {
        entry(hub.document(key), id).is_some_and(|entry| {
            entry.digest == digest && !ended.contains(&(key.clone(), id.clone(), entry.target_generation))
        })
    }

    fn was_silent(&self, key: &DeviceKey, now: Timestamp) -> bool {
        self.known.get(key).is_none_or(|known| {
            let lately = now.checked_sub(SILENCE_COUNTS_FOR).unwrap();
            !known.is_fresh() || known.silent_at.is_some_and(|at| at > lately)
        })
    }

    fn in_flight(
        &self,
        hub: &Hub,
        content: (&DeploymentId, Digest),
        members: &Members<'_>,
        wave: usize,
        now: Timestamp,
    ) -> Lawful {
        let Some(of_wave) = members.waves.get(wave) else { return Ok(()) };
        let Some(limit) = of_wave.max_in_flight else { return Ok(()) };
        // A device past its deadline counts as failed, and gives its place back.
        let is_late = |key: &DeviceKey| {
            let missed = self.known.get(key).and_then(|known| known.missed(content.0, content.1));
            missed.is_some_and(|(kind, _)| members.rollout.deadlines.of_device(kind).is_some())
        };
        let is_left_out =
            |key: &&DeviceKey| of_wave.offline != Offline::Wait && self.was_silent(key, now) || is_late(key);
        let under_way: Vec<_> = members
            .of_wave(wave)
            .filter(|key| Self::has_none_of(&self.ended, hub, key, content))
            .filter(|key| !is_left_out(key))
            .collect();
        must(under_way.len() <= limit.get() as usize, IN_FLIGHT, || {
            format!("wave {} of {} allows {limit}: {under_way:?}", of_wave.name, content.0)
        })
    }

    fn budget(
        &self,
        hub: &Hub,
        content: (&DeploymentId, Digest),
        members: &Members<'_>,
        key: &DeviceKey,
        now: Timestamp,
    ) -> Lawful {
        let (Some(budget), Some(fleet)) = (&members.rollout.budget, &self.fleet) else { return Ok(()) };
        let group = |key: &DeviceKey| fleet.labels_of(key).get(&budget.group_by).cloned();
        // A device that is silent already needs no room.
        if self.was_silent(key, now) {
            return Ok(());
        }
        let of_group: Vec<_> = members
            .targets
            .iter()
            .map(|(target, _)| target)
            .filter(|target| group(target) == group(key))
            .collect();
        let unavailable: Vec<_> = of_group
            .iter()
            .filter(|target| Self::has_none_of(&self.confirmed, hub, target, content))
            .filter(|target| !self.was_silent(target, now))
            .collect();
        let limit = match budget {
            Budget { max_unavailable: Some(most), .. } => most.get() as usize,
            Budget { min_available, .. } => {
                of_group.len().saturating_sub(min_available.unwrap().get() as usize)
            }
        };
        must(unavailable.len() <= limit, BUDGET, || {
            format!("group {:?} of {} allows {budget:?}: {unavailable:?}", group(key), content.0)
        })
    }
}

/// The devices of a rollout that got the content within a minute up to the newest document, if the wave that is released has a rate.
fn rate(hub: &Hub, (id, digest): (&DeploymentId, Digest), members: &Members<'_>, wave: usize) -> Lawful {
    let Some(limit) = members.waves.get(wave).and_then(|wave| wave.per_minute) else { return Ok(()) };
    let all: Vec<_> = members.targets.iter().filter_map(|(key, _)| got_at(hub, key, (id, digest))).collect();
    let newest = all.iter().max().copied().unwrap_or_default();
    let lately = newest.checked_sub(RATE_TIME).unwrap();
    let count = all.iter().filter(|at| **at > lately).count();
    must(count <= limit.get() as usize, RATE, || format!("{count} devices of {id} got it, {limit} may"))
}

/// Whether a rollout has ended before every gate was open.
pub(crate) const fn has_ended_badly(phase: RolloutPhase) -> bool {
    matches!(phase, RolloutPhase::Stopped | RolloutPhase::Aborted | RolloutPhase::RolledBack)
}
