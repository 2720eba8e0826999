//! Defines how often a hub is asked and how long it may be silent. All related durations stand here together.

use std::time::Duration;

/// Shortest and longest silence after which a hub's devices count as stale.
pub(crate) const LEASE_MIN: Duration = Duration::from_secs(1);
/// Longest lease that may be set.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Least time between two rounds of questions to a hub. A round asks for all due keys.
pub(crate) const ROUND_EVERY: Duration = Duration::from_secs(1);
/// Longest time between two signs of life.
const SIGN_EVERY: Duration = Duration::from_secs(10);
/// Signs of life that may be missed before the lease ends.
const SIGNS_IN_A_LEASE: u32 = 3;
/// How long a hub may take to say parts.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two readings of all that a hub has: a part may change where its view does not, and a key may go unseen.
pub(crate) const READ_EVERY: Duration = Duration::from_secs(60);
/// How long a view of another federation that has read further is left alone: by then every hub was read anew, so that what
/// is known here is all there is.
pub(crate) const AHEAD_PATIENCE: Duration = Duration::from_secs(READ_EVERY.as_secs() + 15);

const _: () = {
    assert!(PATIENCE.as_secs() < SIGN_EVERY.as_secs());
    assert!(SIGN_EVERY.as_secs() * (SIGNS_IN_A_LEASE as u64) < muster_contract::limits::LEASE.as_secs());
    assert!(ROUND_EVERY.as_secs() < SIGN_EVERY.as_secs());
    assert!(SIGN_EVERY.as_secs() < READ_EVERY.as_secs());
    assert!(AHEAD_PATIENCE.as_secs() > READ_EVERY.as_secs() + 2 * PATIENCE.as_secs());
};

/// The times of one federation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Silence after which a hub's devices count as stale.
    pub lease: Duration,
    /// Time between two signs of life.
    pub sign_every: Duration,
    /// Least time between two rounds of questions.
    pub round_every: Duration,
    /// How long an answer is waited for.
    pub patience: Duration,
    /// Time between two readings of everything.
    pub read_every: Duration,
}

impl Timing {
    /// The intervals for a lease: a short lease has as many signs of life as a long one.
    pub fn of(lease: Duration) -> Self {
        let sign_every = SIGN_EVERY.min(lease / SIGNS_IN_A_LEASE);
        Self {
            lease,
            sign_every,
            round_every: ROUND_EVERY.min(sign_every),
            patience: PATIENCE.min(sign_every),
            read_every: READ_EVERY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_has_several_chances_within_its_lease() {
        for lease in [LEASE_MIN, Duration::from_secs(7), Duration::from_secs(90), LEASE_MAX] {
            let timing = Timing::of(lease);
            assert!(timing.sign_every + timing.patience < lease, "{timing:?}");
            assert!(timing.round_every <= timing.sign_every && timing.sign_every <= SIGN_EVERY, "{timing:?}");
        }
    }
}
