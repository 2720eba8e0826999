//! The rules of plans on a simulated hub: a log with compare-and-set, devices that carry out orders, and persons who approve.

mod approvals;
mod canary;
mod complete;
mod contention;
mod faults;
mod hooks;
mod instance_requests;
mod inventory;
mod lifecycle;
mod migrate;
mod operation_ends;
mod placed;
mod racing;
mod request_table;
mod retries;
mod revisions;
mod rollback;
mod rolling;
mod scheduling;
mod times;
mod unchanged;
mod unreachable_nodes;
mod views;

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::canonical::Digest;
use muster_contract::plans::*;
use muster_contract::query::ErrorCode;
use muster_contract::retry::Retry;
use muster_contract::view::Standing;
use muster_contract::{DeviceKey, InstanceName, PlanName, Timestamp};
use serde_json::{Value, json};

use super::*;

/// A node of the simulated hub with an instance on it.
type On = (DeviceKey, InstanceName);

/// DOWNLINK and the devices.
#[derive(Debug, Clone, Default)]
struct Devices {
    /// Orders, as LEDGER has them.
    desired: BTreeMap<On, (Digest, PlanName)>,
    /// Reports.
    standing: BTreeMap<On, Standing>,
    /// Devices that are not heard.
    silent: Vec<DeviceKey>,
    /// Orders to stop.
    stopped: BTreeSet<On>,
    /// Devices that are retired.
    retired: Vec<DeviceKey>,
    /// Contents that fail.
    failing: Vec<Digest>,
    /// The attempts that each device reports.
    retries: Vec<Retry>,
    /// Instances whose removal the devices have reported since their last order.
    removed: BTreeSet<On>,
    /// The newest document of each order.
    documents: BTreeMap<On, String>,
}

impl PlansEvidence for Devices {
    fn placement(&self, node: &DeviceKey, instance: &InstanceName) -> PlacementEvidence<'_> {
        let on = (node.clone(), instance.clone());
        let desired = self.desired.get(&on).map(|(digest, _)| *digest);
        let standing = self.standing.get(&on).copied();
        let is_known = !self.silent.contains(node);
        let (is_leaving, is_retired) = (desired.is_none(), self.retired.contains(node));
        let retries = &self.retries[..];
        PlacementEvidence {
            desired,
            standing,
            is_leaving,
            is_known,
            last_heard_at: None,
            is_retired,
            retries,
            refusal: None,
            withdrawal: self.removed.contains(&on).then_some(WithdrawalEvidence {
                stored_at: Timestamp::MAX,
                heard_since: Timestamp::MAX,
                is_removed: true,
            }),
        }
    }
}

impl Devices {
    fn carry_out(&mut self, effect: Effect, plan: &PlanName) {
        match effect {
            Effect::Apply { node, instance, content, document } => {
                let on = (node, instance);
                self.documents.insert(on.clone(), document.clone());
                let is_stop = document.contains("io.muster.stopped");
                _ = if is_stop { self.stopped.insert(on.clone()) } else { self.stopped.remove(&on) };
                if self.desired.get(&on).map(|(digest, _)| *digest) != Some(content) {
                    self.standing.insert(on.clone(), Standing::Waiting);
                }
                self.removed.remove(&on);
                self.desired.insert(on, (content, plan.clone()));
            }
            Effect::Remove { node, instance } => {
                self.desired.remove(&(node, instance));
            }
        }
    }

    /// Each device that is heard does what it is ordered.
    fn run(&mut self) {
        let gone: Vec<On> =
            self.standing.keys().filter(|on| !self.desired.contains_key(*on)).cloned().collect();
        for on in gone.into_iter().filter(|on| !self.silent.contains(&on.0)) {
            self.standing.remove(&on);
            self.removed.insert(on);
        }
        for (on, (digest, _)) in self.desired.iter().filter(|(on, _)| !self.silent.contains(&on.0)) {
            let failed = self.failing.contains(digest);
            let done = if self.stopped.contains(on) { Standing::Pending } else { Standing::Installed };
            self.standing.insert(on.clone(), if failed { Standing::Failed } else { done });
        }
    }

    /// Reports of instances that have no placement.
    fn unplaced(&self, state: &PlansState) -> BTreeSet<On> {
        let is_unplaced = |(node, instance): &&On| state.placed_on(node, instance).is_none();
        self.standing.keys().filter(is_unplaced).cloned().collect()
    }

    fn ordered(&self) -> Vec<(DeviceKey, InstanceName, PlanName)> {
        let all = self.desired.iter();
        all.map(|((node, instance), (_, plan))| (node.clone(), instance.clone(), plan.clone())).collect()
    }
}

/// A hub with one planner.
#[derive(Debug, Clone, Default)]
struct Hub {
    log: Vec<PlansDocument>,
    state: PlansState,
    devices: Devices,
    second: i64,
}

fn second(at: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + at).unwrap()
}

fn plan_name() -> PlanName {
    "web".parse().unwrap()
}

fn node_key(at: usize) -> DeviceKey {
    format!("plant/n{at:05}").parse().unwrap()
}

fn request<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn plan_request(extra: &Value) -> PlansRequest {
    let mut value = json!({
        "name": "web", "namespace": "demo", "serviceName": "Web",
        "applications": [{ "payloadName": "main", "resources": { "cores": 4, "memory": 8 } }],
    });
    for (key, field) in extra.as_object().into_iter().flatten() {
        value[key] = field.clone();
    }
    PlansRequest::PlanApply(request(value))
}

fn node_request(at: usize, domain: &str, cores: u64) -> PlansRequest {
    let key = node_key(at);
    PlansRequest::InventoryApply(request(json!({ "item": { "node": {
        "site": key.site, "device": key.device, "updateDomain": domain,
        "totalResources": { "cores": cores, "memory": 64 } } } })))
}

fn deploy_request(id: &str, instances: u32, version: &str) -> PlansRequest {
    PlansRequest::PlanDeploy(request(json!({
        "plan": "web", "id": id, "instances": instances, "coordinates": { "main": { "version": version } } })))
}

impl Hub {
    /// A hub with nodes of a cluster, each with so many cores.
    fn with_nodes(cores: &[u64]) -> Self {
        let mut hub = Self::default();
        hub.ask(PlansRequest::InventoryApply(request(json!({ "item": { "cluster": { "name": "north" } } }))))
            .unwrap();
        for (at, cores) in cores.iter().enumerate() {
            hub.ask(node_request(at, &format!("d{}", at % 2), *cores)).unwrap();
            for state in ["allocating", "allocated"] {
                hub.node_state(at, state, Some("north")).unwrap();
            }
        }
        hub
    }

    fn node_state(
        &mut self,
        at: usize,
        state: &str,
        cluster: Option<&str>,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let key = node_key(at);
        self.ask(PlansRequest::InventoryState(request(
            json!({ "item": { "node": key }, "nodeState": state, "cluster": cluster }),
        )))
    }

    fn now(&self) -> Timestamp {
        second(self.second)
    }

    #[allow(clippy::needless_pass_by_value, reason = "tests write requests in place")]
    fn ask(&mut self, request: PlansRequest) -> Result<PlansDocument, PlannerErrorBody> {
        match self.state.decide(&request, None, self.now())? {
            Decision::Append(document) => {
                self.log.push((*document).clone());
                self.state.apply((*document).clone());
                Ok(*document)
            }
            Decision::Unchanged(document) => Ok(*document),
        }
    }

    fn code(&mut self, request: PlansRequest) -> ErrorCode {
        let before = self.log.len();
        let code = self.ask(request).unwrap_err().code;
        assert_eq!(self.log.len(), before, "nothing is appended");
        code
    }

    /// One round: documents that follow, orders, and the devices.
    fn round(&mut self) -> bool {
        self.second += 1;
        self.state.time_passed();
        let now = self.now();
        let reported = self.devices.unplaced(&self.state);
        let made = self.state.advance(&self.devices, now, 10_000);
        let freed = &self.devices.unplaced(&self.state) - &reported;
        assert!(freed.is_empty(), "placements are dropped before the reports of their nodes: {freed:?}");
        let (is_changed, before) = (!made.is_empty(), self.devices.clone());
        self.log.extend(made.into_iter().map(|(document, _)| document));
        for effect in self.state.effects(&self.devices, self.devices.ordered()) {
            let plan = plan_of(&self.state, effect.target().1);
            self.devices.carry_out(effect, &plan);
        }
        self.devices.run();
        check_invariants(&self.state);
        is_changed || before.desired != self.devices.desired || before.standing != self.devices.standing
    }

    fn converge(&mut self) {
        let rounds = (0..200).take_while(|_| self.round()).count();
        assert!(rounds < 200, "the hub does not converge");
    }

    fn pending(&self) -> Vec<(InstanceName, Operation)> {
        self.pending_of(&plan_name())
    }

    fn pending_of(&self, plan: &PlanName) -> Vec<(InstanceName, Operation)> {
        let instances = self.state.instances_of(plan).collect::<Vec<_>>();
        let operations = instances.into_iter().flat_map(|instance| {
            instance.operations.iter().map(|operation| (instance.name.clone(), operation.clone()))
        });
        operations.filter(|(_, operation)| operation.state == OperationState::PendingApproval).collect()
    }

    fn pending_types(&self) -> Vec<OperationType> {
        let mut types: Vec<_> = self.pending().into_iter().map(|(_, one)| one.operation_type).collect();
        types.sort_unstable();
        types
    }

    fn verdict(instance: &InstanceName, operation: &Operation) -> OperationVerdictRequest {
        Self::verdict_of(&plan_name(), instance, operation)
    }

    fn verdict_of(
        plan: &PlanName,
        instance: &InstanceName,
        operation: &Operation,
    ) -> OperationVerdictRequest {
        request(json!({ "plan": plan, "instance": instance, "operation": operation.id }))
    }

    /// Approves the operations of all plans.
    fn approve_all(&mut self) {
        for plan in self.state.plans.keys().cloned().collect::<Vec<_>>() {
            for (instance, operation) in self.pending_of(&plan) {
                self.ask(PlansRequest::Approve(Self::verdict_of(&plan, &instance, &operation))).unwrap();
            }
        }
        self.converge();
    }

    fn deploy(&mut self, id: &str, instances: u32, version: &str) {
        self.ask(deploy_request(id, instances, version)).unwrap();
        self.converge();
    }

    fn deploy_coordinates(&mut self, id: &str, instances: u32, coordinates: &Value) {
        let deploy = json!({ "plan": "web", "id": id, "instances": instances, "coordinates": { "main": coordinates } });
        self.ask(PlansRequest::PlanDeploy(request(deploy))).unwrap();
        self.converge();
    }

    fn revision_state(&self, id: &str) -> RevisionState {
        let plan = self.state.plan(&plan_name()).unwrap();
        plan.revision(&id.parse().unwrap()).unwrap().state
    }

    /// The digest of what the instances of a revision run.
    fn digest_of(&self, revision: &str) -> Digest {
        let plan = self.state.plan(&plan_name()).unwrap();
        super::advance::digest(plan, &revision.parse().unwrap(), &[]).unwrap()
    }

    fn instances(&self) -> Vec<Instance> {
        self.state.instances_of(&plan_name()).cloned().collect()
    }

    fn running(&self) -> usize {
        self.devices.standing.values().filter(|standing| **standing == Standing::Installed).count()
    }

    fn free_cores(&self, at: usize) -> u64 {
        self.state.free(self.state.node(&node_key(at)).unwrap()).unwrap().cores
    }
}

/// The plan of an instance; of one that is not there, it does not matter.
fn plan_of(state: &PlansState, name: &InstanceName) -> PlanName {
    let mut all = state.instances.iter();
    all.find(|(_, instances)| instances.contains_key(name)).map_or_else(plan_name, |(plan, _)| plan.clone())
}

/// The invariants of migrations: none of the operations of one begins before all are approved, and the plan that is left gets its
/// revision of 0 instances after the other one has completed its own.
fn check_migrations(state: &PlansState) {
    for plan in state.plans.values() {
        for revision in &plan.revisions {
            // The other plan may have been deleted, and made again, since.
            let to = revision.migrated_to.as_ref().and_then(|to| state.plans.get(to));
            if let Some(other) = to.and_then(|other| other.revision(&revision.id)) {
                assert_eq!(other.state, RevisionState::Completed, "{plan:?}");
            }
            let instances = state.instances_of(&plan.spec.name);
            let operations: Vec<_> = instances
                .flat_map(|instance| &instance.operations)
                .filter(|one| revision.migrated_from.is_some() && one.revision.as_ref() == Some(&revision.id))
                .collect();
            let has_begun =
                |one: &&Operation| one.history.iter().any(|at| at.state == OperationState::Running);
            // A person may ask for another instance once the revision has ended.
            if !revision.state.is_final() && operations.iter().any(has_begun) {
                assert!(operations.iter().all(|one| one.approval.is_some()), "{operations:?}");
            }
        }
    }
}

/// The invariants of PLANS.
fn check_invariants(state: &PlansState) {
    check_migrations(state);
    for node in state.nodes.values() {
        assert!(state.free(node).is_some(), "{}: {:?}", node.key, state.usage(&node.key));
        let usage = state.usage(&node.key).cloned().unwrap_or_default();
        assert!(usage.payloads.values().chain(usage.ports.values()).all(|count| *count == 1), "{usage:?}");
    }
    for instance in state.instances.values().flat_map(BTreeMap::values) {
        let running = |one: &&Operation| one.state == OperationState::Running;
        assert!(instance.operations.iter().filter(running).count() <= 1, "{instance:?}");
        let has_begun =
            |one: &&Operation| one.history.iter().any(|step| step.state == OperationState::Running);
        for operation in instance.operations.iter().filter(has_begun) {
            assert!(operation.approval.is_some(), "{operation:?} has begun, and nobody approved it");
        }
        for placement in instance.placements.iter().filter(|placement| placement.revision.is_some()) {
            let is_approved = instance.operations.iter().any(|one| one.approval.is_some());
            assert!(is_approved, "{placement:?} has an order that nobody approved");
        }
    }
    let mut again = PlansState::default();
    for plan in state.plans.values() {
        again.apply(PlansDocument::Plan(plan.clone()));
    }
    for instance in state.instances.values().flat_map(BTreeMap::values) {
        again.apply(PlansDocument::Instance(instance.clone()));
    }
    assert_eq!(again.usage, state.usage, "usage is derived");
}
