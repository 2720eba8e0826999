//! Exports the unabridged views of this fleet as parts for a merge of several. It counts nothing.

use muster_contract::canonical::Digest;
use muster_contract::parts::{ComponentCount, DeploymentPart, GroupShare, Part, TallyPart};
use muster_contract::query::Sites;
use muster_contract::silence::SilentSites;
use muster_contract::subjects::ViewKey;
use muster_contract::view::ErrorCount;
use muster_contract::{DeploymentId, LabelKey, LabelValue};
use serde::Serialize;

use super::fleet::Fleet;
use super::max_timestamp::Times;
use super::view::counted;
use super::whole::Whole;

impl Fleet {
    /// The part of a view; of a deployment, at most `rows` of its rows after the first `skip`. None where there is
    /// nothing to count, for a site, whose view is its part, and for a defined view, which is not part of LEDGER.
    pub fn part(&self, key: &ViewKey, skip: u64, rows: usize) -> Option<Part> {
        match key {
            ViewKey::Deployment(id) => {
                self.deployment_part(id, skip, rows).map(|part| Part::DeploymentPart(Box::new(part)))
            }
            ViewKey::Group(label, value) => self.group_part(label, value),
            ViewKey::Fleet => {
                let silent_sites = self.silent_sites_of_fleet();
                Some(self.tally_part(&self.totals.fleet, self.times_of_fleet(), silent_sites))
            }
            ViewKey::Site(_) | ViewKey::Defined(_) => None,
        }
    }

    fn group_part(&self, label: &LabelKey, value: &LabelValue) -> Option<Part> {
        let group = self.totals.groups.find(label, value).filter(|_| self.has_group(label, value))?;
        Some(self.tally_part(&group.whole, self.times_of_group(group), SilentSites::default()))
    }

    fn deployment_part(&self, id: &DeploymentId, skip: u64, rows: usize) -> Option<DeploymentPart> {
        let number = *self.totals.deployment_numbers.get(id)?;
        let deployment = self.totals.deployment(number);
        if deployment.group.is_empty() {
            return None;
        }
        let standings = deployment.group.part();
        let counts = self.group_counts(number);
        let all = deployment.components.len() + deployment.error_index.len() + counts.len();
        let components = deployment
            .components
            .iter()
            .map(|(name, states)| ComponentCount { name: name.clone(), states: counted(states) });
        // Computed only where they do not fit, because each error needs an example.
        let whole = (skip > 0 || all > rows).then(|| {
            let components: Vec<_> = components.clone().collect();
            let errors: Vec<_> =
                deployment.error_index.by_code().map(|(code, count, _)| (code, count)).collect();
            digest_of(&(&standings, components, errors, &counts))
        });
        let mut room = Room { skip: usize::try_from(skip).unwrap_or(usize::MAX).min(all), rows };
        let skipped = room.skip;
        let components = room.take_rows(deployment.components.len(), components);
        let errors = room.take_rows(deployment.error_index.len(), deployment.error_index.by_code());
        let errors = errors
            .into_iter()
            .filter_map(|(code, count, device)| self.error_count(number, code, count, device));
        let errors: Vec<ErrorCount> = errors.collect();
        let groups = self.with_times(number, room.take_rows(counts.len(), counts.into_iter()));
        let times = self.times_of_deployment(number);
        let shown = skipped + components.len() + errors.len() + groups.len();
        Some(DeploymentPart {
            standings,
            deployment_name: deployment.name().to_owned(),
            changed_at: times.changed_at,
            last_heard_at: times.heard_at,
            silent_sites: self.silent_sites(&Sites::default(), Some(number)),
            hub: self.hub_hearing(&deployment.unheard),
            skipped: skipped as u64,
            whole,
            components,
            errors,
            groups,
            next: (shown < all).then_some(shown as u64),
        })
    }

    fn tally_part(&self, whole: &Whole, times: Times, silent_sites: SilentSites) -> Part {
        Part::TallyPart(Box::new(TallyPart {
            devices: whole.devices.by_freshness(),
            complete: whole.devices.complete(),
            standings: whole.group.part(),
            changed_at: times.changed_at,
            last_heard_at: times.heard_at,
            hub: self.hub_hearing(&whole.unheard),
            silent_sites,
        }))
    }

    /// Adds the times of a deployment in each group.
    fn with_times(&self, number: u32, mut groups: Vec<GroupShare>) -> Vec<GroupShare> {
        let shown = groups.iter().filter_map(|share| self.totals.groups.find(&share.label, &share.value));
        let by_group = self.times_for_part(number, &shown.collect::<Vec<_>>());
        for share in &mut groups {
            let times = by_group.get(&(&share.label, &share.value)).copied().unwrap_or_default();
            (share.changed_at, share.last_heard_at) = (times.changed_at, times.heard_at);
        }
        groups
    }

    /// A deployment by group, without times.
    fn group_counts(&self, number: u32) -> Vec<GroupShare> {
        let groups = self.totals.groups.all();
        groups
            .filter_map(|group| {
                let counts = group.counts_of(Some(number));
                (!counts.is_empty()).then(|| GroupShare {
                    label: group.label.clone(),
                    value: group.value.clone(),
                    standings: counts.part(),
                    changed_at: None,
                    last_heard_at: None,
                })
            })
            .collect()
    }
}

/// A digest that distinguishes the rows of one moment from those of another.
fn digest_of(rows: &impl Serialize) -> Digest {
    // Our documents always serialize; one that did not would compare equal to any other, and be read again when
    // it changes.
    Digest::of_bytes(&serde_json::to_vec(rows).unwrap_or_default())
}

/// Rows that are still to be passed, and those that still find room.
struct Room {
    skip: usize,
    rows: usize,
}

impl Room {
    /// The requested rows of a list of `len` rows.
    fn take_rows<T>(&mut self, len: usize, rows: impl Iterator<Item = T>) -> Vec<T> {
        let passed = self.skip.min(len);
        self.skip -= passed;
        let taken: Vec<T> = rows.skip(passed).take(self.rows).collect();
        self.rows -= taken.len();
        taken
    }
}
