//! Renders deployments: the list, one view, and the line of a device with its last report.

use std::fmt::Write as _;

use muster_contract::Timestamp;
use muster_contract::fact::DeadlineKind;
use muster_contract::query::{DeploymentAnswer, DeploymentsAnswer, Query};
use muster_contract::status::TargetStatus;
use muster_contract::view::{Bounds, DeploymentView, ErrorCount, Retried, Split};

use super::colour::{self, BAD, BOLD, DIM, PLAIN, UNSURE, styled};
use super::doubt::{by_freshness, dark_deployments, footer, watermark};
use super::evidence;
use super::format::{age, as_of, clean, counts, excerpt, freshness_since, percent, plural, span, states};
use super::frame::Frame;
use super::legend;
use super::silence;
use super::table::{Cell, Table};

/// The deployments that a question selects, each with its verdict, at its sites if it names any.
pub fn list(answer: &DeploymentsAnswer, query: &Query, frame: impl Into<Frame>) -> String {
    let frame = frame.into();
    let position = as_of(answer.as_of, frame.now);
    let silent = silence::lines(&answer.silent_sites, frame.now);
    let (selected, sites) = (selected(query), join(&*query.site, "and"));
    if answer.deployments.is_empty() {
        return format!("{silent}No deployment is {selected}; {position}.\n");
    }
    let rows = rows(&answer.deployments, frame.now).within(frame.width);
    let dark = dark_deployments(answer.deployments.iter());
    let scope = if sites.is_empty() { String::new() } else { format!("Counted at {sites} alone.\n") };
    let legend = legend::deployments(&answer.deployments.iter());
    format!("{rows}\n{legend}{silent}{dark}{}; {position}.\n{scope}", footer(&answer.deployments, frame.lags))
}

/// The filters of the list in words: `failing or overdue with error E-DISK at plant7`.
fn selected(query: &Query) -> String {
    let verdicts = query.verdict.iter().map(|verdict| verdict.as_str());
    let mut words =
        vec![if query.verdict.is_empty() { "targeted or leaving".to_owned() } else { join(verdicts, "or") }];
    if !query.error.is_empty() {
        words.push(format!("with error {}", clean(&join(&query.error, "or"))));
    }
    if !query.site.is_empty() {
        words.push(format!("at {}", join(&*query.site, "or")));
    }
    words.join(" ")
}

/// `a, b and c`.
pub(super) fn join<T: ToString>(names: impl IntoIterator<Item = T>, last: &str) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    match names.split_last() {
        None => String::new(),
        Some((only, [])) => only.clone(),
        Some((end, rest)) => format!("{} {last} {end}", rest.join(", ")),
    }
}

/// An empty table of standings, each row a deployment, a group or whatever else the first column names.
pub(super) fn standings_by(what: &'static str) -> Table {
    Table::new(&[&standing_titles(what)[..], &REASON_TITLES].concat())
}

/// The titles of [`reason`].
pub(super) const REASON_TITLES: [&str; 2] = ["?CHANGED", "?BECAUSE"];

/// The cells for the time of the last change and the reason.
pub(super) fn reason(changed_at: Option<Timestamp>, message: &str, now: Timestamp) -> [Cell; 2] {
    [changed_at.map_or_else(|| "-".into(), |at| age(now, at).into()), clean(message).into()]
}

const fn standing_titles(what: &'static str) -> [&'static str; 10] {
    [
        what,
        "VERDICT",
        "?>TARGETS",
        ">CONVERGED",
        "STANDINGS",
        "?>STALE",
        "?>NEVER",
        "?>NOT KNOWN",
        "?>OVERDUE",
        "?>LEAVING",
    ]
}

/// The table alone.
pub fn rows<'a>(views: impl IntoIterator<Item = &'a DeploymentView>, now: Timestamp) -> Table {
    let mut table = standings_by("DEPLOYMENT");
    let views: Vec<_> = views.into_iter().collect();
    for view in &views {
        let heard = by_freshness(&view.counts);
        let cells = [
            shown_name(view, &views).into(),
            Cell::styled(view.verdict.as_str(), colour::verdict(view.verdict)),
            Cell::count(view.targets),
            converged(view).into(),
            counts(&view.counts).into(),
            Cell::marked(heard.stale, UNSURE),
            Cell::marked(heard.never, UNSURE),
            Cell::marked(view.complete.not_known(), UNSURE),
            Cell::marked(view.overdue, BAD),
            Cell::count(view.leaving),
        ];
        table.row(cells.into_iter().chain(reason(view.changed_at, &view.message, now)));
    }
    table
}

/// A deployment in a list: its name if the id is a UUID, followed by the id if another deployment has the same name.
fn shown_name(view: &DeploymentView, all: &[&DeploymentView]) -> String {
    let name = clean(&view.deployment_name);
    if name.is_empty() || !view.deployment.is_uuid() {
        return view.deployment.to_string();
    }
    let is_same = |other: &&&DeploymentView| {
        other.deployment_name == view.deployment_name || other.deployment.as_str() == name
    };
    match all.iter().filter(is_same).count() {
        0 | 1 => name,
        _ => format!("{name} ({})", view.deployment),
    }
}

/// One deployment.
pub fn one(answer: &DeploymentAnswer, frame: impl Into<Frame>) -> String {
    let frame = frame.into();
    view_and_silence(&answer.view, &silence::lines(&answer.silent_sites, frame.now), frame)
}

/// One deployment without the sites that are silent.
pub fn view(view: &DeploymentView, frame: impl Into<Frame>) -> String {
    view_and_silence(view, "", frame.into())
}

fn view_and_silence(view: &DeploymentView, silent: &str, frame: Frame) -> String {
    let verdict = styled(colour::verdict(view.verdict), view.verdict.as_str());
    let name = match clean(&view.deployment_name) {
        name if name.is_empty() => String::new(),
        name => format!("  {name}"),
    };
    let title = format!("{}{name}  {verdict}", styled(BOLD, view.deployment.as_str()));
    let mut text = format!("{title}\n\n{}", facts(view, frame.now));
    text += &silent_targets(view);
    if view.targets > 0 {
        let _ = write!(text, "\n{}", standings(view).within(frame.width));
    }
    text += &evidence::table(&view.evidence, view.targets, frame.width);
    if !silent.is_empty() {
        let _ = write!(text, "\n{silent}");
    }
    if !view.components.is_empty() {
        let _ = write!(text, "\n{}", components(view, frame));
    }
    if !view.errors.is_empty() {
        let _ = write!(text, "\n{}", errors(view));
    }
    let _ = writeln!(text, "\n{}.", as_of(view.as_of, frame.now));
    text
}

/// The bounds of the truth: `2-5 of 6`.
pub fn converged(view: &DeploymentView) -> String {
    bounds_of(view.converged, view.targets)
}

/// The same of any targets.
pub(super) fn bounds_of(bounds: Bounds, targets: u64) -> String {
    match targets {
        0 => "-".to_owned(),
        of if bounds.lo == bounds.hi => format!("{} of {of}", bounds.lo),
        of => format!("{}-{} of {of}", bounds.lo, bounds.hi),
    }
}

fn facts(view: &DeploymentView, now: Timestamp) -> String {
    let mut lines = vec![("targets", view.targets.to_string())];
    if view.targets > 0 {
        lines.push(("converged", bounds(view)));
        lines.push(("complete", watermark(view.complete)));
    }
    if view.overdue > 0 {
        lines.push((
            "overdue",
            styled(BAD, &format!("{} of {}", view.overdue, plural(view.targets, "target"))),
        ));
    }
    if view.leaving > 0 {
        let have = if view.leaving == 1 { "has" } else { "have" };
        lines.push(("leaving", format!("{} still {have} it", plural(view.leaving, "device"))));
    }
    lines.extend(retried(view.retried, view.targets).map(|words| ("retried", words)));
    if !view.message.is_empty() {
        lines.push(("because", clean(&view.message)));
    }
    lines.extend(view.changed_at.map(|at| ("changed", age(now, at))));
    lines.extend(view.last_heard_at.map(|at| ("last heard", age(now, at))));
    lines.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name:<11}{value}");
        text
    })
}

/// `2 of 6 targets, 41 attempts`; none if no retry is running.
pub(super) fn retried(retried: Retried, targets: u64) -> Option<String> {
    let words = || {
        let attempts = plural(retried.attempts, "attempt");
        styled(UNSURE, &format!("{} of {}, {attempts}", retried.targets, plural(targets, "target")))
    };
    (!retried.is_nothing()).then(words)
}

/// How many targets are silent, and where to look which ones and for how long: a view does not say, because its cost would grow
/// with the fleet.
fn silent_targets(view: &DeploymentView) -> String {
    let heard = by_freshness(&view.counts);
    let where_to_look =
        if heard.stale > 0 { "; `muster devices --freshness stale` says since when" } else { "" };
    let silent = match heard.unheard("target") {
        Some(words) => words,
        None if where_to_look.is_empty() => return String::new(),
        None => format!("{} of {}", heard.stale, plural(view.targets, "target")),
    };
    format!("{:<11}{}{where_to_look}\n", "silent", styled(UNSURE, &silent))
}

fn bounds(view: &DeploymentView) -> String {
    let (lo, hi, of) = (view.converged.lo, view.converged.hi, view.targets);
    let targets = plural(of, "target");
    if lo == hi {
        return format!("{lo} of {targets} ({})", percent(lo, of));
    }
    let (least, most) = (percent(lo, of), percent(hi, of));
    format!("at least {lo} of {targets} ({least}), at most {hi} of {of} ({most})")
}

fn standings(view: &DeploymentView) -> Table {
    let mut table = Table::new(&["STANDING", ">FRESH", ">STALE", ">NEVER", ">TOTAL"]);
    let row = |name: Cell, split: Split| {
        let (stale, never) = (Cell::marked(split.stale, UNSURE), Cell::marked(split.never, UNSURE));
        [name, Cell::count(split.fresh), stale, never, Cell::count(split.total())]
    };
    for (standing, split) in &view.counts {
        table.row(row(Cell::styled(standing.as_str(), colour::standing(*standing)), *split));
    }
    table.row(row(Cell::styled("all targets", DIM), by_freshness(&view.counts)));
    table
}

fn components(view: &DeploymentView, frame: Frame) -> String {
    let mut table = Table::new(&["COMPONENT", "STATES"]);
    for (name, counts) in &view.components {
        table.row([name.as_str().into(), states(counts).into()]);
    }
    let more = match view.omitted.components {
        0 => String::new(),
        count => format!("and {} more\n", plural(count, "component")),
    };
    format!("{}{more}", table.within(frame.width))
}

fn errors(view: &DeploymentView) -> String {
    let mut text = format!("{}\n", styled(BOLD, "ERRORS"));
    for error in &view.errors {
        text += &error_lines(error, view.targets);
    }
    if view.omitted.errors > 0 {
        let _ = writeln!(text, "and {} more", plural(view.omitted.errors, "error code"));
    }
    text
}

fn error_lines(error: &ErrorCount, targets: u64) -> String {
    let example = &error.example;
    let component = example.component.as_ref().map(|name| format!(", {name}")).unwrap_or_default();
    let code = styled(BAD, &clean(&error.code));
    let mut text = format!("{code} on {} of {}\n", error.count, plural(targets, "target"));
    let retry = example.retry.map(|retry| format!(", {retry}")).unwrap_or_default();
    let _ = writeln!(text, "  such as {}{component}{retry}:", example.device);
    for line in excerpt(&example.message) {
        let _ = writeln!(text, "    {line}");
    }
    text
}

/// The titles of [`cells`] after the name's.
pub(crate) const LINE_TITLES: [&str; 6] =
    ["STANDING", "FRESHNESS", "KNOWN", "?>GENERATION", "?CHANGED", "BECAUSE"];

/// The table of standings by device.
pub(crate) fn standing_rows<'a>(lines: impl IntoIterator<Item = &'a TargetStatus>, frame: Frame) -> Table {
    let mut table = Table::new(&[&["DEVICE"], &LINE_TITLES[..]].concat());
    lines.into_iter().for_each(|line| table.row(cells(line.key.to_string(), line, frame)));
    table
}

/// The cells of a standing after its name: standing, freshness, known, generation, age, words.
pub fn cells(name: String, line: &TargetStatus, frame: Frame) -> Vec<Cell> {
    let (known, style) = if line.known { ("yes", PLAIN) } else { ("no", UNSURE) };
    let generation = line.reported_generation;
    vec![
        name.into(),
        Cell::styled(line.standing.as_str(), colour::standing(line.standing)),
        Cell::styled(
            freshness_since(line.freshness, line.last_heard_at, frame.silent_to()),
            colour::freshness(line.freshness),
        ),
        Cell::styled(known, style),
        generation.map_or_else(|| "-".into(), |generation| generation.to_string().into()),
        line.changed_at.map_or_else(|| "-".into(), |at| age(frame.now, at).into()),
        because(line).into(),
    ]
}

/// Why it is so; of what is past its deadline also which one.
pub(super) fn because(line: &TargetStatus) -> String {
    let mut words = clean(&line.message);
    if let Some(missed) = &line.deadline {
        let what = match missed.deadline {
            DeadlineKind::NeverStarted => "not started",
            DeadlineKind::Stuck => "not finished",
        };
        words += &format!("; {what} within {}", span(missed.limit_seconds));
    }
    words
}

/// Components, reason and errors of the last report, set in below its line; empty where the answer has none.
pub fn detail(line: &TargetStatus) -> String {
    let Some(report) = &line.report else { return String::new() };
    let mut text = String::new();
    if !report.fidelity.is_event() {
        let (fidelity, origin) = (report.fidelity.as_str(), report.origin.as_str());
        let _ = writeln!(text, "    {fidelity} by {origin}: changes in between are not reported");
    }
    let status = report.status.as_ref();
    if let Some(reason) = status.and_then(|status| status.reason.as_ref()) {
        let _ = writeln!(text, "    {}", clean(reason));
    }
    if let Some(error) = status.and_then(|status| status.error.as_ref()) {
        text += &error_detail(&error.code, &error.message);
    }
    let width = report.components.iter().map(|component| component.name.as_str().len()).max();
    let width = width.unwrap_or_default();
    for component in &report.components {
        let state = styled(colour::standing(component.state.into()), component.state.as_str());
        let _ = writeln!(text, "    {:width$}  {state}", component.name.as_str());
        if let Some(error) = &component.error {
            text += &error_detail(&error.code, &error.message);
        }
    }
    for retry in &report.retries {
        let of = retry.component.as_ref().map_or("the deployment", |name| name.as_str());
        let _ = writeln!(text, "    {of} is tried again: {}; the last error was", retry.summary());
        text += &error_detail(&retry.last_error.code, &retry.last_error.message);
    }
    text
}

fn error_detail(code: &str, message: &str) -> String {
    let mut text = format!("      {}\n", styled(BAD, &clean(code)));
    for line in excerpt(message) {
        let _ = writeln!(text, "        {line}");
    }
    text
}
