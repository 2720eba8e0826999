//! Turns a revision of a plan into operations: CREATE for each missing instance, DELETE for each surplus one, and UPDATE for the
//! others, but for those that keep their revision beside a canary and those that it skips as unchanged. It makes one document after
//! another, and any prefix of them leads to the same end.

use std::cmp::Reverse;

use muster_contract::plans::{
    Instance, InstanceState, Operation, OperationState, OperationType, Placement, Plan, PlanRevision,
    PlanState, RevisionState,
};
use muster_contract::{RevisionId, Timestamp};

use super::advance::{Pass, WAITS_FOR_NODE};
use super::complete::is_stopped_delete;
use super::document::PlansDocument;
use super::evidence::PlansEvidence;
use super::naming;
use super::operations::{self, Author};
use super::state::PlansState;

/// Counts of the operations of a revision.
#[derive(Debug, Default)]
struct Progress {
    open: u64,
    succeeded: u64,
    failed: u64,
    /// Operations that a person has completed.
    by_hand: u64,
    /// Instances that needed no operation.
    unchanged: u64,
    /// The first operation that did not succeed, with its reason.
    first_failure: Option<String>,
}

impl PlansState {
    /// The next documents of a plan's open revision, about `max` at most; none if it waits.
    pub(super) fn revise<E: PlansEvidence>(
        &self,
        plan: &Plan,
        pass: &mut Pass<'_, E>,
        max: usize,
    ) -> Vec<PlansDocument> {
        let Some(revision) = plan.open_revision() else {
            return self.migrate_on(plan, pass.now).into_iter().collect();
        };
        match revision.state {
            RevisionState::Pending if plan.state == PlanState::Active && !plan.awaits_hooks(revision) => {
                let state = RevisionState::InProgress;
                vec![with_revision(plan, &revision.id, state, "Deployment is running", pass.now)]
            }
            RevisionState::InProgress => {
                let assigned = self.assign(plan, revision, pass, max);
                if assigned.is_empty() {
                    self.conclude(plan, revision, pass.now).into_iter().collect()
                } else {
                    assigned
                }
            }
            _ => Vec::new(),
        }
    }

    /// The instances that the revision changes or deletes; if there are none, those that it makes.
    fn assign<E: PlansEvidence>(
        &self,
        plan: &Plan,
        revision: &PlanRevision,
        pass: &mut Pass<'_, E>,
        max: usize,
    ) -> Vec<PlansDocument> {
        let (mut kept, mut open) = (0_u32, Vec::new());
        for instance in self.instances_of(&plan.spec.name) {
            match (instance.revision == revision.id, instance.state) {
                (true, InstanceState::Active) => kept += 1,
                (true, _) => {}
                _ if operations::is_leaving(instance) => {}
                (false, _) => open.push(instance),
            }
        }
        let target = revision.canary.unwrap_or(revision.instances);
        let missing = target.saturating_sub(kept) as usize;
        let unchanged = revision.instances.saturating_sub(target) as usize;
        let same = revisions_like(plan, revision);
        take_unchanged(&same, &mut open, unchanged, pass);
        if open.is_empty() {
            return (0..missing.min(max)).map_while(|_| self.make(plan, revision, pass)).collect();
        }
        // The revision keeps first the instances that run its coordinates, then those that have run longest.
        open.sort_by_cached_key(|one| {
            let is_running = is_running(one, pass);
            let is_same = is_running && runs_one_of(&same, one);
            (Reverse(is_same), Reverse(is_running), one.created_at, one.name.clone())
        });
        let assigned = open.iter().enumerate().filter_map(|(at, instance)| {
            if at >= missing {
                delete(plan, revision, instance, pass.now)
            } else if revision.skip_unchanged && self.is_proven_unchanged(plan, &same, instance, pass) {
                keep(revision, instance, pass.now)
            } else {
                update(plan, revision, instance, pass.now)
            }
        });
        assigned.take(max).collect()
    }

    /// Whether the node is proven to run an instance by one of these revisions, and no operation is running.
    fn is_proven_unchanged<E: PlansEvidence>(
        &self,
        plan: &Plan,
        same: &[&RevisionId],
        instance: &Instance,
        pass: &mut Pass<'_, E>,
    ) -> bool {
        if instance.stopped || operations::running(instance).is_some() || !runs_one_of(same, instance) {
            return false;
        }
        let Some(active) = instance.active() else { return false };
        let order = pass.order(self, plan, instance, active);
        order.is_some_and(|order| pass.evidence.placement(&active.node, &instance.name).runs(order))
    }

    /// Makes an instance, placed on a node if one has room.
    fn make<E: PlansEvidence>(
        &self,
        plan: &Plan,
        revision: &PlanRevision,
        pass: &mut Pass<'_, E>,
    ) -> Option<PlansDocument> {
        let first = pass.made.get(&revision.id).copied().unwrap_or(0);
        let (number, mut instance) =
            self.new_instance(plan, &revision.id, revision.id.as_str(), first, pass.now)?;
        pass.made.insert(revision.id.clone(), number + 1);
        let _ = self.prepare(plan, &mut instance, 0, pass);
        Some(PlansDocument::Instance(instance))
    }

    /// A new instance of a revision with its CREATE, and its number among those with this cause, from `first` on.
    pub(super) fn new_instance(
        &self,
        plan: &Plan,
        revision: &RevisionId,
        cause: &str,
        first: u32,
        now: Timestamp,
    ) -> Option<(u32, Instance)> {
        let (uid, service) = (plan.uid.as_str(), plan.spec.service_name.as_str());
        // At most as many names are taken as the plan has instances.
        let taken = self.instances.get(&plan.spec.name).map_or(0, std::collections::BTreeMap::len);
        let mut numbers =
            first..first.saturating_add(u32::try_from(taken).unwrap_or(u32::MAX)).saturating_add(1);
        let (number, (name, display_name)) = numbers.find_map(|number| {
            let named = naming::instance(uid, service, cause, number)?;
            self.instance(&plan.spec.name, &named.0).is_none().then_some((number, named))
        })?;
        let mut instance = Instance {
            api_version: Default::default(),
            kind: Default::default(),
            name,
            display_name,
            plan: plan.spec.name.clone(),
            revision: revision.clone(),
            version: 0,
            state: InstanceState::Active,
            stopped: false,
            restarts: 0,
            placements: Vec::new(),
            operations: Vec::new(),
            created_at: now,
            change: operations::change(now, "CREATE is prepared", &Author::default()),
        };
        let preparing = OperationState::Preparing;
        let create = operations::new(&instance, OperationType::Create, Some(revision), preparing, now)?;
        instance.operations.push(create);
        Some((number, instance))
    }

    /// Reserves a node for the CREATE or RELOCATE of an instance; returns whether the document has changed.
    pub(super) fn prepare<E: PlansEvidence>(
        &self,
        plan: &Plan,
        instance: &mut Instance,
        at: usize,
        pass: &mut Pass<'_, E>,
    ) -> bool {
        let Some(operation) = instance.operations.get_mut(at) else { return false };
        let is_create = operation.operation_type == OperationType::Create;
        let is_placed = is_create && instance.placements.iter().any(|placement| placement.active);
        if !is_placed {
            let placed = pass.place(self, plan);
            match placed {
                Some(Ok((node, reason))) => {
                    instance.placements.push(Placement { node, active: is_create, revision: None, reason });
                }
                Some(Err(reason)) if operation.message != reason => {
                    operations::set(operation, OperationState::Preparing, reason, pass.now);
                    return true;
                }
                // The plan is known to find no node, which answers say of each operation without a message of its own.
                None if operation.message.starts_with(WAITS_FOR_NODE) => {
                    operations::set(operation, OperationState::Preparing, "", pass.now);
                    return true;
                }
                _ => return false,
            }
        }
        operations::await_approval(operation, plan, pass.now);
        true
    }

    /// Ends a revision whose operations have all ended.
    fn conclude(&self, plan: &Plan, revision: &PlanRevision, now: Timestamp) -> Option<PlansDocument> {
        let progress = self.progress(plan, &revision.id);
        if progress.open > 0 {
            return None;
        }
        let (state, message) = match progress.first_failure {
            Some(failure) => {
                let all = progress.failed + progress.succeeded;
                let message = format!("{} of {all} operations did not succeed: {failure}", progress.failed);
                (RevisionState::Failed, message)
            }
            None if progress.by_hand > 0 => {
                let (by_hand, all) = (progress.by_hand, progress.succeeded);
                let message = format!("Deployment completed, {by_hand} of {all} operations by hand");
                (RevisionState::Completed, message)
            }
            None if progress.unchanged > 0 => {
                let count = progress.unchanged;
                let instances =
                    if count == 1 { "1 instance was".to_owned() } else { format!("{count} instances were") };
                let message = format!("Deployment completed, {instances} unchanged");
                (RevisionState::Completed, message)
            }
            None => (RevisionState::Completed, "Deployment completed successfully".to_owned()),
        };
        Some(with_revision(plan, &revision.id, state, &message, now))
    }

    fn progress(&self, plan: &Plan, revision: &RevisionId) -> Progress {
        let mut progress = Progress::default();
        for instance in self.instances_of(&plan.spec.name) {
            // A DELETE of an earlier revision that runs, or was stopped, is awaited too.
            let is_running_delete = |one: &Operation| {
                one.operation_type == OperationType::Delete && one.state == OperationState::Running
            };
            let is_awaited = |one: &Operation| is_running_delete(one) || is_stopped_delete(one);
            // One that is superseded is cancelled first.
            let is_waiting = |one: &Operation| operations::may_be_superseded(one);
            let is_of = |one: &Operation| one.revision.as_ref() == Some(revision);
            let is_counted = |one: &&Operation| is_of(one) || is_awaited(one) || is_waiting(one);
            let has_operation = instance.operations.iter().any(is_of);
            progress.unchanged += u64::from(instance.revision == *revision && !has_operation);
            for operation in instance.operations.iter().filter(is_counted) {
                progress.by_hand += u64::from(operation.completion.is_some());
                match operation.state {
                    _ if is_stopped_delete(operation) => progress.open += 1,
                    OperationState::Succeeded => progress.succeeded += 1,
                    state if state.is_final() => {
                        progress.failed += 1;
                        progress.first_failure.get_or_insert_with(|| {
                            let word = operation.operation_type.as_str();
                            format!("{word} of {}: {}", instance.display_name, operation.message)
                        });
                    }
                    _ => progress.open += 1,
                }
            }
        }
        progress
    }
}

/// A plan with a revision in another state.
pub(super) fn with_revision(
    plan: &Plan,
    id: &RevisionId,
    state: RevisionState,
    message: &str,
    now: Timestamp,
) -> PlansDocument {
    let mut plan = plan.clone();
    plan.version += 1;
    for revision in plan.revisions.iter_mut().filter(|revision| revision.id == *id) {
        revision.state = state;
        revision.message =
            muster_contract::state::cut(message.to_owned(), muster_contract::limits::PLANS_TEXT_BYTES_MAX);
    }
    let sentence = format!("revision {id} is {}", state.as_str());
    plan.change = operations::change(now, sentence, &Author::default());
    PlansDocument::Plan(plan)
}

/// Takes out at most `unchanged` instances, which keep their revision beside a canary. Instances that already run one of the `same`
/// revisions are taken last. Before them, running and stopped instances are taken first, and the oldest first.
fn take_unchanged<E: PlansEvidence>(
    same: &[&RevisionId],
    open: &mut Vec<&Instance>,
    mut unchanged: usize,
    pass: &Pass<'_, E>,
) {
    if unchanged == 0 {
        return;
    }
    if open.len() > unchanged {
        open.sort_by_cached_key(|one| {
            let is_settled = one.stopped || is_running(one, pass);
            (runs_one_of(same, one), Reverse(is_settled), one.created_at, one.name.clone())
        });
    }
    open.retain(|one| {
        let stays = unchanged > 0 && operations::keeps_revision(one);
        unchanged -= usize::from(stays);
        !stays
    });
}

fn is_running<E: PlansEvidence>(instance: &Instance, pass: &Pass<'_, E>) -> bool {
    let active = instance.active();
    active.is_some_and(|on| pass.evidence.placement(&on.node, &instance.name).is_running())
}

/// The revisions of a plan with the coordinates of this one. Coordinates may be long, so they are compared once for all instances.
fn revisions_like<'a>(plan: &'a Plan, revision: &PlanRevision) -> Vec<&'a RevisionId> {
    let is_like = |one: &&PlanRevision| one.coordinates == revision.coordinates;
    plan.revisions.iter().filter(is_like).map(|one| &one.id).collect()
}

/// Whether the order of an instance is one of these revisions.
fn runs_one_of(revisions: &[&RevisionId], instance: &Instance) -> bool {
    let ordered = instance.active().and_then(|placement| placement.revision.as_ref());
    ordered.is_some_and(|ordered| revisions.contains(&ordered))
}

/// Gives an instance to a revision: UPDATE, or CREATE if it has not run.
fn update(
    plan: &Plan,
    revision: &PlanRevision,
    instance: &Instance,
    now: Timestamp,
) -> Option<PlansDocument> {
    let has_run = instance.active().is_some_and(|placement| placement.revision.is_some());
    let operation_type = if has_run { OperationType::Update } else { OperationType::Create };
    let mut next = assigned(revision, instance, now);
    let id = Some(&revision.id);
    let mut operation = operations::new(&next, operation_type, id, OperationState::Preparing, now)?;
    if has_run {
        operations::await_approval(&mut operation, plan, now);
    }
    next.operations.push(operation);
    let sentence = format!("{} of revision {} is prepared", operation_type.as_str(), revision.id);
    operations::finish(&mut next, operations::change(now, sentence, &Author::default()));
    Some(PlansDocument::Instance(next))
}

/// Gives an instance to a revision that changes nothing of it: its order has the same content.
fn keep(revision: &PlanRevision, instance: &Instance, now: Timestamp) -> Option<PlansDocument> {
    let mut next = assigned(revision, instance, now);
    let active = next.placements.iter_mut().find(|placement| placement.active)?;
    active.revision = Some(revision.id.clone());
    let sentence = format!("revision {} changes nothing of it", revision.id);
    operations::finish(&mut next, operations::change(now, sentence, &Author::default()));
    Some(PlansDocument::Instance(next))
}

/// Marks an instance for deletion by a revision.
fn delete(
    plan: &Plan,
    revision: &PlanRevision,
    instance: &Instance,
    now: Timestamp,
) -> Option<PlansDocument> {
    let mut next = assigned(revision, instance, now);
    next.state = InstanceState::MarkedForDeletion;
    let id = Some(&revision.id);
    let mut operation = operations::new(&next, OperationType::Delete, id, OperationState::Preparing, now)?;
    operations::await_approval(&mut operation, plan, now);
    next.operations.push(operation);
    let sentence = format!("DELETE of revision {} is prepared", revision.id);
    operations::finish(&mut next, operations::change(now, sentence, &Author::default()));
    Some(PlansDocument::Instance(next))
}

/// An instance of a revision. It supersedes earlier operations that have not begun.
fn assigned(revision: &PlanRevision, instance: &Instance, now: Timestamp) -> Instance {
    let mut next = instance.clone();
    for at in 0..next.operations.len() {
        let operation = &next.operations[at];
        if operations::may_be_superseded(operation) {
            let sentence = format!("superseded by revision {}", revision.id);
            operations::end(&mut next, at, OperationState::Cancelled, sentence, now);
        }
    }
    next.state = InstanceState::Active;
    next.revision = revision.id.clone();
    next
}
