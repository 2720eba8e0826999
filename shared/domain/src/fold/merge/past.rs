//! Merges the past of several hubs: one point in each LEDGER, and the difference between two. The views of a
//! point are a [`Merge`] of the parts that the hubs had then.

use std::collections::BTreeSet;

use muster_contract::history::{DeviceChange, DiffAnswer, DiffSide, Hindsight, HubMoment, MomentAnswer};
use muster_contract::query::SomeDevices;
use muster_contract::{DeploymentId, DeviceKey, HubName};

use super::super::diff::side;
use super::super::event_time::SKEWED_NAMED_MAX;
use super::{Merge, Pages, sum_of};

/// The position of a point at several hubs, from the position at each.
pub fn moment_of(of_hubs: &[(HubName, MomentAnswer)]) -> MomentAnswer {
    let abouts: Vec<&Hindsight> = of_hubs.iter().filter_map(|(_, moment)| moment.about.as_ref()).collect();
    MomentAnswer {
        as_of: sum_of(of_hubs.iter().map(|(_, moment)| moment.as_of)),
        about: abouts.first().map(|first| hindsight(first, &abouts)),
        hubs: of_hubs
            .iter()
            .map(|(name, moment)| HubMoment { name: name.clone(), as_of: moment.as_of })
            .collect(),
    }
}

fn hindsight(first: &Hindsight, all: &[&Hindsight]) -> Hindsight {
    let devices: BTreeSet<&DeviceKey> = all.iter().flat_map(|about| &about.skewed.first).collect();
    let count = all.iter().map(|about| about.skewed.count).sum();
    Hindsight {
        at: first.at,
        known_then: sum_of(all.iter().map(|about| about.known_then)),
        late_reports: all.iter().map(|about| about.late_reports).sum(),
        skewed: SomeDevices { count, ..SomeDevices::of(devices, SKEWED_NAMED_MAX) },
        skew_seconds: all.iter().map(|about| about.skew_seconds).max().unwrap_or_default(),
    }
}

impl Merge {
    /// Up to where each hub was read.
    fn moments(&self) -> Vec<HubMoment> {
        let read = self.hubs.iter().filter_map(|(name, hub)| Some((name, hub.as_of?)));
        read.map(|(name, as_of)| HubMoment { name: name.clone(), as_of }).collect()
    }
}

/// The difference between two points, merged from the hubs' answers.
#[derive(Debug)]
pub struct DiffSum {
    changed: u64,
    lines: Pages<DeviceChange>,
}

impl DiffSum {
    /// An empty sum with at most so many devices.
    pub const fn new(limit: usize) -> Self {
        Self { changed: 0, lines: Pages::new(limit) }
    }

    /// Applies a hub's answer, and the end of its page if it continues.
    pub fn add_answer(&mut self, hub: &HubName, mut answer: DiffAnswer, end: Option<DeviceKey>) {
        self.changed = self.changed.saturating_add(answer.changed);
        let facts = answer.devices.iter_mut().flat_map(|change| &mut change.facts);
        facts.for_each(|fact| fact.hub = Some(hub.clone()));
        self.lines.add_page(answer.devices, end);
    }

    /// How many devices it has.
    pub const fn lines(&self) -> usize {
        self.lines.len()
    }

    /// The answer with at most so many devices, from the sums at either point. None where the deployment
    /// existed at neither.
    pub fn answer(&self, id: &DeploymentId, from: &Merge, to: &Merge, most: usize) -> Option<DiffAnswer> {
        let views = [from, to].map(|merge| merge.deployment_view(id));
        if views.iter().all(Option::is_none) {
            return None;
        }
        let [before, after] = views;
        let (devices, next) = self.lines.cut(most);
        Some(DiffAnswer {
            deployment: id.clone(),
            from: DiffSide { hubs: from.moments(), ..side(from.as_of(), before) },
            to: DiffSide { hubs: to.moments(), ..side(to.as_of(), after) },
            changed: self.changed,
            devices: devices.to_vec(),
            next: next.map(|next| next.to_string()),
        })
    }
}
