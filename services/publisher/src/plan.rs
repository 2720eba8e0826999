//! From what a device shall run and what DOWNLINK holds to the next document, or to none: a pure function.
//!
//! A document is made only if something changes; its generation is one above the last; a deployment's target
//! generation stays for as long as its digest does.

use std::collections::HashMap;
use std::sync::Arc;

use muster_contract::desired::{DesiredState, Source};
use muster_contract::labels::Labels;
use muster_contract::limits::{DEPLOYMENTS_PER_DEVICE_MAX, LABEL_CHARS_MAX, LABELS_MAX, MESSAGE_BYTES_MAX};
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{Generation, Timestamp};

use crate::content::Content;
use crate::held::{Document, Entry, Held};

/// Bytes of a document apart from its deployments, at most: fixed names, a time, a generation, a revision, who asked, and labels,
/// each two names in quotes with a colon and a comma.
const ENVELOPE_BYTES: usize = 1024 + LABELS_MAX * (2 * LABEL_CHARS_MAX + 6);

const _: () = assert!(ENVELOPE_BYTES < MESSAGE_BYTES_MAX);

/// What a device shall be.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// Out of the fleet.
    pub retired: bool,
    /// Who says so.
    pub source: Source,
    /// What groups it.
    pub labels: Arc<Labels>,
    /// What it shall run, ordered by id, none twice.
    pub contents: Vec<Arc<Content>>,
}

/// A document to publish if DOWNLINK still holds what it was planned on.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// Its generation.
    pub generation: Generation,
    /// Sequence of the document it follows, 0 for none.
    pub expected_sequence: u64,
    document: Document,
}

impl Draft {
    /// True where this very document is what is held.
    pub fn is_what(&self, held: &Held) -> bool {
        held.stands && held.document.as_ref() == Some(&self.document)
    }
}

impl Wanted {
    /// Whether one message can say it.
    ///
    /// # Errors
    /// The limit that it is over.
    pub fn check(&self) -> Result<(), TooMuch> {
        TooMuch::of(self.contents.iter().map(|content| &**content))
    }
}

/// More than one message can say to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooMuch {
    /// Too many deployments.
    #[error("{0} deployments; {DEPLOYMENTS_PER_DEVICE_MAX} are allowed")]
    Deployments(usize),
    /// Too long a document.
    #[error("a document of {0} bytes; {MESSAGE_BYTES_MAX} are allowed")]
    Bytes(usize),
}

impl TooMuch {
    /// Whether one message can say all of `contents`.
    ///
    /// # Errors
    /// The limit that they are over.
    pub fn of<'a>(contents: impl ExactSizeIterator<Item = &'a Content>) -> Result<(), Self> {
        let count = contents.len();
        if count > DEPLOYMENTS_PER_DEVICE_MAX {
            return Err(Self::Deployments(count));
        }
        let bytes = ENVELOPE_BYTES + contents.map(|content| content.wire_bytes() + 1).sum::<usize>();
        if bytes > MESSAGE_BYTES_MAX { Err(Self::Bytes(bytes)) } else { Ok(()) }
    }
}

/// That a limit is broken for so many others.
pub fn also(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => " (and 1 device more is over a limit)".to_owned(),
        others => format!(" (and {others} devices more are over a limit)"),
    }
}

/// The next document of a device, or none if what is held says what is wanted where the device finds and takes it.
pub fn draft(held: &Held, wanted: &Wanted) -> Option<Draft> {
    let before = held.document.as_ref();
    if !held.is_due_again() && before.is_some_and(|document| says(document, wanted)) {
        return None;
    }
    let generation = held.generation.map_or(Generation::FIRST, Generation::next);
    let kept: HashMap<_, _> = before
        .into_iter()
        .flat_map(|document| &document.entries)
        .map(|entry| (entry.content.digest(), entry.target))
        .collect();
    let entry = |content: &Arc<Content>| Entry {
        target: kept.get(&content.digest()).copied().unwrap_or(generation),
        content: content.clone(),
    };
    let entries = wanted.contents.iter().map(entry).collect();
    let document = Document {
        generation,
        retired: wanted.retired,
        source: wanted.source.clone(),
        labels: wanted.labels.clone(),
        entries,
    };
    Some(Draft { generation, expected_sequence: held.sequence, document })
}

/// The source is no part of it: a commit that changes nothing for a device is not worth a document.
fn says(document: &Document, wanted: &Wanted) -> bool {
    let held = document.entries.iter().map(|entry| entry.content.digest());
    document.retired == wanted.retired
        && document.labels == wanted.labels
        && held.eq(wanted.contents.iter().map(|content| content.digest()))
}

impl Draft {
    /// The document, made at `issued_at`.
    pub fn document(&self, issued_at: Timestamp) -> DesiredState {
        let Document { generation: _, retired, source, labels, entries } = &self.document;
        DesiredState {
            api_version: ApiVersion::V1,
            kind: kind::DesiredState::DesiredState,
            generation: self.generation,
            issued_at,
            retired: *retired,
            source: source.clone(),
            labels: Labels::clone(labels),
            deployments: entries.iter().map(|entry| entry.content.targeting(entry.target)).collect(),
        }
    }

    /// What is held once it is stored as message `sequence`.
    pub fn stored(self, sequence: u64) -> Held {
        Held {
            sequence,
            generation: Some(self.generation),
            document: Some(self.document),
            stands: true,
            unreadable: None,
        }
    }
}

#[cfg(test)]
mod tests;
