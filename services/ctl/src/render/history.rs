//! Renders the past: the position of a point, the differences between two points, and the result of a comparison with a
//! rebuild.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use muster_contract::history::{
    DeviceChange, DiffAnswer, DiffSide, MomentAnswer, RebuildBase, Stand, VerifyAnswer,
};
use muster_contract::view::Standing;
use serde_json::Value;

use super::colour::{self, BAD, BOLD, DIM, UNSURE, WELL, styled};
use super::format::{as_of, clean, freshness, left, plural, span};
use super::frame::Frame;
use super::table::{Cell, Table};

/// Longest value of a difference that is shown whole.
const VALUE_CHARS_MAX: usize = 200;

/// The point in time of an answer, and the facts that it rests on.
pub fn moment(answer: &MomentAnswer) -> String {
    let at = answer.as_of;
    let Some(certainty) = &answer.event_time else {
        if at.ledger_seq == 0 {
            return "As known before the first fact of LEDGER.\n".to_owned();
        }
        return format!("As known with ledger {}, stored at {}.\n", at.ledger_seq, at.at);
    };
    let later = plural(certainty.late_reports, "report");
    let mut text = format!(
        "State at {}, as known with ledger {}: {later} came later; targets, deadlines and freshness as known with \
         ledger {}.\n",
        certainty.at, at.ledger_seq, certainty.known_then.ledger_seq
    );
    if certainty.skewed.count > 0 {
        let first: Vec<_> = certainty.skewed.first.iter().take(3).map(ToString::to_string).collect();
        let words = format!(
            "{} had a wrong clock, by up to {}: when they observed something is uncertain (such as {}).",
            plural(certainty.skewed.count, "device"),
            span(certainty.skew_seconds),
            first.join(", ")
        );
        let _ = writeln!(text, "{}", styled(UNSURE, &words));
    }
    text
}

/// Counts before and after, and the devices that changed with the facts that did it; `is_first` where no page came before.
pub fn diff(answer: &DiffAnswer, is_first: bool, frame: impl Into<Frame>) -> String {
    let frame = frame.into();
    let verdict = |side: &DiffSide| styled(colour::verdict(side.verdict), side.verdict.as_str());
    let mut text = format!(
        "{}  {} → {}\n\n",
        styled(BOLD, answer.deployment.as_str()),
        verdict(&answer.from),
        verdict(&answer.to)
    );
    let _ = writeln!(text, "{}", sides(&answer.from, &answer.to).within(frame.width));
    if answer.devices.is_empty() {
        text += if is_first { "No device differs.\n\n" } else { "No further device differs.\n\n" };
    }
    for change in &answer.devices {
        text += &device(change, frame);
    }
    if let Some(next) = &answer.next {
        let differ = plural(answer.changed, "device");
        let _ = match left(answer.changed, answer.devices.len(), is_first) {
            Some(left) => writeln!(text, "{differ} differ; {left} more: --after {next}, or --limit\n"),
            None => writeln!(text, "{differ} differ; there are more: --after {next}\n"),
        };
    }
    let point = |side: &DiffSide| format!("ledger {} ({})", side.as_of.ledger_seq, side.as_of.at);
    let _ = writeln!(text, "From {} to {}.", point(&answer.from), point(&answer.to));
    text
}

fn sides(from: &DiffSide, to: &DiffSide) -> Table {
    let mut table = Table::new(&["", ">BEFORE", ">AFTER"]);
    let mut row = |name: String, before: u64, after: u64| {
        if before != 0 || after != 0 {
            let style = if before == after { DIM } else { colour::PLAIN };
            let cell = |count: u64| Cell::styled(count.to_string(), style);
            table.row([Cell::styled(name, style), cell(before), cell(after)]);
        }
    };
    row("targets".to_owned(), from.targets, to.targets);
    let standings: BTreeSet<Standing> = from.counts.keys().chain(to.counts.keys()).copied().collect();
    for standing in standings {
        let count = |side: &DiffSide| side.counts.get(&standing).copied().unwrap_or_default();
        let (was, is) = (count(from), count(to));
        for (word, was, is) in [
            ("", was.fresh, is.fresh),
            (", stale", was.stale, is.stale),
            (", never heard", was.never, is.never),
        ] {
            row(format!("  {}{word}", standing.as_str()), was, is);
        }
    }
    row("converged at least".to_owned(), from.converged.lo, to.converged.lo);
    row("converged at most".to_owned(), from.converged.hi, to.converged.hi);
    row("not known".to_owned(), from.complete.not_known(), to.complete.not_known());
    row("reports missing".to_owned(), from.complete.missing_reports, to.complete.missing_reports);
    row("overdue".to_owned(), from.overdue, to.overdue);
    row("leaving".to_owned(), from.leaving, to.leaving);
    table
}

fn device(change: &DeviceChange, frame: Frame) -> String {
    let mut text = format!(
        "{}  {} → {}\n",
        styled(BOLD, &change.key.to_string()),
        stand(change.from.as_ref()),
        stand(change.to.as_ref())
    );
    for component in &change.components {
        let state = |state: Option<muster_contract::State>| state.map_or("-", |state| state.as_str());
        let _ = writeln!(text, "  {}: {} → {}", component.name, state(component.from), state(component.to));
    }
    let mut table = Table::new(&["  FACT", ">LEDGER", "SAYS"]);
    for fact in &change.facts {
        let kind = format!("  {}", super::why::kind(fact.kind));
        table.row([kind.into(), super::why::ledger_position(fact), clean(&fact.says).into()]);
    }
    let _ = writeln!(text, "{}", table.within(frame.width));
    text
}

fn stand(stand: Option<&Stand>) -> String {
    let Some(stand) = stand else { return "none".to_owned() };
    let mut words = styled(colour::standing(stand.standing), stand.standing.as_str());
    let _ = write!(words, ", {}", freshness(stand.freshness));
    for (holds, word) in [(!stand.known, "not known"), (stand.leaving, "leaving"), (stand.overdue, "overdue")]
    {
        if holds {
            let _ = write!(words, ", {word}");
        }
    }
    words
}

/// The result of a comparison with a rebuild.
pub fn verify(answer: &VerifyAnswer, frame: impl Into<Frame>) -> String {
    let frame = frame.into();
    let compared = format!("{} and {}", plural(answer.devices, "device"), plural(answer.views, "view"));
    let mut text = match answer.differences {
        0 => format!("{}: {compared} are what LEDGER gives.\n", styled(WELL, "Verified")),
        count => format!("{}: {count} of {compared} are not what LEDGER gives.\n", styled(BAD, "Different")),
    };
    if let Some(first) = &answer.first {
        let _ = writeln!(text, "\nfirst    {}, {} at ledger {}", first.key, first.field, first.ledger_seq);
        let _ = writeln!(text, "running  {}", value(first.running.as_ref()));
        let _ = writeln!(text, "rebuilt  {}", value(first.rebuilt.as_ref()));
        text +=
            "\n`muster-rollup --rebuild` reads LEDGER again from its start and sets aside what was kept.\n";
    }
    let base = match answer.base {
        RebuildBase::Ledger => "from the first fact ever".to_owned(),
        RebuildBase::Checkpoint => format!("from the checkpoint of ledger {}", answer.base_seq),
        RebuildBase::Window => "from the first fact that LEDGER still holds; views only".to_owned(),
    };
    let _ = writeln!(text, "Running {}", answer.running);
    let _ = writeln!(text, "Rebuilt {} {base}", answer.rebuilt);
    let _ = writeln!(text, "{}.", as_of(answer.as_of, frame.now));
    text
}

fn value(value: Option<&Value>) -> String {
    let Some(value) = value else { return "nothing".to_owned() };
    super::cut::end(&clean(&value.to_string()), VALUE_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use muster_contract::Timestamp;

    use super::*;

    fn example() -> DiffAnswer {
        let bytes = include_bytes!("../../../../schemas/examples/good/DiffAnswer.one-device.json");
        serde_json::from_slice(bytes).unwrap()
    }

    #[test]
    fn a_later_page_says_neither_that_nothing_differs_nor_how_many_are_left() {
        let mut answer = example();
        (answer.next, answer.changed) = (Some("a/b".to_owned()), answer.devices.len() as u64 + 2);
        let text = |answer: &_, is_first| diff(answer, is_first, Timestamp::UNIX_EPOCH);
        assert!(text(&answer, true).contains("2 more: --after a/b, or --limit\n"));
        assert!(text(&answer, false).contains("there are more: --after a/b\n"));
        answer.devices.clear();
        assert!(text(&answer, false).contains("No further device differs.\n"));
    }

    #[test]
    fn more_known_than_there_are_breaks_nothing() {
        let mut answer = example();
        answer.to.complete.devices = answer.to.complete.of + 1;
        // An unchecked difference would panic here.
        assert!(diff(&answer, true, Timestamp::UNIX_EPOCH).contains("BEFORE"));
    }
}
