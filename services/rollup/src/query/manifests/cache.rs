//! Caches manifests read from desired states, within bounds.
//!
//! Each manifest is cached once by the digest of its content. A target's digest is cached by the LEDGER
//! sequence of its device's desired state. Neither mapping ever changes; when LEDGER is created anew, the cache
//! is cleared.

use std::collections::HashMap;
use std::sync::Arc;

use muster_contract::DeploymentId;
use muster_contract::canonical::{Digest, canonical_json};
use muster_contract::desired::Source;
use muster_contract::manifest::Manifest;

use super::{ManifestRequest, Version};
use crate::projection::Origin;

/// Entries that are held.
pub(super) const ENTRIES_MAX: usize = 8192;
/// Bytes of what is held, manifests as JSON.
pub(super) const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of an entry beside its manifest and its source.
const ENTRY_BYTES: usize = 256;

const _: () = assert!(ENTRIES_MAX * ENTRY_BYTES <= BYTES_MAX);

/// The manifest of a target.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    /// The digest that its content has.
    pub(super) digest: Digest,
    /// Its source.
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

/// The cached manifests.
#[derive(Debug, Default)]
pub(super) struct ManifestCache {
    of: Option<Origin>,
    places: HashMap<(u64, DeploymentId), (Version, Entry)>,
    manifests: HashMap<Digest, Arc<Manifest>>,
    bytes: usize,
}

impl ManifestCache {
    /// From here on the cache is about this LEDGER.
    pub(super) fn enter(&mut self, origin: Origin) {
        if self.of != Some(origin) {
            *self = Self { of: Some(origin), ..Self::default() };
        }
    }

    /// The manifest of a target, if it is cached.
    pub(super) fn find(&self, wanted: &ManifestRequest) -> Option<Entry> {
        let (version, entry) = self.places.get(&(wanted.ledger_seq?, wanted.deployment.clone()))?;
        (*version == wanted.version).then(|| entry.clone())
    }

    /// Caches a target's manifest and returns the shared copy. A full cache is cleared: frequently requested
    /// manifests soon return.
    pub(super) fn hold(&mut self, wanted: &ManifestRequest, entry: Entry) -> Entry {
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
