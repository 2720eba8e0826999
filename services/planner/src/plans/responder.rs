//! Answers the requests on `muster.planner.*`: parses each, passes it to the keeper, and serialises the answer. It decides nothing.

use bytes::Bytes;
use muster_bus::{Bus, Call, EndpointSpec, Fault, ServiceSpec};
use muster_contract::plans::{
    InstancesQuery, InventoryQuery, OperationsQuery, PlannerErrorBody, PlannerErrorReply, PlansQuery,
};
use muster_contract::query::ErrorCode;
use muster_contract::question::{checked_limit, read, read_or_default};
use muster_contract::subjects::PLANNER_PREFIX;
use muster_domain::plans::PlansRequest;
use muster_service::health::Latch;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::call::{PlansCall, PlansQuestion};
use super::history::PlansHistory;
use super::refusal::{not_ready, refusal};

/// The endpoints.
const VERBS: [&str; 26] = [
    "plan-apply",
    "plan-delete",
    "plan-state",
    "plan-deploy",
    "plan-rollback",
    "plan-migrate",
    "plan-revision",
    "plan-approve",
    "plan-get",
    "plan-list",
    "plan-explain",
    "instance-list",
    "instance-create",
    "operation-request",
    "operation-list",
    "operation-approve",
    "operation-reject",
    "operation-cancel",
    "operation-complete",
    "operation-fail",
    "inventory-apply",
    "inventory-state",
    "inventory-disruption",
    "inventory-list",
    "inventory-delete",
    CHANGES,
];
/// The endpoint of PLANS' changes, which are read from the stream; the keeper answers all others.
const CHANGES: &str = "change-list";
/// Longest message in an error header; the body has all of it.
const HEADER_CHARS_MAX: usize = 200;

/// Answers requests.
#[derive(Debug, Clone)]
pub(crate) struct PlansResponder {
    calls: mpsc::Sender<PlansCall>,
    history: PlansHistory,
}

impl PlansResponder {
    /// A responder that passes requests to a keeper, and questions about changes to the history.
    pub(crate) const fn new(calls: mpsc::Sender<PlansCall>, history: PlansHistory) -> Self {
        Self { calls, history }
    }

    /// Answers requests until `stop`.
    pub(crate) async fn serve(self, bus: Bus, offered: Latch, stop: CancellationToken) {
        let handler = move |call| self.clone().answer(call);
        bus.offer(spec(), handler, || offered.release(), stop).await;
    }

    /// Answers one request.
    ///
    /// # Errors
    /// The refusal, with its body.
    pub(crate) async fn answer(self, call: Call) -> Result<Bytes, Fault> {
        if call.endpoint == CHANGES {
            let query = read_or_default(&call.payload).map_err(|error| fault(error.into()))?;
            return self.history.answer(&query).await.map(Bytes::from).map_err(fault);
        }
        let question = parse(&call).map_err(fault)?;
        let (reply, answer) = oneshot::channel();
        let sent = self.calls.send(PlansCall { question, reply }).await;
        let stopping = || fault(not_ready("the planner stops: ask again"));
        sent.map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())?.map(Bytes::from).map_err(fault)
    }
}

/// The description of the service.
fn spec() -> ServiceSpec {
    let endpoint = |name| EndpointSpec { name, subject: format!("{PLANNER_PREFIX}.{name}") };
    ServiceSpec {
        name: "muster-planner",
        version: env!("CARGO_PKG_VERSION"),
        description: "Plans, instances, operations with approvals, and the inventory of nodes",
        endpoints: VERBS.map(endpoint).into(),
    }
}

/// Parses a call.
fn parse(call: &Call) -> Result<PlansQuestion, PlannerErrorBody> {
    let payload = &call.payload;
    let question = match call.endpoint {
        "plan-get" => PlansQuestion::Plan(read(payload)?),
        "plan-explain" => PlansQuestion::Explain(read(payload)?),
        "plan-list" => {
            let query: PlansQuery = read_or_default(payload)?;
            PlansQuestion::Plans(checked_limit(query.limit)?, query)
        }
        "instance-list" => {
            let query: InstancesQuery = read_or_default(payload)?;
            PlansQuestion::Instances(checked_limit(query.limit)?, query)
        }
        "operation-list" => {
            let query: OperationsQuery = read_or_default(payload)?;
            PlansQuestion::Operations(checked_limit(query.limit)?, query)
        }
        "inventory-list" => {
            let query: InventoryQuery = read(payload)?;
            PlansQuestion::Inventory(checked_limit(query.limit)?, query)
        }
        _ => {
            let by = call.requester.author(&call.subject);
            let by = by.map_err(|error| refusal(ErrorCode::Forbidden, error.to_string()))?;
            PlansQuestion::Change(Box::new(parse_change(call)?), by)
        }
    };
    Ok(question)
}

fn parse_change(call: &Call) -> Result<PlansRequest, PlannerErrorBody> {
    let payload = &call.payload;
    Ok(match call.endpoint {
        "plan-apply" => PlansRequest::PlanApply(read(payload)?),
        "plan-delete" => PlansRequest::PlanDelete(read(payload)?),
        "plan-state" => PlansRequest::PlanState(read(payload)?),
        "plan-deploy" => PlansRequest::PlanDeploy(read(payload)?),
        "plan-rollback" => PlansRequest::PlanRollback(read(payload)?),
        "plan-migrate" => PlansRequest::PlanMigrate(read(payload)?),
        "plan-revision" => PlansRequest::PlanRevision(read(payload)?),
        "plan-approve" => PlansRequest::PlanApprove(read(payload)?),
        "instance-create" => PlansRequest::InstanceCreate(read(payload)?),
        "operation-request" => PlansRequest::Operation(read(payload)?),
        "operation-approve" => PlansRequest::Approve(read(payload)?),
        "operation-reject" => PlansRequest::Reject(read(payload)?),
        "operation-cancel" => PlansRequest::Cancel(read(payload)?),
        "operation-complete" => PlansRequest::Complete(read(payload)?),
        "operation-fail" => PlansRequest::Fail(read(payload)?),
        "inventory-apply" => PlansRequest::InventoryApply(read(payload)?),
        "inventory-state" => PlansRequest::InventoryState(read(payload)?),
        "inventory-disruption" => PlansRequest::Disruption(read(payload)?),
        "inventory-delete" => PlansRequest::InventoryDelete(read(payload)?),
        other => return Err(refusal(ErrorCode::NotFound, format!("there is no request {other}"))),
    })
}

fn fault(error: PlannerErrorBody) -> Fault {
    let (code, message) = (error.code.number(), error.message.chars().take(HEADER_CHARS_MAX).collect());
    // Cannot fail: the reply is an object of texts and numbers.
    let body = serde_json::to_vec(&PlannerErrorReply { error }).unwrap_or_default();
    Fault { code, message, body: body.into() }
}

#[cfg(test)]
mod tests {
    use muster_bus::{Headers, Requester};
    use muster_contract::OnBehalfOf;

    use super::*;

    /// The code of the refusal of an empty change that a gateway requests for a person of a role.
    fn refused(role: &str, verb: &'static str) -> ErrorCode {
        let (gateway, name) = ("UG".to_owned(), "gateway".to_owned());
        let person = OnBehalfOf::new("UANNA", "anna", role);
        let requester = Requester::Represented { gateway, name, person };
        let (subject, payload) = (format!("{PLANNER_PREFIX}.{verb}"), Bytes::from_static(b"{}"));
        let call = Call { endpoint: verb, subject, payload, headers: Headers::default(), requester };
        parse(&call).map(drop).unwrap_err().code
    }

    #[test]
    fn a_gateway_approves_and_rejects_operations_for_an_approver_alone() {
        let is_change =
            |verb: &&str| !verb.ends_with("-list") && !["plan-get", "plan-explain"].contains(verb);
        for verb in VERBS.into_iter().filter(is_change) {
            let is_verdict = matches!(verb, "operation-approve" | "operation-reject" | "plan-approve");
            let expected = if is_verdict { ErrorCode::BadRequest } else { ErrorCode::Forbidden };
            assert_eq!(refused("approver", verb), expected, "{verb}");
            assert_eq!(refused("viewer", verb), ErrorCode::Forbidden, "{verb}");
            assert_eq!(refused("operator", verb), ErrorCode::BadRequest, "the body of {verb}");
        }
    }
}
