//! The windows in which a rollout releases. `muster-domain` says when one is open.

use std::time::Duration;

use jiff::civil::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cron::Cron;
use super::policy_time;

/// Windows of one rollout.
pub const WINDOWS_MAX: usize = 16;
/// Longest window: a week.
pub const WINDOW_LENGTH_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A period in which devices may get a content: by days and a time of day, or by a cron expression. A begin that summer time skips is
/// an hour later; one that occurs twice is the first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Window {
    /// Days on which it begins; every day if the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<Weekday>,
    /// Time of its begin: 22:00.
    #[serde(default, with = "clock_time", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub start: Option<Time>,
    /// In place of `days` and `start`: its begins as a cron expression of five fields, such as `0 22 * * mon-fri`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<Cron>,
    /// Its length: 30m, 8h, 2d; at most 168h.
    #[serde(with = "policy_time")]
    #[schemars(with = "String")]
    pub length: Duration,
    /// The time zone of days and begin, as in Europe/Berlin.
    #[serde(default = "utc", skip_serializing_if = "is_utc")]
    pub zone: String,
}

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Weekday {
    /// Monday.
    Mon,
    /// Tuesday.
    Tue,
    /// Wednesday.
    Wed,
    /// Thursday.
    Thu,
    /// Friday.
    Fri,
    /// Saturday.
    Sat,
    /// Sunday.
    Sun,
}

impl Window {
    /// Checks the rules that a JSON schema cannot express; the field below the window, and the rule that is broken.
    pub(super) const fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if self.cron.is_some() == self.start.is_some() {
            Err(("", "needs exactly one of start and cron"))
        } else if self.cron.is_some() && !self.days.is_empty() {
            Err((".days", "is of no use here: the cron expression has days"))
        } else {
            Ok(())
        }
    }
}

/// The zone of a window that names none.
fn utc() -> String {
    "UTC".to_owned()
}

fn is_utc(zone: &str) -> bool {
    zone == "UTC"
}

mod clock_time {
    use jiff::civil::Time;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Option<Time>, to: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => to.collect_str(&format_args!("{:02}:{:02}", time.hour(), time.minute())),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Time>, D::Error> {
        let text = String::deserialize(from)?;
        let time = Time::strptime("%H:%M", &text).ok().filter(|_| text.len() == 5);
        let error = || serde::de::Error::custom(format!("'{text}' is not a time of day such as 22:00"));
        time.ok_or_else(error).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_window_is_read_as_it_is_written() {
        let value =
            json!({ "days": ["mon", "fri"], "start": "22:05", "length": "6h", "zone": "Europe/Berlin" });
        let window: Window = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(&window).unwrap(), value);
        let daily: Window = serde_json::from_value(json!({ "start": "00:00", "length": "1h" })).unwrap();
        assert_eq!((daily.days.len(), daily.zone.as_str()), (0, "UTC"));
        let value = json!({ "cron": "0 22 * * mon-fri", "length": "6h" });
        let window: Window = serde_json::from_value(value.clone()).unwrap();
        assert_eq!((serde_json::to_value(&window).unwrap(), window.check()), (value, Ok(())));
    }

    #[test]
    fn a_window_needs_a_time_of_day_and_a_length() {
        for (value, words) in [
            (json!({ "start": "24:00", "length": "1h" }), "'24:00' is not a time of day"),
            (json!({ "start": "9:00", "length": "1h" }), "'9:00' is not a time of day"),
            (json!({ "start": "09:00" }), "missing field `length`"),
            (json!({ "start": "09:00", "length": "1h", "days": ["monday"] }), "unknown variant `monday`"),
            (json!({ "start": "09:00", "length": "1h", "tz": "UTC" }), "unknown field `tz`"),
        ] {
            let refused = serde_json::from_value::<Window>(value.clone()).unwrap_err().to_string();
            assert!(refused.contains(words), "{value}: {refused}");
        }
    }

    #[test]
    fn a_window_begins_by_a_time_of_day_or_by_cron() {
        let check = |mut value: serde_json::Value| {
            value["length"] = json!("1h");
            serde_json::from_value::<Window>(value).unwrap().check()
        };
        let one = Err(("", "needs exactly one of start and cron"));
        assert_eq!(check(json!({})), one);
        assert_eq!(check(json!({ "cron": "0 22 * * *", "start": "22:00" })), one);
        let days = check(json!({ "cron": "0 22 * * *", "days": ["mon"] }));
        assert_eq!(days.map_err(|(field, _)| field), Err(".days"));
    }
}
