//! Carries out a release: governed devices get one content of a deployment.
//!
//! The commit point of a release is the device's document in DOWNLINK, stored by compare-and-set. Nothing else records it:
//! a publisher that dies before the document is stored has released nothing, and one that dies after it finds the release
//! done when it reads DOWNLINK. So the same request may be sent any number of times.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use muster_bus::{PublishErrorKind, ReadError, Trace};
use muster_contract::DeviceKey;
use muster_contract::desired::Source;
use muster_contract::query::ErrorBody;
use muster_contract::rollout::{RefusedRelease, ReleaseAnswer, ReleaseRefusal, ReleaseRequest};
use muster_service::error::chain;

use super::change::{ATTEMPTS, unread};
use super::{Announcer, READS_AT_ONCE};
use crate::compose;
use crate::content::{Content, Interner};
use crate::downlink::Downlink;
use crate::plan::{Draft, draft};
use crate::published::PublishedState;
use crate::requests::{Release, check_revision};

/// The effect of a release on a device.
enum Plan {
    /// The device's document has the content already.
    Done,
    /// This document is to be published.
    Publish(Box<Draft>),
}

impl<D: Downlink> Announcer<D> {
    /// Releases a content to devices; each of them is in one of the lists of the answer.
    pub(super) async fn release(&mut self, release: &Release) -> Result<ReleaseAnswer, ErrorBody> {
        check_revision(&release.request, self.table.revision())?;
        let ReleaseRequest { deployment, digest, devices, .. } = &release.request;
        let mut pending: Vec<DeviceKey> = devices.clone();
        pending.sort_unstable();
        pending.dedup();
        let mut answer = ReleaseAnswer { released: Vec::new(), refused: Vec::new() };
        self.read_devices(&pending).await.map_err(|error| unread(&error))?;
        let earlier = self.earlier_content(release, &pending).await.map_err(|error| unread(&error))?;
        let trace = Trace::begin(&mut self.rng);
        let source = self.source_of(release.requested_by.clone());
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                self.read_devices(&pending).await.map_err(|error| unread(&error))?;
            }
            let mut drafts = Vec::new();
            for key in std::mem::take(&mut pending) {
                match self.plan_release(&key, release, earlier.as_ref(), &source) {
                    Ok(Plan::Done) => answer.released.push(key),
                    Ok(Plan::Publish(draft)) => drafts.push((key, *draft)),
                    Err(reason) => answer.refused.push(RefusedRelease { key, reason }),
                }
            }
            if drafts.is_empty() {
                break;
            }
            pending = self.publish_releases(drafts, trace, &mut answer).await;
        }
        let left = pending.into_iter().map(|key| RefusedRelease { key, reason: ReleaseRefusal::NotStored });
        answer.refused.extend(left);
        answer.released.sort_unstable();
        answer.refused.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        let (released, refused) = (answer.released.len(), answer.refused.len());
        // A planner repeats a release that every device refuses in each of its rounds.
        if released > 0 {
            let digest = digest.map(|digest| digest.to_string());
            tracing::info!(deployment = %deployment, digest, released, refused, "released a deployment to devices");
        }
        self.report_status();
        Ok(answer)
    }

    /// Reads the newest document of each device.
    async fn read_devices(&mut self, devices: &[DeviceKey]) -> Result<(), ReadError> {
        for some in devices.chunks(READS_AT_ONCE) {
            let messages = join_all(some.iter().map(|key| self.downlink.last(key))).await;
            for (key, message) in some.iter().zip(messages) {
                self.apply_message(key, message?).await?;
            }
        }
        Ok(())
    }

    /// The content of a release if Git does not want it for one of the devices: the content that some device has, or that the
    /// first such device had lately.
    async fn earlier_content(
        &self,
        release: &Release,
        devices: &[DeviceKey],
    ) -> Result<Option<Arc<Content>>, ReadError> {
        let ReleaseRequest { deployment, digest, .. } = &release.request;
        let Some(digest) = *digest else { return Ok(None) };
        let is_wanted = |key: &&DeviceKey| {
            self.table.wanted(key, deployment).is_some_and(|content| content.digest() == digest)
        };
        let Some(first) = devices.iter().find(|key| !is_wanted(key)) else { return Ok(None) };
        if let Some(content) = self.table.published_content(deployment, digest) {
            return Ok(Some(content));
        }
        let history = self.downlink.history(first).await?;
        let states =
            history.iter().map(|payload| PublishedState::read(0, payload, &mut Interner::default()).0);
        let mut contents = states.flat_map(|state| state.git_contents().cloned().collect::<Vec<_>>());
        Ok(contents.find(|content| content.id() == deployment && content.digest() == digest))
    }

    fn plan_release(
        &self,
        key: &DeviceKey,
        release: &Release,
        earlier: Option<&Arc<Content>>,
        source: &Source,
    ) -> Result<Plan, ReleaseRefusal> {
        let ReleaseRequest { deployment, digest, .. } = &release.request;
        let (git, held) = (self.table.git(key, self.context.git), self.table.held(key));
        let wanted = self.table.wanted(key, deployment);
        let content = match digest {
            None => None,
            Some(digest) => wanted.as_ref().filter(|content| content.digest() == *digest).or(earlier),
        };
        // A device that can get no release is refused for that reason, whatever the content is.
        let desired = compose::release(key, git, &held, deployment, content, source)?;
        match (digest, content, &wanted) {
            (Some(_), None, _) => Err(ReleaseRefusal::UnknownDigest),
            (None, _, Some(_)) => Err(ReleaseRefusal::StillInGit),
            _ => Ok(draft(&held, &desired).map_or(Plan::Done, |draft| Plan::Publish(Box::new(draft)))),
        }
    }

    /// Publishes documents of a release; returns the devices to try again.
    async fn publish_releases(
        &mut self,
        drafts: Vec<(DeviceKey, Draft)>,
        trace: Trace,
        answer: &mut ReleaseAnswer,
    ) -> Vec<DeviceKey> {
        let documents = drafts.iter().map(|(key, draft)| self.outgoing(key, draft, trace)).collect();
        let stored = self.downlink.publish(documents).await;
        let (mut pending, mut errors) = (Vec::new(), BTreeMap::new());
        for ((key, draft), stored) in drafts.into_iter().zip(stored) {
            match stored {
                Ok(sequence) => {
                    self.stored(&key, draft, sequence);
                    self.table.await_ledger_again();
                    answer.released.push(key);
                }
                Err(error) if error.kind == PublishErrorKind::Permanent => {
                    errors.insert(chain(&error), key.clone());
                    answer.refused.push(RefusedRelease { key, reason: ReleaseRefusal::NotStored });
                }
                Err(error) => {
                    errors.insert(chain(&error), key.clone());
                    pending.push(key);
                }
            }
        }
        for (error, key) in errors {
            tracing::warn!(device = %key, error, "cannot publish the document of a release");
        }
        pending
    }
}
