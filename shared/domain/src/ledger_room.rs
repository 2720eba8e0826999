//! What happens while LEDGER fills up, as pure decisions: from when facts at its old end are re-asserted, and from when
//! nothing more is taken in, because the server would discard a fact that is not re-asserted yet.
//!
//! At its byte bound LEDGER discards its oldest messages. Positions stand for bytes: a tenth of the messages is taken for a
//! tenth of the bytes.

use muster_contract::limits::{LEDGER_HOLD_PERCENT, LEDGER_REASSERT_PERCENT};

/// Of LEDGER's messages, the oldest half is re-asserted while it fills up.
const REASSERTED_SHARE: u64 = 2;
/// Reports wait while less than the oldest quarter is re-asserted.
const MARGIN_SHARE: u64 = 4;

const _: () = assert!(REASSERTED_SHARE < MARGIN_SHARE);

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

    /// Whether nothing more may be taken in, where every fact through `reasserted` is re-asserted.
    pub fn must_hold(&self, reasserted: u64) -> bool {
        let full = self.percent().is_some_and(|percent| percent >= LEDGER_HOLD_PERCENT);
        full && reasserted < self.share(MARGIN_SHARE)
    }

    /// The last sequence of the oldest part.
    fn share(&self, part: u64) -> u64 {
        let messages = (self.last_seq + 1).saturating_sub(self.first_seq);
        self.first_seq.saturating_sub(1) + messages / part
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
        assert!(!unbounded.must_hold(0));
    }

    #[test]
    fn reports_wait_at_the_bound_until_the_oldest_quarter_is_reasserted() {
        for (percent, reasserted, holds) in
            [(89, 0, false), (90, 0, true), (90, 1_249, true), (90, 1_250, false), (100, 1_500, false)]
        {
            assert_eq!(size(percent).must_hold(reasserted), holds, "{percent} %, through {reasserted}");
        }
        let empty = LedgerSize { first_seq: 1, last_seq: 0, bytes: 0, bytes_max: Some(1) };
        assert_eq!((empty.percent(), empty.must_hold(0)), (Some(0), false));
    }
}
