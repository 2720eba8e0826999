//! Carries out a release: governed devices get one content of a deployment.
//!
//! The commit point of a release is the device's document in DOWNLINK, stored by compare-and-set. Nothing else records it:
//! a publisher that dies before the document is stored has released nothing, and one that dies after it finds the release
//! done when it reads DOWNLINK. So the same request may be sent any number of times. A recorded decision forbids the release of a
//! content whose rollout is paused, stopped or rolled back.

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
use super::rollback::{Earlier, own_documents};
use super::{Announcer, READS_AT_ONCE};
use crate::compose;
use crate::content::Content;
use crate::downlink::Downlink;
use crate::plan::{Draft, draft};
use crate::requests::{Release, check_revision, conflict};

/// The effect of a release on a device.
enum Plan {
    /// The device's document has the content already.
    Done,
    /// This document is to be published.
    Publish(Box<Draft>),
}

/// The contents of a release besides those that Git wants.
enum Contents {
    /// The named content, if Git does not want it for one of the devices.
    Named(Option<Arc<Content>>),
    /// The content that each device had before another one.
    Before(Earlier),
}

impl<D: Downlink> Announcer<D> {
    /// Releases a content to devices; each of them is in one of the lists of the answer.
    pub(super) async fn release(&mut self, release: &Release) -> Result<ReleaseAnswer, ErrorBody> {
        check_revision(release.request.revision.as_deref(), self.table.revision())?;
        let ReleaseRequest { deployment, digest, devices, .. } = &release.request;
        let mut pending: Vec<DeviceKey> = devices.clone();
        pending.sort_unstable();
        pending.dedup();
        let mut answer = ReleaseAnswer { released: Vec::new(), refused: Vec::new() };
        self.read_devices(&pending).await.map_err(|error| unread(&error))?;
        self.read_decisions_of(deployment, &pending).await?;
        let earlier = self.earlier(release, &pending).await.map_err(|error| unread(&error))?;
        let trace = Trace::random(&mut self.rng);
        let source = self.source_of(release.requested_by.clone());
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                self.read_devices(&pending).await.map_err(|error| unread(&error))?;
                self.read_decisions_of(deployment, &pending).await?;
            }
            let mut drafts = Vec::new();
            for key in std::mem::take(&mut pending) {
                match self.plan_release(&key, release, &earlier, &source) {
                    Ok(Plan::Done) => answer.released.push(key),
                    Ok(Plan::Publish(draft)) => drafts.push((key, *draft)),
                    Err(reason) => {
                        if reason == ReleaseRefusal::NoEarlierContent {
                            self.note_refused_rollback(&key, deployment);
                        }
                        answer.refused.push(RefusedRelease { key, reason });
                    }
                }
            }
            match drafts.first() {
                None => break,
                Some((key, _)) if attempt == 0 => {
                    self.check_record(key, release)?;
                    self.check_released(key, release)?;
                }
                Some(_) => {}
            }
            pending = self.publish_releases(drafts, trace, &mut answer).await;
        }
        let left = pending.into_iter().map(|key| RefusedRelease { key, reason: ReleaseRefusal::NotStored });
        answer.refused.extend(left);
        answer.released.sort_unstable();
        answer.refused.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        let (released, refused) = (answer.released.len(), answer.refused.len());
        // A planner may repeat a release that the publisher refuses for every device.
        if released > 0 {
            let digest = digest.map(|digest| digest.to_string());
            tracing::info!(deployment = %deployment, digest, released, refused, "released a deployment to devices");
        }
        self.report_status();
        Ok(answer)
    }

    /// Checks that the rollout's record is the one that the release was computed for, if it names one.
    fn check_record(&self, key: &DeviceKey, release: &Release) -> Result<(), ErrorBody> {
        let ReleaseRequest { deployment, digest, before, record, .. } = &release.request;
        let Some((expected, digest)) = record.zip(digest.or(*before)) else { return Ok(()) };
        let path = self.table.rollout_path(key).unwrap_or_default();
        if self.decisions.version(deployment, digest, path) == Some(expected) {
            return Ok(());
        }
        Err(conflict(format!(
            "the release was computed before another decision about {deployment} under {path}: ask for the targets again"
        )))
    }

    /// Checks that as many devices have the content as the release was computed for, if it says how many.
    fn check_released(&self, key: &DeviceKey, release: &Release) -> Result<(), ErrorBody> {
        let ReleaseRequest { deployment, digest, released, .. } = &release.request;
        let Some((expected, digest)) = released.zip(*digest) else { return Ok(()) };
        let path = self.table.rollout_path(key).unwrap_or_default();
        match self.table.released(deployment, digest, path) {
            now if now == expected => Ok(()),
            now => Err(conflict(format!(
                "the release is for {expected} devices of {path} that have {deployment} already, and {now} have it: ask for \
                 the targets again"
            ))),
        }
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

    /// The contents of a release that Git does not want.
    async fn earlier(&self, release: &Release, devices: &[DeviceKey]) -> Result<Contents, ReadError> {
        let ReleaseRequest { deployment, before, .. } = &release.request;
        Ok(match before {
            None => Contents::Named(self.earlier_content(release, devices).await?),
            Some(digest) => {
                let has = |key: &&DeviceKey| {
                    self.table.published_digest(key, deployment) == Some(*digest)
                        && self.table.rollout_path(key).is_some()
                };
                let devices: Vec<_> = devices.iter().filter(has).cloned().collect();
                Contents::Before(self.contents_before(deployment, *digest, &devices).await?)
            }
        })
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
        let states = own_documents(first, &history);
        let mut contents = states.iter().flat_map(|state| state.git_contents().cloned().collect::<Vec<_>>());
        Ok(contents.find(|content| content.id() == deployment && content.digest() == digest))
    }

    fn plan_release(
        &self,
        key: &DeviceKey,
        release: &Release,
        earlier: &Contents,
        source: &Source,
    ) -> Result<Plan, ReleaseRefusal> {
        let ReleaseRequest { deployment, digest, force, .. } = &release.request;
        let (git, held) = (self.table.git(key, self.context.git), self.table.held(key));
        let wanted = self.table.wanted(key, deployment);
        let content = match (earlier, digest) {
            (Contents::Before(earlier), _) => earlier.get(key).and_then(Option::as_ref),
            (Contents::Named(_), None) => None,
            (Contents::Named(earlier), Some(digest)) => {
                wanted.as_ref().filter(|content| content.digest() == *digest).or(earlier.as_ref())
            }
        };
        // A device that can get no release is refused for that reason, whatever the content is.
        let desired = compose::release(key, git, &held, deployment, content, source)?;
        match (earlier, digest, content, &wanted) {
            (Contents::Before(_), ..)
                if self.table.published_digest(key, deployment) != release.request.before =>
            {
                return Ok(Plan::Done);
            }
            (Contents::Before(earlier), ..) if !earlier.contains_key(key) => {
                let kept = release.request.before.and_then(|before| self.keeps(key, deployment, before));
                return Err(kept.filter(|_| !*force).unwrap_or(ReleaseRefusal::NoEarlierContent));
            }
            (Contents::Named(_), Some(_), None, _) => return Err(ReleaseRefusal::UnknownDigest),
            (Contents::Named(_), None, _, Some(_)) => return Err(ReleaseRefusal::StillInGit),
            _ => {}
        }
        let Some(draft) = draft(&held, &desired) else { return Ok(Plan::Done) };
        let forbidden = match (earlier, release.request.before) {
            _ if *force => None,
            (Contents::Before(_), Some(before)) => self.keeps(key, deployment, before),
            _ => content.and_then(|content| self.forbidden(key, deployment, content.digest())),
        };
        forbidden.map_or_else(|| Ok(Plan::Publish(Box::new(draft))), Err)
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
                    self.table.await_release_in_ledger(&key);
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
