//! Checks whether a document of DOWNLINK can be a publisher's. Pure.
//!
//! A publisher's document names the publisher, its device and its generation in its headers, is newer than the one before
//! it or equal to it, and agrees with its commit. A client with the right to write to DOWNLINK can imitate that. The rights
//! of the hub exclude other clients, and messages that a server can be tricked into storing there (an answer, a document of
//! another device, an older one of this device, an empty message) fail the check. A forged request passes as a request.

use muster_bus::Delivery;
use muster_contract::desired::{DesiredState, SourceKind};
use muster_contract::incident::ForeignDocument;
use muster_contract::limits::VIEW_MESSAGE_BYTES_MAX;
use muster_contract::state::cut;
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeviceKey, Generation, decode};

use crate::compose;
use crate::content::Interner;
use crate::downlink::{Message, event_id};
use crate::plan::draft;
use crate::published::{Document, PublishedState, claimed_generation, plausible_generation};
use crate::source::Fleet;

/// A message of a device's subject, as DOWNLINK stored it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDocument {
    /// The device of the subject.
    pub key: DeviceKey,
    /// The message.
    pub message: Message,
}

/// A document that no publisher published.
#[derive(Debug, Clone, PartialEq)]
pub struct Foreign {
    /// The kind of mistake.
    pub cause: ForeignDocument,
    /// The mistake in words.
    pub reason: String,
    /// The generation that it claims, if it is plausible.
    pub generation: Option<Generation>,
    /// Whether devices can read it.
    pub is_readable: bool,
}

impl StoredDocument {
    /// A message of DOWNLINK; `None` if its subject names no device.
    pub fn of(delivery: Delivery) -> Option<Self> {
        let Some(LedgerSubject::Desired(key)) = LedgerSubject::parse(&delivery.subject) else { return None };
        Some(Self { key, message: delivery.into() })
    }

    /// The published state with this document instead of `before`.
    ///
    /// # Errors
    /// The document is foreign.
    pub fn verify(
        &self,
        before: &PublishedState,
        fleet: Option<&Fleet>,
        interner: &mut Interner,
    ) -> Result<PublishedState, Foreign> {
        if self.message.payload.is_empty() {
            return Err(self.foreign(ForeignDocument::Empty, "it has no payload", false));
        }
        let state: DesiredState = match decode::parse(&self.message.payload) {
            Ok(state) => state,
            Err(refusal) => {
                // A message with the shape of a document that breaks a rule of its content is a damaged document.
                let has_shape = serde_json::from_slice::<DesiredState>(&self.message.payload).is_ok();
                let cause = if has_shape { ForeignDocument::Damaged } else { ForeignDocument::Unreadable };
                return Err(self.foreign(cause, &refusal.to_string(), false));
            }
        };
        let generation = state.generation;
        if self.message.published_as.as_deref() != Some(event_id(&self.key, generation).as_str()) {
            let reason = "its headers are not those of a publisher for this device";
            return Err(self.foreign(ForeignDocument::NotPublished, reason, true));
        }
        let now = PublishedState::of(self.message.sequence, state, interner);
        match &before.document {
            Some(document) if now.document.as_ref() == Some(document) => return Ok(now),
            Some(Document { generation: known, .. }) if generation <= *known => {
                let reason =
                    format!("generation {generation} is not above {known}, which was published before");
                return Err(self.foreign(ForeignDocument::Stale, &reason, true));
            }
            _ => {}
        }
        if fleet.is_some_and(|fleet| contradicts(&self.key, &now, fleet)) {
            let reason = "it names the published commit and differs from it";
            return Err(self.foreign(ForeignDocument::Contradicts, reason, true));
        }
        Ok(now)
    }

    fn foreign(&self, cause: ForeignDocument, reason: &str, is_readable: bool) -> Foreign {
        let reason = cut(reason.to_owned(), VIEW_MESSAGE_BYTES_MAX);
        let generation = claimed_generation(&self.message.payload)
            .and_then(|generation| plausible_generation(generation.get()));
        Foreign { cause, reason, generation, is_readable }
    }
}

/// Whether a document that names the fleet's commit differs from the commit.
fn contradicts(key: &DeviceKey, now: &PublishedState, fleet: &Fleet) -> bool {
    let is_of_commit = now.document.as_ref().is_some_and(|document| {
        document.source.kind == SourceKind::Git && document.source.revision == fleet.revision
    });
    is_of_commit && compose::commit(key, fleet, now).is_some_and(|wanted| draft(now, &wanted).is_some())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use muster_contract::Timestamp;
    use muster_contract::desired::Source;

    use super::*;
    use crate::content::tests::{content, request};
    use crate::plan::DesiredDevice;

    fn key() -> DeviceKey {
        "a/one".parse().unwrap()
    }

    fn state(generation: u64, command: &str, source: Source) -> DesiredState {
        let wanted = DesiredDevice {
            retired: false,
            source,
            labels: Arc::default(),
            contents: vec![content("web", command)],
        };
        let before = PublishedState::default().with_generation_at_least(Generation::new(generation - 1));
        draft(&before, &wanted).unwrap().document(Timestamp::UNIX_EPOCH, None)
    }

    fn stored(state: &DesiredState) -> StoredDocument {
        let published_as = Some(event_id(&key(), state.generation));
        let message = Message { sequence: 9, payload: decode::to_bytes(state).into(), published_as };
        StoredDocument { key: key(), message }
    }

    #[test]
    fn only_a_document_that_a_publisher_can_have_published_passes() {
        let mut interner = Interner::default();
        let source = |revision: &str| Source::new(SourceKind::Git, revision.to_owned());
        let known = state(7, "run", source("c1"));
        let before = PublishedState::of(8, known.clone(), &mut interner);
        let fleet = Fleet {
            revision: "c1".to_owned(),
            devices: [(key(), vec![content("web", "run")])].into(),
            ..Fleet::default()
        };
        let mut cause = |stored: &StoredDocument| {
            stored.verify(&before, Some(&fleet), &mut interner).err().map(|foreign| foreign.cause)
        };
        assert_eq!(cause(&stored(&known)), None, "re-asserted");
        assert_eq!(cause(&stored(&state(8, "run", source("c1")))), None);
        assert_eq!(cause(&stored(&state(8, "other", request("r")))), None, "a request at another publisher");
        assert_eq!(cause(&stored(&state(8, "newer", source("c2")))), None, "of an unknown commit");

        let newer = state(8, "run", source("c1"));
        let with = |payload: Bytes| {
            let message = Message { payload, ..stored(&newer).message };
            StoredDocument { key: key(), message }
        };
        assert_eq!(cause(&with(Bytes::new())), Some(ForeignDocument::Empty));
        assert_eq!(cause(&with("{}".into())), Some(ForeignDocument::Unreadable));
        let damaged = String::from_utf8(decode::to_bytes(&newer)).unwrap().replace("run", "rub");
        assert_eq!(cause(&with(damaged.into())), Some(ForeignDocument::Damaged));
        for published_as in [None, Some("a.two.8".to_owned()), Some("a.one.7".to_owned())] {
            let message = Message { published_as, ..stored(&newer).message };
            assert_eq!(cause(&StoredDocument { key: key(), message }), Some(ForeignDocument::NotPublished));
        }
        assert_eq!(cause(&stored(&state(7, "old", source("c1")))), Some(ForeignDocument::Stale));
        assert_eq!(cause(&stored(&state(8, "bad", source("c1")))), Some(ForeignDocument::Contradicts));
    }
}
