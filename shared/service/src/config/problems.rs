//! Collects all unusable settings, so that a process reports them together.
//!
//! Each method takes the flag and its raw text and returns the value, or `None` after it recorded the problem.

use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;
use tracing_subscriber::filter::Targets;

use super::values::{mask_credentials, parse_bytes};

/// One setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The flag, as in `--lease`.
    pub flag: &'static str,
    /// The given value; `None` if it is missing.
    pub value: Option<String>,
    /// The rule that a usable value follows.
    pub rule: String,
}

/// All settings that cannot be used, in the order in which they were checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    problems: Vec<Problem>,
}

/// The environment variable of a flag: `MUSTER_NATS_URL` of `--nats-url`.
pub fn variable(flag: &str) -> String {
    format!("MUSTER_{}", flag.trim_start_matches('-').replace('-', "_").to_ascii_uppercase())
}

impl Problems {
    /// The result of `build`, if no value was refused.
    ///
    /// # Errors
    /// All problems. `build` may return `None` only for a refused value.
    pub fn finish<T>(self, build: impl FnOnce() -> Option<T>) -> Result<T, Self> {
        match build() {
            Some(config) if self.problems.is_empty() => Ok(config),
            _ => Err(self),
        }
    }

    /// Each problem, in the order in which the settings were checked.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter()
    }

    /// Records an unusable value. `rule` says what a usable one is; the caller masks a secret in `value`.
    pub fn refuse(&mut self, flag: &'static str, value: impl Display, rule: impl Display) {
        self.problems.push(Problem { flag, value: Some(value.to_string()), rule: rule.to_string() });
    }

    /// An optional value: `Some(None)` if it is missing. An empty text is refused.
    pub fn optional<T>(
        &mut self,
        flag: &'static str,
        text: Option<&str>,
        check: impl FnOnce(&mut Self, &'static str, &str) -> Option<T>,
    ) -> Option<Option<T>> {
        match text {
            None => Some(None),
            Some("") => {
                self.refuse(flag, "", "is empty; omit the setting to have none");
                None
            }
            Some(text) => check(self, flag, text).map(Some),
        }
    }

    /// A value that must be given.
    pub fn required<T>(
        &mut self,
        flag: &'static str,
        text: Option<&str>,
        check: impl FnOnce(&mut Self, &'static str, &str) -> Option<T>,
    ) -> Option<T> {
        match text {
            Some(text) => check(self, flag, text),
            None => {
                self.problems.push(Problem { flag, value: None, rule: "must be given".to_owned() });
                None
            }
        }
    }

    /// A value whose parser's error is the rule.
    pub fn parse<T: FromStr<Err: Display>>(&mut self, flag: &'static str, text: &str) -> Option<T> {
        self.note(flag, text, text.parse())
    }

    /// A size in bytes, as `4GiB`, `512MiB` or a number; `None` if it was refused.
    pub fn size(&mut self, flag: &'static str, text: &str, min: u64) -> Option<u64> {
        let size = parse_bytes(text, min);
        size.map_err(|rule| self.refuse(flag, text, rule)).ok()
    }

    /// A number within bounds.
    pub fn number(&mut self, flag: &'static str, text: &str, bounds: RangeInclusive<u64>) -> Option<u64> {
        let number = text.parse().ok().filter(|number| bounds.contains(number));
        let rule = || format!("must be a number from {} to {}", bounds.start(), bounds.end());
        self.note(flag, text, number.ok_or_else(rule))
    }

    /// A duration within bounds: `90s`, `500ms`, `1h30m`.
    pub fn duration(
        &mut self,
        flag: &'static str,
        text: &str,
        bounds: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let duration = text.parse::<SignedDuration>().ok().and_then(|duration| duration.try_into().ok());
        let rule = || {
            let (min, max) = (friendly(*bounds.start()), friendly(*bounds.end()));
            format!("must be a duration such as 90s, 500ms or 1h30m, from {min} to {max}")
        };
        self.note(flag, text, duration.filter(|duration| bounds.contains(duration)).ok_or_else(rule))
    }

    /// A file that exists.
    pub fn file(&mut self, flag: &'static str, text: &str) -> Option<PathBuf> {
        let path = PathBuf::from(text);
        let checked = match std::fs::metadata(&path) {
            Ok(found) if found.is_file() => Ok(path),
            Ok(_) => Err("must be a file".to_owned()),
            Err(error) => Err(format!("must be a readable file: {error}")),
        };
        self.note(flag, text, checked)
    }

    /// An address to listen on.
    pub fn address(&mut self, flag: &'static str, text: &str) -> Option<SocketAddr> {
        let rule = "must be IP:PORT such as 127.0.0.1:9100 or [::1]:9100; port 0 takes any free one";
        self.note(flag, text, text.parse().map_err(|_| rule))
    }

    /// A filter of log lines.
    pub(super) fn log_filter(&mut self, flag: &'static str, text: &str) -> Option<String> {
        let rule = "must be error, warn, info, debug or trace, or such levels per module, as in info,muster_bus=debug";
        self.note(flag, text, text.parse::<Targets>().map(|_| text.to_owned()).map_err(|_| rule))
    }

    fn note<T>(&mut self, flag: &'static str, text: &str, checked: Result<T, impl Display>) -> Option<T> {
        checked.map_err(|rule| self.refuse(flag, mask_credentials(text), rule)).ok()
    }
}

impl Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.len() {
            1 => writeln!(f, "a setting cannot be used:")?,
            count => writeln!(f, "{count} settings cannot be used:")?,
        }
        self.problems.iter().try_for_each(|problem| writeln!(f, "  {problem}"))?;
        writeln!(f, "--help explains every setting.")
    }
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variable = variable(self.flag);
        match &self.value {
            Some(value) => write!(f, "{}={value} ({variable}): {}", self.flag, self.rule),
            None => write!(f, "{} ({variable}): {}", self.flag, self.rule),
        }
    }
}

impl std::error::Error for Problems {}

fn friendly(duration: Duration) -> String {
    SignedDuration::try_from(duration).map_or_else(|_| format!("{duration:?}"), |span| format!("{span:#}"))
}
