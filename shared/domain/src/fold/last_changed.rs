//! Tracks when the newest row changed: of a deployment at a site, of a deployment, of a site, and of the fleet.
//! Each row supplies its own time; this module decides nothing.
//!
//! Rows count for as long as they are held, also those that no other count includes. Everything here follows
//! from the rows, so a fleet restored from its records gives the same times.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use muster_contract::Timestamp;

use super::max_timestamp::{MaxTimestamp, highest};

/// A deployment and a site, by number.
type DeploymentAtSite = (u32, u32);

/// The newest change of rows, by where they are.
#[derive(Debug, Default)]
pub(super) struct LastChanged {
    places: HashMap<DeploymentAtSite, MaxTimestamp>,
    deployments: Vec<MaxTimestamp>,
    sites: Vec<MaxTimestamp>,
    fleet: MaxTimestamp,
    /// Places that lost the newest row of their deployment, their site or themselves: maxima to recompute.
    pub(super) stale: BTreeSet<DeploymentAtSite>,
}

impl LastChanged {
    pub(super) const fn of_fleet(&self) -> Option<Timestamp> {
        self.fleet.bound()
    }

    pub(super) fn of_deployment(&self, deployment: u32) -> Option<Timestamp> {
        self.deployments.get(deployment as usize).and_then(|max| max.bound())
    }

    pub(super) fn of_site(&self, site: u32) -> Option<Timestamp> {
        self.sites.get(site as usize).and_then(|max| max.bound())
    }

    pub(super) fn of_place(&self, place: DeploymentAtSite) -> Option<Timestamp> {
        self.places.get(&place).and_then(|max| max.bound())
    }

    /// Replaces the time of a row.
    pub(super) fn replace(&mut self, place: DeploymentAtSite, was: Option<Timestamp>, is: Option<Timestamp>) {
        let of_place = self.places.entry(place).or_default();
        let deployment = at(&mut self.deployments, place.0);
        for max in [of_place, deployment, at(&mut self.sites, place.1), &mut self.fleet] {
            if !max.exchange(was, is) {
                self.stale.insert(place);
            }
        }
    }

    /// Sets the recomputed maximum of one deployment at one site.
    pub(super) fn set_max(&mut self, place: DeploymentAtSite, max: MaxTimestamp) {
        match max.bound() {
            Some(_) => _ = self.places.insert(place, max),
            None => _ = self.places.remove(&place),
        }
    }

    /// Recomputes the maxima that include a deployment at a site.
    pub(super) fn recompute_sums(&mut self, (deployment, site): DeploymentAtSite) {
        let numbers = |list: &[MaxTimestamp]| 0..list.len() as u32;
        if self.deployments[deployment as usize].is_stale() {
            let places = numbers(&self.sites).map(|site| (deployment, site));
            self.deployments[deployment as usize] = self.highest(places);
        }
        if self.sites[site as usize].is_stale() {
            let places = numbers(&self.deployments).map(|deployment| (deployment, site));
            self.sites[site as usize] = self.highest(places);
        }
        if self.fleet.is_stale() {
            self.fleet = highest(self.sites.iter().copied());
        }
    }

    fn highest(&self, places: impl Iterator<Item = DeploymentAtSite>) -> MaxTimestamp {
        highest(places.filter_map(|place| self.places.get(&place).copied()))
    }
}

fn at(list: &mut Vec<MaxTimestamp>, number: u32) -> &mut MaxTimestamp {
    let number = number as usize;
    if list.len() <= number {
        list.resize(number + 1, MaxTimestamp::default());
    }
    &mut list[number]
}
