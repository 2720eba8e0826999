//! Finds the fact for a time: the last one that LEDGER stored at or before it, by the bus's own timestamps.
//!
//! It is a binary search with a few direct reads. LEDGER discards its beginning, and pulses anywhere: a
//! sequence without a message stands for the next message. If the bus's clock was once set back, two sequences
//! qualify, and the search returns one of them.

use muster_bus::{Bus, ReadError};
use muster_contract::Timestamp;
use muster_contract::subjects::stream;

/// The fact for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FactAtTime {
    /// This fact of LEDGER; 0 where the time is before the first ever.
    Fact(u64),
    /// A fact that LEDGER no longer holds: the first it holds was stored later.
    Gone {
        /// The first sequence held.
        first_seq: u64,
        /// When it was stored; none where LEDGER holds nothing.
        first_at: Option<Timestamp>,
    },
}

/// The last fact that LEDGER stored at or before a time.
///
/// # Errors
/// LEDGER cannot be read.
pub(crate) async fn last_fact(bus: &Bus, time: Timestamp) -> Result<FactAtTime, ReadError> {
    let ledger = bus.stream_state(stream::LEDGER).await?;
    let mut search = Search::within(ledger.first_seq, ledger.last_seq, time);
    while let Some(seq) = search.next() {
        let next = bus.from(stream::LEDGER, seq).await?;
        search.goes_on_with(seq, next.map(|message| (message.stream_seq, message.stored_at)));
    }
    match search.found {
        Some(seq) => Ok(FactAtTime::Fact(seq)),
        None if ledger.first_seq <= 1 => Ok(FactAtTime::Fact(0)),
        None => {
            let first_seq = ledger.first_seq;
            let first_at = bus.from(stream::LEDGER, first_seq).await?.map(|message| message.stored_at);
            Ok(FactAtTime::Gone { first_seq, first_at })
        }
    }
}

/// Halves what LEDGER holds until the fact is found.
#[derive(Debug)]
struct Search {
    time: Timestamp,
    low: u64,
    high: u64,
    found: Option<u64>,
}

impl Search {
    const fn within(first: u64, last: u64, time: Timestamp) -> Self {
        Self { time, low: first, high: last + 1, found: None }
    }

    /// The next sequence to read; none when the search is over.
    const fn next(&self) -> Option<u64> {
        if self.low < self.high { Some(self.low + (self.high - self.low) / 2) } else { None }
    }

    /// The first message at or after that sequence, and when it was stored; none where LEDGER ends before.
    fn goes_on_with(&mut self, asked: u64, next: Option<(u64, Timestamp)>) {
        match next {
            Some((seq, at)) if at <= self.time => {
                self.found = Some(seq);
                self.low = seq + 1;
            }
            _ => self.high = asked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LEDGER with one message a second but for the sixth, which came with the fifth; those before `held` are gone, the
    /// first of them while the search is on, and so are those between that `gone` names.
    fn found_of(held: u64, last: u64, second: i64, gone: impl Fn(u64) -> bool) -> Option<u64> {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut search = Search::within(held.saturating_sub(1).max(1), last, at(second));
        let mut reads = 0;
        while let Some(seq) = search.next() {
            reads += 1;
            let next = (seq.max(held)..=last).find(|seq| !gone(*seq));
            search.goes_on_with(seq, next.map(|seq| (seq, at(if seq == 6 { 5 } else { seq as i64 }))));
        }
        assert!(reads <= 12, "{reads} reads");
        search.found
    }

    fn found(held: u64, last: u64, second: i64) -> Option<u64> {
        found_of(held, last, second, |_| false)
    }

    #[test]
    fn pulses_that_ledger_has_forgotten_lead_to_no_other_fact() {
        let pulses = |seq: u64| seq > 4 && !seq.is_multiple_of(100);
        for (second, seq) in
            [(1, 1), (4, 4), (50, 4), (99, 4), (100, 100), (199, 100), (1000, 1000), (1040, 1000)]
        {
            assert_eq!(found_of(1, 1050, second, pulses), Some(seq), "second {second}");
        }
    }

    #[test]
    fn a_time_stands_for_the_last_fact_stored_at_or_before_it() {
        for (second, seq) in [(1, 1), (4, 4), (5, 6), (6, 6), (7, 7), (1000, 1000), (5000, 1000)] {
            assert_eq!(found(1, 1000, second), Some(seq), "second {second}");
        }
        assert_eq!(found(1, 1000, 0), None);
        assert_eq!(found(1, 0, 7), None, "an empty LEDGER");
    }

    #[test]
    fn a_time_before_all_that_is_held_finds_nothing() {
        assert_eq!(found(40, 1000, 39), None);
        assert_eq!(found(40, 1000, 40), Some(40));
        assert_eq!(found(41, 40, 99), None);
    }
}
