//! Defined views as documents. Nothing is counted here, only shown.

use muster_contract::ViewName;
use muster_contract::defined::{Counted, DefinedView, GroupBy, NamedPart, OmittedGroups};
use muster_contract::groups::{ViewLine, ViewsAnswer};
use muster_contract::limits::VIEW_GROUPS_MAX;
use muster_contract::view::content_digest;

use super::Lens;
use super::cell::Cell;
use crate::fold::fleet::Fleet;
use crate::fold::view::unsigned;

/// A defined view, as far as there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// It is being counted, or nobody knows yet what is defined: what is shown of it stays as it is.
    NotYet,
    /// There is no such definition.
    Absent,
    /// The view.
    View(Unsigned),
}

/// A view without its digest. The digest takes much longer than the view: whoever shares the fleet with others makes it
/// when they have it back.
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
    /// A defined view as it is now.
    pub fn defined_view(&self, name: &ViewName) -> Shown {
        match self.lenses.list.get(name) {
            None if self.lenses.known => Shown::Absent,
            Some(lens) if lens.counted => Shown::View(Unsigned(Box::new(self.view_through(lens)))),
            _ => Shown::NotYet,
        }
    }

    /// The definitions by name, each with how far it is counted.
    pub fn views_answer(&self) -> ViewsAnswer {
        let line = |lens: &Lens| ViewLine {
            definition: lens.definition.clone(),
            ready: lens.counted,
            groups: lens.groups.len() as u64,
            uncounted: false,
        };
        ViewsAnswer { as_of: self.as_of, views: self.lenses.list.values().map(line).collect() }
    }

    fn view_through(&self, lens: &Lens) -> DefinedView {
        let count = lens.definition.count;
        let shown = lens.groups.iter().take(VIEW_GROUPS_MAX);
        let groups = shown.map(|(name, cell)| NamedPart { name: name.to_string(), part: cell.part(count) });
        let by_label = matches!(lens.definition.group_by, Some(GroupBy::Label(_)));
        DefinedView {
            api_version: Default::default(),
            kind: Default::default(),
            name: lens.definition.name.clone(),
            definition: lens.digest,
            as_of: self.as_of,
            group_by: lens.definition.group_by.clone(),
            count,
            total: lens.total.part(count),
            groups: groups.collect(),
            without: by_label.then(|| lens.without.part(count)),
            omitted: lens.omitted(),
            hub: self.hub_hearing(&lens.unheard),
            digest: unsigned(),
        }
    }
}

impl Lens {
    /// What the limit of groups leaves out.
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
