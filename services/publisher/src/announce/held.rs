//! Reports the changes that rollouts hold, and answers queries about the targets of a rollout.

use muster_contract::limits::{HELD_CHANGES_MAX, OPEN_ROLLOUTS_MAX};
use muster_contract::query::ErrorBody;
use muster_contract::question::{checked_limit, parsed_after};
use muster_contract::rollout::{HeldChange, TargetsAnswer, TargetsQuery};

use super::Announcer;
use super::change::unread;
use crate::downlink::Downlink;
use crate::requests::not_ready;
use crate::status::RolloutsStatus;

impl<D: Downlink> Announcer<D> {
    /// The held changes, those of most devices first, each with the time since which this process knows it, and the number of
    /// further ones that the status does not list.
    fn held_changes(&mut self) -> (Vec<HeldChange>, u64) {
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
                state: digest
                    .map(|digest| self.decisions.word(&deployment, digest, &rollout))
                    .unwrap_or_default(),
                deployment,
                digest,
                rollout,
                devices,
                since: *since,
            })
            .collect();
        held.sort_by_key(|change| std::cmp::Reverse(change.devices.count));
        let omitted = held.len().saturating_sub(HELD_CHANGES_MAX);
        held.truncate(HELD_CHANGES_MAX);
        (held, omitted as u64)
    }

    /// The held changes, and the deployments with an open rollout.
    pub(super) fn rollouts_status(&mut self) -> RolloutsStatus {
        let (held, held_omitted) = self.held_changes();
        let mut open = self.open_rollouts();
        open.truncate(OPEN_ROLLOUTS_MAX);
        RolloutsStatus { held, held_omitted, open }
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
            self.read_decisions(&query.deployment).await.map_err(|error| unread(&error))?;
            page.decisions = self.decisions.rollouts(&query.deployment).to_vec();
        }
        Ok(page)
    }
}
