//! Renders status after filters: the delivered beside the observed state, for the whole, each application, each target and
//! each component; with detail also the desired manifests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Write as _};

use anstyle::Style;
use muster_contract::status::{
    ComponentLine, Deployed, KAxes, KStatus, Ready, Rollup, StatusAnswer, TargetStatus,
};
use serde::{Deserialize, Serialize};

use super::colour::{self, BAD, BOLD, DIM, MOVING, PLAIN, UNSURE, WELL, styled};
use super::deployment::{because, retried};
use super::doubt::by_freshness;
use super::evidence;
use super::format::{age, as_of, clean, counts, freshness, freshness_since, plural};
use super::frame::Frame;
use super::legend;
use super::manifests::manifests;
use super::table::{Cell, Table};
use crate::config::{Names, StatusArgs};

/// Names and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameList {
    /// In order.
    pub names: Vec<String>,
}

/// The names of what passes the filters.
pub fn names(answer: &StatusAnswer, what: Names) -> NameList {
    let targets = &answer.targets;
    let names: BTreeSet<String> = match what {
        Names::Apps => targets.iter().filter_map(|target| target.app.clone()).collect(),
        Names::Targets => targets.iter().map(|target| target.key.to_string()).collect(),
        Names::Components => {
            let components = targets.iter().flat_map(|target| &target.components);
            components.map(|component| component.name.to_string()).collect()
        }
    };
    NameList { names: names.into_iter().collect() }
}

/// A name a line.
pub fn list(names: &NameList) -> String {
    names.names.iter().fold(String::new(), |text, name| text + &clean(name) + "\n")
}

/// All of an answer.
pub fn status(answer: &StatusAnswer, args: &StatusArgs, frame: impl Into<Frame>) -> String {
    let frame = frame.into();
    let mut text = head(answer, args);
    let rollup = &answer.rollup;
    if rollup.targets + rollup.leaving + rollup.superseded == 0 {
        let _ = writeln!(text, "Nothing passes the filters; {}.", as_of(answer.as_of, frame.now));
        return text;
    }
    text += &facts(rollup, frame);
    text += &evidence::table(&rollup.evidence, rollup.targets, frame.width);
    if answer.apps.len() > 1 {
        let _ = write!(text, "\n{}", apps(answer, frame));
    }
    if !answer.targets.is_empty() {
        let _ = write!(text, "\n{}", lines(answer, frame));
        text += &manifests(answer, frame);
    }
    text += &legend::axes(answer);
    let _ = writeln!(text, "\n{}{}.", shown(answer), as_of(answer.as_of, frame.now));
    text
}

fn head(answer: &StatusAnswer, args: &StatusArgs) -> String {
    let mut text = String::new();
    if let Some(id) = &answer.deployment {
        let verdict = answer.verdict.map(|it| styled(colour::verdict(it), it.as_str())).unwrap_or_default();
        let _ = writeln!(text, "{}  {verdict}\n", styled(BOLD, id.as_str()));
    }
    let mut filters = Vec::new();
    filters.extend(args.app.iter().map(|app| format!("app {}", clean(app))));
    filters.extend(args.site.iter().map(|site| format!("site {site}")));
    filters.extend(args.device.iter().map(|device| format!("device {device}")));
    filters.extend(args.component.iter().map(|name| format!("component {name}")));
    filters.extend(args.standing.iter().map(|word| format!("standing {}", word.as_str())));
    filters.extend(args.freshness.iter().map(|heard| freshness((*heard).into()).to_owned()));
    filters.extend(args.error.iter().map(|code| format!("error {}", clean(code))));
    filters.extend(answer.generation.map(|generation| format!("generation {generation}")));
    if !filters.is_empty() {
        let _ = writeln!(text, "of         {}", filters.join(", "));
    }
    text
}

fn facts(rollup: &Rollup, frame: Frame) -> String {
    let mut lines = vec![("targets", targets(rollup))];
    if let Some(status) = rollup.deployed_status {
        let word = styled(deployed_style(status), status.as_str());
        lines.push(("deployed", format!("{word}: {}", counted(&rollup.deployed_counts))));
    }
    if let Some(status) = rollup.ready_status {
        let word = styled(ready_style(status), status.as_str());
        lines.push(("ready", format!("{word}: {}", counted(&rollup.ready_counts))));
    }
    lines.push(("kstatus", counted(&rollup.kstatus)));
    if let Some(message) = &rollup.message {
        lines.push(("because", clean(message)));
    }
    lines.extend(retried(rollup.retried, rollup.targets).map(|words| ("retried", words)));
    lines.extend(rollup.changed_at.map(|at| ("changed", age(frame.now, at))));
    lines.extend(rollup.last_heard_at.map(|at| ("last heard", age(frame.now, at))));
    lines.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name:<11}{value}");
        text
    })
}

fn targets(rollup: &Rollup) -> String {
    let mut words = vec![format!("{}: {}", rollup.targets, counts(&rollup.counts))];
    let unknown = rollup.targets.saturating_sub(rollup.known);
    let heard = by_freshness(&rollup.counts);
    for (count, what) in [
        (unknown, "not known"),
        (heard.stale, "stale"),
        (heard.never, "never heard"),
        (rollup.overdue, "overdue"),
        (rollup.leaving, "leaving"),
        (rollup.superseded, "superseded"),
    ] {
        if count > 0 {
            words.push(styled(UNSURE, &format!("{count} {what}")));
        }
    }
    words.extend(heard.unheard("target").map(|unheard| styled(UNSURE, &unheard)));
    words.join("; ")
}

fn counted<K: Display>(counts: &BTreeMap<K, u64>) -> String {
    let words: Vec<_> = counts.iter().map(|(key, count)| format!("{count} {key}")).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

fn apps(answer: &StatusAnswer, frame: Frame) -> Table {
    let mut table = Table::new(&["APP", "?>TARGETS", "DEPLOYED", "READY", "?CHANGED", "BECAUSE"]);
    for app in &answer.apps {
        let rollup = &app.rollup;
        table.row([
            app.app.as_deref().map_or_else(|| "-".into(), |app| clean(app).into()),
            Cell::count(rollup.targets),
            rollup.deployed_status.map_or_else(|| "-".into(), deployed),
            rollup.ready_status.map_or_else(|| "-".into(), ready),
            rollup.changed_at.map_or_else(|| "-".into(), |at| age(frame.now, at).into()),
            rollup.message.as_deref().map(clean).unwrap_or_default().into(),
        ]);
    }
    table.within(frame.width)
}

fn lines(answer: &StatusAnswer, frame: Frame) -> Table {
    let name = if answer.deployment.is_some() { "TARGET" } else { "TARGET/DEPLOYMENT" };
    let mut table = Table::new(&[name, "STATUS", "DEPLOYED", "READY", "?FRESHNESS", "?CHANGED", "BECAUSE"]);
    for target in &answer.targets {
        table.row(target_cells(answer, target, frame));
        for component in &target.components {
            table.row(component_cells(component, frame));
        }
    }
    table.within(frame.width)
}

fn target_cells(answer: &StatusAnswer, target: &TargetStatus, frame: Frame) -> [Cell; 7] {
    let freshness = freshness_since(target.freshness, target.last_heard_at, frame.silent_to());
    let name = match answer.deployment {
        Some(_) => target.key.to_string(),
        None => format!("{}/{}", target.key, target.deployment),
    };
    [
        name.into(),
        kstatus(target.axes),
        target.deployed_status.map_or_else(|| "-".into(), deployed),
        target.ready_status.map_or_else(|| "-".into(), ready),
        Cell::styled(freshness, colour::freshness(target.freshness)),
        target.changed_at.map_or_else(|| "-".into(), |at| age(frame.now, at).into()),
        because(target).into(),
    ]
}

fn component_cells(component: &ComponentLine, frame: Frame) -> [Cell; 7] {
    [
        format!("  {}", component.name).into(),
        kstatus(component.axes),
        component.deployed_status.map_or_else(|| "-".into(), deployed),
        component.ready_status.map_or_else(|| "-".into(), ready),
        "".into(),
        component.changed_at.map_or_else(|| "-".into(), |at| age(frame.now, at).into()),
        clean(&component.message).into(),
    ]
}

/// How many targets are shown, and how to go on.
fn shown(answer: &StatusAnswer) -> String {
    let lines = answer.targets.len() as u64;
    match (&answer.next, answer.total) {
        (_, _) if lines == 0 => String::new(),
        (Some(next), Some(total)) => {
            format!("{lines} of {} shown, go on with --after {next}; ", plural(total, "target"))
        }
        (Some(next), None) => format!("{lines} shown, go on with --after {next}; "),
        (None, Some(total)) if total > lines => {
            format!("the last {lines} of {} shown; ", plural(total, "target"))
        }
        (None, _) => format!("{}; ", plural(lines, "target")),
    }
}

fn deployed(status: Deployed) -> Cell {
    Cell::styled(status.as_str(), deployed_style(status))
}

fn ready(status: Ready) -> Cell {
    Cell::styled(status.as_str(), ready_style(status))
}

const fn deployed_style(status: Deployed) -> Style {
    match status {
        Deployed::Failed => BAD,
        Deployed::Pending | Deployed::Deleting => MOVING,
        Deployed::Applied => PLAIN,
        Deployed::Deleted | Deployed::Empty => DIM,
    }
}

const fn ready_style(status: Ready) -> Style {
    match status {
        Ready::NotReady => MOVING,
        Ready::NotPresent | Ready::Unknown => UNSURE,
        Ready::Ready => WELL,
        Ready::Empty => DIM,
    }
}

fn kstatus(axes: KAxes) -> Cell {
    let style = match axes.kstatus {
        KStatus::Failed => BAD,
        KStatus::Unknown => UNSURE,
        KStatus::InProgress | KStatus::NotFound | KStatus::Terminating => MOVING,
        KStatus::Current => WELL,
    };
    Cell::styled(axes.kstatus.as_str(), style)
}
