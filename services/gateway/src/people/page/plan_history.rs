//! The recorded changes of a plan and of its instances, the newest first. A history that takes too many answers is left to the command.

use maud::{Markup, html};
use muster_contract::PlanName;
use muster_contract::plans::{PlansChange, StoredPlansChange};
use serde::Deserialize as _;
use serde_json::Value;

use super::command::Command;
use super::parts::{self, none, number, second};
use super::plan_answers::History;

/// The panel of a plan's changes.
pub(super) fn panel(plan: &PlanName, history: &Result<History, String>) -> Markup {
    let command = Command::from("muster plan history").with(plan);
    let total = html! {
        @if let Ok(history) = history { @if history.is_cut { "more than " } (number(history.of as u64)) }
    };
    let rows = match history {
        Err(why) => html! { p.dark { "Not known: " (why) } },
        Ok(history) if history.is_cut => {
            none("The history is too long for a page; the command prints all of it.")
        }
        Ok(history) => rows(history),
    };
    parts::panel(html! { "Recorded changes, the newest first" }, total, Some(command), rows)
}

fn rows(history: &History) -> Markup {
    let left = history.of - history.changes.len();
    html! {
        @if history.changes.is_empty() { (none("No change is recorded any more.")) }
        ul.rows { @for change in history.changes.iter().rev() { li { (row(change)) } } }
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
    use muster_contract::plans::PlansChangesAnswer;

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
        let mut history = History::default();
        history.add(changes);
        history.of += 1;
        let whole = shown(&Ok(history));
        let at = [newest, oldest].map(|words| whole.find(&words).unwrap());
        assert!(at.is_sorted() && whole.contains(", by anna"), "{whole}");
        assert!(whole.contains(">3<") && whole.contains("1 older ones are not shown."), "{whole}");
        let cut = shown(&Ok(History { is_cut: true, ..History::default() }));
        assert!(cut.contains("more than 0") && cut.contains("too long for a page"), "{cut}");
        let unknown = shown(&Err("no permission".to_owned()));
        assert!(unknown.contains("Not known: no permission") && unknown.contains("muster plan history web"));
    }
}
