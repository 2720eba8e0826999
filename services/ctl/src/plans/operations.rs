//! `muster operation`: operations, and the verdicts on them. `muster plan approve` and `instance approve` are the same with
//! another selection.

use muster_client::rollout::operations_listed;
use muster_contract::WaveName;
use muster_contract::near::near;
use muster_contract::plans::{
    Instance, OperationState, OperationStatus, OperationVerdictRequest, OperationsAnswer, OperationsQuery,
};

use super::choose::{chosen, confirmed};
use crate::ask::{AskError, understood};
use crate::config::{
    DecisionArgs, OperationCommand, OperationListArgs, RolloutCommand, SelectedArgs, VerdictArgs,
};
use crate::error::CtlError;
use crate::render;
use crate::rollout;
use crate::session::Session;

/// A verdict on an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OperationVerdict {
    Approve,
    Reject,
    Cancel,
    Complete,
    Fail,
}

impl OperationVerdict {
    /// The endpoint of the planner.
    const fn endpoint(self) -> &'static str {
        match self {
            Self::Approve => "operation-approve",
            Self::Reject => "operation-reject",
            Self::Cancel => "operation-cancel",
            Self::Complete => "operation-complete",
            Self::Fail => "operation-fail",
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Approve => "Approve",
            Self::Reject => "Reject",
            Self::Cancel => "Cancel",
            Self::Complete => "Complete by hand",
            Self::Fail => "Complete by hand, as failed,",
        }
    }

    /// The states in which it may be given.
    fn states(self) -> Vec<OperationState> {
        match self {
            Self::Approve | Self::Reject => vec![OperationState::PendingApproval],
            Self::Cancel => {
                vec![OperationState::Pending, OperationState::Preparing, OperationState::PendingApproval]
            }
            Self::Complete | Self::Fail => vec![OperationState::Running],
        }
    }
}

/// Runs a command about operations; false if the person said no.
///
/// # Errors
/// The planner does not answer or refuses, or there is no such operation.
pub async fn run(session: &mut Session<'_>, command: OperationCommand) -> Result<bool, CtlError> {
    match command {
        OperationCommand::List(args) => list(session, args).await,
        OperationCommand::Approve(args) => {
            let of_rollout = |decision, wave| RolloutCommand::Approve { decision, wave };
            judge_any(session, args, OperationVerdict::Approve, of_rollout).await
        }
        OperationCommand::Reject(args) => {
            let of_rollout = |decision, wave| RolloutCommand::Reject { decision, wave };
            judge_any(session, args, OperationVerdict::Reject, of_rollout).await
        }
        OperationCommand::Cancel(args) => {
            let of_rollout = |decision, _| RolloutCommand::Stop(decision);
            judge_any(session, args, OperationVerdict::Cancel, of_rollout).await
        }
        OperationCommand::Complete(args) => complete(session, args.failed, args.selected).await,
    }
}

/// Ends running operations by hand.
pub(super) async fn complete(
    session: &mut Session<'_>,
    is_failed: bool,
    args: SelectedArgs,
) -> Result<bool, CtlError> {
    let verdict = if is_failed { OperationVerdict::Fail } else { OperationVerdict::Complete };
    judge(session, args, verdict).await
}

/// Approves operations.
pub(super) async fn approve(session: &mut Session<'_>, args: SelectedArgs) -> Result<bool, CtlError> {
    judge(session, args, OperationVerdict::Approve).await
}

/// Shows the operations of plans and of rollouts.
async fn list(session: &mut Session<'_>, args: OperationListArgs) -> Result<bool, CtlError> {
    let states: Vec<OperationState> = args.state.into_iter().map(Into::into).collect();
    if let Some(deployment) = args.deployment {
        return rollout::operations(session, deployment, &states).await.map(|()| true);
    }
    let query = OperationsQuery {
        plan: args.plan,
        instance: args.instance,
        operation_type: args.kind.into_iter().map(Into::into).collect(),
        state: states,
        ..OperationsQuery::default()
    };
    let mut answer = session.hub.planner_pages("operation-list", "operations", &query).await?;
    let listed = operations_listed(&session.hub, &query, session.clock.now()).await?;
    if let Some(rollouts) = &listed {
        answer["rollouts"] = serde_json::to_value(rollouts).map_err(AskError::Misunderstood)?;
    }
    let of_rollouts = listed.unwrap_or_default();
    let frame = session.frame();
    let render = |answer: &OperationsAnswer, _| {
        let of_plans = render::plans::operations(answer, frame);
        match &of_rollouts[..] {
            [] => of_plans,
            all => format!("{of_plans}\n{}", render::rollout::operations(all, frame)),
        }
    };
    session.show(&answer, render).map(|()| true)
}

/// Judges the selected operations, or the releases of a deployment's rollouts by the request that a person makes about a wave:
/// approvals of a wave approve them, and a cancelled rollout cancels them.
async fn judge_any(
    session: &mut Session<'_>,
    VerdictArgs { selected, deployment, wave }: VerdictArgs,
    verdict: OperationVerdict,
    of_rollout: fn(DecisionArgs, Option<WaveName>) -> RolloutCommand,
) -> Result<bool, CtlError> {
    let Some(deployment) = deployment else { return judge(session, selected, verdict).await };
    let rule = selected.flags.rule.map(|rule| format!("by rule {rule}"));
    let reason = rule.into_iter().chain(selected.flags.reason);
    let reason = reason.reduce(|rule, reason| format!("{rule}: {reason}"));
    rollout::run(session, of_rollout(DecisionArgs { deployment, file: None, reason }, wave)).await
}

/// Judges the selected operations, one request each. Ends with the first refusal; verdicts before it stand.
async fn judge(
    session: &mut Session<'_>,
    args: SelectedArgs,
    verdict: OperationVerdict,
) -> Result<bool, CtlError> {
    let flags = args.flags.clone();
    let selected = selected(session, args, verdict).await?;
    let names: Vec<_> = selected.iter().map(line).collect();
    let question = match &names[..] {
        [only] => format!("{} {only}", verdict.word()),
        names => {
            format!("{} {} operations:\n  {}\nAll of them", verdict.word(), names.len(), names.join("\n  "))
        }
    };
    if !confirmed(session, flags.yes, &question)? {
        return Ok(false);
    }
    let mut judged: Vec<Instance> = Vec::new();
    for status in selected {
        let OperationStatus { plan, instance, operation, .. } = status;
        let request = OperationVerdictRequest {
            plan,
            instance,
            operation: operation.id,
            rule: flags.rule.clone(),
            reason: flags.reason.clone(),
            expected_version: None,
            request_id: None,
        };
        judged.push(understood(&session.hub.planner(verdict.endpoint(), &request).await?)?);
    }
    session.show_own(&judged, |instances, _| render::plans::judged(instances)).map(|()| true)
}

/// The operations that are named, all that wait, or the one that the person picks.
async fn selected(
    session: &mut Session<'_>,
    args: SelectedArgs,
    verdict: OperationVerdict,
) -> Result<Vec<OperationStatus>, CtlError> {
    let SelectedArgs { operations, plan, instance, flags } = args;
    let of = plan.as_ref().map_or_else(String::new, |plan| format!(" of plan {plan}"));
    let query = OperationsQuery {
        plan: plan.into_iter().collect(),
        instance: instance.into_iter().collect(),
        state: if operations.is_empty() { verdict.states() } else { Vec::new() },
        ..OperationsQuery::default()
    };
    let answer = session.hub.planner_pages("operation-list", "operations", &query).await?;
    let found = understood::<OperationsAnswer>(&answer)?.operations;
    if !operations.is_empty() {
        return operations.iter().map(|text| named(&found, text)).collect();
    }
    if found.is_empty() && verdict.states() == [OperationState::Running] {
        Err(CtlError::Unknown { message: format!("no operation{of} runs"), near: Vec::new() })
    } else if found.is_empty() {
        Err(none_waits(session, query, &of).await?)
    } else if flags.all {
        Ok(found)
    } else {
        let hint = "name its id, or --all";
        chosen(session, "operation", &found, line, hint).map(|one| vec![one.clone()])
    }
}

/// The error of a selection in which no operation waits: it names one that is still being prepared.
async fn none_waits(session: &Session<'_>, query: OperationsQuery, of: &str) -> Result<CtlError, CtlError> {
    let state = vec![OperationState::Pending, OperationState::Preparing];
    let query = OperationsQuery { state, ..query };
    let answer = session.hub.planner_pages("operation-list", "operations", &query).await?;
    let prepared = understood::<OperationsAnswer>(&answer)?.operations;
    let yet = prepared.first().map_or_else(String::new, |first| {
        let message = &first.operation.message;
        let reason = if message.is_empty() { String::new() } else { format!(": {message}") };
        format!(" for approval; {} is being prepared{reason}", first.operation.id)
    });
    Ok(CtlError::Unknown { message: format!("no operation{of} waits{yet}"), near: Vec::new() })
}

/// The operation whose id begins with a text.
fn named(found: &[OperationStatus], text: &str) -> Result<OperationStatus, CtlError> {
    let text = text.to_ascii_lowercase();
    let id = |status: &OperationStatus| status.operation.id.to_string();
    if let Some(same) = found.iter().find(|status| id(status) == text) {
        return Ok(same.clone());
    }
    let candidates: Vec<_> = found.iter().filter(|status| id(status).starts_with(&text)).collect();
    match candidates[..] {
        [only] => Ok(only.clone()),
        [] => {
            let ids: Vec<_> = found.iter().map(id).collect();
            let near = near(&text, ids.iter().map(String::as_str)).into_iter().map(str::to_owned).collect();
            Err(CtlError::Unknown { message: format!("there is no operation '{text}'"), near })
        }
        _ => Err(CtlError::Ambiguous {
            what: format!("operation '{text}'"),
            candidates: candidates.into_iter().map(id).collect(),
        }),
    }
}

/// An operation in one line.
fn line(status: &OperationStatus) -> String {
    let OperationStatus { operation, display_name, plan, .. } = status;
    let kind = operation.operation_type.as_str();
    format!("{kind} of {display_name} ({plan}): {}", operation.id)
}
