//! A retry: the attempt, since when, and the last error. A report carries it from the first error at a target until a
//! success has held, whatever state it reports meanwhile.
//!
//! The device counts by its own clock and decides what a crash loop is; the hub repeats it and decides nothing here.

use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decode::Violation;
use crate::ids::ComponentName;
use crate::limits::{ERROR_MESSAGE_BYTES_MAX, RETRIES_MAX};
use crate::state::{StatusError, check_length, cut};

/// A component, or a deployment as a whole, that is tried again after an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Retry {
    /// The component; absent where it is the deployment as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub component: Option<ComponentName>,
    /// The attempt under way, or the last one: 1 for the first at this target, or the first since a success that held.
    #[schemars(range(min = 1))]
    pub attempt: u32,
    /// When attempt 1 began, by the device's own clock.
    pub since: Timestamp,
    /// The error that the last failed attempt ended with.
    pub last_error: LastError,
    /// It failed so often within a short time that it counts as failed, whatever state it is in at the moment.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub crash_loop: bool,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LastError {
    /// A short word for programs.
    #[serde(default)]
    #[schemars(length(max = ERROR_MESSAGE_BYTES_MAX))]
    pub code: String,
    /// A sentence for people.
    #[serde(default)]
    #[schemars(length(max = ERROR_MESSAGE_BYTES_MAX))]
    pub message: String,
    /// When, by the device's own clock.
    pub at: Timestamp,
}

/// A retry in short: beside an error in a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetrySummary {
    /// The attempt under way, counted from 1.
    #[schemars(range(min = 1))]
    pub attempt: u32,
    /// When attempt 1 began, by the device's own clock.
    pub since: Timestamp,
    /// True if it failed so often within a short time that it counts as failed, whatever state it is in.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub crash_loop: bool,
}

impl Retry {
    /// The retry in short.
    pub const fn summary(&self) -> RetrySummary {
        RetrySummary { attempt: self.attempt, since: self.since, crash_loop: self.crash_loop }
    }
}

impl LastError {
    /// The error of an attempt that ended at a moment.
    pub fn of(error: &StatusError, at: Timestamp) -> Self {
        Self { code: error.code.clone(), message: error.message.clone(), at }
    }

    /// Cuts its texts to so many bytes.
    pub fn shorten(&mut self, bytes_max: usize) {
        for text in [&mut self.code, &mut self.message] {
            *text = cut(std::mem::take(text), bytes_max);
        }
    }
}

impl fmt::Display for RetrySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.crash_loop { "crash loop, attempt" } else { "attempt" };
        write!(f, "{what} {} since {:.0}", self.attempt, self.since)
    }
}

/// The rules of a list of retries: each component once, no text longer than views repeat.
pub(crate) fn check(retries: &[Retry]) -> Result<(), Violation> {
    if retries.len() > RETRIES_MAX {
        let rule = format!("has {} entries; {RETRIES_MAX} are allowed", retries.len());
        return Err(Violation::at("retries", rule));
    }
    for (at, retry) in retries.iter().enumerate() {
        let field = |name: &str| format!("retries[{at}].{name}");
        if retry.attempt == 0 {
            return Err(Violation::at(field("attempt"), "is 0; the first attempt is 1".to_owned()));
        }
        if retries[..at].iter().any(|other| other.component == retry.component) {
            return Err(Violation::at(field("component"), "is there twice".to_owned()));
        }
        for (name, text) in [("code", &retry.last_error.code), ("message", &retry.last_error.message)] {
            check_length(name, text).map_err(|broken| broken.within(field("lastError")))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(component: Option<&str>) -> Retry {
        Retry {
            component: component.map(|name| name.parse().unwrap()),
            attempt: 3,
            since: Timestamp::UNIX_EPOCH,
            last_error: LastError {
                code: "Exited".to_owned(),
                message: "ended".to_owned(),
                at: Timestamp::UNIX_EPOCH,
            },
            crash_loop: false,
        }
    }

    #[test]
    fn a_component_is_retried_once_from_attempt_1_on() {
        assert!(check(&[retry(None), retry(Some("web")), retry(Some("db"))]).is_ok());
        let twice = check(&[retry(Some("web")), retry(Some("web"))]).unwrap_err();
        assert_eq!(twice.to_string(), "retries[1].component: is there twice");
        let none = check(&[Retry { attempt: 0, ..retry(None) }]).unwrap_err();
        assert_eq!(none.to_string(), "retries[0].attempt: is 0; the first attempt is 1");
        assert!(check(&vec![retry(None); RETRIES_MAX + 1]).is_err());
    }

    #[test]
    fn what_is_false_is_left_out_on_the_wire() {
        let text = serde_json::to_string(&retry(None)).unwrap();
        assert_eq!(
            text,
            r#"{"attempt":3,"since":"1970-01-01T00:00:00Z","lastError":{"code":"Exited","message":"ended","at":"1970-01-01T00:00:00Z"}}"#
        );
    }
}
