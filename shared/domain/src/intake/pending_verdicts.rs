//! Verdicts on reports in QUARANTINE that LEDGER does not have yet, and decisions that the caller has not taken yet.

use std::collections::VecDeque;

use muster_contract::quarantine::{QuarantineDecision, QuarantineVerdict, RejectedReport};
use muster_contract::{DeviceKey, Epoch, RequestedBy, Seq};

/// The decision about a report in QUARANTINE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The report's sequence in QUARANTINE.
    pub quarantine_seq: u64,
    /// The verdict, which LEDGER has; or the reason why the report stays, in words for a person.
    pub result: Result<QuarantineDecision, String>,
}

/// A report in QUARANTINE that a verdict is about.
#[derive(Debug, Clone, Copy)]
pub struct QuarantinedReport<'a> {
    /// The sender; `None` if its name is no identifier.
    pub key: Option<&'a DeviceKey>,
    /// The report.
    pub report: &'a RejectedReport,
    /// Its sequence in QUARANTINE.
    pub quarantine_seq: u64,
}

/// Why a verdict is requested.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerdictRequest {
    /// The reason in the words of the requester.
    pub reason: Option<String>,
    /// The requester, if the server proves it.
    pub requested_by: Option<RequestedBy>,
}

/// The verdicts and decisions of a partition.
#[derive(Debug, Default)]
pub(super) struct PendingVerdicts {
    pub(super) admitted: VecDeque<AdmittedRequeue>,
    pub(super) published: VecDeque<PublishedVerdict>,
    pub(super) decisions: VecDeque<Decision>,
}

/// A requeued report whose number LEDGER has, or will have once it stores the fact in flight.
#[derive(Debug)]
pub(super) struct AdmittedRequeue {
    /// The last publication that can be the report's fact, counted in the life of the intake.
    pub(super) through: u64,
    pub(super) key: DeviceKey,
    pub(super) number: (Epoch, Seq),
    pub(super) verdict: QuarantineVerdict,
    /// Why LEDGER refused the fact, in the server's words.
    pub(super) refused: Option<String>,
}

/// A verdict in flight.
#[derive(Debug)]
pub(super) struct PublishedVerdict {
    /// The publication that it is, counted in the life of the intake.
    pub(super) publication: u64,
    pub(super) quarantine_seq: u64,
    pub(super) verdict: QuarantineDecision,
}

impl PendingVerdicts {
    /// Records that LEDGER will never store the fact of a device's number; true if it is the fact of a requeued report.
    pub(super) fn refuse(&mut self, key: Option<&DeviceKey>, number: (Epoch, Seq), answer: &str) -> bool {
        let mut is_requeue = false;
        for admitted in &mut self.admitted {
            if Some(&admitted.key) == key && admitted.number == number {
                admitted.refused = Some(answer.to_owned());
                is_requeue = true;
            }
        }
        is_requeue
    }

    /// Decides that a report stays in QUARANTINE.
    pub(super) fn keep(&mut self, quarantine_seq: u64, reason: String) {
        self.decisions.push_back(Decision { quarantine_seq, result: Err(reason) });
    }
}
