//! Renders the missing streams of the hub, and the sources from which each can be rebuilt.

use std::fmt::Write as _;

use muster_contract::Timestamp;

use super::colour::{BAD, UNSURE, WELL, styled};
use super::format::{age, plural};
use super::incident;
use super::table::{Cell, Table};
use crate::restore::{RestoreReport, Seen, StreamLine};

/// The whole report.
pub fn report(report: &RestoreReport, now: Timestamp) -> String {
    let mut table = Table::new(&["STREAM", "STATE", "CREATED", ">MESSAGES", ">LAST", "REBUILT FROM", "BY"]);
    for line in &report.streams {
        table.row(row(line, now));
    }
    let mut text = format!("{}\n", table.within(None));
    let place = |read_to: Option<u64>| read_to.map_or_else(|| "-".to_owned(), |seq| format!("ledger {seq}"));
    let publisher = report.publisher.as_ref().map_or_else(
        || "does not answer".to_owned(),
        |status| format!("{} with a desired state", plural(status.devices, "device")),
    );
    let _ = writeln!(text, "rollup       has read to {}", place(report.rollup_read_to));
    let _ = writeln!(text, "views        are of {}", place(report.views_read_to));
    let _ = writeln!(text, "publisher    {publisher}");
    let ingest = match report.ingest_answers {
        Some(true) => "answers",
        Some(false) => "does not answer",
        None => "-",
    };
    let _ = writeln!(text, "ingest       {ingest}");
    text += &incident::of_hub(&report.incidents, now);
    text.push('\n');
    text += &steps(report);
    text
}

fn row(line: &StreamLine, now: Timestamp) -> [Cell; 7] {
    let dash = || Cell::from("-");
    let (state, [created, messages, last]) = match line.seen {
        Seen::Existing { created_at, messages, last_seq, .. } => (
            Cell::styled("present", WELL),
            [age(now, created_at).into(), Cell::count(messages), Cell::count(last_seq)],
        ),
        Seen::Missing => (Cell::styled("missing", BAD), [dash(), dash(), dash()]),
        Seen::NotVisible => (Cell::styled("not visible", UNSURE), [dash(), dash(), dash()]),
    };
    [line.name.into(), state, created, messages, last, line.rebuilt_from.into(), line.rebuilt_by.into()]
}

fn steps(report: &RestoreReport) -> String {
    let mut text = match (report.steps.is_empty(), report.complete) {
        (true, true) => styled(WELL, "Nothing is missing") + ".\n",
        (true, false) => styled(UNSURE, "Nothing that was checked is missing") + ".\n",
        (false, _) => styled(BAD, "To restore, in this order:") + "\n",
    };
    for (at, step) in report.steps.iter().enumerate() {
        let _ = writeln!(text, "{}. {}", at + 1, step.what);
        if let Some(command) = &step.command {
            let _ = writeln!(text, "   $ {command}");
        }
    }
    if !report.unchecked.is_empty() {
        text += "Not checked:\n";
    }
    for unchecked in &report.unchecked {
        let _ = writeln!(text, "- {unchecked}");
    }
    text
}
