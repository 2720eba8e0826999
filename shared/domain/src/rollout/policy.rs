//! Applies the policies of a rollout to its targets: devices that are not heard, and the budget of groups.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_contract::Timestamp;
use muster_contract::labels::Labels;
use muster_contract::rollout::{Budget, Offline, RolloutRecord, Wave};

use super::target::{Evidence, Target};

/// The targets, with those that are not heard as the waves' policies count them.
pub(super) fn with_offline_policies<'a>(
    waves: &[Wave],
    wave_indices: &[usize],
    record: Option<&RolloutRecord>,
    targets: &[Target<'a>],
    now: Timestamp,
) -> Vec<Target<'a>> {
    let mut counted = targets.to_vec();
    for (at, wave) in waves.iter().enumerate() {
        let (after, most, evidence) = match wave.offline {
            Offline::Wait => continue,
            Offline::Debt { after, max } => (after, max.get() as usize, Evidence::Debt),
            Offline::Fail { after } => (after, usize::MAX, Evidence::Failed),
        };
        // Before a wave has begun, no device of it owes anything.
        let Some(began) = record.and_then(|record| record.began(wave.name.as_str())) else { continue };
        let mut dark: Vec<_> = (0..targets.len())
            .filter(|target| wave_indices[*target] == at)
            .filter_map(|target| Some((dark_since(&targets[target], began)?, target)))
            .filter(|(since, _)| is_over(*since, after, now))
            .collect();
        // The longest silent ones first; devices silent for the same time in the order of their names.
        dark.sort_by_key(|(since, target)| (*since, targets[*target].key));
        for (_, target) in dark.into_iter().take(most) {
            counted[target].evidence = evidence;
        }
    }
    counted
}

/// Time since which a released target without a known end was not heard, within its wave.
fn dark_since(target: &Target<'_>, began: Timestamp) -> Option<Timestamp> {
    let is_open = target.is_released && target.evidence == Evidence::Unknown;
    target.silent_since.filter(|_| is_open).map(|since| since.max(began))
}

/// Whether a time has passed since then.
pub(super) fn is_over(since: Timestamp, time: Duration, now: Timestamp) -> bool {
    since.checked_add(time).is_ok_and(|end| end <= now)
}

/// The room that a budget leaves in each group.
#[derive(Debug)]
pub(super) struct Room<'a> {
    budget: Option<&'a Budget>,
    /// The devices and the unavailable ones of each group.
    groups: BTreeMap<&'a str, (usize, usize)>,
}

impl<'a> Room<'a> {
    /// The room beside these targets.
    pub(super) fn beside(budget: Option<&'a Budget>, targets: &[Target<'a>]) -> Self {
        let mut room = Self { budget, groups: BTreeMap::new() };
        for target in budget.iter().flat_map(|_| targets) {
            room.count(target);
        }
        room
    }

    /// Takes the place of a release to a target; false if its group has no room. A device that is unavailable already needs
    /// none.
    pub(super) fn admits(&mut self, target: &Target<'a>) -> bool {
        let Some(budget) = self.budget else { return true };
        if is_unavailable(target) {
            return true;
        }
        let (devices, unavailable) = self.groups.entry(group(budget, target.labels)).or_default();
        let has_room = *unavailable < budget.most_unavailable(*devices);
        *unavailable += usize::from(has_room);
        has_room
    }

    /// Counts a target in its group.
    fn count(&mut self, target: &Target<'a>) {
        if let Some(budget) = self.budget {
            let (devices, unavailable) = self.groups.entry(group(budget, target.labels)).or_default();
            *devices += 1;
            *unavailable += usize::from(is_unavailable(target));
        }
    }

    /// The groups without room: each with its devices, its unavailable ones and the most that may be.
    pub(super) fn full(&self) -> impl Iterator<Item = (&'a str, usize, usize, usize)> {
        let budget = self.budget;
        self.groups.iter().filter_map(move |(group, (devices, unavailable))| {
            let most = budget?.most_unavailable(*devices);
            (*unavailable >= most).then_some((*group, *devices, *unavailable, most))
        })
    }
}

/// The value of the budget's label; devices without the label are a group as well.
pub fn group<'a>(budget: &Budget, labels: &'a Labels) -> &'a str {
    labels.get(&budget.group_by).map_or("", |value| value.as_str())
}

/// Whether a target is not heard, has failed, or has got the content and not confirmed it.
pub(super) fn is_unavailable(target: &Target<'_>) -> bool {
    let is_confirmed = matches!(target.evidence, Evidence::Confirmed(_));
    target.silent_since.is_some() || target.is_released && !is_confirmed
}
