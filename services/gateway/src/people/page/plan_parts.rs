//! Parts of the pages of plans: the words of their states, an operation with its decisions, and the form of a change. A form posts to
//! the address that the change has in REST, without its prefix.

use maud::{Markup, html};
use muster_contract::plans::{
    Operation, OperationState, OperationStatus, OperationType, PlanState, PlanSummary, RevisionState,
    RuntimeState,
};
use muster_contract::{RequestedBy, Timestamp};

use super::parts::{ago, encoded, number, second};
use crate::login::current;

/// The sign, the word and the tint of a state.
type Look = (&'static str, &'static str, &'static str);

/// A state in a list.
pub(super) fn tag((sign, word, tint): Look) -> Markup {
    html! { span.tag.(tint) { span aria-hidden="true" { (sign) } (word) } }
}

/// The state of a plan.
pub(super) const fn plan_look(state: PlanState) -> Look {
    match state {
        PlanState::Active => ("\u{2713}", "active", "good"),
        PlanState::Inactive => ("\u{2016}", "inactive", "old"),
        PlanState::Deleted => ("\u{2212}", "deleted", "wait"),
    }
}

/// The state of a plan's deployment.
pub(super) const fn revision_look(state: RevisionState) -> Look {
    match state {
        RevisionState::Pending => ("\u{2026}", "pending", "wait"),
        RevisionState::InProgress => ("\u{2192}", "in progress", "work"),
        RevisionState::Paused => ("\u{2016}", "paused", "old"),
        RevisionState::Completed => ("\u{2713}", "completed", "good"),
        RevisionState::Failed => ("\u{2715}", "failed", "bad"),
        RevisionState::Cancelled => ("\u{2212}", "cancelled", "wait"),
    }
}

/// The state of an instance on a node.
pub(super) const fn runtime_look(state: RuntimeState) -> Look {
    match state {
        RuntimeState::Pending => ("\u{2026}", "pending", "wait"),
        RuntimeState::Starting => ("\u{2192}", "starting", "work"),
        RuntimeState::Running => ("\u{2713}", "running", "good"),
        RuntimeState::Terminating => ("\u{2192}", "terminating", "work"),
        RuntimeState::Terminated => ("\u{2212}", "terminated", "wait"),
        RuntimeState::Failed => ("\u{2715}", "failed", "bad"),
        RuntimeState::Unknown => ("?", "unknown", "hollow"),
    }
}

const fn operation_look(state: OperationState) -> Look {
    match state {
        OperationState::Pending => ("\u{2026}", "pending", "wait"),
        OperationState::Preparing => ("\u{2026}", "preparing", "wait"),
        OperationState::PendingApproval => ("?", "pending approval", "old"),
        OperationState::Approved => ("\u{2192}", "approved", "work"),
        OperationState::Rejected => ("\u{2212}", "rejected", "wait"),
        OperationState::Expired => ("\u{29d6}", "expired", "old"),
        OperationState::Running => ("\u{2192}", "running", "work"),
        OperationState::Succeeded => ("\u{2713}", "succeeded", "good"),
        OperationState::Failed => ("\u{2715}", "failed", "bad"),
        OperationState::Cancelled => ("\u{2212}", "cancelled", "wait"),
    }
}

/// The requester of a change.
pub(super) fn requester(by: Option<&RequestedBy>) -> Markup {
    html! {
        @match by {
            Some(by) => { "by " (by.label()) }
            None => "by an unnamed requester (the hub has no accounts)"
        }
    }
}

/// The address of a plan's page.
pub(super) fn address(plan: &str) -> String {
    format!("/plans/{}", encoded(plan))
}

/// A button that asks for a change of the thing that `about` names; `fields` are sent with it. An approval asks once more too: a
/// list may have moved under the pointer.
pub(super) fn act(address: &str, words: &str, look: &str, about: &str, fields: &[(&str, &str)]) -> Markup {
    let question = matches!(look, "danger" | "first").then(|| format!("{words} {about}?"));
    html! {
        form method="post" action=(address) {
            @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
            button.act.(look) type="submit" data-confirm=[question] aria-label={ (words) ": " (about) } { (words) }
        }
    }
}

/// An operation: its origin, its time, its approval, and the decisions that its state and the reader's role allow.
pub(super) fn operation(status: &OperationStatus, now: Timestamp) -> Markup {
    let OperationStatus { plan, display_name, operation, .. } = status;
    html! {
        div.head {
            span {
                strong { (operation.operation_type.as_str()) } " of " (display_name) ", plan "
                a href=(address(plan.as_str())) { (plan) }
            }
            (tag(operation_look(operation.state)))
        }
        p.more { (facts(operation, now)) }
        (acts(status))
    }
}

fn facts(operation: &Operation, now: Timestamp) -> Markup {
    let is_open = !operation.state.is_final();
    html! {
        @match (&operation.revision, &operation.requested_by) {
            (Some(revision), None) => { "made by deployment " code { (revision) } }
            (_, by) => { "requested " (requester(by.as_ref())) }
        }
        @if let Some(step) = operation.history.last() { ", in this state since " (ago(step.at, now)) }
        @match &operation.approval {
            Some(approval) => {
                ", approved " (requester(approval.by.as_ref())) " at " (second(approval.at))
                @if let Some(rule) = &approval.rule { " by the rule " (rule) }
            }
            None if is_open => ", 0 of 1 approvals",
            None => {}
        }
        @if let Some(at) = operation.not_before.filter(|_| is_open) { ", does not run before " (second(at)) }
        @if let Some(at) = operation.expires_at.filter(|_| operation.state == OperationState::PendingApproval) {
            ", expires at " (second(at))
        }
        @if !operation.message.is_empty() { ": " (operation.message) }
    }
}

/// The states of an operation with their times.
pub(super) fn steps(operation: &Operation) -> Markup {
    html! {
        p.more {
            @for (at, step) in operation.history.iter().enumerate() {
                @if at > 0 { " \u{2192} " }
                (operation_look(step.state).1) " " (second(step.at))
            }
        }
    }
}

fn acts(status: &OperationStatus) -> Markup {
    let OperationStatus { plan, instance, display_name, operation, .. } = status;
    let needs_approval = operation.state == OperationState::PendingApproval && current::offers_approvals();
    let may_cancel = is_cancellable(operation) && current::offers_changes();
    let (plan, instance, id) =
        (address(plan.as_str()), encoded(instance.as_str()), encoded(operation.id.as_str()));
    let about = format!("{} of {display_name}", operation.operation_type.as_str());
    let form = |verb: &str, words: &str, look: &str| {
        act(&format!("{plan}/instances/{instance}/operations/{id}/{verb}"), words, look, &about, &[])
    };
    html! {
        @if needs_approval || may_cancel {
            div.acts {
                @if needs_approval { (form("approve", "Approve", "first")) (form("reject", "Reject", "danger")) }
                @if may_cancel { (form("cancel", "Cancel", "danger")) }
            }
        }
    }
}

/// Whether the planner takes an operation back. A node that has its order may carry it out at any time; only the new node of a RELOCATE
/// can be given up.
fn is_cancellable(operation: &Operation) -> bool {
    match operation.state {
        OperationState::Running => operation.operation_type == OperationType::Relocate,
        state => !state.is_final(),
    }
}

/// Operations that wait for an approval.
pub(super) fn waiting(summary: &PlanSummary) -> u64 {
    summary.operations.iter().map(|counts| counts.pending_approval).sum()
}

/// Operations that ended without success.
pub(super) fn failed(summary: &PlanSummary) -> u64 {
    summary.operations.iter().map(|counts| counts.failed).sum()
}

/// The instances on nodes, by state.
pub(super) fn placements(summary: &PlanSummary) -> String {
    let words =
        summary.runtime.iter().map(|(state, count)| format!("{} {}", number(*count), runtime_look(*state).1));
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::samples::waiting_operation;
    use super::*;

    fn shown(state: OperationState) -> String {
        let mut status = waiting_operation("web", "2026-11-26T09:00:05Z");
        status.operation.state = state;
        operation(&status, "2026-11-26T09:05:05Z".parse().unwrap()).into_string()
    }

    #[test]
    fn an_operation_that_waits_shows_its_approvals_and_its_decisions() {
        let shown = shown(OperationState::PendingApproval);
        for words in ["0 of 1 approvals", "5 min ago", "expires at 2026-11-26 10:00:05 UTC", "web-1"] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        for verb in ["approve", "reject", "cancel"] {
            let action = format!(
                "action=\"/plans/web/instances/web-0d6e4f2a91c38b57a6d43f2c1b0a9e8d/operations/\
                 create-0d6e4f2a-91c3-8b57-a6d4-3f2c1b0a9e8d/{verb}\""
            );
            assert!(shown.contains(&action), "{action}: {shown}");
        }
        assert_eq!(shown.matches("data-confirm").count(), 3, "each of the three asks: {shown}");
    }

    #[test]
    fn an_operation_that_runs_or_has_ended_offers_no_decision() {
        for state in [OperationState::Running, OperationState::Succeeded, OperationState::Rejected] {
            assert!(!shown(state).contains("<form"), "{}", shown(state));
        }
        let approved = shown(OperationState::Approved);
        assert!(approved.contains("/cancel\"") && !approved.contains("/approve\""), "{approved}");
    }
}
