//! Freshness: whether the hub hears a device. Hub time only; a device's own clock has no say here.
//!
//! A device is fresh while something of it came within the lease. The lease of a device that was fresh does not run
//! while the hub itself could not hear: it counts from the moment at which the hub hears again.

use std::time::Duration;

use muster_contract::Timestamp;
use muster_contract::fact::Liveness;

/// What is known when freshness is asked for. All times are the hub's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hearing {
    /// What the hub said last; nothing where it has yet to say something.
    pub said: Option<Liveness>,
    /// When the bus last took in anything of the device.
    pub last_heard_at: Option<Timestamp>,
    /// Since when the hub hears without interruption.
    pub hearing_since: Timestamp,
}

impl Hearing {
    /// The freshness at `now`; nothing where the hub has never heard the device and has never said anything of it.
    pub fn verdict(&self, now: Timestamp, lease: Duration) -> Option<Liveness> {
        let within = |since: Timestamp| elapsed(since, now) <= lease;
        match self.said {
            Some(Liveness::Fresh) => {
                let since = self.last_heard_at.map_or(self.hearing_since, |at| at.max(self.hearing_since));
                Some(if within(since) { Liveness::Fresh } else { Liveness::Stale })
            }
            _ if self.last_heard_at.is_some_and(within) => Some(Liveness::Fresh),
            said => said,
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
        // said, last heard, hearing since, now, verdict
        let table = [
            (None, None, 0, 500, None),
            (None, Some(100), 0, 100, Some(Fresh)),
            (None, Some(100), 0, 190, Some(Fresh)),
            // A backlog of old messages does not make anybody fresh.
            (None, Some(100), 0, 191, None),
            (Some(Fresh), Some(100), 0, 190, Some(Fresh)),
            (Some(Fresh), Some(100), 0, 191, Some(Stale)),
            (Some(Stale), Some(100), 0, 191, Some(Stale)),
            (Some(Stale), Some(150), 0, 191, Some(Fresh)),
            // The hub was deaf from 110 to 400: the lease counts from 400.
            (Some(Fresh), Some(100), 400, 490, Some(Fresh)),
            (Some(Fresh), Some(100), 400, 491, Some(Stale)),
            // Restored from LEDGER, not heard since.
            (Some(Fresh), None, 400, 490, Some(Fresh)),
            (Some(Fresh), None, 400, 491, Some(Stale)),
            (Some(Stale), None, 400, 401, Some(Stale)),
            // The clocks of two machines of the hub differ a little: what comes from the future was heard now.
            (Some(Stale), Some(200), 0, 199, Some(Fresh)),
        ];
        for (said, last, since, now, verdict) in table {
            let hearing = Hearing { said, last_heard_at: last.map(at), hearing_since: at(since) };
            assert_eq!(hearing.verdict(at(now), LEASE), verdict, "{hearing:?} at {now}");
        }
    }
}
