//! Reads times of the command line: a timestamp, a word (`now`, `today`, …) or a distance from now, such as `2h`. A flag
//! about the past reads a distance as how long ago, a flag about the future as how long from now.

use muster_contract::Timestamp;
use muster_service::clock::{Clock as _, SystemClock};

use super::auth::Valid;

/// Seconds of a day.
const DAY_SECONDS: i64 = 24 * 60 * 60;

/// The side of now on which a distance lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Past,
    Future,
}

impl Side {
    /// The forms of a time.
    const fn forms(self) -> &'static str {
        match self {
            Self::Past => "2026-11-20T10:00:00Z, 2h or 3d (ago), today or yesterday (its beginning in UTC)",
            Self::Future => "2026-12-01T02:00:00Z, 2h or 3d (from now), or tomorrow (its beginning in UTC)",
        }
    }
}

/// Reads a time of a flag about the past.
pub(super) fn past(text: &str) -> Result<Timestamp, String> {
    time_at(text, SystemClock.now(), Side::Past)
}

/// Reads a time of a flag about the future; a distance may have a plus sign before it.
pub(super) fn future(text: &str) -> Result<Timestamp, String> {
    time_at(text, SystemClock.now(), Side::Future)
}

fn time_at(text: &str, now: Timestamp, side: Side) -> Result<Timestamp, String> {
    let seconds = now.as_second();
    let midnight = seconds - seconds.rem_euclid(DAY_SECONDS);
    let words = match side {
        Side::Past => text,
        Side::Future => text.strip_prefix('+').unwrap_or(text),
    };
    let distance = words.parse::<Valid>().ok().filter(|_| !words.starts_with('+'));
    let second = match (text, side, distance) {
        ("now", ..) => return Ok(now),
        ("today", ..) => midnight,
        ("yesterday", Side::Past, _) => midnight - DAY_SECONDS,
        ("tomorrow", Side::Future, _) => midnight + DAY_SECONDS,
        (_, Side::Past, Some(Valid(distance))) => seconds.saturating_sub_unsigned(distance),
        (_, Side::Future, Some(Valid(distance))) => seconds.saturating_add_unsigned(distance),
        (_, side, None) => {
            return text.parse().map_err(|_| format!("must be a time: {}", side.forms()));
        }
    };
    Timestamp::from_second(second).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-11-20T10:30:00Z";

    fn read(text: &str, side: Side) -> Result<String, String> {
        time_at(text, NOW.parse().unwrap(), side).map(|time| time.to_string())
    }

    #[test]
    fn a_distance_is_ago_for_the_past_and_from_now_for_the_future() {
        for (text, past, future) in [
            ("2h", "2026-11-20T08:30:00Z", "2026-11-20T12:30:00Z"),
            ("90s", "2026-11-20T10:28:30Z", "2026-11-20T10:31:30Z"),
            ("3d", "2026-11-17T10:30:00Z", "2026-11-23T10:30:00Z"),
            ("now", NOW, NOW),
            ("today", "2026-11-20T00:00:00Z", "2026-11-20T00:00:00Z"),
            ("2026-11-20T11:00:00+01:00", "2026-11-20T10:00:00Z", "2026-11-20T10:00:00Z"),
        ] {
            assert_eq!(read(text, Side::Past).as_deref(), Ok(past), "{text}");
            assert_eq!(read(text, Side::Future).as_deref(), Ok(future), "{text}");
        }
        assert_eq!(read("yesterday", Side::Past).as_deref(), Ok("2026-11-19T00:00:00Z"));
        assert_eq!(read("tomorrow", Side::Future).as_deref(), Ok("2026-11-21T00:00:00Z"));
        assert_eq!(read("+2h", Side::Future), read("2h", Side::Future));
    }

    #[test]
    fn a_time_of_the_other_side_is_refused_with_the_forms() {
        for (text, side, form) in [
            ("tomorrow", Side::Past, "2h or 3d (ago)"),
            ("+2h", Side::Past, "2h or 3d (ago)"),
            ("yesterday", Side::Future, "2h or 3d (from now)"),
            ("-2h", Side::Future, "2h or 3d (from now)"),
            ("++2h", Side::Future, "2h or 3d (from now)"),
            ("2 h", Side::Future, "2h or 3d (from now)"),
        ] {
            let refusal = read(text, side).unwrap_err();
            assert!(refusal.contains(form), "{text}: {refusal}");
        }
    }
}
