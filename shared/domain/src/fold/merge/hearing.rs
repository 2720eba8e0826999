//! Merges the partitions that several hubs do not hear, each under its hub's name.

use std::collections::BTreeSet;

use muster_contract::HubName;
use muster_contract::pulse::{HubHearing, UnheardPartition};

/// The hubs' hearing as one list.
pub fn hearing_of(of_hubs: &[(HubName, HubHearing)]) -> HubHearing {
    hearing(of_hubs.iter().map(|(name, hub)| (name, hub)))
}

/// The same of references.
pub(super) fn hearing<'a>(of_hubs: impl Iterator<Item = (&'a HubName, &'a HubHearing)>) -> HubHearing {
    let mut omitted = 0_u64;
    let mut all = BTreeSet::new();
    for (name, hub) in of_hubs {
        omitted = omitted.saturating_add(hub.omitted);
        all.extend(hub.unheard.iter().map(|unheard| UnheardPartition {
            // One that is a federation itself has named its hubs.
            hub: unheard.hub.clone().or_else(|| Some(name.clone())),
            ..unheard.clone()
        }));
    }
    let listed = HubHearing::of(all.into_iter().collect());
    HubHearing { omitted: listed.omitted.saturating_add(omitted), ..listed }
}
