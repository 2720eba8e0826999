//! What the announcer reads: everything at the start, one device again where another writer was first, and how far
//! the devices themselves are. What is lost or damaged here is looked for everywhere else it may be known.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_bus::ReadError;
use muster_contract::{DeviceKey, Generation};
use muster_service::error::chain;
use tokio::time::Instant;

use super::Announcer;
use crate::content::Interner;
use crate::copies::LedgerCopy;
use crate::downlink::{Downlink, Message};
use crate::foreign::StoredDocument;
use crate::held::Held;
use crate::roster::Roster;

/// Shortest time between two documents that one device's word alone has published.
pub(super) const SAID_AGAIN_EVERY: Duration = Duration::from_secs(60);

impl<D: Downlink> Announcer<D> {
    /// Reads what is published, until that has succeeded.
    pub(super) async fn recover(&mut self) {
        let held = loop {
            match self.everything().await {
                Ok(held) => break held,
                Err(error) => {
                    let retry_in = self.retry.next(&mut self.chance);
                    tracing::warn!(error = chain(&error), ?retry_in, "cannot read the desired state yet");
                    tokio::time::sleep(retry_in).await;
                }
            }
        };
        self.retry.reset();
        self.roster = Roster::recovered(held);
        tracing::info!(devices = self.roster.devices(), "read the desired state that DOWNLINK holds");
        if self.roster.due() > 0 {
            tracing::warn!(
                devices = self.roster.due(),
                "DOWNLINK has lost documents, or holds some that their devices are past; publishing them again"
            );
        }
        self.tell();
    }

    async fn everything(&self) -> Result<BTreeMap<DeviceKey, Held>, ReadError> {
        let mut interner = Interner::default();
        let subjects = self.downlink.everybody().await?;
        let copies = self.downlink.copies(&subjects).await?;
        let mut held = BTreeMap::new();
        for (key, subject) in subjects {
            let read = read(&subject.last, &mut interner).above(subject.highest);
            held.insert(key, read);
        }
        for (key, copy) in copies {
            let before: Held = held.remove(&key).unwrap_or_default();
            held.insert(key, before.beside(&copy, &mut interner));
        }
        for (key, held) in held.iter_mut().filter(|(_, held)| held.document.is_none()) {
            *held = self.dug_out(key, std::mem::take(held), &mut interner).await?;
        }
        for (key, held) in &held {
            warn_of(key, held);
        }
        Ok(held)
    }

    /// Reads a device again.
    pub(super) async fn read_again(&mut self, key: &DeviceKey) -> Result<(), ReadError> {
        let message = self.downlink.last(key).await?;
        self.take_in(key, message).await
    }

    /// Takes in the last message of a device, verified as those that are followed are.
    pub(super) async fn take_in(
        &mut self,
        key: &DeviceKey,
        message: Option<Message>,
    ) -> Result<(), ReadError> {
        let (before, mut interner) = (self.roster.held(key), Interner::default());
        match message {
            // As it was, also where it was found to be foreign.
            Some(message) if message.sequence == before.sequence => return Ok(()),
            Some(message) => {
                let document = StoredDocument { key: key.clone(), message };
                self.verify_one(&document, &before, &mut interner);
            }
            None => self.roster.read_again(key, Held::default().after(&before)),
        }
        let mut held = self.roster.held(key);
        if held.document.is_none() {
            held = self.dug_out(key, held, &mut interner).await?;
            self.roster.read_again(key, held.clone());
        }
        warn_of(key, &held);
        Ok(())
    }

    /// What older messages of a device say, where the newest says nothing.
    async fn dug_out(&self, key: &DeviceKey, held: Held, interner: &mut Interner) -> Result<Held, ReadError> {
        let history = self.downlink.history(key).await?;
        Ok(history.iter().fold(held, |held, payload| held.beside(payload, interner)))
    }

    /// Devices say which generation they are at. One that is past everything published, because DOWNLINK came back
    /// from a backup or was lost with its copy, would take nothing any more: its document is said again, above.
    pub(super) async fn heard(&mut self, beats: Vec<(DeviceKey, Generation)>) {
        for (key, generation) in beats {
            if self.roster.is_behind(&key, generation) && self.may_say_again(&key) {
                self.catch_up(&key, generation).await;
            }
        }
    }

    /// LEDGER holds these documents. It takes them by itself, some time after they are published.
    pub(super) fn in_ledger(&mut self, copies: Vec<LedgerCopy>) {
        if self.roster.in_ledger(copies) {
            let (revision, through) = (self.roster.revision(), self.roster.applied_through());
            tracing::info!(commit.id = revision, ledger.seq = through, "LEDGER holds the whole commit");
            self.tell();
        }
    }

    /// What LEDGER holds is read from its beginning, as after it was made anew: what was told of it holds no more.
    pub(super) fn ledger_anew(&mut self) {
        self.roster.ledger_anew();
        self.around.status.ledger_anew();
        self.tell();
    }

    /// A device alone must not have documents published at its own pace.
    fn may_say_again(&self, key: &DeviceKey) -> bool {
        self.said_again.get(key).is_none_or(|at| at.elapsed() >= SAID_AGAIN_EVERY)
    }

    async fn catch_up(&mut self, key: &DeviceKey, generation: Generation) {
        if let Err(error) = self.read_again(key).await {
            // It will say so again.
            tracing::debug!(device.site = %key.site, device.id = %key.device, error = chain(&error), "not read");
            return;
        }
        let published = self.roster.held(key).generation;
        if published >= Some(generation) {
            return;
        }
        self.said_again.insert(key.clone(), Instant::now());
        if self.roster.passed(key, generation) {
            tracing::warn!(
                device.site = %key.site,
                device.id = %key.device,
                device.generation = %generation,
                published = published.map_or(0, Generation::get),
                "the device is past what is published, as after a restore of DOWNLINK; publishing it again, above"
            );
        }
    }
}

fn read(message: &Message, interner: &mut Interner) -> Held {
    Held::read(message.sequence, &message.payload, interner).0
}

/// Says that a device's document is of a commit not known here: loudly of the first, for the fleet may follow.
pub(super) fn say_unseen(key: &DeviceKey, is_first: bool) {
    let (site, device) = (&key.site, &key.device);
    if is_first {
        tracing::warn!(
            device.site = %site,
            device.id = %device,
            "another publisher has published a commit that is not known here; what it says stays until the branch has it \
             too. How many devices that are: `muster publisher status`"
        );
    } else {
        tracing::debug!(device.site = %site, device.id = %device, "another one of a commit that is not known here");
    }
}

/// Says what cannot be read, and what becomes of it.
fn warn_of(key: &DeviceKey, held: &Held) {
    let Some(refusal) = &held.unreadable else { return };
    let then = match &held.document {
        Some(_) => "the last good one is published again, above it",
        None => {
            "nothing good is known of the device: give it a folder in Git, `muster apply` or `muster retire`"
        }
    };
    tracing::warn!(
        device.site = %key.site,
        device.id = %key.device,
        downlink.seq = held.sequence,
        error = refusal,
        then,
        "DOWNLINK holds something that is no desired state; who but the publisher may write muster.desired?"
    );
}
