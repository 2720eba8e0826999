//! QUARANTINE in the model: it stores reports while it has room, answers or not, and loses a report only after a verdict.

use muster_contract::decode;
use muster_contract::quarantine::QuarantineVerdict;

use super::*;

impl World {
    pub(super) fn store(&mut self) {
        let Some(rejection) = self.storing.pop_front() else { return };
        let answer = self.put_into_quarantine(&rejection);
        self.intake.apply_store_answer(rejection.ticket, answer, self.now);
        self.send();
        self.acknowledge_settled();
    }

    pub(super) fn fail_to_store(&mut self, is_stored: bool) {
        let Some(rejection) = self.storing.pop_front() else { return };
        if is_stored {
            let _ = self.put_into_quarantine(&rejection);
        }
        self.intake.apply_store_answer(rejection.ticket, Err(NotStored::Unavailable), self.now);
        self.send();
        self.acknowledge_settled();
    }

    pub(super) fn put_into_quarantine(&mut self, rejection: &Rejection) -> Result<(), NotStored> {
        let key = rejection.device.clone().unwrap();
        let of_device = self.quarantine.values().filter(|(other, _)| *other == key).count();
        if !self.quarantine.contains_key(&rejection.id) && of_device >= self.room {
            return Err(NotStored::Full);
        }
        let report = decode::parse(&rejection.payload).unwrap();
        self.quarantine.insert(rejection.id.clone(), (key, report));
        Ok(())
    }

    pub(super) fn drop_one(&mut self) {
        if let Some((key, held)) = self.quarantine.values().next().cloned() {
            self.intake.drop_rejected(quarantined(Some(&key), &held, 1), VerdictRequest::default(), self.now);
        }
    }

    /// The numbers of the reports that a verdict in LEDGER says were dropped.
    pub(super) fn dropped(&self) -> BTreeSet<(DeviceKey, Epoch, Seq)> {
        let number = |stored: &StoredFact| match (&stored.fact, stored.subject.device()) {
            (Fact::Verdict(QuarantineVerdict { epoch: Some(epoch), seq: Some(seq), .. }), Some(key)) => {
                Some((key.clone(), *epoch, *seq))
            }
            _ => None,
        };
        self.ledger.iter().filter_map(number).collect()
    }

    pub(super) fn remove_dropped(&mut self) {
        let dropped = self.dropped();
        self.quarantine.retain(|_, held| number_of(held).is_none_or(|number| !dropped.contains(&number)));
    }

    /// A number that is quarantined in LEDGER has its payload in QUARANTINE, was dropped on record, or is counted as not kept.
    pub(super) fn check_quarantined_payloads_are_kept(&self) {
        let mut known = self.dropped();
        known.extend(self.quarantine.values().filter_map(number_of));
        for stored in &self.ledger {
            let (Fact::Quarantine(fact), Some(key)) = (&stored.fact, stored.subject.device()) else {
                continue;
            };
            let Some((epoch, seqs)) = fact.numbers() else { continue };
            let numbers = seqs.iter().flat_map(|(from, to)| from..=to);
            let is_gone = |number: &u64| !known.contains(&(key.clone(), epoch, seq(*number)));
            let gone = numbers.filter(is_gone).count() as u64;
            assert!(gone <= fact.not_kept, "{gone} payloads are gone: {fact:?}");
        }
    }

    /// The device sends again the reports that no receipt covers.
    pub(super) fn send_again(&mut self) {
        let held = self.held();
        let again: BTreeSet<_> =
            self.uplink.iter().copied().filter(|message| !held.contains(message)).collect();
        self.uplink.extend(again);
    }
}

fn number_of((key, held): &(DeviceKey, RejectedReport)) -> Option<(DeviceKey, Epoch, Seq)> {
    let (epoch, seq) = held.epoch.zip(held.seq)?;
    Some((key.clone(), epoch, seq))
}
