//! The counts of a part of the fleet with all its deployments: a site, a group of devices, or the whole fleet.

use std::collections::BTreeMap;

use muster_contract::view::Verdict;

use super::counts_by_deployment::CountsByDeployment;
use super::delta::Delta;
use super::hearing::UnheardCounts;
use super::max_timestamp::MaxTimestamp;
use super::standing::DeviceContext;
use super::tally::{Devices, Group, GroupChange};

/// The counts common to a site and the fleet.
#[derive(Debug, Default)]
pub(super) struct Whole {
    pub(super) group: Group,
    pub(super) devices: Devices,
    /// The devices by unheard partition.
    pub(super) unheard: UnheardCounts,
    /// Devices that would be fresh if the hub heard their partitions.
    pub(super) masked: u32,
    /// When a device that is not retired was last heard.
    pub(super) heard: MaxTimestamp,
    pub(super) verdicts: [u32; VERDICTS],
}

const VERDICTS: usize = Verdict::ALL.len();

impl Whole {
    /// Adds a device that is not retired to the counts of a part of the fleet, or retracts it.
    pub(super) fn apply_delta(&mut self, delta: Delta, context: &DeviceContext, unknown: u32) {
        self.devices.shift(delta, context.freshness, context.missing, context.is_complete(unknown));
        self.unheard.shift(delta, context.unheard_in);
        delta.apply(&mut self.masked, context.is_masked.into());
    }

    /// Changes a standing of a deployment in the counts of a part of the fleet; `deployments` are the part's counts by
    /// deployment.
    pub(super) fn apply(
        &mut self,
        change: &GroupChange,
        deployment: u32,
        deployments: &mut CountsByDeployment,
    ) {
        deployments.change(deployment, |local| apply_judged(change, local, &mut self.verdicts));
        self.group.apply(change);
    }

    /// Deployments by verdict, without the zeros.
    pub(super) fn deployments(&self) -> BTreeMap<Verdict, u64> {
        Verdict::ALL
            .into_iter()
            .map(|verdict| (verdict, u64::from(self.verdicts[verdict as usize])))
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}

/// Changes a standing in a deployment's group, and the verdict on the group in the count of verdicts.
pub(super) fn apply_judged(change: &GroupChange, group: &mut Group, verdicts: &mut [u32; VERDICTS]) {
    let before = group.verdict();
    group.apply(change);
    let after = group.verdict();
    if before != after {
        // A deployment that is empty is nowhere, so it has no verdict to count.
        if before != Verdict::Empty {
            verdicts[before as usize] -= 1;
        }
        if after != Verdict::Empty {
            verdicts[after as usize] += 1;
        }
    }
}
