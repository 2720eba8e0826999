//! Changes that are one request to a service, as data: address, request, answer. The router, the OpenAPI document and its test
//! are made from this table; [`super::change`] makes the requests.
//!
//! Decisions about rollouts and verdicts on rejected reports take several requests: [`super::act`] makes them.

use axum::http::StatusCode;
use muster_contract::defined::ViewDefinition;
use muster_contract::groups::{RemoveViewRequest, ViewAnswer};
use muster_contract::notify::{SubscriptionAnswer, UnsubscribeRequest};
use muster_contract::plans::{
    Capability, CapabilitySpec, Cluster, ClusterSpec, DisruptionRequest, Instance, InstanceCreateRequest,
    InventoryApplyRequest, InventoryDeleteRequest, InventoryStateRequest, Node, NodeSpec, OperationRequest,
    OperationVerdictRequest, Plan, PlanApplyRequest, PlanApproveRequest, PlanDeleteRequest,
    PlanDeployRequest, PlanMigrateRequest, PlanRollbackRequest, PlanStateRequest, RevisionStateRequest,
};
use muster_contract::query::{ApplyRequest, PublishAnswer, RemoveRequest, RetireRequest};
use muster_contract::rollout::{ReleaseAnswer, ReleaseRequest};
use schemars::JsonSchema;

use super::change::ChangeMethod::{Delete, Post, Put};
use super::change::Service::{Notify, Planner, Publisher, Views};
use super::change::{Change, ChangeMethod, Pointers, accepted, change};

const fn plan_state(path: &'static str, fixed: Pointers, summary: &'static str) -> Change {
    Change { fixed, ..change::<PlanStateRequest, Plan>(Post, path, Planner, "plan-state", summary) }
}

const fn revision(path: &'static str, fixed: Pointers, summary: &'static str) -> Change {
    Change { fixed, ..change::<RevisionStateRequest, Plan>(Post, path, Planner, "plan-revision", summary) }
}

const fn operation(
    path: &'static str,
    fixed: Pointers,
    without: &'static [&'static str],
    summary: &'static str,
) -> Change {
    Change {
        fixed,
        without,
        ..accepted::<OperationRequest, Instance>(Post, path, Planner, "operation-request", summary)
    }
}

const fn verdict(path: &'static str, verb: &'static str, summary: &'static str) -> Change {
    change::<OperationVerdictRequest, Instance>(Post, path, Planner, verb, summary)
}

const fn disruption(
    method: ChangeMethod,
    path: &'static str,
    fixed: Pointers,
    summary: &'static str,
) -> Change {
    let of_node = change::<DisruptionRequest, Node>(method, path, Planner, "inventory-disruption", summary);
    Change { named: OF_NODE, fixed, without: &["start", "shouldEvict"], ..of_node }
}

/// An entry of the inventory, whose name the address has.
const fn entry<B: JsonSchema, A: JsonSchema>(
    path: &'static str,
    named: Pointers,
    body: &'static str,
    summary: &'static str,
) -> Change {
    let entry = change::<InventoryApplyRequest, A>(Put, path, Planner, "inventory-apply", summary);
    Change { named, body, part: B::json_schema, ..entry }
}

const fn entry_state<A: JsonSchema>(
    path: &'static str,
    named: Pointers,
    fixed: Pointers,
    summary: &'static str,
) -> Change {
    let entry = change::<InventoryStateRequest, A>(Post, path, Planner, "inventory-state", summary);
    Change { named, fixed, without: &["nodeState", "cluster", "message"], ..entry }
}

const fn entry_gone<A: JsonSchema>(path: &'static str, named: Pointers, summary: &'static str) -> Change {
    Change {
        named,
        ..change::<InventoryDeleteRequest, A>(Delete, path, Planner, "inventory-delete", summary)
    }
}

const OF_NODE: Pointers = &[("site", "/node/site"), ("device", "/node/device")];
const NODE: Pointers = &[("site", "/item/node/site"), ("device", "/item/node/device")];
const CLUSTER: Pointers = &[("cluster", "/item/cluster")];
const CAPABILITY: Pointers = &[("capability", "/item/capability")];
/// Names that the request calls `name`.
const NAME: Pointers = &[("plan", "/name"), ("view", "/name"), ("subscription", "/name")];

/// All changes of one request.
pub(crate) static CHANGES: &[Change] = &[
    accepted::<ApplyRequest, PublishAnswer>(
        Post,
        "/deployments",
        Publisher,
        "apply",
        "`muster apply`: have a device run documents, beside what Git says",
    ),
    accepted::<RemoveRequest, PublishAnswer>(
        Delete,
        "/deployments/{site}/{device}/{id}",
        Publisher,
        "remove",
        "`muster remove`: take back a deployment that was applied",
    ),
    Change {
        without: &["id"],
        ..accepted::<RemoveRequest, PublishAnswer>(
            Delete,
            "/devices/{site}/{device}/deployments",
            Publisher,
            "remove",
            "`muster remove`: take back every deployment that was applied to a device",
        )
    },
    accepted::<RetireRequest, PublishAnswer>(
        Post,
        "/devices/{site}/{device}/retire",
        Publisher,
        "retire",
        "`muster retire`: take a device out of the fleet",
    ),
    Change {
        named: &[("id", "/deployment")],
        ..accepted::<ReleaseRequest, ReleaseAnswer>(
            Post,
            "/rollouts/{id}/release",
            Publisher,
            "release",
            "`muster rollout release`: release a content to devices, whatever the gates say",
        )
    },
    Change {
        status: StatusCode::CREATED,
        ..change::<PlanApplyRequest, Plan>(
            Post,
            "/plans",
            Planner,
            "plan-apply",
            "`muster plan create`: 409 if there is a plan of this name",
        )
    },
    Change {
        named: NAME,
        ..change::<PlanApplyRequest, Plan>(
            Put,
            "/plans/{plan}",
            Planner,
            "plan-apply",
            "`muster plan apply`: with If-Match change a plan without instances, otherwise create one",
        )
    },
    change::<PlanDeleteRequest, Plan>(
        Delete,
        "/plans/{plan}",
        Planner,
        "plan-delete",
        "`muster plan delete`: delete a plan that has no instances",
    ),
    plan_state(
        "/plans/{plan}/activate",
        &[("/state", "active")],
        "`muster plan activate`: the plan accepts deployments again",
    ),
    plan_state(
        "/plans/{plan}/deactivate",
        &[("/state", "inactive")],
        "`muster plan deactivate`: the plan accepts no further deployments",
    ),
    accepted::<PlanDeployRequest, Plan>(
        Post,
        "/plans/{plan}/revisions",
        Planner,
        "plan-deploy",
        "`muster plan deploy`: a number of instances, and what they run",
    ),
    accepted::<PlanRollbackRequest, Plan>(
        Post,
        "/plans/{plan}/rollback",
        Planner,
        "plan-rollback",
        "`muster plan rollback`: a new deployment with the instances and content of an earlier one",
    ),
    accepted::<PlanMigrateRequest, Plan>(
        Post,
        "/plans/{plan}/migrate",
        Planner,
        "plan-migrate",
        "`muster plan migrate`: another plan runs the instances, and then this one stops its own",
    ),
    revision(
        "/plans/{plan}/revisions/{id}/pause",
        &[("/verb", "pause")],
        "`muster plan pause`: the deployment begins no further operation",
    ),
    revision(
        "/plans/{plan}/revisions/{id}/resume",
        &[("/verb", "resume")],
        "`muster plan resume`: the deployment goes on",
    ),
    revision(
        "/plans/{plan}/revisions/{id}/cancel",
        &[("/verb", "cancel")],
        "`muster plan cancel`: end a deployment, and its operations that have not begun",
    ),
    revision(
        "/plans/{plan}/revisions/{id}/stop",
        &[("/verb", "stop")],
        "`muster plan stop`: a deployment that runs fails, with its running operations, whatever their nodes report",
    ),
    change::<PlanApproveRequest, Plan>(
        Post,
        "/plans/{plan}/revisions/{id}/approve",
        Planner,
        "plan-approve",
        "`muster plan approve-deployment`: approve all operations of a deployment, also those that it has not made yet",
    ),
    accepted::<InstanceCreateRequest, Instance>(
        Post,
        "/plans/{plan}/instances",
        Planner,
        "instance-create",
        "`muster instance create`: request another instance of a plan",
    ),
    operation(
        "/plans/{plan}/instances/{instance}/create",
        &[("/type", "CREATE")],
        &[],
        "request that an instance without a node gets one",
    ),
    operation(
        "/plans/{plan}/instances/{instance}/update",
        &[("/type", "UPDATE")],
        &["node"],
        "`muster instance update`: request that an instance gets the content of a completed deployment",
    ),
    operation(
        "/plans/{plan}/instances/{instance}/delete",
        &[("/type", "DELETE")],
        &["revision", "node"],
        "`muster instance delete`: request that an instance is deleted; at once if no node has its order",
    ),
    operation(
        "/plans/{plan}/instances/{instance}/stop",
        &[("/type", "STOP")],
        &["revision", "node"],
        "`muster instance stop`: request that an instance is stopped; it keeps its node",
    ),
    operation(
        "/plans/{plan}/instances/{instance}/restart",
        &[("/type", "RESTART")],
        &["revision", "node"],
        "`muster instance restart`: request that an instance is started again",
    ),
    operation(
        "/plans/{plan}/instances/{instance}/relocate",
        &[("/type", "RELOCATE")],
        &["revision", "node"],
        "`muster instance relocate`: request that an instance moves to another node",
    ),
    Change {
        named: &[("site", "/node/site"), ("device", "/node/device")],
        ..operation(
            "/plans/{plan}/instances/{instance}/relocate/{site}/{device}",
            &[("/type", "RELOCATE")],
            &["revision"],
            "`muster instance relocate --to`: request that an instance moves to this node",
        )
    },
    Change {
        status: StatusCode::ACCEPTED,
        ..verdict(
            "/plans/{plan}/instances/{instance}/operations/{operation}/approve",
            "operation-approve",
            "`muster operation approve`: the operation runs",
        )
    },
    verdict(
        "/plans/{plan}/instances/{instance}/operations/{operation}/reject",
        "operation-reject",
        "`muster operation reject`: the operation never runs",
    ),
    verdict(
        "/plans/{plan}/instances/{instance}/operations/{operation}/cancel",
        "operation-cancel",
        "`muster operation cancel`: cancel an operation that has not begun",
    ),
    verdict(
        "/plans/{plan}/instances/{instance}/operations/{operation}/complete",
        "operation-complete",
        "`muster operation complete`: state, with a reason, that a running operation has succeeded",
    ),
    verdict(
        "/plans/{plan}/instances/{instance}/operations/{operation}/fail",
        "operation-fail",
        "`muster operation complete --failed`: state, with a reason, that a running operation has failed",
    ),
    entry::<NodeSpec, Node>(
        "/nodes/{site}/{device}",
        NODE,
        "/item/node",
        "`muster node create`: with If-Match change what was said of a node, otherwise create one",
    ),
    Change {
        named: NODE,
        without: &["state"],
        ..change::<InventoryStateRequest, Node>(
            Post,
            "/nodes/{site}/{device}/state",
            Planner,
            "inventory-state",
            "`muster node state`; `muster node add-to-cluster` is allocating, then allocated",
        )
    },
    entry_gone::<Node>(
        "/nodes/{site}/{device}",
        NODE,
        "`muster node delete`: delete a node that runs nothing",
    ),
    Change {
        without: &[],
        // An id that a node has is refused.
        status: StatusCode::CREATED,
        ..disruption(
            Put,
            "/nodes/{site}/{device}/disruptions/{id}",
            &[("/verb", "add")],
            "`muster disruption add`: schedule a disruption of a node; it needs a start",
        )
    },
    disruption(
        Post,
        "/nodes/{site}/{device}/disruptions/{id}/approve",
        &[("/verb", "approve")],
        "`muster disruption approve`: the disruption may begin",
    ),
    disruption(
        Post,
        "/nodes/{site}/{device}/disruptions/{id}/complete",
        &[("/verb", "complete")],
        "`muster disruption complete`: end a disruption",
    ),
    disruption(
        Delete,
        "/nodes/{site}/{device}/disruptions/{id}",
        &[("/verb", "remove")],
        "`muster disruption remove`: remove a disruption that is over",
    ),
    entry::<ClusterSpec, Cluster>(
        "/clusters/{cluster}",
        &[("cluster", "/item/cluster/name")],
        "/item/cluster",
        "`muster cluster create`: create a cluster",
    ),
    entry_state::<Cluster>(
        "/clusters/{cluster}/activate",
        CLUSTER,
        &[("/state", "active")],
        "`muster cluster activate`: the scheduler may choose its nodes",
    ),
    entry_state::<Cluster>(
        "/clusters/{cluster}/deactivate",
        CLUSTER,
        &[("/state", "inactive")],
        "`muster cluster deactivate`: the scheduler chooses none of its nodes",
    ),
    entry_gone::<Cluster>(
        "/clusters/{cluster}",
        CLUSTER,
        "`muster cluster delete`: delete a cluster without nodes",
    ),
    entry::<CapabilitySpec, Capability>(
        "/capabilities/{capability}",
        &[("capability", "/item/capability/name")],
        "/item/capability",
        "`muster capability create`: create a capability",
    ),
    entry_state::<Capability>(
        "/capabilities/{capability}/activate",
        CAPABILITY,
        &[("/state", "active")],
        "`muster capability activate`: plans match it",
    ),
    entry_state::<Capability>(
        "/capabilities/{capability}/deactivate",
        CAPABILITY,
        &[("/state", "inactive")],
        "`muster capability deactivate`: plans no longer match it",
    ),
    entry_gone::<Capability>(
        "/capabilities/{capability}",
        CAPABILITY,
        "`muster capability delete`: delete a capability that no node has",
    ),
    Change {
        named: NAME,
        ..change::<ViewDefinition, ViewAnswer>(
            Put,
            "/views/{view}",
            Views,
            "apply",
            "`muster view apply`: define a view, or define it anew",
        )
    },
    Change {
        named: NAME,
        ..change::<RemoveViewRequest, ViewAnswer>(
            Delete,
            "/views/{view}",
            Views,
            "remove",
            "`muster view remove`: take a definition back; its view goes with it",
        )
    },
    Change {
        named: NAME,
        ..change::<UnsubscribeRequest, SubscriptionAnswer>(
            Delete,
            "/subscriptions/{subscription}",
            Notify,
            "unsubscribe",
            "`muster subscription end`: end a subscription, also one whose subscriber is gone",
        )
    },
];

#[cfg(test)]
mod tests {
    use schemars::generate::SchemaSettings;
    use serde_json::Value;

    use super::*;

    #[test]
    fn what_an_address_sets_is_a_field_of_the_request_and_none_of_the_body() {
        for change in CHANGES {
            let what = format!("{:?} {}", change.method, change.path);
            let mut generator = SchemaSettings::draft2020_12().into_generator();
            let part = (change.part)(&mut generator).to_value();
            let fields = part["properties"].as_object().unwrap();
            let body = change.body_schema(&mut generator).unwrap_or_default();
            let of_body = |field: &str| body["properties"].get(field).is_some();
            let set: Vec<String> = change.pointers().collect();
            assert_eq!(set.iter().filter(|pointer| pointer.is_empty()).count(), 0, "{what}");
            let within =
                set.iter().filter_map(|pointer| pointer.strip_prefix(change.body)?.strip_prefix('/'));
            let names = within.map(|rest| rest.split('/').next().unwrap());
            for field in names.chain(change.without.iter().copied()) {
                assert!(fields.contains_key(field) && !of_body(field), "{what}: {field}");
            }
            assert!(!of_body("expectedVersion") && !of_body("requestId"), "{what}");
            let mut required = body["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            assert!(required.all(of_body), "{what}");
        }
    }

    #[test]
    fn no_two_changes_have_the_same_method_and_address() {
        let mut all: Vec<_> = CHANGES.iter().map(|change| (change.path, change.method.as_str())).collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "{all:?}");
    }
}
