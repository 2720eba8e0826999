//! `muster instance`, and `muster plan operate`: instances of plans, and the operations that a person requests on one.

use muster_contract::plans::{
    InstanceCreateRequest, InstanceStatus, InstancesAnswer, InstancesQuery, OperationRequest, OperationType,
};
use muster_contract::{DeviceKey, RevisionId, Timestamp};

use super::choose::{chosen, confirmed};
use super::operations;
use crate::ask::understood;
use crate::config::{
    DeviceArg, InstanceArgs, InstanceCommand, InstanceCreateArgs, InstanceListArgs, OperateArgs, YesArg,
};
use crate::error::CtlError;
use crate::render;
use crate::session::Session;

/// Runs a command about instances; false if the person said no.
///
/// # Errors
/// The planner does not answer or refuses, or there is no such instance.
pub async fn run(session: &mut Session<'_>, command: InstanceCommand) -> Result<bool, CtlError> {
    match command {
        InstanceCommand::List(args) => list(session, args).await,
        InstanceCommand::Show { instance } => show(session, &instance).await,
        InstanceCommand::Create(args) => create(session, args).await,
        InstanceCommand::Stop(args) => request(session, args, OperationType::Stop, Choice::default()).await,
        InstanceCommand::Restart(args) => {
            request(session, args, OperationType::Restart, Choice::default()).await
        }
        InstanceCommand::Relocate { of, to } => {
            let node = to.map(DeviceArg::resolved).transpose()?;
            request(session, of, OperationType::Relocate, Choice { revision: None, node }).await
        }
        InstanceCommand::Update { of, deployment_id: revision } => {
            request(session, of, OperationType::Update, Choice { revision, node: None }).await
        }
        InstanceCommand::Delete(args) => {
            request(session, args, OperationType::Delete, Choice::default()).await
        }
        InstanceCommand::Approve(args) => operations::approve(session, args.into()).await,
        InstanceCommand::Complete(args) => operations::complete(session, args.failed, args.of.into()).await,
    }
}

/// The choices of a person for an operation; the planner makes the others.
#[derive(Debug, Default)]
struct Choice {
    revision: Option<RevisionId>,
    node: Option<DeviceKey>,
}

/// Requests another instance of a plan.
async fn create(session: &mut Session<'_>, args: InstanceCreateArgs) -> Result<bool, CtlError> {
    let InstanceCreateArgs { plan, deployment_plan, deployment_id: revision, node, yes } = args;
    let Some(plan) = plan.or(deployment_plan) else { return Ok(false) };
    if !confirmed(session, yes, &format!("Request another instance of plan {plan}"))? {
        return Ok(false);
    }
    let node = node.map(DeviceArg::resolved).transpose()?;
    let request = InstanceCreateRequest { plan, revision, node, expected_version: None, request_id: None };
    let answer = session.hub.planner("instance-create", &request).await?;
    session.show(&answer, |instance, _| render::plans::operations_of(instance)).map(|()| true)
}

async fn list(session: &mut Session<'_>, args: InstanceListArgs) -> Result<bool, CtlError> {
    let node = args.node.into_iter().map(DeviceArg::resolved).collect::<Result<_, _>>()?;
    let query = InstancesQuery {
        plan: args.plan,
        revision: args.deployment_id,
        node,
        include_deleted: args.include_deleted,
        ..InstancesQuery::default()
    };
    let answer = session.hub.planner_pages("instance-list", "instances", &query).await?;
    let frame = session.frame();
    session.show(&answer, |answer, _| render::plans::instances(answer, frame)).map(|()| true)
}

async fn show(session: &mut Session<'_>, name: &str) -> Result<bool, CtlError> {
    let query = InstancesQuery { name: vec![name.to_owned()], ..InstancesQuery::default() };
    let status = one(session, &query, &format!("instance '{name}'")).await?;
    let frame = session.frame();
    session.show_own(&status, |status, _| render::plans::instance(status, frame)).map(|()| true)
}

async fn request(
    session: &mut Session<'_>,
    args: InstanceArgs,
    operation_type: OperationType,
    choice: Choice,
) -> Result<bool, CtlError> {
    let name = args.name();
    let query = InstancesQuery { name: vec![name.to_owned()], ..InstancesQuery::default() };
    let status = one(session, &query, &format!("instance '{name}'")).await?;
    // MRDS's `add-runtime-instance` also gives a node to an instance that has none.
    let has_no_node = operation_type == OperationType::Relocate && status.instance.active().is_none();
    let operation_type = if has_no_node { OperationType::Create } else { operation_type };
    add(session, &status, operation_type, choice, args.not_before, args.yes).await
}

/// `muster plan operate`
pub(super) async fn operate(session: &mut Session<'_>, args: OperateArgs) -> Result<bool, CtlError> {
    let (operation_type, plan) = (args.operation(), args.plan);
    let query = InstancesQuery {
        plan: vec![plan.clone()],
        name: args.meta_instance_name.iter().cloned().collect(),
        ..InstancesQuery::default()
    };
    let what = match &args.meta_instance_name {
        Some(name) => format!("instance '{name}' of plan {plan}"),
        None => format!("instance of plan {plan}"),
    };
    let status = one(session, &query, &what).await?;
    add(session, &status, operation_type, Choice::default(), args.not_before, args.yes).await
}

async fn add(
    session: &mut Session<'_>,
    status: &InstanceStatus,
    operation_type: OperationType,
    Choice { revision, node }: Choice,
    not_before: Option<Timestamp>,
    yes: YesArg,
) -> Result<bool, CtlError> {
    let (instance, verb) = (&status.instance, operation_type.as_str());
    if !confirmed(session, yes, &format!("Request {verb} of instance {}", instance.display_name))? {
        return Ok(false);
    }
    let request = OperationRequest {
        plan: instance.plan.clone(),
        instance: instance.name.clone(),
        operation_type,
        revision,
        node,
        not_before,
        expected_version: None,
        request_id: None,
    };
    let answer = session.hub.planner("operation-request", &request).await?;
    session.show(&answer, |instance, _| render::plans::operations_of(instance)).map(|()| true)
}

/// The only instance that a query selects, or the one that the person picks.
pub(super) async fn one(
    session: &mut Session<'_>,
    query: &InstancesQuery,
    what: &str,
) -> Result<InstanceStatus, CtlError> {
    let answer = session.hub.planner_pages("instance-list", "instances", query).await?;
    let found = understood::<InstancesAnswer>(&answer)?.instances;
    if found.is_empty() {
        return Err(CtlError::Unknown { message: format!("there is no {what}"), near: Vec::new() });
    }
    let hint = "name one with --meta-instance-name";
    chosen(session, "instance", &found, line, hint).cloned()
}

/// An instance in one line, with its node and what that reports.
fn line(InstanceStatus { instance, placements }: &InstanceStatus) -> String {
    let mut placed = instance.placements.iter().zip(placements);
    let active = placed.find(|(placement, _)| placement.active);
    let on = active
        .map(|(placement, seen)| format!(" on {}: {}", placement.node, render::plans::word(&seen.state)));
    format!("{} ({}){}", instance.display_name, instance.plan, on.unwrap_or_default())
}
