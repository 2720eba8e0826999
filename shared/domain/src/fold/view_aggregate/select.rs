//! Evaluates a definition's selection: rules on a device and on one of its standings.

use muster_contract::defined::Selection;
use muster_contract::{LabelKey, LabelValue};

use super::CountedDevice;
use crate::fold::standing::{CountClass, Row};

/// The rules of a selection, as the fold asks them.
pub(super) trait Selects {
    /// Whether it takes a device.
    fn takes_device(&self, seen: CountedDevice<'_>) -> bool;
    /// Whether it takes a standing of a device that it takes.
    fn takes_standing(&self, seen: CountedDevice<'_>, row: &Row, class: CountClass) -> bool;
}

impl Selects for Selection {
    fn takes_device(&self, seen: CountedDevice<'_>) -> bool {
        let site = || &seen.totals.site(seen.device.site).id;
        self.sites.as_ref().is_none_or(|sites| sites.contains(site()))
            && self.freshness.as_ref().is_none_or(|wanted| wanted.contains(&seen.context.freshness))
            && self
                .labels
                .iter()
                .all(|(label, values)| seen.label(label).is_some_and(|value| values.contains(value)))
    }

    fn takes_standing(&self, seen: CountedDevice<'_>, row: &Row, class: CountClass) -> bool {
        let standing = match class {
            CountClass::Nothing => return false,
            CountClass::Leaving => None,
            CountClass::Target { standing, .. } => Some(standing),
        };
        let id = || &seen.totals.deployment(row.deployment).id;
        self.deployments.as_ref().is_none_or(|wanted| wanted.contains(id()))
            && self
                .standings
                .as_ref()
                .is_none_or(|wanted| standing.is_some_and(|standing| wanted.contains(&standing)))
            && self
                .verdicts
                .as_ref()
                .is_none_or(|wanted| class.verdict().is_some_and(|verdict| wanted.contains(&verdict)))
    }
}

impl<'a> CountedDevice<'a> {
    /// The device's value of a label.
    pub(super) fn label(self, label: &LabelKey) -> Option<&'a LabelValue> {
        let groups = self.device.groups.iter().map(|number| self.totals.groups.get(*number));
        groups.into_iter().find(|group| group.label == *label).map(|group| &group.value)
    }
}
