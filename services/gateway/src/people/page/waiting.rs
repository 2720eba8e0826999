//! The panel of the first screen with the operations and waves that wait for an approval, those that have waited longest first. An
//! operation has its forms here. A wave leads to its rollout, which has them: the panel of rollouts shows the same waves.

use maud::{Markup, html};
use muster_client::rollout::ApprovalRequest;
use muster_contract::Timestamp;
use muster_contract::plans::OperationStatus;
use muster_contract::query::PAGE_MAX;

use super::parts::{self, ago, count, encoded, none, number};
use super::plan_parts;
use super::side::Side;
use crate::login::current;

/// Rows shown; the others are behind links.
const ROWS_MAX: usize = 20;

/// Something that waits.
enum Waiting<'a> {
    Operation(&'a OperationStatus),
    /// A wave, with the time since which its change is held, if that is known.
    Wave(&'a ApprovalRequest, Option<Timestamp>),
}

impl Waiting<'_> {
    fn since(&self) -> Option<Timestamp> {
        match self {
            Self::Operation(status) => status.operation.history.last().map(|step| step.at),
            Self::Wave(_, since) => *since,
        }
    }
}

/// All that is known to wait, the longest first; a wave of an unknown time before them.
fn waiting(side: &Side) -> Vec<Waiting<'_>> {
    let waves = side
        .waves
        .iter()
        .flat_map(|known| &known.waves)
        .map(|wave| Waiting::Wave(wave, held_since(side, wave)));
    let operations = side.operations.iter().flatten().flat_map(|(operations, _)| operations);
    let mut all: Vec<_> = waves.chain(operations.map(Waiting::Operation)).collect();
    all.sort_by_key(Waiting::since);
    all
}

/// The time since which the change of a wave is held, if the publisher lists it.
fn held_since(side: &Side, wave: &ApprovalRequest) -> Option<Timestamp> {
    let mut held = side.held.iter().flat_map(|changes| &changes.held);
    let change = held.find(|change| change.deployment == wave.deployment && change.rollout == wave.rollout);
    change.map(|change| change.since)
}

/// The panel.
pub(super) fn panel(side: &Side, now: Timestamp) -> Markup {
    let all = waiting(side);
    let has_more = matches!(side.operations, Ok(Some((_, true))));
    let not_asked = side.waves.as_ref().map_or(0, |known| known.not_asked);
    let is_whole = side.waves.is_ok() && side.operations.is_ok() && !has_more && not_asked == 0;
    let left = all.len().saturating_sub(ROWS_MAX);
    let rows = html! {
        @if let Err(why) = &side.waves { p.dark { "Waves that wait are not known: " (why) } }
        @if let Err(why) = &side.operations { p.dark { "Operations that wait are not known: " (why) } }
        @if all.is_empty() && is_whole {
            (none(if side.operations == Ok(None) { "No wave waits for an approval." } else { "Nothing waits for an approval." }))
        }
        @if !all.is_empty() {
            ul.rows { @for one in all.iter().take(ROWS_MAX) { li { (row(one, now)) } } }
        }
        @if left > 0 || has_more {
            p.note.top-line {
                (number(left as u64)) " more, by " a href="/plans" { "plan" } " and by " a href="/rollouts" { "rollout" } "."
                @if has_more { " Only the first " (number(PAGE_MAX as u64)) " operations by plan and instance are compared here." }
            }
        }
        @if not_asked > 0 {
            p.note.top-line {
                (count(not_asked, "further deployment")) " with a rollout or a held change may have waves that wait; "
                code { "muster watch approvals" } " asks about all."
            }
        }
        @if side.operations == Ok(None) { p.note.top-line { "No planner runs." } }
    };
    let total = html! {
        @if is_whole { (number(all.len() as u64)) }
        @else if !all.is_empty() { "at least " (number(all.len() as u64)) }
    };
    let command = "muster operation list --state pending-approval".into();
    parts::panel(html! { "Waits for a decision" }, total, Some(command), rows)
}

fn row(one: &Waiting<'_>, now: Timestamp) -> Markup {
    match one {
        Waiting::Operation(status) => plan_parts::operation(status, now),
        Waiting::Wave(wave, since) => self::wave(wave, *since, now),
    }
}

fn wave(request: &ApprovalRequest, since: Option<Timestamp>, now: Timestamp) -> Markup {
    let ApprovalRequest { deployment, rollout, wave, devices, approvals, .. } = request;
    let address = format!("/rollouts/{}", encoded(deployment.as_str()));
    html! {
        div.head {
            span { strong { "Wave " (wave) } " of " a href=(address) { (deployment) } }
            @if let Some(since) = since { span.soft { "held since " (ago(since, now)) } }
        }
        p.more {
            (count(*devices, "device")) ", " (approvals.given) " of " (count(approvals.needed as u64, "approval")) ", by " code { (rollout) }
        }
        @if current::offers_approvals() {
            p.more { a href=(address) aria-label={ "Approve or reject wave " (wave) " of " (deployment) } { "Approve or reject" } }
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_client::rollout::HeldChanges;
    use serde_json::json;

    use super::super::samples::waiting_operation;
    use super::super::side::WaitingWaves;
    use super::*;

    /// A first screen of a hub with a planner, on which nothing waits.
    fn side() -> Side {
        Side {
            held: Ok(HeldChanges::default()),
            rollouts: Ok(Vec::new()),
            dark: Ok(Vec::new()),
            incidents: Ok(Vec::new()),
            quarantined: Ok((0, false)),
            waves: Ok(WaitingWaves::default()),
            operations: Ok(Some((Vec::new(), false))),
            timeline: Err("not asked".to_owned()),
        }
    }

    fn request() -> ApprovalRequest {
        ApprovalRequest {
            deployment: "web".parse().unwrap(),
            digest: muster_contract::canonical::Digest::of_bytes(b"v2"),
            rollout: "fleet/rollout.yaml".to_owned(),
            wave: "pair".to_owned(),
            devices: 2,
            approvals: muster_domain::rollout::ApprovalCount { given: 1, needed: 2, void: 0 },
        }
    }

    fn shown(side: &Side) -> String {
        panel(side, "2026-11-26T09:10:00Z".parse().unwrap()).into_string()
    }

    #[test]
    fn the_longest_wait_is_first_and_a_wave_has_no_second_form() {
        let held = json!({ "deployment": "web", "rollout": "fleet/rollout.yaml", "devices": { "count": 2, "first": [] },
            "since": "2026-11-26T09:03:00Z" });
        let held = vec![serde_json::from_value(held).unwrap()];
        let operation =
            |plan: &str, minute: u8| waiting_operation(plan, &format!("2026-11-26T09:0{minute}:00Z"));
        let shown = shown(&Side {
            held: Ok(HeldChanges { held, ..HeldChanges::default() }),
            waves: Ok(WaitingWaves { waves: vec![request()], not_asked: 0 }),
            operations: Ok(Some((vec![operation("old", 1), operation("new", 5)], false))),
            ..side()
        });
        let at = ["/plans/old\"", "Wave pair", "/plans/new\""].map(|words| shown.find(words).unwrap());
        assert!(at.is_sorted() && shown.contains("<span class=\"count num\">3</span>"), "{shown}");
        assert!(shown.contains("1 of 2 approvals") && !shown.contains("action=\"/rollouts"), "{shown}");
    }

    #[test]
    fn a_hub_without_a_planner_is_no_alarm_and_an_unknown_is_no_none() {
        let none = shown(&side());
        assert!(none.contains("Nothing waits for an approval.") && none.contains(">0<"), "{none}");
        let without = shown(&Side { operations: Ok(None), ..side() });
        assert!(without.contains("No planner runs.") && without.contains("No wave waits"), "{without}");
        assert!(!without.contains("class=\"dark\""), "{without}");
        let silent = shown(&Side { operations: Err("no answer within 3 s".to_owned()), ..side() });
        assert!(silent.contains("class=\"dark\"") && silent.contains("no answer within 3 s"), "{silent}");
        assert!(!silent.contains("waits for an approval") && !silent.contains(">0<"), "{silent}");
    }

    #[test]
    fn a_list_that_is_cut_says_how_many_are_left_out() {
        let many = |more| {
            let all = vec![waiting_operation("web", "2026-11-26T09:00:00Z"); ROWS_MAX + 3];
            shown(&Side { operations: Ok(Some((all, more))), ..side() })
        };
        assert!(many(false).contains("3 more, by ") && !many(false).contains("at least"), "{}", many(false));
        assert!(many(true).contains("at least 23") && many(true).contains("are compared"), "{}", many(true));
    }

    #[test]
    fn deployments_that_were_not_asked_about_are_counted_and_no_none() {
        let cut = |waves| shown(&Side { waves: Ok(WaitingWaves { waves, not_asked: 2 }), ..side() });
        let (none, one) = (cut(Vec::new()), cut(vec![request()]));
        assert!(
            none.contains("2 further deployments with") && !none.contains("waits for an approval."),
            "{none}"
        );
        assert!(!none.contains(">0<") && one.contains("at least 1"), "{none} {one}");
    }
}
