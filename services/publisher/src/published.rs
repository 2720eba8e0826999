//! The published state of a device, on which its next document depends. DOWNLINK is the publisher's memory: generations,
//! target generations and requested deployments are there, and in the copy that LEDGER keeps.
//!
//! A device accepts no generation twice and none below its own. So the publisher never assigns a generation again that it
//! has seen anywhere, and publishes a document again, above it, if its device must be past it.

use std::sync::Arc;

use muster_contract::desired::{DesiredState, Source, SourceKind};
use muster_contract::labels::Labels;
use muster_contract::{Generation, Refusal, Timestamp, decode};
use serde::Deserialize;

use crate::content::{Content, Interner};

/// The highest plausible generation without a readable document: a device that gets one each millisecond would need 34
/// years. Accepting a wrong one above it would use up the device's generations for good.
const PLAUSIBLE_MAX: u64 = 1 << 40;

/// The revision of a document that retires a device of which only a foreign document was known.
const FOREIGN_REVISION: &str = "foreign-document";

/// The state of a device's subject. The default is that of a subject without any document.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PublishedState {
    /// Sequence of the subject's last message, 0 for none: the next publish expects it.
    pub sequence: u64,
    /// The highest known generation.
    pub generation: Option<Generation>,
    /// The last readable document, from DOWNLINK or any copy; `None` if there is none.
    pub document: Option<Document>,
    /// Whether that document is the newest message of the subject.
    pub is_current: bool,
    /// Why the newest message cannot be read, if that is so.
    pub unreadable: Option<String>,
    /// Time at which the last readable document was made, by the clock of its publisher.
    pub issued_at: Option<Timestamp>,
}

/// A document, its deployments shared with other devices.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Its own generation.
    pub generation: Generation,
    /// The device is taken out of the fleet.
    pub retired: bool,
    /// The commit or request.
    pub source: Source,
    /// The device's labels, shared with others.
    pub labels: Arc<Labels>,
    /// Its deployments, ordered by id.
    pub entries: Vec<Entry>,
}

/// A deployment of a document.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its content.
    pub content: Arc<Content>,
    /// The generation at which it got this content.
    pub target: Generation,
}

impl PublishedState {
    /// Reads the last message of a subject. If it is no document, the state has its sequence and the generation that it
    /// claims, so that the next document replaces it; the refusal is returned as well.
    pub fn read(sequence: u64, payload: &[u8], interner: &mut Interner) -> (Self, Option<Refusal>) {
        match decode::parse::<DesiredState>(payload) {
            Ok(state) => (Self::of(sequence, state, interner), None),
            Err(refusal) => {
                let (generation, unreadable) = (claimed_generation(payload), Some(refusal.to_string()));
                (Self { sequence, generation, unreadable, ..Self::default() }, Some(refusal))
            }
        }
    }

    /// The state once `state` is stored as message `sequence`.
    pub fn of(sequence: u64, state: DesiredState, interner: &mut Interner) -> Self {
        let entry = |entry: muster_contract::desired::DesiredDeployment| Entry {
            target: entry.target_generation,
            content: interner.share(Content::of(entry)),
        };
        let mut entries: Vec<_> = state.deployments.into_iter().map(entry).collect();
        entries.sort_by(|one, other| one.content.id().cmp(other.content.id()));
        let (generation, issued_at) = (state.generation, Some(state.issued_at));
        let labels = interner.share_labels(state.labels);
        let document = Document { generation, retired: state.retired, source: state.source, labels, entries };
        Self {
            sequence,
            generation: Some(generation),
            document: Some(document),
            is_current: true,
            unreadable: None,
            issued_at,
        }
    }

    /// This state, read after `before`. It keeps the highest generation, even if the stream has lost it, and the newest
    /// document, even if the stream has lost it or has an older one since (after a restore from a backup).
    #[must_use]
    pub fn after(self, before: &Self) -> Self {
        let generation = self.generation.max(before.generation);
        let of = |held: &Self| held.document.as_ref().map(|document| document.generation);
        if of(before) > of(&self) {
            let (document, issued_at) = (before.document.clone(), before.issued_at);
            return Self { generation, document, is_current: false, issued_at, ..self };
        }
        Self { generation, ..self }
    }

    /// The same, with `generation` as a used one.
    #[must_use]
    pub(crate) fn with_generation_at_least(self, generation: Option<Generation>) -> Self {
        Self { generation: self.generation.max(generation), ..self }
    }

    /// The same, with a copy or an older message of the device: its generation counts, and its content too if it is newer
    /// than the known document.
    #[must_use]
    pub(crate) fn with_other_copy(mut self, payload: &[u8], interner: &mut Interner) -> Self {
        let known = self.document.as_ref().map(|document| document.generation);
        if claimed_generation(payload) > known.max(self.generation.filter(|_| self.is_current)) {
            let (other, _) = Self::read(0, payload, interner);
            if other.document.is_some() {
                (self.document, self.is_current, self.issued_at) = (other.document, false, other.issued_at);
            }
        }
        self.with_generation_at_least(claimed_generation(payload))
    }

    /// The same for a device of which only a foreign document is known: the device must be retired.
    #[must_use]
    pub fn retired(self) -> Self {
        let source = Source::new(SourceKind::Api, FOREIGN_REVISION.to_owned());
        let document = Document {
            generation: Generation::FIRST,
            retired: true,
            source,
            labels: Arc::default(),
            entries: Vec::new(),
        };
        Self { document: Some(document), is_current: false, ..self }
    }

    /// Whether the document must be published again, with a higher generation: a device that restarts would not find it, or
    /// a device that is past its generation would not accept it.
    pub(crate) fn must_republish(&self) -> bool {
        let passed = |document: &Document| Some(document.generation) < self.generation;
        self.document.as_ref().is_some_and(|document| !self.is_current || passed(document))
    }

    /// The last published labels of the device.
    pub fn labels(&self) -> Arc<Labels> {
        self.document.as_ref().map(|document| document.labels.clone()).unwrap_or_default()
    }

    /// Deployments that were applied by request and not removed.
    pub fn requested(&self) -> impl Iterator<Item = &Arc<Content>> {
        self.contents().filter(|content| content.is_requested())
    }

    /// Deployments from Git.
    pub(crate) fn git_contents(&self) -> impl Iterator<Item = &Arc<Content>> {
        self.contents().filter(|content| !content.is_requested())
    }

    /// All deployments of the document.
    pub fn contents(&self) -> impl Iterator<Item = &Arc<Content>> {
        self.document.iter().flat_map(|document| &document.entries).map(|entry| &entry.content)
    }
}

/// The generation that a message claims, readable or not, if it is plausible.
pub(crate) fn claimed_generation(payload: &[u8]) -> Option<Generation> {
    let peek: GenerationField = serde_json::from_slice(payload).ok()?;
    plausible_generation(peek.generation.get())
}

/// A claimed generation, if a device can have reached it.
pub(crate) fn plausible_generation(generation: u64) -> Option<Generation> {
    Generation::new(generation).filter(|generation| generation.get() <= PLAUSIBLE_MAX)
}

#[derive(Deserialize)]
struct GenerationField {
    generation: Generation,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_message_keeps_its_sequence_and_its_generation() {
        let mut interner = Interner::default();
        for (payload, generation) in [
            (&b"{}"[..], None),
            (b"not JSON", None),
            (br#"{"apiVersion":"muster/v9","generation":7}"#, Generation::new(7)),
            (br#"{"apiVersion":"muster/v9","generation":18446744073709551615}"#, None),
        ] {
            let (held, refusal) = PublishedState::read(9, payload, &mut interner);
            assert_eq!((held.sequence, held.generation, held.document), (9, generation, None));
            assert_eq!(held.unreadable, refusal.map(|refusal| refusal.to_string()));
        }
    }

    #[test]
    fn a_stream_that_lost_messages_does_not_lower_a_generation() {
        let before =
            PublishedState { sequence: 9, generation: Generation::new(7), ..PublishedState::default() };
        assert_eq!(
            PublishedState::default().after(&before),
            PublishedState { sequence: 0, ..before.clone() }
        );
        let now = PublishedState { sequence: 3, generation: Generation::new(8), ..PublishedState::default() };
        assert_eq!(now.clone().after(&before), now);
    }

    #[test]
    fn a_restored_stream_does_not_hide_what_was_published_since() {
        let mut interner = Interner::default();
        let (restored, known) =
            (PublishedState::of(3, state(5), &mut interner), PublishedState::of(9, state(6), &mut interner));
        let held = restored.clone().after(&known);
        assert_eq!((held.sequence, &held.document), (3, &known.document));
        assert!(held.must_republish());
        assert_eq!(known.clone().after(&restored), known, "and what is newer is simply newer");
    }

    fn state(generation: u64) -> DesiredState {
        let wanted = crate::plan::DesiredDevice {
            retired: false,
            source: crate::content::tests::request("r"),
            labels: Arc::default(),
            contents: vec![crate::content::tests::content("web", &generation.to_string())],
        };
        let before = PublishedState::default().with_generation_at_least(Generation::new(generation - 1));
        crate::plan::draft(&before, &wanted).unwrap().document(muster_contract::Timestamp::UNIX_EPOCH, None)
    }

    #[test]
    fn a_copy_counts_if_it_is_newer() {
        let mut interner = Interner::default();
        let (old, new) = (state(7), decode::to_bytes(&state(10)));
        let generation_of =
            |held: &PublishedState| held.document.as_ref().map(|document| document.generation.get());
        let here = PublishedState::of(3, old.clone(), &mut interner);
        let held = here.clone().with_other_copy(&new, &mut interner);
        assert_eq!((held.sequence, held.generation.unwrap().get(), generation_of(&held)), (3, 10, Some(10)));
        assert!(held.must_republish(), "a stream restored from a backup lacks what was published since");
        assert_eq!(here.clone().with_other_copy(&decode::to_bytes(&old), &mut interner), here);
        assert!(!here.must_republish());

        let (unreadable, _) = PublishedState::read(9, b"garbage", &mut interner);
        let held = unreadable
            .with_other_copy(&decode::to_bytes(&old), &mut interner)
            .with_other_copy(&new, &mut interner);
        assert_eq!((held.sequence, generation_of(&held)), (9, Some(10)));
        assert!(held.must_republish() && held.unreadable.is_some());
    }

    #[test]
    fn a_document_below_its_devices_generation_must_be_republished() {
        let held = PublishedState::of(3, state(7), &mut Interner::default());
        assert!(!held.clone().with_generation_at_least(Generation::new(7)).must_republish());
        assert!(held.with_generation_at_least(Generation::new(8)).must_republish());
        assert!(
            !PublishedState::default().with_generation_at_least(Generation::new(8)).must_republish(),
            "there is nothing to say"
        );
    }
}
