//! Verdicts on reports in QUARANTINE: a requeue evaluates a report again, a drop gives it up, an expiry records that it is too
//! old. LEDGER has the verdict before QUARANTINE loses the payload, and the accepted report before the verdict: LEDGER may refuse
//! the report's fact for ever, and then the payload is all that is left of it.
//!
//! A requeue evaluates the report by the same rules as when it came, as of when it came, and does not count as a contact of its
//! device. If the report is accepted, its number changes from quarantined to received, in every account. Otherwise nothing
//! changes. A dropped number stays counted as quarantined, so the account explains it for ever. Either way the report leaves
//! nothing uncertain any more.
//!
//! The caller removes payloads from QUARANTINE; this module does not.

use muster_contract::fact::Fact;
use muster_contract::quarantine::{QuarantineDecision, QuarantineVerdict, RejectedReport};
use muster_contract::report::Report;
use muster_contract::subjects::LedgerSubject;
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{DeviceKey, Epoch, Seq, SeqRanges, Timestamp};

use super::admit::check_rules;
use super::message::{IncomingMessage, Outcome};
use super::pending_verdicts::{
    AdmittedRequeue, Decision, PublishedVerdict, QuarantinedReport, VerdictRequest,
};
use super::state::{IntakeState, UNNAMED};
use super::{content, ids};

impl IntakeState {
    /// Evaluates a rejected report again. [`IntakeState::next_decision`] returns the result.
    pub fn requeue(&mut self, held: QuarantinedReport<'_>, request: VerdictRequest, now: Timestamp) {
        self.now = now;
        let QuarantinedReport { key, report, quarantine_seq } = held;
        let Some(key) = key else {
            let reason = "the name of its sender is no identifier: let the device send under a valid name";
            return self.verdicts.keep(quarantine_seq, reason.to_owned());
        };
        let Some(payload) = report.payload() else {
            let reason = "its payload in QUARANTINE is no base64: drop it";
            return self.verdicts.keep(quarantine_seq, reason.to_owned());
        };
        self.requeue_rejection = Some(String::new());
        let admission = self.evaluate_again(key, report, &payload);
        match (admission, self.requeue_rejection.take()) {
            (Ok((Outcome::Repeated, _)), reason) => {
                self.verdicts.keep(quarantine_seq, reason.unwrap_or_default());
            }
            (Ok((outcome, number)), _) => {
                let verdict = match outcome {
                    Outcome::Duplicate => QuarantineDecision::AlreadyIn,
                    _ => QuarantineDecision::LetIn,
                };
                self.verdicts.admitted.push_back(AdmittedRequeue {
                    // The fact that a duplicate repeats may still be in flight.
                    through: self.published_count,
                    key: key.clone(),
                    number,
                    verdict: new_verdict(held, verdict, request, now),
                    refused: None,
                });
                self.publish_verdicts();
            }
            (Err(reason), _) => self.verdicts.keep(quarantine_seq, reason),
        }
    }

    /// Records that QUARANTINE held a rejected report as long as it may. The report stays a reason for uncertainty.
    pub fn expire_rejected(&mut self, held: QuarantinedReport<'_>, now: Timestamp) {
        self.now = now;
        self.publish_verdict(
            held.key,
            new_verdict(held, QuarantineDecision::Expired, VerdictRequest::default(), now),
        );
    }

    /// Gives up a rejected report: it leaves nothing uncertain any more.
    pub fn drop_rejected(&mut self, held: QuarantinedReport<'_>, request: VerdictRequest, now: Timestamp) {
        self.now = now;
        self.publish_verdict(held.key, new_verdict(held, QuarantineDecision::Dropped, request, now));
    }

    /// The next decision about a report in QUARANTINE. If it is a verdict, QUARANTINE may lose the report.
    pub fn next_decision(&mut self) -> Option<Decision> {
        if let Some(decision) = self.verdicts.decisions.pop_front() {
            return Some(decision);
        }
        let confirmed = self.confirmed_count;
        let is_confirmed = |published: &mut PublishedVerdict| published.publication <= confirmed;
        let PublishedVerdict { quarantine_seq, verdict, .. } =
            self.verdicts.published.pop_front_if(is_confirmed)?;
        Some(Decision { quarantine_seq, result: Ok(verdict) })
    }

    /// Publishes the verdicts on requeued reports whose facts LEDGER has.
    pub(super) fn publish_verdicts(&mut self) {
        let confirmed = self.confirmed_count;
        let is_confirmed = |admitted: &mut AdmittedRequeue| admitted.through <= confirmed;
        while let Some(admitted) = self.verdicts.admitted.pop_front_if(is_confirmed) {
            let AdmittedRequeue { key, number: (epoch, seq), verdict, refused, .. } = admitted;
            let index = self.index(&key);
            let is_received = self.devices[index].confirmed().account.is_received(epoch, seq);
            if is_received && refused.is_none() {
                self.publish_verdict(Some(&key), verdict);
            } else {
                let answer = refused.unwrap_or_else(|| "the fact did not arrive".to_owned());
                let reason = format!(
                    "LEDGER cannot store its fact: {answer}; allow larger messages (max_msg_size of the stream, max_payload \
                     of the server) and requeue it again, or drop it"
                );
                self.verdicts.keep(verdict.of, reason);
            }
        }
    }

    fn evaluate_again(
        &mut self,
        key: &DeviceKey,
        held: &RejectedReport,
        payload: &[u8],
    ) -> Result<(Outcome, (Epoch, Seq)), String> {
        let report = Report::parse(payload).map_err(|refusal| refusal.to_string())?;
        check_rules(&report).map_err(|reason| reason.to_string())?;
        let number = (report.epoch(), report.seq());
        let index = self.index(key);
        let subject = held.subject.clone();
        let message = IncomingMessage { subject, payload, position: 0, stored_at: held.received_at };
        let content = content::of_report(&report);
        let outcome = self.admit(index, key, report, &message);
        let state = self.devices[index].latest();
        let is_other = state.account.content_of(number.0, number.1) != Some(content);
        if outcome == Outcome::Duplicate && is_other && state.has_fork_of(number.0, number.1) {
            let (epoch, seq) = number;
            return Err(format!(
                "number {seq} of epoch {epoch} came with two contents, and the other one counts: drop this report"
            ));
        }
        Ok((outcome, number))
    }

    fn publish_verdict(&mut self, key: Option<&DeviceKey>, fact: QuarantineVerdict) {
        let index = key.map_or(UNNAMED, |key| self.index(key));
        let (quarantine_seq, verdict) = (fact.of, fact.verdict);
        let id = ids::verdict(key, quarantine_seq, verdict);
        self.publish(index, LedgerSubject::Verdict(key.cloned()), Fact::Verdict(fact), Some(id));
        let publication = self.published_count;
        self.verdicts.published.push_back(PublishedVerdict { publication, quarantine_seq, verdict });
    }
}

fn new_verdict(
    held: QuarantinedReport<'_>,
    verdict: QuarantineDecision,
    request: VerdictRequest,
    at: Timestamp,
) -> QuarantineVerdict {
    QuarantineVerdict {
        api_version: ApiVersion::V1,
        kind: kind::QuarantineVerdict::QuarantineVerdict,
        of: held.quarantine_seq,
        verdict,
        epoch: held.report.epoch,
        seq: held.report.seq,
        other_seqs: SeqRanges::new(),
        received_at: Some(held.report.received_at),
        reason: request.reason,
        requested_by: request.requested_by,
        at,
    }
}
