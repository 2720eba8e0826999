//! Devices whose last document another publisher made of a commit that this one has not seen. Which of two commits is the
//! newer one no revision tells; only the branch does, asked after the document was there. Until then what Git says of such
//! a device is what its document says: a publisher whose Git is stuck puts nothing older in its place. No IO, no clock.

use std::collections::{BTreeMap, VecDeque};

use muster_contract::DeviceKey;
use muster_contract::desired::SourceKind;
use tokio::time::Instant;

use crate::held::Document;
use crate::source::Fleet;

/// Commits of our own that are told from others'. A document of an older one has long been followed by one of these.
const OWN_MAX: usize = 64;

/// The devices.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// When the document was read.
    read_at: BTreeMap<DeviceKey, Instant>,
    /// The commits that were taken, the newest last.
    own: VecDeque<String>,
}

impl Ahead {
    /// A commit is taken. Where the branch was set back to it, what came in between is known no more.
    pub(super) fn take(&mut self, revision: &str) {
        if self.own.iter().any(|own| own == revision) {
            self.own.clear();
        }
        self.own.push_back(revision.to_owned());
        self.own.drain(..self.own.len().saturating_sub(OWN_MAX));
    }

    /// A device's document was read at `at`, in the place of `before`.
    pub(super) fn see(
        &mut self,
        key: &DeviceKey,
        fleet: &Fleet,
        (before, now): (Option<&Document>, Option<&Document>),
        at: Instant,
    ) {
        let Some(document) = now.filter(|_| now != before) else { return };
        if self.is_own(key, fleet, document) {
            self.read_at.remove(key);
        } else if before.is_none_or(|before| before.source != document.source) {
            self.read_at.insert(key.clone(), at);
        }
    }

    /// Whether a document says of Git what one of our commits says. A publisher that knows a commit with a folder for the
    /// device never calls the document a request's.
    fn is_own(&self, key: &DeviceKey, fleet: &Fleet, document: &Document) -> bool {
        match document.source.kind {
            SourceKind::Git => self.own.contains(&document.source.revision),
            _ => !fleet.devices.contains_key(key),
        }
    }

    /// The branch was asked at `asked`, and the commit that was taken last is its newest: what was read before is older. Gives
    /// those devices.
    pub(super) fn overtake(&mut self, asked: Instant) -> Vec<DeviceKey> {
        self.read_at.extract_if(.., |_, read_at| *read_at <= asked).map(|(key, _)| key).collect()
    }

    pub(super) fn has(&self, key: &DeviceKey) -> bool {
        self.read_at.contains_key(key)
    }

    pub(super) fn len(&self) -> usize {
        self.read_at.len()
    }
}
