//! One deployment: its truth, its counts, its components and errors; the devices behind each number; and the facts behind its
//! verdict.

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, RawQuery, State};
use axum::response::Response;
use maud::{Markup, html};
use muster_client::ask::understood;
use muster_contract::query::DeploymentAnswer;
use muster_contract::status::{StatusAnswer, TargetStatus};
use muster_contract::timeline::TimelineAnswer;
use muster_contract::view::{DeploymentView, Freshness, Standing};
use muster_contract::why::{Because, RefusedTargets, WhyAnswer};
use muster_contract::{DeploymentId, Timestamp};
use serde_json::{Map, Value, json};

use super::frame::{Frame, ProblemPage};
use super::parts::{
    HEARD, ago, bar, cli, codes_left_out, count, encoded, evidence, freshness_word, legend, none, number,
    panel, second, sentence, short, standing, verdict,
};
use super::rollout::{deployment, names};
use super::side::{Part, within};
use super::timeline::{self, Chart};
use crate::people::People;
use crate::people::api::params::{Kind, Param, Values, param};
use crate::problem::Problem;

/// Rows of a page of devices.
const ROWS_MAX: usize = 100;
/// Answers that are read for one page at most: the fleet has at most 100,000 devices of one deployment.
const STEPS_MAX: usize = 100;
/// Standings shown beside a verdict.
const REASONS_MAX: usize = 10;

const AT: Param = param("at", Kind::Time, "As known at this time");
const PARAMS: [Param; 2] = [AT, timeline::SPAN];
const DEVICES_PARAMS: [Param; 5] = [
    AT,
    param("standing", Kind::Text, "Only this standing"),
    param("freshness", Kind::Text, "Only devices that are heard so"),
    param("site", Kind::Text, "Only this site"),
    param("after", Kind::Text, "Devices after this one"),
];
const WHY_PARAMS: [Param; 3] = [
    AT,
    param("device", Kind::Text, "One device, as SITE/DEVICE"),
    param("after", Kind::Text, "Devices after this one"),
];

type Path = Result<RawPathParams, RawPathParamsRejection>;

/// The question about a deployment, and the moment of the past that it is about.
fn question(
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
        tokio::join!(reasons(&people, question), within(timeline::ask(&people.hub, Some(&id))));
    let why = why?;
    let address = format!("/deployments/{}", encoded(id.as_str()));
    let history = Chart::of(&address, &values, now, then)?.draw(&timeline);
    let content = html! {
        p.crumbs { a href="/" { "Fleet" } " / deployment" }
        (truth(&answer.view, &timeline, then.unwrap_or(now)))
        (panel(html! { "History" }, html! {}, Some(&format!("muster timeline {id}")), history))
        div.columns {
            div.column {
                (panel(html! { "Why" }, html! { (number(why.because)) " of " (number(why.of)) },
                    Some(&format!("muster why {id}")), because(&why, &id)))
            }
            div.column { (errors(&answer.view)) (components(&answer.view)) (facts(&answer.view)) }
        }
    };
    let frame = Frame::live(id.to_string(), "Fleet").at(then);
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
            div.titled { h1 { (id) } (verdict(view.verdict)) span.soft { (timeline::since(timeline, view.verdict, now)) } @if !view.deployment_name.is_empty() { span.soft { (view.deployment_name) } } }
            p.line {
                (sentence(if view.message.is_empty() { view.verdict.rule() } else { &view.message })) ". "
                "Between " strong.num { (number(view.converged.lo)) } " and " strong.num { (number(view.converged.hi)) } " of "
                a href=(devices) { (count(view.targets, "target")) } " have it installed"
                @if view.leaving > 0 { "; " (count(view.leaving, "device")) " should not have it any more" }
                @if view.overdue > 0 { "; " (number(view.overdue)) " overdue" }
                ". "
                @if missing > 0 { (count(missing, "report")) " missing." } @else { "Every report is in." }
                (evidence(&view.evidence))
            }
            (bar(&view.counts, "all"))
            (legend(&view.counts, Some(&devices)))
            div.meta {
                span { "as of ledger " span.num { (number(view.as_of.ledger_seq)) } ", " (second(view.as_of.at)) }
                span { "digest " code #digest title=(view.digest) data-digest=(view.digest) { (short(&view.digest.to_string())) } }
                @if let Some(at) = view.changed_at { span { "last change of a standing " (ago(at, now)) } }
                a href={ "/rollouts/" (encoded(id.as_str())) } { "rollout" }
                a href={ "/changes?since=1h&deployment=" (encoded(id.as_str())) } { "changes of the last hour" }
                (cli(&format!("muster status {id} --output brief")))
            }
        }
    }
}

fn errors(view: &DeploymentView) -> Markup {
    let id = encoded(view.deployment.as_str());
    let rows = html! {
        @if view.errors.is_empty() { (none("No target reports an error.")) } @else {
            ul.rows { @for error in &view.errors {
                li {
                    div.head { code { (error.code) } a href={ "/devices?error=" (encoded(&error.code)) } { (count(error.count, "device")) } }
                    p.more {
                        a href={ "/deployments/" (id) "/why?device=" (encoded(&error.example.device.to_string())) } { (error.example.device) }
                        @if let Some(component) = &error.example.component { ", " (component) } ": " (error.example.message)
                    }
                }
            } }
            (codes_left_out(view.omitted.errors, false))
        }
    };
    panel(html! { "Errors" }, html! { (number(view.errors.len() as u64 + view.omitted.errors)) }, None, rows)
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
        None,
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
    let command = if device.is_empty() {
        format!("muster why {id}")
    } else {
        format!("muster why {id} --device {device}")
    };
    let content = html! {
        p.crumbs { a href="/" { "Fleet" } " / " a href={ "/deployments/" (encoded(id.as_str())) } { (id) } " / why" }
        div.truth {
            div.titled { h1 { "Why " (id) @if !device.is_empty() { " on " (device) } } (verdict(why.verdict)) }
            div.meta { span { "as of ledger " (number(why.as_of.ledger_seq)) ", " (second(why.as_of.at)) } (cli(&command)) }
        }
        (panel(html! { "Standings and their facts" }, html! { (number(why.because)) " of " (number(why.of)) }, None, because(&why, &id)))
    };
    Ok(Frame::live(format!("Why {id}"), "Fleet").at(then).answer(&people, &content))
}

/// The devices behind a number of a deployment.
pub(super) async fn devices(
    State(people): State<People>,
    path: Path,
    RawQuery(query): RawQuery,
) -> Result<Response, ProblemPage> {
    let id = deployment(&names(path)?)?;
    let values = Values::read(query.as_deref().unwrap_or_default(), &DEVICES_PARAMS)?;
    let now = people.clock.now();
    let (question, then) = question(&id, &values, now)?;
    let filter = Filter::read(&values)?;
    let view = people.hub.history("deployment", &question).await?;
    let DeploymentAnswer { view, .. } = understood(&view)?;
    let found = filter.lines(&people, question, values.get("after")).await?;
    let total = filter.total(&view);
    let command = filter.command(&id);
    let rows = html! {
        (filter.form(&values))
        @if found.lines.is_empty() { (none("No device passes the filters.")) } @else { (table(&found.lines, &id, then.unwrap_or(now))) }
        @if let Some(next) = &found.next { p.pager { a href={ "?" (filter.query(&values)) "after=" (encoded(next)) } { "Next devices" } } }
    };
    let content = html! {
        p.crumbs { a href="/" { "Fleet" } " / " a href={ "/deployments/" (encoded(id.as_str())) } { (id) } " / devices" }
        div.truth {
            h1 { "Devices of " (id) }
            div.meta { span { "as of ledger " (number(view.as_of.ledger_seq)) ", " (second(view.as_of.at)) } }
        }
        (panel(html! { (filter.words()) }, html! { @if let Some(total) = total { (number(total)) " in all" } }, Some(&command), rows))
    };
    Ok(Frame::live(format!("Devices of {id}"), "Fleet").at(then).answer(&people, &content))
}

/// Rows of a list of devices, and where it goes on.
struct Found {
    lines: Vec<TargetStatus>,
    next: Option<String>,
}

/// The filters of a list of devices.
struct Filter {
    standing: Option<Standing>,
    freshness: Option<Freshness>,
    site: Option<String>,
}

impl Filter {
    fn read(values: &Values) -> Result<Self, Problem> {
        let standing = values.get("standing").map(|word| {
            let known = Standing::ALL.into_iter().find(|standing| standing.as_str() == word);
            let words = Standing::ALL.map(Standing::as_str).join(", ");
            known.ok_or_else(|| Problem::field("standing", format!("must be one of {words}")))
        });
        let freshness = values.get("freshness").map(|word| {
            let known = HEARD.into_iter().find(|freshness| freshness_word(*freshness) == word);
            known.ok_or_else(|| Problem::field("freshness", "must be one of fresh, stale, never"))
        });
        Ok(Self {
            standing: standing.transpose()?,
            freshness: freshness.transpose()?,
            site: values.get("site").map(str::to_owned),
        })
    }

    /// How many pass, where the view counts that.
    fn total(&self, view: &DeploymentView) -> Option<u64> {
        let of = |standing: Standing| {
            let mut split = view.counts.get(&standing).copied().unwrap_or_default();
            self.freshness.map_or(split.total(), |freshness| *split.get_mut(freshness))
        };
        let counted = self.standing.map_or_else(|| Standing::ALL.into_iter().map(of).sum(), of);
        self.site.is_none().then_some(counted)
    }

    /// Reads answers until a page of rows is full.
    async fn lines(
        &self,
        people: &People,
        mut question: Map<String, Value>,
        after: Option<&str>,
    ) -> Result<Found, Problem> {
        question.insert("output".to_owned(), json!("brief"));
        question.extend(self.standing.map(|standing| ("standing".to_owned(), json!([standing]))));
        question.extend(self.freshness.map(|freshness| ("freshness".to_owned(), json!([freshness]))));
        question.extend(self.site.as_ref().map(|site| ("site".to_owned(), json!([site]))));
        question.extend(after.map(|after| ("after".to_owned(), json!(after))));
        let mut lines: Vec<TargetStatus> = Vec::new();
        for _ in 0..STEPS_MAX {
            question.insert("limit".to_owned(), json!(ROWS_MAX - lines.len()));
            let answer: StatusAnswer = understood(&people.hub.history("status", &question).await?)?;
            lines.extend(answer.targets);
            match answer.next {
                Some(next) if lines.len() < ROWS_MAX => question.insert("after".to_owned(), json!(next)),
                next => return Ok(Found { lines, next }),
            };
        }
        Err(Problem::passing(axum::http::StatusCode::SERVICE_UNAVAILABLE, "the list of devices does not end"))
    }

    /// The command that lists the same.
    fn command(&self, id: &DeploymentId) -> String {
        let flags = [
            ("standing", self.standing.map(|standing| standing.as_str().to_owned())),
            ("freshness", self.freshness.map(|freshness| freshness_word(freshness).to_owned())),
            ("site", self.site.clone()),
        ];
        let flags = flags.into_iter().filter_map(|(flag, value)| Some(format!(" --{flag} {}", value?)));
        format!("muster status {id} --output brief{}", flags.collect::<String>())
    }

    fn words(&self) -> String {
        let heard =
            self.freshness.map_or_else(String::new, |freshness| format!(", {}", freshness_word(freshness)));
        let site = self.site.as_ref().map_or_else(String::new, |site| format!(" at {site}"));
        format!("{}{heard}{site}", self.standing.map_or("all standings", Standing::as_str))
    }

    /// The filters as a query string that another parameter may follow.
    fn query(&self, values: &Values) -> String {
        let names = ["at", "standing", "freshness", "site"];
        names.into_iter().filter_map(|name| Some(format!("{name}={}&", encoded(values.get(name)?)))).collect()
    }

    fn form(&self, values: &Values) -> Markup {
        html! {
            form.filters method="get" {
                label { "standing" select name="standing" {
                    option value="" { "any" }
                    @for one in Standing::ALL { option value=(one.as_str()) selected[self.standing == Some(one)] { (one.as_str()) } }
                } }
                label { "heard" select name="freshness" {
                    option value="" { "any" }
                    @for one in HEARD { option value=(freshness_word(one)) selected[self.freshness == Some(one)] { (freshness_word(one)) } }
                } }
                label { "site" input type="text" name="site" value=[self.site.as_ref()]; }
                @if let Some(at) = values.get("at") { input type="hidden" name="at" value=(at); }
                button.act type="submit" { "Filter" }
            }
        }
    }
}

fn table(lines: &[TargetStatus], id: &DeploymentId, now: Timestamp) -> Markup {
    html! {
        table {
            thead { tr { th { "Device" } th { "Standing" } th { "Reason" } th.right { "Heard" } th.right { "Changed" } } }
            tbody { @for line in lines {
                tr {
                    td.name { a href={ "/devices/" (encoded(line.key.site.as_str())) "/" (encoded(line.key.device.as_str())) } { (line.key) } }
                    td {
                        (standing(line.standing, line.freshness))
                        @if !line.known { " " span.tag.old { "? not known" } }
                        @if line.overdue { " " span.tag.bad { "\u{29d6} overdue" } }
                        @if line.leaving { " " span.tag.wait { "leaving" } }
                    }
                    td { (line.message) " " a href={ "/deployments/" (encoded(id.as_str())) "/why?device=" (encoded(&line.key.to_string())) } { "why" } }
                    td.right data-label="heard" { @match line.last_heard_at { Some(at) => (ago(at, now)), None => "never" } }
                    td.right data-label="changed" { @if let Some(at) = line.changed_at { (ago(at, now)) } }
                }
            } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::deployment_view;
    use super::*;

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
