//! One deployment: its truth, its counts, its components and errors, and the facts behind its verdict. The devices behind its
//! numbers are a page of their own.

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, RawQuery, State};
use axum::response::Response;
use maud::{Markup, html};
use muster_client::ask::understood;
use muster_contract::query::DeploymentAnswer;
use muster_contract::timeline::TimelineAnswer;
use muster_contract::view::{DeploymentView, Standing};
use muster_contract::why::{Because, RefusedTargets, WhyAnswer};
use muster_contract::{DeploymentId, Timestamp};
use serde_json::{Map, Value, json};

use super::command::Command;
use super::evidence;
use super::frame::{Frame, ProblemPage, present_views};
use super::parts::{
    ago, bar, cli, codes_left_out, count, encoded, legend, none, number, panel, second, sentence, short,
    standing, under_name, verdict,
};
use super::rollout::{deployment, names};
use super::side::Part;
use super::timeline::{self, Chart};
use crate::people::People;
use crate::people::api::params::{Kind, Param, Values, param};
use crate::problem::Problem;

/// Answers that are read for one page at most: the fleet has at most 100,000 devices of one deployment.
pub(super) const STEPS_MAX: usize = 100;
/// Standings shown beside a verdict.
const REASONS_MAX: usize = 10;

pub(super) const AT: Param = param("at", Kind::Time, "As known at this time");
const PARAMS: [Param; 2] = [AT, timeline::SPAN];
const WHY_PARAMS: [Param; 3] = [
    AT,
    param("device", Kind::Text, "One device, as SITE/DEVICE"),
    param("after", Kind::Text, "Devices after this one"),
];

pub(super) type Path = Result<RawPathParams, RawPathParamsRejection>;

/// The question about a deployment, and the moment of the past that it is about.
pub(super) fn question(
    id: &DeploymentId,
    values: &Values,
    now: Timestamp,
) -> Result<(Map<String, Value>, Option<Timestamp>), Problem> {
    let mut question = values.question(now)?;
    question.retain(|field, _| field == "at");
    let then = question.get("at").and_then(Value::as_str).and_then(|at| at.parse().ok());
    question.insert("id".to_owned(), json!(id));
    Ok((question, then))
}

/// The name of a deployment; its id if it has none.
pub(super) fn name(view: &DeploymentView) -> &str {
    if view.deployment_name.is_empty() { view.deployment.as_str() } else { &view.deployment_name }
}

/// One deployment.
pub(super) async fn page(
    State(people): State<People>,
    path: Path,
    RawQuery(query): RawQuery,
) -> Result<Response, ProblemPage> {
    let id = deployment(&names(path)?)?;
    let values = Values::read(query.as_deref().unwrap_or_default(), &PARAMS)?;
    let now = people.clock.now();
    let (mut question, then) = question(&id, &values, now)?;
    let answer: DeploymentAnswer = understood(&people.hub.history("deployment", &question).await?)?;
    question.insert("limit".to_owned(), json!(REASONS_MAX));
    let (why, timeline) =
        tokio::join!(reasons(&people, question), people.shared.timeline(&people.hub, Some(&id)));
    let why = why?;
    let address = format!("/deployments/{}", encoded(id.as_str()));
    let history = Chart::of(&address, &values, now, then)?.draw(&timeline);
    let content = html! {
        p.crumbs { a href="/" { "Fleet" } " / deployment" }
        (truth(&answer.view, &timeline, then.unwrap_or(now)))
        (panel(html! { "History" }, html! {}, Some(Command::from("muster timeline").with(&id)), history))
        div.columns {
            div.column {
                (panel(html! { "Why" }, html! { (number(why.because)) " of " (number(why.of)) },
                    Some(Command::from("muster why").with(&id)), because(&why, &id)))
            }
            div.column { (errors(&answer.view)) (components(&answer.view)) (facts(&answer.view)) }
        }
    };
    let frame = Frame::live(name(&answer.view), "Fleet").at(then);
    let frame = if then.is_none() {
        Frame { stream: Some(format!("/api/v1/watch/deployments/{}", encoded(id.as_str()))), ..frame }
    } else {
        frame
    };
    Ok(frame.answer(&people, &content))
}

/// The first standings that make the verdict; pages of the answer that have none are skipped.
async fn reasons(people: &People, mut question: Map<String, Value>) -> Result<WhyAnswer, Problem> {
    for _ in 0..STEPS_MAX {
        let why: WhyAnswer = understood(&people.hub.history("why", &question).await?)?;
        match &why.next {
            Some(next) if why.standings.is_empty() => {
                question.insert("after".to_owned(), json!(next));
            }
            _ => return Ok(why),
        }
    }
    Err(Problem::passing(
        axum::http::StatusCode::SERVICE_UNAVAILABLE,
        "the reasons of the verdict do not end",
    ))
}

fn truth(view: &DeploymentView, timeline: &Part<TimelineAnswer>, now: Timestamp) -> Markup {
    let (id, devices) =
        (&view.deployment, format!("/deployments/{}/devices", encoded(view.deployment.as_str())));
    let missing = view.complete.missing_reports;
    html! {
        section.truth {
            div.titled { h1 { (name(view)) } (verdict(view.verdict)) span.soft { (timeline::since(timeline, view.verdict, now)) } }
            (under_name(id, &view.deployment_name))
            p.line {
                (sentence(if view.message.is_empty() { view.verdict.rule() } else { &view.message })) ". "
                (bounds(view, &devices)) " have it installed"
                @if view.leaving > 0 { "; " (count(view.leaving, "device")) " should not have it any more" }
                @if view.overdue > 0 { "; " (number(view.overdue)) " overdue" }
                ". "
                @if missing > 0 { a href={ "/deployments/" (encoded(id.as_str())) "/why" } { (count(missing, "report")) " missing" } "." } @else { "Every report is in." }
            }
            (bar(&view.counts, "all"))
            (legend(&view.counts, Some(&devices)))
            (evidence::panel(&view.evidence, view.targets))
            div.meta {
                span { "as of ledger " span.num { (number(view.as_of.ledger_seq)) } ", " (second(view.as_of.at)) }
                span { "digest " code #digest title=(view.digest) data-digest=(view.digest) { (short(&view.digest.to_string())) } }
                @if let Some(at) = view.changed_at { span { "last change of a standing " (ago(at, now)) } }
                a href={ "/rollouts/" (encoded(id.as_str())) } { "rollout" }
                a href={ "/changes?since=1h&deployment=" (encoded(id.as_str())) } { "changes of the last hour" }
                (cli(Command::from("muster status").with(id).flag("--output", "brief")))
            }
        }
    }
}

/// The targets that have installed it, certainly and possibly; the numbers open the devices at `devices`.
fn bounds(view: &DeploymentView, devices: &str) -> Markup {
    let (lo, hi) = (view.converged.lo, view.converged.hi);
    html! {
        a href=(devices) {
            @if lo == hi { strong.num { (number(lo)) } }
            @else { "Between " strong.num { (number(lo)) } " and " strong.num { (number(hi)) } }
            " of " (count(view.targets, "target"))
        }
    }
}

fn errors(view: &DeploymentView) -> Markup {
    let id = encoded(view.deployment.as_str());
    let rows = html! {
        @if view.errors.is_empty() { (none("No target reports an error.")) } @else {
            ul.rows { @for error in &view.errors {
                li {
                    div.head { code { (error.code) } a href={ "/deployments/" (id) "/devices?error=" (encoded(&error.code)) } { (count(error.count, "device")) } }
                    p.more {
                        a href={ "/deployments/" (id) "/why?device=" (encoded(&error.example.device.to_string())) } { (error.example.device) }
                        @if let Some(component) = &error.example.component { ", " (component) } ": " (error.example.message)
                    }
                }
            } }
            (codes_left_out(view.omitted.errors, false))
        }
    };
    let total = number(view.errors.len() as u64 + view.omitted.errors);
    let command = Command::from("muster status").with(&view.deployment);
    panel(html! { "Errors" }, html! { (total) }, Some(command), rows)
}

fn components(view: &DeploymentView) -> Markup {
    let rows = html! {
        @if view.components.is_empty() { (none("No target reports a component of the present content.")) } @else {
            ul.rows { @for (name, states) in &view.components {
                li.head {
                    span { (name) }
                    span.legend { @for (state, count) in states {
                        span { span.key.(super::parts::tint(Standing::from(*state))) aria-hidden="true" {} b { (number(*count)) } " " (Standing::from(*state).as_str()) }
                    } }
                }
            } }
        }
    };
    panel(
        html! { "Components" },
        html! { (number(view.components.len() as u64 + view.omitted.components)) },
        Some(Command::from("muster status").with(&view.deployment).flag("--output", "all")),
        rows,
    )
}

fn facts(view: &DeploymentView) -> Markup {
    panel(
        html! { "How much is known" },
        html! {},
        None,
        html! {
            dl.pairs.body {
                dt { "Known standings" } dd.num { (number(view.complete.devices)) " of " (number(view.complete.of)) }
                dt { "Missing reports" } dd.num { (number(view.complete.missing_reports)) }
                dt { "Last heard" } dd { @match view.last_heard_at { Some(at) => (second(at)), None => "never" } }
            }
        },
    )
}

/// The standings that make a verdict, each with its facts.
fn because(why: &WhyAnswer, id: &DeploymentId) -> Markup {
    html! {
        p.note { (sentence(&why.rule)) "." }
        @for RefusedTargets { targets, key, refusal } in &why.refused {
            p.note {
                (key) " refuses " (refusal.refused()) " since " (second(refusal.since)) ": " (refusal.message)
                @if *targets > 1 { " (" (number(*targets)) " targets refuse for this reason)" }
            }
        }
        @if why.standings.is_empty() { (none("No single standing makes it so.")) }
        ul.rows { @for because in &why.standings { li { (reason(because, id)) } } }
        @if let Some(next) = &why.next {
            p.pager { a href={ "/deployments/" (encoded(id.as_str())) "/why?after=" (encoded(next)) } { "Next devices" } }
        }
    }
}

fn reason(because: &Because, id: &DeploymentId) -> Markup {
    let key = &because.key;
    html! {
        div.head {
            a href={ "/devices/" (encoded(key.site.as_str())) "/" (encoded(key.device.as_str())) } { (key) }
            span { (standing(because.standing, because.freshness)) " "
                a href={ "/deployments/" (encoded(id.as_str())) "/why?device=" (encoded(&key.to_string())) } { "why" } }
        }
        ul.facts.more {
            @for fact in &because.facts {
                li {
                    span.num title="Sequence in LEDGER" { (fact.ledger_seq) }
                    span { (serde_json::to_value(fact.kind).ok().and_then(|kind| kind.as_str().map(str::to_owned)).unwrap_or_default()) }
                    span { (fact.says) @if let Some(at) = fact.at { " " span.faint { (second(at)) } } }
                }
            }
        }
    }
}

/// Why a deployment has its verdict, or its standing on one device.
pub(super) async fn why(
    State(people): State<People>,
    path: Path,
    RawQuery(query): RawQuery,
) -> Result<Response, ProblemPage> {
    let id = deployment(&names(path)?)?;
    let values = Values::read(query.as_deref().unwrap_or_default(), &WHY_PARAMS)?;
    let (mut question, then) = question(&id, &values, people.clock.now())?;
    let device = values.get("device").unwrap_or_default();
    if let Some((site, name)) = device.split_once('/') {
        question.extend([("site".to_owned(), json!(site)), ("device".to_owned(), json!(name))]);
    } else {
        question.extend(values.get("after").map(|after| ("after".to_owned(), json!(after))));
    }
    let why = reasons(&people, question).await?;
    let views = present_views(&people, then);
    let named = Some(views.name_of(&id)).filter(|name| !name.is_empty()).unwrap_or(id.as_str());
    let command = Command::from("muster why").with(&id);
    let command = if device.is_empty() { command } else { command.flag("--device", device) };
    let content = html! {
        p.crumbs { a href="/" { "Fleet" } " / " a href={ "/deployments/" (encoded(id.as_str())) } { (named) } " / why" }
        div.truth {
            div.titled { h1 { "Why " (named) @if !device.is_empty() { " on " (device) } } (verdict(why.verdict)) }
            div.meta { (under_name(&id, views.name_of(&id))) span { "as of ledger " (number(why.as_of.ledger_seq)) ", " (second(why.as_of.at)) } (cli(command)) }
        }
        (panel(html! { "Standings and their facts" }, html! { (number(why.because)) " of " (number(why.of)) }, None, because(&why, &id)))
    };
    Ok(Frame::live(format!("Why {named}"), "Fleet").at(then).answer(&people, &content))
}

#[cfg(test)]
mod tests {
    use super::super::samples::deployment_view;
    use super::*;

    #[test]
    fn bounds_that_are_equal_are_one_number_and_open_the_devices() {
        let mut view = deployment_view("web", &[], 0);
        view.targets = 2;
        let shown = |view: &DeploymentView| bounds(view, "/deployments/web/devices").into_string();
        let link = "<a href=\"/deployments/web/devices\">";
        assert_eq!(shown(&view), format!("{link}<strong class=\"num\">0</strong> of 2 targets</a>"));
        view.converged.hi = 1;
        let words =
            "Between <strong class=\"num\">0</strong> and <strong class=\"num\">1</strong> of 2 targets";
        assert_eq!(shown(&view), format!("{link}{words}</a>"));
    }

    #[test]
    fn the_devices_of_an_error_are_those_of_this_deployment() {
        let shown = errors(&deployment_view("web", &[("E 1", 3)], 0)).into_string();
        assert!(shown.contains("href=\"/deployments/web/devices?error=E%201\">3 devices</a>"), "{shown}");
        assert!(shown.contains("<code>muster status web</code>"), "{shown}");
    }

    #[test]
    fn a_cut_list_of_errors_says_how_many_codes_are_left_out() {
        let shown = errors(&deployment_view("web", &[("E1", 3)], 0)).into_string();
        assert!(!shown.contains("Not shown"), "{shown}");
        for (omitted, note) in [(1, "Not shown: 1 more error code,"), (2, "Not shown: 2 more error codes,")] {
            let shown = errors(&deployment_view("web", &[("E1", 3)], omitted)).into_string();
            assert!(shown.contains(note), "{shown}");
        }
    }
}
