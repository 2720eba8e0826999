//! Parts of pages: words of a state, bars, ages, commands. Each state has a sign, a word and a tint, so that none needs its
//! colour; hatched is not heard, hollow was never heard.

use maud::{Markup, html};
use muster_contract::view::{Bounds, Counts, Freshness, Split, Standing, Verdict};
use muster_contract::{DeploymentId, Timestamp};

use super::address;
use super::command::Command;

/// Width of a bar in its own units.
const BAR_WIDTH: u64 = 1000;
/// Least width of a part that is there: one device of 100,000 is seen.
const PART_MIN: u64 = 6;

/// The order of standings in bars, the worst first.
const STANDINGS: [Standing; 8] = [
    Standing::Failed,
    Standing::Outdated,
    Standing::Waiting,
    Standing::Pending,
    Standing::Installing,
    Standing::Removing,
    Standing::Removed,
    Standing::Installed,
];

/// The order of freshness in bars and legends.
pub(super) const HEARD: [Freshness; 3] = [Freshness::Fresh, Freshness::Stale, Freshness::Never];

/// The word of a freshness.
pub(super) const fn freshness_word(freshness: Freshness) -> &'static str {
    match freshness {
        Freshness::Fresh => "fresh",
        Freshness::Stale => "stale",
        Freshness::Never => "never",
    }
}

/// The tint of a standing.
pub(super) const fn tint(standing: Standing) -> &'static str {
    match standing {
        Standing::Failed => "bad",
        Standing::Outdated => "old",
        Standing::Waiting => "wait",
        Standing::Pending | Standing::Installing => "work",
        Standing::Installed => "good",
        Standing::Removing | Standing::Removed => "gone",
    }
}

/// The sign, the word and the tint of a verdict.
pub(super) const fn verdict_look(verdict: Verdict) -> (&'static str, &'static str, &'static str) {
    match verdict {
        Verdict::Failing => ("\u{2715}", "failing", "bad"),
        Verdict::Overdue => ("\u{29d6}", "overdue", "bad"),
        Verdict::Incomplete => ("?", "incomplete", "old"),
        Verdict::Waiting => ("\u{2026}", "waiting", "wait"),
        Verdict::Progressing => ("\u{2192}", "progressing", "work"),
        Verdict::Removing => ("\u{2212}", "removing", "wait"),
        Verdict::ConvergedStale => ("\u{25cc}", "converged, stale", "hollow"),
        Verdict::Converged => ("\u{2713}", "converged", "good"),
        Verdict::Empty => ("\u{2205}", "empty", "hollow"),
    }
}

/// A verdict.
pub(super) fn verdict(verdict: Verdict) -> Markup {
    let (sign, word, tint) = verdict_look(verdict);
    html! { span.tag.(tint) { span aria-hidden="true" { (sign) } (word) } }
}

/// A standing, with the freshness of its device unless that is fresh.
pub(super) fn standing(standing: Standing, freshness: Freshness) -> Markup {
    let tint = if freshness == Freshness::Fresh { tint(standing) } else { "hollow" };
    html! {
        span.tag.(tint) {
            span.key.(self::tint(standing)).(freshness_word(freshness)) aria-hidden="true" {}
            (standing.as_str())
            @match freshness {
                Freshness::Fresh => {}
                Freshness::Stale => ", not heard now"
                Freshness::Never => ", never heard"
            }
        }
    }
}

/// The freshness of a device.
pub(super) fn freshness(freshness: Freshness) -> Markup {
    let (sign, word, tint) = match freshness {
        Freshness::Fresh => ("\u{25cf}", "fresh", "good"),
        Freshness::Stale => ("\u{25cc}", "stale", "old"),
        Freshness::Never => ("\u{2205}", "never heard", "hollow"),
    };
    html! { span.tag.(tint) { span aria-hidden="true" { (sign) } (word) } }
}

/// One part of a bar.
struct Part {
    count: u64,
    tint: &'static str,
    heard: &'static str,
}

/// A bar of standings by freshness; its parts add up to all targets.
pub(super) fn bar(counts: &Counts, id: &str) -> Markup {
    let parts = parts(counts).map(|(standing, freshness, count)| Part {
        count,
        tint: tint(standing),
        heard: freshness_word(freshness),
    });
    drawn(&parts.collect::<Vec<_>>(), id, &words(counts), false)
}

/// A bar of a wave: confirmed, possible, failed and not released.
pub(super) fn band(confirmed: u64, failed: u64, released: u64, targets: u64, id: &str) -> Markup {
    let possible = released.saturating_sub(confirmed + failed);
    let rest = targets.saturating_sub(released.max(confirmed + failed));
    let parts = [
        Part { count: failed, tint: "bad", heard: "fresh" },
        Part { count: confirmed, tint: "good", heard: "fresh" },
        Part { count: possible, tint: "possible", heard: "fresh" },
        Part { count: rest, tint: "none", heard: "fresh" },
    ];
    let words = format!("{confirmed} confirmed, {possible} possible, {failed} failed, {rest} not released");
    drawn(&parts, id, &words, true)
}

fn drawn(parts: &[Part], id: &str, words: &str, is_tall: bool) -> Markup {
    let total: u64 = parts.iter().map(|part| part.count).sum();
    let widths = widths(&parts.iter().map(|part| part.count).collect::<Vec<_>>(), total);
    let mut at = 0;
    let placed: Vec<_> = parts
        .iter()
        .zip(widths)
        .filter(|(part, _)| part.count > 0)
        .map(|(part, width)| {
            at += width;
            (part, at - width, width)
        })
        .collect();
    let hatch = format!("hatch-{id}");
    html! {
        svg.bar.tall[is_tall] role="img" aria-label=(words) viewBox={ "0 0 " (BAR_WIDTH) " 10" } preserveAspectRatio="none" {
            title { (words) }
            defs {
                pattern id=(hatch) width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                    line.hatch x1="0" y1="0" x2="0" y2="8" {}
                }
            }
            @for (part, x, width) in placed {
                @if part.tint != "none" {
                    rect.{ "seg-" (part.tint) }.(part.heard) x=(x) y="0" width=(width) height="10" {}
                    @if part.heard == "stale" {
                        rect x=(x) y="0" width=(width) height="10" fill={ "url(#" (hatch) ")" } {}
                    }
                }
            }
        }
    }
}

/// Widths that add up to a whole bar, none too small to see.
fn widths(counts: &[u64], total: u64) -> Vec<u64> {
    if total == 0 {
        return vec![0; counts.len()];
    }
    let least = |count: u64| if count == 0 { 0 } else { PART_MIN };
    let reserved: u64 = counts.iter().map(|count| least(*count)).sum();
    let room = u128::from(BAR_WIDTH.saturating_sub(reserved));
    let share = |count: u64| u64::try_from(room * u128::from(count) / u128::from(total)).unwrap_or(0);
    counts.iter().map(|count| least(*count) + share(*count)).collect()
}

/// Each standing and freshness that some target has, the worst first.
pub(super) fn parts(counts: &Counts) -> impl Iterator<Item = (Standing, Freshness, u64)> {
    let of = |standing: Standing| {
        let mut split = counts.get(&standing).copied().unwrap_or_default();
        HEARD.map(|freshness| (standing, freshness, *split.get_mut(freshness)))
    };
    STANDINGS.into_iter().flat_map(of).filter(|(.., count)| *count > 0)
}

/// The counts in words, for readers that see no bar.
fn words(counts: &Counts) -> String {
    let said = parts(counts).map(|(standing, freshness, count)| {
        let heard = match freshness {
            Freshness::Fresh => "",
            Freshness::Stale => " (stale)",
            Freshness::Never => " (never heard)",
        };
        format!("{count} {}{heard}", standing.as_str())
    });
    said.collect::<Vec<_>>().join(", ")
}

/// The counts as a list; each number opens the devices behind it at `address`.
pub(super) fn legend(counts: &Counts, address: Option<&str>) -> Markup {
    let join = address.map_or('?', join);
    html! {
        div.legend {
            @for (standing, freshness, count) in parts(counts) {
                @let heard = freshness_word(freshness);
                @let content = html! {
                    span.key.(tint(standing)).(heard) aria-hidden="true" {}
                    b { (number(count)) } " " (standing.as_str())
                    @if freshness == Freshness::Stale { " stale" }
                    @if freshness == Freshness::Never { " never heard" }
                };
                @match address {
                    Some(address) => a href={ (address) (join) "standing=" (standing.as_str()) "&freshness=" (heard) } { (content) },
                    None => span { (content) },
                }
            }
        }
    }
}

/// The sign before a further parameter of an address.
fn join(address: &str) -> char {
    if address.contains('?') { '&' } else { '?' }
}

/// A split of devices; each number opens the list behind it.
pub(super) fn split(split: Split, address: &str) -> Markup {
    let (mut split, join) = (split, join(address));
    html! {
        @for (at, freshness) in HEARD.into_iter().enumerate() {
            @let count = *split.get_mut(freshness);
            @let word = if freshness == Freshness::Never { "never heard" } else { freshness_word(freshness) };
            @if at > 0 { ", " }
            a href={ (address) (join) "freshness=" (freshness_word(freshness)) } { (number(count)) " " (word) }
        }
    }
}

/// A number with thin spaces between thousands.
pub(super) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}

/// A count and its noun.
pub(super) fn count(number: u64, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", self::number(number))
}

/// The targets that have installed a deployment, certainly and possibly, of all.
pub(super) fn installed(converged: Bounds, of: u64) -> String {
    let Bounds { lo, hi } = converged;
    if lo == hi {
        format!("{} of {}", number(lo), number(of))
    } else {
        format!("{}\u{2013}{} of {}", number(lo), number(hi), number(of))
    }
}

/// The number of rows of a list, if one page shows all of them.
pub(super) fn total(after: Option<&str>, next: Option<&str>, rows: usize) -> Option<u64> {
    (after.is_none() && next.is_none()).then_some(rows as u64)
}

/// A link to a deployment by its name, with the id below; by the id if the name is not known or the same.
pub(super) fn deployment(id: &DeploymentId, name: &str) -> Markup {
    html! {
        a href={ "/deployments/" (encoded(id.as_str())) } { @if name.is_empty() { (id) } @else { (name) } }
        (under_name(id, name))
    }
}

/// The id of a deployment, unless its name says the same.
pub(super) fn under_name(id: &DeploymentId, name: &str) -> Markup {
    html! { @if !name.is_empty() && name != id.as_str() { span.under.mono { (id) } } }
}

/// A text that begins with a capital.
pub(super) fn sentence(text: &str) -> String {
    let mut signs = text.chars();
    signs.next().map_or_else(String::new, |first| first.to_uppercase().chain(signs).collect())
}

/// How long ago a moment was.
pub(super) fn ago(at: Timestamp, now: Timestamp) -> Markup {
    let seconds = now.as_second() - at.as_second();
    let words = match seconds {
        ..60 => format!("{} s", seconds.max(0)),
        60..5_400 => format!("{} min", (seconds + 30) / 60),
        5_400..129_600 => format!("{} h", (seconds + 1_800) / 3_600),
        _ => format!("{} d", (seconds + 43_200) / 86_400),
    };
    html! { time.num.nowrap datetime=(at) data-ago title=(second(at)) { (words) " ago" } }
}

/// A moment in UTC, to the second.
pub(super) fn second(at: Timestamp) -> String {
    let whole = Timestamp::from_second(at.as_second()).unwrap_or(at).to_string();
    whole.replace('T', " ").replace('Z', " UTC")
}

/// A command to copy. On a page of the past it names the moment, if it takes one.
pub(crate) fn cli(command: impl Into<Command>) -> Markup {
    let command = command.into().at(address::moment());
    html! {
        span.cli {
            code { (command) }
            button.copy type="button" aria-label={ "Copy the command " (command) } { "copy" }
        }
    }
}

/// A panel with a title, a count and the command that lists the same.
#[allow(clippy::needless_pass_by_value, reason = "callers write templates in place")]
pub(super) fn panel(title: Markup, count: Markup, command: Option<Command>, content: Markup) -> Markup {
    html! {
        section.panel {
            header {
                h2 { (title) }
                span.count.num { (count) }
                @if let Some(command) = command { (cli(command)) }
            }
            (content)
        }
    }
}

/// The note of a list that leaves out error codes, a number of them or at most that many.
pub(super) fn codes_left_out(codes: u64, is_bound: bool) -> Markup {
    html! {
        @if codes > 0 {
            p.note.top-line { "Not shown: " @if is_bound { "up to " } (count(codes, "more error code")) ", the rarest." }
        }
    }
}

/// A panel without content.
pub(super) fn none(words: &str) -> Markup {
    html! { p.none { (words) } }
}

/// The first characters of a digest.
pub(super) fn short(digest: &str) -> String {
    digest.chars().take(19).collect()
}

/// A text for an address: a name may hold any sign.
pub(super) fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

/// A part of the screen that no service has answered.
pub(super) fn unknown(why: &str) -> Markup {
    html! { p.dark { "Not known: " (why) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_bar_fill_it_and_one_device_of_many_is_seen() {
        let counts = [1, 0, 99_999];
        let drawn = widths(&counts, 100_000);
        assert!(drawn[0] >= PART_MIN && drawn[1] == 0, "{drawn:?}");
        let whole: u64 = drawn.iter().sum();
        assert!((BAR_WIDTH - 2..=BAR_WIDTH).contains(&whole), "{drawn:?}");
    }

    #[test]
    fn numbers_are_grouped_and_names_are_escaped() {
        assert_eq!((number(7), number(1_234_567)), ("7".to_owned(), "1\u{202f}234\u{202f}567".to_owned()));
        assert_eq!(encoded("a b&c/d\"<"), "a%20b%26c%2Fd%22%3C");
        let shown = cli("muster status '<script>'").into_string();
        assert!(!shown.contains("<script>"), "{shown}");
    }

    #[test]
    fn bounds_that_are_equal_are_one_number() {
        assert_eq!(installed(Bounds { lo: 20, hi: 20 }, 20), "20 of 20");
        assert_eq!(installed(Bounds { lo: 2, hi: 1_004 }, 1_004), "2\u{2013}1\u{202f}004 of 1\u{202f}004");
    }

    #[test]
    fn a_deployment_is_named_with_its_id_below_unless_both_are_the_same() {
        let shown = |name: &str| deployment(&"0f-1".parse().unwrap(), name).into_string();
        let link = "<a href=\"/deployments/0f-1\">";
        assert_eq!(shown("web"), format!("{link}web</a><span class=\"under mono\">0f-1</span>"));
        assert_eq!((shown(""), shown("0f-1")), (format!("{link}0f-1</a>"), format!("{link}0f-1</a>")));
    }

    #[test]
    fn a_command_of_the_past_is_shown_and_named_with_its_moment() {
        let shown = || cli("muster fleet").into_string();
        let past = address::rendered_at("at=2h", "2026-11-20T10:00:00Z".parse().unwrap(), shown);
        assert_eq!(past.matches("muster fleet --at 2026-11-20T08:00:00Z").count(), 2, "{past}");
        assert!(!shown().contains("--at"));
    }

    #[test]
    fn what_is_not_heard_looks_unlike_what_is_heard() {
        let looks = |freshness| standing(Standing::Installed, freshness).into_string();
        assert!(looks(Freshness::Fresh).contains("tag good"));
        for freshness in [Freshness::Stale, Freshness::Never] {
            let shown = looks(freshness);
            assert!(!shown.contains("tag good") && shown.contains("heard"), "{shown}");
        }
    }
}
