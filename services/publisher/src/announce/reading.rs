//! The announcer's reads: all devices at the start, one device after another writer was first, and the generations of
//! devices. Documents that DOWNLINK has lost or that are damaged are searched in LEDGER and in older messages.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_bus::ReadError;
use muster_contract::{DeviceKey, Generation};
use muster_service::error::chain;
use tokio::time::Instant;

use super::Announcer;
use super::decide::Decisions;
use crate::content::Interner;
use crate::device_table::DeviceTable;
use crate::device_table::LedgerCopy;
use crate::downlink::{Downlink, Message};
use crate::foreign::StoredDocument;
use crate::published::PublishedState;

/// Shortest time between two documents of a device that are published because of its heartbeat alone.
pub(super) const REPUBLISH_INTERVAL: Duration = Duration::from_secs(60);

impl<D: Downlink> Announcer<D> {
    /// Reads the published states; repeats failed attempts until one succeeds.
    pub(super) async fn recover(&mut self) {
        // The delays are drawn from this announcer's own chance, by which the simulation repeats a world.
        let (held, decisions) = loop {
            match self.read_all().await {
                Ok(known) => break known,
                Err(error) => {
                    let retry_in = self.retry.next(&mut self.rng);
                    tracing::warn!(error = chain(&error), ?retry_in, "cannot read the desired states yet");
                    tokio::time::sleep(retry_in).await;
                }
            }
        };
        self.retry.reset();
        self.table = DeviceTable::recovered(held);
        self.decisions = decisions;
        tracing::info!(devices = self.table.devices(), "read the desired states of DOWNLINK");
        if self.table.due() > 0 {
            tracing::warn!(
                devices = self.table.due(),
                "DOWNLINK has lost documents, or has some below their devices' generation; publishing them again"
            );
        }
        self.report_status();
    }

    async fn read_all(&self) -> Result<(BTreeMap<DeviceKey, PublishedState>, Decisions), ReadError> {
        let mut interner = Interner::default();
        let subjects = self.downlink.all_subjects().await?;
        let copies = self.downlink.copies(&subjects).await?;
        let mut held = BTreeMap::new();
        for (key, subject) in subjects {
            let read = read(&subject.last, &mut interner).with_generation_at_least(subject.highest);
            held.insert(key, read);
        }
        for (key, copy) in copies {
            let before: PublishedState = held.remove(&key).unwrap_or_default();
            held.insert(key, before.with_other_copy(&copy, &mut interner));
        }
        for (key, held) in held.iter_mut().filter(|(_, held)| held.document.is_none()) {
            *held = self.with_history(key, std::mem::take(held), &mut interner).await?;
        }
        for (key, held) in &held {
            warn_of(key, held);
        }
        Ok((held, Decisions::read(self.downlink.all_decisions().await?)))
    }

    /// Reads a device again.
    pub(super) async fn read_again(&mut self, key: &DeviceKey) -> Result<(), ReadError> {
        let message = self.downlink.last(key).await?;
        self.apply_message(key, message).await
    }

    /// Verifies and applies the last message of a device.
    pub(super) async fn apply_message(
        &mut self,
        key: &DeviceKey,
        message: Option<Message>,
    ) -> Result<(), ReadError> {
        let (before, mut interner) = (self.table.held(key), Interner::default());
        match message {
            // Unchanged, even if it was found to be foreign.
            Some(message) if message.sequence == before.sequence => return Ok(()),
            Some(message) => {
                let document = StoredDocument { key: key.clone(), message };
                self.verify_one(&document, &before, &mut interner);
            }
            None => self.table.read_again(key, PublishedState::default().after(&before)),
        }
        let mut held = self.table.held(key);
        if held.document.is_none() {
            held = self.with_history(key, held, &mut interner).await?;
            self.table.read_again(key, held.clone());
        }
        warn_of(key, &held);
        Ok(())
    }

    /// The state with the older messages of a device, if the newest is unreadable.
    async fn with_history(
        &self,
        key: &DeviceKey,
        held: PublishedState,
        interner: &mut Interner,
    ) -> Result<PublishedState, ReadError> {
        let history = self.downlink.history(key).await?;
        Ok(history.iter().fold(held, |held, message| held.with_other_copy(&message.payload, interner)))
    }

    /// Compares the generations of devices with the published ones. A device that is past all published documents (after a
    /// restore of DOWNLINK, or its loss with LEDGER's copy) would accept none: its document is published again, above.
    pub(super) async fn compare_generations(&mut self, beats: Vec<(DeviceKey, Generation)>) {
        for (key, generation) in beats {
            if self.table.is_behind(&key, generation) && self.may_republish(&key) {
                self.catch_up(&key, generation).await;
            }
        }
    }

    /// Notes copies in LEDGER, which LEDGER makes some time after a document is published.
    pub(super) fn in_ledger(&mut self, copies: Vec<LedgerCopy>) {
        if self.table.in_ledger(copies) {
            let (revision, through) = (self.table.revision(), self.table.applied_through());
            tracing::info!(commit.id = revision, ledger.seq = through, "LEDGER has copied the whole commit");
            self.report_status();
        }
    }

    /// Discards the noted copies: LEDGER is read from its beginning, and may be another stream.
    pub(super) fn ledger_restarted(&mut self) {
        self.table.ledger_restarted();
        self.refused_rollbacks.clear();
        self.context.status.ledger_restarted();
        self.report_status();
    }

    /// Limits how often a device's heartbeats alone cause a publish.
    fn may_republish(&self, key: &DeviceKey) -> bool {
        self.republished_at.get(key).is_none_or(|at| at.elapsed() >= REPUBLISH_INTERVAL)
    }

    async fn catch_up(&mut self, key: &DeviceKey, generation: Generation) {
        if let Err(error) = self.read_again(key).await {
            // The next heartbeat repeats this.
            tracing::debug!(device.site = %key.site, device.id = %key.device, error = chain(&error), "cannot read a device's document");
            return;
        }
        let published = self.table.held(key).generation;
        if published >= Some(generation) {
            return;
        }
        self.republished_at.insert(key.clone(), Instant::now());
        if self.table.note_generation(key, generation) {
            tracing::warn!(
                device.site = %key.site,
                device.id = %key.device,
                device.generation = %generation,
                published = published.map_or(0, Generation::get),
                "the device is past its published document, as after a restore of DOWNLINK; publishing it again, above"
            );
        }
    }
}

fn read(message: &Message, interner: &mut Interner) -> PublishedState {
    PublishedState::read(message.sequence, &message.payload, interner).0
}

/// Logs that a device's document is of an unknown commit: the first as a warning, because the whole fleet may follow.
pub(super) fn log_unseen(key: &DeviceKey, is_first: bool) {
    let (site, device) = (&key.site, &key.device);
    if is_first {
        tracing::warn!(
            device.site = %site,
            device.id = %device,
            "another publisher has published a commit that is unknown here; its documents stay until the branch has the \
             commit. `muster publisher status` shows the number of devices"
        );
    } else {
        tracing::debug!(device.site = %site, device.id = %device, "found another document of an unknown commit");
    }
}

/// Logs an unreadable message, and what the publisher does about it.
fn warn_of(key: &DeviceKey, held: &PublishedState) {
    let Some(refusal) = &held.unreadable else { return };
    let then = match &held.document {
        Some(_) => "the last good document is published again, above it",
        None => {
            "the device has no good document: give it a folder in Git, or use `muster apply` or `muster retire`"
        }
    };
    tracing::warn!(
        device.site = %key.site,
        device.id = %key.device,
        downlink.seq = held.sequence,
        error = refusal,
        then,
        "DOWNLINK has a message that is no desired state: check who else may write muster.desired"
    );
}
