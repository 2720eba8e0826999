//! Lists what a device contributes to a view: to which of its parts, what is counted there, and with which times. It counts
//! nothing itself.

use muster_contract::State;
use muster_contract::defined::{Counted, GroupBy, ViewDefinition};

use super::CountedDevice;
use super::cell::Counts;
use super::select::Selects as _;
use crate::fold::component_set::ComponentSet;
use crate::fold::delta::Delta;
use crate::fold::max_timestamp::Times;
use crate::fold::standing::{CountClass, Row};

/// A part of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place<Name> {
    /// Everything that is selected.
    Total,
    /// The devices without the label that is grouped by.
    Without,
    /// A group.
    Group(Name),
}

impl<Name: AsRef<str>> Place<Name> {
    pub(super) fn as_ref(&self) -> Place<&str> {
        match self {
            Self::Total => Place::Total,
            Self::Without => Place::Without,
            Self::Group(name) => Place::Group(name.as_ref()),
        }
    }
}

/// The share of a device in one part.
pub(super) struct ViewContribution<'a> {
    pub(super) place: Place<&'a str>,
    pub(super) times: Times,
    counted: Unit<'a>,
}

/// One unit of what a view counts.
#[derive(Clone, Copy)]
enum Unit<'a> {
    Standing(CountClass),
    Device(CountedDevice<'a>),
    /// The components of a standing; only that of one name, if there is one.
    Components(CountClass, &'a ComponentSet, Option<&'a str>),
}

impl ViewContribution<'_> {
    /// Adds it to the counts of its part, or retracts it.
    pub(super) fn apply(&self, delta: Delta, counts: &mut Counts) {
        match self.counted {
            Unit::Standing(class) => counts.group.shift(delta, class),
            Unit::Device(CountedDevice { device, context, .. }) => {
                let complete = context.is_complete(device.unknown);
                counts.devices.shift(delta, context.freshness, context.missing, complete);
            }
            Unit::Components(class, components, name) => {
                counts.group.shift(delta, class);
                let wanted = components.iter().filter(|(of, _)| name.is_none_or(|name| name == of.as_str()));
                wanted
                    .for_each(|(_, state): &(_, State)| delta.apply(&mut counts.states[*state as usize], 1));
            }
        }
    }
}

/// Passes on each contribution of a device. True if there is any.
pub(super) fn contributions<'a>(
    definition: &'a ViewDefinition,
    seen: CountedDevice<'a>,
    mut pass: impl FnMut(ViewContribution<'a>),
) -> bool {
    if seen.context.retired || !definition.select.takes_device(seen) {
        return false;
    }
    let rows = seen.device.rows.iter();
    let rows = rows.filter_map(|row| Some((row, count_class(definition, seen, row)?)));
    match definition.count {
        Counted::Standings => rows.fold(false, |_, (row, class)| {
            of_row(definition, seen, row, Unit::Standing(class), &mut pass);
            true
        }),
        Counted::Devices => of_device(definition, seen, rows.map(|(row, _)| row), &mut pass),
        Counted::Components => rows.fold(false, |any, (row, class)| {
            let Some(report) = &row.report else { return any };
            of_components(definition, seen, row, (class, &report.components), &mut pass);
            true
        }),
    }
}

/// A row, in the total and in the group that it is in.
fn of_row<'a>(
    definition: &'a ViewDefinition,
    seen: CountedDevice<'a>,
    row: &Row,
    counted: Unit<'a>,
    pass: &mut impl FnMut(ViewContribution<'a>),
) {
    let times = Times { changed_at: row.changed_at(), heard_at: seen.context.heard_at };
    let place = match definition.group_by {
        Some(GroupBy::Deployment) => Some(Place::Group(seen.totals.deployment(row.deployment).id.as_str())),
        _ => place_of_device(definition, seen),
    };
    let places = [Some(Place::Total), place].into_iter().flatten();
    places.for_each(|place| pass(ViewContribution { place, times, counted }));
}

/// A device once, with the newest of the times of its rows; by deployment, in the group of each row.
fn of_device<'a>(
    definition: &'a ViewDefinition,
    seen: CountedDevice<'a>,
    rows: impl Iterator<Item = &'a Row>,
    pass: &mut impl FnMut(ViewContribution<'a>),
) -> bool {
    let counted = Unit::Device(seen);
    let (mut any, mut whole) = (definition.select.is_of_devices(), Times::default());
    whole.heard_at = seen.context.heard_at;
    for row in rows {
        any = true;
        let times = Times { changed_at: row.changed_at(), heard_at: seen.context.heard_at };
        whole = whole.newest(times);
        if definition.group_by == Some(GroupBy::Deployment) {
            let place = Place::Group(seen.totals.deployment(row.deployment).id.as_str());
            pass(ViewContribution { place, times, counted });
        }
    }
    if any {
        let places = [Some(Place::Total), place_of_device(definition, seen)].into_iter().flatten();
        places.for_each(|place| pass(ViewContribution { place, times: whole, counted }));
    }
    any
}

/// The components of a row; by component, in the group of each.
fn of_components<'a>(
    definition: &'a ViewDefinition,
    seen: CountedDevice<'a>,
    row: &Row,
    (class, components): (CountClass, &'a ComponentSet),
    pass: &mut impl FnMut(ViewContribution<'a>),
) {
    of_row(definition, seen, row, Unit::Components(class, components, None), pass);
    if definition.group_by == Some(GroupBy::Component) {
        let times = Times { changed_at: row.changed_at(), heard_at: seen.context.heard_at };
        for (name, _) in components.iter() {
            let name = name.as_str();
            let counted = Unit::Components(class, components, Some(name));
            pass(ViewContribution { place: Place::Group(name), times, counted });
        }
    }
}

/// The group of a device, if devices are grouped by what they are.
fn place_of_device<'a>(definition: &'a ViewDefinition, seen: CountedDevice<'a>) -> Option<Place<&'a str>> {
    match &definition.group_by {
        Some(GroupBy::Site) => Some(Place::Group(seen.totals.site(seen.device.site).id.as_str())),
        Some(GroupBy::Label(label)) => {
            Some(seen.label(label).map_or(Place::Without, |value| Place::Group(value.as_str())))
        }
        Some(GroupBy::Deployment | GroupBy::Component) | None => None,
    }
}

/// The class of a row, if it is selected. Components are counted of reports about the current target alone.
fn count_class(definition: &ViewDefinition, seen: CountedDevice<'_>, row: &Row) -> Option<CountClass> {
    let class = row.count_class(seen.context);
    let is_shown = definition.count != Counted::Components || class.shows_components();
    (is_shown && definition.select.takes_standing(seen, row, class)).then_some(class)
}
