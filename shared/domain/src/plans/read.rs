//! Answers requests that change nothing: plans, instances, operations and the inventory, page by page.

use std::collections::BTreeMap;

use muster_contract::Timestamp;
use muster_contract::plans::{
    ExplainAnswer, InstanceStatus, InstancesAnswer, InstancesQuery, InventoryAnswer, InventoryKind,
    InventoryQuery, Node, NodeStatus, OperationStatus, OperationsAnswer, OperationsQuery, Plan, PlanAnswer,
    PlanQuery, PlanState, PlannerErrorBody, PlansAnswer, PlansQuery,
};

use super::decide::not_found;
use super::evidence::PlansEvidence;
use super::state::PlansState;

/// A reading of PLANS and LEDGER at a moment.
#[derive(Debug)]
pub struct PlansRead<'a, E> {
    /// PLANS.
    pub state: &'a PlansState,
    /// LEDGER.
    pub evidence: &'a E,
    /// The time.
    pub now: Timestamp,
}

/// Whether a filter lets a value pass: one without values lets all.
fn passes<T: PartialEq>(filter: &[T], value: &T) -> bool {
    filter.is_empty() || filter.contains(value)
}

/// The first `limit` rows by their keys after `after`, and whether there are more: then the key of the last one.
fn page<T>(
    rows: impl Iterator<Item = (String, T)>,
    after: Option<&str>,
    limit: usize,
) -> (Vec<T>, Option<String>) {
    let rows = rows.filter(|(key, _)| after.is_none_or(|after| key.as_str() > after));
    let mut rows = rows.collect::<BTreeMap<_, _>>().into_iter();
    let (mut page, mut last) = (Vec::new(), None);
    for (key, row) in rows.by_ref().take(limit) {
        last = Some(key);
        page.push(row);
    }
    (page, last.filter(|_| rows.len() > 0))
}

impl<E: PlansEvidence> PlansRead<'_, E> {
    /// A plan with its counts.
    ///
    /// # Errors
    /// There is no such plan.
    pub fn plan(&self, query: &PlanQuery) -> Result<PlanAnswer, PlannerErrorBody> {
        let plan = self.state.plan(&query.plan).ok_or_else(|| not_found(format!("plan {}", query.plan)))?;
        Ok(PlanAnswer { plan: plan.clone(), summary: self.summary(plan) })
    }

    /// The node that another instance of a plan would get.
    ///
    /// # Errors
    /// There is no such plan.
    pub fn explain(&self, query: &PlanQuery) -> Result<ExplainAnswer, PlannerErrorBody> {
        let plan = self.state.plan(&query.plan).ok_or_else(|| not_found(format!("plan {}", query.plan)))?;
        Ok(self.state.explain(plan, self.now))
    }

    /// Plans, page by page.
    pub fn plans(&self, query: &PlansQuery, limit: usize) -> PlansAnswer {
        let is_wanted = |plan: &&Plan| {
            let is_in_state = if query.state.is_empty() {
                plan.state != PlanState::Deleted
            } else {
                query.state.contains(&plan.state)
            };
            let payloads = plan.spec.applications.iter().map(|application| &application.payload_name);
            is_in_state
                && passes(&query.name, &plan.spec.name)
                && passes(&query.service_name, &plan.spec.service_name)
                && (query.payload_name.is_empty()
                    || payloads.into_iter().any(|name| query.payload_name.contains(name)))
        };
        let plans = self.state.plans.values().filter(is_wanted);
        let rows = plans.map(|plan| (plan.spec.name.to_string(), plan));
        let (plans, next) = page(rows, query.after.as_deref(), limit);
        let answer = |plan: &Plan| PlanAnswer { plan: plan.clone(), summary: self.summary(plan) };
        PlansAnswer { plans: plans.into_iter().map(answer).collect(), next }
    }

    /// Instances, page by page.
    pub fn instances(&self, query: &InstancesQuery, limit: usize) -> InstancesAnswer {
        let plans = self.state.plans.keys().filter(|plan| passes(&query.plan, plan));
        let rows = plans.flat_map(|plan| {
            let deleted = self.state.deleted_instances(plan).filter(|_| query.include_deleted);
            let all = self.state.instances_of(plan).chain(deleted);
            all.map(|instance| (format!("{}.{}", instance.plan, instance.name), instance))
        });
        let rows = rows.filter(|(_, instance)| {
            let is_named = |name: &String| name == instance.name.as_str() || *name == instance.display_name;
            let is_on = |placement: &muster_contract::plans::Placement| query.node.contains(&placement.node);
            (query.name.is_empty() || query.name.iter().any(is_named))
                && passes(&query.revision, &instance.revision)
                && (query.node.is_empty() || instance.placements.iter().any(is_on))
        });
        let (instances, next) = page(rows, query.after.as_deref(), limit);
        let status = |instance: &muster_contract::plans::Instance| InstanceStatus {
            instance: instance.clone(),
            placements: self.placements(instance),
        };
        InstancesAnswer { instances: instances.into_iter().map(status).collect(), next }
    }

    /// Operations, page by page.
    pub fn operations(&self, query: &OperationsQuery, limit: usize) -> OperationsAnswer {
        let plans = self.state.instances.iter().filter(|(plan, _)| passes(&query.plan, plan));
        let instances = plans.flat_map(|(_, instances)| instances.values());
        let instances = instances.filter(|instance| {
            let is_named = |name: &String| name == instance.name.as_str() || *name == instance.display_name;
            query.instance.is_empty() || query.instance.iter().any(is_named)
        });
        let rows = instances.flat_map(|instance| {
            let numbered = instance.operations.iter().enumerate();
            numbered.map(move |(at, operation)| {
                (format!("{}.{}.{at:04}", instance.plan, instance.name), (instance, operation))
            })
        });
        let rows = rows.filter(|(_, (_, operation))| {
            passes(&query.operation_type, &operation.operation_type) && passes(&query.state, &operation.state)
        });
        let (rows, next) = page(rows, query.after.as_deref(), limit);
        let mut approvals = BTreeMap::new();
        let status = |(instance, operation): (&muster_contract::plans::Instance, &_)| OperationStatus {
            plan: instance.plan.clone(),
            instance: instance.name.clone(),
            display_name: instance.display_name.clone(),
            version: instance.version,
            operation: self.explained(instance, operation, &mut approvals),
        };
        OperationsAnswer { operations: rows.into_iter().map(status).collect(), next }
    }

    /// The inventory, page by page.
    pub fn inventory(&self, query: &InventoryQuery, limit: usize) -> InventoryAnswer {
        let after = query.after.as_deref();
        let is_named = |name: &str| query.name.is_empty() || query.name.iter().any(|wanted| wanted == name);
        let is_there = |is_deleted: bool| query.include_deleted || !is_deleted;
        let deleted = muster_contract::plans::InventoryState::Deleted;
        match query.kind {
            InventoryKind::Node => {
                let nodes = self.state.nodes.values();
                let nodes = nodes.filter(|node| is_there(node.deleted) && is_named(&node.key.to_string()));
                let statuses =
                    nodes.map(|node| self.node_status(node)).filter(|status| is_wanted(query, status));
                let rows = statuses.map(|status| (status.node.key.to_string(), status));
                let (nodes, next) = page(rows, after, limit);
                InventoryAnswer { nodes, next, ..InventoryAnswer::default() }
            }
            InventoryKind::Cluster => {
                let clusters = self.state.clusters.values();
                let clusters =
                    clusters.filter(|of| is_there(of.state == deleted) && is_named(of.name.as_str()));
                let rows = clusters.map(|cluster| (cluster.name.to_string(), cluster.clone()));
                let (clusters, next) = page(rows, after, limit);
                InventoryAnswer { clusters, next, ..InventoryAnswer::default() }
            }
            InventoryKind::Capability => {
                let all = self.state.capabilities.values().filter(|of| {
                    let is_of_type = passes(&query.capability_type, &of.capability_type);
                    is_of_type && is_there(of.state == deleted) && is_named(of.name.as_str())
                });
                let rows = all.map(|capability| (capability.name.to_string(), capability.clone()));
                let (capabilities, next) = page(rows, after, limit);
                InventoryAnswer { capabilities, next, ..InventoryAnswer::default() }
            }
        }
    }

    fn node_status(&self, node: &Node) -> NodeStatus {
        let usage = self.state.usage(&node.key);
        let payloads = usage.into_iter().flat_map(|usage| usage.payloads.keys().cloned());
        NodeStatus {
            node: node.clone(),
            remaining_resources: self.state.free(node).unwrap_or_default(),
            payloads: payloads.collect(),
        }
    }
}

/// Whether a node passes the filters of a query.
fn is_wanted(query: &InventoryQuery, status: &NodeStatus) -> bool {
    let NodeStatus { node, remaining_resources: free, payloads } = status;
    let has = |names: &[muster_contract::ComponentName]| names.iter().any(|name| payloads.contains(name));
    (query.cluster.is_empty() || node.cluster.as_ref().is_some_and(|of| query.cluster.contains(of)))
        && passes(&query.update_domain, &node.update_domain)
        && passes(&query.node_state, &node.state)
        && query.remaining_cores_gte.is_none_or(|least| free.cores >= least)
        && query.remaining_memory_gte.is_none_or(|least| free.memory >= least)
        && (query.payload_name.is_empty() || has(&query.payload_name))
        && !has(&query.payload_name_not_in)
}
