//! The read routes as data: address, parameters, service, and the document that answers. The router, the OpenAPI document
//! and its test are made from this table.

use muster_contract::actions::ActionsAnswer;
use muster_contract::changes::ChangesAnswer;
use muster_contract::defined::DefinedView;
use muster_contract::groups::{GroupsAnswer, LabelsAnswer, ViewsAnswer};
use muster_contract::history::{DiffAnswer, DigestsAnswer, MomentAnswer, VerifyAnswer};
use muster_contract::incident::IncidentsAnswer;
use muster_contract::notify::SubscriptionsAnswer;
use muster_contract::plans::{
    Capability, Cluster, ExplainAnswer, InstanceStatus, InstancesAnswer, InventoryAnswer, NodeStatus,
    PlanAnswer, PlansAnswer, PlansChangesAnswer,
};
use muster_contract::query::{
    DeploymentAnswer, DeploymentsAnswer, DeviceAnswer, DevicesAnswer, PublisherStatus,
};
use muster_contract::rollout::RolloutRecord;
use muster_contract::status::StatusAnswer;
use muster_contract::timeline::TimelineAnswer;
use muster_contract::view::{FleetView, SiteView};
use muster_contract::why::WhyAnswer;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::filters::{
    AFTER, CAPABILITIES, CHANGES, DEPLOYMENTS, DEVICES, DIFF, INSTANCES, NODES, OF_DEPLOYMENT, OPERATIONS,
    OUTPUT, PAGES, PLAN_CHANGES, PLANS, QUARANTINE, RESOURCE_GROUP, ROLLOUTS_AT, ROWS, SELECT, SITE, SITES,
    STATUS, WHEN, WHY,
};
use super::params::Param;

/// A read route.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    /// The address below `/api/v1`; `{name}` is a field of the question.
    pub path: &'static str,
    /// Its meaning.
    pub summary: &'static str,
    /// Its parameters.
    pub params: &'static [&'static [Param]],
    /// Fields of every question of this route.
    pub fixed: &'static [(&'static str, &'static str)],
    /// The service that answers.
    pub source: Source,
    /// The schema of the answer.
    pub answer: fn(&mut SchemaGenerator) -> Schema,
}

/// The service that answers a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The query service, by one question.
    Query(&'static str),
    /// The planner, by one question.
    Planner(&'static str),
    /// One row of a list of the planner, by its name: the question, and the field of its rows.
    PlannerRow(&'static str, &'static str),
    /// Operations of plans, and of rollouts under way.
    Operations,
    /// Subscriptions that the person may see.
    Subscriptions,
    /// Packages in the hub's object store.
    Packages,
    /// Hubs of a federation.
    Hubs,
    /// The publisher's status.
    Publisher,
    /// Rollouts.
    Rollouts(RolloutSource),
    /// Rejected reports.
    Quarantine,
    /// The accounts of devices and the views.
    Audit,
    /// kpt's ResourceGroup of a deployment.
    ResourceGroup,
}

/// A question about rollouts, which takes several requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RolloutSource {
    /// Held changes and open rollouts.
    All,
    /// The rollouts of one deployment, now or at a time.
    Progress,
    /// Why they stand where they do.
    Why,
    /// With what is known of their course.
    Preview,
    /// Their releases as operations.
    Operations,
    /// The decisions about them.
    History,
    /// The decisions about them, recomputed.
    Verify,
    /// The waves that wait for an approval.
    Approvals,
}

impl Route {
    /// All its parameters.
    pub(crate) fn params(&self) -> Vec<Param> {
        self.params.concat()
    }

    /// Whether an answer has an entity tag for `If-Match`.
    pub(crate) const fn has_version(&self) -> bool {
        matches!(self.source, Source::Rollouts(RolloutSource::Progress) | Source::PlannerRow(..))
    }
}

pub(super) fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

fn object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object" })
}

fn objects(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": { "type": "object" } })
}

/// The rollouts now are a list, those at a time an object.
fn rollouts(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "oneOf": [
        { "type": "array", "items": { "type": "object" } },
        { "type": "object", "required": ["deployment", "at", "ledgerSeq", "rollouts"] },
    ] })
}

fn history(generator: &mut SchemaGenerator) -> Schema {
    let records = generator.subschema_for::<Vec<RolloutRecord>>();
    json_schema!({ "type": "object", "required": ["deployment", "rollouts"],
        "properties": { "deployment": { "type": "string" }, "rollouts": records } })
}

const fn route(
    path: &'static str,
    source: Source,
    params: &'static [&'static [Param]],
    answer: fn(&mut SchemaGenerator) -> Schema,
    summary: &'static str,
) -> Route {
    Route { path, summary, params, fixed: &[], source, answer }
}

/// The planner's name of the question about the inventory.
const INVENTORY: &str = "inventory-list";
const NODE: &[(&str, &str)] = &[("kind", "node")];
const CLUSTER: &[(&str, &str)] = &[("kind", "cluster")];
const CAPABILITY: &[(&str, &str)] = &[("kind", "capability")];

const fn inventory(route: Route, kind: &'static [(&'static str, &'static str)]) -> Route {
    Route { fixed: kind, ..route }
}

/// All read routes.
pub(crate) static ROUTES: &[Route] = &[
    route("/fleet", Source::Query("fleet"), &[WHEN], of::<FleetView>, "The fleet as a whole"),
    route(
        "/fleet/timeline",
        Source::Query("timeline"),
        &[],
        of::<TimelineAnswer>,
        "How the counts of the fleet have changed",
    ),
    route(
        "/deployments",
        Source::Query("deployments"),
        &[SITES, DEPLOYMENTS, WHEN, PAGES, AFTER],
        of::<DeploymentsAnswer>,
        "Deployments: verdict, bounds of the truth, counts",
    ),
    route(
        "/deployments/{id}",
        Source::Query("deployment"),
        &[WHEN],
        of::<DeploymentAnswer>,
        "One deployment",
    ),
    Route {
        fixed: &[("output", "brief")],
        ..route(
            "/deployments/{id}/devices",
            Source::Query("status"),
            &[SITES, ROWS, OUTPUT, WHEN, PAGES, AFTER],
            of::<StatusAnswer>,
            "The status of one deployment with a line for each device",
        )
    },
    route(
        "/deployments/{id}/resourcegroup",
        Source::ResourceGroup,
        &[RESOURCE_GROUP, SITES, ROWS, WHEN],
        object,
        "The status of a deployment as kpt's ResourceGroup",
    ),
    route(
        "/deployments/{id}/actions",
        Source::Query("actions"),
        &[],
        of::<ActionsAnswer>,
        "The revisions of a deployment",
    ),
    route(
        "/deployments/{id}/timeline",
        Source::Query("timeline"),
        &[],
        of::<TimelineAnswer>,
        "How the counts of a deployment have changed",
    ),
    route(
        "/devices",
        Source::Query("devices"),
        &[SITES, DEVICES, WHEN, PAGES, AFTER],
        of::<DevicesAnswer>,
        "Devices: freshness, reports, standings",
    ),
    Route {
        fixed: &[("output", "detail")],
        ..route(
            "/devices/{site}/{device}",
            Source::Query("device"),
            &[OUTPUT, WHEN],
            of::<DeviceAnswer>,
            "One device and everything it shall run",
        )
    },
    route("/sites/{site}", Source::Query("site"), &[WHEN], of::<SiteView>, "One site as a whole"),
    route(
        "/status",
        Source::Query("status"),
        &[STATUS, SITES, ROWS, OUTPUT, WHEN, PAGES, AFTER],
        of::<StatusAnswer>,
        "Status after filters, with both axes",
    ),
    route("/groups", Source::Query("labels"), &[PAGES, AFTER], of::<LabelsAnswer>, "The labels there are"),
    route(
        "/groups/{label}",
        Source::Query("groups"),
        &[OF_DEPLOYMENT, WHEN, PAGES, AFTER],
        of::<GroupsAnswer>,
        "The fleet, or a deployment, by a label of its devices",
    ),
    route("/groups/{label}/{value}", Source::Query("group"), &[WHEN], object, "One group as a whole"),
    route(
        "/incidents",
        Source::Query("incidents"),
        &[],
        of::<IncidentsAnswer>,
        "Incidents of the hub itself",
    ),
    route(
        "/why",
        Source::Query("why"),
        &[WHY, SITE, WHEN, PAGES, AFTER],
        of::<WhyAnswer>,
        "Why a deployment has its verdict: the rule, the devices, the facts",
    ),
    route(
        "/diff",
        Source::Query("diff"),
        &[DIFF, SITE, PAGES, AFTER],
        of::<DiffAnswer>,
        "How a deployment differs between two points",
    ),
    route(
        "/changes",
        Source::Query("changes"),
        &[CHANGES, SITES, PAGES],
        of::<ChangesAnswer>,
        "Every change between two points, with the fact that caused it",
    ),
    route(
        "/moment",
        Source::Query("moment"),
        &[SITE, WHEN],
        of::<MomentAnswer>,
        "The fact that a time stands for",
    ),
    route("/publisher", Source::Publisher, &[], of::<PublisherStatus>, "The publisher and its sources"),
    route(
        "/rollouts",
        Source::Rollouts(RolloutSource::All),
        &[],
        object,
        "Changes that wait for a release, and open rollouts",
    ),
    route(
        "/rollouts/{id}",
        Source::Rollouts(RolloutSource::Progress),
        &[ROLLOUTS_AT],
        rollouts,
        "The rollouts of a deployment: waves, counts, next step; with `at`, as they stood then",
    ),
    route(
        "/rollouts/{id}/history",
        Source::Rollouts(RolloutSource::History),
        &[],
        history,
        "Every decision about the rollouts of a deployment",
    ),
    route(
        "/rollouts/{id}/verify",
        Source::Rollouts(RolloutSource::Verify),
        &[],
        object,
        "Whether each decision about the rollouts of a deployment follows from LEDGER and Git",
    ),
    route(
        "/quarantine",
        Source::Quarantine,
        &[SELECT, QUARANTINE],
        object,
        "Rejected reports, and why the hub rejected them",
    ),
    route(
        "/approvals",
        Source::Rollouts(RolloutSource::Approvals),
        &[],
        objects,
        "The waves that wait for an approval",
    ),
    route(
        "/audit",
        Source::Audit,
        &[SITE],
        object,
        "Whether every report is accounted for, and every view is right; one audit at a time",
    ),
    route(
        "/rollouts/{id}/why",
        Source::Rollouts(RolloutSource::Why),
        &[],
        objects,
        "Why the rollouts of a deployment stand where they do: the predicate that blocks, and the devices",
    ),
    route(
        "/rollouts/{id}/preview",
        Source::Rollouts(RolloutSource::Preview),
        &[],
        objects,
        "The wave of each device, devices that are not heard, and the earliest end",
    ),
    route(
        "/rollouts/{id}/operations",
        Source::Rollouts(RolloutSource::Operations),
        &[],
        objects,
        "The releases of a deployment's rollouts as operations, by wave and state",
    ),
    route("/plans", Source::Planner("plan-list"), &[PLANS, PAGES, AFTER], of::<PlansAnswer>, "Plans"),
    route("/plans/{plan}", Source::PlannerRow("plan-list", "plans"), &[], of::<PlanAnswer>, "One plan"),
    route(
        "/plans/{plan}/explanation",
        Source::Planner("plan-explain"),
        &[],
        of::<ExplainAnswer>,
        "The node that another instance of a plan would get, and why the others are rejected",
    ),
    route(
        "/plan-changes",
        Source::Planner("change-list"),
        &[PLAN_CHANGES, PAGES],
        of::<PlansChangesAnswer>,
        "The changes of plans, instances and the inventory, in their order, each with the document after it",
    ),
    route(
        "/instances",
        Source::Planner("instance-list"),
        &[INSTANCES, PAGES, AFTER],
        of::<InstancesAnswer>,
        "Instances of plans",
    ),
    route(
        "/instances/{instance}",
        Source::PlannerRow("instance-list", "instances"),
        &[],
        of::<InstanceStatus>,
        "One instance, by its name or display name: its nodes and operations",
    ),
    route(
        "/operations",
        Source::Operations,
        &[OPERATIONS, PAGES, AFTER],
        object,
        "Operations of plans; the first page also has those of rollouts under way",
    ),
    inventory(
        route(
            "/nodes",
            Source::Planner(INVENTORY),
            &[NODES, PAGES, AFTER],
            of::<InventoryAnswer>,
            "Nodes, with their free resources and disruptions",
        ),
        NODE,
    ),
    inventory(
        route(
            "/nodes/{site}/{device}",
            Source::PlannerRow(INVENTORY, "nodes"),
            &[],
            of::<NodeStatus>,
            "One node: its resources, volumes, capabilities and disruptions",
        ),
        NODE,
    ),
    inventory(
        route(
            "/clusters",
            Source::Planner(INVENTORY),
            &[PAGES, AFTER],
            of::<InventoryAnswer>,
            "Clusters of nodes",
        ),
        CLUSTER,
    ),
    inventory(
        route(
            "/clusters/{cluster}",
            Source::PlannerRow(INVENTORY, "clusters"),
            &[],
            of::<Cluster>,
            "One cluster",
        ),
        CLUSTER,
    ),
    inventory(
        route(
            "/capabilities",
            Source::Planner(INVENTORY),
            &[CAPABILITIES, PAGES, AFTER],
            of::<InventoryAnswer>,
            "Capabilities of nodes",
        ),
        CAPABILITY,
    ),
    inventory(
        route(
            "/capabilities/{capability}",
            Source::PlannerRow(INVENTORY, "capabilities"),
            &[],
            of::<Capability>,
            "One capability",
        ),
        CAPABILITY,
    ),
    route("/views", Source::Query("views"), &[], of::<ViewsAnswer>, "The views that are defined"),
    route("/views/{view}", Source::Query("view"), &[], of::<DefinedView>, "The counts of a defined view"),
    route(
        "/subscriptions",
        Source::Subscriptions,
        &[PAGES, AFTER],
        of::<SubscriptionsAnswer>,
        "Subscriptions to notices, with their progress: an operator's list has those of others",
    ),
    route(
        "/verify",
        Source::Query("verify"),
        &[SITE],
        of::<VerifyAnswer>,
        "Whether a rebuild from LEDGER says the same as the rollup that runs",
    ),
    route(
        "/digests",
        Source::Query("digests"),
        &[SITE, WHEN, PAGES, AFTER],
        of::<DigestsAnswer>,
        "The digest of each view, to compare with those of another reducer",
    ),
    route("/packages", Source::Packages, &[], object, "The packages in the hub, with sizes and digests"),
    route("/hubs", Source::Hubs, &[], object, "Hubs of a federation, where one answers"),
];
