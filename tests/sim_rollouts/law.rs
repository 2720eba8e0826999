//! The invariants of rollouts, held against every document and every decision at the moment when DOWNLINK stores it. Evidence
//! is read from LEDGER by [`super::oracle`], not by the fold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::rollout::{
    AtMost, GateEvidence, MINIMUM_SAMPLE, Offline, RolloutDecision, RolloutPhase, RolloutRecord, RolloutVerb,
    Wave,
};
use muster_contract::{DeploymentId, DeviceKey, Generation, Timestamp};
use muster_publisher::source::Fleet;

use super::hub::Hub;
use super::members::{Members, entry, members, wanted};
use super::oracle::{KnownDevice, Proof, known_at};
use super::order::waits_for;
use super::wire::StoreDecisions;

/// Time for which a device counts as silent after it was: a planner may have judged it before it was heard.
const SILENCE_COUNTS_FOR: Duration = Duration::from_secs(60);

/// Decisions of a record that are never dropped to make room.
pub(crate) const KEPT_AT_LEAST: usize = 20;

pub(crate) const NO_SECOND_RELEASE: &str = "no device gets one content twice";
pub(crate) const NOTHING_WHEN_HELD: &str = "a paused, stopped or rolled back rollout releases nothing";
pub(crate) const BEGUN_FIRST: &str = "a wave is released after the decision that it begins";
pub(crate) const IN_FLIGHT: &str = "no more devices are in flight than the wave allows";
pub(crate) const BUDGET: &str = "no more devices of a group are unavailable than the budget allows";
pub(crate) const KNOWN_EVIDENCE: &str = "a gate opens on evidence that LEDGER has at the named sequence";
pub(crate) const OPEN_GATE: &str = "a wave begins once the gate before it is open by the recorded counts";
pub(crate) const APPROVED: &str = "a wave that needs approvals begins with them";
pub(crate) const ONE_BEGIN: &str = "a wave begins once in a run, and none before one that has begun";
pub(crate) const IN_ORDER: &str = "a rollout begins once those that it comes after have succeeded";
pub(crate) const NO_LOST_DECISION: &str = "no decision is lost";
pub(crate) const PHASE_ALLOWS: &str = "a planner decides nothing about a rollout that is held";
pub(crate) const ROLLED_BACK: &str =
    "a device goes back from a content that is rolled back, to one that is not";
pub(crate) const FAILED_EVIDENCE: &str = "a wave fails on failures that LEDGER has at the named sequence";

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
    /// Begins whose counts are exactly those of LEDGER at the named sequence.
    pub(crate) recomputed: u64,
    /// Begins whose counts are lower, because a document was stored between the two answers that the planner joined.
    pub(crate) lower: u64,
}

/// The law's own account.
#[derive(Debug, Default)]
pub(crate) struct Law {
    pub(crate) checks: Checks,
    /// The last accepted commit.
    pub(crate) fleet: Option<Fleet>,
    pub(crate) known: BTreeMap<DeviceKey, KnownDevice>,
    /// Contents on devices, by target generation, that have ended once: confirmed or failed.
    ended: BTreeSet<(DeviceKey, DeploymentId, Generation)>,
}

impl Law {
    /// Takes note of a fact of LEDGER.
    pub(crate) fn fact(&mut self, key: &DeviceKey, at: Timestamp, fact: &muster_contract::fact::Fact) {
        let known = self.known.entry(key.clone()).or_default();
        known.apply(at, fact);
        let ended = known
            .entries()
            .filter(|entry| known.proof(&entry.id, entry.digest) != Proof::Nothing)
            .map(|entry| (key.clone(), entry.id.clone(), entry.target_generation));
        self.ended.extend(ended);
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
        self.in_flight(hub, (id, is), &members, wave, now)?;
        self.budget(hub, (id, is), &members, key, now)
    }

    /// Whether a device has a content that has not ended once, and was heard all the time lately.
    fn is_under_way(&self, hub: &Hub, key: &DeviceKey, (id, digest): (&DeploymentId, Digest)) -> bool {
        entry(hub.document(key), id).is_some_and(|entry| {
            entry.digest == digest
                && !self.ended.contains(&(key.clone(), id.clone(), entry.target_generation))
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
            let known = self.known.get(key);
            members.rollout.deadlines.device.is_some()
                && known.is_some_and(|known| known.has_missed(content.0, content.1))
        };
        let is_left_out =
            |key: &&DeviceKey| of_wave.offline != Offline::Wait && self.was_silent(key, now) || is_late(key);
        let under_way: Vec<_> = members
            .of_wave(wave)
            .filter(|key| self.is_under_way(hub, key, content))
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
        let unavailable: Vec<_> = members
            .targets
            .iter()
            .map(|(target, _)| target)
            .filter(|target| group(target) == group(key))
            .filter(|target| self.is_under_way(hub, target, content) && !self.was_silent(target, now))
            .collect();
        // The worlds have no `minAvailable`.
        let Some(limit) = budget.max_unavailable else { return Ok(()) };
        must(unavailable.len() <= limit.get() as usize, BUDGET, || {
            format!("group {:?} of {} allows {budget:?}: {unavailable:?}", group(key), content.0)
        })
    }

    /// A message of decisions was stored in place of `before`.
    pub(crate) fn decisions(
        &mut self,
        hub: &Hub,
        store: &StoreDecisions,
        before: &[RolloutRecord],
    ) -> Lawful {
        self.checks.decisions += 1;
        let id = &store.decisions.deployment;
        for old in before {
            let new = store.decisions.of(old.digest);
            // A content that is not in use makes room.
            let Some(new) = new else { continue };
            let kept = old.decisions.iter().all(|decision| new.decisions.contains(decision));
            let is_cut = old.decisions.len() > KEPT_AT_LEAST;
            must(kept || is_cut, NO_LOST_DECISION, || {
                format!("{id} under {}: {old:?} became {new:?}", store.path)
            })?;
        }
        for new in &store.decisions.rollouts {
            let old = before.iter().find(|old| old.digest == new.digest);
            let known = old.map_or(0, |old| old.decisions.len());
            if new.decisions.len() > known {
                self.decision(hub, (id, &store.path), new)?;
            }
        }
        Ok(())
    }

    /// The newest decision of a record.
    fn decision(&mut self, hub: &Hub, (id, path): (&DeploymentId, &str), record: &RolloutRecord) -> Lawful {
        let Some((decision, earlier)) = record.decisions.split_last() else { return Ok(()) };
        let before = RolloutRecord { decisions: earlier.to_vec(), ..record.clone() };
        let role = decision.requested_by.as_ref().and_then(|by| by.role.as_deref());
        let seen = || format!("{id} under {path}: {decision:?} after {earlier:?}");
        if role == Some("planner") {
            let is_held = before.phase() == RolloutPhase::Paused || has_ended_badly(before.phase());
            must(!is_held, PHASE_ALLOWS, seen)?;
        }
        let Some(fleet) = self.fleet.take() else { return Ok(()) };
        let lawful = members(&fleet, id, record.digest, path).map_or(Ok(()), |members| match decision.verb {
            RolloutVerb::Begin => {
                let waits_for = waits_for(hub, &fleet, id, path);
                must(before.first_began().is_some() || waits_for.is_empty(), IN_ORDER, || {
                    format!("{id} waits for {waits_for:?}")
                })
                .and_then(|()| self.begin(hub, (id, record.digest), &members, (&before, decision)))
            }
            RolloutVerb::Pause | RolloutVerb::Abort | RolloutVerb::Rollback if role == Some("planner") => {
                failed(hub, (id, record.digest), &members, decision)
            }
            _ => Ok(()),
        });
        self.fleet = Some(fleet);
        lawful.map_err(|breach| Breach { seen: format!("{}\n{}", breach.seen, seen()), ..breach })
    }

    /// A wave begins.
    fn begin(
        &mut self,
        hub: &Hub,
        content: (&DeploymentId, Digest),
        members: &Members<'_>,
        (before, decision): (&RolloutRecord, &RolloutDecision),
    ) -> Lawful {
        let name = decision.wave.as_ref().map(ToString::to_string).unwrap_or_default();
        must(before.began(&name).is_none(), ONE_BEGIN, || format!("wave {name} begins again"))?;
        let wave = members.index(&name);
        let Some((wave, evidence)) = wave.zip(decision.evidence.clone()) else {
            return must(false, OPEN_GATE, || format!("wave {name} is none, or has no evidence"));
        };
        if members.waves.get(wave).is_some_and(|wave| !wave.approval.is_none()) {
            let approvals = &members.rollout.approvals;
            // A planner judges a moment before the publisher records.
            let since = decision.at.checked_sub(approvals.expires_after + SILENCE_COUNTS_FOR).unwrap();
            let policy = members.rollout.approved_policy(&members.waves[wave]);
            let given = before.approvals(decision.wave.as_ref().unwrap(), since, Some(policy), approvals);
            must(given >= approvals.need.get() as usize, APPROVED, || format!("{given} of {approvals:?}"))?;
        }
        let Some(previous) = wave.checked_sub(1) else { return Ok(()) };
        let is_forced = before.forced(members.name(previous)).is_some();
        must(is_forced || is_open(members.waves.get(previous), &evidence), OPEN_GATE, || {
            format!("the gate behind {} is not open by {evidence:?}", members.name(previous))
        })?;
        let proven = Proven::of(hub, content, members, previous, (&evidence, decision.at));
        let is_exact = proven.targets == evidence.targets && proven.confirmed == evidence.confirmed;
        self.checks.recomputed += u64::from(is_exact);
        self.checks.lower += u64::from(!is_exact);
        let holds = proven.targets == evidence.targets
            && proven.confirmed >= evidence.confirmed
            && proven.soaked >= evidence.soaked;
        must(holds, KNOWN_EVIDENCE, || format!("LEDGER proves {proven:?}, the decision says {evidence:?}"))
    }
}

/// The counts that LEDGER proves about the targets of a wave.
#[derive(Debug, Default)]
struct Proven {
    targets: u64,
    confirmed: u64,
    soaked: u64,
    failed: u64,
    silent: u64,
    /// Without an end, past a deadline of the hub.
    late: u64,
}

impl Proven {
    fn of(
        hub: &Hub,
        (id, digest): (&DeploymentId, Digest),
        members: &Members<'_>,
        wave: usize,
        (evidence, at): (&GateEvidence, Timestamp),
    ) -> Self {
        let known = known_at(&hub.ledger, evidence.ledger_seq);
        let soak = members.waves.get(wave).map_or(Duration::ZERO, |wave| wave.soak);
        let mut proven = Self::default();
        for key in members.of_wave(wave) {
            proven.targets += 1;
            let Some(known) = known.get(key) else { continue };
            proven.silent += u64::from(!known.is_fresh());
            match known.proof(id, digest) {
                Proof::Confirmed(since) => {
                    proven.confirmed += 1;
                    proven.soaked += u64::from(since.checked_add(soak).unwrap() <= at);
                }
                Proof::Failed => proven.failed += 1,
                Proof::Nothing => proven.late += u64::from(known.has_missed(id, digest)),
            }
        }
        proven
    }
}

/// Whether a gate is open by recorded counts.
fn is_open(wave: Option<&Wave>, evidence: &GateEvidence) -> bool {
    let GateEvidence { targets, confirmed, soaked, failed, debt, .. } = *evidence;
    let counted = targets - debt;
    let share = wave.map_or(100, |wave| u64::from(wave.success.at_least.get()));
    let allowed = match wave.map(|wave| wave.failure) {
        None => failed == 0,
        Some(limit) => match limit.at_most {
            AtMost::Count(count) => failed <= u64::from(count),
            AtMost::Percent(percent) => {
                let sample = confirmed + failed;
                sample
                    < u64::from(limit.minimum_sample.map_or(MINIMUM_SAMPLE, |sample| sample.get()))
                        .min(targets)
                    || failed * 100 <= u64::from(percent.get()) * sample
            }
        },
    };
    allowed && soaked * 100 >= share * counted && (counted > 0 || debt == 0)
}

/// A policy ends a rollout: the failures are in LEDGER, unless a deadline is over or silence counts.
fn failed(
    hub: &Hub,
    content: (&DeploymentId, Digest),
    members: &Members<'_>,
    decision: &RolloutDecision,
) -> Lawful {
    let evidence = decision.evidence.clone();
    let is_late = decision.reason.as_ref().is_some_and(|reason| reason.contains("by the deadline"));
    let Some(evidence) = evidence.filter(|_| !is_late) else { return Ok(()) };
    let wave = (0..=members.waves.len()).find(|wave| {
        let proven = Proven::of(hub, content, members, *wave, (&evidence, decision.at));
        let may_be_silent =
            members.waves.get(*wave).is_some_and(|wave| matches!(wave.offline, Offline::Fail { .. }));
        let has_deadline = members.rollout.deadlines.device.is_some();
        let failed = proven.failed
            + if may_be_silent { proven.silent } else { 0 }
            + if has_deadline { proven.late } else { 0 };
        proven.targets == evidence.targets && failed >= evidence.failed
    });
    must(evidence.failed > 0 && wave.is_some(), FAILED_EVIDENCE, || format!("no wave has {evidence:?}"))
}

/// Whether a rollout has ended before every gate was open.
pub(crate) const fn has_ended_badly(phase: RolloutPhase) -> bool {
    matches!(phase, RolloutPhase::Stopped | RolloutPhase::Aborted | RolloutPhase::RolledBack)
}
