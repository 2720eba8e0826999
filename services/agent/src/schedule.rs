//! When the agent speaks to the hub, by the clock on the wall: polling hours and downtime windows. Pure but for
//! [`follow`], which looks at the clock and tells. What the phases mean is up to those who are told.
//!
//! A window is a time of day, every day, in a time zone: from the first minute to the last, not included. It may run over
//! midnight. An hour that summer time leaves out is in no window; one that comes twice is in it twice.

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

/// Windows of one kind that can be given.
pub const WINDOWS_MAX: usize = 32;
/// Longest time between two looks at the clock: it may be set meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const MINUTES_A_DAY: u16 = 24 * 60;

/// What may be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Everything.
    Open,
    /// Everything but asking for, and taking, new desired state.
    Quiet,
    /// Nothing: the hub is known to be away.
    Down,
}

/// A time of day in a time zone.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// Minute of the day it begins with.
    from: u16,
    /// Minute of the day it ends before.
    to: u16,
    zone: TimeZone,
}

/// Why a text is no window.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAWindow {
    /// Not of the form.
    #[error(
        "must be HH:MM-HH:MM, in this machine's time or with a time zone behind it, as in 22:00-06:00, 01:30-03:00 UTC or \
         01:30-03:00 Europe/Berlin"
    )]
    Form,
    /// Nothing is in it.
    #[error("begins when it ends; for the whole day write 00:00-24:00")]
    Empty,
    /// No such zone.
    #[error("names no time zone that this machine knows: write UTC, or a name such as Europe/Berlin")]
    Zone,
}

/// All windows of a device.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Schedule {
    /// When it may ask for and take new desired state; always where there are none.
    pub polling: Vec<Window>,
    /// When the hub is known to be away.
    pub downtime: Vec<Window>,
}

impl Window {
    /// True at a time within it.
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

impl FromStr for Window {
    type Err = NotAWindow;

    fn from_str(text: &str) -> Result<Self, NotAWindow> {
        let (times, zone) = match text.trim().split_once(char::is_whitespace) {
            Some((times, zone)) => (times, zone_of(zone.trim())?),
            None => (text.trim(), TimeZone::system()),
        };
        let (from, to) = times.split_once('-').ok_or(NotAWindow::Form)?;
        let (from, to) = (time_of_day(from)?, time_of_day(to)?);
        if from == to || from == MINUTES_A_DAY {
            return Err(NotAWindow::Empty);
        }
        Ok(Self { from, to, zone })
    }
}

/// Minutes since midnight; 24:00 is the end of the day.
fn time_of_day(text: &str) -> Result<u16, NotAWindow> {
    let (hours, minutes) = text.split_once(':').ok_or(NotAWindow::Form)?;
    let number = |text: &str| match text.len() {
        2 => text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u16>().ok()).flatten(),
        _ => None,
    };
    let (hours, minutes) = number(hours).zip(number(minutes)).ok_or(NotAWindow::Form)?;
    let minute = hours * 60 + minutes;
    if minutes < 60 && minute <= MINUTES_A_DAY { Ok(minute) } else { Err(NotAWindow::Form) }
}

fn zone_of(name: &str) -> Result<TimeZone, NotAWindow> {
    match name {
        "UTC" => Ok(TimeZone::UTC),
        "local" => Ok(TimeZone::system()),
        _ => TimeZone::get(name).map_err(|_| NotAWindow::Zone),
    }
}

impl Schedule {
    /// What may be done at a time. A downtime counts more than polling hours.
    pub fn at(&self, now: Timestamp) -> Phase {
        let within = |windows: &[Window]| windows.iter().any(|window| window.contains(now));
        if within(&self.downtime) {
            Phase::Down
        } else if self.polling.is_empty() || within(&self.polling) {
            Phase::Open
        } else {
            Phase::Quiet
        }
    }

    /// True where every time is like any other.
    pub const fn is_empty(&self) -> bool {
        self.polling.is_empty() && self.downtime.is_empty()
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "the agent speaks with the hub",
            Self::Quiet => "polling hours are over: no new desired state is taken until they begin again",
            Self::Down => "a downtime has begun: nothing is sent until it is over",
        })
    }
}

/// Keeps the phase true. Does nothing, for ever, where there are no windows.
pub async fn follow(schedule: Schedule, clock: Arc<dyn Clock>, phase: watch::Sender<Phase>) {
    if schedule.is_empty() {
        return std::future::pending().await;
    }
    loop {
        let now = clock.now();
        let new = schedule.at(now);
        if phase.send_if_modified(|phase| std::mem::replace(phase, new) != new) {
            tracing::info!("{new}");
        }
        sleep(until_next_look(now)).await;
    }
}

/// Windows begin and end with a minute, so the end of this one is a time to look.
fn until_next_look(now: Timestamp) -> Duration {
    let into_minute = now.as_millisecond().rem_euclid(60_000).unsigned_abs();
    Duration::from_millis(60_000 - into_minute).min(LOOK_INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn window(text: &str) -> Window {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_window_is_a_time_of_day_also_over_midnight_and_through_changes_of_summer_time() {
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
            // The hour that is left out.
            (
                "02:00-03:00 Europe/Berlin",
                &["2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z"],
                &["2026-03-29T00:59:59Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"],
            ),
            // The hour that comes twice.
            (
                "02:00-03:00 Europe/Berlin",
                &["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"],
                &["2026-10-24T23:59:59Z", "2026-10-25T02:00:00Z"],
            ),
            // Over midnight, and over the hour that is left out.
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
            // Half an hour beside everybody else.
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
    fn what_is_no_window_is_told_why() {
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
            let said = text.parse::<Window>().map_or_else(|error| error.to_string(), |_| "fine".to_owned());
            assert!(said.contains(expected), "{text:?}: {said}");
        }
    }

    #[test]
    fn a_downtime_counts_more_than_polling_hours_and_without_any_every_hour_is_one() {
        let schedule = Schedule {
            polling: vec![window("22:00-06:00 UTC"), window("12:00-13:00 UTC")],
            downtime: vec![window("02:00-03:00 UTC")],
        };
        for (time, phase) in [
            ("2026-11-21T23:00:00Z", Phase::Open),
            ("2026-11-22T02:30:00Z", Phase::Down),
            ("2026-11-22T03:00:00Z", Phase::Open),
            ("2026-11-22T06:00:00Z", Phase::Quiet),
            ("2026-11-22T12:59:59Z", Phase::Open),
        ] {
            assert_eq!(schedule.at(at(time)), phase, "{time}");
        }
        let only_downtime = Schedule { polling: Vec::new(), ..schedule };
        assert_eq!(only_downtime.at(at("2026-11-22T06:00:00Z")), Phase::Open);
        assert_eq!(Schedule::default().at(at("2026-11-22T06:00:00Z")), Phase::Open);
    }

    #[test]
    fn the_clock_is_looked_at_when_a_minute_begins() {
        for (time, millis) in [
            ("2026-11-21T08:00:00Z", 1_000),
            ("2026-11-21T08:00:59.4Z", 600),
            ("1969-12-31T23:59:59.9Z", 100),
        ] {
            assert_eq!(until_next_look(at(time)), Duration::from_millis(millis), "{time}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_phase_follows_the_clock_also_when_it_is_set() {
        use muster_service::clock::ManualClock;
        let clock = ManualClock::at(at("2026-11-21T01:00:00Z"));
        let schedule = Schedule { downtime: vec![window("02:00-03:00 UTC")], ..Schedule::default() };
        let (sender, mut phase) = watch::channel(Phase::Open);
        tokio::spawn(follow(schedule, Arc::new(clock.clone()), sender));
        for (time, expected) in [
            ("2026-11-21T02:00:00Z", Phase::Down),
            ("2026-11-21T03:00:00Z", Phase::Open),
            ("2026-11-20T02:30:00Z", Phase::Down),
        ] {
            clock.set(at(time));
            phase.wait_for(|phase| *phase == expected).await.unwrap();
        }
    }
}
