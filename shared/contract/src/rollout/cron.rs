//! The begins of a window by the five fields of cron: minute, hour, day of the month, month, day of the week. It knows neither time
//! zones nor the present. The crate `cronexpr` 1.7 is no substitute: it leaves out a begin that summer time skips, repeats one that
//! occurs twice, and finds no begin that is more than four years away.

use std::fmt;
use std::str::FromStr;

use jiff::civil::{Date, Time};

/// Characters of an expression.
const CHARS_MAX: usize = 128;
/// Names of months, from the first.
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
/// Names of days of the week, from Sunday.
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/// Most days of each month.
const DAYS: [u32; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/// Times by the five fields of cron. A field has `*`, numbers, ranges (`1-5`), steps (`*/15`, `8-18/2`) and lists of these; months and
/// days of the week have names as well, and Sunday is 0 or 7. If both days are given, either one matches, as in cron.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cron {
    text: String,
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether a day of the month and one of the week are given.
    has_both_days: bool,
}

/// Why a text is no cron expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a cron expression such as '0 22 * * mon-fri': {rule}")]
pub struct CronError {
    text: String,
    rule: String,
}

/// A field of the five.
struct Field {
    name: &'static str,
    first: u32,
    last: u32,
    names: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field { name: "minute", first: 0, last: 59, names: &[] },
    Field { name: "hour", first: 0, last: 23, names: &[] },
    Field { name: "day of the month", first: 1, last: 31, names: &[] },
    Field { name: "month", first: 1, last: 12, names: &MONTHS },
    Field { name: "day of the week", first: 0, last: 7, names: &WEEKDAYS },
];

impl Cron {
    /// Whether it has a time on a day.
    pub fn is_on(&self, day: Date) -> bool {
        let has = |mask: u64, number: i8| u32::try_from(number).is_ok_and(|number| has(mask, number));
        let is_month_day = has(self.days, day.day());
        let is_weekday = has(self.weekdays, day.weekday().to_sunday_zero_offset());
        let is_day = if self.has_both_days { is_month_day || is_weekday } else { is_month_day && is_weekday };
        has(self.months, day.month()) && is_day
    }

    /// Its times on each of its days, in order.
    pub fn times(&self) -> impl Iterator<Item = Time> + '_ {
        let numbers = |mask: u64, end: i8| (0..end).filter(move |at| has(mask, at.unsigned_abs().into()));
        numbers(self.hours, 24).flat_map(move |hour| {
            numbers(self.minutes, 60).filter_map(move |minute| Time::new(hour, minute, 0, 0).ok())
        })
    }

    /// Whether there is such a day.
    fn occurs(&self) -> bool {
        let is_in = |month: &usize| {
            let days = DAYS.get(*month).copied().unwrap_or_default();
            has(self.months, *month as u32 + 1) && (1..=days).any(|day| has(self.days, day))
        };
        self.has_both_days || (0..DAYS.len()).any(|month| is_in(&month))
    }
}

const fn has(mask: u64, number: u32) -> bool {
    mask >> number & 1 == 1
}

impl FromStr for Cron {
    type Err = CronError;

    fn from_str(text: &str) -> Result<Self, CronError> {
        let error = |rule: String| CronError { text: text.chars().take(CHARS_MAX).collect(), rule };
        if text.len() > CHARS_MAX {
            return Err(error(format!("it has more than {CHARS_MAX} characters")));
        }
        let parts: Vec<_> = text.split_ascii_whitespace().collect();
        if parts.len() != FIELDS.len() {
            return Err(error(format!("it has {} fields in place of five", parts.len())));
        }
        let mut masks = [0; 5];
        for ((mask, field), part) in masks.iter_mut().zip(&FIELDS).zip(&parts) {
            *mask = field.mask(part).map_err(|rule| error(format!("{}: {rule}", field.name)))?;
        }
        let [minutes, hours, days, months, weekdays] = masks;
        // Seven is Sunday, too.
        let weekdays = if has(weekdays, 7) { weekdays | 1 } else { weekdays };
        let has_both_days = ![parts[2], parts[4]].iter().any(|part| part.starts_with('*'));
        let text = parts.join(" ");
        let cron = Self { text, minutes, hours, days, months, weekdays, has_both_days };
        if cron.occurs() { Ok(cron) } else { Err(error("no month has such a day".to_owned())) }
    }
}

impl Field {
    /// The numbers of a part, a list.
    fn mask(&self, part: &str) -> Result<u64, String> {
        part.split(',').try_fold(0, |mask, item| Ok(mask | self.item(item)?))
    }

    /// The numbers of an entry: `*`, a number or a range, with a step or without.
    fn item(&self, item: &str) -> Result<u64, String> {
        let (range, step) = match item.split_once('/') {
            None => (item, 1),
            Some((range, step)) => {
                let step = step.parse().ok().filter(|step| (1..=self.last).contains(step));
                (range, step.ok_or_else(|| format!("'{item}' has no step from 1 to {}", self.last))?)
            }
        };
        let (first, last) = match range.split_once('-') {
            _ if range == "*" => (self.first, self.last),
            Some((first, last)) => (self.number(first)?, self.number(last)?),
            // A number with a step counts up to the last one.
            None if item.contains('/') => (self.number(range)?, self.last),
            None => (self.number(range)?, self.number(range)?),
        };
        if first > last {
            return Err(format!("'{item}' ends before it begins"));
        }
        let numbers = (first..=last).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        Ok(numbers.fold(0, |mask, number| mask | 1 << number))
    }

    fn number(&self, text: &str) -> Result<u32, String> {
        let named = self.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let named = named.and_then(|at| u32::try_from(at).ok()).map(|at| at + self.first);
        let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = named.or_else(|| text.parse().ok().filter(|_| is_digits));
        number
            .filter(|number| (self.first..=self.last).contains(number))
            .ok_or_else(|| format!("'{text}' is not from {} to {}", self.first, self.last))
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

crate::text::text_type!(Cron, { "type": "string", "maxLength": CHARS_MAX });

#[cfg(test)]
mod tests {
    use jiff::ToSpan as _;

    use super::*;

    /// The days from the 1st of November 2026, a Sunday, on which an expression has times.
    fn days(cron: &str) -> Vec<i64> {
        let cron: Cron = cron.parse().unwrap();
        let day = |offset: &i64| Date::constant(2026, 11, 1).checked_add(offset.days()).unwrap();
        (0..31).filter(|offset| cron.is_on(day(offset))).map(|offset| offset + 1).collect()
    }

    fn times(cron: &str) -> Vec<String> {
        let cron: Cron = cron.parse().unwrap();
        cron.times().map(|time| format!("{:02}:{:02}", time.hour(), time.minute())).collect()
    }

    #[test]
    fn the_days_of_a_cron_expression_are_those_of_cron() {
        assert_eq!(days("0 22 * * mon-fri")[..6], [2, 3, 4, 5, 6, 9]);
        assert_eq!(days("0 22 * * 0"), days("0 22 * * 7"));
        assert_eq!(days("0 22 * * SUN"), [1, 8, 15, 22, 29]);
        assert_eq!(days("0 22 13 * *"), [13]);
        assert_eq!(days("0 22 13 * fri"), [6, 13, 20, 27], "either day matches");
        assert_eq!(days("0 22 */10 nov *"), [1, 11, 21], "the 31st day is the 1st of December");
    }

    #[test]
    fn the_times_of_a_cron_expression_are_in_order() {
        assert_eq!(times("*/30 8-9 * * *"), ["08:00", "08:30", "09:00", "09:30"]);
        assert_eq!(times("5,0 22 * * *"), ["22:00", "22:05"]);
        assert_eq!(times("50/5 1 * * *"), ["01:50", "01:55"]);
        assert_eq!(times("* * * * *").len(), 24 * 60);
    }

    #[test]
    fn a_text_that_cron_would_not_read_is_refused_by_its_field() {
        for (text, words) in [
            ("0 22 * *", "it has 4 fields in place of five"),
            ("60 22 * * *", "minute: '60' is not from 0 to 59"),
            ("0 24 * * *", "hour: '24' is not from 0 to 23"),
            ("0 22 0 * *", "day of the month: '0' is not from 1 to 31"),
            ("0 22 * 13 *", "month: '13'"),
            ("0 22 * * mo", "day of the week: 'mo' is not from 0 to 7"),
            ("0 22 * * fri-mon", "day of the week: 'fri-mon' ends before it begins"),
            ("*/0 22 * * *", "minute: '*/0' has no step from 1 to 59"),
            ("+5 22 * * *", "minute: '+5'"),
            ("0 22, * * *", "hour: ''"),
            ("0 22 30 feb *", "no month has such a day"),
            ("@daily", "it has 1 fields in place of five"),
        ] {
            let refused = text.parse::<Cron>().unwrap_err().to_string();
            assert!(refused.contains(words), "{text}: {refused}");
        }
        assert!("0 22 29 2 *".parse::<Cron>().is_ok(), "leap years have it");
    }
}
