//! How far an answer of the query service may be behind LEDGER. A rollup that has read LEDGER to its end adds nothing to its
//! answers; any other adds the reason why the answer may be out of date.

use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `rollup` of an answer of `muster.query.*` and `muster.notify.*`, and `rollupLag` of an answer of `muster.query.status`, whose `rollup` is the roll-up
/// of targets: absent if the rollup has read LEDGER to its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollupLag {
    /// The rollup is behind LEDGER.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lagging: Option<Lagging>,
    /// The rollup has been unable to read LEDGER since this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_off_since: Option<Timestamp>,
    /// Since this time LEDGER has not stored the fact that the hub stopped listening to a partition, or resumed: the freshness in
    /// the answer may be wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unrecorded_since: Option<Timestamp>,
}

/// Facts that LEDGER holds and the rollup has not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lagging {
    /// Their approximate number.
    pub facts: u64,
    /// The rollup last read to the end of LEDGER at this time.
    pub since: Timestamp,
}

/// The lag of the rollup that gives an answer, read beside the answer itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnswerLag {
    /// The lag behind LEDGER; absent without one. An answer about status has its roll-up of targets here, which is not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollup: Option<RollupLag>,
    /// The same in an answer about status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollup_lag: Option<RollupLag>,
}

impl AnswerLag {
    /// The lag behind LEDGER; `None` without one.
    pub fn lag(&self) -> Option<RollupLag> {
        self.rollup_lag.or(self.rollup).filter(|lag| !lag.is_none())
    }
}

/// The endpoint whose answers have a `rollup` of their own.
const STATUS: &str = "status";

impl RollupLag {
    /// True where nothing stands between the answers and LEDGER.
    pub const fn is_none(&self) -> bool {
        self.lagging.is_none() && self.cut_off_since.is_none() && self.unrecorded_since.is_none()
    }

    /// The lag of an answer from two rollups and their LEDGERs: the facts added, and the earlier times.
    #[must_use]
    pub fn joined(self, other: Self) -> Self {
        let lagging = match (self.lagging, other.lagging) {
            (Some(one), Some(two)) => {
                Some(Lagging { facts: one.facts.saturating_add(two.facts), since: one.since.min(two.since) })
            }
            (one, two) => one.or(two),
        };
        let earlier = |one: Option<Timestamp>, two: Option<Timestamp>| one.into_iter().chain(two).min();
        Self {
            lagging,
            cut_off_since: earlier(self.cut_off_since, other.cut_off_since),
            unrecorded_since: earlier(self.unrecorded_since, other.unrecorded_since),
        }
    }

    /// The answer of an endpoint, a JSON object, with this as its `rollup` or `rollupLag`.
    #[must_use]
    pub fn mark(&self, endpoint: &str, answer: &[u8]) -> Vec<u8> {
        // Cannot fail: an object of numbers and texts.
        let lag = serde_json::to_vec(self).unwrap_or_default();
        let Some((b'}', object)) = answer.split_last() else { return answer.to_vec() };
        let separator: &[u8] = if object.ends_with(b"{") { b"" } else { b"," };
        let name: &[u8] = if endpoint == STATUS { b"\"rollupLag\":" } else { b"\"rollup\":" };
        [object, separator, name, &lag, b"}"].concat()
    }
}

impl fmt::Display for RollupLag {
    /// For a refusal: `muster-rollup lags since 2026-11-24T08:00:00Z (unread facts of LEDGER: 7)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lagging = self.lagging.map(|Lagging { facts, since }| {
            format!("muster-rollup lags since {since} (unread facts of LEDGER: {facts})")
        });
        let cut_off = self.cut_off_since.map(|at| format!("muster-rollup is cut off from LEDGER since {at}"));
        let unrecorded =
            self.unrecorded_since.map(|at| format!("LEDGER stores no facts about the hub since {at}"));
        let causes: Vec<_> = [lagging, cut_off, unrecorded].into_iter().flatten().collect();
        f.write_str(&causes.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_answer_is_marked_with_what_stands_between_it_and_ledger() {
        let since: Timestamp = "2026-11-24T08:00:00Z".parse().unwrap();
        let lag = RollupLag {
            lagging: Some(Lagging { facts: 7, since }),
            cut_off_since: Some(since),
            ..RollupLag::default()
        };
        assert!(!lag.is_none() && RollupLag::default().is_none());
        for (answer, wanted) in
            [("{}", json!({ "rollup": lag })), (r#"{"devices":[]}"#, json!({ "devices": [], "rollup": lag }))]
        {
            let marked: Value = serde_json::from_slice(&lag.mark("devices", answer.as_bytes())).unwrap();
            assert_eq!(marked, wanted);
            let read: AnswerLag = serde_json::from_value(marked).unwrap();
            assert_eq!(read.lag(), Some(lag));
        }
    }

    #[test]
    fn a_lag_takes_no_name_that_an_answer_about_status_has() {
        let since: Timestamp = "2026-11-24T08:00:00Z".parse().unwrap();
        let lag = RollupLag { cut_off_since: Some(since), ..RollupLag::default() };
        let answer = r#"{"rollup":{"targets":1}}"#;
        let read = |answer: &[u8]| serde_json::from_slice::<AnswerLag>(answer).unwrap().lag();
        assert_eq!(read(answer.as_bytes()), None);
        let marked = lag.mark(STATUS, answer.as_bytes());
        assert_eq!(read(&marked), Some(lag));
        let marked: Value = serde_json::from_slice(&marked).unwrap();
        assert_eq!(marked, json!({ "rollup": {"targets": 1}, "rollupLag": lag }));
    }
}
