//! The law of decisions: each one of a planner is judged again when DOWNLINK stores it, by the counts of [`super::counts`] at the
//! sequence of LEDGER that it names, and by the recomputation of `muster-domain`, which people use.

use muster_contract::rollout::{
    Approval, Approvers, CheckResult, GateEvidence, RolloutDecision, RolloutPhase, RolloutRecord,
    RolloutVerb, TargetsAnswer, Wave,
};
use muster_contract::{DeploymentId, Timestamp};
use muster_domain::rollout::{NotRecomputable, PastLines, recompute, rests_on_evidence};
use muster_publisher::source::Fleet;

use super::checks::CheckServices;
use super::counts::{Counter, Counts, Verdict};
use super::hub::Hub;
use super::law::{
    APPROVED, CHECKED, FAILED_EVIDENCE, FINISHED, IN_ORDER, JUDGED_COMMIT, KEPT_AT_LEAST, KNOWN_EVIDENCE,
    Law, Lawful, NO_LOST_DECISION, ONE_BEGIN, OPEN_GATE, PHASE_ALLOWS, RECOMPUTED, has_ended_badly, must,
};
use super::ledger::lines;
use super::members::{Members, entry, members, targets_of};
use super::oracle::Past;
use super::order::waits_for;
use super::wire::StoreDecisions;

/// The gate behind a wave with its checks and approvals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    Shut,
    Failed,
    CheckFailed,
    Checking,
    Approving,
}

/// A decision that is judged again.
struct Judged<'a> {
    hub: &'a Hub,
    checks: &'a CheckServices,
    fleet: &'a Fleet,
    path: &'a str,
    counter: Counter<'a>,
    decision: &'a RolloutDecision,
    evidence: &'a GateEvidence,
}

impl Law {
    /// A message of decisions was stored in place of `before`.
    pub(crate) fn decisions(
        &mut self,
        (hub, checks): (&Hub, &CheckServices),
        store: &StoreDecisions,
        before: &[RolloutRecord],
    ) -> Lawful {
        self.checks.decisions += 1;
        let id = &store.decisions.deployment;
        for old in before {
            // A content that is not in use makes room.
            let Some(new) = store.decisions.of(old.digest) else { continue };
            let is_replaced = |decision: &RolloutDecision| {
                decision.result == Some(CheckResult::Inconclusive)
                    && new.decisions.iter().any(|newer| newer.result.is_some() && newer.wave == decision.wave)
            };
            let is_kept = |decision| new.decisions.contains(decision) || is_replaced(decision);
            let is_cut = old.decisions.len() > KEPT_AT_LEAST;
            must(old.decisions.iter().all(is_kept) || is_cut, NO_LOST_DECISION, || {
                format!("{id} under {}: {old:?} became {new:?}", store.path)
            })?;
        }
        for new in &store.decisions.rollouts {
            let old = before.iter().find(|old| old.digest == new.digest);
            if old.and_then(|old| old.decisions.last()) != new.decisions.last() {
                self.decision((hub, checks), (id, &store.path), new)?;
            }
        }
        Ok(())
    }

    /// The newest decision of a record.
    fn decision(
        &mut self,
        (hub, checks): (&Hub, &CheckServices),
        (id, path): (&DeploymentId, &str),
        record: &RolloutRecord,
    ) -> Lawful {
        let Some((decision, earlier)) = record.decisions.split_last() else { return Ok(()) };
        let before = RolloutRecord { decisions: earlier.to_vec(), ..record.clone() };
        let seen = || format!("{id} under {path}: {decision:?} after {earlier:?}");
        let is_of_planner = is_of_planner(decision);
        if is_of_planner {
            let is_held = before.phase() == RolloutPhase::Paused || has_ended_badly(before.phase());
            must(!is_held, PHASE_ALLOWS, seen)?;
        }
        let Some(evidence) = &decision.evidence else {
            return must(!is_of_planner, KNOWN_EVIDENCE, seen);
        };
        let (revision, judged_at) = (evidence.revision.as_ref().unwrap(), evidence.judged_at.unwrap());
        let newest = self.fleet.as_ref().map(|fleet| &fleet.revision);
        must(!is_of_planner || newest == Some(revision), JUDGED_COMMIT, seen)?;
        self.past.move_to(&hub.ledger, evidence.ledger_seq);
        let fleet = &self.fleets[revision];
        let Some(members) = members(fleet, id, record.digest, path) else { return Ok(()) };
        let known = &self.past.known;
        let content = (id, record.digest);
        let counter = Counter { known, members: &members, record: &before, content, now: judged_at };
        let judged = Judged { hub, checks, fleet, path, counter, decision, evidence };
        judged.lawful().and_then(|()| self.recomputed(id, record, fleet)).map_err(|breach| {
            super::law::Breach { seen: format!("{}\n{}", breach.seen, seen()), ..breach }
        })?;
        self.checks.recomputed += 1;
        Ok(())
    }

    /// The domain recomputes the decision from LEDGER and its commit, as people do.
    fn recomputed(&self, id: &DeploymentId, record: &RolloutRecord, fleet: &Fleet) -> Lawful {
        let last = record.decisions.len() - 1;
        let decision = &record.decisions[last];
        if !rests_on_evidence(decision) {
            return Ok(());
        }
        let commit = TargetsAnswer {
            revision: fleet.revision.clone(),
            rollouts: fleet.rollouts.values().map(|file| (file.path.clone(), file.rollout.clone())).collect(),
            targets: targets_of(fleet, id),
            decisions: Vec::new(),
            waits_for: Default::default(),
            next: None,
        };
        let seen = || decision.evidence.as_ref().unwrap();
        match recompute(id, record, last, &commit, &past_lines(&self.past, id)) {
            Ok(found) => must(found.contradiction.is_none() && found.counts == *seen(), RECOMPUTED, || {
                format!("{found:?} is recomputed for {:?}", seen())
            }),
            // A long record drops older decisions.
            Err(NotRecomputable::Shortened) => Ok(()),
            Err(why) => must(false, RECOMPUTED, || format!("{why}: {:?}", seen())),
        }
    }
}

/// The lines of a deployment and the contents of devices at a sequence.
fn past_lines(past: &Past, id: &DeploymentId) -> PastLines {
    let mut lines = PastLines { lines: lines(&past.fleet, id), ..PastLines::default() };
    for (key, known) in &past.known {
        let content = known.entries().find(|entry| entry.id == *id);
        lines.contents.extend(content.map(|entry| (key.clone(), entry.digest)));
    }
    lines
}

impl Judged<'_> {
    fn lawful(&self) -> Lawful {
        match self.decision.verb {
            RolloutVerb::Begin => self.begin(),
            RolloutVerb::Check => self.check(),
            RolloutVerb::Ready => self.at_gate(Gate::Approving),
            RolloutVerb::Force => self.wave().map_or(Ok(()), |wave| self.has_counts(wave)),
            RolloutVerb::Finish => self.finish(),
            _ => self.failed(),
        }
    }

    /// The wave that the decision names.
    fn wave(&self) -> Option<usize> {
        self.counter.members.index(self.decision.wave.as_ref()?.as_str())
    }

    fn policy(&self, wave: usize) -> Option<&Wave> {
        self.counter.members.waves.get(wave)
    }

    fn name(&self, wave: usize) -> &str {
        self.counter.members.name(wave)
    }

    /// Number of waves, with the one of unmatched devices if there are any.
    fn waves(&self) -> usize {
        let Members { waves, .. } = self.counter.members;
        waves.len() + usize::from(self.counter.members.of_wave(waves.len()).next().is_some())
    }

    /// Whether a wave after this one has begun.
    fn has_passed(&self, wave: usize) -> bool {
        let has_begun = |later| self.counter.record.began(self.name(later)).is_some();
        (wave + 1..=self.counter.members.waves.len()).any(has_begun)
    }

    /// The gate behind a wave.
    fn gate(&self, wave: usize) -> Gate {
        let record = self.counter.record;
        let is_forced = record.forced(self.name(wave)).is_some();
        let verdict = self.counter.verdict(wave, &self.counter.of(wave));
        match verdict {
            // A gate that was open once shuts only on failures.
            Verdict::Failed if !is_forced => return Gate::Failed,
            _ if self.has_passed(wave) => return Gate::Open,
            _ => {}
        }
        let checked = record.checked(self.name(wave)).and_then(|check| check.result);
        let has_checks = !is_forced && self.policy(wave).is_some_and(|wave| !wave.checks.is_empty());
        if has_checks && checked == Some(CheckResult::Fail) {
            Gate::CheckFailed
        } else if !is_forced && verdict == Verdict::Shut {
            Gate::Shut
        } else if has_checks && checked != Some(CheckResult::Pass) {
            Gate::Checking
        } else if self.lacks_approvals(wave, Approval::After) {
            Gate::Approving
        } else {
            Gate::Open
        }
    }

    fn lacks_approvals(&self, wave: usize, when: Approval) -> bool {
        let policy = self.policy(wave).filter(|policy| policy.approval == when);
        policy.is_some_and(|policy| {
            let need = self.counter.members.rollout.approvals.need.get() as usize;
            self.approvals(policy) < need
        })
    }

    /// Number of persons whose approvals of a wave count.
    fn approvals(&self, wave: &Wave) -> usize {
        let (record, rollout) = (self.counter.record, self.counter.members.rollout);
        let rule = &rollout.approvals;
        let mut since = self.counter.now.checked_sub(rule.expires_after).unwrap_or(Timestamp::MIN);
        if wave.approval == Approval::After {
            let Some(ready) = record.ready(wave.name.as_str()) else { return 0 };
            since = since.max(ready);
        }
        let policy = rollout.approved_policy(wave);
        let is_end = |one: &RolloutDecision| matches!(one.verb, RolloutVerb::Retry | RolloutVerb::Supersede);
        let end = record.decisions.iter().rposition(is_end);
        let run = &record.decisions[end.map_or(0, |end| end + 1)..];
        let is_about = |one: &&RolloutDecision| one.wave.as_ref() == Some(&wave.name);
        let forces = run.iter().filter(|one| one.verb == RolloutVerb::Force).filter(is_about);
        let retry = end.map(|end| &record.decisions[end]).filter(|one| one.verb == RolloutVerb::Retry);
        let own: Vec<_> = forces.chain(retry).filter_map(person).map(|(name, _)| name).collect();
        let counts = |(name, role): &(&str, &str)| {
            let is_own = rule.need.get() > 1 && own.contains(name);
            let is_approver = match &rule.of {
                None => true,
                Some(Approvers::Role(wanted)) => *role == wanted.as_str(),
                Some(Approvers::Persons(persons)) => persons.iter().any(|person| person == name),
            };
            is_approver && !is_own
        };
        let given = run.iter().filter(|one| one.verb == RolloutVerb::Approve).filter(is_about);
        let given = given.filter(|one| one.at >= since && one.policy == Some(policy)).filter_map(person);
        let given: std::collections::BTreeSet<_> = given.filter(counts).collect();
        given.len()
    }

    /// The recorded counts are those of a wave.
    fn has_counts(&self, wave: usize) -> Lawful {
        let counts = self.counter.of(wave);
        must(counts.are(self.evidence), KNOWN_EVIDENCE, || {
            format!(
                "LEDGER proves {counts:?} of wave {}, the decision says {:?}",
                self.name(wave),
                self.evidence
            )
        })
    }

    /// The gates behind the first waves are open.
    fn are_open(&self, count: usize, law: &'static str) -> Lawful {
        let mut gates = (0..count).map(|wave| (wave, self.gate(wave)));
        let shut = gates.find(|(_, gate)| *gate != Gate::Open);
        must(shut.is_none(), law, || {
            let (wave, gate) = shut.unwrap();
            format!("the gate behind {} is {gate:?}: {:?}", self.name(wave), self.counter.of(wave))
        })
    }

    /// A wave begins.
    fn begin(&self) -> Lawful {
        let Some(wave) = self.wave() else { return must(false, OPEN_GATE, || "the wave is none".to_owned()) };
        let record = self.counter.record;
        must(record.began(self.name(wave)).is_none(), ONE_BEGIN, || "the wave begins again".to_owned())?;
        if record.first_began().is_none() {
            let waits_for = waits_for(self.hub, self.fleet, self.counter.content.0, self.path);
            must(waits_for.is_empty(), IN_ORDER, || format!("it waits for {waits_for:?}"))?;
        }
        must(!self.lacks_approvals(wave, Approval::Before), APPROVED, || {
            format!("{:?}", self.counter.members.rollout.approvals)
        })?;
        self.has_counts(wave.saturating_sub(1))?;
        self.are_open(wave, OPEN_GATE)
    }

    /// A decision at the gate of its wave.
    fn at_gate(&self, wanted: Gate) -> Lawful {
        let Some(wave) = self.wave() else { return must(false, OPEN_GATE, || "the wave is none".to_owned()) };
        self.has_counts(wave)?;
        let gate = self.gate(wave);
        must(gate == wanted, OPEN_GATE, || format!("the gate is {gate:?} in place of {wanted:?}"))
    }

    /// The result of checks is recorded.
    fn check(&self) -> Lawful {
        self.at_gate(Gate::Checking)?;
        let (id, digest) = self.counter.content;
        let checks = &self.policy(self.wave().unwrap()).unwrap().checks;
        let of = (id, digest, self.path, self.decision.wave.as_ref().unwrap());
        must(self.checks.gave(checks, of, self.decision.result.unwrap()), CHECKED, || format!("{checks:?}"))
    }

    /// The rollout ends with success.
    fn finish(&self) -> Lawful {
        let (id, digest) = self.counter.content;
        let lacks = |key| entry(self.hub.document(key), id).is_none_or(|entry| entry.digest != digest);
        let lacking = self.counter.members.targets.iter().find(|(key, _)| lacks(key));
        must(lacking.is_none(), FINISHED, || format!("{lacking:?} lacks the content"))?;
        self.has_counts(self.waves() - 1)?;
        let (debt, recorded) = (self.counter.debt(), self.evidence.debt_of_all.unwrap_or_default());
        must(debt == recorded, KNOWN_EVIDENCE, || format!("LEDGER proves a debt of {debt}"))?;
        self.are_open(self.waves(), FINISHED)
    }

    /// A policy ends or holds the rollout: some wave has failed so that this decision follows.
    fn failed(&self) -> Lawful {
        let wave = (0..self.waves())
            .find(|wave| self.counter.of(*wave).are(self.evidence) && self.has_failed(*wave));
        must(wave.is_some(), FAILED_EVIDENCE, || {
            let all: Vec<_> = (0..self.waves())
                .map(|wave| (self.name(wave).to_owned(), self.counter.of(wave), self.gate(wave)))
                .collect();
            format!("{all:?}")
        })
    }

    /// Whether a wave has failed so that the policy decides this.
    fn has_failed(&self, wave: usize) -> bool {
        let rollout = self.counter.members.rollout;
        let (verb, deadlines) = (self.decision.verb, &rollout.deadlines);
        let (on_failure, at_end) = (rollout.on_failure.verb(), deadlines.at_end.verb());
        let counts: Counts = self.counter.of(wave);
        match self.gate(wave) {
            Gate::CheckFailed => return verb == on_failure,
            Gate::Failed => {
                let others = self.counter.verdict(wave, &counts.without_overdue());
                let is_by_deadline = counts.overdue > 0 && others != Verdict::Failed;
                return verb == if is_by_deadline { at_end } else { on_failure };
            }
            Gate::Open | Gate::Shut | Gate::Checking | Gate::Approving => {}
        }
        let is_over = |began: Option<Timestamp>, time: Option<std::time::Duration>| {
            let end = began.zip(time).and_then(|(began, time)| began.checked_add(time).ok());
            end.is_some_and(|end| end <= self.counter.now)
        };
        let record = self.counter.record;
        let is_late = self.gate(wave) != Gate::Open && is_over(record.began(self.name(wave)), deadlines.wave);
        verb == at_end && (is_late || is_over(record.first_began(), deadlines.rollout))
    }
}

/// Whether a planner has decided.
fn is_of_planner(decision: &RolloutDecision) -> bool {
    person(decision).is_some_and(|(_, role)| role == "planner")
}

/// The name and the role of the requester.
fn person(decision: &RolloutDecision) -> Option<(&str, &str)> {
    let by = decision.requested_by.as_ref()?;
    Some((by.name.as_deref()?, by.role.as_deref()?))
}
