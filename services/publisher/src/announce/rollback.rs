//! Finds the content that each device had before another one, in its documents in DOWNLINK and LEDGER.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use muster_bus::ReadError;
use muster_contract::canonical::Digest;
use muster_contract::{DeploymentId, DeviceKey};

use super::{Announcer, READS_AT_ONCE};
use crate::content::{Content, Interner};
use crate::downlink::Downlink;
use crate::published::PublishedState;

/// The content of a deployment that each device had before; `None` if it did not have the deployment.
pub(super) type Earlier = BTreeMap<DeviceKey, Option<Arc<Content>>>;

impl<D: Downlink> Announcer<D> {
    /// The content of a deployment that each device had before `digest`. A content that was stopped or rolled back is passed
    /// over. A device without an earlier document is left out.
    pub(super) async fn contents_before(
        &self,
        deployment: &DeploymentId,
        digest: Digest,
        devices: &[DeviceKey],
    ) -> Result<Earlier, ReadError> {
        let mut passed_over = self.decisions.given_up(deployment);
        passed_over.insert(digest);
        let mut earlier = Earlier::new();
        for some in devices.chunks(READS_AT_ONCE) {
            let histories = join_all(some.iter().map(|key| self.downlink.history(key))).await;
            for (key, history) in some.iter().zip(histories) {
                let mut states: Vec<_> = history?
                    .iter()
                    .map(|payload| PublishedState::read(0, payload, &mut Interner::default()).0)
                    .collect();
                states.sort_by_key(|state| state.generation);
                let contents =
                    states.iter().rev().filter(|state| state.document.is_some()).map(|state| {
                        state.git_contents().find(|content| content.id() == deployment).cloned()
                    });
                let is_good = |content: &Option<Arc<Content>>| {
                    content.as_ref().is_none_or(|content| !passed_over.contains(&content.digest()))
                };
                if let Some(content) = contents.into_iter().find(is_good) {
                    earlier.insert(key.clone(), content);
                }
            }
        }
        Ok(earlier)
    }
}
