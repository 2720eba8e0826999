//! Points of a ledger: the fold up to one, and the event-time fold of one.

use muster_contract::Timestamp;
use muster_contract::history;
use muster_domain::fold::{EventTimeFold, Fleet};

use crate::ledger::{Ledger, position, stored_at};

/// The fold of the first facts.
pub(crate) fn up_to(ledger: &Ledger, count: usize) -> Fleet {
    Ledger { entries: ledger.entries[..count].to_vec() }.fold()
}

/// The state at a moment as known at the end of a ledger.
pub(crate) fn at_event_time(ledger: &Ledger, moment: Timestamp) -> (Fleet, history::EventTimeCertainty) {
    let then = (1..=ledger.entries.len()).take_while(|seq| stored_at(*seq as u64) <= moment).count();
    let mut event_time = EventTimeFold::of(up_to(ledger, then), moment);
    for (at, entry) in ledger.entries.iter().enumerate().skip(then) {
        event_time.apply(position(at), &entry.subject, entry.fact.clone());
    }
    event_time.finish()
}
