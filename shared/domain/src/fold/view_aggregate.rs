//! Maintains user-defined views incrementally. Each has its own counts: when a device changes, its old
//! contribution is retracted and its new one added. A fact costs the device's rows times the views, whatever
//! the fleet's size.
//!
//! A new definition is counted device by device, a bounded number at a time, while facts arrive: devices below
//! the cursor are counted and kept up to date, those above are not yet. When the cursor has passed the last
//! device, the view equals a count of the whole fleet at that moment.

mod cell;
mod definitions;
mod select;
mod view;

pub use view::{Shown, Unsigned};

use std::collections::BTreeMap;

use muster_contract::ViewName;
use muster_contract::canonical::Digest;
use muster_contract::defined::{Counted, GroupBy, ViewDefinition};

use self::cell::Cell;
use self::select::Selects as _;
use super::delta::Delta;
use super::device::Device;
use super::hearing::UnheardCounts;
use super::max_timestamp::{MaxTimestamp, Times};
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
    /// When the rows that count last changed.
    last_changed: MaxTimestamp,
    /// When the devices that count were last heard.
    last_heard: MaxTimestamp,
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
            if number < aggregate.cursor && aggregate.apply_delta(delta, seen) {
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
            if aggregate.times_of(seen).is_some() {
                aggregate.last_heard.exchange(before.heard_at, after.heard_at);
            }
        }
    }

    /// A device is new, the last by number: views that have counted all others count it too.
    pub(super) fn admit(&mut self, totals: &Totals, number: u32, device: &Device) {
        let context = device.state.context();
        for (name, aggregate) in self.list.iter_mut().filter(|(_, aggregate)| aggregate.counted) {
            aggregate.cursor = number + 1;
            if aggregate.apply_delta(Delta::Add, CountedDevice { totals, device, context: &context }) {
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
            last_changed: MaxTimestamp::default(),
            last_heard: MaxTimestamp::default(),
            changed: false,
        }
    }

    /// Adds a device to the counts or retracts it. True where it counts.
    fn apply_delta(&mut self, delta: Delta, seen: CountedDevice<'_>) -> bool {
        if seen.context.retired || !self.definition.select.takes_device(seen) {
            return false;
        }
        let counts = match self.definition.count {
            Counted::Standings => self.apply_standings(delta, seen),
            Counted::Devices => self.apply_device(delta, seen),
            Counted::Components => self.apply_components(delta, seen),
        };
        self.unheard.shift(delta, seen.context.unheard_in.filter(|_| counts));
        if counts {
            self.last_heard.apply(delta, seen.context.heard_at);
        }
        counts
    }

    /// When the rows of a device that count last changed, and when it was last heard; none if it does not count.
    fn times_of(&self, seen: CountedDevice<'_>) -> Option<Times> {
        let select = &self.definition.select;
        if seen.context.retired || !select.takes_device(seen) {
            return None;
        }
        let counted = || seen.device.rows.iter().filter(|row| self.count_class(seen, row).is_some());
        let is_of_devices = self.definition.count == Counted::Devices && select.is_of_devices();
        let changed_at = counted().filter_map(Row::changed_at).max();
        let counts = is_of_devices || counted().next().is_some();
        counts.then_some(Times { changed_at, heard_at: seen.context.heard_at })
    }

    fn apply_standings(&mut self, delta: Delta, seen: CountedDevice<'_>) -> bool {
        let mut any = false;
        for row in &seen.device.rows {
            let Some(class) = self.count_class(seen, row) else { continue };
            any = true;
            self.last_changed.apply(delta, row.changed_at());
            self.total.group.shift(delta, class);
            self.with_group_of(seen, row, |cell| cell.group.shift(delta, class));
        }
        any
    }

    fn apply_device(&mut self, delta: Delta, seen: CountedDevice<'_>) -> bool {
        let by_deployment = self.definition.group_by == Some(GroupBy::Deployment);
        let (context, complete) = (seen.context, seen.context.is_complete(seen.device.unknown));
        let shift = |cell: &mut Cell| cell.devices.shift(delta, context.freshness, context.missing, complete);
        let mut any = self.definition.select.is_of_devices();
        for row in &seen.device.rows {
            if self.count_class(seen, row).is_some() {
                any = true;
                self.last_changed.apply(delta, row.changed_at());
                if by_deployment {
                    self.with_group_of(seen, row, shift);
                }
            }
        }
        if any {
            shift(&mut self.total);
            if !by_deployment {
                self.with_group_of_device(seen, shift);
            }
        }
        any
    }

    fn apply_components(&mut self, delta: Delta, seen: CountedDevice<'_>) -> bool {
        let by_component = self.definition.group_by == Some(GroupBy::Component);
        let mut any = false;
        for row in &seen.device.rows {
            let (Some(class), Some(report)) = (self.count_class(seen, row), &row.report) else { continue };
            any = true;
            self.last_changed.apply(delta, row.changed_at());
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
        any
    }

    /// The class of a row, if it is selected. Components are counted of reports about the current target alone.
    fn count_class(&self, seen: CountedDevice<'_>, row: &Row) -> Option<CountClass> {
        let class = row.count_class(seen.context);
        let is_shown = self.definition.count != Counted::Components || class.shows_components();
        (is_shown && self.definition.select.takes_standing(seen, row, class)).then_some(class)
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
