//! Plans the next document of a device from its desired content and the published state. Pure.
//!
//! A document is made only if something changes; its generation is one above the last; a deployment's target generation
//! stays as long as its digest does.

use std::collections::HashMap;
use std::sync::Arc;

use muster_contract::desired::{DesiredState, RetryDelays, Source};
use muster_contract::labels::Labels;
use muster_contract::limits::{DEPLOYMENTS_PER_DEVICE_MAX, LABEL_CHARS_MAX, LABELS_MAX, MESSAGE_BYTES_MAX};
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{Generation, Timestamp};

use crate::content::Content;
use crate::published::{Document, Entry, PublishedState};

/// Largest size of a document without its deployments, in bytes: fixed names, a time, a generation, a revision, the
/// requester, and labels, each two quoted names with a colon and a comma.
const ENVELOPE_BYTES: usize = 1024 + LABELS_MAX * (2 * LABEL_CHARS_MAX + 6);

const _: () = assert!(ENVELOPE_BYTES < MESSAGE_BYTES_MAX);

/// The desired content of a device's document.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DesiredDevice {
    /// The device is taken out of the fleet.
    pub retired: bool,
    /// The commit or request.
    pub source: Source,
    /// The device's labels.
    pub labels: Arc<Labels>,
    /// Its deployments, ordered by id, each once.
    pub contents: Vec<Arc<Content>>,
}

/// A document to publish if the device's last message in DOWNLINK is still the one that it was planned on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Draft {
    /// Its generation.
    pub generation: Generation,
    /// Sequence of the message that it follows, 0 for none.
    pub expected_sequence: u64,
    document: Document,
}

impl Draft {
    /// True if this document is the published one.
    pub(crate) fn matches(&self, held: &PublishedState) -> bool {
        held.is_current && held.document.as_ref() == Some(&self.document)
    }
}

impl DesiredDevice {
    /// Checks the limits of a document.
    ///
    /// # Errors
    /// The exceeded limit.
    pub(crate) fn check(&self) -> Result<(), LimitExceeded> {
        LimitExceeded::of(self.contents.iter().map(|content| &**content))
    }
}

/// An exceeded limit of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitExceeded {
    /// Too many deployments.
    #[error("{0} deployments; {DEPLOYMENTS_PER_DEVICE_MAX} are allowed")]
    Deployments(usize),
    /// Too large a document.
    #[error("a document of {0} bytes; {MESSAGE_BYTES_MAX} are allowed")]
    Bytes(usize),
}

impl LimitExceeded {
    /// Checks the limits of a document with these contents.
    ///
    /// # Errors
    /// The exceeded limit.
    pub fn of<'a>(contents: impl ExactSizeIterator<Item = &'a Content>) -> Result<(), Self> {
        let count = contents.len();
        if count > DEPLOYMENTS_PER_DEVICE_MAX {
            return Err(Self::Deployments(count));
        }
        let bytes = ENVELOPE_BYTES + contents.map(|content| content.wire_bytes() + 1).sum::<usize>();
        if bytes > MESSAGE_BYTES_MAX { Err(Self::Bytes(bytes)) } else { Ok(()) }
    }
}

/// The part of a problem's text for further devices over a limit.
pub(crate) fn others_over_limit(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => " (and 1 more device is over a limit)".to_owned(),
        others => format!(" (and {others} more devices are over a limit)"),
    }
}

/// The next document of a device; `None` if the published one is current and has the wanted content.
pub(crate) fn draft(held: &PublishedState, wanted: &DesiredDevice) -> Option<Draft> {
    let before = held.document.as_ref();
    if !held.must_republish() && before.is_some_and(|document| is_same_state(document, wanted)) {
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

/// Whether a document has the wanted content. The source does not count: a commit that changes nothing for a device makes no
/// document.
fn is_same_state(document: &Document, wanted: &DesiredDevice) -> bool {
    let held = document.entries.iter().map(|entry| entry.content.digest());
    document.retired == wanted.retired
        && document.labels == wanted.labels
        && held.eq(wanted.contents.iter().map(|content| content.digest()))
}

impl Draft {
    /// The document, issued at `issued_at`, with the delays between the attempts of its device.
    pub(crate) fn document(&self, issued_at: Timestamp, retry: Option<RetryDelays>) -> DesiredState {
        let Document { generation: _, retired, source, labels, entries } = &self.document;
        DesiredState {
            api_version: ApiVersion::V1,
            kind: kind::DesiredState::DesiredState,
            generation: self.generation,
            issued_at,
            retired: *retired,
            source: source.clone(),
            labels: Labels::clone(labels),
            retry,
            deployments: entries.iter().map(|entry| entry.content.targeting(entry.target)).collect(),
        }
    }

    /// The published state once it is stored as message `sequence`.
    pub(crate) fn stored(self, sequence: u64) -> PublishedState {
        PublishedState {
            sequence,
            generation: Some(self.generation),
            document: Some(self.document),
            is_current: true,
            unreadable: None,
            issued_at: None,
        }
    }
}

#[cfg(test)]
mod tests;
