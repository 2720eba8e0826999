//! Maintains user-defined views incrementally. Each has its own counts: when a device changes, its old
//! contribution is retracted and its new one added. A fact costs the device's rows times the views, whatever
//! the fleet's size.
//!
//! A new definition is counted device by device, a bounded number at a time, while facts arrive: devices below
//! the cursor are counted and kept up to date, those above are not yet. When the cursor has passed the last
//! device, the view equals a count of the whole fleet at that moment.
//!
//! Counts are retracted exactly; of times, only the newest of each block of devices are kept ([`newest`]).

mod cell;
mod contribution;
mod definitions;
mod newest;
mod select;
mod view;

pub use view::{Shown, Unsigned};

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::ViewName;
use muster_contract::canonical::Digest;
use muster_contract::defined::ViewDefinition;

use self::cell::{Cell, Counts};
use self::contribution::{Place, ViewContribution, contributions};
use self::newest::{BlockTimes, block_of, devices_of};
use super::delta::Delta;
use super::device::Device;
use super::hearing::UnheardCounts;
use super::standing::DeviceContext;
use super::totals::Totals;

/// All defined views.
#[derive(Debug, Default)]
pub(super) struct ViewAggregates {
    list: BTreeMap<ViewName, ViewAggregate>,
    changed: Vec<ViewName>,
    /// Whether the definitions are known: before that the set of views is unknown.
    known: bool,
}

/// One defined view.
#[derive(Debug)]
struct ViewAggregate {
    definition: ViewDefinition,
    digest: Digest,
    /// Devices with a number below this are counted.
    cursor: u32,
    /// All devices were counted once; new ones are counted as they come.
    counted: bool,
    parts: Parts,
    /// Devices that count, by unheard partition.
    unheard: UnheardCounts,
    /// Parts with a maximum that may be stale, by block.
    stale: BTreeMap<u32, BTreeSet<Place<Box<str>>>>,
    changed: bool,
}

/// A device as a definition sees it.
#[derive(Clone, Copy)]
struct CountedDevice<'a> {
    totals: &'a Totals,
    device: &'a Device,
    context: &'a DeviceContext,
}

impl ViewAggregates {
    /// Puts a device into what counts it already, or takes it out.
    pub(super) fn apply_delta(
        &mut self,
        delta: Delta,
        totals: &Totals,
        number: u32,
        device: &Device,
        context: &DeviceContext,
    ) {
        let seen = CountedDevice { totals, device, context };
        for (name, aggregate) in &mut self.list {
            if number < aggregate.cursor && aggregate.apply_delta(delta, number, seen) {
                mark(&mut self.changed, name, aggregate);
            }
        }
    }

    /// Replaces the time of a device that was heard, without a change of anything else. No view is marked as changed.
    pub(super) fn exchange_heard(
        &mut self,
        totals: &Totals,
        number: u32,
        device: &Device,
        [before, after]: [&DeviceContext; 2],
    ) {
        let seen = CountedDevice { totals, device, context: after };
        for aggregate in self.list.values_mut().filter(|aggregate| number < aggregate.cursor) {
            aggregate.change(number, seen, |cell, _| {
                cell.newest.exchange_heard(number, before.heard_at, after.heard_at)
            });
        }
    }

    /// Recomputes the times that a fact left stale. Counts and records of all devices must agree.
    pub(super) fn recompute_times(&mut self, totals: &Totals, devices: &[Device]) {
        self.list.values_mut().for_each(|aggregate| aggregate.recompute_times(totals, devices));
    }

    /// A device is new, the last by number: views that have counted all others count it too.
    pub(super) fn admit(&mut self, totals: &Totals, number: u32, device: &Device) {
        let context = device.state.context();
        for (name, aggregate) in self.list.iter_mut().filter(|(_, aggregate)| aggregate.counted) {
            aggregate.cursor = number + 1;
            let seen = CountedDevice { totals, device, context: &context };
            if aggregate.apply_delta(Delta::Add, number, seen) {
                mark(&mut self.changed, name, aggregate);
            }
        }
    }

    pub(super) fn drain_changed(&mut self) -> impl Iterator<Item = ViewName> + use<> {
        let changed = std::mem::take(&mut self.changed);
        for name in &changed {
            if let Some(aggregate) = self.list.get_mut(name) {
                aggregate.changed = false;
            }
        }
        changed.into_iter()
    }
}

fn mark(changed: &mut Vec<ViewName>, name: &ViewName, aggregate: &mut ViewAggregate) {
    if !std::mem::replace(&mut aggregate.changed, true) {
        changed.push(name.clone());
    }
}

impl ViewAggregate {
    fn new(definition: ViewDefinition, digest: Digest) -> Self {
        Self {
            definition,
            digest,
            cursor: 0,
            counted: false,
            parts: Parts::default(),
            unheard: UnheardCounts::default(),
            stale: BTreeMap::new(),
            changed: false,
        }
    }

    /// Adds a device to the counts or retracts it. True where it counts.
    fn apply_delta(&mut self, delta: Delta, number: u32, seen: CountedDevice<'_>) -> bool {
        let any = self.change(number, seen, |cell, contribution| {
            contribution.apply(delta, &mut cell.counts);
            cell.newest.apply(delta, number, contribution.times)
        });
        self.unheard.shift(delta, seen.context.unheard_in.filter(|_| any));
        any
    }

    /// Changes each part that a device contributes to. `change` tells whether it left a maximum of the device's block stale.
    /// True where the device counts.
    fn change(
        &mut self,
        number: u32,
        seen: CountedDevice<'_>,
        change: impl Fn(&mut Cell, &ViewContribution<'_>) -> bool,
    ) -> bool {
        let Self { definition, parts, stale, .. } = self;
        contributions(definition, seen, |contribution| {
            if parts.with(contribution.place, |cell| change(cell, &contribution)) {
                let place = match contribution.place {
                    Place::Total => Place::Total,
                    Place::Without => Place::Without,
                    Place::Group(name) => Place::Group(name.into()),
                };
                stale.entry(block_of(number)).or_default().insert(place);
            }
        })
    }

    /// Recomputes the times that are stale, by one visit of the devices of each block.
    fn recompute_times(&mut self, totals: &Totals, devices: &[Device]) {
        for (block, places) in std::mem::take(&mut self.stale) {
            let stale = places.into_iter().filter(|place| {
                self.parts.get(place.as_ref()).is_some_and(|cell| cell.newest.is_stale_in(block))
            });
            // In order, for the search below.
            let mut newest: Vec<_> = stale.map(|place| (place, BlockTimes::default())).collect();
            if newest.is_empty() {
                continue;
            }
            for number in devices_of(block, self.cursor) {
                let device = &devices[number as usize];
                let context = device.state.context();
                contributions(
                    &self.definition,
                    CountedDevice { totals, device, context: &context },
                    |found| {
                        let at = newest.binary_search_by(|(place, _)| place.as_ref().cmp(&found.place));
                        at.into_iter().for_each(|at| newest[at].1.add(found.times));
                    },
                );
            }
            for (place, times) in newest {
                self.parts.with(place.as_ref(), |cell| cell.newest.set(block, times));
            }
        }
    }
}

/// The parts of a view.
#[derive(Debug, Default)]
struct Parts {
    total: Cell,
    /// Devices without the label that is grouped by.
    without: Cell,
    groups: BTreeMap<Box<str>, Cell>,
}

impl Parts {
    fn get(&self, place: Place<&str>) -> Option<&Cell> {
        match place {
            Place::Total => Some(&self.total),
            Place::Without => Some(&self.without),
            Place::Group(name) => self.groups.get(name),
        }
    }

    /// Changes a part. A group is there while it counts anything.
    fn with<R>(&mut self, place: Place<&str>, change: impl FnOnce(&mut Cell) -> R) -> R {
        let name = match place {
            Place::Total => return change(&mut self.total),
            Place::Without => return change(&mut self.without),
            Place::Group(name) => name,
        };
        if let Some(cell) = self.groups.get_mut(name) {
            let result = change(cell);
            if cell.counts == Counts::default() {
                self.groups.remove(name);
            }
            return result;
        }
        let mut cell = Cell::default();
        let result = change(&mut cell);
        self.groups.insert(name.into(), cell);
        result
    }
}
