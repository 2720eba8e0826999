//! Plans: the list, and the changes that need no document, as forms. Each form asks for the change that REST has at the same address,
//! so checks and roles are the same. A plan is made and deleted by REST and the command alone.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, Request, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use maud::{Markup, html};
use muster_contract::plans::{PlanAnswer, PlansAnswer};
use serde_json::Value;

use super::frame::{Frame, ProblemPage};
use super::parts::{cli, encoded, none, number, panel};
use super::plan::{self, Path};
use super::plan_parts::{address, failed, placements, plan_look, revision_look, tag, waiting};
use crate::people::People;
use crate::people::api::change::{self, Change, ChangeMethod};
use crate::people::api::changes::CHANGES;
use crate::people::api::params::{Kind, Param, Values, param};

const PARAMS: [Param; 1] = [param("after", Kind::Text, "Plans after this one")];

/// The pages of plans, and the changes that a form can ask for.
pub(super) fn router() -> Router<People> {
    let pages = Router::new().route("/plans", get(list)).route("/plans/{plan}", get(plan::page));
    CHANGES.iter().filter(|change| has_form(change)).fold(pages, |router, change| {
        let schema = Arc::new(change.inline_schema());
        let handler = move |state, path, request| act(change, Arc::clone(&schema), state, path, request);
        router.route(change.path, post(handler))
    })
}

/// Whether a form can ask for a change of a plan, or of its deployments, instances and operations.
fn has_form(change: &Change) -> bool {
    change.method == ChangeMethod::Post && change.path.starts_with("/plans/{plan}/") && change.takes_form()
}

/// A change from a form; afterwards the browser is sent to the plan.
async fn act(
    change: &'static Change,
    schema: Arc<Value>,
    state: State<People>,
    path: Path,
    request: Request<Body>,
) -> Result<Response, ProblemPage> {
    let plan = request.uri().path().split('/').nth(2).unwrap_or_default();
    let address = format!("/plans/{plan}");
    change::make(change, schema, state, path, request).await?;
    Ok((StatusCode::SEE_OTHER, [(LOCATION, address)]).into_response())
}

/// The plans, by name.
async fn list(State(people): State<People>, RawQuery(query): RawQuery) -> Result<Response, ProblemPage> {
    let values = Values::read(query.as_deref().unwrap_or_default(), &PARAMS)?;
    let after = values.get("after").map(str::to_owned);
    let shared = people.shared.plans(&people.hub, after).await;
    let answer = (*shared).as_ref()?;
    let content = html! {
        div.truth { h1 { "Plans" } div.meta { (cli("muster plan list")) } }
        div.column {
            @match answer {
                Some(answer) => (panel(
                    html! { "Plans" },
                    html! { (number(answer.plans.len() as u64)) " on this page" },
                    None,
                    rows(answer),
                )),
                None => (panel(html! { "Plans" }, html! {}, None, none("No planner runs."))),
            }
        }
    };
    Ok(Frame::live("Plans", "Plans").answer(&people, &content))
}

fn rows(answer: &PlansAnswer) -> Markup {
    html! {
        @if answer.plans.is_empty() { (none("No plan.")) } @else {
            table {
                thead { tr { th { "Plan" } th { "State" } th { "Newest deployment" } th.right { "Instances" } th.right { "Operations" } } }
                tbody { @for plan in &answer.plans { (row(plan)) } }
            }
        }
        @if let Some(next) = &answer.next { p.pager { a href={ "?after=" (encoded(next)) } { "Next plans" } } }
    }
}

fn row(PlanAnswer { plan, summary }: &PlanAnswer) -> Markup {
    let (waiting, failed) = (waiting(summary), failed(summary));
    html! {
        tr {
            td.name {
                a href=(address(plan.spec.name.as_str())) { (plan.spec.name) }
                span.under { (plan.spec.service_name) " in " (plan.spec.namespace) }
            }
            td { (tag(plan_look(plan.state))) }
            td.name {
                @if let Some(revision) = plan.revisions.last() { code { (revision.id) } " " (tag(revision_look(revision.state))) }
            }
            td.right.num data-label="instances" {
                (number(summary.instances))
                @if !summary.runtime.is_empty() { span.under { (placements(summary)) } }
            }
            td.right.num data-label="operations" {
                @if waiting > 0 { strong { (number(waiting)) } " waiting" } @else { "none waiting" }
                @if failed > 0 { span.under { (number(failed)) " without success" } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> PlansAnswer {
        let example = include_bytes!("../../../../../schemas/examples/good/PlansAnswer.one.json");
        serde_json::from_slice(example).unwrap()
    }

    #[test]
    fn a_plan_in_the_list_shows_its_instances_and_what_waits() {
        let mut answer = answer();
        let shown = rows(&answer).into_string();
        let name = answer.plans[0].plan.spec.name.to_string();
        assert!(shown.contains(&format!("href=\"/plans/{name}\"")), "{shown}");
        let waits = waiting(&answer.plans[0].summary);
        assert_eq!(shown.contains("none waiting"), waits == 0, "{shown}");
        answer.plans[0].summary.operations.iter_mut().for_each(|counts| counts.pending_approval = 2);
        answer.next = Some("a b".to_owned());
        let shown = rows(&answer).into_string();
        assert!(shown.contains("</strong> waiting") && shown.contains("?after=a%20b"), "{shown}");
        answer.plans.clear();
        assert!(rows(&answer).into_string().contains("No plan."));
    }

    #[test]
    fn the_forms_of_plans_are_the_changes_of_rest_without_documents() {
        let offered: Vec<_> =
            CHANGES.iter().filter(|change| has_form(change)).map(|change| change.path).collect();
        for path in [
            "/plans/{plan}/deactivate",
            "/plans/{plan}/rollback",
            "/plans/{plan}/revisions/{id}/pause",
            "/plans/{plan}/instances/{instance}/restart",
            "/plans/{plan}/instances/{instance}/operations/{operation}/approve",
        ] {
            assert!(offered.contains(&path), "{path}: {offered:?}");
        }
        assert!(!offered.contains(&"/plans/{plan}/revisions"), "a deployment is a document: {offered:?}");
    }
}
