//! Makes the documents that follow from PLANS, from evidence and from time, without a request.

mod removal;

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_contract::desired::ProfileType;
use muster_contract::plans::{
    DisruptionState, Instance, InstanceState, NodeState, Operation, OperationState, OperationType, Placement,
    Plan, RevisionState,
};
use muster_contract::{DeviceKey, PlanName, RevisionId, Timestamp};

use self::removal::{deleted, remove_deleted, remove_leaving};
use super::complete::{STOPPED, fail_running};
use super::content::{content, is_stopped, order};
use super::document::PlansDocument;
use super::evidence::{PlacementEvidence, PlansEvidence};
use super::migrate::Approvals;
use super::operations::{self, Author};
use super::rolling::{Turns, is_update_of};
use super::schedule::{Scheduler, Wanted};
use super::state::PlansState;

/// The begin of the sentence of a RELOCATE whose instance has a second placement yet.
pub(super) const WAITS_FOR_NODE: &str = "waits until node";

/// One pass over a plan.
pub(super) struct Pass<'a, E> {
    pub(super) evidence: &'a E,
    pub(super) now: Timestamp,
    /// The next number of an instance, by revision.
    pub(super) made: BTreeMap<RevisionId, u32>,
    scheduler: Option<Scheduler>,
    /// By revision and by the types of a node.
    digests: BTreeMap<(RevisionId, Vec<ProfileType>), Option<Digest>>,
    /// Why an attempt to place an instance found no node.
    refusal: Option<String>,
    /// The turns of the open revision's updates.
    turns: Option<Turns>,
    /// The approvals of the open revision.
    approvals: Option<Approvals>,
}

impl<'a, E: PlansEvidence> Pass<'a, E> {
    fn new(evidence: &'a E, now: Timestamp, refusal: Option<String>) -> Self {
        let (made, digests) = Default::default();
        Self { evidence, now, made, scheduler: None, digests, refusal, turns: None, approvals: None }
    }

    /// A node for an instance; `None` if the plan is known to find none.
    pub(super) fn place(
        &mut self,
        state: &PlansState,
        plan: &Plan,
    ) -> Option<Result<(DeviceKey, String), String>> {
        if self.refusal.is_some() && self.scheduler.is_none() {
            return None;
        }
        let scheduler =
            self.scheduler.get_or_insert_with(|| Scheduler::new(state, Wanted::of(plan), self.now));
        let placed = scheduler.place();
        self.refusal = placed.as_ref().err().cloned();
        Some(placed)
    }

    /// The digest of the order for a placement; `None` without an order.
    pub(super) fn order(
        &mut self,
        state: &PlansState,
        plan: &Plan,
        instance: &Instance,
        placement: &Placement,
    ) -> Option<Digest> {
        let revision = placement.revision.as_ref()?;
        let runtimes = state.runtimes(&placement.node);
        let digests = self.digests.entry((revision.clone(), runtimes.to_vec()));
        let content = *digests.or_insert_with(|| digest(plan, revision, runtimes));
        Some(order(content?, is_stopped(instance, placement), instance.restarts))
    }
}

/// The digest of a revision's content on a node whose agent runs these types.
pub(super) fn digest(plan: &Plan, revision: &RevisionId, runtimes: &[ProfileType]) -> Option<Digest> {
    let revision = plan.revision(revision)?;
    let profile = content(&plan.spec, &revision.coordinates, runtimes).ok()?;
    Some(Digest::of_value(&profile))
}

impl PlansState {
    /// Makes up to about `max` documents that follow by themselves, each applied already, with the one before it: the caller
    /// appends them in order, and undoes those that it could not append.
    pub fn advance<E: PlansEvidence>(
        &mut self,
        evidence: &E,
        now: Timestamp,
        max: usize,
    ) -> Vec<(PlansDocument, Option<PlansDocument>)> {
        let mut made = Vec::new();
        while made.len() < max {
            let Some(name) = self.dirty.pop_first() else { break };
            self.advance_plan(&name, evidence, now, max, &mut made);
        }
        made
    }

    fn advance_plan<E: PlansEvidence>(
        &mut self,
        name: &PlanName,
        evidence: &E,
        now: Timestamp,
        max: usize,
        made: &mut Vec<(PlansDocument, Option<PlansDocument>)>,
    ) {
        let epoch = self.capacity_epoch;
        let mut pass = Pass::new(evidence, now, self.full.get(name).cloned());
        while let Some(plan) = self.plan(name).filter(|_| made.len() < max) {
            let documents = self.revise(plan, &mut pass, max - made.len());
            if documents.is_empty() {
                break;
            }
            for document in documents {
                let before = self.apply(document.clone());
                made.push((document, before));
            }
        }
        let names: Vec<_> = self.instances_of(name).map(|instance| instance.name.clone()).collect();
        for instance in names {
            if made.len() >= max {
                self.dirty.insert(name.clone());
                break;
            }
            let (Some(plan), Some(instance)) = (self.plan(name), self.instance(name, &instance)) else {
                continue;
            };
            if let Some(next) = self.step(plan, instance, &mut pass) {
                let document = PlansDocument::Instance(next);
                let before = self.apply(document.clone());
                made.push((document, before));
            }
        }
        if let Some(refusal) = pass.refusal.filter(|_| epoch == self.capacity_epoch) {
            self.full.insert(name.clone(), refusal);
        }
    }

    /// The next document of an instance; `None` if it waits.
    fn step<E: PlansEvidence>(
        &self,
        plan: &Plan,
        instance: &Instance,
        pass: &mut Pass<'_, E>,
    ) -> Option<Instance> {
        let stepped = remove_leaving(instance, pass)
            .or_else(|| remove_deleted(instance, pass))
            .or_else(|| self.step_operations(plan, instance, pass))
            .or_else(|| self.evict(instance, pass.now));
        let (mut next, sentence) = stepped?;
        operations::finish(&mut next, operations::change(pass.now, sentence, &Author::default()));
        Some(next)
    }

    fn step_operations<E: PlansEvidence>(
        &self,
        plan: &Plan,
        instance: &Instance,
        pass: &mut Pass<'_, E>,
    ) -> Option<(Instance, String)> {
        let is_refused = *pass.approvals.get_or_insert_with(|| self.approvals(plan)) == Approvals::Refused;
        let open = instance.operations.iter().enumerate().filter(|(_, one)| !one.state.is_final());
        for (at, operation) in open {
            let stepped = match operation.state {
                OperationState::Running if is_of_stopped_revision(plan, operation) => {
                    Some(stopped(instance, at, pass.now))
                }
                OperationState::Running => run(self, plan, instance, at, pass),
                _ if is_of_stopped_revision(plan, operation) => {
                    Some(cancelled(instance, at, "its revision is stopped", pass.now))
                }
                _ if is_cancelled(plan, operation) => {
                    Some(cancelled(instance, at, "its revision is cancelled", pass.now))
                }
                _ if let Some(by) = superseded_by(plan, operation) => {
                    Some(cancelled(instance, at, &format!("superseded by {by}"), pass.now))
                }
                _ if is_refused && is_of_open(plan, operation) => {
                    let message = "another operation of the migration was not approved";
                    Some(cancelled(instance, at, message, pass.now))
                }
                OperationState::Pending | OperationState::Preparing => {
                    self.prepare_free(plan, instance, at, pass)
                }
                OperationState::PendingApproval => {
                    approved(plan, instance, at, pass.now).or_else(|| expire(instance, at, pass.now))
                }
                OperationState::Approved => self.start_in_turn(plan, instance, at, pass),
                _ => None,
            };
            if stepped.is_some() {
                return stepped;
            }
        }
        None
    }

    /// Prepares an operation, or says which node the next RELOCATE waits for.
    fn prepare_free<E: PlansEvidence>(
        &self,
        plan: &Plan,
        instance: &Instance,
        at: usize,
        pass: &mut Pass<'_, E>,
    ) -> Option<(Instance, String)> {
        let (mut next, operation) = (instance.clone(), instance.operations.get(at)?);
        let is_relocate = operation.operation_type == OperationType::Relocate;
        let leaving = instance.placements.iter().find(|placement| is_relocate && !placement.active);
        let Some(leaving) = leaving else {
            let is_changed = self.prepare(plan, &mut next, at, pass);
            return is_changed.then(|| (next, sentence(operation, "is prepared")));
        };
        let held = format!("{WAITS_FOR_NODE} {} has removed the instance", leaving.node);
        if operation.message == held {
            return None;
        }
        operations::set(&mut next.operations[at], operation.state, held.as_str(), pass.now);
        Some((next, sentence(operation, &held)))
    }

    /// Starts an approved operation, or says which turn it waits for.
    fn start_in_turn<E: PlansEvidence>(
        &self,
        plan: &Plan,
        instance: &Instance,
        at: usize,
        pass: &mut Pass<'_, E>,
    ) -> Option<(Instance, String)> {
        let operation = instance.operations.get(at).filter(|one| may_start(plan, instance, one, pass.now))?;
        if pass.approvals == Some(Approvals::Awaited) && is_of_open(plan, operation) {
            return None;
        }
        let open = plan.open_revision().filter(|open| is_update_of(operation, open));
        let Some((revision, max)) = open.and_then(|open| Some((open, open.max_unavailable?))) else {
            return start(instance, at, pass.now);
        };
        let evidence = pass.evidence;
        let known = pass.turns.take();
        let turns = known.unwrap_or_else(|| {
            let runs = |one: &Instance, on: &Placement| {
                let order = pass.order(self, plan, one, on);
                order.is_some_and(|order| evidence.placement(&on.node, &one.name).runs(order))
            };
            Turns::of(self, plan, revision, evidence, runs)
        });
        let turns = pass.turns.insert(turns);
        let Some(held) = turns.held(self, instance, max) else {
            turns.begin(&instance.name);
            return start(instance, at, pass.now);
        };
        if operation.message == held {
            return None;
        }
        let mut next = instance.clone();
        operations::set(&mut next.operations[at], OperationState::Approved, held.as_str(), pass.now);
        Some((next, sentence(operation, &held)))
    }

    /// Makes a RELOCATE for an instance whose node must be left.
    fn evict(&self, instance: &Instance, now: Timestamp) -> Option<(Instance, String)> {
        let placement = instance.active().filter(|placement| placement.revision.is_some())?;
        let node = self.node(&placement.node)?;
        let is_evicted = matches!(node.state, NodeState::Evicted | NodeState::Sanitizing);
        let disruption =
            node.disruptions.iter().find(|one| one.should_evict && one.state != DisruptionState::Completed);
        if !is_evicted && disruption.is_none() || instance.state != InstanceState::Active {
            return None;
        }
        // One that did not succeed is not repeated before the node changes again.
        let is_tried = |operation: &Operation| {
            operation.operation_type == OperationType::Relocate
                && (!operation.state.is_final()
                    || operation.state != OperationState::Succeeded
                        && operation.history.last().is_some_and(|step| step.at >= node.change.at))
        };
        if instance.operations.iter().any(is_tried) {
            return None;
        }
        let mut next = instance.clone();
        let state = OperationState::Preparing;
        let relocate = operations::new(&next, OperationType::Relocate, None, state, now)?;
        next.operations.push(relocate);
        let reason = disruption.map_or_else(
            || format!("node {} is evicted", node.key),
            |disruption| format!("disruption {} evicts node {}", disruption.id, node.key),
        );
        Some((next, format!("RELOCATE is prepared: {reason}")))
    }
}

fn sentence(operation: &Operation, what: &str) -> String {
    format!("{} {what}", operation.operation_type.as_str())
}

/// Whether the revision of an operation is cancelled.
fn is_cancelled(plan: &Plan, operation: &Operation) -> bool {
    is_of_revision_in(plan, operation, RevisionState::Cancelled)
}

/// Whether the revision of an operation that has not ended is stopped: a revision that fails by itself has no such operation.
fn is_of_stopped_revision(plan: &Plan, operation: &Operation) -> bool {
    is_of_revision_in(plan, operation, RevisionState::Failed)
}

fn is_of_revision_in(plan: &Plan, operation: &Operation, state: RevisionState) -> bool {
    let revision = operation.revision.as_ref().and_then(|id| plan.revision(id));
    revision.is_some_and(|revision| revision.state == state)
}

/// Whether an operation is of the open revision.
pub(super) fn is_of_open(plan: &Plan, operation: &Operation) -> bool {
    operation.revision.is_some() && operation.revision.as_ref() == plan.open_revision().map(|open| &open.id)
}

/// The open revision or the migration that supersedes an operation: a person has requested it before.
fn superseded_by(plan: &Plan, operation: &Operation) -> Option<String> {
    if !operations::may_be_superseded(operation) || is_of_open(plan, operation) {
        return None;
    }
    let revision = plan.open_revision().map(|open| format!("revision {}", open.id));
    revision.or_else(|| {
        plan.migration.as_ref().map(|migration| format!("the migration to plan {}", migration.to))
    })
}

fn cancelled(instance: &Instance, at: usize, message: &str, now: Timestamp) -> (Instance, String) {
    let mut next = instance.clone();
    operations::end(&mut next, at, OperationState::Cancelled, message, now);
    (next, sentence(&instance.operations[at], "is cancelled"))
}

fn stopped(instance: &Instance, at: usize, now: Timestamp) -> (Instance, String) {
    let mut next = instance.clone();
    fail_running(&mut next, at, STOPPED, now);
    (next, sentence(&instance.operations[at], "is stopped"))
}

/// Approves an operation whose revision is approved with all its operations.
fn approved(plan: &Plan, instance: &Instance, at: usize, now: Timestamp) -> Option<(Instance, String)> {
    let mut operation = instance.operations.get(at)?.clone();
    if !operations::approve_with_revision(&mut operation, plan, now) {
        return None;
    }
    let (mut next, sentence) = (instance.clone(), sentence(&operation, "is approved with its revision"));
    next.operations[at] = operation;
    Some((next, sentence))
}

fn expire(instance: &Instance, at: usize, now: Timestamp) -> Option<(Instance, String)> {
    let operation = instance.operations.get(at)?;
    let expires_at = operation.expires_at.filter(|expires_at| *expires_at <= now)?;
    let mut next = instance.clone();
    let message = format!("nobody approved it before {expires_at}");
    operations::end(&mut next, at, OperationState::Expired, message, now);
    Some((next, sentence(operation, "has expired")))
}

/// Whether an approved operation may start: its revision is not paused, its time has come, and no other operation is running.
fn may_start(plan: &Plan, instance: &Instance, operation: &Operation, now: Timestamp) -> bool {
    let revision = operation.revision.as_ref().and_then(|id| plan.revision(id));
    let is_paused = revision.is_some_and(|revision| revision.state == RevisionState::Paused);
    let is_early = operation.not_before.is_some_and(|time| time > now);
    !is_paused && !is_early && operations::running(instance).is_none()
}

/// Starts an approved operation: its node gets the order, or loses it.
fn start(instance: &Instance, at: usize, now: Timestamp) -> Option<(Instance, String)> {
    let operation = instance.operations.get(at)?;
    let mut next = instance.clone();
    if operation.operation_type == OperationType::Delete {
        cancel_relocates(&mut next, now);
    }
    let runs = instance.active().and_then(|placement| placement.revision.clone());
    for placement in &mut next.placements {
        match operation.operation_type {
            OperationType::Create | OperationType::Update if placement.active => {
                placement.revision.clone_from(&operation.revision);
            }
            OperationType::Delete => placement.revision = None,
            OperationType::Relocate if !placement.active => placement.revision.clone_from(&runs),
            _ => {}
        }
    }
    match operation.operation_type {
        OperationType::Stop => next.stopped = true,
        OperationType::Update => {
            next.stopped = false;
            next.revision = operation.revision.clone().unwrap_or(next.revision);
        }
        OperationType::Delete => next.state = InstanceState::MarkedForDeletion,
        OperationType::Restart => {
            next.stopped = false;
            next.restarts += 1;
        }
        _ => {}
    }
    operations::set(&mut next.operations[at], OperationState::Running, "", now);
    Some((next, sentence(operation, "is running")))
}

/// Ends the RELOCATEs of an instance whose DELETE begins, and releases the node that one has reserved.
fn cancel_relocates(instance: &mut Instance, now: Timestamp) {
    for at in 0..instance.operations.len() {
        let other = &instance.operations[at];
        if other.operation_type == OperationType::Relocate && !other.state.is_final() {
            operations::end(instance, at, OperationState::Cancelled, "the instance is deleted", now);
        }
    }
}

/// The next step of a running operation, by the evidence of its nodes.
fn run<E: PlansEvidence>(
    plans: &PlansState,
    plan: &Plan,
    instance: &Instance,
    at: usize,
    pass: &mut Pass<'_, E>,
) -> Option<(Instance, String)> {
    let operation = instance.operations.get(at)?;
    match operation.operation_type {
        OperationType::Relocate => relocate(plans, plan, instance, at, pass),
        OperationType::Delete => {
            let mut next = deleted(instance, pass)?;
            operations::set(&mut next.operations[at], OperationState::Succeeded, "", pass.now);
            Some((next, sentence(operation, "has succeeded")))
        }
        _ => {
            let active = instance.active()?;
            let order = pass.order(plans, plan, instance, active)?;
            let evidence = pass.evidence.placement(&active.node, &instance.name);
            let (state, message) = result(plan, &evidence, order, instance.stopped, &active.node)?;
            let mut next = instance.clone();
            operations::end(&mut next, at, state, message, pass.now);
            let what = if state == OperationState::Succeeded { "has succeeded" } else { "has failed" };
            Some((next, sentence(operation, what)))
        }
    }
}

/// The result of an order to run an instance, or to stop it; `None` if the node has not reported one.
fn result(
    plan: &Plan,
    evidence: &PlacementEvidence<'_>,
    order: Digest,
    is_stop: bool,
    node: &DeviceKey,
) -> Option<(OperationState, String)> {
    let is_done = if is_stop { evidence.is_stopped(order) } else { evidence.runs(order) };
    if is_done {
        Some((OperationState::Succeeded, String::new()))
    } else if evidence.failed(order, plan.spec.retries.as_ref()) {
        let verb = if is_stop { "stop" } else { "run" };
        let error = evidence.last_error().map_or_else(String::new, |error| format!(" ({error})"));
        let message = format!("node {node} could not {verb} it{error}, and needs attention");
        Some((OperationState::Failed, message))
    } else {
        None
    }
}

/// A RELOCATE: once the new node runs, it becomes active, and the old one gets the order to stop.
fn relocate<E: PlansEvidence>(
    plans: &PlansState,
    plan: &Plan,
    instance: &Instance,
    at: usize,
    pass: &mut Pass<'_, E>,
) -> Option<(Instance, String)> {
    let passive = instance.placements.iter().find(|placement| !placement.active)?;
    // Without an order the second placement is the old one, which `remove_leaving` drops.
    let order = pass.order(plans, plan, instance, passive)?;
    let evidence = pass.evidence.placement(&passive.node, &instance.name);
    let (state, message) = result(plan, &evidence, order, false, &passive.node)?;
    let mut next = instance.clone();
    if state == OperationState::Failed {
        let message = format!("{message}; the old node keeps running");
        operations::end(&mut next, at, state, message, pass.now);
        return Some((next, "RELOCATE has failed".to_owned()));
    }
    for placement in &mut next.placements {
        placement.active = !placement.active;
        if !placement.active {
            placement.revision = None;
        }
    }
    next.stopped = false;
    Some((next, format!("node {} runs it: the old node stops", passive.node)))
}
