//! Renders defined views as documents. It counts nothing.

use std::collections::BTreeMap;

use muster_contract::ViewName;
use muster_contract::defined::{Counted, DefinedView, GroupBy, NamedPart, OmittedGroups};
use muster_contract::groups::{ViewLine, ViewsAnswer};
use muster_contract::limits::VIEW_GROUPS_MAX;
use muster_contract::view::content_digest;

use super::cell::{Cell, Counts};
use super::contribution::{ViewPart, contributions};
use super::{CountedDevice, Parts, ViewAggregate};
use crate::fold::fleet::Fleet;
use crate::fold::max_timestamp::Times;
use crate::fold::unsigned::unsigned;

/// Devices that one display of a view visits at most, for the times of its parts while one of their maxima is stale.
const VISITS_FOR_VIEW_MAX: usize = 20_000;

/// A defined view, as far as there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// The view is being counted, or the definitions are not known yet: its published state stays.
    NotYet,
    /// There is no such definition.
    Absent,
    /// The view.
    View(Unsigned),
}

/// A view without its digest. The digest takes much longer than the view, so a caller that shares the fleet
/// computes it after it has released the fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsigned(Box<DefinedView>);

impl Unsigned {
    /// The view with its digest.
    pub fn sign(self) -> Box<DefinedView> {
        let Self(mut view) = self;
        view.digest = content_digest(&*view);
        view
    }
}

impl Fleet {
    /// The current state of a defined view.
    pub fn defined_view(&self, name: &ViewName) -> Shown {
        match self.view_aggregates.list.get(name) {
            None if self.view_aggregates.known => Shown::Absent,
            Some(aggregate) if aggregate.counted => {
                Shown::View(Unsigned(Box::new(self.view_through(aggregate))))
            }
            _ => Shown::NotYet,
        }
    }

    /// The definitions by name, each with its counting progress.
    pub fn views_answer(&self) -> ViewsAnswer {
        let line = |aggregate: &ViewAggregate| ViewLine {
            definition: aggregate.definition.clone(),
            ready: aggregate.counted,
            groups: aggregate.parts.groups.len() as u64,
            uncounted: false,
        };
        ViewsAnswer { as_of: self.as_of, views: self.view_aggregates.list.values().map(line).collect() }
    }

    fn view_through(&self, aggregate: &ViewAggregate) -> DefinedView {
        let ViewAggregate { definition, parts, .. } = aggregate;
        let count = definition.count;
        let times = self.times_of_parts(aggregate);
        let shown = parts.groups.iter().take(VIEW_GROUPS_MAX);
        let groups = shown.map(|(name, cell)| NamedPart {
            name: name.to_string(),
            part: cell.counts.explained(count, times.of(ViewPart::Group(name), cell)),
        });
        let by_label = matches!(definition.group_by, Some(GroupBy::Label(_)));
        let without = || parts.without.counts.explained(count, times.of(ViewPart::Without, &parts.without));
        let total = parts.total.explained(count, aggregate.newest.newest());
        DefinedView {
            api_version: Default::default(),
            kind: Default::default(),
            name: definition.name.clone(),
            definition: aggregate.digest,
            as_of: self.as_of,
            group_by: definition.group_by.clone(),
            count,
            total: total.part,
            groups: groups.collect(),
            without: by_label.then(without),
            omitted: aggregate.omitted(&times),
            hub: self.hub_hearing(&aggregate.unheard),
            message: total.message,
            changed_at: total.changed_at,
            last_heard_at: total.last_heard_at,
            digest: unsigned(),
        }
    }

    /// The times of the parts of a view. If any is stale and the fleet is small enough, all devices are visited once.
    fn times_of_parts<'a>(&self, aggregate: &'a ViewAggregate) -> PartTimes<'a> {
        let parts = &aggregate.parts;
        let is_any_stale = parts.without.is_stale() || parts.groups.values().any(Cell::is_stale);
        if !is_any_stale || self.devices.len() > VISITS_FOR_VIEW_MAX {
            return PartTimes { visited: None };
        }
        let mut visited: BTreeMap<ViewPart<'a>, Times> = BTreeMap::new();
        for device in &self.devices[..aggregate.cursor as usize] {
            let context = device.state.context();
            let seen = CountedDevice { totals: &self.totals, device, context: &context };
            contributions(&aggregate.definition, seen, |found| {
                let part = match found.part {
                    ViewPart::Group(name) => {
                        parts.groups.get_key_value(name).map(|(name, _)| ViewPart::Group(name))
                    }
                    ViewPart::Without => Some(ViewPart::Without),
                    ViewPart::Total => None,
                };
                if let Some((part, times)) = part.zip(found.times) {
                    let newest = visited.entry(part).or_default();
                    *newest = newest.newest(times);
                }
            });
        }
        PartTimes { visited: Some(visited) }
    }
}

/// The times of the parts of a view.
struct PartTimes<'a> {
    /// The times that a visit of all devices found, if there was a visit.
    visited: Option<BTreeMap<ViewPart<'a>, Times>>,
}

impl PartTimes<'_> {
    /// The times of a part; none if its maxima are stale and the fleet was too large for a visit.
    fn of(&self, part: ViewPart<'_>, cell: &Cell) -> Times {
        match &self.visited {
            Some(visited) => visited.get(&part).copied().unwrap_or_default(),
            None if cell.is_stale() => Times::default(),
            None => Times { changed_at: cell.changed.bound(), heard_at: cell.heard.bound() },
        }
    }
}

impl ViewAggregate {
    /// The groups beyond the limit. They have no times if the times of one of them are unknown.
    fn omitted(&self, times: &PartTimes<'_>) -> Option<OmittedGroups> {
        let Parts { total, without, groups } = &self.parts;
        let count = groups.len().checked_sub(VIEW_GROUPS_MAX).filter(|count| *count > 0)?;
        let left_out = || groups.iter().skip(VIEW_GROUPS_MAX);
        let rest = if self.adds_up() {
            // Few are shown and many may be left out.
            let shown = groups.values().take(VIEW_GROUPS_MAX);
            shown.fold(total.without(&without.counts), |rest, cell| rest.without(&cell.counts))
        } else {
            let mut rest = Counts::default();
            left_out().for_each(|(_, cell)| rest += cell.counts);
            rest
        };
        let is_known = times.visited.is_some() || !left_out().any(|(_, cell)| cell.is_stale());
        let newest =
            left_out().filter(|_| is_known).map(|(name, cell)| times.of(ViewPart::Group(name), cell));
        let newest = newest.fold(Times::default(), Times::newest);
        Some(OmittedGroups { groups: count as u64, part: rest.explained(self.definition.count, newest) })
    }

    /// Whether nothing is in two groups.
    fn adds_up(&self) -> bool {
        !matches!(
            (self.definition.count, &self.definition.group_by),
            (Counted::Devices, Some(GroupBy::Deployment)) | (Counted::Components, Some(GroupBy::Component))
        )
    }
}
