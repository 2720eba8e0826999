//! Rejected reports that QUARANTINE has not stored: those that wait for its answer, and the numbers that it had no room for.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::decode;
use muster_contract::quarantine::RejectedReport;
use muster_contract::receipt::{Receipt, RefusedNumbers};
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{DeviceKey, Epoch, Seq, SeqRanges, Timestamp};

use super::content::Contents;
use super::message::MessageSample;
use super::reject_reason::RejectReason;
use crate::lease::elapsed;

/// Time for which no further report of a device is sent to QUARANTINE after QUARANTINE had no room for one of it.
pub(super) const FULL_PAUSE: Duration = Duration::from_secs(10);
/// Time for which no report of a partition is sent to QUARANTINE after QUARANTINE did not answer, or refused for another reason.
/// Otherwise each report would wait for an answer in vain, and the good reports behind it with it.
pub(super) const UNAVAILABLE_PAUSE: Duration = Duration::from_secs(10);
/// Most ranges of refused numbers that the intake remembers for one device and reason. Receipts list further numbers as
/// missing only.
const REFUSED_RANGES_MAX: usize = 256;

const _: () = {
    assert!(NotStored::ALL.len() <= muster_contract::limits::REFUSAL_REASONS_MAX);
    assert!(
        NotStored::ALL.len() * REFUSED_RANGES_MAX <= muster_contract::limits::RECEIPT_RANGES_MAX,
        "a receipt with every range fits into a message"
    );
};

/// A report to be stored in QUARANTINE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Identifies the report in `IntakeState::apply_store_answer`.
    pub ticket: u64,
    /// The sender; `None` if its name is no identifier.
    pub device: Option<DeviceKey>,
    /// Its message id, the same whenever the same report is stored.
    pub id: String,
    /// QUARANTINE may have had the report before. If it recognises the id but has no report, a verdict has removed the report, which
    /// is then not stored again.
    pub may_be_kept: bool,
    /// The serialised [`RejectedReport`].
    pub payload: Vec<u8>,
}

/// Why QUARANTINE did not store a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NotStored {
    /// It holds as much as it may, of this device or of all devices.
    Full,
    /// It did not answer, or refused for another reason.
    Unavailable,
}

impl NotStored {
    /// All reasons.
    pub const ALL: [Self; 2] = [Self::Full, Self::Unavailable];

    /// The reason as a receipt names it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "quarantineFull",
            Self::Unavailable => "quarantineUnavailable",
        }
    }
}

/// A rejected report until its outcome is known.
#[derive(Debug)]
pub(super) struct RejectedMessage {
    pub(super) index: usize,
    /// The message of UPLINK, counted as in `IntakeState::current_message`.
    pub(super) cause: Option<u64>,
    pub(super) reason: RejectReason,
    pub(super) epoch: Option<Epoch>,
    pub(super) seq: Option<Seq>,
    /// Digest of its content, if it could be read.
    pub(super) content: Option<Digest>,
    /// The digests by which the message can be recognised.
    pub(super) contents: Contents,
    /// Its number is quarantined, with this content or another one: the message is stored without a further fact.
    pub(super) may_be_kept: bool,
    pub(super) sample: MessageSample,
    pub(super) id: String,
    /// Empty once the caller has taken the report.
    pub(super) payload: Vec<u8>,
}

impl RejectedMessage {
    /// The document for QUARANTINE. It takes the payload, which is not needed again.
    pub(super) fn build_document(&mut self) -> Vec<u8> {
        let payload = std::mem::take(&mut self.payload);
        decode::to_bytes(&RejectedReport {
            api_version: ApiVersion::V1,
            kind: kind::RejectedReport::RejectedReport,
            code: self.reason.code(),
            reason: self.reason.text(),
            epoch: self.epoch,
            seq: self.seq,
            subject: self.sample.subject.clone(),
            received_at: self.sample.stored_at,
            payload_base64: RejectedReport::encode_payload(&payload),
        })
    }
}

/// Reports that wait for QUARANTINE.
#[derive(Debug, Default)]
pub(super) struct PendingRejections {
    /// Tickets of reports that the caller has not taken yet.
    pub(super) queued: VecDeque<u64>,
    /// Reports that QUARANTINE has not answered yet, by ticket.
    pub(super) pending: BTreeMap<u64, RejectedMessage>,
    pub(super) ids: HashSet<String>,
    pub(super) last_ticket: u64,
    pub(super) unavailable_at: Option<Timestamp>,
}

impl PendingRejections {
    pub(super) fn is_unavailable(&self, now: Timestamp) -> bool {
        is_pausing(self.unavailable_at, UNAVAILABLE_PAUSE, now)
    }

    pub(super) fn push(&mut self, rejected: RejectedMessage) {
        self.last_ticket += 1;
        self.queued.push_back(self.last_ticket);
        self.ids.insert(rejected.id.clone());
        self.pending.insert(self.last_ticket, rejected);
    }

    pub(super) fn remove(&mut self, ticket: u64) -> Option<RejectedMessage> {
        let rejected = self.pending.remove(&ticket)?;
        self.ids.remove(&rejected.id);
        Some(rejected)
    }

    /// Forgets the reports. Tickets go on, so that a late answer matches none.
    pub(super) fn clear(&mut self) {
        *self =
            Self { last_ticket: self.last_ticket, unavailable_at: self.unavailable_at, ..Self::default() };
    }
}

/// Numbers of one device that QUARANTINE had no room for, in the newest epoch with such numbers. The device keeps the reports.
#[derive(Debug, Clone, Default)]
pub(super) struct RefusedSeqs {
    pub(super) epoch: Option<Epoch>,
    by_reason: BTreeMap<NotStored, SeqRanges>,
    full_at: Option<Timestamp>,
}

impl RefusedSeqs {
    /// Adds a number; false if it is known for this reason, is of an older epoch, or would make too many ranges.
    pub(super) fn insert(&mut self, epoch: Epoch, seq: Seq, reason: NotStored) -> bool {
        if self.epoch.is_some_and(|known| known > epoch) {
            return false;
        }
        if self.epoch.replace(epoch) != Some(epoch) {
            self.by_reason.clear();
        }
        for (_, ranges) in self.by_reason.iter_mut().filter(|(other, _)| **other != reason) {
            ranges.remove_span(seq.get(), seq.get());
        }
        let ranges = self.by_reason.entry(reason).or_default();
        let is_new = ranges.insert(seq.get());
        if ranges.len() > REFUSED_RANGES_MAX {
            ranges.remove_span(seq.get(), seq.get());
            return false;
        }
        is_new
    }

    /// Refused numbers of all reasons.
    pub(super) fn count(&self) -> u64 {
        self.by_reason.values().map(SeqRanges::count).sum()
    }

    /// The highest number of an epoch up to `through`; 0 if there is none.
    pub(super) fn max_through(&self, epoch: Option<Epoch>, through: u64) -> u64 {
        let is_own = self.epoch.is_some() && self.epoch == epoch;
        let max = |ranges: &SeqRanges| ranges.max_through(through);
        self.by_reason.values().filter(|_| is_own).filter_map(max).max().unwrap_or(0)
    }

    /// Begins the pause after QUARANTINE had no room, unless it lasts already.
    pub(super) fn set_full(&mut self, now: Timestamp) {
        if !self.is_full(now) {
            self.full_at = Some(now);
        }
    }

    pub(super) fn is_full(&self, now: Timestamp) -> bool {
        is_pausing(self.full_at, FULL_PAUSE, now)
    }

    /// The refused numbers among those that a receipt lists as missing.
    pub(super) fn refused_in(&self, receipt: &Receipt) -> Vec<RefusedNumbers> {
        if self.epoch == Some(receipt.epoch) { self.within(&receipt.missing) } else { Vec::new() }
    }

    /// The refused numbers among some numbers, by reason.
    pub(super) fn within(&self, numbers: &SeqRanges) -> Vec<RefusedNumbers> {
        let common = |ranges: &SeqRanges| {
            let mut common = SeqRanges::new();
            numbers.iter().for_each(|(from, to)| _ = common.extend(&ranges.within(from, to)));
            common
        };
        let by_reason = self.by_reason.iter().map(|(reason, ranges)| (reason, common(ranges)));
        by_reason
            .filter(|(_, ranges)| !ranges.is_empty())
            .map(|(reason, ranges)| RefusedNumbers { ranges, reason: reason.as_str().to_owned() })
            .collect()
    }
}

/// Whether a pause that began at `began_at` still lasts.
fn is_pausing(began_at: Option<Timestamp>, pause: Duration, now: Timestamp) -> bool {
    began_at.is_some_and(|at| at <= now && elapsed(at, now) < pause)
}
