//! People: they commit to the repository, and decide about rollouts by the commands of `muster rollout`. In the calm they are
//! diligent: they approve the waves that wait for it, and resume paused rollouts. The sabotage of requests is here as well.

use bytes::Bytes;
use fastrand::Rng;
use muster_bus::Role;
use muster_contract::canonical::Digest;
use muster_contract::rollout::{DecideRequest, RolloutPhase, RolloutVerb};
use muster_contract::{DeploymentId, RequestedBy, WaveName};
use muster_domain::rollout::{Blocked, RolloutProgress, Step};
use muster_planner::services::Services;
use serde_json::{Value, json};

use super::hub::Subject;
use super::law::{KEPT_AT_LEAST, NO_LOST_DECISION, must};
use super::members::wanted;
use super::repository::{Repository, name};
use super::wire::{Port, Process, Request, StoreDecisions};
use super::world::{Event, SECOND, Sabotage, World};

/// The people.
pub(crate) const NAMES: [&str; 4] = ["ann", "ben", "eve", "dan"];
/// Those of them that run the fleet; the others approve.
const OPERATORS: usize = 2;

/// Time between two looks of diligent people.
const LOOK: i64 = 15 * SECOND;
/// Time after which they look again although nothing was stored.
const LOOK_AGAIN: i64 = 60 * SECOND;
/// Rollouts that diligent people resume, in all; then they stop them.
const RESUMES_MAX: u64 = 3;
/// The answer to a decision that sabotage swallowed.
pub(crate) const ANSWER_OF_NOTHING: &[u8] =
    br#"{"record":{"digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000","rollout":"","decisions":[]},"changed":true}"#;

/// The role of a person.
pub(crate) const fn role(person: usize) -> Role {
    if person < OPERATORS { Role::Operator } else { Role::Approver }
}

/// A person as the requester of a decision.
pub(crate) fn requested_by(person: usize) -> RequestedBy {
    let name = NAMES[person];
    RequestedBy::new(&format!("U-{name}"), name, Some(role(person).as_str()))
}

impl World {
    /// Devices of the repository exist from then on.
    pub(crate) fn add_devices(&mut self) {
        for at in self.repository.devices.clone() {
            self.add_device(name(at).parse().unwrap());
        }
    }

    /// Commits to the branch.
    pub(crate) fn commit(&mut self, change: impl FnOnce(&mut Repository, &mut Rng)) {
        change(&mut self.repository, &mut self.rng);
        self.programs.branch.lock().unwrap().push(self.repository.tree());
        self.add_devices();
    }

    /// The rollouts of the accepted commit.
    pub(crate) fn rollouts(&self) -> Vec<(Subject, Digest)> {
        let Some(fleet) = &self.law.fleet else { return Vec::new() };
        let mut all = std::collections::BTreeSet::new();
        for (key, file) in &fleet.rollouts {
            for content in fleet.devices.get(key).into_iter().flatten() {
                let id: &DeploymentId = content.id();
                if let Some(digest) = wanted(fleet, key, id) {
                    all.insert(((id.clone(), file.path.clone()), digest));
                }
            }
        }
        all.into_iter().collect()
    }

    /// A person decides something about some rollout.
    pub(crate) fn person_decides(&mut self) {
        let rollouts = self.rollouts();
        if rollouts.is_empty() {
            return;
        }
        let ((deployment, rollout), digest) = rollouts[self.rng.usize(..rollouts.len())].clone();
        let fleet = self.law.fleet.as_ref().unwrap();
        let file = fleet.rollouts.values().find(|file| file.path == rollout).unwrap();
        let waves: Vec<_> = file.rollout.waves.iter().map(|wave| wave.name.clone()).collect();
        let verb = match self.rng.u8(0..21) {
            0..4 => RolloutVerb::Pause,
            4..10 => RolloutVerb::Resume,
            10..11 => RolloutVerb::Stop,
            11..12 => RolloutVerb::Rollback,
            12..13 => RolloutVerb::Abort,
            13..15 => RolloutVerb::Retry,
            15..16 if !waves.is_empty() => RolloutVerb::Force,
            _ if waves.is_empty() => RolloutVerb::Pause,
            _ => RolloutVerb::Approve,
        };
        let wave = verb.has_wave().then(|| waves[self.rng.usize(..waves.len())].clone());
        let reason = (verb == RolloutVerb::Force).then(|| "a person knows better".to_owned());
        // A person forces a gate by the counts that the command shows.
        let evidence = wave.as_ref().filter(|_| verb == RolloutVerb::Force).and_then(|wave: &WaveName| {
            let all = self.progress();
            let is_it = |one: &&RolloutProgress| {
                (&one.deployment, one.digest, &one.file) == (&deployment, digest, &rollout)
            };
            let found = all.iter().find(is_it)?;
            found.evidence(found.state.waves.iter().position(|state| state.name == wave.as_str())?)
        });
        let request =
            DecideRequest { deployment, digest, rollout, verb, wave, reason, evidence, ..nothing(digest) };
        let person = self.rng.usize(..NAMES.len());
        self.decide(person, request);
    }

    /// Sends a decision; if it is acknowledged, DOWNLINK has it.
    fn decide(&mut self, person: usize, request: DecideRequest) {
        let port = Port { process: Process::Person(person), sent: self.programs.sent.clone() };
        let services = Services::new(port);
        let acknowledged = self.programs.acknowledged.clone();
        self.programs.tasks.spawn(Process::Person(person), async move {
            let subject = (request.deployment.clone(), request.rollout.clone());
            // A refusal, or no answer, is a person's loss.
            if let Ok(answer) = services.decide(&request).await {
                acknowledged.lock().unwrap().push((subject, answer.record));
            }
        });
    }

    /// DOWNLINK has every decision that a person was told of.
    pub(crate) fn check_acknowledged(&mut self) {
        let acknowledged = std::mem::take(&mut *self.programs.acknowledged.lock().unwrap());
        for (subject, told) in acknowledged {
            // A content that is not in use makes room for others.
            let Some(record) = self.hub.record(&subject, told.digest) else { continue };
            let has_all = told.decisions.iter().all(|decision| record.decisions.contains(decision));
            let is_cut = record.decisions.len() > KEPT_AT_LEAST;
            self.hold(must(has_all || is_cut, NO_LOST_DECISION, || {
                format!("{told:?} was told of, {record:?} is there")
            }));
        }
    }

    /// Diligent people look at every rollout.
    pub(crate) fn people(&mut self) {
        self.after(LOOK, Event::People);
        // Time alone opens gates, too.
        let is_known = self
            .looked_at
            .is_some_and(|(version, at)| version == self.hub.version() && at + LOOK_AGAIN > self.now);
        if is_known {
            return;
        }
        let mut is_done = true;
        for RolloutProgress { deployment, digest, file, state, record, .. } in self.progress() {
            let phase = record.as_ref().map(|record| record.phase()).unwrap_or_default();
            let wave = match &state.step {
                Step::Release { wave, needs_approval: true, .. }
                | Step::Wait { wave, because: Blocked::Approval } => {
                    Some(state.waves[*wave].name.parse().unwrap())
                }
                _ => None,
            };
            let verb = match phase {
                _ if wave.is_some() => RolloutVerb::Approve,
                RolloutPhase::Paused if self.resumes() < RESUMES_MAX => RolloutVerb::Resume,
                RolloutPhase::Paused => RolloutVerb::Stop,
                _ => continue,
            };
            let request = DecideRequest { deployment, digest, rollout: file, verb, wave, ..nothing(digest) };
            is_done = false;
            let people =
                if verb == RolloutVerb::Approve && !self.checks.is_scripted { NAMES.len() } else { 1 };
            (0..people).for_each(|person| self.decide(person, request.clone()));
        }
        // A decision may be lost: they look again.
        self.looked_at = is_done.then_some((self.hub.version(), self.now));
    }

    fn resumes(&self) -> u64 {
        self.tally.verbs.get("calm resume").copied().unwrap_or_default()
    }

    /// Stores decisions, and asks the law about them.
    pub(crate) fn store_decisions(
        &mut self,
        store: &StoreDecisions,
    ) -> Result<u64, muster_bus::PublishError> {
        let subject = (store.decisions.deployment.clone(), store.path.clone());
        let before = self.hub.decisions.get(&subject).map(|(_, decisions)| decisions.rollouts.clone());
        let before = before.unwrap_or_default();
        let stored = self.hub.store_decisions(store, self.sabotage != Sabotage::StoresUnchecked);
        if stored.is_ok() {
            self.changed_at = self.now;
            if let Some(last) = store.decisions.rollouts.last().and_then(|record| record.decisions.last()) {
                *self.tally.verbs.entry(last.verb.as_str()).or_default() += 1;
                if last.verb == RolloutVerb::Resume && self.schedule.is_over() {
                    *self.tally.verbs.entry("calm resume").or_default() += 1;
                }
            }
            let lawful = self.law.decisions((&self.hub, &self.checks), store, &before);
            self.hold(lawful);
        }
        stored
    }

    /// A request of a planner that breaks a rule; `None` if it goes nowhere.
    pub(crate) fn sabotaged(&self, process: Process, request: Request) -> Option<Request> {
        let Request { subject, payload } = request;
        let same = || Some(Request { subject: subject.clone(), payload: payload.clone() });
        if !matches!(process, Process::Planner(..)) || self.sabotage == Sabotage::None {
            return same();
        }
        let mut json: Value = serde_json::from_slice(&payload).unwrap();
        let verb = json["verb"].as_str().unwrap_or_default().to_owned();
        let is_release = subject.ends_with(".release") && json["before"].is_null();
        match self.sabotage {
            Sabotage::ForcesReleases if is_release => {
                json["force"] = json!(true);
                json["record"] = Value::Null;
            }
            Sabotage::SkipsBegin if verb == "begin" => return None,
            // The publisher would refuse it by the record, which has no begin.
            Sabotage::SkipsBegin if is_release => json["record"] = Value::Null,
            Sabotage::SwallowsFailures if verb == "pause" || verb == "rollback" => return None,
            Sabotage::ForgetsCommit if !verb.is_empty() || is_release => json["revision"] = Value::Null,
            Sabotage::InventsEvidence if verb == "begin" => {
                let targets = json["evidence"]["targets"].clone();
                json["evidence"]["confirmed"] = targets.clone();
                json["evidence"]["soaked"] = targets;
            }
            Sabotage::PassesChecks if verb == "check" => json["result"] = json!("pass"),
            Sabotage::ReversesOrder if is_release => {
                let request = serde_json::from_slice(&payload).unwrap();
                json["devices"] = json!(self.law.reversed(&self.hub, &request)?);
            }
            Sabotage::ReleasesAll if is_release => {
                let fleet = self.law.fleet.as_ref().unwrap();
                let all = fleet.rollouts.keys().map(|key| json!({ "site": key.site, "device": key.device }));
                json["devices"] = all.collect();
                json["released"] = Value::Null;
            }
            _ => return same(),
        }
        Some(Request { subject, payload: Bytes::from(serde_json::to_vec(&json).unwrap()) })
    }
}

/// An answer to a planner, without the rule that it overlooks.
pub(crate) fn misread(sabotage: Sabotage, reply: Bytes) -> Bytes {
    if !matches!(sabotage, Sabotage::OverlooksWindows | Sabotage::OverlooksRates) {
        return reply;
    }
    let mut json: Value = serde_json::from_slice(&reply).unwrap();
    for policy in json["rollouts"].as_object_mut().into_iter().flat_map(|policies| policies.values_mut()) {
        match sabotage {
            Sabotage::OverlooksWindows => _ = policy.as_object_mut().unwrap().remove("windows"),
            _ => policy["waves"].as_array_mut().into_iter().flatten().for_each(|wave| {
                wave.as_object_mut().unwrap().remove("perMinute");
            }),
        }
    }
    Bytes::from(serde_json::to_vec(&json).unwrap())
}

/// A decision without anything.
fn nothing(digest: Digest) -> DecideRequest {
    DecideRequest {
        deployment: "app".parse().unwrap(),
        digest,
        rollout: String::new(),
        verb: RolloutVerb::Pause,
        wave: None,
        reason: None,
        evidence: None,
        result: None,
        expected: None,
        revision: None,
        record: None,
    }
}
