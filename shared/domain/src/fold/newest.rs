//! When the newest of the rows changed: of a deployment, of a site, of both, and of the fleet. Rules are elsewhere: a row says
//! itself when it changed.
//!
//! Rows count for as long as they are held, so also what has left the counts since: that it left was a change. All of it
//! follows from the rows, as every count does; so a fleet that is restored from its records says the same.

use hashbrown::HashMap;
use muster_contract::Timestamp;

use super::fleet::Fleet;

/// A deployment and a site, by number.
type Place = (u32, u32);

/// The newest change of rows, by where they are.
#[derive(Debug, Default)]
pub(super) struct Newest {
    places: HashMap<Place, Timestamp>,
    deployments: Vec<Option<Timestamp>>,
    sites: Vec<Option<Timestamp>>,
    fleet: Option<Timestamp>,
    /// Places whose newest row went or says an earlier time now: the next one is to be looked for among their rows.
    lost: Vec<Place>,
}

impl Newest {
    pub(super) const fn of_fleet(&self) -> Option<Timestamp> {
        self.fleet
    }

    pub(super) fn of_deployment(&self, deployment: u32) -> Option<Timestamp> {
        self.deployments.get(deployment as usize).copied().flatten()
    }

    pub(super) fn of_site(&self, site: u32) -> Option<Timestamp> {
        self.sites.get(site as usize).copied().flatten()
    }

    pub(super) fn of_place(&self, place: Place) -> Option<Timestamp> {
        self.places.get(&place).copied()
    }

    /// A row says otherwise when it changed.
    pub(super) fn note(&mut self, place: Place, was: Option<Timestamp>, is: Option<Timestamp>) {
        let newest = self.of_place(place);
        if is > newest {
            self.raise(place, is);
        } else if is < was && was == newest {
            self.lost.push(place);
        }
    }

    fn raise(&mut self, place: Place, newest: Option<Timestamp>) {
        self.places.extend(newest.map(|newest| (place, newest)));
        for (list, number) in [(&mut self.deployments, place.0), (&mut self.sites, place.1)] {
            let number = number as usize;
            if list.len() <= number {
                list.resize(number + 1, None);
            }
            list[number] = list[number].max(newest);
        }
        self.fleet = self.fleet.max(newest);
    }

    /// The newest of a place is this one now, or none.
    fn lower(&mut self, place: Place, newest: Option<Timestamp>) {
        match newest {
            Some(newest) => _ = self.places.insert(place, newest),
            None => _ = self.places.remove(&place),
        }
        let (deployment, site) = place;
        let numbers = |list: &[Option<Timestamp>]| 0..list.len() as u32;
        let of_deployment = numbers(&self.sites).map(|site| self.of_place((deployment, site))).max();
        let of_site = numbers(&self.deployments).map(|deployment| self.of_place((deployment, site))).max();
        self.deployments[deployment as usize] = of_deployment.flatten();
        self.sites[site as usize] = of_site.flatten();
        self.fleet = self.sites.iter().copied().max().flatten();
    }
}

impl Fleet {
    /// Looks for the newest rows of the places that have lost theirs. Seldom: what goes is mostly older than what stays.
    pub(super) fn find_newest_again(&mut self) {
        for place in std::mem::take(&mut self.totals.newest.lost) {
            let (deployment, site) = place;
            let devices = self.totals.site(site).members.iter().map(|number| &self.devices[number as usize]);
            let rows = devices.flat_map(|device| &device.rows).filter(|row| row.deployment == deployment);
            let newest = rows.map(|row| row.changed_at()).max().flatten();
            self.totals.newest.lower(place, newest);
        }
    }
}
