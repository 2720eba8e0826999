//! A second look at what is in quarantine: a person has mended something, or has decided that nobody needs it.
//!
//! It is judged by the same rules as when it came, as of when it came, and nothing of it says that its device is alive. If
//! it is let in, its number changes from quarantined to received, wherever the account is kept. If not, nothing changes.
//! What was dropped stays counted as quarantined: the account explains every number for ever. Either way the message leaves
//! nothing in doubt any more.

use muster_contract::fact::{Fact, QuarantineFact};
use muster_contract::quarantine::{QuarantineVerdict, Verdict};
use muster_contract::report::Report;
use muster_contract::subjects::LedgerSubject;
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{DeviceKey, RequestedBy, SeqRanges, Timestamp};

use super::admit::{Outcome, ruled};
use super::refuse::Evidence;
use super::{Border, NOBODY, ids};

/// What the second look says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judged {
    /// It is on its way to LEDGER, with this verdict.
    Settled(Verdict),
    /// It stays, for this reason.
    Stays(String),
}

/// Why a message is looked at again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Because {
    /// In the words of the requester.
    pub reason: Option<String>,
    /// Who asked, where that is proven.
    pub requested_by: Option<RequestedBy>,
}

impl Border {
    /// Judges a message in quarantine again. `of` is the position of its fact in LEDGER.
    pub fn requeue(
        &mut self,
        key: Option<&DeviceKey>,
        held: &QuarantineFact,
        of: u64,
        because: Because,
        now: Timestamp,
    ) -> Judged {
        self.now = now;
        let Some(key) = key else {
            return Judged::Stays(
                "its sender's name is no identifier: let the device send under a valid one".to_owned(),
            );
        };
        let payload = held.payload().unwrap_or_default();
        if (payload.len() as u64) < held.bytes {
            let kept = payload.len();
            let words = format!(
                "only {kept} of its {} bytes are kept: let the device send the report again, or drop it",
                held.bytes
            );
            return Judged::Stays(words);
        }
        self.judging_again = Some(String::new());
        let outcome = self.judge_again(key, held, &payload);
        match (outcome, self.judging_again.take()) {
            (Ok(Outcome::Duplicate), _) => self.settle_held(Some(key), held, of, Verdict::AlreadyIn, because),
            (Ok(Outcome::Repeated | Outcome::Quarantined | Outcome::Summed), words) => {
                Judged::Stays(words.unwrap_or_default())
            }
            (Ok(_), _) => self.settle_held(Some(key), held, of, Verdict::LetIn, because),
            (Err(words), _) => Judged::Stays(words),
        }
    }

    /// Marks a message in quarantine as of no use: it leaves nothing in doubt any more.
    pub fn drop_held(
        &mut self,
        key: Option<&DeviceKey>,
        held: &QuarantineFact,
        of: u64,
        because: Because,
        now: Timestamp,
    ) -> Judged {
        self.now = now;
        self.settle_held(key, held, of, Verdict::Dropped, because)
    }

    fn judge_again(
        &mut self,
        key: &DeviceKey,
        held: &QuarantineFact,
        payload: &[u8],
    ) -> Result<Outcome, String> {
        let report = Report::parse(payload).map_err(|refusal| refusal.to_string())?;
        ruled(&report).map_err(|refused| refused.to_string())?;
        let place = self.place(key);
        let subject = held.subject.clone();
        let evidence = Evidence { subject, payload, position: 0, stored_at: held.received_at };
        Ok(self.admit(place, key, report, &evidence))
    }

    fn settle_held(
        &mut self,
        key: Option<&DeviceKey>,
        held: &QuarantineFact,
        of: u64,
        verdict: Verdict,
        because: Because,
    ) -> Judged {
        let place = key.map_or(NOBODY, |key| self.place(key));
        let fact = QuarantineVerdict {
            api_version: ApiVersion::V1,
            kind: kind::QuarantineVerdict::QuarantineVerdict,
            of,
            verdict,
            epoch: held.epoch,
            seq: held.seq,
            other_seqs: match verdict {
                Verdict::Dropped => held.other_seqs.clone(),
                Verdict::LetIn | Verdict::AlreadyIn => SeqRanges::new(),
            },
            received_at: Some(held.received_at),
            reason: because.reason,
            requested_by: because.requested_by,
            at: self.now,
        };
        let id = ids::verdict(key, of, verdict);
        self.publish(place, LedgerSubject::Verdict(key.cloned()), &Fact::Verdict(fact), Some(id));
        Judged::Settled(verdict)
    }
}
