//! Reads times as people write them, on the command line and in requests: a timestamp, a word (`now`, `today`, …) or a distance
//! from now, such as `2h`. A time of the past reads a distance as how long ago, a time of the future as how long from now. It has
//! no clock.

use muster_contract::Timestamp;

/// Seconds of a day.
const DAY_SECONDS: i64 = 24 * 60 * 60;
/// The longest distance.
pub const DISTANCE_SECONDS_MAX: u64 = 3650 * DAY_SECONDS as u64;

/// The side of now on which a distance lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// How long ago.
    Past,
    /// How long from now.
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

/// Reads a time; a distance of the future may have a plus sign before it.
///
/// # Errors
/// It has none of the forms, which the error lists.
pub fn time_at(text: &str, now: Timestamp, side: Side) -> Result<Timestamp, String> {
    let seconds = now.as_second();
    let midnight = seconds - seconds.rem_euclid(DAY_SECONDS);
    let words = match side {
        Side::Past => text,
        Side::Future => text.strip_prefix('+').unwrap_or(text),
    };
    let second = match (text, side, distance_seconds(words)) {
        ("now", ..) => return Ok(now),
        ("today", ..) => midnight,
        ("yesterday", Side::Past, _) => midnight - DAY_SECONDS,
        ("tomorrow", Side::Future, _) => midnight + DAY_SECONDS,
        (_, Side::Past, Some(distance)) => seconds.saturating_sub_unsigned(distance),
        (_, Side::Future, Some(distance)) => seconds.saturating_add_unsigned(distance),
        (_, side, None) => {
            return text.parse().map_err(|_| format!("must be a time: {}", side.forms()));
        }
    };
    Timestamp::from_second(second).map_err(|error| error.to_string())
}

/// The seconds of a distance such as 30d, 12h, 90m or 45s; none if it is no distance, nothing, or over ten years.
pub fn distance_seconds(text: &str) -> Option<u64> {
    let units = [("d", DAY_SECONDS as u64), ("h", 60 * 60), ("m", 60), ("s", 1)];
    let (number, unit) =
        units.into_iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)))?;
    // `parse` would take a sign.
    let number: u64 = number.bytes().all(|digit| digit.is_ascii_digit()).then(|| number.parse().ok())??;
    number.checked_mul(unit).filter(|seconds| (1..=DISTANCE_SECONDS_MAX).contains(seconds))
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
    fn a_distance_has_a_unit_and_ends_with_ten_years() {
        for (text, seconds) in [("30d", 2_592_000), ("12h", 43_200), ("90m", 5_400), ("45s", 45)] {
            assert_eq!(distance_seconds(text), Some(seconds), "{text}");
        }
        assert_eq!(distance_seconds("3650d"), Some(DISTANCE_SECONDS_MAX));
        for text in ["", "d", "0s", "3651d", "30", "-1d", "+1d", "99999999999999999999d", "1w", "1\u{e9}"] {
            assert_eq!(distance_seconds(text), None, "{text}");
        }
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
