//! Times in texts for people: this machine's time with its offset from UTC, in place of UTC. JSON keeps UTC.
//!
//! Texts are made with UTC, here and by services, and every time that ends with `Z` is rewritten on the way out. The zone is
//! set once, by the program; without one, as in tests, texts stay as they are.

use std::borrow::Cow;
use std::str::FromStr as _;
use std::sync::OnceLock;

use jiff::tz::TimeZone;
use muster_contract::Timestamp;

/// The zone of this process.
static ZONE: OnceLock<TimeZone> = OnceLock::new();
/// Shortest time that ends with `Z`, to the second, and longest, to the nanosecond.
const TIME_BYTES: std::ops::RangeInclusive<usize> = 20..=30;
/// A time with its offset, in a form that flags take.
const FORM: &str = "%Y-%m-%dT%H:%M:%S%.f%:z";

/// Sets the zone of this process; the first one holds.
pub fn set(zone: TimeZone) {
    let _ = ZONE.set(zone);
}

/// The zone of a name: of the time zone database, or a rule of POSIX such as `CET-1CEST,M3.5.0,M10.5.0/3`.
///
/// # Errors
/// There is no such zone.
pub fn zone(name: &str) -> Result<TimeZone, String> {
    let found = TimeZone::get(name).or_else(|_| TimeZone::posix(name));
    found.map_err(|_| "must be a time zone such as UTC or Europe/Berlin".to_owned())
}

/// The text with times of this process's zone.
pub fn text(text: &str) -> Cow<'_, str> {
    match ZONE.get() {
        Some(zone) if *zone != TimeZone::UTC => in_zone(text, zone),
        _ => Cow::Borrowed(text),
    }
}

/// The text with times of a zone.
fn in_zone<'a>(text: &'a str, zone: &TimeZone) -> Cow<'a, str> {
    let (mut out, mut copied) = (String::new(), 0);
    for (end, _) in text.match_indices('Z') {
        let Some((start, at)) = time_before(text, end).filter(|(start, _)| *start >= copied) else {
            continue;
        };
        let local = at.to_zoned(zone.clone());
        // A time of UTC stays as it is, whatever the zone is called.
        if local.offset().is_zero() {
            continue;
        }
        out += &text[copied..start];
        out += &local.strftime(FORM).to_string();
        copied = end + 1;
    }
    if copied == 0 { Cow::Borrowed(text) } else { Cow::Owned(out + &text[copied..]) }
}

/// The time that ends with the `Z` at `end`, and where it begins.
fn time_before(text: &str, end: usize) -> Option<(usize, Timestamp)> {
    let is_of_time = |c: char| c.is_ascii_digit() || matches!(c, '-' | ':' | '.' | 'T');
    let start = text[..end].rfind(|c| !is_of_time(c)).map_or(0, |at| at + 1);
    // Text before it, such as a range's first time, is not one of its characters.
    let start = text[..end].char_indices().rev().map(|(at, _)| at).take(*TIME_BYTES.end()).min()?.max(start);
    let candidate = &text[start..=end];
    let at = TIME_BYTES.contains(&candidate.len()).then(|| Timestamp::from_str(candidate).ok()).flatten()?;
    let is_followed = text[end + 1..].starts_with(|c: char| c.is_ascii_alphanumeric());
    (!is_followed).then_some((start, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_the_zone_with_its_offset_and_nothing_else_changes() {
        let zone = zone("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        for (utc, local) in [
            ("since 2026-11-20T08:00:00Z (2m ago)", "since 2026-11-20T09:00:00+01:00 (2m ago)"),
            ("2026-07-01T23:30:00.25Z\n", "2026-07-02T01:30:00.25+02:00\n"),
            (
                "(2026-11-20T08:00:00Z) to (2026-11-20T09:00:00Z)",
                "(2026-11-20T09:00:00+01:00) to (2026-11-20T10:00:00+01:00)",
            ),
            (
                "Zone Z 5Z ABCZ 2026-11-20Z 2026-13-20T08:00:00Z",
                "Zone Z 5Z ABCZ 2026-11-20Z 2026-13-20T08:00:00Z",
            ),
            ("2026-11-20T08:00:00Zulu é", "2026-11-20T08:00:00Zulu é"),
        ] {
            assert_eq!(in_zone(utc, &zone), local);
            assert_eq!(in_zone(local, &zone), local, "once");
        }
    }

    #[test]
    fn a_shown_time_is_one_that_flags_take() {
        let zone = zone("EST5").unwrap();
        let shown = in_zone("2026-11-20T08:00:00Z", &zone).into_owned();
        assert_eq!(shown.parse::<Timestamp>().unwrap(), "2026-11-20T08:00:00Z".parse().unwrap());
        assert!(super::zone("Nowhere/At-All!").is_err());
    }
}
