//! When the newest of the rows changed: of a deployment at a site, of a deployment, of a site, and of the fleet. A row says
//! itself when it changed; nothing is decided here.
//!
//! Rows count for as long as they are held, so also what has left the other counts. All of it follows from the rows, as every
//! count does: so a fleet that is restored from its records says the same.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use muster_contract::Timestamp;

use super::fleet::Fleet;

/// A deployment and a site, by number.
type Place = (u32, u32);

/// The newest change of rows, by where they are.
#[derive(Debug, Default)]
pub(super) struct Newest {
    places: HashMap<Place, Peak>,
    deployments: Vec<Peak>,
    sites: Vec<Peak>,
    fleet: Peak,
    /// Places that a newest row of their deployment, their site or themselves has left: others are to be looked for.
    lost: BTreeSet<Place>,
}

/// The newest change of some rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Peak {
    at: Option<Timestamp>,
    /// So many rows changed then. None: they have gone, and the others are older.
    rows: u32,
}

impl Newest {
    pub(super) const fn of_fleet(&self) -> Option<Timestamp> {
        self.fleet.at
    }

    pub(super) fn of_deployment(&self, deployment: u32) -> Option<Timestamp> {
        self.deployments.get(deployment as usize).and_then(|peak| peak.at)
    }

    pub(super) fn of_site(&self, site: u32) -> Option<Timestamp> {
        self.sites.get(site as usize).and_then(|peak| peak.at)
    }

    pub(super) fn of_place(&self, place: Place) -> Option<Timestamp> {
        self.places.get(&place).and_then(|peak| peak.at)
    }

    /// A row says otherwise when it changed.
    pub(super) fn note(&mut self, place: Place, was: Option<Timestamp>, is: Option<Timestamp>) {
        if was == is {
            return;
        }
        let of_place = self.places.entry(place).or_default();
        let deployment = at(&mut self.deployments, place.0);
        for peak in [of_place, deployment, at(&mut self.sites, place.1), &mut self.fleet] {
            if !peak.exchange(was, is) {
                self.lost.insert(place);
            }
        }
    }

    /// Of a place whose rows were looked through.
    fn found(&mut self, place: Place, peak: Peak) {
        match peak.at {
            Some(_) => _ = self.places.insert(place, peak),
            None => _ = self.places.remove(&place),
        }
    }

    /// Of the whole of which places are parts.
    fn add_up(&mut self, (deployment, site): Place) {
        let numbers = |list: &[Peak]| 0..list.len() as u32;
        if self.deployments[deployment as usize].is_lost() {
            let places = numbers(&self.sites).map(|site| (deployment, site));
            self.deployments[deployment as usize] = self.highest(places);
        }
        if self.sites[site as usize].is_lost() {
            let places = numbers(&self.deployments).map(|deployment| (deployment, site));
            self.sites[site as usize] = self.highest(places);
        }
        if self.fleet.is_lost() {
            self.fleet = highest(self.sites.iter().copied());
        }
    }

    fn highest(&self, places: impl Iterator<Item = Place>) -> Peak {
        highest(places.filter_map(|place| self.places.get(&place).copied()))
    }
}

fn at(list: &mut Vec<Peak>, number: u32) -> &mut Peak {
    let number = number as usize;
    if list.len() <= number {
        list.resize(number + 1, Peak::default());
    }
    &mut list[number]
}

fn highest(peaks: impl Iterator<Item = Peak>) -> Peak {
    let mut sum = Peak::default();
    peaks.for_each(|peak| sum.join(peak));
    sum
}

impl Peak {
    /// A row changed otherwise than it had. False where nobody knows the newest any more.
    fn exchange(&mut self, was: Option<Timestamp>, is: Option<Timestamp>) -> bool {
        if self.at == was {
            self.rows -= u32::from(was.is_some());
        }
        self.join(Self { at: is, rows: 1 });
        !self.is_lost()
    }

    /// Takes in others.
    fn join(&mut self, others: Self) {
        if others.at > self.at {
            *self = others;
        } else if others.at == self.at && others.at.is_some() {
            self.rows += others.rows;
        }
    }

    const fn is_lost(self) -> bool {
        self.at.is_some() && self.rows == 0
    }
}

impl Fleet {
    /// Looks for the newest rows where they have gone. What goes is mostly older than what stays, or one of many of a time:
    /// only where rows go in the order opposite to that in which they came, each is looked for among all of its site.
    pub(super) fn find_newest_again(&mut self) {
        let lost = std::mem::take(&mut self.totals.newest.lost);
        for place in &lost {
            let (deployment, site) = *place;
            let devices = self.totals.site(site).members.iter().map(|number| &self.devices[number as usize]);
            let rows = devices.flat_map(|device| &device.rows).filter(|row| row.deployment == deployment);
            let peak = highest(rows.map(|row| Peak { at: row.changed_at(), rows: 1 }));
            self.totals.newest.found(*place, peak);
        }
        lost.into_iter().for_each(|place| self.totals.newest.add_up(place));
    }
}
