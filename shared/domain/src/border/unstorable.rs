//! What LEDGER will never take: a publication that the server refuses for what it is, not for when it came.
//!
//! Nothing of it was stored and nothing else is held up. A report goes to quarantine instead, with the server's words,
//! and counts there; a quarantined message is kept with less of its payload. A fact of the hub's own making (a lease
//! that ran out, an incident) counts as said: to make it again at every look would help nobody.

use muster_contract::canonical::Digest;
use muster_contract::limits::QUARANTINE_PAYLOAD_BYTES_MAX;
use muster_contract::subjects::Origin;

use super::admit::{Arrival, Outcome};
use super::change::Change;
use super::refuse::{Evidence, Refused};
use super::{Border, UnderWay};

/// Bytes of a payload kept once LEDGER has refused to keep more of it.
const KEPT_BYTES_LEAST: usize = 256;
/// Messages that are recorded short at a time: more than can be under way.
pub(super) const KEPT_SHORT_MAX: usize = 1024;

const _: () = assert!(KEPT_BYTES_LEAST < QUARANTINE_PAYLOAD_BYTES_MAX);

/// Not even a short record of the message fits into LEDGER: a person has to change the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("LEDGER does not even take a short record of it")]
pub struct Unrecordable;

impl Border {
    /// Which of the messages that are not settled led to the oldest publication on its way, counted from the oldest;
    /// none where time did.
    pub fn cause_of_oldest(&self) -> Option<usize> {
        let cause = self.in_flight.front()?.cause?;
        usize::try_from(cause.checked_sub(self.settled_count)?).ok()
    }

    /// LEDGER will never take the oldest publication on its way. `cause` is the message that led to it, as it arrived.
    ///
    /// # Errors
    /// It was the record of a refused message, as short as it can be. Then nothing has changed.
    pub fn unstorable(&mut self, words: &str, cause: Option<Arrival<'_>>) -> Result<(), Unrecordable> {
        let Some(oldest) = self.in_flight.front() else { return Ok(()) };
        let is_record = matches!(oldest.change, Change::Quarantined { .. });
        if let Some(cause) = cause.as_ref().filter(|_| is_record) {
            let payload = Digest::of_bytes(cause.payload);
            if self.kept_short.contains(&payload) {
                return Err(Unrecordable);
            }
            self.kept_short.push(payload);
        }
        let at = self.cause_of_oldest();
        let Some(UnderWay { place, change, cause: message }) = self.in_flight.pop_front() else {
            return Ok(());
        };
        self.confirmed_count += 1;
        let left = self.in_flight.iter().filter(|other| other.place == place).map(|other| &other.change);
        self.devices[place].lost(left);
        self.taking = message;
        let instead = match (&change, cause) {
            (
                Change::Received { epoch, seq, .. },
                Some(Arrival { origin, payload, position, stored_at, .. }),
            ) => {
                let Origin { subject, .. } = origin;
                let evidence = Evidence { subject, payload, position, stored_at };
                let refused = Refused::Unstorable { words: words.to_owned() };
                self.refuse(place, &evidence, &refused, Some((*epoch, *seq)))
            }
            (Change::Quarantined { .. }, Some(arrival)) => self.take_in(arrival),
            (change, _) => {
                self.devices[place].amend(|memory| memory.apply(change));
                Outcome::Repeated
            }
        };
        self.taking = None;
        // What took its place must be confirmed before the message is settled, and so before any after it is.
        let needed = self.needed_by(instead);
        at.and_then(|at| self.unsettled.get_mut(at))
            .into_iter()
            .for_each(|needs| *needs = needed.max(*needs));
        Ok(())
    }

    /// Bytes of a refused message that quarantine keeps.
    pub(super) fn kept_bytes_max(&self, payload: &[u8]) -> usize {
        match self.kept_short.contains(&Digest::of_bytes(payload)) {
            true => KEPT_BYTES_LEAST,
            false => QUARANTINE_PAYLOAD_BYTES_MAX,
        }
    }
}
