//! Polling hours and downtimes, by the wall clock: when the agent accepts desired state, and when it connects. Pure,
//! except [`run`], which publishes the phase of the schedule.
//!
//! A window is a daily period in a time zone, from its first minute up to, but not including, its last. It may cross
//! midnight. An hour that summer time skips is in no window; an hour that occurs twice is in it twice.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use jiff::civil::Time;
use jiff::tz::TimeZone;
use muster_contract::Timestamp;
use muster_service::clock::Clock;
use tokio::sync::watch;
use tokio::time::sleep;

/// Windows of one kind at most.
pub const WINDOWS_MAX: usize = 32;
/// Longest time between two readings of the clock: it may be set meanwhile.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);
const MINUTES_A_DAY: u16 = 24 * 60;

/// A phase of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchedulePhase {
    /// Everything.
    Open,
    /// Everything, except reading and accepting desired state.
    Quiet,
    /// Nothing: the hub is known to be unavailable.
    Down,
}

/// A daily period in a time zone.
#[derive(Debug, Clone, PartialEq)]
pub struct DailyWindow {
    /// The first minute of the day.
    from: u16,
    /// The minute of the day before which it ends.
    to: u16,
    zone: TimeZone,
}

/// The error of a text that is not a window.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// Not of the form.
    #[error(
        "must be HH:MM-HH:MM, in this machine's time or with a time zone behind it, as in 22:00-06:00, 01:30-03:00 UTC or \
         01:30-03:00 Europe/Berlin"
    )]
    Form,
    /// The window is empty.
    #[error("begins when it ends; for the whole day write 00:00-24:00")]
    Empty,
    /// An unknown time zone.
    #[error("names no time zone that this machine knows: write UTC, or a name such as Europe/Berlin")]
    Zone,
}

/// All windows of a device.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Schedule {
    /// When the device accepts new desired state; always if there are none.
    pub polling: Vec<DailyWindow>,
    /// When the hub is known to be unavailable.
    pub downtime: Vec<DailyWindow>,
}

impl DailyWindow {
    /// Whether a time is within it.
    pub fn contains(&self, now: Timestamp) -> bool {
        let time = now.to_zoned(self.zone.clone()).time();
        let minute = minute_of(time);
        if self.from < self.to {
            (self.from..self.to).contains(&minute)
        } else {
            minute >= self.from || minute < self.to
        }
    }
}

fn minute_of(time: Time) -> u16 {
    let (hour, minute) = (time.hour().unsigned_abs(), time.minute().unsigned_abs());
    u16::from(hour) * 60 + u16::from(minute)
}

impl FromStr for DailyWindow {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, WindowError> {
        let (times, zone) = match text.trim().split_once(char::is_whitespace) {
            Some((times, zone)) => (times, zone_of(zone.trim())?),
            None => (text.trim(), TimeZone::system()),
        };
        let (from, to) = times.split_once('-').ok_or(WindowError::Form)?;
        let (from, to) = (time_of_day(from)?, time_of_day(to)?);
        if from == to || from == MINUTES_A_DAY {
            return Err(WindowError::Empty);
        }
        Ok(Self { from, to, zone })
    }
}

/// Minutes since midnight; 24:00 is the end of the day.
fn time_of_day(text: &str) -> Result<u16, WindowError> {
    let (hours, minutes) = text.split_once(':').ok_or(WindowError::Form)?;
    let number = |text: &str| match text.len() {
        2 => text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u16>().ok()).flatten(),
        _ => None,
    };
    let (hours, minutes) = number(hours).zip(number(minutes)).ok_or(WindowError::Form)?;
    let minute = hours * 60 + minutes;
    if minutes < 60 && minute <= MINUTES_A_DAY { Ok(minute) } else { Err(WindowError::Form) }
}

fn zone_of(name: &str) -> Result<TimeZone, WindowError> {
    match name {
        "UTC" => Ok(TimeZone::UTC),
        "local" => Ok(TimeZone::system()),
        _ => TimeZone::get(name).map_err(|_| WindowError::Zone),
    }
}

impl Schedule {
    /// The phase at a time. A downtime takes precedence over polling hours.
    pub(crate) fn phase_at(&self, now: Timestamp) -> SchedulePhase {
        let within = |windows: &[DailyWindow]| windows.iter().any(|window| window.contains(now));
        if within(&self.downtime) {
            SchedulePhase::Down
        } else if self.polling.is_empty() || within(&self.polling) {
            SchedulePhase::Open
        } else {
            SchedulePhase::Quiet
        }
    }

    /// Whether there are no windows.
    pub const fn is_empty(&self) -> bool {
        self.polling.is_empty() && self.downtime.is_empty()
    }
}

impl fmt::Display for SchedulePhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "the agent accepts desired state and reports",
            Self::Quiet => {
                "polling hours are over: the agent accepts no new desired state until they begin again"
            }
            Self::Down => "a downtime has begun: the agent sends nothing until it is over",
        })
    }
}

/// Publishes the phase whenever it changes. Does nothing, for ever, if there are no windows.
pub async fn run(schedule: Schedule, clock: Arc<dyn Clock>, phase: watch::Sender<SchedulePhase>) {
    if schedule.is_empty() {
        return std::future::pending().await;
    }
    loop {
        let now = clock.now();
        let new = schedule.phase_at(now);
        if phase.send_if_modified(|phase| std::mem::replace(phase, new) != new) {
            tracing::info!("{new}");
        }
        sleep(until_next_reading(now)).await;
    }
}

/// Windows begin and end with a minute, so the clock is read at the end of this one.
fn until_next_reading(now: Timestamp) -> Duration {
    let into_minute = now.as_millisecond().rem_euclid(60_000).unsigned_abs();
    Duration::from_millis(60_000 - into_minute).min(CLOCK_INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn window(text: &str) -> DailyWindow {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_window_is_a_time_of_day_over_midnight_and_changes_of_summer_time() {
        // In 2026 Berlin leaves out 02:00-03:00 on 29 March and has it twice on 25 October.
        let table: &[(&str, &[&str], &[&str])] = &[
            (
                "08:00-17:30 UTC",
                &["2026-11-21T08:00:00Z", "2026-11-21T17:29:59.999Z"],
                &["2026-11-21T07:59:59.999Z", "2026-11-21T17:30:00Z"],
            ),
            (
                "22:00-06:00 UTC",
                &[
                    "2026-11-21T22:00:00Z",
                    "2026-11-21T23:59:59Z",
                    "2026-11-22T00:00:00Z",
                    "2026-11-22T05:59:59Z",
                ],
                &["2026-11-21T21:59:59Z", "2026-11-22T06:00:00Z", "2026-11-22T12:00:00Z"],
            ),
            ("00:00-24:00 UTC", &["2026-11-21T00:00:00Z", "2026-11-21T23:59:59.999Z"], &[]),
            ("18:00-24:00 UTC", &["2026-11-21T23:59:59Z"], &["2026-11-22T00:00:00Z", "2026-11-21T17:59:59Z"]),
            // The same time of day in winter and in summer.
            (
                "12:00-13:00 Europe/Berlin",
                &["2026-01-10T11:30:00Z", "2026-07-10T10:30:00Z"],
                &["2026-01-10T10:30:00Z", "2026-07-10T11:30:00Z"],
            ),
            // The skipped hour.
            (
                "02:00-03:00 Europe/Berlin",
                &["2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z"],
                &["2026-03-29T00:59:59Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"],
            ),
            // The hour that occurs twice.
            (
                "02:00-03:00 Europe/Berlin",
                &["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"],
                &["2026-10-24T23:59:59Z", "2026-10-25T02:00:00Z"],
            ),
            // Across midnight and the skipped hour.
            (
                "23:00-04:00 Europe/Berlin",
                &[
                    "2026-03-28T22:00:00Z",
                    "2026-03-29T00:59:59Z",
                    "2026-03-29T01:00:00Z",
                    "2026-03-29T01:59:59Z",
                ],
                &["2026-03-28T21:59:59Z", "2026-03-29T02:00:00Z"],
            ),
            // A zone with a half-hour offset.
            (
                "09:00-10:00 Asia/Kolkata",
                &["2026-11-21T03:30:00Z"],
                &["2026-11-21T03:29:59Z", "2026-11-21T04:30:00Z"],
            ),
        ];
        for (text, inside, outside) in table {
            let window = window(text);
            for time in *inside {
                assert!(window.contains(at(time)), "{time} is in {text}");
            }
            for time in *outside {
                assert!(!window.contains(at(time)), "{time} is not in {text}");
            }
        }
    }

    #[test]
    fn a_text_that_is_no_window_is_refused_with_the_reason() {
        let table = [
            ("", "HH:MM-HH:MM"),
            ("22:00", "HH:MM-HH:MM"),
            ("22-06", "HH:MM-HH:MM"),
            ("22:00-6:00", "HH:MM-HH:MM"),
            ("22:00-06:60", "HH:MM-HH:MM"),
            ("24:01-06:00", "HH:MM-HH:MM"),
            ("+1:00-06:00", "HH:MM-HH:MM"),
            ("99:99-06:00", "HH:MM-HH:MM"),
            ("06:00-06:00", "00:00-24:00"),
            ("24:00-06:00", "00:00-24:00"),
            ("22:00-06:00 Mars/Olympus", "no time zone"),
            ("22:00-06:00 ", "fine"),
            ("  22:00-06:00   UTC ", "fine"),
            ("22:00-06:00 local", "fine"),
        ];
        for (text, expected) in table {
            let said =
                text.parse::<DailyWindow>().map_or_else(|error| error.to_string(), |_| "fine".to_owned());
            assert!(said.contains(expected), "{text:?}: {said}");
        }
    }

    #[test]
    fn a_downtime_overrides_polling_hours_and_without_any_all_hours_poll() {
        let schedule = Schedule {
            polling: vec![window("22:00-06:00 UTC"), window("12:00-13:00 UTC")],
            downtime: vec![window("02:00-03:00 UTC")],
        };
        for (time, phase) in [
            ("2026-11-21T23:00:00Z", SchedulePhase::Open),
            ("2026-11-22T02:30:00Z", SchedulePhase::Down),
            ("2026-11-22T03:00:00Z", SchedulePhase::Open),
            ("2026-11-22T06:00:00Z", SchedulePhase::Quiet),
            ("2026-11-22T12:59:59Z", SchedulePhase::Open),
        ] {
            assert_eq!(schedule.phase_at(at(time)), phase, "{time}");
        }
        let only_downtime = Schedule { polling: Vec::new(), ..schedule };
        assert_eq!(only_downtime.phase_at(at("2026-11-22T06:00:00Z")), SchedulePhase::Open);
        assert_eq!(Schedule::default().phase_at(at("2026-11-22T06:00:00Z")), SchedulePhase::Open);
    }

    #[test]
    fn the_clock_is_looked_at_when_a_minute_begins() {
        for (time, millis) in [
            ("2026-11-21T08:00:00Z", 1_000),
            ("2026-11-21T08:00:59.4Z", 600),
            ("1969-12-31T23:59:59.9Z", 100),
        ] {
            assert_eq!(until_next_reading(at(time)), Duration::from_millis(millis), "{time}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_phase_follows_the_clock_also_when_it_is_set() {
        use muster_service::clock::ManualClock;
        let clock = ManualClock::at(at("2026-11-21T01:00:00Z"));
        let schedule = Schedule { downtime: vec![window("02:00-03:00 UTC")], ..Schedule::default() };
        let (sender, mut phase) = watch::channel(SchedulePhase::Open);
        tokio::spawn(run(schedule, Arc::new(clock.clone()), sender));
        for (time, expected) in [
            ("2026-11-21T02:00:00Z", SchedulePhase::Down),
            ("2026-11-21T03:00:00Z", SchedulePhase::Open),
            ("2026-11-20T02:30:00Z", SchedulePhase::Down),
        ] {
            clock.set(at(time));
            phase.wait_for(|phase| *phase == expected).await.unwrap();
        }
    }
}
