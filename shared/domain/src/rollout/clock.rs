//! The clock of a rollout: soak times and deadlines of devices do not count the time in which it is paused. Deadlines of waves and
//! rollouts, rates and windows run on in a pause. The module is pure.

use std::time::Duration;

use jiff::SignedDuration;
use muster_contract::Timestamp;
use muster_contract::rollout::RolloutRecord;

/// A period in which a rollout is paused: its begin, and its end unless it still is.
pub(super) type Pause = (Timestamp, Option<Timestamp>);

/// The clock of a rollout at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct RolloutClock<'a> {
    pub(super) record: Option<&'a RolloutRecord>,
    pub(super) now: Timestamp,
}

impl RolloutClock<'_> {
    /// The latest time from which so much time has passed by now.
    pub(super) fn began_by(&self, time: Duration) -> Timestamp {
        let (mut end, mut left) = (self.now, SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX));
        let pauses: Vec<_> = self.record.into_iter().flat_map(RolloutRecord::pauses).collect();
        for (from, until) in pauses.into_iter().rev() {
            let until = until.map_or(end, |until| until.min(end));
            let counted = end.duration_since(until);
            if left <= counted {
                break;
            }
            (end, left) = (end.min(from), left - counted);
        }
        end.checked_sub(left).unwrap_or(Timestamp::MIN)
    }
}

/// The time at which so much time has passed from a begin; `None` while a pause holds the clock.
pub(super) fn end_of(pauses: &[Pause], begin: Timestamp, time: Duration) -> Option<Timestamp> {
    let mut end = begin.checked_add(time).unwrap_or(Timestamp::MAX);
    for (from, until) in pauses {
        if *from >= end {
            break;
        }
        let held = (*until)?.duration_since(begin.max(*from));
        end = end.checked_add(held.max(SignedDuration::ZERO)).unwrap_or(Timestamp::MAX);
    }
    Some(end)
}

#[cfg(test)]
mod tests {
    use muster_contract::canonical::Digest;
    use muster_contract::rollout::{Approvals, RolloutDecision, RolloutVerb};
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::constant(second, 0)
    }

    /// A rollout that is paused and resumed in turn at these seconds.
    fn record(seconds: &[i64]) -> RolloutRecord {
        let mut record = RolloutRecord::new(Digest::of_bytes(b"v2"), "rollout.yaml".to_owned());
        for (number, second) in seconds.iter().enumerate() {
            let verb = [RolloutVerb::Pause, RolloutVerb::Resume][number % 2];
            let decision = RolloutDecision::new(verb, at(*second));
            record.decide(decision, &Approvals::default()).unwrap();
        }
        record
    }

    #[test]
    fn a_pause_holds_the_clock_of_a_rollout() {
        let began_by = |pauses: &[i64], time, now| {
            let record = record(pauses);
            let clock = RolloutClock { record: Some(&record), now: at(now) };
            clock.began_by(Duration::from_secs(time)).as_second()
        };
        assert_eq!(began_by(&[], 30, 100), 70);
        assert_eq!(began_by(&[50, 60], 30, 100), 70, "the pause was before");
        assert_eq!(began_by(&[80, 90], 30, 100), 60);
        assert_eq!(began_by(&[80, 90], 10, 100), 90);
        assert_eq!(began_by(&[90], 30, 100), 60, "it is paused");
        assert_eq!(began_by(&[60, 70, 80, 90], 30, 100), 50);
    }

    proptest! {
        #[test]
        fn the_end_of_a_time_is_where_the_clock_has_counted_it(
            mut pauses in prop::collection::vec(0_i64..200, 0..6), begin in 0_i64..200, time in 1_u64..90, now in 0_i64..400,
        ) {
            pauses.sort_unstable();
            let (record, time) = (record(&pauses), Duration::from_secs(time));
            let all: Vec<_> = record.pauses().collect();
            let has_ended = end_of(&all, at(begin), time).is_some_and(|end| end <= at(now));
            let clock = RolloutClock { record: Some(&record), now: at(now) };
            prop_assert_eq!(at(begin) <= clock.began_by(time), has_ended);
        }
    }
}
