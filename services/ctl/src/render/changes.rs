//! Changes between two points: a line for each, in LEDGER's order.

use muster_contract::changes::{Change, Changed, ChangesAnswer};
use muster_contract::notify::{MissedAnswer, Stood};

use super::colour::{self, DIM};
use super::format::{clean, freshness, plural};
use super::frame::Frame;
use super::notice::{doubts, seconds};
use super::table::{Cell, Table};

/// The changes of an answer.
pub fn list(answer: &ChangesAnswer, frame: impl Into<Frame>) -> String {
    let (from, to) = (answer.from, answer.to);
    let between =
        format!("from ledger {} ({}) to ledger {} ({})", from.ledger_seq, from.at, to.ledger_seq, to.at);
    if answer.changes.is_empty() {
        return format!("Nothing changed {between}.\n");
    }
    let mut table = Table::new(&["AT", "DEPLOYMENT", "WHERE", "CHANGE", "?FACT", "?>LEDGER", "BECAUSE"]);
    for change in &answer.changes {
        let (place, cell, because) = words(change);
        table.row([
            seconds(change.at).into(),
            deployment(change).into(),
            place.into(),
            cell,
            change.fact.as_str().into(),
            change.ledger_seq.to_string().into(),
            because.into(),
        ]);
    }
    let lost = if answer.incomplete { "Some changes of one fact are not listed.\n" } else { "" };
    let count = plural(answer.changes.len() as u64, "change");
    format!("{}\n{count} {between}.\n{lost}", table.within(frame.into().width))
}

/// A line for each change that a subscriber has missed, and for each range that cannot be listed.
pub fn missed(answer: &MissedAnswer) -> Vec<String> {
    let gone = answer.gone.iter().map(|range| {
        let of = range.hub.as_ref().map(|hub| format!(" of the hub {hub}")).unwrap_or_default();
        format!(
            "  missed: changes from ledger {} to {}{of} cannot be listed any more\n",
            range.from, range.to
        )
    });
    let changes = answer.changes.iter().map(|change| {
        let (place, cell, because) = words(change);
        let at = seconds(change.at);
        let because = if because.is_empty() { because } else { format!(" ({because})") };
        format!("  missed {at} {} {place}: {}{because}\n", deployment(change), cell.alone())
    });
    gone.chain(changes).collect()
}

/// The deployment; a device has none.
fn deployment(change: &Change) -> &str {
    change.deployment.as_ref().map_or("-", |id| id.as_str())
}

/// The device, both sides and the reason.
fn words(change: &Change) -> (String, Cell, String) {
    match &change.what {
        Changed::Standing { key, from, to, target, message } => {
            let target = target.map(|target| format!(", target {target}")).unwrap_or_default();
            let style = to.map_or(DIM, |to| colour::standing(to.standing));
            let text = sides(from.as_ref(), to.as_ref()) + &target;
            (key.to_string(), Cell::styled(text, style), clean(message))
        }
        Changed::Device { key, from, to } => {
            let to = freshness(*to);
            let text =
                from.map_or_else(|| format!("new: {to}"), |from| format!("{} → {to}", freshness(from)));
            (key.to_string(), Cell::styled(text, DIM), String::new())
        }
        Changed::Verdict { from, to } => {
            let text = format!("verdict {} → {}", from.as_str(), to.as_str());
            ("-".to_owned(), Cell::styled(text, colour::verdict(*to)), String::new())
        }
    }
}

fn sides(from: Option<&Stood>, to: Option<&Stood>) -> String {
    let words = |stood: &Stood| match doubts(stood) {
        Some(doubts) => format!("{} ({doubts})", stood.standing.as_str()),
        None => stood.standing.as_str().to_owned(),
    };
    match (from.map(words), to.map(words)) {
        (None, Some(to)) => format!("new: {to}"),
        (Some(from), Some(to)) if from == to => to,
        (Some(from), to) => format!("{from} → {}", to.unwrap_or_else(|| "gone".to_owned())),
        (None, None) => "gone".to_owned(),
    }
}
