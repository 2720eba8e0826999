//! Words for numbers, times and states, and the cleaning of words that devices say.

pub use muster_client::text::clean;
use muster_client::text::{harmless, is_hostile};
use muster_contract::Timestamp;
use muster_contract::query::SomeDevices;
use muster_contract::state::State;
use muster_contract::view::{AsOf, Counts, Freshness, Standing};

use super::cut;

/// Most lines shown of the end of a message.
const LAST_LINES_MAX: usize = 5;
/// Widest line shown of a message.
const MESSAGE_WIDTH_MAX: usize = 200;

/// `3s ago`, `5m ago`, `2h ago`, `4d ago`; `just now` within a second. A time ahead of this machine's clock says so.
pub fn age(now: Timestamp, then: Timestamp) -> String {
    let seconds = now.as_second() - then.as_second();
    match seconds {
        0 | -1 => "just now".to_owned(),
        1.. => format!("{} ago", span(seconds.unsigned_abs())),
        _ => format!("{} ahead of this clock", span(seconds.unsigned_abs())),
    }
}

/// `59s`, `12m`, `3h`, `4d`: the largest unit that fits.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

/// `1 device`, `2 devices`.
pub fn plural(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

/// The names of the first devices, and the number of the others.
pub fn names(devices: &SomeDevices) -> String {
    let named: Vec<_> = devices.first.iter().map(ToString::to_string).collect();
    match devices.count.saturating_sub(named.len() as u64) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// How many of all are behind a page that shows some. Nobody knows it of a later page, because a page does not say how many
/// came before it; nor where the count is behind the page itself.
pub fn left(all: u64, shown: usize, is_first: bool) -> Option<u64> {
    all.checked_sub(shown as u64).filter(|left| is_first && *left > 0)
}

/// `9,412`: a number that may be large, legible.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `512 B`, `1.5 KiB`, `20.0 MiB`, `3.2 GiB`.
pub(crate) fn bytes_text(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = UNITS.into_iter().find(|(_, size)| bytes >= *size);
    unit.map_or_else(
        || format!("{bytes} B"),
        |(unit, size)| format!("{:.1} {unit}", bytes as f64 / size as f64),
    )
}

/// A part in percent, rounded down: 100 % is reached only by all.
pub fn percent(part: u64, of: u64) -> String {
    match (u128::from(part) * 100).checked_div(u128::from(of)) {
        Some(percent) => format!("{percent}%"),
        None => "-".to_owned(),
    }
}

/// `as of ledger 4711, 3s ago`.
pub fn as_of(as_of: AsOf, now: Timestamp) -> String {
    match as_of.ledger_seq {
        0 => "as of an empty ledger".to_owned(),
        seq => format!("as of ledger {seq}, {}", age(now, as_of.at)),
    }
}

/// `3 installed, 1 failed (1 stale)`: what needs a person first, then in the order of a deployment's life.
pub fn counts(counts: &Counts) -> String {
    listed(counts.iter().map(|(standing, split)| (*standing, split.total())))
}

/// `3 installed, 1 failed`.
pub fn listed(counts: impl IntoIterator<Item = (Standing, u64)>) -> String {
    let mut counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
    counts.sort_by_key(|(standing, _)| (*standing != Standing::Failed, *standing));
    let words: Vec<_> =
        counts.iter().map(|(standing, count)| format!("{count} {}", standing.as_str())).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

/// `2 installed, 1 failed` of a component.
pub fn states<'a>(counts: impl IntoIterator<Item = (&'a State, &'a u64)>) -> String {
    listed(counts.into_iter().map(|(state, count)| (Standing::from(*state), *count)))
}

/// The word for a freshness.
pub const fn freshness(freshness: Freshness) -> &'static str {
    match freshness {
        Freshness::Fresh => "fresh",
        Freshness::Stale => "stale",
        Freshness::Never => "never heard",
    }
}

/// A freshness as text; a stale one with the time since the last contact, as in `stale 2h`.
pub(crate) fn freshness_since(how: Freshness, last_heard_at: Option<Timestamp>, until: Timestamp) -> String {
    let silent =
        last_heard_at.filter(|_| how == Freshness::Stale).map(|at| until.as_second() - at.as_second());
    match silent.and_then(|seconds| u64::try_from(seconds).ok()) {
        Some(seconds) => format!("{} {}", freshness(how), span(seconds)),
        None => freshness(how).to_owned(),
    }
}

/// The lines of what a device says, each cleaned; they keep what they are set in by.
pub(crate) fn clean_lines(text: &str) -> impl Iterator<Item = String> {
    text.trim().lines().map(|line| harmless(line).trim_end().to_owned())
}

/// The lines of a message that a person has to see: the first, which says what happened, and the last ones, of output
/// that was caught. Bytes that were no text are cut. All of it is in the JSON.
pub fn excerpt(message: &str) -> Vec<String> {
    let mut lines: Vec<_> = message.trim().lines().map(legible).filter(|line| !line.is_empty()).collect();
    let more = lines.len().saturating_sub(1 + LAST_LINES_MAX);
    if more > 1 {
        let gap = format!("… {more} lines left out; --format json has them …");
        lines.splice(1..=more, [gap]);
    }
    lines
}

/// The printable characters of a line, cut to a width.
fn legible(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    for char in line.chars() {
        if !(is_hostile(char) || char == char::REPLACEMENT_CHARACTER) {
            text.push(char);
        } else if !text.ends_with(' ') {
            text.push(' ');
        }
    }
    cut::end(text.trim_end(), MESSAGE_WIDTH_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_many_are_left_is_known_of_the_first_page_alone() {
        for (all, shown, is_first, expected) in
            [(120, 50, true, Some(70)), (120, 50, false, None), (50, 50, true, None), (49, 50, true, None)]
        {
            assert_eq!(left(all, shown, is_first), expected, "{shown} of {all}");
        }
    }

    #[test]
    fn ages_are_in_the_largest_unit() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        for (seconds, expected) in [
            (0, "just now"),
            (3, "3s ago"),
            (59, "59s ago"),
            (60, "1m ago"),
            (7199, "1h ago"),
            (90_000, "1d ago"),
            (-1, "just now"),
            (-120, "2m ahead of this clock"),
        ] {
            assert_eq!(age(now, Timestamp::from_second(1_000_000 - seconds).unwrap()), expected);
        }
    }

    #[test]
    fn what_is_silent_says_for_how_long_and_what_is_heard_says_that_alone() {
        let (now, then) =
            (Timestamp::from_second(1_000_000).unwrap(), |ago: i64| Timestamp::from_second(1_000_000 - ago));
        for (how, ago, expected) in [
            (Freshness::Stale, Some(7_300), "stale 2h"),
            (Freshness::Stale, Some(-5), "stale"),
            (Freshness::Stale, None, "stale"),
            (Freshness::Fresh, Some(7_300), "fresh"),
            (Freshness::Never, None, "never heard"),
        ] {
            assert_eq!(freshness_since(how, ago.map(|ago| then(ago).unwrap()), now), expected);
        }
    }

    #[test]
    fn a_long_message_is_shown_by_its_first_and_last_lines_as_clean_text() {
        let message =
            format!("exit code 3; stderr: start\n{}\u{fffd}\u{fffd}\u{1}x\u{fffd}end", "line\n".repeat(40));
        let shown = excerpt(&message);
        assert_eq!(shown[0], "exit code 3; stderr: start");
        assert_eq!(shown[1], "… 36 lines left out; --format json has them …");
        assert_eq!(shown[2..], ["line", "line", "line", "line", " x end"]);
        assert_eq!(excerpt(&"w".repeat(5_000))[0].chars().count(), MESSAGE_WIDTH_MAX);
        assert_eq!(excerpt("one\ntwo").len(), 2);
    }

    #[test]
    fn large_numbers_are_grouped_by_thousands() {
        let texts = [0, 999, 1_000, 9_412, 1_234_567].map(grouped);
        assert_eq!(texts, ["0", "999", "1,000", "9,412", "1,234,567"]);
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn a_percentage_never_rounds_up_to_all() {
        assert_eq!(percent(199, 200), "99%");
        assert_eq!(percent(200, 200), "100%");
        assert_eq!(percent(0, 0), "-");
        assert_eq!(percent(u64::MAX, u64::MAX), "100%");
    }

    #[test]
    fn what_a_device_says_cannot_move_the_cursor() {
        assert_eq!(clean("  red \x1b[31m\nnext\u{202e}line\u{7f}  "), "red  [31m next line");
    }
}
