//! One plan: its deployments, its instances, what waits for an approval, its other operations, and the recorded changes.

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, RawQuery, State};
use axum::response::Response;
use maud::{Markup, html};
use muster_contract::plans::{Plan, PlanAnswer, PlanRevision, PlanState, RevisionState};
use muster_contract::{LabelError, Timestamp};

use super::command::Command;
use super::frame::{Frame, ProblemPage};
use super::parts::{ago, cli, count, encoded, none, number, panel};
use super::plan_answers::{PlanDetail, WAITING_MAX};
use super::plan_history;
use super::plan_instance::instance;
use super::plan_parts::{
    act, address, operation, placements, plan_look, requester, revision_look, steps, tag, waiting,
};
use super::rollout::names;
use crate::login::current;
use crate::people::People;
use crate::people::api::params::{Kind, Param, Values, param};
use crate::problem::Problem;

/// Characters shown of the coordinates of a payload.
const COORDINATES_CHARS_MAX: usize = 300;

const PARAMS: [Param; 1] = [param("after", Kind::Text, "Instances after this one")];

/// The names in the address of a page.
pub(super) type Path = Result<RawPathParams, RawPathParamsRejection>;

/// The page of a plan.
pub(super) async fn page(
    State(people): State<People>,
    path: Path,
    RawQuery(query): RawQuery,
) -> Result<Response, ProblemPage> {
    let names = names(path)?;
    let name = names.get("plan").and_then(|name| name.as_str()).unwrap_or_default();
    let name = name.parse().map_err(|error: LabelError| Problem::field("plan", error.to_string()))?;
    let values = Values::read(query.as_deref().unwrap_or_default(), &PARAMS)?;
    let after = values.get("after").map(str::to_owned);
    let shared = people.shared.plan(&people.hub, name, after).await;
    let detail = (*shared).as_ref()?;
    let title = format!("Plan {}", detail.answer.plan.spec.name);
    Ok(Frame::live(title, "Plans").answer(&people, &detail.draw(people.clock.now())))
}

impl PlanDetail {
    fn draw(&self, now: Timestamp) -> Markup {
        let plan = &self.answer.plan;
        html! {
            p.crumbs { a href="/plans" { "Plans" } " / " (plan.spec.name) }
            (self.head())
            div.columns {
                div.column { (self.waiting(now)) (deployments(plan, now)) (self.instances(now)) }
                div.column { (self.others(now)) (plan_history::panel(&plan.spec.name, &self.history)) }
            }
        }
    }

    fn head(&self) -> Markup {
        let PlanAnswer { plan, summary } = &self.answer;
        let (name, spec) = (plan.spec.name.as_str(), &plan.spec);
        html! {
            div.truth {
                div.titled { h1 { "Plan " (name) } (tag(plan_look(plan.state))) }
                p.line {
                    (count(summary.instances, "instance"))
                    @if !summary.runtime.is_empty() { " (on nodes: " (placements(summary)) ")" }
                    ". " (count(waiting(summary), "operation")) " waiting for an approval."
                }
                div.meta {
                    span { "service " (spec.service_name) " in " (spec.namespace) @if let Some(cluster) = &spec.cluster { ", cluster " (cluster) } }
                    span { "runs " @for (at, application) in spec.applications.iter().enumerate() {
                        @if at > 0 { ", " } code { (application.payload_name) }
                    } }
                    span { "version " (plan.version) }
                    (cli(Command::from("muster plan show").with(name)))
                }
                @if current::offers_changes() {
                    div.acts {
                        @match plan.state {
                            PlanState::Active => (act(&format!("{}/deactivate", address(name)), "Deactivate", "danger", &format!("plan {name}"), &[])),
                            PlanState::Inactive => (act(&format!("{}/activate", address(name)), "Activate", "", &format!("plan {name}"), &[])),
                            PlanState::Deleted => {}
                        }
                    }
                }
            }
        }
    }

    fn waiting(&self, now: Timestamp) -> Markup {
        let name = &self.answer.plan.spec.name;
        let total = waiting(&self.answer.summary);
        let rows = html! {
            @if self.waiting.is_empty() { (none("No operation of this plan waits for an approval.")) }
            ul.rows { @for status in &self.waiting { li { (operation(status, now)) } } }
            @if total > WAITING_MAX as u64 {
                p.note.top-line { "The first " (number(WAITING_MAX as u64)) " by instance; the others follow when these are decided." }
            }
        };
        let command = Command::from("muster operation list").flag("--plan", name);
        let command = command.flag("--state", "pending-approval");
        panel(html! { "Waits for a decision" }, html! { (number(total)) }, Some(command), rows)
    }

    fn others(&self, now: Timestamp) -> Markup {
        let all = self.others_of;
        let left = all - self.others.len();
        let rows = html! {
            @if all == 0 { (none("No other operation.")) }
            ul.rows {
                @for status in &self.others {
                    li { (operation(status, now)) (steps(&status.operation)) }
                }
            }
            @if left > 0 {
                p.note.top-line {
                    (number(left as u64)) " more, changed earlier."
                    @if self.has_more_others { " Only the first " (number(all as u64)) " by instance are compared here." }
                }
            }
        };
        let command = Command::from("muster operation list").flag("--plan", &self.answer.plan.spec.name);
        let total = html! { @if self.has_more_others { "at least " } (number(all as u64)) };
        panel(html! { "Other operations" }, total, Some(command), rows)
    }

    fn instances(&self, now: Timestamp) -> Markup {
        let rows = html! {
            @if self.instances.instances.is_empty() { (none("No instance.")) }
            ul.rows { @for status in &self.instances.instances { li { (instance(status, now)) } } }
            @if let Some(next) = &self.instances.next { p.pager { a href={ "?after=" (encoded(next)) } { "Next instances" } } }
        };
        let command = Command::from("muster instance list").flag("--plan", &self.answer.plan.spec.name);
        panel(html! { "Instances" }, html! { (number(self.answer.summary.instances)) }, Some(command), rows)
    }
}

fn deployments(plan: &Plan, now: Timestamp) -> Markup {
    let rows = html! {
        @if plan.revisions.is_empty() { (none("This plan was never deployed.")) }
        ul.rows { @for revision in plan.revisions.iter().rev() { li { (deployment(plan, revision, now)) } } }
    };
    let command = Command::from("muster plan show").with(&plan.spec.name);
    let total = html! { (number(plan.revisions.len() as u64)) };
    panel(html! { "Deployments of the plan, the newest first" }, total, Some(command), rows)
}

fn deployment(plan: &Plan, revision: &PlanRevision, now: Timestamp) -> Markup {
    html! {
        div.head { strong { (revision.id) } (tag(revision_look(revision.state))) }
        p.more {
            (count(revision.instances.into(), "instance"))
            @if let Some(canary) = revision.canary { ", " (canary) " of them with this content" }
            @if let Some(most) = revision.max_unavailable { ", at most " (most) " unavailable" }
            @if let Some(to) = &revision.rollback_to { ", a rollback to " code { (to) } }
            @if let Some(from) = &revision.migrated_from { ", to which plan " (from) " migrates" }
            @if let Some(to) = &revision.migrated_to { ", as the plan has migrated to " (to) }
            ", requested " (requester(revision.requested_by.as_ref())) " " (ago(revision.at, now))
            @if !revision.message.is_empty() { ": " (revision.message) }
        }
        @for (payload, coordinates) in &revision.coordinates {
            p.more { code { (payload) " " (cut(&serde_json::to_string(coordinates).unwrap_or_default())) } }
        }
        @if current::offers_approvals() && may_approve(plan, revision) { (approval_act(plan, revision)) }
        @if current::offers_changes() { (deployment_acts(plan, revision)) }
    }
}

fn cut(text: &str) -> String {
    let mut signs = text.chars();
    let shown: String = signs.by_ref().take(COORDINATES_CHARS_MAX).collect();
    if signs.next().is_some() { shown + "\u{2026}" } else { shown }
}

/// The approval of all operations of a deployment.
fn approval_act(plan: &Plan, revision: &PlanRevision) -> Markup {
    let (address, id) = (address(plan.spec.name.as_str()), revision.id.as_str());
    let target = format!("{address}/revisions/{}/approve", encoded(id));
    let about = format!("operations of deployment {id}");
    html! { div.acts { (act(&target, "Approve all", "first", &about, &[])) } }
}

fn deployment_acts(plan: &Plan, revision: &PlanRevision) -> Markup {
    let (address, id) = (address(plan.spec.name.as_str()), revision.id.as_str());
    let about = format!("deployment {id}");
    let form = |verb: &str, words: &str, look: &str| {
        act(&format!("{address}/revisions/{}/{verb}", encoded(id)), words, look, &about, &[])
    };
    html! {
        div.acts {
            @match revision.state {
                RevisionState::InProgress => (form("pause", "Pause", "")),
                RevisionState::Paused => (form("resume", "Resume", "first")),
                _ => {}
            }
            @if !revision.state.is_final() { (form("cancel", "Cancel", "danger")) }
            @if matches!(revision.state, RevisionState::InProgress | RevisionState::Paused) {
                (form("stop", "Stop and fail", "danger"))
            }
            @if may_roll_back(plan, revision) {
                (act(&format!("{address}/rollback"), "Roll back", "danger", &format!("to {about}"), &[("to", id), ("id", &rollback_id(plan))]))
            }
        }
    }
}

/// Whether all operations of a revision can be approved at once.
fn may_approve(plan: &Plan, revision: &PlanRevision) -> bool {
    !revision.state.is_final() && revision.approval.is_none() && !plan.awaits_hooks(revision)
}

/// Whether the planner rolls a plan back to a deployment.
fn may_roll_back(plan: &Plan, to: &PlanRevision) -> bool {
    let is_newest = plan.revisions.last().is_some_and(|newest| newest.id == to.id);
    plan.state == PlanState::Active
        && plan.open_revision().is_none()
        && to.state == RevisionState::Completed
        && to.canary.is_none()
        && !is_newest
}

/// The id of the deployment that a rollback makes. A form that is sent twice names the same one, and the planner refuses the second.
fn rollback_id(plan: &Plan) -> String {
    format!("rollback-{}", plan.version)
}

#[cfg(test)]
mod tests {
    use muster_contract::plans::InstancesAnswer;

    use super::super::plan_answers::History;
    use super::super::samples::waiting_operation;
    use super::*;

    fn plan() -> PlanAnswer {
        let example = include_bytes!("../../../../../schemas/examples/good/PlanAnswer.one.json");
        serde_json::from_slice(example).unwrap()
    }

    fn instances() -> InstancesAnswer {
        let example = include_bytes!("../../../../../schemas/examples/good/InstancesAnswer.one.json");
        serde_json::from_slice(example).unwrap()
    }

    fn now() -> Timestamp {
        "2026-11-26T09:10:00Z".parse().unwrap()
    }

    #[test]
    fn a_plan_shows_what_waits_what_runs_and_the_command_of_each_list() {
        let detail = PlanDetail {
            answer: plan(),
            waiting: vec![waiting_operation("web", "2026-11-26T09:00:05Z")],
            others: Vec::new(),
            others_of: 0,
            has_more_others: false,
            instances: instances(),
            history: Ok(History::default()),
        };
        let shown = detail.draw(now()).into_string();
        for words in [
            "1 instance (on nodes: 1 pending). 1 operation waiting for an approval.",
            "action=\"/plans/web/deactivate\"",
            "action=\"/plans/web/revisions/web-1/approve\"",
            "action=\"/plans/web/revisions/web-1/pause\"",
            "data-confirm=\"Cancel deployment web-1?\"",
            "data-confirm=\"Stop and fail deployment web-1?\"",
            "href=\"/devices/plant7/press-4\"",
            "muster plan show web",
            "muster operation list --plan web --state pending-approval",
            "muster instance list --plan web",
            "muster plan history web",
        ] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        assert!(!shown.contains("/rollback"), "{shown}");
        assert_eq!(shown.matches("/stop\"").count(), 1, "no node runs the instance: {shown}");
    }

    #[test]
    fn a_plan_is_rolled_back_to_a_completed_deployment_before_the_newest() {
        let mut plan = plan().plan;
        plan.revisions.push(plan.revisions[0].clone());
        plan.revisions[1].id = "web-2".parse().unwrap();
        let shown = |plan: &Plan| deployments(plan, now()).into_string();
        assert!(!shown(&plan).contains("/rollback"), "a deployment is under way");
        plan.revisions.iter_mut().for_each(|revision| revision.state = RevisionState::Completed);
        let one = shown(&plan);
        assert_eq!(one.matches("action=\"/plans/web/rollback\"").count(), 1, "{one}");
        assert!(one.contains("name=\"to\" value=\"web-1\"") && one.contains("value=\"rollback-2\""), "{one}");
        plan.state = PlanState::Inactive;
        assert!(!shown(&plan).contains("/rollback"), "an inactive plan takes no deployment");
    }

    #[test]
    fn long_coordinates_are_cut_and_short_ones_are_whole() {
        assert_eq!(cut("{}"), "{}");
        let long = cut(&"a".repeat(COORDINATES_CHARS_MAX + 1));
        assert!(long.ends_with('\u{2026}') && long.chars().count() == COORDINATES_CHARS_MAX + 1);
    }
}
