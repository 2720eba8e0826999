//! Devices: the list with its filters, and one device with everything it shall run.

use std::collections::BTreeSet;

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, RawQuery, State};
use axum::response::Response;
use maud::{Markup, html};
use muster_client::ask::understood;
use muster_contract::host::Host;
use muster_contract::query::{DeviceAnswer, DeviceLine, DevicesAnswer};
use muster_contract::status::TargetStatus;
use muster_contract::view::{Freshness, Split};
use muster_contract::{SiteId, Timestamp};
use serde_json::{Value, json};

use super::command::Command;
use super::frame::{Frame, ProblemPage, present_views};
use super::parts::{
    HEARD, ago, cli, deployment, encoded, freshness, freshness_word, none, number, panel, second, standing,
    tint, total, verdict,
};
use super::rollout::names;
use crate::people::People;
use crate::people::api::params::{Kind, Param, Values, param};
use crate::people::live::Views;

/// Rows of a page.
const ROWS_MAX: usize = 100;
/// Answers that are read for one page at most, if they hold no device that passes.
const STEPS_MAX: usize = 200;

const LIST_PARAMS: [Param; 9] = [
    param("at", Kind::Time, "As known at this time"),
    param("site", Kind::List, "Only this site"),
    param("device", Kind::Text, "Only devices of this name"),
    param("freshness", Kind::Words, "fresh, stale, never"),
    param("error", Kind::List, "Only with an error of this code"),
    param("version", Kind::List, "Only with this version of the agent"),
    param("notRunning", Kind::Text, "Only targets of this deployment that have not installed it"),
    param("bySilence", Kind::Flag, "Only stale and never heard devices, the longest silence first"),
    param("after", Kind::Text, "Devices after this one"),
];

/// The devices that pass filters.
pub(super) async fn list(
    State(people): State<People>,
    RawQuery(query): RawQuery,
) -> Result<Response, ProblemPage> {
    let values = Values::of_filters(query.as_deref().unwrap_or_default(), &LIST_PARAMS)?;
    let now = people.clock.now();
    let mut question = values.question(now)?;
    let then: Option<Timestamp> = question.get("at").and_then(Value::as_str).and_then(|at| at.parse().ok());
    question.insert("limit".to_owned(), json!(ROWS_MAX));
    let mut answer: DevicesAnswer = understood(&people.hub.history("devices", &question).await?)?;
    for _ in 0..STEPS_MAX {
        // A page of the answer may hold none that passes.
        let Some(next) = answer.next.as_ref().filter(|_| answer.devices.is_empty()) else { break };
        question.insert("after".to_owned(), json!(next));
        answer = understood(&people.hub.history("devices", &question).await?)?;
    }
    let views = present_views(&people, then);
    let rows = html! {
        (form(&values))
        @if answer.devices.is_empty() { (none("No device passes the filters.")) } @else { (table(&answer.devices, &views, then.unwrap_or(now))) }
        @if let Some(next) = &answer.next { p.pager { a href={ "?" (kept(&values)) "after=" (encoded(next)) } { "Next devices" } } }
    };
    let (command, count) = (command(&values), counted(&answer, &values, &views));
    let content = html! {
        div.truth { h1 { "Devices" } div.meta { span { "as of ledger " (number(answer.as_of.ledger_seq)) ", " (second(answer.as_of.at)) } } }
        (panel(html! { (words(&values)) }, html! { (count) }, Some(command), rows))
    };
    Ok(Frame::live("Devices", "Devices").at(then).answer(&people, &content))
}

/// How many devices pass: all of them if that is known, else those of this page.
fn counted(answer: &DevicesAnswer, values: &Values, views: &Views) -> String {
    if let Some(total) = total(values.get("after"), answer.next.as_deref(), answer.devices.len()) {
        return format!("{} in all", number(total));
    }
    // A list by silence leaves out devices of partitions that the hub does not hear, and views count them.
    let is_counted = !is_by_silence(values) || answer.hub.is_whole();
    match known_total(values, views).filter(|_| is_counted) {
        // Views do not count retired devices, and only a list without this filter has them.
        Some(total) if heard(values).is_empty() => format!("{}, and retired ones", number(total)),
        Some(total) => format!("{} in all", number(total)),
        None => format!("{} on this page", number(answer.devices.len() as u64)),
    }
}

fn is_by_silence(values: &Values) -> bool {
    values.get("bySilence") == Some("true")
}

/// How many devices pass that are not retired, if views count that: by site and freshness alone.
fn known_total(values: &Values, views: &Views) -> Option<u64> {
    if ["device", "error", "version", "notRunning"].iter().any(|name| values.get(name).is_some()) {
        return None;
    }
    let sites: BTreeSet<&str> = values.all("site").collect();
    let heard = heard(values);
    let of = |mut split: Split| {
        let passing =
            HEARD.into_iter().filter(|one| heard.is_empty() || heard.contains(freshness_word(*one)));
        passing.map(|freshness| *split.get_mut(freshness)).sum::<u64>()
    };
    if sites.is_empty() {
        return views.fleet.as_ref().map(|fleet| of(fleet.view.tally.devices));
    }
    let site = |name: &str| views.sites.get(&name.parse::<SiteId>().ok()?);
    sites.into_iter().map(|name| Some(of(site(name)?.view.tally.devices))).sum()
}

/// The words of the filter by freshness.
fn heard(values: &Values) -> BTreeSet<&str> {
    if is_by_silence(values) {
        return BTreeSet::from(["never", "stale"]);
    }
    values.all("freshness").flat_map(|words| words.split(',')).collect()
}

/// The filters in words.
fn words(values: &Values) -> String {
    let heard = heard(values);
    let freshness: Vec<&str> = if heard == BTreeSet::from(["never", "stale"]) {
        vec!["not heard"]
    } else {
        heard.into_iter().map(|word| if word == "never" { "never heard" } else { word }).collect()
    };
    let mut words = "Devices".to_owned();
    for (before, said) in [
        (" named ", values.all("device").collect()),
        (" ", freshness),
        (" at ", values.all("site").collect()),
        (" with error ", values.all("error").collect::<Vec<_>>()),
        (" with agent version ", values.all("version").collect()),
        (" that have not installed ", values.all("notRunning").collect()),
    ] {
        if !said.is_empty() {
            words += &format!("{before}{}", said.join(" or "));
        }
    }
    if is_by_silence(values) {
        words += ", the longest silence first";
    }
    if words == "Devices" { "All devices".to_owned() } else { words }
}

/// The command that lists the same.
fn command(values: &Values) -> Command {
    let is_by_silence = is_by_silence(values);
    let mut command =
        Command::from(if is_by_silence { "muster devices --by-silence" } else { "muster devices" });
    for (name, flag) in
        [("site", "--site"), ("error", "--error"), ("version", "--version"), ("notRunning", "--not-running")]
    {
        command = values.all(name).fold(command, |command, value| command.flag(flag, value));
    }
    if is_by_silence {
        return command;
    }
    heard(values).into_iter().fold(command, |command, word| command.flag("--freshness", word))
}

/// The filters as a query string that another parameter may follow.
fn kept(values: &Values) -> String {
    let names = LIST_PARAMS.iter().map(|param| param.name).filter(|name| *name != "after");
    names.flat_map(|name| values.all(name).map(move |value| format!("{name}={}&", encoded(value)))).collect()
}

fn form(values: &Values) -> Markup {
    let is_by_silence = is_by_silence(values);
    let fields = [
        ("site", "site"),
        ("error", "error code"),
        ("version", "agent version"),
        ("notRunning", "not running"),
    ];
    // A list by silence takes no other filter.
    let fields = if is_by_silence { &fields[..1] } else { &fields[..] };
    html! {
        form.filters method="get" {
            @if is_by_silence { input type="hidden" name="bySilence" value="true"; } @else {
                label { "heard" select name="freshness" {
                    @for (value, word) in [("", "any"), ("fresh", "fresh"), ("stale", "stale"), ("never", "never"), ("stale,never", "not heard")] {
                        option value=(value) selected[values.get("freshness").unwrap_or_default() == value] { (word) }
                    }
                } }
            }
            @for (name, word) in fields {
                label { (word) input type="text" name=(name) value=[values.get(name)]; }
            }
            @if let Some(at) = values.get("at") { input type="hidden" name="at" value=(at); }
            button.act type="submit" { "Filter" }
        }
    }
}

fn table(devices: &[DeviceLine], views: &Views, now: Timestamp) -> Markup {
    html! {
        table {
            thead { tr { th { "Device" } th { "Heard" } th { "Targets by standing" } th.right { "Reports missing" } th.right { "Last heard" } } }
            tbody { @for line in devices {
                tr {
                    td.name { a href={ "/devices/" (encoded(line.key.site.as_str())) "/" (encoded(line.key.device.as_str())) } { (line.key) } }
                    td {
                        @if line.retired { span.tag.wait { "retired" } } @else { (freshness(line.freshness)) }
                        @if !line.storing { " " span.tag.bad { "cannot store" } }
                        @if let Some(host) = line.hosted_by.as_ref().filter(|host| line.freshness != Freshness::Fresh && !host.is_well()) {
                            " hosted by " (self::host(host, views))
                        }
                        @if line.incidents > 0 { " " span.tag.old { (number(line.incidents)) " incidents" } }
                    }
                    td { span.legend { @for (standing, count) in &line.standings {
                        span { span.key.(tint(*standing)) aria-hidden="true" {} b { (number(*count)) } " " (standing.as_str()) }
                    } } }
                    td.right.num data-label="missing" { (number(line.account.missing.count())) }
                    td.right data-label="last heard" { @match line.last_heard_at { Some(at) => (ago(at, now)), None => "never" } }
                }
            } }
        }
    }
}

/// The deployment that hosts a device.
fn host(host: &Host, views: &Views) -> Markup {
    let Host { deployment: id, verdict: of } = host;
    html! { (deployment(id, views.name_of(id))) " " (verdict(*of)) }
}

/// One device.
pub(super) async fn page(
    State(people): State<People>,
    path: Result<RawPathParams, RawPathParamsRejection>,
    RawQuery(query): RawQuery,
) -> Result<Response, ProblemPage> {
    let mut question = names(path)?;
    let values = Values::read(query.as_deref().unwrap_or_default(), &LIST_PARAMS[..1])?;
    let now = people.clock.now();
    question.extend(values.question(now)?);
    question.insert("output".to_owned(), json!("detail"));
    let then: Option<Timestamp> = question.get("at").and_then(Value::as_str).and_then(|at| at.parse().ok());
    let answer: DeviceAnswer = understood(&people.hub.history("device", &question).await?)?;
    let (key, views) = (&answer.device.key, present_views(&people, then));
    let content = html! {
        p.crumbs { a href="/devices" { "Devices" } " / " a href={ "/sites/" (encoded(key.site.as_str())) } { (key.site) } }
        div.truth {
            div.titled { h1 { (key) } (freshness(answer.device.freshness)) @if answer.device.retired { span.tag.wait { "retired" } } }
            div.meta {
                span { "as of ledger " (number(answer.as_of.ledger_seq)) ", " (second(answer.as_of.at)) }
                @if let Some(host) = &answer.device.hosted_by { span { "hosted by " (self::host(host, &views)) } }
                (cli(Command::from("muster device").with(key)))
            }
        }
        div.columns {
            div.column {
                (panel(html! { "Deployments" }, html! { (number(answer.deployments.len() as u64)) }, Some(Command::from("muster status").flag("--device", key)), html! {
                    @if answer.deployments.is_empty() { (none("Nothing should run here.")) }
                    ul.rows { @for line in &answer.deployments { li { (target(line, &views, then.unwrap_or(now))) } } }
                }))
            }
            div.column { (reports(&answer, then.unwrap_or(now))) (capabilities(&answer)) }
        }
    };
    Ok(Frame::live(key.to_string(), "Devices").at(then).answer(&people, &content))
}

fn target(line: &TargetStatus, views: &Views, now: Timestamp) -> Markup {
    let id = encoded(line.deployment.as_str());
    html! {
        div.head {
            div { (deployment(&line.deployment, views.name_of(&line.deployment))) }
            span {
                (standing(line.standing, line.freshness))
                @if !line.known { " " span.tag.old { "? not known" } }
                @if line.overdue { " " span.tag.bad { "\u{29d6} overdue" } }
                " " a href={ "/deployments/" (id) "/why?device=" (encoded(&line.key.to_string())) } { "why" }
            }
        }
        @if !line.message.is_empty() { p.more { (line.message) } }
        @if let Some(report) = &line.report {
            p.more { "report " (report.seq) ", ledger " (report.ledger_seq) ", received " (ago(report.received_at, now))
                @if !report.evidence_source().is_every_change() { ", " (report.fidelity.as_str()) " by " (report.origin.as_str()) ": not every change is reported" }
            }
            @for component in &report.components {
                p.more {
                    span.key.(tint(component.state.into())) aria-hidden="true" {} (component.name) ": "
                    (muster_contract::view::Standing::from(component.state).as_str())
                    @if let Some(error) = &component.error { ", " code { (error.code) } " " (error.message) }
                }
            }
        }
    }
}

fn reports(answer: &DeviceAnswer, now: Timestamp) -> Markup {
    let line = &answer.device;
    let account = &line.account;
    panel(
        html! { "Reports" },
        html! {},
        None,
        html! {
            dl.pairs.body {
                dt { "Highest number" } dd.num { (number(line.head)) @if let Some(epoch) = line.epoch { " of epoch " (epoch) } }
                dt { "Received" } dd.num { (number(account.received)) }
                dt { "Coalesced" } dd.num { (number(account.coalesced)) }
                dt { "In quarantine" } dd.num { (number(account.quarantined)) }
                dt { "Missing" } dd.num { (number(account.missing.count())) }
                dt { "Last heard" } dd { @match line.last_heard_at { Some(at) => { (second(at)) ", " (ago(at, now)) }, None => "never" } }
                @if let Some(at) = line.token_ends_at { dt { "Token ends" } dd { (second(at)) } }
                @if let Some(refusal) = &line.refused {
                    dt { "Refuses" } dd { (refusal.refused()) ", since " (ago(refusal.since, now)) ": " (refusal.message) }
                }
                @if let Some(incident) = &answer.last_incident {
                    dt { "Last incident" }
                    dd { (serde_json::to_value(&incident.what).ok().and_then(|what| what["type"].as_str().map(str::to_owned)).unwrap_or_default()) ", " (ago(incident.at, now)) }
                }
            }
        },
    )
}

fn capabilities(answer: &DeviceAnswer) -> Markup {
    panel(
        html! { "Capabilities" },
        html! {},
        None,
        html! {
            dl.pairs.body {
                dt { "Agent" } dd { (answer.agent_version.as_deref().unwrap_or("unknown")) }
                @if let Some(generation) = answer.device.generation { dt { "Generation" } dd.num { (generation) } }
                @for (label, value) in &answer.labels { dt { (label) } dd { (value) } }
                @for (name, value) in answer.capabilities.iter().flatten() { dt { (name) } dd { code { (value) } } }
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::samples::site_view;
    use super::*;
    use crate::people::live::CachedView;

    fn values(query: &str) -> Values {
        Values::of_filters(query, &LIST_PARAMS).unwrap()
    }

    /// Two sites with 7 and 30 devices.
    fn two_sites() -> Views {
        let mut views = Views::default();
        for (name, fresh, stale, never) in [("plant7", 4, 2, 1), ("plant8", 10, 20, 0)] {
            let view = site_view(name, Split { fresh, stale, never }, 0);
            let cached = CachedView { view, data: Default::default(), ledger_seq: 7 };
            views.sites.insert(name.parse().unwrap(), Arc::new(cached));
        }
        views
    }

    #[test]
    fn a_list_by_site_and_freshness_alone_has_the_total_of_the_views() {
        let views = two_sites();
        for (query, total) in [
            ("site=plant7", Some(7)),
            ("site=plant7&freshness=stale,never", Some(3)),
            ("site=plant7&site=plant8&freshness=stale", Some(22)),
            ("site=plant7&site=plant7", Some(7)),
            ("site=plant9", None),
            ("site=plant7&error=E1", None),
            ("", None),
        ] {
            assert_eq!(known_total(&values(query), &views), total, "{query}");
        }
    }

    #[test]
    fn a_total_says_that_retired_devices_are_not_in_it() {
        let as_of = json!({ "ledgerSeq": 7, "at": "2026-11-20T08:00:00Z" });
        let mut answer: DevicesAnswer =
            serde_json::from_value(json!({ "asOf": as_of, "devices": [], "next": "plant7/press-1" }))
                .unwrap();
        let shown = |answer: &DevicesAnswer, query: &str| counted(answer, &values(query), &two_sites());
        assert_eq!(shown(&answer, "site=plant7"), "7, and retired ones");
        assert_eq!(shown(&answer, "site=plant7&freshness=fresh"), "4 in all");
        assert_eq!(shown(&answer, "version=1"), "0 on this page");
        answer.next = None;
        assert_eq!(shown(&answer, "version=1"), "0 in all");
        assert_eq!(shown(&answer, "version=1&after=plant7/press-1"), "0 on this page");
    }

    #[test]
    fn the_heading_says_the_filters_in_words() {
        for (query, heading) in [
            ("freshness=&site=", "All devices"),
            ("freshness=stale,never", "Devices not heard"),
            ("freshness=never&freshness=stale&site=plant7", "Devices not heard at plant7"),
            ("freshness=never&site=a&site=b", "Devices never heard at a or b"),
            (
                "error=E1&version=2&notRunning=web",
                "Devices with error E1 with agent version 2 that have not installed web",
            ),
        ] {
            assert_eq!(words(&values(query)), heading, "{query}");
        }
    }
}
