//! What was read of desired states, bounded. A manifest is held once by its digest, which is of its content and so never
//! means another; which digest a target has is held by the place of its device's desired state in LEDGER, where nothing
//! changes either. Of a LEDGER that was made anew nothing is kept.

use std::collections::HashMap;
use std::sync::Arc;

use muster_contract::DeploymentId;
use muster_contract::canonical::{Digest, canonical_json};
use muster_contract::desired::Source;
use muster_contract::manifest::Manifest;

use super::{Version, Wanted};
use crate::present::Origin;

/// Entries that are held.
pub(super) const ENTRIES_MAX: usize = 8192;
/// Bytes of what is held, manifests as JSON.
pub(super) const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of an entry beside its manifest and where it comes from.
const ENTRY_BYTES: usize = 256;

const _: () = assert!(ENTRIES_MAX * ENTRY_BYTES <= BYTES_MAX);

/// What shall run on a target.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct Entry {
    /// The digest that its content has.
    pub(super) digest: Digest,
    /// Where it comes from.
    pub(super) source: Source,
    /// Its content.
    pub(super) manifest: Arc<Manifest>,
    /// Bytes of the content as JSON.
    pub(super) bytes: usize,
}

impl Entry {
    pub(super) fn new(digest: Digest, source: Source, manifest: Manifest) -> Self {
        let bytes = canonical_json(&manifest).len();
        Self { digest, source, manifest: Arc::new(manifest), bytes }
    }
}

/// What is held.
#[derive(Debug, Default)]
pub(super) struct Cache {
    of: Option<Origin>,
    places: HashMap<(u64, DeploymentId), (Version, Entry)>,
    manifests: HashMap<Digest, Arc<Manifest>>,
    bytes: usize,
}

impl Cache {
    /// From here on it is about this LEDGER.
    pub(super) fn enter(&mut self, origin: Origin) {
        if self.of != Some(origin) {
            *self = Self { of: Some(origin), ..Self::default() };
        }
    }

    /// What shall run on a target, if it is held.
    pub(super) fn find(&self, wanted: &Wanted) -> Option<Entry> {
        let (version, entry) = self.places.get(&(wanted.ledger_seq?, wanted.deployment.clone()))?;
        (*version == wanted.version).then(|| entry.clone())
    }

    /// Holds what was read of a target, and gives it with the one copy of its manifest. Where there is no more room, it
    /// begins anew: what is asked for often is soon here again.
    pub(super) fn hold(&mut self, wanted: &Wanted, entry: Entry) -> Entry {
        let bytes = ENTRY_BYTES + entry.source.revision.len() + entry.bytes;
        let Some(ledger_seq) = wanted.ledger_seq.filter(|_| bytes <= BYTES_MAX) else { return entry };
        if self.places.len() >= ENTRIES_MAX || self.bytes + bytes > BYTES_MAX {
            *self = Self { of: self.of, ..Self::default() };
        }
        let held = self.manifests.get(&entry.digest);
        self.bytes += if held.is_some() { bytes - entry.bytes } else { bytes };
        let manifest = held.unwrap_or(&entry.manifest).clone();
        self.manifests.insert(entry.digest, manifest.clone());
        let entry = Entry { manifest, ..entry };
        let place = (ledger_seq, wanted.deployment.clone());
        self.places.insert(place, (wanted.version, entry.clone()));
        entry
    }

    /// Entries, manifests, and the bytes of both.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize, usize) {
        (self.places.len(), self.manifests.len(), self.bytes)
    }
}
