//! Selects the start of a rebuild of a point. It does no IO. A rebuild may start from:
//!
//! - A checkpoint at or before it, if LEDGER still holds all that follows.
//! - LEDGER's first fact, if that is the first ever.
//! - The first fact that LEDGER still holds, if the window up to the point is long enough: the current state
//!   is re-asserted before it ages out, so a window of [`WINDOW_WHOLE`] holds all of it.

use std::time::Duration;

use muster_contract::Timestamp;
use muster_contract::limits::{LEDGER_AGE_MAX, REASSERT_AFTER};
use muster_contract::view::AsOf;

use super::checkpoint_retention::Mark;

/// Length of a window of LEDGER that holds the whole state at its end: the re-assertion period, and a week for
/// services that were down when a re-assertion was due.
pub(crate) const WINDOW_WHOLE: Duration = Duration::from_secs(REASSERT_AFTER.as_secs() + 7 * 24 * 60 * 60);

const _: () = assert!(WINDOW_WHOLE.as_secs() < LEDGER_AGE_MAX.as_secs());

/// The content of LEDGER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Its first sequence.
    pub first_seq: u64,
    /// When that was stored; none where LEDGER is empty.
    pub first_at: Option<Timestamp>,
}

/// The start of a rebuild.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    /// A checkpoint.
    Checkpoint(Mark),
    /// Nothing: LEDGER holds every fact there ever was.
    Ledger,
    /// Nothing: LEDGER's window is enough.
    Window,
}

/// Why a point cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooOld {
    /// The oldest that can.
    pub oldest: Option<AsOf>,
    /// With no checkpoint of use: when the first point that can be reached was stored, at the earliest.
    pub from: Option<Timestamp>,
}

/// Possible starts for a rebuild, the least work first. `stored_at` is when LEDGER stored the point's fact, if
/// it still holds it; `marks` are in ascending order.
///
/// # Errors
/// The point cannot be rebuilt from anything.
pub(crate) fn bases(
    ledger_seq: u64,
    stored_at: Option<Timestamp>,
    marks: &[Mark],
    ledger: Window,
) -> Result<Vec<Base>, TooOld> {
    let leads_on = |mark: &&Mark| mark.as_of.ledger_seq + 1 >= ledger.first_seq;
    let reaches = |mark: &&Mark| {
        mark.as_of.ledger_seq == ledger_seq || (mark.as_of.ledger_seq < ledger_seq && leads_on(mark))
    };
    let mut bases: Vec<Base> =
        marks.iter().rev().filter(reaches).map(|mark| Base::Checkpoint(*mark)).collect();
    let window = stored_at.zip(ledger.first_at).map(|(at, first)| at.duration_since(first));
    if ledger.first_seq <= 1 {
        bases.push(Base::Ledger);
    } else if window.is_some_and(|window| !window.is_negative() && window.unsigned_abs() >= WINDOW_WHOLE) {
        bases.push(Base::Window);
    }
    if bases.is_empty() {
        let oldest = marks.iter().find(leads_on).map(|mark| mark.as_of);
        let from = ledger.first_at.and_then(|first| first.checked_add(WINDOW_WHOLE).ok());
        return Err(TooOld { oldest, from });
    }
    Ok(bases)
}

/// The first point at or after a fact that can be rebuilt and from which LEDGER can be read on; none if there is none.
pub(crate) fn first_reachable(
    ledger_seq: u64,
    stored_at: Option<Timestamp>,
    marks: &[Mark],
    ledger: Window,
) -> Option<u64> {
    let leads_on = |seq: u64| seq + 1 >= ledger.first_seq;
    if leads_on(ledger_seq) && bases(ledger_seq, stored_at, marks, ledger).is_ok() {
        return Some(ledger_seq);
    }
    marks.iter().map(|mark| mark.as_of.ledger_seq).find(|seq| *seq > ledger_seq && leads_on(*seq))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(day: i64) -> Timestamp {
        Timestamp::from_second(day * 24 * 60 * 60).unwrap()
    }

    fn mark(ledger_seq: u64) -> Mark {
        Mark { as_of: AsOf { ledger_seq, at: at(ledger_seq as i64) }, devices: 1, bytes: 1 }
    }

    /// A fact a day.
    fn found(seq: u64, marks: &[u64], first_seq: u64) -> Result<Vec<Base>, TooOld> {
        let marks: Vec<_> = marks.iter().copied().map(mark).collect();
        let stored_at = (seq >= first_seq).then(|| at(seq as i64));
        bases(seq, stored_at, &marks, Window { first_seq, first_at: Some(at(first_seq as i64)) })
    }

    #[test]
    fn the_nearest_checkpoint_comes_first_and_the_beginning_last() {
        let whole = [Base::Checkpoint(mark(7)), Base::Checkpoint(mark(3)), Base::Ledger];
        assert_eq!(found(9, &[3, 7, 12], 1).unwrap(), whole);
        assert_eq!(found(2, &[3, 7], 1).unwrap(), [Base::Ledger]);
        assert_eq!(found(7, &[3, 7], 1).unwrap()[0], Base::Checkpoint(mark(7)));
    }

    #[test]
    fn only_checkpoints_that_ledger_continues_are_usable() {
        // The fact after checkpoint 3 is gone, that after 7 is not.
        assert_eq!(found(9, &[3, 7], 8).unwrap(), [Base::Checkpoint(mark(7))]);
        assert_eq!(found(3, &[3, 7], 8).unwrap(), [Base::Checkpoint(mark(3))], "the checkpoint itself");
        let oldest = Some(AsOf { ledger_seq: 7, at: at(7) });
        assert_eq!(found(5, &[3, 7], 8).unwrap_err().oldest, oldest);
    }

    #[test]
    fn a_window_suffices_if_everything_was_reasserted_in_it() {
        assert_eq!(found(100 + 27, &[], 100).unwrap(), [Base::Window]);
        let refused = found(100 + 26, &[], 100).unwrap_err();
        assert_eq!(refused, TooOld { oldest: None, from: Some(at(127)) });
    }

    #[test]
    fn n10_missed_changes_begin_at_the_first_point_that_ledger_continues() {
        let first = |seq: u64, marks: &[u64], first_seq: u64| {
            let marks: Vec<_> = marks.iter().copied().map(mark).collect();
            let stored_at = (seq >= first_seq).then(|| at(seq as i64));
            first_reachable(
                seq,
                stored_at,
                &marks,
                Window { first_seq, first_at: Some(at(first_seq as i64)) },
            )
        };
        assert_eq!(first(0, &[], 1), Some(0), "LEDGER holds every fact");
        assert_eq!(first(5, &[3, 7], 1), Some(5));
        assert_eq!(first(5, &[3, 7, 9], 8), Some(7), "the facts up to 7 are gone");
        assert_eq!(first(3, &[3, 7], 8), Some(7), "checkpoint 3 itself is not continued");
        assert_eq!(first(0, &[], 8), None, "nothing can be rebuilt");
    }
}
