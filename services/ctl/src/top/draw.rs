//! Draws a frame: title, doubts, the fleet in three lines, and the list or page with its rows. Pure.
//!
//! Nothing depends on colours: `>` marks the selected row, and `NOT CURRENT` with an age marks numbers that may be out of date, above
//! the rows and in the title.

use muster_contract::Timestamp;
use muster_contract::view::{FleetView, Verdict};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr as _;

use super::fleet_screen::Staleness;
use super::listing::{Listing, open_alone};
use super::model::Model;
use super::spans;
use super::view::{ListRow, Tab, Target};
use crate::render;
use crate::render::colour::{self, BAD, BOLD, DIM, UNSURE, styled};
use crate::render::cut;
use crate::render::format::{age, clean, grouped, plural};

/// Least size of the terminal.
const LEAST: (u16, u16) = (40, 12);
/// Columns before each row.
const MARK: usize = 2;
/// Most lines of doubts: the rows need room, too.
const DOUBT_LINES_MAX: usize = 4;
/// Least rows of a list below its head.
const ROWS_LEAST: usize = 3;
/// The meaning of each key.
const KEYS: [(&str, &str); 11] = [
    ("j k, arrows", "select a row, or scroll a text"),
    ("g G, PageUp, PageDown", "the first or last row, a screen up or down"),
    ("Enter", "open the page of the row"),
    ("w", "why a deployment has its verdict, fact by fact"),
    ("a, x, p", "on the page of a rollout: approve, reject, pause or resume"),
    ("Esc", "show all rows again, or go back"),
    ("Tab, 1 2 3 4 5", "the next list, or that one"),
    ("/", "only rows with these words; Esc shows all"),
    ("?", "these keys"),
    ("q, Ctrl-C", "end"),
    ("", "2-5 of 6: two are certain, five are possible."),
];

/// Draws the state as it is at a time.
pub fn draw(frame: &mut Frame<'_>, model: &mut Model, now: Timestamp) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let words = format!("{}x{} is too small; {}x{} is enough", area.width, area.height, LEAST.0, LEAST.1);
        frame.render_widget(Line::from(words), Rect { height: 1.min(area.height), ..area });
        return;
    }
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    model.width = width - MARK;
    let listing = model.listing(now);
    let staleness = model.fleet_screen.staleness(now).or_else(|| listing.staleness.clone());
    let mut lines = vec![title(model, staleness.is_some(), width, now)];
    lines.extend(
        stale_lines(model, staleness.as_ref(), width, now)
            .into_iter()
            .map(|line| spans::line(&line, model.has_colour)),
    );
    lines.extend(summary(model, now).iter().map(|line| shown(line, model, width)));
    lines.push(tabs(model, width, now));
    let body = if model.is_help {
        help()
    } else {
        let room = height.saturating_sub(lines.len() + 2);
        rows(model, &listing, width, room, staleness.is_some())
    };
    lines.extend(body);
    lines.truncate(height - 2);
    lines.resize(height - 2, Line::default());
    lines.push(shown(&position(model, &listing), model, width));
    let keys = match (&model.question, model.wanted()) {
        (Some(_), _) => "y yes  any other key no",
        (None, Some(Target::Rollout(_))) => {
            "a approve  x reject  p pause or resume  Esc back  / filter  ? keys  q end"
        }
        _ => "j/k select  Enter open  Esc back  / filter  Tab list  w why  ? keys  q end",
    };
    lines.push(Line::styled(cut::end(keys, width), Style::new().add_modifier(Modifier::DIM)));
    for (at, line) in lines.into_iter().enumerate() {
        frame.render_widget(line, Rect { y: area.y + at as u16, height: 1, ..area });
    }
}

fn shown(text: &str, model: &Model, width: usize) -> Line<'static> {
    spans::line(&cut::line(text, width), model.has_colour)
}

/// The title of the open page, with the name of its deployment.
fn page(model: &Model) -> Option<String> {
    let mut target = model.wanted()?;
    if let Target::Deployment(id) | Target::Why(id) | Target::Rollout(id) = &mut target {
        model.fleet_screen.names().rename(id);
    }
    let under = if model.is_nested() { "\u{2026} > " } else { "" };
    Some(format!("{under}{target}"))
}

/// The address of the hub, and the position of the numbers.
fn title(model: &Model, is_old: bool, width: usize, now: Timestamp) -> Line<'static> {
    let place = page(model).unwrap_or_else(|| clean(&model.address));
    let place = format!("muster top  {place}");
    let position = model.fleet_screen.fleet.get().map_or_else(String::new, |fleet| {
        let at = fleet.tally.as_of;
        format!("ledger {}, {}", grouped(at.ledger_seq), age(now, at.at))
    });
    let position = if is_old { format!("NOT CURRENT  {position}") } else { position };
    let room = width.saturating_sub(position.width() + 2);
    let place = cut::end(&place, room);
    let gap = width.saturating_sub(place.width() + position.width());
    Line::styled(format!("{place}{:gap$}{position}", ""), Style::new().add_modifier(Modifier::REVERSED))
}

/// Why numbers may be out of date, and the partitions that the hub does not listen to.
fn stale_lines(model: &Model, staleness: Option<&Staleness>, width: usize, now: Timestamp) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(Staleness { since, cause }) = staleness {
        let words = match since {
            Some(at) => format!("NOT CURRENT, asked for {}: {}", age(now, *at), clean(cause)),
            None => format!("NOTHING IS KNOWN: {}", clean(cause)),
        };
        lines.extend(wrapped(&words, width).iter().map(|line| styled(BAD, line)));
    }
    let lag = model.fleet_screen.lag.map_or_else(String::new, |lag| render::lag::lines(&lag, now));
    let hub = model
        .fleet_screen
        .fleet
        .get()
        .map_or_else(String::new, |fleet| render::hearing::lines(&fleet.tally.hub, now));
    for line in (lag + &hub).lines() {
        let plain = anstream::adapter::strip_str(line).to_string();
        lines.extend(wrapped(&plain, width).iter().map(|line| styled(UNSURE, line)));
    }
    lines.truncate(DOUBT_LINES_MAX);
    lines
}

/// A text in lines of a width, broken at spaces.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in render::local::text(text).split(' ') {
        match lines.last_mut().filter(|line| line.width() + 1 + word.width() <= width) {
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(cut::end(word, width)),
        }
    }
    lines
}

/// The fleet in three lines.
fn summary(model: &Model, now: Timestamp) -> Vec<String> {
    let fleet_screen = &model.fleet_screen;
    let Some(fleet) = fleet_screen.fleet.get() else { return vec!["asking the hub".to_owned()] };
    let dim = |name: &str| styled(DIM, &format!("{name:<12}"));
    vec![
        format!("{}{}", dim("deployments"), verdicts(fleet)),
        format!("{}{}", dim("targets"), targets(model, fleet)),
        format!("{}{}", dim("devices"), devices(fleet, now)),
    ]
}

fn verdicts(fleet: &FleetView) -> String {
    let verdicts = &fleet.tally.deployments;
    if verdicts.is_empty() {
        return "none should run".to_owned();
    }
    let counted = Verdict::WORST_FIRST.iter().filter_map(|verdict| Some((verdict, verdicts.get(verdict)?)));
    let words = counted.map(|(verdict, count)| {
        format!("{} {}", grouped(*count), styled(colour::verdict(*verdict), verdict.as_str()))
    });
    words.collect::<Vec<_>>().join(", ")
}

fn targets(model: &Model, fleet: &FleetView) -> String {
    let tally = &fleet.tally;
    let bounds = model.fleet_screen.deployments.get().map(|answer| {
        let bounds = answer.deployments.iter().map(|view| view.converged);
        bounds.fold((0, 0), |(lo, hi), bounds| (lo + bounds.lo, hi + bounds.hi))
    });
    let mut words = match bounds {
        Some((lo, hi)) if lo == hi => format!("{} of {} converged", grouped(lo), grouped(tally.targets)),
        Some((lo, hi)) => format!("{}-{} of {} converged", grouped(lo), grouped(hi), grouped(tally.targets)),
        None => grouped(tally.targets),
    };
    if tally.overdue > 0 {
        words += &format!(", {}", styled(BAD, &format!("{} overdue", grouped(tally.overdue))));
    }
    if tally.leaving > 0 {
        words += &format!(", {} leaving", grouped(tally.leaving));
    }
    words
}

fn devices(fleet: &FleetView, now: Timestamp) -> String {
    let tally = &fleet.tally;
    let split = tally.devices;
    let mut words = format!("{} fresh", grouped(split.fresh));
    for (count, word) in [(split.stale, "stale"), (split.never, "never heard")] {
        if count > 0 {
            words += &format!(", {}", styled(UNSURE, &format!("{} {word}", grouped(count))));
        }
    }
    let unheard = split.unheard("device");
    words += &unheard.as_ref().map_or_else(String::new, |words| format!("; {}", styled(UNSURE, words)));
    words += &match tally.complete.missing_reports {
        0 => "; every report is in".to_owned(),
        missing => format!("; {}", styled(UNSURE, &format!("{} missing", plural(missing, "report")))),
    };
    let heard = tally.last_heard_at.filter(|_| unheard.is_none());
    words + &heard.map_or_else(String::new, |at| format!("; last heard {}", age(now, at)))
}

/// The lists with their sizes; `?` if the size is unknown, `old` if it may be out of date. A list without room is left out,
/// so that no size is cut to a smaller one; the current one never is.
fn tabs(model: &Model, width: usize, now: Timestamp) -> Line<'static> {
    let fleet_screen = &model.fleet_screen;
    let silent = fleet_screen.fleet.get().map(|fleet| fleet.tally.devices.stale + fleet.tally.devices.never);
    let size = |size: Option<u64>, staleness: Option<Staleness>| match (size, staleness) {
        (None, _) => "?".to_owned(),
        (Some(size), None) => grouped(size),
        (Some(size), Some(_)) => format!("{} old", grouped(size)),
    };
    let count = |count: usize| count as u64;
    let sizes = [
        size(
            fleet_screen.deployments.get().map(|answer| count(answer.deployments.len())),
            fleet_screen.deployments.staleness(now),
        ),
        size(silent, fleet_screen.fleet.staleness(now)),
        size(
            fleet_screen.rollouts.get().map(|changes| count(changes.held.len() + open_alone(changes).len())),
            fleet_screen.rollouts.staleness(now),
        ),
        size(
            fleet_screen.incidents.get().map(|found| count(found.len())),
            fleet_screen.incidents.staleness(now),
        ),
        size(fleet_screen.sites.get().map(|sites| count(sites.len())), fleet_screen.sites.staleness(now)),
    ];
    let tabs: Vec<_> = Tab::ALL
        .into_iter()
        .zip(sizes)
        .map(|(tab, size)| {
            let words = format!("{} {} {size}", tab as usize + 1, tab.title());
            if tab == model.tab {
                (format!("[{words}]"), Modifier::BOLD)
            } else {
                (format!(" {words} "), Modifier::empty())
            }
        })
        .collect();
    let mut room = width.saturating_sub(tabs[model.tab as usize].0.width());
    let mut line = Line::default();
    for (at, (words, modifier)) in tabs.into_iter().enumerate() {
        if at != model.tab as usize {
            if words.width() > room {
                continue;
            }
            room -= words.width();
        }
        line.push_span(Span::styled(words, Style::new().add_modifier(modifier)));
    }
    line
}

/// Lines above the rows, and the rows that fit.
fn rows(model: &mut Model, listing: &Listing, width: usize, room: usize, is_old: bool) -> Vec<Line<'static>> {
    let mut lines: Vec<_> = listing.head.iter().map(|line| shown(line, model, width)).collect();
    lines.truncate(room.saturating_sub(ROWS_LEAST + 1));
    let indented = |text: &str| format!("{:MARK$}{text}", "");
    lines.extend(listing.columns.iter().map(|line| shown(&indented(line), model, width)));
    let room = room.saturating_sub(lines.len() + usize::from(listing.note.is_some()));
    model.room = room.max(1);
    if listing.rows.is_empty() && !(listing.is_text || listing.staleness.is_some() && listing.total == 0) {
        lines.push(shown(&indented(&listing.empty), model, width));
        return lines;
    }
    let at = model.view().position(&listing.rows);
    let first = if listing.is_text {
        at.min(listing.rows.len().saturating_sub(room))
    } else {
        at.saturating_sub(room.saturating_sub(1))
    };
    for (row, ListRow { text, .. }) in listing.rows.iter().enumerate().skip(first).take(room) {
        let is_selected = row == at && !listing.is_text;
        let mark = if is_selected { "> " } else { "  " };
        let line = shown(&format!("{mark}{text}"), model, width);
        let modifier = if is_selected { Modifier::REVERSED } else { Modifier::empty() };
        let dim = if is_old { Modifier::DIM } else { Modifier::empty() };
        lines.push(line.patch_style(Style::new().add_modifier(modifier | dim)));
    }
    lines.extend(listing.note.iter().map(|line| shown(&indented(line), model, width)));
    lines
}

/// A question about a decision, the outcome of one, the filter that is typed, or the selected row.
fn position(model: &Model, listing: &Listing) -> String {
    if let Some(question) = &model.question {
        return styled(BOLD, &question.words);
    }
    if let Some(outcome) = &model.outcome {
        return styled(UNSURE, outcome);
    }
    let view = model.view();
    let thing = if listing.is_text { "line" } else { "row" };
    let of = plural(listing.total as u64, thing);
    let filter = clean(&view.filter);
    if model.is_typing {
        return format!("{}{filter}_   {} of {of}", styled(BOLD, "/"), listing.rows.len());
    }
    let more = match listing.omitted {
        0 => String::new(),
        more => format!(", and {} more that `muster` lists", grouped(more)),
    };
    if filter.is_empty() {
        let at = if listing.rows.is_empty() { 0 } else { view.position(&listing.rows) + 1 };
        return styled(DIM, &format!("{thing} {at} of {}{more}", listing.total));
    }
    format!("{}: {} of {of}{more}; Esc shows all", styled(BOLD, &format!("/{filter}")), listing.rows.len())
}

fn help() -> Vec<Line<'static>> {
    let line = |(key, words): &(&str, &str)| Line::from(format!("  {key:<22} {words}"));
    [Line::default()].into_iter().chain(KEYS.iter().map(line)).collect()
}
