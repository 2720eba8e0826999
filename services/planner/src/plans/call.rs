//! A parsed request about plans, with the way of its answer.

use muster_contract::RequestedBy;
use muster_contract::plans::{
    InstancesQuery, InventoryQuery, OperationsQuery, PlanQuery, PlannerErrorBody, PlansQuery,
};
use muster_domain::plans::PlansRequest;
use tokio::sync::oneshot;

/// A parsed request.
#[derive(Debug)]
pub(crate) enum PlansQuestion {
    /// A plan.
    Plan(PlanQuery),
    /// The choice of a node for another instance.
    Explain(PlanQuery),
    /// Plans.
    Plans(usize, PlansQuery),
    /// Instances.
    Instances(usize, InstancesQuery),
    /// Operations.
    Operations(usize, OperationsQuery),
    /// The inventory.
    Inventory(usize, InventoryQuery),
    /// A change, with its requester.
    Change(Box<PlansRequest>, Option<RequestedBy>),
}

/// The answer of a request, as JSON.
pub(crate) type PlansReply = Result<Vec<u8>, PlannerErrorBody>;

/// A request that waits for its answer.
#[derive(Debug)]
pub(crate) struct PlansCall {
    pub(super) question: PlansQuestion,
    pub(super) reply: oneshot::Sender<PlansReply>,
}
