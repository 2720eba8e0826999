//! `muster plan`, `instance`, `operation`, `node`, `cluster`, `capability` and `disruption`: requests to the planner.
//!
//! It holds no state: the planner decides, and its refusals come with the line of the file that caused them. A change asks first
//! if a person is at the terminal, unless `--yes` is given.

mod apply;
mod choose;
mod history;
mod instances;
mod inventory;
mod manifest;
mod migrate;
mod operations;

use muster_contract::PlanName;
use muster_contract::plans::{
    InstanceStatus, InstancesAnswer, InstancesQuery, PlanAnswer, PlanApproveRequest, PlanDeleteRequest,
    PlanQuery, PlanRollbackRequest, PlanState, PlanStateRequest, PlansQuery, RevisionStateRequest,
    RevisionVerb,
};
use serde::{Deserialize, Serialize};

use self::choose::confirmed;
use self::manifest::ManifestFile;
use crate::ask::{AskError, understood};
use crate::config::{ManifestArgs, PlanCommand, PlanListArgs, PlanStateArgs, RevisionArgs, RollbackArgs};
use crate::error::CtlError;
use crate::render;
use crate::session::Session;

pub use self::instances::run as instance;
pub use self::inventory::{capability, cluster, disruption, node};
pub use self::operations::run as operation;

/// A plan with its instances.
#[derive(Debug, Serialize, Deserialize)]
pub struct PlanInDetail {
    /// The plan and its counts.
    #[serde(flatten)]
    pub answer: PlanAnswer,
    /// Its instances.
    pub instances: Vec<InstanceStatus>,
}

/// Runs a command about plans; false if the person said no.
///
/// # Errors
/// The planner does not answer, or refuses.
pub async fn plan(session: &mut Session<'_>, command: PlanCommand) -> Result<bool, CtlError> {
    match command {
        PlanCommand::Create(args) => apply::plans(session, &args, false).await,
        PlanCommand::Apply(args) => apply::plans(session, &args, true).await,
        PlanCommand::List(args) => list(session, args).await,
        PlanCommand::Show { plan } => show(session, &plan).await.map(|()| true),
        PlanCommand::Deploy(args) => deploy(session, &args).await,
        PlanCommand::Rollback(args) => roll_back(session, args).await,
        PlanCommand::Migrate(args) => migrate::run(session, args).await,
        PlanCommand::Explain { plan } => {
            let answer = session.hub.planner("plan-explain", &PlanQuery { plan }).await?;
            session.show(&answer, |answer, _| render::plans::explain(answer)).map(|()| true)
        }
        PlanCommand::ApproveDeployment(args) => approve(session, args).await,
        PlanCommand::Approve(args) => operations::approve(session, args.into()).await,
        PlanCommand::Operate(args) => instances::operate(session, args).await,
        PlanCommand::Pause(args) => revision(session, args, RevisionVerb::Pause).await,
        PlanCommand::Resume(args) => revision(session, args, RevisionVerb::Resume).await,
        PlanCommand::Cancel(args) => revision(session, args, RevisionVerb::Cancel).await,
        PlanCommand::Stop(args) => revision(session, args, RevisionVerb::Stop).await,
        PlanCommand::Activate(args) => state(session, args, PlanState::Active).await,
        PlanCommand::Deactivate(args) => state(session, args, PlanState::Inactive).await,
        PlanCommand::Delete(args) => delete(session, args).await,
        PlanCommand::History(args) => history::run(session, args).await.map(|()| true),
    }
}

async fn list(session: &mut Session<'_>, args: PlanListArgs) -> Result<bool, CtlError> {
    let query = PlansQuery {
        service_name: args.service_name,
        payload_name: args.payload_name,
        state: args.state.into_iter().map(Into::into).collect(),
        limit: args.limit,
        ..PlansQuery::default()
    };
    shown(session, &query).await
}

async fn shown(session: &mut Session<'_>, query: &PlansQuery) -> Result<bool, CtlError> {
    let answer = session.hub.planner_pages("plan-list", "plans", query).await?;
    let frame = session.frame();
    session.show(&answer, |answer, _| render::plans::list(answer, frame)).map(|()| true)
}

/// Shows a plan with its instances.
async fn show(session: &mut Session<'_>, plan: &PlanName) -> Result<(), CtlError> {
    let answer = session.hub.planner("plan-get", &PlanQuery { plan: plan.clone() }).await?;
    let query = InstancesQuery { plan: vec![plan.clone()], ..InstancesQuery::default() };
    let instances = session.hub.planner_pages("instance-list", "instances", &query).await?;
    let instances = understood::<InstancesAnswer>(&instances)?.instances;
    let (detail, frame) = (PlanInDetail { answer: understood(&answer)?, instances }, session.frame());
    session.show_own(&detail, |detail, _| render::plans::show(detail, frame))
}

async fn deploy(session: &mut Session<'_>, args: &ManifestArgs) -> Result<bool, CtlError> {
    let file = ManifestFile::read(&args.manifest)?;
    let entry = file.deployment()?;
    let answer = session.hub.planner("plan-deploy", &entry.value).await;
    answer.map_err(|error| file.error(&entry.place, in_file(error)))?;
    show(session, &entry.value.plan).await.map(|()| true)
}

/// A refusal with the field's name in the file, which is MRDS's.
fn in_file(error: AskError) -> AskError {
    let AskError::RefusedByPlanner(mut body) = error else { return error };
    let known = [
        ("plan", "deployment_plan_name"),
        ("id", "deployment_id"),
        ("instances", "instance_count"),
        ("coordinates", "payload_coordinates"),
        ("maxUnavailable", "max_unavailable"),
    ];
    if let Some(field) = &mut body.field {
        let end = field.find(['.', '[']).unwrap_or(field.len());
        // Payloads are a map in the request and a list in the file.
        if let Some((_, name)) = known.iter().find(|(ours, _)| *ours == &field[..end]) {
            *field = (*name).to_owned();
        }
    }
    AskError::RefusedByPlanner(body)
}

async fn revision(
    session: &mut Session<'_>,
    args: RevisionArgs,
    verb: RevisionVerb,
) -> Result<bool, CtlError> {
    let RevisionArgs { plan, deployment_id: id, yes } = args;
    let word = match verb {
        RevisionVerb::Pause => "Pause",
        RevisionVerb::Resume => "Resume",
        RevisionVerb::Cancel => "Cancel",
        RevisionVerb::Stop => "Stop",
    };
    if !confirmed(session, yes, &format!("{word} deployment {id} of plan {plan}"))? {
        return Ok(false);
    }
    let request =
        RevisionStateRequest { plan: plan.clone(), id, verb, expected_version: None, request_id: None };
    session.hub.planner("plan-revision", &request).await?;
    show(session, &plan).await.map(|()| true)
}

/// Approves a deployment with all its operations.
async fn approve(session: &mut Session<'_>, args: RevisionArgs) -> Result<bool, CtlError> {
    let RevisionArgs { plan, deployment_id: id, yes } = args;
    if !confirmed(session, yes, &format!("Approve all operations of deployment {id} of plan {plan}"))? {
        return Ok(false);
    }
    let request =
        PlanApproveRequest { plan: plan.clone(), id, rule: None, expected_version: None, request_id: None };
    session.hub.planner("plan-approve", &request).await?;
    show(session, &plan).await.map(|()| true)
}

async fn roll_back(session: &mut Session<'_>, args: RollbackArgs) -> Result<bool, CtlError> {
    let RollbackArgs { plan, to, deployment_id: id, yes } = args;
    if !confirmed(session, yes, &format!("Roll plan {plan} back to deployment {to}, as {id}"))? {
        return Ok(false);
    }
    let request =
        PlanRollbackRequest { plan: plan.clone(), id, to, expected_version: None, request_id: None };
    session.hub.planner("plan-rollback", &request).await?;
    show(session, &plan).await.map(|()| true)
}

async fn state(session: &mut Session<'_>, args: PlanStateArgs, state: PlanState) -> Result<bool, CtlError> {
    let PlanStateArgs { plan, yes } = args;
    let word = if state == PlanState::Active { "Activate" } else { "Deactivate" };
    if !confirmed(session, yes, &format!("{word} plan {plan}"))? {
        return Ok(false);
    }
    let request = PlanStateRequest { plan: plan.clone(), state, expected_version: None, request_id: None };
    let answer = session.hub.planner("plan-state", &request).await?;
    session.show(&answer, |plan, _| render::plans::changed(plan)).map(|()| true)
}

async fn delete(session: &mut Session<'_>, args: PlanStateArgs) -> Result<bool, CtlError> {
    let PlanStateArgs { plan, yes } = args;
    if !confirmed(session, yes, &format!("Delete plan {plan}"))? {
        return Ok(false);
    }
    let request = PlanDeleteRequest { plan: plan.clone(), expected_version: None, request_id: None };
    let answer = session.hub.planner("plan-delete", &request).await?;
    session.show(&answer, |plan, _| render::plans::changed(plan)).map(|()| true)
}
