//! Selects the checkpoints to keep when there is no room for all. It does no IO.
//!
//! Checkpoints lie denser near the present: of the inner ones, the one is removed that leaves the smallest hole
//! for its age. The newest and the oldest usable one stay. A checkpoint older than everything LEDGER still
//! holds is unusable, because no facts follow it.

use muster_contract::Timestamp;
use muster_contract::limits::LEDGER_AGE_MAX;
use muster_contract::view::AsOf;

/// A checkpoint: its position and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Up to where its fold had read.
    pub as_of: AsOf,
    /// Devices in it.
    pub devices: u64,
    /// Bytes it takes.
    pub bytes: u64,
}

/// Room for checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// How many.
    pub count: usize,
    /// Their bytes together.
    pub bytes: u64,
}

/// The sequences of the checkpoints that have to go, of all in ascending order. The newest never has to.
pub fn surplus(marks: &[Mark], room: Room) -> Vec<u64> {
    let mut kept = marks.to_vec();
    let mut surplus = Vec::new();
    let too_old = |mark: &Mark, newest: Timestamp| {
        newest.duration_since(mark.as_of.at).unsigned_abs() > LEDGER_AGE_MAX && mark.as_of.at < newest
    };
    if let Some(newest) = kept.last().map(|mark| mark.as_of.at) {
        surplus.extend(kept.iter().filter(|mark| too_old(mark, newest)).map(|mark| mark.as_of.ledger_seq));
        kept.retain(|mark| !too_old(mark, newest));
    }
    let mut bytes: u64 = kept.iter().map(|mark| mark.bytes).sum();
    while kept.len() > 1 && (kept.len() > room.count || bytes > room.bytes) {
        let gone = kept.remove(least_missed(&kept));
        bytes -= gone.bytes;
        surplus.push(gone.as_of.ledger_seq);
    }
    surplus
}

/// The index of the inner checkpoint whose removal leaves the smallest hole for its age; of equals, the older
/// one.
fn least_missed(kept: &[Mark]) -> usize {
    let seq = |at: usize| kept[at].as_of.ledger_seq;
    let newest = seq(kept.len() - 1);
    let hole_for_age = |at: &usize| {
        let (hole, age) = (seq(at + 1) - seq(at - 1), newest - seq(*at));
        // The same as hole / age, in numbers that can be compared exactly.
        u128::from(hole) * u128::from(u64::MAX) / u128::from(age.max(1))
    };
    (1..kept.len().saturating_sub(1)).min_by_key(hole_for_age).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 100_000;

    fn mark(number: u64, seconds: i64) -> Mark {
        let at = Timestamp::from_second(seconds).unwrap();
        Mark { as_of: AsOf { ledger_seq: number * STEP, at }, devices: 1000, bytes: 1000 }
    }

    /// The checkpoints left after making so many, each followed by retention.
    fn after(count: u64, room: Room) -> Vec<Mark> {
        let mut kept = Vec::new();
        for number in 1..=count {
            kept.push(mark(number, number as i64));
            let surplus = surplus(&kept, room);
            kept.retain(|mark| !surplus.contains(&mark.as_of.ledger_seq));
            assert!(kept.len() <= room.count);
            assert!(kept.len() == 1 || kept.iter().map(|mark| mark.bytes).sum::<u64>() <= room.bytes);
            assert_eq!(kept.last(), Some(&mark(number, number as i64)), "the newest stays");
        }
        kept
    }

    #[test]
    fn checkpoints_that_fit_stay() {
        let marks: Vec<_> = (1..=10).map(|number| mark(number, 0)).collect();
        assert!(surplus(&marks, Room { count: 10, bytes: 10_000 }).is_empty());
        assert!(surplus(&[], Room { count: 0, bytes: 0 }).is_empty());
        assert!(
            surplus(&marks[..1], Room { count: 0, bytes: 0 }).is_empty(),
            "the newest stays at any price"
        );
    }

    #[test]
    fn holes_grow_with_age_and_the_oldest_stays() {
        for count in [70, 500, 5_000] {
            let kept = after(count, Room { count: 64, bytes: u64::MAX });
            assert_eq!(kept[0], mark(1, 1), "the oldest stays");
            for pair in kept.windows(2) {
                let hole = pair[1].as_of.ledger_seq - pair[0].as_of.ledger_seq;
                let age = count * STEP - pair[0].as_of.ledger_seq;
                let allowed = STEP.max(age / 3);
                assert!(hole <= allowed, "of {count}: a hole of {hole} at an age of {age}");
            }
            let recent = kept.iter().filter(|mark| mark.as_of.ledger_seq > (count - 8) * STEP).count();
            assert!(recent >= 4, "{recent} of the last 8 of {count}");
        }
    }

    #[test]
    fn bytes_are_bounded_and_unusable_checkpoints_go() {
        assert_eq!(after(100, Room { count: 64, bytes: 5_500 }).len(), 5);
        let day = 24 * 60 * 60;
        let marks: Vec<_> = (0..40).map(|number| mark(number, number as i64 * day)).collect();
        let gone = surplus(&marks, Room { count: 64, bytes: u64::MAX });
        assert_eq!(gone, (0..9).map(|number| number * STEP).collect::<Vec<_>>());
    }
}
