//! Every change between two points with the fact that caused it, the newest first on each page.

use std::ops::Range;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use maud::{Markup, html};
use muster_client::ask::understood;
use muster_contract::changes::{Change, Changed, ChangesAnswer};
use muster_contract::{DeviceKey, Timestamp};
use serde_json::json;

use super::command::Command;
use super::frame::{Frame, ProblemPage};
use super::parts::{
    ago, count, deployment, encoded, freshness, none, number, panel, second, standing, verdict,
};
use crate::people::People;
use crate::people::api::params::{Kind, Param, Values, param};
use crate::people::live::Views;

/// Changes of a page.
const ROWS_MAX: usize = 200;

/// The age of the earlier point unless one is named.
const SINCE: &str = "15m";
/// Ages of the earlier point, each as words and as `since` takes it.
const AGES: [(&str, &str); 3] = [("15 min", SINCE), ("1 h", "1h"), ("1 d", "1d")];

const PARAMS: [Param; 5] = [
    Param { name: "since", field: "from", kind: Kind::Point, about: "Only changes after this point" },
    Param { name: "until", field: "to", kind: Kind::Point, about: "Only changes up to this point" },
    Param { name: "deployment", field: "id", kind: Kind::Text, about: "Only this deployment" },
    param("site", Kind::List, "Only this site"),
    param("newer", Kind::Number, "Newer changes between the two points that are left out"),
];

/// Changes since a point, 15 minutes ago unless one is named.
pub(super) async fn page(
    State(people): State<People>,
    RawQuery(query): RawQuery,
) -> Result<Response, ProblemPage> {
    let values = Values::of_filters(query.as_deref().unwrap_or_default(), &PARAMS)?;
    let now = people.clock.now();
    let mut question = values.question(now)?;
    if values.get("since").is_none() {
        question.extend(Values::read(&format!("since={SINCE}"), &PARAMS)?.question(now)?);
    }
    let newer = question.remove("newer").and_then(|newer| newer.as_u64()).unwrap_or_default();
    question.insert("limit".to_owned(), json!(ROWS_MAX));
    let mut answer: ChangesAnswer = understood(&people.hub.history("changes", &question).await?)?;
    let shown = shown(answer.of, newer);
    if answer.of > ROWS_MAX as u64 {
        // The answer begins with the oldest changes: those of this page lie between the same points.
        question.insert("from".to_owned(), json!({ "atSeq": answer.from.ledger_seq }));
        question.insert("to".to_owned(), json!({ "atSeq": answer.to.ledger_seq }));
        question.insert("skip".to_owned(), json!(shown.start));
        question.insert("limit".to_owned(), json!(shown.end - shown.start));
        answer = understood(&people.hub.history("changes", &question).await?)?;
    }
    let rows = html! {
        (form(&values))
        @if answer.changes.is_empty() { (none("Nothing changed.")) } @else { (table(&answer, &people.feed.views(), now)) }
        (older(&answer, &shown, &values))
    };
    let command = command(&values);
    let content = html! {
        div.truth {
            h1 { "Changes" }
            div.meta { span { "from ledger " (number(answer.from.ledger_seq)) " to " (number(answer.to.ledger_seq)) ", " (second(answer.to.at)) } }
        }
        (panel(heading(&values), html! { (number(answer.of)) }, Some(command), rows))
    };
    Ok(Frame::live("Changes", "Changes").answer(&people, &content))
}

/// The changes of a page, counted from the oldest one: at most [`ROWS_MAX`] before the newer ones.
fn shown(of: u64, newer: u64) -> Range<u64> {
    let end = of - newer.min(of.saturating_sub(1));
    end.saturating_sub(ROWS_MAX as u64)..end
}

fn since(values: &Values) -> &str {
    values.get("since").unwrap_or(SINCE)
}

fn heading(values: &Values) -> Markup {
    html! { "Since " (since(values)) @if let Some(until) = values.get("until") { " until " (until) } }
}

/// The command that lists the same; it has no pages.
fn command(values: &Values) -> Command {
    let all = Command::from("muster changes");
    let command = values.get("deployment").into_iter().fold(all, Command::with);
    let command = command.flag("--since", since(values));
    [("until", "--until"), ("site", "--site")].into_iter().fold(command, |command, (name, flag)| {
        values.all(name).fold(command, |command, value| command.flag(flag, value))
    })
}

/// The filters beside the points, as a query string that another parameter may follow.
fn kept(values: &Values) -> String {
    let names = ["deployment", "site"].into_iter();
    names.flat_map(|name| values.all(name).map(move |value| format!("{name}={}&", encoded(value)))).collect()
}

/// The link to the changes before those of this page. Its points are fixed, so no change is left out and none is shown twice.
fn older(answer: &ChangesAnswer, shown: &Range<u64>, values: &Values) -> Markup {
    let (from, to) = (answer.from.ledger_seq, answer.to.ledger_seq);
    let address = format!("?{}since={from}&until={to}&newer={}", kept(values), answer.of - shown.start);
    html! {
        @if shown.start > 0 {
            p.pager { a href=(address) { "Older changes" } span.soft { (count(shown.start, "older change")) } }
        }
    }
}

fn form(values: &Values) -> Markup {
    html! {
        form.filters method="get" {
            label { "since" input type="text" name="since" value=(since(values)); }
            label { "until" input type="text" name="until" value=[values.get("until")]; }
            label { "deployment" input type="text" name="deployment" value=[values.get("deployment")]; }
            label { "site" input type="text" name="site" value=[values.get("site")]; }
            button.act type="submit" { "Show" }
            @for (words, age) in AGES { a href={ "?" (kept(values)) "since=" (age) } { (words) } }
        }
    }
}

fn table(answer: &ChangesAnswer, views: &Views, now: Timestamp) -> Markup {
    html! {
        table {
            thead { tr { th { "When" } th { "Deployment" } th { "What" } th { "From" } th { "To" } th.right { "Fact" } } }
            tbody { @for change in answer.changes.iter().rev() { (row(change, views, now)) } }
        }
    }
}

fn row(change: &Change, views: &Views, now: Timestamp) -> Markup {
    html! {
        tr {
            td.nowrap { (ago(change.at, now)) }
            td.name { @if let Some(id) = &change.deployment { (deployment(id, views.name_of(id))) } }
            @match &change.what {
                Changed::Verdict { from, to } => {
                    td { strong { "verdict" } }
                    td { (verdict(*from)) }
                    td { (verdict(*to)) }
                }
                Changed::Device { key, from, to } => {
                    td.name { (device(key)) }
                    td { @match from { Some(from) => (freshness(*from)), None => span.faint { "none" } } }
                    td { (freshness(*to)) }
                }
                Changed::Standing { key, from, to, message, .. } => {
                    td.name {
                        (device(key))
                        @if !message.is_empty() { span.under { (message) } }
                    }
                    td { @match from { Some(stood) => (standing(stood.standing, stood.freshness)), None => span.faint { "none" } } }
                    td { @match to { Some(stood) => (standing(stood.standing, stood.freshness)), None => span.faint { "none" } } }
                }
            }
            td.right.nowrap { span.soft { (change.fact.as_str()) } " " span.num { (change.ledger_seq) } }
        }
    }
}

fn device(key: &DeviceKey) -> Markup {
    html! { a href={ "/devices/" (encoded(key.site.as_str())) "/" (encoded(key.device.as_str())) } { (key) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(query: &str) -> Values {
        Values::of_filters(query, &PARAMS).unwrap()
    }

    #[test]
    fn the_pages_have_every_change_once_the_newest_first() {
        assert_eq!((shown(0, 0), shown(7, 0), shown(200, 0)), (0..0, 0..7, 0..200));
        let (mut newer, mut pages) = (0, Vec::new());
        while pages.last().is_none_or(|page: &Range<u64>| page.start > 0) {
            pages.push(shown(450, newer));
            newer = 450 - pages.last().unwrap().start;
        }
        assert_eq!(pages, [250..450, 50..250, 0..50]);
        assert_eq!(shown(3, 99), 0..1, "more newer ones than there are");
    }

    #[test]
    fn the_link_to_older_changes_keeps_filters_and_fixes_the_points() {
        let point = |seq: u64| json!({ "ledgerSeq": seq, "at": "2026-11-20T08:00:00Z" });
        let answer = json!({ "from": point(4711), "to": point(4799), "of": 450, "changes": [] });
        let answer: ChangesAnswer = serde_json::from_value(answer).unwrap();
        let values = values("since=1h&until=&deployment=web&site=a&site=b");
        let link = older(&answer, &shown(450, 200), &values).into_string();
        let address = "?deployment=web&amp;site=a&amp;site=b&amp;since=4711&amp;until=4799&amp;newer=400";
        assert!(link.contains(&format!("href=\"{address}\"")) && link.contains("50 older changes"), "{link}");
        assert_eq!(older(&answer, &shown(200, 0), &values).into_string(), "");
    }

    #[test]
    fn the_command_of_changes_names_points_and_filters() {
        assert_eq!(command(&values("")).at(None), "muster changes --since 15m");
        let some = command(&values("deployment=web&since=4711&until=4799&site=a&newer=200"));
        assert_eq!(some.at(None), "muster changes web --since 4711 --until 4799 --site a");
        assert_eq!(heading(&values("since=1h&until=5m")).into_string(), "Since 1h until 5m");
    }
}
