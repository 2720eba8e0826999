//! Migration of a plan: another plan gets a revision with its instances, and once that is completed, this one gets a revision of
//! 0 instances.
//!
//! The request records the migration in the plan that is left. Every further step is one document that follows from the stored
//! ones alone, so a planner that dies between two steps changes nothing:
//!
//! | the revision of the other plan | the next document |
//! |---|---|
//! | is not there, and can be added | the other plan, with the revision |
//! | is not there, and cannot be added | this plan, without the migration and with the reason |
//! | has not ended | none |
//! | is completed | this plan, with a revision of 0 instances |
//! | is failed or cancelled | this plan, without the migration and with the reason |
//!
//! Neither plan takes another revision meanwhile, and neither is deleted. To cancel the revision of the other plan ends the
//! migration, and this plan stays as it was.

use muster_contract::decode::Violation;
use muster_contract::limits::PLAN_INSTANCES_MAX;
use muster_contract::plans::{
    Operation, OperationState, Plan, PlanMigrateRequest, PlanMigration, PlanRevision, PlanState,
    PlannerErrorBody, RevisionState,
};
use muster_contract::query::ErrorCode;
use muster_contract::{PlanName, RevisionId, Timestamp};

use super::content::content;
use super::decide::{invalid, not_found, precondition, refuse};
use super::document::PlansDocument;
use super::operations::{self, Author};
use super::state::PlansState;

/// The approvals of a migration's revision. None of its operations begins before all of them are approved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Approvals {
    /// An operation waits for its approval, or is not made yet.
    Awaited,
    /// All are approved.
    Given,
    /// An operation ended before any of them began.
    Refused,
}

impl PlansState {
    /// Records that a plan migrates to another one.
    pub(super) fn migrate(
        &self,
        request: &PlanMigrateRequest,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let (name, to) = (&request.plan, &request.to);
        let plan = self.plan_at(name, request.expected_version)?;
        if name == to {
            return Err(invalid("to", format!("'{to}' is the plan itself: deploy it")));
        }
        let target = self.plan(to).ok_or_else(|| not_found(format!("plan {to}")))?;
        self.check_not_migrating(plan)?;
        check_free(plan, &request.id)?;
        let running = self.instances_of(name).filter(|one| operations::keeps_revision(one)).count();
        let running = u32::try_from(running).unwrap_or(u32::MAX);
        if running == 0 {
            return Err(precondition(format!(
                "plan {name} has no instance that could migrate: deploy plan {to}"
            )));
        }
        let instances = request.instances.unwrap_or(running);
        if !(1..=PLAN_INSTANCES_MAX).contains(&instances) {
            return Err(invalid("instances", format!("is not 1 to {PLAN_INSTANCES_MAX}")));
        }
        let coordinates = if request.coordinates.is_empty() {
            let completed = plan.revisions.iter().rfind(|one| one.state == RevisionState::Completed);
            let completed = completed.filter(|one| one.canary.is_none());
            let none = || {
                invalid("coordinates", "are missing, and no completed revision has those of all instances")
            };
            completed.ok_or_else(none)?.coordinates.clone()
        } else {
            request.coordinates.clone()
        };
        let (id, requested_by) = (request.id.clone(), author.by.clone());
        let migration = PlanMigration { to: to.clone(), id, instances, coordinates, requested_by, at: now };
        self.check_not_migrating(target)?;
        self.check_target(target, &migration)?;
        for later in [self.begun(plan, target, &migration, now), self.left(plan, &migration, now)] {
            later.check().map_err(|Violation { path, rule }| invalid(&path, rule))?;
        }
        let change = operations::change(now, format!("plan is migrating to {to}"), author);
        let version = plan.version + 1;
        let migration = Some(Box::new(migration));
        Ok(PlansDocument::Plan(Plan { version, migration, change, ..plan.clone() }))
    }

    /// Checks that a plan is on neither side of a migration.
    pub(super) fn check_not_migrating(&self, plan: &Plan) -> Result<(), PlannerErrorBody> {
        let name = &plan.spec.name;
        let is_to = |one: &&Plan| one.migration.as_ref().is_some_and(|migration| migration.to == *name);
        let from = if plan.migration.is_some() { Some(plan) } else { self.plans.values().find(is_to) };
        let Some((from, migration)) = from.and_then(|from| Some((from, from.migration.as_deref()?))) else {
            return Ok(());
        };
        let PlanMigration { to, id, .. } = migration;
        let message = format!(
            "plan {} is migrating to plan {to}: wait, or cancel revision {id} of plan {to}",
            from.spec.name
        );
        Err(precondition(message))
    }

    /// Checks that a plan can take the revision of a migration.
    fn check_target(&self, target: &Plan, migration: &PlanMigration) -> Result<(), PlannerErrorBody> {
        check_free(target, &migration.id)?;
        let to = &migration.to;
        let has_order = |one: &&_| operations::keeps_revision(one);
        let running = self.instances_of(to).filter(has_order).count();
        if running > 0 {
            let message =
                format!("plan {to} has {running} instances of its own: scale it to 0 first, or deploy it");
            return Err(precondition(message));
        }
        let checked = content(&target.spec, &migration.coordinates, &[]);
        checked.map(drop).map_err(|error| invalid("coordinates", error))
    }

    /// The next document of a plan's migration; `None` if it waits, or if there is none.
    pub(super) fn migrate_on(&self, plan: &Plan, now: Timestamp) -> Option<PlansDocument> {
        let migration = plan.migration.as_deref()?;
        let PlanMigration { to, id, .. } = migration;
        let ended = |reason: String| Some(ended(plan, to, &reason, now));
        let Some(target) = self.plan(to) else { return ended(format!("there is no plan {to}")) };
        let Some(revision) = target.revision(id) else {
            return match self.check_target(target, migration) {
                Ok(()) => Some(self.begun(plan, target, migration, now)),
                Err(refusal) => ended(refusal.message),
            };
        };
        match revision.state {
            RevisionState::Completed => Some(self.left(plan, migration, now)),
            state if state.is_final() => {
                let what = format!("revision {id} of plan {to} is {}", state.as_str());
                let message = &revision.message;
                ended(if message.is_empty() { what } else { format!("{what}: {message}") })
            }
            _ => None,
        }
    }

    /// The other plan, with its revision.
    fn begun(&self, plan: &Plan, target: &Plan, migration: &PlanMigration, now: Timestamp) -> PlansDocument {
        let from = &plan.spec.name;
        let revision = PlanRevision {
            instances: migration.instances,
            coordinates: migration.coordinates.clone(),
            migrated_from: Some(from.clone()),
            ..empty_revision(migration, now)
        };
        let sentence = format!("revision {} is added: plan {from} migrates to it", migration.id);
        self.with_added(target, revision, sentence, &Author::default(), now)
    }

    /// The plan whose migration is over, with its revision of 0 instances.
    fn left(&self, plan: &Plan, migration: &PlanMigration, now: Timestamp) -> PlansDocument {
        let PlanMigration { to, id, .. } = migration;
        let newest = plan.revisions.last().map(|newest| newest.coordinates.clone());
        let revision = PlanRevision {
            coordinates: newest.unwrap_or_default(),
            migrated_to: Some(to.clone()),
            ..empty_revision(migration, now)
        };
        let sentence = format!("revision {id} is added: the plan has migrated to {to}");
        let plan = Plan { migration: None, ..plan.clone() };
        self.with_added(&plan, revision, sentence, &Author::default(), now)
    }

    /// The approvals of an operation's revision, if that is the open one and a migration.
    pub(super) fn approvals(&self, plan: &Plan) -> Approvals {
        let Some(revision) = plan.open_revision().filter(|open| open.migrated_from.is_some()) else {
            return Approvals::Given;
        };
        let (mut is_awaited, mut is_refused, mut assigned) = (false, false, 0);
        for instance in self.instances_of(&plan.spec.name) {
            assigned += u32::from(instance.revision == revision.id);
            let is_of = |one: &&Operation| one.revision.as_ref() == Some(&revision.id);
            for operation in instance.operations.iter().filter(is_of) {
                if operation.history.iter().any(|step| step.state == OperationState::Running) {
                    return Approvals::Given;
                }
                is_refused |= operation.state.is_final();
                is_awaited |= operation.state != OperationState::Approved;
            }
        }
        match (is_refused, is_awaited || assigned < revision.instances) {
            (true, _) => Approvals::Refused,
            (false, true) => Approvals::Awaited,
            (false, false) => Approvals::Given,
        }
    }
}

/// Checks that a plan is active, has no open revision, and does not have this one.
fn check_free(plan: &Plan, id: &RevisionId) -> Result<(), PlannerErrorBody> {
    let name = &plan.spec.name;
    if plan.state != PlanState::Active {
        return Err(precondition(format!("plan {name} is inactive")));
    }
    if let Some(open) = plan.open_revision() {
        let state = open.state.as_str();
        return Err(precondition(format!(
            "revision {} of plan {name} is {state}: wait for it, or cancel it",
            open.id
        )));
    }
    if plan.revision(id).is_some() {
        return Err(refuse(ErrorCode::Conflict, format!("plan {name} has a revision {id}")));
    }
    Ok(())
}

/// A revision of a migration without instances.
fn empty_revision(migration: &PlanMigration, now: Timestamp) -> PlanRevision {
    PlanRevision {
        id: migration.id.clone(),
        instances: 0,
        coordinates: Default::default(),
        max_unavailable: None,
        canary: None,
        skip_unchanged: false,
        approval: None,
        rollback_to: None,
        migrated_from: None,
        migrated_to: None,
        state: RevisionState::Pending,
        message: String::new(),
        requested_by: migration.requested_by.clone(),
        at: now,
    }
}

/// The plan without its migration, which ended without success.
fn ended(plan: &Plan, to: &PlanName, reason: &str, now: Timestamp) -> PlansDocument {
    let sentence = format!("the migration to {to} has ended, and the plan stays as it was: {reason}");
    let change = operations::change(now, sentence, &Author::default());
    PlansDocument::Plan(Plan { version: plan.version + 1, migration: None, change, ..plan.clone() })
}
