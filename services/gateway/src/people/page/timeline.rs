//! The chart of a timeline: columns of equal time with the verdicts, the certain and possible targets, the devices that are not
//! heard, and the reports that are missing. A column shows the moment of the worst verdicts, leads to it, and has it in words; its
//! last two rows have the most of its time. A time of which nothing is known has an empty column.

mod columns;

use maud::{Markup, html};
use muster_contract::Timestamp;
use muster_contract::timeline::{TimelineAnswer, TimelinePoint};
use muster_contract::view::Verdict;

use self::columns::{Column, Peaks, columns};
use super::parts::{ago, count, encoded, number, second, verdict_look};
use crate::people::api::params::{Kind, Param, Values, param};
use crate::problem::Problem;

/// The parameter of pages with a chart.
pub(super) const SPAN: Param = param("span", Kind::Text, "The time that the chart covers: 1h, 24h or 14d");
/// The spans, in seconds: a column is 75 s, 30 minutes or 7 hours wide.
const SPANS: [(&str, i64); 3] = [("1h", 60 * 60), ("24h", 24 * 60 * 60), ("14d", 14 * 24 * 60 * 60)];
/// Width of a column in the chart's units, and of its part that is drawn.
const COLUMN: u64 = 10;
const DRAWN: u64 = 9;
/// The rows of the chart: top and height.
const VERDICTS: (u64, u64) = (0, 34);
const TARGETS: (u64, u64) = (42, 34);
const SILENT: (u64, u64) = (84, 22);
const MISSING: (u64, u64) = (114, 22);
const HEIGHT: u64 = MISSING.0 + MISSING.1;
/// Changes listed below the chart.
const CHANGES_MAX: usize = 12;

/// A chart, without its points.
pub(super) struct Chart<'a> {
    /// The page that it is on; a column leads to its past.
    pub(super) page: &'a str,
    /// The span that was asked for.
    pub(super) span: Option<&'a str>,
    pub(super) now: Timestamp,
    /// The moment that the page shows, if that is in the past.
    pub(super) then: Option<Timestamp>,
}

impl<'a> Chart<'a> {
    /// The chart of a page.
    pub(super) fn of(
        page: &'a str,
        values: &'a Values,
        now: Timestamp,
        then: Option<Timestamp>,
    ) -> Result<Self, Problem> {
        let span = values.get(SPAN.name);
        if span.is_some_and(|span| !SPANS.iter().any(|(name, _)| *name == span)) {
            return Err(Problem::field(SPAN.name, "must be 1h, 24h or 14d"));
        }
        Ok(Self { page, span, now, then })
    }

    /// The span that was asked for; otherwise an hour if nothing is known of the time before, and else a day.
    fn span(&self, answer: &TimelineAnswer) -> (&'static str, i64) {
        let named = SPANS.into_iter().find(|(name, _)| Some(*name) == self.span);
        let known = answer.points.first().map_or(0, |first| self.now.as_second() - first.at.as_second());
        named.unwrap_or(if known <= SPANS[0].1 { SPANS[0] } else { SPANS[1] })
    }

    /// The chart, or why there is none.
    pub(super) fn draw(&self, timeline: &Result<TimelineAnswer, String>) -> Markup {
        let answer = match timeline {
            Ok(answer) => answer,
            Err(why) => return html! { p.none { "No history: " (why) } },
        };
        let (span, seconds) = self.span(answer);
        let columns = columns(&answer.points, self.now.as_second(), seconds);
        let peaks = Peaks::of(&columns);
        html! {
            div.timeline {
                div.scale {
                    span { @if answer.deployment.is_some() { "Verdict" } @else { "Deployments by verdict" } }
                    span { "Certain and possible" span.soft { " of " (number(peaks.targets)) } }
                    span { "Not heard" span.soft { " (most: " (number(peaks.silent)) ")" } }
                    span { "Missing reports" span.soft { " (most: " (number(peaks.missing)) ")" } }
                }
                (self.picture(&columns, &peaks))
                div.axis {
                    @for (index, second) in ticks(&columns).enumerate() {
                        span.num { (short_time(second, seconds)) @if index == 4 { " UTC" } }
                    }
                }
            }
            div.legend.below {
                @for verdict in Verdict::WORST_FIRST {
                    @let (_, word, tint) = verdict_look(verdict);
                    @if columns.iter().any(|column| column.has(verdict)) { span { span.key.(tint) aria-hidden="true" {} (word) } }
                }
                span { span.key.good aria-hidden="true" {} "certain" }
                span { span.key.possible aria-hidden="true" {} "possible" }
                @if columns.iter().any(|column| column.failed() > 0) { span { span.key.bad aria-hidden="true" {} "failed" } }
                @if columns.iter().any(|column| column.worst.is_none()) { span { span.key.unknown aria-hidden="true" {} "nothing known" } }
                span { "A column shows the worst verdicts of its time and leads there, and the most that was not heard or missing." }
                nav.spans aria-label="Time that the chart covers" {
                    @for (name, _) in SPANS {
                        a href={ (self.page) "?span=" (name) } aria-current=[(name == span).then_some("true")] { (name) }
                    }
                }
            }
            (self.changes(&answer.points))
        }
    }

    fn picture(&self, columns: &[Column], peaks: &Peaks) -> Markup {
        let width = columns.len() as u64 * COLUMN;
        html! {
            svg.picture role="group" aria-label="History; the list of changes below has it in words" viewBox={ "0 0 " (width) " " (HEIGHT) } preserveAspectRatio="none" {
                @for (index, column) in columns.iter().enumerate() {
                    @let x = index as u64 * COLUMN;
                    @match &column.worst {
                        None => { g { title { (column_words(column)) } rect.unknown x=(x) y="0" width=(DRAWN) height=(HEIGHT) {} } }
                        Some(worst) => {
                            // The list of changes has the links for the keyboard: 48 stops more would be in the way.
                            a href=(self.link(worst.at)) tabindex="-1" {
                                title { (column_words(column)) }
                                rect.hit.here[self.is_shown(column)] x=(x) y="0" width=(COLUMN) height=(HEIGHT) {}
                                (drawn(column, peaks, x))
                            }
                        }
                    }
                }
            }
        }
    }

    /// Whether the page shows a moment of a column.
    fn is_shown(&self, column: &Column) -> bool {
        self.then.is_some_and(|then| (column.from..column.to).contains(&then.as_second()))
    }

    fn link(&self, at: Timestamp) -> String {
        let span = self.span.map_or_else(String::new, |span| format!("&span={span}"));
        format!("{}?at={}{span}", self.page, encoded(&at.to_string()))
    }

    /// The newest changes in words, each with a link to its moment.
    fn changes(&self, points: &[TimelinePoint]) -> Markup {
        html! {
            details.changes #changes {
                summary { "Changes" span.soft { " (the newest " (number(points.len().min(CHANGES_MAX) as u64)) " of " (number(points.len() as u64)) ")" } }
                ul.rows {
                    @for point in points.iter().rev().take(CHANGES_MAX) {
                        li { a.num href=(self.link(point.at)) { (second(point.at)) } " " (words(point)) }
                    }
                }
            }
        }
    }
}

/// The age up to which every change is kept, in seconds; of an older one another break may be left out.
const EXACT: i64 = 10 * 60;

/// Since when a verdict has been there without a break, as of a moment; nothing if that is not known.
pub(super) fn since(timeline: &Result<TimelineAnswer, String>, verdict: Verdict, now: Timestamp) -> Markup {
    let points = timeline.as_ref().map(|answer| answer.points.as_slice()).unwrap_or_default();
    let known = &points[..points.partition_point(|point| point.at <= now)];
    let has = |point: &&TimelinePoint| point.deployments.contains_key(&verdict);
    let Some(first) = known.iter().rev().take_while(has).last() else { return html! {} };
    let is_exact = now.as_second() - first.at.as_second() <= EXACT;
    let bound = match known.first() == Some(first) {
        true => "before ",
        false if is_exact => "",
        false => "about ",
    };
    html! { "since " (bound) (second(first.at)) " (" (ago(first.at, now)) ")" }
}

/// The parts of a column: a stack of verdicts, a band of targets, and two levels.
fn drawn(column: &Column, peaks: &Peaks, x: u64) -> Markup {
    let Some(worst) = &column.worst else { return html! {} };
    let all: u64 = worst.deployments.values().sum();
    let verdicts = Verdict::WORST_FIRST.into_iter().rev().filter_map(|verdict| {
        let (.., tint) = verdict_look(verdict);
        worst.deployments.get(&verdict).map(|count| (tint, *count))
    });
    let (certain, failed) = (worst.converged.lo, column.failed());
    let possible = worst.targets.saturating_sub(certain + failed);
    let targets = [("good", certain), ("possible", possible), ("bad", failed)];
    html! {
        (stack(verdicts, all, x, VERDICTS))
        (stack(targets.into_iter(), peaks.targets, x, TARGETS))
        (stack([("old", column.silent)].into_iter(), peaks.devices, x, SILENT))
        (stack([("work", column.missing)].into_iter(), peaks.missing, x, MISSING))
    }
}

/// Parts on top of each other, the first at the bottom; `most` fills the row. A part that is there is seen.
fn stack(
    parts: impl Iterator<Item = (&'static str, u64)>,
    most: u64,
    x: u64,
    (top, height): (u64, u64),
) -> Markup {
    let mut below = top + height;
    let placed: Vec<_> = parts
        .filter(|(_, count)| *count > 0 && most > 0)
        .map(|(tint, count)| {
            let tall = (count.saturating_mul(height) / most).clamp(1, (below - top).max(1));
            below = below.saturating_sub(tall).max(top);
            (tint, below, tall)
        })
        .collect();
    html! {
        @for (tint, y, tall) in placed { rect.{ "seg-" (tint) } x=(x) y=(y) width=(DRAWN) height=(tall) {} }
    }
}

/// A column in words.
fn column_words(column: &Column) -> String {
    let time = |at| Timestamp::from_second(at).map(second).unwrap_or_default();
    let said = column.worst.as_ref().map_or_else(|| "nothing is known of this time".to_owned(), words);
    format!("{} to {}: {said}", time(column.from), time(column.to))
}

/// A point in words.
fn words(point: &TimelinePoint) -> String {
    let verdicts = Verdict::WORST_FIRST.into_iter().filter_map(|verdict| {
        let (_, word, _) = verdict_look(verdict);
        point.deployments.get(&verdict).map(|count| format!("{} {word}", number(*count)))
    });
    let mut parts: Vec<String> = verdicts.collect();
    if parts.is_empty() {
        parts.push("no deployment".to_owned());
    }
    let (lo, hi) = (number(point.converged.lo), number(point.converged.hi));
    parts.push(format!("certain {lo}\u{2013}{hi} of {}", count(point.targets, "target")));
    let silent = point.devices.stale + point.devices.never;
    parts.push(format!("{} of {} not heard", number(silent), count(point.devices.total(), "device")));
    if point.missing_reports > 0 {
        parts.push(format!("{} missing", count(point.missing_reports, "report")));
    }
    parts.join("; ")
}

/// The seconds at which the columns begin, divide into quarters, and end.
fn ticks(columns: &[Column]) -> impl Iterator<Item = i64> {
    let (first, last) =
        columns.first().zip(columns.last()).map_or((0, 0), |(first, last)| (first.from, last.to));
    (0..=4).map(move |quarter| first + (last - first) * quarter / 4)
}

/// A time of an axis: the day too where the axis covers several.
fn short_time(at: i64, span: i64) -> String {
    let whole = Timestamp::from_second(at).map(second).unwrap_or_default();
    // `2026-11-20 08:00:00 UTC`
    let part = if span > 24 * 60 * 60 { whole.get(5..10) } else { whole.get(11..16) };
    part.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use muster_contract::view::AsOf;
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-11-20T08:00:00Z";

    fn answer(points: &serde_json::Value) -> TimelineAnswer {
        let as_of = AsOf { ledger_seq: 7, at: NOW.parse().unwrap() };
        TimelineAnswer { deployment: None, as_of, points: serde_json::from_value(points.clone()).unwrap() }
    }

    fn point(at: &str, verdict: &str, lo: u64, missing: u64) -> serde_json::Value {
        json!({ "at": at, "deployments": { verdict: 1 }, "devices": { "fresh": 3, "stale": 1 }, "targets": 4,
            "converged": { "lo": lo, "hi": 4 }, "missingReports": missing })
    }

    fn drawn(span: Option<&str>, then: Option<&str>, points: &serde_json::Value) -> String {
        let then = then.map(|then| then.parse().unwrap());
        let chart = Chart { page: "/", span, now: NOW.parse().unwrap(), then };
        chart.draw(&Ok(answer(points))).into_string()
    }

    #[test]
    fn a_failure_of_seconds_is_seen_in_its_column_and_linked() {
        let points = json!([
            point("2026-11-20T07:00:00Z", "converged", 4, 0),
            point("2026-11-20T07:30:15Z", "failing", 3, 2),
            point("2026-11-20T07:30:30Z", "converged", 4, 0),
        ]);
        let shown = drawn(None, None, &points);
        assert_eq!(shown.matches("seg-bad").count(), 1, "{shown}");
        assert!(shown.contains("href=\"/?at=2026-11-20T07%3A30%3A15Z\""), "{shown}");
        let words = "1 failing; certain 3\u{2013}4 of 4 targets; 1 of 4 devices not heard; 2 reports missing";
        assert!(shown.contains(words), "{shown}");
        assert!(shown.contains("(most: 2)"), "{shown}");
    }

    #[test]
    fn a_time_of_which_nothing_is_known_is_an_empty_column() {
        let points = json!([point("2026-11-20T07:59:45Z", "converged", 4, 0)]);
        let shown = drawn(Some("24h"), None, &points);
        assert_eq!(shown.matches("class=\"unknown\"").count(), 46, "{shown}");
        assert!(shown.contains("nothing is known of this time"), "{shown}");
    }

    #[test]
    fn the_moment_of_a_page_of_the_past_is_marked() {
        let points = json!([point("2026-11-20T07:00:00Z", "converged", 4, 0)]);
        let here = |then| drawn(Some("1h"), then, &points).matches("hit here").count();
        assert_eq!((here(None), here(Some("2026-11-20T07:31:00Z"))), (0, 1));
    }

    #[test]
    fn a_chart_without_an_answer_says_why() {
        let chart = Chart { page: "/", span: None, now: NOW.parse().unwrap(), then: None };
        let shown = chart.draw(&Err("nobody answers".to_owned())).into_string();
        assert!(shown.contains("No history: nobody answers"), "{shown}");
    }

    #[test]
    fn a_verdict_is_dated_by_its_last_beginning() {
        let points = json!([
            point("2026-11-20T06:00:00Z", "failing", 3, 0),
            point("2026-11-20T06:30:00Z", "converged", 4, 0),
            point("2026-11-20T07:30:00Z", "failing", 3, 0),
            point("2026-11-20T07:45:00Z", "failing", 2, 0),
        ]);
        let since = |verdict, now: &str| {
            super::since(&Ok(answer(&points)), verdict, now.parse().unwrap()).into_string()
        };
        assert!(since(Verdict::Failing, NOW).starts_with("since about 2026-11-20 07:30:00 UTC ("));
        assert!(
            since(Verdict::Failing, "2026-11-20T07:40:00Z").starts_with("since 2026-11-20 07:30:00 UTC (")
        );
        assert!(
            since(Verdict::Failing, "2026-11-20T06:10:00Z")
                .starts_with("since before 2026-11-20 06:00:00 UTC")
        );
        assert_eq!(since(Verdict::Converged, NOW), "");
    }

    #[test]
    fn another_span_is_refused() {
        let values = Values::read("span=1y", &[SPAN]).unwrap();
        let refused = Chart::of("/", &values, NOW.parse().unwrap(), None).err().unwrap();
        assert!(refused.detail.contains("1h, 24h or 14d"), "{}", refused.detail);
    }
}
