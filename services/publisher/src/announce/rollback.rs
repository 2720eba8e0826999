//! Finds the content that each device had before another one, in its documents in DOWNLINK and LEDGER, and remembers the devices
//! without one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use muster_bus::ReadError;
use muster_contract::canonical::Digest;
use muster_contract::rollout::{ReleaseRefusal, RolloutTarget};
use muster_contract::{DeploymentId, DeviceKey, Generation};
use tokio::time::Instant;

use super::{Announcer, READS_AT_ONCE};
use crate::content::{Content, Interner};
use crate::downlink::{Downlink, Message, event_id};
use crate::published::PublishedState;

/// The content of a deployment that each device had before; `None` if it did not have the deployment.
pub(super) type Earlier = BTreeMap<DeviceKey, Option<Arc<Content>>>;

/// Time after which a refused rollback may be requested again: LEDGER may have copied or regained an earlier document meanwhile.
const REFUSED_FOR: Duration = Duration::from_secs(600);

/// Rollbacks that the publisher has refused since the last commit because it knows no earlier content, with the time of each refusal.
/// A refusal counts for [`REFUSED_FOR`], and no longer than until the device has another document or another decision about the rollout
/// is stored.
pub(super) type RefusedRollbacks = BTreeMap<(DeviceKey, DeploymentId), (RollbackState, Instant)>;

/// The state of a device and of its rollout that the refusal of a rollback depends on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RollbackState {
    published: Digest,
    generation: Option<Generation>,
    /// Sequence of the decisions: an abandoned content is not one to go back to.
    decisions: u64,
}

impl<D: Downlink> Announcer<D> {
    /// Remembers that a device cannot go back, so that lists of targets say so.
    pub(super) fn note_refused_rollback(&mut self, key: &DeviceKey, deployment: &DeploymentId) {
        if let Some(state) = self.rollback_state(key, deployment) {
            self.refused_rollbacks.insert((key.clone(), deployment.clone()), (state, Instant::now()));
        }
    }

    /// Sets the refusal of the targets that are to go back and cannot. A release of another content may reach them.
    pub(super) fn name_refused_rollbacks(&self, deployment: &DeploymentId, targets: &mut [RolloutTarget]) {
        for target in targets.iter_mut().filter(|target| target.refused.is_none()) {
            let Some(digest) = target.published.filter(|digest| target.wanted == Some(*digest)) else {
                continue;
            };
            let noted = self.refused_rollbacks.get(&(target.key.clone(), deployment.clone()));
            let is_refused = noted.is_some_and(|(state, at)| {
                at.elapsed() < REFUSED_FOR
                    && self.rollback_state(&target.key, deployment).as_ref() == Some(state)
            });
            if is_refused && self.keeps(&target.key, deployment, digest).is_none() {
                target.refused = Some(ReleaseRefusal::NoEarlierContent);
            }
        }
    }

    fn rollback_state(&self, key: &DeviceKey, deployment: &DeploymentId) -> Option<RollbackState> {
        let decisions = self.decisions.sequence(deployment, self.table.rollout_path(key)?);
        let published = self.table.published_digest(key, deployment)?;
        Some(RollbackState { published, generation: self.table.held(key).generation, decisions })
    }

    /// The content of a deployment that each device had before `digest`. A content that was stopped or rolled back under the
    /// device's `rollout.yaml` is passed over. A device without an earlier document is left out.
    pub(super) async fn contents_before(
        &self,
        deployment: &DeploymentId,
        digest: Digest,
        devices: &[DeviceKey],
    ) -> Result<Earlier, ReadError> {
        let mut earlier = Earlier::new();
        for some in devices.chunks(READS_AT_ONCE) {
            let histories = join_all(some.iter().map(|key| self.downlink.history(key))).await;
            for (key, history) in some.iter().zip(histories) {
                let path = self.table.rollout_path(key).unwrap_or_default();
                let mut bad = self.decisions.abandoned(deployment, path);
                bad.insert(digest);
                let contents = own_documents(key, &history?)
                    .into_iter()
                    .rev()
                    .map(|state| state.git_contents().find(|content| content.id() == deployment).cloned());
                let is_good = |content: &Option<Arc<Content>>| {
                    content.as_ref().is_none_or(|content| !bad.contains(&content.digest()))
                };
                if let Some(content) = contents.into_iter().find(is_good) {
                    earlier.insert(key.clone(), content);
                }
            }
        }
        Ok(earlier)
    }
}

/// The states of a device by its documents that a publisher has published, oldest first.
pub(super) fn own_documents(key: &DeviceKey, history: &[Message]) -> Vec<PublishedState> {
    let of_message = |message: &Message| {
        let state = PublishedState::read(message.sequence, &message.payload, &mut Interner::default()).0;
        let id = event_id(key, state.generation?);
        (state.document.is_some() && message.published_as.as_ref() == Some(&id)).then_some(state)
    };
    let mut states: Vec<_> = history.iter().filter_map(of_message).collect();
    states.sort_by_key(|state| state.generation);
    states
}
