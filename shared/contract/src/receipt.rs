//! Receipt: which of a device's reports the hub holds, so that the device may delete them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decode::{Document, Violation};
use crate::ids::Epoch;
use crate::limits::{BATCH_ENCODINGS_MAX, COUNTER_MAX, REFUSAL_REASONS_MAX};
use crate::ranges::SeqRanges;
use crate::version::{ApiVersion, kind};

/// `muster.receipt.<site>.<device>`: LEDGER or quarantine holds every number up to `through` except `missing`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `Receipt`
    pub kind: kind::Receipt,
    /// The epoch of the numbers.
    pub epoch: Epoch,
    /// Highest number that it covers; 0 if the hub holds none of this epoch.
    #[schemars(range(max = COUNTER_MAX))]
    pub through: u64,
    /// Numbers up to `through` that the hub does not hold.
    #[serde(default)]
    pub missing: SeqRanges,
    /// The part of `missing` that arrived and that the hub could not store. The device keeps these reports. It sends them again
    /// when a later receipt misses them without naming them here, and at long intervals by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = REFUSAL_REASONS_MAX))]
    pub refused: Vec<RefusedNumbers>,
    /// The encodings in which the hub reads batches of reports from this device, beside the plain one. `zstd-r1` also allows
    /// single reports in that encoding, and brief heartbeats. If absent, the device must send each report by itself, also a report
    /// that it sent in a batch and that this receipt does not cover.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = BATCH_ENCODINGS_MAX))]
    pub batches: Vec<String>,
    /// Generation of the newest desired state of this device that the hub knows; 0 for none. A hub that names it reads short
    /// heartbeats and compares their generation with it: a device that holds an older one gets a receipt, and then reads its
    /// desired state. Absent from an older hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
}

/// Numbers that arrived and that the hub could not store, for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RefusedNumbers {
    /// The numbers.
    pub ranges: SeqRanges,
    /// Why: `quarantineFull`, `quarantineUnavailable`, or another word of a newer hub.
    pub reason: String,
}

impl Receipt {
    /// True where the hub holds this number.
    pub fn covers(&self, seq: u64) -> bool {
        seq <= self.through && !self.missing.contains(seq)
    }

    /// Whether the hub reads this encoding.
    pub fn reads(&self, encoding: &str) -> bool {
        self.batches.iter().any(|word| word == encoding)
    }

    /// The numbers that the hub holds.
    pub fn covered(&self) -> SeqRanges {
        self.missing.missing(self.through)
    }

    /// The numbers that arrived and that the hub could not store, for all reasons.
    pub fn all_refused(&self) -> SeqRanges {
        let mut all = SeqRanges::new();
        self.refused.iter().for_each(|refused| _ = all.extend(&refused.ranges));
        all
    }
}

impl Document for Receipt {
    const KIND: &'static str = "Receipt";

    fn check(&self) -> Result<(), Violation> {
        if let Some(top) = self.missing.max().filter(|top| *top > self.through) {
            return Err(Violation::at("missing", format!("{top} is above through {}", self.through)));
        }
        let is_missing = |(from, to)| self.missing.missing_within(from, to).is_empty();
        match self.all_refused().iter().find(|range| !is_missing(*range)) {
            Some((from, to)) => Err(Violation::at("refused", format!("[{from},{to}] is not missing"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode;

    #[test]
    fn what_is_refused_is_missing_and_absent_where_nothing_is() {
        let receipt = |refused: &str| {
            let text = format!(
                r#"{{"apiVersion":"muster/v1","kind":"Receipt","epoch":1,"through":9,"missing":[[4,6]]{refused}}}"#
            );
            decode::parse::<Receipt>(text.as_bytes())
        };
        let named = receipt(r#","refused":[{"ranges":[[5,6]],"reason":"quarantineFull"}]"#).unwrap();
        assert_eq!(
            (named.all_refused(), named.covers(5), named.covers(7)),
            (SeqRanges::span(5, 6), false, true)
        );
        assert!(receipt(r#","refused":[{"ranges":[[5,7]],"reason":"quarantineFull"}]"#).is_err());
        let none = receipt("").unwrap();
        assert!(
            none.refused.is_empty() && !decode::to_bytes(&none).windows(7).any(|word| word == b"refused")
        );
    }

    #[test]
    fn a_reader_that_does_not_know_refused_sees_the_numbers_as_missing() {
        /// As agents knew it before.
        #[derive(Deserialize)]
        struct OlderReceipt {
            through: u64,
            missing: SeqRanges,
        }
        let text = r#"{"apiVersion":"muster/v1","kind":"Receipt","epoch":1,"through":9,"missing":[[4,6]],
            "refused":[{"ranges":[[5,6]],"reason":"quarantineFull"}]}"#;
        let older: OlderReceipt = serde_json::from_str(text).unwrap();
        let newer: Receipt = decode::parse(text.as_bytes()).unwrap();
        assert_eq!((older.through, older.missing), (newer.through, newer.missing));
    }
}
