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
mod definitions;
mod newest;
mod select;
mod view;

pub use view::{Shown, Unsigned};

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_contract::defined::{Counted, GroupBy, ViewDefinition};
use muster_contract::{Timestamp, ViewName};

use self::cell::Cell;
use self::newest::NewestTimes;
use self::select::Selects as _;
use super::delta::Delta;
use super::device::Device;
use super::hearing::UnheardCounts;
use super::max_timestamp::Times;
use super::standing::{CountClass, DeviceContext, Row};
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
    total: Cell,
    /// Devices without the label that is grouped by.
    without: Cell,
    groups: BTreeMap<Box<str>, Cell>,
    /// Devices that count, by unheard partition.
    unheard: UnheardCounts,
    /// When the rows that count last changed, and when their devices were last heard.
    newest: NewestTimes,
    changed: bool,
}

/// A device as a definition sees it.
#[derive(Clone, Copy)]
struct CountedDevice<'a> {
    totals: &'a Totals,
    device: &'a Device,
    context: &'a DeviceContext,
}

/// The rows of a device that count.
#[derive(Default)]
struct CountedRows {
    /// Whether the device counts.
    any: bool,
    changed_at: Option<Timestamp>,
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
            if times_of(&aggregate.definition, seen).is_some() {
                aggregate.newest.exchange_heard(number, before.heard_at, after.heard_at);
            }
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
            total: Cell::default(),
            without: Cell::default(),
            groups: BTreeMap::new(),
            unheard: UnheardCounts::default(),
            newest: NewestTimes::default(),
            changed: false,
        }
    }

    /// Adds a device to the counts or retracts it. True where it counts.
    fn apply_delta(&mut self, delta: Delta, number: u32, seen: CountedDevice<'_>) -> bool {
        if seen.context.retired || !self.definition.select.takes_device(seen) {
            return false;
        }
        let CountedRows { any, changed_at } = match self.definition.count {
            Counted::Standings => self.apply_standings(delta, seen),
            Counted::Devices => self.apply_device(delta, seen),
            Counted::Components => self.apply_components(delta, seen),
        };
        self.unheard.shift(delta, seen.context.unheard_in.filter(|_| any));
        if any {
            self.newest.apply(delta, number, Times { changed_at, heard_at: seen.context.heard_at });
        }
        any
    }

    fn apply_standings(&mut self, delta: Delta, seen: CountedDevice<'_>) -> CountedRows {
        let mut counted = CountedRows::default();
        for row in &seen.device.rows {
            let Some(class) = count_class(&self.definition, seen, row) else { continue };
            counted.insert(row);
            self.total.group.shift(delta, class);
            self.with_group_of(seen, row, |cell| cell.group.shift(delta, class));
        }
        counted
    }

    fn apply_device(&mut self, delta: Delta, seen: CountedDevice<'_>) -> CountedRows {
        let by_deployment = self.definition.group_by == Some(GroupBy::Deployment);
        let (context, complete) = (seen.context, seen.context.is_complete(seen.device.unknown));
        let shift = |cell: &mut Cell| cell.devices.shift(delta, context.freshness, context.missing, complete);
        let any = self.definition.select.is_of_devices();
        let mut counted = CountedRows { any, ..CountedRows::default() };
        for row in &seen.device.rows {
            if count_class(&self.definition, seen, row).is_some() {
                counted.insert(row);
                if by_deployment {
                    self.with_group_of(seen, row, shift);
                }
            }
        }
        if counted.any {
            shift(&mut self.total);
            if !by_deployment {
                self.with_group_of_device(seen, shift);
            }
        }
        counted
    }

    fn apply_components(&mut self, delta: Delta, seen: CountedDevice<'_>) -> CountedRows {
        let by_component = self.definition.group_by == Some(GroupBy::Component);
        let mut counted = CountedRows::default();
        for row in &seen.device.rows {
            let (Some(class), Some(report)) = (count_class(&self.definition, seen, row), &row.report) else {
                continue;
            };
            counted.insert(row);
            let count = |cell: &mut Cell, name: Option<&str>| {
                cell.group.shift(delta, class);
                let wanted =
                    report.components.iter().filter(|(of, _)| name.is_none_or(|name| name == of.as_str()));
                wanted.for_each(|(_, state)| delta.apply(&mut cell.states[*state as usize], 1));
            };
            count(&mut self.total, None);
            if by_component {
                for (name, _) in report.components.iter() {
                    with(&mut self.groups, name.as_str(), |cell| count(cell, Some(name.as_str())));
                }
            } else {
                self.with_group_of(seen, row, |cell| count(cell, None));
            }
        }
        counted
    }

    /// Changes the group that a row of the device is in, if rows are grouped.
    fn with_group_of(&mut self, seen: CountedDevice<'_>, row: &Row, change: impl FnOnce(&mut Cell)) {
        match self.definition.group_by {
            Some(GroupBy::Deployment) => {
                with(&mut self.groups, seen.totals.deployment(row.deployment).id.as_str(), change);
            }
            _ => self.with_group_of_device(seen, change),
        }
    }

    fn with_group_of_device(&mut self, seen: CountedDevice<'_>, change: impl FnOnce(&mut Cell)) {
        match &self.definition.group_by {
            Some(GroupBy::Site) => {
                with(&mut self.groups, seen.totals.site(seen.device.site).id.as_str(), change);
            }
            Some(GroupBy::Label(label)) => match seen.label(label) {
                Some(value) => with(&mut self.groups, value.as_str(), change),
                None => change(&mut self.without),
            },
            Some(GroupBy::Deployment | GroupBy::Component) | None => {}
        }
    }
}

impl CountedRows {
    fn insert(&mut self, row: &Row) {
        self.any = true;
        self.changed_at = self.changed_at.max(row.changed_at());
    }
}

/// When the rows of a device that count last changed, and when it was last heard; none if it does not count.
fn times_of(definition: &ViewDefinition, seen: CountedDevice<'_>) -> Option<Times> {
    let select = &definition.select;
    if seen.context.retired || !select.takes_device(seen) {
        return None;
    }
    let any = definition.count == Counted::Devices && select.is_of_devices();
    let mut counted = CountedRows { any, ..CountedRows::default() };
    let rows = seen.device.rows.iter().filter(|row| count_class(definition, seen, row).is_some());
    rows.for_each(|row| counted.insert(row));
    let times = Times { changed_at: counted.changed_at, heard_at: seen.context.heard_at };
    counted.any.then_some(times)
}

/// The class of a row, if it is selected. Components are counted of reports about the current target alone.
fn count_class(definition: &ViewDefinition, seen: CountedDevice<'_>, row: &Row) -> Option<CountClass> {
    let class = row.count_class(seen.context);
    let is_shown = definition.count != Counted::Components || class.shows_components();
    (is_shown && definition.select.takes_standing(seen, row, class)).then_some(class)
}

/// Changes the cell of a name, which is there while it holds anything.
fn with(groups: &mut BTreeMap<Box<str>, Cell>, name: &str, change: impl FnOnce(&mut Cell)) {
    if let Some(cell) = groups.get_mut(name) {
        change(cell);
        if *cell == Cell::default() {
            groups.remove(name);
        }
        return;
    }
    let mut cell = Cell::default();
    change(&mut cell);
    groups.insert(name.into(), cell);
}
