//! Plans, instances and operations, in tables with MRDS's columns. Each ends with the number of its rows.

mod detail;
mod history;

use anstyle::Style;
use muster_contract::plans::{
    ExplainAnswer, Instance, InstanceStatus, InstancesAnswer, Operation, OperationState, OperationStatus,
    OperationsAnswer, Placement, PlacementStatus, Plan, PlanAnswer, PlansAnswer, RevisionState, RuntimeState,
};
use serde::Serialize;
use serde_json::Value;

use super::colour::{BAD, DIM, MOVING, PLAIN, UNSURE, WELL, styled};
use super::format::{clean, plural};
use super::frame::Frame;
use super::table::{Cell, Table};

pub use self::detail::{instance, show};
pub(crate) use self::history::history_line;

/// The intent of an operation that a person requested, as MRDS has it.
const PERSON: &str = "User";

/// The list of plans.
pub fn list(answer: &PlansAnswer, frame: Frame) -> String {
    let mut table = Table::new(&[
        "DEPLOYMENT PLAN NAME",
        "?NAMESPACE",
        "?SERVICE NAME",
        "STATE",
        "MESSAGE",
        ">#APPLICATIONS",
        ">#DEPLOYMENTS",
    ]);
    for PlanAnswer { plan, summary } in &answer.plans {
        let failed: u64 = summary.operations.iter().map(|counts| counts.failed).sum();
        let message = match (failed, plan.revisions.last()) {
            (1.., _) => Cell::styled(format!("{} failed: needs attention", plural(failed, "operation")), BAD),
            (0, Some(revision)) => {
                let state = word(&revision.state);
                Cell::styled(format!("deployment {} {state}", revision.id), revision_style(revision.state))
            }
            (0, None) => "".into(),
        };
        table.row([
            plan.spec.name.as_str().into(),
            clean(&plan.spec.namespace).into(),
            clean(&plan.spec.service_name).into(),
            word(&plan.state).into(),
            message,
            Cell::count(plan.spec.applications.len() as u64),
            Cell::count(plan.revisions.len() as u64),
        ]);
    }
    totalled(&table.within(frame.width), answer.plans.len())
}

/// A plan that was changed.
pub fn changed(plan: &Plan) -> String {
    format!("plan {} is {} (version {})\n", plan.spec.name, word(&plan.state), plan.version)
}

/// The list of instances.
pub fn instances(answer: &InstancesAnswer, frame: Frame) -> String {
    instance_list(&answer.instances, frame)
}

fn instance_list(instances: &[InstanceStatus], frame: Frame) -> String {
    let mut table = Table::new(&["META INSTANCE NAME", "DEPLOYMENT PLAN NAME", "DEPLOYMENT ID", "STATE"]);
    for status in instances {
        let instance = &status.instance;
        let cells = [
            clean(&instance.display_name).into(),
            instance.plan.as_str().into(),
            instance.revision.as_str().into(),
            word(&instance.state).into(),
        ];
        table.row_above(cells, below(status));
    }
    totalled(&table.within(frame.width), instances.len())
}

/// The nodes and operations of an instance, one a line.
fn below(status: &InstanceStatus) -> String {
    let placements = status.instance.placements.iter().zip(&status.placements);
    let node = |(placement, seen): (&Placement, &PlacementStatus)| {
        let role = if placement.active { "active" } else { "passive" };
        let state = styled(runtime_style(seen.state), &word(&seen.state));
        format!("  node {} {role} {state}{}\n", placement.node, said(&seen.message))
    };
    let operation = |operation: &Operation| {
        let kind = operation.operation_type.as_str();
        let state = styled(operation_style(operation.state), operation.state.as_str());
        let intent = match (&operation.revision, &operation.requested_by) {
            (Some(revision), None) => format!("of {revision}"),
            _ => format!("by {PERSON}"),
        };
        format!("  {kind} {} {intent} {state}{}\n", operation.id, said(&operation.message))
    };
    placements.map(node).chain(status.instance.operations.iter().map(operation)).collect()
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {}", clean(message)) }
}

/// The list of operations.
pub fn operations(answer: &OperationsAnswer, frame: Frame) -> String {
    let columns = [
        "OPERATION ID",
        "TYPE",
        "META INSTANCE NAME",
        "?DEPLOYMENT PLAN NAME",
        "?INTENT ID",
        "STATE",
        "MESSAGE",
    ];
    let mut table = Table::new(&columns);
    for OperationStatus { plan, display_name, operation, .. } in &answer.operations {
        table.row([
            operation.id.as_str().into(),
            operation.operation_type.as_str().into(),
            clean(display_name).into(),
            plan.as_str().into(),
            intent(operation).into(),
            state_cell(operation.state),
            clean(&operation.message).into(),
        ]);
    }
    totalled(&table.within(frame.width), answer.operations.len())
}

/// An instance after an operation was requested: its operations.
pub fn operations_of(instance: &Instance) -> String {
    format!("instance {}\n{}", clean(&instance.display_name), operation_table(&instance.operations))
}

/// Instances whose operations were judged.
pub fn judged(instances: &[Instance]) -> String {
    instances.iter().map(operations_of).collect()
}

fn operation_table(operations: &[Operation]) -> String {
    let columns = ["OPERATION ID", "TYPE", "INTENT ID", "STATE", "STATUS MESSAGE", "APPROVED BY"];
    let mut table = Table::new(&columns);
    for operation in operations {
        let approved = operation.approval.as_ref().map(|approval| {
            let by = approval.by.as_ref().map_or("-", |by| by.label());
            let rule = approval.rule.as_ref().map(|rule| format!(" by rule {rule}")).unwrap_or_default();
            clean(&format!("{by}{rule}"))
        });
        table.row([
            operation.id.as_str().into(),
            operation.operation_type.as_str().into(),
            intent(operation).into(),
            state_cell(operation.state),
            clean(&operation.message).into(),
            approved.unwrap_or_default().into(),
        ]);
    }
    totalled(&table, operations.len())
}

/// The node that another instance would get, and why the others are rejected.
pub fn explain(answer: &ExplainAnswer) -> String {
    let mut chosen =
        Table::new(&["NODE", ">SCORE", ">FREE CORES", ">FREE MEMORY", ">INSTANCES IN ITS DOMAIN", "REASON"]);
    for candidate in &answer.candidates {
        chosen.row([
            candidate.node.to_string().into(),
            Cell::count(candidate.score),
            Cell::count(candidate.free.cores),
            Cell::count(candidate.free.memory),
            Cell::count(candidate.domain_instances),
            clean(&candidate.reason).into(),
        ]);
    }
    let mut rejected = Table::new(&["NODE", "REASONS"]);
    for node in &answer.rejected {
        rejected.row([node.node.to_string().into(), clean(&node.reasons.join("; ")).into()]);
    }
    let first = match answer.candidates.first() {
        Some(first) => format!("Another instance of {} would be placed on {}.\n", answer.plan, first.node),
        None => styled(BAD, &format!("No node may run another instance of {}.", answer.plan)) + "\n",
    };
    let part = |title: &str, table: &Table, count: u64, is_empty: bool| {
        if is_empty { String::new() } else { format!("\n{title}\n{table}Total: {count}\n") }
    };
    first
        + &part("Candidates, the best first", &chosen, answer.candidates_count, answer.candidates.is_empty())
        + &part("Rejected nodes", &rejected, answer.rejected_count, answer.rejected.is_empty())
}

/// A table with the number of its rows.
pub(super) fn totalled(table: &Table, rows: usize) -> String {
    if rows == 0 { "Total: 0\n".to_owned() } else { format!("{table}Total: {rows}\n") }
}

/// MRDS's word for a state: `IN_PROGRESS` for `inProgress`.
pub fn word<T: Serialize>(state: &T) -> String {
    let Ok(Value::String(name)) = serde_json::to_value(state) else { return String::new() };
    if !name.contains(|letter: char| letter.is_ascii_lowercase()) {
        return name;
    }
    let mut word = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            word.push('_');
        }
        word.push(letter.to_ascii_uppercase());
    }
    word
}

/// The revision that made an operation, or that a person did.
fn intent(operation: &Operation) -> String {
    let revision = operation.revision.as_ref().filter(|_| operation.requested_by.is_none());
    revision.map_or_else(|| PERSON.to_owned(), ToString::to_string)
}

pub(super) fn state_cell(state: OperationState) -> Cell {
    Cell::styled(state.as_str(), operation_style(state))
}

const fn operation_style(state: OperationState) -> Style {
    match state {
        OperationState::Failed => BAD,
        OperationState::PendingApproval | OperationState::Expired => UNSURE,
        OperationState::Pending
        | OperationState::Preparing
        | OperationState::Approved
        | OperationState::Running => MOVING,
        OperationState::Succeeded => WELL,
        OperationState::Rejected | OperationState::Cancelled => DIM,
    }
}

const fn revision_style(state: RevisionState) -> Style {
    match state {
        RevisionState::Failed => BAD,
        RevisionState::Paused => UNSURE,
        RevisionState::Pending | RevisionState::InProgress => MOVING,
        RevisionState::Completed => WELL,
        RevisionState::Cancelled => DIM,
    }
}

const fn runtime_style(state: RuntimeState) -> Style {
    match state {
        RuntimeState::Failed => BAD,
        RuntimeState::Unknown => UNSURE,
        RuntimeState::Pending | RuntimeState::Starting | RuntimeState::Terminating => MOVING,
        RuntimeState::Running => WELL,
        RuntimeState::Terminated => PLAIN,
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::plans::{NodeState, OperationType};

    use super::*;

    #[test]
    fn states_have_the_words_of_mrds() {
        assert_eq!(word(&RevisionState::InProgress), "IN_PROGRESS");
        assert_eq!(word(&NodeState::Unallocated), "UNALLOCATED");
        assert_eq!(word(&OperationState::PendingApproval), "PENDING_APPROVAL");
        assert_eq!(word(&OperationType::Relocate), "RELOCATE");
    }
}
