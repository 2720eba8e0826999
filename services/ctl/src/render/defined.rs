//! Views that people define.

use muster_contract::Timestamp;
use muster_contract::defined::{CountedPart, DefinedView};
use muster_contract::explained::Explained;
use muster_contract::groups::{ViewAnswer, ViewsAnswer};
use muster_contract::view::Split;

use super::deployment;
use super::doubt::{by_freshness, dark};
use super::format::{age, as_of, plural, states};
use super::frame::Frame;
use super::groups;
use super::table::{Cell, Table};

/// A definition was taken.
pub fn applied(answer: &ViewAnswer) -> String {
    let name = &answer.name;
    if answer.changed {
        format!("view {name} is defined; `muster view show {name}` shows it once it is counted\n")
    } else {
        format!("view {name} is defined so already\n")
    }
}

/// A definition was taken back.
pub fn removed(answer: &ViewAnswer) -> String {
    format!("view {} is defined no more\n", answer.name)
}

/// The definition.
pub fn list(answer: &ViewsAnswer, frame: impl Into<Frame>) -> String {
    let frame = frame.into();
    let position = as_of(answer.as_of, frame.now);
    if answer.views.is_empty() {
        return format!("No view is defined; `muster view apply -f FILE` defines one; {position}.\n");
    }
    let mut table = Table::new(&["VIEW", "COUNTS", "BY", ">GROUPS", "STATE"]);
    for line in &answer.views {
        let definition = &line.definition;
        table.row([
            definition.name.as_str().into(),
            word(definition.count).into(),
            definition.group_by.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string).into(),
            Cell::count(line.groups),
            match (line.uncounted, line.ready) {
                (true, _) => "not counted: too many",
                (false, true) => "ready",
                (false, false) => "counting",
            }
            .into(),
        ]);
    }
    format!("{}\n{position}.\n", table.within(frame.width))
}

/// The content of a view.
pub fn view(view: &DefinedView, frame: impl Into<Frame>) -> String {
    let frame = frame.into();
    let mut parts: Vec<(String, &Explained<CountedPart>)> =
        view.groups.iter().map(|group| (group.name.clone(), &group.part)).collect();
    parts.extend(view.without.as_ref().map(|part| ("(without)".to_owned(), part)));
    parts.extend(
        view.omitted
            .as_ref()
            .map(|omitted| (format!("({} not listed)", plural(omitted.groups, "group")), &omitted.part)),
    );
    let mut table = match view.total {
        CountedPart::Standings(_) => deployment::standings_by("GROUP"),
        CountedPart::Devices(_) => table_of("DEVICES"),
        CountedPart::Components(_) => table_of("COMPONENTS"),
    };
    let total = ("total".to_owned(), &explained_total(view));
    for (name, part) in parts.iter().chain([&total]) {
        table.row(cells(name, &part.part).into_iter().chain(deployment::reason(
            part.changed_at,
            &part.message,
            frame.now,
        )));
    }
    let thing = if matches!(view.total, CountedPart::Devices(_)) { "device" } else { "target" };
    let dark = dark(
        parts.iter().map(|(name, part)| (name, freshness_of(&part.part))),
        freshness_of(&view.total),
        thing,
    );
    let by = view.group_by.as_ref().map_or_else(String::new, |by| format!(" by {by}"));
    let counted = word(view.count);
    format!(
        "{}\n{dark}{}{}: {counted}{by}; {}.\n",
        table.within(frame.width),
        heard(view, frame.now),
        view.name,
        as_of(view.as_of, frame.now)
    )
}

/// An empty table of groups of something other than standings.
fn table_of(counted: &'static str) -> Table {
    Table::new(&[&["GROUP", counted, "KNOWN"], &deployment::REASON_TITLES[..]].concat())
}

/// A line with the time at which a counted device was last heard; empty if the hub does not tell it.
fn heard(view: &DefinedView, now: Timestamp) -> String {
    view.last_heard_at.map_or_else(String::new, |at| format!("total: last heard {}.\n", age(now, at)))
}

/// Everything that is counted, as a part.
fn explained_total(view: &DefinedView) -> Explained<CountedPart> {
    Explained {
        message: view.message.clone(),
        changed_at: view.changed_at,
        last_heard_at: view.last_heard_at,
        part: view.total.clone(),
    }
}

/// The cells of a part.
fn cells(name: &str, part: &CountedPart) -> Vec<Cell> {
    match part {
        CountedPart::Standings(part) => groups::row(name, part).into(),
        CountedPart::Devices(part) => {
            let known = format!("{} of {}", part.complete.devices, part.complete.of);
            vec![name.into(), groups::devices(part.devices).into(), known.into()]
        }
        CountedPart::Components(part) => {
            let known = format!("{} of {} targets", part.complete.devices, part.complete.of);
            vec![name.into(), states(&part.components).into(), known.into()]
        }
    }
}

/// The counted things by freshness. Components are not counted by freshness.
fn freshness_of(part: &CountedPart) -> Split {
    match part {
        CountedPart::Standings(part) => by_freshness(&part.counts),
        CountedPart::Devices(part) => part.devices,
        CountedPart::Components(_) => Split::default(),
    }
}

const fn word(count: muster_contract::defined::Counted) -> &'static str {
    use muster_contract::defined::Counted;
    match count {
        Counted::Standings => "standings",
        Counted::Devices => "devices",
        Counted::Components => "components",
    }
}
