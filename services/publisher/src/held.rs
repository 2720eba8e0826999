//! What is published for a device, as far as the next document depends on it. DOWNLINK is the publisher's memory:
//! generations, target generations and what was asked for by request live there, and in the copy that LEDGER keeps.
//!
//! A device takes no generation twice and none below its own. So a generation once seen anywhere is never given again,
//! and a document that a device must have passed is due again, above it.

use std::sync::Arc;

use muster_contract::desired::{DesiredState, Source, SourceKind};
use muster_contract::labels::Labels;
use muster_contract::{Generation, Refusal, decode};
use serde::Deserialize;

use crate::content::{Content, Interner};

/// Highest generation that is believed where no readable document says it: a device given one a millisecond would need
/// 34 years. A slip or a lie above it would use up the generations of the device for good.
const BELIEVED_MAX: u64 = 1 << 40;

/// The revision of a document that retires a device because a foreign document was all that there was of it.
const FOREIGN_REVISION: &str = "foreign-document";

/// The state of a device's subject. The default is that of a subject without any document.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Held {
    /// Sequence of the subject's last message, 0 for none: what the next publish expects to find.
    pub sequence: u64,
    /// Highest generation known of.
    pub generation: Option<Generation>,
    /// The last document that can be read, from wherever it is still known; none if nothing is.
    pub document: Option<Document>,
    /// Whether that document is the newest message of the subject.
    pub stands: bool,
    /// What is wrong with the newest message, if nobody can read it.
    pub unreadable: Option<String>,
}

/// A document, its deployments shared with other devices.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Its own generation.
    pub generation: Generation,
    /// The device was taken out of the fleet.
    pub retired: bool,
    /// Where it comes from.
    pub source: Source,
    /// What groups the device; shared with others.
    pub labels: Arc<Labels>,
    /// Its deployments, ordered by id.
    pub entries: Vec<Entry>,
}

/// A deployment of a document.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// What it is.
    pub content: Arc<Content>,
    /// Since which generation.
    pub target: Generation,
}

impl Held {
    /// Reads the last message of a subject. Of one that is no document its sequence is held and, if it says one, its
    /// generation, so that the next document replaces it; what is wrong with it is handed back beside.
    pub fn read(sequence: u64, payload: &[u8], interner: &mut Interner) -> (Self, Option<Refusal>) {
        match decode::parse::<DesiredState>(payload) {
            Ok(state) => (Self::of(sequence, state, interner), None),
            Err(refusal) => {
                let (generation, unreadable) = (claimed(payload), Some(refusal.to_string()));
                (Self { sequence, generation, unreadable, ..Self::default() }, Some(refusal))
            }
        }
    }

    /// What is held once `state` is stored as message `sequence`.
    pub fn of(sequence: u64, state: DesiredState, interner: &mut Interner) -> Self {
        let entry = |entry: muster_contract::desired::DesiredDeployment| Entry {
            target: entry.target_generation,
            content: interner.share(Content::of(entry)),
        };
        let mut entries: Vec<_> = state.deployments.into_iter().map(entry).collect();
        entries.sort_by(|one, other| one.content.id().cmp(other.content.id()));
        let generation = state.generation;
        let labels = interner.share_labels(state.labels);
        let document = Document { generation, retired: state.retired, source: state.source, labels, entries };
        Self {
            sequence,
            generation: Some(generation),
            document: Some(document),
            stands: true,
            unreadable: None,
        }
    }

    /// This reading of a subject after `before`. A generation once seen is never given again, even if the stream
    /// has lost it; a document that the stream has lost is remembered, also where it holds an older one since, as after a
    /// restore from a backup.
    #[must_use]
    pub fn after(self, before: &Self) -> Self {
        let generation = self.generation.max(before.generation);
        let of = |held: &Self| held.document.as_ref().map(|document| document.generation);
        if of(before) > of(&self) {
            return Self { generation, document: before.document.clone(), stands: false, ..self };
        }
        Self { generation, ..self }
    }

    /// The same where generations up to `generation` are known to be given.
    #[must_use]
    pub fn above(self, generation: Option<Generation>) -> Self {
        Self { generation: self.generation.max(generation), ..self }
    }

    /// The same with a message of the device that is kept elsewhere, or is older: its generation counts, and so does
    /// its content where it is newer than all that is known.
    #[must_use]
    pub fn beside(mut self, payload: &[u8], interner: &mut Interner) -> Self {
        let known = self.document.as_ref().map(|document| document.generation);
        if claimed(payload) > known.max(self.generation.filter(|_| self.stands)) {
            let (other, _) = Self::read(0, payload, interner);
            if other.document.is_some() {
                (self.document, self.stands) = (other.document, false);
            }
        }
        self.above(claimed(payload))
    }

    /// The same where nothing is known of the device but that somebody else published for it: it is to be retired.
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
        Self { document: Some(document), stands: false, ..self }
    }

    /// Whether the document must be published again, above: a device that restarts would not find it, or one that is
    /// past its generation would not take it.
    pub fn is_due_again(&self) -> bool {
        let passed = |document: &Document| Some(document.generation) < self.generation;
        self.document.as_ref().is_some_and(|document| !self.stands || passed(document))
    }

    /// What groups the device, as last published.
    pub fn labels(&self) -> Arc<Labels> {
        self.document.as_ref().map(|document| document.labels.clone()).unwrap_or_default()
    }

    /// What was asked for by request and not taken back.
    pub fn requested(&self) -> impl Iterator<Item = &Arc<Content>> {
        self.contents().filter(|content| content.is_requested())
    }

    /// What came from Git.
    pub fn from_git(&self) -> impl Iterator<Item = &Arc<Content>> {
        self.contents().filter(|content| !content.is_requested())
    }

    fn contents(&self) -> impl Iterator<Item = &Arc<Content>> {
        self.document.iter().flat_map(|document| &document.entries).map(|entry| &entry.content)
    }
}

/// The generation that a message claims, readable or not, as far as that can be believed.
pub fn claimed(payload: &[u8]) -> Option<Generation> {
    let peek: Peek = serde_json::from_slice(payload).ok()?;
    believed(peek.generation.get())
}

/// A generation that somebody claims, if an honest device can have reached it.
pub fn believed(generation: u64) -> Option<Generation> {
    Generation::new(generation).filter(|generation| generation.get() <= BELIEVED_MAX)
}

#[derive(Deserialize)]
struct Peek {
    generation: Generation,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_document_is_held_by_its_sequence_and_its_generation() {
        let mut interner = Interner::default();
        for (payload, generation) in [
            (&b"{}"[..], None),
            (b"not JSON", None),
            (br#"{"apiVersion":"muster/v9","generation":7}"#, Generation::new(7)),
            (br#"{"apiVersion":"muster/v9","generation":18446744073709551615}"#, None),
        ] {
            let (held, refusal) = Held::read(9, payload, &mut interner);
            assert_eq!((held.sequence, held.generation, held.document), (9, generation, None));
            assert_eq!(held.unreadable, refusal.map(|refusal| refusal.to_string()));
        }
    }

    #[test]
    fn a_stream_that_lost_its_past_does_not_lower_a_generation() {
        let before = Held { sequence: 9, generation: Generation::new(7), ..Held::default() };
        assert_eq!(Held::default().after(&before), Held { sequence: 0, ..before.clone() });
        let now = Held { sequence: 3, generation: Generation::new(8), ..Held::default() };
        assert_eq!(now.clone().after(&before), now);
    }

    #[test]
    fn a_stream_that_came_back_from_a_backup_makes_nobody_forget_what_was_published_since() {
        let mut interner = Interner::default();
        let (restored, known) = (Held::of(3, state(5), &mut interner), Held::of(9, state(6), &mut interner));
        let held = restored.clone().after(&known);
        assert_eq!((held.sequence, &held.document), (3, &known.document));
        assert!(held.is_due_again());
        assert_eq!(known.clone().after(&restored), known, "and what is newer is simply newer");
    }

    fn state(generation: u64) -> DesiredState {
        let wanted = crate::plan::Wanted {
            retired: false,
            source: crate::content::tests::request("r"),
            labels: Arc::default(),
            contents: vec![crate::content::tests::content("web", &generation.to_string())],
        };
        let before = Held::default().above(Generation::new(generation - 1));
        crate::plan::draft(&before, &wanted).unwrap().document(muster_contract::Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn what_is_kept_elsewhere_counts_where_it_is_newer() {
        let mut interner = Interner::default();
        let (old, new) = (state(7), decode::to_bytes(&state(10)));
        let generation_of = |held: &Held| held.document.as_ref().map(|document| document.generation.get());
        let here = Held::of(3, old.clone(), &mut interner);
        let held = here.clone().beside(&new, &mut interner);
        assert_eq!((held.sequence, held.generation.unwrap().get(), generation_of(&held)), (3, 10, Some(10)));
        assert!(held.is_due_again(), "a stream restored from a backup lacks what was published since");
        assert_eq!(here.clone().beside(&decode::to_bytes(&old), &mut interner), here);
        assert!(!here.is_due_again());

        let (unreadable, _) = Held::read(9, b"garbage", &mut interner);
        let held = unreadable.beside(&decode::to_bytes(&old), &mut interner).beside(&new, &mut interner);
        assert_eq!((held.sequence, generation_of(&held)), (9, Some(10)));
        assert!(held.is_due_again() && held.unreadable.is_some());
    }

    #[test]
    fn a_document_that_its_device_has_passed_is_due_again() {
        let held = Held::of(3, state(7), &mut Interner::default());
        assert!(!held.clone().above(Generation::new(7)).is_due_again());
        assert!(held.above(Generation::new(8)).is_due_again());
        assert!(!Held::default().above(Generation::new(8)).is_due_again(), "there is nothing to say");
    }
}
