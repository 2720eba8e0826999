//! Renders defined views as documents. It counts nothing.

use muster_contract::ViewName;
use muster_contract::defined::{Counted, DefinedView, GroupBy, NamedPart, OmittedGroups};
use muster_contract::explained::Explained;
use muster_contract::groups::{ViewLine, ViewsAnswer};
use muster_contract::limits::VIEW_GROUPS_MAX;
use muster_contract::view::content_digest;

use super::cell::Counts;
use super::{Parts, ViewAggregate};
use crate::fold::fleet::Fleet;
use crate::fold::max_timestamp::Times;
use crate::fold::view::unsigned;

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
        let shown = parts.groups.iter().take(VIEW_GROUPS_MAX);
        let groups = shown.map(|(name, cell)| NamedPart { name: name.to_string(), part: cell.part(count) });
        let by_label = matches!(definition.group_by, Some(GroupBy::Label(_)));
        let Explained { message, changed_at, last_heard_at, part: total } = parts.total.part(count);
        DefinedView {
            api_version: Default::default(),
            kind: Default::default(),
            name: definition.name.clone(),
            definition: aggregate.digest,
            as_of: self.as_of,
            group_by: definition.group_by.clone(),
            count,
            total,
            groups: groups.collect(),
            without: by_label.then(|| parts.without.part(count)),
            omitted: aggregate.omitted(),
            hub: self.hub_hearing(&aggregate.unheard),
            message,
            changed_at,
            last_heard_at,
            digest: unsigned(),
        }
    }
}

impl ViewAggregate {
    /// The groups beyond the limit.
    fn omitted(&self) -> Option<OmittedGroups> {
        let Parts { total, without, groups } = &self.parts;
        let count = groups.len().checked_sub(VIEW_GROUPS_MAX).filter(|count| *count > 0)?;
        let left_out = || groups.values().skip(VIEW_GROUPS_MAX);
        let rest = if self.adds_up() {
            // Few are shown and many may be left out.
            let shown = groups.values().take(VIEW_GROUPS_MAX);
            let grouped = total.counts.without(&without.counts);
            shown.fold(grouped, |rest, cell| rest.without(&cell.counts))
        } else {
            let mut rest = Counts::default();
            left_out().for_each(|cell| rest += cell.counts);
            rest
        };
        let times = left_out().map(|cell| cell.newest.newest()).fold(Times::default(), Times::newest);
        Some(OmittedGroups { groups: count as u64, part: rest.explained(self.definition.count, times) })
    }

    /// Whether nothing is in two groups.
    fn adds_up(&self) -> bool {
        !matches!(
            (self.definition.count, &self.definition.group_by),
            (Counted::Devices, Some(GroupBy::Deployment)) | (Counted::Components, Some(GroupBy::Component))
        )
    }
}
