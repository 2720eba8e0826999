//! What DOWNLINK holds for a device, as far as the next document depends on it. DOWNLINK is the publisher's only
//! memory: generations, target generations and what was asked for by request live there and nowhere else.

use std::sync::Arc;

use muster_contract::desired::{DesiredState, Source};
use muster_contract::{Generation, Refusal, decode};
use serde::Deserialize;

use crate::content::{Content, Interner};

/// The state of a device's subject. The default is that of a subject without any document.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Held {
    /// Sequence of the subject's last message, 0 for none: what the next publish expects to find.
    pub sequence: u64,
    /// Highest generation known of.
    pub generation: Option<Generation>,
    /// The last document; none if there is none or nobody can read it.
    pub document: Option<Document>,
}

/// A document, its deployments shared with other devices.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The device was taken out of the fleet.
    pub retired: bool,
    /// Where it comes from.
    pub source: Source,
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
                let generation = serde_json::from_slice::<Peek>(payload).ok().map(|peek| peek.generation);
                (Self { sequence, generation, document: None }, Some(refusal))
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
        let document = Document { retired: state.retired, source: state.source, entries };
        Self { sequence, generation: Some(state.generation), document: Some(document) }
    }

    /// This reading of a subject after `before`. A generation once seen is never given again, even if the stream
    /// has lost it.
    #[must_use]
    pub fn after(self, before: &Self) -> Self {
        Self { generation: self.generation.max(before.generation), ..self }
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
        ] {
            let (held, refusal) = Held::read(9, payload, &mut interner);
            assert_eq!(held, Held { sequence: 9, generation, document: None });
            assert!(refusal.is_some());
        }
    }

    #[test]
    fn a_stream_that_lost_its_past_does_not_lower_a_generation() {
        let before = Held { sequence: 9, generation: Generation::new(7), document: None };
        assert_eq!(Held::default().after(&before), Held { sequence: 0, ..before.clone() });
        let now = Held { sequence: 3, generation: Generation::new(8), document: None };
        assert_eq!(now.clone().after(&before), now);
    }
}
