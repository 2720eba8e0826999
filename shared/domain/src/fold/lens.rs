//! Views that people define. Each has counts of its own, kept up to date as those of sites are: when a device alters, it is
//! taken out of them as it was and put in as it is. The cost of a fact is the device's rows times the views, whatever
//! the fleet's size.
//!
//! A new definition is counted device by device, a bounded number at a time, while facts go on coming in: devices
//! below the cursor are counted and kept up to date, those above are not yet. When the cursor has passed the last one, the
//! view is what a count of the whole fleet at that moment gives.

mod cell;
mod select;
mod view;

pub use view::{Shown, Unsigned};

use std::collections::BTreeMap;

use muster_contract::ViewName;
use muster_contract::canonical::Digest;
use muster_contract::defined::{Counted, GroupBy, ViewDefinition};

use self::cell::Cell;
use self::select::Selects as _;
use super::device::Device;
use super::fleet::Fleet;
use super::hearing::UnheardCounts;
use super::standing::{Facet, Row, Share};
use super::tally::Way;
use super::totals::Totals;

/// All defined views.
#[derive(Debug, Default)]
pub(super) struct Lenses {
    list: BTreeMap<ViewName, Lens>,
    changed: Vec<ViewName>,
    /// Whether the definitions are known: without them it cannot be told which views there shall be.
    known: bool,
}

/// One defined view.
#[derive(Debug)]
struct Lens {
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
    /// Devices that count for anything, by partition, of those that the hub does not listen to.
    unheard: UnheardCounts,
    changed: bool,
}

/// A device as a definition sees it.
#[derive(Clone, Copy)]
struct Seen<'a> {
    totals: &'a Totals,
    device: &'a Device,
    facet: &'a Facet,
}

impl Lenses {
    /// Puts a device into what counts it already, or takes it out.
    pub(super) fn weigh(&mut self, way: Way, totals: &Totals, number: u32, device: &Device, facet: &Facet) {
        let seen = Seen { totals, device, facet };
        for (name, lens) in &mut self.list {
            if number < lens.cursor && lens.weigh(way, seen) {
                mark(&mut self.changed, name, lens);
            }
        }
    }

    /// A device is new, the last by number: views that have counted all others count it too.
    pub(super) fn admit(&mut self, totals: &Totals, number: u32, device: &Device) {
        let facet = device.about.facet();
        for (name, lens) in self.list.iter_mut().filter(|(_, lens)| lens.counted) {
            lens.cursor = number + 1;
            if lens.weigh(Way::In, Seen { totals, device, facet: &facet }) {
                mark(&mut self.changed, name, lens);
            }
        }
    }

    pub(super) fn take_changed(&mut self) -> impl Iterator<Item = ViewName> + use<> {
        let changed = std::mem::take(&mut self.changed);
        for name in &changed {
            if let Some(lens) = self.list.get_mut(name) {
                lens.changed = false;
            }
        }
        changed.into_iter()
    }
}

fn mark(changed: &mut Vec<ViewName>, name: &ViewName, lens: &mut Lens) {
    if !std::mem::replace(&mut lens.changed, true) {
        changed.push(name.clone());
    }
}

impl Fleet {
    /// These are all the definitions there are. One that is as it was keeps its counts; the others begin to count.
    pub fn define(&mut self, definitions: impl IntoIterator<Item = ViewDefinition>) {
        let Lenses { list, changed, known } = &mut self.lenses;
        let mut before = std::mem::take(list);
        for definition in definitions {
            let digest = definition.digest();
            let name = definition.name.clone();
            let lens = match before.remove(&name).filter(|lens| lens.digest == digest) {
                Some(lens) => lens,
                None => Lens::new(definition, digest),
            };
            list.insert(name, lens);
        }
        changed.extend(before.into_keys());
        *known = true;
    }

    /// Counts up to `max` devices for definitions that have not counted all. True while there are more: what came in
    /// between is counted as well.
    pub fn count_defined(&mut self, max: u32) -> bool {
        let Self { lenses: Lenses { list, changed, .. }, devices, totals, .. } = self;
        let end = devices.len() as u32;
        let mut left = max;
        for (name, lens) in list.iter_mut().filter(|(_, lens)| !lens.counted) {
            let upto = end.min(lens.cursor.saturating_add(left));
            left -= upto - lens.cursor;
            for number in lens.cursor..upto {
                let device = &devices[number as usize];
                let facet = device.about.facet();
                lens.weigh(Way::In, Seen { totals, device, facet: &facet });
            }
            lens.cursor = upto;
            if upto < end {
                return true;
            }
            lens.counted = true;
            mark(changed, name, lens);
        }
        false
    }

    /// True while definitions are not known, or some have yet to count.
    pub fn is_counting(&self) -> bool {
        !self.lenses.known || self.lenses.list.values().any(|lens| !lens.counted)
    }

    /// Whether the definitions are known.
    pub const fn knows_definitions(&self) -> bool {
        self.lenses.known
    }
}

impl Lens {
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
            changed: false,
        }
    }

    /// Puts a device into the counts, or takes it out. True where it counts for anything.
    fn weigh(&mut self, way: Way, seen: Seen<'_>) -> bool {
        if seen.facet.retired || !self.definition.select.takes_device(seen) {
            return false;
        }
        let counts = match self.definition.count {
            Counted::Standings => self.weigh_standings(way, seen),
            Counted::Devices => self.weigh_device(way, seen),
            Counted::Components => self.weigh_components(way, seen),
        };
        self.unheard.shift(way, seen.facet.unheard_in.filter(|_| counts));
        counts
    }

    fn weigh_standings(&mut self, way: Way, seen: Seen<'_>) -> bool {
        let mut any = false;
        for row in &seen.device.rows {
            let Some(share) = self.share(seen, row) else { continue };
            any = true;
            self.total.group.shift(way, share);
            self.with_group_of(seen, row, |cell| cell.group.shift(way, share));
        }
        any
    }

    fn weigh_device(&mut self, way: Way, seen: Seen<'_>) -> bool {
        let by_deployment = self.definition.group_by == Some(GroupBy::Deployment);
        let (facet, complete) = (seen.facet, seen.facet.is_complete(seen.device.unknown));
        let shift = |cell: &mut Cell| cell.devices.shift(way, facet.freshness, facet.missing, complete);
        let mut any = self.definition.select.is_of_devices();
        for row in &seen.device.rows {
            if self.share(seen, row).is_some() {
                any = true;
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

    fn weigh_components(&mut self, way: Way, seen: Seen<'_>) -> bool {
        let by_component = self.definition.group_by == Some(GroupBy::Component);
        let mut any = false;
        for row in &seen.device.rows {
            let Some(share) = self.share(seen, row).filter(|share| share.shows_components()) else {
                continue;
            };
            let Some(report) = &row.report else { continue };
            any = true;
            let count = |cell: &mut Cell, name: Option<&str>| {
                cell.group.shift(way, share);
                let wanted =
                    report.components.iter().filter(|(of, _)| name.is_none_or(|name| name == of.as_str()));
                wanted.for_each(|(_, state)| way.by(&mut cell.states[*state as usize], 1));
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

    /// The share of a row, if it is selected.
    fn share(&self, seen: Seen<'_>, row: &Row) -> Option<Share> {
        let share = row.share(seen.facet);
        self.definition.select.takes_standing(seen, row, share).then_some(share)
    }

    /// Changes the group that a row of the device is in, if rows are grouped.
    fn with_group_of(&mut self, seen: Seen<'_>, row: &Row, change: impl FnOnce(&mut Cell)) {
        match self.definition.group_by {
            Some(GroupBy::Deployment) => {
                with(&mut self.groups, seen.totals.deployment(row.deployment).id.as_str(), change);
            }
            _ => self.with_group_of_device(seen, change),
        }
    }

    fn with_group_of_device(&mut self, seen: Seen<'_>, change: impl FnOnce(&mut Cell)) {
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
