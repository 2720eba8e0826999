//! Keeps the newest time of each deployment in a part of the fleet, by deployment number. A maximum may be stale; this module
//! searches nothing.

use hashbrown::HashMap;
use muster_contract::Timestamp;

use super::delta::Delta;
use super::max_timestamp::MaxTimestamp;

/// Maxima by deployment, for as long as they have times.
#[derive(Debug, Default)]
pub(super) struct MaxByDeployment(HashMap<u32, CountedMax>);

/// A maximum, with the number of its times.
#[derive(Debug, Default)]
struct CountedMax {
    max: MaxTimestamp,
    times: u32,
}

impl MaxByDeployment {
    /// The maximum of a deployment.
    pub(super) fn of(&self, deployment: u32) -> MaxTimestamp {
        self.0.get(&deployment).map(|held| held.max).unwrap_or_default()
    }

    /// Replaces a time of a deployment.
    pub(super) fn exchange(&mut self, deployment: u32, was: Option<Timestamp>, is: Option<Timestamp>) {
        if was == is {
            return;
        }
        let held = self.0.entry(deployment).or_default();
        held.max.exchange(was, is);
        held.times = held.times + u32::from(is.is_some()) - u32::from(was.is_some());
        if held.times == 0 {
            self.0.remove(&deployment);
        }
    }

    /// Adds a time of a deployment or retracts it.
    pub(super) fn apply(&mut self, delta: Delta, deployment: u32, at: Option<Timestamp>) {
        match delta {
            Delta::Add => self.exchange(deployment, None, at),
            Delta::Retract => self.exchange(deployment, at, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deployment_without_times_leaves_nothing() {
        let at = |second| Timestamp::from_second(second).ok();
        let mut newest = MaxByDeployment::default();
        newest.exchange(3, None, at(9));
        newest.exchange(3, at(9), at(7));
        assert!(newest.of(3).is_stale(), "only the bound is known");
        newest.apply(Delta::Retract, 3, at(7));
        newest.apply(Delta::Add, 3, None);
        assert!(newest.0.is_empty() && newest.of(3) == MaxTimestamp::default());
    }
}
