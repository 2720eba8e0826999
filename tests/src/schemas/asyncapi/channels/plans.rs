//! Channels of plans, instances and the inventory, and of requests to the planner.

use muster_contract::DeviceKey;
use muster_contract::subjects::{self, PlansSubject, stream};

use super::{Channel, key, request};

// Names that no address contains otherwise; they become the parameters.
const PLAN: &str = "x-plan-x";
const INSTANCE: &str = "x-instance-x";
const NAME: &str = "x-name-x";

/// The documents of PLANS, by channel.
pub(in crate::schemas::asyncapi) const DOCUMENTS: [&str; 5] =
    ["plan", "instance", "node", "cluster", "capability"];

/// The requests that only read, each with its answer.
pub(in crate::schemas::asyncapi) const READS: [(&str, &str); 7] = [
    ("plannerPlanGet", "PlanAnswer"),
    ("plannerPlanList", "PlansAnswer"),
    ("plannerPlanExplain", "ExplainAnswer"),
    ("plannerInstanceList", "InstancesAnswer"),
    ("plannerOperationList", "OperationsAnswer"),
    ("plannerInventoryList", "InventoryAnswer"),
    ("plannerChangeList", "PlansChangesAnswer"),
];

/// The other requests of an approver, each with its answer.
pub(in crate::schemas::asyncapi) const VERDICTS: [(&str, &str); 3] = [
    ("plannerPlanApprove", "Plan"),
    ("plannerOperationApprove", "Instance"),
    ("plannerOperationReject", "Instance"),
];

/// The requests of operators alone, each with its answer.
pub(in crate::schemas::asyncapi) const CHANGES: [(&str, &str); 16] = [
    ("plannerPlanApply", "Plan"),
    ("plannerPlanDelete", "Plan"),
    ("plannerPlanState", "Plan"),
    ("plannerPlanDeploy", "Plan"),
    ("plannerPlanRollback", "Plan"),
    ("plannerPlanMigrate", "Plan"),
    ("plannerPlanRevision", "Plan"),
    ("plannerInstanceCreate", "Instance"),
    ("plannerOperationRequest", "Instance"),
    ("plannerOperationCancel", "Instance"),
    ("plannerOperationComplete", "Instance"),
    ("plannerOperationFail", "Instance"),
    ("plannerInventoryApply", "Node"),
    ("plannerInventoryState", "Node"),
    ("plannerInventoryDisruption", "Node"),
    ("plannerInventoryDelete", "Node"),
];

/// The answers.
pub(super) const ANSWERS: [&str; 13] = [
    "PlanAnswer",
    "PlansAnswer",
    "ExplainAnswer",
    "InstancesAnswer",
    "OperationsAnswer",
    "InventoryAnswer",
    "PlansChangesAnswer",
    "Plan",
    "Instance",
    "Node",
    "Cluster",
    "Capability",
    "PlannerErrorReply",
];

pub(super) fn list() -> Vec<Channel> {
    documents().into_iter().chain(plans()).chain(operations()).chain(inventory()).collect()
}

fn documents() -> Vec<Channel> {
    let label = "this is a label";
    let device: DeviceKey = key();
    let (plan, instance) = (PLAN.parse().expect(label), INSTANCE.parse().expect(label));
    let held = |name, subject: PlansSubject, messages, about| {
        let subject = subject.to_string();
        let subject = subject.replace(PLAN, "{plan}").replace(INSTANCE, "{instance}").replace(NAME, "{name}");
        Channel::new(name, &subject, Some(stream::PLANS), messages, about)
    };
    vec![
        held("plan", PlansSubject::Plan(plan), &["Plan"], "A plan with its revisions."),
        held(
            "instance",
            PlansSubject::Instance(PLAN.parse().expect(label), instance),
            &["Instance"],
            "An instance of a plan, with its placements and operations.",
        ),
        held("node", PlansSubject::Node(device), &["Node"], "A device that instances may be placed on."),
        held(
            "cluster",
            PlansSubject::Cluster(NAME.parse().expect(label)),
            &["Cluster"],
            "A cluster of nodes.",
        ),
        held(
            "capability",
            PlansSubject::Capability(NAME.parse().expect(label)),
            &["Capability"],
            "A compute capability of nodes.",
        ),
    ]
}

fn plans() -> Vec<Channel> {
    let ask = |name, verb, messages, about| request(name, subjects::PLANNER_PREFIX, verb, messages, about);
    vec![
        ask(
            "plannerChangeList",
            "change-list",
            &["PlansChangesQuery"],
            "The changes of PLANS in their order.",
        ),
        ask("plannerPlanApply", "plan-apply", &["PlanApplyRequest"], "Creates or changes a plan."),
        ask(
            "plannerPlanDelete",
            "plan-delete",
            &["PlanDeleteRequest"],
            "Deletes a plan that has no instances.",
        ),
        ask(
            "plannerPlanState",
            "plan-state",
            &["PlanStateRequest"],
            "Lets a plan accept revisions, or refuse them.",
        ),
        ask("plannerPlanDeploy", "plan-deploy", &["PlanDeployRequest"], "Adds a revision to a plan."),
        ask(
            "plannerPlanRollback",
            "plan-rollback",
            &["PlanRollbackRequest"],
            "Adds a revision with the instances and coordinates of an earlier one.",
        ),
        ask(
            "plannerPlanMigrate",
            "plan-migrate",
            &["PlanMigrateRequest"],
            "Lets another plan run the instances of a plan, which stops its own afterwards.",
        ),
        ask(
            "plannerPlanRevision",
            "plan-revision",
            &["RevisionStateRequest"],
            "Pauses, resumes or cancels a revision.",
        ),
        ask(
            "plannerPlanApprove",
            "plan-approve",
            &["PlanApproveRequest"],
            "Approves a revision with all its operations.",
        ),
        ask("plannerPlanGet", "plan-get", &["PlanQuery"], "A plan, with counts."),
        ask("plannerPlanList", "plan-list", &["PlansQuery"], "Plans, page by page."),
        ask(
            "plannerPlanExplain",
            "plan-explain",
            &["PlanQuery"],
            "The node of another instance, and the reason against each other node.",
        ),
        ask(
            "plannerInstanceCreate",
            "instance-create",
            &["InstanceCreateRequest"],
            "Requests another instance of a plan.",
        ),
        ask("plannerInstanceList", "instance-list", &["InstancesQuery"], "Instances, page by page."),
    ]
}

fn operations() -> Vec<Channel> {
    let ask = |name, verb, messages, about| request(name, subjects::PLANNER_PREFIX, verb, messages, about);
    vec![
        ask(
            "plannerOperationRequest",
            "operation-request",
            &["OperationRequest"],
            "Requests an operation on an instance.",
        ),
        ask("plannerOperationList", "operation-list", &["OperationsQuery"], "Operations, page by page."),
        ask(
            "plannerOperationApprove",
            "operation-approve",
            &["OperationVerdictRequest"],
            "Approves an operation.",
        ),
        ask(
            "plannerOperationReject",
            "operation-reject",
            &["OperationVerdictRequest"],
            "Rejects an operation.",
        ),
        ask(
            "plannerOperationCancel",
            "operation-cancel",
            &["OperationVerdictRequest"],
            "Cancels an operation that has not begun.",
        ),
        ask(
            "plannerOperationComplete",
            "operation-complete",
            &["OperationVerdictRequest"],
            "States, with a reason, that a running operation has succeeded.",
        ),
        ask(
            "plannerOperationFail",
            "operation-fail",
            &["OperationVerdictRequest"],
            "States, with a reason, that a running operation has failed.",
        ),
    ]
}

fn inventory() -> Vec<Channel> {
    let ask = |name, verb, messages, about| request(name, subjects::PLANNER_PREFIX, verb, messages, about);
    vec![
        ask(
            "plannerInventoryApply",
            "inventory-apply",
            &["InventoryApplyRequest"],
            "Creates or changes a node, a cluster or a capability.",
        ),
        ask(
            "plannerInventoryState",
            "inventory-state",
            &["InventoryStateRequest"],
            "Changes the state of an entry of the inventory.",
        ),
        ask(
            "plannerInventoryDisruption",
            "inventory-disruption",
            &["DisruptionRequest"],
            "Adds, changes or removes a disruption of a node.",
        ),
        ask("plannerInventoryList", "inventory-list", &["InventoryQuery"], "The inventory, page by page."),
        ask(
            "plannerInventoryDelete",
            "inventory-delete",
            &["InventoryDeleteRequest"],
            "Deletes an unused entry of the inventory.",
        ),
    ]
}
