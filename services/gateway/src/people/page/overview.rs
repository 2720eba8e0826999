//! The first screen: one sentence of truth, deployments and sites worst first, and on the side everything that waits for a
//! person or is dark. It holds counts, never a row for each device of the fleet, so it is as large for 100,000 as for 20.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use maud::{Markup, html};
use muster_client::ask::understood;
use muster_contract::Timestamp;
use muster_contract::query::{DeploymentsAnswer, PAGE_MAX};
use muster_contract::timeline::TimelineAnswer;
use muster_contract::view::{DeploymentView, FleetView, SiteView, Verdict};
use serde_json::{Map, Value, json};

use super::command::Command;
use super::evidence;
use super::frame::{Frame, ProblemPage};
use super::incidents;
use super::parts::{
    ago, bar, cli, codes_left_out, count, deployment, encoded, freshness, installed, legend, none, number,
    panel, second, short, split, unknown, verdict,
};
use super::rollout;
use super::side::{Part, Side, deployments};
use super::silence::heat_map;
use super::timeline::{self, Chart};
use super::waiting;
use crate::login::current;
use crate::people::People;
use crate::people::api::params::{Kind, Param, Values, param};
use crate::people::live::CachedView;

/// Rows of a list of the first screen; the others are behind a link.
const ROWS_MAX: usize = 40;
/// Rows of a list on the side.
const SIDE_ROWS_MAX: usize = 8;

const PARAMS: [Param; 3] = [
    param("at", Kind::Time, "As known at this time"),
    param("all", Kind::Flag, "Every deployment and site"),
    timeline::SPAN,
];

/// The first screen.
pub(super) async fn page(
    State(people): State<People>,
    RawQuery(query): RawQuery,
) -> Result<Response, ProblemPage> {
    let values = Values::read(query.as_deref().unwrap_or_default(), &PARAMS)?;
    let rows = if values.get("all") == Some("true") { usize::MAX } else { ROWS_MAX };
    let now = people.clock.now();
    let mut question = values.question(now)?;
    question.retain(|field, _| field == "at");
    if question.is_empty() {
        let chart = Chart::of("/", &values, now, None)?;
        let offers = (current::offers_approvals(), current::offers_changes());
        let shown = (values.get(timeline::SPAN.name).map(str::to_owned), offers);
        let screen = async { present(&people, &chart, rows, now).await };
        let content = if rows == ROWS_MAX {
            people.shared.screen((people.feed.changes_seen(), now.as_second(), shown), screen).await
        } else {
            Arc::new(screen.await)
        };
        return Ok(Frame::live("Fleet", "Fleet").answer(&people, &content));
    }
    past(&people, question, &values, rows).await
}

/// The first screen of this moment.
async fn present(people: &People, chart: &Chart<'_>, rows: usize, now: Timestamp) -> Markup {
    let side = people.shared.side(&people.hub, now).await;
    let views = people.feed.views();
    let screen = Screen {
        fleet: views.fleet.as_ref().map(view),
        deployments: views.deployments.values().map(view).collect(),
        sites: views.sites.values().map(view).collect(),
        side: Some(&side),
        history: chart.draw(&side.timeline),
        timeline: &side.timeline,
        rows,
        now,
    };
    screen.draw()
}

fn view<V>(held: &Arc<CachedView<V>>) -> &V {
    &held.view
}

/// The first screen as known at a moment of the past, which the query service rebuilds.
async fn past(
    people: &People,
    mut question: Map<String, Value>,
    values: &Values,
    rows: usize,
) -> Result<Response, ProblemPage> {
    let at = question.get("at").and_then(Value::as_str).and_then(|at| at.parse().ok());
    let moment = people.hub.history("moment", &question).await?;
    question = Map::from_iter([("atSeq".to_owned(), moment["asOf"]["ledgerSeq"].clone())]);
    let fleet: FleetView = understood(&people.hub.history("fleet", &question).await?)?;
    question.insert("limit".to_owned(), json!(PAGE_MAX));
    let deployments: DeploymentsAnswer = understood(&people.hub.history("deployments", &question).await?)?;
    let then: Timestamp = at.unwrap_or(fleet.tally.as_of.at);
    let deployments = deployments.deployments.iter().collect();
    let timeline = people.shared.timeline(&people.hub, None).await;
    let history = Chart::of("/", values, people.clock.now(), Some(then))?.draw(&timeline);
    let sites = Vec::new();
    let screen = Screen {
        fleet: Some(&fleet),
        deployments,
        sites,
        side: None,
        history,
        timeline: &timeline,
        rows,
        now: then,
    };
    Ok(Frame::live("Fleet", "Fleet").at(Some(then)).answer(people, &screen.draw()))
}

/// Everything that the first screen shows.
struct Screen<'a> {
    fleet: Option<&'a FleetView>,
    deployments: Vec<&'a DeploymentView>,
    sites: Vec<&'a SiteView>,
    /// None of the past.
    side: Option<&'a Side>,
    history: Markup,
    timeline: &'a Part<TimelineAnswer>,
    rows: usize,
    now: Timestamp,
}

fn urgency(verdict: Verdict) -> usize {
    Verdict::WORST_FIRST.iter().position(|worse| *worse == verdict).unwrap_or_default()
}

/// The most urgent verdict of a site's deployments.
fn worst(deployments: &BTreeMap<Verdict, u64>) -> Option<Verdict> {
    deployments.keys().copied().min_by_key(|verdict| urgency(*verdict))
}

impl Screen<'_> {
    fn draw(&self) -> Markup {
        html! {
            @match self.fleet {
                Some(fleet) => (self.truth(fleet)),
                None => div.truth {
                    h1 { "No fact yet" }
                    p { "The hub has no device and no deployment. Enrol a device, or publish a repository." }
                },
            }
            (panel(html! { "History" }, html! {}, Some("muster timeline".into()), self.history.clone()))
            div.columns {
                div.column { (self.deployments()) @if self.side.is_some() { (self.sites()) } }
                @if let Some(side) = self.side {
                    div.column {
                        (waiting::panel(side, self.now))
                        (rollouts(side, self.now))
                        (self.dark(side))
                        (self.errors())
                        (incidents::panel(&side.incidents, self.now))
                        (quarantined(&side.quarantined))
                    }
                }
            }
        }
    }

    /// One sentence: what is worst, how much of the truth is certain, who is heard, what is on its way, as of when.
    fn truth(&self, fleet: &FleetView) -> Markup {
        let tally = &fleet.tally;
        let (lo, hi) = self
            .deployments
            .iter()
            .fold((0, 0), |(lo, hi), view| (lo + view.converged.lo, hi + view.converged.hi));
        let of: u64 = tally.deployments.values().sum();
        let missing = tally.complete.missing_reports;
        html! {
            section.truth aria-label="The truth in one sentence" {
                p.line {
                    @match worst(&tally.deployments) {
                        Some(worst) => {
                            (verdict(worst)) " "
                            a href={ "#" (worst.as_str()) } {
                                (number(tally.deployments.get(&worst).copied().unwrap_or_default())) " of " (count(of, "deployment"))
                            }
                            @let since = timeline::since(self.timeline, worst, self.now);
                            ": " (worst.rule()) @if !since.0.is_empty() { ", " (since) } ". "
                        }
                        None => "No deployment should run. ",
                    }
                    @if tally.targets > 0 {
                        @if lo == hi { strong.num { (number(lo)) } } @else { "Between " strong.num { (number(lo)) } " and " strong.num { (number(hi)) } }
                        " of " (count(tally.targets, "target")) " run what they should. "
                    }
                    "Devices: " (split(tally.devices, "/devices")) ". "
                    @if missing > 0 { (count(missing, "report")) " missing." }
                    @else { "Every report is in." }
                }
                @if !tally.hub.is_whole() {
                    p.dark { "The hub does not listen to " (count(tally.hub.unheard.len() as u64 + tally.hub.omitted, "partition"))
                        " of devices: their devices count as stale." }
                }
                (evidence::panel(&tally.evidence, tally.targets))
                div.meta {
                    span { "as of ledger " span.num #ledger-seq { (number(tally.as_of.ledger_seq)) } ", " (second(tally.as_of.at)) }
                    span { "digest " code #digest title=(tally.digest) data-digest=(tally.digest) { (short(&tally.digest.to_string())) } }
                    (cli("muster fleet"))
                }
            }
        }
    }

    fn deployments(&self) -> Markup {
        let mut sorted = self.deployments.clone();
        sorted.sort_by_key(|view| (urgency(view.verdict), &view.deployment));
        let (all, mut last) = (sorted.len(), None);
        let rows = html! {
            @if sorted.is_empty() { (none("No deployment.")) } @else {
                table {
                    thead { tr { th { "Deployment" } th { "Verdict" } th { "Targets by standing" } th.right { "Installed (certain\u{2013}possible)" } th.right { "Last change" } } }
                    tbody {
                        @for (at, view) in sorted.iter().take(self.rows).enumerate() {
                            @let first = last.replace(view.verdict) != Some(view.verdict);
                            (self.deployment(view, at, first))
                        }
                    }
                }
                @if all > self.rows { p.note.top-line { (number((all - self.rows) as u64)) " more, less urgent. " a href="/?all=true" { "Show all" } } }
            }
        };
        panel(
            html! { "Deployments, worst first" },
            html! { (number(all as u64)) },
            Some("muster status".into()),
            rows,
        )
    }

    fn deployment(&self, view: &DeploymentView, at: usize, is_first: bool) -> Markup {
        let address = format!("/deployments/{}", encoded(view.deployment.as_str()));
        let id = is_first.then_some(view.verdict.as_str());
        html! {
            tr id=[id] {
                td.name { (deployment(&view.deployment, &view.deployment_name)) }
                td { (verdict(view.verdict)) }
                td.wide {
                    (bar(&view.counts, &format!("d{at}")))
                    (legend(&view.counts, Some(&format!("{address}/devices"))))
                }
                td.right.num.nowrap data-label="installed" title="Installed for certain, and possibly, of all targets" {
                    a href={ (address) "/devices" } { (installed(view.converged, view.targets)) }
                    @if view.complete.missing_reports > 0 {
                        span.under { a href={ (address) "/why" } { (count(view.complete.missing_reports, "report")) " missing" } }
                    }
                }
                td.right data-label="last change" { @if let Some(at) = view.changed_at { (ago(at, self.now)) } }
            }
        }
    }

    fn sites(&self) -> Markup {
        let mut sorted = self.sites.clone();
        let rank = |site: &SiteView| worst(&site.tally.deployments).map_or(usize::MAX, urgency);
        sorted.sort_by_key(|site| (site.tally.devices.fresh > 0, rank(site), &site.site));
        let all = sorted.len();
        let rows = html! {
            @if sorted.is_empty() { (none("No site.")) } @else {
                (heat_map(&self.sites, self.rows))
                table {
                    thead { tr { th { "Site" } th { "Worst" } th { "Targets by standing" } th.right { "Devices heard" } th.right { "Last heard" } } }
                    tbody { @for (at, site) in sorted.iter().take(self.rows).enumerate() { (self.site(site, at)) } }
                }
                @if all > self.rows { p.note.top-line { (number((all - self.rows) as u64)) " more. " a href="/?all=true" { "Show all" } } }
            }
        };
        panel(html! { "Sites, silent and worst first" }, html! { (number(all as u64)) }, None, rows)
    }

    fn site(&self, site: &SiteView, at: usize) -> Markup {
        let tally = &site.tally;
        let (name, heard) = (site.site.as_str(), tally.devices.fresh);
        html! {
            tr {
                td.name { a href={ "/sites/" (encoded(name)) } { (name) } }
                td {
                    @if heard == 0 && tally.devices.total() > 0 { span.tag.hollow { span aria-hidden="true" { "\u{25cc}" } "silent" } }
                    @else if let Some(worst) = worst(&tally.deployments) { (verdict(worst)) }
                }
                td.wide { (bar(&tally.counts, &format!("s{at}"))) (legend(&tally.counts, None)) }
                td.right.num data-label="heard" {
                    a href={ "/devices?site=" (encoded(name)) } { (number(heard)) " of " (number(tally.devices.total())) }
                }
                td.right data-label="last heard" { @if let Some(at) = tally.last_heard_at { (ago(at, self.now)) } }
            }
        }
    }

    /// Devices that are not heard, the longest silence first.
    fn dark(&self, side: &Side) -> Markup {
        let split = self.fleet.map(|fleet| fleet.tally.devices).unwrap_or_default();
        let total = split.stale + split.never;
        let rows = match &side.dark {
            Err(why) => unknown(why),
            Ok(devices) if devices.is_empty() && total == 0 => none("Every device is heard."),
            Ok(devices) => html! {
                @if devices.is_empty() { (none("The hub does not hear the partitions of these devices: their silence is unknown.")) }
                ul.rows {
                    @for line in devices {
                        li.head {
                            a href={ "/devices/" (encoded(line.key.site.as_str())) "/" (encoded(line.key.device.as_str())) } { (line.key) }
                            span { @match line.last_heard_at { Some(at) => span.soft { "last heard " (ago(at, self.now)) }, None => (freshness(line.freshness)) } }
                        }
                    }
                }
                @if total > devices.len() as u64 {
                    p.note.top-line {
                        a href="/devices?bySilence=true" { "More by silence" } ", " a href="/devices?freshness=stale,never" { "all " (number(total)) " by name" }
                    }
                }
            },
        };
        let command = "muster devices --by-silence".into();
        panel(html! { "Dark devices" }, html! { (number(total)) }, Some(command), rows)
    }

    /// Error codes of all deployments, the most frequent first, each with one example.
    fn errors(&self) -> Markup {
        let mut codes: BTreeMap<&str, (u64, &DeploymentView, usize)> = BTreeMap::new();
        for view in &self.deployments {
            for (at, error) in view.errors.iter().enumerate() {
                let sum = codes.entry(&error.code).or_insert((0, view, at));
                sum.0 += error.count;
            }
        }
        let mut sorted: Vec<_> = codes.into_iter().collect();
        sorted.sort_by_key(|(code, (count, ..))| (std::cmp::Reverse(*count), *code));
        // Two views may leave out the same code, or a code that another view shows.
        let omitted: u64 = self.deployments.iter().map(|view| view.omitted.errors).sum();
        let left_out = sorted.len().saturating_sub(SIDE_ROWS_MAX) as u64 + omitted;
        let rows = html! {
            @if sorted.is_empty() { (none("No target reports an error.")) } @else {
                ul.rows {
                    @for (code, (sum, view, at)) in sorted.iter().take(SIDE_ROWS_MAX) {
                        @let example = &view.errors[*at].example;
                        li {
                            div.head {
                                code { (code) }
                                a href={ "/devices?error=" (encoded(code)) } { (count(*sum, "target")) }
                            }
                            p.more {
                                a href={ "/deployments/" (encoded(view.deployment.as_str())) "/why?device=" (encoded(&example.device.to_string())) } { (example.device) }
                                ": " (example.message)
                            }
                        }
                    }
                }
                (codes_left_out(left_out, omitted > 0))
            }
        };
        let total = html! { @if omitted > 0 { "at least " } (number(sorted.len() as u64)) };
        let codes = sorted.iter().take(SIDE_ROWS_MAX);
        let all = Command::from("muster devices");
        let command = codes.fold(all, |command, (code, _)| command.flag("--error", code));
        panel(html! { "Errors" }, total, (!sorted.is_empty()).then_some(command), rows)
    }
}

fn rollouts(side: &Side, now: Timestamp) -> Markup {
    let rows = match (&side.held, &side.rollouts) {
        (Err(why), _) => unknown(why),
        (Ok(held), _) if held.held.is_empty() && held.open.is_empty() => {
            none("No change waits for its release.")
        }
        (Ok(_), Err(why)) => unknown(why),
        (Ok(_), Ok(rollouts)) => html! {
            ul.rows { @for (at, progress) in rollouts.iter().enumerate() { li { (rollout::summary(progress, at, now)) } } }
        },
    };
    let total = side.held.as_ref().map(|held| deployments(held).len()).unwrap_or_default();
    panel(
        html! { a href="/rollouts" { "Rollouts" } },
        html! { (number(total as u64)) },
        Some("muster rollout list".into()),
        rows,
    )
}

fn quarantined(quarantined: &Part<(u64, bool)>) -> Markup {
    let words = |(held, more): (u64, bool)| {
        let least = if more { "at least " } else { "" };
        format!("{least}{}", count(held, "rejected report"))
    };
    let rows = match quarantined {
        Err(why) => unknown(why),
        Ok((0, _)) => none("No report is in quarantine."),
        Ok(held) => html! { p.body { a href="/quarantine" { (words(*held)) " wait for a decision" } } },
    };
    panel(
        html! { a href="/quarantine" { "Quarantine" } },
        html! {},
        Some("muster quarantine list".into()),
        rows,
    )
}

#[cfg(test)]
mod tests {
    use super::super::samples::{deployment_view, site_view};
    use super::*;

    static NO_TIMELINE: Part<TimelineAnswer> = Err(String::new());

    fn screen<'a>(deployments: &'a [DeploymentView], sites: &'a [SiteView]) -> Screen<'a> {
        let (deployments, sites) = (deployments.iter().collect(), sites.iter().collect());
        let now = "2026-11-20T08:00:00Z".parse().unwrap();
        let history = html! {};
        Screen {
            fleet: None,
            deployments,
            sites,
            side: None,
            history,
            timeline: &NO_TIMELINE,
            rows: ROWS_MAX,
            now,
        }
    }

    #[test]
    fn a_cut_list_of_errors_says_how_many_codes_are_left_out() {
        let codes: Vec<String> = (0..=SIDE_ROWS_MAX).map(|at| format!("E{at}")).collect();
        let errors: Vec<_> = codes.iter().map(|code| (code.as_str(), 2)).collect();
        let few = [deployment_view("web", &errors[1..], 0)];
        let all = [deployment_view("web", &errors, 0)];
        let cut = [deployment_view("db", &errors, 5), deployment_view("web", &errors[..1], 2)];
        let shown = |deployments: &[DeploymentView]| screen(deployments, &[]).errors().into_string();
        assert!(!shown(&few).contains("Not shown"), "{}", shown(&few));
        assert!(shown(&all).contains("Not shown: 1 more error code,"), "{}", shown(&all));
        assert!(shown(&cut).contains("Not shown: up to 8 more error codes,"), "{}", shown(&cut));
        assert!(shown(&cut).contains("at least 9"), "{}", shown(&cut));
    }

    #[test]
    fn the_command_of_errors_names_the_codes_that_are_shown() {
        let shown =
            |codes: &[(&str, u64)]| screen(&[deployment_view("web", codes, 0)], &[]).errors().into_string();
        let some = shown(&[("E-DISK", 2), ("no room", 1)]);
        assert!(some.contains("<code>muster devices --error E-DISK --error 'no room'</code>"), "{some}");
        assert!(!shown(&[]).contains("muster devices"), "{}", shown(&[]));
    }

    #[test]
    fn installed_and_missing_reports_of_a_row_open_what_is_behind_them() {
        let mut views = [deployment_view("web", &[], 0)];
        views[0].complete.missing_reports = 2;
        let shown = screen(&views, &[]).deployments().into_string();
        assert!(shown.contains("<a href=\"/deployments/web/devices\">0 of 0</a>"), "{shown}");
        assert!(shown.contains("<a href=\"/deployments/web/why\">2 reports missing</a>"), "{shown}");
    }

    #[test]
    fn the_sites_have_a_heat_map_if_there_is_a_site() {
        let split = muster_contract::view::Split { fresh: 1, stale: 1, never: 0 };
        let shown = screen(&[], &[site_view("plant7", split, 0)]).sites().into_string();
        assert!(shown.contains("cell silence-3") && shown.contains("<table"), "{shown}");
        assert!(!screen(&[], &[]).sites().into_string().contains("heat"));
    }
}
