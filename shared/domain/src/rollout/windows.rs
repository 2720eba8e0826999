//! Says whether a window of a rollout is open, and when the next one begins. It reads the time zones of the machine.

use jiff::ToSpan as _;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use muster_contract::Timestamp;
use muster_contract::rollout::{WINDOW_LENGTH_MAX, Weekday, Window};

/// Days before today on which a window may begin that is still open.
const DAYS_BEFORE: i64 = 8;
/// Days after today on which the next window begins at the latest: the 29th of February may be eight years away.
const DAYS_AFTER: i64 = 8 * 366;

const SECONDS_OF_A_DAY: u64 = 24 * 60 * 60;

const _: () = assert!(WINDOW_LENGTH_MAX.as_secs() < DAYS_BEFORE as u64 * 24 * 60 * 60);

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
        let Some(zone) = zone(&window.zone) else { continue };
        let today = now.to_zoned(zone.clone()).date();
        let on = |offset: i64| {
            today.checked_add(offset.days()).map_or_else(|_| Vec::new(), |day| begins(window, &zone, day))
        };
        let is_open =
            |begin: Timestamp| begin <= now && begin.checked_add(window.length).is_ok_and(|end| now < end);
        // A window that is open has begun within its length; the day before that is for changes of the zone's offset.
        let days_before = DAYS_BEFORE.min((window.length.as_secs() / SECONDS_OF_A_DAY + 1).cast_signed());
        if (0..=days_before).any(|days| on(-days).into_iter().any(is_open)) {
            return Opening::Open;
        }
        let later = (0..=DAYS_AFTER).find_map(|days| on(days).into_iter().filter(|begin| *begin > now).min());
        next = next.into_iter().chain(later).min();
    }
    Opening::From(next)
}

/// The begins of a window on a day.
fn begins(window: &Window, zone: &TimeZone, day: Date) -> Vec<Timestamp> {
    let begin = |time: Time| Some(day.to_datetime(time).to_zoned(zone.clone()).ok()?.timestamp());
    match &window.cron {
        Some(cron) if cron.is_on(day) => cron.times().filter_map(begin).collect(),
        Some(_) => Vec::new(),
        None => {
            let is_its_day = window.days.is_empty() || window.days.contains(&weekday(day.weekday()));
            window.start.filter(|_| is_its_day).and_then(begin).into_iter().collect()
        }
    }
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
    fn a_window_by_cron_begins_at_its_times() {
        let nightly = || json!({ "cron": "30 22 * * mon-fri", "length": "2h" });
        // The 25th of November 2026 is a Wednesday.
        assert_eq!(opening_at(nightly(), "2026-11-25T22:29:59Z"), from("2026-11-25T22:30:00Z"));
        assert_eq!(opening_at(nightly(), "2026-11-26T00:29:59Z"), Opening::Open);
        assert_eq!(opening_at(nightly(), "2026-11-28T00:30:00Z"), from("2026-11-30T22:30:00Z"));
        let hourly = || json!({ "cron": "0 8-10 * * *", "length": "10m" });
        assert_eq!(opening_at(hourly(), "2026-11-25T09:05:00Z"), Opening::Open);
        assert_eq!(opening_at(hourly(), "2026-11-25T09:10:00Z"), from("2026-11-25T10:00:00Z"));
        let leap = || json!({ "cron": "0 0 29 feb *", "length": "24h" });
        assert_eq!(opening_at(leap(), "2096-02-29T23:59:59Z"), Opening::Open);
        assert_eq!(opening_at(leap(), "2096-03-01T00:00:00Z"), from("2104-02-29T00:00:00Z"));
        let either = json!([nightly(), hourly()]);
        let windows: Vec<Window> = serde_json::from_value(either).unwrap();
        assert_eq!(opening(&windows, "2026-11-25T11:00:00Z".parse().unwrap()), from("2026-11-25T22:30:00Z"));
    }

    #[test]
    fn a_window_by_cron_follows_the_summer_time_of_its_zone() {
        if !is_zone("Europe/Berlin") {
            return;
        }
        let early = || json!({ "cron": "30 2 * * *", "length": "30m", "zone": "Europe/Berlin" });
        assert_eq!(
            opening_at(early(), "2026-03-29T01:29:59Z"),
            from("2026-03-29T01:30:00Z"),
            "an hour later"
        );
        assert_eq!(opening_at(early(), "2026-10-25T00:30:00Z"), Opening::Open, "the first of two");
        assert_eq!(opening_at(early(), "2026-10-25T01:30:00Z"), from("2026-10-26T01:30:00Z"));
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
