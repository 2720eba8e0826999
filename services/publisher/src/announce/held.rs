//! Reports the changes that rollouts hold, and answers queries about the targets of a rollout.

use std::collections::BTreeSet;

use muster_contract::limits::{HELD_CHANGES_MAX, OPEN_ROLLOUTS_MAX};
use muster_contract::query::ErrorBody;
use muster_contract::question::{checked_limit, parsed_after};
use muster_contract::rollout::{HeldChange, TargetsAnswer, TargetsQuery};

use super::Announcer;
use crate::downlink::Downlink;
use crate::requests::not_ready;
use crate::status::RolloutsStatus;

/// Cuts a list to so many entries; the number of those that are left out.
fn cut<T>(list: &mut Vec<T>, max: usize) -> u64 {
    let omitted = list.len().saturating_sub(max);
    list.truncate(max);
    omitted as u64
}

impl<D: Downlink> Announcer<D> {
    /// The held changes, those that no decision holds and those of most devices first, each with the time since which this
    /// process knows it.
    fn held_changes(&mut self) -> Vec<HeldChange> {
        let (now, changes) = (self.context.clock.now(), self.table.held_changes());
        let since = std::mem::take(&mut self.held_since);
        self.held_since =
            changes.keys().map(|key| (key.clone(), since.get(key).copied().unwrap_or(now))).collect();
        for (deployment, digest, rollout) in self.held_since.keys().filter(|key| !since.contains_key(*key)) {
            let digest = digest.map(|digest| digest.to_string());
            tracing::info!(%deployment, digest, rollout, "holding a change until it is released");
        }
        let devices = changes.values().map(|devices| devices.count).sum::<u64>();
        self.context.metrics.held.set(i64::try_from(devices).unwrap_or(i64::MAX));
        let mut held: Vec<_> = changes
            .into_iter()
            .zip(self.held_since.values())
            .map(|(((deployment, digest, rollout), devices), since)| HeldChange {
                phase: digest
                    .and_then(|digest| self.decisions.phase(&deployment, digest, &rollout))
                    .unwrap_or_default(),
                deployment,
                digest,
                rollout,
                devices,
                since: *since,
            })
            .collect();
        // A planner acts on the listed ones: those that no decision holds come first.
        let is_held_up = |change: &HeldChange| change.phase.continued_by().is_some();
        held.sort_by_key(|change| (is_held_up(change), std::cmp::Reverse(change.devices.count)));
        held
    }

    /// The held changes and the open rollouts.
    pub(super) fn rollouts_status(&mut self) -> RolloutsStatus {
        let (mut held, mut open) = (self.held_changes(), self.open_rollouts());
        let deployments = held.iter().map(|change| &change.deployment);
        let deployments: BTreeSet<_> =
            deployments.chain(open.iter().map(|open| &open.deployment)).cloned().collect();
        let held_omitted = cut(&mut held, HELD_CHANGES_MAX);
        let open_omitted = cut(&mut open, OPEN_ROLLOUTS_MAX);
        RolloutsStatus { held, held_omitted, open, open_omitted, deployments }
    }

    /// A page of the targets of a deployment; the first one with the decisions about its rollouts.
    pub(super) async fn targets(&mut self, query: &TargetsQuery) -> Result<TargetsAnswer, ErrorBody> {
        let (limit, after) = (checked_limit(query.limit)?, parsed_after(query.after.as_deref())?);
        let mut page = self.table.targets(&query.deployment, after.as_ref(), limit).ok_or_else(|| {
            not_ready(
                "the publisher has read no good commit since its start; `muster publisher status` says why",
            )
        })?;
        if after.is_none() {
            for path in page.rollouts.keys() {
                self.read_decisions(&query.deployment, path).await?;
            }
            page.decisions = self.decisions.of_deployment(&query.deployment).cloned().collect();
            page.waits_for = self.waits_for(&query.deployment).await?;
        }
        self.name_refused_rollbacks(&query.deployment, &mut page.targets);
        Ok(page)
    }
}
