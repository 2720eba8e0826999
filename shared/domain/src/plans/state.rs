//! The fold of PLANS: the newest document of each subject, and the usage of each node by placements. It reads no stream and decides
//! nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::SignedDuration;
use muster_contract::RequestedBy;
use muster_contract::canonical::Digest;
use muster_contract::desired::ProfileType;
use muster_contract::limits::{DELETED_INSTANCES_MAX, REQUEST_ID_KEPT};
use muster_contract::plans::{
    Capability, Cluster, Instance, InstanceState, Node, OperationState, OperationType, Plan, PlanState,
    Resources,
};
use muster_contract::subjects::PlansSubject;
use muster_contract::{CapabilityName, ClusterName, DeviceKey, InstanceName, PlanName, Timestamp};

use super::document::PlansDocument;
use super::hook_memory::HookMemory;
use super::usage::Usage;

/// Ids of requests that are kept at most, and how many of them after old ones are dropped: so that few insertions look at all.
const REQUEST_IDS_KEPT: usize = 100_000;
const REQUEST_IDS_AFTER_SWEEP: usize = REQUEST_IDS_KEPT / 2;

/// The state of PLANS.
#[derive(Debug, Clone, Default)]
pub struct PlansState {
    pub(super) plans: BTreeMap<PlanName, Plan>,
    /// Instances that are not deleted, by plan.
    pub(super) instances: BTreeMap<PlanName, BTreeMap<InstanceName, Instance>>,
    /// Instances that are deleted, by plan.
    removed: BTreeMap<PlanName, BTreeMap<InstanceName, RemovedInstance>>,
    /// The newest of them, the oldest first.
    deleted: BTreeMap<PlanName, VecDeque<Instance>>,
    pub(super) nodes: BTreeMap<DeviceKey, Node>,
    pub(super) clusters: BTreeMap<ClusterName, Cluster>,
    pub(super) capabilities: BTreeMap<CapabilityName, Capability>,
    pub(super) usage: BTreeMap<DeviceKey, Usage>,
    /// Instances with a placement on a node.
    pub(super) placed: BTreeMap<DeviceKey, BTreeSet<(PlanName, InstanceName)>>,
    /// Changes with a request's id, by requester and id.
    requests: BTreeMap<RequestKey, RepeatedRequest>,
    /// Plans that may have a next step.
    pub(super) dirty: BTreeSet<PlanName>,
    /// Plans whose last attempt to place an instance found no node, until capacity changes.
    pub(super) full: BTreeMap<PlanName, String>,
    /// Rises whenever a node may have become free.
    pub(super) capacity_epoch: u64,
    /// By plan that waits for its hooks.
    pub(super) hook_memory: BTreeMap<PlanName, HookMemory>,
}

/// The key of the person who asks, directly or through any gateway, if the server vouches for one, and the id of a request.
type RequestKey = (String, String);

/// A request that was carried out.
#[derive(Debug, Clone)]
pub(super) struct RepeatedRequest {
    pub(super) subject: PlansSubject,
    /// Digest of the request.
    pub(super) digest: Option<Digest>,
    at: Timestamp,
}

/// The part of a deleted instance that is kept.
#[derive(Debug, Clone)]
struct RemovedInstance {
    created_at: Timestamp,
    operations: Box<[(OperationType, OperationState)]>,
}

impl RepeatedRequest {
    /// Whether a request with its id counts as the same one.
    fn is_kept(&self, now: Timestamp) -> bool {
        let kept = SignedDuration::try_from(REQUEST_ID_KEPT).unwrap_or(SignedDuration::MAX);
        now.duration_since(self.at) <= kept
    }
}

impl PlansState {
    /// The types that the agent of a node runs; none if they are not known.
    pub(super) fn runtimes(&self, node: &DeviceKey) -> &[ProfileType] {
        self.nodes.get(node).map_or(&[], |node| &node.runtimes)
    }

    /// Applies a document of PLANS; returns the one before it.
    pub fn apply(&mut self, document: PlansDocument) -> Option<PlansDocument> {
        self.record_request(&document);
        let subject = document.subject();
        self.replace(&subject, Some(document))
    }

    /// Restores the document that a failed append has replaced.
    pub fn undo(&mut self, subject: &PlansSubject, before: Option<PlansDocument>) {
        if let Some(undone) = self.document(subject) {
            let change = undone.change();
            let key = change.request_id.as_deref().map(|id| key(change.by.as_ref(), id));
            key.iter().for_each(|key| _ = self.requests.remove(key));
        }
        self.replace(subject, before);
    }

    fn replace(&mut self, subject: &PlansSubject, document: Option<PlansDocument>) -> Option<PlansDocument> {
        match subject {
            PlansSubject::Plan(name) => {
                self.dirty.insert(name.clone());
                // Other coordinates, and other answers of hooks, may find a node.
                self.full.remove(name);
                let plan = document.and_then(|document| match document {
                    PlansDocument::Plan(plan) => Some(plan),
                    _ => None,
                });
                // PLANS keeps a bounded history, so a plan's oldest message may follow those of its instances.
                let before = self.plans.get(name).map(|plan| &plan.spec);
                let is_changed = before != plan.as_ref().map(|plan| &plan.spec);
                if is_changed {
                    self.count_plan(name, false);
                }
                let before = swap(&mut self.plans, name, plan);
                if is_changed {
                    self.count_plan(name, true);
                }
                before.map(PlansDocument::Plan)
            }
            PlansSubject::Instance(plan, name) => {
                let instance = document.and_then(|document| match document {
                    PlansDocument::Instance(instance) => Some(instance),
                    _ => None,
                });
                self.replace_instance(plan, name, instance).map(PlansDocument::Instance)
            }
            PlansSubject::Node(key) => {
                self.capacity_changed();
                let placed = self.placed.get(key).into_iter().flatten().map(|(plan, _)| plan.clone());
                self.dirty.extend(placed);
                let node = document.and_then(|document| match document {
                    PlansDocument::Node(node) => Some(node),
                    _ => None,
                });
                swap(&mut self.nodes, key, node).map(PlansDocument::Node)
            }
            PlansSubject::Cluster(name) => {
                self.capacity_changed();
                let cluster = document.and_then(|document| match document {
                    PlansDocument::Cluster(cluster) => Some(cluster),
                    _ => None,
                });
                swap(&mut self.clusters, name, cluster).map(PlansDocument::Cluster)
            }
            PlansSubject::Capability(name) => {
                self.capacity_changed();
                let capability = document.and_then(|document| match document {
                    PlansDocument::Capability(capability) => Some(capability),
                    _ => None,
                });
                swap(&mut self.capabilities, name, capability).map(PlansDocument::Capability)
            }
        }
    }

    fn replace_instance(
        &mut self,
        plan: &PlanName,
        name: &InstanceName,
        instance: Option<Instance>,
    ) -> Option<Instance> {
        self.dirty.insert(plan.clone());
        let is_deleted = instance.as_ref().is_some_and(|instance| instance.state == InstanceState::Deleted);
        let (live, deleted) = if is_deleted { (None, instance) } else { (instance, None) };
        self.keep_removed(plan, name, deleted.as_ref());
        let nodes = |instance: &Option<Instance>| -> Vec<DeviceKey> {
            let placements = instance.iter().flat_map(|instance| &instance.placements);
            placements.map(|placement| placement.node.clone()).collect()
        };
        let new = nodes(&live);
        let of_plan = self.instances.entry(plan.clone()).or_default();
        let before = swap(of_plan, name, live);
        if of_plan.is_empty() {
            self.instances.remove(plan);
        }
        let old = nodes(&before);
        if old != new {
            self.replace_placements(plan, name, &old, &new);
        }
        before
    }

    /// Keeps an instance that is deleted now, and its operations.
    fn keep_removed(&mut self, plan: &PlanName, name: &InstanceName, deleted: Option<&Instance>) {
        let Some(instance @ Instance { created_at, operations, .. }) = deleted else { return };
        let newest = self.deleted.entry(plan.clone()).or_default();
        newest.retain(|one| one.name != *name);
        newest.push_back(instance.clone());
        while newest.len() > DELETED_INSTANCES_MAX {
            newest.pop_front();
        }
        let operations = operations.iter().map(|one| (one.operation_type, one.state)).collect();
        let kept = RemovedInstance { created_at: *created_at, operations };
        self.removed.entry(plan.clone()).or_default().insert(name.clone(), kept);
    }

    /// The operations of the deleted instances of a plan. Those of an earlier plan of its name are not among them, nor those of an
    /// instance whose deletion was not stored.
    pub(super) fn removed_operations(
        &self,
        plan: &Plan,
    ) -> impl Iterator<Item = (OperationType, OperationState)> {
        let (name, created_at) = (&plan.spec.name, plan.created_at);
        let removed = self.removed.get(name).into_iter().flatten();
        let is_deleted = move |(instance, one): &(&InstanceName, &RemovedInstance)| {
            one.created_at >= created_at && self.instance(name, instance).is_none()
        };
        removed.filter(is_deleted).flat_map(|(_, one)| one.operations.iter().copied())
    }

    /// The newest deleted instances of a plan. Those of an earlier plan of its name are not among them, nor one whose deletion was not
    /// stored.
    pub(super) fn deleted_instances(&self, plan: &PlanName) -> impl Iterator<Item = &Instance> {
        let since = self.plans.get(plan).map(|plan| plan.created_at);
        let newest = self.deleted.get(plan).into_iter().flatten();
        newest.filter(move |one| {
            since.is_some_and(|since| one.created_at >= since)
                && self.instance(&one.plan, &one.name).is_none()
        })
    }

    fn replace_placements(
        &mut self,
        plan: &PlanName,
        name: &InstanceName,
        old: &[DeviceKey],
        new: &[DeviceKey],
    ) {
        let Self { plans, usage, placed, .. } = self;
        let Some(Plan { spec, .. }) = plans.get(plan) else { return };
        let id = (plan.clone(), name.clone());
        for node in old {
            if let Some(held) = usage.get_mut(node) {
                held.retract(spec);
                if held.is_empty() {
                    usage.remove(node);
                }
            }
            if let Some(instances) = placed.get_mut(node) {
                instances.remove(&id);
            }
        }
        for node in new {
            usage.entry(node.clone()).or_default().add(spec);
            placed.entry(node.clone()).or_default().insert(id.clone());
        }
        if !old.is_empty() {
            self.capacity_changed();
        }
    }

    /// Adds the placements of a plan to the usage of their nodes, or retracts them.
    fn count_plan(&mut self, name: &PlanName, is_added: bool) {
        let placements = self.instances_of(name).flat_map(|instance| {
            instance.placements.iter().map(|placement| (instance.name.clone(), placement.node.clone()))
        });
        for (instance, node) in placements.collect::<Vec<_>>() {
            let (old, new): (&[_], &[_]) = if is_added { (&[], &[node]) } else { (&[node], &[]) };
            self.replace_placements(name, &instance, old, new);
        }
    }

    /// Marks the plans that found no node: their instances are tried again.
    fn capacity_changed(&mut self) {
        self.capacity_epoch += 1;
        self.dirty.extend(std::mem::take(&mut self.full).into_keys());
    }

    /// Records the request of a document's newest change.
    fn record_request(&mut self, document: &PlansDocument) {
        let change = document.change();
        if let Some(id) = &change.request_id {
            let request =
                RepeatedRequest { subject: document.subject(), digest: change.request, at: change.at };
            self.requests.insert(key(change.by.as_ref(), id), request);
        }
        if self.requests.len() > REQUEST_IDS_KEPT {
            self.forget_requests(change.at);
        }
    }

    /// Drops requests that are no longer kept, and the oldest ones beyond [`REQUEST_IDS_AFTER_SWEEP`].
    fn forget_requests(&mut self, now: Timestamp) {
        self.requests.retain(|_, request| request.is_kept(now));
        let Some(excess) =
            self.requests.len().checked_sub(REQUEST_IDS_AFTER_SWEEP).filter(|excess| *excess > 0)
        else {
            return;
        };
        let mut times: Vec<Timestamp> = self.requests.values().map(|request| request.at).collect();
        let (_, last, _) = times.select_nth_unstable(excess - 1);
        let last = *last;
        self.requests.retain(|_, request| request.at > last);
    }

    /// The request of this requester with this id, within the time in which ids are kept.
    pub(super) fn repeated(
        &self,
        by: Option<&RequestedBy>,
        request_id: &str,
        now: Timestamp,
    ) -> Option<&RepeatedRequest> {
        self.requests.get(&key(by, request_id)).filter(|request| request.is_kept(now))
    }

    /// The newest document of a subject. A deleted instance has none.
    pub fn document(&self, subject: &PlansSubject) -> Option<PlansDocument> {
        match subject {
            PlansSubject::Plan(name) => self.plans.get(name).cloned().map(PlansDocument::Plan),
            PlansSubject::Instance(plan, name) => {
                self.instance(plan, name).cloned().map(PlansDocument::Instance)
            }
            PlansSubject::Node(key) => self.nodes.get(key).cloned().map(PlansDocument::Node),
            PlansSubject::Cluster(name) => self.clusters.get(name).cloned().map(PlansDocument::Cluster),
            PlansSubject::Capability(name) => {
                self.capabilities.get(name).cloned().map(PlansDocument::Capability)
            }
        }
    }

    /// The document of a deleted instance, if it is one of the newest of its plan.
    pub(super) fn deleted_document(&self, subject: &PlansSubject) -> Option<PlansDocument> {
        let PlansSubject::Instance(plan, name) = subject else { return None };
        let found = self.deleted_instances(plan).find(|instance| instance.name == *name);
        found.cloned().map(PlansDocument::Instance)
    }

    /// A plan that is not deleted.
    pub fn plan(&self, name: &PlanName) -> Option<&Plan> {
        self.plans.get(name).filter(|plan| plan.state != PlanState::Deleted)
    }

    /// An instance that is not deleted.
    pub fn instance(&self, plan: &PlanName, name: &InstanceName) -> Option<&Instance> {
        self.instances.get(plan)?.get(name)
    }

    /// The instances of a plan that are not deleted, by name.
    pub fn instances_of(&self, plan: &PlanName) -> impl Iterator<Item = &Instance> {
        self.instances.get(plan).into_iter().flat_map(BTreeMap::values)
    }

    /// A node that is not deleted.
    pub fn node(&self, key: &DeviceKey) -> Option<&Node> {
        self.nodes.get(key).filter(|node| !node.deleted)
    }

    /// The part of a node that placements hold.
    pub fn usage(&self, key: &DeviceKey) -> Option<&Usage> {
        self.usage.get(key)
    }

    /// Free resources of a node; `None` if placements hold more than it has, which no decision of the planner causes.
    pub fn free(&self, node: &Node) -> Option<Resources> {
        let used = self.usage.get(&node.key).map(|usage| usage.resources).unwrap_or_default();
        node.usable().minus(used)
    }

    /// Marks the plans of instances on these nodes: LEDGER has new facts about them.
    pub fn nodes_changed<'a>(&mut self, nodes: impl IntoIterator<Item = &'a DeviceKey>) {
        for node in nodes {
            let placed = self.placed.get(node).into_iter().flatten();
            self.dirty.extend(placed.map(|(plan, _)| plan.clone()));
        }
    }

    /// Whether a plan may have a next step.
    pub fn has_changes(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Marks every plan with instances, an open revision or a migration: time has passed.
    pub fn time_passed(&mut self) {
        let is_open = |plan: &&Plan| plan.open_revision().is_some() || plan.migration.is_some();
        let open = self.plans.values().filter(is_open);
        self.dirty.extend(open.map(|plan| plan.spec.name.clone()));
        self.dirty.extend(self.instances.keys().cloned());
    }

    /// The plan of a node's instance of this name, if it has a placement there.
    pub fn placed_on(&self, node: &DeviceKey, name: &InstanceName) -> Option<&PlanName> {
        let placed = self.placed.get(node)?;
        placed.iter().find(|(_, instance)| instance == name).map(|(plan, _)| plan)
    }
}

fn key(by: Option<&RequestedBy>, request_id: &str) -> RequestKey {
    (by.map_or("", RequestedBy::person).to_owned(), request_id.to_owned())
}

fn swap<K: Ord + Clone, V>(map: &mut BTreeMap<K, V>, key: &K, value: Option<V>) -> Option<V> {
    match value {
        Some(value) => map.insert(key.clone(), value),
        None => map.remove(key),
    }
}
