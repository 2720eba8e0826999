//! Decides what a partition's pulse means, purely by LEDGER's timestamps.

use std::time::Duration;

use muster_bus::StreamState;
use muster_contract::Timestamp;
use muster_contract::fact::{Hearing, PulseFact};
use muster_contract::limits::{LEASE, LEDGER_REASSERT_PERCENT, PULSE_KEPT_BEYOND_LEASE, REASSERT_AFTER};

use crate::progress::SeenPulse;

/// How much longer than a lease a pulse may take before it has stopped: ingest looks at the time once a second, and LEDGER may
/// be busy.
pub const PULSE_GRACE: Duration = Duration::from_secs(5);

// A stop is shown within the lease and ten seconds.
const _: () = assert!(PULSE_GRACE.as_secs() < 8);
// A partition without a pulse in LEDGER has had none for longer than a pulse may take.
const _: () = assert!(PULSE_GRACE.as_secs() < PULSE_KEPT_BEYOND_LEASE.as_secs());

/// The facts known about a partition at a moment.
#[derive(Debug, Clone)]
pub struct Heard {
    /// The newest pulse.
    pub newest: Option<SeenPulse>,
    /// When LEDGER stored the oldest record of an owner that it holds, where it had no pulse.
    pub owned_since: Option<Timestamp>,
    /// LEDGER says that the pulse stopped, and since when.
    pub stopped_since: Option<Timestamp>,
    /// When this rollup had first read LEDGER to its end.
    pub read_whole_at: Timestamp,
}

/// The fact that LEDGER should hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HearingDecision {
    /// Stopped or resumed.
    pub state: Hearing,
    /// Since when.
    pub since: Timestamp,
}

/// The fact that LEDGER should hold about a partition and does not.
pub fn decide(heard: &Heard, now: Timestamp) -> Option<HearingDecision> {
    let lease = heard.newest.as_ref().map_or(LEASE, |seen| seen.pulse.lease());
    let newest_at = heard.newest.as_ref().map(|seen| seen.stored_at);
    let is_over = |since| is_older(since, lease + PULSE_GRACE, now);
    let stopped = |since| HearingDecision { state: Hearing::Stopped, since };
    match (heard.stopped_since, newest_at) {
        (None, Some(since)) if is_over(since) => Some(stopped(since)),
        // The owners never hear for a lease: they restart, stall or reconnect, and leave a silent device fresh each time.
        (None, Some(_)) => {
            let unproven_since = heard.newest.as_ref().and_then(SeenPulse::unproven_since);
            let is_too_long = |since: &Timestamp| is_older(*since, PulseFact::unproven_max(lease), now);
            unproven_since.filter(is_too_long).map(stopped)
        }
        // LEDGER keeps a pulse for longer than it may take, so an owner of old whose pulses are gone has stopped already.
        (None, None) => {
            let since = heard.read_whole_at;
            let is_stopped = is_over(since) || heard.owned_since.is_some_and(is_over);
            is_stopped.then(|| stopped(since))
        }
        (Some(_), Some(since)) => {
            let is_current = heard.newest.as_ref().is_some_and(|seen| seen.pulse.current);
            (is_current && !is_over(since)).then_some(HearingDecision { state: Hearing::Resumed, since })
        }
        (Some(_), None) => None,
    }
}

/// Whether a stop at this sequence must be re-asserted so that LEDGER does not discard it: it is old, or in the
/// part that is discarded first when LEDGER is full, or already discarded.
pub(crate) fn must_repeat(place: Option<(u64, Timestamp)>, ledger: &StreamState, now: Timestamp) -> bool {
    let Some((seq, stored_at)) = place else { return true };
    let is_filling = ledger.bytes_max.is_some_and(|most| {
        u128::from(ledger.bytes) * 100 >= u128::from(most) * u128::from(LEDGER_REASSERT_PERCENT)
    });
    let oldest_half = ledger.first_seq + (ledger.last_seq.saturating_sub(ledger.first_seq)) / 2;
    is_older(stored_at, REASSERT_AFTER, now) || (is_filling && seq < oldest_half)
}

/// True where so long has passed since. A time to come is a clock that goes wrong.
fn is_older(since: Timestamp, than: Duration, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(since)).is_ok_and(|age| age > than)
}

#[cfg(test)]
mod tests {
    use muster_contract::version::{ApiVersion, kind};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(10_000 + second).unwrap()
    }

    fn pulse(second: i64, lease_seconds: u64, current: bool) -> SeenPulse {
        let pulse = PulseFact {
            api_version: ApiVersion::V1,
            kind: kind::PulseFact::PulseFact,
            owner: "hub/1/a".to_owned(),
            // A device's or an ingest's clock has no part in it.
            at: Timestamp::UNIX_EPOCH,
            lease_seconds,
            current,
            unproven_since: None,
        };
        SeenPulse { stored_at: at(second), pulse }
    }

    /// A pulse of an owner that knows since when no pulse was current.
    fn unproven(second: i64, lease_seconds: u64, since: i64) -> SeenPulse {
        let mut seen = pulse(second, lease_seconds, false);
        seen.pulse.unproven_since = Some(at(since));
        seen
    }

    #[test]
    fn a_pulse_has_stopped_after_its_own_lease_and_resumes_when_it_is_current() {
        let stopped = |since| Some(HearingDecision { state: Hearing::Stopped, since: at(since) });
        let resumed = |since| Some(HearingDecision { state: Hearing::Resumed, since: at(since) });
        let (lease, beyond) = (LEASE.as_secs() as i64, PULSE_GRACE.as_secs() as i64);
        // newest pulse, stopped since, now, wanted
        for (newest, stopped_since, now, wanted) in [
            (Some(pulse(0, 3, true)), None, 3 + beyond, None),
            (Some(pulse(0, 3, true)), None, 4 + beyond, stopped(0)),
            (Some(pulse(0, 3, false)), None, 4 + beyond, stopped(0)),
            (Some(pulse(0, 90, true)), None, 90, None),
            // Pulses go on, and no owner lived for a whole lease: two leases and ten seconds, and not longer.
            (Some(unproven(16, 3, 0)), None, 16, None),
            (Some(unproven(17, 3, 0)), None, 17, stopped(0)),
            (Some(unproven(190, 90, 0)), None, 190, None),
            (Some(unproven(190, 90, 0)), None, 191, stopped(0)),
            (Some(unproven(200, 90, 190)), None, 201, None),
            (Some(unproven(300, 90, 0)), Some(at(0)), 301, None),
            // An owner of an earlier release does not name the time.
            (Some(pulse(190, 90, false)), None, 191, None),
            (None, None, lease + beyond, None),
            (None, None, lease + beyond + 1, stopped(0)),
            (None, Some(at(-100)), 1_000, None),
            (Some(pulse(0, 3, true)), Some(at(0)), 4 + beyond, None),
            (Some(pulse(20, 3, false)), Some(at(0)), 21, None),
            (Some(pulse(20, 3, true)), Some(at(0)), 21, resumed(20)),
            (Some(pulse(20, 3, true)), Some(at(0)), 24 + beyond, None),
            // The server's clock was set back.
            (Some(pulse(20, 3, true)), None, 0, None),
        ] {
            let heard = Heard { newest, owned_since: None, stopped_since, read_whole_at: at(0) };
            assert_eq!(decide(&heard, at(now)), wanted, "{heard:?} at {now}");
        }
    }

    #[test]
    fn a_partition_whose_pulses_are_all_forgotten_has_stopped() {
        let beyond = (LEASE + PULSE_GRACE).as_secs() as i64;
        // the oldest record of an owner, whether it has stopped one second after LEDGER was read
        for (owned_since, has_stopped) in
            [(None, false), (Some(at(1 - beyond)), false), (Some(at(-beyond)), true)]
        {
            let heard = Heard { newest: None, owned_since, stopped_since: None, read_whole_at: at(0) };
            let wanted = has_stopped.then_some(HearingDecision { state: Hearing::Stopped, since: at(0) });
            assert_eq!(decide(&heard, at(1)), wanted, "{heard:?}");
        }
    }

    #[test]
    fn a_stop_is_reasserted_before_ledger_discards_it() {
        let ledger = StreamState {
            first_seq: 1_000,
            last_seq: 3_000,
            first_at: at(0),
            messages: 2_000,
            bytes: 10,
            bytes_max: Some(100),
            created_at: at(0),
            replicas: 1,
        };
        let full = StreamState { bytes: LEDGER_REASSERT_PERCENT, ..ledger };
        let old = REASSERT_AFTER.as_secs() as i64;
        for (place, ledger, now, repeats) in [
            (Some((1_001, at(0))), &ledger, 60, false),
            (Some((1_001, at(0))), &full, 60, true),
            (Some((2_500, at(0))), &full, 60, false),
            (Some((2_500, at(0))), &ledger, old + 1, true),
            (None, &ledger, 60, true),
        ] {
            assert_eq!(must_repeat(place, ledger, at(now)), repeats, "{place:?} at {now}");
        }
    }
}
