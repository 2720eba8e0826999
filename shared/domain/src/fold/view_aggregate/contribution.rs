//! Lists the contributions of a device to a defined view: the part, the counted unit and its times. It counts nothing itself.

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
pub(super) enum ViewPart<'a> {
    /// Everything that is selected.
    Total,
    /// The devices without the label that is grouped by.
    Without,
    /// A group.
    Group(&'a str),
}

/// The share of a device in one part.
pub(super) struct ViewContribution<'a> {
    pub(super) part: ViewPart<'a>,
    /// Absent if another contribution of the device to this part has the times of all of them.
    pub(super) times: Option<Times>,
    counted: Option<CountedUnit<'a>>,
}

/// One unit of what a view counts.
#[derive(Clone, Copy)]
enum CountedUnit<'a> {
    Standing(CountClass),
    Device(CountedDevice<'a>),
    /// The components of a standing; only that of one name, if there is one.
    Components(CountClass, &'a ComponentSet, Option<&'a str>),
}

impl ViewContribution<'_> {
    /// Adds it to the counts of its part, or retracts it.
    pub(super) fn apply(&self, delta: Delta, counts: &mut Counts) {
        match self.counted {
            None => {}
            Some(CountedUnit::Standing(class)) => counts.group.shift(delta, class),
            Some(CountedUnit::Device(CountedDevice { device, context, .. })) => {
                let complete = context.is_complete(device.unknown);
                counts.devices.shift(delta, context.freshness, context.missing, complete);
            }
            Some(CountedUnit::Components(class, components, name)) => {
                counts.group.shift(delta, class);
                let wanted = components.iter().filter(|(of, _)| name.is_none_or(|name| name == of.as_str()));
                wanted
                    .for_each(|(_, state): &(_, State)| delta.apply(&mut counts.states[*state as usize], 1));
            }
        }
    }
}

/// Passes on each contribution of a device. Returns the newest times of all, if there is any.
pub(super) fn contributions<'a>(
    definition: &'a ViewDefinition,
    seen: CountedDevice<'a>,
    mut pass: impl FnMut(ViewContribution<'a>),
) -> Option<Times> {
    if seen.context.retired || !definition.select.takes_device(seen) {
        return None;
    }
    let is_of_devices = definition.count == Counted::Devices;
    let heard_at = seen.context.heard_at;
    // The newest times of all rows: they are those of the total, and of the part that the whole device is in.
    let mut whole =
        (is_of_devices && definition.select.is_of_devices()).then_some(Times { changed_at: None, heard_at });
    let part = part_of_device(definition, seen);
    for row in &seen.device.rows {
        let Some(class) = count_class(definition, seen, row) else { continue };
        let times = Times { changed_at: row.changed_at(), heard_at };
        let counted = match (definition.count, &row.report) {
            (Counted::Standings, _) => CountedUnit::Standing(class),
            (Counted::Devices, _) => CountedUnit::Device(seen),
            (Counted::Components, Some(report)) => CountedUnit::Components(class, &report.components, None),
            (Counted::Components, None) => continue,
        };
        whole = Some(whole.unwrap_or_default().newest(times));
        if !is_of_devices {
            let parts = [Some(ViewPart::Total), part].into_iter().flatten();
            parts.for_each(|part| pass(ViewContribution { part, times: None, counted: Some(counted) }));
        }
        groups_of_row(definition, seen, row, counted, |name, counted| {
            pass(ViewContribution {
                part: ViewPart::Group(name),
                times: Some(times),
                counted: Some(counted),
            });
        });
    }
    let counted = is_of_devices.then_some(CountedUnit::Device(seen));
    for part in [Some(ViewPart::Total), part].into_iter().flatten().filter(|_| whole.is_some()) {
        pass(ViewContribution { part, times: whole, counted });
    }
    whole
}

/// Passes on the groups of a row: its deployment, or its components.
fn groups_of_row<'a>(
    definition: &ViewDefinition,
    seen: CountedDevice<'a>,
    row: &Row,
    counted: CountedUnit<'a>,
    mut pass: impl FnMut(&'a str, CountedUnit<'a>),
) {
    match (&definition.group_by, counted) {
        (Some(GroupBy::Deployment), counted) => {
            pass(seen.totals.deployment(row.deployment).id.as_str(), counted);
        }
        (Some(GroupBy::Component), CountedUnit::Components(class, components, _)) => {
            for (name, _) in components.iter() {
                pass(name.as_str(), CountedUnit::Components(class, components, Some(name.as_str())));
            }
        }
        _ => {}
    }
}

/// The part that all rows of a device are in, if the view groups by site or label.
fn part_of_device<'a>(definition: &'a ViewDefinition, seen: CountedDevice<'a>) -> Option<ViewPart<'a>> {
    match &definition.group_by {
        Some(GroupBy::Site) => Some(ViewPart::Group(seen.totals.site(seen.device.site).id.as_str())),
        Some(GroupBy::Label(label)) => {
            Some(seen.label(label).map_or(ViewPart::Without, |value| ViewPart::Group(value.as_str())))
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
