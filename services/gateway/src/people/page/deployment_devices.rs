//! The devices behind a number of a deployment: the list with its filters, and its total where one is known.

use axum::extract::{RawQuery, State};
use axum::response::Response;
use maud::{Markup, html};
use muster_client::ask::understood;
use muster_contract::query::DeploymentAnswer;
use muster_contract::status::{StatusAnswer, TargetStatus};
use muster_contract::view::{DeploymentView, Freshness, Standing};
use muster_contract::{DeploymentId, Timestamp};
use serde_json::{Map, Value, json};

use super::command::Command;
use super::deployment::{AT, Path, STEPS_MAX, name, question};
use super::frame::{Frame, ProblemPage};
use super::parts::{
    HEARD, ago, encoded, freshness_word, none, number, panel, second, standing, total, under_name,
};
use super::rollout::{deployment, names};
use crate::people::People;
use crate::people::api::params::{Kind, Param, Values, param};
use crate::problem::Problem;

/// Rows of a page of devices.
const ROWS_MAX: usize = 100;

const PARAMS: [Param; 6] = [
    AT,
    param("standing", Kind::Text, "Only this standing"),
    param("freshness", Kind::Text, "Only devices that are heard so"),
    param("site", Kind::Text, "Only this site"),
    param("error", Kind::Text, "Only with an error of this code"),
    param("after", Kind::Text, "Devices after this one"),
];

/// The page.
pub(super) async fn page(
    State(people): State<People>,
    path: Path,
    RawQuery(query): RawQuery,
) -> Result<Response, ProblemPage> {
    let id = deployment(&names(path)?)?;
    let values = Values::of_filters(query.as_deref().unwrap_or_default(), &PARAMS)?;
    let now = people.clock.now();
    let (question, then) = question(&id, &values, now)?;
    let filter = Filter::read(&values)?;
    let view = people.hub.history("deployment", &question).await?;
    let DeploymentAnswer { view, .. } = understood(&view)?;
    let found = filter.lines(&people, question, values.get("after")).await?;
    let total =
        filter.total(&view).or_else(|| total(values.get("after"), found.next.as_deref(), found.lines.len()));
    let command = filter.command(&id);
    let rows = html! {
        (filter.form(&values))
        @if found.lines.is_empty() { (none("No device passes the filters.")) } @else { (table(&found.lines, &id, then.unwrap_or(now))) }
        @if let Some(next) = &found.next { p.pager { a href={ "?" (filter.query(&values)) "after=" (encoded(next)) } { "Next devices" } } }
    };
    let content = html! {
        p.crumbs { a href="/" { "Fleet" } " / " a href={ "/deployments/" (encoded(id.as_str())) } { (name(&view)) } " / devices" }
        div.truth {
            h1 { "Devices of " (name(&view)) }
            div.meta { (under_name(&view.deployment, &view.deployment_name)) span { "as of ledger " (number(view.as_of.ledger_seq)) ", " (second(view.as_of.at)) } }
        }
        (panel(html! { (filter.words()) }, html! { @if let Some(total) = total { (number(total)) " in all" } }, Some(command), rows))
    };
    Ok(Frame::live(format!("Devices of {}", name(&view)), "Fleet").at(then).answer(&people, &content))
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
    error: Option<String>,
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
            error: values.get("error").map(str::to_owned),
        })
    }

    /// How many pass, where the view counts that.
    fn total(&self, view: &DeploymentView) -> Option<u64> {
        let of = |standing: Standing| {
            let mut split = view.counts.get(&standing).copied().unwrap_or_default();
            self.freshness.map_or(split.total(), |freshness| *split.get_mut(freshness))
        };
        match (&self.site, &self.error) {
            (None, None) => Some(self.standing.map_or_else(|| Standing::ALL.into_iter().map(of).sum(), of)),
            (None, Some(code)) if self.standing.is_none() && self.freshness.is_none() => {
                view.errors.iter().find(|error| error.code == *code).map(|error| error.count)
            }
            _ => None,
        }
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
        question.extend(self.error.as_ref().map(|code| ("error".to_owned(), json!([code]))));
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
    fn command(&self, id: &DeploymentId) -> Command {
        let flags = [
            ("--standing", self.standing.map(Standing::as_str)),
            ("--freshness", self.freshness.map(freshness_word)),
            ("--site", self.site.as_deref()),
            ("--error", self.error.as_deref()),
        ];
        let command = Command::from("muster status").with(id).flag("--output", "brief");
        let flags = flags.into_iter().filter_map(|(flag, value)| Some((flag, value?)));
        flags.fold(command, |command, (flag, value)| command.flag(flag, value))
    }

    fn words(&self) -> String {
        let heard =
            self.freshness.map_or_else(String::new, |freshness| format!(", {}", freshness_word(freshness)));
        let site = self.site.as_ref().map_or_else(String::new, |site| format!(" at {site}"));
        let error = self.error.as_ref().map_or_else(String::new, |code| format!(" with error {code}"));
        format!("{}{heard}{site}{error}", self.standing.map_or("all standings", Standing::as_str))
    }

    /// The filters as a query string that another parameter may follow.
    fn query(&self, values: &Values) -> String {
        let names = ["at", "standing", "freshness", "site", "error"];
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
                label { "error code" input type="text" name="error" value=[self.error.as_ref()]; }
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

    fn filter(query: &str) -> Filter {
        Filter::read(&Values::of_filters(query, &PARAMS).unwrap()).unwrap()
    }

    #[test]
    fn the_empty_fields_of_the_form_are_no_filters() {
        let values = Values::of_filters("standing=&freshness=stale&site=&error=", &PARAMS).unwrap();
        let filter = Filter::read(&values).unwrap();
        assert_eq!((filter.standing, filter.freshness), (None, Some(Freshness::Stale)));
        assert_eq!((filter.query(&values).as_str(), filter.site), ("freshness=stale&", None));
    }

    #[test]
    fn a_list_has_the_total_of_the_number_that_opens_it() {
        let mut view = deployment_view("web", &[("E1", 3)], 0);
        view.counts.entry(Standing::Failed).or_default().stale = 2;
        view.counts.entry(Standing::Installed).or_default().fresh = 5;
        for (query, total) in [
            ("", Some(7)),
            ("standing=failed&freshness=stale", Some(2)),
            ("error=E1", Some(3)),
            ("error=E2", None),
            ("error=E1&standing=failed", None),
            ("site=plant7", None),
        ] {
            assert_eq!(filter(query).total(&view), total, "{query}");
        }
    }

    #[test]
    fn the_command_lists_the_same_and_its_values_are_single_arguments() {
        let command = filter("error=no%20room;%20reboot&site=plant7").command(&"web".parse().unwrap());
        assert_eq!(
            command.at(None),
            "muster status web --output brief --site plant7 --error 'no room; reboot'"
        );
    }
}
