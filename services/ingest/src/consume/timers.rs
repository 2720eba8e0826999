//! Timers of a session, with a different phase for each partition.

use std::time::Duration;

use muster_contract::limits::PARTITIONS;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// A timer whose phase depends on the partition; otherwise facts would wait for a burst of all partitions.
pub(super) fn staggered_interval(period: Duration, partition: u16) -> Interval {
    let mut interval = interval_at(Instant::now() + phase(period, partition), period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

fn phase(period: Duration, partition: u16) -> Duration {
    period * u32::from(partition % PARTITIONS) / u32::from(PARTITIONS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn partitions_that_begin_together_have_their_turns_one_after_the_other() {
        let period = Duration::from_millis(100);
        let phases: BTreeSet<_> = (0..PARTITIONS).map(|partition| phase(period, partition)).collect();
        assert_eq!(phases.len(), usize::from(PARTITIONS));
        assert!(
            phases.into_iter().all(|phase| phase < period),
            "none waits longer than a turn for its first"
        );
    }
}
