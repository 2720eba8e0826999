//! Answers requests that change the inventory: nodes, clusters, capabilities and disruptions.

use muster_contract::plans::{
    Capability, CapabilitySpec, Cluster, ClusterSpec, DisruptionRequest, DisruptionState, DisruptionVerb,
    InventoryApplyRequest, InventoryDeleteRequest, InventoryItem, InventoryName, InventoryState,
    InventoryStateRequest, Node, NodeSpec, NodeState, PlannerErrorBody,
};
use muster_contract::{CapabilityName, ClusterName, Timestamp};

use super::decide::{check_replaced, check_text, check_version, invalid, not_found, precondition};
use super::document::PlansDocument;
use super::operations::{self, Author};
use super::state::PlansState;

impl PlansState {
    /// A cluster that is not deleted.
    pub(super) fn cluster(&self, name: &ClusterName) -> Option<&Cluster> {
        self.clusters.get(name).filter(|cluster| cluster.state != InventoryState::Deleted)
    }

    /// A capability that is not deleted.
    pub(super) fn capability(&self, name: &CapabilityName) -> Option<&Capability> {
        self.capabilities.get(name).filter(|capability| capability.state != InventoryState::Deleted)
    }

    pub(super) fn apply_item(
        &self,
        request: &InventoryApplyRequest,
        expected: Option<u64>,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let before = self.item(&name_of(&request.item));
        if let Some(before) = &before {
            check_replaced(before.label(), before.version(), expected)?;
        } else if expected.is_some() {
            return Err(not_found("such entry of the inventory"));
        }
        match &request.item {
            InventoryItem::Node(spec) => self.apply_node(spec, author, now),
            InventoryItem::Cluster(spec) if before.is_none() => Ok(made_cluster(spec, author, now)),
            InventoryItem::Cluster(_) => Err(precondition("a cluster has nothing to change but its state")),
            InventoryItem::Capability(spec) => Ok(self.apply_capability(spec, author, now)),
        }
    }

    fn apply_node(
        &self,
        spec: &NodeSpec,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        if let Some(unknown) = spec.capabilities.iter().find(|name| self.capability(name).is_none()) {
            let rule = format!("there is no capability {unknown}: add it to the inventory");
            return Err(invalid("item.node.capabilities", rule));
        }
        let before = self.node(&spec.key);
        let NodeSpec {
            key,
            update_domain,
            total_resources,
            system_reserved_resources,
            local_volumes,
            capabilities,
            runtimes,
        } = spec.clone();
        let message = if before.is_some() { "node is changed" } else { "node is made" };
        let node = Node {
            api_version: Default::default(),
            kind: Default::default(),
            key,
            version: before.map_or(0, |node| node.version + 1),
            state: before.map_or(NodeState::Unallocated, |node| node.state),
            message: before.map_or_else(String::new, |node| node.message.clone()),
            cluster: before.and_then(|node| node.cluster.clone()),
            update_domain,
            total_resources,
            system_reserved_resources,
            local_volumes,
            capabilities,
            runtimes,
            disruptions: before.map_or_else(Vec::new, |node| node.disruptions.clone()),
            deleted: false,
            created_at: before.map_or(now, |node| node.created_at),
            change: operations::change(now, message, author),
        };
        self.check_used(&node)?;
        self.check_runtimes(before, &node)?;
        Ok(PlansDocument::Node(node))
    }

    /// Checks that a changed node has room for what is placed on it.
    fn check_used(&self, node: &Node) -> Result<(), PlannerErrorBody> {
        if self.free(node).is_none() {
            let used = self.usage.get(&node.key).map(|usage| usage.resources).unwrap_or_default();
            let message = format!(
                "placements on node {} hold {} cores and {} memory: give it no less, or relocate them",
                node.key, used.cores, used.memory
            );
            return Err(precondition(message));
        }
        Ok(())
    }

    /// Checks that a change of a node's runtimes changes no instance: what an instance runs follows from them.
    fn check_runtimes(&self, before: Option<&Node>, node: &Node) -> Result<(), PlannerErrorBody> {
        let is_used = self.usage.get(&node.key).is_some_and(|usage| !usage.payloads.is_empty());
        let is_changed = before.is_some_and(|before| before.runtimes != node.runtimes);
        if is_used && is_changed {
            let message = format!(
                "node {} has instances, whose content follows from its runtimes: relocate them first",
                node.key
            );
            return Err(precondition(message));
        }
        Ok(())
    }

    fn apply_capability(&self, spec: &CapabilitySpec, author: &Author, now: Timestamp) -> PlansDocument {
        let before = self.capability(&spec.name);
        let message = if before.is_some() { "capability is changed" } else { "capability is made" };
        PlansDocument::Capability(Capability {
            api_version: Default::default(),
            kind: Default::default(),
            name: spec.name.clone(),
            capability_type: spec.capability_type.clone(),
            score: spec.score,
            version: before.map_or(0, |capability| capability.version + 1),
            state: before.map_or(InventoryState::Pending, |capability| capability.state),
            message: before.map_or_else(String::new, |capability| capability.message.clone()),
            created_at: before.map_or(now, |capability| capability.created_at),
            change: operations::change(now, message, author),
        })
    }

    /// An entry that is not deleted.
    fn item(&self, name: &InventoryName) -> Option<PlansDocument> {
        match name {
            InventoryName::Node(key) => self.node(key).cloned().map(PlansDocument::Node),
            InventoryName::Cluster(name) => self.cluster(name).cloned().map(PlansDocument::Cluster),
            InventoryName::Capability(name) => self.capability(name).cloned().map(PlansDocument::Capability),
        }
    }

    fn item_at(
        &self,
        name: &InventoryName,
        expected: Option<u64>,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let item = self.item(name).ok_or_else(|| not_found(label(name)))?;
        check_version(item.label(), item.version(), expected)?;
        Ok(item)
    }

    pub(super) fn set_item_state(
        &self,
        request: &InventoryStateRequest,
        expected: Option<u64>,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        check_text("message", request.message.as_deref())?;
        let message = request.message.clone().unwrap_or_default();
        let mut item = self.item_at(&request.item, expected)?;
        match (&mut item, request.node_state, request.state) {
            (PlansDocument::Node(node), Some(state), None) => {
                self.check_node_state(node, state, request.cluster.as_ref())?;
                node.version += 1;
                node.state = state;
                node.cluster.clone_from(&request.cluster);
                node.message = message;
                node.change = operations::change(now, format!("node is {}", node_word(state)), author);
            }
            (PlansDocument::Cluster(cluster), None, Some(state)) => {
                check_item_state(cluster.state, state)?;
                (cluster.version, cluster.state, cluster.message) = (cluster.version + 1, state, message);
                cluster.change = operations::change(now, format!("cluster is {}", item_word(state)), author);
            }
            (PlansDocument::Capability(of), None, Some(state)) => {
                check_item_state(of.state, state)?;
                (of.version, of.state, of.message) = (of.version + 1, state, message);
                of.change = operations::change(now, format!("capability is {}", item_word(state)), author);
            }
            (PlansDocument::Node(_), ..) => {
                return Err(invalid("nodeState", "is missing, or state is there as well"));
            }
            _ => return Err(invalid("state", "is missing, or nodeState is there as well")),
        }
        Ok(item)
    }

    /// Checks the transition of a node by the table of MRDS, and that nothing is left on a node that is free again.
    fn check_node_state(
        &self,
        node: &Node,
        state: NodeState,
        cluster: Option<&ClusterName>,
    ) -> Result<(), PlannerErrorBody> {
        use NodeState::{Allocated, Allocating, Evicted, Sanitizing, Unallocated};
        let is_legal = matches!(
            (node.state, state),
            (Unallocated, Allocating)
                | (Allocating, Allocated | Evicted)
                | (Allocated, Evicted)
                | (Evicted, Sanitizing)
                | (Sanitizing, Unallocated | Evicted)
        );
        if !is_legal {
            let (from, to) = (node_word(node.state), node_word(state));
            return Err(precondition(format!("node {} is {from}, and cannot become {to}", node.key)));
        }
        match (state, cluster) {
            (Allocating | Allocated, None) => {
                return Err(invalid("cluster", "is missing: a node is allocated to one"));
            }
            (Allocating | Allocated, Some(name)) if self.cluster(name).is_none() => {
                return Err(invalid(
                    "cluster",
                    format!("there is no cluster {name}: add it to the inventory"),
                ));
            }
            (Allocated, Some(name)) if node.cluster.as_ref() != Some(name) => {
                return Err(invalid(
                    "cluster",
                    format!("{name} is not the one that the node is allocating to"),
                ));
            }
            (Evicted | Sanitizing | Unallocated, Some(_)) => {
                return Err(invalid("cluster", "is of no use here: the node leaves its cluster"));
            }
            _ => {}
        }
        let placements = self.usage.get(&node.key).map_or(0, |usage| usage.placements);
        if state == Unallocated && placements > 0 {
            return Err(precondition(format!(
                "node {} has {placements} placements: relocate them first",
                node.key
            )));
        }
        Ok(())
    }

    pub(super) fn disrupt(
        &self,
        request: &DisruptionRequest,
        expected: Option<u64>,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let name = InventoryName::Node(request.node.clone());
        let PlansDocument::Node(mut node) = self.item_at(&name, expected)? else {
            return Err(not_found(format!("node {}", request.node)));
        };
        let at = node.disruptions.iter().position(|disruption| disruption.id == request.id);
        let state = at.map(|at| node.disruptions[at].state);
        match (request.verb, at, state) {
            (DisruptionVerb::Add, None, _) => {
                let disruption = request.disruption();
                node.disruptions.push(disruption.ok_or_else(|| invalid("start", "is missing"))?);
            }
            (DisruptionVerb::Approve, Some(at), Some(DisruptionState::Scheduled)) => {
                node.disruptions[at].state = DisruptionState::Approved;
            }
            (
                DisruptionVerb::Complete,
                Some(at),
                Some(DisruptionState::Scheduled | DisruptionState::Approved),
            ) => {
                node.disruptions[at].state = DisruptionState::Completed;
            }
            (DisruptionVerb::Remove, Some(at), Some(DisruptionState::Completed)) => {
                node.disruptions.remove(at);
            }
            (DisruptionVerb::Add, Some(_), _) => {
                let message = format!("node {} has a disruption {}: choose another id", node.key, request.id);
                return Err(precondition(message));
            }
            (verb, _, Some(state)) => {
                let (is, to) = (disruption_word(state), done_word(verb));
                let message =
                    format!("disruption {} of node {} is {is}, and cannot be {to}", request.id, node.key);
                return Err(precondition(message));
            }
            (_, _, None) => return Err(not_found(format!("disruption {} of node {}", request.id, node.key))),
        }
        node.version += 1;
        let sentence = format!("disruption {} is {}", request.id, done_word(request.verb));
        node.change = operations::change(now, sentence, author);
        Ok(PlansDocument::Node(node))
    }

    pub(super) fn delete_item(
        &self,
        request: &InventoryDeleteRequest,
        expected: Option<u64>,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let mut item = self.item_at(&request.item, expected)?;
        if let Some(user) = self.user_of(&request.item) {
            return Err(precondition(format!("{} is in use by {user}", label(&request.item))));
        }
        let change = operations::change(now, format!("{} is deleted", label(&request.item)), author);
        match &mut item {
            PlansDocument::Node(node) => {
                (node.version, node.deleted, node.change) = (node.version + 1, true, change);
            }
            PlansDocument::Cluster(of) => {
                (of.version, of.state, of.change) = (of.version + 1, InventoryState::Deleted, change);
            }
            PlansDocument::Capability(of) => {
                (of.version, of.state, of.change) = (of.version + 1, InventoryState::Deleted, change);
            }
            PlansDocument::Plan(_) | PlansDocument::Instance(_) => {}
        }
        Ok(item)
    }

    /// A user of an entry of the inventory.
    fn user_of(&self, name: &InventoryName) -> Option<String> {
        let live = || self.nodes.values().filter(|node| !node.deleted);
        let plans = || self.plans.keys().filter_map(|name| self.plan(name));
        match name {
            InventoryName::Node(key) => {
                let placed = self.placed.get(key).and_then(|placed| placed.first());
                placed.map(|(_, instance)| format!("instance {instance}"))
            }
            InventoryName::Cluster(name) => {
                let node = live().find(|node| node.cluster.as_ref() == Some(name));
                let plan = plans().find(|plan| plan.spec.cluster.as_ref() == Some(name));
                node.map(|node| format!("node {}", node.key))
                    .or_else(|| plan.map(|plan| format!("plan {}", plan.spec.name)))
            }
            InventoryName::Capability(name) => {
                let node = live().find(|node| node.capabilities.contains(name));
                let names = |plan: &&muster_contract::plans::Plan| {
                    let matchers = &plan.spec.matching_compute_capabilities;
                    matchers.iter().any(|matcher| matcher.capability_names.contains(name))
                };
                let plan = plans().find(names);
                node.map(|node| format!("node {}", node.key))
                    .or_else(|| plan.map(|plan| format!("plan {}", plan.spec.name)))
            }
        }
    }
}

fn made_cluster(spec: &ClusterSpec, author: &Author, now: Timestamp) -> PlansDocument {
    PlansDocument::Cluster(Cluster {
        api_version: Default::default(),
        kind: Default::default(),
        name: spec.name.clone(),
        version: 0,
        state: InventoryState::Pending,
        message: String::new(),
        created_at: now,
        change: operations::change(now, "cluster is made", author),
    })
}

/// Checks a transition of a cluster or a capability by the table of MRDS.
fn check_item_state(from: InventoryState, to: InventoryState) -> Result<(), PlannerErrorBody> {
    use InventoryState::{Active, Inactive, Pending};
    if matches!((from, to), (Pending | Inactive, Active) | (Pending | Active, Inactive)) {
        return Ok(());
    }
    Err(precondition(format!("it is {}, and cannot become {}", item_word(from), item_word(to))))
}

const fn item_word(state: InventoryState) -> &'static str {
    match state {
        InventoryState::Pending => "pending",
        InventoryState::Active => "active",
        InventoryState::Inactive => "inactive",
        InventoryState::Deleted => "deleted",
    }
}

const fn node_word(state: NodeState) -> &'static str {
    match state {
        NodeState::Unallocated => "unallocated",
        NodeState::Allocating => "allocating",
        NodeState::Allocated => "allocated",
        NodeState::Evicted => "evicted",
        NodeState::Sanitizing => "sanitizing",
    }
}

const fn disruption_word(state: DisruptionState) -> &'static str {
    match state {
        DisruptionState::Scheduled => "scheduled",
        DisruptionState::Approved => "approved",
        DisruptionState::Completed => "completed",
    }
}

/// The participle of a verb.
const fn done_word(verb: DisruptionVerb) -> &'static str {
    match verb {
        DisruptionVerb::Add => "added",
        DisruptionVerb::Approve => "approved",
        DisruptionVerb::Complete => "completed",
        DisruptionVerb::Remove => "removed",
    }
}

fn name_of(item: &InventoryItem) -> InventoryName {
    match item {
        InventoryItem::Node(spec) => InventoryName::Node(spec.key.clone()),
        InventoryItem::Cluster(spec) => InventoryName::Cluster(spec.name.clone()),
        InventoryItem::Capability(spec) => InventoryName::Capability(spec.name.clone()),
    }
}

fn label(name: &InventoryName) -> String {
    match name {
        InventoryName::Node(key) => format!("node {key}"),
        InventoryName::Cluster(name) => format!("cluster {name}"),
        InventoryName::Capability(name) => format!("capability {name}"),
    }
}
