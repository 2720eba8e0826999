//! Says whether a window of a rollout is open, and when the next one begins. It reads the time zones of the machine.

use jiff::ToSpan as _;
use jiff::tz::TimeZone;
use muster_contract::Timestamp;
use muster_contract::rollout::{WINDOW_LENGTH_MAX, Weekday, Window};

/// Days before and after today on which a window may begin that matters now: the longest one, and a week.
const DAYS: i64 = 8;

const _: () = assert!(WINDOW_LENGTH_MAX.as_secs() < DAYS as u64 * 24 * 60 * 60);

/// The state of the windows of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// One is open, or there are none.
    Open,
    /// None is open; the next one begins then. `None` if this machine knows the zone of none.
    From(Option<Timestamp>),
}

/// The state of windows at a time.
pub(super) fn opening(windows: &[Window], now: Timestamp) -> Opening {
    if windows.is_empty() {
        return Opening::Open;
    }
    let mut next = None;
    for window in windows {
        for begin in begins(window, now) {
            let is_past = begin <= now;
            if is_past && begin.checked_add(window.length).is_ok_and(|end| now < end) {
                return Opening::Open;
            }
            if !is_past {
                next = Some(next.map_or(begin, |next: Timestamp| next.min(begin)));
            }
        }
    }
    Opening::From(next)
}

/// The begins of a window around a time; none if this machine does not know its zone.
fn begins(window: &Window, now: Timestamp) -> Vec<Timestamp> {
    let Some(zone) = zone(&window.zone) else { return Vec::new() };
    let today = now.to_zoned(zone.clone()).date();
    let begin = |offset: i64| {
        let day = today.checked_add(offset.days()).ok()?;
        let is_its_day = window.days.is_empty() || window.days.contains(&weekday(day.weekday()));
        let begin = day.to_datetime(window.start).to_zoned(zone.clone()).ok()?;
        is_its_day.then(|| begin.timestamp())
    };
    (-DAYS..=DAYS).filter_map(begin).collect()
}

const fn weekday(day: jiff::civil::Weekday) -> Weekday {
    use jiff::civil::Weekday as Day;
    match day {
        Day::Monday => Weekday::Mon,
        Day::Tuesday => Weekday::Tue,
        Day::Wednesday => Weekday::Wed,
        Day::Thursday => Weekday::Thu,
        Day::Friday => Weekday::Fri,
        Day::Saturday => Weekday::Sat,
        Day::Sunday => Weekday::Sun,
    }
}

fn zone(name: &str) -> Option<TimeZone> {
    if name == "UTC" { Some(TimeZone::UTC) } else { TimeZone::get(name).ok() }
}

/// Whether this machine knows a time zone.
pub fn is_zone(name: &str) -> bool {
    zone(name).is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn opening_at(window: Value, now: &str) -> Opening {
        opening(&[serde_json::from_value(window).unwrap()], now.parse().unwrap())
    }

    fn from(time: &str) -> Opening {
        Opening::From(Some(time.parse().unwrap()))
    }

    #[test]
    fn a_window_is_open_from_its_begin_up_to_its_end_also_over_midnight() {
        let nightly = || json!({ "start": "22:00", "length": "6h" });
        assert_eq!(opening_at(nightly(), "2026-11-25T21:59:59Z"), from("2026-11-25T22:00:00Z"));
        for time in ["2026-11-25T22:00:00Z", "2026-11-26T03:59:59Z"] {
            assert_eq!(opening_at(nightly(), time), Opening::Open, "{time}");
        }
        assert_eq!(opening_at(nightly(), "2026-11-26T04:00:00Z"), from("2026-11-26T22:00:00Z"));
    }

    #[test]
    fn a_window_of_some_days_begins_on_these_alone() {
        let weekend = || json!({ "days": ["sat"], "start": "00:00", "length": "48h" });
        // The 25th of November 2026 is a Wednesday.
        assert_eq!(opening_at(weekend(), "2026-11-25T12:00:00Z"), from("2026-11-28T00:00:00Z"));
        assert_eq!(opening_at(weekend(), "2026-11-29T23:59:59Z"), Opening::Open);
        assert_eq!(opening_at(weekend(), "2026-11-30T00:00:00Z"), from("2026-12-05T00:00:00Z"));
    }

    #[test]
    fn a_window_of_a_zone_follows_its_summer_time() {
        if !is_zone("Europe/Berlin") {
            return;
        }
        let early = || json!({ "start": "02:30", "length": "30m", "zone": "Europe/Berlin" });
        assert_eq!(opening_at(early(), "2026-11-25T01:30:00Z"), Opening::Open, "one hour ahead in winter");
        assert_eq!(opening_at(early(), "2026-07-25T00:30:00Z"), Opening::Open, "two hours ahead in summer");
        // On the 29th of March 2026 two o'clock is three o'clock: the begin is at half past three.
        assert_eq!(opening_at(early(), "2026-03-29T01:29:59Z"), from("2026-03-29T01:30:00Z"));
        assert_eq!(opening_at(early(), "2026-03-29T01:30:00Z"), Opening::Open);
        // On the 25th of October 2026 half past two occurs twice: the first one begins it.
        assert_eq!(opening_at(early(), "2026-10-25T00:30:00Z"), Opening::Open);
        assert_eq!(opening_at(early(), "2026-10-25T01:30:00Z"), from("2026-10-26T01:30:00Z"));
    }

    #[test]
    fn a_window_of_an_unknown_zone_never_opens() {
        let nowhere = json!({ "start": "00:00", "length": "24h", "zone": "Mars/Olympus" });
        assert_eq!(opening_at(nowhere, "2026-11-25T12:00:00Z"), Opening::From(None));
        assert_eq!(opening(&[], Timestamp::UNIX_EPOCH), Opening::Open);
    }
}
