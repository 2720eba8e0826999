//! One site as a whole: its truth, its counts, and the deployments as they are there alone.

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, RawQuery, State};
use axum::response::Response;
use maud::{Markup, html};
use muster_client::ask::understood;
use muster_contract::Timestamp;
use muster_contract::query::{DeploymentsAnswer, PAGE_MAX};
use muster_contract::view::{SiteView, Verdict};
use serde_json::{Value, json};

use super::command::Command;
use super::evidence;
use super::frame::{Frame, ProblemPage};
use super::parts::{
    ago, bar, cli, count, deployment, encoded, installed, legend, none, number, panel, second, sentence,
    short, split, verdict,
};
use super::rollout::names;
use crate::people::People;
use crate::people::api::params::{Kind, Param, Values, param};

const PARAMS: [Param; 1] = [param("at", Kind::Time, "As known at this time")];

/// One site.
pub(super) async fn page(
    State(people): State<People>,
    path: Result<RawPathParams, RawPathParamsRejection>,
    RawQuery(query): RawQuery,
) -> Result<Response, ProblemPage> {
    let mut question = names(path)?;
    let values = Values::read(query.as_deref().unwrap_or_default(), &PARAMS)?;
    let now = people.clock.now();
    question.extend(values.question(now)?);
    let then: Option<Timestamp> = question.get("at").and_then(Value::as_str).and_then(|at| at.parse().ok());
    let site: SiteView = understood(&people.hub.history("site", &question).await?)?;
    question.insert("limit".to_owned(), json!(PAGE_MAX));
    let mut there: DeploymentsAnswer = understood(&people.hub.history("deployments", &question).await?)?;
    let rank = |verdict: Verdict| Verdict::WORST_FIRST.iter().position(|worse| *worse == verdict);
    there.deployments.sort_by_key(|view| (rank(view.verdict), view.deployment.clone()));
    let silence = there.silent_sites.of(&site.site).map(|silent| silent.since);
    let content = html! {
        p.crumbs { a href="/" { "Fleet" } " / site" }
        (truth(&site, silence, then.unwrap_or(now)))
        (panel(html! { "Deployments as they are here" }, html! { (number(there.deployments.len() as u64)) },
            Some(Command::from("muster status").flag("--site", &site.site)), table(&there, site.site.as_str())))
    };
    let mut frame = Frame::live(format!("Site {}", site.site), "Fleet");
    frame.stream = Some(format!("/api/v1/watch/sites/{}", encoded(site.site.as_str())));
    Ok(frame.at(then).answer(&people, &content))
}

fn truth(site: &SiteView, silence: Option<Timestamp>, now: Timestamp) -> Markup {
    let tally = &site.tally;
    let devices = format!("/devices?site={}", encoded(site.site.as_str()));
    html! {
        section.truth {
            h1 { "Site " (site.site) }
            @if let Some(since) = silence {
                p.dark { "No device of this site is heard since " (second(since)) " (" (ago(since, now)) "): the line, the power, or the hub." }
            }
            p.line {
                @if tally.message.is_empty() { "No deployment should run here" } @else { (sentence(&tally.message)) } ". Devices: "
                (split(tally.devices, &devices)) ". "
                @if tally.complete.missing_reports > 0 { (count(tally.complete.missing_reports, "report")) " missing." } @else { "Every report is in." }
            }
            (bar(&tally.counts, "all"))
            (legend(&tally.counts, None))
            (evidence::panel(&tally.evidence, tally.targets))
            div.meta {
                span { "as of ledger " (number(tally.as_of.ledger_seq)) ", " (second(tally.as_of.at)) }
                span { "digest " code #digest title=(tally.digest) data-digest=(tally.digest) { (short(&tally.digest.to_string())) } }
                (cli(Command::from("muster site").with(&site.site)))
            }
        }
    }
}

fn table(there: &DeploymentsAnswer, site: &str) -> Markup {
    html! {
        @if there.deployments.is_empty() { (none("No deployment.")) } @else {
            table {
                thead { tr { th { "Deployment" } th { "Verdict here" } th { "Targets by standing" } th.right { "Installed (certain\u{2013}possible)" } } }
                tbody { @for (at, view) in there.deployments.iter().enumerate() {
                    @let devices = format!("/deployments/{}/devices?site={}", encoded(view.deployment.as_str()), encoded(site));
                    tr {
                        td.name { (deployment(&view.deployment, &view.deployment_name)) }
                        td { (verdict(view.verdict)) }
                        td.wide { (bar(&view.counts, &format!("d{at}"))) (legend(&view.counts, Some(&devices))) }
                        td.right.num data-label="installed" title="Installed for certain, and possibly, of all targets here" {
                            a href=(devices) { (installed(view.converged, view.targets)) }
                        }
                    }
                } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::view::Standing;
    use serde_json::json;

    use super::super::samples::deployment_view;
    use super::*;

    #[test]
    fn every_number_of_a_row_opens_the_devices_at_this_site() {
        let mut view = deployment_view("web", &[], 0);
        view.counts.entry(Standing::Failed).or_default().stale = 2;
        (view.targets, view.converged.hi) = (2, 2);
        let there = json!({ "asOf": view.as_of, "deployments": [view] });
        let shown = table(&serde_json::from_value(there).unwrap(), "plant7").into_string();
        let address = "href=\"/deployments/web/devices?site=plant7";
        assert!(shown.contains(&format!("{address}\">0\u{2013}2 of 2</a>")), "{shown}");
        assert!(shown.contains(&format!("{address}&amp;standing=failed&amp;freshness=stale\">")), "{shown}");
    }
}
