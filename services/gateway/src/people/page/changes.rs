//! Every change between two points with the fact that caused it, the newest first on each page.

use axum::extract::{RawQuery, State};
use axum::response::Response;
use maud::{Markup, html};
use muster_client::ask::understood;
use muster_contract::changes::{Change, Changed, ChangesAnswer};
use muster_contract::{DeviceKey, Timestamp};
use serde_json::json;

use super::frame::{Frame, ProblemPage};
use super::parts::{ago, encoded, freshness, none, number, panel, second, standing, verdict};
use crate::people::People;
use crate::people::api::params::{Kind, Param, Values, param};

/// Changes of a page.
const ROWS_MAX: usize = 200;

const PARAMS: [Param; 4] = [
    Param { name: "since", field: "from", kind: Kind::Point, about: "Only changes after this point" },
    Param { name: "until", field: "to", kind: Kind::Point, about: "Only changes up to this point" },
    Param { name: "deployment", field: "id", kind: Kind::Text, about: "Only this deployment" },
    param("site", Kind::List, "Only this site"),
];

/// Changes since a point, an hour ago unless one is named.
pub(super) async fn page(
    State(people): State<People>,
    RawQuery(query): RawQuery,
) -> Result<Response, ProblemPage> {
    let filled = form_urlencoded::parse(query.as_deref().unwrap_or_default().as_bytes());
    let filled = filled.filter(|(_, value)| !value.is_empty());
    let values = Values::of(filled.map(|(name, value)| (name.into_owned(), value.into_owned())), &PARAMS)?;
    let now = people.clock.now();
    let mut question = values.question(now)?;
    if values.get("since").is_none() {
        question.extend(Values::read("since=15m", &PARAMS)?.question(now)?);
    }
    question.insert("limit".to_owned(), json!(ROWS_MAX));
    let mut answer: ChangesAnswer = understood(&people.hub.history("changes", &question).await?)?;
    if answer.of > ROWS_MAX as u64 {
        // The newest ones: the last page of the same points.
        question.insert("from".to_owned(), json!({ "atSeq": answer.from.ledger_seq }));
        question.insert("to".to_owned(), json!({ "atSeq": answer.to.ledger_seq }));
        question.insert("skip".to_owned(), json!(answer.of - ROWS_MAX as u64));
        answer = understood(&people.hub.history("changes", &question).await?)?;
    }
    let since = values.get("since").unwrap_or("15m");
    let rows = html! {
        (form(&values, since))
        @if answer.changes.is_empty() { (none("Nothing changed.")) } @else { (table(&answer, now)) }
        @if answer.of > ROWS_MAX as u64 { p.note.top-line { "The newest " (number(ROWS_MAX as u64)) "; `muster changes` lists all." } }
    };
    let command = match values.get("deployment") {
        Some(id) => format!("muster changes {id} --since {since}"),
        None => format!("muster changes --since {since}"),
    };
    let content = html! {
        div.truth {
            h1 { "Changes" }
            div.meta { span { "from ledger " (number(answer.from.ledger_seq)) " to " (number(answer.to.ledger_seq)) ", " (second(answer.to.at)) } }
        }
        (panel(html! { "Since " (since) }, html! { (number(answer.of)) }, Some(&command), rows))
    };
    Ok(Frame::live("Changes", "Changes").answer(&people, &content))
}

fn form(values: &Values, since: &str) -> Markup {
    html! {
        form.filters method="get" {
            label { "since" input type="text" name="since" value=(since); }
            label { "until" input type="text" name="until" value=[values.get("until")]; }
            label { "deployment" input type="text" name="deployment" value=[values.get("deployment")]; }
            label { "site" input type="text" name="site" value=[values.get("site")]; }
            button.act type="submit" { "Show" }
        }
    }
}

fn table(answer: &ChangesAnswer, now: Timestamp) -> Markup {
    html! {
        table {
            thead { tr { th { "When" } th { "Deployment" } th { "What" } th { "From" } th { "To" } th.right { "Fact" } } }
            tbody { @for change in answer.changes.iter().rev() { (row(change, now)) } }
        }
    }
}

fn row(change: &Change, now: Timestamp) -> Markup {
    html! {
        tr {
            td.nowrap { (ago(change.at, now)) }
            td.name { @if let Some(id) = &change.deployment { a href={ "/deployments/" (encoded(id.as_str())) } { (id) } } }
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
