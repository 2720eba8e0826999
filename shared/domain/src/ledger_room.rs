//! Decides, while LEDGER fills up, from when its oldest facts are re-asserted, and how much may be accepted
//! before the server would discard a fact that is not re-asserted yet.
//!
//! At its byte bound LEDGER discards its oldest messages. The size of a message of the oldest part is taken as
//! the average.

use muster_contract::limits::LEDGER_REASSERT_PERCENT;

// A full LEDGER whose oldest half is re-asserted takes something in.
const _: () = assert!(REASSERTED_SHARE * WRITTEN_OVER_SHARE < RESERVE_SHARE);

/// The oldest part of LEDGER's messages that is re-asserted while it fills up: one half.
const REASSERTED_SHARE: u64 = 2;
/// The share of the re-asserted part that may be overwritten before the next check: its messages may be shorter
/// than others.
const WRITTEN_OVER_SHARE: u64 = 2;
/// This share of LEDGER is kept for what follows from no report: liveness, deadlines, desired states.
const RESERVE_SHARE: u64 = 16;
/// Least length of a message with its subject and headers, for a LEDGER that holds little.
const MESSAGE_BYTES_MIN: u64 = 512;

/// How much LEDGER holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerSize {
    /// The first sequence held.
    pub first_seq: u64,
    /// The last sequence given.
    pub last_seq: u64,
    /// Bytes held.
    pub bytes: u64,
    /// Bytes it may hold, if that is bounded.
    pub bytes_max: Option<u64>,
}

impl LedgerSize {
    /// How full it is, in percent; `None` without a bound.
    pub fn percent(&self) -> Option<u64> {
        let most = self.bytes_max.filter(|most| *most > 0)?;
        Some(u64::try_from(u128::from(self.bytes) * 100 / u128::from(most)).unwrap_or(u64::MAX))
    }

    /// Every fact that holds is to be re-asserted through this sequence; `None` while there is room.
    pub fn reassert_through(&self) -> Option<u64> {
        let presses = self.percent().is_some_and(|percent| percent >= LEDGER_REASSERT_PERCENT);
        presses.then(|| self.share(REASSERTED_SHARE))
    }

    /// Bytes that may be stored before the server discards a fact that is not re-asserted, where every fact through
    /// `reasserted` is.
    pub fn allowance(&self, reasserted: u64) -> u64 {
        let Some(most) = self.bytes_max else { return u64::MAX };
        let average = (self.bytes / self.messages().max(1)).max(MESSAGE_BYTES_MIN);
        let free = most.saturating_sub(self.bytes);
        let old = (reasserted + 1).saturating_sub(self.first_seq).min(self.messages()) * average;
        (free + old / WRITTEN_OVER_SHARE).saturating_sub(most / RESERVE_SHARE)
    }

    fn messages(&self) -> u64 {
        (self.last_seq + 1).saturating_sub(self.first_seq)
    }

    /// The last sequence of the oldest part.
    fn share(&self, part: u64) -> u64 {
        self.first_seq.saturating_sub(1) + self.messages() / part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(percent: u64) -> LedgerSize {
        LedgerSize { first_seq: 1_001, last_seq: 2_000, bytes: percent * 10, bytes_max: Some(1_000) }
    }

    #[test]
    fn the_oldest_half_is_reasserted_long_before_anything_is_discarded() {
        for (percent, through) in [(0, None), (59, None), (60, Some(1_500)), (100, Some(1_500))] {
            assert_eq!(size(percent).reassert_through(), through, "{percent} %");
        }
        let unbounded = LedgerSize { bytes_max: None, ..size(100) };
        assert_eq!((unbounded.percent(), unbounded.reassert_through()), (None, None));
        assert_eq!(unbounded.allowance(0), u64::MAX);
    }

    #[test]
    fn no_more_is_taken_in_than_fits_over_what_is_reasserted() {
        let big =
            |percent| LedgerSize { bytes: percent * 10_000, bytes_max: Some(1_000_000), ..size(percent) };
        let table = [
            // percent, re-asserted through, allowance; a sixteenth is kept
            (60, 0, 337_500),
            (95, 0, 0),
            (100, 0, 0),
            (100, 1_000, 0),
            (100, 1_500, 187_500),
            (90, 1_200, 127_500),
        ];
        for (percent, reasserted, allowance) in table {
            let found = big(percent).allowance(reasserted);
            assert_eq!(found, allowance, "{percent} %, through {reasserted}");
        }
        let empty = LedgerSize { first_seq: 1, last_seq: 0, bytes: 0, bytes_max: Some(1_000_000) };
        assert_eq!((empty.percent(), empty.allowance(0)), (Some(0), 937_500));
    }
}
