//! Renders the waves and operations that wait for an approval, each in one line with the command that gives one.

use muster_domain::rollout::ApprovalCount;

use crate::render::colour::{DIM, UNSURE, WELL, styled};
use crate::render::cut::short;
use crate::render::format::{clean, plural};
use crate::rollout::{ApprovalEvent, ApprovalEventKind, ApprovalRequest, PendingApproval, PendingOperation};

/// All that waits for an approval; `gap` is the sentence about operations that are not followed.
pub fn approvals(waiting: &[PendingApproval], gap: Option<&str>) -> String {
    let lines: String = waiting.iter().map(|request| format!("{}\n", waits(request))).collect();
    let gap = gap.map(|gap| format!("{}\n", styled(UNSURE, &clean(gap))));
    match (lines.is_empty(), gap) {
        (true, None) => "Nothing waits for an approval.\n".to_owned(),
        (true, Some(gap)) => format!("No wave waits for an approval.\n{gap}"),
        (false, gap) => lines + &gap.unwrap_or_default(),
    }
}

/// An event of an approval, in one line.
pub fn approval(event: &ApprovalEvent) -> String {
    let ApprovalEvent { event, request, state, .. } = event;
    match event {
        ApprovalEventKind::Waiting => format!("{}\n", waits(request)),
        ApprovalEventKind::Approved => format!("{} {}\n", styled(WELL, "approved"), head(request)),
        ApprovalEventKind::Ended => {
            let why = match request {
                PendingApproval::Wave(wave) => format!("`muster why rollout {}`", wave.deployment),
                PendingApproval::Operation(one) => format!("`muster plan history {}`", one.plan),
            };
            let state = state.map_or_else(String::new, |state| format!(", now {}", state.as_str()));
            format!("{} {}{state}: {why} says why\n", styled(DIM, "no longer"), head(request))
        }
    }
}

fn waits(request: &PendingApproval) -> String {
    let facts = match request {
        PendingApproval::Wave(request) => wave_facts(request),
        PendingApproval::Operation(operation) => operation_facts(operation),
    };
    format!("{} {}, {facts}", styled(UNSURE, "waiting "), head(request))
}

fn wave_facts(request: &ApprovalRequest) -> String {
    let ApprovalRequest { deployment, wave, devices, approvals: ApprovalCount { given, needed, .. }, .. } =
        request;
    format!(
        "{}, has {given} of {needed} approvals; `muster rollout approve {deployment} --wave {wave}`",
        plural(*devices, "device"),
    )
}

fn operation_facts(operation: &PendingOperation) -> String {
    let PendingOperation { since, expires_at, message, command, .. } = operation;
    let since = since.map(|since| format!("since {since:.0}"));
    let expires = expires_at.map(|expires_at| format!("expires {expires_at:.0}"));
    let message = (!message.is_empty()).then(|| clean(message));
    let facts: Vec<_> = since.into_iter().chain(expires).chain(message).collect();
    format!("{}; `{command}`", facts.join(", "))
}

fn head(request: &PendingApproval) -> String {
    match request {
        PendingApproval::Wave(ApprovalRequest { deployment, digest, rollout, wave, .. }) => {
            format!("wave {wave} of {deployment} {} by {}", short(digest), clean(rollout))
        }
        PendingApproval::Operation(PendingOperation {
            plan,
            display_name,
            operation_type,
            node,
            from_node,
            ..
        }) => {
            let from = from_node.as_ref().map_or_else(String::new, |node| format!(" from {node}"));
            let word = if from_node.is_some() { "to" } else { "on" };
            let node = node.as_ref().map_or_else(String::new, |node| format!(" {word} {node}"));
            let kind = operation_type.as_str();
            format!("operation {kind} of {} of plan {plan}{from}{node}", clean(display_name))
        }
    }
}
