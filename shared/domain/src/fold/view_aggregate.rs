//! Maintains user-defined views incrementally. Each has its own counts: when a device changes, its old
//! contribution is retracted and its new one added. A fact costs the device's rows times the views, whatever
//! the fleet's size.
//!
//! A new definition is counted device by device, a bounded number at a time, while facts arrive: devices below
//! the cursor are counted and kept up to date, those above are not yet. When the cursor has passed the last
//! device, the view equals a count of the whole fleet at that moment.
//!
//! Counts are retracted exactly. The whole view keeps the newest times of each block of devices ([`newest`]). A part keeps only its
//! maxima, which are stale from when the newest time leaves the part until a newer one comes.

mod cell;
mod contribution;
mod definitions;
mod newest;
mod select;
pub(super) mod view;

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_contract::defined::ViewDefinition;
use muster_contract::{Timestamp, ViewName};

use self::cell::{Cell, Counts};
use self::contribution::{ViewPart, contributions};
use self::newest::NewestTimes;
use super::delta::Delta;
use super::device::Device;
use super::hearing::UnheardCounts;
use super::max_timestamp::Times;
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
    /// When the rows that count last changed, and when their devices were last heard.
    newest: NewestTimes,
    changed: bool,
}

/// The parts of a view. A group is there while it counts anything.
#[derive(Debug, Default)]
struct Parts {
    total: Counts,
    /// Devices without the label that is grouped by.
    without: Cell,
    groups: BTreeMap<Box<str>, Cell>,
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
            aggregate.exchange_heard(number, seen, before.heard_at, after.heard_at);
        }
    }

    /// Recomputes the times that a fact left stale. Counts and records of all devices must agree.
    pub(super) fn recompute_times(&mut self, totals: &Totals, devices: &[Device]) {
        for ViewAggregate { definition, cursor, newest, .. } in self.list.values_mut() {
            newest.recompute(*cursor, |number| {
                let device = &devices[number as usize];
                times_of(definition, CountedDevice { totals, device, context: &device.state.context() })
            });
        }
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
            newest: NewestTimes::default(),
            changed: false,
        }
    }

    /// Adds a device to the counts or retracts it. True where it counts.
    fn apply_delta(&mut self, delta: Delta, number: u32, seen: CountedDevice<'_>) -> bool {
        let Self { definition, parts, newest, .. } = self;
        let whole = contributions(definition, seen, |contribution| match contribution.part {
            ViewPart::Total => contribution.apply(delta, &mut parts.total),
            part => parts.change(part, |cell| {
                contribution.apply(delta, &mut cell.counts);
                contribution.times.into_iter().for_each(|times| cell.apply_times(delta, times));
            }),
        });
        whole.into_iter().for_each(|times| newest.apply(delta, number, times));
        self.unheard.shift(delta, seen.context.unheard_in.filter(|_| whole.is_some()));
        whole.is_some()
    }

    /// Replaces the time at which a device was heard, in each part to which it contributes.
    fn exchange_heard(
        &mut self,
        number: u32,
        seen: CountedDevice<'_>,
        was: Option<Timestamp>,
        is: Option<Timestamp>,
    ) {
        let Self { definition, parts, newest, .. } = self;
        let whole = contributions(definition, seen, |contribution| {
            if contribution.times.is_some() && contribution.part != ViewPart::Total {
                parts.change(contribution.part, |cell| _ = cell.heard.exchange(was, is));
            }
        });
        if whole.is_some() {
            newest.exchange_heard(number, was, is);
        }
    }
}

impl Parts {
    /// Changes a part other than the total.
    fn change(&mut self, part: ViewPart<'_>, change: impl FnOnce(&mut Cell)) {
        let ViewPart::Group(name) = part else { return change(&mut self.without) };
        if let Some(cell) = self.groups.get_mut(name) {
            change(cell);
            if cell.counts == Counts::default() {
                self.groups.remove(name);
            }
            return;
        }
        let mut cell = Cell::default();
        change(&mut cell);
        // The times of a device are retracted after its counts.
        if cell.counts != Counts::default() {
            self.groups.insert(name.into(), cell);
        }
    }
}

/// When the rows of a device that count last changed, and when it was last heard; none if it does not count.
fn times_of(definition: &ViewDefinition, seen: CountedDevice<'_>) -> Option<Times> {
    contributions(definition, seen, |_| {})
}
