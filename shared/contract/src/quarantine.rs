//! What becomes of messages in quarantine once a person has looked: the request, the answer, and the fact that stays.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decode::{Document, Violation};
use crate::ids::{Epoch, Seq};
use crate::limits::ERROR_MESSAGE_BYTES_MAX;
use crate::ranges::SeqRanges;
use crate::requested_by::RequestedBy;
use crate::version::{ApiVersion, kind};

/// `muster.verdict.<site>.<device>`: what became of a message in quarantine. It changes no account: a message that was
/// let in is a fact of its own, and one that was dropped stays counted as quarantined. But it ends the doubt that the
/// message cast on what its device is like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuarantineVerdict {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `QuarantineVerdict`
    pub kind: kind::QuarantineVerdict,
    /// The sequence of its `QuarantineFact` in LEDGER.
    pub of: u64,
    /// What became of it.
    pub verdict: Verdict,
    /// The message's epoch, if one could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// The message's number, if one could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// Of a message that was dropped, the numbers of those that its `QuarantineFact` stood for: they are dropped with it.
    #[serde(default, skip_serializing_if = "SeqRanges::is_empty")]
    pub other_seqs: SeqRanges,
    /// When the bus took the message in: what tells messages of one device apart that have no number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_at: Option<Timestamp>,
    /// Why, in the words of whoever asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who asked for it; none where nobody proves who asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<RequestedBy>,
    /// When, by the hub's clock.
    pub at: Timestamp,
}

impl QuarantineVerdict {
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

/// What became of a message in quarantine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// It was judged again and is a fact now.
    LetIn,
    /// It was judged again, and LEDGER held its number already: it came a second time by itself, or was let in before.
    AlreadyIn,
    /// A person decided that nobody needs it.
    Dropped,
}

/// What to do with a message in quarantine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum QuarantineAction {
    /// Judge it again, after whatever was in its way has been mended.
    Requeue,
    /// Mark it as of no use.
    Drop,
}

/// Request of `muster.ingest.quarantine.<partition>`. To ask twice does no harm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuarantineRequest {
    /// What to do.
    pub action: QuarantineAction,
    /// The message: the sequence of its `QuarantineFact` in LEDGER.
    pub ledger_seq: u64,
    /// Why, for the record; at most 4 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl QuarantineRequest {
    /// Checks what a shape cannot say.
    ///
    /// # Errors
    /// The reason is too long.
    pub fn check(&self) -> Result<(), Violation> {
        check_reason(self.reason.as_deref())
    }
}

/// Answer to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuarantineAnswer {
    /// The message asked for.
    pub ledger_seq: u64,
    /// What became of it; nothing where it stays in quarantine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Why it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
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
