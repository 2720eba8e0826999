//! Tracks how far LEDGER is read, and the newest pulse and hearing fact of each partition. The consumer writes
//! it, the monitor reads it.
//!
//! The fold's `asOf` is the last fact; it stays behind this position where pulses follow, which LEDGER keeps
//! for a short time only.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_contract::Timestamp;
use muster_contract::fact::{Hearing, HearingFact, PulseFact};
use tokio::sync::watch;

/// A pulse that LEDGER stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenPulse {
    /// When LEDGER stored it.
    pub stored_at: Timestamp,
    /// The pulse.
    pub pulse: PulseFact,
}

impl SeenPulse {
    /// Since when no pulse of the partition was current.
    pub fn unproven_since(&self) -> Option<Timestamp> {
        self.pulse.unproven_since(self.stored_at)
    }
}

/// The newest hearing fact of a partition in LEDGER.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenHearing {
    /// Its LEDGER sequence.
    pub ledger_seq: u64,
    /// The fact.
    pub fact: HearingFact,
}

/// How far LEDGER is read.
#[derive(Debug)]
pub struct LedgerProgress {
    read_through: watch::Sender<u64>,
    inner: Mutex<ProgressInner>,
}

#[derive(Debug, Default)]
struct ProgressInner {
    /// LEDGER's last sequence, as far as the monitor knows.
    ledger_end: u64,
    pulses: BTreeMap<u16, SeenPulse>,
    /// When LEDGER stored the oldest record of an owner of a partition without a pulse.
    owned_since: BTreeMap<u16, Timestamp>,
    hearing: BTreeMap<u16, SeenHearing>,
}

impl LedgerProgress {
    /// LEDGER is read through this position.
    pub fn new(read_through: u64) -> Self {
        Self { read_through: watch::Sender::new(read_through), inner: Mutex::default() }
    }

    /// Every message that LEDGER holds through this position is read.
    pub fn read_through(&self) -> u64 {
        *self.read_through.borrow()
    }

    /// Follows [`Self::read_through`].
    pub fn follow(&self) -> watch::Receiver<u64> {
        self.read_through.subscribe()
    }

    /// Everything through a position is read.
    pub fn advance(&self, through: u64) {
        self.read_through.send_if_modified(|known| {
            let is_news = through > *known;
            *known = through.max(*known);
            is_news
        });
    }

    /// LEDGER ends here, as far as the monitor knows.
    pub(crate) fn set_ledger_end(&self, last_seq: u64) {
        let mut inner = self.inner();
        inner.ledger_end = inner.ledger_end.max(last_seq);
    }

    /// True where LEDGER is known to go further than what is read.
    pub fn is_behind(&self) -> bool {
        self.inner().ledger_end > self.read_through()
    }

    /// Records a pulse, unless a newer one of the partition is known.
    pub fn pulse(&self, partition: u16, seen: SeenPulse) {
        let mut inner = self.inner();
        match inner.pulses.get_mut(&partition) {
            Some(known) if known.stored_at > seen.stored_at => {}
            Some(known) => *known = seen,
            None => _ = inner.pulses.insert(partition, seen),
        }
    }

    /// The newest pulse of a partition.
    pub fn newest(&self, partition: u16) -> Option<SeenPulse> {
        self.inner().pulses.get(&partition).cloned()
    }

    /// Records when LEDGER stored the oldest owner record of a partition without a pulse.
    pub(crate) fn owned_without_pulse(&self, partition: u16, since: Timestamp) {
        self.inner().owned_since.insert(partition, since);
    }

    /// The time that [`Self::owned_without_pulse`] recorded.
    pub fn owned_since(&self, partition: u16) -> Option<Timestamp> {
        self.inner().owned_since.get(&partition).copied()
    }

    /// Records a hearing fact, unless a newer one of the partition is known.
    pub fn hearing(&self, partition: u16, seen: SeenHearing) {
        let mut inner = self.inner();
        match inner.hearing.get_mut(&partition) {
            Some(known) if known.ledger_seq > seen.ledger_seq => {}
            Some(known) => *known = seen,
            None => _ = inner.hearing.insert(partition, seen),
        }
    }

    /// Since when LEDGER says that the hub does not hear a partition; `None` where the hub hears it.
    pub fn stopped_since(&self, partition: u16) -> Option<Timestamp> {
        let inner = self.inner();
        let known = inner.hearing.get(&partition)?;
        (known.fact.state == Hearing::Stopped).then_some(known.fact.since)
    }

    /// Nothing is read: LEDGER is another one.
    pub(crate) fn start_over(&self) {
        *self.inner() = ProgressInner::default();
        self.read_through.send_replace(0);
    }

    /// The value is consistent at any moment, so a panic elsewhere leaves no partial update.
    fn inner(&self) -> MutexGuard<'_, ProgressInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::version::{ApiVersion, kind};

    use super::*;

    fn pulse(second: i64) -> SeenPulse {
        let at = Timestamp::from_second(second).unwrap();
        let pulse = PulseFact {
            api_version: ApiVersion::V1,
            kind: kind::PulseFact::PulseFact,
            owner: "hub/1/a".to_owned(),
            at,
            lease_seconds: 90,
            current: true,
            unproven_since: None,
        };
        SeenPulse { stored_at: at, pulse }
    }

    #[test]
    fn the_newest_hearing_fact_of_a_partition_wins_in_any_order() {
        let progress = LedgerProgress::new(0);
        let said = |ledger_seq, state| {
            let since = Timestamp::from_second(100).unwrap();
            let (api_version, kind) = (ApiVersion::V1, kind::HearingFact::HearingFact);
            SeenHearing {
                ledger_seq,
                fact: HearingFact { api_version, kind, state, since, reasserted: false },
            }
        };
        assert_eq!(progress.stopped_since(3), None);
        progress.hearing(3, said(7, Hearing::Stopped));
        progress.hearing(3, said(5, Hearing::Resumed));
        assert_eq!(progress.stopped_since(3), Timestamp::from_second(100).ok());
        progress.hearing(3, said(9, Hearing::Resumed));
        assert_eq!((progress.stopped_since(3), progress.stopped_since(4)), (None, None));
    }

    #[test]
    fn the_newest_pulse_of_a_partition_is_kept_until_ledger_is_another() {
        let progress = LedgerProgress::new(7);
        for (partition, second) in [(3, 10), (3, 12), (3, 11), (4, 1)] {
            progress.pulse(partition, pulse(second));
        }
        assert_eq!((progress.newest(3), progress.newest(4)), (Some(pulse(12)), Some(pulse(1))));
        progress.advance(9);
        progress.advance(8);
        progress.set_ledger_end(9);
        assert_eq!((progress.read_through(), progress.is_behind()), (9, false));
        progress.set_ledger_end(10);
        assert!(progress.is_behind());
        progress.start_over();
        assert_eq!((progress.read_through(), progress.newest(3), progress.is_behind()), (0, None, false));
    }
}
