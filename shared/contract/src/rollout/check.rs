//! The checks of others behind a wave: a request over NATS or an https webhook, its question and its answer. `muster-planner`
//! asks them.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::Digest;
use crate::duration_text;
use crate::ids::{DeploymentId, WaveName};
use crate::webhook_url::WebhookUrl;

/// Checks of one wave.
pub const CHECKS_MAX: usize = 16;
/// Bytes of an answer to a check.
pub const CHECK_ANSWER_BYTES_MAX: usize = 4096;
/// Longest time for one answer to a check, or to a hook of a plan.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Most answers that one check needs.
const CHECK_COUNT_MAX: u32 = 100;
/// Shortest time between two questions of a check.
const CHECK_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Bytes of a subject.
const SUBJECT_BYTES_MAX: usize = 512;
/// The subjects of checks begin with this.
pub const CHECK_PREFIX: &str = "muster.check.";

/// A check of others that the gate behind a wave needs. Exactly one of `request` and `webhook` says who is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Check {
    /// The subject of a request over NATS: muster.check.smoke.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<CheckSubject>,
    /// The address of a webhook: `https://checks.example/smoke`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookUrl>,
    /// Time between two questions: 30s, 5m; from 1s to 24 h.
    #[serde(default = "interval", with = "duration_text")]
    #[schemars(with = "String")]
    pub interval: Duration,
    /// Number of answers in a row that must be `pass`, at most 100.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = CHECK_COUNT_MAX))]
    pub count: NonZeroU32,
}

/// The question of a check, on `muster.check.>` or to a webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckRequest {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The content.
    pub digest: Digest,
    /// Path of the `rollout.yaml`.
    pub rollout: String,
    /// The wave.
    pub wave: WaveName,
    /// LEDGER up to this sequence gives the counts.
    pub ledger_seq: u64,
    /// Targets of the wave.
    pub targets: u64,
    /// Targets that are known to have installed the content.
    pub lo: u64,
    /// Targets that are not known to have failed.
    pub hi: u64,
}

/// The answer to a check. Anything else counts as `inconclusive`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckAnswer {
    /// The result.
    pub result: CheckResult,
    /// The reason, in one sentence.
    #[serde(default)]
    pub reason: String,
    /// The content that it is about; if it is not the one of the question, the answer counts as `inconclusive`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CheckResult {
    /// The gate may open.
    Pass,
    /// The wave has failed.
    Fail,
    /// Nothing is known: the gate stays shut, and the check is asked again.
    Inconclusive,
}

impl CheckResult {
    /// Its name in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// Default of `interval`.
const fn interval() -> Duration {
    Duration::from_secs(10)
}

const fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

/// Who is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckTarget<'a> {
    /// A service over NATS.
    Request(&'a CheckSubject),
    /// A webhook.
    Webhook(&'a WebhookUrl),
}

impl<'a> CheckTarget<'a> {
    /// The one of both that is there; `None` unless exactly one is.
    pub const fn of(request: Option<&'a CheckSubject>, webhook: Option<&'a WebhookUrl>) -> Option<Self> {
        match (request, webhook) {
            (Some(subject), None) => Some(Self::Request(subject)),
            (None, Some(url)) => Some(Self::Webhook(url)),
            _ => None,
        }
    }
}

impl fmt::Display for CheckTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(subject) => subject.fmt(f),
            Self::Webhook(url) => write!(f, "https://{}", url.authority()),
        }
    }
}

impl Check {
    /// Its name for people. A webhook is named by its host: its path may be a secret.
    pub fn name(&self) -> String {
        self.target().map_or_else(String::new, |target| target.to_string())
    }

    /// Who is asked.
    pub fn target(&self) -> Option<CheckTarget<'_>> {
        CheckTarget::of(self.request.as_ref(), self.webhook.as_ref())
    }

    /// Checks the rules that a JSON schema cannot express.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.target().is_none() {
            Err("needs exactly one of request and webhook")
        } else if self.interval < CHECK_INTERVAL_MIN {
            Err("has an interval below 1s")
        } else if self.count.get() > CHECK_COUNT_MAX {
            Err("has a count above 100")
        } else {
            Ok(())
        }
    }
}

/// A subject below `muster.check.`, without wildcards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckSubject(String);

/// Why a text is no subject of a check.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a subject of a check: muster.check. and names of A-Z, a-z, 0-9, '-' and '_' with '.' between them"
)]
pub struct CheckSubjectError(String);

/// Characters of a bad text that an error repeats.
const REPEATED_CHARS_MAX: usize = 80;

impl FromStr for CheckSubject {
    type Err = CheckSubjectError;

    fn from_str(text: &str) -> Result<Self, CheckSubjectError> {
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        };
        let names = text.strip_prefix(CHECK_PREFIX).filter(|_| text.len() <= SUBJECT_BYTES_MAX);
        match names {
            Some(names) if names.split('.').all(is_name) => Ok(Self(text.to_owned())),
            _ => Err(CheckSubjectError(text.chars().take(REPEATED_CHARS_MAX).collect())),
        }
    }
}

impl CheckSubject {
    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CheckSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

crate::text::text_type!(CheckSubject, {
    "type": "string",
    "pattern": "^muster\\.check(\\.[A-Za-z0-9_-]+)+$",
    "maxLength": SUBJECT_BYTES_MAX,
});

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_check_asks_a_subject_of_checks() {
        for good in ["muster.check.smoke", "muster.check.plant7.Smoke_1"] {
            assert_eq!(good.parse::<CheckSubject>().unwrap().as_str(), good);
        }
        for bad in [
            "muster.check",
            "muster.check.",
            "muster.check.>",
            "muster.check.a..b",
            "muster.publisher.decide",
            "",
        ] {
            assert!(bad.parse::<CheckSubject>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_check_is_bound_in_time_and_number() {
        let read = |value: serde_json::Value| serde_json::from_value::<Check>(value).unwrap().check();
        assert_eq!(read(json!({ "request": "muster.check.a" })), Ok(()));
        assert!(read(json!({ "request": "muster.check.a", "interval": "999ms" })).is_err());
        assert!(read(json!({ "request": "muster.check.a", "count": 101 })).is_err());
        assert!(read(json!({ "request": "muster.check.a", "webhook": "https://a" })).is_err());
        assert!(read(json!({ "interval": "10s" })).is_err());
        assert!(
            serde_json::from_value::<Check>(json!({ "request": "muster.check.a", "interval": "25h" }))
                .is_err()
        );
    }

    #[test]
    fn an_answer_without_a_known_result_is_none() {
        for bad in
            ["{}", "[]", "null", "{\"result\":\"ok\"}", "{\"result\":\"Pass\"}", "{\"status\":\"pass\"}"]
        {
            assert!(serde_json::from_str::<CheckAnswer>(bad).is_err(), "{bad}");
        }
        let answer: CheckAnswer = serde_json::from_str("{\"result\":\"pass\"}").unwrap();
        assert_eq!((answer.result, answer.digest), (CheckResult::Pass, None));
    }
}
