//! Renders defined views as documents. It counts nothing.

use muster_contract::ViewName;
use muster_contract::defined::{Counted, DefinedView, GroupBy, NamedPart, OmittedGroups};
use muster_contract::groups::{ViewLine, ViewsAnswer};
use muster_contract::limits::VIEW_GROUPS_MAX;
use muster_contract::view::content_digest;

use super::ViewAggregate;
use super::cell::Cell;
use crate::fold::fleet::Fleet;
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
            groups: aggregate.groups.len() as u64,
            uncounted: false,
        };
        ViewsAnswer { as_of: self.as_of, views: self.view_aggregates.list.values().map(line).collect() }
    }

    fn view_through(&self, aggregate: &ViewAggregate) -> DefinedView {
        let count = aggregate.definition.count;
        let shown = aggregate.groups.iter().take(VIEW_GROUPS_MAX);
        let groups = shown.map(|(name, cell)| NamedPart { name: name.to_string(), part: cell.part(count) });
        let times = aggregate.newest.newest();
        let by_label = matches!(aggregate.definition.group_by, Some(GroupBy::Label(_)));
        DefinedView {
            api_version: Default::default(),
            kind: Default::default(),
            name: aggregate.definition.name.clone(),
            definition: aggregate.digest,
            as_of: self.as_of,
            group_by: aggregate.definition.group_by.clone(),
            count,
            total: aggregate.total.part(count),
            groups: groups.collect(),
            without: by_label.then(|| aggregate.without.part(count)),
            omitted: aggregate.omitted(),
            hub: self.hub_hearing(&aggregate.unheard),
            message: aggregate.total.words(count),
            changed_at: times.changed_at,
            last_heard_at: times.heard_at,
            digest: unsigned(),
        }
    }
}

impl ViewAggregate {
    /// The groups beyond the limit.
    fn omitted(&self) -> Option<OmittedGroups> {
        let groups = self.groups.len().checked_sub(VIEW_GROUPS_MAX).filter(|groups| *groups > 0)?;
        let rest = if self.adds_up() {
            // Few are shown and many may be left out.
            let shown = self.groups.values().take(VIEW_GROUPS_MAX);
            shown.fold(self.total.without(&self.without), |rest, cell| rest.without(cell))
        } else {
            let mut rest = Cell::default();
            self.groups.values().skip(VIEW_GROUPS_MAX).for_each(|cell| rest += *cell);
            rest
        };
        Some(OmittedGroups { groups: groups as u64, part: rest.part(self.definition.count) })
    }

    /// Whether nothing is in two groups.
    fn adds_up(&self) -> bool {
        !matches!(
            (self.definition.count, &self.definition.group_by),
            (Counted::Devices, Some(GroupBy::Deployment)) | (Counted::Components, Some(GroupBy::Component))
        )
    }
}
