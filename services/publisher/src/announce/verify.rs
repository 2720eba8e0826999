//! What DOWNLINK holds, verified: a foreign document, and one that is gone, is replaced at once and is an incident; what
//! another publisher wrote is taken in.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use muster_contract::DeviceKey;
use muster_contract::incident::{ForeignDocument, IncidentKind};
use muster_service::error::chain;
use tokio::time::Instant;

use super::reading::{SAID_AGAIN_EVERY, say_unseen};
use super::{Announcer, READS_AT_ONCE};
use crate::content::Interner;
use crate::downlink::Downlink;
use crate::foreign::{Foreign, StoredDocument};
use crate::held::Held;

impl<D: Downlink> Announcer<D> {
    /// DOWNLINK holds these, in their order; all positions known before are void where it `is_new`.
    pub(super) fn verify(&mut self, documents: &[StoredDocument], is_new: bool) {
        let due = self.roster.due();
        let mut interner = Interner::default();
        for document in documents {
            let before = self.roster.held(&document.key);
            // The announcer's own, or older than what it knows.
            let sequence = document.message.sequence;
            let is_known = sequence == before.sequence || (sequence < before.sequence && !is_new);
            if !is_known {
                self.verify_one(document, &before, &mut interner);
            }
        }
        self.publish_new(due);
    }

    /// Verifies a message that is new here.
    pub(super) fn verify_one(&mut self, document: &StoredDocument, before: &Held, interner: &mut Interner) {
        let key = &document.key;
        match document.verify(before, self.roster.fleet_of(key), interner) {
            Ok(held) => self.adopt(key, held, before),
            Err(foreign) if foreign.cause == ForeignDocument::Contradicts && !self.may_contradict(key) => {
                // Another publisher reads the commit otherwise: one of another release. Two that each insist would never end.
                let held = Held::read(document.message.sequence, &document.message.payload, interner).0;
                self.adopt(key, held, before);
            }
            Err(foreign) => self.replace(document, foreign, before),
        }
    }

    /// Takes in what another publisher has published.
    fn adopt(&mut self, key: &DeviceKey, held: Held, before: &Held) {
        let known = self.roster.ahead();
        self.roster.verified(key, held.after(before));
        if self.roster.ahead() > known {
            say_unseen(key, known == 0);
        }
    }

    /// Has the right document published in the place of a foreign one. A device of which nothing is known is retired, if
    /// anybody can read that it shall run something.
    fn replace(&mut self, document: &StoredDocument, foreign: Foreign, before: &Held) {
        let (key, sequence) = (&document.key, document.message.sequence);
        self.report(key, sequence, &foreign);
        let Foreign { reason, generation, is_readable, .. } = foreign;
        let held =
            Held { sequence, stands: false, unreadable: Some(reason), ..before.clone() }.above(generation);
        let held = if held.document.is_none() && is_readable { held.retired() } else { held };
        self.roster.verified(key, held);
    }

    fn report(&self, key: &DeviceKey, downlink_seq: u64, foreign: &Foreign) {
        let Foreign { cause, reason, generation, .. } = foreign;
        let (cause, reason, generation) = (*cause, reason.clone(), *generation);
        let what = IncidentKind::ForeignDocument { downlink_seq, cause, reason, generation };
        self.around.incidents.report(Some(key.clone()), what);
    }

    /// DOWNLINK holds documents of these devices and of no others. What it has lost is published again.
    pub(super) async fn listed(&mut self, devices: &BTreeSet<DeviceKey>) {
        let missing = self.roster.published().filter(|key| !devices.contains(*key));
        let missing = missing.cloned().collect();
        self.restore_missing(missing).await;
    }

    /// Documents of these devices were stored a moment ago: those that DOWNLINK has lost since are published again.
    pub(super) async fn stored_lately(&mut self, devices: BTreeSet<DeviceKey>) {
        let suspects = devices.into_iter().filter(|key| self.roster.has_published(key)).collect();
        self.restore_missing(suspects).await;
    }

    /// Asks DOWNLINK for the documents of these devices, and publishes again what it does not hold.
    async fn restore_missing(&mut self, suspects: Vec<DeviceKey>) {
        let due = self.roster.due();
        for some in suspects.chunks(READS_AT_ONCE) {
            let last = join_all(some.iter().map(|key| self.downlink.last(key))).await;
            for (key, last) in some.iter().zip(last) {
                match last {
                    Ok(None) => self.restore(key),
                    // It was published meanwhile.
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
        let before = self.roster.held(key);
        let reason = "DOWNLINK holds no document of the device any more".to_owned();
        let foreign =
            Foreign { cause: ForeignDocument::Missing, reason, generation: None, is_readable: false };
        self.report(key, 0, &foreign);
        self.roster.verified(key, Held::default().after(&before));
    }

    /// Publishes at once what has become due.
    fn publish_new(&mut self, due_before: usize) {
        if self.roster.due() > due_before {
            self.retry.reset();
            self.retry_at = Instant::now();
        }
    }

    fn may_contradict(&mut self, key: &DeviceKey) -> bool {
        let last = self.contradicted.get(key);
        let may = last.is_none_or(|at| at.elapsed() >= SAID_AGAIN_EVERY);
        if may {
            self.contradicted.insert(key.clone(), Instant::now());
        }
        may
    }
}
