//! Decides freshness: whether the hub hears a device. It uses hub time only, never a device's clock.
//!
//! A device is fresh while something of it came within the lease. The lease of a device that was fresh does not
//! run while the hub itself could not hear: it counts from the moment at which the hub hears again. The lease of evidence runs
//! also then: the age of a snapshot does not depend on what the hub hears.

use std::time::Duration;

use muster_contract::Timestamp;
use muster_contract::fact::Liveness;

/// The inputs of freshness. All times are the hub's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseInputs {
    /// The device's newest liveness fact; `None` if there is none.
    pub last_published: Option<Liveness>,
    /// When a stream last stored anything of the device.
    pub last_heard_at: Option<Timestamp>,
    /// Since when the hub receives without interruption.
    pub receiving_since: Timestamp,
    /// Until when the evidence that its newest heartbeat vouches for is fresh; `None` for a device that sends every change.
    pub evidence_until: Option<Timestamp>,
}

impl LeaseInputs {
    /// The liveness at `now`; `None` if the hub never heard the device and never published its liveness.
    pub(crate) fn liveness(&self, now: Timestamp, lease: Duration) -> Option<Liveness> {
        let within = |since: Timestamp| elapsed(since, now) <= lease;
        if let Some(until) = self.evidence_until {
            return if now <= until {
                Some(Liveness::Fresh)
            } else {
                self.last_published.map(|_| Liveness::Stale)
            };
        }
        match self.last_published {
            Some(Liveness::Fresh) => {
                let since =
                    self.last_heard_at.map_or(self.receiving_since, |at| at.max(self.receiving_since));
                Some(if within(since) { Liveness::Fresh } else { Liveness::Stale })
            }
            _ if self.last_heard_at.is_some_and(within) => Some(Liveness::Fresh),
            last_published => last_published,
        }
    }
}

/// The time from one moment to a later one; zero where the second is not later.
pub(crate) fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(90);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn freshness_follows_the_lease_in_hub_time() {
        use Liveness::{Fresh, Stale};
        // last published, last heard, receiving since, now, liveness
        let table = [
            (None, None, 0, 500, None),
            (None, Some(100), 0, 100, Some(Fresh)),
            (None, Some(100), 0, 190, Some(Fresh)),
            // A backlog of old messages makes no device fresh.
            (None, Some(100), 0, 191, None),
            (Some(Fresh), Some(100), 0, 190, Some(Fresh)),
            (Some(Fresh), Some(100), 0, 191, Some(Stale)),
            (Some(Stale), Some(100), 0, 191, Some(Stale)),
            (Some(Stale), Some(150), 0, 191, Some(Fresh)),
            // The hub received nothing from 110 to 400: the lease counts from 400.
            (Some(Fresh), Some(100), 400, 490, Some(Fresh)),
            (Some(Fresh), Some(100), 400, 491, Some(Stale)),
            // Restored from LEDGER, not heard since.
            (Some(Fresh), None, 400, 490, Some(Fresh)),
            (Some(Fresh), None, 400, 491, Some(Stale)),
            (Some(Stale), None, 400, 401, Some(Stale)),
            // The clocks of two machines of the hub differ a little: a time in the future counts as now.
            (Some(Stale), Some(200), 0, 199, Some(Fresh)),
        ];
        for (last_published, last, since, now, verdict) in table {
            let (last_heard_at, receiving_since) = (last.map(at), at(since));
            let inputs = LeaseInputs { last_published, last_heard_at, receiving_since, evidence_until: None };
            assert_eq!(inputs.liveness(at(now), LEASE), verdict, "{inputs:?} at {now}");
        }
    }

    #[test]
    fn evidence_is_fresh_until_its_period_ends_and_never_longer() {
        use Liveness::{Fresh, Stale};
        // last published, last heard, receiving since, evidence until, now, liveness
        let table = [
            (None, 100, 0, 130, 130, Some(Fresh)),
            // Heartbeats from before nobody listened make no device fresh.
            (None, 100, 0, 130, 131, None),
            (Some(Fresh), 100, 0, 130, 131, Some(Stale)),
            // Longer than the hub's lease.
            (Some(Fresh), 100, 0, 700, 700, Some(Fresh)),
            (Some(Fresh), 100, 0, 700, 701, Some(Stale)),
            // A report came since, and the hub received nothing for a time: neither makes evidence younger.
            (Some(Fresh), 131, 0, 130, 131, Some(Stale)),
            (Some(Fresh), 100, 400, 130, 401, Some(Stale)),
            (Some(Stale), 131, 0, 130, 131, Some(Stale)),
        ];
        for (last_published, last, since, until, now, verdict) in table {
            let (last_heard_at, receiving_since) = (Some(at(last)), at(since));
            let evidence_until = Some(at(until));
            let inputs = LeaseInputs { last_published, last_heard_at, receiving_since, evidence_until };
            assert_eq!(inputs.liveness(at(now), LEASE), verdict, "{inputs:?} at {now}");
        }
    }
}
