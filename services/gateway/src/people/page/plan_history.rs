//! The recorded changes of a plan and of its instances, the newest first. A history that takes too many answers is left to the command.

use maud::{Markup, html};
use muster_client::ask::{AskError, Hub, understood};
use muster_contract::PlanName;
use muster_contract::plans::{PlansChange, PlansChangesAnswer, PlansChangesQuery, StoredPlansChange};
use muster_contract::query::PAGE_MAX;
use muster_service::error::chain;
use serde::Deserialize as _;
use serde_json::Value;

use super::parts::{self, none, number, second};

/// Changes shown.
const ROWS_MAX: usize = 30;
/// Answers that are read for one page.
const ANSWERS_MAX: usize = 4;

/// The changes, in the order of PLANS.
#[derive(Debug, Default)]
pub(super) struct History {
    changes: Vec<StoredPlansChange>,
    /// There are later ones, which were not read.
    is_cut: bool,
}

/// Reads the changes of a plan and of its instances, or why they are not known.
pub(super) async fn read(hub: &Hub, plan: &PlanName) -> Result<History, String> {
    all(hub, plan).await.map_err(|error| chain(&error))
}

async fn all(hub: &Hub, plan: &PlanName) -> Result<History, AskError> {
    let subject = vec![format!("muster.plan.{plan}"), format!("muster.instance.{plan}.*")];
    let mut query = PlansChangesQuery { subject, limit: Some(PAGE_MAX), after: None };
    let mut history = History::default();
    for _ in 0..ANSWERS_MAX {
        let answer: PlansChangesAnswer = understood(&hub.planner("change-list", &query).await?)?;
        history.changes.extend(answer.changes);
        query.after = answer.next;
        if query.after.is_none() {
            return Ok(history);
        }
    }
    Ok(History { is_cut: true, ..history })
}

/// The panel of a plan's changes.
pub(super) fn panel(plan: &PlanName, history: &Result<History, String>) -> Markup {
    let command = format!("muster plan history {plan}");
    let total = html! {
        @if let Ok(history) = history { @if history.is_cut { "more than " } (number(history.changes.len() as u64)) }
    };
    let rows = match history {
        Err(why) => html! { p.dark { "Not known: " (why) } },
        Ok(history) if history.is_cut => {
            none("The history is too long for a page; the command prints all of it.")
        }
        Ok(history) => rows(&history.changes),
    };
    parts::panel(html! { "Recorded changes, the newest first" }, total, Some(&command), rows)
}

fn rows(changes: &[StoredPlansChange]) -> Markup {
    let left = changes.len().saturating_sub(ROWS_MAX);
    html! {
        @if changes.is_empty() { (none("No change is recorded any more.")) }
        ul.rows { @for change in changes.iter().rev().take(ROWS_MAX) { li { (row(change)) } } }
        @if left > 0 { p.note.top-line { (number(left as u64)) " older ones are not shown." } }
    }
}

fn row(change: &StoredPlansChange) -> Markup {
    let text = |field: &str| change.document.get(field).and_then(Value::as_str).unwrap_or_default();
    let (word, name) =
        if text("kind") == "Instance" { ("instance", text("displayName")) } else { ("plan", text("name")) };
    let newest = change.document.get("change").and_then(|newest| PlansChange::deserialize(newest).ok());
    html! {
        div.head {
            span { (word) " " (name) }
            @if let Some(newest) = &newest { span.soft { (second(newest.at)) } }
        }
        p.more {
            @match &newest {
                Some(newest) => {
                    (newest.message)
                    @if let Some(by) = &newest.by { ", by " (by.label()) }
                }
                None => "a change that this gateway cannot read",
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(history: &Result<History, String>) -> String {
        panel(&"web".parse().unwrap(), history).into_string()
    }

    #[test]
    fn a_history_shows_who_changed_what_or_that_it_is_not_known() {
        let example = include_bytes!("../../../../../schemas/examples/good/PlansChangesAnswer.two.json");
        let changes = serde_json::from_slice::<PlansChangesAnswer>(example).unwrap().changes;
        let newest = changes.last().unwrap().document["change"]["message"].as_str().unwrap().to_owned();
        let oldest = changes[0].document["change"]["message"].as_str().unwrap().to_owned();
        let whole = shown(&Ok(History { changes, is_cut: false }));
        let at = [newest, oldest].map(|words| whole.find(&words).unwrap());
        assert!(at.is_sorted() && whole.contains(", by anna"), "{whole}");
        let cut = shown(&Ok(History { is_cut: true, ..History::default() }));
        assert!(cut.contains("more than 0") && cut.contains("too long for a page"), "{cut}");
        let unknown = shown(&Err("no permission".to_owned()));
        assert!(unknown.contains("Not known: no permission") && unknown.contains("muster plan history web"));
    }
}
