//! Rejected reports as QUARANTINE holds them, the verdicts on them, and the requests of operators about them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decode::{Document, Violation};
use crate::ids::{DeviceKey, Epoch, Seq};
use crate::limits::{ERROR_MESSAGE_BYTES_MAX, VIEW_MESSAGE_BYTES_MAX};
use crate::ranges::SeqRanges;
use crate::receipt::RefusedNumbers;
use crate::requested_by::RequestedBy;
use crate::state::cut;
use crate::version::{ApiVersion, kind};

/// `muster.verdict.<site>.<device>`: the verdict on a message in quarantine, written before QUARANTINE loses its payload. It
/// changes no account: an accepted message is a fact of its own, and a dropped one stays counted as quarantined. It ends the
/// doubt that the message casts on the state of its device, unless it expired undecided ([`QuarantineDecision::Expired`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuarantineVerdict {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `QuarantineVerdict`
    pub kind: kind::QuarantineVerdict,
    /// Its sequence in QUARANTINE.
    pub of: u64,
    /// The verdict.
    pub verdict: QuarantineDecision,
    /// The message's epoch, if one could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// The message's number, if one could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// Further numbers that are dropped with the message.
    #[serde(default, skip_serializing_if = "SeqRanges::is_empty")]
    pub other_seqs: SeqRanges,
    /// When UPLINK stored the message: it distinguishes messages of one device that have no number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_at: Option<Timestamp>,
    /// The reason, in the words of the requester.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The requester; absent on a hub without accounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<RequestedBy>,
    /// When, by the hub's clock.
    pub at: Timestamp,
}

impl QuarantineVerdict {
    /// True if the message leaves nothing in doubt any more.
    pub fn ends_doubt(&self) -> bool {
        self.verdict != QuarantineDecision::Expired
    }

    /// Every number that it is about, with their epoch; `None` where none could be read.
    pub fn numbers(&self) -> Option<(Epoch, SeqRanges)> {
        numbers(self.epoch, self.seq, &self.other_seqs)
    }
}

/// A message's number and those of others of its epoch; `None` where none could be read.
pub(crate) fn numbers(
    epoch: Option<Epoch>,
    seq: Option<Seq>,
    others: &SeqRanges,
) -> Option<(Epoch, SeqRanges)> {
    let mut numbers = others.clone();
    seq.iter().for_each(|seq| _ = numbers.insert(seq.get()));
    epoch.filter(|_| !numbers.is_empty()).map(|epoch| (epoch, numbers))
}

impl Document for QuarantineVerdict {
    const KIND: &'static str = "QuarantineVerdict";

    fn check(&self) -> Result<(), Violation> {
        check_reason(self.reason.as_deref())
    }
}

/// The verdict on a message in quarantine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum QuarantineDecision {
    /// Ingest accepted it at the second attempt: it is a fact now.
    LetIn,
    /// LEDGER held its number already: the device sent it again, or an earlier requeue accepted it.
    AlreadyIn,
    /// An operator dropped it.
    Dropped,
    /// QUARANTINE held it as long as it may: its payload is gone, and its content stays unknown.
    Expired,
}

/// Why ingest rejected a report, as a code to select by; `reason` has the text for people. A later release may add codes: a reader
/// takes a code that it does not know for `other`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RejectionCode {
    /// The sender's name is no identifier.
    Sender,
    /// It cannot be read, or breaks a rule of its shape: a newer agent's report, for example.
    Unreadable,
    /// Its state is not what its components make it.
    State,
    /// Its number came before with another content.
    Fork,
    /// Its epoch is over.
    OldEpoch,
    /// LEDGER cannot take the fact that it would become.
    TooLarge,
    /// The hub never sent its deployment to the device, or long ago.
    NotSent,
    /// The device has no desired document and reports many deployments.
    Unsolicited,
    /// The device has many deployments beside its document.
    TooManyDeployments,
    /// Another rule, or a code that the reader does not know. Of the former QUARANTINE stores only the reports of an impossible
    /// epoch; the number of any other report stays missing, and its device keeps the report.
    #[serde(other)]
    Other,
}

impl RejectionCode {
    /// All codes.
    pub const ALL: [Self; 10] = [
        Self::Sender,
        Self::Unreadable,
        Self::State,
        Self::Fork,
        Self::OldEpoch,
        Self::TooLarge,
        Self::NotSent,
        Self::Unsolicited,
        Self::TooManyDeployments,
        Self::Other,
    ];

    /// The code as documents have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sender => "sender",
            Self::Unreadable => "unreadable",
            Self::State => "state",
            Self::Fork => "fork",
            Self::OldEpoch => "oldEpoch",
            Self::TooLarge => "tooLarge",
            Self::NotSent => "notSent",
            Self::Unsolicited => "unsolicited",
            Self::TooManyDeployments => "tooManyDeployments",
            Self::Other => "other",
        }
    }
}

/// `muster.rejected.<site>.<device>` in QUARANTINE: a report that ingest rejected, whole. It is stored before its number
/// counts as quarantined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RejectedReport {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `RejectedReport`
    pub kind: kind::RejectedReport,
    /// Why it was rejected.
    pub code: RejectionCode,
    /// The same as a text that a person can act on.
    pub reason: String,
    /// Its epoch, if one could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// Its number, if one could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// The subject it was sent to.
    pub subject: String,
    /// When UPLINK stored it.
    pub received_at: Timestamp,
    /// The whole payload.
    #[schemars(extend("contentEncoding" = "base64"))]
    pub payload_base64: String,
}

impl RejectedReport {
    /// A payload as it is kept.
    pub fn encode_payload(payload: &[u8]) -> String {
        BASE64.encode(payload)
    }

    /// The bytes of the report; `None` where they are not base64.
    pub fn payload(&self) -> Option<Vec<u8>> {
        BASE64.decode(&self.payload_base64).ok()
    }
}

impl Document for RejectedReport {
    const KIND: &'static str = "RejectedReport";

    fn check(&self) -> Result<(), Violation> {
        check_reason(Some(&self.reason))
    }
}

/// The action on rejected reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum QuarantineAction {
    /// List those that QUARANTINE holds, without payloads, in pages. Any partition answers for all.
    List,
    /// Show one with its payload. Any partition answers for all.
    Show,
    /// List the devices of the partition that keep reports because QUARANTINE had no room for them, in pages.
    Refused,
    /// Evaluate one again once its cause is fixed; with `device` instead of a report, ask that device for the reports it keeps.
    Requeue,
    /// Drop one: nobody needs it.
    Drop,
}

/// Request of `muster.ingest.quarantine.<partition>`. To ask twice does no harm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuarantineRequest {
    /// The action.
    pub action: QuarantineAction,
    /// The report: its sequence in QUARANTINE. Of a list, the one after which it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine_seq: Option<u64>,
    /// In a `list`, the only device that it shows; in `refused`, the device after which the page begins; in a `requeue`, the
    /// device that is asked for the reports that it keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceKey>,
    /// Why, for the record; at most 4 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl QuarantineRequest {
    /// A request about the report with this sequence in QUARANTINE.
    pub const fn of(action: QuarantineAction, quarantine_seq: u64) -> Self {
        Self { action, quarantine_seq: Some(quarantine_seq), device: None, reason: None }
    }

    /// Checks what a shape cannot say.
    ///
    /// # Errors
    /// The reason is too long, or it does not say which report is meant.
    pub fn check(&self) -> Result<(), Violation> {
        check_reason(self.reason.as_deref())?;
        let names_one = match self.action {
            QuarantineAction::List | QuarantineAction::Refused => true,
            QuarantineAction::Show | QuarantineAction::Drop => self.quarantine_seq.is_some(),
            QuarantineAction::Requeue => self.quarantine_seq.is_some() != self.device.is_some(),
        };
        if names_one {
            Ok(())
        } else {
            Err(Violation::at("quarantineSeq", "name the report; a requeue may name a device instead"))
        }
    }
}

/// Answer to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuarantineAnswer {
    /// The report that the request named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine_seq: Option<u64>,
    /// The device that the request named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceKey>,
    /// The verdict; absent if the report stays in quarantine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<QuarantineDecision>,
    /// Why it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The number of reports that the device is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<u64>,
    /// The reports of a list, in the order of QUARANTINE; for `show`, the one report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reports: Vec<HeldReport>,
    /// The number of reports that QUARANTINE holds, in a list of all devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// The sequence after which the next page of a list begins; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// Devices that keep reports, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<RefusedDevice>,
    /// The device after which the next page of `devices` begins; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_device: Option<DeviceKey>,
}

/// A report that QUARANTINE holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeldReport {
    /// Its sequence in QUARANTINE.
    pub quarantine_seq: u64,
    /// The sender; absent if its name is no identifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceKey>,
    /// The bytes of its payload.
    pub bytes: u64,
    /// The report; in a list with an empty payload.
    pub report: RejectedReport,
}

impl HeldReport {
    /// As a list shows it: without the payload, and with the beginning of the reason.
    #[must_use]
    pub fn without_payload(mut self) -> Self {
        self.report.payload_base64 = String::new();
        self.report.reason = cut(self.report.reason, VIEW_MESSAGE_BYTES_MAX);
        self
    }
}

/// Numbers of one device that QUARANTINE had no room for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RefusedDevice {
    /// The device.
    pub device: DeviceKey,
    /// The epoch of the numbers.
    pub epoch: Epoch,
    /// The numbers, by reason.
    pub refused: Vec<RefusedNumbers>,
}

fn check_reason(reason: Option<&str>) -> Result<(), Violation> {
    match reason.map(str::len).filter(|length| *length > ERROR_MESSAGE_BYTES_MAX) {
        Some(length) => Err(Violation::at(
            "reason",
            format!("has {length} bytes, over the limit of {ERROR_MESSAGE_BYTES_MAX}"),
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::decode;

    #[test]
    fn a_code_of_a_later_release_is_read_as_other() {
        let with_code = |code: &str| {
            json!({
                "apiVersion": "muster/v1", "kind": "RejectedReport", "code": code, "reason": "a new rule",
                "subject": "muster.report.3.plant7.press-4", "receivedAt": "2026-01-01T00:00:00Z",
                "payloadBase64": "",
            })
        };
        let parsed = |code: &str| decode::parse::<RejectedReport>(with_code(code).to_string().as_bytes());
        assert_eq!(parsed("tooColourful").unwrap().code, RejectionCode::Other);
        assert_eq!(parsed("tooColourful").unwrap().reason, "a new rule");
        for code in RejectionCode::ALL {
            assert_eq!(parsed(code.as_str()).unwrap().code, code);
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}
