//! What a definition selects: rules of one device, and of one standing of it.

use muster_contract::defined::Selection;
use muster_contract::{LabelKey, LabelValue};

use super::Seen;
use crate::fold::standing::{Row, Share};

/// The rules of a selection, as the fold asks them.
pub(super) trait Selects {
    /// Whether it takes a device.
    fn takes_device(&self, seen: Seen<'_>) -> bool;
    /// Whether it takes a standing of a device that it takes.
    fn takes_standing(&self, seen: Seen<'_>, row: &Row, share: Share) -> bool;
}

impl Selects for Selection {
    fn takes_device(&self, seen: Seen<'_>) -> bool {
        let site = || &seen.totals.site(seen.device.site).id;
        self.sites.as_ref().is_none_or(|sites| sites.contains(site()))
            && self.freshness.as_ref().is_none_or(|wanted| wanted.contains(&seen.facet.freshness))
            && self
                .labels
                .iter()
                .all(|(label, values)| seen.label(label).is_some_and(|value| values.contains(value)))
    }

    fn takes_standing(&self, seen: Seen<'_>, row: &Row, share: Share) -> bool {
        let standing = match share {
            Share::Nothing => return false,
            Share::Leaving => None,
            Share::Target { standing, .. } => Some(standing),
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
                .is_none_or(|wanted| share.verdict().is_some_and(|verdict| wanted.contains(&verdict)))
    }
}

impl<'a> Seen<'a> {
    /// What a label says of the device.
    pub(super) fn label(self, label: &LabelKey) -> Option<&'a LabelValue> {
        let groups = self.device.groups.iter().map(|number| self.totals.groups.get(*number));
        groups.into_iter().find(|group| group.label == *label).map(|group| &group.value)
    }
}
