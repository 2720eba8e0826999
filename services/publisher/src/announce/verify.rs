//! Verifies the documents of DOWNLINK: replaces a foreign or missing document at once and reports an incident, and adopts
//! documents of other publishers.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use muster_contract::DeviceKey;
use muster_contract::incident::{ForeignDocument, IncidentKind};
use muster_service::error::chain;
use tokio::time::Instant;

use super::reading::{REPUBLISH_INTERVAL, log_unseen};
use super::{Announcer, READS_AT_ONCE};
use crate::content::Interner;
use crate::downlink::Downlink;
use crate::foreign::{Foreign, StoredDocument};
use crate::published::PublishedState;

impl<D: Downlink> Announcer<D> {
    /// Verifies stored documents, in stream order. With `is_new` DOWNLINK is another stream, and known sequences are void.
    pub(super) fn verify(&mut self, documents: &[StoredDocument], is_new: bool) {
        let due = self.table.due();
        let mut interner = Interner::default();
        for document in documents {
            let before = self.table.held(&document.key);
            // Skip the announcer's own documents, and older ones than it knows.
            let sequence = document.message.sequence;
            let is_known = sequence == before.sequence || (sequence < before.sequence && !is_new);
            if !is_known {
                self.verify_one(document, &before, &mut interner);
            }
        }
        self.publish_new(due);
    }

    /// Verifies a message that is not known yet.
    pub(super) fn verify_one(
        &mut self,
        document: &StoredDocument,
        before: &PublishedState,
        interner: &mut Interner,
    ) {
        let key = &document.key;
        match document.verify(before, self.table.fleet_of(key), interner) {
            Ok(held) => self.adopt(key, held, before),
            Err(foreign) if foreign.cause == ForeignDocument::Contradicts && !self.may_insist(key) => {
                // Another publisher, probably of another release, reads the commit differently. If both insisted, they would
                // replace each other's document without end.
                let held =
                    PublishedState::read(document.message.sequence, &document.message.payload, interner).0;
                self.adopt(key, held, before);
            }
            Err(foreign) => self.replace(document, foreign, before),
        }
    }

    /// Adopts the document of another publisher.
    fn adopt(&mut self, key: &DeviceKey, held: PublishedState, before: &PublishedState) {
        let known = self.table.guarded();
        self.table.verified(key, held.after(before));
        if self.table.guarded() > known {
            log_unseen(key, known == 0);
        }
    }

    /// Schedules the right document to replace a foreign one. A device without any known document is retired, if devices can
    /// read the foreign one.
    fn replace(&mut self, document: &StoredDocument, foreign: Foreign, before: &PublishedState) {
        let (key, sequence) = (&document.key, document.message.sequence);
        self.report(key, sequence, &foreign);
        let Foreign { reason, generation, is_readable, .. } = foreign;
        let held = PublishedState { sequence, is_current: false, unreadable: Some(reason), ..before.clone() }
            .with_generation_at_least(generation);
        let held = if held.document.is_none() && is_readable { held.retired() } else { held };
        self.table.verified(key, held);
    }

    fn report(&self, key: &DeviceKey, downlink_seq: u64, foreign: &Foreign) {
        let Foreign { cause, reason, generation, .. } = foreign;
        let (cause, reason, generation) = (*cause, reason.clone(), *generation);
        let what = IncidentKind::ForeignDocument { downlink_seq, cause, reason, generation };
        self.context.incidents.report(Some(key.clone()), what);
    }

    /// Restores the documents that DOWNLINK has lost; it has documents of `devices` only.
    pub(super) async fn listed(&mut self, devices: &BTreeSet<DeviceKey>) {
        let missing = self.table.published().filter(|key| !devices.contains(*key));
        let missing = missing.cloned().collect();
        self.restore_missing(missing).await;
    }

    /// Restores the recently stored documents of these devices that DOWNLINK has lost since.
    pub(super) async fn recently_stored(&mut self, devices: BTreeSet<DeviceKey>) {
        let suspects = devices.into_iter().filter(|key| self.table.has_published(key)).collect();
        self.restore_missing(suspects).await;
    }

    /// Reads the documents of these devices, and schedules the missing ones.
    async fn restore_missing(&mut self, suspects: Vec<DeviceKey>) {
        let due = self.table.due();
        for some in suspects.chunks(READS_AT_ONCE) {
            let last = join_all(some.iter().map(|key| self.downlink.last(key))).await;
            for (key, last) in some.iter().zip(last) {
                match last {
                    Ok(None) => self.restore(key),
                    // The document was published meanwhile.
                    Ok(Some(_)) => {}
                    Err(error) => {
                        tracing::warn!(device = %key, error = chain(&error), "cannot read a document");
                    }
                }
            }
        }
        self.publish_new(due);
    }

    fn restore(&mut self, key: &DeviceKey) {
        let before = self.table.held(key);
        let reason = "DOWNLINK has no document of the device any more".to_owned();
        let foreign =
            Foreign { cause: ForeignDocument::Missing, reason, generation: None, is_readable: false };
        self.report(key, 0, &foreign);
        self.table.verified(key, PublishedState::default().after(&before));
    }

    /// Starts a round at once if documents have become due.
    fn publish_new(&mut self, due_before: usize) {
        if self.table.due() > due_before {
            self.retry.reset();
            self.retry_at = Instant::now();
        }
    }

    fn may_insist(&mut self, key: &DeviceKey) -> bool {
        let last = self.contradicted.get(key);
        let may = last.is_none_or(|at| at.elapsed() >= REPUBLISH_INTERVAL);
        if may {
            self.contradicted.insert(key.clone(), Instant::now());
        }
        may
    }
}
